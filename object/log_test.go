package object_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/sqlite"
	"github.com/tidewire/tidewire/stream"
)

// recipe is what the source tells users to do with a channel and their own store: subscribe, read the head and the history, replay it, then go on with what is live. A message
// whose seq is not the next one came before another publisher's: what lies between is in the store, since it is persisted first. It ends with the seq last.
func recipe(ctx context.Context, e *object.Event, name string, after, last uint64, out func(seq uint64)) error {
	replay := func() error { // what is persisted behind after
		for {
			p, err := e.Read(ctx, stream.Position{Offset: after}, 50)
			if err != nil {
				return err
			}
			for _, entry := range p.Entries {
				out(entry.Offset)
				after = entry.Offset
			}
			if after >= p.Head.Offset {
				return nil
			}
		}
	}
	for {
		handle, err := e.Subscribe(name)
		if err != nil {
			return err
		}
		if err := replay(); err != nil {
			return err
		}
		status := object.Message
		for after < last && status != object.Ended {
			var text string
			if status, text, err = e.Wait(ctx, handle, patience); err != nil {
				return err
			}
			switch status {
			case object.Message:
				seq, err := strconv.ParseUint(strings.TrimRight(text, " "), 10, 64)
				if err != nil {
					return err
				}
				switch {
				case seq <= after: // replayed already
				case seq == after+1:
					out(seq)
					after = seq
				default:
					if err := replay(); err != nil {
						return err
					}
				}
			case object.TimedOut:
				return errors.New("timed out")
			}
		}
		if err := e.Cancel(handle); err != nil {
			return err
		}
		if after >= last {
			return nil
		}
		// Cut off: again from the last one.
	}
}

// announce persists, then publishes with the seq.
func announce(ctx context.Context, e *object.Event, name string, pad int) error {
	a, err := e.Append(ctx, "x", "")
	if err != nil {
		return err
	}
	_, err = e.Publish(name, fmt.Sprint(a.Offset)+strings.Repeat(" ", pad))
	return err
}

func TestO21_Sample9_ReplayByRecipe(t *testing.T) {
	t.Parallel()
	_, c, d := two(t)
	for range 3 {
		if err := announce(t.Context(), d, "c", 0); err != nil {
			t.Fatal(err)
		}
	}
	// D appends in C's window between subscribing and reading: the subscription has what the history has too.
	var seqs []uint64
	done := make(chan error, 1)
	go func() {
		done <- recipe(t.Context(), c, "c", 1, 40, func(seq uint64) { seqs = append(seqs, seq) })
	}()
	for range 37 {
		if err := announce(t.Context(), d, "c", 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantSeqs(t, seqs, 2, 40)
}

// O18: both ways under concurrent publishers, with subscribers that come at any time, some so slow that they are cut off.
func TestO18_FollowAndRecipe_EachSeqOnceInOrder(t *testing.T) {
	t.Parallel()
	for name, log := range map[string]stream.Store{"memory": stream.NewMemory(stream.MemoryOptions{}), "SQLite": openSQLite(t, filepath.Join(t.TempDir(), "db"))} {
		t.Run(name, func(t *testing.T) { eachSeqOnceInOrder(t, log) })
	}
}

func eachSeqOnceInOrder(t *testing.T, log stream.Store) {
	const publishers, each, pad = 8, 60, 40_000
	const total = 20 + publishers*each
	h := newHost(t, object.Options{Log: log})
	ctx := t.Context()
	for range 20 {
		must(begin(t, h, "o").Append(ctx, "history", ""))
	}
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			err := h.Do(ctx, "o", func(ctx context.Context, e *object.Event) error {
				for range each {
					if err := announce(ctx, e, "c", pad); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 6 {
		after := uint64(rand.IntN(20))
		slow := func(seq uint64) {
			if i == 0 && seq < 3 { // until it has been cut off, or nothing more comes
				for h.Stats().Cut == 0 && h.Stats().Events > 32 {
					must(h.Begin(ctx, "elsewhere")).End()
				}
			}
		}
		wg.Go(func() {
			var seqs []uint64
			err := h.Do(ctx, "o", func(ctx context.Context, e *object.Event) error {
				return recipe(ctx, e, "c", after, total, func(seq uint64) { seqs = append(seqs, seq); slow(seq) })
			})
			if err != nil {
				t.Error(err)
				return
			}
			wantSeqs(t, seqs, after+1, total)
		})
		wg.Go(func() {
			var seqs []uint64
			err := h.Do(ctx, "o", func(ctx context.Context, e *object.Event) error {
				for entry, err := range e.Follow(ctx, stream.Position{Offset: 0}) {
					if err != nil {
						return err
					}
					if seqs = append(seqs, entry.Offset); entry.Offset == total {
						break
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			wantSeqs(t, seqs, 1, total)
		})
	}
	wg.Wait()
}

// O18: a subscription that is cut off while the history is replayed goes on from the last seq.
func TestO18_RecipeAfterACut(t *testing.T) {
	t.Parallel()
	h, c, d := two(t)
	if err := announce(t.Context(), d, "c", 0); err != nil {
		t.Fatal(err)
	}
	const total = 101
	var seqs []uint64
	err := recipe(t.Context(), c, "c", 0, total, func(seq uint64) {
		seqs = append(seqs, seq)
		if seq == 1 { // still replaying: 4 MB pass by
			for range total - 1 {
				if err := announce(t.Context(), d, "c", 40_000); err != nil {
					t.Error(err)
				}
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if h.Stats().Cut != 1 {
		t.Fatalf("cut off %d times", h.Stats().Cut)
	}
	wantSeqs(t, seqs, 1, total)
}

func openSQLite(t *testing.T, path string) *sqlite.Stream {
	t.Helper()
	log, err := sqlite.OpenStream(path, sqlite.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	return log
}

// O17: in SQLite a log outlives the host: the seq goes on, in the same epoch.
func TestO17_LogOutlivesTheHost(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	var before stream.Appended
	for seq := uint64(1); seq <= 3; seq++ {
		log := openSQLite(t, path)
		a := must(begin(t, newHost(t, object.Options{Log: log}), "o").Append(t.Context(), fmt.Sprint("t", seq), ""))
		if a.Offset != seq || seq > 1 && a.Epoch != before.Epoch {
			t.Fatalf("%+v after %+v", a, before)
		}
		before = a
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func wantSeqs(t *testing.T, seqs []uint64, first, last uint64) {
	t.Helper()
	var want []uint64
	for seq := first; seq <= last; seq++ {
		want = append(want, seq)
	}
	if !slices.Equal(seqs, want) {
		t.Errorf("seqs %v, want %d to %d", seqs, first, last)
	}
}

func TestO17_Append(t *testing.T) {
	t.Parallel()
	log := stream.NewMemory(stream.MemoryOptions{})
	h := newHost(t, object.Options{Log: log, Retain: stream.Retention{Count: 2}})
	a, other := begin(t, h, "o"), begin(t, h, "other")
	for seq := uint64(1); seq <= 4; seq++ {
		if got := must(a.Append(t.Context(), fmt.Sprint("t", seq), "")); got.Offset != seq {
			t.Fatalf("seq %d, want %d", got.Offset, seq)
		}
	}
	if got := must(other.Append(t.Context(), "", "")); got.Offset != 1 {
		t.Fatalf("another object's seq is %d", got.Offset)
	}
	first := must(a.Append(t.Context(), "once", "key"))
	again := must(a.Append(t.Context(), "once", "key"))
	if first.Duplicate || !again.Duplicate || again.Position != first.Position {
		t.Fatalf("%+v, then %+v", first, again)
	}
	if p := must(log.Read(t.Context(), object.LogName("o"), stream.Position{Offset: 3}, 9)); len(p.Entries) != 2 {
		t.Fatalf("%d entries are kept", len(p.Entries))
	}
	if _, err := a.Read(t.Context(), stream.Position{}, 9); !errors.Is(err, stream.ErrGap) {
		t.Fatal(err)
	}
	_, err := a.Append(t.Context(), "\xff", "")
	wantIs(t, err, object.ErrText)
	_, err = a.Append(t.Context(), strings.Repeat("x", 65_537), "")
	wantIs(t, err, object.ErrText)
	if _, err = a.Append(t.Context(), "", strings.Repeat("k", 257)); !errors.Is(err, stream.ErrInvalid) {
		t.Fatal(err)
	}
}

// O17: an entry is persisted before anybody is woken, and there when Append returns.
func TestO17_PersistedFirst(t *testing.T) {
	t.Parallel()
	log := stream.NewMemory(stream.MemoryOptions{})
	h := newHost(t, object.Options{Log: log})
	a, b := begin(t, h, "o"), begin(t, h, "o")
	followed := make(chan uint64)
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		for entry, err := range a.Follow(ctx, stream.Position{}) {
			if err != nil {
				if !errors.Is(err, context.Canceled) || errors.Is(err, object.ErrEnded) {
					t.Error(err)
				}
				return
			}
			if head := must(log.Head(t.Context(), object.LogName("o"))); head.Offset < entry.Offset {
				t.Errorf("entry %d before it is in the store", entry.Offset)
			}
			followed <- entry.Offset
		}
	})
	for range 20 {
		if got := must(b.Append(t.Context(), "x", "")); got.Offset != <-followed {
			t.Fatal("not followed")
		}
	}
	cancel()
	wg.Wait()
	// The end of the event ends a follower.
	wg.Go(func() {
		for entry, err := range a.Follow(t.Context(), stream.Position{Offset: 19}) {
			if entry.Offset == 20 {
				a.End()
				continue
			}
			wantIs(t, err, object.ErrEnded)
		}
	})
	wg.Wait()
}

// O18: a log that does not continue what was yielded is told, never passed over.
func TestO18_GapIsTold(t *testing.T) {
	t.Parallel()
	log := stream.NewMemory(stream.MemoryOptions{})
	h := newHost(t, object.Options{Log: log})
	a := begin(t, h, "o")
	must(a.Append(t.Context(), "1", ""))
	var last error
	for _, err := range a.Follow(t.Context(), stream.Position{}) {
		if last = err; err != nil {
			break
		}
		if err := log.Reset(t.Context(), object.LogName("o")); err != nil {
			t.Fatal(err)
		}
		must(a.Append(t.Context(), "1 of another epoch", ""))
	}
	if !errors.Is(last, stream.ErrGap) {
		t.Fatal(last)
	}
}

func TestO17_TrimAndReset(t *testing.T) {
	t.Parallel()
	e := begin(t, newHost(t, object.Options{}), "o")
	for i := range 5 {
		must(e.Append(t.Context(), fmt.Sprint("t", i+1), fmt.Sprint("k", i+1)))
	}
	if err := e.Trim(t.Context(), stream.Retention{Count: 2}); err != nil {
		t.Fatal(err)
	}
	old := must(e.Read(t.Context(), stream.Position{Offset: 3}, 10))
	if old.Head.First != 4 || old.Head.Offset != 5 || len(old.Entries) != 2 || string(old.Entries[0].Data) != "t4" {
		t.Fatalf("%+v", old)
	}
	if _, err := e.Read(t.Context(), stream.Position{Offset: 2}, 10); !errors.Is(err, stream.ErrGap) {
		t.Fatal(err)
	}
	if err := e.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := must(e.Append(t.Context(), "new", "k5")); a.Offset != 1 || a.Duplicate || a.Epoch == old.Head.Epoch {
		t.Fatalf("%+v", a)
	}
	e.End()
	for _, err := range []error{e.Trim(t.Context(), stream.Retention{Count: 1}), e.Reset(t.Context())} {
		if !errors.Is(err, object.ErrEnded) {
			t.Error(err)
		}
	}
}
