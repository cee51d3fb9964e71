package postgres_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy stands between a feed and its server, and can cut or stall what goes through.
type proxy struct {
	url string

	mu      sync.Mutex // guards below
	conns   []net.Conn
	stalled chan struct{} // closed: data flows
}

func newProxy(t testing.TB, target string) *proxy {
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	server := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u.Host = l.Addr().String()
	p := &proxy{url: u.String(), stalled: make(chan struct{})}
	close(p.stalled)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", server)
			if err != nil {
				_ = c.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, c, s)
			p.mu.Unlock()
			wg.Go(func() { p.pipe(c, s) })
			wg.Go(func() { p.pipe(s, c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.flow()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) pipe(dst, src net.Conn) {
	defer func() { _ = dst.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		p.mu.Lock()
		gate := p.stalled
		p.mu.Unlock()
		<-gate
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err != io.EOF {
				_ = src.Close()
			}
			return
		}
	}
}

// cut closes all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// stall holds everything back, without a sign to either side, until flow.
func (p *proxy) stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = make(chan struct{})
}

func (p *proxy) flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stalled:
	default:
		close(p.stalled)
	}
}
