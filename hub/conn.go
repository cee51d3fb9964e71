package hub

import (
	"encoding/binary"
	"errors"
	"strings"
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
	// Closed is called once, on the task pool, when the connection has left all its channels and its last task and the last call of Message have returned.
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
	deflate bool // both sides agreed on permessage-deflate

	in *inbound // owned by the reader; nil between whole messages

	lastRead atomic.Int64 // when bytes last came, on the hub's clock
	lastMsg  atomic.Int64 // when a message last came
	idle     atomic.Pointer[idleLimit]
	lastPing int64 // owned by the sweep

	slot int32        // place in the sweep; guarded by worker.sweepMu
	half atomic.Int32 // 2 when the socket is closed and the handler was told

	mu        sync.Mutex // guards below; held for moments, never during I/O
	state     connState
	dirty     bool   // on the worker's list, or being written
	blocked   bool   // the kernel takes no more; waits to be writable
	handling  bool   // the handler has a message
	behind    uint32 // memberships that wait to be replayed, or are being
	dropRun   uint32 // publications dropped since the queue was last empty
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
	reason   Reason
	left     bool // it has left its channels
	answered bool // the peer's close frame has come
	flushed  bool // everything is written
	told     bool // the handler was told, or is being told
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
	if d <= 0 {
		c.idle.Store(nil)
		return
	}
	c.idle.Store(&idleLimit{d, code, text})
}

// SetMask says which broadcasts reach the connection: those that have a bit in common with m. Before it is called all of them do.
func (c *Conn) SetMask(m Mask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.self.mask = m
}

// Send queues one text message for this connection alone. With the queue full it closes the connection and returns [ErrQueueFull]: an answer is never dropped silently.
// A message that no queue could hold is refused with [ErrTooLarge], and the connection stays.
func (c *Conn) Send(payload []byte) error {
	data, err := c.hub.textFrame(payload)
	if err != nil {
		return err
	}
	return c.sendFrame(&frame{data: data})
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

// ping queues a ping. It may exceed the bound, since a policy that drops keeps a connection whose queue is full, but at most one waits.
func (c *Conn) ping() {
	c.mu.Lock()
	if c.closing == nil && !c.queue.holds(pingFrame) {
		c.queue.push(pingFrame)
	}
	wake := c.wantsFlushLocked()
	c.mu.Unlock()
	if wake {
		c.worker.add(c)
	}
}

// fitsLocked reports whether one more frame of n bytes is within the bounds. What the worker holds counts.
func (c *Conn) fitsLocked(n int) bool {
	return int(c.queue.n+c.inflightN) < c.hub.opts.QueueMessages &&
		int(c.queue.bytes+c.inflight)+n <= c.hub.opts.QueueBytes
}

// wantsFlushLocked marks the connection dirty and reports whether the caller must put it on the worker's list.
func (c *Conn) wantsFlushLocked() bool {
	if c.dirty || c.blocked {
		return false
	}
	c.dirty = true
	return true
}

// deliverLocked queues a publication for a member, as its policy says, and counts what it cost.
func (c *Conn) deliverLocked(s *Sub, f *frame, st *fanStats) {
	if f.policy == Latest {
		// The new one goes to the end: a connection sees some of the publications, in their order.
		if i := c.queue.find(f); i >= 0 {
			st.conflated++
			c.queue.remove(i)
		}
	}
	for !c.fitsLocked(len(f.data)) {
		switch {
		case f.policy == Disconnect:
			c.overflowLocked()
			st.dropped++
			return
		case f.policy == DropNewest || !c.queue.removeOldest(s, c.hub.opts.Skipped != nil):
			st.dropped++
			c.missLocked(s, f.policy)
			return
		}
		st.dropped++
		// A mark may have taken the place of what was removed, so one more may have to go.
	}
	c.queue.push(f)
	s.sentLocked(f.offset)
	s.marker = nil // what is missed from here on gets a mark behind f
	st.queued++
}

// missLocked counts a publication that s misses, in a mark at the end of the queue. Marks may exceed the bound: of those that do, there is one for each membership.
func (c *Conn) missLocked(s *Sub, policy Policy) {
	if c.hub.opts.Skipped != nil {
		if s.marker == nil {
			s.marker = &frame{skip: s}
			c.queue.push(s.marker)
		}
		s.marker.missed++
	}
	if policy != DropNewest {
		return
	}
	c.dropRun++
	if limit := c.hub.opts.MaxDropped; limit > 0 && int(c.dropRun) >= limit {
		c.overflowLocked()
	}
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

// shut begins the end of a connection. After an overflow the reason is that one.
func (c *Conn) shut(reason Reason, sendClose bool) {
	c.mu.Lock()
	if c.state != stateOpen {
		c.mu.Unlock()
		return
	}
	c.state = stateClosing
	if c.closing == nil {
		c.closing = &closing{reason: reason}
	}
	closing := c.closing
	closing.answered = closing.answered || reason.Remote
	c.waitSince = c.hub.now()
	if sendClose {
		c.queue.push(&frame{data: closeFrame(closing.reason)})
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
	c.mu.Lock()
	closing.left = true
	c.mu.Unlock()
	c.finish()
}

func closeFrame(r Reason) []byte {
	switch r.Code {
	case 0, 1005, 1006, 1015: // not to be sent
		return appendFrame(nil, ws.OpClose, nil)
	}
	text := r.Text
	if len(text) > 123 {
		text = strings.ToValidUTF8(text[:123], "")
	}
	return appendFrame(nil, ws.OpClose, append(binary.BigEndian.AppendUint16(nil, r.Code), text...))
}

// Join makes the connection a member of a channel. reply, if not nil, is queued so that it comes before anything published on the channel, and everything published
// after it was queued is delivered. Joining again changes the mask only.
func (c *Conn) Join(name string, mask Mask, reply []byte) error {
	_, err := c.join(name, mask, reply, nil)
	return err
}

// join makes a membership, with a position if log is not nil. It returns the membership if the caller must call c.replay.
func (c *Conn) join(name string, mask Mask, reply []byte, log *LogOptions) (replay *Sub, err error) {
	var data []byte
	if reply != nil {
		if data, err = c.hub.textFrame(reply); err != nil {
			return nil, err
		}
	}
	ch, err := c.hub.channels.hold(name)
	if err != nil {
		return nil, err
	}
	defer c.hub.channels.release(ch)

	c.mu.Lock()
	if c.closing != nil {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	s := c.subs.get(name)
	fresh := s == nil
	if fresh {
		if c.subs.len() >= c.hub.opts.MaxChannelsPerConn {
			c.mu.Unlock()
			return nil, ErrConnChannelLimit
		}
		s = &Sub{conn: c, ch: ch}
	}
	s.mask = mask
	if log != nil && c.placeLocked(s, *log) {
		replay = s
	}
	if fresh {
		c.subs.add(s)
		// A fan-out that meets the new member waits for c.mu, so the reply comes first.
		ch.add(s)
	}
	wake := false
	full := data != nil && !c.fitsLocked(len(data))
	switch {
	case full:
		c.overflowLocked()
		wake = c.wantsFlushLocked()
	case data != nil:
		c.queue.push(&frame{data: data})
		wake = c.wantsFlushLocked()
	}
	c.mu.Unlock()
	if wake {
		c.worker.add(c)
	}
	if full {
		return nil, ErrQueueFull
	}
	return replay, nil
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
	if s.pos != nil && s.pos.Behind {
		c.behind--
	}
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

func (s *subSet) each(f func(*Sub)) {
	for _, sub := range s.few {
		f(sub)
	}
	for _, sub := range s.many {
		f(sub)
	}
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
