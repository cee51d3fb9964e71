package client_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/wire"
)

// queryServer is one live query of a fake, kept naively.
type queryServer struct {
	f *fake

	mu      sync.Mutex // guards below
	qid     string
	epoch   string
	version uint64
	rows    []string // objects with an id and a text n
	patches []string // up to version
	since   []*wire.Since
	mute    bool // answers nothing
	refuse  *wire.Error
}

func serveQuery(f *fake) *queryServer {
	s := &queryServer{f: f, qid: "8f3a", epoch: "e.1", version: 1}
	f.answer = func(c *fakeConn, m command) bool {
		if m.Query == "" {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.since = append(s.since, m.Since)
		switch {
		case s.mute:
			return true
		case s.refuse != nil:
			c.say(string(wire.Refused(wire.Command{Type: m.Type, SID: m.SID}, s.refuse).Encode()))
			return true
		}
		r := wire.Reply{Type: wire.TypeSubscribed, SID: m.SID, QID: s.qid}
		if m.Since == nil {
			c.say(string(r.Encode()))
			c.say(s.snapshotLocked())
			return true
		}
		missing := int(s.version - m.Since.Offset)
		ok := m.Since.Epoch == s.epoch && m.Since.Offset <= s.version && missing <= len(s.patches)
		r.Recovered = &ok
		if !ok {
			c.say(string(r.Encode()))
			c.say(s.snapshotLocked())
			return true
		}
		c.say(string(r.At(m.Since.Offset, s.epoch).Encode()))
		for _, p := range s.patches[len(s.patches)-missing:] {
			c.say(p)
		}
		return true
	}
	return s
}

// set changes the server.
func (s *queryServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// asked returns the positions of the subscribes.
func (s *queryServer) asked() []*wire.Since {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.since)
}

func (s *queryServer) snapshot() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snapshotLocked()
}

func (s *queryServer) sum() string {
	var sum uint64
	for _, r := range s.rows {
		canonical, err := row.CanonicalJSON([]byte(r))
		if err != nil {
			panic(err)
		}
		sum += row.Checksum(canonical)
	}
	return fmt.Sprintf("%016x", sum)
}

func (s *queryServer) snapshotLocked() string {
	return fmt.Sprintf(`{"type":"snapshot","qid":%q,"version":%d,"epoch":%q,"key":["id"],"rows":[%s],"sum":%q}`, s.qid, s.version, s.epoch, strings.Join(s.rows, ","), s.sum())
}

func object(id int, text string) string { return fmt.Sprintf(`{"id":%d,"n":%q}`, id, text) }

func idOf(object string) int {
	var r struct{ ID int }
	if err := json.Unmarshal([]byte(object), &r); err != nil {
		panic(err)
	}
	return r.ID
}

// put and del change the rows and return the op.
func (s *queryServer) put(id int, text string, at int) string {
	s.del(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	at = min(at, len(s.rows))
	s.rows = slices.Insert(s.rows, at, object(id, text))
	return fmt.Sprintf(`{"put":%s,"at":%d}`, object(id, text), at)
}

func (s *queryServer) del(id int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rows = slices.DeleteFunc(s.rows, func(r string) bool { return idOf(r) == id })
	return fmt.Sprintf(`{"del":%d}`, id)
}

// commit makes the patch of some ops.
func (s *queryServer) commit(ops ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	p := fmt.Sprintf(`{"type":"patch","qid":%q,"version":%d,"ops":[%s],"sum":%q}`, s.qid, s.version, strings.Join(ops, ","), s.sum())
	s.patches = append(s.patches, p)
	return p
}

// holds fails unless the query has the server's rows.
func (s *queryServer) holds(q *client.LiveQuery) {
	s.f.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := texts(q.Rows()); !slices.Equal(got, s.rows) || !q.Live() {
		s.f.t.Errorf("live %v, rows %v, want %v", q.Live(), got, s.rows)
	}
}

func texts(rows []json.RawMessage) []string {
	var out []string
	for _, r := range rows {
		out = append(out, string(r))
	}
	return out
}

func follow(t *testing.T, r *running, input any, opts client.QueryOptions) *client.LiveQuery {
	t.Helper()
	q, err := r.Query("board", input, opts)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// S47: a snapshot, then patches; the callback sees each version with what led there.
func TestS47_SnapshotThenPatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		s.put(1, "a", 0)
		r := f.run(f.options())
		defer f.end(r)
		var got []client.Result
		q := follow(t, r, map[string]string{"list": "7"}, client.QueryOptions{OnChange: func(r client.Result) { got = append(got, r) }})
		pass(0)
		c := f.conn(0)
		c.say(s.commit(s.put(9, "b", 0), s.put(1, "c", 1)))
		c.say(s.commit(s.del(9)))
		pass(0)
		s.holds(q)
		ask := c.commands(wire.TypeSubscribe)
		if len(ask) != 1 || ask[0].Query != "board" || string(ask[0].Input) != `{"list":"7"}` || ask[0].Since != nil {
			t.Errorf("asked %+v", ask)
		}
		raw := func(s ...string) (out []json.RawMessage) {
			for _, r := range s {
				out = append(out, json.RawMessage(r))
			}
			return out
		}
		want := []client.Result{
			{Rows: raw(object(1, "a")), Version: 1, Live: true},
			{Rows: raw(object(9, "b"), object(1, "c")), Version: 2, Live: true, Ops: []client.Op{
				{Key: json.RawMessage("9"), Row: json.RawMessage(object(9, "b"))}, {Key: json.RawMessage("1"), Row: json.RawMessage(object(1, "c")), At: 1},
			}},
			{Rows: raw(object(1, "c")), Version: 3, Live: true, Ops: []client.Op{{Key: json.RawMessage("9")}}},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		q.Close()
		pass(0)
		if n := len(c.commands(wire.TypeUnsubscribe)); n != 1 || q.Live() {
			t.Errorf("%d unsubscribes, live %v", n, q.Live())
		}
		c.say(s.commit(s.put(3, "x", 0)))
		pass(0)
		if len(got) != 3 {
			t.Error("a callback after Close")
		}
	})
}

// S28: on a later connection only what is missing comes; the rows stay meanwhile.
func TestS28_ResumesWithItsPosition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		s.put(1, "a", 0)
		r := f.run(f.options())
		defer f.end(r)
		live := 0
		q := follow(t, r, nil, client.QueryOptions{OnChange: func(r client.Result) {
			if r.Live {
				live++
			}
		}})
		pass(0)
		_ = f.conn(0).conn.CloseNow()
		pass(0)
		if q.Live() || len(q.Rows()) != 1 {
			t.Errorf("without a connection: live %v, %d rows", q.Live(), len(q.Rows()))
		}
		s.commit(s.put(2, "b", 1))
		s.commit(s.del(1))
		pass(time.Second)
		s.holds(q)
		if at := s.asked()[1]; at == nil || at.Offset != 1 || at.Epoch != "e.1" {
			t.Errorf("since %+v", at)
		}
		if live != 4 { // the snapshot, resumed, two patches
			t.Errorf("OnChange was called %d times", live)
		}
		// Nothing was missed.
		_ = f.conn(1).conn.CloseNow()
		pass(time.Second)
		s.holds(q)
		// The server has lost it.
		_ = f.conn(2).conn.CloseNow()
		s.set(func() { s.epoch, s.version, s.patches = "e.2", 7, nil })
		s.put(4, "d", 0)
		pass(2 * time.Second)
		s.holds(q)
	})
}

// S20: a patch that is not the next one is asked for; what comes before the answer changes nothing.
func TestS20_GapIsRepaired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		r := f.run(f.options())
		defer f.end(r)
		q := follow(t, r, nil, client.QueryOptions{})
		pass(0)
		c := f.conn(0)
		first := s.commit(s.put(1, "a", 0))
		c.say(first)
		pass(0)
		s.commit(s.put(2, "b", 0))
		s.set(func() { s.mute = true })
		c.say(s.commit(s.put(3, "c", 0)))
		c.say(s.commit(s.put(4, "d", 0)))
		c.say(first) // old
		pass(0)
		if len(s.asked()) != 2 || s.asked()[1].Offset != 2 || q.Live() || len(q.Rows()) != 1 {
			t.Errorf("asked %d times, live %v, %d rows", len(s.asked()), q.Live(), len(q.Rows()))
		}
		// The answer does not come: it is asked again with a beat.
		s.set(func() { s.mute = false })
		pass(31 * time.Second)
		s.holds(q)
		if q.Drifts() != 0 {
			t.Errorf("%d drifts", q.Drifts())
		}
	})
}

// S48: another checksum, or an op that does not fit, is a drift: the rows are read anew, and shown as they were meanwhile.
func TestS48_DriftIsReadAnew(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]string{
		"sum":   `{"type":"patch","qid":"8f3a","version":2,"ops":[{"put":{"id":5},"at":0}],"sum":"0000000000000000"}`,
		"del":   `{"type":"patch","qid":"8f3a","version":2,"ops":[{"del":77}],"sum":"%s"}`,
		"at":    `{"type":"patch","qid":"8f3a","version":2,"ops":[{"put":{"id":5},"at":3}],"sum":"%s"}`,
		"minus": `{"type":"patch","qid":"8f3a","version":2,"ops":[{"put":{"id":5},"at":-1}],"sum":"%s"}`,
		"key":   `{"type":"patch","qid":"8f3a","version":2,"ops":[{"put":{"name":5},"at":0}],"sum":"%s"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				s := serveQuery(f)
				s.put(1, "a", 0)
				r := f.run(f.options())
				defer f.end(r)
				q := follow(t, r, nil, client.QueryOptions{})
				pass(0)
				if strings.Contains(broken, "%s") {
					broken = fmt.Sprintf(broken, s.sum())
				}
				s.set(func() { s.mute = true })
				f.conn(0).say(broken)
				pass(0)
				if at := s.asked()[1]; at == nil || at.Offset != 0 || at.Epoch != "" || q.Drifts() != 1 || q.Live() || len(q.Rows()) != 1 {
					t.Errorf("since %+v, %d drifts, live %v, %d rows", at, q.Drifts(), q.Live(), len(q.Rows()))
				}
				s.set(func() { s.mute = false })
				s.commit(s.put(2, "b", 0))
				pass(31 * time.Second)
				s.holds(q)
			})
		})
	}
}

// S48: where the snapshot already has another sum, asking again does not help: the client goes on, and does not hammer.
func TestS48_WrongSnapshotIsNotAskedForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		r := f.run(f.options())
		defer f.end(r)
		q := follow(t, r, nil, client.QueryOptions{})
		pass(0)
		c := f.conn(0)
		c.say(`{"type":"snapshot","qid":"8f3a","version":4,"epoch":"e.1","key":["id"],"rows":[{"id":1}],"sum":"0000000000000001"}`)
		c.say(`{"type":"patch","qid":"8f3a","version":5,"ops":[{"put":{"id":2},"at":1}],"sum":"0000000000000002"}`)
		pass(0)
		if len(s.asked()) != 1 || q.Drifts() != 1 || len(q.Rows()) != 2 || !q.Live() {
			t.Errorf("asked %d times, %d drifts, %d rows, live %v", len(s.asked()), q.Drifts(), len(q.Rows()), q.Live())
		}
	})
}

// S44: refusals are told; with a delay the client asks again, without one on the next connection. The rows stay.
func TestS44_RefusedAndEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		s.put(1, "a", 0)
		s.refuse = &wire.Error{Code: wire.CodeDatabaseUnavailable, Message: "away", Retry: time.Second}
		r := f.run(f.options())
		defer f.end(r)
		var told []wire.Code
		q := follow(t, r, nil, client.QueryOptions{OnRefused: func(e *wire.Error) { told = append(told, e.Code) }})
		pass(0)
		s.set(func() { s.refuse = nil })
		pass(3 * time.Second)
		s.holds(q)

		sid := f.conn(0).commands(wire.TypeSubscribe)[0].SID
		f.conn(0).say(string(wire.Reply{Type: wire.TypeUnsubscribed, SID: sid, Code: wire.CodeTopicForbidden}.Encode()))
		pass(time.Minute)
		if q.Live() || len(q.Rows()) != 1 || len(s.asked()) != 2 {
			t.Errorf("live %v, %d rows, asked %d times", q.Live(), len(q.Rows()), len(s.asked()))
		}
		_ = f.conn(0).conn.CloseNow()
		pass(3 * time.Second)
		s.holds(q)
		if diff := cmp.Diff([]wire.Code{wire.CodeDatabaseUnavailable, wire.CodeTopicForbidden}, told); diff != "" {
			t.Error(diff)
		}
	})
}

// S04: when rights change the server moves the subscription to another qid; what still comes of the old one is not for it.
func TestS04_AnotherQID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		s.put(1, "a", 0)
		r := f.run(f.options())
		defer f.end(r)
		q := follow(t, r, nil, client.QueryOptions{})
		pass(0)
		c := f.conn(0)
		sid := c.commands(wire.TypeSubscribe)[0].SID
		old := s.commit(s.put(2, "secret", 0))
		s.set(func() { s.qid, s.epoch, s.version, s.rows = "beef", "e.9", 3, nil })
		c.say(string(wire.Reply{Type: wire.TypeSubscribed, SID: sid, QID: s.qid}.Encode()))
		c.say(old)
		pass(0)
		if q.Live() {
			t.Error("live before the snapshot")
		}
		c.say(s.snapshot())
		c.say(`{"type":"patch","qid":"8f3a","version":4,"ops":[{"put":{"id":2},"at":0}],"sum":"0000000000000000"}`)
		pass(0)
		s.holds(q)
		if q.Drifts() != 0 {
			t.Errorf("%d drifts", q.Drifts())
		}
	})
}

// S14: random commits, losses, repetitions and cuts: whenever the server has said everything, the rows are its rows.
func TestS14_RandomAgainstTheServer(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		}()
		rnd := rand.New(rand.NewPCG(seed, 1))
		f := newFake(t)
		s := serveQuery(f)
		r := f.run(f.options())
		defer f.end(r)
		q := follow(t, r, nil, client.QueryOptions{})
		pass(0)
		conns := 1
		for range 400 {
			c := f.conn(conns - 1)
			var ops []string
			for range 1 + rnd.IntN(3) {
				if len(s.rows) > 0 && rnd.IntN(3) == 0 {
					ops = append(ops, s.del(idOf(s.rows[rnd.IntN(len(s.rows))])))
				} else {
					ops = append(ops, s.put(rnd.IntN(12), fmt.Sprint(rnd.IntN(100)), rnd.IntN(12)))
				}
			}
			p := s.commit(ops...)
			switch rnd.IntN(12) {
			case 0: // lost
				continue
			case 1:
				c.say(p)
			case 2:
				c.say(s.snapshot())
			case 3:
				_ = c.conn.CloseNow()
				conns++
				pass(time.Minute)
			case 4:
				s.set(func() { s.epoch, s.patches = s.epoch+"x", nil })
				c.say(s.snapshot())
			case 5:
				s.set(func() { s.patches = s.patches[len(s.patches)/2:] })
			}
			c = f.conn(conns - 1)
			c.say(p)
			pass(0)
			if s.version != q.Result().Version && len(s.patches) > 0 {
				c.say(s.patches[len(s.patches)-1])
				pass(0)
			}
			if q.Result().Version == s.version {
				s.holds(q)
			}
			if t.Failed() {
				return
			}
		}
		f.conn(conns - 1).say(s.snapshot())
		pass(0)
		s.holds(q)
		if q.Drifts() != 0 {
			t.Errorf("%d drifts", q.Drifts())
		}
	})
}

// Several columns make a key, and what a program may not ask for.
func TestQuery_KeysAndArguments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		s := serveQuery(f)
		r := f.run(f.options())
		defer f.end(r)
		q := follow(t, r, struct{}{}, client.QueryOptions{})
		for _, input := range []any{7, []int{1}, "x", func() {}} {
			if _, err := r.Query("board", input, client.QueryOptions{}); err == nil {
				t.Errorf("input %T was taken", input)
			}
		}
		if _, err := r.Query("", nil, client.QueryOptions{}); err == nil {
			t.Error("no name was taken")
		}
		pass(0)
		s.rows = []string{`{"a":"x","b":1,"c":[1e2]}`, `{"b":2,"a":"x"}`}
		c := f.conn(0)
		c.say(fmt.Sprintf(`{"type":"snapshot","qid":"8f3a","version":2,"epoch":"e","key":["a","b"],"rows":[%s],"sum":%q}`, strings.Join(s.rows, ","), s.sum()))
		s.set(func() { s.rows = s.rows[:1] })
		c.say(fmt.Sprintf(`{"type":"patch","qid":"8f3a","version":3,"ops":[{"del":["x", 2]}],"sum":%q}`, s.sum()))
		pass(0)
		s.holds(q)
	})
}

// S48: the checksum cases that all clients share.
func TestS48_Vectors(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../spec/vectors/order.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Checksums []struct {
			Row      json.RawMessage
			Checksum string
			Sum      string
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil || len(v.Checksums) == 0 {
		t.Fatal(err, len(v.Checksums))
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		serveQuery(f)
		r := f.run(f.options())
		defer f.end(r)
		q := follow(t, r, nil, client.QueryOptions{})
		pass(0)
		for i, c := range v.Checksums {
			f.conn(0).say(fmt.Sprintf(`{"type":"snapshot","qid":"8f3a","version":%d,"epoch":"e","key":["id"],"rows":[%s],"sum":%q}`, i+5, c.Row, c.Checksum))
			pass(0)
			if q.Result().Version != uint64(i+5) || q.Drifts() != 0 {
				t.Errorf("%s: version %d, %d drifts", c.Row, q.Result().Version, q.Drifts())
			}
		}
	})
}
