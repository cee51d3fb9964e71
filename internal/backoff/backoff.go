// Package backoff computes how long to wait before another attempt.
package backoff

import (
	"math"
	"math/rand/v2"
	"time"
)

// Backoff grows from Initial by Multiplier to Max. It holds no state and may be used concurrently if Rand may.
type Backoff struct {
	// Initial is the delay before the first retry. Zero means 1 s.
	Initial time.Duration
	// Max bounds the delay. Zero means 30 s.
	Max time.Duration
	// Multiplier is the growth from one attempt to the next. Zero means 2; less than 1 means 1.
	Multiplier float64
	// Jitter makes the delay a random one between zero and the computed one, so that clients that lost a server together do not return together.
	Jitter bool
	// Rand returns a number in [0, 1) for Jitter. Nil means [rand.Float64].
	Rand func() float64
}

// Delay returns min(Initial × Multiplier^(attempt−1), Max), or with Jitter a part of it. Attempts count from 1; a smaller one is taken as 1.
func (b Backoff) Delay(attempt int) time.Duration {
	initial, limit, multiplier := b.Initial, b.Max, b.Multiplier
	if initial <= 0 {
		initial = time.Second
	}
	if limit <= 0 {
		limit = 30 * time.Second
	}
	if multiplier == 0 {
		multiplier = 2
	}
	d := limit
	// Infinity and NaN fail the comparison, and so mean the limit.
	if f := float64(initial) * math.Pow(max(multiplier, 1), float64(max(attempt, 1)-1)); f < float64(limit) {
		d = time.Duration(f)
	}
	if !b.Jitter {
		return d
	}
	random := b.Rand
	if random == nil {
		random = rand.Float64
	}
	return time.Duration(random() * float64(d))
}
