package hub

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
)

// Full reports whether the hub holds [Options.MaxConns] connections.
func (h *Hub) Full() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns >= h.opts.MaxConns
}

// Probe sends a message through each worker as a publication goes, and a task through the pool, and returns when all have arrived. It shows that the hub delivers, which
// no counter does.
func (h *Hub) Probe(ctx context.Context) error {
	arrived := make(chan struct{}, len(h.workers)+1)
	ch := channel{name: "probe"}
	for _, w := range h.workers {
		c := &Conn{hub: h, worker: w, slot: -1}
		c.link = &probeLink{arrived: arrived}
		s := &Sub{conn: c, ch: &ch, mask: Everyone}
		ch.add(s)
		if w == h.workers[0] && !c.Go("probe", func() { arrived <- struct{}{} }) {
			return fmt.Errorf("hub: probe: no place for a task")
		}
	}
	_, err := h.fanOut(&ch, &Message{Encode: func(Dialect) []byte { return probePayload }})
	if err != nil {
		return fmt.Errorf("hub: probe: %w", err)
	}
	for i := range cap(arrived) {
		select {
		case <-arrived:
		case <-ctx.Done():
			return fmt.Errorf("hub: probe: %d of %d did not arrive: %w", cap(arrived)-i, cap(arrived), ctx.Err())
		}
	}
	return nil
}

var probePayload = []byte("probe")

// probeLink is a socket that only notes that a worker wrote to it.
type probeLink struct {
	arrived chan struct{}
	done    atomic.Bool
}

func (l *probeLink) start() {}

func (l *probeLink) write(p []byte) (int, error) {
	if bytes.Contains(p, probePayload) && l.done.CompareAndSwap(false, true) {
		l.arrived <- struct{}{}
	}
	return len(p), nil
}

func (l *probeLink) arm()         {}
func (l *probeLink) blocks() bool { return false }
func (l *probeLink) closeWrite()  {}
func (l *probeLink) close()       {}
