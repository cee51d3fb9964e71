package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/tidewire/tidewire/internal/backoff"
)

func TestH24_Delay(t *testing.T) {
	for _, c := range []struct {
		name    string
		b       backoff.Backoff
		attempt int
		want    time.Duration
	}{
		{"defaults, first", backoff.Backoff{}, 1, time.Second},
		{"defaults, second", backoff.Backoff{}, 2, 2 * time.Second},
		{"defaults, fifth", backoff.Backoff{}, 5, 16 * time.Second},
		{"defaults, capped", backoff.Backoff{}, 6, 30 * time.Second},
		{"attempt zero is the first", backoff.Backoff{}, 0, time.Second},
		{"negative attempt is the first", backoff.Backoff{}, math.MinInt, time.Second},
		{"no overflow", backoff.Backoff{}, math.MaxInt, 30 * time.Second},
		{"no overflow with the largest bounds", backoff.Backoff{Initial: 1, Max: math.MaxInt64}, math.MaxInt, math.MaxInt64},
		{"just below the overflow", backoff.Backoff{Initial: 1, Max: math.MaxInt64}, 63, 1 << 62},
		{"initial above max", backoff.Backoff{Initial: time.Minute, Max: time.Second}, 1, time.Second},
		{"constant", backoff.Backoff{Multiplier: 1}, 1000, time.Second},
		{"never shrinks", backoff.Backoff{Multiplier: 0.1}, 1000, time.Second},
		{"infinite multiplier", backoff.Backoff{Multiplier: math.Inf(1)}, 2, 30 * time.Second},
		{"not a number", backoff.Backoff{Multiplier: math.NaN()}, 2, 30 * time.Second},
		{"fraction", backoff.Backoff{Initial: 100 * time.Millisecond, Multiplier: 1.5}, 3, 225 * time.Millisecond},
		{"no jitter", backoff.Backoff{Jitter: true, Rand: func() float64 { return 0 }}, 3, 0},
		{"half jitter", backoff.Backoff{Jitter: true, Rand: func() float64 { return 0.5 }}, 3, 2 * time.Second},
		{"jitter of the cap", backoff.Backoff{Jitter: true, Rand: func() float64 { return 0.5 }}, 300, 15 * time.Second},
	} {
		if got := c.b.Delay(c.attempt); got != c.want {
			t.Errorf("%s: Delay(%d) = %v, want %v", c.name, c.attempt, got, c.want)
		}
	}
}

func TestH24_JitterIsFull(t *testing.T) {
	b := backoff.Backoff{Initial: 500 * time.Millisecond, Jitter: true}
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := b.Delay(3)
		if d < 0 || d >= 2*time.Second {
			t.Fatalf("Delay = %v, want it in [0, 2 s)", d)
		}
		low, high = min(low, d), max(high, d)
	}
	if low > 200*time.Millisecond || high < 1800*time.Millisecond {
		t.Errorf("1000 delays lie between %v and %v, want nearly all of [0, 2 s)", low, high)
	}
}
