package live

import "slices"

// fifo is a queue that uses its memory again.
type fifo[T any] struct {
	items []T
	first int
}

func (q *fifo[T]) len() int { return len(q.items) - q.first }

// list is what waits, until the next push or pop.
func (q *fifo[T]) list() []T { return q.items[q.first:] }

func (q *fifo[T]) push(v T) {
	if q.first > len(q.items)/2 {
		q.items, q.first = slices.Delete(q.items, 0, q.first), 0
	}
	q.items = append(q.items, v)
}

// pop takes out what was pushed first. There must be something.
func (q *fifo[T]) pop() (v T) {
	v, q.items[q.first] = q.items[q.first], v
	if q.first++; q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return v
}
