package tidewire

import (
	"math/rand/v2"
	"sync"
	"time"
)

// budget is a token bucket that tells those it refuses when to come back, spread over the time that serving them takes.
type budget struct {
	rate, burst float64 // tokens a second, and at most

	mu      sync.Mutex // guards below
	tokens  float64
	waiting float64 // refused and told to come back, falling at rate
	last    time.Time
}

func newBudget(rate, burst float64) *budget {
	return &budget{rate: rate, burst: burst, tokens: burst, last: time.Now()}
}

// take takes a token, or returns how long to wait.
func (b *budget) take() (ok bool, retry time.Duration) {
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

// frameBudget is the token bucket of one connection. Its owner is the connection's event loop.
type frameBudget struct {
	tokens float32
	last   uint32 // milliseconds on the node's clock
	over   uint16 // frames refused in a row
}

// take takes a token at a time in milliseconds, or returns how long until there is one.
func (b *frameBudget) take(now uint32, rate, burst int) (ok bool, retry time.Duration) {
	b.tokens = min(float32(burst), b.tokens+float32(now-b.last)*float32(rate)/1000)
	b.last = now
	if b.tokens >= 1 {
		b.tokens--
		b.over = 0
		return true, 0
	}
	b.over++
	return false, time.Duration((1-b.tokens)/float32(rate)*1000+1) * time.Millisecond
}
