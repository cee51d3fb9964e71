package ackbus

// queue is a ring of frames, by number. Numbers and deadlines grow together.
type queue struct {
	ring        []frame // its length is a power of two
	first, next uint64
}

type frame struct {
	due int64     // nanoseconds since the start of the bus
	to  *receiver // nil when settled
}

func (f *frame) settled() bool { return f.to == nil || f.to.closed }

// keepRing is the length of a ring that is kept though it is empty.
const keepRing = 1024

func (q *queue) len() int { return int(q.next - q.first) }

// at returns the frame seq, or nil if the queue does not hold it.
func (q *queue) at(seq uint64) *frame {
	if seq < q.first || seq >= q.next {
		return nil
	}
	return &q.ring[seq&uint64(len(q.ring)-1)]
}

func (q *queue) push(f frame) {
	if q.len() == len(q.ring) {
		ring := make([]frame, max(16, 2*len(q.ring)))
		for seq := q.first; seq < q.next; seq++ {
			ring[seq&uint64(len(ring)-1)] = *q.at(seq)
		}
		q.ring = ring
	}
	q.next++
	*q.at(q.next - 1) = f
}

// trim takes settled frames off the front.
func (q *queue) trim() {
	for q.first < q.next {
		f := q.at(q.first)
		if !f.settled() {
			return
		}
		f.to = nil
		q.first++
	}
	if len(q.ring) > keepRing {
		q.ring = nil
	}
}
