package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewire/tidewire/query"
)

// ledger is what was published of each group, and that it was settled.
type ledger struct {
	t  testing.TB
	mu sync.Mutex // guards below

	frames  map[uint64][]*Entry
	settled map[uint64]bool
	last    map[*Entry]uint64
	busy    func(*Entry, Frame) // while a frame is being published
}

func newLedger(t testing.TB) *ledger {
	return &ledger{t: t, frames: map[uint64][]*Entry{}, settled: map[uint64]bool{}, last: map[*Entry]uint64{}}
}

func (l *ledger) options(o Options) Options {
	o.Publish = func(en *Entry, f Frame) {
		if l.busy != nil {
			l.busy(en, f)
		}
		if f.Commit == 0 {
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.settled[f.Commit] || f.Commit <= l.last[en] {
			l.t.Errorf("%s publishes a frame of commit %d, settled %v, after one of %d", en.ID(), f.Commit, l.settled[f.Commit], l.last[en])
		}
		l.frames[f.Commit], l.last[en] = append(l.frames[f.Commit], en), f.Commit
	}
	o.Settled = func(commit uint64, published []*Entry) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.settled[commit] || len(published) == 0 || len(published) != len(l.frames[commit]) {
			l.t.Errorf("commit %d is settled with %d entries, twice %v; %d frames were published", commit, len(published), l.settled[commit], len(l.frames[commit]))
		}
		for _, en := range published {
			if !slices.Contains(l.frames[commit], en) {
				l.t.Errorf("commit %d: %s has published nothing", commit, en.ID())
			}
		}
		l.settled[commit] = true
	}
	return o
}

// check fails unless everything that was published is settled, and returns how many groups there were, and of how many frames.
func (l *ledger) check() (groups, frames int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for commit, entries := range l.frames {
		if !l.settled[commit] {
			l.t.Errorf("commit %d is not settled: %d entries have published it", commit, len(entries))
		}
		frames += len(entries)
	}
	return len(l.frames), frames
}

// TestS47_AGroupIsSettledWhateverItsEntriesDo has an entry that takes in every transaction, and another that is in each of the states in which it does not. No read comes back in time.
func TestS47_AGroupIsSettledWhateverItsEntriesDo(t *testing.T) {
	local := query.Definition{Name: "local", From: "items", Order: "loc"}
	zero := query.Definition{Name: "zero", From: "items", Where: "org = 0"}
	for name, tc := range map[string]struct {
		other query.Definition
		o     Options
		// disturb is called while the other entry is busy with a frame, and has two transactions more to take in.
		disturb func(b *bed, other *Entry)
		reads   bool // they come back
		frames  int  // of the other that are in groups, of three
	}{
		"it takes all in": {other: zero, disturb: func(*bed, *Entry) {}, frames: 3},
		"a query that is read again is not waited for": {other: local, disturb: func(*bed, *Entry) {}},
		"nor one that begins to wait for a read":       {other: zero, frames: 1, disturb: func(_ *bed, en *Entry) { en.stall(true) }},
		"a table is read again":                        {other: zero, frames: 1, disturb: func(b *bed, _ *Entry) { b.db.Lose("lost") }},
		"the entry fails":                              {other: zero, frames: 1, disturb: func(b *bed, en *Entry) { b.e.fail(en, errInjected) }},
		"the entry is given up":                        {other: zero, frames: 1, o: Options{Linger: -1}, disturb: func(_ *bed, en *Entry) { en.Release() }},
		"it is over as it is told": {other: zero, frames: 1, disturb: func(b *bed, en *Entry) {
			en.dead.Store(true)
			b.db.Commit(put(item(600, 0, 0, "t")))
		}},
		"more than it may keep":  {other: zero, frames: 1, o: Options{Buffer: 4}, disturb: func(b *bed, en *Entry) { overflow(b, en) }},
		"a read that has it all": {other: zero, frames: 1, reads: true, disturb: func(_ *bed, en *Entry) { en.rereadAfter(0) }},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newLedger(t)
				b := newBed(t, l.options(tc.o), all, tc.other)
				b.fill(60)
				var hang atomic.Bool
				b.db.before = func(ctx context.Context) error {
					if !hang.Load() {
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				}
				b.start()
				one, other := b.subscribe(b.acquire("all", "")), b.acquire(tc.other.Name, "")
				hang.Store(!tc.reads)
				free := make(chan struct{})
				var once sync.Once
				l.busy = func(en *Entry, f Frame) {
					if en == other && f.Commit != 0 {
						once.Do(func() { <-free })
					}
				}
				for i := range int64(3) {
					b.db.Commit(put(item(500+i, 0, 0, "t")))
				}
				synctest.Wait()
				tc.disturb(b, other)
				synctest.Wait()
				close(free)
				synctest.Wait()
				if groups, frames := l.check(); groups < 3 || frames != groups+tc.frames {
					t.Errorf("%d groups, %d frames, want %d of the other", groups, frames, tc.frames)
				}
				one.leave()
			})
		})
	}
}

// overflow gives an entry that is being read more than it may keep.
func overflow(b *bed, en *Entry) {
	en.rereadAfter(0)
	synctest.Wait()
	en.mu.Lock()
	en.capturing = true // as when the read had its snapshot
	en.mu.Unlock()
	for i := range int64(6) {
		b.db.Commit(put(item(600+i, 0, 0, "t")))
	}
}

// A transaction that concerns one entry is in no group, and one without [Options.Settled] neither.
func TestS47_ATransactionOfOneEntryIsInNoGroup(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLedger(t)
		b := newBed(t, l.options(Options{}), all, query.Definition{Name: "org", From: "items", Where: "org = $org"})
		b.start()
		b.acquire("all", "")
		b.db.Commit(put(item(1, 3, 0, "t")))
		synctest.Wait()
		if groups, _ := l.check(); groups != 0 || b.e.commits != 0 {
			t.Errorf("%d groups, %d made", groups, b.e.commits)
		}
		en := b.acquire("org", `{"org":3}`)
		b.db.Commit(put(item(1, 3, 1, "t")))
		synctest.Wait()
		if groups, frames := l.check(); groups != 1 || frames != 2 {
			t.Errorf("%d groups, %d frames", groups, frames)
		}
		if frames, ok := en.Since(en.Version()-1, 0); !ok || len(frames) != 1 || frames[0].Commit != 0 { // replayed alone
			t.Errorf("%+v", frames)
		}
	})
}

// TestS47_GroupsAreSettledUnderRandomKills publishes slowly, so that entries have transactions in their queues, while they overflow, fail, are given up, lose their feed and are read again.
func TestS47_GroupsAreSettledUnderRandomKills(t *testing.T) {
	t.Parallel()
	seed := random(t).Uint64()
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var mu sync.Mutex
		roll := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return rng.IntN(n)
		}
		l := newLedger(t)
		l.busy = func(*Entry, Frame) {
			if roll(8) == 0 {
				time.Sleep(time.Duration(roll(int(4 * time.Millisecond))))
			}
		}
		o := l.options(Options{Linger: -1, Buffer: 6, Retry: 20 * time.Millisecond, Workers: 3, MaxRows: 55})
		defs := randomDefinitions(rng, 30)
		b := newBed(t, o, defs...)
		b.db.before = func(context.Context) error {
			time.Sleep(time.Duration(roll(int(20 * time.Millisecond))))
			if roll(10) == 0 {
				return errInjected
			}
			return nil
		}
		b.start()
		var all sync.WaitGroup
		stop := make(chan struct{})
		for range 60 {
			all.Go(func() {
				for {
					mu.Lock()
					d := pick(rng, defs...)
					input := inputFor(rng, d.Where)
					mu.Unlock()
					en, err := b.e.Acquire(t.Context(), d.Name, json.RawMessage(input), nil)
					if err != nil && !errors.Is(err, errInjected) && !errors.Is(err, ErrRows) {
						panic(fmt.Sprint(d.Name, err))
					}
					select {
					case <-stop:
					case <-time.After(time.Duration(roll(int(300 * time.Millisecond)))):
					}
					if err == nil {
						en.Release()
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		for i := range 2000 {
			mu.Lock()
			writes := randomWrites(rng, 60)
			mu.Unlock()
			b.db.Commit(writes...)
			if roll(4) == 0 {
				time.Sleep(time.Duration(roll(int(10 * time.Millisecond))))
			}
			if i == 1000 || roll(300) == 0 {
				b.db.Lose("lost")
			}
		}
		settle()
		groups, frames := l.check()
		s := b.e.Stats()
		if groups < 200 || frames < 3*groups || s.Overflows == 0 || s.Failed == 0 || s.Resets == 0 || s.ReadErrors == 0 {
			t.Errorf("%d groups of %d frames, %+v", groups, frames, s)
		}
		t.Logf("%d groups of %d frames, %d made, %+v", groups, frames, b.e.commits, s)
		close(stop)
		all.Wait()
		settle()
	})
}
