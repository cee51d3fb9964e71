package ws

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire/internal/backoff"
)

// Errors of a [ReconnectingClient].
var (
	// ErrNotConnected means that there is no connection now. Nothing is kept to be sent later.
	ErrNotConnected = errors.New("ws: not connected")
	// ErrMaxRetries means that [ReconnectConfig.MaxRetries] attempts in a row have failed.
	ErrMaxRetries = errors.New("ws: no connection after the last retry")
	// ErrRefused means that the server refused the client with HTTP 401 or 403, and that trying again would be no different.
	ErrRefused = errors.New("ws: refused by the server")
	// ErrConnecting means that Connect was called while another call runs.
	ErrConnecting = errors.New("ws: Connect runs already")
)

// ConnectionState is the state of a [ReconnectingClient].
type ConnectionState int

// The states of a connection.
const (
	StateDisconnected ConnectionState = iota // not connected; it may wait to connect again
	StateConnecting
	StateConnected
)

func (s ConnectionState) String() string {
	switch s {
	case StateDisconnected:
		return "disconnected"
	case StateConnecting:
		return "connecting"
	case StateConnected:
		return "connected"
	}
	return "unknown"
}

// ReconnectConfig configures a [ReconnectingClient].
type ReconnectConfig struct {
	// URL is the hub's address, with the scheme ws or wss.
	URL string
	// Header is sent with each handshake.
	Header http.Header
	// Token returns the token for the next handshake, which sends it as "Authorization: Bearer". It is called before each, so that a new one can be had when the old one has
	// expired; if the server refuses a token and Token returns the same again, Connect ends with [ErrRefused]. Nil sends none.
	Token func(ctx context.Context) (string, error)
	// HTTPClient makes the handshake. Nil means [http.DefaultClient].
	HTTPClient *http.Client

	// InitialBackoff, MaxBackoff and BackoffMultiplier give the delay before the nth attempt: min(InitialBackoff × BackoffMultiplier^(n−1), MaxBackoff), or what the server asks for in Retry-After if that is
	// longer, up to MaxBackoff. Zero means 1 s, 30 s and 2.
	InitialBackoff    time.Duration
	MaxBackoff        time.Duration
	BackoffMultiplier float64
	// Jitter makes each delay a random one between zero and that.
	Jitter bool
	// MaxRetries is how many attempts in a row may fail after the first. Zero means no limit.
	MaxRetries int

	// DialTimeout bounds a handshake, WriteTimeout a Send. Zero means 10 s.
	DialTimeout  time.Duration
	WriteTimeout time.Duration
	// SilenceTimeout is the time after which a connection is lost on which nothing has come, not even a ping or the answer to one. The client pings three times in it. Zero means 60 s.
	SilenceTimeout time.Duration
	// MaxMessageBytes bounds a message from the server; a larger one ends the connection. Zero means 1 MiB.
	MaxMessageBytes int64

	// OnConnect is called after the first connection, OnReconnect after each later one with the number of attempts that it took, OnDisconnect after each loss.
	OnConnect    func()
	OnDisconnect func()
	OnReconnect  func(attempt int)
	// OnMessage is called for each message, in order. While it runs, nothing is read.
	OnMessage func(msg Message)
	// OnError is called for each failed attempt, for each lost connection and for a message that cannot be read.
	OnError func(err error)
}

// ReconnectingClient is a client that connects again when its connection is lost, and subscribes again to its channels. Its callbacks run one at a time, on the goroutine of Connect. Its methods
// may be called from any goroutine, also from callbacks.
type ReconnectingClient struct {
	cfg     ReconnectConfig
	backoff backoff.Backoff
	closed  chan struct{} // closed by Close
	once    sync.Once

	// wire is held while a change of channels is recorded and written, so that the server sees the changes in the order in which they were made. A write is bounded by WriteTimeout.
	wire sync.Mutex

	mu       sync.Mutex // guards below
	running  bool
	state    ConnectionState
	conn     *websocket.Conn // nil while not connected
	channels map[string]struct{}
}

// NewReconnectingClient returns a client. It starts nothing: see [ReconnectingClient.Connect].
func NewReconnectingClient(cfg ReconnectConfig) *ReconnectingClient {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&cfg.DialTimeout, 10*time.Second)
	def(&cfg.WriteTimeout, 10*time.Second)
	def(&cfg.SilenceTimeout, 60*time.Second)
	def(&cfg.MaxBackoff, 30*time.Second)
	if cfg.MaxMessageBytes <= 0 {
		cfg.MaxMessageBytes = 1 << 20
	}
	return &ReconnectingClient{
		cfg:      cfg,
		backoff:  backoff.Backoff{Initial: cfg.InitialBackoff, Max: cfg.MaxBackoff, Multiplier: cfg.BackoffMultiplier, Jitter: cfg.Jitter},
		closed:   make(chan struct{}),
		channels: make(map[string]struct{}),
	}
}

// State returns the present state.
func (c *ReconnectingClient) State() ConnectionState {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *ReconnectingClient) setState(s ConnectionState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state = s
}

// Close ends the connection and makes Connect return nil, now and whenever it is called again. The error is always nil.
func (c *ReconnectingClient) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// Connect connects and stays connected until ctx ends, and returns the error of ctx then; until Close, and returns nil; or until it gives up with [ErrMaxRetries] or [ErrRefused].
func (c *ReconnectingClient) Connect(ctx context.Context) error {
	c.mu.Lock()
	select {
	case <-c.closed:
		c.mu.Unlock()
		return nil
	default:
	}
	if c.running {
		c.mu.Unlock()
		return ErrConnecting
	}
	c.running = true
	c.mu.Unlock()
	run, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-c.closed:
			cancel()
		case <-run.Done():
		}
	}()
	err := c.loop(run)
	cancel()
	<-watched
	c.mu.Lock()
	c.state, c.running = StateDisconnected, false
	c.mu.Unlock()
	select {
	case <-c.closed:
		return nil
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// loop dials and serves until ctx ends or trying again makes no sense.
func (c *ReconnectingClient) loop(ctx context.Context) error {
	var refused *refusal // of the last attempt
	connected := false   // ever
	attempt := 0         // since the last connection; the first dial of all is number 0
	for ctx.Err() == nil {
		c.setState(StateConnecting)
		conn, err := c.dial(ctx, &refused)
		if err == nil {
			c.serve(ctx, conn, func() {
				switch {
				case !connected:
					call(c.cfg.OnConnect)
				case c.cfg.OnReconnect != nil:
					c.cfg.OnReconnect(attempt)
				}
			})
			connected, attempt = true, 0
		}
		c.setState(StateDisconnected)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			c.report(err)
		}
		if errors.Is(err, ErrRefused) {
			return err
		}
		if attempt++; err != nil && c.cfg.MaxRetries > 0 && attempt > c.cfg.MaxRetries {
			return fmt.Errorf("%w: %w", ErrMaxRetries, err)
		}
		delay := c.backoff.Delay(attempt)
		if refused != nil {
			delay = max(delay, min(refused.retryAfter, c.cfg.MaxBackoff))
		}
		wait(ctx, delay)
	}
	return ctx.Err()
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func call(f func()) {
	if f != nil {
		f()
	}
}

func (c *ReconnectingClient) report(err error) {
	if c.cfg.OnError != nil {
		c.cfg.OnError(err)
	}
}

// refusal is an answer of the server that is not a connection.
type refusal struct {
	status     int
	token      string
	retryAfter time.Duration
}

// dial makes one attempt. last is what became of the one before, and is set to what becomes of this one.
func (c *ReconnectingClient) dial(ctx context.Context, last **refusal) (*conn, error) {
	before := *last
	*last = nil
	ctx, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	header := c.cfg.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	token := ""
	if c.cfg.Token != nil {
		var err error
		if token, err = c.cfg.Token(ctx); err != nil {
			*last = before // it still stands
			return nil, fmt.Errorf("ws: no token: %w", err)
		}
		if before != nil && before.status == http.StatusUnauthorized && before.token == token {
			return nil, fmt.Errorf("%w: status %d, and there is no other token", ErrRefused, before.status)
		}
		header.Set("Authorization", "Bearer "+token)
	}
	n := &conn{}
	ws, resp, err := websocket.Dial(ctx, c.cfg.URL, &websocket.DialOptions{
		HTTPClient:     c.cfg.HTTPClient,
		HTTPHeader:     header,
		OnPingReceived: func(context.Context, []byte) bool { n.heard(); return true },
		OnPongReceived: func(context.Context, []byte) { n.heard() },
	})
	if err == nil {
		ws.SetReadLimit(c.cfg.MaxMessageBytes)
		n.Conn, n.silence = ws, c.cfg.SilenceTimeout
		return n, nil
	}
	// The text of this one has the address, in which some put a token.
	if failed := (*url.Error)(nil); errors.As(err, &failed) {
		err = failed.Err
	}
	if resp == nil {
		return nil, fmt.Errorf("ws: connect: %w", err)
	}
	r := &refusal{status: resp.StatusCode, token: token}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		r.retryAfter = time.Duration(min(s, 1<<20)) * time.Second
	}
	*last = r
	if r.status == http.StatusForbidden || r.status == http.StatusUnauthorized && c.cfg.Token == nil {
		return nil, fmt.Errorf("%w: status %d", ErrRefused, r.status)
	}
	return nil, fmt.Errorf("ws: connect: status %d", r.status)
}

// conn is one connection. It is owned by the goroutine that reads.
type conn struct {
	*websocket.Conn
	silence time.Duration
	timer   *time.Timer // ends the connection when nothing has come; set before the first read
}

// heard notes that something has come. It is called by Read.
func (n *conn) heard() { n.timer.Reset(n.silence) }

var (
	errSilent = errors.New("ws: nothing has come for too long")
	errEnd    = errors.New("ws: the client stops")
)

// closeTime bounds the exchange of close frames.
const closeTime = time.Second

// serve runs one connection to its end.
func (c *ReconnectingClient) serve(ctx context.Context, n *conn, ready func()) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	n.timer = time.AfterFunc(n.silence, func() { end(errSilent) })
	defer n.timer.Stop()

	var wg sync.WaitGroup
	wg.Go(func() { c.ping(life, n) })
	wg.Go(func() { // says goodbye
		select {
		case <-life.Done():
		case <-ctx.Done():
			bound := time.AfterFunc(closeTime, func() { end(errEnd) })
			defer bound.Stop()
			_ = n.Close(websocket.StatusNormalClosure, "")
		}
	})

	c.attach(n.Conn)
	ready()
	err := c.read(life, n)
	if errors.Is(context.Cause(life), errSilent) {
		err = errSilent
	}
	c.mu.Lock()
	c.conn, c.state = nil, StateDisconnected
	c.mu.Unlock()
	end(err)
	wg.Wait()
	_ = n.CloseNow()
	if ctx.Err() == nil {
		c.report(fmt.Errorf("ws: connection lost: %w", err))
	}
	call(c.cfg.OnDisconnect)
}

// attach makes the connection the present one and subscribes again.
func (c *ReconnectingClient) attach(conn *websocket.Conn) {
	c.wire.Lock()
	defer c.wire.Unlock()
	c.mu.Lock()
	c.conn, c.state = conn, StateConnected
	channels := slices.Sorted(maps.Keys(c.channels))
	c.mu.Unlock()
	for _, name := range channels {
		if c.write(conn, Message{Type: TypeSubscribe, Data: name}) != nil {
			return // reading will tell
		}
	}
}

// ping asks for a sign of life three times in a silence.
func (c *ReconnectingClient) ping(life context.Context, n *conn) {
	tick := time.NewTicker(max(n.silence/3, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-life.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(life, n.silence/3)
		_ = n.Ping(ctx) // the answer counts where it is read
		cancel()
	}
}

// read hands over messages until the connection ends.
func (c *ReconnectingClient) read(life context.Context, n *conn) error {
	for {
		n.heard() // what happens between two reads is not the server's silence
		_, data, err := n.Read(life)
		n.timer.Stop()
		if err != nil {
			return err
		}
		// A frame of another server may hold several messages.
		dec := json.NewDecoder(bytes.NewReader(data))
		for {
			var msg Message
			if err := dec.Decode(&msg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				c.report(errors.New("ws: a message from the server cannot be read"))
				break
			}
			if c.cfg.OnMessage != nil {
				c.cfg.OnMessage(msg)
			}
		}
	}
}

// Send sends a message now, or returns [ErrNotConnected]. Nothing is queued. A channel that is subscribed or unsubscribed in this way is treated as by Subscribe and Unsubscribe.
func (c *ReconnectingClient) Send(msg Message) error {
	switch name := (request{Channel: msg.Channel, Data: msg.Data}).channel(); {
	case name == "":
	case msg.Type == TypeSubscribe:
		return c.change(name, true, msg, false)
	case msg.Type == TypeUnsubscribe:
		return c.change(name, false, msg, false)
	}
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn == nil {
		return ErrNotConnected
	}
	return c.write(conn, msg)
}

// Subscribe subscribes to a channel now and after every reconnect. Without a connection it is done when there is one. The error is [ErrChannelName].
func (c *ReconnectingClient) Subscribe(channel string) error {
	if err := checkChannel(channel); err != nil {
		return err
	}
	_ = c.change(channel, true, Message{Type: TypeSubscribe, Data: channel}, true) // a failed write ends the connection, and the next one makes good
	return nil
}

// Unsubscribe undoes Subscribe.
func (c *ReconnectingClient) Unsubscribe(channel string) error {
	if err := checkChannel(channel); err != nil {
		return err
	}
	_ = c.change(channel, false, Message{Type: TypeUnsubscribe, Data: channel}, true)
	return nil
}

// change records whether the client is subscribed to a channel and sends msg. Without a connection it records only if offline.
func (c *ReconnectingClient) change(channel string, subscribed bool, msg Message, offline bool) error {
	c.wire.Lock()
	defer c.wire.Unlock()
	c.mu.Lock()
	conn := c.conn
	if conn != nil || offline {
		if subscribed {
			c.channels[channel] = struct{}{}
		} else {
			delete(c.channels, channel)
		}
	}
	c.mu.Unlock()
	if conn == nil {
		return ErrNotConnected
	}
	return c.write(conn, msg)
}

func (c *ReconnectingClient) write(conn *websocket.Conn, msg Message) error {
	data, err := msg.encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.WriteTimeout)
	defer cancel()
	if err := conn.Write(ctx, websocket.MessageText, data); err != nil {
		return fmt.Errorf("ws: send: %w", err)
	}
	return nil
}
