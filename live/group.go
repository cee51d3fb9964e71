package live

import (
	"sync"
	"sync/atomic"
)

// group is the entries that one transaction concerns, if they are several: who shows two of them shows the transaction in both or in neither ([Options.Settled]). An entry leaves it when the transaction was applied, or
// will not be: because it was in what was read, the entry waits for a read, or is over. So a job with a group is always on its way through the lanes, and nobody waits for the database. A nil group is none.
type group struct {
	e      *Engine
	commit uint64
	left   atomic.Int32 // entries that still have to leave

	mu      sync.Mutex // guards below
	entries []*Entry   // that published
}

// newGroup is called by the feed's goroutine.
func (e *Engine) newGroup(entries int) *group {
	if entries < 2 || e.opts.Settled == nil {
		return nil
	}
	e.commits++
	g := &group{e: e, commit: e.commits, entries: make([]*Entry, 0, min(entries, 16))}
	g.left.Store(int32(entries))
	return g
}

func (g *group) number() uint64 {
	if g == nil {
		return 0
	}
	return g.commit
}

// published notes that an entry, which has not left yet, has published a frame.
func (g *group) published(en *Entry) {
	if g != nil {
		g.mu.Lock()
		g.entries = append(g.entries, en)
		g.mu.Unlock()
	}
}

// leave is called once for each entry, with its mu held or not: the workers tell the rest.
func (g *group) leave() {
	if g != nil && g.left.Add(-1) == 0 && len(g.entries) > 0 {
		g.e.lanes.settle(g)
	}
}

func (g *group) tell() { g.e.opts.Settled(g.commit, g.entries) }

func (l *lanes) settle(g *group) {
	l.mu.Lock()
	l.settled = append(l.settled, g)
	l.wakeLocked()
	l.mu.Unlock()
}

// leaveLocked takes the entry's jobs out of their groups. Its mu is held.
func (en *Entry) leaveLocked() {
	for i := range en.jobs {
		en.jobs[i].group.leave()
		en.jobs[i].group = nil
	}
}
