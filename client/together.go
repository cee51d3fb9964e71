package client

import (
	"math"
	"time"
)

const (
	// holdFor is how long a frame waits for the others of its commit, at most: what the server says of that may not come.
	holdFor = 250 * time.Millisecond
	// maxHeld bounds the frames that wait.
	maxHeld = 256
)

// together is the frames of live queries that wait, in the order in which they came: so that what one commit changed is shown in all queries at once. A frame of a commit that changed several waits for the server to
// say that it was the last one of the commit, and for those of earlier commits; others wait for an earlier one of their own query. Until it is shown, a frame changes nothing: not the position of its query, either.
type together struct {
	frames    []waiting
	settled   map[uint64]bool // of the commits of frames
	releasing bool            // a goroutine is on its way that shows what has waited too long
}

type waiting struct {
	m  *incoming
	at time.Time
}

// holdLocked keeps a frame if it has to wait.
func (l *link) holdLocked(m *incoming) bool {
	h := &l.together
	hold := m.Commit != 0 && l.c.severalLocked()
	for _, f := range h.frames {
		hold = hold || f.m.QID == m.QID
	}
	if hold {
		h.frames = append(h.frames, waiting{m, time.Now()})
	}
	return hold
}

// severalLocked reports whether more than one live query is subscribed: then the server says of commits that they are whole.
func (c *Client) severalLocked() bool {
	n := 0
	for _, q := range c.queries {
		if q.phase == live {
			n++
		}
	}
	return n > 1
}

// settledLocked takes the word of the server that all frames of a commit have come.
func (l *link) settledLocked(commit uint64) func() {
	h := &l.together
	for _, f := range h.frames {
		if f.m.Commit == commit {
			if h.settled == nil {
				h.settled = map[uint64]bool{}
			}
			h.settled[commit] = true
			return l.releaseLocked(0)
		}
	}
	return nil
}

// releaseLocked shows the frames of commits up to one, whole or not, and those that wait for nothing any more. It returns the callbacks: each finds all queries changed.
func (l *link) releaseLocked(upTo uint64) func() {
	h := &l.together
	open := uint64(math.MaxUint64) // the first commit that is not whole
	for _, f := range h.frames {
		if f.m.Commit > upTo && !h.settled[f.m.Commit] {
			open = min(open, f.m.Commit)
		}
	}
	var calls []func()
	frames := h.frames
	h.frames = nil
	stay := map[string]bool{}
	for _, f := range frames {
		if stay[f.m.QID] || f.m.Commit >= open {
			stay[f.m.QID] = true
			h.frames = append(h.frames, f)
			continue
		}
		delete(h.settled, f.m.Commit)
		if call := l.rowsLocked(f.m); call != nil {
			calls = append(calls, call)
		}
	}
	return func() {
		for _, call := range calls {
			call()
		}
	}
}

// lateLocked has frames shown that have waited too long, and returns when the next will have. Zero means none.
func (l *link) lateLocked(now time.Time) (at time.Time) {
	h := &l.together
	if len(h.frames) == 0 || h.releasing {
		return at
	}
	if at = h.frames[0].at.Add(holdFor); now.Before(at) {
		return at
	}
	h.releasing = true
	l.work.Go(func() {
		l.calling.Lock() // a callback that runs is the reader's
		defer l.calling.Unlock()
		l.c.mu.Lock()
		h.releasing = false
		upTo, late := uint64(0), time.Now().Add(-holdFor)
		for _, f := range h.frames {
			if !f.at.After(late) {
				upTo = max(upTo, f.m.Commit)
			}
		}
		call := l.releaseLocked(upTo)
		l.c.mu.Unlock()
		call()
		l.poke()
	})
	return time.Time{}
}
