package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

// journal is what a subscription's callbacks were told, in order.
type journal []string

// options are callbacks that write into the journal.
func (j *journal) options() client.SubscribeOptions {
	note := func(format string, args ...any) { *j = append(*j, fmt.Sprintf(format, args...)) }
	return client.SubscribeOptions{
		OnSubscribed: func(s client.Subscribed) {
			note("subscribed %d%s %v", s.Position.Offset, s.Position.Epoch, s.Recovered)
		},
		OnMessage: func(m client.Message) { note("message %d%s", m.Offset, m.Epoch) },
		OnLost: func(l client.Lost) {
			note("lost %d: %d%s-%d%s", l.Count, l.From.Offset, l.From.Epoch, l.To.Offset, l.To.Epoch)
		},
		OnSkipped: func(n uint64) { note("skipped %d", n) },
		OnRefused: func(e *wire.Error) { note("refused %s", e.Code) },
	}
}

func (j *journal) want(t *testing.T, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, []string(*j)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	*j = nil
}

// subscribed is an answer of a channel with history. recovered is nil where nothing was asked for.
func subscribed(sid string, offset uint64, epoch string, recovered ...bool) string {
	r := wire.Reply{Type: wire.TypeSubscribed, SID: sid, Channel: "log"}.At(offset, epoch)
	if len(recovered) > 0 {
		r.Recovered = &recovered[0]
	}
	return string(r.Encode())
}

func message(offset uint64) string {
	return string(wire.Publication{ID: fmt.Sprint(offset), Data: []byte("1")}.Record(false).Message("log", offset))
}

// places answers the subscribes of channel log, one after the other over all connections. An empty answer is none; after the last the fake does as usual.
func (f *fake) places(answers ...string) {
	f.answer = func(c *fakeConn, m command) bool {
		if m.Type != wire.TypeSubscribe || len(answers) == 0 {
			return false
		}
		if answers[0] != "" {
			c.say(answers[0])
		}
		answers = answers[1:]
		return true
	}
}

// since are the positions with which a connection subscribed.
func (c *fakeConn) since() []string {
	var out []string
	for _, m := range c.commands(wire.TypeSubscribe) {
		switch {
		case m.Since == nil:
			out = append(out, "none")
		case m.Since.Last > 0:
			out = append(out, fmt.Sprint("last ", m.Since.Last))
		default:
			out = append(out, fmt.Sprint(m.Since.Offset, m.Since.Epoch))
		}
	}
	return out
}

func wantEqual[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

func TestP20_WhichCallbacksRunOnAResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 4, "A"), subscribed("1", 5, "A", true), subscribed("1", 9, "A", false), subscribed("1", 2, "B", false), subscribed("1", 2, "B", true))
		r := f.run(f.options())
		var told journal
		sub, err := r.Subscribe("log", told.options())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.conn(0).say(message(5))
		synctest.Wait()
		told.want(t, "subscribed 4A false", "message 5A")
		wantEqual(t, "since", f.conn(0).since(), []string{"none"})

		next := func(i int, since string, say ...string) {
			t.Helper()
			_ = f.conn(i - 1).conn.CloseNow()
			pass(20 * time.Second)
			for _, m := range say {
				f.conn(i).say(m)
			}
			synctest.Wait()
			wantEqual(t, "since", f.conn(i).since(), []string{since})
		}
		next(1, "5A", message(6), message(7)) // recovered
		told.want(t, "subscribed 5A true", "message 6A", "message 7A")
		next(2, "7A", message(10)) // not
		told.want(t, "lost 2: 7A-9A", "subscribed 9A false", "message 10A")
		next(3, "10A") // the log was lost
		told.want(t, "lost 0: 10A-2B", "subscribed 2B false")
		next(4, "2B", message(3)) // no message came on the connection before
		told.want(t, "subscribed 2B true", "message 3B")
		wantEqual(t, "position", sub.Position(), client.Position{Offset: 3, Epoch: "B"})
		f.end(r)
	})
}

func TestHistory_RepetitionsAndGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 0, "A"), "", subscribed("1", 2, "A"), "")
		r := f.run(f.options())
		var told journal
		opts := told.options()
		opts.Ack = true
		if _, err := r.Subscribe("log", opts); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c := f.conn(0)
		for _, offset := range []uint64{1, 1, 2, 1, 4, 5, 3} { // 3 comes too late: it was asked for, and all that comes before the answer is ignored
			c.say(message(offset))
		}
		c.say(`{"type":"skipped","channel":"log","count":2}`)
		synctest.Wait()
		told.want(t, "subscribed 0A false", "message 1A", "message 2A")
		wantEqual(t, "since", c.since(), []string{"none", "2A"})
		// The answer is late: the next beats ask again. That of the first has no recovered, as if it was to a beat, and changes nothing.
		pass(31 * time.Second)
		wantEqual(t, "since", c.since(), []string{"none", "2A", "2A", "2A"})
		for _, m := range c.commands(wire.TypeSubscribe) {
			if !m.Ack {
				t.Errorf("asks without ack: %+v", m)
			}
		}
		c.say(message(3))
		c.say(subscribed("1", 2, "A", true))
		c.say(message(3))
		c.say(message(4))
		c.say(subscribed("1", 2, "A", true)) // the answer to the second
		c.say(message(3))
		c.say(message(4))
		c.say(message(5))
		synctest.Wait()
		told.want(t, "message 3A", "message 4A", "message 5A")
		f.end(r)
	})
}

func TestHistory_ARepairThatIsRefusedIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		refused := wire.Reply{Type: wire.TypeRefused, Re: wire.TypeSubscribe, SID: "1", Channel: "log", Code: wire.CodeHistoryUnavailable, RetryAfterMs: 1000}
		f.places(subscribed("1", 7, "A"), string(refused.Encode()), subscribed("1", 8, "A", false))
		r := f.run(f.options())
		var told journal
		sub, err := r.Subscribe("log", told.options())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.conn(0).say(message(9))
		pass(3 * time.Second)
		f.conn(0).say(message(9))
		synctest.Wait()
		told.want(t, "subscribed 7A false", "refused HISTORY_UNAVAILABLE", "lost 1: 7A-8A", "message 9A")
		wantEqual(t, "since", f.conn(0).since(), []string{"none", "7A", "7A"})
		wantEqual(t, "live", sub.Live(), true)
		f.end(r)
	})
}

func TestHistory_TheServerGivesUpOnALiveSubscription(t *testing.T) {
	for _, c := range []struct{ name, say, want string }{
		{"trimmed", subscribed("1", 12, "A", false), "lost 5: 7A-12A"},
		{"the log was lost", subscribed("1", 1, "B", false), "lost 0: 7A-1B"},
		{"the channel has no history any more", `{"type":"subscribed","sid":"1","channel":"log"}`, "lost 0: 7A-0"},
		{"the end of the log, where the client was already", subscribed("1", 6, "A", false), ""},
		{"a beat's answer", subscribed("1", 12, "A"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.places(subscribed("1", 6, "A"))
				r := f.run(f.options())
				var told journal
				if _, err := r.Subscribe("log", told.options()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				f.conn(0).say(message(7))
				f.conn(0).say(c.say)
				synctest.Wait()
				want := []string{"subscribed 6A false", "message 7A"}
				if c.want != "" {
					want = append(want, c.want)
				}
				told.want(t, want...)
				f.end(r)
			})
		})
	}
}

func TestHistory_AChannelThatLosesItsHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		none := `{"type":"subscribed","sid":"1","channel":"log"}`
		f.places(subscribed("1", 6, "A"), none, none, subscribed("1", 2, "B"))
		r := f.run(f.options())
		var told journal
		opts := told.options()
		opts.Last = 3
		sub, err := r.Subscribe("log", opts)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"last 3", "6A", "none", "none"} {
			pass(20 * time.Second)
			wantEqual(t, "since", f.conn(i).since(), []string{want})
			if i == 2 {
				f.conn(i).say(`{"type":"message","channel":"log","id":"x","data":1}`)
				synctest.Wait()
				wantEqual(t, "position", sub.Position(), client.Position{})
			}
			if i < 3 {
				_ = f.conn(i).conn.CloseNow()
			}
		}
		told.want(t, "subscribed 6A false", "lost 0: 6A-0", "subscribed 0 false", "subscribed 0 false", "message 0", "subscribed 2B false")
		f.end(r)
	})
}

func TestHistory_SkippedIsFollowedByAJump(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 6, "A"), "")
		r := f.run(f.options())
		var told journal
		if _, err := r.Subscribe("log", told.options()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c := f.conn(0)
		c.say(message(7))
		c.say(`{"type":"skipped","channel":"log","count":2}`)
		c.say(message(10))
		synctest.Wait()
		wantEqual(t, "since", c.since(), []string{"none"})
		c.say(message(12)) // nobody said that 11 was skipped
		synctest.Wait()
		wantEqual(t, "since", c.since(), []string{"none", "10A"})
		told.want(t, "subscribed 6A false", "message 7A", "skipped 2", "message 10A")
		f.end(r)
	})
}

func TestP12_SinceBeginsWhereAProgramStopped(t *testing.T) {
	for _, c := range []struct {
		name   string
		since  client.Position
		answer string
		want   []string
	}{
		{"recovered", client.Position{Offset: 5, Epoch: "A"}, subscribed("1", 5, "A", true), []string{"subscribed 5A true"}},
		{"from the beginning of any log", client.Position{}, subscribed("1", 0, "A", true), []string{"subscribed 0A true"}},
		{"trimmed", client.Position{Offset: 5, Epoch: "A"}, subscribed("1", 50, "A", false), []string{"lost 45: 5A-50A", "subscribed 50A false"}},
		{"ahead of the log", client.Position{Offset: 500, Epoch: "A"}, subscribed("1", 50, "A", false), []string{"lost 0: 500A-50A", "subscribed 50A false"}},
		{"another log", client.Position{Offset: 5, Epoch: "A"}, subscribed("1", 50, "B", false), []string{"lost 0: 5A-50B", "subscribed 50B false"}},
		{"another log of the same length", client.Position{Offset: 5, Epoch: "A"}, subscribed("1", 5, "B", false), []string{"lost 0: 5A-5B", "subscribed 5B false"}},
		{"no history", client.Position{Offset: 5, Epoch: "A"}, `{"type":"subscribed","sid":"1","channel":"log"}`, []string{"lost 0: 5A-0", "subscribed 0 false"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.places(c.answer)
				r := f.run(f.options())
				var told journal
				opts := told.options()
				opts.Since = &c.since
				sub, err := r.Subscribe("log", opts)
				if err != nil {
					t.Fatal(err)
				}
				wantEqual(t, "position", sub.Position(), c.since)
				synctest.Wait()
				told.want(t, c.want...)
				wantEqual(t, "since", f.conn(0).since(), []string{fmt.Sprint(c.since.Offset, c.since.Epoch)})
				f.end(r)
			})
		})
	}
	c, err := client.New(client.Options{URL: "ws://a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []client.SubscribeOptions{{Last: -1}, {Last: 1, Since: &client.Position{}}, {Since: &client.Position{Epoch: string(make([]byte, 65))}}} {
		if _, err := c.Subscribe("a", bad); !errors.Is(err, &wire.Error{Code: wire.CodeDataInvalid}) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

func TestHistory_PositionIsWhatWasHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 6, "A"))
		r := f.run(f.options())
		gate := make(chan struct{})
		sub, err := r.Subscribe("log", client.SubscribeOptions{OnMessage: func(client.Message) { <-gate }, OnLost: func(client.Lost) { <-gate }})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.conn(0).say(message(7))
		synctest.Wait()
		wantEqual(t, "while it is handled", sub.Position().Offset, 6)
		gate <- struct{}{}
		synctest.Wait()
		wantEqual(t, "after", sub.Position().Offset, 7)
		f.conn(0).say(subscribed("1", 3, "B", false))
		synctest.Wait()
		wantEqual(t, "while it is told", sub.Position(), client.Position{Offset: 7, Epoch: "A"})
		close(gate)
		synctest.Wait()
		wantEqual(t, "after", sub.Position(), client.Position{Offset: 3, Epoch: "B"})
		f.end(r)
	})
}

func TestP50_ANoteMovesThePositionAndAnAnswerDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 6, "A"), "")
		r := f.run(f.options())
		var told journal
		sub, err := r.Subscribe("log", told.options())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c := f.conn(0)
		note := func(offset uint64) {
			c.say(fmt.Sprintf(`{"type":"published","id":"p","channel":"log","offset":%d}`, offset))
		}
		c.say(`{"type":"published","id":"p","channel":"log","offset":7,"epoch":"A"}`) // the message is still to come
		c.say(message(7))
		note(8)
		note(8)
		c.say(message(9))
		synctest.Wait()
		wantEqual(t, "position", sub.Position().Offset, 9)
		note(11) // it stands where a message would: one is missing
		synctest.Wait()
		wantEqual(t, "position", sub.Position().Offset, 9)
		wantEqual(t, "since", c.since(), []string{"none", "9A"})
		told.want(t, "subscribed 6A false", "message 7A", "message 9A")
		f.end(r)
	})
}

func acks(c *fakeConn) (offsets []uint64) {
	for _, m := range c.commands(wire.TypeAck) {
		offsets = append(offsets, m.Offset)
	}
	return offsets
}

func TestB14_AcknowledgesWhatWasHandledTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 100, "A"), subscribed("1", 341, "A", true))
		r := f.run(f.options())
		slow := make(chan struct{}, 1000)
		sub, err := r.Subscribe("log", client.SubscribeOptions{Ack: true, OnMessage: func(client.Message) { <-slow }})
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		c := f.conn(0)
		wantEqual(t, "asked to acknowledge", c.commands(wire.TypeSubscribe)[0].Ack, true)
		c.say(message(101))
		pass(time.Second)
		wantEqual(t, "while it is handled", acks(c), nil)
		slow <- struct{}{}
		synctest.Wait()
		wantEqual(t, "handled", acks(c), []uint64{101})
		for range 300 {
			slow <- struct{}{}
		}
		for i := range uint64(10) { // within 100 ms
			c.say(message(102 + i))
		}
		pass(99 * time.Millisecond)
		wantEqual(t, "too soon", acks(c), []uint64{101})
		pass(2 * time.Millisecond)
		wantEqual(t, "together", acks(c), []uint64{101, 111})
		for i := range uint64(200) { // at once: half of a window at a time
			c.say(message(112 + i))
		}
		synctest.Wait()
		got := acks(c)
		if n := len(got) - 2; n < 1 || n > 7 || got[len(got)-1] < 311-32 {
			t.Errorf("acknowledged %v", got)
		}
		pass(101 * time.Millisecond)
		got = acks(c)
		wantEqual(t, "the rest", got[len(got)-1], 311)
		for i := 1; i < len(got); i++ {
			if got[i] <= got[i-1] {
				t.Errorf("acknowledged %v", got)
			}
		}
		// A server that repeats what it gave has forgotten what was acknowledged.
		c.say(message(300))
		pass(101 * time.Millisecond)
		again := acks(c)
		wantEqual(t, "again", again[len(got):], []uint64{311})

		for i := range uint64(30) {
			c.say(message(312 + i))
		}
		synctest.Wait()
		sub.Close()
		synctest.Wait()
		last := c.commands(wire.TypeAck, wire.TypeUnsubscribe)
		if n := len(last); last[n-2].Type != wire.TypeAck || last[n-2].Offset != 341 || last[n-1].Type != wire.TypeUnsubscribe {
			t.Errorf("at the end %+v", last[n-2:])
		}
		f.end(r)
	})
}

func TestB14_AnAcknowledgementThatTheRateRefusesIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(c *fakeConn, m command) bool {
			switch {
			case m.Type == wire.TypeSubscribe:
				c.say(subscribed("1", 1, "A"))
				c.say(message(2))
				return true
			case m.Type == wire.TypeAck && len(c.commands(wire.TypeAck)) == 1:
				c.say(string(wire.Refused(m.Command, &wire.Error{Code: wire.CodeFrameRateLimit, Message: "slow down", Retry: 3 * time.Second}).Encode()))
				return true
			}
			return false
		}
		r := f.run(f.options())
		if _, err := r.Subscribe("log", client.SubscribeOptions{Ack: true}); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Second)
		wantEqual(t, "acknowledged", acks(f.conn(0)), []uint64{2})
		pass(2 * time.Second)
		wantEqual(t, "acknowledged", acks(f.conn(0)), []uint64{2, 2})
		f.end(r)
	})
}

func TestP17_ThreeMinutesOfflineEndLiveWithALossTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.places(subscribed("1", 6, "A"), subscribed("1", 50, "A", false))
		r := f.run(f.options())
		var told journal
		opts := told.options()
		opts.Presence = &client.Presence{Data: "me"}
		sub, err := r.Subscribe("log", opts)
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if err := sub.SetState("here"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.pipe.down.Store(true)
		_ = f.conn(0).conn.CloseNow()
		pass(3 * time.Minute)
		wantEqual(t, "live", sub.Live(), false)
		f.pipe.down.Store(false)
		for !sub.Live() {
			pass(time.Second)
		}
		f.conn(1).say(message(51))
		synctest.Wait()
		told.want(t, "subscribed 6A false", "lost 44: 6A-50A", "subscribed 50A false", "message 51A")
		again := f.conn(1).commands(wire.TypeSubscribe, wire.TypeState)
		if len(again) != 2 || string(again[0].Presence.Data) != `"me"` || string(again[1].Data) != `"here"` {
			t.Errorf("said %+v", again)
		}
		f.end(r)
	})
}

// publishing is a call of Publish.
type publishing struct {
	done chan struct{}
	at   client.Published
	err  error
}

func publish(ctx context.Context, c *client.Client, channel, id string) *publishing {
	p := &publishing{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.at, p.err = c.Publish(ctx, channel, 1, client.PublishOptions{ID: id})
	}()
	return p
}

func (p *publishing) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// published answers a publication, unless one of the first n over all connections: then it cuts the connection.
func (f *fake) cutPublications(n int, history bool) {
	f.answer = func(c *fakeConn, m command) bool {
		if m.Type != wire.TypePublish || m.ID == "warm" {
			if m.Type == wire.TypePublish && history {
				c.say(string(wire.Reply{Type: wire.TypePublished, ID: m.ID, Channel: m.Channel}.At(1, "A").Encode()))
				return true
			}
			return false
		}
		if n--; n >= 0 {
			_ = c.conn.CloseNow()
			return true
		}
		c.say(string(wire.Reply{Type: wire.TypePublished, ID: m.ID, Channel: m.Channel}.At(2, "A").Encode()))
		return true
	}
}

// sent are the ids of the publications that the fake got, over all connections.
func (f *fake) sent() (ids []string) {
	f.mu.Lock()
	conns := f.conns
	f.mu.Unlock()
	for _, c := range conns {
		for _, m := range c.commands(wire.TypePublish) {
			if m.ID != "warm" {
				ids = append(ids, m.ID)
			}
		}
	}
	return ids
}

func TestP18_APublicationWithoutAnAnswerIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.cutPublications(2, true)
		r := f.run(f.options())
		if p, err := r.Publish(t.Context(), "log", 1, client.PublishOptions{ID: "warm"}); err != nil || p.Position != (client.Position{Offset: 1, Epoch: "A"}) {
			t.Fatal(p, err)
		}
		p := publish(t.Context(), r.Client, "log", "m")
		pass(10 * time.Second)
		if !p.over() || p.err != nil || p.at != (client.Published{ID: "m", Position: client.Position{Offset: 2, Epoch: "A"}}) {
			t.Errorf("%+v", p)
		}
		wantEqual(t, "sent", f.sent(), []string{"m", "m", "m"})
		f.end(r)
	})
	synctest.Test(t, func(t *testing.T) { // known from a subscription
		f := newFake(t)
		f.cutPublications(1, true)
		usual := f.answer
		f.answer = func(c *fakeConn, m command) bool {
			if m.Type == wire.TypeSubscribe {
				c.say(subscribed("1", 1, "A"))
				return true
			}
			return usual(c, m)
		}
		r := f.run(f.options())
		if _, err := r.Subscribe("log", client.SubscribeOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		p := publish(t.Context(), r.Client, "log", "m")
		pass(10 * time.Second)
		if !p.over() || p.err != nil {
			t.Errorf("%+v", p)
		}
		wantEqual(t, "sent", f.sent(), []string{"m", "m"})
		f.end(r)
	})
}

func TestP18_WhatMustNotBeRepeatedIsNot(t *testing.T) {
	for _, c := range []struct {
		name   string
		prior  func(f *fake, p *publishing, cancel func()) // after the connection was lost, while there is none
		cold   bool                                        // nothing was published before
		sent   int
		cancel bool
	}{
		{name: "a channel of which nothing is known", cold: true, sent: 1},
		{name: "cancelled while there is no connection", prior: func(_ *fake, _ *publishing, cancel func()) { cancel() }, sent: 1, cancel: true},
		{name: "too late", prior: func(_ *fake, p *publishing, _ func()) {
			pass(89 * time.Second)
			early := p.over()
			pass(2 * time.Second)
			if early || !p.over() {
				t.Error("it was not given up after 90 s")
			}
		}, sent: 1},
		{name: "too late by the time that the machine slept", prior: func(f *fake, _ *publishing, _ func()) { f.asleep.Add(int64(100 * time.Second)) }, sent: 1},
		{name: "another session", prior: func(f *fake, _ *publishing, _ func()) {
			f.welcome = func(_ *fakeConn, w *wire.Welcome) { w.Session = "s-2" }
		}, sent: 1},
		{name: "the repetition is refused", prior: func(f *fake, _ *publishing, _ func()) {
			f.answer = func(c *fakeConn, m command) bool {
				if m.Type == wire.TypePublish {
					c.say(string(wire.Refused(m.Command, wire.Errorf(wire.CodeTopicForbidden, "no")).Encode()))
				}
				return m.Type == wire.TypePublish
			}
		}, sent: 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.cutPublications(1, true)
				made, err := client.New(f.options())
				if err != nil {
					t.Fatal(err)
				}
				made.SetWall(func() time.Time { return time.Now().Add(time.Duration(f.asleep.Load())) })
				r := f.start(made)
				if !c.cold {
					if _, err := r.Publish(t.Context(), "log", 1, client.PublishOptions{ID: "warm"}); err != nil {
						t.Fatal(err)
					}
				}
				pass(time.Second)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f.pipe.down.Store(true)
				p := publish(ctx, r.Client, "log", "m")
				synctest.Wait()
				if c.prior != nil {
					if p.over() {
						t.Fatalf("ended with %v", p.err)
					}
					c.prior(f, p, cancel)
				}
				f.pipe.down.Store(false)
				pass(2 * time.Minute)
				if !p.over() || !errors.Is(p.err, client.ErrUncertain) || errors.Is(p.err, context.Canceled) != c.cancel {
					t.Errorf("ended with %v", p.err)
				}
				wantEqual(t, "sent", len(f.sent()), c.sent)
				f.end(r)
			})
		})
	}
}

func TestP18_CancelledBeforeItWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		r := f.run(f.options())
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if _, err := r.Publish(ctx, "log", 1, client.PublishOptions{}); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUncertain) {
				t.Fatal(err)
			}
		}
		pass(time.Minute)
		wantEqual(t, "sent", f.sent(), nil)
		f.end(r)
	})
}

func TestP18_AChannelWithoutHistoryIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.cutPublications(0, true)
		r := f.run(f.options())
		if _, err := r.Publish(t.Context(), "log", 1, client.PublishOptions{ID: "warm"}); err != nil {
			t.Fatal(err)
		}
		f.answer = nil
		if p, err := r.Publish(t.Context(), "log", 1, client.PublishOptions{}); err != nil || p.Epoch != "" {
			t.Fatal(p, err)
		}
		f.cutPublications(1, false)
		if _, err := r.Publish(t.Context(), "log", 1, client.PublishOptions{}); !errors.Is(err, client.ErrUncertain) {
			t.Errorf("Publish = %v", err)
		}
		f.end(r)
	})
}
