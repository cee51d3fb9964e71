package ackbus

import "fmt"

// Held says what the bus holds inside: the lengths of everything that grows.
type Held struct {
	Receivers, Slots, Crowds, Frames, Ring, Open int
	Armed                                        bool
}

func (b *Bus) Held() Held {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Held{len(b.receivers), len(b.slots) - len(b.free), len(b.crowds), b.frames.len(), len(b.frames.ring), b.open, b.armed}
}

// StopTimer reports whether the timer was running.
func (b *Bus) StopTimer() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.timer.Stop()
}

// Names returns every receiver id that can be reached from the bus.
func (b *Bus) Names() map[string]bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := map[string]bool{}
	add := func(r *receiver) {
		if r != nil && r.id != "" {
			names[r.id] = true
		}
	}
	for id, r := range b.receivers {
		names[id] = true
		add(r)
	}
	for _, r := range b.slots[:cap(b.slots)] {
		add(r)
	}
	for _, f := range b.frames.ring {
		add(f.to)
	}
	return names
}

// Check compares what the bus counts with what it holds.
func (b *Bus) Check() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	pending, open := map[string]int{}, 0
	for seq := b.frames.first; seq < b.frames.next; seq++ {
		f := b.frames.at(seq)
		if f.settled() {
			continue
		}
		open++
		if f.to != everyone {
			pending[f.to.id]++
			continue
		}
		for _, r := range b.slots {
			if r != nil && r.slot/64 < len(b.crowds[seq].waiting) && b.crowds[seq].waiting[r.slot/64]>>(r.slot%64)&1 == 1 {
				pending[r.id]++
			}
		}
	}
	for id, r := range b.receivers {
		if r.pending != pending[id] || b.slots[r.slot] != r {
			return fmt.Errorf("%s: counted %d, held %d", id, r.pending, pending[id])
		}
	}
	if open != b.open || b.armed != (open > 0) {
		return fmt.Errorf("counted %d open, held %d, armed %v", b.open, open, b.armed)
	}
	return nil
}

var (
	EncodeFrame = encodeFrame
	DecodeFrame = decodeFrame
	EncodeAck   = encodeAck
	DecodeAck   = decodeAck
)
