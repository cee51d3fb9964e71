package hub

import "sync"

// queue is a ring of frames. It is empty and without memory while its connection is idle. It is guarded by its connection's lock.
type queue struct {
	ring  []*frame
	head  int32
	n     int32
	bytes int32
}

// Rings of the common sizes are pooled: under load a queue fills and empties thousands of times a second.
var (
	smallRings = sync.Pool{New: func() any { return new([8]*frame) }}
	largeRings = sync.Pool{New: func() any { return new([64]*frame) }}
)

func newRing(atLeast int) []*frame {
	switch {
	case atLeast <= 8:
		return smallRings.Get().(*[8]*frame)[:]
	case atLeast <= 64:
		return largeRings.Get().(*[64]*frame)[:]
	}
	size := 128
	for size < atLeast {
		size *= 2
	}
	return make([]*frame, size)
}

// freeRing takes back a ring whose slots are all nil.
func freeRing(ring []*frame) {
	switch len(ring) {
	case 8:
		smallRings.Put((*[8]*frame)(ring))
	case 64:
		largeRings.Put((*[64]*frame)(ring))
	}
}

func (q *queue) at(i int32) **frame {
	return &q.ring[(q.head+i)&int32(len(q.ring)-1)]
}

func (q *queue) push(f *frame) {
	if int(q.n) == len(q.ring) {
		next := newRing(int(q.n) + 1)
		for i := range q.n {
			slot := q.at(i)
			next[i] = *slot
			*slot = nil
		}
		freeRing(q.ring)
		q.ring, q.head = next, 0
	}
	*q.at(q.n) = f
	q.n++
	q.bytes += int32(len(f.data))
}

// take moves frames from the front to dst until dst is full or maxBytes are reached, at least one if there is one.
func (q *queue) take(dst []*frame, maxBytes int) []*frame {
	dst = dst[:0]
	taken := 0
	for q.n > 0 && len(dst) < cap(dst) {
		slot := q.at(0)
		f := *slot
		if taken > 0 && taken+len(f.data) > maxBytes {
			break
		}
		*slot = nil
		q.head = (q.head + 1) & int32(len(q.ring)-1)
		q.n--
		taken += len(f.data)
		q.bytes -= int32(len(f.data))
		dst = append(dst, f)
	}
	if q.n == 0 && q.ring != nil {
		freeRing(q.ring)
		q.ring, q.head = nil, 0
	}
	return dst
}

// find returns the place of the newest waiting frame of the same channel and key, or -1.
func (q *queue) find(f *frame) int32 {
	for i := q.n - 1; i >= 0; i-- {
		old := *q.at(i)
		if old.ch == f.ch && old.policy == Latest && old.mask == f.mask && old.key == f.key {
			return i
		}
	}
	return -1
}

// holds reports whether f itself waits.
func (q *queue) holds(f *frame) bool {
	for i := range q.n {
		if *q.at(i) == f {
			return true
		}
	}
	return false
}

// set puts f in the place of another frame.
func (q *queue) set(i int32, f *frame) {
	slot := q.at(i)
	q.bytes += int32(len(f.data) - len((*slot).data))
	*slot = f
}

// remove takes a frame out. What stands before it moves up by one, so the order stays.
func (q *queue) remove(i int32) {
	q.bytes -= int32(len((*q.at(i)).data))
	for ; i > 0; i-- {
		*q.at(i) = *q.at(i - 1)
	}
	*q.at(0) = nil
	q.head = (q.head + 1) & int32(len(q.ring)-1)
	q.n--
}

// removeOldest removes the oldest publication for a member, and reports whether there was one. With tell it is counted in the mark before it, or in a new one
// in its place.
func (q *queue) removeOldest(s *Sub, tell bool) bool {
	var mark *frame
	for i := range q.n {
		old := *q.at(i)
		switch {
		case old.skip == s:
			mark = old
		case old.ch != s.ch:
		case tell && mark == nil:
			q.set(i, &frame{skip: s, missed: 1})
			return true
		default:
			if tell {
				mark.missed++
			}
			q.remove(i)
			return true
		}
	}
	return false
}

func (q *queue) clear() {
	for i := range q.n {
		*q.at(i) = nil
	}
	freeRing(q.ring)
	*q = queue{}
}
