package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a server inside a synctest bubble: HTTP over net.Pipe. It answers as the protocol says unless a test says otherwise, and notes what it is told.
type fake struct {
	t    *testing.T
	url  string
	http *http.Server
	pipe *pipeListener

	// accept decides on a dial; nil accepts. It answers itself when it returns false.
	accept func(w http.ResponseWriter, r *http.Request) bool
	// answer replaces the usual answers; it reports whether it did.
	answer func(c *fakeConn, m command) bool
	// welcome changes the welcome.
	welcome func(c *fakeConn, w *wire.Welcome)
	// asleep is how much further a wall's clock is, where a test uses it.
	asleep atomic.Int64

	mu    sync.Mutex // guards below
	dials []time.Time
	conns []*fakeConn
}

// command is what a client says, and when.
type command struct {
	wire.Command
	At time.Time
}

// fakeConn is one accepted connection.
type fakeConn struct {
	f       *fake
	conn    *websocket.Conn
	request *http.Request
	dropped bool

	mu     sync.Mutex // guards below
	got    []command
	closed websocket.StatusCode
	ended  time.Time
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, url: "ws://fake", pipe: &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}}
	f.http = &http.Server{Handler: http.HandlerFunc(f.serve)}
	go func() {
		if err := f.http.Serve(f.pipe); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	return f
}

// stop ends the server; all clients have gone.
func (f *fake) stop() { _ = f.http.Close() }

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.dials = append(f.dials, time.Now())
	f.mu.Unlock()
	if f.accept != nil && !f.accept(w, r) {
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
	if err != nil {
		f.t.Error(err)
		return
	}
	conn.SetReadLimit(1 << 20)
	c := &fakeConn{f: f, conn: conn, request: r}
	f.mu.Lock()
	f.conns = append(f.conns, c)
	f.mu.Unlock()
	c.loop()
}

func (c *fakeConn) loop() {
	for {
		_, data, err := c.conn.Read(context.Background())
		if err != nil {
			c.mu.Lock()
			c.closed, c.ended = websocket.CloseStatus(err), time.Now()
			c.mu.Unlock()
			_ = c.conn.CloseNow()
			return
		}
		cmd, err := wire.Decode(data, wire.Limits{})
		if err != nil {
			c.f.t.Errorf("the client sent %s: %v", data, err)
		}
		m := command{cmd, time.Now()}
		c.mu.Lock()
		c.got = append(c.got, m)
		c.mu.Unlock()
		if c.f.answer == nil || !c.f.answer(c, m) {
			c.usual(m)
		}
	}
}

// usual answers as a server without any trouble does.
func (c *fakeConn) usual(m command) {
	switch m.Type {
	case wire.TypeHello:
		w := wire.Welcome{Connection: "c-1", Session: "s-1", Node: "n-1", HeartbeatMs: 15_000, Limits: wire.Announced{
			FrameBytes: 1 << 18, FramesPerSecond: 64, FrameBurst: 256, Channels: 64, PresenceBytes: 1024, StateBytes: 1024,
		}}
		if c.f.welcome != nil {
			c.f.welcome(c, &w)
		}
		c.say(string(w.Encode()))
	case wire.TypeSubscribe:
		c.say(string(wire.Reply{Type: wire.TypeSubscribed, SID: m.SID, Channel: m.Channel}.Encode()))
	case wire.TypeUnsubscribe:
		c.say(string(wire.Reply{Type: wire.TypeUnsubscribed, SID: m.SID}.Encode()))
	case wire.TypePublish:
		if m.ID != "" {
			c.say(string(wire.Reply{Type: wire.TypePublished, ID: m.ID}.Encode()))
		}
	}
}

// say sends a message. A client that has gone hears nothing.
func (c *fakeConn) say(frame string) {
	_ = c.conn.Write(context.Background(), websocket.MessageText, []byte(frame))
}

// commands returns what the client said, of some types.
func (c *fakeConn) commands(types ...string) []command {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []command
	for _, m := range c.got {
		for _, t := range types {
			if m.Type == t {
				out = append(out, m)
			}
		}
	}
	return out
}

func (c *fakeConn) status() (websocket.StatusCode, time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed, c.ended
}

// conn returns the n-th connection, from 0, or fails.
func (f *fake) conn(n int) *fakeConn {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if n >= len(f.conns) {
		f.t.Fatalf("the client connected %d times, want more than %d", len(f.conns), n)
	}
	return f.conns[n]
}

func (f *fake) count() (dials, conns int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.dials), len(f.conns)
}

// dialGaps returns the times between dials.
func (f *fake) dialGaps() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(f.dials); i++ {
		gaps = append(gaps, f.dials[i].Sub(f.dials[i-1]))
	}
	return gaps
}

// refuse answers a dial with a problem.
func refuse(w http.ResponseWriter, status int, code wire.Code, headers ...string) bool {
	for i := 0; i+1 < len(headers); i += 2 {
		w.Header().Set(headers[i], headers[i+1])
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": code, "detail": "because"})
	return false
}

// options are those of a client of the fake. The delays are the longest possible.
func (f *fake) options() client.Options {
	return client.Options{
		URL:    f.url,
		Rand:   func() float64 { return 0.999999 },
		Logger: slog.New(slog.DiscardHandler),
		HTTPClient: &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       f.pipe.dial,
		}},
	}
}

// running is a client in Run.
type running struct {
	*client.Client
	stop context.CancelFunc
	done chan error
}

// run starts a client.
func (f *fake) run(opts client.Options) *running {
	f.t.Helper()
	c, err := client.New(opts)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.start(c)
}

func (f *fake) start(c *client.Client) *running {
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{c, cancel, make(chan error, 1)}
	go func() { r.done <- c.Run(ctx) }()
	return r
}

// end stops a client, which must end well, and the server.
func (f *fake) end(r *running) {
	f.t.Helper()
	r.stop()
	if err := <-r.done; err != nil {
		f.t.Errorf("Run: %v", err)
	}
	f.stop()
}

type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	hole  atomic.Pointer[chan struct{}] // when set, the next connections can become black holes
	down  atomic.Bool                   // refuses dials
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "fake"} }

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	if l.down.Load() {
		return nil, errors.New("connection refused")
	}
	mine, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.done:
		return nil, errors.New("connection refused")
	}
	if hole := l.hole.Load(); hole != nil {
		return &holeConn{Conn: mine, hole: *hole}, nil
	}
	return mine, nil
}

// holeConn is a connection whose route is lost when hole is closed: what is written vanishes, and nothing comes.
type holeConn struct {
	net.Conn
	hole chan struct{}
}

func (c *holeConn) lost() bool {
	select {
	case <-c.hole:
		return true
	default:
		return false
	}
}

func (c *holeConn) Write(p []byte) (int, error) {
	if c.lost() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *holeConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.lost() {
			return n, err
		}
	}
}

type rawJSON string

func (r rawJSON) MarshalJSON() ([]byte, error) { return []byte(r), nil }

// pass lets fake time pass, and everything happen that it brings.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
