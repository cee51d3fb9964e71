package tidewire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/internal/load"
)

// bearer authenticates "ok-NAME" as NAME; "down" cannot be decided, "panic" panics.
func bearer(r *http.Request) (*tidewire.Grant, error) {
	token, _ := auth.Token(r)
	return grantFor(token)
}

func grantFor(token string) (*tidewire.Grant, error) {
	switch name, ok := strings.CutPrefix(token, "ok-"); {
	case ok:
		return &tidewire.Grant{Actor: tidewire.Actor{ID: name, Claims: map[string]any{"name": name}}}, nil
	case token == "down":
		return nil, errBackendDown
	case token == "panic":
		panic("authenticator")
	}
	return nil, nil
}

func withToken(token string) dialOptions {
	return dialOptions{header: http.Header{"Authorization": {"Bearer " + token}}}
}

func TestS01_AuthenticationDecidesBeforeTheUpgrade(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Authenticate: bearer})
	for _, tc := range []struct {
		name, token, code string
		status            int
		retry             bool
	}{
		{"a wrong credential", "wrong", "SOCKET_UNAUTHENTICATED", 401, false},
		{"none", "", "SOCKET_UNAUTHENTICATED", 401, false},
		{"a failure to decide", "down", "SOCKET_AUTH_UNAVAILABLE", 503, true},
		{"a panic", "panic", "SOCKET_AUTH_UNAVAILABLE", 503, true},
	} {
		_, resp, err := s.dialRaw(withToken(tc.token))
		if err == nil {
			t.Fatalf("%s: upgraded", tc.name)
		}
		if resp.StatusCode != tc.status {
			t.Fatalf("%s: status %d, want %d", tc.name, resp.StatusCode, tc.status)
		}
		if p := problemOf(t, resp); string(p.Code) != tc.code || p.Fix == "" || p.Status != tc.status {
			t.Fatalf("%s: problem %+v", tc.name, p)
		}
		if ms, _ := strconv.Atoi(resp.Header.Get("retry-after-ms")); (ms > 0) != tc.retry || (resp.Header.Get("Retry-After") != "") != tc.retry {
			t.Fatalf("%s: retry headers %v", tc.name, resp.Header)
		}
	}
	c := s.dial(withToken("ok-alice"))
	c.send(`{"type":"hello","protocol":1}`)
	if w := c.want("welcome"); w.Actor != "alice" {
		t.Fatalf("welcome %+v", w)
	}
	if s.Stats().Connections != 1 {
		t.Fatalf("a refused client holds a connection: %+v", s.Stats())
	}
	for _, secret := range []string{"ok-alice", "down", "wrong"} {
		if strings.Contains(s.logs.String(), "Bearer") || strings.Contains(s.logs.String(), "="+secret) {
			t.Fatalf("a token is in the log:\n%s", s.logs)
		}
	}
}

// H17: a browser passes its token as a subprotocol entry, which is never selected.
func TestS01_TokenAsSubprotocol(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Authenticate: bearer})
	conn, _, err := s.dialRaw(dialOptions{subprotocols: []string{"tidewire.1", "tidewire.token.ok-bob"}})
	if err != nil {
		t.Fatal(err)
	}
	if conn.Subprotocol() != "tidewire.1" {
		t.Fatalf("selected %q", conn.Subprotocol())
	}
	if strings.Contains(s.logs.String(), "ok-bob") {
		t.Fatal("the token is in the log")
	}
}

func TestS01_NoAuthenticatorWarns(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	c := s.connect()
	c.subscribe("1", "open.a")
	if !strings.Contains(s.logs.String(), "every client is anonymous") {
		t.Fatalf("no warning:\n%s", s.logs)
	}
}

func TestS06_ConnectionLimitIsAReservation(t *testing.T) {
	t.Parallel()
	var inside atomic.Int32
	gate := make(chan struct{})
	s := start(t, tidewire.Options{
		Limits: tidewire.Limits{Connections: 5},
		Authenticate: func(*http.Request) (*tidewire.Grant, error) {
			inside.Add(1)
			<-gate // all have passed the first look at the limit
			return &tidewire.Grant{}, nil
		},
	})
	var ok, shed atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, resp, err := s.dialRaw(dialOptions{})
			switch {
			case err == nil:
				ok.Add(1)
			case resp != nil && resp.StatusCode == 503 && resp.Header.Get("retry-after-ms") != "":
				shed.Add(1)
			default:
				t.Errorf("neither in nor shed: %v", err)
			}
		})
	}
	eventually(t, "all wait in the authenticator", func() bool { return inside.Load() == 20 })
	close(gate)
	wg.Wait()
	if ok.Load() != 5 || shed.Load() != 15 {
		t.Fatalf("in %d, shed %d; want 5 and 15", ok.Load(), shed.Load())
	}
}

// S31, P27: those over the accept budget are told to come back at different times.
func TestS31_AcceptBudgetShedsWithSpreadDelays(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{AcceptsPerSecond: 5, AcceptBurst: 10}})
	var delays []int
	in := 0
	for range 60 {
		_, resp, err := s.dialRaw(dialOptions{})
		if err == nil {
			in++
			continue
		}
		ms, _ := strconv.Atoi(resp.Header.Get("retry-after-ms"))
		if resp.StatusCode != 503 || ms <= 0 {
			t.Fatalf("status %d, headers %v", resp.StatusCode, resp.Header)
		}
		delays = append(delays, ms)
	}
	if in < 10 || in > 40 {
		t.Fatalf("%d accepted at once with a burst of 10", in)
	}
	first, last := delays[0], delays[len(delays)-1]
	if last < first+1000 {
		t.Fatalf("delays from %d to %d ms do not spread %d clients at 5 a second", first, last, len(delays))
	}
	if s.Stats().Shed != uint64(len(delays)) {
		t.Fatalf("Shed = %d, want %d", s.Stats().Shed, len(delays))
	}
}

func TestS06_FrameTooBigEndsTheConnection(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{FrameBytes: 4096}})
	other, c := s.connect(), s.connect()
	c.send(`{"type":"publish","channel":"open.a","data":"` + strings.Repeat("x", 5000) + `"}`)
	c.wantClose(1009)
	other.subscribe("1", "open.a")
}

// S07: one write with N+1 subscribe frames passes the cap N times and no more; guards are slow, so none is done when the last is read.
func TestS07_SubscribeBurstCannotPassTheCap(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	s := start(t, tidewire.Options{Limits: tidewire.Limits{ChannelsPerConnection: 10}}, func(n *tidewire.Node) error {
		return n.Channel("slow.*", tidewire.ChannelOptions{Guard: func(ctx context.Context, _ tidewire.Access) error {
			asked.Add(1)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			return nil
		}})
	})
	raw := s.oneWrite(11, func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"s%d","channel":"slow.c%d"}`, i, i)
	})
	if raw["subscribed"] != 10 || raw["refused SUBSCRIPTION_LIMIT"] != 1 || asked.Load() != 10 {
		t.Fatalf("answers %v, guard asked %d times", raw, asked.Load())
	}
	c := s.connect()
	if got := s.burst(c, 10, func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"s%d","channel":"slow.c%d"}`, i, i)
	}); got["subscribed"] != 10 {
		t.Fatalf("answers %v", got)
	}
	// The refused one took no place: after an unsubscribe there is room for exactly one.
	c.send(`{"type":"unsubscribe","sid":"s0"}`)
	c.want("unsubscribed")
	raw = s.burst(c, 2, func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"t%d","channel":"slow.d%d"}`, i, i)
	})
	if raw["subscribed"] != 1 || raw["refused SUBSCRIPTION_LIMIT"] != 1 {
		t.Fatalf("answers %v", raw)
	}
}

// burst sends n messages and counts the answers, as many unless more are said.
func (s *server) burst(c *client, n int, msg func(int) string, more ...int) map[string]int {
	s.t.Helper()
	for i := range n {
		c.send(msg(i))
	}
	got := map[string]int{}
	for _, m := range more {
		n += m
	}
	for range n {
		m, err := c.read()
		if err != nil {
			s.t.Fatal(err)
		}
		got[strings.TrimSpace(m.Type+" "+m.Code)]++
	}
	return got
}

// oneWrite sends messages as n frames in a single write on a connection of its own, and counts the answers until there are n.
func (s *server) oneWrite(n int, msg func(int) string) map[string]int {
	s.t.Helper()
	answers := make(chan string, n+10)
	f, err := load.Dial(s.t.Context(), load.Options{
		URL: "ws" + strings.TrimPrefix(s.http.URL, "http") + "/v1/socket", Subprotocols: []string{"tidewire.1"}, Conns: 1,
		Say: func(int) []string { return []string{`{"type":"hello","protocol":1}`} }, Ready: []byte(`"welcome"`), ReadyCount: 1,
		OnFrame: func(p []byte) string {
			var m message
			_ = json.Unmarshal(p, &m)
			if m.Type != "welcome" {
				answers <- strings.TrimSpace(m.Type + " " + m.Code)
			}
			return ""
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(f.Close)
	var frames []byte
	for i := range n {
		frames = load.AppendFrame(frames, 0x81, []byte(msg(i)))
	}
	if err := f.Write(0, frames); err != nil {
		s.t.Fatal(err)
	}
	got := map[string]int{}
	for range n {
		select {
		case a := <-answers:
			got[a]++
		case <-time.After(patience):
			s.t.Fatalf("only %v after %s", got, patience)
		}
	}
	return got
}

// The same for the sid, the node's channels, the tenant's subscriptions and the frame budget.
func TestS07_OneWriteCannotPassAnyLimit(t *testing.T) {
	t.Parallel()
	opts := tidewire.Options{
		Tenant: func(tidewire.Actor) string { return "all" },
		Limits: tidewire.Limits{Channels: 7, ChannelsPerConnection: 30, SubscriptionsPerTenant: 9, FramesPerSecond: 1, FrameBurst: 40},
	}
	sub := func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"s%d","channel":"open.c%d"}`, i, i)
	}
	if got := start(t, opts).oneWrite(8, sub); got["subscribed"] != 7 || got["refused SUBSCRIPTION_LIMIT"] != 1 {
		t.Errorf("channels of the node: %v", got)
	}
	opts.Limits.Channels = 100
	if got := start(t, opts).oneWrite(10, sub); got["subscribed"] != 9 || got["refused SUBSCRIPTION_LIMIT"] != 1 {
		t.Errorf("subscriptions of the tenant: %v", got)
	}
	if got := start(t, opts).oneWrite(2, func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"s","channel":"open.c%d"}`, i)
	}); got["subscribed"] != 1 || got["refused SUBSCRIPTION_ID_TAKEN"] != 1 {
		t.Errorf("sid: %v", got)
	}
	// hello took one of the burst of 40.
	if got := start(t, opts).oneWrite(40, func(i int) string {
		return fmt.Sprintf(`{"type":"publish","channel":"open.a","id":"p%d","data":1}`, i)
	}); got["published"] != 39 || got["refused FRAME_RATE_LIMIT"] != 1 {
		t.Errorf("frames: %v", got)
	}
}

func TestS07_NodeChannelLimit(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{Channels: 20, ChannelsPerConnection: 15}})
	a, b := s.connect(), s.connect()
	sub := func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"s%d","channel":"open.c%d"}`, i, i)
	}
	if got := s.burst(a, 15, sub); got["subscribed"] != 15 {
		t.Fatalf("answers %v", got)
	}
	// The same channels cost the node nothing more; six new ones are one too many.
	if got := s.burst(b, 9, sub); got["subscribed"] != 9 {
		t.Fatalf("answers %v", got)
	}
	if got := s.burst(b, 6, func(i int) string { return sub(100 + i) }); got["subscribed"] != 5 || got["refused SUBSCRIPTION_LIMIT"] != 1 {
		t.Fatalf("answers %v", got)
	}
	_ = a.conn.CloseNow()
	_ = b.conn.CloseNow()
	eventually(t, "no channel is left", func() bool { return s.Stats().Channels == 0 })
}

func TestS07_TenantCapCountsAcrossConnectionsAndIsGivenBack(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{
		Authenticate: bearer,
		Tenant:       func(a tidewire.Actor) string { return strings.SplitN(a.ID, "@", 2)[1] },
		Limits:       tidewire.Limits{SubscriptionsPerTenant: 8},
	})
	a, b, other := s.connectAs("ok-a@x"), s.connectAs("ok-b@x"), s.connectAs("ok-c@y")
	sub := func(i int) string {
		return fmt.Sprintf(`{"type":"subscribe","sid":"s%d","channel":"open.c%d"}`, i, i)
	}
	if got := s.burst(a, 5, sub); got["subscribed"] != 5 {
		t.Fatalf("answers %v", got)
	}
	if got := s.burst(b, 4, sub); got["subscribed"] != 3 || got["refused SUBSCRIPTION_LIMIT"] != 1 {
		t.Fatalf("answers %v", got)
	}
	if got := s.burst(other, 8, sub); got["subscribed"] != 8 {
		t.Fatalf("another tenant pays: %v", got)
	}
	// Releasing twice gives nothing back twice: unsubscribe, then close.
	a.send(`{"type":"unsubscribe","sid":"s0"}`, `{"type":"unsubscribe","sid":"s0"}`)
	if got := s.burst(a, 0, nil, 2); got["unsubscribed"] != 1 || got["refused SUBSCRIPTION_UNKNOWN"] != 1 {
		t.Fatalf("answers %v", got)
	}
	_ = a.conn.Close(websocket.StatusNormalClosure, "")
	eventually(t, "a is gone", func() bool { return s.Stats().Connections == 2 })
	c := s.connectAs("ok-d@x")
	if got := s.burst(c, 6, sub); got["subscribed"] != 5 || got["refused SUBSCRIPTION_LIMIT"] != 1 {
		t.Fatalf("answers %v", got)
	}
}

func TestS06_FrameRateLimitComesFirst(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	s := start(t, tidewire.Options{Limits: tidewire.Limits{FramesPerSecond: 1, FrameBurst: 20}}, func(n *tidewire.Node) error {
		return n.Channel("counted.*", tidewire.ChannelOptions{Guard: func(context.Context, tidewire.Access) error {
			asked.Add(1)
			return nil
		}})
	})
	c := s.connect() // spends one
	got := s.burst(c, 30, func(i int) string {
		return fmt.Sprintf(`{"type":"publish","channel":"counted.a","id":"p%d","data":%d}`, i, i)
	})
	over := got["refused FRAME_RATE_LIMIT"]
	if over < 9 || over > 11 || got["published"] != 30-over || int(asked.Load()) != 30-over {
		t.Fatalf("answers %v, guard asked %d times", got, asked.Load())
	}
	for range 40 { // it goes on and on
		if err := c.conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"hello","protocol":1}`)); err != nil {
			break
		}
	}
	c.wantClose(4003)
}

func TestS06_SlowSubscriberIsDroppedToldAndClosed(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{QueueBytes: 600 << 10, QueueMessages: 64, DroppedFrames: 32, FrameBytes: 64 << 10}})
	slow, healthy := s.connect(), s.connect()
	slow.subscribe("1", "open.a")
	healthy.subscribe("1", "open.a")
	slow.conn.SetReadLimit(1 << 30)
	data := strings.Repeat("x", 60<<10)
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		for {
			if m, err := healthy.read(); err != nil || m.Type != "message" {
				return
			}
			taken <- struct{}{}
		}
	}()
	// The slow one never reads. The healthy one gets every message, each before the next is sent.
	published := 0
	for s.Stats().SlowCloses == 0 {
		if published++; published > 2000 {
			t.Fatalf("the stalled reader is still there: %+v", s.Stats())
		}
		if _, err := s.Publish(t.Context(), "open.a", data, tidewire.PublishOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, ok := <-taken; !ok {
			t.Fatal("the healthy reader lost its connection or a message")
		}
	}
	if d := s.Stats().Dropped; d < 32 {
		t.Fatalf("Dropped = %d, want at least 32", d)
	}
	eventually(t, "one connection is left", func() bool { return s.Stats().Connections == 1 })
	eventually(t, "a warning names the channel (S10)", func() bool {
		return strings.Contains(s.logs.String(), "frames dropped") && strings.Contains(s.logs.String(), "channel=open.a")
	})
	_ = healthy.conn.CloseNow()
	<-taken
}

func TestS35_IdleAndSilentConnectionsAreSwept(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{HelloTimeout: 150 * time.Millisecond, IdleTimeout: 300 * time.Millisecond, PingInterval: 40 * time.Millisecond, PresenceGrace: -1})
	silent := s.dial(dialOptions{})
	silent.wantClose(4002)
	idle, watch := s.connect(), s.connect()
	watch.send(`{"type":"subscribe","sid":"w","channel":"open.a","presence":{"observe":true}}`)
	watch.want("subscribed")
	watch.want("presence")
	idle.send(`{"type":"subscribe","sid":"1","channel":"open.a","presence":{}}`)
	idle.want("subscribed")
	stop := make(chan struct{})
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = watch.conn.Write(context.Background(), websocket.MessageText, []byte(`{"type":"hello","protocol":1}`))
			}
		}
	}()
	defer func() { close(stop); <-beating }()
	// It answers pings all the time, and is idle all the same. Its end goes through the node's teardown: the roster knows.
	watch.await("the idle one has left", func(m message) bool { return m.Type == "presence" && len(m.Leaves) == 1 })
	idle.wantClose(4001)
}

func TestS30_DrainGivesSlotsThenCloses(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{DrainWindow: 400 * time.Millisecond})
	const clients = 40
	cs := make([]*client, clients)
	for i := range cs {
		cs[i] = s.connect()
		cs[i].send(fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"data":{"n":%d}}}`, i))
		cs[i].want("subscribed")
	}
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	eventually(t, "readiness is red", func() bool {
		resp, err := http.Get(s.http.URL + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == 503
	})
	if _, resp, err := s.dialRaw(dialOptions{}); err == nil || resp.StatusCode != 503 || problemOf(t, resp).Code != "DRAINING" || resp.Header.Get("retry-after-ms") == "" {
		t.Fatalf("a late dial was not shed: %v", err)
	}
	slots := map[int64]bool{}
	for _, c := range cs {
		m := c.await("reconnect", func(m message) bool { return m.Type == "reconnect" })
		if m.AfterMs == nil || *m.AfterMs < 0 || *m.AfterMs > 400 {
			t.Fatalf("slot %+v", m)
		}
		slots[*m.AfterMs/20] = true
	}
	if len(slots) < 8 {
		t.Fatalf("%d clients share %d slots", clients, len(slots))
	}
	for _, c := range cs[:10] { // these go by themselves, the others stay until they are closed
		_ = c.conn.Close(websocket.StatusNormalClosure, "")
	}
	for _, c := range cs[10:] {
		c.wantClose(1012)
	}
	<-stopped
	if total := s.Roster("open.room").Total; total != 0 {
		t.Fatalf("%d members are left in the roster", total)
	}
}

func TestS06_HandshakeRefusals(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{AllowedOrigins: []string{"https://app.example.com"}})
	_, resp, err := s.dialRaw(dialOptions{subprotocols: []string{"other"}})
	if err == nil || resp.StatusCode != 400 || problemOf(t, resp).Code != "PROTOCOL_VERSION" {
		t.Fatalf("wrong subprotocol: %v", err)
	}
	_, resp, err = s.dialRaw(dialOptions{header: http.Header{"Origin": {"https://evil.example.com"}}})
	if err == nil || resp.StatusCode != 403 || problemOf(t, resp).Code != "ORIGIN_FORBIDDEN" {
		t.Fatalf("foreign origin: %v", err)
	}
	if !strings.Contains(s.logs.String(), "allowed_origins") {
		t.Fatal("the log does not name the setting")
	}
	if _, _, err = s.dialRaw(dialOptions{header: http.Header{"Origin": {"https://app.example.com"}}}); err != nil {
		t.Fatalf("allowed origin: %v", err)
	}
	resp, err = http.Get(s.http.URL + "/v1/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != 426 || problemOf(t, resp).Code != "HANDSHAKE_INVALID" {
		t.Fatalf("plain GET: %d", resp.StatusCode)
	}
}

func TestNew_RefusesWrongOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]tidewire.Options{
		"origin":     {AllowedOrigins: []string{"example.com"}},
		"tenant cap": {Limits: tidewire.Limits{SubscriptionsPerTenant: 1}},
		"queue":      {Limits: tidewire.Limits{QueueBytes: 1000}},
		"roster":     {Limits: tidewire.Limits{PresenceBytes: 100_000}},
	} {
		if _, err := tidewire.New(o); err == nil || !strings.Contains(err.Error(), "CONFIG_INVALID") {
			t.Errorf("%s: New = %v, want CONFIG_INVALID", name, err)
		}
	}
	n, err := tidewire.New(tidewire.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"", "a..b", "**.a", "a.{}", "{x}.{x}", "a b", "a.{b c}"} {
		if err := n.Channel(pattern, tidewire.ChannelOptions{}); err == nil {
			t.Errorf("Channel(%q) was accepted", pattern)
		}
	}
	if err := errors.Join(n.Channel("a", tidewire.ChannelOptions{})); err != nil {
		t.Fatal(err)
	}
	if n.Channel("a", tidewire.ChannelOptions{}) == nil || n.Channel("b", tidewire.ChannelOptions{Policy: "odd"}) == nil {
		t.Error("a repeated declaration or an unknown policy was accepted")
	}
}
