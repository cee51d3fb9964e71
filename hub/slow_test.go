package hub_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire/hub"
)

// One reader stalls for a while under each policy; then it reads everything, and what arrives and what it is told it missed add up, in order.
func TestH05_StalledReaderAddsUp(t *testing.T) {
	for _, policy := range []hub.Policy{hub.DropNewest, hub.DropOldest} {
		t.Run(policy.String(), func(t *testing.T) {
			eachPath(t, func(t *testing.T, p path) {
				seed := rand.Uint64()
				rnd := rand.New(rand.NewPCG(seed, 0))
				s := p.small().serve(t, hub.Options{QueueMessages: 20, Skipped: skipped}, nil)
				c, sc := s.dial(t)
				_ = sc.Join("c", hub.Everyone, nil)
				next, published, missed := 0, 0, 0
				read := func() {
					m, err := c.next()
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					var n int
					if _, err := fmt.Sscanf(m, "skip c %d", &n); err == nil {
						next, missed = next+n, missed+n
						return
					}
					if _, err := fmt.Sscan(m, &n); err != nil || n != next {
						t.Fatalf("seed %d: got %.20q, want %d", seed, m, next)
					}
					next++
				}
				for range 20 {
					for range rnd.IntN(60) {
						_, err := s.Publish("c", hub.Message{Encode: text(published, strings.Repeat(" ", rnd.IntN(4000))), Policy: policy})
						if err != nil {
							t.Fatal(err)
						}
						published++
					}
					for i := rnd.IntN(60); i > 0 && next < published; i-- {
						read()
					}
				}
				for next < published {
					read()
				}
				st := s.Stats()
				if next != published || missed == 0 || uint64(missed) != st.Dropped {
					t.Errorf("seed %d: %d of %d accounted for, %d missed; %+v", seed, next, published, missed, st)
				}
			})
		})
	}
}

func TestH05_LatestOfEachKeyArrives(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.small().serve(t, hub.Options{QueueMessages: 20, Skipped: skipped}, nil)
		c, sc := s.dial(t)
		_ = sc.Join("c", hub.Everyone, nil)
		const n, keys = 2000, 7
		pad := strings.Repeat(" ", 2000)
		for i := range n {
			_, _ = s.Publish("c", hub.Message{Encode: text(i, pad), Policy: hub.Latest, Key: fmt.Sprint(i % keys)})
		}
		arrived := 0
		last := [keys]int{-1, -1, -1, -1, -1, -1, -1}
		for slices.Min(last[:]) < n-keys {
			m, err := c.next()
			var i int
			if _, serr := fmt.Sscan(m, &i); err != nil || serr != nil || i <= last[i%keys] {
				t.Fatalf("%.20q after %v: %v", m, last, err)
			}
			last[i%keys] = i
			arrived++
		}
		if st := s.Stats(); st.Conflated+uint64(arrived) != n || st.Dropped != 0 {
			t.Errorf("%d arrived of %d; %+v", arrived, n, st)
		}
	})
}

// Under Disconnect a stalled reader gets a gapless beginning, and then the end: never silence.
func TestP41_DisconnectIsNeverSilent(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		why := make(chan hub.Reason, 1)
		s := p.small().serve(t, hub.Options{}, func() hub.Handler {
			return funcs{closed: func(_ *hub.Conn, r hub.Reason) { why <- r }}
		})
		c, sc := s.dial(t)
		_ = sc.Join("c", hub.Everyone, nil)
		pad := strings.Repeat(" ", 2000)
		for i := range 2000 {
			_, _ = s.Publish("c", hub.Message{Encode: text(i, pad)})
		}
		began := time.Now()
		if r := receive(t, why); r.Code != 1013 || r.Remote {
			t.Errorf("%+v", r)
		}
		for i := 0; ; i++ {
			m, err := c.next()
			if err != nil {
				var e closeError
				if told := errors.As(err, &e); told && e.code() != 1013 || !told && i == 0 {
					t.Errorf("after %d: %v", i, err)
				}
				break
			}
			if got, _, _ := strings.Cut(m, " "); got != fmt.Sprint(i) {
				t.Fatalf("got %s, want %d", got, i)
			}
		}
		eventually(t, "the end", func() bool { return s.Stats().Conns == 0 && s.Stats().SlowCloses == 1 })
		if d := time.Since(began); d > 4*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestH05_BytesAreBoundedToo(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.small().serve(t, hub.Options{QueueMessages: 1 << 20, QueueBytes: 100_000}, nil)
		_, sc := s.dial(t)
		_ = sc.Join("c", hub.Everyone, nil)
		pad := strings.Repeat(" ", 3000)
		for range 500 {
			_, _ = s.Publish("c", hub.Message{Encode: text(pad), Policy: hub.DropNewest})
			if _, n := sc.Buffered(); n > 100_000 {
				t.Fatalf("%d bytes", n)
			}
		}
		if n, bytes := sc.Buffered(); n < 25 || bytes < 90_000 || s.Stats().Dropped < 300 {
			t.Errorf("%d messages, %d bytes; %+v", n, bytes, s.Stats())
		}
	})
}

// A direct message that finds the queue full ends the connection, with 1013.
func TestH05_FullQueueAndSend(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		why := make(chan hub.Reason, 1)
		s := p.small().serve(t, hub.Options{QueueMessages: 10}, func() hub.Handler {
			return funcs{closed: func(_ *hub.Conn, r hub.Reason) { why <- r }}
		})
		_, sc := s.dial(t)
		pad := make([]byte, 100_000)
		var err error
		for i := 0; err == nil && i < 200; i++ {
			err = sc.Send(pad)
		}
		if err != hub.ErrQueueFull {
			t.Fatal(err)
		}
		if r := receive(t, why); r.Code != 1013 {
			t.Errorf("%+v", r)
		}
	})
}

// A thousand stalled readers: memory stays within what the queues may hold, the publisher does not wait, and those who read get everything at
// the pace at which they got it before.
func TestP39_P44_H03_StalledReadersHarmNobody(t *testing.T) {
	n, messages := 100, 120
	if long {
		n, messages = 1000, 1000
	}
	eachPath(t, func(t *testing.T, p path) {
		if p.tls && !long {
			n := n / 3 // mostly handshakes
			stalledReaders(t, p, n, messages)
			return
		}
		stalledReaders(t, p, n, messages)
	})
}

func stalledReaders(t *testing.T, p path, n, messages int) {
	const size, queueMessages = 2000, 50
	s := p.small().serve(t, hub.Options{QueueMessages: queueMessages, WriteTimeout: time.Hour, PongTimeout: time.Hour}, nil) // the readers here answer no pings
	var latency latencies
	var got atomic.Int64
	var wg sync.WaitGroup
	var readers []*client
	for range n {
		c, sc := s.dial(t)
		_ = sc.Join("c", 1, nil)
		readers = append(readers, c)
		wg.Go(func() {
			for {
				m, err := c.next()
				if err != nil {
					return
				}
				latency.add(time.Since(time.Unix(0, int64(binary.BigEndian.Uint64([]byte(m))))))
				got.Add(1)
			}
		})
	}
	defer func() { // readers see the end of the server
		s.stop()
		wg.Wait()
	}()
	expected := int64(0)
	publish := func(messages int) (slowest time.Duration) {
		for range messages {
			began := time.Now()
			_, err := s.Publish("c", hub.Message{Policy: hub.DropNewest, Encode: func(hub.Dialect) []byte {
				b := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
				return append(b, make([]byte, size-8)...)
			}})
			if err != nil {
				t.Fatal(err)
			}
			slowest = max(slowest, time.Since(began))
			expected += int64(len(readers))
			eventually(t, "all readers", func() bool { return got.Load() == expected })
		}
		return slowest
	}
	publish(messages / 4)
	before := latency.take()
	for range n {
		_, sc := s.dial(t)
		_ = sc.Join("c", 2, nil)
	}
	publish(messages / 4) // the queues of the stalled fill
	latency.take()
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	slowest := publish(messages)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	after := latency.take()
	st := s.Stats()
	t.Logf("healthy p50 %v then %v, p99 %v then %v; slowest publish %v; heap %d KiB then %d KiB; dropped %d",
		quantile(before, .5), quantile(after, .5), quantile(before, .99), quantile(after, .99), slowest, m0.HeapAlloc>>10, m1.HeapAlloc>>10, st.Dropped)
	if st.Dropped == 0 || st.Conns != 2*n {
		t.Errorf("%+v", st)
	}
	// The queues of all hold the same frames, so they are far below their bound together.
	if grown := int64(m1.HeapAlloc) - int64(m0.HeapAlloc) - 16*int64(len(after)); grown > // without what the test noted
		int64(n)*queueMessages*64+4<<20 {
		t.Errorf("heap grew by %d", grown)
	}
	if b, a := quantile(before, .99), quantile(after, .99); a > 5*b+100*time.Millisecond {
		t.Errorf("p99 %v, was %v", a, b)
	}
}

type latencies struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

func (l *latencies) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	slices.Sort(all)
	return all
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[int(q*float64(len(sorted)-1))]
}

// A burst of 20 MB (200 MB at full size) to a reader that keeps up as well as it can: under Disconnect it gets all of it in order, or a clear end.
func TestP41_Burst(t *testing.T) {
	n := 10_000
	if long {
		n = 100_000
	}
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{QueueMessages: 1 << 20, QueueBytes: 1 << 30}, nil)
		c, sc := s.dial(t)
		_ = sc.Join("c", hub.Everyone, nil)
		pad := strings.Repeat(" ", 2000)
		go func() {
			for i := range n {
				_, _ = s.Publish("c", hub.Message{Encode: text(i, pad)})
			}
		}()
		for i := range n {
			m, err := c.next()
			if got, _, _ := strings.Cut(m, " "); err != nil || got != fmt.Sprint(i) {
				t.Fatalf("got %s, %v, want %d", got, err, i)
			}
		}
	})
}

// Members of one channel on sockets see the order of 8 publishers alike.
func TestOrder_OnTheWire(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{QueueMessages: 1 << 20, QueueBytes: 1 << 30}, nil)
		var clients []*client
		for range 5 {
			c, sc := s.dial(t)
			_ = sc.Join("c", hub.Everyone, nil)
			clients = append(clients, c)
		}
		var wg sync.WaitGroup
		for pub := range 8 {
			wg.Go(func() {
				for i := range 200 {
					_, _ = s.Publish("c", hub.Message{Encode: text(pub, "/", i)})
				}
			})
		}
		var first []string
		for _, c := range clients {
			var got []string
			for range 1600 {
				m, err := c.next()
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, m)
			}
			if first == nil {
				first = got
			}
			if !slices.Equal(got, first) {
				t.Fatal("two members saw different orders")
			}
		}
		wg.Wait()
	})
}

// Many connections join, leave, publish, close and break at random, on sockets; in the end nothing is left.
func TestH02_RandomOnTheWire(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		seed := rand.Uint64()
		t.Log("seed", seed)
		s := p.serve(t, hub.Options{QueueMessages: 16}, func() hub.Handler {
			return funcs{message: func(c *hub.Conn, _ bool, d []byte) {
				name := string(d)
				c.Go(name, func() {
					if !c.Leave(name) {
						_ = c.Join(name, hub.Everyone, []byte("in"))
					}
				})
			}}
		})
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(seed, uint64(g)))
				for range 10 {
					c, err := s.dialErr("")
					if err != nil {
						t.Error(err)
						return
					}
					var reading sync.WaitGroup
					if rnd.IntN(3) > 0 {
						reading.Go(func() { _, _ = io.Copy(io.Discard, c.conn) })
					}
					for range rnd.IntN(60) {
						name := fmt.Sprint(rnd.IntN(6))
						_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
						if _, err := c.conn.Write(masked(1, name)); err != nil {
							break
						}
						_, _ = s.Publish(name, hub.Message{Encode: text(strings.Repeat("x", rnd.IntN(3000))), Policy: hub.Policy(rnd.IntN(4))})
					}
					switch rnd.IntN(3) {
					case 0:
						_, _ = c.conn.Write(masked(8, "\x03\xe8"))
					case 1:
						s.Each(func(c *hub.Conn) {
							if c.ID()%5 == 0 {
								c.Close(1000, "")
							}
						})
					}
					_ = c.conn.Close()
					reading.Wait()
				}
			})
		}
		wg.Wait()
		eventually(t, "nothing is left", func() bool {
			st := s.Stats()
			return st.Accepted == 60 && st.Conns == 0 && st.Channels == 0
		})
		if st := s.Stats(); st.Panics > 0 {
			t.Errorf("%+v", st)
		}
	})
}
