package hub

import "sync/atomic"

// counters are the hub's totals. The workers count what they write themselves.
type counters struct {
	accepted, published, encoded, queued    atomic.Uint64
	dropped, conflated, panics              atomic.Uint64
	pongTimeouts, writeTimeouts, slowCloses atomic.Uint64
	received                                atomic.Uint64
	catchUps, gaps, replayed, slowAcks      atomic.Uint64
}

// Stats is a view of a hub at one moment. Totals only rise.
type Stats struct {
	// Conns and Channels are the present numbers.
	Conns, Channels int
	// Accepted counts connections since the start.
	Accepted uint64
	// Published counts calls of Publish and Broadcast that met a channel, Encoded the encodings they took, Queued the messages put into queues.
	Published, Encoded, Queued uint64
	// Dropped counts publications that a connection missed because its queue was full, Conflated those replaced by a newer one of the same key.
	Dropped, Conflated uint64
	// Received counts messages from clients.
	Received uint64
	// Written counts frames given to the kernel, WrittenBytes their bytes, Writes the system calls it took.
	Written, WrittenBytes, Writes uint64
	// SlowCloses counts connections closed because they were too slow for a policy or MaxDropped, WriteTimeouts those whose socket took nothing, PongTimeouts dead peers.
	SlowCloses, WriteTimeouts, PongTimeouts uint64
	// CatchUps counts the times that a member fell behind its channel's log because it was slow, Gaps those because a publication was missing here, Replayed the publications replayed,
	// SlowAcks the times that acknowledgement was late.
	CatchUps, Gaps, Replayed, SlowAcks uint64
	// Panics counts panics in handlers and tasks.
	Panics uint64
}

// Stats returns the hub's numbers.
func (h *Hub) Stats() Stats {
	s := Stats{
		Conns:         h.everyone.size(),
		Channels:      int(h.channels.count.Load()),
		Accepted:      h.stats.accepted.Load(),
		Published:     h.stats.published.Load(),
		Encoded:       h.stats.encoded.Load(),
		Queued:        h.stats.queued.Load(),
		Dropped:       h.stats.dropped.Load(),
		Conflated:     h.stats.conflated.Load(),
		Received:      h.stats.received.Load(),
		SlowCloses:    h.stats.slowCloses.Load(),
		WriteTimeouts: h.stats.writeTimeouts.Load(),
		PongTimeouts:  h.stats.pongTimeouts.Load(),
		CatchUps:      h.stats.catchUps.Load(),
		Gaps:          h.stats.gaps.Load(),
		Replayed:      h.stats.replayed.Load(),
		SlowAcks:      h.stats.slowAcks.Load(),
		Panics:        h.stats.panics.Load(),
	}
	for _, w := range h.workers {
		s.Written += w.written.Load()
		s.WrittenBytes += w.bytes.Load()
		s.Writes += w.syscalls.Load()
	}
	return s
}

// Subscribers returns the number of members of a channel.
func (h *Hub) Subscribers(channel string) int {
	if ch := h.channels.get(channel); ch != nil {
		return ch.size()
	}
	return 0
}

// EachChannel calls f with the name and the number of members of every channel, in no order, until f returns false.
func (h *Hub) EachChannel(f func(name string, members int) bool) {
	for i := range h.channels.shards {
		s := &h.channels.shards[i]
		s.mu.RLock()
		chs := make([]*channel, 0, len(s.m))
		for _, ch := range s.m {
			chs = append(chs, ch)
		}
		s.mu.RUnlock()
		for _, ch := range chs {
			if n := ch.size(); n > 0 && !f(ch.name, n) {
				return
			}
		}
	}
}
