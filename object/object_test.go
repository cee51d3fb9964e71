package object_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func newHost(t testing.TB, opts object.Options) *object.Host {
	t.Helper()
	h, err := object.NewHost(opts)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// begin starts an event that ends with the test at the latest.
func begin(t testing.TB, h *object.Host, id string) *object.Event {
	t.Helper()
	e, err := h.Begin(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.End)
	return e
}

// two returns a host and the events A and B of one object.
func two(t testing.TB) (h *object.Host, a, b *object.Event) {
	t.Helper()
	h = newHost(t, object.Options{})
	return h, begin(t, h, "o"), begin(t, h, "o")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wantWait(t testing.TB, e *object.Event, handle string, timeout time.Duration, status object.Status, text string) {
	t.Helper()
	got, gotText, err := e.Wait(t.Context(), handle, timeout)
	if err != nil || got != status || gotText != text {
		t.Fatalf("Wait = %v, %.40q, %v; want %v, %.40q", got, gotText, err, status, text)
	}
}

func wantIs(t testing.TB, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) || !errors.Is(err, object.ErrViolation) {
		t.Fatalf("error %v, want %v", err, kind)
	}
}

func wantCount(t testing.TB, e *object.Event, name string, want int) {
	t.Helper()
	if got := must(e.SubscriberCount(name)); got != want {
		t.Fatalf("SubscriberCount(%s) = %d, want %d", name, got, want)
	}
}

// The conformance samples of the source, by number.

func TestO21_Sample1_Order(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	for _, text := range []string{"a", "b"} {
		if n := must(b.Publish("c", text)); n != 1 {
			t.Fatalf("Publish = %d", n)
		}
	}
	wantWait(t, a, s, time.Second, object.Message, "a")
	wantWait(t, a, s, time.Second, object.Message, "b")
}

func TestO21_Sample2_NobodyThere(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	if n := must(b.Publish("c", "early")); n != 0 {
		t.Fatalf("Publish = %d", n)
	}
	s := must(a.Subscribe("c"))
	wantWait(t, a, s, 0, object.TimedOut, "")
}

func TestO21_Sample3_TimeOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, a, b := two(t)
		s := must(a.Subscribe("c"))
		began := time.Now()
		go func() { // counts do not change how long A waits
			for range 19 {
				time.Sleep(10 * time.Millisecond)
				wantCount(t, b, "c", 1)
			}
		}()
		wantWait(t, a, s, 200*time.Millisecond, object.TimedOut, "")
		if took := time.Since(began); took != 200*time.Millisecond {
			t.Fatalf("waited %s", took)
		}
		a.End()
		b.End()
	})
}

func TestO21_Sample4_Close(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	must(b.Publish("c", "queued"))
	if n := must(b.CloseChannel("c", "收摊")); n != 1 {
		t.Fatalf("CloseChannel = %d", n)
	}
	again := must(a.Subscribe("c")) // the name is free before the old messages were read
	must(b.Publish("c", "new"))
	wantWait(t, a, s, time.Second, object.Message, "queued")
	wantWait(t, a, s, time.Second, object.Ended, "收摊")
	wantWait(t, a, s, 0, object.Ended, "收摊")
	wantWait(t, a, again, 0, object.Message, "new")
	wantWait(t, a, again, 0, object.TimedOut, "")
}

func TestO21_Sample5_Backlog(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	text := strings.Repeat("x", object.MaxTextBytes)
	for i := range 16 { // 1 MiB exactly
		if n := must(b.Publish("c", text)); n != 1 {
			t.Fatalf("message %d: Publish = %d", i, n)
		}
	}
	for range 2 {
		if n := must(b.Publish("c", "y")); n != 0 {
			t.Fatalf("past 1 MiB Publish = %d", n)
		}
	}
	status, reason, err := a.Wait(t.Context(), s, time.Second)
	if err != nil || status != object.Ended || !strings.Contains(reason, "backlog") || !strings.Contains(reason, "1 MiB") {
		t.Fatalf("Wait = %v, %.60q, %v", status, reason, err)
	}
	wantWait(t, a, s, 0, object.Ended, reason)
	wantCount(t, b, "c", 0)
}

func TestO21_Sample6_257thAnd65th(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	for range 256 {
		must(a.Subscribe("c"))
	}
	_, err := b.Subscribe("c")
	wantIs(t, err, object.ErrSubscriptions)
	wantCount(t, b, "c", 256)
	for i := range 63 {
		must(a.Subscribe(fmt.Sprint("n", i)))
	}
	_, err = b.Subscribe("n63")
	wantIs(t, err, object.ErrChannels)
	wantCount(t, b, "n63", 0)
	must(b.Subscribe("n1")) // one that is there
	must(b.CloseChannel("n2", ""))
	must(b.Subscribe("n63")) // a place is free
}

func TestO21_Sample7_ForeignHandle(t *testing.T) {
	t.Parallel()
	h, a, b := two(t)
	s := must(a.Subscribe("c"))
	must(b.Publish("c", "for A"))
	for _, e := range []*object.Event{b, begin(t, h, "another")} {
		for _, handle := range []string{s, "", "made up"} {
			_, _, err := e.Wait(t.Context(), handle, 0)
			wantIs(t, err, object.ErrHandle)
			wantIs(t, e.Cancel(handle), object.ErrHandle)
		}
	}
	wantWait(t, a, s, 0, object.Message, "for A")
}

func TestO04_O21_Sample8_Texts(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	most := strings.Repeat("世", 21845) + "x"
	for _, text := range []string{"", most} {
		if n := must(b.Publish("c", text)); n != 1 {
			t.Fatalf("Publish of %d bytes = %d", len(text), n)
		}
		wantWait(t, a, s, 0, object.Message, text)
	}
	for _, text := range []string{most + "x", "\xff", "\xffabc", "a\x80"} {
		_, err := b.Publish("c", text)
		wantIs(t, err, object.ErrText)
	}
	for _, name := range []string{"", "a b", "a/b", "频道", strings.Repeat("n", 65)} {
		_, err := b.Publish(name, "")
		wantIs(t, err, object.ErrChannelName)
	}
	wantWait(t, a, s, 0, object.TimedOut, "")
}

// The ninth sample is in log_test.go.

func TestO01_Names(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	name := "AZaz09._:-" + strings.Repeat("n", 54)
	s := must(a.Subscribe(name))
	if n := must(b.Publish(strings.ToLower(name), "other case")); n != 0 {
		t.Fatal("names are not case-sensitive")
	}
	must(b.Publish(name, "x"))
	wantWait(t, a, s, 0, object.Message, "x")
	_, err := a.Subscribe("a\x00")
	wantIs(t, err, object.ErrChannelName)
	_, err = a.CloseChannel("", "")
	wantIs(t, err, object.ErrChannelName)
	_, err = a.SubscriberCount("#")
	wantIs(t, err, object.ErrChannelName)
	for _, id := range []string{"", strings.Repeat("i", 256), "\xff"} {
		_, err := newHost(t, object.Options{}).Begin(t.Context(), id)
		wantIs(t, err, object.ErrID)
	}
}

func TestO02_LimitsAreRaisedNotLowered(t *testing.T) {
	t.Parallel()
	for _, o := range []object.Options{
		{MaxChannels: 63}, {MaxSubscriptions: 255}, {MaxBacklog: 1<<20 - 1}, {MaxBacklogBytes: 1<<20 - 1}, {MaxBacklogBytes: -1}, {EventTimeout: object.MaxEventTimeout + 1}, {EventTimeout: -1}, {IdleTimeout: -1},
	} {
		if _, err := object.NewHost(o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	h := newHost(t, object.Options{MaxChannels: 65, MaxSubscriptions: 257, MaxBacklog: 1<<20 + 1})
	a := begin(t, h, "o")
	for range 257 {
		must(a.Subscribe("c"))
	}
	_, err := a.Subscribe("c")
	wantIs(t, err, object.ErrSubscriptions)
	for i := range 64 {
		must(a.Subscribe(fmt.Sprint(i)))
	}
	_, err = a.Subscribe("more")
	wantIs(t, err, object.ErrChannels)
}

// An event that subscribes and cancels without end forgets the oldest ends, and stays within its bound.
func TestO02_HandlesOfAnEventAreBounded(t *testing.T) {
	t.Parallel()
	_, a, _ := two(t)
	first := must(a.Subscribe("c"))
	for range 2 * 64 * 256 {
		s := must(a.Subscribe("c"))
		if err := a.Cancel(s); err != nil {
			t.Fatal(err)
		}
		wantWait(t, a, s, 0, object.Ended, "subscription cancelled")
	}
	wantWait(t, a, first, 0, object.TimedOut, "")
	var err error
	for range 64*256 + 1 { // whose ends nobody hears
		var s string
		if s, err = a.Subscribe("c"); err != nil {
			break
		}
		if err := a.Cancel(s); err != nil {
			t.Fatal(err)
		}
	}
	wantIs(t, err, object.ErrSubscriptions)
}

func TestO03_Handles(t *testing.T) {
	t.Parallel()
	_, a, _ := two(t)
	seen := map[string]bool{}
	for range 100 {
		s := must(a.Subscribe("c"))
		if len(s) < 26 || seen[s] { // 128 bits in base32
			t.Fatalf("handle %q", s)
		}
		seen[s] = true
	}
}

// A backlog is also bounded by its number of messages, so that short texts, and empty ones, cost no more than long ones.
func TestO08_BacklogOfShortTexts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "x"} {
		h, a, b := two(t)
		s := must(a.Subscribe("c"))
		for i := range object.MaxBacklogMessages {
			if n := must(b.Publish("c", text)); n != 1 {
				t.Fatalf("message %d: Publish = %d", i, n)
			}
		}
		wantWait(t, a, s, 0, object.Message, text)
		if n := must(b.Publish("c", text)); n != 1 {
			t.Fatal("there was a place")
		}
		if n := must(b.Publish("c", text)); n != 0 {
			t.Fatalf("past the bound Publish = %d", n)
		}
		wantWait(t, a, s, 0, object.Ended, "backlog over 65536 messages")
		if st := h.Stats(); st.BacklogBytes != 0 || st.Cut != 1 {
			t.Fatalf("%+v", st)
		}
	}
}

// The backlogs of a host are bounded together: past that only who has read everything gets a message.
func TestO08_BacklogOfTheHost(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	h := newHost(t, object.Options{MaxBacklogBytes: most})
	text := strings.Repeat("x", object.MaxTextBytes)
	hoarder := begin(t, h, "hoarder")
	var hoarded []string
	for i := range 10 {
		name := fmt.Sprint("c", i)
		hoarded = append(hoarded, must(hoarder.Subscribe(name)), must(hoarder.Subscribe(name))) // held once
		must(hoarder.Publish(name, text))
	}
	if got := h.Stats().BacklogBytes; got != 10*(object.MaxTextBytes+64) {
		t.Fatalf("%d bytes are held", got)
	}
	kept := 0
	for range 10 {
		kept += must(hoarder.Publish("c0", text))
	}
	if got := h.Stats().BacklogBytes; kept != 5*2 || got > most {
		t.Fatalf("%d delivered, %d bytes are held", kept, got)
	}
	for _, s := range hoarded[:2] {
		wantWait(t, hoarder, s, 0, object.Ended, "backlog of all subscriptions over its bound")
	}
	for i := 1; i < 7; i++ { // full again
		wantWait(t, hoarder, must(hoarder.Subscribe("c0")), 0, object.TimedOut, "")
		must(hoarder.Publish("c0", text))
		hoarded = append(hoarded, must(hoarder.Subscribe(fmt.Sprint("d", i))))
		must(hoarder.Publish(fmt.Sprint("d", i), text))
	}
	// Others who keep up are not cut off.
	a := begin(t, h, "o")
	s := must(a.Subscribe("c"))
	for range 3 {
		if n := must(a.Publish("c", text)); n != 1 {
			t.Fatal("cut off for the backlog of others")
		}
		wantWait(t, a, s, 0, object.Message, text)
	}
	hoarder.End()
	a.End()
	if got := h.Stats().BacklogBytes; got != 0 {
		t.Fatalf("%d bytes are held of nothing", got)
	}
}

// What Peek has given can be had again until it is confirmed, and is part of the backlog until then.
func TestO07_Peek(t *testing.T) {
	t.Parallel()
	h, a, b := two(t)
	must(a.Subscribe("c"))
	must(b.Publish("c", "before"))
	s := must(a.Subscribe("c"))
	peek := func(after uint64, want object.Status, texts ...string) {
		t.Helper()
		p, err := a.Peek(t.Context(), s, after, 0)
		if err != nil || p.Status != want || !slices.Equal(p.Texts, texts) {
			t.Fatalf("Peek = %+v, %v; want %v %q", p, err, want, texts)
		}
	}
	refused := func(after uint64) {
		t.Helper()
		_, err := a.Peek(t.Context(), s, after, 0)
		wantIs(t, err, object.ErrAfter)
	}
	peek(0, object.TimedOut)
	for _, text := range []string{"1", "2", "3"} {
		must(b.Publish("c", text))
	}
	refused(1) // it was not given yet
	for range 2 {
		peek(0, object.Message, "1", "2", "3")
	}
	must(b.Publish("c", "4"))
	peek(2, object.Message, "3", "4")
	refused(1)
	refused(5)
	refused(1 << 63)
	if got := h.Stats().BacklogBytes; got != (64+6)+4*(64+1) {
		t.Fatalf("%d bytes are held", got) // the first subscription has read nothing
	}
	must(b.CloseChannel("c", "done"))
	peek(2, object.Message, "3", "4")
	p, err := a.Peek(t.Context(), s, 4, 0)
	if err != nil || p.Status != object.Ended || p.Reason != "done" {
		t.Fatalf("%+v, %v", p, err)
	}
	peek(4, object.Ended)

	s = must(a.Subscribe("d"))
	text := strings.Repeat("x", object.MaxTextBytes)
	for range 16 {
		must(b.Publish("d", text))
	}
	peek(0, object.Message, text, text, text, text)
	peek(3, object.Message, text, text, text, text)
	if n := must(b.Publish("d", text)); n != 1 {
		t.Fatal("what was confirmed counts")
	}
	for i, want := range []int{1, 1, 0} { // to 15, 16 and 17 texts: what was given and not confirmed counts
		if n := must(b.Publish("d", text)); n != want {
			t.Fatalf("Publish %d = %d", i, n)
		}
	}
	p, err = a.Peek(t.Context(), s, 3, 0)
	if err != nil || p.Status != object.Ended || p.Reason != "backlog over 1 MiB" {
		t.Fatalf("%+v, %v", p, err)
	}
	_, err = a.Peek(t.Context(), "made up", 0, 0)
	wantIs(t, err, object.ErrHandle)
	_, err = a.Peek(t.Context(), s, 0, -1)
	wantIs(t, err, object.ErrWait)
}

// Messages are queued from the moment on when Subscribe has returned, and for each subscription.
func TestO05_SubscribedMeansQueued(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	must(a.Subscribe("c")) // the channel is there before
	must(b.Publish("c", "before"))
	s := must(a.Subscribe("c"))
	must(b.Publish("c", "after"))
	wantWait(t, a, s, 0, object.Message, "after")
	wantWait(t, a, s, 0, object.TimedOut, "")
}

func TestO06_PublishCounts(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	slow := must(a.Subscribe("c"))
	var fast []string
	for range 3 {
		fast = append(fast, must(b.Subscribe("c")))
	}
	text := strings.Repeat("x", object.MaxTextBytes)
	for i := range 20 {
		want := 4
		if i >= 16 {
			want = 3 // the slow one is cut off
		}
		if n := must(b.Publish("c", text)); n != want {
			t.Fatalf("message %d: Publish = %d, want %d", i, n, want)
		}
		for _, s := range fast {
			wantWait(t, b, s, 0, object.Message, text)
		}
	}
	wantWait(t, a, slow, 0, object.Ended, "backlog over 1 MiB")
}

func TestO07_WaitBounds(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	for _, d := range []time.Duration{-1, time.Hour + 1} {
		_, _, err := a.Wait(t.Context(), s, d)
		wantIs(t, err, object.ErrWait)
	}
	// The longest wait is allowed, and a message ends it. Other events go on meanwhile.
	var wg sync.WaitGroup
	wg.Go(func() { wantWait(t, a, s, time.Hour, object.Message, "wake") })
	for a2 := (object.Stats{}); a2.Waiters == 0; a2 = statsOf(a) {
		wantCount(t, b, "c", 1)
	}
	must(b.Publish("c", "wake"))
	wg.Wait()
	// The context of the caller ends a wait, and loses nothing.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.Wait(ctx, s, time.Hour); !errors.Is(err, context.Canceled) || errors.Is(err, object.ErrViolation) {
		t.Fatal(err)
	}
	must(b.Publish("c", "kept"))
	wantWait(t, a, s, time.Hour, object.Message, "kept")
}

// Several waits on one subscription share the messages: each goes to one of them.
func TestO07_ManyWaitsOnOneSubscription(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	const n = 50
	got := make(chan string, n)
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			_, text, err := a.Wait(t.Context(), s, patience)
			if err != nil {
				t.Error(err)
			}
			got <- text
		})
	}
	for i := range n {
		must(b.Publish("c", fmt.Sprint(i)))
	}
	wg.Wait()
	seen := map[string]bool{}
	for range n {
		seen[<-got] = true
	}
	if len(seen) != n {
		t.Fatalf("%d different messages of %d", len(seen), n)
	}
}

func TestO08_Accounting(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	for i := range 1 << 15 {
		if n := must(b.Publish("c", strings.Repeat("x", 32))); n != 1 {
			t.Fatalf("message %d: Publish = %d", i, n)
		}
	}
	wantWait(t, a, s, 0, object.Message, strings.Repeat("x", 32)) // what was read does not count
	for _, text := range []string{strings.Repeat("x", 32), ""} {
		if n := must(b.Publish("c", text)); n != 1 {
			t.Fatal("cut off at 1 MiB")
		}
	}
	if n := must(b.Publish("c", "x")); n != 0 {
		t.Fatal("not cut off past 1 MiB")
	}
	wantWait(t, a, s, 0, object.Ended, "backlog over 1 MiB")
}

func TestO08_CutWhileOthersRead(t *testing.T) {
	t.Parallel()
	h, a, b := two(t)
	s := must(a.Subscribe("c"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for { // reads as fast as it can
			status, _, err := a.Wait(t.Context(), s, patience)
			if err != nil || status == object.TimedOut {
				t.Error(status, err)
			}
			if status != object.Message {
				return
			}
		}
	})
	must(b.Subscribe("c")) // reads nothing
	text := strings.Repeat("x", 1000)
	for h.Stats().Cut == 0 {
		must(b.Publish("c", text))
	}
	must(b.CloseChannel("c", "done"))
	wg.Wait()
}

func TestO09_Cancel(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	s := must(a.Subscribe("c"))
	must(b.Publish("c", "dropped"))
	for range 2 {
		if err := a.Cancel(s); err != nil {
			t.Fatal(err)
		}
		wantWait(t, a, s, 0, object.Ended, "subscription cancelled")
		wantCount(t, a, "c", 0)
	}
	// One that was told another end keeps it; one that was not is cancelled.
	for _, told := range []bool{false, true} {
		s := must(a.Subscribe("c"))
		must(b.CloseChannel("c", "closed"))
		want := "subscription cancelled"
		if told {
			want = "closed"
			wantWait(t, a, s, 0, object.Ended, want)
		}
		if err := a.Cancel(s); err != nil {
			t.Fatal(err)
		}
		wantWait(t, a, s, 0, object.Ended, want)
	}
	// A wait that blocks hears it.
	s = must(a.Subscribe("c"))
	var wg sync.WaitGroup
	wg.Go(func() { wantWait(t, a, s, patience, object.Ended, "subscription cancelled") })
	for statsOf(a).Waiters == 0 {
		wantCount(t, b, "c", 1)
	}
	if err := a.Cancel(s); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestO10_CloseChannel(t *testing.T) {
	t.Parallel()
	_, a, b := two(t)
	if n := must(b.CloseChannel("c", "")); n != 0 {
		t.Fatalf("CloseChannel of nothing = %d", n)
	}
	must(a.Subscribe("c"))
	must(b.Subscribe("c"))
	for _, reason := range []string{strings.Repeat("r", 1025), "\xff"} {
		_, err := b.CloseChannel("c", reason)
		wantIs(t, err, object.ErrReason)
		wantCount(t, b, "c", 2)
	}
	if n := must(b.CloseChannel("c", strings.Repeat("r", 1024))); n != 2 {
		t.Fatalf("CloseChannel = %d", n)
	}
}

func TestO11_SubscriberCount(t *testing.T) {
	t.Parallel()
	h, a, b := two(t)
	wantCount(t, a, "c", 0)
	s := must(a.Subscribe("c"))
	must(b.Subscribe("c"))
	wantCount(t, a, "c", 2)
	wantCount(t, begin(t, h, "other"), "c", 0)
	wantWait(t, a, s, 0, object.TimedOut, "")
	b.End()
	wantCount(t, a, "c", 1)
}

// O13: each violation is a kind that errors.Is knows, and says the limit.
func TestO13_ViolationsSayTheLimit(t *testing.T) {
	t.Parallel()
	for err, part := range map[error]string{
		object.ErrID: "255", object.ErrChannelName: "64 bytes of A-Z a-z 0-9 . _ : -", object.ErrText: "65536", object.ErrReason: "1024", object.ErrWait: "3600000",
	} {
		if !errors.Is(err, object.ErrViolation) || !strings.Contains(err.Error(), part) {
			t.Errorf("%v does not say %s", err, part)
		}
	}
	_, a, _ := two(t)
	for range 256 {
		must(a.Subscribe("c"))
	}
	if _, err := a.Subscribe("c"); !strings.Contains(err.Error(), "256") {
		t.Error(err)
	}
}

func TestO14_EndsCancel(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(ctx context.Context, h *object.Host, subscribe func(context.Context, *object.Event) error){
		"return": func(ctx context.Context, h *object.Host, subscribe func(context.Context, *object.Event) error) {
			if err := h.Do(ctx, "o", subscribe); err != nil {
				t.Error(err)
			}
		},
		"error": func(ctx context.Context, h *object.Host, subscribe func(context.Context, *object.Event) error) {
			want := errors.New("mine")
			err := h.Do(ctx, "o", func(ctx context.Context, e *object.Event) error { return errors.Join(subscribe(ctx, e), want) })
			if !errors.Is(err, want) {
				t.Error(err)
			}
		},
		"panic": func(ctx context.Context, h *object.Host, subscribe func(context.Context, *object.Event) error) {
			defer func() {
				if r := recover(); r != "mine" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = h.Do(ctx, "o", func(ctx context.Context, e *object.Event) error {
				_ = subscribe(ctx, e)
				panic("mine")
			})
		},
		"context": func(ctx context.Context, h *object.Host, subscribe func(context.Context, *object.Event) error) {
			ctx, cancel := context.WithCancel(ctx)
			e := must(h.Begin(ctx, "o")) // and no End: the context is enough
			if err := subscribe(ctx, e); err != nil {
				t.Error(err)
			}
			cancel()
			<-e.Context().Done()
			_, err := e.SubscriberCount("c")
			wantIs(t, err, object.ErrEnded)
		},
		"End": func(ctx context.Context, h *object.Host, subscribe func(context.Context, *object.Event) error) {
			e := must(h.Begin(ctx, "o"))
			if err := subscribe(ctx, e); err != nil {
				t.Error(err)
			}
			e.End()
			e.End()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, object.Options{})
			other := begin(t, h, "o")
			f(t.Context(), h, func(_ context.Context, e *object.Event) error {
				_, err := e.Subscribe("c")
				wantCount(t, other, "c", 1)
				return err
			})
			wantCount(t, other, "c", 0)
			if n := must(other.Publish("c", "x")); n != 0 {
				t.Errorf("Publish = %d", n)
			}
			other.End()
			if s := h.Stats(); s.Events != 0 || s.Objects != 0 || s.Subscriptions != 0 {
				t.Errorf("left: %+v", s)
			}
		})
	}
}

// Calls on an ended event are violations, and a wait that blocks when it ends hears that its subscription was cancelled.
func TestO14_CallsAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, object.Options{})
		e := must(h.Begin(t.Context(), "o"))
		s := must(e.Subscribe("c"))
		go func() {
			synctest.Wait()
			e.End()
		}()
		wantWait(t, e, s, time.Second, object.Ended, "subscription cancelled")
		_, err := e.Subscribe("c")
		wantIs(t, err, object.ErrEnded)
		_, err = e.Publish("c", "")
		wantIs(t, err, object.ErrEnded)
		_, _, err = e.Wait(t.Context(), s, 0)
		wantIs(t, err, object.ErrEnded)
		wantIs(t, e.Cancel(s), object.ErrEnded)
		_, err = e.CloseChannel("c", "")
		wantIs(t, err, object.ErrEnded)
		_, err = e.Append(t.Context(), "", "")
		wantIs(t, err, object.ErrEnded)
		_, err = e.Read(t.Context(), stream.Position{}, 1)
		wantIs(t, err, object.ErrEnded)
		for _, err := range e.Follow(t.Context(), stream.Position{}) {
			wantIs(t, err, object.ErrEnded)
		}
	})
}

func TestO15_IdleIsEvicted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, object.Options{IdleTimeout: 10 * time.Second})
		held := must(h.Hold(t.Context(), "o"))
		s := must(held.Subscribe("c"))
		must(held.Append(t.Context(), "durable", ""))
		for range 5 { // in use
			time.Sleep(9 * time.Second)
			wantWait(t, held, s, 0, object.TimedOut, "")
		}
		wantWait(t, held, s, 30*time.Second, object.TimedOut, "") // a wait is use
		time.Sleep(9 * time.Second)
		if s := h.Stats(); s.Objects != 1 || s.Subscriptions != 1 {
			t.Fatalf("before the idle time: %+v", s)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := h.Stats(); s.Objects != 0 || s.Events != 0 || s.Subscriptions != 0 {
			t.Fatalf("after the idle time: %+v", s)
		}
		_, _, err := held.Wait(t.Context(), s, 0)
		wantIs(t, err, object.ErrEnded)
		// The same id starts anew; its log is what lasts.
		if err := h.Do(t.Context(), "o", func(ctx context.Context, e *object.Event) error {
			wantCount(t, e, "c", 0)
			if p := must(e.Read(ctx, stream.Position{}, 9)); len(p.Entries) != 1 {
				t.Errorf("the log has %d entries", len(p.Entries))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if h.Stats().Objects != 0 {
			t.Fatal("an object stays after its last event")
		}
	})
}

// While events end and instances are evicted all the time, an event that runs is reached by those that begin.
func TestO15_NoEventIsLostInAnEviction(t *testing.T) {
	t.Parallel()
	h := newHost(t, object.Options{})
	var wg sync.WaitGroup
	for id := range 4 {
		id := fmt.Sprint(id)
		for range 4 { // evicts and makes the instance
			wg.Go(func() {
				for range 2000 {
					must(h.Begin(t.Context(), id)).End()
				}
			})
		}
		wg.Go(func() {
			for i := range 1000 {
				a := must(h.Begin(t.Context(), id))
				s := must(a.Subscribe("c"))
				b := must(h.Begin(t.Context(), id))
				if n := must(b.Publish("c", fmt.Sprint(i))); n != 1 {
					t.Errorf("event %d: Publish = %d", i, n)
				}
				b.End()
				wantWait(t, a, s, 0, object.Message, fmt.Sprint(i))
				a.End()
			}
		})
	}
	wg.Wait()
	if s := h.Stats(); s.Objects != 0 || s.Events != 0 {
		t.Fatalf("left: %+v", s)
	}
}

func TestO16_Deadline(t *testing.T) {
	t.Parallel()
	for want, o := range map[time.Duration]object.Options{
		30 * time.Second: {}, time.Second: {EventTimeout: time.Second}, 15 * time.Minute: {EventTimeout: 15 * time.Minute},
	} {
		t.Run(want.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, o)
				began := time.Now()
				err := h.Do(t.Context(), "o", func(ctx context.Context, e *object.Event) error {
					s := must(e.Subscribe("c"))
					// A wait may be longer than the event; the call after it fails.
					wantWait(t, e, s, time.Hour, object.Ended, "subscription cancelled")
					if took := time.Since(began); took != want {
						t.Errorf("ended after %s, want %s", took, want)
					}
					_, err := e.Publish("c", "")
					wantIs(t, err, object.ErrEnded)
					return ctx.Err()
				})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // one that does not look
		h := newHost(t, object.Options{})
		e := must(h.Begin(t.Context(), "o"))
		must(e.Subscribe("c"))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if s := h.Stats(); s.Events != 0 || s.Subscriptions != 0 {
			t.Errorf("left: %+v", s)
		}
		held := must(h.Hold(t.Context(), "o"))
		for range 15*60 - 1 { // never idle
			time.Sleep(time.Second)
			wantCount(t, held, "c", 0)
		}
		time.Sleep(2 * time.Second)
		_, err := held.Subscribe("c")
		wantIs(t, err, object.ErrEnded)
	})
}

func TestO14_BeginRefusesAnEndedContext(t *testing.T) {
	t.Parallel()
	h := newHost(t, object.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Begin(ctx, "o"); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := h.Do(ctx, "o", nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// statsOf reads the numbers of an event's host.
func statsOf(e *object.Event) object.Stats { return object.HostOf(e).Stats() }
