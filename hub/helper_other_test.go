//go:build !unix

package hub_test

import "net"

func setReadBuffer(uintptr, int) {}

func park(conn net.Conn) (end func()) { return func() { _ = conn.Close() } }
