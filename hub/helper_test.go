package hub_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/hub"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// long makes the tests that count take their full size.
var long = os.Getenv("TIDEWIRE_TEST_LONG") == "1"

// patience bounds every wait for something that must happen.
const patience = 20 * time.Second

// path is one way from a socket to a hub.
type path struct {
	name          string
	portable, tls bool
	stalls        bool // small socket buffers
}

// small is the path with small socket buffers, so that a reader that stalls is soon noticed.
func (p path) small() path {
	p.stalls = true
	return p
}

// eachPath runs a test on every path.
func eachPath(t *testing.T, test func(*testing.T, path)) {
	for _, p := range []path{{name: "poll"}, {name: "portable", portable: true}, {name: "tls", tls: true}} {
		t.Run(p.name, func(t *testing.T) { test(t, p) })
	}
}

// funcs is a handler. Each may be nil.
type funcs struct {
	message func(c *hub.Conn, binary bool, data []byte)
	closed  func(c *hub.Conn, r hub.Reason)
}

func (f funcs) Message(c *hub.Conn, binary bool, data []byte) {
	if f.message != nil {
		f.message(c, binary, data)
	}
}

func (f funcs) Closed(c *hub.Conn, r hub.Reason) {
	if f.closed != nil {
		f.closed(c, r)
	}
}

// server is a running hub behind HTTP.
type server struct {
	*hub.Hub
	path    path
	addr    string
	handler func() hub.Handler
	before  func(*hub.Conn) // called before Start, if not nil
	started sync.Map        // number of the dial → chan *hub.Conn
	dials   atomic.Int64
	stop    func() // ends Run and returns when it has
}

// serve starts a hub. handler makes the handler of each connection; nil is one that does nothing.
func (p path) serve(t testing.TB, opts hub.Options, handler func() hub.Handler) *server {
	t.Helper()
	if handler == nil {
		handler = func() hub.Handler { return funcs{} }
	}
	opts.Portable = p.portable
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{Hub: hub.New(opts), path: p, handler: handler}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	web := httptest.NewUnstartedServer(s)
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	if p.stalls {
		web.Listener = smallBuffers{web.Listener}
	}
	if p.tls {
		web.StartTLS()
	} else {
		web.Start()
	}
	s.addr = web.Listener.Addr().String()
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run = %v", err)
			}
		case <-time.After(patience):
			t.Error("Run does not end")
		}
	})
	t.Cleanup(func() {
		s.stop()
		web.Close()
	})
	return s
}

// smallBuffers gives accepted sockets a small send buffer.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		err = conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return conn, err
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := s.Upgrade(w, r, hub.UpgradeOptions{})
	if err != nil {
		status := http.StatusInternalServerError
		var refused *hub.HandshakeError
		if errors.As(err, &refused) {
			status = refused.Status
		}
		http.Error(w, err.Error(), status)
		return
	}
	if s.before != nil {
		s.before(c)
	}
	c.Start(s.handler())
	if ch, ok := s.started.LoadAndDelete(r.URL.RawQuery); ok {
		ch.(chan *hub.Conn) <- c
	}
}

// client is the other end, with every byte under control.
type client struct {
	testing.TB
	conn net.Conn
	r    *bufio.Reader
}

// dial returns both ends of a new connection.
func (s *server) dial(t testing.TB) (*client, *hub.Conn) {
	t.Helper()
	n := fmt.Sprint(s.dials.Add(1))
	ch := make(chan *hub.Conn, 1)
	s.started.Store(n, ch)
	c, err := s.dialErr("?" + n)
	if err != nil {
		t.Fatal(err)
	}
	c.TB = t
	t.Cleanup(func() { _ = c.conn.Close() })
	select {
	case sc := <-ch:
		return c, sc
	case <-time.After(patience):
		t.Fatal("not started")
		return nil, nil
	}
}

func (s *server) dialErr(query string) (*client, error) {
	var d net.Dialer
	if s.path.stalls {
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { setReadBuffer(fd, 4<<10) })
		}
	}
	scheme := "ws"
	if s.path.tls {
		scheme = "wss"
	}
	wd := ws.Dialer{Timeout: patience, NetDial: d.DialContext, TLSConfig: &tls.Config{InsecureSkipVerify: true}}
	conn, br, _, err := wd.Dial(context.Background(), fmt.Sprintf("%s://%s/%s", scheme, s.addr, query))
	if err != nil {
		return nil, err
	}
	if br == nil {
		br = bufio.NewReaderSize(conn, 512)
	}
	return &client{conn: conn, r: br}, nil
}

// frame reads one frame.
func (c *client) frame() (ws.OpCode, []byte, error) {
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	h, err := ws.ReadHeader(c.r)
	if err != nil {
		return 0, nil, err
	}
	if h.Masked || !h.Fin || h.Rsv != 0 {
		return 0, nil, fmt.Errorf("bad header %+v", h)
	}
	payload := make([]byte, h.Length)
	_, err = io.ReadFull(c.r, payload)
	return h.OpCode, payload, err
}

// next reads one text message and passes over pings.
func (c *client) next() (string, error) {
	for {
		op, payload, err := c.frame()
		switch {
		case err != nil:
			return "", err
		case op == ws.OpText:
			return string(payload), nil
		case op == ws.OpClose:
			return "", closeError(payload)
		}
	}
}

type closeError []byte

func (e closeError) Error() string { return fmt.Sprintf("closed with %d %q", e.code(), e.text()) }
func (e closeError) code() int {
	if len(e) < 2 {
		return 1005
	}
	return int(binary.BigEndian.Uint16(e))
}
func (e closeError) text() string { return string(e[min(2, len(e)):]) }

// want reads messages and compares them.
func (c *client) want(want ...string) {
	c.Helper()
	for _, w := range want {
		if got, err := c.next(); err != nil || got != w {
			c.Fatalf("got %.100q, %v, want %.100q", got, err, w)
		}
	}
}

// wantClose reads up to the close frame and compares its code.
func (c *client) wantClose(code int) {
	c.Helper()
	for {
		_, err := c.next()
		var e closeError
		if errors.As(err, &e) {
			if e.code() != code {
				c.Fatalf("%v, want %d", e, code)
			}
			return
		}
		if err != nil {
			c.Fatalf("%v, want a close frame with %d", err, code)
		}
	}
}

// wantEnd reads up to the end of the stream.
func (c *client) wantEnd() {
	c.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, c.r); errors.Is(err, os.ErrDeadlineExceeded) {
		c.Fatal("the stream does not end")
	}
}

func masked(op ws.OpCode, payload string) []byte {
	return ws.MustCompileFrame(ws.MaskFrameWith(ws.NewFrame(op, true, []byte(payload)), [4]byte{1, 2, 3, 4}))
}

func (c *client) write(b []byte) {
	c.Helper()
	_ = c.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := c.conn.Write(b); err != nil {
		c.Fatal(err)
	}
}

func (c *client) send(text string) { c.Helper(); c.write(masked(ws.OpText, text)) }

func (c *client) close(code int, text string) {
	c.Helper()
	c.write(masked(ws.OpClose, string(binary.BigEndian.AppendUint16(nil, uint16(code)))+text))
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	within(t, patience, what, cond)
}

func within(t testing.TB, d time.Duration, what string, cond func() bool) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			if !cond() {
				t.Fatalf("not within %v: %s", d, what)
			}
			return
		}
	}
}

// receive takes from a channel in time.
func receive[T any](t testing.TB, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatal("nothing comes")
	}
	return v
}

func text(v ...any) func(hub.Dialect) []byte {
	return func(hub.Dialect) []byte { return fmt.Append(nil, v...) }
}

func skipped(_ hub.Dialect, ch string, n uint64) []byte { return fmt.Appendf(nil, "skip %s %d", ch, n) }

// descriptors returns the number of open files, or zero where it cannot be known.
func descriptors() int {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	return len(names) - 1
}

// rss returns the resident memory in bytes, or zero where it cannot be known.
func rss() int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var total, resident int
	_, _ = fmt.Fscan(strings.NewReader(string(b)), &total, &resident)
	return resident * os.Getpagesize()
}

func newReader(conn net.Conn) *bufio.Reader { return bufio.NewReaderSize(conn, 512) }

func debugFree() { debug.FreeOSMemory() }

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func tlsClient(conn net.Conn) net.Conn {
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
}
