package live

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
)

// shared is a database that several engines follow, as several nodes do.
type shared struct {
	*feed.Memory
	mu      sync.Mutex
	sinks   []feed.Sink
	deliver func(*feed.Tx) *feed.Tx
}

func (s *shared) Run(ctx context.Context, sink feed.Sink) error {
	s.mu.Lock()
	s.sinks = append(s.sinks, sink)
	sink.Reset("", "start")
	s.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (s *shared) Commit(tx *feed.Tx) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deliver != nil {
		tx = s.deliver(tx)
	}
	for _, sink := range s.sinks {
		sink.Commit(tx)
	}
}

func (s *shared) Reset(feed.Position, string) {}

// nodes are engines over one database.
func nodes(t *testing.T, n int, o Options, declare func(e *Engine)) (db *shared, engines []*Engine) {
	db = &shared{Memory: feed.NewMemory(items("items"), items("other"), pairs())}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	all.Go(func() { _ = db.Memory.Run(ctx, db) })
	o.Database, o.Logger = db, slog.New(slog.DiscardHandler)
	for range n {
		e := New(o)
		declare(e)
		all.Go(func() { _ = e.Run(ctx) })
		<-e.following
		engines = append(engines, e)
	}
	synctest.Wait()
	return db, engines
}

// visitor is a client that takes what it has from node to node.
func visitor(t *testing.T, en *Entry) *client {
	c := &client{b: &bed{t: t}, en: en}
	c.take(en.Snapshot())
	return c
}

// visit brings a client's rows to another node, and reports whether it got there by a delta.
func (c *client) visit(en *Entry) bool {
	f, ok := en.Delta(c.sum())
	if !ok {
		return false
	}
	c.en, c.version, c.epoch = en, f.Version-1, en.Epoch()
	c.take(f)
	return true
}

func (c *client) same(en *Entry) {
	c.b.t.Helper()
	want := visitor(c.b.t, en)
	if got, want := fmt.Sprint(c.rows), fmt.Sprint(want.rows); got != want {
		c.b.t.Errorf("%s %s\nshows %s\nis    %s", en.ident.t.def.Name, en.ident.text, got, want)
	}
}

// TestS29_AnyNodeServesADelta: what one engine's frames have made is led on by another one, without a read, in an entry that began after the client had left the first.
func TestS29_AnyNodeServesADelta(t *testing.T) {
	bubble(t, func(t *testing.T) {
		db, e := nodes(t, 2, Options{}, func(e *Engine) {
			for _, d := range []query.Definition{three, byOrg} {
				if err := e.Declare(d); err != nil {
					t.Fatal(err)
				}
			}
		})
		for i := range int64(40) {
			db.Memory.Commit(put(item(i, i%2, i, "t")))
		}
		get := func(e *Engine, name, input string) *Entry {
			en, err := e.Acquire(t.Context(), name, json.RawMessage(input), nil)
			if err != nil {
				t.Fatal(err)
			}
			return en
		}
		first, org := get(e[0], "three", ""), get(e[0], "byOrg", `{"org":1}`)
		db.Memory.Commit(put(item(1, 1, 0, "t")))
		synctest.Wait()
		a, b := visitor(t, first), visitor(t, org)
		db.Memory.Commit(del(0), put(item(9, 1, 1, "new")))
		db.Memory.Commit(put(item(2, 0, 90, "t")))
		db.Memory.Commit(put(item(50, 1, 91, "t")), put(item(3, 0, 1, "t")))
		synctest.Wait()
		second, org2 := get(e[1], "three", ""), get(e[1], "byOrg", `{"org":1}`)
		reads := e[1].Stats().Selects
		if second.ID() != first.ID() || second.Epoch() == first.Epoch() {
			t.Errorf("entries %s %s and %s %s", first.ID(), first.Epoch(), second.ID(), second.Epoch())
		}
		if !a.visit(second) || !b.visit(org2) {
			t.Fatal("there is no delta")
		}
		a.same(first)
		b.same(org)
		if got, want := a.patches[0].String()+" | "+b.patches[0].String(), "-0 -2 +3@1 +9@2 | -3 +9@3 +50@19"; got != want {
			t.Errorf("patches %q, want %q", got, want)
		}
		if again, ok := org2.Delta(b.patches[0].Sum); !ok || strings.Contains(string(again.Payload), "put") {
			t.Errorf("to who has everything: %s", again.Payload)
		}
		db.Memory.Commit(del(9)) // and it goes on from there
		synctest.Wait()
		frames, ok := second.Since(a.version, 0)
		if !ok || len(frames) != 1 {
			t.Fatalf("%d frames, %v", len(frames), ok)
		}
		a.take(frames[0])
		a.same(first)
		if n := e[1].Stats().Selects; n != reads {
			t.Errorf("%d reads", n-reads)
		}
		for _, sum := range []string{"", "zz", "0000000000000001"} {
			if f, ok := second.Delta(sum); ok {
				t.Errorf("%q: %s", sum, f.Payload)
			}
		}
		db.Memory.Commit(feed.Write{Table: itemsName}, put(item(7, 1, 1, "t"))) // what was there is not known
		synctest.Wait()
		if a.visit(second) {
			t.Error("a delta over a truncation")
		}
		for _, en := range []*Entry{first, org, second, org2} {
			en.Release()
		}
	})
}

// TestS29_NoDeltaIsWrong takes clients from node to node while random transactions come: each delta leads to what the entry shows.
func TestS29_NoDeltaIsWrong(t *testing.T) {
	seed := random(t).Uint64()
	bubble(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		defs := randomDefinitions(rng, 30)
		policy := func(_ json.RawMessage, r PolicyRow) (bool, error) { return r.Row[0].Int()%3 > 0, nil }
		db, e := nodes(t, 2, Options{RecentBytes: 256 << 10, Linger: -1}, func(e *Engine) {
			for _, d := range defs {
				if err := e.Declare(d); err != nil {
					t.Fatal(err)
				}
			}
			if err := e.DeclareWith(query.Definition{Name: "policy", From: "items", Order: "price", Limit: 5}, policy); err != nil {
				t.Fatal(err)
			}
		})
		defs = append(defs, query.Definition{Name: "policy"})
		db.deliver = func(tx *feed.Tx) *feed.Tx { return forget(rng, tx) }
		type place struct {
			*client
			name, input string
		}
		var clients []*place
		tried, led := map[string]int{}, map[string]int{}
		for step := range 1500 {
			switch k := rng.IntN(10); {
			case k < 6:
				db.Memory.Commit(randomWrites(rng, 50)...)
			case k < 8 || len(clients) < 20:
				d := pick(rng, defs...)
				p := &place{name: d.Name, input: inputFor(rng, d.Where)}
				en, err := e[rng.IntN(2)].Acquire(t.Context(), p.name, json.RawMessage(p.input), nil)
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				p.client = visitor(t, en)
				clients = append(clients, p)
				if rng.IntN(2) == 0 {
					en.Release()
				} else {
					defer en.Release()
				}
			default:
				p := clients[rng.IntN(len(clients))]
				en, err := e[rng.IntN(2)].Acquire(t.Context(), p.name, json.RawMessage(p.input), nil)
				if err != nil {
					t.Fatal(err)
				}
				if rng.IntN(2) == 0 { // else some of it may be on its way still
					synctest.Wait()
				}
				class := en.Query().Class.String()
				tried[class]++
				if p.visit(en) {
					led[class]++
					synctest.Wait()
					if p.version == en.Version() {
						p.same(en)
					}
				}
				en.Release()
			}
			if t.Failed() {
				t.Fatalf("step %d, seed %d", step, seed)
			}
		}
		t.Logf("%v of %v by a delta", led, tried)
		if led["routed"]+led["windowed"] < 10 || led["re-run"] > 0 {
			t.Errorf("%v of %v by a delta", led, tried)
		}
	})
}

// TestS29_WhatIsKeptIsBounded is about the changes that deltas are made of.
func TestS29_WhatIsKeptIsBounded(t *testing.T) {
	t.Parallel()
	const most = 4000
	var r recent
	kept := func() (n int, txs int) {
		var last *feed.Tx
		for _, c := range r.changes {
			if n += c.bytes; c.tx != last {
				last = c.tx
				txs++
			}
		}
		return n, txs
	}
	add := func(tx *feed.Tx, changes int) {
		for range changes {
			r.add(tx, feed.Insert, nil, item(1, 1, 1, "t"), most)
			if n, _ := kept(); n > most || n != r.bytes {
				t.Fatalf("%d bytes are kept, %d counted", n, r.bytes)
			}
		}
	}
	for range 20 {
		add(&feed.Tx{}, 3)
	}
	if n, txs := kept(); txs < 3 || len(r.changes) != 3*txs {
		t.Errorf("%d changes of %d transactions, %d bytes", len(r.changes), txs, n)
	}
	add(&feed.Tx{}, 100) // more than all: it is not kept in part
	if n, _ := kept(); n != 0 {
		t.Errorf("%d bytes of a transaction that is too large", n)
	}
	add(&feed.Tx{}, 2)
	large := &feed.Tx{}
	add(large, 1)
	r.add(large, feed.Truncate, nil, nil, most)
	add(large, 1)
	if n, _ := kept(); n != 0 {
		t.Errorf("%d bytes of what was before and with a truncation", n)
	}
	add(&feed.Tx{}, 2)
	if _, txs := kept(); txs != 1 {
		t.Errorf("%d transactions after it", txs)
	}
}
