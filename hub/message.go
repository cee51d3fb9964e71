package hub

import (
	"github.com/gobwas/ws"
)

// Dialect names one of the ways in which the connections of a hub encode messages. A message is encoded at most once for each dialect in use.
type Dialect uint8

// MaxDialects is the number of dialects that one hub can serve.
const MaxDialects = 4

// Policy says what happens to a publication that finds a connection's queue full.
type Policy uint8

const (
	// Disconnect closes the connection with 1013: it misses everything or nothing.
	Disconnect Policy = iota
	// DropNewest drops the publication for that connection.
	DropNewest
	// DropOldest drops the oldest waiting publication of the same channel to make room. If there is none, it acts as DropNewest.
	DropOldest
	// CatchUp stops live delivery to a member that has a position in the channel's log, and replays to it what is missing when its queue has drained. Only half of the queue is used, so that
	// answers have room. To members without a position it acts as DropOldest.
	CatchUp
	// Latest takes the place of a waiting publication of the same channel, mask and key, full queue or not, so that a connection holds at most one for each key. The newer one
	// goes to the end of the queue; the older one is not told missing. With
	// the queue full of others, it acts as DropOldest.
	Latest
)

func (p Policy) String() string {
	switch p {
	case Disconnect:
		return "disconnect"
	case DropNewest:
		return "drop-newest"
	case DropOldest:
		return "drop-oldest"
	case CatchUp:
		return "catch-up"
	case Latest:
		return "latest"
	}
	return "unknown"
}

// Mask selects among the members of a channel: a publication reaches those with which it has a bit in common.
type Mask uint8

// Everyone is the mask of a publication that goes to all members.
const Everyone Mask = 0xff

// Message is one publication.
type Message struct {
	// Encode returns the text payload for a dialect. The hub calls it at most once for each dialect in use. The result is copied. Other publications of the
	// channel wait meanwhile. Nil means that connections of this dialect do not get the message.
	Encode func(Dialect) []byte
	// Policy acts for connections whose queue is full. The zero value is Disconnect.
	Policy Policy
	// Key says what the message replaces under the policy Latest.
	Key string
	// Mask selects members. Zero means Everyone.
	Mask Mask
	// Except is a connection that is left out, if not nil.
	Except *Conn
	// Offset is the publication's in the channel's log; zero if it is not in the log. Offsets are published in rising order, each once.
	Offset uint64
	// Instead, if not nil, may return what a connection gets in place of the message. It is called for each member.
	Instead func(*Conn) []byte
}

// frame is a complete WebSocket frame, shared by all queues that hold it.
type frame struct {
	data   []byte
	ch     *channel // the channel it was published on, or nil
	key    string
	offset uint64 // in the channel's log, or zero
	mask   Mask
	policy Policy

	// skip is set for the mark that stands where a member misses publications. A mark is in one queue only, under its connection's lock, and its
	// bytes are made when it is written.
	skip   *Sub
	missed uint32
}

// textFrame frames a text payload as a server sends it: unmasked, unfragmented. It refuses what no queue could hold.
func (h *Hub) textFrame(payload []byte) ([]byte, error) {
	if len(payload)+maxHeader > h.opts.QueueBytes {
		return nil, ErrTooLarge
	}
	return appendFrame(make([]byte, 0, len(payload)+maxHeader), ws.OpText, payload), nil
}

// maxHeader is the size of the largest header that a server sends.
const maxHeader = 10

func appendFrame(dst []byte, op ws.OpCode, payload []byte) []byte {
	n := len(payload)
	dst = append(dst, 0x80|byte(op))
	switch {
	case n < 126:
		dst = append(dst, byte(n))
	case n < 1<<16:
		dst = append(dst, 126, byte(n>>8), byte(n))
	default:
		dst = append(dst, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(dst, payload...)
}
