package hub_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire/hub"
)

// ledger is the log of one channel, with a hub that publishes it.
type ledger struct {
	*server
	channel string

	order sync.Mutex // held while one is appended and published

	mu      sync.Mutex // guards below
	entries []string
	first   int    // the first offset that is kept; zero keeps all
	epoch   string // in the message that tells of a loss
	fail    int    // reads to fail
	reads   int
}

func (p path) serveLog(t testing.TB, opts hub.Options) *ledger {
	l := &ledger{channel: "log"}
	opts.ReadLog = l.read
	opts.Skipped = skipped
	l.server = p.serve(t, opts, nil)
	return l
}

func (l *ledger) read(_ *hub.Conn, channel string, at hub.Position, limit int) ([]hub.Replayed, bool, error) {
	after := at.Offset
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.fail > 0 {
		l.fail--
		return nil, false, errors.New("the store is away")
	}
	if channel != l.channel {
		return nil, true, nil
	}
	if head := uint64(len(l.entries)); at.Tag != l.epoch || after > head || int(after)+1 < l.first {
		return []hub.Replayed{{Offset: head, Payload: fmt.Append(nil, "lost ", l.epoch, head), Moved: true, Tag: l.epoch}}, true, nil
	}
	var out []hub.Replayed
	for i := after; i < uint64(len(l.entries)) && len(out) < limit; i++ {
		out = append(out, hub.Replayed{Offset: i + 1, Payload: []byte(l.entries[i])})
	}
	return out, len(out) < limit || int(after)+limit == len(l.entries), nil
}

// append appends without publishing, as another node would.
func (l *ledger) append(text string) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, text)
	return uint64(len(l.entries))
}

func (l *ledger) add(policy hub.Policy, text string) {
	l.order.Lock()
	defer l.order.Unlock()
	_, _ = l.Publish(l.channel, hub.Message{Offset: l.append(text), Policy: policy, Encode: func(hub.Dialect) []byte { return []byte(text) }})
}

func numbered(n int) string { return fmt.Sprint("m", n) }

// A log of many pages that nobody publishes to any more is replayed to its end.
func TestS10_ReplayOfManyPages(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{})
	const total = 64*3 + 1
	for i := range total {
		l.append(numbered(i))
	}
	for _, from := range []uint64{0, 1, total - 64, total} {
		c, sc := l.dial(t)
		_ = sc.JoinLog("log", hub.Everyone, []byte("from"), hub.LogOptions{Offset: from})
		c.want("from")
		for i := int(from); i < total; i++ {
			c.want(numbered(i))
		}
	}
}

func TestS10_JoinLogReplaysThenLive(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, p path) {
		l := p.serveLog(t, hub.Options{})
		for i := range 200 {
			l.add(hub.CatchUp, numbered(i))
		}
		for _, from := range []uint64{0, 1, 199, 200} {
			c, sc := l.dial(t)
			if err := sc.JoinLog("log", hub.Everyone, []byte("from"), hub.LogOptions{Offset: from}); err != nil {
				t.Fatal(err)
			}
			l.mu.Lock()
			head := len(l.entries)
			l.mu.Unlock()
			l.add(hub.CatchUp, numbered(head))
			c.want("from")
			for i := int(from); i <= head; i++ {
				c.want(numbered(i))
			}
			eventually(t, "live", func() bool {
				pos, ok := sc.Position("log")
				return ok && !pos.Behind && pos.Offset == uint64(head)+1
			})
		}
	})
}

// A reader that stalls again and again under CatchUp gets everything, once and in order, and is told of no loss; the queue stays within half its bound.
func TestS10_CatchUpMissesNothing(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, p path) {
		l := p.small().serveLog(t, hub.Options{QueueMessages: 20, QueueBytes: 64 << 10})
		c, sc := l.dial(t)
		_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
		eventually(t, "live", func() bool { p, _ := sc.Position("log"); return !p.Behind })
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
		published, read := 0, 0
		for range 15 {
			for range rnd.IntN(80) {
				l.add(hub.CatchUp, fmt.Sprint(published, strings.Repeat(" ", rnd.IntN(4000))))
				published++
				if n, b := sc.Buffered(); n > 10+1 || b > 32<<10+4100 {
					t.Fatalf("%d messages, %d bytes wait", n, b)
				}
			}
			for i := rnd.IntN(80); i > 0 && read < published; i-- {
				expectNumber(t, c, read)
				read++
			}
		}
		for ; read < published; read++ {
			expectNumber(t, c, read)
		}
		if st := l.Stats(); st.CatchUps == 0 || st.Replayed == 0 || st.Dropped != 0 {
			t.Errorf("%+v", st)
		}
	})
}

func expectNumber(t *testing.T, c *client, want int) {
	t.Helper()
	m, err := c.next()
	var n int
	if _, serr := fmt.Sscan(m, &n); err != nil || serr != nil || n != want {
		t.Fatalf("got %.30q, %v, want %d", m, err, want)
	}
}

// A publication that this hub did not see is read from the log when the next one shows that it is missing. Repetitions are ignored.
func TestS10_GapIsRepaired(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{})
	c, sc := l.dial(t)
	_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
	l.add(hub.DropNewest, "1")
	c.want("1")
	eventually(t, "live", func() bool { p, _ := sc.Position("log"); return !p.Behind })
	l.append("2")
	l.append("3")
	l.add(hub.DropNewest, "4")
	c.want("2", "3", "4")
	_, _ = l.Publish("log", hub.Message{Offset: 2, Encode: text("again")})
	l.add(hub.DropNewest, "5")
	c.want("5")
	if st := l.Stats(); st.Gaps != 1 {
		t.Errorf("%+v", st)
	}
}

func TestS10_RewindTellsEveryMember(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{})
	var clients []*client
	for range 5 {
		c, sc := l.dial(t)
		_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
		eventually(t, "live", func() bool { p, _ := sc.Position("log"); return !p.Behind })
		clients = append(clients, c)
	}
	for i := range 100 {
		l.add(hub.CatchUp, numbered(i))
	}
	l.order.Lock()
	l.mu.Lock()
	l.entries, l.epoch = nil, "new "
	l.mu.Unlock()
	l.Rewind("log")
	l.order.Unlock()
	for _, c := range clients {
		for i := range 100 {
			c.want(numbered(i))
		}
		c.want("lost new 0")
	}
	l.add(hub.CatchUp, "first")
	for _, c := range clients {
		c.want("first")
	}
}

// A store that fails is asked again, and nothing is missed meanwhile.
func TestS10_FailedReadIsRepeated(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{HeartbeatInterval: 100 * time.Millisecond})
	l.add(hub.CatchUp, "1")
	l.fail = 3
	c, sc := l.dial(t)
	_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
	l.add(hub.CatchUp, "2")
	c.want("1", "2")
}

// A log that lacks what was published must not make the hub spin.
func TestS10_StaleLogDoesNotSpin(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{})
	_, sc := l.dial(t)
	_, _ = l.Publish("log", hub.Message{Offset: 7, Encode: text("x")})
	other, osc := l.dial(t)
	_ = osc.Join("log", hub.Everyone, nil)
	_, _ = l.Publish("log", hub.Message{Offset: 8, Encode: text("y")})
	_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
	other.want("y")
	stable, last := 0, -1
	eventually(t, "reads end", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.reads == last {
			stable++
		} else {
			stable, last = 0, l.reads
		}
		return stable > 20
	})
	if last > 200 {
		t.Errorf("%d reads", last)
	}
}

func TestS10_InsteadKeepsTheOffsets(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{})
	a, asc := l.dial(t)
	b, bsc := l.dial(t)
	_ = asc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
	_ = bsc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{})
	l.add(hub.CatchUp, "1")
	a.want("1")
	b.want("1")
	eventually(t, "live", func() bool {
		p, _ := asc.Position("log")
		q, _ := bsc.Position("log")
		return !p.Behind && !q.Behind
	})
	_, _ = l.Publish("log", hub.Message{Offset: l.append("2"), Encode: text("2"), Instead: func(c *hub.Conn) []byte {
		if c == asc {
			return []byte("yours")
		}
		return nil
	}})
	l.add(hub.CatchUp, "3")
	a.want("yours", "3")
	b.want("2", "3")
}

// The word that a log was lost may find no room when it is first made: it is neither forgotten nor overtaken by the messages of the new log.
func TestS10_LossIsToldWhateverIsFull(t *testing.T) {
	t.Parallel()
	for _, sent := range []int{2, 1, 0} {
		l := path{}.serveLog(t, hub.Options{AckTimeout: 100 * time.Millisecond})
		c, sc := l.dial(t)
		_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{Window: 2})
		for i := range sent {
			l.add(hub.CatchUp, numbered(i))
			c.want(numbered(i))
		}
		eventually(t, "live", func() bool { p, _ := sc.Position("log"); return !p.Behind })
		l.order.Lock()
		l.mu.Lock()
		l.entries, l.epoch = nil, "new "
		l.mu.Unlock()
		for i := range 5 {
			l.append(fmt.Sprint("new", i))
		}
		l.Rewind("log")
		l.order.Unlock()
		if sent == 2 { // the window is full: nothing comes before something is acknowledged
			sc.Ack("log", 2)
		}
		c.want("lost new 5")
		sc.Ack("log", uint64(sent)) // late, of the old log
		l.add(hub.CatchUp, "next")
		c.want("next")
		if p, _ := sc.Position("log"); p.Acked != 0 || p.Sent != 6 || p.Slow {
			t.Errorf("%d sent before: %+v", sent, p)
		}
		sc.Ack("log", 6)
		for i := range 4 { // it does not stall
			l.add(hub.CatchUp, numbered(i))
			c.want(numbered(i))
			sc.Ack("log", uint64(7+i))
		}
	}
}

func TestB14_WindowStopsAndAcksResume(t *testing.T) {
	t.Parallel()
	l := path{}.serveLog(t, hub.Options{})
	c, sc := l.dial(t)
	_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{Window: 4})
	for i := range 20 {
		l.add(hub.CatchUp, numbered(i))
	}
	for i := range 4 {
		c.want(numbered(i))
	}
	p, _ := sc.Position("log")
	if p.Sent != 4 || p.Acked != 0 || !p.Behind {
		t.Fatalf("%+v", p)
	}
	for i := 4; i < 20; i++ {
		if !sc.Ack("log", uint64(i-3)) { // one for one
			t.Fatal("not acknowledged")
		}
		c.want(numbered(i))
	}
	sc.Ack("log", 1)    // late
	sc.Ack("log", 9999) // beyond what was sent
	p, _ = sc.Position("log")
	if p.Acked != 20 || p.Sent != 20 || p.Slow {
		t.Fatalf("%+v", p)
	}
	l.add(hub.CatchUp, "next")
	c.want("next")
	if sc.Ack("other", 1) {
		t.Error("acknowledged a channel that it has not joined")
	}
}

func TestB14_SlowAckActsAsTheFullQueue(t *testing.T) {
	t.Parallel()
	for _, policy := range []hub.Policy{hub.CatchUp, hub.Disconnect, hub.DropNewest, hub.DropOldest} {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			l := path{}.serveLog(t, hub.Options{AckTimeout: 50 * time.Millisecond})
			c, sc := l.dial(t)
			_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{Window: 100})
			l.add(policy, "1")
			c.want("1")
			eventually(t, "slow", func() bool { p, _ := sc.Position("log"); return p.Slow })
			if st := l.Stats(); st.SlowAcks != 1 {
				t.Errorf("%+v", st)
			}
			l.add(policy, "2")
			if policy == hub.Disconnect {
				c.wantClose(1013)
				return
			}
			sc.Ack("log", 1)
			p, _ := sc.Position("log")
			if p.Slow || p.Acked != 1 {
				t.Errorf("%+v", p)
			}
			l.add(policy, "3")
			if policy == hub.CatchUp {
				c.want("2", "3")
			} else {
				c.want("skip log 1", "3")
			}
		})
	}
}

// Many connections stall, leave, come back at their position and are cut while several publish: each gets everything from its position on, once and in order.
func TestS10_SimulatedMembers(t *testing.T) {
	t.Parallel()
	eachPath(t, func(t *testing.T, p path) {
		const members, publishers, each = 16, 4, 400
		const total = publishers * each
		l := p.small().serveLog(t, hub.Options{QueueMessages: 32, QueueBytes: 64 << 10})
		var wg sync.WaitGroup
		var done atomic.Int64
		for range publishers {
			wg.Go(func() {
				rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
				for range each {
					l.order.Lock()
					l.mu.Lock()
					text := fmt.Sprint(len(l.entries), strings.Repeat(" ", rnd.IntN(300)))
					l.mu.Unlock()
					offset := l.append(text)
					if rnd.IntN(10) > 0 { // else the hub does not see it
						_, _ = l.Publish(l.channel, hub.Message{Offset: offset, Policy: hub.CatchUp, Encode: func(hub.Dialect) []byte { return []byte(text) }})
					}
					l.order.Unlock()
				}
			})
		}
		for range members {
			wg.Go(func() {
				defer done.Add(1)
				rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
				next := 0
				for next < total {
					c, sc := l.dial(t)
					_ = sc.JoinLog("log", hub.Everyone, nil, hub.LogOptions{Offset: uint64(next)})
					for n := rnd.IntN(500); next < total && n > 0; n-- {
						if rnd.IntN(60) == 0 { // leaves and joins again; what is on its way still comes
							sc.Leave("log")
							_ = sc.JoinLog("log", hub.Everyone, []byte("again"), hub.LogOptions{Offset: uint64(next)})
							for {
								m, err := c.next()
								if err != nil {
									t.Error(err)
									return
								}
								if m == "again" {
									break
								}
							}
						}
						m, err := c.next()
						var got int
						if _, serr := fmt.Sscan(m, &got); err != nil || serr != nil || got != next {
							t.Errorf("got %.20q, %v, want %d", m, err, next)
							return
						}
						next++
					}
					_ = c.conn.Close()
				}
			})
		}
		// The last ones may have been unseen: the hub must be told that there is more.
		wg.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for done.Load() < members {
				<-tick.C
				l.order.Lock()
				l.mu.Lock()
				n := len(l.entries)
				l.mu.Unlock()
				if n == total {
					l.mu.Lock()
					last := l.entries[n-1]
					l.mu.Unlock()
					_, _ = l.Publish(l.channel, hub.Message{Offset: uint64(n), Policy: hub.CatchUp, Encode: func(hub.Dialect) []byte { return []byte(last) }})
				}
				l.order.Unlock()
			}
		})
		wg.Wait()
	})
}
