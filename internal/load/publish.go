package load

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Run describes what is published.
type Run struct {
	// Publish sends message seq of a publisher. It may wait for an answer.
	Publish func(ctx context.Context, publisher int, seq uint64, sent string) error
	// Publishers is the number of goroutines that publish.
	Publishers int
	// Marker and Size make the payload.
	Marker string
	Size   int
	// FanOut is the number of deliveries that one message becomes.
	FanOut int
	// Window is the number of messages not yet delivered to all that there may be. Zero means no bound.
	Window int
	// Rate is the number of messages a second, all publishers together. Zero means as fast as the window allows.
	Rate float64
	// Messages ends the run after so many, Duration after so long; the first that is reached counts.
	Messages uint64
	Duration time.Duration
}

// Result is what a run came to.
type Result struct {
	Published uint64
	Delivered uint64
	Expected  uint64
	Elapsed   time.Duration // until the last delivery
	P50, P99  time.Duration
	Lost      uint64 // expected and not delivered within the patience
	Disorder  uint64
}

// PerSecond is deliveries a second.
func (r Result) PerSecond() float64 { return float64(r.Delivered) / r.Elapsed.Seconds() }

// Drive publishes and waits until everything has arrived, or nothing more has for three seconds.
func (f *Fleet) Drive(ctx context.Context, r Run) (Result, error) {
	f.Latency.Reset()
	disorder := f.Disordered()
	base := f.Delivered()
	start := time.Now()
	var published atomic.Uint64
	deadline := start.Add(r.Duration)
	done := func() bool { return ctx.Err() != nil || r.Duration > 0 && time.Now().After(deadline) }
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for p := range r.Publishers {
		wg.Go(func() {
			name := fmt.Sprint(start.UnixMilli(), "-", p)
			for seq := uint64(0); !done() && failed.Load() == nil; seq++ {
				n := published.Add(1)
				if r.Messages > 0 && n > r.Messages {
					published.Add(^uint64(0))
					return
				}
				if r.Rate > 0 {
					pause(ctx, start.Add(time.Duration(float64(n-1)/r.Rate*float64(time.Second))))
				}
				for r.Window > 0 && !done() && n > uint64(r.Window)+(f.Delivered()-base)/uint64(r.FanOut) {
					time.Sleep(20 * time.Microsecond)
				}
				if done() {
					published.Add(^uint64(0))
					return
				}
				if err := r.Publish(ctx, p, seq, Payload(r.Marker, name, seq, r.Size)); err != nil {
					failed.CompareAndSwap(nil, &err)
					published.Add(^uint64(0))
					return
				}
			}
		})
	}
	wg.Wait()
	expected := published.Load() * uint64(r.FanOut)
	last, lastAt := f.Delivered(), time.Now()
	for f.Delivered()-base < expected && time.Since(lastAt) < 3*time.Second && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
		if n := f.Delivered(); n != last {
			last, lastAt = n, time.Now()
		}
	}
	res := Result{
		Published: published.Load(), Expected: expected, Delivered: f.Delivered() - base, Elapsed: time.Since(start),
		P50: f.Latency.Quantile(0.5), P99: f.Latency.Quantile(0.99), Disorder: f.Disordered() - disorder,
	}
	if res.Delivered < expected {
		res.Lost = expected - res.Delivered
		res.Elapsed = lastAt.Sub(start)
	}
	if err := failed.Load(); err != nil {
		return res, *err
	}
	return res, ctx.Err()
}

func pause(ctx context.Context, until time.Time) {
	d := time.Until(until)
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
