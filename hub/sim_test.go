package hub

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobwas/ws"
)

// These tests replace the socket by a fakeLink, so that each step of a queue is under control.

type fakeLink struct {
	c *Conn

	mu     sync.Mutex // guards below
	got    bytes.Buffer
	room   int // bytes that it still takes; negative is without end
	armed  bool
	shut   bool // our half
	closed bool
}

func (l *fakeLink) start()       {}
func (l *fakeLink) blocks() bool { return false }

func (l *fakeLink) write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return 0, io.ErrClosedPipe
	case l.room < 0:
		return l.got.Write(p)
	}
	n := min(l.room, len(p))
	l.room -= n
	l.got.Write(p[:n])
	if n < len(p) {
		return n, errBlocked
	}
	return n, nil
}

func (l *fakeLink) set(p *bool, v bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*p = v
}

func (l *fakeLink) get(p *bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *p
}

func (l *fakeLink) arm()        { l.set(&l.armed, true) }
func (l *fakeLink) closeWrite() { l.set(&l.shut, true) }
func (l *fakeLink) close()      { l.set(&l.closed, true) }

// allow lets the link take n bytes more.
func (l *fakeLink) allow(n int) {
	l.mu.Lock()
	l.room += n
	armed := l.armed
	l.armed = false
	l.mu.Unlock()
	if armed {
		l.c.worker.writable(l.c)
	}
}

// frames takes what has arrived as whole frames, each as its opcode's letter and payload, and leaves the rest.
func (l *fakeLink) frames(tb testing.TB) (all []string) {
	tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		r := bytes.NewReader(l.got.Bytes())
		h, err := ws.ReadHeader(r)
		if err != nil || int64(r.Len()) < h.Length {
			return all
		}
		payload := make([]byte, h.Length)
		_, _ = r.Read(payload)
		l.got.Next(l.got.Len() - r.Len())
		letter := map[ws.OpCode]string{ws.OpText: "", ws.OpPing: "ping:", ws.OpPong: "pong:", ws.OpClose: "close:"}[h.OpCode]
		all = append(all, letter+string(payload))
	}
}

type closedFunc func(*Conn, Reason)

func (closedFunc) Message(*Conn, bool, []byte) {}
func (f closedFunc) Closed(c *Conn, r Reason)  { f(c, r) }
func text(v ...any) func(Dialect) []byte {
	return func(Dialect) []byte { return fmt.Append(nil, v...) }
}

func tellSkipped(_ Dialect, ch string, n uint64) []byte {
	return fmt.Appendf(nil, "skip %s %d", ch, n)
}

// simConn starts a connection whose link takes room bytes.
func simConn(h *Hub, room int, handler Handler) (*Conn, *fakeLink) {
	if err := h.reserveNow(); err != nil {
		panic(err)
	}
	c := h.newConn(0)
	l := &fakeLink{c: c, room: room}
	c.link = l
	if handler == nil {
		handler = closedFunc(func(*Conn, Reason) {})
	}
	c.Start(handler)
	return c, l
}

// reserveNow takes a place in a hub that Run does not serve.
func (h *Hub) reserveNow() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns++
	return nil
}

// sim runs a hub without sockets on a fake clock. The hub's goroutines have stopped when it returns.
func sim(t *testing.T, opts Options, test func(*testing.T, *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := New(opts)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, w := range h.workers {
			wg.Go(w.run)
		}
		wg.Go(func() { h.sweep(ctx) })
		test(t, h)
		h.Each(func(c *Conn) { c.Close(1000, "") })
		time.Sleep(3 * time.Second) // of the fake clock: what lingers ends
		for _, w := range h.workers {
			w.finish()
		}
		cancel()
		wg.Wait()
		h.pool.wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		if n := h.everyone.size(); n != 0 || h.conns != 0 {
			t.Errorf("%d connections and %d places left", n, h.conns)
		}
	})
}

func wantFrames(t *testing.T, l *fakeLink, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := l.frames(t); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestH05_PoliciesExactly(t *testing.T) {
	// The queue takes 4. The first message is in the worker's hands (it has written 1 byte of it) and counts.
	publish := func(t *testing.T, h *Hub, p Policy, from, to int) {
		for i := from; i <= to; i++ {
			if _, err := h.Publish("c", Message{Encode: text(i), Policy: p}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
	}
	start := func(h *Hub) (*Conn, *fakeLink) {
		c, l := simConn(h, 1, nil)
		_ = c.Join("c", 0xff, nil)
		return c, l
	}
	opts := Options{QueueMessages: 4, Skipped: tellSkipped, Workers: 1}
	t.Run("drop newest", func(t *testing.T) {
		sim(t, opts, func(t *testing.T, h *Hub) {
			_, l := start(h)
			publish(t, h, DropNewest, 1, 7)
			l.allow(1 << 20)
			wantFrames(t, l, "1", "2", "3", "4", "skip c 3")
			if st := h.Stats(); st.Dropped != 3 || st.Queued != 4 {
				t.Errorf("%+v", st)
			}
		})
	})
	t.Run("drop newest twice tells twice", func(t *testing.T) {
		sim(t, opts, func(t *testing.T, h *Hub) {
			_, l := start(h)
			publish(t, h, DropNewest, 1, 6) // 1 2 3 4 skip(5 6)
			l.allow(2)                      // the rest of 1; the worker takes 2, 3, 4 and the mark, which are now in its hands
			synctest.Wait()
			publish(t, h, DropNewest, 7, 9)
			l.allow(1 << 20)
			wantFrames(t, l, "1", "2", "3", "4", "skip c 2", "skip c 3")
			publish(t, h, DropNewest, 10, 10)
			wantFrames(t, l, "10")
		})
	})
	t.Run("drop oldest", func(t *testing.T) {
		sim(t, opts, func(t *testing.T, h *Hub) {
			_, l := start(h)
			publish(t, h, DropOldest, 1, 8)
			l.allow(1 << 20)
			wantFrames(t, l, "1", "skip c 5", "7", "8")
		})
	})
	t.Run("drop oldest without marks", func(t *testing.T) {
		sim(t, Options{QueueMessages: 4, Workers: 1}, func(t *testing.T, h *Hub) {
			_, l := start(h)
			publish(t, h, DropOldest, 1, 8)
			l.allow(1 << 20)
			wantFrames(t, l, "1", "6", "7", "8")
			if st := h.Stats(); st.Written != 4 || st.Dropped != 4 {
				t.Errorf("%+v", st)
			}
		})
	})
	t.Run("drop oldest spares other channels", func(t *testing.T) {
		sim(t, opts, func(t *testing.T, h *Hub) {
			c, l := start(h)
			_ = c.Join("d", 0xff, nil)
			publish(t, h, DropNewest, 1, 1)
			for i := range 3 {
				_, _ = h.Publish("d", Message{Encode: text("d", i)})
			}
			publish(t, h, DropOldest, 2, 3)
			l.allow(1 << 20)
			wantFrames(t, l, "1", "d0", "d1", "d2", "skip c 2")
		})
	})
	t.Run("latest", func(t *testing.T) {
		sim(t, opts, func(t *testing.T, h *Hub) {
			_, l := start(h)
			publish(t, h, DropNewest, 0, 0)
			for i := range 9 {
				n, err := h.Publish("c", Message{Encode: text("k", i%2, "=", i), Key: fmt.Sprint(i % 2), Policy: Latest})
				if n != 1 || err != nil {
					t.Fatal(n, err)
				}
			}
			l.allow(1 << 20)
			wantFrames(t, l, "0", "k1=7", "k0=8") // in the order of publication
			if st := h.Stats(); st.Conflated != 7 || st.Queued != 10 || st.Dropped != 0 {
				t.Errorf("%+v", st)
			}
		})
	})
	t.Run("latest within the bytes", func(t *testing.T) {
		sim(t, Options{QueueBytes: 100, Workers: 1, Skipped: tellSkipped}, func(t *testing.T, h *Hub) {
			c, l := start(h)
			publish(t, h, DropNewest, 0, 0)
			big := strings.Repeat("x", 40)
			for i := range 6 {
				_, _ = h.Publish("c", Message{Encode: text("v", i), Key: fmt.Sprint(i), Policy: Latest})
			}
			for i := range 6 {
				_, _ = h.Publish("c", Message{Encode: text(big), Key: fmt.Sprint(i), Policy: Latest})
				if _, n := c.Buffered(); n > 100 {
					t.Fatalf("%d bytes wait", n)
				}
			}
			l.allow(1 << 20)
			synctest.Wait()
			got := l.frames(t)
			if st := h.Stats(); !slices.Contains(got, big) || st.Published != uint64(count(got))+st.Dropped+st.Conflated {
				t.Errorf("%q %+v", got, h.Stats())
			}
		})
	})
	t.Run("disconnect", func(t *testing.T) {
		sim(t, opts, func(t *testing.T, h *Hub) {
			_, l := start(h)
			publish(t, h, Disconnect, 1, 6)
			l.allow(1 << 20)
			wantFrames(t, l, "1", "close:"+string([]byte{1013 >> 8, 1013 & 0xff})+"backpressure")
			if st := h.Stats(); st.SlowCloses != 1 || st.Conns != 0 || h.Subscribers("c") != 0 {
				t.Errorf("%+v", st)
			}
		})
	})
	t.Run("max dropped", func(t *testing.T) {
		sim(t, Options{QueueMessages: 4, MaxDropped: 3, Workers: 1}, func(t *testing.T, h *Hub) {
			c, l := start(h)
			publish(t, h, DropNewest, 1, 6)
			l.allow(1 << 20) // the queue was empty: counted from zero again
			wantFrames(t, l, "1", "2", "3", "4")
			l.mu.Lock()
			l.room = 1
			l.mu.Unlock()
			publish(t, h, DropNewest, 1, 6)
			if !c.Joined("c") {
				t.Fatal("closed after 2 dropped")
			}
			publish(t, h, DropNewest, 7, 7)
			if c.Joined("c") {
				t.Fatal("open after 3 dropped")
			}
		})
	})
}

// count counts the messages that are not marks.
func count(frames []string) (n int) {
	for _, f := range frames {
		if !strings.HasPrefix(f, "skip ") {
			n++
		}
	}
	return n
}

// What arrives and what is told missing add up, in order, whatever the interleaving of publications on several channels, policies, joins and writes.
func TestH05_MarksProperty(t *testing.T) {
	for round := range 400 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		policy := []Policy{DropNewest, DropOldest}[round%2]
		mixed := round%5 == 0
		h := New(Options{QueueMessages: 2 + rnd.IntN(12), QueueBytes: 60 + rnd.IntN(300), Skipped: tellSkipped, Workers: 1})
		c, l := simConn(h, 0, nil)
		b := newBatch()
		sent := make([]int, 3)
		next := make([]int, 3)
		for ch := range sent {
			_ = c.Join(fmt.Sprint(ch), Everyone, nil)
		}
		check := func() {
			for _, f := range l.frames(t) {
				var ch, n int
				if _, err := fmt.Sscanf(f, "skip %d %d", &ch, &n); err == nil {
					next[ch] += n
					continue
				}
				if _, err := fmt.Sscanf(f, "%d:%d", &ch, &n); err != nil || next[ch] != n {
					t.Fatalf("seed %d, %v: got %q, want %d of channel %d", seed, policy, f, next[ch], ch)
				}
				next[ch]++
			}
		}
		for range 300 {
			switch rnd.IntN(5) {
			case 0:
				l.allow(rnd.IntN(60))
			case 1:
				c.drain(&b)
				check()
			default:
				ch := rnd.IntN(len(sent))
				p := policy
				if mixed {
					p = []Policy{DropNewest, DropOldest}[rnd.IntN(2)]
				}
				_, err := h.Publish(fmt.Sprint(ch), Message{Policy: p, Encode: func(Dialect) []byte {
					return fmt.Appendf(nil, "%d:%d %s", ch, sent[ch], strings.Repeat("x", rnd.IntN(20)))
				}})
				if err != nil {
					t.Fatal(err)
				}
				sent[ch]++
			}
			c.mu.Lock()
			n, bytes := int(c.queue.n+c.inflightN), int(c.queue.bytes)
			c.mu.Unlock()
			if n > h.opts.QueueMessages+2*len(sent) || bytes > h.opts.QueueBytes {
				t.Fatalf("seed %d: %d messages, %d bytes", seed, n, bytes)
			}
		}
		l.allow(1 << 30)
		c.drain(&b)
		check()
		if !slices.Equal(sent, next) {
			t.Fatalf("seed %d, %v: sent %v, accounted for %v", seed, policy, sent, next)
		}
		st := h.Stats()
		if st.Queued+st.Dropped < st.Published {
			t.Fatalf("seed %d: %+v", seed, st)
		}
	}
}

func TestH06_QueuedLeaveInOneWrite(t *testing.T) {
	h := New(Options{Workers: 1})
	c, l := simConn(h, -1, nil)
	_ = c.Join("c", Everyone, nil)
	for i := range 100 {
		_, _ = h.Publish("c", Message{Encode: text(i)})
	}
	b := newBatch()
	c.drain(&b)
	if st := h.Stats(); st.Writes != 1 || st.Written != 100 || len(l.frames(t)) != 100 {
		t.Errorf("%+v", st)
	}
}

func TestH05_OneBusyConnectionLeavesTheWorker(t *testing.T) {
	h := New(Options{Workers: 1})
	c, l := simConn(h, -1, nil)
	// As if a publisher were always as fast as the worker.
	l2 := &refill{fakeLink: l, c: c}
	c.link = l2
	_ = c.Send([]byte("x"))
	b := newBatch()
	if more := c.drain(&b); !more || l2.n > flushWrites || len(h.workers[0].list) != 1 {
		t.Errorf("%d writes without a pause; list %d", l2.n, len(h.workers[0].list))
	}
}

type refill struct {
	*fakeLink
	c *Conn
	n int
}

func (l *refill) write(p []byte) (int, error) {
	if l.n++; l.n < 1000 {
		_ = l.c.Send([]byte("x"))
	}
	return len(p), nil
}

func TestP40_TooLargeIsRefusedAndTheConnectionStays(t *testing.T) {
	sim(t, Options{QueueBytes: 1000}, func(t *testing.T, h *Hub) {
		c, l := simConn(h, -1, nil)
		big := make([]byte, 1000)
		if err := c.Send(big); err != ErrTooLarge {
			t.Errorf("Send = %v", err)
		}
		if err := c.Join("c", Everyone, big); err != ErrTooLarge || c.Joined("c") {
			t.Errorf("Join = %v", err)
		}
		_ = c.Join("c", Everyone, []byte("in"))
		for p := range Latest + 1 {
			if n, err := h.Publish("c", Message{Encode: func(Dialect) []byte { return big }, Policy: p}); n != 0 || err != ErrTooLarge {
				t.Errorf("%v: Publish = %d, %v", p, n, err)
			}
		}
		_ = c.Send(big[:990])
		wantFrames(t, l, "in", string(big[:990]))
	})
}

func TestH13_OneEncodingForEachDialect(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		var links []*fakeLink
		for i := range 40 {
			c, l := simConn(h, -1, nil)
			c.dialect = Dialect(i % 3)
			_ = c.Join("c", Everyone, nil)
			links = append(links, l)
		}
		var calls [MaxDialects]int
		n, err := h.Publish("c", Message{Encode: func(d Dialect) []byte {
			calls[d]++
			if d == 2 {
				return nil
			}
			return fmt.Append(nil, "for ", d)
		}})
		if calls != [MaxDialects]int{1, 1, 1, 0} || n != 27 || err != nil {
			t.Errorf("calls %v, Publish = %d, %v", calls, n, err)
		}
		if e := h.Stats().Encoded; e != 2 {
			t.Errorf("Encoded = %d", e)
		}
		for i, l := range links {
			if i%3 == 2 {
				wantFrames(t, l)
			} else {
				wantFrames(t, l, fmt.Sprint("for ", i%3))
			}
		}
	})
}

func TestH13_PanicInEncodeHarmsNobody(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		var links []*fakeLink
		for i := range 10 {
			c, l := simConn(h, -1, nil)
			c.dialect = Dialect(i / 5)
			_ = c.Join("c", Everyone, nil)
			links = append(links, l)
		}
		func() {
			defer func() { _ = recover() }()
			_, _ = h.Publish("c", Message{Encode: func(d Dialect) []byte {
				if d == 1 {
					panic("no")
				}
				return []byte("first")
			}})
		}()
		_, _ = h.Publish("c", Message{Encode: text("second")})
		for i, l := range links {
			if i < 5 {
				wantFrames(t, l, "first", "second")
			} else {
				wantFrames(t, l, "second")
			}
		}
	})
}

func TestMaskExceptAndBroadcast(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		a, la := simConn(h, -1, nil)
		b, lb := simConn(h, -1, nil)
		_, lc := simConn(h, -1, nil)
		_ = a.Join("c", 1, nil)
		_ = b.Join("c", 2, nil)
		pub := func(m Message, s string, want int) {
			t.Helper()
			m.Encode = text(s)
			if n, err := h.Publish("c", m); n != want || err != nil {
				t.Errorf("%s: %d, %v", s, n, err)
			}
		}
		pub(Message{Mask: 1}, "to 1", 1)
		pub(Message{Mask: 2}, "to 2", 1)
		pub(Message{}, "to all", 2)
		pub(Message{Except: a}, "not a", 1)
		pub(Message{Mask: 4}, "none", 0)
		_ = b.Join("c", 1, nil)
		pub(Message{Mask: 1}, "now both", 2)
		if n, _ := h.Broadcast(Message{Encode: text("everyone"), Except: b}); n != 2 {
			t.Errorf("Broadcast = %d", n)
		}
		if n, err := h.Publish("nobody", Message{Encode: text("x")}); n != 0 || err != nil {
			t.Errorf("Publish = %d, %v", n, err)
		}
		wantFrames(t, la, "to 1", "to all", "now both", "everyone")
		wantFrames(t, lb, "to 2", "to all", "not a", "now both")
		wantFrames(t, lc, "everyone")
	})
}

func TestH07_PingsAtTheInterval(t *testing.T) {
	sim(t, Options{HeartbeatInterval: 30 * time.Second, PongTimeout: time.Hour}, func(t *testing.T, h *Hub) {
		_, l := simConn(h, -1, nil)
		time.Sleep(300*time.Second + 2*time.Second)
		synctest.Wait()
		if n := len(l.frames(t)); n < 10 || n > 11 {
			t.Errorf("%d pings in 10 intervals", n)
		}
	})
}

func TestH07_DeadPeerIsGone(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		var ended time.Time
		var why Reason
		began := time.Now()
		_, l := simConn(h, -1, closedFunc(func(_ *Conn, r Reason) { ended, why = time.Now(), r }))
		alive, _ := simConn(h, -1, nil)
		for range 70 {
			time.Sleep(time.Second)
			alive.feed(mask(ws.OpPong, ""))
		}
		synctest.Wait()
		if d := ended.Sub(began); d < 60*time.Second || d > 62*time.Second || !why.Abrupt() || !l.get(&l.closed) {
			t.Errorf("ended after %v: %+v", d, why)
		}
		if alive.closing != nil || h.Stats().PongTimeouts != 1 {
			t.Errorf("the other one: %v, %+v", alive.closing, h.Stats())
		}
	})
}

// mask makes a frame as a client sends it.
func mask(op ws.OpCode, payload string) []byte {
	f := ws.NewFrame(op, true, []byte(payload))
	return ws.MustCompileFrame(ws.MaskFrameWith(f, [4]byte{1, 2, 3, 4}))
}

func TestH07_WriteTimeout(t *testing.T) {
	sim(t, Options{PongTimeout: time.Hour, HeartbeatInterval: time.Hour}, func(t *testing.T, h *Hub) {
		var ended time.Time
		stuck, _ := simConn(h, 1, closedFunc(func(*Conn, Reason) { ended = time.Now() }))
		began := time.Now()
		_ = stuck.Send([]byte("hello"))
		slow, l := simConn(h, 1, nil)
		_ = slow.Send(make([]byte, 1000))
		for range 30 { // slower than slow, but it moves
			time.Sleep(5 * time.Second)
			l.allow(1)
		}
		synctest.Wait()
		if d := ended.Sub(began); d < 10*time.Second || d > 12*time.Second {
			t.Errorf("stuck one ended after %v", d)
		}
		if slow.closing != nil || h.Stats().WriteTimeouts != 1 {
			t.Errorf("the one that moves: %+v, %+v", slow.closing, h.Stats())
		}
	})
}

// A full queue is no reason to close a connection whose publications may be dropped, not even when a ping is due.
func TestH07_PingDoesNotCloseAFullQueue(t *testing.T) {
	sim(t, Options{QueueMessages: 2, HeartbeatInterval: time.Second, PongTimeout: time.Hour, WriteTimeout: time.Hour}, func(t *testing.T, h *Hub) {
		c, l := simConn(h, 1, nil)
		_ = c.Join("c", Everyone, nil)
		for i := range 4 {
			_, _ = h.Publish("c", Message{Encode: text(i), Policy: DropNewest})
		}
		time.Sleep(5 * time.Second)
		l.allow(1 << 10)
		wantFrames(t, l, "0", "1", "ping:")
	})
}

func TestSetIdle(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		began := time.Now()
		ends := map[string]time.Duration{}
		start := func(name string) *Conn {
			c, _ := simConn(h, -1, closedFunc(func(_ *Conn, r Reason) {
				if r.Code != 1000 {
					ends[name] = time.Since(began)
					if r.Code != 4000 || r.Text != "idle" {
						t.Errorf("%s: %+v", name, r)
					}
				}
			}))
			return c
		}
		idle, busy, freed, none := start("idle"), start("busy"), start("freed"), start("none")
		for _, c := range []*Conn{idle, busy, freed} {
			c.SetIdle(10*time.Second, 4000, "idle")
		}
		freed.SetIdle(0, 0, "")
		for i := range 30 {
			time.Sleep(time.Second)
			idle.feed(mask(ws.OpPong, "")) // pongs do not count
			freed.feed(mask(ws.OpPong, ""))
			none.feed(mask(ws.OpPong, ""))
			if i < 15 {
				busy.feed(mask(ws.OpText, "x"))
			}
		}
		synctest.Wait()
		if d := ends["idle"]; d < 10*time.Second || d > 12*time.Second {
			t.Errorf("idle: %v", d)
		}
		if d := ends["busy"]; d < 25*time.Second || d > 27*time.Second {
			t.Errorf("busy: %v", d)
		}
		if len(ends) != 2 {
			t.Errorf("%v", ends)
		}
	})
}

// The close ends in time whatever the peer does: a drop now and then must not hold up a shutdown.
func TestH01_CloseEndsInTime(t *testing.T) {
	for _, name := range []string{"silent", "drips", "stuck"} {
		t.Run(name, func(t *testing.T) {
			sim(t, Options{}, func(t *testing.T, h *Hub) {
				room := map[string]int{"silent": -1, "drips": 10, "stuck": 0}[name]
				c, l := simConn(h, room, nil)
				for range 20 {
					_ = c.Send(make([]byte, 100))
				}
				synctest.Wait()
				began := time.Now()
				c.Close(1001, "bye")
				for !l.get(&l.closed) && time.Since(began) < time.Minute {
					time.Sleep(100 * time.Millisecond)
					if name == "drips" {
						l.allow(1)
					}
				}
				if d := time.Since(began); d < lingerTime || d > lingerTime+2*time.Second {
					t.Errorf("closed after %v", d)
				}
			})
		})
	}
}

// With both close frames exchanged the socket is closed at once: nothing waits for a timer.
func TestClose_EndsWithTheSecondFrame(t *testing.T) {
	sim(t, Options{}, func(t *testing.T, h *Hub) {
		_, l := simConn(h, -1, nil)
		l.c.feed(mask(ws.OpClose, "\x03\xe8"))
		wantFrames(t, l, "close:\x03\xe8")
		if !l.get(&l.closed) {
			t.Error("open after the answer to the peer's close")
		}
		_, l = simConn(h, -1, nil)
		l.c.Close(1000, "")
		wantFrames(t, l, "close:\x03\xe8")
		if l.get(&l.closed) || !l.get(&l.shut) {
			t.Error("does not wait for the peer's answer")
		}
		l.c.feed(mask(ws.OpClose, "\x03\xe8"))
		if !l.get(&l.closed) {
			t.Error("open after the peer's answer")
		}
	})
}

func TestCloseTextIsCutAtARune(t *testing.T) {
	f := closeFrame(Reason{Code: 1000, Text: strings.Repeat("é", 100)})
	if got := string(f[4:]); len(f) > 127 || got != strings.Repeat("é", 61) {
		t.Errorf("%d bytes: %q", len(f), got)
	}
}

// A connection that fails between Upgrade and Start leaves nothing behind, and the handler hears of it.
func TestP26_ClosedBeforeStart(t *testing.T) {
	for _, lost := range []bool{true, false} {
		sim(t, Options{}, func(t *testing.T, h *Hub) {
			_ = h.reserveNow()
			c := h.newConn(0)
			l := &fakeLink{c: c, room: -1, closed: lost}
			c.link = l
			_ = c.Join("c", Everyone, []byte("x"))
			synctest.Wait()
			if !lost {
				c.Close(1000, "")
			}
			var calls int
			c.Start(closedFunc(func(c *Conn, r Reason) { calls++ }))
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if st := h.Stats(); calls != 1 || st.Conns != 0 || st.Channels != 0 || st.Panics != 0 || !l.get(&l.closed) {
				t.Errorf("lost %v: Closed called %d times, %+v", lost, calls, st)
			}
		})
	}
}

// Closed comes after the channels are left, the tasks and the handler have returned, and once.
func TestP26_ClosedIsLast(t *testing.T) {
	for range 300 {
		seed := rand.Uint64()
		rnd := rand.New(rand.NewPCG(seed, 0))
		h := New(Options{Workers: 1})
		var mu sync.Mutex
		calls, running := 0, 0
		enter := func(d int) {
			mu.Lock()
			defer mu.Unlock()
			running += d
			if calls > 0 {
				t.Errorf("seed %d: work after Closed", seed)
			}
		}
		done := make(chan struct{}, 2)
		hd := &bothFuncs{
			message: func(*Conn) { enter(1); yield(3); enter(-1) },
			closed: func(c *Conn) {
				if n := h.Subscribers("a") + h.Subscribers("b") + h.everyone.size(); n != 0 || len(c.Channels()) > 0 {
					t.Errorf("seed %d: still a member of %d channels", seed, n)
				}
				mu.Lock()
				if calls++; running > 0 {
					t.Errorf("seed %d: Closed beside other work", seed)
				}
				mu.Unlock()
				done <- struct{}{}
			},
		}
		c, _ := simConn(h, -1, hd)
		_ = c.Join("a", Everyone, nil)
		_ = c.Join("b", Everyone, nil)
		var wg sync.WaitGroup
		n := rnd.IntN(20)
		wg.Go(func() {
			for i := range n {
				c.Go(fmt.Sprint(i%3), func() { enter(1); yield(i % 4); enter(-1) })
			}
		})
		wg.Go(func() {
			for range n {
				c.feed(mask(ws.OpText, "x"))
			}
		})
		for range 2 {
			wg.Go(func() { yield(n); c.Close(1000, "") })
		}
		wg.Go(func() { yield(n); c.lost(nil) })
		wg.Wait()
		<-done
		h.pool.wait()
		if calls != 1 {
			t.Fatalf("seed %d: Closed called %d times", seed, calls)
		}
	}
}

// Closed waits for a message or a task that closes the connection itself, and goes on.
func TestP26_ClosedWaitsForOthers(t *testing.T) {
	for _, where := range []string{"message", "task"} {
		sim(t, Options{}, func(t *testing.T, h *Hub) {
			var order []string
			work := func(c *Conn) {
				c.Close(1000, "")
				time.Sleep(time.Second)
				order = append(order, where)
			}
			c, _ := simConn(h, -1, &bothFuncs{message: work, closed: func(*Conn) { order = append(order, "closed") }})
			if where == "task" {
				c.Go("a", func() { work(c) })
			} else {
				c.feed(mask(ws.OpText, "x"))
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if !slices.Equal(order, []string{where, "closed"}) {
				t.Errorf("%q", order)
			}
		})
	}
}

// Closed waits for the leaving of channels, even if the last task ends before.
func TestP26_ClosedWaitsForLeaving(t *testing.T) {
	h := New(Options{Workers: 1})
	var closed atomic.Bool
	done := make(chan struct{})
	c, _ := simConn(h, -1, closedFunc(func(*Conn, Reason) { closed.Store(true); close(done) }))
	_ = c.Join("a", Everyone, nil)
	gate := make(chan struct{})
	c.Go("", func() { <-gate })
	ch := h.channels.get("a")
	ch.mu.Lock() // leaving stops here
	go c.Close(1000, "")
	for c.Joined("a") {
		runtime.Gosched()
	}
	close(gate)
	h.pool.wait()
	if closed.Load() {
		t.Error("Closed came before the connection had left")
	}
	ch.mu.Unlock()
	<-done
	h.pool.wait()
}

func yield(n int) {
	for range n {
		runtime.Gosched()
	}
}

type bothFuncs struct{ message, closed func(*Conn) }

func (b *bothFuncs) Message(c *Conn, _ bool, _ []byte) { b.message(c) }
func (b *bothFuncs) Closed(c *Conn, _ Reason)          { b.closed(c) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
