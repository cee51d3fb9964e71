package hub

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// model is the naive form of the two indices.
type model map[*Conn]map[string]bool

func (m model) members(ch string) (n int) {
	for _, in := range m {
		if in[ch] {
			n++
		}
	}
	return n
}

func (m model) check(t *testing.T, h *Hub, seed uint64) {
	t.Helper()
	channels := map[string]bool{}
	for c, in := range m {
		var want []string
		for ch := range in {
			channels[ch] = true
			want = append(want, ch)
		}
		got := c.Channels()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: connection %d is in %v, want %v", seed, c.id, got, want)
		}
	}
	got := map[string]int{}
	h.EachChannel(func(name string, n int) bool { got[name] = n; return true })
	for ch := range channels {
		if n := m.members(ch); got[ch] != n || h.Subscribers(ch) != n {
			t.Fatalf("seed %d: channel %s has %d members, want %d", seed, ch, got[ch], n)
		}
		for k := range slices.Values(*h.channels.get(ch).table.Load()) {
			for _, s := range *k.subs.Load() {
				if s.left || !m[s.conn][ch] || s.chunk != k {
					t.Fatalf("seed %d: channel %s holds connection %d", seed, ch, s.conn.id)
				}
			}
		}
	}
	// A channel with no member is removed.
	if st := h.Stats(); len(got) != len(channels) || st.Channels != len(channels) || st.Conns != len(m) {
		t.Fatalf("seed %d: channels %v, %+v, want %d and %d connections", seed, got, st, len(channels), len(m))
	}
}

func TestH02_IndicesMatchTheModel(t *testing.T) {
	for range 30 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		h := New(Options{Workers: 1})
		m := model{}
		var conns []*Conn
		for step := range 1500 {
			if len(conns) == 0 || rnd.IntN(8) == 0 {
				c, _ := simConn(h, -1, nil)
				conns = append(conns, c)
				m[c] = map[string]bool{}
				continue
			}
			i := rnd.IntN(len(conns))
			c, ch := conns[i], fmt.Sprint(rnd.IntN(40))
			switch rnd.IntN(12) {
			case 0:
				c.Close(1000, "")
				delete(m, c)
				conns = slices.Delete(conns, i, i+1)
			case 1, 2, 3:
				if got := c.Leave(ch); got != m[c][ch] {
					t.Fatalf("seed %d: Leave = %v", seed, got)
				}
				delete(m[c], ch)
			case 4:
				if n, _ := h.Publish(ch, Message{Encode: text("x"), Policy: DropNewest}); n > m.members(ch) {
					t.Fatalf("seed %d: published to %d of %d", seed, n, m.members(ch))
				}
			default:
				if err := c.Join(ch, Everyone, nil); err != nil {
					t.Fatal(err)
				}
				m[c][ch] = true
			}
			if step%50 == 0 {
				m.check(t, h, seed)
			}
		}
		m.check(t, h, seed)
		for _, c := range conns {
			c.Close(1000, "")
		}
		model{}.check(t, h, seed)
	}
}

// The same from many goroutines: in the end the indices agree and nothing is left.
func TestH02_Interleavings(t *testing.T) {
	for range 20 {
		seed := rand.Uint64()
		h := New(Options{Workers: 1})
		conns := make([]*Conn, 20)
		for i := range conns {
			conns[i], _ = simConn(h, -1, nil)
		}
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(g)))
				for range 2000 {
					c, ch := conns[rnd.IntN(len(conns))], fmt.Sprint(rnd.IntN(5))
					switch rnd.IntN(40) {
					case 0:
						if rnd.IntN(20) == 0 {
							c.Close(1000, "")
						}
					case 1, 2, 3, 4, 5:
						_, _ = h.Publish(ch, Message{Encode: text("x"), Policy: DropNewest})
					case 6:
						release, _ := h.Hold(ch)
						release()
						release()
					default:
						if rnd.IntN(2) == 0 {
							_ = c.Join(ch, Everyone, nil)
						} else {
							c.Leave(ch)
						}
					}
				}
			})
		}
		wg.Wait()
		m := model{}
		for _, c := range conns {
			if c.state == stateOpen {
				m[c] = map[string]bool{}
				for _, ch := range c.Channels() {
					m[c][ch] = true
				}
			}
		}
		m.check(t, h, seed)
		for _, c := range conns {
			c.Close(1000, "")
		}
		model{}.check(t, h, seed)
		h.pool.wait()
	}
}

// Members who stay get every publication, exactly once and in order, while others make the table grow and be rebuilt.
func TestH02_NobodyIsMissedInARebuild(t *testing.T) {
	h := New(Options{Workers: 1, QueueMessages: 1 << 20, QueueBytes: 1 << 30, MaxChannelsPerConn: 1 << 20})
	var stay []*Conn
	var links []*fakeLink
	var others []*Conn
	for i := range 600 {
		c, l := simConn(h, -1, nil)
		_ = c.Join("c", Everyone, nil)
		if i%100 == 50 {
			stay, links = append(stay, c), append(links, l)
		} else {
			others = append(others, c)
		}
	}
	var done atomic.Bool
	var wg sync.WaitGroup
	var published atomic.Int64
	wg.Go(func() {
		for !done.Load() {
			_, _ = h.Publish("c", Message{Encode: text(published.Load()), Mask: 1 << 7})
			published.Add(1)
		}
	})
	ch := h.channels.get("c")
	wg.Go(func() { // all the time, and not only when it is due
		for !done.Load() {
			ch.mu.Lock()
			ch.rebuildLocked(*ch.table.Load())
			ch.mu.Unlock()
			runtime.Gosched()
		}
	})
	for round := 0; round < 6 || published.Load() < 5000; round++ {
		for _, c := range others {
			c.Leave("c")
		}
		if n := len(*ch.table.Load()); n > 4 {
			t.Fatalf("round %d: %d chunks for %d members", round, n, len(stay))
		}
		for _, c := range others {
			_ = c.Join("c", 1, nil)
		}
	}
	done.Store(true)
	wg.Wait()
	b := newBatch()
	for i, c := range stay {
		for c.drain(&b) {
		}
		got := links[i].frames(t)
		if len(got) != int(published.Load()) {
			t.Errorf("member %d got %d of %d", i, len(got), published.Load())
		}
		for j, f := range got {
			if f != fmt.Sprint(j) {
				t.Fatalf("member %d: got %s at %d", i, f, j)
			}
		}
	}
}

// One who leaves and joins again during a fan-out does not get its message twice.
func TestH02_NotTwiceAfterRejoin(t *testing.T) {
	h := New(Options{Workers: 1})
	c, l := simConn(h, -1, nil)
	last, _ := simConn(h, -1, nil)
	last.dialect = 1
	_ = c.Join("c", Everyone, nil)
	_ = last.Join("c", Everyone, nil)
	fill(h, chunkSize) // there is a second chunk, with room
	_, err := h.Publish("c", Message{Encode: func(d Dialect) []byte {
		if d == 1 { // after c got it, and before the end of the members
			c.Leave("c")
			fill(h, 1) // takes c's place, so that the new one is in the second chunk
			_ = c.Join("c", Everyone, []byte("again"))
		}
		return []byte("x")
	}})
	if err != nil {
		t.Fatal(err)
	}
	b := newBatch()
	c.drain(&b)
	if got := l.frames(t); !slices.Equal(got, []string{"x", "again"}) {
		t.Errorf("got %q", got)
	}
}

// All members see the publications of 8 publishers in the same order.
func TestOrder_SameForAllMembers(t *testing.T) {
	h := New(Options{Workers: 2, QueueMessages: 1 << 20, QueueBytes: 1 << 30})
	var wg sync.WaitGroup
	var workers sync.WaitGroup
	for _, w := range h.workers {
		workers.Go(w.run)
	}
	var conns []*Conn
	var links []*fakeLink
	for range 30 {
		c, l := simConn(h, -1, nil)
		_ = c.Join("c", Everyone, nil)
		conns, links = append(conns, c), append(links, l)
	}
	for p := range 8 {
		wg.Go(func() {
			for i := range 300 {
				_, _ = h.Publish("c", Message{Encode: text(p, " ", i)})
			}
		})
	}
	wg.Wait()
	for _, w := range h.workers {
		w.finish()
	}
	workers.Wait()
	first := links[0].frames(t)
	next := make([]int, 8)
	for _, f := range first {
		var p, i int
		if _, err := fmt.Sscan(f, &p, &i); err != nil || next[p] != i {
			t.Fatalf("got %q, want number %d of its publisher", f, next[p])
		}
		next[p]++
	}
	if len(first) != 2400 {
		t.Errorf("%d arrived", len(first))
	}
	for _, l := range links[1:] {
		if !slices.Equal(l.frames(t), first) {
			t.Fatal("two members saw different orders")
		}
	}
	_ = conns
}

func TestH02_HoldKeepsTheChannel(t *testing.T) {
	h := New(Options{MaxChannels: 2, MaxChannelsPerConn: 1, Workers: 1})
	c, _ := simConn(h, -1, nil)
	d, _ := simConn(h, -1, nil)
	release, err := h.Hold("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Join("b", Everyone, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Join("a", Everyone, nil); err != ErrConnChannelLimit {
		t.Errorf("second channel of a connection: %v", err)
	}
	if err := d.Join("x", Everyone, nil); err != ErrChannelLimit {
		t.Errorf("third channel: %v", err)
	}
	if _, err := h.Hold("x"); err != ErrChannelLimit {
		t.Errorf("third channel: %v", err)
	}
	if err := d.Join("a", Everyone, nil); err != nil {
		t.Errorf("held channel: %v", err)
	}
	d.Leave("a")
	release()
	release()
	if n := h.Stats().Channels; n != 1 {
		t.Errorf("%d channels", n)
	}
	if err := d.Join("x", Everyone, nil); err != nil {
		t.Errorf("place of a released channel: %v", err)
	}
}

func TestLanes_OrderWithinAndSideBySide(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		c, _ := simConn(h, -1, nil)
		var mu sync.Mutex
		got := map[string][]int{}
		gate := make(chan struct{})
		c.Go("blocked", func() { <-gate })
		for i := range 100 {
			lane := fmt.Sprint(i % 3)
			c.Go(lane, func() {
				mu.Lock()
				defer mu.Unlock()
				got[lane] = append(got[lane], i)
			})
		}
		synctest.Wait() // the other lanes went on beside the blocked one
		for lane, is := range got {
			if !slices.IsSorted(is) || len(is) < 33 {
				t.Errorf("lane %s: %v", lane, is)
			}
		}
		if len(got) != 3 {
			t.Errorf("%d lanes ran", len(got))
		}
		close(gate)
	})
}

func TestLanes_Bounds(t *testing.T) {
	sim(t, Options{MaxTasks: 3, MaxTasksPerConn: 5}, func(t *testing.T, h *Hub) {
		gate := make(chan struct{})
		var running, most atomic.Int64
		accepted := 0
		for range 4 {
			c, _ := simConn(h, -1, nil)
			for i := range 8 {
				if c.Go(fmt.Sprint(i), func() {
					most.Store(max(most.Load(), running.Add(1)))
					<-gate
					running.Add(-1)
				}) {
					accepted++
				}
			}
		}
		synctest.Wait()
		if accepted != 20 || running.Load() != 3 {
			t.Errorf("%d accepted, %d running", accepted, running.Load())
		}
		close(gate)
		synctest.Wait()
		if most.Load() != 3 {
			t.Errorf("%d ran at once", most.Load())
		}
	})
}

// A lane that always has work does not keep others from the pool.
func TestLanes_Turns(t *testing.T) {
	sim(t, Options{MaxTasks: 1}, func(t *testing.T, h *Hub) {
		busy, _ := simConn(h, -1, nil)
		other, _ := simConn(h, -1, nil)
		ran := 0
		done := false
		var again func()
		again = func() {
			if ran++; !done && ran < 1000 {
				busy.Go("", again)
			}
		}
		busy.Go("", again)
		other.Go("", func() { done = true })
		synctest.Wait()
		if !done || ran > 100 {
			t.Errorf("done %v after %d tasks of another lane", done, ran)
		}
	})
}

func TestLanes_PanicCostsOneConnection(t *testing.T) {
	for _, where := range []string{"task", "message", "closed"} {
		sim(t, Options{Logger: quiet()}, func(t *testing.T, h *Hub) {
			var why Reason
			c, l := simConn(h, -1, &panics{where, &why})
			other, _ := simConn(h, -1, nil)
			ran := false
			switch where {
			case "task":
				c.Go("a", func() { panic("no") })
			case "message":
				c.feed(mask(1, "x"))
			case "closed":
				c.Close(1000, "")
			}
			synctest.Wait()
			other.Go("a", func() { ran = true })
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if st := h.Stats(); st.Panics != 1 || st.Conns != 1 || !ran || !l.get(&l.closed) {
				t.Errorf("%s: %+v, ran %v", where, st, ran)
			}
			if where != "closed" && why.Code != 1011 {
				t.Errorf("%s: %+v", where, why)
			}
		})
	}
}

type panics struct {
	where string
	why   *Reason
}

func (p *panics) Message(*Conn, bool, []byte) { panic("no") }
func (p *panics) Closed(_ *Conn, r Reason) {
	if *p.why = r; p.where == "closed" {
		panic("no")
	}
}

// The ring against a slice.
func TestQueue_MatchesTheModel(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		var q queue
		var m []*frame
		chs := []*channel{{name: "a"}, {name: "b"}}
		subs := []*Sub{{ch: chs[0]}, {ch: chs[1]}}
		for range 500 {
			switch rnd.IntN(10) {
			case 0:
				got := q.take(make([]*frame, 0, 1+rnd.IntN(90)), 1+rnd.IntN(2000))
				for i, f := range got {
					if m[i] != f {
						t.Fatalf("seed %d: took another frame", seed)
					}
				}
				m = m[len(got):]
			case 1, 2:
				i := rnd.IntN(2)
				if got, want := q.removeOldest(subs[i], false), slices.ContainsFunc(m, func(f *frame) bool { return f.ch == chs[i] }); got != want {
					t.Fatalf("seed %d: removeOldest = %v", seed, got)
				}
				if j := slices.IndexFunc(m, func(f *frame) bool { return f.ch == chs[i] }); j >= 0 {
					m = slices.Delete(m, j, j+1)
				}
			case 3:
				f := &frame{ch: chs[rnd.IntN(2)], policy: Latest, key: fmt.Sprint(rnd.IntN(3))}
				if i := q.find(f); i >= 0 {
					if o := m[i]; o.ch != f.ch || o.key != f.key {
						t.Fatalf("seed %d: found another", seed)
					}
					q.set(i, f)
					m[i] = f
				}
			default:
				f := &frame{data: make([]byte, rnd.IntN(50)), ch: chs[rnd.IntN(2)], policy: Latest, key: fmt.Sprint(rnd.IntN(3))}
				q.push(f)
				m = append(m, f)
			}
			bytes := 0
			for i, f := range m {
				bytes += len(f.data)
				if *q.at(int32(i)) != f {
					t.Fatalf("seed %d: another order at %d", seed, i)
				}
			}
			if int(q.n) != len(m) || int(q.bytes) != bytes || q.n == 0 && q.ring != nil && rnd.IntN(10) == 0 && len(q.ring) > 256 {
				t.Fatalf("seed %d: %d frames, %d bytes, want %d, %d", seed, q.n, q.bytes, len(m), bytes)
			}
		}
		// Rings go back to their pools without anything in them.
		q.clear()
		for _, f := range smallRings.Get().(*[8]*frame) {
			if f != nil {
				t.Fatal("a ring in the pool holds a frame")
			}
		}
	}
}

// Joining and leaving a channel of 100,000 members copies no more than a chunk.
func TestH02_JoinAndLeaveOfALargeChannel(t *testing.T) {
	h := New(Options{Workers: 1})
	members := fill(h, 100_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 1000
	for i := range n {
		c := members[i*chunkSize]
		c.Leave("c")
		_ = c.Join("c", Everyone, nil)
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / n; per > 4096 {
		t.Errorf("%d bytes for a leave and a join", per)
	}
	if k := len(*h.channels.get("c").table.Load()); k > len(members)/chunkSize+2 {
		t.Errorf("%d chunks: what was left is not filled again", k)
	}
	// Everybody leaves: the rebuilds together stay in proportion.
	runtime.ReadMemStats(&before)
	for _, c := range members {
		c.Leave("c")
	}
	runtime.ReadMemStats(&after)
	if per := (after.TotalAlloc - before.TotalAlloc) / uint64(len(members)); per > 1024 {
		t.Errorf("%d bytes for each that leaves", per)
	}
	if h.Stats().Channels != 0 {
		t.Error("the channel stays")
	}
}

// fill makes n connections, all members of channel c.
func fill(h *Hub, n int) []*Conn {
	conns := make([]*Conn, n)
	for i := range conns {
		conns[i], _ = simConn(h, -1, nil)
		conns[i].link = sink{}
		_ = conns[i].Join("c", Everyone, nil)
	}
	return conns
}

// sink is a link that takes everything and keeps nothing.
type sink struct{}

func (sink) start()                      {}
func (sink) blocks() bool                { return false }
func (sink) write(p []byte) (int, error) { return len(p), nil }
func (sink) arm()                        {}
func (sink) closeWrite()                 {}
func (sink) close()                      {}

func BenchmarkFanOut(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := New(Options{Workers: 2})
			var wg sync.WaitGroup
			for _, w := range h.workers {
				wg.Go(w.run)
			}
			fill(h, n)
			payload := []byte(strings.Repeat("x", 128))
			m := Message{Encode: func(Dialect) []byte { return payload }, Policy: DropNewest}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = h.Publish("c", m)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/delivery")
			for _, w := range h.workers {
				w.finish()
			}
			wg.Wait()
		})
	}
}

func BenchmarkJoinLeave(b *testing.B) {
	for _, n := range []int{1, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := New(Options{Workers: 1})
			fill(h, n)
			c, _ := simConn(h, -1, nil)
			b.ReportAllocs()
			for b.Loop() {
				_ = c.Join("c", Everyone, nil)
				c.Leave("c")
			}
		})
	}
}
