package tidewire

import (
	"math/rand/v2"
	"time"

	"github.com/tidewire/tidewire/wire"
)

// drainChunk is how many connections are closed at once when the window is over.
const drainChunk = 256

// drain sends every client away in its own slot of the window, then closes those that stayed, and returns when their presence leaves have landed.
func (n *Node) drain() {
	n.draining.Store(true)
	window := max(n.opts.DrainWindow, 0)
	var sessions []*session
	n.eachSession(func(s *session) { sessions = append(sessions, s) })
	n.log.Info("draining", "connections", len(sessions), "window", window)
	for _, s := range sessions {
		s.sendAway(time.Duration(rand.Int64N(int64(window) + 1)))
	}
	// Clients leave by themselves in their slots; the last have a little more than the window.
	if len(sessions) > 0 {
		n.waitEmpty(window + min(window/4, time.Second))
	}
	left := 0
	n.eachSession(func(s *session) {
		s.conn.Close(1012, "service restart")
		if left++; left%drainChunk == 0 {
			n.waitSettled()
		}
	})
	n.waitSettled()
}

// sendAway tells a client to come back elsewhere after a delay.
func (s *session) sendAway(after time.Duration) {
	s.send(wire.Reconnect(after).Encode())
}

// waitEmpty returns when no session is left, or after d.
func (n *Node) waitEmpty(d time.Duration) {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n.hub.Stats().Conns > 0 {
		select {
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}

// waitSettled returns when closing connections have ended, presence included, or after two seconds.
func (n *Node) waitSettled() {
	deadline := time.NewTimer(2 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for n.stats.live.Load() > int64(n.hub.Stats().Conns) {
		select {
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}
