package feedtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
)

// patience is how long the suite waits for what must come.
const patience = 30 * time.Second

// Recorder is a [feed.Sink] that keeps what comes.
type Recorder struct {
	// OnCommit is called with each transaction before it is kept. Nil does nothing.
	OnCommit func(tx *feed.Tx)

	mu      sync.Mutex // guards below
	txs     []*feed.Tx // since the last reset
	resets  []string
	at      feed.Position
	faults  []error
	ended   bool
	stop    func() error
	changed chan struct{} // closed and made anew with each event
}

// NewRecorder returns an empty one.
func NewRecorder() *Recorder { return &Recorder{changed: make(chan struct{})} }

// Commit implements [feed.Sink].
func (r *Recorder) Commit(tx *feed.Tx) {
	if r.OnCommit != nil {
		r.OnCommit(tx)
	}
	r.event(func() {
		if len(r.resets) == 0 {
			r.faults = append(r.faults, errors.New("a transaction before the first reset"))
		}
		if tx.Position <= r.at {
			r.faults = append(r.faults, errors.New("position "+string(tx.Position)+" after "+string(r.at)))
		}
		if len(tx.Changes) == 0 {
			r.faults = append(r.faults, errors.New("a transaction without changes"))
		}
		r.at = tx.Position
		r.txs = append(r.txs, tx)
	})
}

// Reset implements [feed.Sink].
func (r *Recorder) Reset(at feed.Position, reason string) {
	r.event(func() {
		r.resets, r.txs, r.at = append(r.resets, reason), nil, at
	})
}

func (r *Recorder) event(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		r.faults = append(r.faults, errors.New("called after Run had returned"))
	}
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// Until waits until a condition holds of the resets and the transactions since the last one.
func (r *Recorder) Until(t testing.TB, what string, f func(resets []string, txs []*feed.Tx) bool) []*feed.Tx {
	t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		resets, txs, changed := slices.Clone(r.resets), slices.Clone(r.txs), r.changed
		r.mu.Unlock()
		if f(resets, txs) {
			return txs
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("waited for %s: %d resets %q, %d transactions", what, len(resets), resets, len(txs))
		}
	}
}

// Changes waits for as many changes since the last reset, and returns them.
func (r *Recorder) Changes(t testing.TB, n int) []feed.Change {
	t.Helper()
	return flatten(r.Until(t, fmt.Sprint(n, " changes"), func(_ []string, txs []*feed.Tx) bool { return len(flatten(txs)) >= n }))
}

// Start runs the feed into the recorder until the test ends or stop is called, and waits for the first reset.
func (r *Recorder) Start(t testing.TB, db feed.Database) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- db.Run(ctx, r) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ended = true
			for _, err := range r.faults {
				t.Error(err)
			}
			return err
		case <-time.After(patience):
			t.Error("Run does not return")
			return nil
		}
	})
	r.mu.Lock()
	r.stop = stop
	r.mu.Unlock()
	t.Cleanup(func() { _ = stop() }) // tests that want the error ask for it
	r.Until(t, "the first reset", func(resets []string, _ []*feed.Tx) bool { return len(resets) > 0 })
	return stop
}

// flatten returns the changes of all transactions.
func flatten(txs []*feed.Tx) (out []feed.Change) {
	for _, tx := range txs {
		out = append(out, tx.Changes...)
	}
	return out
}

// last is where the recorder is.
func (r *Recorder) last() feed.Position {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}
