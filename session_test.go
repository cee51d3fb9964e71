package tidewire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire"
)

func TestS03_ChannelsDenyByDefault(t *testing.T) {
	t.Parallel()
	failing := atomic.Bool{}
	s := start(t, tidewire.Options{Authenticate: bearer, CommandTimeout: 100 * time.Millisecond}, func(n *tidewire.Node) error {
		return errors.Join(
			n.Channel("closed.*", tidewire.ChannelOptions{}),
			n.Channel("read.*", tidewire.ChannelOptions{Guard: tidewire.ReadOnly}),
			n.Channel("hang.*", tidewire.ChannelOptions{Guard: func(ctx context.Context, _ tidewire.Access) error {
				<-ctx.Done()
				return ctx.Err()
			}}),
			n.Channel("fails.*", tidewire.ChannelOptions{Guard: func(context.Context, tidewire.Access) error {
				if failing.Load() {
					return errBackendDown
				}
				return nil
			}}),
			n.Channel("mine.{who}", tidewire.ChannelOptions{Guard: func(_ context.Context, a tidewire.Access) error {
				if a.Params["who"] != a.Actor.ID || a.Actor.Claims["name"] != a.Actor.ID {
					return fmt.Errorf("not yours: %w", tidewire.ErrDenied)
				}
				return nil
			}}),
		)
	})
	failing.Store(true)
	c := s.connectAs("ok-alice")
	for _, tc := range []struct{ frame, code string }{
		{`{"type":"subscribe","sid":"1","channel":"nowhere"}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","channel":"closed.a"}`, "TOPIC_FORBIDDEN"},
		{`{"type":"publish","channel":"closed.a","data":1}`, "TOPIC_FORBIDDEN"},
		{`{"type":"publish","channel":"read.a","data":1}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","channel":"mine.bob"}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","channel":"mine"}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","channel":"mine.alice.x"}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","channel":"fails.a"}`, "GUARD_FAILED"},
		{`{"type":"subscribe","sid":"1","channel":"hang.a"}`, "TIMEOUT"},
		{`{"type":"subscribe","sid":"1","channel":"read.a","presence":{}}`, "PRESENCE_DISABLED"},
	} {
		c.send(tc.frame)
		m := c.wantRefused(tc.code)
		if strings.Contains(m.Cause, "backend down") {
			t.Errorf("the refusal tells what lies behind it: %+v", m)
		}
		if retry := tc.code == "GUARD_FAILED" || tc.code == "TIMEOUT"; (m.RetryAfterMs > 0) != retry {
			t.Errorf("%s: retryAfterMs %d", tc.code, m.RetryAfterMs)
		}
	}
	c.subscribe("1", "mine.alice") // a refusal took no sid
	if s.Stats().GuardFailures != 2 {
		t.Errorf("GuardFailures = %d, want 2", s.Stats().GuardFailures)
	}
}

func TestS08_PatternsWithParameters(t *testing.T) {
	t.Parallel()
	var got sync.Map
	record := func(name string) tidewire.ChannelOptions {
		return tidewire.ChannelOptions{Guard: func(_ context.Context, a tidewire.Access) error {
			got.Store(a.Channel, name+fmt.Sprint(a.Params))
			return nil
		}}
	}
	s := start(t, tidewire.Options{}, func(n *tidewire.Node) error {
		return errors.Join(
			n.Channel("org.7.feed", record("exact")),
			n.Channel("org.{orgId}.feed", record("params")),
			n.Channel("org.*.other", record("star")),
			n.Channel("deep.**", record("rest")),
			n.Channel("process:{id}", record("part")),
			n.Channel("log-*.x", record("begins")),
		)
	})
	c := s.connect()
	for i, tc := range []struct{ channel, want string }{
		{"org.7.feed", "exactmap[]"},
		{"org.8.feed", "paramsmap[orgId:8]"},
		{"org.8.other", "starmap[]"},
		{"deep.a", "restmap[]"},
		{"process:p-1", "partmap[id:p-1]"},
		{"log-1.x", "beginsmap[]"},
		{"deep.a.b.c", "restmap[]"},
	} {
		c.subscribe(fmt.Sprint(i), tc.channel)
		if v, _ := got.Load(tc.channel); v != tc.want {
			t.Errorf("%s: guard %v, want %v", tc.channel, v, tc.want)
		}
	}
	for _, channel := range []string{"org.8", "org.8.feed.x", "deep", "org..feed", "process:", "process:1.x", "log-.x"} {
		c.send(fmt.Sprintf(`{"type":"subscribe","sid":"x","channel":%q}`, channel))
		if m := c.want("refused"); m.Code != "TOPIC_FORBIDDEN" && m.Code != "CHANNEL_INVALID" {
			t.Errorf("%s: %+v", channel, m)
		}
	}
}

// S34: a slow subscribe holds up its own channel, not the connection.
func TestS34_OrderedPerSubscriptionNotPerSocket(t *testing.T) {
	t.Parallel()
	gate := make(chan struct{})
	s := start(t, tidewire.Options{}, func(n *tidewire.Node) error {
		return n.Channel("slow", tidewire.ChannelOptions{Guard: func(_ context.Context, a tidewire.Access) error {
			if a.Action == tidewire.ActionSubscribe {
				<-gate
			}
			return nil
		}})
	})
	c := s.connect()
	c.send(`{"type":"subscribe","sid":"slow","channel":"slow"}`,
		`{"type":"publish","channel":"slow","id":"after","data":1}`,
		`{"type":"subscribe","sid":"fast","channel":"open.fast"}`,
		`{"type":"hello","protocol":1}`)
	got := map[string]bool{}
	for range 2 { // these do not wait for the guard
		m, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		got[m.Type+m.SID] = true
	}
	if !got["subscribedfast"] || !got["welcome"] {
		t.Fatalf("got %v while the slow guard decides", got)
	}
	close(gate)
	// The publication was sent after the subscribe and so comes after it.
	if m := c.want("subscribed"); m.SID != "slow" {
		t.Fatal(m)
	}
	c.want("message")
	c.want("published")
}

func TestS44_SidBelongsToItsSocket(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	a, b := s.connect(), s.connect()
	a.subscribe("1", "open.a")
	b.subscribe("1", "open.b") // the same sid on another socket is another subscription
	a.send(`{"type":"subscribe","sid":"1","channel":"open.b"}`)
	a.wantRefused("SUBSCRIPTION_ID_TAKEN")
	a.send(`{"type":"subscribe","sid":"2","channel":"open.a"}`)
	a.wantRefused("SUBSCRIPTION_ID_TAKEN")
	a.send(`{"type":"unsubscribe","sid":"9"}`)
	if m := a.wantRefused("SUBSCRIPTION_UNKNOWN"); m.SID != "9" || m.Re != "unsubscribe" {
		t.Fatal(m)
	}
	a.send(`{"type":"unsubscribe","sid":"1"}`, `{"type":"subscribe","sid":"1","channel":"open.c"}`) // free at once
	got := map[string]bool{}
	for range 2 {
		m, err := a.read()
		if err != nil {
			t.Fatal(err)
		}
		got[m.Type+m.Channel] = true
	}
	if !got["unsubscribedopen.a"] || !got["subscribedopen.c"] {
		t.Fatalf("got %v", got)
	}
	_, _ = s.Publish(t.Context(), "open.b", 1, tidewire.PublishOptions{})
	if m := b.want("message"); m.Channel != "open.b" {
		t.Fatalf("one client ended another's subscription: %+v", m)
	}
}

// P34: unsubscribe while subscribe is in flight ends unsubscribed; repeating subscribe is a beat, not an error.
func TestS44_UnsubscribeInFlight(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	c := s.connect()
	for range 50 {
		c.send(`{"type":"subscribe","sid":"1","channel":"open.a"}`, `{"type":"unsubscribe","sid":"1"}`)
		c.want("subscribed")
		c.want("unsubscribed")
	}
	if n := s.Subscribers("open.a"); n != 0 {
		t.Fatalf("%d subscribers", n)
	}
	c.subscribe("1", "open.a")
	c.subscribe("1", "open.a")
	_, _ = s.Publish(t.Context(), "open.a", "once", tidewire.PublishOptions{})
	c.want("message")
	c.send(`{"type":"hello","protocol":1}`)
	c.want("welcome") // and not the message again
}

// P35: what is published after the subscribed reply was read always arrives.
func TestS10_SubscribedMeansLive(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{QueueMessages: 1 << 14}})
	stop := make(chan struct{})
	var noise sync.WaitGroup
	noise.Go(func() {
		tick := time.NewTicker(50 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = s.Publish(context.Background(), "open.live", -1, tidewire.PublishOptions{})
			}
		}
	})
	defer func() { close(stop); noise.Wait() }()
	for i := range 100 {
		c := s.connect()
		c.subscribe("1", "open.live") // fails if a message came before the reply
		want := fmt.Sprint(i)
		if _, err := s.Publish(t.Context(), "open.live", i, tidewire.PublishOptions{}); err != nil {
			t.Fatal(err)
		}
		c.await("the message after the reply", func(m message) bool { return string(m.Data) == want })
		_ = c.conn.CloseNow()
	}
}

func TestS10_SkippedStandsWhereMessagesAreMissing(t *testing.T) {
	t.Parallel()
	for _, policy := range []tidewire.Policy{tidewire.PolicyDropOldest, tidewire.PolicyDropNewest} {
		s := start(t, tidewire.Options{WriteTimeout: time.Minute, Limits: tidewire.Limits{QueueMessages: 16, DroppedFrames: 1 << 20, FrameBytes: 128 << 10}}, func(n *tidewire.Node) error {
			return n.Channel("feed", tidewire.ChannelOptions{Guard: tidewire.Public, Policy: policy})
		})
		c := s.connect()
		c.subscribe("1", "feed")
		pad := strings.Repeat("x", 100<<10)
		const total = 400
		for i := range total { // the kernel's buffers fill, then the queue, then messages are dropped
			if _, err := s.Publish(t.Context(), "feed", map[string]any{"n": i, "pad": pad}, tidewire.PublishOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if s.Stats().Dropped == 0 {
			t.Fatalf("%s: nothing was dropped", policy)
		}
		_, _ = s.Publish(t.Context(), "feed", map[string]any{"n": total}, tidewire.PublishOptions{})
		next, skipped, arrived := 0, uint64(0), 0
		for next <= total {
			m, err := c.read()
			if err != nil {
				t.Fatalf("%s: after %d arrived and %d skipped: %v", policy, arrived, skipped, err)
			}
			if m.Type == "skipped" {
				skipped += m.Count
				next += int(m.Count)
				if next > total {
					break
				}
				continue
			}
			var d struct{ N int }
			_ = json.Unmarshal(m.Data, &d)
			if d.N != next {
				t.Fatalf("%s: got %d, want %d: the mark stands at the wrong place", policy, d.N, next)
			}
			next++
			arrived++
		}
		if skipped != s.Stats().Dropped {
			t.Fatalf("%s: told %d, dropped %d", policy, skipped, s.Stats().Dropped)
		}
		s.stop()
	}
}

func TestS10_LatestKeepsTheNewestOfEachKey(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{FrameBytes: 128 << 10}}, func(n *tidewire.Node) error {
		return n.Channel("ticks", tidewire.ChannelOptions{Guard: tidewire.Public, Policy: tidewire.PolicyLatest})
	})
	c := s.connect()
	c.subscribe("1", "ticks")
	pad := strings.Repeat("x", 60<<10)
	for i := range 120 {
		for _, key := range []string{"a", "b"} {
			if _, err := s.Publish(t.Context(), "ticks", map[string]any{"n": i, "key": key, "pad": pad}, tidewire.PublishOptions{Key: key}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st := s.Stats(); st.Conflated == 0 || st.Dropped != 0 {
		t.Fatalf("stats %+v", st)
	}
	last := map[string]int{}
	for last["a"] != 119 || last["b"] != 119 {
		m := c.want("message")
		var d struct {
			N   int
			Key string
		}
		_ = json.Unmarshal(m.Data, &d)
		if prev, ok := last[d.Key]; ok && d.N <= prev {
			t.Fatalf("key %s went from %d to %d", d.Key, prev, d.N)
		}
		last[d.Key] = d.N
	}
}

func TestS10_EchoCanBeLeftOut(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	a, b := s.connect(), s.connect()
	a.subscribe("1", "open.a")
	b.subscribe("1", "open.a")
	a.send(`{"type":"publish","channel":"open.a","data":1,"echo":false,"id":"p"}`)
	a.want("published")
	b.want("message")
}

func TestS43_BadInputGetsACodeAndTheConnectionStays(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	c := s.dial(dialOptions{})
	c.send(`{"type":"subscribe","sid":"1","channel":"open.a"}`)
	c.wantRefused("PROTOCOL_VERSION") // before hello
	c.send(`{"type":"hello","protocol":2}`)
	c.wantRefused("PROTOCOL_VERSION")
	c.send(`{"type":"hello","protocol":1,"client":"short"}`)
	c.wantRefused("DATA_INVALID")
	c.send(`{"type":"hello","protocol":1,"client":"0123456789abcdef"}`)
	c.want("welcome")
	c.send(`{"type":"hello","protocol":1,"client":"another-0123456789abcdef"}`)
	c.wantRefused("DATA_INVALID")
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	wide := "[" + strings.Repeat("1,", 10_001) + "1]"
	for _, tc := range []struct{ frame, code string }{
		{`not json`, "PROTOCOL_VERSION"},
		{`[]`, "PROTOCOL_VERSION"},
		{`{"type":7}`, "PROTOCOL_VERSION"},
		{`{}`, "PROTOCOL_VERSION"},
		{`{"type":"mutate"}`, "PROTOCOL_VERSION"},
		{`{"type":"subscribe","channel":"open.a"}`, "DATA_INVALID"},
		{`{"type":"publish","channel":"open.a","id":5,"data":1}`, "DATA_INVALID"},
		{`{"type":"subscribe","sid":"1","channel":"open.a","presence":5}`, "DATA_INVALID"},
		{`{"type":"subscribe","sid":"` + strings.Repeat("x", 65) + `","channel":"open.a"}`, "DATA_INVALID"},
		{`{"type":"subscribe","sid":"1","channel":"a b"}`, "CHANNEL_INVALID"},
		{`{"type":"subscribe","sid":"1","channel":"` + strings.Repeat("x", 256) + `"}`, "CHANNEL_INVALID"},
		{`{"type":"publish","channel":"open.a"}`, "DATA_INVALID"},
		{`{"type":"publish","channel":"open.a","data":` + deep + `}`, "DATA_INVALID"},
		{`{"type":"publish","channel":"open.a","data":` + wide + `}`, "DATA_INVALID"},
		{`{"type":"publish","channel":"open.a","data":1,"key":"` + strings.Repeat("k", 65) + `"}`, "DATA_INVALID"},
		{`{"type":"presence","channel":"open.a","data":1}`, "PRESENCE_NOT_JOINED"},
		{`{"type":"state","channel":"open.a","data":1}`, "PRESENCE_NOT_JOINED"},
		{`{"type":"state","channel":"open.a","data":"` + strings.Repeat("x", 1100) + `"}`, "DATA_INVALID"},
		{`{"type":"auth","token":"ok-x"}`, "AUTH_REFRESH_REFUSED"},
		{`{"type":"auth"}`, "DATA_INVALID"},
	} {
		c.send(tc.frame)
		if m := c.want("refused"); m.Code != tc.code || m.Cause == "" || m.Fix == "" {
			t.Errorf("%.60s: refused with %s (%s), want %s", tc.frame, m.Code, m.Cause, tc.code)
		}
	}
	c.subscribe("1", "open.a")
	if err := c.conn.Write(t.Context(), websocket.MessageBinary, []byte{1}); err != nil {
		t.Fatal(err)
	}
	c.wantClose(1003)
}

func TestS33_UpdateAvailable(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Build: "new"})
	same, old := s.dial(dialOptions{}), s.dial(dialOptions{})
	old.send(`{"type":"hello","protocol":1,"build":"old"}`)
	old.want("welcome")
	if m := old.want("update-available"); m.Build != "new" {
		t.Fatal(m)
	}
	same.send(`{"type":"hello","protocol":1,"build":"new"}`, `{"type":"hello","protocol":1}`)
	same.want("welcome")
	same.want("welcome")
}

func TestS32_WelcomeAnnouncesLimitsAndBeat(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{HeartbeatInterval: 7 * time.Second})
	c := s.dial(dialOptions{})
	c.send(`{"type":"hello","protocol":1}`)
	m := c.want("welcome")
	want := map[string]int{"frameBytes": 256 << 10, "framesPerSecond": 64, "frameBurst": 256, "channels": 64, "presenceBytes": 1024, "stateBytes": 1024}
	if fmt.Sprint(m.Limits) != fmt.Sprint(want) || m.HeartbeatMs != 7000 {
		t.Fatalf("welcome %+v", m)
	}
}

// grantBook gives grants that expire at once and are renewed as the test says.
type grantBook struct {
	mu      sync.Mutex
	refresh func() (*tidewire.Grant, error)
	calls   int
}

func (b *grantBook) set(f func() (*tidewire.Grant, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refresh = f
}

func (b *grantBook) grant(r *http.Request) (*tidewire.Grant, error) {
	g, err := bearer(r)
	if g != nil {
		g.ExpiresAt = time.Now().Add(time.Millisecond)
		g.Refresh = func(context.Context) (*tidewire.Grant, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.calls++
			return b.refresh()
		}
	}
	return g, err
}

func TestS02_ExpiredGrants(t *testing.T) {
	t.Parallel()
	book := &grantBook{}
	fresh := func(id string) (*tidewire.Grant, error) {
		return &tidewire.Grant{Actor: tidewire.Actor{ID: id}}, nil
	}
	var allowed, broken atomic.Bool
	allowed.Store(true)
	s := start(t, tidewire.Options{Authenticate: book.grant, ReauthorizeInterval: 20 * time.Millisecond}, func(n *tidewire.Node) error {
		return n.Channel("guarded.*", tidewire.ChannelOptions{Guard: func(_ context.Context, a tidewire.Access) error {
			switch {
			case broken.Load():
				return errBackendDown
			case a.Channel == "guarded.dropped" && !allowed.Load():
				return tidewire.ErrDenied
			}
			return nil
		}})
	})
	calls := func() int {
		book.mu.Lock()
		defer book.mu.Unlock()
		return book.calls
	}

	// A refresh that fails keeps the socket and is tried again.
	book.set(func() (*tidewire.Grant, error) { return nil, errBackendDown })
	c := s.connectAs("ok-alice")
	c.subscribe("1", "guarded.kept")
	c.subscribe("2", "guarded.dropped")
	before := calls()
	eventually(t, "it retries", func() bool { return calls() > before+2 })

	// It succeeds: a guard that fails keeps the channel, a denial drops it.
	allowed.Store(false)
	broken.Store(true)
	failures := s.Stats().GuardFailures
	book.set(func() (*tidewire.Grant, error) { return fresh("alice") })
	eventually(t, "guards are asked again", func() bool { return s.Stats().GuardFailures >= failures+2 })
	if s.Subscribers("guarded.kept") != 1 || s.Subscribers("guarded.dropped") != 1 {
		t.Fatal("a guard that failed took the channel away")
	}
	broken.Store(false)
	s.Reauthorize("alice")
	if s.Subscribers("guarded.dropped") != 0 {
		t.Fatal("denied, and still subscribed after Reauthorize returned")
	}
	if m := c.want("unsubscribed"); m.SID != "2" || m.Code != "TOPIC_FORBIDDEN" {
		t.Fatalf("told %+v", m)
	}
	_, _ = s.Publish(t.Context(), "guarded.dropped", "secret", tidewire.PublishOptions{}) // P46
	_, _ = s.Publish(t.Context(), "guarded.kept", "ok", tidewire.PublishOptions{})
	if m := c.want("message"); string(m.Data) != `"ok"` {
		t.Fatalf("got %+v after access was removed", m)
	}

	// No: the grant was withdrawn, or is of someone else.
	book.set(func() (*tidewire.Grant, error) { return nil, nil })
	s.dial(withToken("ok-bob")).wantClose(1008)
	book.set(func() (*tidewire.Grant, error) { return fresh("mallory") })
	s.dial(withToken("ok-bob")).wantClose(1008)
}

func TestS02_ExpiredGrantWithoutRefreshCloses(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{ReauthorizeInterval: 20 * time.Millisecond, Authenticate: func(r *http.Request) (*tidewire.Grant, error) {
		return &tidewire.Grant{Actor: tidewire.Actor{ID: "a"}, ExpiresAt: time.Now().Add(50 * time.Millisecond)}, nil
	}})
	c := s.dial(dialOptions{})
	c.send(`{"type":"hello","protocol":1}`)
	if m := c.want("welcome"); m.ExpiresInMs <= 0 || m.ExpiresInMs > 50 {
		t.Fatalf("welcome %+v", m)
	}
	c.wantClose(1008)
}

// P45: a fresh token on the open connection renews the grant; a wrong one or another actor's does not.
func TestS02_TokenRefreshInPlace(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{
		Authenticate: bearer,
		Reauthenticate: func(_ context.Context, token string) (*tidewire.Grant, error) {
			g, err := grantFor(token)
			if g != nil {
				g.ExpiresAt = time.Now().Add(time.Hour)
			}
			return g, err
		},
	})
	c := s.connectAs("ok-alice")
	c.send(`{"type":"auth","token":"wrong"}`)
	c.wantRefused("AUTH_REFRESH_REFUSED")
	c.send(`{"type":"auth","token":"ok-bob"}`)
	c.wantRefused("AUTH_REFRESH_REFUSED")
	c.send(`{"type":"auth","token":"down"}`)
	if m := c.wantRefused("SOCKET_AUTH_UNAVAILABLE"); m.RetryAfterMs == 0 {
		t.Fatal(m)
	}
	c.send(`{"type":"auth","token":"ok-alice"}`)
	if m := c.want("authenticated"); m.ExpiresInMs < 3_500_000 {
		t.Fatal(m)
	}
	if strings.Contains(s.logs.String(), "ok-") {
		t.Fatal("a token is in the log")
	}
}

func TestDisconnect_EndsAllConnectionsOfAnActor(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Authenticate: bearer})
	a, b, other := s.connectAs("ok-a"), s.connectAs("ok-a"), s.connectAs("ok-b")
	if n := s.Disconnect("a"); n != 2 {
		t.Fatalf("Disconnect = %d", n)
	}
	a.wantClose(1008)
	b.wantClose(1008)
	other.subscribe("1", "open.x")
}

// H18: a panic in a guard costs that connection at most.
func TestS03_PanicInGuardCostsOneConnection(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{}, func(n *tidewire.Node) error {
		return n.Channel("boom", tidewire.ChannelOptions{Guard: func(context.Context, tidewire.Access) error { panic("guard") }})
	})
	a, b := s.connect(), s.connect()
	a.send(`{"type":"subscribe","sid":"1","channel":"boom"}`)
	a.wantClose(1011)
	b.subscribe("1", "open.a")
	if s.Stats().Panics != 1 {
		t.Fatalf("Panics = %d", s.Stats().Panics)
	}
}

// A declaration behind one that takes all its channels is a mistake that opens or closes the wrong thing: the log names both.
func TestS08_ShadowedDeclarationsAreNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		earlier, later string
		shadowed       bool
	}{
		{"**", "a", true},
		{"**", "a.**", true},
		{"a.**", "a.{x}.b", true},
		{"a.*", "a.{x}", true},
		{"a.*", "a.p-{x}", true},
		{"a.p-{x}", "a.p-1", true},
		{"a.p-{x}", "a.p-", false},
		{"a.p-{x}", "a.*", false},
		{"a.**", "a", false},
		{"a.*", "a.**", false},
		{"a.b", "a.c", false},
		{"a", "**", false},
	} {
		var l logs
		n, err := tidewire.New(tidewire.Options{Logger: slog.New(slog.NewTextHandler(&l, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(n.Channel(tc.earlier, tidewire.ChannelOptions{}), n.Channel(tc.later, tidewire.ChannelOptions{})); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(l.String(), "never counts"); got != tc.shadowed {
			t.Errorf("%s, then %s: shadowed %v, want %v", tc.earlier, tc.later, got, tc.shadowed)
		}
	}
}
