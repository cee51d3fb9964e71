package live

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// TestS16_APublishThatWaitsHoldsNoOtherEntryUp has each of two entries of a transaction wait for the other.
func TestS16_APublishThatWaitsHoldsNoOtherEntryUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var both sync.WaitGroup
		both.Add(2)
		b := newBed(t, Options{Workers: 2, Publish: func(*Entry, Frame) { both.Done(); both.Wait() }}, all, byOrg)
		b.start()
		c, d := b.subscribe(b.acquire("all", "")), b.subscribe(b.acquire("byOrg", `{"org":1}`))
		synctest.Wait() // no worker is busy
		b.db.Commit(put(item(1, 1, 0, "t")))
		both.Wait()
		c.leave()
		d.leave()
	})
}

// TestS06_WhatIsRetainedIsCounted compares what entries say that they retain with what they do.
func TestS06_WhatIsRetainedIsCounted(t *testing.T) {
	t.Parallel()
	rng := random(t)
	e := New(Options{Database: feed.NewMemory(), RingFrames: 5, RingBytes: 60, RetainBytes: 100})
	entries := []*Entry{{e: e}, {e: e}, {e: e}}
	for step := range 20_000 {
		en := pick(rng, entries...)
		en.version++
		f := Frame{Version: en.version, Payload: make([]byte, rng.IntN(35))}
		if rng.IntN(50) == 0 {
			f.Payload = make([]byte, 61)
		}
		if en.retainLocked(f); rng.IntN(100) == 0 {
			en.forgetLocked()
		}
		all := 0
		for _, en := range entries {
			bytes, frames := 0, en.frames.list()
			for i, f := range frames {
				if bytes += len(f.Payload); f.Version != en.version-uint64(len(frames)-1-i) {
					t.Fatalf("step %d: version %d at %d of %d, up to %d", step, f.Version, i, len(frames), en.version)
				}
			}
			if bytes != en.retained || bytes > 60 || len(frames) > 5 {
				t.Fatalf("step %d: %d frames of %d bytes, counted as %d", step, len(frames), bytes, en.retained)
			}
			all += bytes
		}
		if n := e.retained.Load(); n != int64(all) || n > 100 {
			t.Fatalf("step %d: %d bytes, counted as %d", step, all, n)
		}
	}
}

// mill is the backlog of bench/backlog.go without a database: the same table and live queries, over rows that are updated in turns. A change makes 10 to 12 frames.
type mill struct {
	*crowd
	rows []row.Row
	next int
}

func newMill(tb testing.TB, n int) *mill {
	column := func(name string, kind row.Kind) row.Column {
		return row.Column{Name: name, Type: row.Type{Kind: kind}}
	}
	def := &row.Table{
		Name: row.Name{Schema: "public", Table: "w"}, Key: []int{0},
		Columns: []row.Column{
			column("id", row.Int), column("tenant", row.Int), column("project", row.Int), column("owner", row.Int), column("n", row.Int), column("price", row.Int), column("done_at", row.TimestampTZ),
			column("title", row.Text), column("body", row.Text),
		},
	}
	m := &mill{crowd: &crowd{e: New(Options{Database: feed.NewMemory(), Workers: 2, MaxEntries: n})}}
	m.t = &table{name: def.Identity(), def: def, index: newIndex(def), plans: map[*template]*plan{}}
	m.e.tables[m.t.name] = m.t
	for _, x := range []struct {
		share int
		where string
		input func(k int) string
	}{
		{50, "tenant = $tenant AND project = $project", func(k int) string { return fmt.Sprintf(`{"tenant":%d,"project":%d}`, k%1000, k/1000) }},
		{20, "owner = $owner", func(k int) string { return fmt.Sprintf(`{"owner":%d}`, k) }},
		{12, "tenant = $tenant AND n >= $from AND n < $to", func(k int) string {
			return fmt.Sprintf(`{"tenant":%d,"from":%d,"to":%d}`, k%1000, k/1000*80, k/1000*80+250)
		}},
		{6, "owner IN ($a, $b)", func(k int) string { return fmt.Sprintf(`{"a":%d,"b":%d}`, k*3, k*3+1) }},
		{5, "id = $id", func(k int) string { return fmt.Sprintf(`{"id":%d}`, k+1) }},
		{4, "price >= $from AND price < $to", func(k int) string { return fmt.Sprintf(`{"from":%d,"to":%d}`, k*25, k*25+100) }},
		{3, "owner = $owner AND done_at IS NULL", func(k int) string { return fmt.Sprintf(`{"owner":%d}`, k*6) }},
	} {
		q, err := query.Compile(query.Definition{Name: x.where, From: "w", Where: x.where}, def)
		if err != nil {
			tb.Fatal(err)
		}
		p := newPlan(&template{def: q.Definition}, m.t, q)
		m.t.plans[p.t] = p
		for k := range n * x.share / 100 {
			m.add(tb, p, x.input(k), len(m.e.entries))
		}
	}
	for i := range int64(2000) {
		m.rows = append(m.rows, row.Row{
			row.IntValue(i + 1), row.IntValue(i % 1000), row.IntValue(i % 50), row.IntValue(i * 10), row.IntValue(i % 1000), row.IntValue(i * 50),
			{},
			row.TextValue(fmt.Sprint("title ", i)), row.TextValue("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
		})
	}
	return m
}

// update is the next change.
func (m *mill) update() feed.Change {
	i := m.next % len(m.rows)
	m.next++
	old := m.rows[i]
	now := append(row.Row(nil), old...)
	n := old[4].Int()
	now[2], now[4], now[7] = row.IntValue((old[2].Int()+1)%50), row.IntValue((n+37)%1000), row.TextValue(fmt.Sprint("title ", n))
	m.rows[i] = now
	return feed.Change{Op: feed.Update, Table: m.t.def, Old: old, New: now}
}

// BenchmarkCommit100k is changes from the feed to their frames, which go nowhere: in transactions of one, and of a thousand.
func BenchmarkCommit100k(b *testing.B) {
	m := newMill(b, 100_000)
	var workers sync.WaitGroup
	for range m.e.opts.Workers {
		workers.Go(m.e.lanes.run)
	}
	wait := func() {
		for m.e.pending.Load() > 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	insert := &feed.Tx{}
	for _, r := range m.rows {
		insert.Changes = append(insert.Changes, feed.Change{Op: feed.Insert, Table: m.t.def, New: r})
	}
	m.e.commit(insert)
	wait()
	for _, size := range []int{1, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			s, cpu := m.e.Stats(), processCPU()
			b.ResetTimer()
			for n := 0; n < b.N; n += size {
				tx := &feed.Tx{ID: uint64(n)}
				for range min(size, b.N-n) {
					tx.Changes = append(tx.Changes, m.update())
				}
				m.e.commit(tx)
			}
			wait()
			b.StopTimer()
			cpu = processCPU() - cpu
			runtime.ReadMemStats(&after)
			each := func(n uint64) float64 { return float64(n) / float64(b.N) }
			b.ReportMetric(each(uint64(cpu.Nanoseconds())), "cpu-ns/op")
			b.ReportMetric(each(m.e.Stats().Patches-s.Patches), "frames/op")
			b.ReportMetric(each(m.e.Stats().Candidates-s.Candidates), "candidates/op")
			b.ReportMetric(each(after.TotalAlloc-before.TotalAlloc)/1024, "KiB/op")
		})
	}
	m.e.lanes.close()
	workers.Wait()
}
