package stream_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/stream/streamtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// S10: the promises of every store.
func TestS10_Memory(t *testing.T) {
	t.Parallel()
	streamtest.Run(t, func(_ *testing.T, now func() time.Time) stream.Store {
		return stream.NewMemory(stream.MemoryOptions{Now: now})
	})
}

func TestMemory_MaxLogs(t *testing.T) {
	t.Parallel()
	clock := streamtest.NewClock()
	m := stream.NewMemory(stream.MemoryOptions{MaxLogs: 10, Now: clock.Now})
	ctx := t.Context()
	put := func(name string) stream.Appended {
		t.Helper()
		clock.Add(time.Second)
		a, err := m.Append(ctx, name, []byte("x"), stream.AppendOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	stop, err := m.Watch("watched", func(string, stream.Entry) {})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	put("watched")
	first := put("first")
	for i := range 9 { // 11 logs: the first is the one that was not used for longest
		put(fmt.Sprint(i))
	}
	if h, _ := m.Head(ctx, "watched"); h.Offset != 1 {
		t.Error("a watched log was lost")
	}
	h, err := m.Head(ctx, "first")
	if err != nil || h.Offset != 0 || h.Epoch == first.Epoch {
		t.Errorf("the log is at %+v, and its loss does not show (%v)", h, err)
	}
	if a := put("first"); a.Offset != 1 || a.Epoch == first.Epoch {
		t.Errorf("appended at %+v", a)
	}
}

func TestMemory_MaxBytes(t *testing.T) {
	t.Parallel()
	clock := streamtest.NewClock()
	m := stream.NewMemory(stream.MemoryOptions{MaxBytes: 100_000, Now: clock.Now})
	ctx := t.Context()
	data := make([]byte, 1000)
	for i := range 2000 {
		clock.Add(time.Second)
		if _, err := m.Append(ctx, fmt.Sprint(i%3), data, stream.AppendOptions{Key: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
		kept := 0
		for log := range 3 {
			h, err := m.Head(ctx, fmt.Sprint(log))
			if err != nil {
				t.Fatal(err)
			}
			kept += int(h.Offset + 1 - h.First)
		}
		if kept > 100 {
			t.Fatalf("%d entries of 1,000 bytes are kept in 100,000", kept)
		}
	}
	h, err := m.Head(ctx, fmt.Sprint(1999%3))
	if err != nil || h.First > h.Offset {
		t.Errorf("nothing is left of the newest log: %+v, %v", h, err)
	}
}

// A log remembers its newest MaxKeys keys, each of them, and no more.
func TestMemory_MaxKeys(t *testing.T) {
	t.Parallel()
	s := stream.NewMemory(stream.MemoryOptions{})
	key := func(k string) stream.Appended {
		t.Helper()
		a, err := s.Append(t.Context(), "a", nil, stream.AppendOptions{Key: k, Retain: stream.Retention{Count: 10}})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	key("first")
	var wg sync.WaitGroup
	for g := range 100 {
		wg.Go(func() {
			for i := g; i < stream.MaxKeys-1; i += 100 {
				if _, err := s.Append(t.Context(), "a", nil, stream.AppendOptions{Key: fmt.Sprint(i), Retain: stream.Retention{Count: 10}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if a := key("first"); !a.Duplicate || a.Offset != 1 {
		t.Errorf("the oldest of %d keys: %+v", stream.MaxKeys, a)
	}
	key("last")
	if a := key("first"); a.Duplicate {
		t.Errorf("the oldest of %d keys: %+v", stream.MaxKeys+1, a)
	}
	if a := key("last"); !a.Duplicate {
		t.Errorf("the newest key: %+v", a)
	}
}

// One who fills the memory loses the most; the small logs of others stay whole, and appending stays cheap.
func TestMemory_WhoFillsLoses(t *testing.T) {
	t.Parallel()
	m := stream.NewMemory(stream.MemoryOptions{MaxBytes: 1 << 20})
	ctx := t.Context()
	put := func(name string, size int) stream.Appended {
		t.Helper()
		a, err := m.Append(ctx, name, make([]byte, size), stream.AppendOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	var small stream.Appended
	for range 10 {
		small = put("small", 100)
	}
	for i := range 5000 {
		name := fmt.Sprint("large", i%50)
		if i < 50 { // all are watched
			stop, err := m.Watch(name, func(string, stream.Entry) {})
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
		}
		put(name, 10_000)
	}
	p, err := m.Read(ctx, "small", stream.Position{Epoch: small.Epoch}, 100)
	if err != nil || len(p.Entries) != 10 {
		t.Errorf("%d entries are left of the small log: %v", len(p.Entries), err)
	}
}

// What expires is freed although its log is never used again.
func TestMemory_ExpiredLogsMakeRoom(t *testing.T) {
	t.Parallel()
	clock := streamtest.NewClock()
	m := stream.NewMemory(stream.MemoryOptions{MaxBytes: 1 << 20, Now: clock.Now})
	ctx := t.Context()
	var epochs []string
	for round := range 50 {
		for i := range 10 {
			a, err := m.Append(ctx, fmt.Sprint(i), make([]byte, 20_000), stream.AppendOptions{Retain: stream.Retention{Age: time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			if round == 0 {
				epochs = append(epochs, a.Epoch)
			} else if a.Epoch != epochs[i] {
				t.Fatal("a log was lost although the others had expired")
			}
		}
		clock.Add(time.Minute)
	}
}

func TestMemory_NothingKeptOfReads(t *testing.T) {
	m := stream.NewMemory(stream.MemoryOptions{})
	ctx := t.Context()
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	for i := range 200_000 {
		name := fmt.Sprint("log", i)
		if _, err := m.Head(ctx, name); err != nil {
			t.Fatal(err)
		}
		stop, err := m.Watch(name, func(string, stream.Entry) {})
		if err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if after := heap(); after > before+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before, after)
	}
	runtime.KeepAlive(m)
}

func BenchmarkMemory_Append(b *testing.B) {
	m := stream.NewMemory(stream.MemoryOptions{})
	data := make([]byte, 128)
	opts := stream.AppendOptions{Retain: stream.Retention{Count: 100, Age: time.Minute}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Append(b.Context(), "a", data, opts); err != nil {
			b.Fatal(err)
		}
	}
}
