package client

import (
	"time"

	"github.com/tidewire/tidewire/wire"
)

// Position is a place in the log of a channel with history: just behind the message with the offset, or before the first one if it is 0.
type Position struct {
	Offset uint64 `json:"offset"`
	// Epoch is another when the log was lost or reset: offsets are compared within one epoch only. An empty one in [SubscribeOptions].Since means any.
	Epoch string `json:"epoch"`
}

// Subscribed says how a subscription became live.
type Subscribed struct {
	// Position is that of the last message before those that come now. It is zero on a channel without history.
	Position Position
	// Recovered means that everything behind the position that the subscription had comes. It is false the first time, unless Since said where to begin.
	Recovered bool
}

// Lost says what messages recovery could not give: those between two positions.
type Lost struct {
	// Count is how many there are, if it is known; zero if not, and then there may be none.
	Count uint64
	// From is behind the last message that came, To behind the last that is missing. To is zero if the channel has no history any more.
	From, To Position
}

const (
	// Acknowledgements are sent at most this often, or when half of the usual window waits for one.
	ackInterval = 100 * time.Millisecond
	ackBatch    = 32
)

// outgoingSince is where a subscription wants to begin.
type outgoingSince struct {
	Offset *uint64 `json:"offset,omitempty"`
	Epoch  string  `json:"epoch,omitempty"`
	Last   int     `json:"last,omitempty"`
	Sum    string  `json:"sum,omitempty"` // of a live query's rows
}

// sinceLocked returns where the subscription wants to go on or to begin, or nil.
func (s *Subscription) sinceLocked() *outgoingSince {
	switch {
	case s.placed:
		at := s.at
		return &outgoingSince{Offset: &at.Offset, Epoch: at.Epoch}
	case s.last > 0:
		return &outgoingSince{Last: s.last}
	}
	return nil
}

// placeLocked takes the position of a subscribed message. first says that it makes the subscription live.
func (s *Subscription) placeLocked(m *incoming, first bool) (recovered bool, lost *Lost) {
	had, from := s.placed, s.at
	s.repairing, s.skipped, s.last = false, false, 0
	s.logged, s.placed, s.at = m.Offset != nil, m.Offset != nil, Position{}
	if s.placed {
		s.at = Position{*m.Offset, m.Epoch}
		s.acked = s.at.Offset
	}
	switch {
	case !had:
		return false, nil
	case !s.placed:
		return false, &Lost{From: from}
	}
	same := from.Epoch == "" || from.Epoch == s.at.Epoch
	told := m.Recovered != nil && *m.Recovered
	if to := s.at.Offset; same && (to == from.Offset || to < from.Offset && (told || !first)) {
		// Behind the client: what comes from there begins with repetitions.
		s.at.Offset = from.Offset
		return true, nil
	}
	lost = &Lost{From: from, To: s.at}
	if same && s.at.Offset > from.Offset {
		lost.Count = s.at.Offset - from.Offset
	}
	return false, lost
}

// followsLocked reports whether a message with an offset is the next one. If some before it are missing, it asks for them.
func (l *link) followsLocked(s *Subscription, offset uint64) bool {
	switch {
	case s.repairing:
		return false
	case offset <= s.at.Offset:
		// A server that repeats has not counted what was acknowledged before.
		s.acked = min(s.acked, offset-1)
		l.ackLocked(s)
		return false
	case offset > s.at.Offset+1 && !s.skipped:
		l.c.log.Debug("messages are missing and are asked for", "channel", s.channel, "offset", s.at.Offset, "next", offset)
		s.repairing = true
		l.askLocked(s)
		return false
	}
	return true
}

// handledLocked moves the position behind a message that the application has handled.
func (l *link) handledLocked(s *Subscription, offset uint64) {
	s.at.Offset, s.skipped = offset, false
	s.shown = s.at
	l.ackLocked(s)
}

// ackLocked queues or plans an acknowledgement of what has been handled.
func (l *link) ackLocked(s *Subscription) {
	if !s.opts.Ack || s.closed || s.phase != live || s.ackQueued || s.at.Offset <= s.acked {
		return
	}
	if due := s.ackedAt.Add(ackInterval); s.at.Offset-s.acked < ackBatch && time.Now().Before(due) {
		l.nextAck = earliest(l.nextAck, due)
		l.poke()
		return
	}
	s.ackQueued = true
	l.pushLocked(command{kind: wire.TypeAck, sub: s})
}

// acksLocked queues the acknowledgements whose time has come.
func (l *link) acksLocked(now time.Time) {
	if l.nextAck.IsZero() || now.Before(l.nextAck) {
		return
	}
	l.nextAck = time.Time{}
	for _, s := range l.c.subs {
		l.ackLocked(s)
	}
}

// ackFrameLocked acknowledges what has been handled until now.
func (s *Subscription) ackFrameLocked(now time.Time) []byte {
	s.ackQueued = false
	if s.closed || s.phase != live || !s.placed {
		return nil
	}
	s.acked, s.ackedAt = s.at.Offset, now
	return encode(outgoing{Type: wire.TypeAck, Channel: s.channel, Offset: s.at.Offset})
}

// earliest returns the earlier of two times, of which a may be none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
