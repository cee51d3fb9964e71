package tidewire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/internal/testenv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(testenv.M{M: m}, goleak.Cleanup(func(code int) {
		http.DefaultClient.CloseIdleConnections()
		os.Exit(code)
	}))
}

// logs collects what a node logs.
type logs struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// server is a node that serves over HTTP for one test.
type server struct {
	*tidewire.Node
	t    *testing.T
	http *httptest.Server
	logs *logs
	stop func() // ends Run and waits for it
}

// start runs a node. With nothing else said, channels "open.**" allow everything and have presence.
func start(t *testing.T, opts tidewire.Options, declare ...func(*tidewire.Node) error) *server {
	t.Helper()
	l := &logs{}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if opts.DrainWindow == 0 {
		opts.DrainWindow = -1
	}
	n, err := tidewire.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	declare = append(declare, func(n *tidewire.Node) error {
		return n.Channel("open.**", tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true})
	})
	for _, d := range declare {
		if err := d(n); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	s := &server{Node: n, t: t, logs: l}
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	s.http = httptest.NewServer(n)
	t.Cleanup(func() {
		s.stop()
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

// message is anything that a server says.
type message struct {
	Type         string          `json:"type"`
	SID          string          `json:"sid"`
	ID           string          `json:"id"`
	Re           string          `json:"re"`
	Channel      string          `json:"channel"`
	Code         string          `json:"code"`
	Cause        string          `json:"cause"`
	Fix          string          `json:"fix"`
	Data         json.RawMessage `json:"data"`
	RetryAfterMs int64           `json:"retryAfterMs"`
	AfterMs      *int64          `json:"afterMs"`
	ExpiresInMs  int64           `json:"expiresInMs"`
	HeartbeatMs  int64           `json:"heartbeatMs"`
	Session      string          `json:"session"`
	Actor        string          `json:"actor"`
	Build        string          `json:"build"`
	Member       string          `json:"member"`
	Count        uint64          `json:"count"`
	Version      uint64          `json:"version"`
	Total        int             `json:"total"`
	Offset       *uint64         `json:"offset"`
	Epoch        string          `json:"epoch"`
	Recovered    *bool           `json:"recovered"`
	Snapshot     *[]member       `json:"snapshot"`
	Joins        []member        `json:"joins"`
	Updates      []member        `json:"updates"`
	Leaves       []string        `json:"leaves"`
	From         *struct {
		Actor   string `json:"actor"`
		Session string `json:"session"`
	} `json:"from"`
	Limits map[string]int `json:"limits"`
}

type member struct {
	ID       string                     `json:"id"`
	Data     json.RawMessage            `json:"data"`
	Sessions []string                   `json:"sessions"`
	State    map[string]json.RawMessage `json:"state"`
}

// client is a raw client: it says exactly what a test tells it to.
type client struct {
	t    *testing.T
	conn *websocket.Conn
}

// patience bounds every wait of a test.
const patience = 10 * time.Second

type dialOptions struct {
	header       http.Header
	subprotocols []string
}

func (s *server) dialRaw(o dialOptions) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if o.subprotocols == nil {
		o.subprotocols = []string{"tidewire.1"}
	}
	conn, resp, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.http.URL, "http")+"/v1/socket", &websocket.DialOptions{
		Subprotocols: o.subprotocols, HTTPHeader: o.header, CompressionMode: websocket.CompressionDisabled,
	})
	if conn != nil {
		conn.SetReadLimit(1 << 24)
		s.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, resp, err
}

// dial connects without saying hello.
func (s *server) dial(o dialOptions) *client {
	s.t.Helper()
	conn, _, err := s.dialRaw(o)
	if err != nil {
		s.t.Fatal(err)
	}
	return &client{t: s.t, conn: conn}
}

// connect connects and says hello.
func (s *server) connect() *client {
	s.t.Helper()
	return s.connectAs("")
}

// connectAs connects with a bearer token and says hello.
func (s *server) connectAs(token string) *client {
	s.t.Helper()
	o := dialOptions{}
	if token != "" {
		o.header = http.Header{"Authorization": {"Bearer " + token}}
	}
	c := s.dial(o)
	c.send(`{"type":"hello","protocol":1}`)
	c.want("welcome")
	return c
}

func (c *client) send(frames ...string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, f := range frames {
		if err := c.conn.Write(ctx, websocket.MessageText, []byte(f)); err != nil {
			c.t.Fatalf("send %s: %v", f, err)
		}
	}
}

// read returns the next message.
func (c *client) read() (message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, b, err := c.conn.Read(ctx)
	if err != nil {
		return message{}, err
	}
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		c.t.Fatalf("the server sent %q: %v", b, err)
	}
	return m, nil
}

// want returns the next message, which must be of the type.
func (c *client) want(typ string) message {
	c.t.Helper()
	m, err := c.read()
	if err != nil {
		c.t.Fatalf("want %s: %v", typ, err)
	}
	if m.Type != typ {
		c.t.Fatalf("got %+v, want %s", m, typ)
	}
	return m
}

// await returns the next message that fits, and drops those before it.
func (c *client) await(what string, fits func(message) bool) message {
	c.t.Helper()
	for {
		m, err := c.read()
		if err != nil {
			c.t.Fatalf("waiting for %s: %v", what, err)
		}
		if fits(m) {
			return m
		}
	}
}

func (c *client) wantRefused(code string) message {
	c.t.Helper()
	m := c.want("refused")
	if m.Code != code {
		c.t.Fatalf("refused with %s (%s), want %s", m.Code, m.Cause, code)
	}
	if m.Cause == "" || m.Fix == "" {
		c.t.Fatalf("%s has no cause or no fix: %+v", code, m)
	}
	return m
}

// wantClose reads until the server closes, and checks the code.
func (c *client) wantClose(code int) {
	c.t.Helper()
	for {
		_, err := c.read()
		if err == nil {
			continue
		}
		if got := int(websocket.CloseStatus(err)); got != code {
			c.t.Fatalf("closed with %d (%v), want %d", got, err, code)
		}
		return
	}
}

// subscribe subscribes and waits until it is live.
func (c *client) subscribe(sid, channel string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":%q,"channel":%q}`, sid, channel))
	if m := c.want("subscribed"); m.SID != sid || m.Channel != channel {
		c.t.Fatalf("subscribed %+v", m)
	}
}

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	testenv.Eventually(t, patience, what, f)
}

// problemOf reads a problem document.
func problemOf(t *testing.T, resp *http.Response) tidewire.Problem {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Fatalf("Content-Type = %q", got)
	}
	var p tidewire.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestNode_PublishReachesSubscribers(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	a, b := s.connect(), s.connect()
	a.subscribe("1", "open.room")
	b.subscribe("x", "open.room")
	a.send(`{"type":"publish","channel":"open.room","id":"p1","data":{"text":"hi"}}`)
	got := b.want("message")
	if string(got.Data) != `{"text":"hi"}` || got.ID != "p1" || got.From == nil || got.From.Session == "" {
		t.Fatalf("message %+v", got)
	}
	a.want("message")
	a.want("published")
	p, err := s.Publish(t.Context(), "open.room", map[string]int{"n": 1}, tidewire.PublishOptions{})
	if err != nil || p.ID == "" {
		t.Fatal(p, err)
	}
	if m := b.want("message"); string(m.Data) != `{"n":1}` || m.From != nil || m.ID != p.ID {
		t.Fatalf("message %+v", m)
	}
	b.send(`{"type":"unsubscribe","sid":"x"}`)
	b.want("unsubscribed")
	_, _ = s.Publish(t.Context(), "open.room", 1, tidewire.PublishOptions{})
	b.send(`{"type":"hello","protocol":1}`)
	b.want("welcome")
	s.stop()
	b.wantClose(1012)
}

var errBackendDown = errors.New("backend down")
