package ws_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coder "github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/ws"
)

// peer is a server without a network and, in a synctest bubble, without a clock. Each dial is noted with its time.
type peer struct {
	t     *testing.T
	start time.Time

	mu     sync.Mutex // guards below
	dials  []time.Duration
	down   bool             // dials fail
	deaf   bool             // nothing arrives of what the client sends
	answer http.HandlerFunc // instead of accepting
	conns  []*coder.Conn
	got    []ws.Message
	header []http.Header
}

func newPeer(t *testing.T) *peer { return &peer{t: t, start: time.Now()} }

func (p *peer) set(f func(p *peer)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

// config returns what connects a client to the peer.
func (p *peer) config() ws.ReconnectConfig {
	return ws.ReconnectConfig{URL: "ws://peer/ws?token=" + "s3cr3t", HTTPClient: &http.Client{Transport: &http.Transport{DialContext: p.dial, DisableKeepAlives: true}}}
}

func (p *peer) dial(context.Context, string, string) (net.Conn, error) {
	p.mu.Lock()
	p.dials = append(p.dials, time.Since(p.start))
	down := p.down
	p.mu.Unlock()
	if down {
		return nil, errors.New("no route")
	}
	client, server := net.Pipe()
	go func() { _ = http.Serve(&oneConn{conn: buffer(server, nil)}, http.HandlerFunc(p.serve)) }()
	return buffer(client, p.isDeaf), nil
}

func (p *peer) isDeaf() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deaf
}

// buffered is a connection whose writes do not wait for the reader, as a socket's do not.
type buffered struct {
	net.Conn
	lost  func() bool // says that what is written is lost on the way
	queue chan []byte
	done  chan struct{}
	once  sync.Once
}

func buffer(c net.Conn, lost func() bool) *buffered {
	b := &buffered{Conn: c, lost: lost, queue: make(chan []byte, 1000), done: make(chan struct{})}
	go func() {
		defer func() { _ = c.Close() }()
		for {
			select {
			case data := <-b.queue:
				if _, err := c.Write(data); err != nil {
					return
				}
				continue
			default:
			}
			select {
			case data := <-b.queue:
				if _, err := c.Write(data); err != nil {
					return
				}
			case <-b.done:
				return
			}
		}
	}()
	return b
}

func (b *buffered) Write(p []byte) (int, error) {
	if b.lost != nil && b.lost() {
		return len(p), nil
	}
	select {
	case <-b.done:
		return 0, net.ErrClosed
	case b.queue <- slices.Clone(p):
		return len(p), nil
	}
}

func (b *buffered) Close() error {
	b.once.Do(func() { close(b.done) })
	_ = b.SetReadDeadline(time.Now())
	_ = b.SetWriteDeadline(time.Now().Add(time.Second))
	return nil
}

// oneConn is a listener for one connection.
type oneConn struct {
	conn net.Conn
	once sync.Once
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	err = net.ErrClosed
	l.once.Do(func() { c, err = l.conn, nil })
	return c, err
}
func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }

func (p *peer) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	answer := p.answer
	p.header = append(p.header, r.Header)
	p.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	c, err := coder.Accept(w, r, nil)
	if err != nil {
		p.t.Errorf("accept: %v", err)
		return
	}
	p.set(func(p *peer) { p.conns = append(p.conns, c) })
	for {
		_, data, err := c.Read(context.Background())
		if err != nil {
			_ = c.CloseNow()
			return
		}
		var m ws.Message
		if err := json.Unmarshal(data, &m); err != nil {
			p.t.Errorf("%s: %v", data, err)
		}
		p.set(func(p *peer) { p.got = append(p.got, m) })
	}
}

// last returns the present connection.
func (p *peer) last() *coder.Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[len(p.conns)-1]
}

func (p *peer) send(text string) {
	p.t.Helper()
	if err := p.last().Write(context.Background(), coder.MessageText, []byte(text)); err != nil {
		p.t.Errorf("send: %v", err)
	}
}

// took returns what has come since the last call, as "type data".
func (p *peer) took() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var s []string
	for _, m := range p.got {
		s = append(s, fmt.Sprint(m.Type, " ", m.Data))
	}
	p.got = nil
	return s
}

// gaps returns the times between the dials.
func (p *peer) gaps() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var gaps []time.Duration
	for i := 1; i < len(p.dials); i++ {
		gaps = append(gaps, p.dials[i]-p.dials[i-1])
	}
	return gaps
}

// connect runs Connect until the returned function is called, which returns its error.
func connect(t *testing.T, c *ws.ReconnectingClient) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Connect(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

func seconds(s ...float64) []time.Duration {
	var d []time.Duration
	for _, s := range s {
		d = append(d, time.Duration(s*float64(time.Second)))
	}
	return d
}

func TestH24_BackoffWhileDown(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*ws.ReconnectConfig)
		want   []time.Duration
	}{
		{"defaults", nil, seconds(1, 2, 4, 8, 16, 30, 30)},
		{"configured", func(c *ws.ReconnectConfig) {
			c.InitialBackoff, c.MaxBackoff, c.BackoffMultiplier = 100*time.Millisecond, 500*time.Millisecond, 3
		}, seconds(.1, .3, .5, .5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				p.down = true
				cfg := p.config()
				cfg.MaxRetries = len(c.want)
				var failures int
				cfg.OnError = func(err error) {
					failures++
					if strings.Contains(err.Error(), "s3cr3t") {
						t.Errorf("the error holds the address: %v", err)
					}
				}
				cfg.OnConnect = func() { t.Error("OnConnect was called") }
				cfg.OnDisconnect = func() { t.Error("OnDisconnect was called") }
				if c.change != nil {
					c.change(&cfg)
				}
				client := ws.NewReconnectingClient(cfg)
				err := client.Connect(t.Context())
				if !errors.Is(err, ws.ErrMaxRetries) || strings.Contains(err.Error(), "s3cr3t") {
					t.Errorf("Connect = %v, want ErrMaxRetries without the address", err)
				}
				if diff := cmp.Diff(c.want, p.gaps()); diff != "" {
					t.Errorf("delays (-want +got)\n%s", diff)
				}
				if failures != len(c.want)+1 || client.State() != ws.StateDisconnected {
					t.Errorf("%d failures, state %v, want %d, disconnected", failures, client.State(), len(c.want)+1)
				}
			})
		})
	}
}

func TestH24_Jitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.down = true
		cfg := p.config()
		cfg.MaxRetries, cfg.Jitter, cfg.BackoffMultiplier = 50, true, 1
		_ = ws.NewReconnectingClient(cfg).Connect(t.Context())
		gaps := p.gaps()
		if lo, hi := slices.Min(gaps), slices.Max(gaps); hi >= time.Second || lo > 500*time.Millisecond || hi < 500*time.Millisecond {
			t.Errorf("delays between %v and %v, want them spread over [0, 1 s)", lo, hi)
		}
	})
}

// The whole life: down, connected, lost, connected again with a fresh count, closed.
func TestH23_Life(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.down = true
		var mu sync.Mutex
		var calls []string
		log := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintf(format, args...))
		}
		took := func() []string {
			mu.Lock()
			defer mu.Unlock()
			defer func() { calls = nil }()
			return calls
		}
		var client *ws.ReconnectingClient
		cfg := p.config()
		cfg.Header = http.Header{"X-Mine": {"yes"}}
		cfg.OnConnect = func() { log("connect %v", client.State()) }
		cfg.OnReconnect = func(n int) { log("reconnect %d %v", n, client.State()) }
		cfg.OnDisconnect = func() { log("disconnect %v", client.State()) }
		cfg.OnMessage = func(m ws.Message) { log("message %v", m.Data) }
		client = ws.NewReconnectingClient(cfg)
		if err := client.Send(ws.Message{Type: ws.TypePing}); !errors.Is(err, ws.ErrNotConnected) {
			t.Errorf("Send before Connect = %v, want ErrNotConnected", err)
		}
		stop := connect(t, client)
		time.Sleep(1500 * time.Millisecond) // dials at 0, 1, 3
		if s := client.State(); s != ws.StateDisconnected {
			t.Errorf("state %v between attempts, want disconnected", s)
		}
		p.set(func(p *peer) { p.down = false })
		time.Sleep(2 * time.Second)
		if s := client.State(); s != ws.StateConnected {
			t.Fatalf("state %v, want connected", s)
		}
		if err := client.Connect(t.Context()); !errors.Is(err, ws.ErrConnecting) {
			t.Errorf("a second Connect = %v, want ErrConnecting", err)
		}
		if err := client.Send(ws.Message{Type: ws.TypeEvent, Data: "hello"}); err != nil {
			t.Errorf("Send: %v", err)
		}
		p.send(`{"type":"event","data":1}`)
		p.send("{\"type\":\"event\",\"data\":2}\n{\"type\":\"event\",\"data\":3}") // as another server joins them
		p.send(`nonsense`)
		p.send(`{"type":"event","data":4}`)
		synctest.Wait()
		if diff := cmp.Diff([]string{"connect connected", "message 1", "message 2", "message 3", "message 4"}, took()); diff != "" {
			t.Errorf("calls (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff([]string{"event hello"}, p.took()); diff != "" {
			t.Errorf("the server got (-want +got)\n%s", diff)
		}
		if h := p.header[0].Get("X-Mine"); h != "yes" {
			t.Errorf("header %q", h)
		}

		p.set(func(p *peer) { p.dials, p.down = nil, true })
		lost := time.Since(p.start)
		_ = p.last().CloseNow()
		synctest.Wait()
		if err := client.Send(ws.Message{Type: ws.TypePing}); !errors.Is(err, ws.ErrNotConnected) {
			t.Errorf("Send after the loss = %v, want ErrNotConnected", err)
		}
		time.Sleep(4 * time.Second) // dials 1 and 3 s after the loss
		p.set(func(p *peer) { p.down = false })
		time.Sleep(4 * time.Second) // and 7
		if diff := cmp.Diff([]string{"disconnect disconnected", "reconnect 3 connected"}, took()); diff != "" {
			t.Errorf("calls (-want +got)\n%s", diff)
		}
		if diff := cmp.Diff(append([]time.Duration{lost + time.Second}, lost+3*time.Second, lost+7*time.Second), p.dials); diff != "" {
			t.Errorf("dials (-want +got)\n%s", diff)
		}

		before := time.Now()
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Errorf("Connect = %v, want context.Canceled", err)
		}
		if d := time.Since(before); d > time.Second {
			t.Errorf("stopped after %v, want at most 1 s", d)
		}
		if diff := cmp.Diff([]string{"disconnect disconnected"}, took()); diff != "" {
			t.Errorf("calls (-want +got)\n%s", diff)
		}
	})
}

// A server that accepts and hangs up at once is not hammered.
func TestH24_AcceptAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.answer = func(w http.ResponseWriter, r *http.Request) {
			c, err := coder.Accept(w, r, nil)
			if err == nil {
				_ = c.Close(1013, "full")
			}
		}
		stop := connect(t, ws.NewReconnectingClient(p.config()))
		time.Sleep(5500 * time.Millisecond)
		_ = stop()
		if diff := cmp.Diff(seconds(1, 1, 1, 1, 1), p.gaps()); diff != "" {
			t.Errorf("delays (-want +got)\n%s", diff)
		}
	})
}

func TestH23_Close(t *testing.T) {
	t.Run("connected", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			client := ws.NewReconnectingClient(p.config())
			done := make(chan error, 1)
			go func() { done <- client.Connect(t.Context()) }()
			synctest.Wait()
			_, _ = client.Close(), client.Close()
			if err := <-done; err != nil {
				t.Errorf("Connect = %v, want nil", err)
			}
			if err := client.Connect(t.Context()); err != nil || len(p.conns) != 1 {
				t.Errorf("Connect after Close = %v with %d connections, want nil and none", err, len(p.conns)-1)
			}
		})
	})
	t.Run("waiting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			p.down = true
			client := ws.NewReconnectingClient(p.config())
			done := make(chan error, 1)
			go func() { done <- client.Connect(t.Context()) }()
			synctest.Wait()
			before := time.Now()
			_ = client.Close()
			if err := <-done; err != nil || time.Since(before) != 0 {
				t.Errorf("Connect = %v after %v, want nil at once", err, time.Since(before))
			}
		})
	})
	t.Run("dialing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			p.answer = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
			client := ws.NewReconnectingClient(p.config())
			stop := connect(t, client)
			synctest.Wait()
			if s := client.State(); s != ws.StateConnecting {
				t.Errorf("state %v, want connecting", s)
			}
			before := time.Now()
			if err := stop(); !errors.Is(err, context.Canceled) || time.Since(before) != 0 {
				t.Errorf("Connect = %v after %v, want canceled at once", err, time.Since(before))
			}
		})
	})
	t.Run("from a callback", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			var client *ws.ReconnectingClient
			cfg := p.config()
			cfg.OnConnect = func() { _ = client.Close() }
			client = ws.NewReconnectingClient(cfg)
			if err := client.Connect(t.Context()); err != nil {
				t.Errorf("Connect = %v, want nil", err)
			}
		})
	})
}

func TestH26_SubscribesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		var client *ws.ReconnectingClient
		cfg := p.config()
		cfg.OnConnect = func() { _ = client.Send(ws.Message{Type: ws.TypeSubscribe, Data: "d"}) }
		client = ws.NewReconnectingClient(cfg)
		for _, name := range []string{"b", "a", "gone"} {
			if err := client.Subscribe(name); err != nil {
				t.Errorf("Subscribe: %v", err)
			}
		}
		_ = client.Unsubscribe("gone")
		if err := client.Send(ws.Message{Type: ws.TypeSubscribe, Data: "refused"}); !errors.Is(err, ws.ErrNotConnected) {
			t.Errorf("Send = %v, want ErrNotConnected", err)
		}
		if err := client.Subscribe(""); !errors.Is(err, ws.ErrChannelName) {
			t.Errorf("Subscribe = %v, want ErrChannelName", err)
		}
		connect(t, client)
		synctest.Wait()
		if diff := cmp.Diff([]string{"subscribe a", "subscribe b", "subscribe d"}, p.took()); diff != "" {
			t.Errorf("at first (-want +got)\n%s", diff)
		}
		_ = client.Subscribe("c")
		_ = client.Unsubscribe("a")
		_ = client.Send(ws.Message{Type: ws.TypeSubscribe, Channel: "e"})
		_ = client.Send(ws.Message{Type: ws.TypeUnsubscribe, Data: "b"})
		synctest.Wait()
		if diff := cmp.Diff([]string{"subscribe c", "unsubscribe a", "subscribe <nil>", "unsubscribe b"}, p.took()); diff != "" {
			t.Errorf("then (-want +got)\n%s", diff)
		}
		_ = p.last().CloseNow()
		synctest.Wait()
		_ = client.Unsubscribe("c")
		_ = client.Subscribe("f")
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"subscribe d", "subscribe e", "subscribe f"}, p.took()); diff != "" {
			t.Errorf("after the reconnect (-want +got)\n%s", diff)
		}
	})
}

// A peer that is there and says nothing is noticed; one that answers pings, or pings itself, is not given up.
func TestH23_Silence(t *testing.T) {
	for _, c := range []struct {
		name  string
		alive bool
		deaf  bool
		serve func(ctx context.Context, conn *coder.Conn)
	}{
		{"dead", false, true, func(ctx context.Context, _ *coder.Conn) { <-ctx.Done() }},
		{"answers", true, false, func(ctx context.Context, conn *coder.Conn) { _, _, _ = conn.Read(ctx) }},
		{"sends", true, true, func(ctx context.Context, conn *coder.Conn) {
			for ctx.Err() == nil {
				_ = conn.Write(ctx, coder.MessageText, []byte(`{"type":"event"}`))
				select {
				case <-time.After(20 * time.Second):
				case <-ctx.Done():
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				ctx, cancel := context.WithCancel(context.Background())
				p.answer = func(w http.ResponseWriter, r *http.Request) {
					conn, err := coder.Accept(w, r, nil)
					if err != nil {
						t.Error(err)
						return
					}
					defer func() { _ = conn.CloseNow() }()
					p.set(func(p *peer) { p.deaf = c.deaf })
					c.serve(ctx, conn)
				}
				var lost []error
				var mu sync.Mutex
				cfg := p.config()
				cfg.SilenceTimeout = 30 * time.Second
				cfg.OnError = func(err error) {
					mu.Lock()
					defer mu.Unlock()
					lost = append(lost, err)
				}
				stop := connect(t, ws.NewReconnectingClient(cfg))
				time.Sleep(29 * time.Second)
				p.set(func(p *peer) { p.deaf = p.deaf && c.alive }) // for the next connection
				mu.Lock()
				early := len(lost)
				mu.Unlock()
				time.Sleep(time.Minute)
				_ = stop()
				cancel()
				if c.alive && len(lost) > 0 || !c.alive && (early > 0 || len(lost) == 0) {
					t.Errorf("lost %d times before the limit, in all: %v", early, lost)
				}
			})
		})
	}
}

// A callback that takes long is not the server's silence.
func TestH23_SlowCallbackIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		cfg := p.config()
		cfg.SilenceTimeout = 3 * time.Second
		cfg.OnMessage = func(ws.Message) { time.Sleep(time.Minute) }
		cfg.OnDisconnect = func() {
			if time.Since(p.start) < 2*time.Minute {
				t.Errorf("disconnected after %v", time.Since(p.start))
			}
		}
		client := ws.NewReconnectingClient(cfg)
		connect(t, client)
		synctest.Wait()
		p.send(`{"type":"event"}`)
		p.send(`{"type":"event"}`)
		time.Sleep(2 * time.Minute)
	})
}

func TestH23_ReadLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		cfg := p.config()
		cfg.MaxMessageBytes = 1000
		cfg.OnMessage = func(ws.Message) { t.Error("a message past the limit came through") }
		connect(t, ws.NewReconnectingClient(cfg))
		synctest.Wait()
		go func() {
			_ = p.last().Write(context.Background(), coder.MessageText, []byte(`{"type":"event","data":"`+strings.Repeat("x", 1000)+`"}`))
		}()
		time.Sleep(3 * time.Second)
		if n := len(p.gaps()); n != 1 {
			t.Errorf("%d reconnects, want 1", n)
		}
	})
}

func refuse(status int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		http.Error(w, "no", status)
	}
}

// A refusal is final, unless there is another token.
func TestH23_Refused(t *testing.T) {
	fixed := func(context.Context) (string, error) { return "old-s3cr3t", nil }
	for _, c := range []struct {
		name   string
		status int
		token  func(context.Context) (string, error)
		dials  int
	}{
		{"no token, 401", 401, nil, 1},
		{"403", 403, fixed, 1},
		{"the same token again", 401, fixed, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(t)
				p.answer = refuse(c.status, "")
				cfg := p.config()
				cfg.Token = c.token
				err := ws.NewReconnectingClient(cfg).Connect(t.Context())
				if !errors.Is(err, ws.ErrRefused) || len(p.dials) != c.dials || strings.Contains(err.Error(), "s3cr3t") {
					t.Errorf("Connect = %v after %d dials, want ErrRefused after %d", err, len(p.dials), c.dials)
				}
			})
		})
	}
	t.Run("the same token after the token server was down", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			p.answer = refuse(401, "")
			n := 0
			cfg := p.config()
			cfg.Token = func(context.Context) (string, error) {
				if n++; n == 2 {
					return "", errors.New("the token server is down")
				}
				return "same", nil
			}
			if err := ws.NewReconnectingClient(cfg).Connect(t.Context()); !errors.Is(err, ws.ErrRefused) || len(p.dials) != 1 {
				t.Errorf("Connect = %v after %d dials, want ErrRefused after 1", err, len(p.dials))
			}
		})
	})
	t.Run("another token", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPeer(t)
			p.answer = func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer 3" {
					refuse(401, "")(w, r)
					return
				}
				p.set(func(p *peer) { p.answer = nil })
				p.serve(w, r)
			}
			n := 0
			cfg := p.config()
			cfg.Token = func(context.Context) (string, error) {
				if n++; n == 2 {
					return "", errors.New("the token server is down")
				}
				return fmt.Sprint(n), nil
			}
			client := ws.NewReconnectingClient(cfg)
			connect(t, client)
			time.Sleep(10 * time.Second)
			if client.State() != ws.StateConnected || n != 3 {
				t.Errorf("state %v after %d tokens, want connected after 3", client.State(), n)
			}
		})
	})
}

func TestH24_RetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPeer(t)
		p.answer = refuse(503, "7")
		cfg := p.config()
		cfg.MaxRetries = 5
		if err := ws.NewReconnectingClient(cfg).Connect(t.Context()); !errors.Is(err, ws.ErrMaxRetries) {
			t.Errorf("Connect = %v, want ErrMaxRetries", err)
		}
		if diff := cmp.Diff(seconds(7, 7, 7, 8, 16), p.gaps()); diff != "" {
			t.Errorf("delays (-want +got)\n%s", diff)
		}
		p.answer, p.dials = refuse(503, "999999"), nil
		cfg.MaxRetries = 1
		_ = ws.NewReconnectingClient(cfg).Connect(t.Context())
		if diff := cmp.Diff(seconds(30), p.gaps()); diff != "" {
			t.Errorf("delays (-want +got)\n%s", diff)
		}
	})
}

// Everything at once, for the race detector, against the real hub.
func TestH25_Races(t *testing.T) {
	s := start(t, ws.HubConfig{})
	var messages sync.WaitGroup
	messages.Add(100)
	var count int
	reconnected := make(chan int, 100)
	client := ws.NewReconnectingClient(ws.ReconnectConfig{
		URL: s.url(), InitialBackoff: time.Millisecond, HTTPClient: s.http.Client(),
		OnReconnect: func(n int) { reconnected <- n },
		OnMessage: func(ws.Message) {
			if count++; count <= 100 {
				messages.Done()
			}
		},
	})
	stop := connect(t, client)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = client.State()
				_ = client.Subscribe(fmt.Sprint(i))
				_ = client.Send(ws.Message{Type: ws.TypePing})
				_ = client.Unsubscribe(fmt.Sprint(i))
			}
		})
	}
	for range 3 {
		eventually(t, "no client", func() bool { return s.ClientCount() == 1 })
		for c := range s.AllClients() {
			_ = c.Close()
		}
		receive(t, reconnected)
	}
	messages.Wait()
	cancel()
	wg.Wait()
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Connect = %v, want canceled", err)
	}
}

func TestH25_StateNames(t *testing.T) {
	for s, want := range map[ws.ConnectionState]string{
		ws.StateDisconnected: "disconnected", ws.StateConnecting: "connecting", ws.StateConnected: "connected", 7: "unknown",
	} {
		if s.String() != want {
			t.Errorf("%d: %q, want %q", s, s, want)
		}
	}
}

// The client and the hub of this package together, over the network.
func TestH26_WithTheHub(t *testing.T) {
	gone := make(chan ws.Reason, 16)
	s := start(t, ws.HubConfig{
		Authenticator: ws.NewAPIKeyAuth(map[string]string{"key": "user"}),
		OnDisconnect:  func(_ *ws.Client, r ws.Reason) { gone <- r },
	})
	got := make(chan ws.Message, 16)
	client := ws.NewReconnectingClient(ws.ReconnectConfig{
		URL: s.url(), InitialBackoff: time.Millisecond, HTTPClient: s.http.Client(),
		Token:     func(context.Context) (string, error) { return "key", nil },
		OnMessage: func(m ws.Message) { got <- m },
	})
	_ = client.Subscribe("process:1")
	stop := connect(t, client)
	for i := range 3 {
		eventually(t, "not subscribed", func() bool { return s.ChannelSubscriberCount("process:1") == 1 })
		_ = s.SendProcessOutput("1", fmt.Sprint(i))
		if m := receive(t, got); m.Data != fmt.Sprint(i) {
			t.Errorf("got %+v, want %d", m, i)
		}
		for c := range s.AllClients() {
			_ = c.Close()
		}
		receive(t, gone)
	}
	eventually(t, "not subscribed", func() bool { return s.ChannelSubscriberCount("process:1") == 1 })
	_ = stop()
	if r := receive(t, gone); r.Code != 1000 || !r.Remote {
		t.Errorf("reason %+v at the end, want the client's close frame", r)
	}
}
