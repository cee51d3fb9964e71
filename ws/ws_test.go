package ws_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/ws"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of a test that goes right.
const patience = 10 * time.Second

// logs collects what a hub logs.
type logs struct {
	mu sync.Mutex // guards below
	b  bytes.Buffer
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

// server is a hub behind an HTTP server.
type server struct {
	*ws.Hub
	http *httptest.Server
	logs *logs
	stop func() // ends Run and waits for it
}

func start(t *testing.T, cfg ws.HubConfig) *server {
	t.Helper()
	s := &server{logs: &logs{}}
	cfg.Logger = slog.New(slog.NewTextHandler(s.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.Hub = ws.NewHubWithConfig(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	s.http = httptest.NewServer(s.Handler())
	t.Cleanup(func() {
		s.stop()
		s.http.Close()
	})
	return s
}

func (s *server) url() string { return "ws" + strings.TrimPrefix(s.http.URL, "http") }

// client is a client of the go-ws kind: it speaks JSON by way of gorilla/websocket.
type client struct {
	*websocket.Conn
	t    *testing.T
	http *http.Response
}

func (s *server) dial(t *testing.T, header http.Header, protocols ...string) *client {
	t.Helper()
	c, resp, err := s.tryDial(t, header, protocols...)
	if err != nil {
		t.Fatalf("dial: %v (%v)", err, resp)
	}
	return c
}

func (s *server) tryDial(t *testing.T, header http.Header, protocols ...string) (*client, *http.Response, error) {
	t.Helper()
	d := websocket.Dialer{Subprotocols: protocols, HandshakeTimeout: patience}
	conn, resp, err := d.Dial(s.url(), header)
	if err != nil {
		return nil, resp, err
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{conn, t, resp}, resp, nil
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatalf("send %s: %v", text, err)
	}
}

func (c *client) raw() ([]byte, error) {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, data, err := c.ReadMessage()
	return data, err
}

func (c *client) next() ws.Message {
	c.t.Helper()
	data, err := c.raw()
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	var m ws.Message
	if err := json.Unmarshal(data, &m); err != nil {
		c.t.Fatalf("%s: %v", data, err)
	}
	return m
}

// sync returns when the server has handled everything that was sent, and fails on a message that comes before.
func (c *client) sync() {
	c.t.Helper()
	c.send(`{"type":"ping"}`)
	if m := c.next(); m.Type != ws.TypePong {
		c.t.Fatalf("got %+v, want a pong", m)
	}
}

// closed reads until the connection ends and returns its close code.
func (c *client) closed() int {
	c.t.Helper()
	for {
		_, err := c.raw()
		var ce *websocket.CloseError
		if errors.As(err, &ce) {
			return ce.Code
		}
		if err != nil {
			c.t.Fatalf("read: %v, want a close frame", err)
		}
	}
}

func receive[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// eventually waits for a state that nothing announces.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(what)
		}
	}
}

func TestH10_SubscribeUnsubscribePing(t *testing.T) {
	s := start(t, ws.HubConfig{})
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"process:proc-1"}`)
	c.sync()
	if n := s.ChannelSubscriberCount("process:proc-1"); n != 1 {
		t.Errorf("%d subscribers, want 1", n)
	}
	_ = s.SendProcessOutput("proc-1", "one")
	if m := c.next(); m.Data != "one" {
		t.Errorf("got %+v, want one", m)
	}
	c.send(`{"type":"unsubscribe","data":"process:proc-1"}`)
	c.sync()
	_ = s.SendProcessOutput("proc-1", "two")
	c.sync()
	if n := s.ChannelCount(); n != 0 {
		t.Errorf("%d channels, want 0", n)
	}

	// The older form, twice, and as a binary frame.
	for range 2 {
		if err := c.WriteMessage(websocket.BinaryMessage, []byte(`{"type":"subscribe","channel":"c"}`)); err != nil {
			t.Fatal(err)
		}
	}
	c.sync()
	if n := s.ChannelSubscriberCount("c"); n != 1 {
		t.Errorf("%d subscribers, want 1", n)
	}
}

// A client that comes back subscribes to all its channels at once.
func TestH10_ManySubscriptionsAtOnce(t *testing.T) {
	s := start(t, ws.HubConfig{OnSubscribe: func(*ws.Client, string) error { return nil }})
	c := s.dial(t, nil)
	for i := range 5000 {
		c.send(`{"type":"subscribe","data":"` + strings.Repeat("x", i%200) + string(rune('a'+i%26)) + time.Duration(i).String() + `"}`)
	}
	c.sync()
	if n := s.ChannelCount(); n != 5000 {
		t.Errorf("%d channels, want 5000", n)
	}
}

func TestH11_JSON(t *testing.T) {
	s := start(t, ws.HubConfig{})
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"c"}`)
	c.sync()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	for _, test := range []struct {
		m    ws.Message
		want string
	}{
		{ws.Message{Type: ws.TypeEvent, Timestamp: at}, `{"type":"event","timestamp":"2026-01-02T03:04:05.000006Z"}`},
		{
			ws.Message{Type: ws.TypeProcessOutput, Channel: "x", ProcessID: "p", Data: "line", Timestamp: at},
			`{"type":"process_output","channel":"x","processId":"p","data":"line","timestamp":"2026-01-02T03:04:05.000006Z"}`,
		},
		{ws.Message{Type: ws.TypeEvent, Data: map[string]any{"a": 1}, Timestamp: at}, `{"type":"event","data":{"a":1},"timestamp":"2026-01-02T03:04:05.000006Z"}`},
	} {
		if err := s.Broadcast(test.m); err != nil {
			t.Fatal(err)
		}
		if got, err := c.raw(); string(got) != test.want || err != nil {
			t.Errorf("got %s, %v, want %s", got, err, test.want)
		}
	}
	before := time.Now().Add(-time.Second)
	_ = s.SendToChannel("c", ws.Message{Type: ws.TypeEvent, Channel: "another"})
	if m := c.next(); m.Channel != "c" || m.Timestamp.Before(before) || m.Timestamp.After(time.Now()) {
		t.Errorf("got %+v, want channel c and the present", m)
	}
	if err := s.Broadcast(ws.Message{Data: func() {}}); err == nil {
		t.Error("Broadcast accepts what JSON cannot hold")
	}
	if err := s.Broadcast(ws.Message{Data: strings.Repeat("x", 2<<20)}); err == nil {
		t.Error("Broadcast accepts a message larger than a queue")
	}
	for typ, want := range map[ws.MessageType]string{
		ws.TypeProcessOutput: "process_output", ws.TypeProcessStatus: "process_status", ws.TypeEvent: "event", ws.TypeError: "error",
		ws.TypePing: "ping", ws.TypePong: "pong", ws.TypeSubscribe: "subscribe", ws.TypeUnsubscribe: "unsubscribe",
	} {
		if string(typ) != want {
			t.Errorf("type %q, want %q", typ, want)
		}
	}
}

func TestH12_Sending(t *testing.T) {
	s := start(t, ws.HubConfig{})
	in, out := s.dial(t, nil), s.dial(t, nil)
	in.send(`{"type":"subscribe","data":"process:7"}`)
	in.sync()
	out.sync()

	_ = s.SendProcessOutput("7", "line")
	if m := in.next(); m.Type != ws.TypeProcessOutput || m.ProcessID != "7" || m.Data != "line" || m.Channel != "process:7" {
		t.Errorf("got %+v", m)
	}
	_ = s.SendProcessStatus("7", "exited", 0)
	data, _ := in.raw()
	if !strings.Contains(string(data), `"type":"process_status","channel":"process:7","processId":"7","data":{"exitCode":0,"status":"exited"}`) {
		t.Errorf("got %s", data)
	}
	_ = s.SendEvent("deploy", 1)
	_ = s.SendError("oops")
	for _, c := range []*client{in, out} {
		if data, _ := c.raw(); !strings.Contains(string(data), `"type":"event","data":{"data":1,"event":"deploy"}`) {
			t.Errorf("got %s", data)
		}
		if m := c.next(); m.Type != ws.TypeError || m.Data != "oops" {
			t.Errorf("got %+v", m)
		}
		c.sync()
	}
	if err := s.SendToChannel("nobody", ws.Message{}); err != nil {
		t.Errorf("a channel without subscribers: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("x", 256)} {
		if err := s.SendToChannel(name, ws.Message{}); !errors.Is(err, ws.ErrChannelName) {
			t.Errorf("a name of %d bytes: %v, want ErrChannelName", len(name), err)
		}
	}
}

// H12: a client that does not read loses its connection by a broadcast, and only messages by a channel.
func TestH12_SlowClient(t *testing.T) {
	gone := make(chan ws.Reason, 1)
	s := start(t, ws.HubConfig{
		QueueMessages: 8,
		OnDisconnect:  func(_ *ws.Client, r ws.Reason) { gone <- r },
	})
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"c"}`)
	c.sync()
	big := ws.Message{Type: ws.TypeEvent, Data: strings.Repeat("x", 100<<10)}
	for s.Stats().Dropped == 0 {
		if err := s.SendToChannel("c", big); err != nil {
			t.Fatal(err)
		}
	}
	if n, slow := s.ChannelSubscriberCount("c"), s.Stats().Slow; n != 1 || slow != 0 {
		t.Errorf("%d subscribers and %d disconnected after a dropped message, want 1 and 0", n, slow)
	}
	for s.Stats().Slow == 0 {
		if err := s.Broadcast(big); err != nil {
			t.Fatal(err)
		}
	}
	if r := receive(t, gone); r.Code != 1013 {
		t.Errorf("reason %+v, want 1013", r)
	}
	if n := s.ChannelCount(); n != 0 {
		t.Errorf("%d channels, want 0", n)
	}
}

type counted struct{ n *int }

func (c counted) MarshalJSON() ([]byte, error) {
	*c.n++
	return []byte(`1`), nil
}

func TestH13_EncodedOnce(t *testing.T) {
	s := start(t, ws.HubConfig{})
	clients := []*client{s.dial(t, nil), s.dial(t, nil), s.dial(t, nil)}
	for _, c := range clients {
		c.send(`{"type":"subscribe","data":"c"}`)
		c.sync()
	}
	n := 0
	_ = s.Broadcast(ws.Message{Data: counted{&n}})
	_ = s.SendToChannel("c", ws.Message{Data: counted{&n}})
	for _, c := range clients {
		_, _ = c.next(), c.next()
	}
	if n != 2 {
		t.Errorf("%d encodings of 2 messages, want 2", n)
	}
}

func TestH14_BadMessages(t *testing.T) {
	s := start(t, ws.HubConfig{MaxChannelsPerClient: 1})
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"first"}`)
	c.sync()
	for _, text := range []string{
		"", "{", "null", "7", `"ping"`, `[]`, `{}`, `{"type":7}`, `{"type":"nonsense"}`, `{"type":"pong"}`, `{"type":"event"}`,
		`{"type":"subscribe"}`, `{"type":"subscribe","data":""}`, `{"type":"subscribe","data":7}`, `{"type":"subscribe","data":7,"channel":"c"}`,
		`{"type":"subscribe","data":"` + strings.Repeat("x", 256) + `"}`, `{"type":"unsubscribe"}`, `{"type":"unsubscribe","data":{}}`,
		`{"type":"subscribe","data":"second"}`, // past the limit
		`{"type":"ping"}{"type":"ping"}`,
	} {
		c.send(text)
		m := c.next()
		if s, _ := m.Data.(string); m.Type != ws.TypeError || s == "" {
			t.Errorf("%q: got %+v, want an error with a text", text, m)
		}
	}
	c.send(`{"type":"auth","data":"whatever"}`) // ignored
	c.send(`{"type":"unsubscribe","data":"never subscribed"}`)
	c.sync()
}

func TestH14_TooLarge(t *testing.T) {
	s := start(t, ws.HubConfig{})
	c := s.dial(t, nil)
	c.send(`{"type":"` + strings.Repeat("x", 64<<10) + `"}`)
	if code := c.closed(); code != 1009 {
		t.Errorf("close code %d, want 1009", code)
	}
}

// A client that sends faster than its messages can be handled is bounded.
func TestH14_Flood(t *testing.T) {
	release := make(chan struct{})
	s := start(t, ws.HubConfig{OnSubscribe: func(*ws.Client, string) error { <-release; return nil }})
	defer close(release)
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"c"}`)
	go func() {
		for c.WriteMessage(websocket.TextMessage, []byte("x")) == nil {
		}
	}()
	if code := c.closed(); code != 1008 {
		t.Errorf("close code %d, want 1008", code)
	}
}

func TestH08_Origins(t *testing.T) {
	list := []string{"https://app.example.com", "https://*.example.org"}
	for _, c := range []struct {
		name, origin string
		cfg          ws.HubConfig
		ok           bool
	}{
		{"not a browser", "", ws.HubConfig{}, true},
		{"same host", "http://HOST", ws.HubConfig{}, true},
		{"another host", "https://evil.example", ws.HubConfig{}, false},
		{"null", "null", ws.HubConfig{}, false},
		{"listed", "https://app.example.com", ws.HubConfig{AllowedOrigins: list}, true},
		{"same host beside a list", "http://HOST", ws.HubConfig{AllowedOrigins: list}, true},
		{"subdomain", "https://a.b.example.org", ws.HubConfig{AllowedOrigins: list}, true},
		{"not a subdomain", "https://example.org", ws.HubConfig{AllowedOrigins: list}, false},
		{"looks like a subdomain", "https://evilexample.org", ws.HubConfig{AllowedOrigins: list}, false},
		{"another scheme", "http://app.example.com", ws.HubConfig{AllowedOrigins: list}, false},
		{"null listed", "null", ws.HubConfig{AllowedOrigins: []string{"null"}}, true},
		{"all", "https://evil.example", ws.HubConfig{AllowedOrigins: []string{"*"}}, true},
		{"function says yes", "https://evil.example", ws.HubConfig{CheckOrigin: func(*http.Request) bool { return true }}, true},
		{"function says no", "http://HOST", ws.HubConfig{CheckOrigin: func(*http.Request) bool { return false }}, false},
		{"function panics", "http://HOST", ws.HubConfig{CheckOrigin: func(*http.Request) bool { panic("x") }}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, c.cfg)
			header := http.Header{}
			if c.origin != "" {
				header.Set("Origin", strings.Replace(c.origin, "HOST", strings.TrimPrefix(s.http.URL, "http://"), 1))
			}
			_, resp, err := s.tryDial(t, header)
			if c.ok != (err == nil) {
				t.Fatalf("dial: %v, want ok = %v", err, c.ok)
			}
			if !c.ok && (resp.StatusCode != 403 || !strings.Contains(s.logs.String(), "AllowedOrigins")) {
				t.Errorf("status %d, logs %s, want 403 and the name of the setting", resp.StatusCode, s.logs)
			}
		})
	}
}

func TestH28_OneMessagePerFrame(t *testing.T) {
	s := start(t, ws.HubConfig{})
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"c"}`)
	c.sync()
	const n = 200 // fits the queue
	for i := range n {
		_ = s.SendToChannel("c", ws.Message{Type: ws.TypeEvent, Data: i})
	}
	for i := range n {
		if m := c.next(); m.Data != float64(i) { // next fails on a frame of two
			t.Fatalf("got %+v, want %d", m, i)
		}
	}
}

func TestH18_Callbacks(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	log := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, s)
	}
	done := make(chan ws.Reason, 1)
	var s *server
	s = start(t, ws.HubConfig{
		OnConnect: func(c *ws.Client) {
			log("connect")
			if n := s.ClientCount(); n != 1 {
				t.Errorf("%d clients in OnConnect, want 1", n)
			}
			if err := s.Subscribe(c, "given"); err != nil {
				t.Errorf("Subscribe: %v", err)
			}
			_ = c.Send(ws.Message{Type: ws.TypeEvent, Data: "welcome"})
		},
		OnSubscribe: func(_ *ws.Client, channel string) error {
			log("subscribe " + channel)
			if channel == "secret" {
				return errors.New("the reason stays here")
			}
			return nil
		},
		OnDisconnect: func(c *ws.Client, r ws.Reason) {
			log("disconnect")
			if n := s.ClientCount(); n != 0 || len(c.Subscriptions()) != 0 {
				t.Errorf("%d clients and subscriptions %v in OnDisconnect, want none", n, c.Subscriptions())
			}
			done <- r
		},
	})
	c := s.dial(t, nil)
	c.send(`{"type":"subscribe","data":"secret"}`)
	c.send(`{"type":"subscribe","data":"open"}`)
	if m := c.next(); m.Data != "welcome" {
		t.Errorf("got %+v, want the welcome first", m)
	}
	data, err := c.raw()
	if err != nil || !strings.Contains(string(data), `"error"`) || !strings.Contains(string(data), `"secret"`) || strings.Contains(string(data), "reason") {
		t.Errorf("got %s, %v, want an error about the channel without the reason", data, err)
	}
	c.sync()
	if a, b, no := s.ChannelSubscriberCount("given"), s.ChannelSubscriberCount("open"), s.ChannelSubscriberCount("secret"); a != 1 || b != 1 || no != 0 {
		t.Errorf("subscribers %d, %d, %d, want 1, 1, 0", a, b, no)
	}
	_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(4321, "bye"), time.Now().Add(patience))
	if r := receive(t, done); r.Code != 4321 || r.Text != "bye" || !r.Remote {
		t.Errorf("reason %+v, want the client's", r)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(calls, ", "); got != "connect, subscribe secret, subscribe open, disconnect" {
		t.Errorf("calls: %s", got)
	}
}

// OnConnect comes first however soon the client sends, and runs beside those of other clients.
func TestH18_OnConnectIsFirst(t *testing.T) {
	hold := make(chan struct{})
	s := start(t, ws.HubConfig{
		OnConnect: func(c *ws.Client) {
			<-hold
			_ = c.Send(ws.Message{Type: ws.TypeEvent})
		},
	})
	a, b := s.dial(t, nil), s.dial(t, nil)
	for _, c := range []*client{a, b} {
		c.send(`{"type":"ping"}`)
	}
	eventually(t, "the messages were not received", func() bool { return s.Stats().Received == 2 })
	_ = s.SendError("a broadcast waits for no callback")
	for _, c := range []*client{a, b} {
		if m := c.next(); m.Type != ws.TypeError {
			t.Errorf("got %+v, want the broadcast", m)
		}
	}
	close(hold)
	for _, c := range []*client{a, b} {
		if m := c.next(); m.Type != ws.TypeEvent {
			t.Errorf("got %+v, want what OnConnect sent", m)
		}
		if m := c.next(); m.Type != ws.TypePong {
			t.Errorf("got %+v, want the pong after it", m)
		}
	}
}

// Nor can a message overtake OnConnect that comes in one packet with the handshake.
func TestH18_OnConnectIsFirstWithEarlyData(t *testing.T) {
	s := start(t, ws.HubConfig{OnConnect: func(c *ws.Client) { _ = c.Send(ws.Message{Type: ws.TypeEvent}) }})
	ping := []byte(`{"type":"ping"}`)
	frame := append([]byte{0x81, 0x80 | byte(len(ping)), 0, 0, 0, 0}, ping...) // masked with zeros
	for range 100 {
		conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = conn.Write(append([]byte("GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"), frame...))
		var got []byte
		buf := make([]byte, 4096)
		for !bytes.Contains(got, []byte(`"pong"`)) && err == nil {
			var n int
			n, err = conn.Read(buf)
			got = append(got, buf[:n]...)
		}
		_ = conn.Close()
		if event := bytes.Index(got, []byte(`"event"`)); err != nil || event < 0 || event > bytes.Index(got, []byte(`"pong"`)) {
			t.Fatalf("got %q, %v, want the event before the pong", got, err)
		}
	}
}

func TestH18_PanicsAreContained(t *testing.T) {
	boom := func() { panic("boom") }
	accept := ws.AuthenticatorFunc(func(*http.Request) ws.AuthResult { return ws.AuthResult{Valid: true} })
	for _, c := range []struct {
		name   string
		cfg    ws.HubConfig
		status int // of the handshake
		code   int // of the close
	}{
		{"OnConnect", ws.HubConfig{OnConnect: func(*ws.Client) { boom() }}, 101, 1011},
		{"OnSubscribe", ws.HubConfig{OnSubscribe: func(*ws.Client, string) error { boom(); return nil }}, 101, 1011},
		{"OnDisconnect", ws.HubConfig{Authenticator: accept, OnDisconnect: func(*ws.Client, ws.Reason) { boom() }}, 101, 1000},
		{"Authenticator", ws.HubConfig{Authenticator: ws.AuthenticatorFunc(func(*http.Request) ws.AuthResult { panic("boom") })}, 503, 0},
		{"OnAuthFailure", ws.HubConfig{
			Authenticator: ws.NewAPIKeyAuth(nil), OnAuthFailure: func(*http.Request, ws.AuthResult) { boom() },
		}, 401, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := start(t, c.cfg)
			conn, resp, err := s.tryDial(t, nil)
			if resp.StatusCode != c.status {
				t.Fatalf("status %d, want %d (%v)", resp.StatusCode, c.status, err)
			}
			if conn != nil {
				conn.send(`{"type":"subscribe","data":"c"}`)
				if c.code == 1000 {
					conn.sync()
					for client := range s.AllClients() {
						_ = client.Close()
					}
				}
				if code := conn.closed(); code != c.code {
					t.Errorf("close code %d, want %d", code, c.code)
				}
			}
			eventually(t, "the panic was not counted", func() bool { return s.Stats().Panics == 1 })
			eventually(t, "the client is still there", func() bool { return s.ClientCount() == 0 })
		})
	}
}

func TestH02_Indices(t *testing.T) {
	s := start(t, ws.HubConfig{})
	a, b := s.dial(t, nil), s.dial(t, nil)
	for _, name := range []string{"x", "y"} {
		a.send(`{"type":"subscribe","data":"` + name + `"}`)
	}
	b.send(`{"type":"subscribe","data":"y"}`)
	a.sync()
	b.sync()
	if st := s.Stats(); st.Clients != 2 || st.Channels != 2 || s.ClientCount() != 2 || s.ChannelCount() != 2 || s.ChannelSubscriberCount("y") != 2 {
		t.Errorf("stats %+v, %d subscribers of y", st, s.ChannelSubscriberCount("y"))
	}
	subscriptions := 0
	for c := range s.AllClients() {
		subscriptions += len(c.Subscriptions())
	}
	channels := 0
	for range s.AllChannels() {
		channels++
	}
	if subscriptions != 3 || channels != 2 {
		t.Errorf("%d subscriptions and %d channels, want 3 and 2", subscriptions, channels)
	}
	for range s.AllClients() {
		break
	}
	for range s.AllChannels() {
		break
	}
	for c := range s.AllClients() { // one of them leaves its channels
		for _, name := range c.Subscriptions() {
			s.Unsubscribe(c, name)
		}
	}
	if n := s.ChannelCount(); n != 0 {
		t.Errorf("%d channels, want 0", n)
	}
}

func TestH01_Shutdown(t *testing.T) {
	gone := make(chan ws.Reason, 2)
	s := start(t, ws.HubConfig{OnDisconnect: func(_ *ws.Client, r ws.Reason) { gone <- r }})
	a := s.dial(t, nil)
	a.sync()
	var c *ws.Client
	for c = range s.AllClients() {
	}
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	if code := a.closed(); code != 1001 {
		t.Errorf("close code %d, want 1001", code)
	}
	receive(t, stopped)
	if r := receive(t, gone); r.Code != 1001 {
		t.Errorf("reason %+v, want 1001", r)
	}
	// Nothing panics afterwards.
	if err := s.Broadcast(ws.Message{}); err != nil {
		t.Errorf("Broadcast: %v", err)
	}
	if err := s.SendToChannel("c", ws.Message{}); err != nil {
		t.Errorf("SendToChannel: %v", err)
	}
	if err := s.Subscribe(c, "c"); err == nil {
		t.Error("Subscribe of a client that has gone: no error")
	}
	if err := c.Send(ws.Message{}); err == nil {
		t.Error("Send to a client that has gone: no error")
	}
	_ = c.Close()
	_, resp, err := s.tryDial(t, nil)
	if err == nil || resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("dial after the end: %v, %v, want 503 with Retry-After", err, resp)
	}
}

func TestH01_NotAWebSocket(t *testing.T) {
	s := start(t, ws.HubConfig{MaxClients: 1})
	resp, err := s.http.Client().Get(s.http.URL)
	if err != nil || resp.StatusCode != http.StatusUpgradeRequired || resp.Header.Get("Sec-WebSocket-Version") != "13" {
		t.Errorf("GET: %v, %v, want 426", resp, err)
	}
	_ = resp.Body.Close()
	resp, err = s.http.Client().Post(s.http.URL, "text/plain", nil)
	if err != nil || resp.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v, %v, want 405", resp, err)
	}
	_ = resp.Body.Close()
	s.dial(t, nil)
	_, resp, err = s.tryDial(t, nil)
	if err == nil || resp.StatusCode != 503 {
		t.Errorf("past MaxClients: %v, %v, want 503", resp, err)
	}
}
