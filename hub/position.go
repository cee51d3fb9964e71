package hub

import "errors"

// A channel may have a log: then its publications have offsets, and a member has a position in it ([Conn.JoinLog]). What follows the position reaches the member once and in order:
// live, or, while it is behind, by replay from the log. A member is behind when it joins, when a publication of the policy [CatchUp] finds no room, when one does not follow the last, and
// after [Hub.Rewind]. It gets nothing live then; the hub reads the log through [Options.ReadLog] as its queue drains, and it is live again when it has everything that was published.

// LogOptions says where in a channel's log a membership begins.
type LogOptions struct {
	// Offset is that of the last publication that the member needs no more. It counts as acknowledged.
	Offset uint64
	// Tag says which log it is of: see [Position].
	Tag string
	// Window, if not zero, asks for acknowledgement ([Conn.Ack]): with so many publications unacknowledged the member has no room for more, whatever its queue holds.
	Window int
}

// Replayed is one publication from a log, encoded for one member.
type Replayed struct {
	// Offset is the member's position after it.
	Offset uint64
	// Payload is the text message. Nil moves the position only.
	Payload []byte
	// Moved says that this is no publication but the word that the position is another one, of the log with Tag: what lies between will not come.
	Moved bool
	Tag   string
}

// Position is where a member is in its channel's log.
type Position struct {
	Offset uint64 // the last publication that was queued, or told missing
	Tag    string // names the log that the offset is of, for Options.ReadLog
	Sent   uint64 // the last that was queued
	Acked  uint64 // the last that was acknowledged
	Window int    // zero if it does not acknowledge
	Behind bool   // it gets nothing live until it was replayed what is missing
	Slow   bool   // its acknowledgement is late

	Outstanding uint64 // publications sent and not acknowledged, as Conn.Position and Hub.Positions find them
}

// position is guarded by its connection's lock.
type position struct {
	Position
	generation uint32 // rises when the offset changes its meaning
	replaying  bool   // a replay is on its way
	floor      uint64 // nothing up to here will be acknowledged: it was told missing
	unacked    int64  // since when something is unacknowledged, or the last acknowledgement; on the hub's clock
}

// outstanding is the number of publications that were sent and not acknowledged, those told missing among them.
func (p *position) outstanding() uint64 {
	if base := max(p.Acked, p.floor); p.Sent > base {
		return p.Sent - base
	}
	return 0
}

func (p *position) view() Position {
	v := p.Position
	v.Outstanding = p.outstanding()
	return v
}

// windowFull reports whether the member may not be given more before it acknowledges.
func (p *position) windowFull() bool {
	n := p.outstanding()
	return p.Window > 0 && n > 0 && (p.Slow || n >= uint64(p.Window))
}

// sentLocked notes that the publication with an offset was queued.
func (s *Sub) sentLocked(offset uint64) {
	p := s.pos
	if p == nil || offset == 0 {
		return
	}
	if p.Window > 0 && p.outstanding() == 0 {
		p.unacked = s.conn.hub.now()
	}
	p.Sent = offset
}

// halfFullLocked reports whether there is no more room for catching up: the other half of the queue is for the answers.
func (c *Conn) halfFullLocked(n int) bool {
	waiting, bytes := int(c.queue.n+c.inflightN), int(c.queue.bytes+c.inflight)
	return waiting > 0 && (waiting >= c.hub.opts.QueueMessages/2 || bytes+n > c.hub.opts.QueueBytes/2)
}

// admitLocked decides whether a publication with an offset is delivered now. If replay is true, the caller calls c.replay(s) without the lock.
func (c *Conn) admitLocked(s *Sub, f *frame, st *fanStats) (deliver, replay bool) {
	p := s.pos
	if p.Behind || f.offset <= p.Offset {
		return false, false
	}
	if f.offset > p.Offset+1 { // one was not published here
		c.hub.stats.gaps.Add(1)
		return false, c.behindLocked(s)
	}
	full := p.windowFull()
	if f.policy == CatchUp && (full || c.halfFullLocked(len(f.data))) {
		c.hub.stats.catchUps.Add(1)
		c.behindLocked(s)
		p.replaying = false // not before there is room
		return false, false
	}
	p.Offset = f.offset
	if !full {
		return true, false
	}
	st.dropped++
	if f.policy == Disconnect {
		c.overflowLocked()
		return false, false
	}
	c.missLocked(s, f.policy)
	return false, false
}

// behindLocked stops live delivery to a member and reports whether the caller must call c.replay(s) without the lock.
func (c *Conn) behindLocked(s *Sub) (replay bool) {
	if !s.pos.Behind {
		s.pos.Behind = true
		c.behind++
	}
	if s.pos.replaying {
		return false
	}
	s.pos.replaying = true
	return true
}

// JoinLog is [Conn.Join] for a channel with a log: after reply comes what follows the position. A member that joins again gets a new position.
func (c *Conn) JoinLog(name string, mask Mask, reply []byte, o LogOptions) error {
	s, err := c.join(name, mask, reply, &o)
	if err == nil && s != nil {
		c.replay(s)
	}
	return err
}

// placeLocked gives a member a position, and reports whether the caller must call c.replay(s).
func (c *Conn) placeLocked(s *Sub, o LogOptions) (replay bool) {
	if c.hub.opts.ReadLog == nil {
		return false
	}
	if s.pos == nil {
		s.pos = &position{}
	}
	p := s.pos
	p.generation++ // what a replay is reading belongs to the old position
	p.Position = Position{Offset: o.Offset, Tag: o.Tag, Sent: o.Offset, Acked: o.Offset, Window: o.Window, Behind: p.Behind}
	p.floor = 0
	// Behind even if nothing is missing: only a look at the log can tell.
	return c.behindLocked(s)
}

// Ack notes that a member has handled all publications up to offset, and reports whether it asked to acknowledge.
func (c *Conn) Ack(name string, offset uint64) bool {
	c.mu.Lock()
	s := c.subs.get(name)
	if s == nil || s.pos == nil || s.pos.Window == 0 {
		c.mu.Unlock()
		return false
	}
	p := s.pos
	replay := false
	// It cannot know what it was not given; and an acknowledgement of what a lost log held may still be on its way.
	if offset = min(offset, p.Sent); offset > max(p.Acked, p.floor) {
		p.Acked = offset
		p.unacked = c.hub.now()
		p.Slow = p.Slow && p.Acked < p.Sent
		if p.Behind && !p.windowFull() {
			replay = c.behindLocked(s)
		}
	}
	c.mu.Unlock()
	if replay {
		c.replay(s)
	}
	return true
}

// Position returns where the connection is in a channel's log. It reports false if it is no member with a position.
func (c *Conn) Position(name string) (Position, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.subs.get(name); s != nil && s.pos != nil {
		return s.pos.view(), true
	}
	return Position{}, false
}

// Positions calls f for every member of a channel that has a position.
func (h *Hub) Positions(channel string, f func(*Conn, Position)) {
	ch := h.channels.get(channel)
	if ch == nil {
		return
	}
	ch.each(func(s *Sub) bool {
		s.conn.mu.Lock()
		pos, open := s.pos, !s.left
		var p Position
		if pos != nil {
			p = pos.view()
		}
		s.conn.mu.Unlock()
		if open && pos != nil {
			f(s.conn, p)
		}
		return true
	})
}

// Rewind says that the log of a channel was lost: the offsets begin anew. All members are behind then, and [Options.ReadLog] tells each where it is now.
func (h *Hub) Rewind(channel string) {
	ch := h.channels.get(channel)
	if ch == nil {
		return
	}
	ch.order.Lock()
	defer ch.order.Unlock()
	ch.last.Store(0)
	ch.each(func(s *Sub) bool {
		c := s.conn
		c.mu.Lock()
		replay := false
		if s.pos != nil && !s.left {
			s.pos.generation++
			replay = c.behindLocked(s)
		}
		c.mu.Unlock()
		if replay {
			c.replay(s)
		}
		return true
	})
}

// replay reads the log for a member whose replaying flag the caller has just set, in the channel's lane.
func (c *Conn) replay(s *Sub) {
	if c.Go(s.ch.name, func() { c.catchUp(s) }) {
		return
	}
	c.mu.Lock()
	s.pos.replaying = false // the sweep tries again
	c.mu.Unlock()
}

// replayBehind begins to replay to all members of this connection that are behind and wait for room. It is called when the queue is empty.
func (c *Conn) replayBehind() {
	c.mu.Lock()
	var subs []*Sub
	c.subs.each(func(s *Sub) {
		if p := s.pos; p != nil && p.Behind && !p.replaying && !p.windowFull() {
			p.replaying = true
			subs = append(subs, s)
		}
	})
	c.mu.Unlock()
	for _, s := range subs {
		c.replay(s)
	}
}

const (
	// replayPage is how many publications are read from a log at once.
	replayPage = 64
	// emptyPages is how often a log that should hold more is asked again at once: a publication may be queued just after it was read.
	emptyPages = 8
)

var errLogStale = errors.New("hub: the log does not hold what was published")

// catchUp replays to a member until it is live again or has no room. It runs in the channel's lane.
func (c *Conn) catchUp(s *Sub) {
	for empty := 0; ; {
		c.mu.Lock()
		if s.left || c.closing != nil {
			c.mu.Unlock()
			return
		}
		if s.pos.windowFull() || c.halfFullLocked(1) { // nothing is read for who has no room
			s.pos.replaying = false
			c.mu.Unlock()
			return
		}
		at, generation := s.pos.Position, s.pos.generation
		c.mu.Unlock()
		next, end, err := c.hub.opts.ReadLog(c, s.ch.name, at, replayPage)
		if len(next) > 0 {
			empty = 0
		} else if empty++; empty > emptyPages {
			err = errLogStale
		}
		if err != nil {
			c.mu.Lock()
			s.pos.replaying = false // the sweep tries again
			c.mu.Unlock()
			return
		}
		if !c.replayPage(s, next, end, generation) {
			return
		}
	}
}

// replayPage queues what was read, as much as there is room for, and reports whether to read on.
func (c *Conn) replayPage(s *Sub, next []Replayed, end bool, generation uint32) (more bool) {
	frames := make([]*frame, len(next))
	for i, r := range next {
		frames[i] = &frame{ch: s.ch, policy: CatchUp}
		if r.Payload != nil {
			if data, err := c.hub.textFrame(r.Payload); err == nil { // what is too large for the queue was refused when it was published
				frames[i].data = data
			}
		}
	}
	c.mu.Lock()
	p := s.pos
	if s.left || c.closing != nil {
		c.mu.Unlock()
		return false
	}
	if p.generation != generation { // these are of the log that was lost
		c.mu.Unlock()
		return true
	}
	full := false
	replayed := uint64(0)
	for i, f := range frames {
		if full = p.windowFull() || f.data != nil && c.halfFullLocked(len(f.data)); full {
			break
		}
		switch {
		case next[i].Moved:
			if next[i].Tag != p.Tag {
				p.Acked = 0 // of another log
			}
			p.Tag, p.Sent, p.floor, p.Slow = next[i].Tag, next[i].Offset, next[i].Offset, false
		case f.data != nil:
			s.sentLocked(next[i].Offset)
		}
		p.Offset = next[i].Offset
		if f.data != nil {
			c.queue.push(f)
			replayed++
		}
	}
	s.marker = nil
	// What was appended since the end of the log was read is being published, or was, and set ch.last before it was queued to any member: either it meets this member live, or this sees it.
	live := !full && end && p.Offset >= s.ch.last.Load()
	if live {
		p.Behind = false
		c.behind--
	}
	if full || live {
		p.replaying = false
	}
	wake := replayed > 0 && c.wantsFlushLocked()
	c.mu.Unlock()
	c.hub.stats.replayed.Add(replayed)
	if wake {
		c.worker.add(c)
	}
	return !full && !live
}

// lateAcksLocked marks members slow that have not acknowledged for [Options.AckTimeout]: for the next publication they have no room.
func (c *Conn) lateAcksLocked(now int64) {
	c.subs.each(func(s *Sub) {
		p := s.pos
		if p != nil && p.Window > 0 && !p.Slow && p.outstanding() > 0 && now-p.unacked > int64(c.hub.opts.AckTimeout) {
			p.Slow = true
			c.hub.stats.slowAcks.Add(1)
		}
	})
}
