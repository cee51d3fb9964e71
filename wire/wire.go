// Package wire is the native protocol of Tidewire as bytes: what a client may say, what a server answers, and the codes of everything that can go
// wrong. It does no I/O. The protocol itself is described in spec/protocol.md, and spec/vectors holds its messages as JSON for every implementation.
//
// # Bad input
//
// [Decode] never panics and never accepts part of a command: it returns a command or an [*Error] with a stable [Code] that can be sent to the client as it
// is. It reads members it knows and ignores others, so that later clients can speak to earlier servers. Its cost is linear in the input, whose size the
// caller bounds, and it refuses values deeper than [MaxDepth] or with more than [MaxNodes] values.
package wire

// Version is the version of the protocol. A client says it in hello.
const Version = 1

// Subprotocol is the WebSocket subprotocol of version 1.
const Subprotocol = "tidewire.1"

// Bounds that no option raises.
const (
	MaxChannelBytes = 255
	MaxIDBytes      = 64
	MaxDepth        = 32
	MaxNodes        = 10_000
	MinClientBytes  = 16
	MaxClientBytes  = 128
	MaxBuildBytes   = 128
	MaxTokenBytes   = 16 << 10
	// RosterLimit is how many members of a channel the roster lists.
	RosterLimit = 256
	// SessionsListed is how many sessions of one member the roster lists.
	SessionsListed = 16
)

// ValidChannel reports whether name is a channel name: segments of letters, digits and _-:@~= joined by dots, no empty one, at most MaxChannelBytes.
func ValidChannel(name string) bool {
	if len(name) == 0 || len(name) > MaxChannelBytes {
		return false
	}
	start := true
	for i := range len(name) {
		b := name[i]
		switch {
		case b == '.':
			if start {
				return false
			}
			start = true
			continue
		case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9',
			b == '_', b == '-', b == ':', b == '@', b == '~', b == '=':
		default:
			return false
		}
		start = false
	}
	return !start
}
