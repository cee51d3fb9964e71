package hub

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// inbound is what a reader keeps of a connection between two reads. It exists only while a frame or a message is incomplete.
type inbound struct {
	partial []byte    // the beginning of a frame
	message []byte    // the fragments of a message so far
	op      ws.OpCode // of the fragmented message, or zero
	deflate bool      // the fragmented message is compressed
}

// discarding stands for the state of a connection of which nothing more is of interest. What comes is still read, since closing a socket with
// unread bytes would take our close frame from the peer.
var discarding = new(inbound)

// header is a frame header from a client.
type header struct {
	fin    bool
	rsv    byte
	op     ws.OpCode
	masked bool
	mask   [4]byte
	length int64
	size   int // of the header itself
}

// parseHeader reads a frame header. ok is false if data is too short to tell.
func parseHeader(data []byte) (h header, ok bool) {
	if len(data) < 2 {
		return h, false
	}
	h.fin = data[0]&0x80 != 0
	h.rsv = data[0] >> 4 & 7
	h.op = ws.OpCode(data[0] & 15)
	h.masked = data[1]&0x80 != 0
	h.length = int64(data[1] & 0x7f)
	h.size = 2
	switch h.length {
	case 126:
		if len(data) < 4 {
			return h, false
		}
		h.length = int64(binary.BigEndian.Uint16(data[2:]))
		h.size = 4
	case 127:
		if len(data) < 10 {
			return h, false
		}
		h.length = int64(binary.BigEndian.Uint64(data[2:])) // a negative one is refused by check
		h.size = 10
	}
	if h.masked {
		if len(data) < h.size+4 {
			return h, false
		}
		copy(h.mask[:], data[h.size:])
		h.size += 4
	}
	return h, true
}

// fault is a violation of the WebSocket protocol, by close code.
type fault struct {
	code uint16
	text string
}

var noFault fault

// check holds a header against RFC 6455 and the limit.
func (in *inbound) check(h header, limit int, deflate bool) fault {
	control := h.op >= ws.OpClose
	switch {
	case h.rsv != 0 && !(deflate && h.rsv == deflateBit && !control && h.op != ws.OpContinuation):
		return fault{1002, "reserved bits"}
	case !h.masked:
		return fault{1002, "unmasked frame"}
	case h.op > ws.OpBinary && h.op < ws.OpClose || h.op > ws.OpPong:
		return fault{1002, "reserved opcode"}
	case control && !h.fin:
		return fault{1002, "fragmented control frame"}
	case control && h.length > 125:
		return fault{1002, "control frame too long"}
	case h.op == ws.OpContinuation && in.op == 0:
		return fault{1002, "continuation without a beginning"}
	case !control && h.op != ws.OpContinuation && in.op != 0:
		return fault{1002, "message inside a message"}
	case h.length < 0:
		return fault{1002, "bad length"}
	case !control && h.length+int64(len(in.message)) > int64(limit):
		return fault{1009, "message too big"}
	}
	return noFault
}

// feed takes bytes that came from the peer and hands over whole messages. It may change data, and keeps nothing of it.
// One goroutine at a time calls it for a connection.
func (c *Conn) feed(data []byte) {
	now := c.hub.now()
	c.lastRead.Store(now)
	var fresh inbound // on the stack: most reads end with a whole frame
	in := c.in
	switch in {
	case discarding:
		return
	case nil:
		in = &fresh
	}
	if len(in.partial) > 0 {
		in.partial = append(in.partial, data...)
		data = in.partial
	}
	for {
		h, ok := parseHeader(data)
		if !ok {
			break
		}
		if f := in.check(h, c.hub.opts.MaxMessageBytes, c.deflate); f != noFault {
			c.in = discarding
			c.Close(f.code, f.text)
			return
		}
		end := h.size + int(h.length)
		if len(data) < end {
			break
		}
		payload := data[h.size:end:end]
		data = data[end:]
		ws.Cipher(payload, h.mask, 0)
		if !c.frame(in, h, payload, now) {
			c.in = discarding
			return
		}
	}
	if len(data) == 0 && in.op == 0 {
		c.in = nil
		return
	}
	keep := c.in
	if keep == nil {
		keep = &inbound{message: fresh.message, op: fresh.op, deflate: fresh.deflate}
		c.in = keep
	}
	if len(data) == 0 {
		keep.partial = nil
		return
	}
	if len(data) < len(keep.partial) || len(keep.partial) == 0 { // else it is all of it
		keep.partial = append(keep.partial[:0], data...) // data may be its tail
	}
}

// frame handles one whole frame and reports whether to go on.
func (c *Conn) frame(in *inbound, h header, payload []byte, now int64) bool {
	switch h.op {
	case ws.OpPing:
		_ = c.sendFrame(&frame{data: appendFrame(nil, ws.OpPong, payload)})
		return true
	case ws.OpPong:
		return true
	case ws.OpClose:
		c.closedByPeer(payload)
		return false
	}
	binary, compressed := h.op == ws.OpBinary, h.rsv == deflateBit
	if h.op == ws.OpContinuation || !h.fin {
		if in.op == 0 {
			in.op, in.deflate = h.op, compressed
		}
		in.message = append(in.message, payload...)
		if !h.fin {
			return true
		}
		payload, binary, compressed = in.message, in.op == ws.OpBinary, in.deflate
		in.message, in.op = nil, 0
	}
	if !compressed {
		return c.message(binary, payload, now)
	}
	more := false
	if f := inflate(payload, c.hub.opts.MaxMessageBytes, func(p []byte) { more = c.message(binary, p, now) }); f != noFault {
		c.Close(f.code, f.text)
		return false
	}
	return more
}

// message handles one whole message and reports whether to go on.
func (c *Conn) message(binary bool, payload []byte, now int64) bool {
	if !binary && !utf8.Valid(payload) {
		c.Close(1007, "text is not UTF-8")
		return false
	}
	c.lastMsg.Store(now)
	c.handle(binary, payload)
	return true
}

// handle gives a message to the handler, unless the connection is closing.
func (c *Conn) handle(binary bool, payload []byte) {
	c.mu.Lock()
	c.handling = c.closing == nil
	open := c.handling
	c.mu.Unlock()
	if !open {
		return
	}
	c.hub.stats.received.Add(1)
	c.guard(func() { c.handler.Message(c, binary, payload) })
	c.mu.Lock()
	c.handling = false
	closing := c.closing != nil
	c.mu.Unlock()
	if closing {
		c.finish()
	}
}

func (c *Conn) closedByPeer(payload []byte) {
	r := Reason{Code: 1005, Remote: true}
	if len(payload) >= 2 {
		r.Code = binary.BigEndian.Uint16(payload)
		r.Text = string(payload[2:])
	}
	if len(payload) == 1 || len(payload) > 1 && !mayClose(r.Code) || !utf8.ValidString(r.Text) {
		c.Close(1002, "bad close frame")
		return
	}
	c.mu.Lock()
	if c.closing != nil {
		// The answer to ours, or too late.
		c.closing.answered = true // close as soon as all is written
		if c.closing.flushed {
			c.closeLocked()
		}
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.shut(r, true)
}

// mayClose reports whether a close code may be sent: RFC 6455, 7.4, and the codes registered since.
func mayClose(code uint16) bool {
	switch {
	case code >= 3000:
		return code < 5000
	case code >= 1015:
		return false
	}
	return code >= 1000 && (code < 1004 || code > 1006)
}
