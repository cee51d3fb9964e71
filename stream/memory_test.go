package stream_test

import (
	"fmt"
	"runtime"
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
