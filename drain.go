package tidewire

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tidewire/tidewire/wire"
)

// drainChunk is how many connections are closed at once when the window is over.
const drainChunk = 256

// drain sends every client away in its own slot of the window, then closes those that stayed, and returns when their presence leaves have landed.
func (n *Node) drain() {
	n.draining.Store(true)
	n.objects.stop()
	window := max(n.opts.DrainWindow, 0)
	var sessions []*session
	n.eachSession(func(s *session) { sessions = append(sessions, s) })
	others := slices.Collect(n.ws.AllClients())
	n.log.Info("draining", "connections", len(sessions)+len(others), "window", window)
	for _, s := range sessions {
		s.sendAway(time.Duration(rand.Int64N(int64(window) + 1)))
	}
	// Clients leave by themselves in their slots; the last have a little more than the window.
	// A go-ws client cannot be told: its connection is closed in its slot.
	next := 0
	closeDue := func(passed time.Duration) {
		for ; next < len(others) && passed >= window*time.Duration(next)/time.Duration(len(others)); next++ {
			others[next].Disconnect(1012, "service restart")
		}
	}
	if len(sessions)+len(others) > 0 {
		n.waitEmpty(window+min(window/4, time.Second), closeDue)
	}
	closeDue(window)
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

// waitEmpty returns when no connection is left, or after d. It calls each with the time that has passed, often.
func (n *Node) waitEmpty(d time.Duration, each func(passed time.Duration)) {
	start := time.Now()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n.hub.Stats().Conns > 0 {
		select {
		case <-deadline.C:
			return
		case <-tick.C:
			each(time.Since(start))
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
