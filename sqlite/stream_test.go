package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/sqlite"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/stream/streamtest"
)

func TestMain(m *testing.M) {
	if killed() {
		return
	}
	goleak.VerifyTestMain(m)
}

func openStream(t testing.TB, path string, opts sqlite.StreamOptions) *sqlite.Stream {
	t.Helper()
	s, err := sqlite.OpenStream(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeStream(t, s) })
	return s
}

func closeStream(t testing.TB, s *sqlite.Stream) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func newStream(t testing.TB, opts sqlite.StreamOptions) *sqlite.Stream {
	t.Helper()
	return openStream(t, newPath(t), opts)
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "tidewire.db") }

func add(t testing.TB, s *sqlite.Stream, name, data string, opts stream.AppendOptions) stream.Appended {
	t.Helper()
	a, err := s.Append(t.Context(), name, []byte(data), opts)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func headOf(t testing.TB, s *sqlite.Stream, name string) stream.Head {
	t.Helper()
	h, err := s.Head(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func number(t testing.TB, s *sqlite.Stream, sql string) int64 {
	t.Helper()
	n, err := s.Number(sql)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func sweepAll(t testing.TB, s *sqlite.Stream) (calls int) {
	t.Helper()
	for {
		calls++
		more, err := s.Sweep(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return calls
		}
	}
}

func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("waited for " + what)
		}
	}
}

// S10: the promises of every store.
func TestS10_Stream(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, func(t *testing.T, now func() time.Time) stream.Store {
		return newStream(t, sqlite.StreamOptions{Now: now})
	})
}

// S10: and they hold when the file is closed, opened and swept at any moment.
func TestS10_StreamReopened(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, func(t *testing.T, now func() time.Time) stream.Store {
		r := &reopened{t: t, path: newPath(t), opts: sqlite.StreamOptions{Now: now}}
		r.s = openStream(t, r.path, r.opts)
		return r
	})
}

// reopened closes and opens its file between operations, unless it was ever watched.
type reopened struct {
	t    *testing.T
	path string
	opts sqlite.StreamOptions

	mu      sync.RWMutex
	watched bool
	s       *sqlite.Stream
}

func (r *reopened) store() (*sqlite.Stream, func()) {
	switch rand.IntN(20) {
	case 0:
		r.mu.Lock()
		if !r.watched {
			closeStream(r.t, r.s)
			r.s = openStream(r.t, r.path, r.opts)
		}
		r.mu.Unlock()
	case 1:
		r.mu.RLock()
		if _, err := r.s.Sweep(r.t.Context()); err != nil {
			r.t.Error(err)
		}
		r.mu.RUnlock()
	}
	r.mu.RLock()
	return r.s, r.mu.RUnlock
}

func (r *reopened) Append(ctx context.Context, name string, data []byte, opts stream.AppendOptions) (stream.Appended, error) {
	s, done := r.store()
	defer done()
	return s.Append(ctx, name, data, opts)
}

func (r *reopened) Head(ctx context.Context, name string) (stream.Head, error) {
	s, done := r.store()
	defer done()
	return s.Head(ctx, name)
}

func (r *reopened) Read(ctx context.Context, name string, after stream.Position, limit int) (stream.Page, error) {
	s, done := r.store()
	defer done()
	return s.Read(ctx, name, after, limit)
}

func (r *reopened) Trim(ctx context.Context, name string, keep stream.Retention) error {
	s, done := r.store()
	defer done()
	return s.Trim(ctx, name, keep)
}

func (r *reopened) Reset(ctx context.Context, name string) error {
	s, done := r.store()
	defer done()
	return s.Reset(ctx, name)
}

func (r *reopened) Watch(name string, f func(string, stream.Entry)) (func(), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched = true
	return r.s.Watch(name, f)
}

func TestS10_StreamRestart(t *testing.T) {
	t.Parallel()
	clock := streamtest.NewClock()
	path, opts := newPath(t), sqlite.StreamOptions{Now: clock.Now}
	s := openStream(t, path, opts)
	unknown := headOf(t, s, "unknown")
	keyed := stream.AppendOptions{Key: "k", Retain: stream.Retention{Age: time.Hour}}
	first := add(t, s, "a", "1", keyed)
	add(t, s, "gone", "1", stream.AppendOptions{})
	if err := s.Reset(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	generation := headOf(t, s, "unknown")
	if generation == unknown {
		t.Fatal("the epoch of unknown names survived a reset")
	}
	again := func() {
		t.Helper()
		closeStream(t, s)
		s = openStream(t, path, opts)
	}
	again()
	if h := headOf(t, s, "unknown"); h != generation {
		t.Errorf("unknown names are at %+v, were at %+v", h, generation)
	}
	if h := headOf(t, s, "a"); h.Position != first.Position || h.First != 1 {
		t.Errorf("the log is at %+v, was at %+v", h, first)
	}
	clock.Add(stream.KeyWindow)
	if a := add(t, s, "a", "1", keyed); !a.Duplicate || a.Position != first.Position {
		t.Errorf("within the window: %+v", a)
	}
	clock.Add(1)
	again()
	if a := add(t, s, "a", "1", keyed); a.Duplicate || a.Offset != 2 {
		t.Errorf("after the window: %+v", a)
	}
	clock.Add(2 * time.Hour)
	sweepAll(t, s)
	again()
	if h := headOf(t, s, "a"); h.Offset != 2 || h.First != 3 || h.Epoch != first.Epoch {
		t.Errorf("a log without entries is at %+v", h)
	}
}

func TestStream_ReadsWriteNothing(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{})
	for i := range 100 {
		headOf(t, s, fmt.Sprint(i))
		if err := s.Trim(t.Context(), fmt.Sprint(i), stream.Retention{Count: 1}); err != nil {
			t.Fatal(err)
		}
		if err := s.Reset(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, s, "SELECT count(*) FROM stream_logs") + number(t, s, "SELECT total_changes()"); n > 1 { // the generation
		t.Errorf("%d rows were written", n)
	}
}

// Rows of trimmed entries and of old keys are bounded without Sweep, as long as there are appends.
func TestStream_AppendsCleanUp(t *testing.T) {
	t.Parallel()
	for name, retain := range map[string]stream.Retention{"count": {Count: 10}, "age": {Age: 10 * time.Second}, "bytes": {Bytes: 100}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clock := streamtest.NewClock()
			s := newStream(t, sqlite.StreamOptions{Now: clock.Now})
			for i := range 1000 {
				add(t, s, "a", "0123456789", stream.AppendOptions{Key: fmt.Sprint(i), Retain: retain})
				clock.Add(time.Second)
				h := headOf(t, s, "a")
				if kept := h.Offset + 1 - h.First; kept > 10 || i > 10 && kept != 10 {
					t.Fatalf("%d entries are kept of %d", kept, i+1)
				}
				if n := number(t, s, "SELECT count(*) FROM stream_entries"); n >= 10+32+2 {
					t.Fatalf("%d rows of entries", n)
				}
				if n := number(t, s, "SELECT count(*) FROM stream_keys"); n > int64(stream.KeyWindow/time.Second)+2 {
					t.Fatalf("%d rows of keys", n)
				}
			}
		})
	}
}

// Large entries are not kept long beyond what is shown.
func TestStream_AppendsCleanUpLargeEntries(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{})
	for range 20 {
		add(t, s, "a", strings.Repeat("x", 100_000), stream.AppendOptions{Retain: stream.Retention{Count: 1}})
		if n := number(t, s, "SELECT count(*) FROM stream_entries"); n != 1 {
			t.Fatalf("%d rows of entries", n)
		}
	}
}

func TestStream_Sweep(t *testing.T) {
	t.Parallel()
	clock := streamtest.NewClock()
	path := newPath(t)
	s := openStream(t, path, sqlite.StreamOptions{Now: clock.Now})
	var wg sync.WaitGroup
	for log := range 20 {
		wg.Go(func() {
			for i := range 50 {
				add(t, s, fmt.Sprint("old", log), strings.Repeat("x", 2000), stream.AppendOptions{Key: fmt.Sprint(i), Retain: stream.Retention{Age: time.Minute}})
				add(t, s, "reset", strings.Repeat("x", 2000), stream.AppendOptions{Key: fmt.Sprint(log, i)})
			}
		})
	}
	wg.Wait()
	epoch := headOf(t, s, "old1").Epoch
	add(t, s, "stays", "x", stream.AppendOptions{})
	if n := sweepAll(t, s); n != 1 {
		t.Errorf("nothing was due, and Sweep was called %d times", n)
	}
	if err := s.Reset(t.Context(), "reset"); err != nil {
		t.Fatal(err)
	}
	if h := headOf(t, s, "reset"); h.Offset != 0 {
		t.Errorf("after a reset: %+v", h)
	}
	size := func() int64 { return number(t, s, "PRAGMA page_count") }
	before := size()
	clock.Add(time.Hour)
	rows := func() int64 {
		return number(t, s, "SELECT (SELECT count(*) FROM stream_entries) + (SELECT count(*) FROM stream_keys)")
	}
	for last, more := rows(), true; more; {
		var err error
		if more, err = s.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now := rows(); last-now > 2*1024 {
			t.Errorf("one Sweep deleted %d rows", last-now)
		} else {
			last = now
		}
	}
	if n := rows(); n != 1 {
		t.Errorf("%d rows are left", n)
	}
	if n := number(t, s, "SELECT count(*) FROM stream_logs"); n != 21 {
		t.Errorf("%d logs are left", n)
	}
	if h := headOf(t, s, "old1"); h.Offset != 50 || h.First != 51 || h.Epoch != epoch {
		t.Errorf("a swept log is at %+v, its epoch was %s", h, epoch)
	}
	if after := size(); after > before/2 {
		t.Errorf("%d pages of %d are left", after, before)
	}
	if a := add(t, s, "old1", "", stream.AppendOptions{}); a.Offset != 51 {
		t.Errorf("appended at %+v", a)
	}
	if n := sweepAll(t, s); n != 1 {
		t.Errorf("nothing was due, and Sweep was called %d times", n)
	}
}

// A large trim deletes its rows little by little, and its log is due until they are gone.
func TestStream_SweepAfterTrim(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{Now: streamtest.NewClock().Now})
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 30 {
				add(t, s, "a", "x", stream.AppendOptions{})
			}
		})
	}
	wg.Wait()
	if err := s.Trim(t.Context(), "a", stream.Retention{Count: 5}); err != nil {
		t.Fatal(err)
	}
	if h := headOf(t, s, "a"); h.First != 2996 {
		t.Errorf("the log is at %+v", h)
	}
	if n := number(t, s, "SELECT count(*) FROM stream_entries"); n != 3000-1024 {
		t.Errorf("%d rows after the trim", n)
	}
	sweepAll(t, s)
	if n := number(t, s, "SELECT count(*) FROM stream_entries"); n != 5 {
		t.Errorf("%d rows after the sweep", n)
	}
}

// block makes a store wait in a watcher of "blocker", so that appends queue up, until release is called.
func block(t *testing.T, s *sqlite.Stream) (release func()) {
	t.Helper()
	entered, leave := make(chan struct{}), make(chan struct{})
	stop, err := s.Watch("blocker", func(string, stream.Entry) {
		close(entered)
		<-leave
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { add(t, s, "blocker", "", stream.AppendOptions{}) })
	<-entered
	return sync.OnceFunc(func() {
		close(leave)
		wg.Wait()
		stop()
	})
}

// What waits is committed at once: entries of one commit have one time.
func TestStream_GroupCommit(t *testing.T) {
	t.Parallel()
	var ticks atomic.Int64
	s := newStream(t, sqlite.StreamOptions{Now: func() time.Time { return time.Unix(0, ticks.Add(1)) }})
	release := block(t, s)
	defer release()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() { add(t, s, "a", "x", stream.AppendOptions{}) })
	}
	until(t, "100 appends", func() bool { return s.Waiting() == 100 })
	if h := headOf(t, s, "a"); h.Offset != 0 {
		t.Errorf("the log is at %+v", h)
	}
	release()
	wg.Wait()
	p, err := s.Read(t.Context(), "a", stream.Position{}, 1000)
	if err != nil || len(p.Entries) != 100 || !p.Entries[0].Time.Equal(p.Entries[99].Time) {
		t.Errorf("%d entries, %v", len(p.Entries), err)
	}
}

func TestStream_BatchBytes(t *testing.T) {
	t.Parallel()
	var ticks atomic.Int64
	s := newStream(t, sqlite.StreamOptions{Now: func() time.Time { return time.Unix(0, ticks.Add(1)) }, MaxBatchBytes: 10_000})
	release := block(t, s)
	defer release()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { add(t, s, "a", strings.Repeat("x", 4000), stream.AppendOptions{}) })
	}
	until(t, "20 appends", func() bool { return s.Waiting() == 20 })
	release()
	wg.Wait()
	p, err := s.Read(t.Context(), "a", stream.Position{}, 1000)
	if err != nil {
		t.Fatal(err)
	}
	size := map[time.Time]int{}
	for _, e := range p.Entries {
		size[e.Time]++
	}
	if len(p.Entries) != 20 || len(size) != 10 {
		t.Errorf("%d entries in %d commits", len(p.Entries), len(size))
	}
}

// An append that nobody waits for any more is taken back; past the bound, appends wait for room.
func TestStream_WaitingAppends(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{MaxWaiting: 2})
	release := block(t, s) // has one place
	defer release()
	ctx, cancel := context.WithCancel(t.Context())
	results := make(chan error)
	for range 5 {
		go func() {
			_, err := s.Append(ctx, "a", nil, stream.AppendOptions{})
			results <- err
		}()
	}
	until(t, "an append", func() bool { return s.Waiting() == 1 })
	cancel()
	for range 5 {
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if n := s.Waiting(); n != 0 {
		t.Errorf("%d appends wait", n)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{s.Trim(ended, "a", stream.Retention{}), s.Reset(ended, "a")} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	release()
	if h := headOf(t, s, "a"); h.Offset != 0 {
		t.Errorf("the log is at %+v", h)
	}
}

// A watcher that panics does so in one append; the others have their results, and the store goes on.
func TestStream_WatcherPanics(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{})
	stop, err := s.Watch("a", func(string, stream.Entry) { panic("watcher") })
	if err != nil {
		t.Fatal(err)
	}
	release := block(t, s)
	var panics, fine atomic.Int32
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			add(t, s, "a", "", stream.AppendOptions{})
			fine.Add(1)
		})
	}
	until(t, "10 appends", func() bool { return s.Waiting() == 10 })
	release()
	wg.Wait()
	if panics.Load() != 1 || fine.Load() != 9 {
		t.Errorf("%d panics, %d results", panics.Load(), fine.Load())
	}
	stop()
	if a := add(t, s, "a", "", stream.AppendOptions{}); a.Offset != 11 {
		t.Errorf("appended at %+v", a)
	}
}

func TestStream_Close(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{})
	release := block(t, s)
	defer release()
	waiting := make(chan error)
	go func() {
		_, err := s.Append(t.Context(), "a", nil, stream.AppendOptions{})
		waiting <- err
	}()
	until(t, "an append", func() bool { return s.Waiting() == 1 })
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	until(t, "Close", func() bool {
		_, err := s.Head(t.Context(), "a")
		return errors.Is(err, stream.ErrClosed)
	})
	select {
	case <-closed:
		t.Fatal("Close did not wait for the commit in progress")
	default:
	}
	release() // whoever is next commits the other append, or it is refused
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if err := <-waiting; err != nil && !errors.Is(err, stream.ErrClosed) {
		t.Error(err)
	}
	ctx := t.Context()
	_, appended := s.Append(ctx, "a", nil, stream.AppendOptions{})
	_, head := s.Head(ctx, "a")
	_, read := s.Read(ctx, "a", stream.Position{}, 1)
	_, swept := s.Sweep(ctx)
	for i, err := range []error{appended, head, read, swept, s.Trim(ctx, "a", stream.Retention{}), s.Reset(ctx, "a")} {
		if !errors.Is(err, stream.ErrClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestStream_CloseAmongAll(t *testing.T) {
	t.Parallel()
	for range 20 {
		path := newPath(t)
		s := openStream(t, path, sqlite.StreamOptions{MaxWaiting: 4})
		var acknowledged atomic.Uint64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for {
					a, err := s.Append(t.Context(), "a", nil, stream.AppendOptions{})
					if errors.Is(err, stream.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
					}
					acknowledged.Add(1)
					if _, err := s.Read(t.Context(), "a", stream.Position{Offset: a.Offset - 1}, 1); err != nil && !errors.Is(err, stream.ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
		until(t, "appends", func() bool { return acknowledged.Load() > 20 })
		closeStream(t, s)
		wg.Wait()
		if h := headOf(t, openStream(t, path, sqlite.StreamOptions{}), "a"); h.Offset != acknowledged.Load() {
			t.Fatalf("%d appends were acknowledged, the log is at %+v", acknowledged.Load(), h)
		}
	}
}

func TestStream_InUse(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStream(t, path, sqlite.StreamOptions{})
	link := filepath.Join(filepath.Dir(path), "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{path, link} {
		if s, err := sqlite.OpenStream(p, sqlite.StreamOptions{}); !errors.Is(err, sqlite.ErrInUse) {
			t.Errorf("%s: %v, %v", p, s, err)
		}
	}
	closeStream(t, s)
	openStream(t, link, sqlite.StreamOptions{})
}

// raw opens a database without this package.
func raw(t *testing.T, path string) *sqlite3.Conn {
	t.Helper()
	db, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READWRITE|sqlite3.OPEN_CREATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func run(t *testing.T, db *sqlite3.Conn, sql string) {
	t.Helper()
	if err := db.Exec(sql); err != nil {
		t.Fatal(err)
	}
}

func TestStream_RefusedFiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"garbage", func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "file is not a database"},
		{"another application", func(t *testing.T, path string) { run(t, raw(t, path), "PRAGMA application_id = 7") }, "the file is a database of something else"},
		{"tables of somebody", func(t *testing.T, path string) { run(t, raw(t, path), "CREATE TABLE people (name)") }, "the file is a database of something else"},
		{"newer", func(t *testing.T, path string) {
			closeStream(t, openStream(t, path, sqlite.StreamOptions{}))
			run(t, raw(t, path), "PRAGMA user_version = 99")
		}, "the file has the version 99, and this program knows up to 1"},
		{"directory", func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		}, "directory"},
		{"no tables", func(t *testing.T, path string) {
			closeStream(t, openStream(t, path, sqlite.StreamOptions{}))
			run(t, raw(t, path), "DROP TABLE stream_entries")
		}, "no such table: stream_entries"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			tc.make(t, path)
			before, _ := os.ReadFile(path)
			s, err := sqlite.OpenStream(path, sqlite.StreamOptions{})
			if err == nil || !strings.HasPrefix(err.Error(), "sqlite: opening "+path+": ") || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("%v, %v", s, err)
			}
			if after, _ := os.ReadFile(path); string(after) != string(before) {
				t.Error("the file was touched")
			}
		})
	}
	for _, path := range []string{"", filepath.Join(t.TempDir(), "none", "tidewire.db")} {
		if s, err := sqlite.OpenStream(path, sqlite.StreamOptions{}); err == nil || !strings.HasPrefix(err.Error(), "sqlite: opening ") {
			t.Errorf("%q: %v, %v", path, s, err)
		}
	}
}

// A full disk fails the appends of its commit and nothing else.
func TestStream_DiskFull(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStream(t, path, sqlite.StreamOptions{})
	before := add(t, s, "a", "1", stream.AppendOptions{})
	if err := s.Exec("PRAGMA max_page_count = 64"); err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int32
	stop, err := s.Watch("a", func(string, stream.Entry) { seen.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	release := block(t, s)
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			a, err := s.Append(t.Context(), "a", make([]byte, 50_000), stream.AppendOptions{Key: fmt.Sprint(i)})
			if !errors.Is(err, sqlite3.FULL) || !strings.HasPrefix(err.Error(), "sqlite: appending: ") || a != (stream.Appended{}) {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	until(t, "10 appends", func() bool { return s.Waiting() == 10 })
	release()
	wg.Wait()
	if h := headOf(t, s, "a"); h.Position != before.Position || seen.Load() != 0 {
		t.Errorf("the log is at %+v, %d entries were seen", h, seen.Load())
	}
	if a := add(t, s, "a", "2", stream.AppendOptions{}); a.Offset != 2 { // it has room
		t.Errorf("appended at %+v", a)
	}
	if err := s.Exec("PRAGMA max_page_count = 1000000"); err != nil {
		t.Fatal(err)
	}
	if a := add(t, s, "a", "3", stream.AppendOptions{Key: "1"}); a.Offset != 3 || a.Duplicate || seen.Load() != 2 {
		t.Errorf("appended at %+v, %d entries were seen", a, seen.Load())
	}
}

// Another program that writes makes appends wait, and fail if it goes on for too long; reads do not wait.
func TestStream_Busy(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStream(t, path, sqlite.StreamOptions{BusyTimeout: 20 * time.Millisecond})
	add(t, s, "a", "1", stream.AppendOptions{})
	other := raw(t, path)
	run(t, other, "BEGIN IMMEDIATE")
	if a, err := s.Append(t.Context(), "a", nil, stream.AppendOptions{}); !errors.Is(err, sqlite3.BUSY) || !strings.HasPrefix(err.Error(), "sqlite: appending: ") {
		t.Errorf("%+v, %v", a, err)
	}
	if err := s.Trim(t.Context(), "a", stream.Retention{Count: 1}); !errors.Is(err, sqlite3.BUSY) || !strings.HasPrefix(err.Error(), "sqlite: trimming: ") {
		t.Error(err)
	}
	if h := headOf(t, s, "a"); h.Offset != 1 {
		t.Errorf("the log is at %+v", h)
	}
	run(t, other, "ROLLBACK")
	if a := add(t, s, "a", "2", stream.AppendOptions{}); a.Offset != 2 {
		t.Errorf("appended at %+v", a)
	}
}

// A damaged file gives errors, not parts of a log.
func TestStream_Damaged(t *testing.T) {
	t.Parallel()
	s := newStream(t, sqlite.StreamOptions{})
	for range 5 {
		add(t, s, "a", "x", stream.AppendOptions{})
	}
	for _, tc := range []struct{ name, sql string }{
		{"a hole", `DELETE FROM stream_entries WHERE "offset" = 3`},
		{"no end", `DELETE FROM stream_entries WHERE "offset" >= 5`},
		{"nothing", `DELETE FROM stream_entries`},
	} {
		if err := s.Exec(tc.sql); err != nil {
			t.Fatal(err)
		}
		p, err := s.Read(t.Context(), "a", stream.Position{}, 100)
		if err == nil || errors.Is(err, stream.ErrGap) || !strings.HasPrefix(err.Error(), "sqlite: reading: the file is damaged: ") || len(p.Entries) > 0 {
			t.Errorf("%s: %d entries, %v", tc.name, len(p.Entries), err)
		}
	}
	retain := stream.AppendOptions{Retain: stream.Retention{Age: time.Hour}}
	if a, err := s.Append(t.Context(), "a", nil, retain); err == nil || !strings.HasPrefix(err.Error(), "sqlite: appending: the file is damaged: ") {
		t.Errorf("%+v, %v", a, err)
	}
	if err := s.Reset(t.Context(), "a"); err != nil { // which ends it
		t.Fatal(err)
	}
	if a := add(t, s, "a", "", retain); a.Offset != 1 {
		t.Errorf("appended at %+v", a)
	}
}

// Reads that overlap all the time do not make the write-ahead log grow for ever.
func TestStream_WALIsBounded(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStream(t, path, sqlite.StreamOptions{})
	s.LimitWAL(50)
	add(t, s, "a", "x", stream.AppendOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Read(ctx, "a", stream.Position{}, 1000); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for range 500 {
		add(t, s, "a", strings.Repeat("x", 200), stream.AppendOptions{})
	}
	cancel()
	wg.Wait()
	info, err := os.Stat(path + "-wal")
	if err != nil || info.Size() > 10*50*5000 {
		t.Errorf("the write-ahead log has %d bytes, %v", info.Size(), err)
	}
}
