package hub

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// portableLink works for any net.Conn: a goroutine reads, and the worker has a goroutine write while there is something to write.
type portableLink struct {
	c     *Conn
	conn  net.Conn
	early []byte
	once  sync.Once
}

func (l *portableLink) start() { l.c.hub.wg.Go(l.read) }

// readBuffers serve connections whose readiness can be awaited without a buffer.
var readBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

func (l *portableLink) read() {
	defer l.close()
	if len(l.early) > 0 {
		l.c.feed(l.early)
		l.early = nil
	}
	if sc, ok := l.conn.(syscall.Conn); ok && readsFD {
		if raw, err := sc.SyscallConn(); err == nil {
			l.readReady(raw)
			return
		}
	}
	buf := make([]byte, 2<<10)
	for {
		n, err := l.conn.Read(buf)
		if n > 0 {
			l.c.feed(buf[:n])
		}
		if err != nil {
			l.c.lost(err)
			return
		}
	}
}

// readReady holds a buffer only while there are bytes to read.
func (l *portableLink) readReady(raw syscall.RawConn) {
	for {
		var n int
		var err error
		var buf *[16 << 10]byte
		werr := raw.Read(func(fd uintptr) bool {
			b := readBuffers.Get().(*[16 << 10]byte)
			n, err = readFD(fd, b[:])
			if err == syscall.EAGAIN || err == syscall.EINTR {
				readBuffers.Put(b)
				return false
			}
			buf = b
			return true
		})
		if n > 0 {
			l.c.feed(buf[:n])
		}
		if buf != nil {
			readBuffers.Put(buf)
		}
		if werr != nil || err != nil || n <= 0 {
			l.c.lost(err)
			return
		}
	}
}

// write waits for the socket. WriteTimeout holds for one call, so a call is small.
func (l *portableLink) write(p []byte) (int, error) {
	p = p[:min(len(p), flushBytes)]
	_ = l.conn.SetWriteDeadline(time.Now().Add(l.c.hub.opts.WriteTimeout))
	return l.conn.Write(p)
}

func (l *portableLink) arm()         {}
func (l *portableLink) blocks() bool { return true }

func (l *portableLink) closeWrite() {
	if cw, ok := l.conn.(interface{ CloseWrite() error }); ok {
		_ = cw.CloseWrite()
	}
}

func (l *portableLink) close() {
	l.once.Do(func() {
		conn := l.conn
		if tls, ok := conn.(interface{ NetConn() net.Conn }); ok {
			conn = tls.NetConn() // TLS would first wait to say so
		}
		_ = conn.Close()
	})
}
