package ws

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/hub"
)

// Defaults of [HubConfig].
const (
	DefaultHeartbeatInterval = 30 * time.Second
	DefaultPongTimeout       = 60 * time.Second
	DefaultWriteTimeout      = 10 * time.Second
	DefaultQueueMessages     = 256
	DefaultQueueBytes        = 1 << 20
	DefaultMaxMessageBytes   = 64 << 10
)

// maxChannelName is in bytes.
const maxChannelName = 255

// ErrChannelName means that a channel's name is empty or longer than 255 bytes.
var ErrChannelName = errors.New("ws: a channel's name has 1 to 255 bytes")

// Reason says why a connection ended.
type Reason = hub.Reason

// HubConfig configures a [Hub]. The zero value is ready to use: it accepts everyone.
type HubConfig struct {
	// HeartbeatInterval is the time between the server's pings, PongTimeout that after which a silent client is dead, WriteTimeout that after which one is that takes
	// nothing. Zero means 30 s, 60 s and 10 s.
	HeartbeatInterval time.Duration
	PongTimeout       time.Duration
	WriteTimeout      time.Duration
	// QueueMessages and QueueBytes bound what waits for one client. Zero means 256 messages and 1 MiB.
	QueueMessages int
	QueueBytes    int
	// MaxMessageBytes bounds a message from a client; a larger one disconnects it with 1009. Zero means 64 KiB.
	MaxMessageBytes int
	// MaxClients, MaxChannels and MaxChannelsPerClient bound connections, channels and the subscriptions of one client. Zero means 250,000, 1,000,000 and 10,000.
	MaxClients           int
	MaxChannels          int
	MaxChannelsPerClient int

	// AllowedOrigins are the origins of pages that may connect beside those of the same host, as [hub.OriginAllowed] reads them. CheckOrigin decides instead, if it is not nil.
	AllowedOrigins []string
	CheckOrigin    func(r *http.Request) bool

	// Authenticator decides who may connect. Nil accepts everyone.
	Authenticator Authenticator
	// AllowFirstFrameAuth lets a client that presents no token with its request connect and send it as its first message.
	AllowFirstFrameAuth bool
	// OnAuthFailure is called for each client that the Authenticator refused or could not judge, and for each that sent no token in time. It is called before the client is answered.
	OnAuthFailure func(r *http.Request, result AuthResult)
	// OnConnect is called when a client is accepted, OnDisconnect when it has gone, once for each OnConnect.
	OnConnect    func(client *Client)
	OnDisconnect func(client *Client, reason Reason)
	// OnSubscribe decides whether a client that asks to subscribe to a channel may: an error refuses it. The client is told that it was refused, not why. Nil allows everything to
	// everyone. It is not called for [Hub.Subscribe].
	OnSubscribe func(client *Client, channel string) error

	// OnUnsubscribe is called when a client that OnSubscribe let in has left the channel, or could not join it after all. It is not called when the client goes: OnDisconnect is, with
	// nothing left in Subscriptions.
	OnUnsubscribe func(client *Client, channel string)

	// FramesPerSecond and FrameBurst bound the messages of one client. Past the burst each is answered by an error, and a client that goes on is disconnected with 1008. Zero means no bound.
	FramesPerSecond int
	FrameBurst      int

	// Logger receives diagnostics. Nil means [slog.Default].
	Logger *slog.Logger
}

// Hub holds clients and their channels. Its methods may be called from any goroutine.
type Hub struct {
	cfg     HubConfig
	started time.Time
	core    *hub.Hub
	dialect hub.Dialect
	// ctx is that of Run: set before the core accepts a connection.
	ctx atomic.Pointer[context.Context]

	clients atomic.Int64 // accepted and not yet told to have gone
	panics  atomic.Uint64
	refused atomic.Uint64
}

// NewHub returns a hub that accepts everyone.
func NewHub() *Hub { return NewHubWithConfig(HubConfig{}) }

// NewHubWithConfig returns a hub. It starts nothing: see [Hub.Run].
func NewHubWithConfig(cfg HubConfig) *Hub {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.MaxMessageBytes <= 0 {
		cfg.MaxMessageBytes = DefaultMaxMessageBytes
	}
	return newHub(cfg, 0, hub.New(hub.Options{
		HeartbeatInterval: cfg.HeartbeatInterval,
		PongTimeout:       cfg.PongTimeout,
		WriteTimeout:      cfg.WriteTimeout,
		// The hub's defaults are those of this package.
		QueueMessages:      cfg.QueueMessages,
		QueueBytes:         cfg.QueueBytes,
		MaxMessageBytes:    cfg.MaxMessageBytes,
		MaxConns:           cfg.MaxClients,
		MaxChannels:        cfg.MaxChannels,
		MaxChannelsPerConn: cfg.MaxChannelsPerClient,
		Logger:             cfg.Logger,
	}))
}

func newHub(cfg HubConfig, d hub.Dialect, core *hub.Hub) *Hub {
	return &Hub{cfg: cfg, started: time.Now(), core: core, dialect: d}
}

// On returns a hub whose clients are connections of an existing core, in a dialect of theirs, beside others. The core's owner runs it and sets its limits, so Run and the
// fields of cfg that are about time, queues and numbers do nothing. Broadcast and SendToChannel reach this hub's clients only, and Stats counts all of the core.
func On(core *hub.Hub, d hub.Dialect, cfg HubConfig) *Hub {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	h := newHub(cfg, d, core)
	ctx := context.Background()
	h.ctx.Store(&ctx)
	return h
}

// Encode is what [Hub.SendToChannel] puts on the wire, for the core's owner to publish in this dialect.
func Encode(channel string, msg Message) ([]byte, error) {
	msg.Channel = channel
	return msg.encode()
}

// Run serves until ctx ends, then closes every client with 1001 and returns when all goroutines have stopped. It must be called once. Clients that connect up to 5 s before wait for it.
// It returns an error, which it also logs, if it cannot start.
func (h *Hub) Run(ctx context.Context) error {
	h.ctx.CompareAndSwap(nil, &ctx)
	if err := h.core.Run(ctx); err != nil {
		h.cfg.Logger.Error("the WebSocket hub does not run", "error", err)
		return fmt.Errorf("ws: run: %w", err)
	}
	return nil
}

// Broadcast sends a message to all clients. It disconnects those whose queue is full. The error is that the message cannot be encoded or is larger than a queue.
func (h *Hub) Broadcast(msg Message) error {
	m, err := h.publication(msg, hub.Disconnect)
	if err != nil {
		return err
	}
	if _, err := h.core.Broadcast(m); err != nil {
		return fmt.Errorf("ws: broadcast: %w", err)
	}
	return nil
}

// SendToChannel sends a message to the subscribers of a channel, whose name becomes the message's Channel. It is dropped for those whose queue is full. A channel without subscribers is no error.
func (h *Hub) SendToChannel(name string, msg Message) error {
	if err := checkChannel(name); err != nil {
		return err
	}
	msg.Channel = name
	m, err := h.publication(msg, hub.DropNewest)
	if err != nil {
		return err
	}
	if _, err := h.core.Publish(name, m); err != nil {
		return fmt.Errorf("ws: send to channel: %w", err)
	}
	return nil
}

func (h *Hub) publication(msg Message, policy hub.Policy) (hub.Message, error) {
	data, err := msg.encode()
	if err != nil {
		return hub.Message{}, err
	}
	return hub.Message{Policy: policy, Encode: func(d hub.Dialect) []byte {
		if d != h.dialect {
			return nil
		}
		return data
	}}, nil
}

// SendProcessOutput sends a line of a process to the channel "process:ID".
func (h *Hub) SendProcessOutput(processID, line string) error {
	return h.SendToChannel("process:"+processID, Message{Type: TypeProcessOutput, ProcessID: processID, Data: line})
}

// SendProcessStatus sends the state of a process, such as "running" or "exited", to the channel "process:ID". Data is {"status": STATUS, "exitCode": CODE}.
func (h *Hub) SendProcessStatus(processID, status string, exitCode int) error {
	return h.SendToChannel("process:"+processID, Message{
		Type: TypeProcessStatus, ProcessID: processID, Data: map[string]any{"status": status, "exitCode": exitCode},
	})
}

// SendError broadcasts a failure. Data is the text.
func (h *Hub) SendError(text string) error {
	return h.Broadcast(Message{Type: TypeError, Data: text})
}

// SendEvent broadcasts an event of the application. Data is {"event": EVENT, "data": DATA}.
func (h *Hub) SendEvent(event string, data any) error {
	return h.Broadcast(Message{Type: TypeEvent, Data: map[string]any{"event": event, "data": data}})
}

// Subscribe adds a client to a channel, without asking [HubConfig.OnSubscribe]. Doing it again changes nothing. The error is [ErrChannelName], or that of a limit or of a client that has gone.
func (h *Hub) Subscribe(client *Client, channel string) error {
	if err := checkChannel(channel); err != nil {
		return err
	}
	if err := client.conn.Join(channel, hub.Everyone, nil); err != nil {
		return fmt.Errorf("ws: subscribe: %w", err)
	}
	return nil
}

// Unsubscribe takes a client out of a channel. When it returns, nothing more of the channel is queued for it.
func (h *Hub) Unsubscribe(client *Client, channel string) {
	if client.conn.Leave(channel) && h.cfg.OnUnsubscribe != nil {
		h.cfg.OnUnsubscribe(client, channel)
	}
}

func checkChannel(name string) error {
	if name == "" || len(name) > maxChannelName {
		return ErrChannelName
	}
	return nil
}

// HubStats is a view of a hub at one moment. Totals only rise.
type HubStats struct {
	// Clients and Channels are the present numbers.
	Clients, Channels int
	// Sent counts messages queued for clients, Dropped those that a client missed because its queue was full, Received those that clients sent.
	Sent, Dropped, Received uint64
	// Slow counts clients disconnected because their queue was full, Refused those that authentication turned away, Panics the panics in callbacks.
	Slow, Refused, Panics uint64
}

// Stats returns the hub's numbers.
func (h *Hub) Stats() HubStats {
	s := h.core.Stats()
	return HubStats{
		Clients: h.ClientCount(), Channels: s.Channels,
		Sent: s.Queued, Dropped: s.Dropped, Received: s.Received,
		Slow: s.SlowCloses, Refused: h.refused.Load(), Panics: s.Panics + h.panics.Load(),
	}
}

// ClientCount returns the number of accepted clients. It counts a client before its OnConnect, and no longer in its OnDisconnect.
func (h *Hub) ClientCount() int { return int(h.clients.Load()) }

// ChannelCount returns the number of channels that have subscribers.
func (h *Hub) ChannelCount() int { return h.core.Stats().Channels }

// ChannelSubscriberCount returns the number of subscribers of a channel.
func (h *Hub) ChannelSubscriberCount(channel string) int { return h.core.Subscribers(channel) }

// AllClients iterates over the accepted clients, in no order. Those that come or go meanwhile may or may not be among them.
func (h *Hub) AllClients() iter.Seq[*Client] {
	return func(yield func(*Client) bool) {
		more := true
		h.core.Each(func(c *hub.Conn) {
			if own, ok := c.Handler().(handler); ok && more && own.client.hub == h && own.client.accepted.Load() {
				more = yield(own.client)
			}
		})
	}
}

// AllChannels iterates over the names of the channels that have subscribers, in no order.
func (h *Hub) AllChannels() iter.Seq[string] {
	return func(yield func(string) bool) {
		h.core.EachChannel(func(name string, _ int) bool { return yield(name) })
	}
}
