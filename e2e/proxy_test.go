package e2e

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy stands between two ends of TCP connections, and can reset all that go through it.
type proxy struct {
	addr string

	mu     sync.Mutex // guards below
	target string
	conns  map[net.Conn]bool
	cuts   int
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), target: target, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			target := p.target
			p.mu.Unlock()
			b, err := net.Dial("tcp", target)
			if err != nil {
				reset(a)
				continue
			}
			p.mu.Lock()
			p.conns[a], p.conns[b] = true, true
			p.mu.Unlock()
			wg.Go(func() { p.pipe(a, b) })
			wg.Go(func() { p.pipe(b, a) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

// pipe copies one direction. Its end is that of both.
func (p *proxy) pipe(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	_ = dst.Close()
	_ = src.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, dst)
	delete(p.conns, src)
}

// lead makes new connections go elsewhere.
func (p *proxy) lead(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// cut resets all connections: what was on its way is lost.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cuts += len(p.conns) / 2
	for c := range p.conns {
		reset(c)
	}
	clear(p.conns)
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}
