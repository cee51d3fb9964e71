// Package streamtest holds every [stream.Store] against the same promises.
package streamtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/stream"
)

// Clock is a clock that tests move.
type Clock struct{ ns atomic.Int64 }

// NewClock returns a clock that stands at some time.
func NewClock() *Clock {
	c := &Clock{}
	c.ns.Store(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixNano())
	return c
}

// Now is the time.
func (c *Clock) Now() time.Time { return time.Unix(0, c.ns.Load()) }

// Add moves the clock.
func (c *Clock) Add(d time.Duration) { c.ns.Add(int64(d)) }

// Run runs the suite. open makes an empty store with a clock; it is closed by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T, now func() time.Time) stream.Store) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, stream.Store, *Clock)
	}{
		{"append and read", appendAndRead},
		{"P09 positions", positions},
		{"trim", trim},
		{"expiry", expiry},
		{"idempotent append", idempotent},
		{"P18 idempotent append from many", idempotentConcurrent},
		{"expired stays away", expiredStaysAway},
		{"pages are bounded in bytes", pageBytes},
		{"reset", reset},
		{"reset while watched", resetWatched},
		{"watch", watch},
		{"watch, stop while appending", watchStop},
		{"names and keys are bytes", exactNames},
		{"P16 own appends are read", readOwn},
		{"P16 concurrent appends, watchers and followers", concurrent},
		{"follow", follow},
		{"follow past a trim", followTrimmed},
		{"follow past a reset", followReset},
		{"bounds", bounds},
		{"ended context", ended},
		{"last", last},
		{"P11 against a model", model},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			clock := NewClock()
			tc.test(t, open(t, clock.Now), clock)
		})
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func add(t *testing.T, s stream.Store, name string, data ...string) {
	t.Helper()
	for _, d := range data {
		must[stream.Appended](t)(s.Append(t.Context(), name, []byte(d), stream.AppendOptions{}))
	}
}

func texts(entries []stream.Entry) []string {
	out := []string{}
	for _, e := range entries {
		out = append(out, fmt.Sprintf("%d=%s", e.Offset, e.Data))
	}
	return out
}

func same(t *testing.T, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
}

func appendAndRead(t *testing.T, s stream.Store, clock *Clock) {
	ctx := t.Context()
	empty := must[stream.Head](t)(s.Head(ctx, "a"))
	if empty.Epoch == "" || empty.Offset != 0 || empty.First != 1 {
		t.Fatalf("head of nothing: %+v", empty)
	}
	for i, text := range []string{"one", "", "three"} {
		a := must[stream.Appended](t)(s.Append(ctx, "a", []byte(text), stream.AppendOptions{}))
		same(t, a, stream.Appended{Position: stream.Position{Offset: uint64(i) + 1, Epoch: empty.Epoch}})
		clock.Add(time.Second)
	}
	add(t, s, "b", "other")
	p := must[stream.Page](t)(s.Read(ctx, "a", stream.Position{Offset: 1, Epoch: empty.Epoch}, 10))
	same(t, texts(p.Entries), []string{"2=", "3=three"})
	same(t, p.Head, stream.Head{Position: stream.Position{Offset: 3, Epoch: empty.Epoch}, First: 1})
	same(t, p.Entries[1].Time.Sub(p.Entries[0].Time), time.Second)
	p = must[stream.Page](t)(s.Read(ctx, "a", stream.Position{}, 2))
	same(t, texts(p.Entries), []string{"1=one", "2="})
	same(t, must[stream.Head](t)(s.Head(ctx, "b")).Offset, uint64(1))
	if p = must[stream.Page](t)(s.Read(ctx, "a", stream.Position{}, 0)); len(p.Entries) != 0 {
		t.Fatal("a limit of 0 reads nothing")
	}
}

// positions is the table of P09: which positions a log continues.
func positions(t *testing.T, s stream.Store, clock *Clock) {
	ctx := t.Context()
	retain := stream.AppendOptions{Retain: stream.Retention{Age: time.Minute}}
	for range 10 {
		must[stream.Appended](t)(s.Append(ctx, "expired", []byte("x"), retain))
	}
	clock.Add(time.Hour)
	for i := range 10 {
		must[stream.Appended](t)(s.Append(ctx, "trimmed", []byte{'0' + byte(i)}, stream.AppendOptions{Retain: stream.Retention{Count: 4}}))
	}
	for _, tc := range []struct {
		log    string
		after  uint64
		other  bool // epoch
		any    bool
		gap    bool
		follow int
	}{
		{log: "empty", after: 0},
		{log: "empty", after: 0, any: true},
		{log: "empty", after: 1, gap: true},
		{log: "empty", after: 0, other: true, gap: true},
		{log: "trimmed", after: 10},
		{log: "trimmed", after: 9, follow: 1},
		{log: "trimmed", after: 6, follow: 4},
		{log: "trimmed", after: 5, gap: true},
		{log: "trimmed", after: 0, gap: true},
		{log: "trimmed", after: 11, gap: true},
		{log: "trimmed", after: 1 << 62, gap: true},
		{log: "trimmed", after: 10, other: true, gap: true},
		{log: "trimmed", after: 9, any: true, follow: 1},
		{log: "expired", after: 10},
		{log: "expired", after: 9, gap: true},
		{log: "expired", after: 11, gap: true},
		{log: "expired", after: 10, other: true, gap: true},
	} {
		head := must[stream.Head](t)(s.Head(ctx, tc.log))
		after := stream.Position{Offset: tc.after, Epoch: head.Epoch}
		if tc.other {
			after.Epoch = "other"
		} else if tc.any {
			after.Epoch = ""
		}
		p, err := s.Read(ctx, tc.log, after, 100)
		if errors.Is(err, stream.ErrGap) != tc.gap || err != nil && !tc.gap || len(p.Entries) != tc.follow {
			t.Errorf("%+v: %d entries, %v", tc, len(p.Entries), err)
		}
		same(t, p.Head, head)
		if head.Continues(after) == tc.gap {
			t.Errorf("%+v: Continues", tc)
		}
	}
}

func trim(t *testing.T, s stream.Store, clock *Clock) {
	ctx := t.Context()
	add(t, s, "a", "1", "22", "333", "4444", "55555")
	if err := s.Trim(ctx, "a", stream.Retention{Count: 3}); err != nil {
		t.Fatal(err)
	}
	same(t, must[stream.Head](t)(s.Head(ctx, "a")).First, uint64(3))
	if err := s.Trim(ctx, "a", stream.Retention{Bytes: 9}); err != nil {
		t.Fatal(err)
	}
	same(t, must[stream.Head](t)(s.Head(ctx, "a")).First, uint64(4))
	if err := s.Trim(ctx, "a", stream.Retention{Bytes: 1}); err != nil { // the newest stays
		t.Fatal(err)
	}
	same(t, must[stream.Head](t)(s.Head(ctx, "a")).First, uint64(5))
	clock.Add(time.Minute)
	if err := s.Trim(ctx, "a", stream.Retention{Age: time.Second}); err != nil {
		t.Fatal(err)
	}
	same(t, must[stream.Head](t)(s.Head(ctx, "a")).First, uint64(6))
	add(t, s, "a", "6")
	same(t, texts(must[stream.Page](t)(s.Read(ctx, "a", stream.Position{Offset: 5}, 9)).Entries), []string{"6=6"})
	if err := s.Trim(ctx, "nothing", stream.Retention{Count: 1}); err != nil {
		t.Fatal(err)
	}
}

func expiry(t *testing.T, s stream.Store, clock *Clock) {
	ctx := t.Context()
	retain := stream.AppendOptions{Retain: stream.Retention{Age: time.Minute}}
	must[stream.Appended](t)(s.Append(ctx, "a", []byte("old"), retain))
	clock.Add(40 * time.Second)
	must[stream.Appended](t)(s.Append(ctx, "a", []byte("new"), retain))
	clock.Add(40 * time.Second)
	p := must[stream.Page](t)(s.Read(ctx, "a", stream.Position{Offset: 1}, 9))
	same(t, texts(p.Entries), []string{"2=new"})
	same(t, p.Head.First, uint64(2))
	clock.Add(time.Hour)
	h := must[stream.Head](t)(s.Head(ctx, "a"))
	same(t, h.First, uint64(3))
	same(t, h.Offset, uint64(2))
	same(t, h.Epoch, p.Head.Epoch)
	a := must[stream.Appended](t)(s.Append(ctx, "a", nil, retain))
	same(t, a.Offset, uint64(3))
}

func idempotent(t *testing.T, s stream.Store, clock *Clock) {
	ctx := t.Context()
	opts := stream.AppendOptions{Key: "k", Retain: stream.Retention{Count: 1}}
	first := must[stream.Appended](t)(s.Append(ctx, "a", []byte("1"), opts))
	add(t, s, "a", "2")
	again := must[stream.Appended](t)(s.Append(ctx, "a", []byte("1"), opts))
	same(t, again, stream.Appended{Position: first.Position, Duplicate: true})
	same(t, must[stream.Head](t)(s.Head(ctx, "a")).Offset, uint64(2))
	if other := must[stream.Appended](t)(s.Append(ctx, "b", nil, opts)); other.Duplicate {
		t.Fatal("a key is of one log")
	}
	clock.Add(stream.KeyWindow + time.Second)
	if late := must[stream.Appended](t)(s.Append(ctx, "a", []byte("1"), opts)); late.Duplicate || late.Offset != 3 {
		t.Fatalf("after the window: %+v", late)
	}
}

// expiredStaysAway: an append that retains for longer brings nothing back.
func expiredStaysAway(t *testing.T, s stream.Store, clock *Clock) {
	must[stream.Appended](t)(s.Append(t.Context(), "a", nil, stream.AppendOptions{Retain: stream.Retention{Age: time.Second}}))
	clock.Add(time.Minute)
	add(t, s, "a", "2")
	same(t, must[stream.Head](t)(s.Head(t.Context(), "a")).First, uint64(2))
}

// pageBytes: a page ends at MaxPageBytes, says so, and holds one entry at least.
func pageBytes(t *testing.T, s stream.Store, _ *Clock) {
	ctx := t.Context()
	for _, size := range []int{stream.MaxPageBytes / 2, stream.MaxPageBytes / 2, 1, stream.MaxPageBytes, stream.MaxEntryBytes, 0, 0} {
		must[stream.Appended](t)(s.Append(ctx, "a", make([]byte, size), stream.AppendOptions{}))
	}
	var pages []int
	for after := uint64(0); ; {
		p := must[stream.Page](t)(s.Read(ctx, "a", stream.Position{Offset: after}, 100))
		pages = append(pages, len(p.Entries))
		if p.Ends(after) {
			break
		}
		after = p.Entries[len(p.Entries)-1].Offset
	}
	same(t, pages, []int{2, 1, 1, 1, 2})
	same(t, len(must[stream.Page](t)(stream.Last(ctx, s, "a", 6)).Entries), 6)
	n := 0
	for e, err := range stream.Follow(ctx, s, "a", stream.Position{}) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Offset == 7 {
			break
		}
	}
	same(t, n, 7)
	p := must[stream.Page](t)(s.Read(ctx, "a", stream.Position{Offset: 5}, 1))
	if p.Ends(5) || len(p.Entries) != 1 {
		t.Fatal("a page that its limit has cut")
	}
}

// resetWatched: the epoch of before does not come back when the watchers go.
func resetWatched(t *testing.T, s stream.Store, _ *Clock) {
	ctx := t.Context()
	seen := map[string]bool{}
	for range 3 {
		stop, err := s.Watch("a", func(string, stream.Entry) {})
		if err != nil {
			t.Fatal(err)
		}
		a := must[stream.Appended](t)(s.Append(ctx, "a", nil, stream.AppendOptions{}))
		if seen[a.Epoch] || a.Offset != 1 {
			t.Fatalf("appended at %+v after %v", a, seen)
		}
		seen[a.Epoch] = true
		if err := s.Reset(ctx, "a"); err != nil {
			t.Fatal(err)
		}
		h := must[stream.Head](t)(s.Head(ctx, "a"))
		stop()
		if again := must[stream.Head](t)(s.Head(ctx, "a")); seen[h.Epoch] || again != h {
			t.Fatalf("reset to %+v, and then at %+v", h, again)
		}
	}
}

func idempotentConcurrent(t *testing.T, s stream.Store, _ *Clock) {
	var wg sync.WaitGroup
	var offsets sync.Map
	for i := range 64 {
		wg.Go(func() {
			key := fmt.Sprint("k", i%8)
			a, err := s.Append(t.Context(), "a", []byte(key), stream.AppendOptions{Key: key})
			if err != nil {
				t.Error(err)
			}
			if o, _ := offsets.LoadOrStore(key, a.Offset); o != a.Offset {
				t.Errorf("key %s has the offsets %v and %d", key, o, a.Offset)
			}
		})
	}
	wg.Wait()
	same(t, must[stream.Head](t)(s.Head(t.Context(), "a")).Offset, uint64(8))
}

func reset(t *testing.T, s stream.Store, _ *Clock) {
	ctx := t.Context()
	add(t, s, "a", "1", "2")
	add(t, s, "b", "1")
	before, other := must[stream.Head](t)(s.Head(ctx, "a")), must[stream.Head](t)(s.Head(ctx, "b"))
	var seen []string
	stop, err := s.Watch("a", func(epoch string, e stream.Entry) { seen = append(seen, fmt.Sprint(epoch != before.Epoch, e.Offset)) })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	add(t, s, "a", "3")
	if err := s.Reset(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	h := must[stream.Head](t)(s.Head(ctx, "a"))
	if h.Epoch == before.Epoch || h.Offset != 0 || h.First != 1 {
		t.Fatalf("after a reset: %+v", h)
	}
	add(t, s, "a", "new")
	p := must[stream.Page](t)(s.Read(ctx, "a", stream.Position{Epoch: h.Epoch}, 9))
	same(t, texts(p.Entries), []string{"1=new"})
	if p.Head.Epoch != h.Epoch {
		t.Fatal("the epoch that was announced is not the one that came")
	}
	same(t, seen, []string{"false 3", "true 1"})
	same(t, must[stream.Head](t)(s.Head(ctx, "b")), other)
	if err := s.Reset(ctx, "nothing"); err != nil {
		t.Fatal(err)
	}
}

func watch(t *testing.T, s stream.Store, _ *Clock) {
	var a, b []string
	stopA, err := s.Watch("a", func(_ string, e stream.Entry) { a = append(a, string(e.Data)) })
	if err != nil {
		t.Fatal(err)
	}
	add(t, s, "a", "1")
	stopB, err := s.Watch("a", func(_ string, e stream.Entry) { b = append(b, string(e.Data)) })
	if err != nil {
		t.Fatal(err)
	}
	add(t, s, "a", "2")
	add(t, s, "other", "x")
	stopA()
	stopA()
	add(t, s, "a", "3")
	stopB()
	add(t, s, "a", "4")
	same(t, a, []string{"1", "2"})
	same(t, b, []string{"2", "3"})
}

func watchStop(t *testing.T, s stream.Store, _ *Clock) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if _, err := s.Append(ctx, "a", nil, stream.AppendOptions{Retain: stream.Retention{Count: 5}}); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	for range 50 {
		var stopped atomic.Bool
		seen := make(chan struct{}, 1)
		stop, err := s.Watch("a", func(string, stream.Entry) {
			if stopped.Load() {
				t.Error("called after stop")
			}
			select {
			case seen <- struct{}{}:
			default:
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		<-seen
		stop()
		stopped.Store(true)
	}
	cancel()
	wg.Wait()
}

// exactNames: no two names, and no two keys, are the same for a store that thinks of them as text.
func exactNames(t *testing.T, s stream.Store, _ *Clock) {
	names := []string{"a", "A", "a ", " a", "a\x00", "a\x00b", "\x00", "\xff", "\xfe", "\xef\xbf\xbd", "\u00e9", "e\u0301", "%", "_", "'", "''", "1", "01", "1.0", "NULL"}
	for i, n := range names {
		for k, key := range names[:i+1] {
			a := must[stream.Appended](t)(s.Append(t.Context(), n, []byte(n+key), stream.AppendOptions{Key: key}))
			if a.Duplicate || a.Offset != uint64(k)+1 {
				t.Fatalf("%q with the key %q: %+v", n, key, a)
			}
		}
	}
	for i, n := range names {
		p := must[stream.Page](t)(s.Read(t.Context(), n, stream.Position{}, len(names)))
		if len(p.Entries) != i+1 || string(p.Entries[i].Data) != n+n {
			t.Fatalf("%q has %q", n, texts(p.Entries))
		}
	}
}

// readOwn: a read sees what was appended before, also while others append; and what it sees is what the watchers saw.
func readOwn(t *testing.T, s stream.Store, _ *Clock) {
	ctx := t.Context()
	watched := map[uint64]stream.Entry{}
	stop, err := s.Watch("a", func(_ string, e stream.Entry) { watched[e.Offset] = e })
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 30 {
				data := fmt.Sprint(g, i)
				a, err := s.Append(ctx, "a", []byte(data), stream.AppendOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				p, err := s.Read(ctx, "a", stream.Position{Offset: a.Offset - 1, Epoch: a.Epoch}, 1)
				if err != nil || len(p.Entries) != 1 || string(p.Entries[0].Data) != data || p.Head.Offset < a.Offset {
					t.Errorf("appended %q at %+v, read %q, %+v, %v", data, a, texts(p.Entries), p.Head, err)
				}
			}
		})
	}
	wg.Wait()
	stop()
	for _, e := range must[stream.Page](t)(s.Read(ctx, "a", stream.Position{}, 1000)).Entries {
		if w := watched[e.Offset]; string(w.Data) != string(e.Data) || !w.Time.Equal(e.Time) {
			t.Errorf("read %+v, watched %+v", e, w)
		}
	}
	same(t, len(watched), 240)
}

// concurrent: many append at once; everybody sees the same order, without gaps, and each publisher's own order in it.
func concurrent(t *testing.T, s stream.Store, _ *Clock) {
	const publishers, each = 16, 50
	const total = publishers * each
	ctx := t.Context()
	var watched []stream.Entry
	stop, err := s.Watch("a", func(_ string, e stream.Entry) { watched = append(watched, e) })
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	followed := make([][]stream.Entry, 3)
	for i := range followed {
		wg.Go(func() {
			for e, err := range stream.Follow(ctx, s, "a", stream.Position{}) {
				if err != nil {
					t.Error(err)
					return
				}
				if followed[i] = append(followed[i], e); e.Offset == total {
					return
				}
			}
		})
	}
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				if _, err := s.Append(ctx, "a", fmt.Appendf(nil, "%d %d", p, i), stream.AppendOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stop()
	var next [publishers]int
	for i, e := range watched {
		var p, n int
		if _, err := fmt.Sscanf(string(e.Data), "%d %d", &p, &n); err != nil || e.Offset != uint64(i+1) || next[p] != n {
			t.Fatalf("entry %d has offset %d and is %q, want number %d (%v)", i, e.Offset, e.Data, next[p], err)
		}
		next[p]++
	}
	same(t, len(watched), total)
	for _, f := range followed {
		same(t, texts(f), texts(watched))
	}
}

func follow(t *testing.T, s stream.Store, _ *Clock) {
	add(t, s, "a", "1", "2", "3")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	var ending error
	for e, err := range stream.Follow(ctx, s, "a", stream.Position{Offset: 1}) {
		if err != nil {
			ending = err
			break
		}
		got = append(got, string(e.Data))
		switch string(e.Data) {
		case "3":
			add(t, s, "a", "4", "5") // while it is away
		case "5":
			cancel()
		}
	}
	same(t, got, []string{"2", "3", "4", "5"})
	if !errors.Is(ending, context.Canceled) {
		t.Fatal(ending)
	}
}

func followTrimmed(t *testing.T, s stream.Store, _ *Clock) {
	add(t, s, "a", "1")
	var got []string
	for e, err := range stream.Follow(t.Context(), s, "a", stream.Position{}) {
		if err != nil {
			if !errors.Is(err, stream.ErrGap) {
				t.Fatal(err)
			}
			got = append(got, "gap")
			break
		}
		got = append(got, string(e.Data))
		add(t, s, "a", "2", "3")
		if err := s.Trim(t.Context(), "a", stream.Retention{Count: 1}); err != nil {
			t.Fatal(err)
		}
	}
	same(t, got, []string{"1", "gap"})
}

// followReset: another epoch ends it, although the new log is further than the old one.
func followReset(t *testing.T, s stream.Store, _ *Clock) {
	add(t, s, "a", "1", "2")
	var got []string
	for e, err := range stream.Follow(t.Context(), s, "a", stream.Position{Offset: 1}) {
		if err != nil {
			if !errors.Is(err, stream.ErrGap) {
				t.Fatal(err)
			}
			break
		}
		got = append(got, string(e.Data))
		if err := s.Reset(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		add(t, s, "a", "1", "2", "3", "4", "5")
	}
	same(t, got, []string{"2"})
}

func bounds(t *testing.T, s stream.Store, _ *Clock) {
	ctx := t.Context()
	big := make([]byte, stream.MaxEntryBytes)
	must[stream.Appended](t)(s.Append(ctx, strings.Repeat("n", stream.MaxNameBytes), big, stream.AppendOptions{Key: strings.Repeat("k", stream.MaxKeyBytes)}))
	for name, err := range map[string]error{
		"entry":      second(s.Append(ctx, "a", append(big, 1), stream.AppendOptions{})),
		"key":        second(s.Append(ctx, "a", nil, stream.AppendOptions{Key: strings.Repeat("k", stream.MaxKeyBytes+1)})),
		"name":       second(s.Append(ctx, strings.Repeat("n", stream.MaxNameBytes+1), nil, stream.AppendOptions{})),
		"no name":    second(s.Append(ctx, "", nil, stream.AppendOptions{})),
		"read name":  second(s.Read(ctx, "", stream.Position{}, 1)),
		"head name":  second(s.Head(ctx, "")),
		"trim name":  s.Trim(ctx, "", stream.Retention{}),
		"reset name": s.Reset(ctx, ""),
		"watch name": second(s.Watch("", func(string, stream.Entry) {})),
	} {
		if !errors.Is(err, stream.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	same(t, must[stream.Head](t)(s.Head(ctx, "a")).Offset, uint64(0))
}

func second[T any](_ T, err error) error { return err }

func ended(t *testing.T, s stream.Store, _ *Clock) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		second(s.Append(ctx, "a", nil, stream.AppendOptions{})),
		second(s.Read(ctx, "a", stream.Position{}, 1)),
		second(s.Head(ctx, "a")),
		s.Trim(ctx, "a", stream.Retention{}),
		s.Reset(ctx, "a"),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	same(t, must[stream.Head](t)(s.Head(t.Context(), "a")).Offset, uint64(0))
}

func last(t *testing.T, s stream.Store, _ *Clock) {
	ctx := t.Context()
	if p := must[stream.Page](t)(stream.Last(ctx, s, "a", 3)); len(p.Entries) != 0 || p.Head.Epoch == "" {
		t.Fatalf("%+v", p)
	}
	add(t, s, "a", "1", "2", "3", "4")
	same(t, texts(must[stream.Page](t)(stream.Last(ctx, s, "a", 3)).Entries), []string{"2=2", "3=3", "4=4"})
	same(t, len(must[stream.Page](t)(stream.Last(ctx, s, "a", 0)).Entries), 0)
	if err := s.Trim(ctx, "a", stream.Retention{Count: 2}); err != nil {
		t.Fatal(err)
	}
	same(t, texts(must[stream.Page](t)(stream.Last(ctx, s, "a", 3)).Entries), []string{"3=3", "4=4"})
}

// model holds random operations against a naive log.
func model(t *testing.T, s stream.Store, clock *Clock) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	ctx := t.Context()
	type naive struct {
		epoch   string
		head    uint64
		kept    []stream.Entry
		keys    map[string]uint64 // cleared before one could be forgotten
		retain  stream.Retention
		started bool
	}
	names := []string{"a", "b", "c"}
	logs := map[string]*naive{}
	cleared := clock.Now()
	for _, n := range names {
		logs[n] = &naive{epoch: must[stream.Head](t)(s.Head(ctx, n)).Epoch, keys: map[string]uint64{}}
	}
	cut := func(l *naive, r stream.Retention) {
		for len(l.kept) > 0 {
			bytes := 0
			for _, e := range l.kept {
				bytes += len(e.Data)
			}
			if r.Count > 0 && len(l.kept) > r.Count || r.Age > 0 && clock.Now().Sub(l.kept[0].Time) > r.Age ||
				r.Bytes > 0 && int64(bytes) > r.Bytes && len(l.kept) > 1 {
				l.kept = l.kept[1:]
				continue
			}
			return
		}
	}
	for range 1500 {
		name := names[rng.IntN(len(names))]
		l := logs[name]
		switch op := rng.IntN(20); {
		case op < 9:
			cut(l, l.retain) // what has expired stays away, although this append may retain for longer
			cut(l, l.retain)
			data := []byte(strings.Repeat("x", rng.IntN(8)))
			opts := stream.AppendOptions{Retain: stream.Retention{Count: rng.IntN(12), Bytes: int64(rng.IntN(60)), Age: time.Duration(rng.IntN(30)) * time.Second}}
			if rng.IntN(2) == 0 {
				opts.Key = fmt.Sprint(rng.IntN(40))
			}
			a := must[stream.Appended](t)(s.Append(ctx, name, data, opts))
			if at, known := l.keys[opts.Key]; known && opts.Key != "" {
				same(t, a, stream.Appended{Position: stream.Position{Offset: at, Epoch: l.epoch}, Duplicate: true})
				break
			}
			l.head++
			l.started = true
			l.kept = append(l.kept, stream.Entry{Offset: l.head, Time: clock.Now(), Data: data})
			if opts.Key != "" {
				l.keys[opts.Key] = l.head
			}
			l.retain = opts.Retain
			cut(l, opts.Retain)
			same(t, a, stream.Appended{Position: stream.Position{Offset: l.head, Epoch: l.epoch}})
		case op < 16:
			cut(l, l.retain)
			after, limit := uint64(rng.Int64N(int64(l.head)+3)), rng.IntN(9)
			p, err := s.Read(ctx, name, stream.Position{Offset: after, Epoch: l.epoch}, limit)
			first := l.head + 1 - uint64(len(l.kept))
			same(t, p.Head, stream.Head{Position: stream.Position{Offset: l.head, Epoch: l.epoch}, First: first})
			if gap := after > l.head || after+1 < first; gap != errors.Is(err, stream.ErrGap) || !gap && err != nil {
				t.Fatalf("read after %d of %d..%d: %v", after, first, l.head, err)
			} else if !gap {
				want := l.kept[after+1-first:]
				same(t, texts(p.Entries), texts(want[:min(limit, len(want))]))
			}
		case op < 17:
			r := stream.Retention{Count: 1 + rng.IntN(6)}
			if err := s.Trim(ctx, name, r); err != nil {
				t.Fatal(err)
			}
			cut(l, r)
		case op < 18:
			if rng.IntN(4) > 0 {
				break
			}
			if err := s.Reset(ctx, name); err != nil {
				t.Fatal(err)
			}
			h := must[stream.Head](t)(s.Head(ctx, name))
			if l.started && h.Epoch == l.epoch {
				t.Fatal("the epoch stayed")
			}
			// The epoch of names that have no entries may change with it.
			logs[name] = &naive{epoch: h.Epoch, keys: map[string]uint64{}}
			for _, n := range names {
				if o := logs[n]; !o.started {
					o.epoch = must[stream.Head](t)(s.Head(ctx, n)).Epoch
				}
			}
		default:
			clock.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			if clock.Now().Sub(cleared) < stream.KeyWindow-3*time.Second {
				break
			}
			clock.Add(stream.KeyWindow + time.Second) // all are forgotten now
			cleared = clock.Now()
			for _, l := range logs {
				clear(l.keys)
			}
		}
	}
}
