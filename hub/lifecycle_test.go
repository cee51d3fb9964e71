package hub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/tidewire/tidewire/hub"
)

func TestH01_ShutdownClosesEveryone(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		before := descriptors()
		var closed atomic.Int64
		s := p.serve(t, hub.Options{}, func() hub.Handler {
			return funcs{closed: func(c *hub.Conn, r hub.Reason) {
				if r.Code == 1001 && len(c.Channels()) == 0 {
					closed.Add(1)
				}
			}}
		})
		const n = 50
		clients := make([]*client, n)
		var conns []*hub.Conn
		for i := range clients {
			c, sc := s.dial(t)
			clients[i], conns = c, append(conns, sc)
			_ = sc.Join("c", hub.Everyone, nil)
		}
		if d := descriptors(); d > before+2*n+20 {
			t.Errorf("%d descriptors for both ends of %d connections, %d before", d, n, before)
		}
		// Publishers go on all the time and must not panic.
		var wg sync.WaitGroup
		var stop atomic.Bool
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					_, _ = s.Publish("c", hub.Message{Encode: text("x"), Policy: hub.DropNewest})
					for _, c := range conns {
						_ = c.Send([]byte("y"))
						_ = c.Join("d", hub.Everyone, []byte("z"))
						c.Leave("d")
						c.Go("", func() {})
					}
				}
			})
		}
		for _, c := range clients {
			wg.Go(func() {
				var e closeError
				for {
					_, err := c.next()
					if errors.As(err, &e) {
						break
					}
					if err != nil {
						t.Errorf("no close frame but %v", err)
						return
					}
				}
				if e.code() != 1001 && e.code() != 1013 { // a reader that fell behind may have been closed before
					t.Error(e)
				}
				c.close(e.code(), "")
				c.wantEnd()
			})
		}
		eventually(t, "publications", func() bool { return s.Stats().Published > 100 })
		s.stop()
		stop.Store(true)
		wg.Wait()
		st := s.Stats()
		if uint64(closed.Load())+st.SlowCloses != n || st.Conns != 0 || st.Channels != 0 || st.Panics != 0 {
			t.Errorf("%d closed; %+v", closed.Load(), st)
		}
		for _, c := range clients {
			_ = c.conn.Close()
		}
		eventually(t, "descriptors closed", func() bool { return descriptors() <= before+2 }) // the listener stays
	})
}

func TestH01_ShutdownDoesNotWaitForStalledPeers(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		t.Parallel()
		s := p.small().serve(t, hub.Options{}, nil)
		for range 20 {
			_, c := s.dial(t)
			_ = c.Join("c", hub.Everyone, nil)
		}
		big := strings.Repeat("x", 8<<10)
		for range 50 {
			_, _ = s.Publish("c", hub.Message{Encode: text(big), Policy: hub.DropNewest})
		}
		began := time.Now()
		s.stop()
		if d := time.Since(began); d > 4*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestH01_NotRunning(t *testing.T) {
	h := hub.New(hub.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.Run(ctx); err == nil {
		t.Error("second Run")
	}
	w := httptest.NewRecorder()
	_, err := h.Upgrade(w, handshake(), hub.UpgradeOptions{})
	var refused *hub.HandshakeError
	if !errors.As(err, &refused) || !errors.Is(err, hub.ErrNotRunning) || refused.Status != 503 || w.Body.Len() > 0 {
		t.Errorf("Upgrade = %v", err)
	}
}

func handshake() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "http://example.com/", nil)
	for k, v := range map[string]string{
		"Connection": "keep-alive, Upgrade", "Upgrade": "WebSocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	} {
		r.Header.Set(k, v)
	}
	return r
}

func TestCheckHandshake(t *testing.T) {
	if err := hub.CheckHandshake(handshake()); err != nil {
		t.Error(err)
	}
	for name, tt := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"method":   {func(r *http.Request) { r.Method = "POST" }, 405},
		"HTTP/2":   {func(r *http.Request) { r.ProtoMajor, r.ProtoMinor = 2, 0 }, 505},
		"HTTP/1.0": {func(r *http.Request) { r.ProtoMinor = 0 }, 505},
		"plain":    {func(r *http.Request) { r.Header.Del("Upgrade") }, 426},
		"other":    {func(r *http.Request) { r.Header.Set("Upgrade", "h2c") }, 426},
		"version":  {func(r *http.Request) { r.Header.Set("Sec-WebSocket-Version", "8") }, 426},
		"key":      {func(r *http.Request) { r.Header.Set("Sec-WebSocket-Key", "short") }, 400},
	} {
		r := handshake()
		tt.change(r)
		var refused *hub.HandshakeError
		if err := hub.CheckHandshake(r); !errors.As(err, &refused) || refused.Status != tt.status {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestH08_P47_Origins(t *testing.T) {
	allowed := []string{"https://app.example.com", "https://*.example.org", "https://*.port.com:8443", "null"}
	for _, tt := range []struct {
		origin, host string
		allowed      []string
		want         bool
	}{
		{"", "h.com", nil, true}, // native clients send none
		{"https://h.com", "h.com", nil, true},
		{"https://H.com", "h.COM", nil, true},
		{"http://h.com", "h.com", nil, true},
		{"https://h.com:8080", "h.com:8080", nil, true},
		{"https://h.com:8080", "h.com", nil, false},
		{"https://evil.com", "h.com", nil, false},
		{"https://h.com.evil.com", "h.com", nil, false},
		{"https://evilh.com", "h.com", nil, false},
		{"null", "h.com", nil, false},
		{"garbage", "h.com", nil, false},
		{"https://", "", nil, false},
		{"https://app.example.com", "h.com", allowed, true},
		{"HTTPS://APP.example.com", "h.com", allowed, true},
		{"http://app.example.com", "h.com", allowed, false},
		{"https://app.example.com:444", "h.com", allowed, false},
		{"https://x.app.example.com", "h.com", allowed, false},
		{"https://a.example.org", "h.com", allowed, true},
		{"https://b.a.example.org", "h.com", allowed, true},
		{"https://example.org", "h.com", allowed, false},
		{"https://evilexample.org", "h.com", allowed, false},
		{"https://a.example.org.evil.com", "h.com", allowed, false},
		{"http://a.example.org", "h.com", allowed, false},
		{"https://a.example.org:81", "h.com", allowed, false},
		{"https://a.port.com:8443", "h.com", allowed, true},
		{"https://a.port.com", "h.com", allowed, false},
		{"null", "h.com", allowed, true},
		{"https://evil.com", "h.com", []string{"*"}, true},
	} {
		r := handshake()
		r.Host = tt.host
		if tt.origin != "" {
			r.Header.Set("Origin", tt.origin)
		}
		if got := hub.OriginAllowed(r, tt.allowed); got != tt.want {
			t.Errorf("origin %q, host %q, %v: %v", tt.origin, tt.host, tt.allowed, got)
		}
	}
	if err := hub.CheckOrigins(append(allowed, "*", "http://localhost:3000")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{
		"", "example.com", "*.example.com", "https://example.com/", "https://example.com/path", "https://*", "https://a.*.com",
		"https://u@example.com", "https://example.com?x", "https://example.com#x", "https://", "localhost:3000",
	} {
		if err := hub.CheckOrigins([]string{bad}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q", bad)) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestMaxConns(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{MaxConns: 10}, nil)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var open []*client
		refused := 0
		for range 30 {
			wg.Go(func() {
				c, err := s.dialErr("")
				mu.Lock()
				defer mu.Unlock()
				var status ws.StatusError
				switch {
				case err == nil:
					c.TB = t
					open = append(open, c)
				case errors.As(err, &status) && status == 503:
					refused++
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(open) != 10 || refused != 20 {
			t.Fatalf("%d open, %d refused", len(open), refused)
		}
		for _, c := range open {
			_ = c.conn.Close()
		}
		// A place is free as soon as its connection has ended.
		eventually(t, "a free place", func() bool {
			c, err := s.dialErr("")
			if err == nil {
				_ = c.conn.Close()
			}
			return err == nil
		})
	})
}

func TestDialectOutOfRange(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	_, _ = hub.New(hub.Options{}).Upgrade(httptest.NewRecorder(), handshake(), hub.UpgradeOptions{Dialect: hub.MaxDialects})
}

func TestClose_ByServer(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		why := make(chan hub.Reason, 2)
		s := p.serve(t, hub.Options{}, func() hub.Handler { return funcs{closed: func(_ *hub.Conn, r hub.Reason) { why <- r }} })
		c, sc := s.dial(t)
		for i := range 100 {
			_ = sc.Send(fmt.Append(nil, i))
		}
		sc.Close(4001, "first")
		sc.Close(4002, "second")
		if err := sc.Send(nil); err != hub.ErrClosed {
			t.Errorf("Send = %v", err)
		}
		if err := sc.Join("c", hub.Everyone, nil); err != hub.ErrClosed {
			t.Errorf("Join = %v", err)
		}
		for i := range 100 { // what was queued comes first
			c.want(fmt.Sprint(i))
		}
		_, err := c.next()
		var e closeError
		if !errors.As(err, &e) || e.code() != 4001 || e.text() != "first" {
			t.Fatal(err)
		}
		c.close(4001, "")
		began := time.Now()
		c.wantEnd()
		eventually(t, "the end", func() bool { return s.Stats().Conns == 0 })
		if d := time.Since(began); d > 500*time.Millisecond {
			t.Errorf("%v after the answer", d)
		}
		if r := receive(t, why); r != (hub.Reason{Code: 4001, Text: "first"}) {
			t.Errorf("%+v", r)
		}
	})
}

func TestClose_ByClient(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		why := make(chan hub.Reason, 2)
		s := p.serve(t, hub.Options{}, func() hub.Handler { return funcs{closed: func(_ *hub.Conn, r hub.Reason) { why <- r }} })
		c, _ := s.dial(t)
		c.close(4005, "bye")
		c.wantClose(4005)
		c.wantEnd()
		if r := receive(t, why); r != (hub.Reason{Code: 4005, Text: "bye", Remote: true}) {
			t.Errorf("%+v", r)
		}
		c, _ = s.dial(t)
		c.write(masked(ws.OpClose, ""))
		c.wantClose(1005)
		if r := receive(t, why); r != (hub.Reason{Code: 1005, Remote: true}) {
			t.Errorf("%+v", r)
		}
		c, _ = s.dial(t)
		_ = c.conn.Close()
		if r := receive(t, why); !r.Abrupt() || r.Remote {
			t.Errorf("%+v", r)
		}
	})
}

// Both sides close at once.
func TestClose_Crossing(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		var closed atomic.Int64
		s := p.serve(t, hub.Options{}, func() hub.Handler { return funcs{closed: func(*hub.Conn, hub.Reason) { closed.Add(1) }} })
		for range 100 {
			c, sc := s.dial(t)
			go sc.Close(4000, "")
			c.write(masked(ws.OpClose, "\x0f\xa1"))
			_, err := c.next()
			var e closeError
			if !errors.As(err, &e) || e.code() != 4000 && e.code() != 4001 {
				t.Fatal(err)
			}
			c.wantEnd()
		}
		eventually(t, "the end", func() bool { return closed.Load() == 100 && s.Stats().Conns == 0 })
	})
}

func TestH04_Stats(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{}, func() hub.Handler {
			return funcs{message: func(c *hub.Conn, _ bool, d []byte) { _ = c.Join(string(d), hub.Everyone, []byte("in "+string(d))) }}
		})
		var clients []*client
		for range 3 {
			c, _ := s.dial(t)
			c.send("a")
			c.want("in a")
			clients = append(clients, c)
		}
		clients[0].send("b")
		clients[0].want("in b")
		if n, err := s.Publish("a", hub.Message{Encode: text("hello")}); n != 3 || err != nil {
			t.Errorf("Publish = %d, %v", n, err)
		}
		for _, c := range clients {
			c.want("hello")
		}
		eventually(t, "the last write counted", func() bool { return s.Stats().Written == 7 })
		names := map[string]int{}
		s.EachChannel(func(name string, n int) bool { names[name] = n; return true })
		st := s.Stats()
		if st.Conns != 3 || st.Channels != 2 || st.Accepted != 3 || st.Published != 1 || st.Encoded != 1 || st.Queued != 3 ||
			st.Received != 4 || st.Written != 7 || st.WrittenBytes != 4*6+3*7 || st.Dropped != 0 || names["a"] != 3 || names["b"] != 1 {
			t.Errorf("%+v, %v", st, names)
		}
	})
}

// Connections come and go in every way, and nothing is left of them.
func TestP43_Churn(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		n := 1500
		switch {
		case long:
			n = 350_000
		case p.tls: // mostly handshakes
			n = 200
		}
		var closed atomic.Int64
		s := p.serve(t, hub.Options{}, func() hub.Handler {
			return funcs{
				message: func(c *hub.Conn, _ bool, d []byte) {
					name := string(d)
					c.Go("", func() { _ = c.Join(name, hub.Everyone, []byte("in")) })
				},
				closed: func(*hub.Conn, hub.Reason) { closed.Add(1) },
			}
		})
		cycle := func(i int) error {
			c, err := s.dialErr("")
			if err != nil {
				return err
			}
			defer c.conn.Close()
			if i%4 == 0 {
				return nil
			}
			if _, err := c.conn.Write(masked(ws.OpText, fmt.Sprint(i%10))); err != nil || i%4 == 1 {
				return err
			}
			for {
				m, err := c.next()
				if err != nil {
					return err
				}
				if m == "in" {
					break
				}
			}
			_, _ = s.Publish(fmt.Sprint(i%10), hub.Message{Encode: text("x"), Policy: hub.DropNewest})
			if i%4 == 2 {
				return nil
			}
			if _, err := c.conn.Write(masked(ws.OpClose, "\x03\xe8")); err != nil {
				return err
			}
			for {
				if _, err := c.next(); err != nil {
					return nil
				}
			}
		}
		baseline := func() (int, int, uint64) {
			eventually(t, "all gone", func() bool { return s.Stats().Conns == 0 })
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return runtime.NumGoroutine(), descriptors(), m.HeapAlloc
		}
		run := func(n int) {
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := g; i < n; i += 8 {
						if err := cycle(i); err != nil {
							t.Errorf("cycle %d: %v", i, err)
							return
						}
					}
				})
			}
			wg.Wait()
		}
		run(200)
		g0, f0, m0 := baseline()
		run(n)
		eventually(t, "goroutines and descriptors", func() bool {
			g, f, _ := baseline()
			return g <= g0+2 && f <= f0+2
		})
		if _, _, m := baseline(); m > m0+1<<20 {
			t.Errorf("heap grew from %d to %d", m0, m)
		}
		st := s.Stats()
		eventually(t, "every Closed", func() bool { return uint64(closed.Load()) == s.Stats().Accepted })
		if st.Channels != 0 || st.Panics != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// An idle connection with one membership is small. The clients are bare descriptors.
func TestIdleMemory(t *testing.T) {
	n := 2000
	if long {
		n = 9500
	}
	for _, tt := range []struct {
		path
		most int
	}{{path{name: "poll"}, 1500}, {path{name: "portable", portable: true}, 5000}} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.serve(t, hub.Options{HeartbeatInterval: time.Hour, PongTimeout: 2 * time.Hour}, nil)
			ends := make([]func(), 0, n)
			defer func() {
				for _, end := range ends {
					end()
				}
			}()
			open := func(n int) {
				for range n {
					conn, err := net.Dial("tcp", s.addr)
					if err != nil {
						t.Fatal(err)
					}
					_, _ = conn.Write(request(s.addr, nil))
					b := make([]byte, 512)
					if n, err := conn.Read(b); err != nil || !bytes.HasPrefix(b[:n], []byte("HTTP/1.1 101")) {
						t.Fatalf("%q, %v", b[:n], err)
					}
					ends = append(ends, park(conn))
				}
			}
			open(100) // the first ones pay for what all share
			settle := func() (int, uint64) {
				eventually(t, "all started", func() bool { return s.Stats().Conns == len(ends) })
				s.Each(func(c *hub.Conn) { _ = c.Join("c", hub.Everyone, nil) })
				for range 3 {
					runtime.GC()
				}
				debugFree()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return rss(), m.HeapAlloc + m.StackInuse
			}
			r0, h0 := settle()
			open(n)
			r1, h1 := settle()
			perRSS, perHeap := (r1-r0)/n, int(h1-h0)/n
			t.Logf("%d connections: %d bytes RSS, %d bytes heap and stacks for each", n, perRSS, perHeap)
			if most := tt.most; long && max(perRSS, perHeap) > most || perHeap > 2*most { // the race detector takes its share
				t.Errorf("%d bytes for an idle connection, want at most %d", max(perHeap, perRSS), most)
			}
		})
	}
}

// request is a handshake followed by early bytes.
func request(host string, early []byte) []byte {
	return append(fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", host), early...)
}

// A connection of a wrapped kind has no descriptor that could be taken, and works all the same.
func TestWrappedConn(t *testing.T) {
	h := hub.New(hub.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := h.Upgrade(w, r, hub.UpgradeOptions{Protocol: func(p string) bool { return p == "b" }, Dialect: 3})
		if err != nil {
			t.Error(err)
			return
		}
		c.Start(funcs{message: func(c *hub.Conn, _ bool, d []byte) { _ = c.Send(d) }})
	}))
	web.Listener = wrapping{web.Listener}
	web.Start()
	d := ws.Dialer{Protocols: []string{"a", "b"}}
	conn, _, hs, err := d.Dial(ctx, "ws://"+web.Listener.Addr().String())
	if err != nil || hs.Protocol != "b" {
		t.Fatal(hs, err)
	}
	c := &client{TB: t, conn: conn, r: newReader(conn)}
	c.send("x")
	c.want("x")
	cancel()
	c.wantClose(1001)
	if err := <-done; err != nil {
		t.Error(err)
	}
	web.Close()
	_ = conn.Close()
}

type wrapping struct{ net.Listener }

func (l wrapping) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

func TestLoggerNamesThePanic(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{Logger: slog.New(slog.NewTextHandler(lockedWriter{&mu, &log}, nil))}, func() hub.Handler {
			return funcs{message: func(*hub.Conn, bool, []byte) { panic("tell me") }}
		})
		c, _ := s.dial(t)
		other, oc := s.dial(t)
		c.send("x")
		c.wantClose(1011)
		_ = oc.Send([]byte("still here"))
		other.want("still here")
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(log.String(), "tell me") {
			t.Errorf("log: %s", log.String())
		}
	})
}
