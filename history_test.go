package tidewire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/stream/streamtest"
	"github.com/tidewire/tidewire/wire"
)

const apiKey = "history-key-0123456789"

// startLog runs a node whose channels "log.**" keep a history.
func startLog(t *testing.T, opts tidewire.Options, h tidewire.History, policy tidewire.Policy) *server {
	t.Helper()
	opts.Backend = auth.NewAPIKeys(map[string]auth.Identity{apiKey: {Subject: "backend"}})
	return start(t, opts, func(n *tidewire.Node) error {
		return n.Channel("log.**", tidewire.ChannelOptions{Guard: tidewire.Public, History: &h, Policy: policy, Presence: true})
	})
}

func (s *server) publish(channel string, data any) tidewire.Published {
	s.t.Helper()
	p, err := s.Publish(s.t.Context(), channel, data, tidewire.PublishOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (c *client) wantNumbers(from, to int) {
	c.t.Helper()
	for i := from; i <= to; i++ {
		if m := c.want("message"); string(m.Data) != fmt.Sprint(i) || *m.Offset != uint64(i) {
			c.t.Fatalf("got %s at %d, want %d", m.Data, *m.Offset, i)
		}
	}
}

func TestS10_MessagesHaveOffsets(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{}, "")
	c := s.connect()
	c.send(`{"type":"subscribe","sid":"1","channel":"log.a"}`)
	m := c.want("subscribed")
	if m.Offset == nil || *m.Offset != 0 || m.Epoch == "" || m.Recovered != nil {
		t.Fatalf("%+v", m)
	}
	if p := s.publish("log.a", 1); p.Offset != 1 || p.Epoch != m.Epoch {
		t.Fatalf("%+v", p)
	}
	c.wantNumbers(1, 1)
	c.send(`{"type":"publish","channel":"log.a","id":"x","data":2}`)
	c.wantNumbers(2, 2)
	if m := c.want("published"); m.ID != "x" || m.Offset == nil || *m.Offset != 2 || m.Channel != "log.a" || m.Epoch == "" {
		t.Fatalf("%+v", m)
	}
	// A beat changes no position.
	c.send(`{"type":"subscribe","sid":"1","channel":"log.a"}`)
	if m := c.want("subscribed"); m.Recovered != nil || *m.Offset != 2 {
		t.Fatalf("%+v", m)
	}
	// A channel without history has none of it.
	c.send(`{"type":"subscribe","sid":"2","channel":"open.b","since":{"offset":3,"epoch":"x"}}`)
	if m := c.want("subscribed"); m.Offset != nil || m.Recovered != nil {
		t.Fatalf("%+v", m)
	}
}

// P09, P12: what a position gets: exactly the gap, or the word that it cannot be given, with where the channel is.
func TestP09_P12_RecoveryTable(t *testing.T) {
	t.Parallel()
	clock := streamtest.NewClock()
	s := startLog(t, tidewire.Options{Streams: stream.NewMemory(stream.MemoryOptions{Now: clock.Now})}, tidewire.History{Size: 5, TTL: time.Minute}, "")
	epochs := map[string]string{}
	for range 8 {
		epochs["log.expired"] = s.publish("log.expired", 0).Epoch
	}
	clock.Add(time.Hour)
	for i := range 8 {
		epochs["log.trimmed"] = s.publish("log.trimmed", i+1).Epoch // 4 to 8 are kept
	}
	h, err := s.History(t.Context(), "log.empty", tidewire.HistorySince{Last: 1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	epochs["log.empty"] = h.Epoch
	c := s.connect()
	for i, tc := range []struct {
		name, channel string
		since         string
		recovered     bool
		first, last   int // messages that come
		offset        uint64
	}{
		{"empty, exact", "log.empty", `{"offset":0,"epoch":"EPOCH"}`, true, 1, 0, 0},
		{"empty, ahead", "log.empty", `{"offset":3,"epoch":"EPOCH"}`, false, 1, 0, 0},
		{"empty, other epoch", "log.empty", `{"offset":0,"epoch":"other"}`, false, 1, 0, 0},
		{"exact", "log.trimmed", `{"offset":8,"epoch":"EPOCH"}`, true, 1, 0, 8},
		{"one behind", "log.trimmed", `{"offset":7,"epoch":"EPOCH"}`, true, 8, 8, 7},
		{"all that is kept", "log.trimmed", `{"offset":3,"epoch":"EPOCH"}`, true, 4, 8, 3},
		{"trimmed", "log.trimmed", `{"offset":2,"epoch":"EPOCH"}`, false, 1, 0, 8},
		{"nothing seen, trimmed", "log.trimmed", `{"offset":0,"epoch":"EPOCH"}`, false, 1, 0, 8},
		{"ahead", "log.trimmed", `{"offset":9,"epoch":"EPOCH"}`, false, 1, 0, 8},
		{"other epoch, exact", "log.trimmed", `{"offset":8,"epoch":"other"}`, false, 1, 0, 8},
		{"other epoch, one behind", "log.trimmed", `{"offset":7,"epoch":"other"}`, false, 1, 0, 8},
		{"expired, exact", "log.expired", `{"offset":8,"epoch":"EPOCH"}`, true, 1, 0, 8},
		{"expired, one behind", "log.expired", `{"offset":7,"epoch":"EPOCH"}`, false, 1, 0, 8},
		{"expired, other epoch", "log.expired", `{"offset":8,"epoch":"x"}`, false, 1, 0, 8},
	} {
		sid := fmt.Sprint("s", i)
		c.send(fmt.Sprintf(`{"type":"subscribe","sid":%q,"channel":%q,"since":%s}`, sid, tc.channel, strings.ReplaceAll(tc.since, "EPOCH", epochs[tc.channel])))
		m := c.want("subscribed")
		if m.SID != sid || m.Recovered == nil || *m.Recovered != tc.recovered || *m.Offset != tc.offset || m.Epoch != epochs[tc.channel] {
			t.Fatalf("%s: %+v", tc.name, m)
		}
		c.wantNumbers(tc.first, tc.last)
		c.send(fmt.Sprintf(`{"type":"unsubscribe","sid":%q}`, sid))
		c.want("unsubscribed")
	}
	// last: the newest, whatever there is.
	for last, want := range map[int]int{1: 8, 3: 6, 5: 4, 50: 4} {
		c.send(fmt.Sprintf(`{"type":"subscribe","sid":"l","channel":"log.trimmed","since":{"last":%d}}`, last))
		if m := c.want("subscribed"); m.Recovered != nil || *m.Offset != uint64(want-1) {
			t.Fatalf("last %d: %+v", last, m)
		}
		c.wantNumbers(want, 8)
		c.send(`{"type":"unsubscribe","sid":"l"}`)
		c.want("unsubscribed")
	}
	if n := s.Stats().Unrecovered; n != 9 {
		t.Errorf("%d unrecovered", n)
	}
}

// P14: state read over HTTP, then live from its position: what is published between comes once.
func TestP14_FromAPageToLive(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{}, "")
	for i := range 5 {
		s.publish("log.a", i+1)
	}
	var page struct {
		Offset   uint64
		Epoch    string
		First    uint64
		Messages []struct {
			Offset uint64
			ID     string
			Time   time.Time
			Data   int
		}
	}
	resp := s.get(t, "/v1/channels/log.a/messages?last=3", http.StatusOK)
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		t.Fatal(err)
	}
	if page.Offset != 5 || page.First != 1 || len(page.Messages) != 3 || page.Messages[0].Data != 3 || page.Messages[0].ID == "" || page.Messages[0].Time.IsZero() {
		t.Fatalf("%+v", page)
	}
	s.publish("log.a", 6)
	c := s.connect()
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"log.a","since":{"offset":%d,"epoch":%q}}`, page.Offset, page.Epoch))
	c.want("subscribed")
	c.wantNumbers(6, 6)
	s.publish("log.a", 7)
	c.wantNumbers(7, 7)
}

func (s *server) get(t *testing.T, path string, status int) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.http.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+apiKey)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != status {
		t.Fatalf("%s: %s", path, resp.Status)
	}
	return resp
}

func TestHTTP_HistoryErrors(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{Size: 2}, "")
	for i := range 5 {
		s.publish("log.a", i)
	}
	p := problemOf(t, s.get(t, "/v1/channels/log.a/messages?offset=1", http.StatusGone))
	if p.Code != wire.CodeHistoryGap || p.Position == nil || p.Position.Offset != 5 || p.Position.First != 4 || p.Position.Epoch == "" {
		t.Fatalf("%+v", p)
	}
	for path, code := range map[string]wire.Code{
		"open.a/messages":                             wire.CodeHistoryDisabled,
		"nothing/messages":                            wire.CodeHistoryDisabled,
		"open.a/acks":                                 wire.CodeHistoryDisabled,
		"log.a/messages?last=x":                       wire.CodeQueryInvalid,
		"log.a/messages?last=-1":                      wire.CodeQueryInvalid,
		"log.a/messages?last=1001":                    wire.CodeQueryInvalid,
		"log.a/messages?limit=1e3":                    wire.CodeQueryInvalid,
		"log.a/messages?offset=1&last=2":              wire.CodeQueryInvalid,
		"log.a/messages?ofset=1":                      wire.CodeQueryInvalid,
		"log.a/messages?offset=999999999999999999999": wire.CodeQueryInvalid,
		"a%20b/messages":                              wire.CodeChannelInvalid,
	} {
		if p := problemOf(t, s.get(t, "/v1/channels/"+path, code.Info().HTTP)); p.Code != code {
			t.Errorf("%s: %s", path, p.Code)
		}
	}
}

// P18: an id is published once for its session, and once for the application, whatever became of the answer.
func TestP18_PublishOnce(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{}, "")
	hello := `{"type":"hello","protocol":1,"client":"a-secret-of-one-page"}`
	a := s.dial(dialOptions{})
	a.send(hello, `{"type":"publish","channel":"log.a","id":"p1","data":1}`)
	a.want("welcome")
	first := a.want("published")
	_ = a.conn.CloseNow()
	b := s.dial(dialOptions{})
	b.send(hello, `{"type":"publish","channel":"log.a","id":"p1","data":1}`)
	b.want("welcome")
	if again := b.want("published"); *again.Offset != *first.Offset {
		t.Fatalf("%+v after %+v", again, first)
	}
	other := s.connect() // another session may use the same id
	other.send(`{"type":"publish","channel":"log.a","id":"p1","data":2}`)
	if m := other.want("published"); *m.Offset != 2 {
		t.Fatalf("%+v", m)
	}
	for i := range 2 {
		p, err := s.Publish(t.Context(), "log.a", 3, tidewire.PublishOptions{ID: "p1"})
		if err != nil || p.Offset != 3 || p.Duplicate != (i == 1) {
			t.Fatalf("%+v, %v", p, err)
		}
	}
}

// P50: a publisher that wants no echo sees every offset all the same, live and when it recovers.
func TestP50_NoEchoKeepsOffsets(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{}, "")
	hello := `{"type":"hello","protocol":1,"client":"a-secret-of-one-page"}`
	a, b := s.dial(dialOptions{}), s.connect()
	a.send(hello)
	a.want("welcome")
	a.subscribe("1", "log.a")
	b.subscribe("1", "log.a")
	s.publish("log.a", 1)
	a.wantNumbers(1, 1)
	b.wantNumbers(1, 1)
	a.send(`{"type":"publish","channel":"log.a","id":"q","echo":false,"data":2}`)
	s.eventuallyHead("log.a", 2)
	s.publish("log.a", 3)
	b.wantNumbers(2, 3)
	see := func(c *client) {
		t.Helper()
		for next := uint64(2); next <= 3; {
			m, err := c.read()
			switch {
			case err != nil:
				t.Fatal(err)
			case m.Type == "published" && m.Offset != nil:
				if m.ID != "q" || m.Channel != "log.a" {
					t.Fatalf("%+v", m)
				}
				if *m.Offset == next {
					next++
				}
			case m.Type != "message" || *m.Offset != next || string(m.Data) != "3":
				t.Fatalf("%+v, want offset %d", m, next)
			default:
				next++
			}
		}
	}
	see(a)
	_ = a.conn.CloseNow()
	a = s.dial(dialOptions{})
	a.send(hello, `{"type":"subscribe","sid":"1","channel":"log.a","since":{"offset":1}}`)
	a.want("welcome")
	a.want("subscribed")
	see(a)
}

func (s *server) eventuallyHead(channel string, offset uint64) {
	s.t.Helper()
	eventually(s.t, "appended", func() bool {
		h, err := s.History(s.t.Context(), channel, tidewire.HistorySince{Last: 1}, 1)
		return err == nil && h.Offset == offset
	})
}

// P03: the log is lost while clients listen: each is told, and goes on in the new one.
func TestP03_LostLogIsTold(t *testing.T) {
	t.Parallel()
	store := stream.NewMemory(stream.MemoryOptions{})
	s := startLog(t, tidewire.Options{Streams: store}, tidewire.History{}, "")
	a, b := s.connect(), s.connect()
	a.subscribe("1", "log.a")
	b.subscribe("1", "log.a")
	old := s.publish("log.a", 1)
	a.wantNumbers(1, 1)
	b.wantNumbers(1, 1)
	if err := store.Reset(t.Context(), "channel/log.a"); err != nil {
		t.Fatal(err)
	}
	s.publish("log.a", 1)
	for _, c := range []*client{a, b} {
		m := c.want("subscribed")
		if m.Recovered == nil || *m.Recovered || m.Epoch == old.Epoch {
			t.Fatalf("%+v", m)
		}
		if *m.Offset == 0 { // told before the message of the new log
			c.wantNumbers(1, 1)
		}
	}
	s.publish("log.a", 2)
	a.wantNumbers(2, 2)
	b.wantNumbers(2, 2)
	// Who comes back with a position of the old log learns the same, although the offset is there.
	c := s.connect()
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"log.a","since":{"offset":1,"epoch":%q}}`, old.Epoch))
	if m := c.want("subscribed"); *m.Recovered || *m.Offset != 2 {
		t.Fatalf("%+v", m)
	}
}

// A client that found a gap asks again on the live subscription, and is live from there, with its roster.
func TestS10_ResyncOnALiveSubscription(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{}, "")
	c := s.connect()
	c.send(`{"type":"subscribe","sid":"1","channel":"log.a","presence":{}}`)
	m := c.want("subscribed")
	c.want("presence")
	for i := range 3 {
		s.publish("log.a", i+1)
	}
	c.wantNumbers(1, 3)
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"log.a","since":{"offset":1,"epoch":%q}}`, m.Epoch))
	if m := c.want("subscribed"); !*m.Recovered || *m.Offset != 1 {
		t.Fatalf("%+v", m)
	}
	c.wantNumbers(2, 3)
	s.publish("log.a", 4)
	c.wantNumbers(4, 4)
	d := s.connect()
	d.send(`{"type":"subscribe","sid":"1","channel":"log.a","presence":{}}`)
	if m := c.want("presence"); m.Total != 2 {
		t.Fatalf("%+v", m)
	}
}

// S10, P44: under catch-up a stalled reader misses nothing and does not hold the publisher up.
func TestS10_P44_CatchUpEndToEnd(t *testing.T) {
	t.Parallel()
	const total = 3000
	s := startLog(t, tidewire.Options{Limits: tidewire.Limits{QueueMessages: 64, QueueBytes: 512 << 10}}, tidewire.History{Size: total, Bytes: 64 << 20}, "")
	c := s.connect()
	c.subscribe("1", "log.a")
	pad := strings.Repeat("x", 8000)
	began := time.Now()
	for i := range total {
		s.publish("log.a", fmt.Sprint(i+1, pad))
	}
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("publishing took %v", d)
	}
	for i := range total {
		m := c.want("message")
		if *m.Offset != uint64(i+1) || !strings.HasPrefix(string(m.Data), fmt.Sprintf(`"%dx`, i+1)) {
			t.Fatalf("offset %d: %.20s", *m.Offset, m.Data)
		}
	}
	if st := s.Stats(); st.CatchUps == 0 || st.Dropped != 0 || st.SlowCloses != 0 {
		t.Errorf("%+v", st)
	}
}

// A history that was trimmed past a subscriber that is behind: it is told that some are missing, and where it is.
func TestS10_CatchUpPastATrim(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{Limits: tidewire.Limits{QueueMessages: 64, QueueBytes: 512 << 10}}, tidewire.History{Size: 10}, "")
	c := s.connect()
	c.subscribe("1", "log.a")
	pad := strings.Repeat("x", 8000)
	const total = 3000
	for i := range total {
		s.publish("log.a", fmt.Sprint(i+1, pad))
	}
	next, lost := uint64(1), 0
	for next <= total {
		m, err := c.read()
		switch {
		case err != nil:
			t.Fatal(err)
		case m.Type == "subscribed":
			if *m.Recovered || *m.Offset < next {
				t.Fatalf("%+v", m)
			}
			lost++
			next = *m.Offset + 1
		case *m.Offset != next:
			t.Fatalf("offset %d, want %d", *m.Offset, next)
		default:
			next++
		}
	}
	if lost == 0 {
		t.Error("nothing was trimmed while the subscriber was behind")
	}
}

// failing is a store that fails while it is down.
type failing struct {
	stream.Store
	down atomic.Bool
}

var errStoreDown = errors.New("the store is down")

func (f *failing) Append(ctx context.Context, name string, data []byte, o stream.AppendOptions) (stream.Appended, error) {
	if f.down.Load() {
		return stream.Appended{}, errStoreDown
	}
	return f.Store.Append(ctx, name, data, o)
}

func (f *failing) Head(ctx context.Context, name string) (stream.Head, error) {
	if f.down.Load() {
		return stream.Head{}, errStoreDown
	}
	return f.Store.Head(ctx, name)
}

func (f *failing) Read(ctx context.Context, name string, after stream.Position, limit int) (stream.Page, error) {
	if f.down.Load() {
		return stream.Page{}, errStoreDown
	}
	return f.Store.Read(ctx, name, after, limit)
}

// P02: while the store is down nothing is said to be published or subscribed; afterwards all goes on without a restart.
func TestP02_StoreDown(t *testing.T) {
	t.Parallel()
	store := &failing{Store: stream.NewMemory(stream.MemoryOptions{})}
	s := startLog(t, tidewire.Options{Streams: store}, tidewire.History{}, "")
	a := s.connect()
	a.subscribe("1", "log.a")
	s.publish("log.a", 1)
	a.wantNumbers(1, 1)
	store.down.Store(true)
	a.send(`{"type":"publish","channel":"log.a","id":"p","data":2}`)
	if m := a.wantRefused("HISTORY_UNAVAILABLE"); m.RetryAfterMs == 0 {
		t.Fatalf("%+v", m)
	}
	b := s.connect()
	b.send(`{"type":"subscribe","sid":"1","channel":"log.a"}`)
	b.wantRefused("HISTORY_UNAVAILABLE")
	problemOf(t, s.get(t, "/v1/channels/log.a/messages", http.StatusServiceUnavailable))
	store.down.Store(false)
	a.send(`{"type":"publish","channel":"log.a","id":"p","data":2}`)
	a.wantNumbers(2, 2)
	a.want("published")
	b.send(`{"type":"subscribe","sid":"1","channel":"log.a","since":{"last":9}}`)
	b.want("subscribed")
	b.wantNumbers(1, 2)
	if n := s.Stats().HistoryFailures; n < 3 {
		t.Errorf("%d failures counted", n)
	}
}

// B14, P49: the application reads how far each has come, and who is behind.
func TestB14_P49_Acks(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{AckTimeout: 100 * time.Millisecond}, tidewire.History{AckWindow: 4}, "")
	a, b, c := s.connect(), s.connect(), s.connect()
	for _, cl := range []*client{a, b} {
		cl.send(`{"type":"subscribe","sid":"1","channel":"log.a","ack":true}`)
		cl.want("subscribed")
	}
	c.subscribe("1", "log.a") // does not acknowledge
	for i := range 6 {
		s.publish("log.a", i+1)
	}
	c.wantNumbers(1, 6)
	a.wantNumbers(1, 4)
	a.send(`{"type":"ack","channel":"log.a","offset":4}`)
	a.wantNumbers(5, 6)
	b.wantNumbers(1, 4) // and no more
	var acks tidewire.Acks
	eventually(t, "b slow", func() bool {
		if err := json.NewDecoder(s.get(t, "/v1/channels/log.a/acks", http.StatusOK).Body).Decode(&acks); err != nil {
			t.Fatal(err)
		}
		slow := 0
		for _, sub := range acks.Subscribers {
			if sub.Slow && sub.Acked == 0 {
				slow++
			}
		}
		return slow == 1
	})
	if acks.Offset != 6 || acks.Lowest != 0 || len(acks.Subscribers) != 2 {
		t.Fatalf("%+v", acks)
	}
	for _, sub := range acks.Subscribers {
		if sub.Acked == 0 && (!sub.Behind || sub.Pending != 6) || sub.Acked == 4 && sub.Pending != 2 || sub.Session == "" {
			t.Fatalf("%+v", acks)
		}
	}
	b.send(`{"type":"ack","channel":"log.a","offset":3}`, `{"type":"ack","channel":"log.a","offset":3}`, `{"type":"ack","channel":"log.a","offset":4}`)
	b.wantNumbers(5, 6)
	b.send(`{"type":"ack","channel":"log.a","offset":6}`)
	a.send(`{"type":"ack","channel":"log.a","offset":999}`, `{"type":"ack","channel":"log.other","offset":1}`)
	eventually(t, "all acknowledged", func() bool {
		got, err := s.Acks(t.Context(), "log.a")
		return err == nil && got.Lowest == 6
	})
	a.send(`{"type":"subscribe","sid":"9","channel":"open.a","ack":true}`)
	a.wantRefused("HISTORY_DISABLED")
}

// B14: a live subscription may begin to acknowledge, and goes on where it is.
func TestB14_BeginsToAcknowledge(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{AckWindow: 2}, "")
	a := s.connect()
	a.subscribe("1", "log.a")
	s.publish("log.a", 1)
	a.wantNumbers(1, 1)
	a.send(`{"type":"subscribe","sid":"1","channel":"log.a","ack":true}`)
	if m := a.want("subscribed"); *m.Offset != 1 || m.Recovered != nil {
		t.Fatalf("%+v", m)
	}
	for i := 2; i <= 5; i++ {
		s.publish("log.a", i)
	}
	a.wantNumbers(2, 3)
	a.send(`{"type":"ack","channel":"log.a","offset":3}`)
	a.wantNumbers(4, 5)
	a.send(`{"type":"subscribe","sid":"1","channel":"log.a"}`, `{"type":"ack","channel":"log.a","offset":5}`) // a beat changes nothing
	a.want("subscribed")
	s.publish("log.a", 6)
	a.wantNumbers(6, 6)
	acks, err := s.Acks(t.Context(), "log.a")
	if err != nil || len(acks.Subscribers) != 1 || acks.Lowest != 5 {
		t.Fatalf("%+v, %v", acks, err)
	}
	a.subscribe("2", "open.b")
	a.send(`{"type":"subscribe","sid":"2","channel":"open.b","ack":true}`)
	a.wantRefused("HISTORY_DISABLED")
}

// B14: with the policy disconnect, late acknowledgement ends the connection as a full queue would.
func TestB14_DisconnectPolicy(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{AckWindow: 2}, tidewire.PolicyDisconnect)
	a := s.connect()
	a.send(`{"type":"subscribe","sid":"1","channel":"log.a","ack":true}`)
	a.want("subscribed")
	for i := range 3 {
		s.publish("log.a", i+1)
	}
	a.wantClose(1013)
}

// A go-ws client gets the messages of a channel with history, without offsets.
func TestHistory_GoWSFace(t *testing.T) {
	t.Parallel()
	s := startLog(t, tidewire.Options{}, tidewire.History{}, "")
	conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(s.http.URL, "http")+"/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.CloseNow() }()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"subscribe","data":"log.a"}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "subscribed", func() bool { return s.Subscribers("log.a") == 1 })
	s.publish("log.a", "hello")
	for {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, b, err := conn.Read(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), `"hello"`) {
			break
		}
	}
}

func TestHistory_Declarations(t *testing.T) {
	t.Parallel()
	n, err := tidewire.New(tidewire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []tidewire.ChannelOptions{
		{Policy: tidewire.PolicyCatchUp},
		{Policy: tidewire.PolicyLatest, History: &tidewire.History{}},
		{Policy: "other", History: &tidewire.History{}},
	} {
		if err := n.Channel("a", o); !errors.Is(err, &wire.Error{Code: wire.CodeConfigInvalid}) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// P13, P16, S10: many publish while connections are cut at random and come back with their position: everyone gets every message, once, in one order.
func TestS10_P13_P16_CutConnections(t *testing.T) {
	t.Parallel()
	const publishers, each, readers = 8, 250, 12
	const total = publishers * each
	s := startLog(t, tidewire.Options{Limits: tidewire.Limits{AcceptsPerSecond: 100_000}}, tidewire.History{Size: total}, "")
	orders := make([][]string, readers)
	var wg sync.WaitGroup
	for r := range readers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
			epoch := ""
			for len(orders[r]) < total {
				conn, _, err := s.dialRaw(dialOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				since := fmt.Sprintf(`{"offset":%d,"epoch":%q}`, len(orders[r]), epoch)
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				_ = conn.Write(ctx, websocket.MessageText, []byte(`{"type":"hello","protocol":1}`))
				_ = conn.Write(ctx, websocket.MessageText, []byte(`{"type":"subscribe","sid":"1","channel":"log.a","since":`+since+`}`))
				for cut := rnd.IntN(200); cut > 0 && len(orders[r]) < total; {
					_, b, err := conn.Read(ctx)
					var m message
					if err == nil {
						err = json.Unmarshal(b, &m)
					}
					switch {
					case err != nil:
						t.Errorf("reader %d at %d: %v", r, len(orders[r]), err)
						cancel()
						return
					case m.Type == "subscribed":
						epoch = m.Epoch
						if !*m.Recovered {
							t.Errorf("not recovered at %d: %+v", len(orders[r]), m)
						}
					case m.Type == "message":
						cut--
						if *m.Offset != uint64(len(orders[r])+1) {
							t.Errorf("reader %d got offset %d after %d", r, *m.Offset, len(orders[r]))
						}
						orders[r] = append(orders[r], string(m.Data))
					}
				}
				cancel()
				_ = conn.CloseNow()
			}
		})
	}
	for p := range publishers {
		wg.Go(func() {
			for i := range each {
				if _, err := s.Publish(context.Background(), "log.a", fmt.Sprint(p, " ", i), tidewire.PublishOptions{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var next [publishers]int
	for i, m := range orders[0] {
		var p, n int
		if _, err := fmt.Sscanf(m, `"%d %d"`, &p, &n); err != nil || next[p] != n {
			t.Fatalf("message %d is %s", i, m)
		}
		next[p]++
		for r := range orders {
			if i >= len(orders[r]) || orders[r][i] != m {
				t.Fatalf("reader %d differs at %d", r, i)
			}
		}
	}
}

// Nothing of a channel's log is followed when its last subscriber has gone.
func TestS10_LogsAreLetGo(t *testing.T) {
	t.Parallel()
	store := &counting{Store: stream.NewMemory(stream.MemoryOptions{})}
	s := startLog(t, tidewire.Options{Streams: store}, tidewire.History{}, "")
	for range 3 {
		a, b := s.connect(), s.connect()
		a.subscribe("1", "log.a")
		b.subscribe("1", "log.a")
		b.send(`{"type":"subscribe","sid":"2","channel":"log.b","ack":true}`)
		b.want("subscribed")
		if n := store.watches.Load(); n != 2 {
			t.Fatalf("%d logs are followed", n)
		}
		a.send(`{"type":"unsubscribe","sid":"1"}`)
		a.want("unsubscribed")
		_ = b.conn.CloseNow()
		eventually(t, "let go", func() bool { return store.watches.Load() == 0 })
	}
}

type counting struct {
	stream.Store
	watches atomic.Int64
}

func (c *counting) Watch(name string, f func(string, stream.Entry)) (func(), error) {
	stop, err := c.Store.Watch(name, f)
	c.watches.Add(1)
	return func() { stop(); c.watches.Add(-1) }, err
}
