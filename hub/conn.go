package hub

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"
)

// ErrQueueFull means that a direct message found the connection's queue full. The connection is closed with 1013.
var ErrQueueFull = errors.New("hub: queue full")

// Handler is told what happens on one connection.
type Handler interface {
	// Message gets each text or binary message in order, on the connection's event loop: it must not block, and data is valid only until it returns.
	Message(c *Conn, binary bool, data []byte)
	// Closed is called once, on the task pool, when the connection has left all its channels and its last task has returned.
	Closed(c *Conn, reason Reason)
}

// Reason says why a connection ended.
type Reason struct {
	// Code is the WebSocket close code, sent or received. 1006 means that the connection was lost.
	Code uint16
	// Text is the close reason.
	Text string
	// Remote is true if the peer closed, with a close frame.
	Remote bool
}

// Abrupt reports whether the peer went away without saying so.
func (r Reason) Abrupt() bool { return r.Code == 1006 }

type connState uint8

const (
	stateOpen    connState = iota
	stateClosing           // has left its channels; a close frame is on its way
	stateClosed            // the socket is closed
)

// Conn is one connection. Its methods may be called from any goroutine.
type Conn struct {
	// Set before Start, then read-only.
	hub     *Hub
	worker  *worker
	link    link
	handler Handler
	id      uint64
	dialect Dialect

	in *inbound // owned by the reader; nil between whole messages

	lastRead atomic.Int64 // when bytes last came, on the hub's clock
	lastMsg  atomic.Int64 // when a message last came
	idle     atomic.Pointer[idleLimit]
	lastPing int64 // owned by the sweep

	slot int32        // place in the sweep; guarded by worker.sweepMu
	half atomic.Int32 // 2 when the socket is closed and the handler was told

	mu        sync.Mutex // guards below; held for moments, never during I/O
	state     connState
	dirty     bool   // on the worker's list
	blocked   bool   // the kernel takes no more; waits to be writable
	writing   bool   // portable path: a writer goroutine runs
	dropRun   uint16 // publications dropped since the queue was last empty
	inflight  int32  // bytes taken by the worker and not yet by the kernel
	inflightN int32  // the same in frames
	waitSince int64  // when the kernel last took something while blocked, or when closing began
	queue     queue
	rest      *remainder
	self      Sub // membership in the hub's channel of everyone
	subs      subSet
	lanes     *laneSet
	closing   *closing
}

// remainder is what the kernel did not take of a write. The first frame is partly written.
type remainder struct {
	frames []*frame
	off    int
}

type closing struct {
	reason  Reason
	sent    bool // a close frame was queued
	flushed bool // everything is written and our half is shut
	told    bool // the handler was told, or is being told
}

type idleLimit struct {
	after time.Duration
	code  uint16
	text  string
}

// ID is unique among the connections of a hub.
func (c *Conn) ID() uint64 { return c.id }

// Dialect is the dialect given to [Hub.Upgrade].
func (c *Conn) Dialect() Dialect { return c.dialect }

// Handler is the handler given to [Conn.Start].
func (c *Conn) Handler() Handler { return c.handler }

// SetIdle closes the connection with code and text when no message (pings and pongs do not count) has come for d. It replaces the earlier limit; zero removes it.
func (c *Conn) SetIdle(d time.Duration, code uint16, text string) {
	c.lastMsg.Store(c.hub.now())
	c.idle.Store(c.hub.idleLimit(d, code, text))
}

// Send queues one text message for this connection alone. With the queue full it closes the connection and returns [ErrQueueFull]: an answer is never dropped silently.
func (c *Conn) Send(payload []byte) error {
	return c.sendFrame(&frame{data: textFrame(payload)})
}

func (c *Conn) sendFrame(f *frame) error {
	c.mu.Lock()
	if c.closing != nil {
		c.mu.Unlock()
		return ErrClosed
	}
	full := !c.fitsLocked(len(f.data))
	if full {
		c.overflowLocked()
	} else {
		c.queue.push(f)
	}
	wake := c.wantsFlushLocked()
	c.mu.Unlock()
	if wake {
		c.worker.add(c)
	}
	if full {
		return ErrQueueFull
	}
	return nil
}

// fitsLocked reports whether one more frame of n bytes is within the bounds. What the worker holds counts.
func (c *Conn) fitsLocked(n int) bool {
	return int(c.queue.n+c.inflightN) < c.hub.opts.QueueMessages &&
		int(c.queue.bytes+c.inflight)+n <= c.hub.opts.QueueBytes
}

// wantsFlushLocked marks the connection dirty and reports whether the caller must put it on the worker's list.
func (c *Conn) wantsFlushLocked() bool {
	if c.dirty || c.blocked || c.writing {
		return false
	}
	c.dirty = true
	return true
}

// deliverLocked queues a publication for a member, as its policy says. It reports whether it was queued, and what it cost.
func (c *Conn) deliverLocked(s *Sub, f *frame, st *fanStats) {
	if f.policy == Latest && c.queue.n > 0 && c.queue.replace(f) {
		st.conflated++
		return
	}
	if c.fitsLocked(len(f.data)) {
		if s.dropped > 0 && s.marker == nil {
			c.markLocked(s)
		}
		c.queue.push(f)
		st.queued++
		return
	}
	switch f.policy {
	case Disconnect:
		c.overflowLocked()
		st.dropped++
	case DropOldest, Latest:
		c.dropOldestLocked(s, f, st)
	default:
		c.dropNewestLocked(s, st)
	}
}

func (c *Conn) dropNewestLocked(s *Sub, st *fanStats) {
	if s.marker == nil {
		c.markLocked(s)
	}
	s.dropped++
	st.dropped++
	c.dropRun++
	if limit := c.hub.opts.MaxDropped; limit > 0 && int(c.dropRun) >= limit {
		c.overflowLocked()
	}
}

func (c *Conn) dropOldestLocked(s *Sub, f *frame, st *fanStats) {
	for !c.fitsLocked(len(f.data)) {
		var mark *frame
		if s.marker == nil {
			mark = &frame{skip: s}
		}
		if !c.queue.removeOldest(s.ch, mark) {
			c.dropNewestLocked(s, st)
			return
		}
		if mark != nil {
			s.marker = mark
		}
		s.dropped++
		st.dropped++
		// A mark takes the place of what it stands for, so one more may have to go.
	}
	c.queue.push(f)
	st.queued++
}

// markLocked puts the mark of missing publications at the end of the queue. Marks are beyond the bound: there is at most one for each membership.
func (c *Conn) markLocked(s *Sub) {
	s.marker = &frame{skip: s}
	c.queue.push(s.marker)
}

// overflowLocked gives up on a connection that is too slow: what waits is dropped at once, the worker does the rest.
func (c *Conn) overflowLocked() {
	if c.closing == nil {
		c.closing = &closing{reason: Reason{Code: 1013, Text: "backpressure"}}
		c.hub.stats.slowCloses.Add(1)
		c.queue.clear()
		c.blocked = false // let the worker see it
	}
}

// Close ends the connection: it leaves all channels, what is queued is written, then a close frame, and the socket is closed when the peer has answered or
// after a second. Only the first call counts.
func (c *Conn) Close(code uint16, text string) {
	c.shut(Reason{Code: code, Text: text}, true)
}

// shut begins the end of a connection.
func (c *Conn) shut(reason Reason, sendClose bool) {
	c.mu.Lock()
	if c.state != stateOpen {
		c.mu.Unlock()
		return
	}
	c.state = stateClosing
	if c.closing == nil {
		c.closing = &closing{}
	}
	c.closing.reason = reason
	c.waitSince = c.hub.now()
	if sendClose {
		c.closing.sent = true
		c.queue.push(&frame{data: closeFrame(reason)})
	} else {
		c.queue.clear()
	}
	subs := c.subs.clear()
	c.self.left = true
	for _, s := range subs {
		s.left = true
	}
	wake := c.wantsFlushLocked()
	c.mu.Unlock()

	c.hub.detach(c, subs)
	if wake {
		c.worker.add(c)
	}
	c.finish()
}

func closeFrame(r Reason) []byte {
	switch r.Code {
	case 0, 1005, 1006, 1015: // not to be sent
		return appendFrame(nil, ws.OpClose, nil)
	}
	text := r.Text
	if len(text) > 123 {
		text = text[:123]
	}
	return appendFrame(nil, ws.OpClose, append(binary.BigEndian.AppendUint16(nil, r.Code), text...))
}

// Join makes the connection a member of a channel. reply, if not nil, is queued so that it comes before anything published on the channel, and everything published
// after it was queued is delivered. Joining again changes the mask only.
func (c *Conn) Join(name string, mask Mask, reply []byte) error {
	ch, err := c.hub.channels.hold(name)
	if err != nil {
		return err
	}
	defer c.hub.channels.release(ch)

	c.mu.Lock()
	if c.closing != nil {
		c.mu.Unlock()
		return ErrClosed
	}
	s := c.subs.get(name)
	if s == nil {
		if c.subs.len() >= c.hub.opts.MaxChannelsPerConn {
			c.mu.Unlock()
			return ErrConnChannelLimit
		}
		s = &Sub{conn: c, ch: ch, mask: mask}
		c.subs.add(s)
		// A fan-out that meets the new member waits for c.mu, so the reply comes first.
		ch.add(s)
	}
	s.mask = mask
	wake := false
	if reply != nil {
		f := &frame{data: textFrame(reply)}
		if !c.fitsLocked(len(f.data)) {
			c.overflowLocked()
		} else {
			c.queue.push(f)
		}
		wake = c.wantsFlushLocked()
	}
	c.mu.Unlock()
	if wake {
		c.worker.add(c)
	}
	return nil
}

// Leave ends a membership and reports whether there was one. When it returns, nothing more of the channel is queued for this connection;
// what was queued before is still delivered.
func (c *Conn) Leave(name string) bool {
	c.mu.Lock()
	s := c.subs.remove(name)
	if s == nil {
		c.mu.Unlock()
		return false
	}
	s.left = true
	c.mu.Unlock()
	if s.ch.remove(s) == 0 {
		c.hub.channels.drop(s.ch, 0)
	}
	return true
}

// Joined reports whether the connection is a member of the channel.
func (c *Conn) Joined(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subs.get(name) != nil
}

// Channels returns the names of the channels of which the connection is a member, in no order.
func (c *Conn) Channels() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.subs.names()
}

// Buffered returns the number of messages and bytes that wait for the connection.
func (c *Conn) Buffered() (messages, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.queue.n + c.inflightN), int(c.queue.bytes + c.inflight)
}

// subSet holds a connection's memberships: a slice while they are few, which is nearly always, then a map.
type subSet struct {
	few  []*Sub
	many map[string]*Sub
}

const fewSubs = 16

func (s *subSet) len() int { return len(s.few) + len(s.many) }

func (s *subSet) get(name string) *Sub {
	if s.many != nil {
		return s.many[name]
	}
	for _, sub := range s.few {
		if sub.ch.name == name {
			return sub
		}
	}
	return nil
}

func (s *subSet) add(sub *Sub) {
	if s.many == nil && len(s.few) < fewSubs {
		s.few = append(s.few, sub)
		return
	}
	if s.many == nil {
		s.many = make(map[string]*Sub, 2*fewSubs)
		for _, o := range s.few {
			s.many[o.ch.name] = o
		}
		s.few = nil
	}
	s.many[sub.ch.name] = sub
}

func (s *subSet) remove(name string) *Sub {
	sub := s.get(name)
	if sub == nil {
		return nil
	}
	if s.many != nil {
		delete(s.many, name)
		return sub
	}
	for i, o := range s.few {
		if o == sub {
			last := len(s.few) - 1
			s.few[i] = s.few[last]
			s.few[last] = nil
			s.few = s.few[:last]
		}
	}
	return sub
}

func (s *subSet) names() []string {
	names := make([]string, 0, s.len())
	for _, sub := range s.few {
		names = append(names, sub.ch.name)
	}
	for name := range s.many {
		names = append(names, name)
	}
	return names
}

// clear empties the set and returns what was in it.
func (s *subSet) clear() []*Sub {
	all := s.few
	for _, sub := range s.many {
		all = append(all, sub)
	}
	*s = subSet{}
	return all
}
