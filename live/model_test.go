package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

var errInjected = errors.New("injected")

func randomItem(rng *rand.Rand, id int64) row.Row {
	price := row.IntValue(int64(rng.IntN(20)))
	if rng.IntN(8) == 0 {
		price = row.Value{}
	}
	return row.Row{
		row.IntValue(id), row.IntValue(int64(rng.IntN(4))), price, row.TextValue(pick(rng, "a", "ab", "b", "ba", "c")), row.BoolValue(rng.IntN(2) == 0),
		row.TextValue(pick(rng, "é", "e", "z")), row.TextValue(pick(rng, "", "n")),
	}
}

// randomWrites is one transaction.
func randomWrites(rng *rand.Rand, ids int64) (out []feed.Write) {
	n := 1
	if rng.IntN(3) == 0 {
		n += rng.IntN(12)
	}
	for range n {
		table := row.Name{Schema: "public", Table: pick(rng, "items", "items", "other")}
		id := int64(rng.IntN(int(ids)))
		switch k := rng.IntN(100); {
		case k < 60:
			out = append(out, feed.Write{Table: table, New: randomItem(rng, id)})
		case k < 80:
			out = append(out, feed.Write{Table: table, Old: randomItem(rng, id)})
		case k < 85: // a change of the key
			out = append(out, feed.Write{Table: table, Old: randomItem(rng, id)}, feed.Write{Table: table, New: randomItem(rng, int64(rng.IntN(int(ids))))})
		case k < 99:
			r := row.Row{row.IntValue(int64(rng.IntN(9))), row.TextValue(pick(rng, "x", "y")), row.IntValue(int64(rng.IntN(6)))}
			w := feed.Write{Table: row.Name{Schema: "public", Table: "pairs"}, New: r}
			if rng.IntN(3) == 0 {
				w = feed.Write{Table: w.Table, Old: r}
			}
			out = append(out, w)
		case rng.IntN(4) == 0:
			out = append(out, feed.Write{Table: table})
		}
	}
	return out
}

func randomDefinitions(rng *rand.Rand, n int) (out []query.Definition) {
	wheres := []string{
		"", "org = $org", "org = $org AND price > $p", "price BETWEEN $p AND $q", "title LIKE 'a%'", "done", "org IN (1, $org)", "price IS NULL OR org = $org", "price < $p OR price >= $q",
		"NOT done AND org <> $org", "title = 'b' AND done", "org = $org AND NOT (price = $p)", "title IN ('a', 'c') AND price IS NOT NULL", "id = $p", "loc < 'm'", "loc = 'é'",
	}
	orders := []string{"", "price DESC NULLS LAST", "price", "title, price DESC", "done DESC, org", "loc"}
	for i := range n {
		d := query.Definition{Name: fmt.Sprint("q", i), From: pick(rng, "items", "items", "other"), Where: pick(rng, wheres...), Order: pick(rng, orders...), Limit: pick(rng, 0, 0, 1, 3, 10, 30)}
		if rng.IntN(3) == 0 {
			d.Columns = []string{"title", "price"}
		}
		if rng.IntN(8) == 0 {
			d = query.Definition{Name: d.Name, From: "pairs", Where: pick(rng, "", "n > 3", "a = 2"), Order: pick(rng, "", "n DESC"), Limit: pick(rng, 0, 4)}
		}
		out = append(out, d)
	}
	return out
}

func inputFor(rng *rand.Rand, where string) string {
	in := map[string]int{}
	for _, p := range []string{"org", "p", "q"} {
		if strings.Contains(where, "$"+p) {
			in[p] = rng.IntN(8)
			if p == "org" {
				in[p] %= 4
			}
		}
	}
	raw, _ := json.Marshal(in)
	return string(raw)
}

// forget makes rows that the feed knows in part: of old rows the key alone, of new ones not the texts that did not change.
func forget(rng *rand.Rand, tx *feed.Tx) *feed.Tx {
	out := *tx
	out.Changes = append([]feed.Change(nil), tx.Changes...)
	for i := range out.Changes {
		ch := &out.Changes[i]
		if ch.Table.Name.Table != "other" || ch.Old == nil || rng.IntN(2) == 0 {
			continue
		}
		old := append(row.Row(nil), ch.Old...)
		for k := 1; k < len(old); k++ {
			old[k] = row.AbsentValue()
		}
		if ch.New != nil {
			r := append(row.Row(nil), ch.New...)
			for k := 3; k < len(r); k++ {
				if ch.Old[k] == ch.New[k] && rng.IntN(2) == 0 {
					r[k] = row.AbsentValue()
				}
			}
			ch.New = r
		}
		ch.Old = old
	}
	return &out
}

// TestS14_EveryClientShowsWhatTheQueryIs runs random queries over random writes with slow and failing reads, slow feeds, losses, partial rows, lost and late frames and clients that come and go.
func TestS14_EveryClientShowsWhatTheQueryIs(t *testing.T) {
	t.Parallel()
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	seeds := random(t)
	for i := range rounds {
		seed := seeds.Uint64()
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { converge(t, seed) })
		})
	}
}

func converge(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	chance := func(n int) bool {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(n) == 0
	}
	nap := func(most time.Duration) {
		mu.Lock()
		d := time.Duration(rng.Int64N(int64(most)))
		mu.Unlock()
		time.Sleep(d)
	}
	var calm atomic.Bool // no failures: the test wants to compare
	o := Options{Linger: 300 * time.Millisecond, RingFrames: 8, Buffer: 12, Retry: 50 * time.Millisecond, Workers: 3, Reads: 2, ReadGroup: 8}
	o.Publish = func(*Entry, Frame) {
		if chance(20) {
			nap(5 * time.Millisecond)
		}
	}
	defs := randomDefinitions(rng, 40)
	b := newBed(t, o, defs...)
	visible := func(parity int64) func(row.Row) bool {
		return func(r row.Row) bool { return (r[1].Int()+r[0].Int())%2 == parity }
	}
	policy := func(actor json.RawMessage, r PolicyRow) (bool, error) {
		if !calm.Load() && chance(30) {
			return false, errInjected
		}
		return visible(int64(actor[len(actor)-2] - '0'))(r.Row), nil
	}
	for _, d := range []query.Definition{{Name: "policy1", From: "items", Order: "price DESC", Limit: 5}, {Name: "policy2", From: "items", Where: "org = $org"}, {Name: "policy3", From: "other", Order: "title", Limit: 3}} {
		if err := b.e.DeclareWith(d, policy); err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	b.db.before = func(context.Context) error {
		nap(10 * time.Millisecond)
		if !calm.Load() && chance(15) {
			return errInjected
		}
		return nil
	}
	b.db.during = func(context.Context) error {
		nap(20 * time.Millisecond)
		return nil
	}
	b.db.deliver = func(tx *feed.Tx) *feed.Tx {
		if chance(4) {
			nap(4 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		return forget(rng, tx)
	}
	b.start()
	for i := range int64(40) {
		mu.Lock()
		r := randomItem(rng, i)
		mu.Unlock()
		b.db.Commit(put(r))
	}

	type subscriber struct {
		*client
		name, input string
		actor       int64
	}
	acquire := func(s *subscriber) *Entry {
		for {
			en, err := b.e.Acquire(t.Context(), s.name, json.RawMessage(s.input), json.RawMessage(fmt.Sprintf(`{"parity":%d}`, s.actor)))
			if err == nil {
				return en
			}
			if !errors.Is(err, errInjected) {
				panic(fmt.Sprintf("acquire %s: %v", s.name, err))
			}
			nap(20 * time.Millisecond)
		}
	}
	var subs []*subscriber
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 120 {
		mu.Lock()
		d := pick(rng, defs...)
		s := &subscriber{name: d.Name, input: inputFor(rng, d.Where), actor: int64(rng.IntN(2))}
		mu.Unlock()
		if !strings.HasPrefix(s.name, "policy") {
			s.actor = 0
		}
		subs = append(subs, s)
	}
	subsReady := make(chan struct{})
	var joined sync.WaitGroup
	joined.Add(len(subs))
	quiet := make(chan chan struct{})
	for _, s := range subs {
		all.Go(func() {
			s.client = b.subscribe(acquire(s))
			s.mu.Lock()
			s.drop = func() bool { return chance(10) }
			s.mu.Unlock()
			joined.Done()
			<-subsReady
			for {
				mu.Lock()
				wait, page, what := time.Duration(rng.Int64N(int64(60*time.Millisecond))), 1+rng.IntN(5), rng.IntN(12)
				mu.Unlock()
				select {
				case <-stop:
					return
				case resume := <-quiet: // stand still, live
					s.catchUp(page)
					<-resume
					continue
				case <-time.After(wait):
				}
				if what == 0 {
					s.leave()
					nap(700 * time.Millisecond)
					s.join(acquire(s))
				} else {
					s.catchUp(page)
				}
			}
		})
	}
	for range 6 { // writes while they join
		nap(5 * time.Millisecond)
		mu.Lock()
		writes := randomWrites(rng, 60)
		mu.Unlock()
		b.db.Commit(writes...)
	}
	joined.Wait()
	close(subsReady)
	for round := range 6 {
		for range 80 {
			if chance(2) {
				nap(8 * time.Millisecond)
			}
			mu.Lock()
			writes := randomWrites(rng, 60)
			mu.Unlock()
			b.db.Commit(writes...)
			if chance(120) {
				b.db.Lose("lost")
			}
		}
		calm.Store(true)
		resume := make(chan struct{})
		for range subs {
			quiet <- resume
		}
		settle()
		for _, s := range subs {
			s.catchUp(64)
			if strings.HasPrefix(s.name, "policy") {
				s.check(visible(s.actor))
			} else {
				s.check(nil)
			}
		}
		close(resume)
		calm.Store(false)
		if t.Failed() {
			t.Logf("round %d, seed %d", round, seed)
			break
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%+v", b.e.Stats())
	for _, s := range subs {
		s.leave()
	}
	settle()
	if s := b.e.Stats(); s.Entries != 0 || s.Retained != 0 || s.Pending != 0 {
		t.Errorf("after all have left: %+v", s)
	}
	for _, tb := range b.e.tables {
		if n := len(tb.entries) + len(tb.index.keys); n != 0 || tb.index.rest.list.head != nil || tb.index.rest.ranges != nil {
			t.Errorf("%s: %d postings are left", tb.name, n)
		}
	}
}
