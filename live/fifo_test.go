package live

import (
	"slices"
	"testing"
)

// TestS16_AQueueIsInOrder compares the queue with a slice, and bounds the memory of one that is never empty.
func TestS16_AQueueIsInOrder(t *testing.T) {
	t.Parallel()
	rng := random(t)
	var q fifo[*int]
	var model []*int
	for step := range 100_000 {
		if most := 1 + step/1000%40; len(model) > 0 && (len(model) >= most || rng.IntN(2) == 0) {
			if v := q.pop(); v != model[0] {
				t.Fatalf("step %d: not the first", step)
			}
			model = model[1:]
		} else {
			v := new(int)
			q.push(v)
			model = append(model, v)
		}
		if q.len() != len(model) || !slices.Equal(q.list(), model) || cap(q.items) > 200 {
			t.Fatalf("step %d: %d in %d, want %d", step, q.len(), cap(q.items), len(model))
		}
		if rest := slices.Concat(q.items[:q.first], q.items[len(q.items):cap(q.items)]); slices.ContainsFunc(rest, func(v *int) bool { return v != nil }) {
			t.Fatalf("step %d: what was taken is held", step)
		}
	}
}
