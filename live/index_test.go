package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// TestS16_TheIndexNamesEveryEntryThatMatches compares the index with trying all, while entries come and go.
func TestS16_TheIndexNamesEveryEntryThatMatches(t *testing.T) {
	t.Parallel()
	rng := random(t)
	tb := items("items")
	x := newIndex(tb)
	var queries []*query.Query
	for _, where := range []string{
		"org = $org", "org = $org AND price = $p", "price BETWEEN $p AND $q", "price > $p", "price <= $q", "price < $p OR price > $q", "title LIKE 'a%'", "title LIKE 'ab%' OR title = 'c'", "done", "NOT done AND org IN (0, $org)",
		"price IS NULL", "org = $org AND title IN ('a', 'b') AND price > $p", "price > $p AND price < $q", "", "org <> $org",
	} {
		q, err := query.Compile(query.Definition{Name: "q", From: "items", Where: where}, tb)
		if err != nil {
			t.Fatal(err)
		}
		queries = append(queries, q)
	}
	var entries []*Entry
	named := map[*Entry]verdict{}
	total, matching, decided := 0, 0, 0
	for step := range 20_000 {
		switch k := rng.IntN(10); {
		case k < 2:
			q := pick(rng, queries...)
			in, err := q.Input(json.RawMessage(inputFor(rng, q.Definition.Where)), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := q.Bind(in)
			if err != nil {
				t.Fatal(err)
			}
			en := &Entry{bound: b}
			x.add(en, b.Access())
			entries = append(entries, en)
		case k < 4 && len(entries) > 400 || k < 1 && len(entries) > 0:
			i := rng.IntN(len(entries))
			x.remove(entries[i])
			entries = slices.Delete(entries, i, i+1)
		default:
			old, now := randomItem(rng, 1), randomItem(rng, 1)
			switch rng.IntN(3) {
			case 0:
				old = nil
			case 1:
				now = nil
			}
			clear(named)
			x.candidates(old, now, func(en *Entry, v verdict) {
				if _, ok := named[en]; !ok {
					named[en] = v
				}
			})
			total += len(named)
			for _, en := range entries {
				did, does := old != nil && en.bound.Match(old) == query.True, now != nil && en.bound.Match(now) == query.True
				v, ok := named[en]
				if did || does {
					matching++
				}
				if v != unknown {
					decided++
				}
				if !ok && (did || does) || v == matches && !does || v == left && (does || !did) {
					t.Fatalf("step %d: %s %s, named %v as %d for %v -> %v", step, en.bound.Query.Definition.Where, en.bound.Input.Text, ok, v, old, now)
				}
			}
			for en := range named {
				if !slices.Contains(entries, en) {
					t.Fatalf("step %d: an entry that was removed is named", step)
				}
			}
			c, partial := rng.IntN(len(tb.Columns)), randomItem(rng, 1)
			partial[c] = row.AbsentValue()
			uses := slices.ContainsFunc(entries, func(en *Entry) bool {
				return slices.ContainsFunc(en.bound.Access(), func(a query.Access) bool {
					return slices.Contains(a.Columns, c) || a.Range != nil && a.Range.Column == c
				})
			})
			if x.decides(partial) == uses {
				t.Fatalf("step %d: the index looks at column %d: %v", step, c, uses)
			}
		}
	}
	t.Logf("%d candidates for %d that match, %d decided", total, matching, decided)
	if 2*total > 3*matching || 2*decided < matching {
		t.Errorf("%d candidates for %d that match, %d decided", total, matching, decided)
	}
	for _, en := range entries {
		x.remove(en)
	}
	if len(x.keys) != 0 || x.rest.list.head != nil || x.rest.ranges != nil || slices.ContainsFunc(x.uses, func(n int) bool { return n != 0 }) {
		t.Error("postings are left")
	}
}

// TestS16_EqualHashesAreToldApart has two tuples of one hash.
func TestS16_EqualHashesAreToldApart(t *testing.T) {
	t.Parallel()
	tb := items("items")
	x := newIndex(tb)
	q, err := query.Compile(query.Definition{Name: "q", From: "items", Where: "org = $org AND price = $p"}, tb)
	if err != nil {
		t.Fatal(err)
	}
	org := func(v int64) uint64 { return mix(x.hash([]row.Value{row.IntValue(v)}), uint64(row.Int)) }
	p, o, inverse := org(1), org(2), uint64(1)
	for range 6 { // of an odd number, modulo 2^64
		inverse *= 2 - 0x9e3779b97f4a7c15*inverse
	}
	twin := int64(o ^ (mix(p, 3)^o>>29)*inverse)
	var entries []*Entry
	for _, input := range []string{`{"org":1,"p":3}`, fmt.Sprintf(`{"org":2,"p":"%d"}`, twin)} {
		in, err := q.Input(json.RawMessage(input), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := q.Bind(in)
		if err != nil {
			t.Fatal(err)
		}
		entries = append(entries, &Entry{bound: b})
		x.add(entries[len(entries)-1], b.Access())
	}
	if n := len(x.keys[0].buckets); n != 1 {
		t.Fatalf("%d hashes", n)
	}
	a, b := item(1, 1, 3, ""), item(1, 2, twin, "")
	for _, c := range []struct {
		old, now row.Row
		want     map[*Entry]verdict
	}{
		{nil, a, map[*Entry]verdict{entries[0]: matches}},
		{b, nil, map[*Entry]verdict{entries[1]: left}},
		{a, b, map[*Entry]verdict{entries[0]: left, entries[1]: matches}},
	} {
		got := map[*Entry]verdict{}
		x.candidates(c.old, c.now, func(en *Entry, v verdict) { got[en] = v })
		if !maps.Equal(got, c.want) {
			t.Errorf("%v -> %v: %v, want %v", c.old, c.now, got, c.want)
		}
	}
	for _, en := range entries {
		x.remove(en)
	}
	if len(x.keys) != 0 {
		t.Error("postings are left")
	}
}

// crowd is an engine with many entries over one table, as if all had been read: 50 % two columns, 20 % one column, 12 % equality and ranges, 6 % IN, 5 % by key, 4 % ranges alone, 3 % equality and IS NULL. The
// values grow with the number, so that as many are concerned by a change whatever the number is.
type crowd struct {
	e   *Engine
	t   *table
	n   int
	rng *rand.Rand
}

func (c *crowd) org() int64 { return c.rng.Int64N(int64(c.n)/10 + 1) }

func newCrowd(tb testing.TB, n int) *crowd {
	c := &crowd{e: New(Options{Database: feed.NewMemory(), Workers: 1}), n: n, rng: rand.New(rand.NewPCG(1, 2))}
	def := items("items")
	c.t = &table{name: def.Identity(), def: def, index: newIndex(def), plans: map[*template]*plan{}}
	c.e.tables[c.t.name] = c.t
	wheres := []string{"org = $org AND price = $p", "org = $org", "org = $org AND price > $p AND price < $q", "org IN (1, $org)", "id = $org", "price > $p AND price < $q", "org = $org AND title IS NULL"}
	var plans []*plan
	for _, w := range wheres {
		q, err := query.Compile(query.Definition{Name: w, From: "items", Where: strings.Replace(w, "(1,", "($p,", 1)}, def)
		if err != nil {
			tb.Fatal(err)
		}
		p := newPlan(&template{def: q.Definition}, c.t, q)
		c.t.plans[p.t] = p
		plans = append(plans, p)
	}
	for i := range n {
		k := []int{50, 70, 82, 88, 93, 97, 100}
		which := slices.IndexFunc(k, func(v int) bool { return i%100 < v })
		org, p := c.org(), int64(c.rng.IntN(3))
		q := p + 2
		switch which {
		case 3:
			p = c.org()
		case 4:
			org = c.rng.Int64N(int64(n))
		case 5:
			p = 1000 + c.rng.Int64N(int64(n))*100
			q = p + 300
		}
		in := fmt.Sprintf(`{"org":%d,"p":%d,"q":%d}`, org, p, q)
		switch which {
		case 0, 3:
			in = fmt.Sprintf(`{"org":%d,"p":%d}`, org, p)
		case 1, 4, 6:
			in = fmt.Sprintf(`{"org":%d}`, org)
		case 5:
			in = fmt.Sprintf(`{"p":%d,"q":%d}`, p, q)
		}
		c.add(tb, plans[which], in, i)
	}
	return c
}

func (c *crowd) add(tb testing.TB, p *plan, input string, i int) *Entry {
	in, err := p.q.Input(json.RawMessage(input), nil)
	if err != nil {
		tb.Fatal(err)
	}
	b, err := p.q.Bind(in)
	if err != nil {
		tb.Fatal(err)
	}
	id := ident{t: p.t, text: in.Text, actor: fmt.Sprint(i)} // several of one input are several entries here
	en := &Entry{e: c.e, ident: id, id: fmt.Sprintf("%016x", i), plan: p, bound: b, place: -1}
	c.e.entries[id], c.e.ids[en.id] = en, en
	c.t.insertLocked(en)
	en.win, en.fence, en.version = newWindow(p.q, nil, true, nil), never{}, 1
	en.epoch = c.e.nextEpoch()
	return en
}

type never struct{}

func (never) Includes(*feed.Tx) bool { return false }

// change is an update that moves a row between two values of org.
func (c *crowd) change() feed.Change {
	title := row.TextValue("t")
	if c.rng.IntN(2) == 0 {
		title = row.Value{}
	}
	r := func() row.Row {
		x := item(c.rng.Int64N(int64(c.n)), c.org(), int64(c.rng.IntN(3)+1), "")
		x[3] = title
		return x
	}
	old, now := r(), r()
	now[0] = old[0]
	return feed.Change{Op: feed.Update, Table: c.t.def, Old: old, New: now}
}

func (c *crowd) match(ch *feed.Change, touched []*Entry) []*Entry {
	var tx feed.Tx
	touched = c.t.match(c.e, &tx, ch, touched)
	for _, en := range touched {
		en.touched, en.hit, en.more = false, hit{}, en.more[:0]
	}
	return touched
}

func benchmarkMatch(b *testing.B, n int) {
	c := newCrowd(b, n)
	changes := make([]feed.Change, 4096)
	for i := range changes {
		changes[i] = c.change()
	}
	var touched []*Entry
	affected := 0
	before := c.e.Stats().Candidates
	runtime.GC()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ResetTimer()
	cpu := threadCPU()
	for i := range b.N {
		touched = c.match(&changes[i%len(changes)], touched[:0])
		affected += len(touched)
	}
	b.ReportMetric(float64(threadCPU()-cpu)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(affected)/float64(b.N), "affected/op")
	b.ReportMetric(float64(c.e.Stats().Candidates-before)/float64(b.N), "candidates/op")
}

func BenchmarkMatch1k(b *testing.B)   { benchmarkMatch(b, 1_000) }
func BenchmarkMatch100k(b *testing.B) { benchmarkMatch(b, 100_000) }
func BenchmarkMatch1M(b *testing.B)   { benchmarkMatch(b, 1_000_000) }

// TestS16_AnEntryWithoutRowsIsSmall also bounds what its place in the index and the registry costs.
func TestS16_AnEntryWithoutRowsIsSmall(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c := newCrowd(t, 20_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	size := (after.HeapAlloc - before.HeapAlloc) / 20_000
	t.Logf("%d bytes", size)
	if size > 2048 {
		t.Errorf("an entry costs %d bytes", size)
	}
	runtime.KeepAlive(c)
}

// TestP42_NoUnsubscribeTakesLong takes 100,000 entries out, one after another: what one computes is more than it does with the lock of the table, and less than 5 ms, by far.
func TestP42_NoUnsubscribeTakesLong(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	c := newCrowd(t, n)
	c.e.opts.Linger = -1
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took []time.Duration
	for _, en := range slices.Clone(c.t.entries) {
		en.refs = 1
		begun := threadCPU()
		en.Release()
		took = append(took, threadCPU()-begun)
	}
	slices.Sort(took)
	p := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))] }
	t.Logf("%d unsubscribes: %v, %v at p99, %v at p99.9, %v at most", n, p(0.5), p(0.99), p(0.999), p(1))
	if p(0.5) > 100*time.Microsecond || p(1) > 5*time.Millisecond {
		t.Errorf("an unsubscribe computes for %v, %v at most", p(0.5), p(1))
	}
}

// TestP42_UnsubscribingDoesNotHoldChangesUp takes 100,000 entries out while changes go on.
func TestP42_UnsubscribingDoesNotHoldChangesUp(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	c := newCrowd(t, n)
	entries := slices.Clone(c.t.entries)
	for _, en := range entries {
		en.refs = 1
	}
	c.e.opts.Linger = -1
	changes := make([]feed.Change, 1024)
	for i := range changes {
		changes[i] = c.change()
	}
	var done sync.WaitGroup
	begun := time.Now()
	done.Go(func() {
		for _, en := range entries {
			en.Release()
		}
	})
	gone := make(chan struct{})
	go func() { done.Wait(); close(gone) }()
	var took []time.Duration
	var touched []*Entry
	for i := 0; ; i++ {
		start := time.Now()
		touched = c.match(&changes[i%len(changes)], touched[:0])
		took = append(took, time.Since(start))
		select {
		case <-gone:
			slices.Sort(took)
			p := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))] }
			t.Logf("%d entries gone in %v; a change took %v, %v at p99, %v at p99.9, %v at most", n, time.Since(begun), p(0.5), p(0.99), p(0.999), p(1))
			if p(0.99) > 50*time.Millisecond { // of a machine that may have other things to do
				t.Errorf("a change took %v at p99", p(0.99))
			}
			if len(c.t.entries)+len(c.t.index.keys)+len(c.e.entries)+len(c.e.ids) != 0 {
				t.Error("something is left")
			}
			return
		default:
		}
	}
}
