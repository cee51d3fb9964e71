package hub_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws"

	"github.com/tidewire/tidewire/hub"
)

// echo answers each message.
func echo() hub.Handler {
	return funcs{message: func(c *hub.Conn, _ bool, d []byte) { _ = c.Send(d) }}
}

func TestH09_FaultsEndOneConnection(t *testing.T) {
	raw := func(first byte, payload string) string {
		b := masked(ws.OpText, payload)
		b[0] = first
		return string(b)
	}
	big := strings.Repeat("x", 3000)
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{MaxMessageBytes: 2000}, echo)
		other, _ := s.dial(t)
		for name, tt := range map[string]struct {
			bytes string
			code  int
		}{
			"oversize":              {raw(0x81, big), 1009},
			"oversize in fragments": {raw(0x01, big[:1500]) + raw(0x80, big[:501]), 1009},
			"bad UTF-8":             {raw(0x81, "\xff"), 1007},
			"unmasked":              {"\x81\x01x", 1002},
			"reserved bit":          {raw(0xc1, "x"), 1002},
			"reserved opcode":       {raw(0x83, "x"), 1002},
			"long ping":             {raw(0x89, big[:126]), 1002},
			"garbage":               {"GET / HTTP/1.1\r\n\r\n", 1002},
			"bad close":             {raw(0x88, "\x00"), 1002},
		} {
			c, _ := s.dial(t)
			c.send("first")
			c.want("first")
			c.write([]byte(tt.bytes))
			// The peer may go on for a while: the close frame must reach it all the same.
			c.write([]byte(strings.Repeat(raw(0x81, "more"), 50)))
			_, err := c.next()
			var e closeError
			if !errors.As(err, &e) || e.code() != tt.code {
				t.Errorf("%s: %v, want %d", name, err, tt.code)
			}
			_ = c.conn.Close()
			other.send(name)
			other.want(name)
		}
		if n := s.Stats().Received; n != 18 {
			t.Errorf("%d messages received, want those before the faults", n)
		}
	})
}

func TestH09_PiecesAndBatches(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{}, echo)
		c, _ := s.dial(t)
		for _, b := range masked(ws.OpText, "byte by byte") {
			c.write([]byte{b})
		}
		c.want("byte by byte")
		var many []byte
		for i := range 200 {
			many = append(many, masked(ws.OpText, fmt.Sprint(i))...)
		}
		c.write(many)
		for i := range 200 {
			c.want(fmt.Sprint(i))
		}
		large := strings.Repeat("large ", 40_000)
		c.send(large)
		c.want(large)
		// A ping inside a fragmented message is answered before the message ends.
		a := masked(ws.OpText, "frag")
		a[0] = 0x01
		c.write(append(a, masked(ws.OpPing, "inside")...))
		if op, payload, err := c.frame(); op != ws.OpPong || string(payload) != "inside" || err != nil {
			t.Errorf("%v %q %v", op, payload, err)
		}
		b := masked(ws.OpText, "ment")
		b[0] = 0x80
		c.write(b)
		c.want("fragment")
	})
}

// Bytes that come in one packet with the handshake are not lost, be it half a frame.
func TestH09_EarlyBytes(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{}, echo)
		early := append(masked(ws.OpText, "early"), masked(ws.OpText, "half")...)
		for cut := len(early) - 10; cut <= len(early); cut++ {
			conn := s.raw(t)
			c := &client{TB: t, conn: conn, r: newReader(conn)}
			c.write(request(s.addr, early[:cut]))
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil || resp.StatusCode != 101 {
				t.Fatal(resp, err)
			}
			c.want("early")
			if cut < len(early) {
				c.write(early[cut:])
			}
			c.want("half")
			c.write(masked(ws.OpClose, "\x03\xe8"))
			c.wantClose(1000)
			_ = conn.Close()
		}
	})
}

func TestH07_PeerThatNeverPongs(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		t.Parallel()
		why := make(chan hub.Reason, 2)
		s := p.serve(t, hub.Options{HeartbeatInterval: 200 * time.Millisecond, PongTimeout: time.Second}, func() hub.Handler {
			return funcs{closed: func(_ *hub.Conn, r hub.Reason) { why <- r }}
		})
		alive, _ := s.dial(t)
		go func() { // pongs, and says nothing else
			for {
				op, payload, err := alive.frame()
				if err != nil {
					return
				}
				if op == ws.OpPing {
					_, _ = alive.conn.Write(masked(ws.OpPong, string(payload)))
				}
			}
		}()
		s.dial(t) // neither reads nor writes: as a peer whose network is gone
		began := time.Now()
		if r := receive(t, why); !r.Abrupt() {
			t.Errorf("%+v", r)
		}
		if d := time.Since(began); d < 900*time.Millisecond || d > 2500*time.Millisecond {
			t.Errorf("gone after %v", d)
		}
		eventually(t, "three timeouts of the dead one's length", func() bool { return time.Since(began) > 2500*time.Millisecond })
		if st := s.Stats(); st.Conns != 1 || st.PongTimeouts != 1 {
			t.Errorf("%+v", st)
		}
	})
}

func TestH07_WriteTimeoutOfAStalledReader(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		t.Parallel()
		why := make(chan hub.Reason, 2)
		s := p.small().serve(t, hub.Options{WriteTimeout: time.Second}, func() hub.Handler {
			return funcs{closed: func(_ *hub.Conn, r hub.Reason) { why <- r }}
		})
		c, sc := s.dial(t)
		stop := make(chan struct{})
		defer close(stop)
		go func() { // it still sends, so that it is not dead
			for range 100 {
				if _, err := c.conn.Write(masked(ws.OpPong, "")); err != nil {
					return
				}
				select {
				case <-time.After(50 * time.Millisecond):
				case <-stop:
					return
				}
			}
		}()
		began := time.Now()
		_ = sc.Join("c", hub.Everyone, nil)
		for range 300 {
			_, _ = s.Publish("c", hub.Message{Encode: text(strings.Repeat("x", 2000)), Policy: hub.DropNewest})
		}
		if r := receive(t, why); !r.Abrupt() {
			t.Errorf("%+v", r)
		}
		if d := time.Since(began); d < 900*time.Millisecond || d > 3*time.Second {
			t.Errorf("gone after %v", d)
		}
		if st := s.Stats(); st.WriteTimeouts != 1 || st.Channels != 0 {
			t.Errorf("%+v", st)
		}
		began = time.Now()
		s.stop()
		if d := time.Since(began); d > 3*time.Second { // TLS has nothing left to say to it
			t.Errorf("the end took %v more", d)
		}
	})
}

// The reply to a join comes before any message of the channel, and whoever has read it misses nothing that is published from then on.
func TestJoin_LiveFromTheReply(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{}, func() hub.Handler {
			return funcs{message: func(c *hub.Conn, _ bool, d []byte) {
				if string(d) == "leave" {
					c.Leave("c")
					_ = c.Send([]byte("left"))
					return
				}
				c.Go("", func() { _ = c.Join("c", hub.Everyone, []byte("joined")) })
			}}
		})
		var stop atomic.Bool
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					_, _ = s.Publish("c", hub.Message{Encode: text("noise"), Policy: hub.Latest})
					runtime.Gosched()
				}
			})
		}
		// Others come and go, so that the table changes all the time.
		others := make([]*hub.Conn, 10)
		for i := range others {
			c, sc := s.dial(t)
			others[i] = sc
			wg.Go(func() { _, _ = io.Copy(io.Discard, c.conn) })
		}
		wg.Go(func() {
			for !stop.Load() {
				for _, o := range others {
					_ = o.Join("c", 1, nil)
				}
				for _, o := range others {
					o.Leave("c")
				}
				runtime.Gosched()
			}
		})
		c, _ := s.dial(t)
		rounds := 50
		if long {
			rounds = 20_000
		}
		for i := range rounds {
			c.send("join")
			c.want("joined") // and no noise before
			mine := fmt.Sprint("mine ", i)
			if n, err := s.Publish("c", hub.Message{Encode: text(mine), Mask: 1 << 7}); n != 1 || err != nil {
				t.Fatalf("round %d: Publish = %d, %v", i, n, err)
			}
			c.send("leave")
			seen := 0
			for {
				m, err := c.next()
				if err != nil {
					t.Fatal(i, err)
				}
				if m == mine {
					seen++
				}
				if m == "left" {
					break
				}
			}
			if seen != 1 {
				t.Fatalf("round %d: seen %d times", i, seen)
			}
		}
		stop.Store(true)
		for _, o := range others {
			o.Close(1000, "")
		}
		s.stop()
		wg.Wait()
	})
}

// What is sent and joined before Start arrives, also when it is more than the socket takes at once.
func TestSentBeforeStart(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.small().serve(t, hub.Options{}, nil)
		pad := strings.Repeat(" ", 10_000)
		s.before = func(c *hub.Conn) {
			_ = c.Join("c", hub.Everyone, []byte("joined"))
			for i := range 50 {
				_ = c.Send(fmt.Append(nil, i, pad))
			}
			// The writer of the poll path has met a full socket; the others wait in it.
			eventually(t, "a write", func() bool { return s.Stats().Writes > 0 || p.name != "poll" })
		}
		c, _ := s.dial(t)
		c.want("joined")
		for i := range 50 {
			c.want(fmt.Sprint(i, pad))
		}
	})
}

func TestH06_BatchesOnTheWire(t *testing.T) {
	eachPath(t, func(t *testing.T, p path) {
		s := p.serve(t, hub.Options{QueueMessages: 1 << 16}, nil)
		c, sc := s.dial(t)
		const n = 20_000
		go func() {
			for i := range n {
				_ = sc.Send(fmt.Append(nil, i))
			}
		}()
		for i := range n {
			c.want(fmt.Sprint(i))
		}
		eventually(t, "the last write counted", func() bool { return s.Stats().Written == n })
		if st := s.Stats(); st.Writes > n/4 {
			t.Errorf("%d frames in %d writes", st.Written, st.Writes)
		}
	})
}

// raw opens a connection without a handshake.
func (s *server) raw(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	if s.path.tls {
		conn = tlsClient(conn)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
