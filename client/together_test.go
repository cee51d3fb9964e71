package client_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/wire"
)

// serveQueries is several live queries of a fake, each with one row.
func serveQueries(f *fake, names ...string) map[string]*queryServer {
	servers, answers := map[string]*queryServer{}, map[string]func(*fakeConn, command) bool{}
	for _, name := range names {
		s := serveQuery(f)
		s.qid = "q-" + name
		s.put(1, "0", 0)
		servers[name], answers[name] = s, f.answer
	}
	f.answer = func(c *fakeConn, m command) bool { return answers[m.Query] != nil && answers[m.Query](c, m) }
	return servers
}

// of is a frame of a commit that changes several queries.
func of(commit int, frame string) string {
	return fmt.Sprintf(`%s,"commit":%d}`, strings.TrimSuffix(frame, "}"), commit)
}

func settled(commit int) string { return string(wire.Settled(uint64(commit))) }

// shown is the text of the only row.
func shown(q *client.LiveQuery) string {
	var r struct{ N string }
	if rows := q.Rows(); len(rows) != 1 || json.Unmarshal(rows[0], &r) != nil {
		return fmt.Sprintf("%s", rows)
	}
	return r.N
}

// pair is a client of two live queries, a and b.
type pair struct {
	f       *fake
	servers map[string]*queryServer
	r       *running

	mu   sync.Mutex // guards below
	a, b *client.LiveQuery
	told []string // what a and b showed at each callback
}

func newPair(t *testing.T) *pair {
	p := &pair{f: newFake(t)}
	p.servers = serveQueries(p.f, "a", "b")
	p.r = p.f.run(p.f.options())
	note := client.QueryOptions{OnChange: func(client.Result) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.a != nil && p.b != nil {
			p.told = append(p.told, shown(p.a)+shown(p.b))
		}
	}}
	p.follow(&p.a, "a", note)
	p.follow(&p.b, "b", note)
	pass(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = nil
	return p
}

func (p *pair) follow(q **client.LiveQuery, name string, opts client.QueryOptions) {
	p.f.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if *q, err = p.r.Query(name, nil, opts); err != nil {
		p.f.t.Fatal(err)
	}
}

// patch commits a text as the only row, and returns the frame.
func (p *pair) patch(name, text string) string {
	s := p.servers[name]
	return s.commit(s.put(1, text, 0))
}

func (p *pair) say(frames ...string) {
	_, conns := p.f.count()
	for _, frame := range frames {
		p.f.conn(conns - 1).say(frame)
	}
	pass(0)
}

func (p *pair) expect(what, now string, told ...string) {
	p.f.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := shown(p.a) + shown(p.b); got != now || !slices.Equal(p.told, told) {
		p.f.t.Errorf("%s: shows %s, want %s; told %v, want %v", what, got, now, p.told, told)
	}
	p.told = nil
}

// S47: what one commit changed is shown in both queries at once, and nothing of it before.
func TestS47_ListsChangeTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		defer p.f.end(p.r)
		p.say(p.patch("a", "1"))
		p.expect("a commit of one query", "10", "10")
		p.say(of(1, p.patch("a", "2")))
		p.expect("half of a commit", "10")
		if !p.a.Live() || p.a.Result().Version != 2 {
			t.Errorf("%+v", p.a.Result())
		}
		p.say(of(1, p.patch("b", "2")))
		p.expect("all of it, but for the word", "10")
		p.say(settled(1))
		p.expect("whole", "22", "22", "22")
		p.say(of(2, p.patch("a", "3")), p.patch("a", "4"), p.patch("b", "3"))
		p.expect("a later patch waits for an earlier one of its query", "23", "23")
		p.say(of(2, p.patch("b", "4")), settled(7), settled(2))
		p.expect("and comes with it", "44", "44", "44", "44")
		// The third is whole before the second, which a has not shown yet.
		p.say(of(3, p.patch("a", "5")), of(4, p.patch("a", "6")), of(4, p.patch("b", "6")), settled(4))
		p.expect("commits in their order", "44")
		p.say(settled(3))
		p.expect("both", "66", "66", "66", "66")
		s := p.servers["a"]
		s.put(1, "7", 0)
		s.set(func() { s.version++ })
		p.say(of(5, s.snapshot()))
		p.expect("a snapshot in the place of a patch", "66")
		p.say(of(5, p.patch("b", "7")), settled(5))
		p.expect("waits as one", "77", "77", "77")
		for _, s := range p.servers {
			if len(s.asked()) != 1 {
				t.Errorf("asked %d times", len(s.asked()))
			}
		}
	})
}

// S47: nothing waits longer than a quarter of a second, and not more than 256 frames; later commits wait on.
func TestS47_TheWaitIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		defer p.f.end(p.r)
		p.say(of(1, p.patch("a", "1")))
		pass(100 * time.Millisecond)
		p.say(of(2, p.patch("a", "2")), of(2, p.patch("b", "2")))
		pass(149 * time.Millisecond)
		p.expect("before", "00")
		pass(time.Millisecond)
		p.expect("what has waited too long", "10", "10")
		pass(99 * time.Millisecond)
		p.expect("not what came later", "10")
		pass(time.Millisecond)
		p.expect("that neither", "22", "22", "22")
		p.say(settled(1), settled(2), of(3, p.patch("b", "3")), settled(3))
		p.expect("a word that comes late changes nothing", "23", "23")
		for i := range 256 {
			p.say(of(4+i, p.patch("a", strconv.Itoa(i))))
		}
		p.expect("256 frames", "23")
		p.say(of(300, p.patch("a", "x")))
		if p.expectTold(257); shown(p.a) != "x" {
			t.Errorf("shows %s", shown(p.a))
		}
	})
}

func (p *pair) expectTold(n int) {
	p.f.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.told) != n {
		p.f.t.Errorf("told %d times, want %d", len(p.told), n)
	}
	p.told = nil
}

// S47: with one live query there is nothing to wait for; nor with two of which the server has refused one.
func TestS47_OneQueryWaitsForNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		servers := serveQueries(f, "a", "b")
		servers["b"].refuse = &wire.Error{Code: wire.CodeTopicForbidden, Message: "no"}
		r := f.run(f.options())
		defer f.end(r)
		a, err := r.Query("a", nil, client.QueryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Query("b", nil, client.QueryOptions{OnRefused: func(*wire.Error) {}}); err != nil {
			t.Fatal(err)
		}
		pass(0)
		s := servers["a"]
		f.conn(0).say(of(1, s.commit(s.put(1, "x", 0))))
		pass(0)
		s.holds(a)
	})
}

// S47, S28: what waits when the connection is lost is given up, and comes on the next one; the position was never beyond it.
func TestS47_S28_WhatWaitsIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t)
		defer p.f.end(p.r)
		p.say(of(1, p.patch("a", "1")), of(1, p.patch("b", "1")))
		_ = p.f.conn(0).conn.CloseNow()
		pass(10 * time.Millisecond)
		p.expect("lost", "00")
		pass(time.Second)
		for name, s := range p.servers {
			if at := s.asked()[1]; at == nil || at.Offset != 1 {
				t.Errorf("%s: since %+v", name, at)
			}
		}
		if got := shown(p.a) + shown(p.b); got != "11" {
			t.Errorf("shows %s", got)
		}
		p.expectTold(4) // resumed, and a patch each
		// A query that is closed meanwhile keeps no other waiting for long, and is told nothing.
		p.say(of(2, p.patch("a", "2")), of(2, p.patch("b", "2")))
		p.b.Close()
		pass(250 * time.Millisecond)
		p.expect("closed", "21", "21")
		// One that is ended: what still waits is of no use.
		p.follow(&p.b, "b", client.QueryOptions{OnRefused: func(*wire.Error) {}})
		pass(0)
		p.say(of(3, p.patch("a", "3")), of(3, p.patch("b", "3")), `{"type":"unsubscribed","sid":"3","code":"TOPIC_FORBIDDEN"}`, settled(3))
		p.expect("ended", "32", "32")
	})
}

// S47: random commits over three queries, whose frames come in any order that keeps that of each query, and each word somewhere behind its frames. What they show together is always one state.
func TestS47_TheSumIsConstant(t *testing.T) {
	t.Parallel()
	for range 5 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) { transfers(t, seed) })
	}
}

func transfers(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	f := newFake(t)
	names := []string{"a", "b", "c"}
	servers := serveQueries(f, names...)
	r := f.run(f.options())
	defer f.end(r)
	queries := map[string]*client.LiveQuery{}
	var callbacks atomic.Int64
	sum := func() (sum int) {
		for _, q := range queries {
			n, err := strconv.Atoi(strings.Split(shown(q), " ")[0])
			if err != nil {
				t.Error(err)
			}
			sum += n
		}
		return sum
	}
	var ready atomic.Bool
	for _, name := range names {
		var err error
		queries[name], err = r.Query(name, nil, client.QueryOptions{OnChange: func(client.Result) {
			if ready.Load() {
				callbacks.Add(1)
				if s := sum(); s != 0 {
					t.Errorf("seed %d: the sum is %d", seed, s)
				}
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	pass(0)
	ready.Store(true)
	c := f.conn(0)
	balance := map[string]int{}
	lanes := map[string][]string{}
	left := map[int]int{} // frames of a commit that have not been said
	commit := 0
	for step := range 400 {
		if step < 300 && len(left) < 40 {
			commit++
			mine := slices.Clone(names)
			rng.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
			mine = mine[:1+rng.IntN(3)]
			amount := rng.IntN(100)
			for i, name := range mine {
				if len(mine) > 1 {
					balance[name] += []int{amount, -amount, 0}[i]
				}
				s := servers[name]
				frame := s.commit(s.put(1, fmt.Sprint(balance[name], " ", commit), 0))
				if len(mine) > 1 {
					frame = of(commit, frame)
					left[commit]++
				}
				lanes[name] = append(lanes[name], frame)
			}
		}
		for range 1 + rng.IntN(6) {
			name := names[rng.IntN(3)]
			if len(lanes[name]) > 0 {
				frame := lanes[name][0]
				lanes[name] = lanes[name][1:]
				c.say(frame)
				var m struct{ Commit int }
				_ = json.Unmarshal([]byte(frame), &m)
				if m.Commit > 0 {
					left[m.Commit]--
				}
			}
		}
		for n, frames := range left {
			if frames == 0 && rng.IntN(3) > 0 {
				c.say(settled(n))
				delete(left, n)
			}
		}
	}
	for _, name := range names {
		for _, frame := range lanes[name] {
			c.say(frame)
		}
	}
	for n := range left {
		c.say(settled(n))
	}
	pass(0)
	for _, name := range names {
		servers[name].holds(queries[name])
		if n := queries[name].Drifts(); n != 0 {
			t.Errorf("%d drifts", n)
		}
	}
	if n := callbacks.Load(); n < 300 || sum() != 0 {
		t.Errorf("seed %d: %d callbacks", seed, n)
	}
}

// S47: transfers between the accounts of two live queries, through a real node: their sum is the same whenever one of them changes.
func TestS47_TransfersThroughANode(t *testing.T) {
	t.Parallel()
	name := row.Name{Schema: "public", Table: "accounts"}
	typ, _ := row.PostgresType(20, row.C)
	db := feed.NewMemory(&row.Table{Name: name, Key: []int{0}, Columns: []row.Column{{Name: "id", Type: typ, NotNull: true}, {Name: "owner", Type: typ}, {Name: "balance", Type: typ}}})
	account := func(id, owner, balance int64) feed.Write {
		return feed.Write{Table: name, New: row.Row{row.IntValue(id), row.IntValue(owner), row.IntValue(balance)}}
	}
	db.Commit(account(1, 1, 500), account(2, 2, 500))
	s := startNode(t, "", tidewire.Options{Database: db})
	if err := s.Query(tidewire.Query{Definition: query.Definition{Name: "of", From: "accounts", Where: "owner = $owner"}, Guard: tidewire.Public}); err != nil {
		t.Fatal(err)
	}
	var queries [3][2]*client.LiveQuery
	var ready atomic.Bool
	var callbacks atomic.Int64
	sum := func(qs [2]*client.LiveQuery) (sum int64) {
		for _, q := range qs {
			for _, raw := range q.Rows() {
				var r struct{ Balance int64 }
				if err := json.Unmarshal(raw, &r); err != nil {
					t.Error(err)
				}
				sum += r.Balance
			}
		}
		return sum
	}
	for i := range queries {
		c := s.connect(client.Options{})
		for k := range 2 {
			q, err := c.Query("of", map[string]int{"owner": 1 + k}, client.QueryOptions{OnChange: func(client.Result) {
				if ready.Load() {
					callbacks.Add(1)
					if n := sum(queries[i]); n != 1000 {
						t.Errorf("the sum is %d", n)
					}
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			queries[i][k] = q
		}
	}
	current := func(balance int64) bool {
		want := fmt.Sprintf(`"balance":%d,`, balance)
		for _, qs := range queries {
			for _, q := range qs {
				if !q.Live() {
					return false
				}
			}
			if rows := qs[0].Rows(); len(rows) != 1 || !strings.Contains(string(rows[0]), want) {
				return false
			}
		}
		return true
	}
	eventually(t, "all are live", func() bool { return current(500) })
	ready.Store(true)
	balance := int64(500)
	for i := range 20 {
		for range 20 {
			balance += rand.Int64N(201) - 100
			db.Commit(account(1, 1, balance), account(2, 2, 1000-balance))
		}
		balance = 1000 + int64(i)
		db.Commit(account(1, 1, balance), account(2, 2, 1000-balance))
		eventually(t, "the last transfer", func() bool { return current(balance) })
	}
	if n := callbacks.Load(); n < 3*2*200 {
		t.Errorf("%d callbacks", n)
	}
}
