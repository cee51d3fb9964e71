package tidewire

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/internal/budget"
	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/wire"
	"github.com/tidewire/tidewire/ws"
)

// Options configures a [Node]. The zero value serves anonymous clients, allows them nothing, and says so in the log.
type Options struct {
	// Authenticate decides who a connection is, before the upgrade. A nil grant means no (401), an error that it could not decide (503). Nil accepts
	// everyone as anonymous.
	Authenticate func(r *http.Request) (*Grant, error)
	// Reauthenticate checks a token that a client sends on an open connection to renew its grant. A nil grant means no. Nil refuses all.
	Reauthenticate func(ctx context.Context, token string) (*Grant, error)
	// Backend checks the API keys of backends that use the HTTP interface. Nil refuses all.
	Backend auth.Verifier
	// AllowedOrigins are the origins of pages that may connect beside those of the same host; see [hub.OriginAllowed].
	AllowedOrigins []string
	// Tenant names the tenant of an actor, for Limits.SubscriptionsPerTenant. Nil means that there are no tenants.
	Tenant func(Actor) string

	// Streams keeps the histories of channels. Nil means memory: they are lost with the process. Its owner closes it, after Run has returned.
	Streams stream.Store

	// Database is what live queries read and follow: see [Node.Query]. Nil means that there are none. Its owner closes it, after Run has returned.
	Database feed.Database

	// Limits bound what clients may cost. Zero fields have defaults.
	Limits Limits

	// PresenceGrace keeps a member whose connection was lost. Zero means 10 s, negative none.
	PresenceGrace time.Duration
	// PresenceTTL takes out a session that did not beat for so long. Zero means 60 s.
	PresenceTTL time.Duration
	// HeartbeatInterval is what clients are told to beat at. Zero means 15 s.
	HeartbeatInterval time.Duration
	// PingInterval and PongTimeout are the WebSocket pings and the silence after which a peer is dead. Zero means 25 s and 60 s: below the 30 s at which many proxies cut.
	PingInterval time.Duration
	PongTimeout  time.Duration
	// WriteTimeout closes a connection whose socket takes nothing. Zero means 10 s.
	WriteTimeout time.Duration
	// HelloTimeout closes a connection that does not say hello, IdleTimeout one that sends no message. Zero means 10 s and 120 s.
	HelloTimeout time.Duration
	IdleTimeout  time.Duration
	// AckTimeout is how long a client that acknowledges messages may take before it counts as slow. Zero means 5 s.
	AckTimeout time.Duration
	// CommandTimeout bounds guards and authenticators. Zero means 30 s.
	CommandTimeout time.Duration
	// ReauthorizeInterval is how often expired grants are decided again. Zero means 30 s.
	ReauthorizeInterval time.Duration
	// DrainWindow is the time over which clients are sent away at the end. Zero means 5 s, negative none.
	DrainWindow time.Duration

	// Objects hosts the durable objects of the HTTP interface. Nil makes one whose logs are in Streams.
	Objects *object.Host

	// Name is this node's name in welcome and logs. Zero makes one.
	Name string
	// Build is the application's build: a client of another build is told.
	Build string
	// Compression offers permessage-deflate: see [hub.Options].
	Compression bool
	// Portable makes every connection take the hub's portable path.
	Portable bool
	// Logger receives diagnostics. Nil means [slog.Default].
	Logger *slog.Logger
}

// Limits bound what clients may cost. Each is a default that the embedder may change and no client can raise.
type Limits struct {
	Connections              int // on this node; zero means 250,000
	AcceptsPerSecond         int // zero means 1,000
	AcceptBurst              int // zero means twice AcceptsPerSecond
	FrameBytes               int // of one frame from a client; zero means 256 KiB
	FramesPerSecond          int // of one connection; zero means 64
	FrameBurst               int // zero means 256
	ChannelsPerConnection    int // zero means 64
	SubscriptionsPerTenant   int // needs Options.Tenant, and does not count actors whose tenant is ""; zero means no limit
	Channels                 int // on this node; zero means 10,000
	LiveQueriesPerConnection int // zero means 128
	LiveQueries              int // pairs of a query and its input on this node; zero means 10,000
	QueueMessages            int // waiting for one connection; zero means 1,024: a burst of FrameBurst publications is answered and echoed within it
	QueueBytes               int // zero means 1 MiB
	DroppedFrames            int // under PolicyDropNewest, before a connection is closed with 1013; zero means 32
	PresenceBytes            int // of a member's data; zero means 1,024
	StateBytes               int // of a session's state; zero means 1,024
	PublishBatch             int // messages in one HTTP request; zero means 1,000
	ObjectWaits              int // streams, waits, pages and held subscriptions of objects over HTTP, on this node, a quarter for backends alone; zero means 10,000
	ObjectWaitsPerClient     int // of them, of one actor, or of the anonymous clients of one IP address (IPv6: /64); not of backends; zero means 256
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		p *int
		v int
	}{
		{&o.Limits.Connections, 250_000},
		{&o.Limits.AcceptsPerSecond, 1000},
		{&o.Limits.FrameBytes, 256 << 10},
		{&o.Limits.FramesPerSecond, 64},
		{&o.Limits.FrameBurst, 256},
		{&o.Limits.ChannelsPerConnection, 64},
		{&o.Limits.Channels, 10_000},
		{&o.Limits.LiveQueriesPerConnection, 128},
		{&o.Limits.LiveQueries, 10_000},
		{&o.Limits.QueueMessages, 1024},
		{&o.Limits.QueueBytes, 1 << 20},
		{&o.Limits.DroppedFrames, 32},
		{&o.Limits.PresenceBytes, 1024},
		{&o.Limits.StateBytes, 1024},
		{&o.Limits.PublishBatch, 1000},
		{&o.Limits.ObjectWaits, 10_000},
		{&o.Limits.ObjectWaitsPerClient, 256},
	} {
		if *d.p <= 0 {
			*d.p = d.v
		}
	}
	if o.Limits.AcceptBurst <= 0 {
		o.Limits.AcceptBurst = 2 * o.Limits.AcceptsPerSecond
	}
	for _, d := range []struct {
		p *time.Duration
		v time.Duration
	}{
		{&o.PresenceGrace, 10 * time.Second},
		{&o.PresenceTTL, time.Minute},
		{&o.HeartbeatInterval, 15 * time.Second},
		{&o.PingInterval, 25 * time.Second},
		{&o.PongTimeout, time.Minute},
		{&o.WriteTimeout, 10 * time.Second},
		{&o.HelloTimeout, 10 * time.Second},
		{&o.IdleTimeout, 2 * time.Minute},
		{&o.CommandTimeout, 30 * time.Second},
		{&o.ReauthorizeInterval, 30 * time.Second},
		{&o.DrainWindow, 5 * time.Second},
	} {
		if *d.p == 0 {
			*d.p = d.v
		}
	}
	if o.Name == "" {
		o.Name = "n-" + randomHex(4)
	}
	if o.Streams == nil {
		o.Streams = stream.NewMemory(stream.MemoryOptions{})
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// The dialects of the node's hub.
const (
	dialectNative hub.Dialect = iota
	dialectWS
)

// The masks of a channel's members.
const (
	maskMessages hub.Mask = 1 << iota // gets messages
	maskRoster                        // gets presence and state
)

// Node is a Tidewire server. It is an [http.Handler] for all its paths. Its methods may be called from any goroutine.
type Node struct {
	opts     Options
	started  time.Time
	log      *slog.Logger
	hub      *hub.Hub
	mux      *http.ServeMux
	routes   []route
	registry *prometheus.Registry
	stats    nodeStats
	accepts  *budget.Accepts

	rules   ruleSet
	tenants tenantCounts
	rooms   rooms
	objects objects
	ws      *ws.Hub
	wsHeld  sync.Map // *ws.Client → *wsPlaces, of clients that hold some

	histories histories
	queries   queries
	ctx       context.Context // ends when Run stops the node's own work
	stopWork  context.CancelFunc

	messageIDs atomic.Uint64
	draining   atomic.Bool
	running    atomic.Bool
	work       sync.WaitGroup // goroutines that Run waits for
}

// New makes a node. It starts nothing: see [Node.Run].
func New(opts Options) (*Node, error) {
	opts = opts.withDefaults()
	if err := hub.CheckOrigins(opts.AllowedOrigins); err != nil {
		return nil, &wire.Error{Code: wire.CodeConfigInvalid, Message: err.Error()}
	}
	if opts.Limits.SubscriptionsPerTenant > 0 && opts.Tenant == nil {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "Limits.SubscriptionsPerTenant needs Options.Tenant")
	}
	if opts.Limits.QueueMessages < 16 {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "Limits.QueueMessages (%d) must be at least 16: the answers to one command must fit", opts.Limits.QueueMessages)
	}
	if opts.Limits.QueueBytes > 1<<30 {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "Limits.QueueBytes (%d) must be at most %d", opts.Limits.QueueBytes, 1<<30)
	}
	if opts.Limits.FrameBytes+1024 > opts.Limits.QueueBytes {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "Limits.FrameBytes (%d) must be at least 1,024 below Limits.QueueBytes (%d)", opts.Limits.FrameBytes, opts.Limits.QueueBytes)
	}
	if most := wire.RosterLimit * (opts.Limits.PresenceBytes + 512); most > opts.Limits.QueueBytes {
		return nil, wire.Errorf(wire.CodeConfigInvalid, "Limits.PresenceBytes (%d): a roster of %d members could not be queued in Limits.QueueBytes (%d)", opts.Limits.PresenceBytes, wire.RosterLimit, opts.Limits.QueueBytes)
	}
	n := &Node{opts: opts, started: time.Now(), log: opts.Logger.With("node", opts.Name)}
	n.hub = hub.New(hub.Options{
		QueueMessages:      opts.Limits.QueueMessages,
		QueueBytes:         opts.Limits.QueueBytes,
		MaxDropped:         opts.Limits.DroppedFrames,
		MaxMessageBytes:    opts.Limits.FrameBytes,
		HeartbeatInterval:  opts.PingInterval,
		PongTimeout:        opts.PongTimeout,
		WriteTimeout:       opts.WriteTimeout,
		MaxConns:           opts.Limits.Connections,
		MaxChannels:        opts.Limits.Channels,
		FreePrefix:         queryPrefix, // the engine bounds them
		MaxChannelsPerConn: opts.Limits.ChannelsPerConnection + opts.Limits.LiveQueriesPerConnection,
		MaxTasksPerConn:    opts.Limits.FrameBurst, // whatever the frame budget lets through may wait
		Portable:           opts.Portable,
		Compression:        opts.Compression,
		Skipped:            encodeSkipped,
		ReadLog:            n.readLog,
		AckTimeout:         opts.AckTimeout,
		OnDrop:             n.onDrop,
		Logger:             n.log,
	})
	n.accepts = budget.NewAccepts(float64(opts.Limits.AcceptsPerSecond), float64(opts.Limits.AcceptBurst))
	n.rooms.init(n)
	n.histories.node = n
	n.ctx, n.stopWork = context.WithCancel(context.Background())
	n.initQueries()
	n.initWS()
	n.initMetrics()
	if err := n.initObjects(); err != nil {
		return nil, err
	}
	n.initRoutes()
	return n, nil
}

// Run serves until ctx ends, then drains (see [Options.DrainWindow]) and returns when everything has stopped. It must be called once.
func (n *Node) Run(ctx context.Context) error {
	if !n.running.CompareAndSwap(false, true) {
		return errors.New("tidewire: Run called twice")
	}
	if n.opts.Authenticate == nil {
		n.log.Warn("no authenticator: every client is anonymous")
	}
	defer n.objects.stop()
	hubCtx, stopHub := context.WithCancel(context.Background())
	defer stopHub()
	hubDone := make(chan error, 1)
	go func() { hubDone <- n.hub.Run(hubCtx) }()

	defer n.stopWork()
	n.work.Go(func() { n.reauthorizeLoop(n.ctx) })
	n.work.Go(func() { n.rooms.sweepLoop(n.ctx) })
	queriesFailed := make(chan error, 1)
	if n.queries.engine != nil {
		n.work.Go(func() {
			if err := n.queries.engine.Run(n.ctx); err != nil && n.ctx.Err() == nil {
				queriesFailed <- err
			}
		})
	}

	var err error
	select {
	case <-ctx.Done():
		n.drain()
		stopHub()
		err = <-hubDone
	case err = <-hubDone: // it could not start
	case err = <-queriesFailed:
		n.drain()
		stopHub()
		err = errors.Join(err, <-hubDone)
	}
	n.stopWork()
	n.work.Wait()
	n.rooms.stop()
	if err != nil {
		return fmt.Errorf("tidewire: %w", err)
	}
	return nil
}

// PublishOptions are the optional parts of a publication.
type PublishOptions struct {
	// ID identifies the message to its receivers. Zero makes one. On a channel with history a message whose ID was published by the application in the last minutes is not published again.
	ID string
	// Key says what the message replaces on a channel with the policy Latest.
	Key string
}

// Published is what became of a publication.
type Published struct {
	// ID is the message's.
	ID string `json:"id"`
	// Offset and Epoch are its position on a channel with history.
	Offset uint64 `json:"offset,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
	// Duplicate is true if it had been published before, at that position.
	Duplicate bool `json:"duplicate,omitempty"`
}

// Publish sends a message to a channel, on behalf of the application: no guard is asked. data is encoded as JSON; a [json.RawMessage] is taken as it is. It returns when the message is in the queue of every subscriber
// on this node, and, on a channel with history, kept there.
func (n *Node) Publish(ctx context.Context, channel string, data any, opts PublishOptions) (Published, error) {
	if err := ctx.Err(); err != nil {
		return Published{}, err
	}
	raw, err := encodeData(data)
	if err != nil {
		return Published{}, err
	}
	if !wire.ValidChannel(channel) {
		return Published{}, wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	if len(opts.ID) > wire.MaxIDBytes || len(opts.Key) > wire.MaxIDBytes {
		return Published{}, wire.Errorf(wire.CodeDataInvalid, "id and key have at most %d bytes", wire.MaxIDBytes)
	}
	id := opts.ID
	if id == "" {
		id = n.newMessageID()
	}
	p := wire.Publication{Channel: channel, ID: id, Key: opts.Key, Data: raw}
	policy := PolicyDropNewest
	if rule, _ := n.rules.match(channel); rule != nil {
		policy = rule.opts.Policy
		if rule.opts.History != nil {
			key := ""
			if opts.ID != "" {
				key = "b/" + opts.ID
			}
			a, err := n.record(ctx, p, rule.opts.History, key, false)
			return Published{id, a.Offset, a.Epoch, a.Duplicate}, err
		}
	}
	return Published{ID: id}, n.publish(p, policy, nil)
}

// clock is milliseconds since the node was made, on a monotonic clock. It wraps after 49 days, as differences do not.
func (n *Node) clock() uint32 { return uint32(time.Since(n.started).Milliseconds()) }

func (n *Node) newMessageID() string {
	return fmt.Sprintf("m-%s-%x", n.opts.Name, n.messageIDs.Add(1))
}

// publish queues a checked publication.
func (n *Node) publish(p wire.Publication, policy Policy, except *hub.Conn) error {
	if len(p.Data)+1024 > n.opts.Limits.QueueBytes {
		return wire.Errorf(wire.CodeMessageTooLarge, "the message has %d bytes", len(p.Data))
	}
	_, err := n.hub.Publish(p.Channel, hub.Message{
		Policy: policy.hub(),
		Key:    p.Key,
		Mask:   maskMessages,
		Except: except,
		Encode: func(d hub.Dialect) []byte {
			if d == dialectWS {
				return encodeWS(p)
			}
			return p.Encode()
		},
	})
	if errors.Is(err, hub.ErrTooLarge) {
		return wire.Errorf(wire.CodeMessageTooLarge, "the message has %d bytes", len(p.Data))
	}
	return err
}

// Disconnect closes the connections of an actor with 1008 and returns how many there were. Nothing reaches them after it returns.
func (n *Node) Disconnect(actor string) int {
	closed := 0
	for c := range n.ws.AllClients() {
		if c.UserID == actor {
			c.Disconnect(1008, "disconnected")
			closed++
		}
	}
	n.eachSession(func(s *session) {
		if s.actor().ID == actor {
			s.conn.Close(1008, "disconnected")
			closed++
		}
	})
	return closed
}

func (n *Node) eachSession(f func(*session)) {
	n.hub.Each(func(c *hub.Conn) {
		if s, ok := c.Handler().(*session); ok {
			f(s)
		}
	})
}

// Subscribers returns the number of connections subscribed to a channel on this node.
func (n *Node) Subscribers(channel string) int { return n.hub.Subscribers(channel) }
