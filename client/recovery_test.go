package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/wire"
)

// road is the way of one client to its server. A test can cut it.
type road struct {
	// delay is how long a part that came is held back, as by a packet that was lost and sent again. Nil is not at all.
	delay func() time.Duration

	mu    sync.Mutex // guards below
	conns []*wayConn
	kept  []net.Conn // the server's side goes on
}

// wayConn is one connection on the road. Lost, it takes what is written and brings nothing, and the server does not see that it ends.
type wayConn struct {
	net.Conn
	r    *road
	lost atomic.Bool
}

func (r *road) httpClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		c := &wayConn{Conn: conn, r: r}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.conns = append(r.conns, c)
		return c, nil
	}}}
}

func (c *wayConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if c.r.delay != nil {
			if d := c.r.delay(); d > 0 {
				timer := time.NewTimer(d)
				<-timer.C
			}
		}
		if err != nil || !c.lost.Load() {
			return n, err
		}
	}
}

func (c *wayConn) Write(p []byte) (int, error) {
	if c.lost.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *wayConn) Close() error {
	if !c.lost.Load() {
		return c.Conn.Close()
	}
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.kept = append(c.r.kept, c.Conn)
	return c.SetReadDeadline(time.Unix(1, 0))
}

// cut ends all connections, with a reset if hard.
func (r *road) cut(hard bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		if tcp, ok := c.Conn.(*net.TCPConn); ok && hard {
			_ = tcp.SetLinger(0)
		}
		_ = c.Conn.Close()
	}
	r.conns = nil
}

// lose makes all connections half-open.
func (r *road) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.lost.Store(true)
	}
	r.conns = nil
}

// end closes what the server still holds open.
func (r *road) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.kept {
		_ = c.Close()
	}
}

// dice are random numbers that a failure can repeat. They may be thrown from any goroutine.
type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

// throw seeds the dice, from TIDEWIRE_TEST_SEED if it is set.
func throw(t *testing.T) *dice {
	seed := rand.Uint64()
	if s := os.Getenv("TIDEWIRE_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("TIDEWIRE_TEST_SEED=%d", seed)
		}
	})
	return &dice{rng: rand.New(rand.NewPCG(seed, 7))}
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// nap waits for a random time up to d.
func (d *dice) nap(most time.Duration) {
	timer := time.NewTimer(time.Duration(d.n(int(most))))
	<-timer.C
}

// follower checks that a subscription gets the numbers 1, 2, 3 … as data, each once, in order, at their offsets, and that nothing is lost.
type follower struct {
	t          *testing.T
	got        atomic.Int64
	live, back atomic.Int64 // times subscribed, and recovered
}

func (f *follower) options() client.SubscribeOptions {
	return client.SubscribeOptions{
		OnSubscribed: func(s client.Subscribed) {
			f.live.Add(1)
			if s.Recovered {
				f.back.Add(1)
			}
		},
		OnMessage: func(m client.Message) {
			n := f.got.Add(1)
			if string(m.Data) != fmt.Sprint(n) || m.Offset != uint64(n) {
				f.t.Errorf("got %s at %d, want %d", m.Data, m.Offset, n)
			}
		},
		OnLost:    func(l client.Lost) { f.t.Errorf("lost %+v", l) },
		OnSkipped: func(n uint64) { f.t.Errorf("skipped %d", n) },
		OnRefused: func(e *wire.Error) { // a connection can end before its commands are done
			if e.Retry == 0 {
				f.t.Error(e)
			}
		},
	}
}

// eager comes back at once.
func eager(r *road) client.Options {
	return client.Options{HTTPClient: r.httpClient(), MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond}
}

// busy are the options of a node that has no limit to reach in a test.
func busy(streams stream.Store) tidewire.Options {
	return tidewire.Options{Streams: streams, PresenceGrace: 100 * time.Millisecond, Limits: tidewire.Limits{
		AcceptsPerSecond: 100_000, AcceptBurst: 100_000, FramesPerSecond: 100_000, FrameBurst: 100_000,
	}}
}

// TestP10_AHundredDropsInARow drops the connection at random moments, also before it is live and with the node, whose store stays. The first drop comes before any message.
func TestP10_AHundredDropsInARow(t *testing.T) {
	t.Parallel()
	d := throw(t)
	streams := stream.NewMemory(stream.MemoryOptions{})
	first := startNode(t, "", busy(streams))
	var mu sync.Mutex // guards current
	current := first
	r := &road{}
	f := &follower{t: t}
	sub := first.subscribe(first.connect(eager(r)), "long.a", f.options())
	eventually(t, "live", sub.Live)
	r.cut(true)
	eventually(t, "live again", func() bool { return f.live.Load() >= 2 })

	done := make(chan struct{})
	published := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-done:
				published <- n
				return
			default:
			}
			mu.Lock()
			for range d.n(30) {
				n++
				if _, err := current.Publish(t.Context(), "long.a", n, tidewire.PublishOptions{}); err != nil {
					t.Error(err)
				}
			}
			mu.Unlock()
			d.nap(4 * time.Millisecond)
		}
	}()
	kills := 0
	for drop := range 100 {
		if drop%3 != 0 {
			live := f.live.Load()
			eventually(t, "live", func() bool { return sub.Live() || f.live.Load() > live })
		}
		d.nap(25 * time.Millisecond)
		if drop%4 != 1 {
			r.cut(d.n(2) == 0)
			continue
		}
		kills++
		mu.Lock()
		r.cut(true)
		current.stop()
		current = startNode(t, first.addr, busy(streams))
		mu.Unlock()
	}
	close(done)
	n := int64(<-published)
	eventually(t, "all messages", func() bool { return f.got.Load() == n })
	if f.back.Load() != f.live.Load()-1 || n == 0 {
		t.Errorf("live %d times, of which %d recovered; %d messages", f.live.Load(), f.back.Load(), n)
	}
	t.Logf("%d messages over %d connections, %d nodes killed", n, f.live.Load(), kills)
}

// TestP13_ReconnectsUnderFiveThousandMessagesASecond has reconnects all the time.
func TestP13_ReconnectsUnderFiveThousandMessagesASecond(t *testing.T) {
	t.Parallel()
	d := throw(t)
	s := startNode(t, "", busy(nil))
	r := &road{}
	f := &follower{t: t}
	opts := f.options()
	opts.Ack = true
	sub := s.subscribe(s.connect(eager(r)), "long.a", opts)
	eventually(t, "live", sub.Live)
	const rate, length = 5000, 6 * time.Second
	cutting, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var work sync.WaitGroup
	cuts := 0
	work.Go(func() {
		for cutting.Err() == nil {
			d.nap(15 * time.Millisecond)
			r.cut(d.n(2) == 0)
			cuts++
		}
	})
	start, n := time.Now(), int64(0)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for cutting.Err() == nil {
		for due := int64(time.Since(start).Seconds() * rate); n < due; {
			n++
			if _, err := s.Publish(t.Context(), "long.a", n, tidewire.PublishOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		<-tick.C
	}
	work.Wait()
	eventually(t, "all messages", func() bool { return f.got.Load() == n })
	if f.back.Load() != f.live.Load()-1 || f.live.Load() < 100 {
		t.Errorf("live %d times, of which %d recovered", f.live.Load(), f.back.Load())
	}
	t.Logf("%d messages, %d cuts, live %d times, %d replayed", n, cuts, f.live.Load(), s.Stats().Replayed)
}

// TestP11_BothEndsAgreeOnThePosition does at random what moves positions, and compares them whenever it is quiet.
func TestP11_BothEndsAgreeOnThePosition(t *testing.T) {
	t.Parallel()
	d := throw(t)
	streams := stream.NewMemory(stream.MemoryOptions{})
	s := startNode(t, "", busy(streams))
	r := &road{}
	c := s.connect(eager(r))
	var slow atomic.Bool
	sub := s.subscribe(c, "short.a", client.SubscribeOptions{Ack: true, OnMessage: func(client.Message) {
		if slow.Load() {
			d.nap(time.Millisecond)
		}
	}, OnLost: func(client.Lost) {}})
	eventually(t, "live", sub.Live)
	publish := func() client.Position {
		p, err := s.Publish(t.Context(), "short.a", 1, tidewire.PublishOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return client.Position{Offset: p.Offset, Epoch: p.Epoch}
	}
	for range 60 {
		for range d.n(6) {
			switch d.n(6) {
			case 0:
				r.cut(true)
			case 1:
				r.cut(false)
				for range d.n(60) {
					publish()
				}
			case 2:
				slow.Store(d.n(2) == 0)
			case 3:
				if err := streams.Trim(t.Context(), "channel/short.a", stream.Retention{Count: 1}); err != nil {
					t.Fatal(err)
				}
			case 4:
				if d.n(4) == 0 {
					if err := streams.Reset(t.Context(), "channel/short.a"); err != nil {
						t.Fatal(err)
					}
				}
			case 5:
				if _, err := c.Publish(t.Context(), "short.a", 1, client.PublishOptions{NoEcho: d.n(2) == 0}); err != nil && !errors.Is(err, client.ErrUncertain) {
					t.Fatal(err)
				}
			}
			for range d.n(100) {
				publish()
			}
		}
		head := publish()
		var acks tidewire.Acks
		agree := func() bool {
			var err error
			if acks, err = s.Acks(t.Context(), "short.a"); err != nil {
				t.Fatal(err)
			}
			if sub.Position() != head || len(acks.Subscribers) != 1 {
				return false
			}
			a := acks.Subscribers[0]
			return a.Acked == head.Offset && acks.Lowest == head.Offset && a.Pending == 0 && !a.Behind
		}
		asked := time.Now()
		deadline := asked.Add(patience)
		for !agree() {
			if time.Now().After(deadline) {
				t.Fatalf("the head is %+v, the client at %+v, and acknowledged %+v", head, sub.Position(), acks)
			}
			if sub.Position() == head && time.Since(asked) > time.Second {
				head, asked = publish(), time.Now() // the last ones were told missing, so there was nothing to acknowledge
			}
			d.nap(2 * time.Millisecond)
		}
	}
}

func TestP12_UnknownAndTrimmedPositionsAreTold(t *testing.T) {
	t.Parallel()
	s := startNode(t, "", tidewire.Options{})
	var head tidewire.Published
	for i := range 50 { // 20 are kept
		var err error
		if head, err = s.Publish(t.Context(), "short.a", i, tidewire.PublishOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		since client.Position
		lost  bool
		count uint64
		first uint64 // the next message
	}{
		{client.Position{Offset: 50, Epoch: head.Epoch}, false, 0, 51},
		{client.Position{Offset: 49, Epoch: head.Epoch}, false, 0, 50},
		{client.Position{Offset: 30, Epoch: head.Epoch}, false, 0, 31},
		{client.Position{Offset: 29, Epoch: head.Epoch}, true, 21, 51},
		{client.Position{Offset: 0, Epoch: head.Epoch}, true, 50, 51},
		{client.Position{Offset: 51, Epoch: head.Epoch}, true, 0, 51},
		{client.Position{Offset: 50, Epoch: "never"}, true, 0, 51},
		{client.Position{Offset: 0, Epoch: "never"}, true, 0, 51},
	} {
		first, lost := make(chan uint64, 100), make(chan client.Lost, 1)
		sub := s.subscribe(s.connect(client.Options{}), "short.a", client.SubscribeOptions{
			Since: &c.since,
			OnSubscribed: func(s client.Subscribed) {
				if s.Recovered == c.lost {
					t.Errorf("%+v: %+v", c, s)
				}
			},
			OnLost:    func(l client.Lost) { lost <- l },
			OnMessage: func(m client.Message) { first <- m.Offset },
		})
		eventually(t, "live", sub.Live)
		if c.first == 51 {
			defer func() {
				if n := <-first; n != 51 {
					t.Errorf("%+v: the first is %d", c, n)
				}
			}()
		} else if n := <-first; n != c.first {
			t.Errorf("%+v: the first is %d", c, n)
		}
		select {
		case l := <-lost:
			if !c.lost || l.Count != c.count || l.From != c.since || l.To != (client.Position{Offset: 50, Epoch: head.Epoch}) {
				t.Errorf("%+v: lost %+v", c, l)
			}
		default:
			if c.lost {
				t.Errorf("%+v: nothing is told", c)
			}
		}
	}
	if _, err := s.Publish(t.Context(), "short.a", 1, tidewire.PublishOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestP14_BetweenAPageAndItsStream reads a page of the history, and goes on from it with a subscription, while messages are published.
func TestP14_BetweenAPageAndItsStream(t *testing.T) {
	t.Parallel()
	d := throw(t)
	s := startNode(t, "", busy(nil))
	done := make(chan struct{})
	var work sync.WaitGroup
	var published atomic.Int64
	work.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := s.Publish(context.Background(), "long.a", published.Add(1), tidewire.PublishOptions{}); err != nil {
					t.Error(err)
				}
				d.nap(time.Millisecond)
			}
		}
	})
	type reader struct {
		at  uint64
		sub *client.Subscription
	}
	var readers []*reader
	for range 20 {
		page, err := s.History(t.Context(), "long.a", tidewire.HistorySince{Last: 10}, 10)
		if err != nil {
			t.Fatal(err)
		}
		rd := &reader{at: page.Offset}
		rd.sub = s.subscribe(s.connect(client.Options{}), "long.a", client.SubscribeOptions{
			Since: &client.Position{Offset: page.Offset, Epoch: page.Epoch},
			OnMessage: func(m client.Message) {
				if rd.at++; m.Offset != rd.at || string(m.Data) != fmt.Sprint(rd.at) {
					t.Errorf("%s at %d, want %d", m.Data, m.Offset, rd.at)
				}
			},
			OnLost: func(l client.Lost) { t.Errorf("lost %+v", l) },
		})
		readers = append(readers, rd)
		eventually(t, "live", rd.sub.Live)
	}
	close(done)
	work.Wait()
	for _, rd := range readers {
		eventually(t, "all", func() bool { return rd.sub.Position().Offset == uint64(published.Load()) })
	}
}

func TestP14_LastBringsTheNewest(t *testing.T) {
	t.Parallel()
	s := startNode(t, "", tidewire.Options{})
	for i := range 50 {
		if _, err := s.Publish(t.Context(), "short.a", i+1, tidewire.PublishOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for last, first := range map[int]uint64{3: 48, 1000: 31} {
		r := &road{}
		got := make(chan uint64, 100)
		var live atomic.Int32
		sub := s.subscribe(s.connect(eager(r)), "short.a", client.SubscribeOptions{
			Last:         last,
			OnSubscribed: func(client.Subscribed) { live.Add(1) },
			OnMessage:    func(m client.Message) { got <- m.Offset },
		})
		for want := first; want <= 50; want++ {
			if n := <-got; n != want {
				t.Errorf("last %d: got %d, want %d", last, n, want)
			}
		}
		eventually(t, "handled", func() bool { return sub.Position().Offset == 50 })
		r.cut(true) // it goes on from there, and does not read the last again
		eventually(t, "live again", func() bool { return live.Load() == 2 })
		if len(got) != 0 {
			t.Errorf("last %d: got %d again", last, <-got)
		}
	}
}

// TestP17_AwayForTooLong is away until the history does not reach back.
func TestP17_AwayForTooLong(t *testing.T) {
	t.Parallel()
	s := startNode(t, "", tidewire.Options{PresenceGrace: -1})
	r := &road{}
	lost := make(chan client.Lost, 10)
	var live, recovered atomic.Int32
	sub := s.subscribe(s.connect(client.Options{HTTPClient: r.httpClient(), MinBackoff: 300 * time.Millisecond, Rand: func() float64 { return 0.99 }}), "short.a", client.SubscribeOptions{
		Presence: &client.Presence{Data: "me"},
		OnLost:   func(l client.Lost) { lost <- l },
		OnSubscribed: func(s client.Subscribed) {
			live.Add(1)
			if s.Recovered {
				recovered.Add(1)
			}
		},
	})
	eventually(t, "live", sub.Live)
	r.cut(true)
	eventually(t, "gone", func() bool { return s.Roster("short.a").Total == 0 && !sub.Live() })
	for range 100 {
		if _, err := s.Publish(t.Context(), "short.a", 1, tidewire.PublishOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "live again", func() bool { return live.Load() == 2 })
	if l := <-lost; l.Count != 100 || recovered.Load() != 0 {
		t.Errorf("lost %+v; %d recovered", l, recovered.Load())
	}
	eventually(t, "in the roster again", func() bool { return s.Roster("short.a").Total == 1 })
	eventually(t, "at the head", func() bool { return sub.Position().Offset == 100 })
}

// TestP18_PublicationsOverManyLostConnections publishes one after the other while the connection is cut and the node is killed: all are kept, each once, in order.
func TestP18_PublicationsOverManyLostConnections(t *testing.T) {
	t.Parallel()
	d := throw(t)
	streams := stream.NewMemory(stream.MemoryOptions{})
	first := startNode(t, "", busy(streams))
	r := &road{}
	c := first.connect(eager(r))
	if _, err := c.Publish(t.Context(), "long.a", 0, client.PublishOptions{}); err != nil { // now it is known to have history
		t.Fatal(err)
	}
	const senders, each = 4, 400
	var work, cutter sync.WaitGroup
	var over atomic.Bool
	cuts := 0
	cutter.Go(func() {
		s := first
		for !over.Load() {
			d.nap(6 * time.Millisecond)
			r.cut(d.n(2) == 0)
			if cuts++; cuts%20 == 0 {
				s.stop()
				s = startNode(t, first.addr, busy(streams))
			}
		}
	})
	for sender := range senders {
		work.Go(func() {
			for i := range each {
				d.nap(2 * time.Millisecond)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if _, err := c.Publish(ctx, "long.a", []int{sender, i}, client.PublishOptions{}); err != nil {
					t.Errorf("sender %d, message %d: %v", sender, i, err)
				}
				cancel()
			}
		})
	}
	work.Wait()
	over.Store(true)
	cutter.Wait()
	page, err := streams.Read(t.Context(), "channel/long.a", stream.Position{Offset: 1}, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	next := [senders]int{}
	for _, e := range page.Entries {
		p, err := wire.Record(e.Data).Publication("long.a")
		if err != nil {
			t.Fatal(err)
		}
		var sender, i int
		if _, err := fmt.Sscanf(string(p.Data), "[%d,%d]", &sender, &i); err != nil {
			t.Fatal(err)
		}
		if i != next[sender] {
			t.Errorf("message %d of sender %d, want %d", i, sender, next[sender])
		}
		next[sender]++
	}
	if next != [senders]int{each, each, each, each} {
		t.Errorf("kept %v", next)
	}
	t.Logf("%d messages over %d cuts", senders*each, cuts)
}

// TestP18_ACancelledPublicationIsOneOrNone cancels at random: what succeeded is kept once, what was not published is not there, and what is uncertain is there once at most.
func TestP18_ACancelledPublicationIsOneOrNone(t *testing.T) {
	t.Parallel()
	d := throw(t)
	streams := stream.NewMemory(stream.MemoryOptions{})
	s := startNode(t, "", busy(streams))
	r := &road{}
	c := s.connect(eager(r))
	const n = 600
	errs := make([]error, n)
	for i := range n {
		ctx, cancel := context.WithCancel(t.Context())
		if d.n(2) == 0 {
			time.AfterFunc(time.Duration(d.n(int(3*time.Millisecond))), cancel)
		}
		if d.n(4) == 0 {
			r.cut(true)
		}
		_, errs[i] = c.Publish(ctx, "long.a", i, client.PublishOptions{})
		cancel()
	}
	if _, err := c.Publish(t.Context(), "long.a", n, client.PublishOptions{}); err != nil { // behind everything that was sent on this connection
		t.Fatal(err)
	}
	page, err := streams.Read(t.Context(), "channel/long.a", stream.Position{}, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]int{}
	for _, e := range page.Entries {
		p, _ := wire.Record(e.Data).Publication("long.a")
		kept[string(p.Data)]++
	}
	count := [3]int{}
	for i, err := range errs {
		switch got := kept[fmt.Sprint(i)]; {
		case err == nil:
			count[0]++
			if got != 1 {
				t.Errorf("message %d was published and is kept %d times", i, got)
			}
		case errors.Is(err, client.ErrUncertain):
			count[1]++
			if got > 1 {
				t.Errorf("message %d is kept %d times", i, got)
			}
		default:
			count[2]++
			if got != 0 {
				t.Errorf("message %d was not published (%v) and is kept", i, err)
			}
		}
	}
	t.Logf("%d published, %d uncertain, %d not", count[0], count[1], count[2])
}

// TestP19_LossAndHalfOpenConnections delays three of ten parts, as loss does, and makes connections half-open: the server holds several of one client for a while.
func TestP19_LossAndHalfOpenConnections(t *testing.T) {
	t.Parallel()
	d := throw(t)
	opts := busy(nil)
	opts.PingInterval, opts.PongTimeout = time.Second, 4*time.Second
	s := startNode(t, "", opts)
	r := &road{delay: func() time.Duration {
		if d.n(10) < 3 {
			return time.Duration(d.n(int(5 * time.Millisecond)))
		}
		return 0
	}}
	defer r.end()
	f := &follower{t: t}
	subscribe := f.options()
	subscribe.Presence = &client.Presence{Data: "me"}
	o := eager(r)
	o.Heartbeat = 100 * time.Millisecond
	c := s.connect(o)
	sub := s.subscribe(c, "long.a", subscribe)
	eventually(t, "live", sub.Live)
	session := c.State().Session
	n, most := int64(0), 0
	for range 4 {
		lost := f.live.Load()
		r.lose()
		for f.live.Load() == lost {
			n++
			if _, err := s.Publish(t.Context(), "long.a", n, tidewire.PublishOptions{}); err != nil {
				t.Fatal(err)
			}
			most = max(most, s.Stats().Connections)
			roster := s.Roster("long.a")
			if roster.Total > 1 || roster.Total == 1 && len((*roster.Snapshot)[0].Sessions) != 1 {
				t.Fatalf("the roster is %+v", roster)
			}
			d.nap(2 * time.Millisecond)
		}
		if again := c.State().Session; again != session && again != "" {
			t.Errorf("the session is %s, and was %s", again, session)
		}
	}
	eventually(t, "all messages", func() bool { return f.got.Load() == n })
	eventually(t, "the ghosts gone", func() bool { return s.Stats().Connections == 1 })
	if roster := s.Roster("long.a"); roster.Total != 1 || most < 2 {
		t.Errorf("%d members, at most %d connections at once", roster.Total, most)
	}
	t.Logf("%d messages, up to %d connections of the client at once", n, most)
}

// TestP50_NoEchoAndRecovery publishes without echo on a channel that the client follows, and is cut: what others publish comes once, in order, and what it publishes itself never.
func TestP50_NoEchoAndRecovery(t *testing.T) {
	t.Parallel()
	d := throw(t)
	s := startNode(t, "", busy(nil))
	r := &road{}
	c := s.connect(eager(r))
	var others atomic.Int64
	sub := s.subscribe(c, "long.a", client.SubscribeOptions{
		OnMessage: func(m client.Message) {
			if n := others.Add(1); string(m.Data) != fmt.Sprint(n) {
				t.Errorf("got %s, want %d", m.Data, n)
			}
		},
		OnLost: func(l client.Lost) { t.Errorf("lost %+v", l) },
	})
	eventually(t, "live", sub.Live)
	n, head := int64(0), uint64(0)
	for range 300 {
		switch d.n(8) {
		case 0:
			r.cut(true)
		case 1, 2, 3:
			n++
			p, err := s.Publish(t.Context(), "long.a", n, tidewire.PublishOptions{})
			if err != nil {
				t.Fatal(err)
			}
			head = p.Offset
		default:
			p, err := c.Publish(t.Context(), "long.a", "mine", client.PublishOptions{NoEcho: true})
			if err != nil {
				t.Fatal(err)
			}
			head = p.Offset
		}
	}
	eventually(t, "all of the others", func() bool { return others.Load() == n })
	eventually(t, "at the head", func() bool { return sub.Position().Offset == head })
}

// TestB14_ASlowHandlerIsSeenAndCatchesUp has a window of 64.
func TestB14_ASlowHandlerIsSeenAndCatchesUp(t *testing.T) {
	t.Parallel()
	opts := busy(nil)
	opts.AckTimeout = 200 * time.Millisecond
	s := startNode(t, "", opts)
	gate := make(chan struct{})
	f := &follower{t: t}
	subscribe := f.options()
	check := subscribe.OnMessage
	subscribe.Ack = true
	subscribe.OnMessage = func(m client.Message) {
		<-gate
		check(m)
	}
	sub := s.subscribe(s.connect(client.Options{}), "log.a", subscribe)
	eventually(t, "live", sub.Live)
	const n = 400
	for i := range n {
		if _, err := s.Publish(t.Context(), "log.a", i+1, tidewire.PublishOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	state := func() tidewire.AckState {
		acks, err := s.Acks(t.Context(), "log.a")
		if err != nil || len(acks.Subscribers) != 1 {
			t.Fatal(acks, err)
		}
		return acks.Subscribers[0]
	}
	eventually(t, "slow and behind", func() bool {
		a := state()
		return a.Slow && a.Behind && a.Acked == 0 && a.Pending == n
	})
	eventually(t, "late", func() bool { return s.Stats().SlowAcks > 0 })
	close(gate)
	eventually(t, "acknowledged", func() bool {
		a := state()
		return a.Acked == n && a.Pending == 0 && !a.Slow && !a.Behind
	})
	if f.got.Load() != n {
		t.Errorf("got %d of %d", f.got.Load(), n)
	}
	refused := make(chan wire.Code, 1)
	s.subscribe(s.connect(client.Options{}), "open.a", client.SubscribeOptions{Ack: true, OnRefused: func(e *wire.Error) { refused <- e.Code }})
	if code := <-refused; code != wire.CodeHistoryDisabled {
		t.Errorf("refused with %s", code)
	}
}

// event is what a subscription was told: a message, or a loss.
type event struct {
	at   client.Position
	data string
	lost *client.Lost
}

// TestP51_WhatIsToldIsTheLog has publishers, cuts, resets and trims at random. What each subscription was told must be the log, with gaps only where OnLost stands.
func TestP51_WhatIsToldIsTheLog(t *testing.T) {
	t.Parallel()
	const channel, publishers, readers, length = "short.a", 3, 4, 4 * time.Second
	d := throw(t)
	streams := stream.NewMemory(stream.MemoryOptions{})
	s := startNode(t, "", busy(streams))

	// The truth: everything that was ever appended.
	log := map[client.Position]string{}
	var mu sync.Mutex // guards log
	stop, err := streams.Watch("channel/"+channel, func(epoch string, e stream.Entry) {
		p, err := wire.Record(e.Data).Publication(channel)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		log[client.Position{Offset: e.Offset, Epoch: epoch}] = p.ID + " " + string(p.Data)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	type reader struct {
		road   *road
		sub    *client.Subscription
		start  *client.Position
		events []event // read when all is over
	}
	subscribers := make([]*reader, readers)
	for i := range subscribers {
		rd := &reader{road: &road{}}
		subscribers[i] = rd
		rd.sub = s.subscribe(s.connect(eager(rd.road)), channel, client.SubscribeOptions{
			Ack: i%2 == 0,
			OnSubscribed: func(at client.Subscribed) {
				if rd.start == nil {
					rd.start = &at.Position
				}
			},
			OnMessage: func(m client.Message) {
				if d.n(200) == 0 {
					d.nap(20 * time.Millisecond)
				}
				rd.events = append(rd.events, event{at: client.Position{Offset: m.Offset, Epoch: m.Epoch}, data: m.ID + " " + string(m.Data)})
			},
			OnLost:    func(l client.Lost) { rd.events = append(rd.events, event{lost: &l}) },
			OnSkipped: func(n uint64) { t.Errorf("skipped %d", n) },
		})
		eventually(t, "live", rd.sub.Live)
	}

	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	var work sync.WaitGroup
	for i := range publishers {
		r := &road{}
		c := s.connect(eager(r))
		work.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := c.Publish(ctx, channel, []int{i, n}, client.PublishOptions{}); err != nil && ctx.Err() == nil && !errors.Is(err, client.ErrUncertain) {
					t.Error(err)
				}
				if d.n(50) == 0 {
					r.cut(true)
				}
			}
		})
	}
	work.Go(func() {
		for ctx.Err() == nil {
			d.nap(3 * time.Millisecond)
			subscribers[d.n(readers)].road.cut(d.n(2) == 0)
			var err error
			switch d.n(20) {
			case 0:
				err = streams.Reset(t.Context(), "channel/"+channel)
			case 1, 2:
				err = streams.Trim(t.Context(), "channel/"+channel, stream.Retention{Count: 1 + d.n(5)})
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	work.Wait()
	if _, err := s.Publish(t.Context(), channel, "last", tidewire.PublishOptions{}); err != nil { // tells of a reset
		t.Fatal(err)
	}
	var end client.Position
	eventually(t, "all at the end", func() bool {
		head, err := streams.Head(t.Context(), "channel/"+channel) // what was cancelled may still come
		if err != nil {
			t.Fatal(err)
		}
		end = client.Position{Offset: head.Offset, Epoch: head.Epoch}
		return !slices.ContainsFunc(subscribers, func(rd *reader) bool { return rd.sub.Position() != end })
	})
	for _, rd := range subscribers {
		rd.sub.Close()
	}
	mu.Lock()
	defer mu.Unlock()
	for i, rd := range subscribers {
		// Position has seen the last event: what was written before it can be read.
		at, messages, losses := *rd.start, 0, 0
		for _, e := range rd.events {
			if e.lost != nil {
				losses++
				if e.lost.From != at || e.lost.To == at || e.lost.Count > 0 && (e.lost.To.Epoch != at.Epoch || e.lost.To.Offset-at.Offset != e.lost.Count) {
					t.Fatalf("reader %d at %+v: lost %+v", i, at, *e.lost)
				}
				at = e.lost.To
				continue
			}
			messages++
			if at.Offset++; e.at != at {
				t.Fatalf("reader %d: message at %+v, want %+v", i, e.at, at)
			}
			if want := log[at]; e.data != want {
				t.Fatalf("reader %d: message at %+v is %q, in the log %q", i, at, e.data, want)
			}
		}
		if at != end {
			t.Fatalf("reader %d ended at %+v, want %+v", i, at, end)
		}
		t.Logf("reader %d: %d messages, %d losses, of %d appended", i, messages, losses, len(log))
	}
}
