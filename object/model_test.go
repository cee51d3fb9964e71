package object_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tidewire/tidewire/object"
)

// naive is a subscription as the source describes it: a list of texts.
type naive struct {
	event  int
	name   string    // "" when it has no place in a channel
	queue  []*string // one for each message of the channel
	over   bool
	told   bool
	reason string
}

func (s *naive) end(reason string) {
	if s.told {
		return
	}
	if reason == "subscription cancelled" || strings.HasPrefix(reason, "backlog") {
		s.queue = nil
	}
	s.name, s.over, s.reason = "", true, reason
}

// Random operations of several events on one object, held against lists.
func TestO12_Model(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	h := newHost(t, object.Options{})
	events := make([]*object.Event, 4)
	for i := range events {
		events[i] = begin(t, h, "o")
	}
	handles, subs := []string{}, []*naive{} // side by side, in the order in which they came
	names := []string{"a", "b", "c"}
	texts := []string{"", "x", strings.Repeat("y", 1000), strings.Repeat("z", object.MaxTextBytes)}
	for step := range 20_000 {
		i := rng.IntN(len(events))
		e, name := events[i], names[rng.IntN(len(names))]
		var in []*naive // of the channel
		for _, s := range subs {
			if s.name == name {
				in = append(in, s)
			}
		}
		switch op := rng.IntN(40); {
		case op < 5 && len(subs) < 40:
			handles = append(handles, must(e.Subscribe(name)))
			subs = append(subs, &naive{event: i, name: name})
		case op < 18:
			text := texts[rng.IntN(len(texts))]
			want := 0
			for _, s := range in {
				s.queue = append(s.queue, &text)
				size := 0
				for _, q := range s.queue {
					size += len(*q)
				}
				if size > 1<<20 {
					s.end("backlog over 1 MiB")
					continue
				}
				want++
			}
			if n := must(e.Publish(name, text)); n != want {
				t.Fatalf("step %d: Publish = %d, want %d", step, n, want)
			}
		case op < 33 && len(subs) > 0:
			k := rng.IntN(len(subs))
			s := subs[k]
			status, text, err := e.Wait(t.Context(), handles[k], 0)
			if s.event != i {
				wantIs(t, err, object.ErrHandle)
				break
			}
			wantStatus, want := object.TimedOut, ""
			switch {
			case len(s.queue) > 0:
				wantStatus, want = object.Message, *s.queue[0]
				s.queue = s.queue[1:]
			case s.over:
				wantStatus, want = object.Ended, s.reason
				s.told = true
			}
			if err != nil || status != wantStatus || text != want {
				t.Fatalf("step %d: Wait = %v, %.20q, %v; want %v, %.20q", step, status, text, err, wantStatus, want)
			}
		case op < 35 && len(subs) > 0:
			k := rng.IntN(len(subs))
			err := e.Cancel(handles[k])
			if subs[k].event != i {
				wantIs(t, err, object.ErrHandle)
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			subs[k].end("subscription cancelled")
		case op < 36:
			reason := fmt.Sprint("closed at ", step)
			for _, s := range in {
				s.end(reason)
			}
			if n := must(e.CloseChannel(name, reason)); n != len(in) {
				t.Fatalf("step %d: CloseChannel = %d, want %d", step, n, len(in))
			}
		case op < 37 && rng.IntN(8) == 0: // the event ends and another takes its number
			e.End()
			events[i] = begin(t, h, "o")
			for k := len(subs) - 1; k >= 0; k-- {
				if subs[k].event == i {
					subs, handles = slices.Delete(subs, k, k+1), slices.Delete(handles, k, k+1)
				}
			}
		default:
			if n := must(e.SubscriberCount(name)); n != len(in) {
				t.Fatalf("step %d: SubscriberCount = %d, want %d", step, n, len(in))
			}
		}
		held, seen := int64(0), map[*string]bool{}
		for _, s := range subs {
			for _, q := range s.queue {
				if !seen[q] {
					seen[q] = true
					held += int64(len(*q) + 64)
				}
			}
		}
		if got := h.Stats().BacklogBytes; got != held {
			t.Fatalf("step %d: %d bytes are held, want %d", step, got, held)
		}
	}
}

// Publishers and subscribers at once: a subscription sees each publisher's messages without a hole from where it begins, and all see one order.
func TestO12_ConcurrentOrder(t *testing.T) {
	t.Parallel()
	const publishers, each, subscribers = 6, 400, 12
	h := newHost(t, object.Options{})
	hold := begin(t, h, "o")
	var pubs, wg sync.WaitGroup
	seen := make([][]string, subscribers)
	for i := range subscribers {
		ready := make(chan struct{})
		wg.Go(func() {
			e := begin(t, h, "o")
			s := must(e.Subscribe("c"))
			close(ready)
			for {
				status, text, err := e.Wait(t.Context(), s, patience)
				if err != nil || status == object.TimedOut {
					t.Errorf("%v %v", status, err)
				}
				if status != object.Message {
					return
				}
				seen[i] = append(seen[i], text)
			}
		})
		if i%2 == 0 {
			<-ready // the others come in the middle
		}
		if i == subscribers/2 {
			for p := range publishers {
				pubs.Go(func() {
					e := begin(t, h, "o")
					for n := range each {
						must(e.Publish("c", fmt.Sprint(p, " ", n)))
					}
				})
			}
		}
	}
	pubs.Wait()
	for must(hold.SubscriberCount("c")) < subscribers {
		runtime.Gosched()
	}
	must(hold.CloseChannel("c", "done"))
	wg.Wait()
	if len(seen[0]) != publishers*each {
		t.Fatalf("the first subscription saw %d of %d", len(seen[0]), publishers*each)
	}
	next := map[int]int{}
	for _, text := range seen[0] {
		var p, n int
		if _, err := fmt.Sscanf(text, "%d %d", &p, &n); err != nil || next[p] != n {
			t.Fatalf("message %q, want number %d of its publisher", text, next[p])
		}
		next[p]++
	}
	for i, s := range seen {
		if !slices.Equal(s, seen[0][len(seen[0])-len(s):]) {
			t.Errorf("subscription %d saw another order", i)
		}
	}
}

var validName = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

func FuzzNamesAndTexts(f *testing.F) {
	f.Add("c", "a", "收摊")
	f.Add("a b", "\xff", "")
	f.Add(strings.Repeat("n", 65), strings.Repeat("x", 65_537), strings.Repeat("r", 1025))
	f.Fuzz(func(t *testing.T, name, text, reason string) {
		h := newHost(t, object.Options{})
		e := must(h.Begin(t.Context(), "o"))
		defer e.End()
		s, err := e.Subscribe(name)
		if ok := validName.MatchString(name) && !strings.HasSuffix(name, "\n"); ok != (err == nil) {
			t.Fatalf("name %q: %v", name, err)
		} else if !ok {
			wantIs(t, err, object.ErrChannelName)
			return
		}
		n, err := e.Publish(name, text)
		if ok := len(text) <= 65_536 && utf8.ValidString(text); ok != (err == nil) || ok != (n == 1) {
			t.Fatalf("text of %d bytes: %d, %v", len(text), n, err)
		} else if ok {
			wantWait(t, e, s, 0, object.Message, text)
		}
		_, err = e.CloseChannel(name, reason)
		if ok := len(reason) <= 1024 && utf8.ValidString(reason); ok != (err == nil) {
			t.Fatalf("reason of %d bytes: %v", len(reason), err)
		} else if ok {
			wantWait(t, e, s, 0, object.Ended, reason)
		}
	})
}

// O20: objects that were touched once leave nothing.
func TestO20_IdleObjectsCostNothing(t *testing.T) {
	touched := 200_000
	if os.Getenv("TIDEWIRE_TEST_LONG") != "" {
		touched = 1_000_000
	}
	h := newHost(t, object.Options{})
	touch := func(i int) {
		e := must(h.Begin(t.Context(), fmt.Sprint("object-", i)))
		s := must(e.Subscribe("c"))
		must(e.Publish("c", "x"))
		wantWait(t, e, s, 0, object.Message, "x")
		e.End()
	}
	for i := range 1000 {
		touch(-i)
	}
	before := heap()
	began := time.Now()
	for i := range touched {
		touch(i)
	}
	took := time.Since(began)
	grown := heap() - before
	t.Logf("%d objects: heap grew by %d bytes, %s each", touched, grown, took/time.Duration(touched))
	if grown > 256<<10 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	runtime.KeepAlive(h)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Ten thousand waits on one host: each is woken by its message, and the time from Publish to the return of Wait is reported.
func BenchmarkWakeUp(b *testing.B) {
	const waiters = 10_000
	h := newHost(b, object.Options{EventTimeout: object.MaxEventTimeout})
	type waiter struct {
		e      *object.Event
		handle string
		sent   time.Time
		woken  chan time.Duration
	}
	all := make([]*waiter, waiters)
	for i := range all {
		w := &waiter{e: begin(b, h, fmt.Sprint(i/64)), woken: make(chan time.Duration)}
		w.handle = must(w.e.Subscribe(fmt.Sprint("c", i%64)))
		all[i] = w
		go func() {
			for {
				status, _, err := w.e.Wait(b.Context(), w.handle, time.Hour)
				if err != nil || status != object.Message {
					return
				}
				w.woken <- time.Since(w.sent)
			}
		}()
	}
	for h.Stats().Waiters < waiters {
		runtime.Gosched()
	}
	var took []time.Duration
	rng := rand.New(rand.NewPCG(1, 2))
	b.ResetTimer()
	for range b.N {
		i := rng.IntN(waiters)
		w := all[i]
		w.sent = time.Now()
		must(w.e.Publish(fmt.Sprint("c", i%64), "x"))
		took = append(took, <-w.woken)
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
	for _, w := range all {
		w.e.End()
	}
}

// BenchmarkEvent is the cost of an event that does nothing.
func BenchmarkEvent(b *testing.B) {
	h := newHost(b, object.Options{})
	b.ReportAllocs()
	for i := range b.N {
		must(h.Begin(b.Context(), fmt.Sprint(i&1023))).End()
	}
}

// O07: ten thousand waits at once on one host, each woken by its own message.
func TestO07_TenThousandWaiters(t *testing.T) {
	t.Parallel()
	h := newHost(t, object.Options{EventTimeout: object.MaxEventTimeout})
	const waiters = 10_000
	var wg sync.WaitGroup
	for i := range waiters {
		e := begin(t, h, fmt.Sprint(i%50))
		s := must(e.Subscribe(fmt.Sprint("c", i%64)))
		wg.Go(func() { wantWait(t, e, s, patience, object.Message, "wake") })
	}
	for h.Stats().Waiters < waiters {
		runtime.Gosched()
	}
	woken := 0
	for i := range 50 {
		e := begin(t, h, fmt.Sprint(i))
		for c := range 64 {
			woken += must(e.Publish(fmt.Sprint("c", c), "wake"))
		}
	}
	wg.Wait()
	if woken != waiters {
		t.Fatalf("delivered to %d", woken)
	}
}
