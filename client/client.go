package client

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/internal/backoff"
	"github.com/tidewire/tidewire/wire"
)

var (
	// ErrUncertain means that the connection was lost, or the caller's context ended, after a message was sent and before the answer: it may have been published or not. It is
	// not sent again.
	ErrUncertain = errors.New("client: no answer: whether the message was published is unknown")
	// ErrStopped means that Run has returned.
	ErrStopped = errors.New("client: stopped")
	// ErrNoToken, returned by Options.Token, ends Run: there will be no token. Any other error is tried again.
	ErrNoToken = errors.New("client: no token")
)

// Options configures a [Client].
type Options struct {
	// URL is the address of the server: ws, wss, http or https. An empty path means /v1/socket. It is required.
	URL string
	// Token returns the credential to connect with; see the package's comment. It must respect ctx. Nil connects without.
	Token func(ctx context.Context) (string, error)
	// Build is the application's build. A server of another build says so: see OnUpdate.
	Build string
	// Header is sent with each dial.
	Header http.Header
	// HTTPClient dials. Nil means a plain one with the proxy of the environment.
	HTTPClient *http.Client

	// MinBackoff and MaxBackoff bound the delay before another dial. Zero means 0.5 s and 30 s.
	MinBackoff, MaxBackoff time.Duration
	// Rand returns a number in [0, 1) for the delay. Nil means a random one.
	Rand func() float64
	// Heartbeat replaces the interval that the server announces. Zero keeps that.
	Heartbeat time.Duration
	// MaxMessageBytes bounds a message from the server. Zero means 16 MiB.
	MaxMessageBytes int64

	// OnState is told when the connection changes.
	OnState func(State)
	// OnUpdate is told the server's build when it is not the client's.
	OnUpdate func(build string)
	// Logger receives diagnostics. Nil means [slog.Default].
	Logger *slog.Logger
}

// Status says where a client is.
type Status string

// The statuses.
const (
	Idle       Status = "idle"       // Run was not called
	Connecting Status = "connecting" // dialing
	Connected  Status = "connected"  // welcomed
	Waiting    Status = "waiting"    // until the next dial
	Stopped    Status = "stopped"    // Run returns
)

// State is where a client is, and what is known there.
type State struct {
	Status Status
	// Connection, Session, Actor and Node are what the server said, while Connected. Actor is empty for an anonymous client.
	Connection, Session, Actor, Node string
	// Err is why the last connection or dial ended: while Waiting, and when Stopped by something else than the context of Run.
	Err error
	// Retry is the time until the next dial, while Waiting.
	Retry time.Duration
}

const (
	dialTimeout    = 15 * time.Second
	welcomeTimeout = 10 * time.Second
	writeTimeout   = 10 * time.Second
	// closeWait is how long a close waits for the peer's.
	closeWait = time.Second
	// maxRetryAfter bounds the delay that a server can ask for.
	maxRetryAfter = 5 * time.Minute
	// maxQueued is how many publications wait for the frame rate; more wait in Publish.
	maxQueued = 256
	// repeatWindow is how long after it was first sent a publication is repeated. A server remembers ids for two minutes.
	repeatWindow = 90 * time.Second
	// maxLogs is how many channels are remembered to have history.
	maxLogs = 1024
)

// Client is a connection to a Tidewire server that comes back by itself. Its methods may be called from any goroutine.
type Client struct {
	// Set by New, then read-only.
	opts    Options
	url     string
	id      string // the secret of hello
	prefix  string // of the ids of messages
	log     *slog.Logger
	backoff backoff.Backoff
	slots   chan struct{}    // one element for each queued publication
	wall    func() time.Time // a clock that goes on while the machine sleeps

	started atomic.Bool
	ids     atomic.Uint64

	mu      sync.Mutex // guards below, and what says so of links and subscriptions
	state   State
	subs    map[string]*Subscription // by channel
	queries map[string]*LiveQuery    // by sid
	sids    uint64
	logs    logs          // which channels have history
	link    *link         // the connection, once welcomed
	changed chan struct{} // closed and replaced when link or stopped changes
	stopped bool
	token   string // the one in use
}

// New makes a client. It starts nothing: see [Client.Run].
func New(opts Options) (*Client, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("client: the URL is not an address such as wss://example.com")
	}
	switch u.Scheme {
	case "ws", "wss":
	case "http", "https":
		u.Scheme = "ws" + strings.TrimPrefix(u.Scheme, "http")
	default:
		return nil, fmt.Errorf("client: the URL's scheme is %q, want ws, wss, http or https", u.Scheme)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/socket"
	}
	if len(opts.Build) > wire.MaxBuildBytes {
		return nil, fmt.Errorf("client: Build has %d bytes, more than %d", len(opts.Build), wire.MaxBuildBytes)
	}
	if opts.HTTPClient == nil {
		// Not the default transport: its idle connections would outlive Run.
		opts.HTTPClient = &http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}}
	}
	if opts.MaxMessageBytes <= 0 {
		opts.MaxMessageBytes = 16 << 20
	}
	if opts.MinBackoff <= 0 {
		opts.MinBackoff = 500 * time.Millisecond
	}
	if opts.MaxBackoff <= 0 {
		opts.MaxBackoff = 30 * time.Second
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	return &Client{
		opts:    opts,
		url:     u.String(),
		id:      randomHex(16),
		prefix:  randomHex(6),
		log:     opts.Logger,
		backoff: backoff.Backoff{Initial: opts.MinBackoff, Max: opts.MaxBackoff, Jitter: true, Rand: opts.Rand},
		slots:   make(chan struct{}, maxQueued),
		wall:    func() time.Time { return time.Now().Round(0) },
		state:   State{Status: Idle},
		subs:    map[string]*Subscription{},
		queries: map[string]*LiveQuery{},
		logs:    logs{},
		changed: make(chan struct{}),
	}, nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// ending is how a dial or a connection ended.
type ending struct {
	err      error
	terminal bool
	after    time.Duration // the delay that the server asks for; negative if none
	welcomed time.Time     // zero if never
}

// Run connects and stays connected. It returns nil when ctx ends, after a close that the server takes for leaving; or an error when connecting again cannot help, which is a
// [*wire.Error] if the server said so. It must be called once.
func (c *Client) Run(ctx context.Context) error {
	if !c.started.CompareAndSwap(false, true) {
		return errors.New("client: Run called twice")
	}
	err := c.run(ctx)
	c.mu.Lock()
	c.stopped = true
	c.announceLocked()
	c.mu.Unlock()
	c.setState(State{Status: Stopped, Err: err})
	return err
}

func (c *Client) run(ctx context.Context) error {
	failures := 0
	for creds := new(credentials); ; {
		c.setState(State{Status: Connecting})
		end := c.once(ctx, creds)
		switch {
		case ctx.Err() != nil:
			return nil
		case end.terminal:
			return fmt.Errorf("client: %w", end.err)
		}
		if !end.welcomed.IsZero() && time.Since(end.welcomed) >= c.opts.MaxBackoff { // a server that welcomes and closes is not hammered
			failures = 0
		}
		failures++
		wait := c.backoff.Delay(failures)
		if end.after >= 0 {
			wait = min(end.after, maxRetryAfter)
		}
		c.log.Debug("connection lost", "error", end.err, "retry", wait)
		c.setState(State{Status: Waiting, Err: end.err, Retry: wait})
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// once makes one connection and serves it to its end.
func (c *Client) once(ctx context.Context, creds *credentials) ending {
	conn, end := c.dial(ctx, creds)
	if conn == nil {
		return end
	}
	end = newLink(c, conn).serve(ctx)
	if !end.welcomed.IsZero() {
		creds.refused = false
	}
	return end
}

// sleep waits, and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// State returns where the client is.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// setState is called on the goroutine of Run.
func (c *Client) setState(s State) {
	c.mu.Lock()
	c.state = s
	c.mu.Unlock()
	if c.opts.OnState != nil {
		c.opts.OnState(s)
	}
}

// announceLocked wakes those who wait for a connection.
func (c *Client) announceLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// ready returns the connection, waiting for one.
func (c *Client) ready(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, changed, stopped := c.link, c.changed, c.stopped
		c.mu.Unlock()
		switch {
		case stopped:
			return nil, ErrStopped
		case l != nil:
			return l, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Client) useToken(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.token = token
}

func (c *Client) usedToken() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}
