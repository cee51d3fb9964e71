package ackbus_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/ackbus"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

var update = flag.Bool("update", false, "write spec/vectors from the code")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tap is a channel that keeps what is posted, and hears what the test says.
type tap struct {
	mu      sync.Mutex
	posted  [][]byte
	posting func() error
	receive func([]byte)
	stopped int
}

func (c *tap) Post(message []byte) error {
	if c.posting != nil {
		if err := c.posting(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.posted = append(c.posted, message)
	return nil
}

func (c *tap) Listen(receive func([]byte)) (func(), error) {
	c.receive = receive
	return func() { c.stopped++ }, nil
}

func (c *tap) ack(seq uint64, receiver string) { c.receive(ackbus.EncodeAck(seq, receiver)) }

// bench is a bus with its channel and what it reported.
type bench struct {
	*ackbus.Bus
	*tap
	t       testing.TB
	telling sync.Mutex // guards below
	slow    []string
}

func newBench(t testing.TB, opts ackbus.Options) *bench {
	t.Helper()
	c := &bench{tap: &tap{}, t: t}
	if opts.OnSlowConsumer == nil {
		opts.OnSlowConsumer = func(id string) {
			c.telling.Lock()
			defer c.telling.Unlock()
			c.slow = append(c.slow, id)
		}
	}
	bus, err := ackbus.New(c.tap, opts)
	if err != nil {
		t.Fatal(err)
	}
	c.Bus = bus
	t.Cleanup(bus.Dispose)
	return c
}

// reported returns who was reported since the last time.
func (c *bench) reported() []string {
	c.telling.Lock()
	defer c.telling.Unlock()
	defer func() { c.slow = nil }()
	return c.slow
}

func (c *bench) send(id string) {
	c.t.Helper()
	if err := c.Send(id, []byte("x")); err != nil {
		c.t.Fatal(err)
	}
}

func (c *bench) broadcast(ids ...string) {
	c.t.Helper()
	if err := c.Broadcast([]byte("x"), ids...); err != nil {
		c.t.Fatal(err)
	}
}

// want checks what the bus says: pending frames, who is slow, and who was reported since the last time.
func (c *bench) want(pending map[string]int, slow, reported []string) {
	c.t.Helper()
	synctest.Wait()
	if d := cmp.Diff(pending, c.Pending()); d != "" {
		c.t.Errorf("Pending (-want +got):\n%s", d)
	}
	if got := c.SlowConsumers(); !slices.Equal(got, slow) {
		c.t.Errorf("SlowConsumers = %v, want %v", got, slow)
	}
	if got := c.reported(); !slices.Equal(got, reported) {
		c.t.Errorf("reported %v, want %v", got, reported)
	}
	if err := c.Check(); err != nil {
		c.t.Error(err)
	}
}

type counts = map[string]int

func TestB01_Options(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		channel ackbus.Channel
		opts    ackbus.Options
	}{{nil, ackbus.Options{}}, {&tap{}, ackbus.Options{AckTimeout: -1}}, {&tap{}, ackbus.Options{MaxPending: -1}}} {
		if _, err := ackbus.New(tc.channel, tc.opts); !errors.Is(err, ackbus.ErrOptions) {
			t.Errorf("New(%v, %+v) = %v", tc.channel, tc.opts, err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{})
		c.send("a")
		time.Sleep(5*time.Second - 1)
		c.want(counts{"a": 1}, nil, nil)
		time.Sleep(time.Nanosecond)
		c.want(counts{"a": 0}, []string{"a"}, []string{"a"})
		long := newBench(t, ackbus.Options{AckTimeout: 1<<63 - 1})
		long.send("a")
		time.Sleep(time.Hour)
		long.want(counts{"a": 1}, nil, nil)
	})
}

func TestB02_Send(t *testing.T) {
	t.Parallel()
	c := newBench(t, ackbus.Options{})
	for _, id := range []string{"", "\xff", string(make([]byte, 4097))} {
		if err := c.Send(id, nil); !errors.Is(err, ackbus.ErrReceiver) {
			t.Errorf("Send to %.10q = %v", id, err)
		}
	}
	if err := c.Send("a", make([]byte, wire.MaxEnvelopePayload)); err == nil {
		t.Error("a frame that is too large is sent")
	}
	if len(c.posted) != 0 || len(c.Pending()) != 0 {
		t.Fatalf("posted %d, pending %v after refusals", len(c.posted), c.Pending())
	}
	for i, id := range []string{"a", "b", "ä\"<\n"} {
		if err := c.Send(id, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		seq, receiver, frame, ok := ackbus.DecodeFrame(c.posted[i])
		if !ok || seq != uint64(i+1) || string(receiver) != id || !bytes.Equal(frame, []byte{byte(i)}) {
			t.Errorf("posted %d %q %x %v", seq, receiver, frame, ok)
		}
	}
	c.Dispose()
	if err := c.Send("a", nil); !errors.Is(err, ackbus.ErrDisposed) || len(c.posted) != 3 {
		t.Errorf("Send after Dispose = %v, posted %d", err, len(c.posted))
	}
}

// A frame that the channel refused is expected of nobody, and its number is not used again.
func TestB02_RefusedPost(t *testing.T) {
	t.Parallel()
	c := newBench(t, ackbus.Options{})
	c.send("a")
	c.send("a")
	gone := errors.New("gone")
	c.posting = func() error { return gone }
	if err := c.Send("a", nil); !errors.Is(err, gone) {
		t.Errorf("Send = %v", err)
	}
	if err := c.Broadcast(nil, "a", "b"); !errors.Is(err, gone) {
		t.Errorf("Broadcast = %v", err)
	}
	c.posting = nil
	if slow := c.reported(); len(slow) != 0 || !maps.Equal(c.Pending(), counts{"a": 2, "b": 0}) || c.Check() != nil {
		t.Errorf("slow %v, pending %v, %v", slow, c.Pending(), c.Check())
	}
	c.send("b")
	if seq, _, _, _ := ackbus.DecodeFrame(c.posted[2]); seq != 5 {
		t.Errorf("the next number is %d, want 5", seq)
	}
}

func TestB02_NumbersAreInTheOrderOfThePosts(t *testing.T) {
	t.Parallel()
	c := newBench(t, ackbus.Options{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				_ = c.Send("a", nil)
			}
		})
	}
	wg.Wait()
	for i, message := range c.posted {
		if seq, _, _, _ := ackbus.DecodeFrame(message); seq != uint64(i+1) {
			t.Fatalf("message %d has number %d", i, seq)
		}
	}
}

func TestB03_BroadcastIsOnePost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{})
		ids := make([]string, 1000)
		want := counts{}
		for i := range ids {
			ids[i] = fmt.Sprintf("r%03d", i)
			want[ids[i]] = 1
		}
		c.broadcast("r000")
		c.ack(1, "r000")
		c.broadcast(append(ids, ids[0])...) // one of them twice
		if len(c.posted) != 2 || len(c.posted[0]) != len(c.posted[1]) {
			t.Fatalf("posted %d messages, of %d and %d bytes", len(c.posted), len(c.posted[0]), len(c.posted[1]))
		}
		if seq, receiver, _, ok := ackbus.DecodeFrame(c.posted[1]); !ok || seq != 2 || len(receiver) != 0 {
			t.Errorf("posted %d for %q, %v", seq, receiver, ok)
		}
		c.want(want, nil, nil)
		for _, id := range ids[1:] {
			c.ack(2, id)
			c.ack(2, id)
			want[id] = 0
		}
		c.ack(2, "stranger")
		c.want(want, nil, nil)
		c.Close(ids[1])
		delete(want, ids[1])
		c.send("new") // takes the place of the closed one
		c.ack(2, "new")
		want["new"] = 1
		c.want(want, nil, nil)
		time.Sleep(5 * time.Second)
		want["new"], want["r000"] = 0, 0
		c.want(want, []string{"new", "r000"}, []string{"r000", "new"})
		c.broadcast()
		if c.Held().Frames != 0 || len(c.posted) != 4 {
			t.Errorf("after a broadcast to nobody: %+v", c.Held())
		}
	})
}

func TestB05_OnlyTheMatchingAckCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{})
		c.send("a")
		c.send("b")
		c.ack(0, "a")
		c.ack(2, "a")
		c.ack(3, "a")
		c.ack(1, "b")
		c.ack(1, "")
		c.ack(1, "stranger")
		good := ackbus.EncodeAck(1, "a")
		c.receive(good[:len(good)-1])
		c.receive(append(bytes.Clone(good), 0))
		c.receive(c.posted[0])
		for _, payload := range []string{
			``, `null`, `[]`, `1`, `"a"`, `{}`, `{"seq":1}`, `{"receiverId":"a"}`, `{"seq":"1","receiverId":"a"}`, `{"seq":1.5,"receiverId":"a"}`, `{"seq":-1,"receiverId":"a"}`,
			`{"seq":01,"receiverId":"a"}`, `{"seq":1,"receiverId":["a"]}`, `{"seq":1,"receiverId":null}`, `{"seq":null,"receiverId":"a"}`, `{"SEQ":1,"receiverId":"a"}`, `{"seq":1e999,"receiverId":"a"}`,
			`{"seq":1,"receiverId":"a"}x`, `{"seq":18446744073709551617,"receiverId":"a"}`,
		} {
			message, err := wire.Envelope{Type: "ack", Payload: []byte(payload)}.Append(nil)
			if err != nil {
				t.Fatal(err)
			}
			c.receive(message)
		}
		message, _ := wire.Envelope{Type: "nack", Payload: []byte(`{"seq":1,"receiverId":"a"}`)}.Append(nil)
		c.receive(message)
		c.want(counts{"a": 1, "b": 1}, nil, nil)

		c.ack(1, "a")
		c.ack(1, "a")
		c.want(counts{"a": 0, "b": 1}, nil, nil)
		spaced, _ := wire.Envelope{Type: "ack", Payload: []byte(` { "receiverId" : "\u0062", "more": {}, "seq" : 2.0 } `)}.Append(nil)
		c.receive(spaced)
		c.want(counts{"a": 0, "b": 0}, nil, nil)
		if c.Held().Armed || c.StopTimer() {
			t.Error("the timer runs though nothing is pending")
		}
	})
}

// B05, B06: what a late acknowledgement does is in the package comment.
func TestB05_LateAck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{AckTimeout: time.Second})
		c.send("a")
		c.send("a")
		time.Sleep(time.Second)
		c.want(counts{"a": 0}, []string{"a"}, []string{"a"})
		c.ack(1, "a") // not the newest
		c.want(counts{"a": 0}, []string{"a"}, nil)
		c.send("a")
		c.ack(2, "a") // the newest of those, but another one is pending
		c.want(counts{"a": 1}, []string{"a"}, nil)
		time.Sleep(time.Second)
		c.ack(2, "a")
		c.want(counts{"a": 0}, []string{"a"}, nil)
		c.ack(3, "a") // has caught up
		c.want(counts{"a": 0}, nil, nil)
		c.ack(3, "a")
		c.send("a")
		time.Sleep(time.Second)
		c.want(counts{"a": 0}, []string{"a"}, []string{"a"}) // and is reported again
		c.send("a")                                          // number 4 is lost, and number 5 acknowledged in time
		c.ack(5, "a")
		c.want(counts{"a": 0}, nil, nil)
		c.Close("a")
		c.ack(5, "a")
		c.want(counts{}, nil, nil)
	})
}

func TestB06_ReportedOnceForEachSlowness(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{AckTimeout: time.Second})
		c.send("a")
		c.broadcast("a", "b")
		c.want(counts{"a": 2, "b": 1}, nil, nil)
		c.send("a")
		c.want(counts{"a": 3, "b": 1}, []string{"a"}, []string{"a"})
		c.send("a")
		c.ack(1, "a")
		c.ack(4, "a")
		c.ack(2, "a")
		c.want(counts{"a": 1, "b": 1}, []string{"a"}, nil)
		if !c.Slow("a") || c.Slow("b") || c.Slow("stranger") {
			t.Error("Slow is not what SlowConsumers says")
		}
		c.ack(3, "a")
		c.want(counts{"a": 0, "b": 1}, nil, nil)
		for range 3 {
			c.broadcast("b", "a")
		}
		c.want(counts{"a": 3, "b": 4}, []string{"a", "b"}, []string{"b", "a"})
		time.Sleep(time.Second)
		c.want(counts{"a": 0, "b": 0}, []string{"a", "b"}, nil)
	})
}

func TestB06_CallbacksMayCallTheBus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c *bench
		var reported []string
		c = newBench(t, ackbus.Options{AckTimeout: time.Second, OnSlowConsumer: func(id string) {
			reported = append(reported, id)
			switch id {
			case "closes":
				c.Close(id)
				c.Close("closed")
			case "sends":
				c.send("again")
			case "disposes":
				_, _ = c.Pending(), c.SlowConsumers()
				c.Dispose()
			}
		}})
		c.broadcast("closes", "closed", "sends")
		time.Sleep(time.Second)
		synctest.Wait()
		if want := []string{"closes", "sends"}; !slices.Equal(reported, want) {
			t.Errorf("reported %v, want %v", reported, want)
		}
		for range 3 {
			c.broadcast("disposes", "never")
		}
		if want := []string{"closes", "sends", "disposes"}; !slices.Equal(reported, want) {
			t.Errorf("reported %v, want %v", reported, want)
		}
	})
}

func TestB07_ClosedReceiversLeaveNothing(t *testing.T) {
	t.Parallel()
	for _, held := range []bool{false, true} {
		c := newBench(t, ackbus.Options{AckTimeout: time.Hour})
		if held {
			c.send("holder") // an older frame that stays pending
		}
		for i := range 100_000 {
			id := fmt.Sprintf("r%d", i)
			switch i % 4 {
			case 0:
				c.send(id)
			case 1:
				c.broadcast(id, "other")
			case 2:
				c.broadcast(id)
				c.ack(uint64(len(c.posted)), id)
			case 3:
				c.broadcast(id, id+"'")
				c.Close(id + "'")
			}
			c.Close(id)
			c.Close("other")
			c.Close(id)
		}
		c.Close("never seen")
		c.Close("")
		want := counts{}
		if held {
			want["holder"] = 1
		}
		if d := cmp.Diff(want, c.Pending()); d != "" {
			t.Errorf("Pending:\n%s", d)
		}
		n := len(want)
		if h := c.Held(); h.Receivers != n || h.Slots != n || h.Crowds != 0 || h.Open != n || h.Armed != held || !held && (h.Frames != 0 || h.Ring > 1024) {
			t.Errorf("held: %+v", h)
		}
		if names := c.Names(); len(names) != n {
			t.Errorf("%d ids can be reached", len(names))
		}
	}
}

// What waits for a receiver that was closed is nothing to another of the same name.
func TestB07_ReopenedReceiverStartsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{AckTimeout: 2 * time.Second})
		c.send("holder")
		c.send("a")
		c.broadcast("a", "holder")
		c.send("a")
		c.want(counts{"a": 3, "holder": 2}, []string{"a"}, []string{"a"})
		c.Close("a")
		time.Sleep(time.Second)
		c.send("a")
		for seq := range uint64(5) {
			c.ack(seq, "a")
		}
		c.want(counts{"a": 1, "holder": 2}, nil, nil)
		time.Sleep(time.Second)
		c.want(counts{"a": 1, "holder": 0}, []string{"holder"}, []string{"holder"})
		c.ack(5, "a")
		c.want(counts{"a": 0, "holder": 0}, []string{"holder"}, nil)
	})
}

func TestB08_Copies(t *testing.T) {
	t.Parallel()
	c := newBench(t, ackbus.Options{})
	for range 3 {
		c.send("a")
	}
	c.Pending()["a"] = 7
	c.SlowConsumers()[0] = "b"
	if !maps.Equal(c.Pending(), counts{"a": 3}) || !slices.Equal(c.SlowConsumers(), []string{"a"}) {
		t.Errorf("Pending = %v, SlowConsumers = %v", c.Pending(), c.SlowConsumers())
	}
}

func TestB09_Dispose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{})
		c.broadcast("a", "b")
		for range 2000 {
			c.send("a")
		}
		c.reported()
		c.Dispose()
		c.Dispose()
		if c.StopTimer() {
			t.Error("the timer runs after Dispose")
		}
		c.ack(1, "a")
		c.Close("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if h, slow := c.Held(), c.reported(); h != (ackbus.Held{}) || c.stopped != 1 || len(slow) != 0 || len(c.Pending()) != 0 || len(c.SlowConsumers()) != 0 {
			t.Errorf("held %+v, stopped %d times, reported %v", h, c.stopped, slow)
		}
		if err := c.Broadcast(nil, "a"); !errors.Is(err, ackbus.ErrDisposed) {
			t.Errorf("Broadcast after Dispose = %v", err)
		}
	})
}

func TestB09_DisposeDuringAPost(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		c := newBench(t, ackbus.Options{})
		c.send("a")
		c.send("a")
		c.posting = func() error {
			c.Dispose()
			if fails {
				return errors.New("gone")
			}
			return nil
		}
		if err := c.Send("a", nil); (err != nil) != fails {
			t.Errorf("Send = %v", err)
		}
		if h, slow := c.Held(), c.reported(); h != (ackbus.Held{}) || len(slow) != 0 {
			t.Errorf("held %+v, reported %v", h, slow)
		}
	}
}

func TestB10_TimedOutFramesAreNotSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{AckTimeout: time.Second})
		for range 5 {
			c.send("a")
			time.Sleep(300 * time.Millisecond)
		}
		c.want(counts{"a": 3}, []string{"a"}, []string{"a"}) // sent at 600, 900 and 1200 ms; now is 1500 ms
		time.Sleep(200 * time.Millisecond)
		c.want(counts{"a": 2}, []string{"a"}, nil)
		time.Sleep(time.Hour)
		c.want(counts{"a": 0}, []string{"a"}, nil)
		if len(c.posted) != 5 {
			t.Errorf("posted %d messages, want 5", len(c.posted))
		}
	})
}

func TestB12_PastTheBoundTheOldestTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newBench(t, ackbus.Options{MaxPending: 3})
		for _, id := range []string{"a", "b", "c", "d"} {
			c.send(id)
		}
		c.want(counts{"a": 0, "b": 1, "c": 1, "d": 1}, []string{"a"}, []string{"a"})
		c.ack(3, "c")
		c.broadcast("b", "d") // the place of c is no place yet: it is behind that of b
		c.want(counts{"a": 0, "b": 1, "c": 0, "d": 2}, []string{"a", "b"}, []string{"b"})
		if h := c.Held(); h.Frames > 3 {
			t.Errorf("held %+v", h)
		}
	})
}

// B12: the weight of a frame says that there is no timer for each.
func TestB12_MillionOutstanding(t *testing.T) {
	const n = 1_000_000
	bus, err := ackbus.New(discard{}, ackbus.Options{AckTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer bus.Dispose()
	before := heap()
	for range n {
		if err := bus.Send("a", nil); err != nil {
			t.Fatal(err)
		}
	}
	each := float64(heap()-before) / n
	t.Logf("%.1f bytes for each of %d outstanding frames", each, n)
	if got := bus.Pending()["a"]; got != n || each > 24 {
		t.Errorf("%d pending, %.1f bytes for each", got, each)
	}
	bus.Close("a")
	if h := bus.Held(); h != (ackbus.Held{}) {
		t.Errorf("held after the end of all: %+v", h)
	}
}

type discard struct{}

func (discard) Post([]byte) error                   { return nil }
func (discard) Listen(func([]byte)) (func(), error) { return func() {}, nil }

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// model is the bus, naively.
type model struct {
	timeout time.Duration
	frames  map[uint64]map[string]time.Time // the deadline of each pending frame
	pending map[string]int
	slow    map[string]bool
	late    map[string]uint64
	told    []string
}

func (m *model) expect(seq uint64, now time.Time, ids []string) {
	m.frames[seq] = map[string]time.Time{}
	for _, id := range ids {
		if _, twice := m.frames[seq][id]; twice {
			continue
		}
		m.frames[seq][id] = now.Add(m.timeout)
		m.pending[id]++
		if m.pending[id] > 2 && !m.slow[id] {
			m.slow[id] = true
			m.told = append(m.told, id)
		}
	}
}

func (m *model) ack(seq uint64, id string) {
	if _, ok := m.frames[seq][id]; ok {
		delete(m.frames[seq], id)
		m.pending[id]--
		if m.pending[id] == 0 {
			delete(m.slow, id)
		}
	} else if m.pending[id] == 0 && m.late[id] == seq {
		delete(m.slow, id)
	}
}

func (m *model) advance(now time.Time) {
	for _, seq := range slices.Sorted(maps.Keys(m.frames)) {
		for id, due := range m.frames[seq] {
			if due.After(now) {
				continue
			}
			delete(m.frames[seq], id)
			m.pending[id]--
			m.late[id] = seq
			if !m.slow[id] {
				m.slow[id] = true
				m.told = append(m.told, id)
			}
		}
	}
}

func (m *model) close(id string) {
	for _, waiting := range m.frames {
		delete(waiting, id)
	}
	delete(m.pending, id)
	delete(m.slow, id)
	delete(m.late, id)
}

func TestB05_B06_B07_AgainstAModel(t *testing.T) {
	t.Parallel()
	for range 200 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			c := newBench(t, ackbus.Options{AckTimeout: 100 * time.Millisecond})
			m := &model{100 * time.Millisecond, map[uint64]map[string]time.Time{}, counts{}, map[string]bool{}, map[string]uint64{}, nil}
			id := func() string { return fmt.Sprint("r", r.IntN(6)) }
			var seq uint64
			for step := range 400 {
				switch op := r.IntN(10); {
				case op < 2:
					seq++
					to := id()
					m.expect(seq, time.Now(), []string{to})
					c.send(to)
				case op < 4:
					seq++
					to := make([]string, r.IntN(5))
					for i := range to {
						to[i] = id()
					}
					m.expect(seq, time.Now(), to)
					c.broadcast(to...)
				case op < 8:
					back, who := uint64(r.IntN(6)), id()
					m.ack(seq-min(back, seq), who)
					c.ack(seq-min(back, seq), who)
				case op < 9:
					time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
					synctest.Wait()
					m.advance(time.Now())
				default:
					if r.IntN(3) == 0 {
						who := id()
						m.close(who)
						c.Close(who)
					}
				}
				told := c.reported()
				slices.Sort(m.told)
				slices.Sort(told)
				slow := slices.Sorted(maps.Keys(m.slow))
				if d := cmp.Diff(m.pending, c.Pending()); d != "" || !slices.Equal(slow, c.SlowConsumers()) || !slices.Equal(m.told, told) || c.Check() != nil {
					t.Fatalf("seed %d, step %d: slow %v, want %v; told %v, want %v; %v; pending (-want +got):\n%s", seed, step, c.SlowConsumers(), slow, told, m.told, c.Check(), d)
				}
				m.told = nil
			}
		})
	}
}

func TestB11_Receiver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var local ackbus.Local
		bus, err := ackbus.New(local.Join(), ackbus.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gate := make(chan struct{})
		var handled []string
		r, err := ackbus.NewReceiver(local.Join(), "a", func(frame []byte) { handled = append(handled, string(frame)); <-gate }, ackbus.ReceiverOptions{Queue: 2})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- r.Run(ctx) }()
		say := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		say(bus.Send("b", []byte("not for a")))
		say(bus.Send("a", []byte("1")))
		say(bus.Broadcast([]byte("2"), "a", "b"))
		if got := bus.Pending(); !maps.Equal(got, counts{"a": 2, "b": 2}) {
			t.Errorf("Pending = %v before the handler returned", got)
		}
		say(bus.Send("a", []byte("3")))
		say(bus.Send("a", []byte("dropped")))
		for range 3 {
			gate <- struct{}{}
		}
		synctest.Wait()
		if got := bus.Pending(); !maps.Equal(got, counts{"a": 1, "b": 2}) {
			t.Errorf("Pending = %v after the handler returned", got)
		}
		if d := cmp.Diff([]string{"1", "2", "3"}, handled); d != "" {
			t.Errorf("handled:\n%s", d)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		say(bus.Send("a", []byte("after the end")))
		bus.Dispose()
	})
	for _, f := range []func() (*ackbus.Receiver, error){
		func() (*ackbus.Receiver, error) {
			return ackbus.NewReceiver(&tap{}, "", func([]byte) {}, ackbus.ReceiverOptions{})
		},
		func() (*ackbus.Receiver, error) {
			return ackbus.NewReceiver(nil, "a", func([]byte) {}, ackbus.ReceiverOptions{})
		},
		func() (*ackbus.Receiver, error) {
			return ackbus.NewReceiver(&tap{}, "a", nil, ackbus.ReceiverOptions{})
		},
		func() (*ackbus.Receiver, error) {
			return ackbus.NewReceiver(&tap{}, "a", func([]byte) {}, ackbus.ReceiverOptions{Queue: -1})
		},
	} {
		if r, err := f(); r != nil || err == nil {
			t.Errorf("NewReceiver = %v, %v", r, err)
		}
	}
}

func TestB11_RunEndsWithTheChannel(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone")
	c := &tap{posting: func() error { return gone }}
	r, err := ackbus.NewReceiver(c, "a", func([]byte) {}, ackbus.ReceiverOptions{})
	if err != nil {
		t.Fatal(err)
	}
	message, _ := ackbus.EncodeFrame(1, "a", nil)
	c.receive(message)
	if err := r.Run(t.Context()); !errors.Is(err, gone) || c.stopped != 1 {
		t.Errorf("Run = %v, stopped %d times", err, c.stopped)
	}
}

// Everything at once, for the race detector.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	var local ackbus.Local
	var bus *ackbus.Bus
	bus, err := ackbus.New(local.Join(), ackbus.Options{AckTimeout: time.Millisecond, MaxPending: 64, OnSlowConsumer: func(id string) { bus.Close(id) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running, sending sync.WaitGroup
	for i := range 4 {
		r, err := ackbus.NewReceiver(local.Join(), fmt.Sprint("r", i), func([]byte) {}, ackbus.ReceiverOptions{Queue: 4})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = r.Run(ctx) })
		sending.Go(func() {
			for range 2000 {
				_ = bus.Send(fmt.Sprint("r", i), nil)
				_ = bus.Broadcast(nil, "r0", "r1", "r2", "r3", "nobody")
				_, _ = bus.Pending(), bus.SlowConsumers()
			}
		})
	}
	sending.Wait()
	if h := bus.Held(); h.Frames > 64 || h.Receivers > 5 {
		t.Errorf("held %+v", h)
	}
	bus.Dispose()
	cancel()
	running.Wait()
}

// messageVector is a message of the bus on a transport of bytes; kind is empty for what a bus and a receiver ignore.
type messageVector struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Seq        uint64 `json:"seq,omitempty"`
	ReceiverID string `json:"receiverId,omitempty"`
	Frame      string `json:"frame,omitempty"`
	Bytes      string `json:"bytes"`
}

func messageVectors(t testing.TB) []messageVector {
	t.Helper()
	var vectors []messageVector
	for _, v := range []struct {
		name     string
		seq      uint64
		id, data string
	}{
		{"frame", 1, "client-42", "hello"},
		{"frame for everyone", 2, "", "\x00\x01\x02"},
		{"empty frame", 9007199254740991, "a", ""},
		{"frame for an unusual receiver", 3, "ä\"\\\n\u2028<😀", "{}"},
	} {
		message, err := ackbus.EncodeFrame(v.seq, v.id, []byte(v.data))
		if err != nil {
			t.Fatal(err)
		}
		vectors = append(vectors, messageVector{v.name, "frame", v.seq, v.id, hex.EncodeToString([]byte(v.data)), hex.EncodeToString(message)})
	}
	raw := func(name, kind, payload string, seq uint64, id string) {
		message, err := wire.Envelope{Type: kind, Payload: []byte(payload)}.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		if seq == 0 {
			kind = ""
		}
		vectors = append(vectors, messageVector{Name: name, Kind: kind, Seq: seq, ReceiverID: id, Bytes: hex.EncodeToString(message)})
	}
	vectors = append(vectors, messageVector{"ack", "ack", 7, "client-42", "", hex.EncodeToString(ackbus.EncodeAck(7, "client-42"))})
	vectors = append(vectors, messageVector{"ack of an unusual receiver", "ack", 8, "ä\"\\\n\u2028<😀", "", hex.EncodeToString(ackbus.EncodeAck(8, "ä\"\\\n\u2028<😀"))})
	raw("ack with more members and space", "ack", ` {"more":[], "receiverId": "\u0061" , "seq":2.0} `, 2, "a")
	raw("ack without a receiver", "ack", `{"seq":1}`, 0, "")
	raw("ack without a number", "ack", `{"receiverId":"a"}`, 0, "")
	raw("ack with a number that is text", "ack", `{"seq":"1","receiverId":"a"}`, 0, "")
	raw("ack with a leading zero", "ack", `{"seq":01,"receiverId":"a"}`, 0, "")
	raw("ack that is null", "ack", `null`, 0, "")
	raw("ack with names in upper case", "ack", `{"Seq":1,"ReceiverID":"a"}`, 0, "")
	raw("ack that is not JSON", "ack", `seq=1`, 0, "")
	raw("frame without a zero byte", "frame", `{"seq":1,"receiverId":"a"}`, 0, "")
	raw("frame without a zero byte, and a space at its end", "frame", `{"seq":1,"receiverId":"a"} `, 0, "")
	raw("frame with a number that is no integer", "frame", "{\"seq\":1.5,\"receiverId\":\"a\"}\x00hello", 0, "")
	raw("frame with the number 0", "frame", "{\"seq\":0,\"receiverId\":\"a\"}\x00hello", 0, "")
	raw("frame without a header", "frame", "\x00hello", 0, "")
	raw("another type", "chat", `{"seq":1,"receiverId":"a"}`, 0, "")
	return vectors
}

// B04: the messages of the bus on transports of bytes, the same in Go and TypeScript.
func TestB04_MessageVectors(t *testing.T) {
	t.Parallel()
	vectors := messageVectors(t)
	testenv.Written(t, "../spec/vectors/ackbus.json", vectors, *update)
	for _, v := range vectors {
		message, err := hex.DecodeString(v.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		seq, id, frame, isFrame := ackbus.DecodeFrame(message)
		ackSeq, ackID, isAck := ackbus.DecodeAck(message)
		switch {
		case isFrame != (v.Kind == "frame") || isAck != (v.Kind == "ack"):
			t.Errorf("%s: frame %v, ack %v", v.Name, isFrame, isAck)
		case isFrame && (seq != v.Seq || string(id) != v.ReceiverID || hex.EncodeToString(frame) != v.Frame):
			t.Errorf("%s: frame %d for %q: %x", v.Name, seq, id, frame)
		case isAck && (ackSeq != v.Seq || string(ackID) != v.ReceiverID):
			t.Errorf("%s: ack %d of %q", v.Name, ackSeq, ackID)
		}
	}
}

// B04: whatever is posted, a bus and a receiver take it or leave it; and what they take, encodes back to the same meaning.
func FuzzMessage(f *testing.F) {
	for _, v := range messageVectors(f) {
		message, _ := hex.DecodeString(v.Bytes)
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		if seq, id, frame, ok := ackbus.DecodeFrame(message); ok {
			again, err := ackbus.EncodeFrame(seq, string(id), frame)
			if err != nil {
				return // larger when it is written in our way
			}
			if s, i, fr, ok := ackbus.DecodeFrame(again); !ok || s != seq || !bytes.Equal(i, id) || !bytes.Equal(fr, frame) {
				t.Fatalf("%x: read again as %d %q %x %v", message, s, i, fr, ok)
			}
		}
		if seq, id, ok := ackbus.DecodeAck(message); ok {
			if s, i, ok := ackbus.DecodeAck(ackbus.EncodeAck(seq, string(id))); !ok || s != seq || !bytes.Equal(i, id) {
				t.Fatalf("%x: read again as %d %q %v", message, s, i, ok)
			}
		}
	})
}
