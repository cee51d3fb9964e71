package hub

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Options configures a [Hub]. The zero value is ready to use.
type Options struct {
	// QueueMessages and QueueBytes bound what waits for one connection. Zero means 256 messages and 1 MiB.
	QueueMessages int
	QueueBytes    int
	// MaxDropped closes a connection with 1013 when so many publications were dropped for it under DropNewest since its queue was last empty. Zero means never.
	MaxDropped int
	// MaxMessageBytes bounds a message from a client, fragments together; a larger one closes the connection with 1009. Zero means 256 KiB.
	MaxMessageBytes int
	// HeartbeatInterval is the time between WebSocket pings, PongTimeout that after which a peer is dead from which nothing has come. Zero means 30 s and 60 s.
	HeartbeatInterval time.Duration
	PongTimeout       time.Duration
	// WriteTimeout closes a connection whose socket takes no byte for so long while something waits. Zero means 10 s.
	WriteTimeout time.Duration
	// MaxConns bounds the connections, MaxChannels the channels, MaxChannelsPerConn the memberships of one connection. Zero means 250,000, 1,000,000 and 10,000.
	MaxConns           int
	MaxChannels        int
	MaxChannelsPerConn int
	// FreePrefix begins the names of channels that do not count in MaxChannels: who joins connections to them bounds them. Empty means that all count.
	FreePrefix string
	// MaxTasks bounds the goroutines that run tasks, MaxTasksPerConn the tasks that wait for one connection. Zero means 256 and 256.
	MaxTasks        int
	MaxTasksPerConn int
	// Workers is the number of flush workers. Zero means GOMAXPROCS.
	Workers int
	// Compression offers permessage-deflate to clients. Publications of at least 256 bytes are compressed, once for all; answers to one connection are not. It saves bytes on the
	// network and costs CPU for each publication and each compressed message from a client.
	Compression bool
	// Portable makes every connection take the portable path.
	Portable bool
	// Skipped encodes the message that tells a connection how many publications of a channel it missed. Nil tells nothing.
	Skipped func(d Dialect, channel string, count uint64) []byte
	// ReadLog returns publications of a channel's log that follow a position, at most limit of them, encoded for one member, and whether these are all. It runs in the channel's lane of the connection, and may
	// wait. An error means that it is to be asked again later. What it returns may be thrown away and asked for again: it must remember nothing. Nil means that there are no logs, and [Conn.JoinLog] is [Conn.Join].
	ReadLog func(c *Conn, channel string, after Position, limit int) (next []Replayed, end bool, err error)
	// AckTimeout is how long a member that acknowledges may take before it counts as slow. Zero means 5 s.
	AckTimeout time.Duration
	// OnDrop is called after a publication that some connections missed, with their number. It must not block.
	OnDrop func(channel string, missed uint64)
	// Logger receives diagnostics. Nil means [slog.Default].
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	def := func(p *int, v int) {
		if *p <= 0 {
			*p = v
		}
	}
	def(&o.QueueMessages, 256)
	def(&o.QueueBytes, 1<<20)
	def(&o.MaxMessageBytes, 256<<10)
	def(&o.MaxConns, 250_000)
	def(&o.MaxChannels, 1_000_000)
	def(&o.MaxChannelsPerConn, 10_000)
	def(&o.MaxTasks, 256)
	def(&o.MaxTasksPerConn, 256)
	def(&o.Workers, runtime.GOMAXPROCS(0))
	if o.HeartbeatInterval <= 0 {
		o.HeartbeatInterval = 30 * time.Second
	}
	if o.PongTimeout <= 0 {
		o.PongTimeout = 60 * time.Second
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 10 * time.Second
	}
	if o.AckTimeout <= 0 {
		o.AckTimeout = 5 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Errors of the hub as a whole.
var (
	// ErrNotRunning means that Run was not called, or has ended.
	ErrNotRunning = errors.New("hub: not running")
	// ErrConnLimit means that the hub holds [Options.MaxConns] connections.
	ErrConnLimit = errors.New("hub: too many connections")
	// ErrTooLarge means that a message is larger than a connection's queue may ever be.
	ErrTooLarge = errors.New("hub: message larger than a queue")
)

// Hub holds connections and channels. Its methods may be called from any goroutine.
type Hub struct {
	opts     Options
	started  time.Time
	workers  []*worker
	channels channelMap
	everyone channel // all connections, for Broadcast
	pool     pool
	stats    counters
	round    time.Duration

	mu      sync.Mutex // guards below
	running bool
	stopped bool
	conns   int           // started and not yet ended, and reservations
	none    chan struct{} // closed when stopped and conns is zero

	ready  chan struct{} // closed when Run serves
	nextID atomic.Uint64
	wg     sync.WaitGroup // workers, readers, sweep, portable goroutines
}

// New makes a hub. It starts nothing: see [Hub.Run].
func New(opts Options) *Hub {
	h := &Hub{opts: opts.withDefaults(), started: time.Now(), none: make(chan struct{}), ready: make(chan struct{})}
	h.pool.max = h.opts.MaxTasks
	h.pool.idle = sync.NewCond(&h.pool.mu)
	h.channels.init(int64(h.opts.MaxChannels), h.opts.FreePrefix)
	for range h.opts.Workers {
		h.workers = append(h.workers, newWorker(h, len(h.workers)))
	}
	// Every timeout is noticed within a quarter of the shortest, and at the latest 1 s after it has passed.
	h.round = min(h.opts.HeartbeatInterval/4, h.opts.PongTimeout/4, h.opts.WriteTimeout/4, h.opts.AckTimeout/4, lingerTime)
	h.round = max(h.round, 10*time.Millisecond)
	return h
}

// now is the hub's monotonic clock, in nanoseconds since New.
func (h *Hub) now() int64 { return int64(time.Since(h.started)) }

// Run serves until ctx ends, then closes every connection with 1001 and returns when all goroutines have stopped. It must be called once, before the first Upgrade.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	if h.running || h.stopped {
		h.mu.Unlock()
		return errors.New("hub: Run called twice")
	}
	for _, w := range h.workers {
		if err := w.reader.open(w); err != nil {
			h.mu.Unlock()
			for _, w := range h.workers {
				w.reader.close()
			}
			return err
		}
	}
	h.running = true
	h.mu.Unlock()

	var workers sync.WaitGroup
	for _, w := range h.workers {
		workers.Go(w.run)
		h.wg.Go(w.reader.run)
	}
	sweeping, stopSweep := context.WithCancel(context.Background())
	h.wg.Go(func() { h.sweep(sweeping) })

	close(h.ready)
	<-ctx.Done()
	h.mu.Lock()
	h.running, h.stopped = false, true
	if h.conns == 0 {
		close(h.none)
	}
	h.mu.Unlock()
	h.Each(func(c *Conn) { c.Close(1001, "server stopping") })
	<-h.none // the sweep ends those that linger

	for _, w := range h.workers {
		w.finish()
	}
	workers.Wait()
	stopSweep()
	for _, w := range h.workers {
		w.reader.close()
	}
	h.wg.Wait()
	h.pool.wait()
	return nil
}

func (h *Hub) sweep(ctx context.Context) {
	tick := time.NewTicker(max(h.round/sweepSlots, time.Millisecond))
	defer tick.Stop()
	var buf []*Conn
	for slot := 0; ; slot = (slot + 1) % sweepSlots {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, w := range h.workers {
			buf = w.sweep(slot, buf)
		}
	}
}

// startWait is how long a connection that comes before Run waits for it: programs start both at once.
const startWait = 5 * time.Second

// reserve takes a place for a connection.
func (h *Hub) reserve(ctx context.Context) error {
	select {
	case <-h.ready:
	default:
		wait, cancel := context.WithTimeout(ctx, startWait)
		defer cancel()
		select {
		case <-h.ready:
		case <-wait.Done():
			return ErrNotRunning
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.running {
		return ErrNotRunning
	}
	if h.conns >= h.opts.MaxConns {
		return ErrConnLimit
	}
	h.conns++
	return nil
}

func (h *Hub) unreserve() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns--
	if h.stopped && h.conns == 0 {
		close(h.none)
	}
}

// newConn makes a connection for a reserved place.
func (h *Hub) newConn(d Dialect) *Conn {
	c := &Conn{hub: h, dialect: d, id: h.nextID.Add(1), slot: -1}
	c.worker = h.workers[c.id%uint64(len(h.workers))]
	now := h.now()
	c.lastRead.Store(now)
	c.lastMsg.Store(now)
	c.lastPing = now - rand.Int64N(int64(h.opts.HeartbeatInterval)) // spread, not all at once
	c.self = Sub{conn: c, ch: &h.everyone, mask: Everyone}
	return c
}

// Start begins to read from the connection and makes it reachable. Nothing is delivered to or by a connection that was not started. It must be called once, also for
// a connection that was closed meanwhile: only then its place is free again, after Closed.
func (c *Conn) Start(handler Handler) {
	h := c.hub
	h.stats.accepted.Add(1)
	c.mu.Lock()
	c.handler = handler
	if c.state == stateOpen {
		h.everyone.add(&c.self)
	}
	if c.state != stateClosed {
		c.worker.sweepAdd(c)
	}
	c.mu.Unlock()
	c.link.start()
	c.finish()
	h.mu.Lock()
	stopped := h.stopped
	h.mu.Unlock()
	if stopped { // Run may not have seen it
		c.Close(1001, "server stopping")
	}
}

// detach takes a closing connection out of its channels.
func (h *Hub) detach(c *Conn, subs []*Sub) {
	h.everyone.remove(&c.self)
	for _, s := range subs {
		if s.ch.remove(s) == 0 {
			h.channels.drop(s.ch, 0)
		}
	}
}

// forget is called when the socket is closed, with c.mu held; ended when the handler was told. The connection's place is free after both.
func (h *Hub) forget(c *Conn) {
	c.worker.sweepRemove(c)
	if c.half.Add(1) == 2 {
		h.unreserve()
	}
}

func (h *Hub) ended(c *Conn) {
	if c.half.Add(1) == 2 {
		h.unreserve()
	}
}

// Each calls f for every open connection, in no order.
func (h *Hub) Each(f func(*Conn)) {
	h.everyone.each(func(s *Sub) bool {
		f(s.conn)
		return true
	})
}

// Hold keeps a channel's place, so that a later Join cannot fail by [ErrChannelLimit]. Calling the returned function twice does nothing.
func (h *Hub) Hold(channel string) (release func(), err error) {
	ch, err := h.channels.hold(channel)
	if err != nil {
		return nil, err
	}
	var once sync.Once
	return func() { once.Do(func() { h.channels.release(ch) }) }, nil
}

// Publish queues a message for the members of a channel and returns the number of members for which it was queued. It never waits for a socket.
func (h *Hub) Publish(channel string, m Message) (int, error) {
	ch := h.channels.get(channel)
	if ch == nil {
		return 0, nil
	}
	return h.fanOut(ch, &m)
}

// Broadcast queues a message for every connection.
func (h *Hub) Broadcast(m Message) (int, error) {
	return h.fanOut(&h.everyone, &m)
}

// fanStats is what one publication cost, added to the hub's counters at the end.
type fanStats struct{ queued, dropped, conflated uint64 }

// wakeBatch is how many dirty connections are handed to a worker at once.
const wakeBatch = 32

// fanBuffers are the lists of dirty connections of one fan-out, one for each worker.
type fanBuffers [][]*Conn

func (h *Hub) fanOut(ch *channel, m *Message) (int, error) {
	var st fanStats
	err := h.queueAll(ch, m, &st)
	h.stats.published.Add(1)
	h.stats.queued.Add(st.queued)
	if st.dropped > 0 {
		h.stats.dropped.Add(st.dropped)
		if h.opts.OnDrop != nil {
			h.opts.OnDrop(ch.name, st.dropped)
		}
	}
	if st.conflated > 0 {
		h.stats.conflated.Add(st.conflated)
	}
	return int(st.queued), err
}

// queueAll queues a publication for every member, in its turn.
func (h *Hub) queueAll(ch *channel, m *Message, st *fanStats) (err error) {
	mask := m.Mask
	if mask == 0 {
		mask = Everyone
	}
	var enc encodings
	ch.order.Lock()
	defer ch.order.Unlock() // Encode may panic
	seq := ch.seq.Add(1)
	if m.Offset != 0 {
		ch.last.Store(m.Offset)
	}
	bufs := h.buffers()
	defer h.wake(bufs)
	ch.each(func(s *Sub) bool {
		c := s.conn
		if c == m.Except || s.since >= seq {
			return true
		}
		var f *frame
		if f, err = h.frameFor(c, ch, m, &enc); err != nil {
			return false
		}
		if f.data == nil {
			return true
		}
		if m.Instead != nil {
			if f, err = h.instead(c, f, m); err != nil {
				return false
			}
		}
		c.mu.Lock()
		if s.left || c.closing != nil || s.mask&mask == 0 {
			c.mu.Unlock()
			return true
		}
		deliver, replay := true, false
		if s.pos != nil && m.Offset != 0 {
			deliver, replay = c.admitLocked(s, f, st)
		}
		if deliver {
			c.deliverLocked(s, f, st)
		}
		wake := c.wantsFlushLocked()
		c.mu.Unlock()
		if replay {
			c.replay(s)
		}
		if wake {
			w := c.worker.index
			bufs[w] = append(bufs[w], c)
			if len(bufs[w]) == wakeBatch {
				h.workers[w].add(bufs[w]...)
				bufs[w] = bufs[w][:0]
			}
		}
		return true
	})
	return err
}

// encodings are the frames of one publication, made when they are first needed.
type encodings struct{ plain, deflated [MaxDialects]*frame }

func (h *Hub) frameFor(c *Conn, ch *channel, m *Message, enc *encodings) (f *frame, err error) {
	if f = enc.plain[c.dialect]; f == nil {
		if f, err = h.encode(ch, m, c.dialect); err != nil {
			return nil, err
		}
		enc.plain[c.dialect] = f
	}
	if !c.deflate || f.data == nil {
		return f, nil
	}
	g := enc.deflated[c.dialect]
	if g == nil {
		g = deflated(f)
		enc.deflated[c.dialect] = g
	}
	return g, nil
}

// instead is the frame that a connection gets in place of f, or f.
func (h *Hub) instead(c *Conn, f *frame, m *Message) (*frame, error) {
	payload := m.Instead(c)
	if payload == nil {
		return f, nil
	}
	data, err := h.textFrame(payload)
	g := *f
	g.data = data
	return &g, err
}

func (h *Hub) encode(ch *channel, m *Message, d Dialect) (*frame, error) {
	f := &frame{ch: ch, key: m.Key, mask: m.Mask, policy: m.Policy, offset: m.Offset}
	payload := m.Encode(d)
	if payload == nil {
		return f, nil
	}
	var err error
	f.data, err = h.textFrame(payload)
	h.stats.encoded.Add(1)
	return f, err
}

var fanPool sync.Pool

func (h *Hub) buffers() fanBuffers {
	if b, ok := fanPool.Get().(*fanBuffers); ok && len(*b) == len(h.workers) {
		return *b
	}
	b := make(fanBuffers, len(h.workers))
	for i := range b {
		b[i] = make([]*Conn, 0, wakeBatch)
	}
	return b
}

// wake hands what is left of a fan-out's lists to the workers.
func (h *Hub) wake(b fanBuffers) {
	for i, cs := range b {
		if len(cs) > 0 {
			h.workers[i].add(cs...)
		}
		clear(cs[:cap(cs)])
		b[i] = cs[:0]
	}
	fanPool.Put(&b)
}
