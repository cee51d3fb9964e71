package load

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram counts durations in buckets of at most 6 % width. Its zero value is empty; it may be used concurrently.
type Histogram struct {
	counts [64 * 16]atomic.Uint64
	n      atomic.Uint64
}

func bucket(d time.Duration) int {
	u := uint64(max(d, 0))
	if u < 16 {
		return int(u)
	}
	shift := bits.Len64(u) - 5
	return (shift+1)*16 + int(u>>shift) - 16
}

func value(b int) time.Duration {
	if b < 16 {
		return time.Duration(b)
	}
	shift := b/16 - 1
	return time.Duration((uint64(b%16) + 16) << shift)
}

// Add counts one duration.
func (h *Histogram) Add(d time.Duration) {
	h.counts[bucket(d)].Add(1)
	h.n.Add(1)
}

// Count is the number of durations.
func (h *Histogram) Count() uint64 { return h.n.Load() }

// Quantile returns the duration below which a share q of all lie. Zero if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	want := uint64(q * float64(h.n.Load()))
	var seen uint64
	for b := range h.counts {
		seen += h.counts[b].Load()
		if seen > want {
			return value(b)
		}
	}
	return 0
}

// Reset empties the histogram.
func (h *Histogram) Reset() {
	for b := range h.counts {
		h.counts[b].Store(0)
	}
	h.n.Store(0)
}
