// Package budget holds the token buckets that bound what clients may ask for: connections of a node, frames of a connection.
//
// A bucket never waits: it gives a token, or says how long until there is one. It starts full.
package budget

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Accepts is a token bucket that tells those it refuses when to come back, spread over the time that serving them takes.
type Accepts struct {
	rate, burst float64 // tokens a second, and at most

	mu      sync.Mutex // guards below
	tokens  float64
	waiting float64 // refused and told to come back, falling at rate
	last    time.Time
}

// NewAccepts returns a full bucket.
func NewAccepts(rate, burst float64) *Accepts {
	return &Accepts{rate: rate, burst: burst, tokens: burst, last: time.Now()}
}

// Take takes a token, or returns how long to wait.
func (b *Accepts) Take() (ok bool, retry time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	gain := now.Sub(b.last).Seconds() * b.rate
	b.last = now
	b.tokens = min(b.burst, b.tokens+gain)
	b.waiting = max(0, b.waiting-gain)
	if b.tokens >= 1 {
		b.tokens--
		return true, 0
	}
	b.waiting = min(b.waiting+1, 60*b.rate) // nobody is sent away for more than a minute
	wait := b.waiting / b.rate * (0.75 + rand.Float64()/2)
	return false, max(50*time.Millisecond, time.Duration(wait*float64(time.Second)))
}

// Frames is the token bucket of one connection, with a count of what went over it. It is small, since there is one for each connection, and belongs to one goroutine.
type Frames struct {
	tokens float32
	last   uint32 // milliseconds, on the owner's clock
	over   uint32 // frames refused since the bucket was last half full
}

// NewFrames returns a full bucket.
func NewFrames(now uint32, burst int) Frames { return Frames{tokens: float32(burst), last: now} }

// Take takes a token at a time in milliseconds, or returns how long until there is one. stubborn says that more frames than a burst were refused without a pause between: whoever
// sends them does not listen.
func (b *Frames) Take(now uint32, rate, burst int) (ok bool, retry time.Duration, stubborn bool) {
	b.tokens = min(float32(burst), b.tokens+float32(now-b.last)*float32(rate)/1000)
	b.last = now
	if b.tokens >= float32(burst)/2 {
		b.over = 0
	}
	if b.tokens >= 1 {
		b.tokens--
		return true, 0, false
	}
	b.over++
	return false, time.Duration((1-b.tokens)/float32(rate)*1000+1) * time.Millisecond, b.over > uint32(burst)
}
