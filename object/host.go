package object

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/stream"
)

// The least that the limits of [Options] may be, and their defaults.
const (
	DefaultChannels      = 64
	DefaultSubscriptions = 256
	DefaultBacklog       = 1 << 20
	defaultBacklogBytes  = 256 << 20
	defaultEventTimeout  = 30 * time.Second
	defaultIdleTimeout   = time.Minute
)

// Options configures a [Host]. The zero value is ready to use.
type Options struct {
	// Log keeps the logs of the objects. Nil makes one in memory.
	Log stream.Store
	// Retain bounds each log. The zero value keeps everything that the store keeps.
	Retain stream.Retention
	// EventTimeout is how long an event may run by the wall clock. Zero means 30 s; at most MaxEventTimeout.
	EventTimeout time.Duration
	// IdleTimeout ends a held event on which nothing was called for so long. Zero means 1 min; at most MaxEventTimeout.
	IdleTimeout time.Duration
	// MaxChannels is how many channels an object may have. Zero means 64, which is the least.
	MaxChannels int
	// MaxSubscriptions is how many subscriptions a channel may have. Zero means 256, which is the least.
	MaxSubscriptions int
	// MaxBacklog is how many bytes of text may wait for one subscription. Zero means 1 MiB, which is the least. See also MaxBacklogMessages.
	MaxBacklog int
	// MaxBacklogBytes bounds what waits for all subscriptions of the host: the bytes of the texts and 64 for each message, each counted once for its channel. Past it only
	// subscriptions that have read everything get a message. Zero means 256 MiB; at least MaxBacklog.
	MaxBacklogBytes int64
}

// Host runs the events of objects in this process. Its methods may be called from any goroutine.
type Host struct {
	opts    Options
	seed    maphash.Seed
	shards  [64]shard
	backlog string // the reason of a subscription that was cut off for its bytes

	held                           atomic.Int64 // bytes of the messages that are not read, with their overhead
	events, subscriptions, waiters atomic.Int64
	published, delivered, cut      atomic.Uint64
}

type shard struct {
	mu      sync.Mutex // guards objects, and instance.events; taken after instance.mu
	objects map[string]*instance
}

// instance is an object on which an event runs.
type instance struct {
	id     string
	events int

	mu       sync.Mutex // guards channels, their subscriptions, and those of the events
	channels map[string]*channel
}

// NewHost makes a host. It has no goroutine.
func NewHost(opts Options) (*Host, error) {
	for _, d := range []struct {
		name  string
		value *time.Duration
		zero  time.Duration
	}{{"EventTimeout", &opts.EventTimeout, defaultEventTimeout}, {"IdleTimeout", &opts.IdleTimeout, defaultIdleTimeout}} {
		if *d.value == 0 {
			*d.value = d.zero
		}
		if *d.value < 0 || *d.value > MaxEventTimeout {
			return nil, fmt.Errorf("object: %s is %s, want more than zero and at most %s", d.name, *d.value, MaxEventTimeout)
		}
	}
	for _, l := range []struct {
		name  string
		value *int
		least int
	}{{"MaxChannels", &opts.MaxChannels, DefaultChannels}, {"MaxSubscriptions", &opts.MaxSubscriptions, DefaultSubscriptions}, {"MaxBacklog", &opts.MaxBacklog, DefaultBacklog}} {
		if *l.value == 0 {
			*l.value = l.least
		}
		if *l.value < l.least {
			return nil, fmt.Errorf("object: %s is %d, want at least %d", l.name, *l.value, l.least)
		}
	}
	if opts.MaxBacklogBytes == 0 {
		opts.MaxBacklogBytes = max(defaultBacklogBytes, int64(opts.MaxBacklog))
	}
	if opts.MaxBacklogBytes < int64(opts.MaxBacklog) {
		return nil, fmt.Errorf("object: MaxBacklogBytes is %d, want at least MaxBacklog, %d", opts.MaxBacklogBytes, opts.MaxBacklog)
	}
	if opts.Log == nil {
		opts.Log = stream.NewMemory(stream.MemoryOptions{})
	}
	h := &Host{opts: opts, seed: maphash.MakeSeed(), backlog: "backlog over 1 MiB"}
	if opts.MaxBacklog != DefaultBacklog {
		h.backlog = fmt.Sprintf("backlog over %d bytes", opts.MaxBacklog)
	}
	for i := range h.shards {
		h.shards[i].objects = map[string]*instance{}
	}
	return h, nil
}

// IdleTimeout is that of the options.
func (h *Host) IdleTimeout() time.Duration { return h.opts.IdleTimeout }

// Do runs f as an event of an object and returns what f returns. The context of f is that of the event: it ends with ctx or after EventTimeout, and the subscriptions are cancelled at
// that moment, even if f goes on.
func (h *Host) Do(ctx context.Context, id string, f func(ctx context.Context, e *Event) error) error {
	e, err := h.Begin(ctx, id)
	if err != nil {
		return err
	}
	defer e.End()
	return f(e.ctx, e)
}

// Begin starts an event that lasts until End, the end of ctx, or EventTimeout.
func (h *Host) Begin(ctx context.Context, id string) (*Event, error) {
	return h.begin(ctx, id, h.opts.EventTimeout, 0)
}

// Hold starts an event that is kept for a client between its requests: it lasts until End, the end of ctx, MaxEventTimeout, or until no call ran on it for IdleTimeout.
func (h *Host) Hold(ctx context.Context, id string) (*Event, error) {
	return h.begin(ctx, id, MaxEventTimeout, h.opts.IdleTimeout)
}

func (h *Host) begin(ctx context.Context, id string, limit, idle time.Duration) (*Event, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	e := &Event{host: h, object: h.enter(id), idle: idle}
	h.events.Add(1)
	// The event's fields are guarded by the lock: the context, or the lease, may end at once.
	e.object.mu.Lock()
	defer e.object.mu.Unlock()
	e.ctx, e.cancel = context.WithTimeout(ctx, limit)
	e.stop = context.AfterFunc(e.ctx, e.End)
	if idle > 0 {
		e.used = time.Now()
		e.lease = time.AfterFunc(idle, e.expire)
	}
	return e, nil
}

// enter counts an event on the instance of an object.
func (h *Host) enter(id string) *instance {
	s := h.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.objects[id]
	if o == nil {
		o = &instance{id: id}
		s.objects[id] = o
	}
	o.events++
	return o
}

// leave is the end of an event on an instance: after the last it is gone.
func (h *Host) leave(o *instance) {
	s := h.shard(o.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.events--; o.events == 0 {
		delete(s.objects, o.id)
	}
	h.events.Add(-1)
}

func (h *Host) shard(id string) *shard {
	return &h.shards[maphash.String(h.seed, id)%uint64(len(h.shards))]
}

// Stats is a view of a host at one moment. Totals only rise.
type Stats struct {
	Objects       int // with an event
	Events        int // running
	Subscriptions int
	Waiters       int    // calls of Wait that block
	BacklogBytes  int64  // held for subscriptions, as Options.MaxBacklogBytes counts
	Published     uint64 // messages, to channels that had a subscription
	Delivered     uint64 // messages put into the queue of a subscription
	Cut           uint64 // subscriptions cut off for their backlog
}

// Stats returns the host's numbers.
func (h *Host) Stats() Stats {
	s := Stats{
		Events: int(h.events.Load()), Subscriptions: int(h.subscriptions.Load()), Waiters: int(h.waiters.Load()), BacklogBytes: h.held.Load(),
		Published: h.published.Load(), Delivered: h.delivered.Load(), Cut: h.cut.Load(),
	}
	for i := range h.shards {
		h.shards[i].mu.Lock()
		s.Objects += len(h.shards[i].objects)
		h.shards[i].mu.Unlock()
	}
	return s
}
