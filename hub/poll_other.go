//go:build !linux

package hub

import "net"

// reader does nothing here: every connection takes the portable path.
type reader struct{}

func (*reader) open(*worker) error { return nil }
func (*reader) run()               {}
func (*reader) close()             {}

func attachPoll(*Conn, net.Conn, []byte) (bool, error) { return false, nil }
