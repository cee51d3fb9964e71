//go:build unix

package hub_test

import (
	"net"
	"syscall"
)

func setReadBuffer(fd uintptr, n int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, n)
}

// park keeps a TCP connection open as a bare descriptor, which takes no memory of this process, and returns what closes it.
func park(conn net.Conn) (end func()) {
	raw, _ := conn.(*net.TCPConn).SyscallConn()
	var own int
	_ = raw.Control(func(fd uintptr) { own, _ = syscall.Dup(int(fd)) })
	_ = conn.Close()
	return func() { _ = syscall.Close(own) }
}
