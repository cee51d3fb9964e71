package hub

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// reader is the event loop of one worker's connections. It waits in an epoll instance which itself is watched by Go's poller, so that waiting holds no thread.
type reader struct {
	worker *worker
	epfd   int
	ep     *os.File
	raw    syscall.RawConn

	mu    sync.Mutex  // guards below
	links []*pollLink // by descriptor

	// Owned by run.
	events [256]unix.EpollEvent
	buf    []byte
}

func (r *reader) open(w *worker) error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("hub: epoll: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("hub: epoll: %w", err)
	}
	r.worker, r.epfd = w, fd
	r.ep = os.NewFile(uintptr(fd), "epoll")
	r.buf = make([]byte, 64<<10)
	r.raw, err = r.ep.SyscallConn()
	if err != nil {
		return fmt.Errorf("hub: epoll: %w", err)
	}
	return nil
}

func (r *reader) close() {
	if r.ep != nil {
		_ = r.ep.Close()
	}
}

// run handles events until close.
func (r *reader) run() {
	for {
		var n int
		err := r.raw.Read(func(fd uintptr) bool {
			for {
				var err error
				n, err = unix.EpollWait(int(fd), r.events[:], 0)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				return n > 0 || err != nil
			}
		})
		if err != nil || n < 0 {
			return // closed
		}
		for _, ev := range r.events[:n] {
			r.handle(ev)
		}
	}
}

func (r *reader) handle(ev unix.EpollEvent) {
	r.mu.Lock()
	var l *pollLink
	if int(ev.Fd) < len(r.links) {
		l = r.links[ev.Fd]
	}
	r.mu.Unlock()
	// An event for a descriptor that was closed and used again in between is harmless: it is only a hint to read or write.
	if l == nil || !l.acquire() {
		return
	}
	if ev.Events&unix.EPOLLOUT != 0 {
		l.disarm()
		r.worker.writable(l.c)
	}
	if ev.Events&^unix.EPOLLOUT != 0 {
		l.read(r.buf)
	}
	l.release()
}

// pollLink is a socket watched by a reader. Its descriptor is closed when the last user has released it, so that it is never used after it was given to someone else.
type pollLink struct {
	c      *Conn
	r      *reader
	fd     int32
	refs   atomic.Int32
	closed atomic.Bool
	early  []byte
}

// attachPoll takes the descriptor out of a plain TCP connection. It reports false for anything else.
func attachPoll(c *Conn, conn net.Conn, early []byte) (bool, error) {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return false, nil
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return false, nil
	}
	fd := -1
	var derr error
	if err := raw.Control(func(orig uintptr) { fd, derr = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 0) }); err != nil || derr != nil {
		return true, fmt.Errorf("duplicate descriptor: %w", errors.Join(err, derr))
	}
	_ = conn.Close() // ours is the only one left, with its flags: it does not block
	l := &pollLink{c: c, r: &c.worker.reader, fd: int32(fd), early: early}
	l.refs.Store(1)
	c.link = l
	return true, nil
}

func (l *pollLink) start() {
	r := l.r
	if len(l.early) > 0 {
		early := l.early
		l.early = nil
		l.c.feed(early) // nobody else reads yet
	}
	if !l.acquire() {
		return
	}
	defer l.release()
	r.mu.Lock()
	for len(r.links) <= int(l.fd) {
		r.links = append(r.links, nil)
	}
	r.links[l.fd] = l
	r.mu.Unlock()
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: l.fd}
	if err := unix.EpollCtl(r.epfd, unix.EPOLL_CTL_ADD, int(l.fd), &ev); err != nil {
		l.c.lost(err)
		return
	}
	l.c.mu.Lock()
	blocked := l.c.blocked
	l.c.mu.Unlock()
	if blocked { // by something sent before Start
		l.arm()
	}
}

func (l *pollLink) acquire() bool {
	for {
		n := l.refs.Load()
		if n == 0 {
			return false
		}
		if l.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (l *pollLink) release() {
	if l.refs.Add(-1) > 0 {
		return
	}
	r := l.r
	r.mu.Lock()
	if int(l.fd) < len(r.links) && r.links[l.fd] == l {
		r.links[l.fd] = nil
	}
	r.mu.Unlock()
	_ = unix.Close(int(l.fd)) // leaves epoll by itself
}

func (l *pollLink) close() {
	if l.closed.CompareAndSwap(false, true) {
		_ = unix.Shutdown(int(l.fd), unix.SHUT_RDWR) // safe: our reference is still held
		l.release()
	}
}

func (l *pollLink) closeWrite() {
	if l.acquire() {
		_ = unix.Shutdown(int(l.fd), unix.SHUT_WR)
		l.release()
	}
}

// read takes once what is there. Epoll says it again if there is more, after the others had their turn.
func (l *pollLink) read(buf []byte) {
	if l.closed.Load() {
		return
	}
	n, err := unix.Read(int(l.fd), buf)
	switch {
	case n > 0:
		l.c.feed(buf[:n])
	case err == unix.EAGAIN || err == unix.EINTR:
	default:
		l.c.lost(err)
	}
}

func (l *pollLink) blocks() bool { return false }

// write uses a raw system call: it cannot block, and telling the scheduler would cost more than it takes.
func (l *pollLink) write(p []byte) (int, error) {
	if !l.acquire() {
		return 0, net.ErrClosed
	}
	defer l.release()
	for {
		n, err := rawWrite(int(l.fd), p)
		switch err {
		case 0:
			if n < len(p) {
				return n, errBlocked
			}
			return n, nil
		case unix.EAGAIN:
			return 0, errBlocked
		case unix.EINTR:
		default:
			return 0, err
		}
	}
}

func (l *pollLink) arm() { l.watch(unix.EPOLLIN | unix.EPOLLOUT) }

func (l *pollLink) disarm() { l.watch(unix.EPOLLIN) }

func (l *pollLink) watch(events uint32) {
	if !l.acquire() {
		return
	}
	defer l.release()
	ev := unix.EpollEvent{Events: events, Fd: l.fd}
	_ = unix.EpollCtl(l.r.epfd, unix.EPOLL_CTL_MOD, int(l.fd), &ev)
}
