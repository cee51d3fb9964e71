package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

// patience bounds every wait of a test.
const patience = 30 * time.Second

var quiet = slog.New(slog.DiscardHandler)

// node is a real node at a real port.
type node struct {
	*tidewire.Node
	t    *testing.T
	addr string
	http *http.Server
	stop func() // drains and ends
}

// startNode serves a node whose channels "open.**" allow everything, and so do "short.**", "log.**" and "long.**", which have histories. addr may be that of a node that has ended.
func startNode(t *testing.T, addr string, opts tidewire.Options) *node {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	if opts.DrainWindow == 0 {
		opts.DrainWindow = -1
	}
	n, err := tidewire.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Channel("open.**", tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true, Policy: tidewire.PolicyDropOldest}); err != nil {
		t.Fatal(err)
	}
	for pattern, size := range map[string]int{"log.**": 1000, "long.**": 200_000, "short.**": 20} {
		if err := n.Channel(pattern, tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true, History: &tidewire.History{Size: size, Bytes: 64 << 20}}); err != nil {
			t.Fatal(err)
		}
	}
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var listener net.Listener
	eventually(t, "listening on "+addr, func() bool {
		listener, err = net.Listen("tcp", addr)
		return err == nil
	})
	s := &node{Node: n, t: t, addr: listener.Addr().String(), http: &http.Server{Handler: n, ReadHeaderTimeout: patience}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- n.Run(ctx) }()
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(listener) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		_ = s.http.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// connect runs a client until the end of the test. Delays are short.
func (s *node) connect(opts client.Options) *client.Client {
	s.t.Helper()
	opts.URL = "http://" + s.addr
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	if opts.MinBackoff == 0 {
		opts.MinBackoff, opts.MaxBackoff = 20*time.Millisecond, 200*time.Millisecond
	}
	c, err := client.New(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("Run: %v", err)
		}
	})
	return c
}

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	testenv.Eventually(t, patience, what, f)
}

func (s *node) subscribe(c *client.Client, channel string, opts client.SubscribeOptions) *client.Subscription {
	s.t.Helper()
	sub, err := c.Subscribe(channel, opts)
	if err != nil {
		s.t.Fatal(err)
	}
	return sub
}

func TestClient_PublishReachesSubscribers(t *testing.T) {
	s := startNode(t, "", tidewire.Options{})
	got := make(chan client.Message, 10)
	a, b := s.connect(client.Options{}), s.connect(client.Options{})
	sub := s.subscribe(a, "open.room", client.SubscribeOptions{OnMessage: func(m client.Message) { got <- m }})
	eventually(t, "live", sub.Live)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := b.Publish(ctx, "open.room", map[string]string{"text": "hi"}, client.PublishOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if m := <-got; m.ID != p.ID || string(m.Data) != `{"text":"hi"}` || m.From == nil || m.From.Session != b.State().Session {
		t.Errorf("message %+v, published %+v", m, p)
	}
	if _, err := s.Publish(ctx, "open.room", 1, tidewire.PublishOptions{ID: "x", Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if m := <-got; m.ID != "x" || m.Key != "k" || m.From != nil {
		t.Errorf("message %+v", m)
	}
	if _, err := b.Publish(ctx, "closed.room", 1, client.PublishOptions{}); !errors.Is(err, &wire.Error{Code: wire.CodeTopicForbidden}) {
		t.Errorf("Publish = %v", err)
	}
	sub.Close()
	eventually(t, "unsubscribed", func() bool { return s.Subscribers("open.room") == 0 })
}

func TestS33_UpdateAvailable(t *testing.T) {
	s := startNode(t, "", tidewire.Options{Build: "new"})
	told := make(chan string, 10)
	s.connect(client.Options{Build: "old", OnUpdate: func(build string) { told <- build }})
	if build := <-told; build != "new" {
		t.Errorf("told %q", build)
	}
	same := s.connect(client.Options{Build: "new", OnUpdate: func(build string) { t.Errorf("told %q", build) }})
	eventually(t, "connected", func() bool { return same.State().Status == client.Connected })
	if _, err := same.Publish(t.Context(), "open.a", 1, client.PublishOptions{}); err != nil { // what came before it has been handled
		t.Error(err)
	}
}

func TestS31_AccordingToTheAcceptBudget(t *testing.T) {
	s := startNode(t, "", tidewire.Options{Limits: tidewire.Limits{AcceptsPerSecond: 50, AcceptBurst: 5}})
	var subs []*client.Subscription
	for range 60 {
		subs = append(subs, s.subscribe(s.connect(client.Options{}), "open.a", client.SubscribeOptions{}))
	}
	for _, sub := range subs {
		eventually(t, "live", sub.Live)
	}
	// Each comes when it was told, or a little later: whoever comes too early is sent away again.
	if shed := s.Stats().Shed; shed == 0 || shed > 240 {
		t.Errorf("%d dials of 60 clients were sent away", shed)
	}
}

func TestS31_ComesBackToTheNextServer(t *testing.T) {
	first := startNode(t, "", tidewire.Options{DrainWindow: 200 * time.Millisecond})
	var live atomic.Int32
	got := make(chan client.Message, 10)
	c := first.connect(client.Options{})
	sub := first.subscribe(c, "open.a", client.SubscribeOptions{
		Presence:     &client.Presence{Data: "me"},
		OnSubscribed: func(client.Subscribed) { live.Add(1) },
		OnMessage:    func(m client.Message) { got <- m },
	})
	eventually(t, "live", sub.Live)
	session := c.State().Session
	first.stop()
	second := startNode(t, first.addr, tidewire.Options{})
	eventually(t, "live again", func() bool { return live.Load() == 2 && sub.Live() })
	if again := c.State().Session; again != session {
		t.Errorf("the session was %s and is %s", session, again)
	}
	if _, err := second.Publish(t.Context(), "open.a", 1, tidewire.PublishOptions{}); err != nil {
		t.Fatal(err)
	}
	<-got
	eventually(t, "in the roster", func() bool {
		r := second.Roster("open.a")
		return r.Total == 1 && len(*r.Snapshot) == 1 && string((*r.Snapshot)[0].Data) == `"me"`
	})
}

func TestP45_RenewsItsGrantOnTheConnection(t *testing.T) {
	secret := bytes.Repeat([]byte("s"), 32)
	verifier, err := auth.NewJWT(auth.JWTOptions{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	grant := func(ctx context.Context, token string) (*tidewire.Grant, error) {
		id, err := verifier.Verify(ctx, token)
		if errors.Is(err, auth.ErrDenied) {
			return nil, nil
		}
		return &tidewire.Grant{Actor: tidewire.Actor{ID: id.Subject}, ExpiresAt: id.ExpiresAt}, err
	}
	s := startNode(t, "", tidewire.Options{
		ReauthorizeInterval: 100 * time.Millisecond,
		Reauthenticate:      grant,
		Authenticate: func(r *http.Request) (*tidewire.Grant, error) {
			token, _ := auth.Token(r)
			return grant(r.Context(), token)
		},
	})
	var asked, connected atomic.Int32
	s.connect(client.Options{
		OnState: func(s client.State) {
			if s.Status == client.Connected {
				connected.Add(1)
			}
		},
		Token: func(context.Context) (string, error) {
			n := asked.Add(1)
			return auth.Sign(secret, auth.Identity{Subject: "alice", ExpiresAt: time.Now().Add(2 * time.Second), Claims: map[string]any{"n": n}})
		},
	})
	eventually(t, "four tokens", func() bool { return asked.Load() >= 4 })
	if n := connected.Load(); n != 1 {
		t.Errorf("connected %d times", n)
	}
}

func TestClient_SlowCallbackIsToldWhatItMissed(t *testing.T) {
	s := startNode(t, "", tidewire.Options{WriteTimeout: patience, Limits: tidewire.Limits{QueueMessages: 16, DroppedFrames: 1 << 20}})
	const total = 8000
	data := json.RawMessage(`"` + string(bytes.Repeat([]byte("x"), 2000)) + `"`)
	gate := make(chan struct{})
	var got, skipped, last atomic.Int64
	sub := s.subscribe(s.connect(client.Options{}), "open.a", client.SubscribeOptions{
		OnMessage: func(m client.Message) {
			<-gate
			if m.ID == "last" {
				last.Add(1)
			}
			got.Add(1)
		},
		OnSkipped: func(n uint64) { skipped.Add(int64(n)) },
	})
	eventually(t, "live", sub.Live)
	publish := func(id string) {
		if _, err := s.Publish(t.Context(), "open.a", data, tidewire.PublishOptions{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for range total {
		publish("")
	}
	close(gate)
	eventually(t, "all came or are told missing", func() bool { return got.Load()+skipped.Load() == total })
	publish("last") // there is room again
	eventually(t, "the last message", func() bool { return last.Load() == 1 })
	if got.Load()+skipped.Load() != total+1 || skipped.Load() == 0 {
		t.Errorf("%d came and %d were skipped, of %d", got.Load(), skipped.Load(), total+1)
	}
}

// TestS11_RosterEqualsTheServers has more members than the roster lists come, change and go at random, and compares what observers know.
func TestS11_RosterEqualsTheServers(t *testing.T) {
	const channel, crowd = "open.crowd", wire.RosterLimit + 24
	s := startNode(t, "", tidewire.Options{PresenceGrace: 50 * time.Millisecond, Limits: tidewire.Limits{AcceptsPerSecond: 100_000}})
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 11))
	t.Logf("seed %d", seed)

	joined := make([]*client.Subscription, crowd)
	clients := make([]*client.Client, crowd)
	join := func(i int) {
		joined[i] = s.subscribe(clients[i], channel, client.SubscribeOptions{Presence: &client.Presence{Data: rng.IntN(10)}})
	}
	for i := range clients {
		clients[i] = s.connect(client.Options{})
		join(i)
	}
	observers := []*client.Subscription{
		s.subscribe(s.connect(client.Options{}), channel, client.SubscribeOptions{Presence: &client.Presence{Observe: true}}),
		joined[0],
	}
	compare := func(when string) {
		t.Helper()
		want := 0
		for _, sub := range joined {
			if sub != nil {
				want++
			}
		}
		var server wire.Roster
		equal := func(o *client.Subscription) bool {
			server = s.Roster(channel)
			mine := o.Roster()
			return server.Total == want && mine.Version == server.Version && mine.Total == server.Total && reflect.DeepEqual(mine.Members, *server.Snapshot)
		}
		for i, o := range observers {
			deadline := time.Now().Add(patience)
			tick := time.NewTicker(5 * time.Millisecond)
			for !equal(o) {
				if time.Now().After(deadline) {
					mine := o.Roster()
					t.Fatalf("%s, seed %d, observer %d: version %d, total %d; the server has %d, %d, want %d members: %s",
						when, seed, i, mine.Version, mine.Total, server.Version, server.Total, want, cmp.Diff(*server.Snapshot, mine.Members))
				}
				<-tick.C
			}
			tick.Stop()
		}
	}
	compare("at first")
	if n := len(*s.Roster(channel).Snapshot); n != wire.RosterLimit {
		t.Fatalf("%d are listed, want %d", n, wire.RosterLimit)
	}
	for round := range 4 {
		for range 80 {
			i := 1 + rng.IntN(crowd-1)
			sub := joined[i]
			switch {
			case sub == nil:
				join(i)
			case rng.IntN(3) == 0:
				sub.Close()
				joined[i] = nil
			default:
				if err := sub.UpdatePresence(rng.IntN(10)); err != nil {
					t.Fatal(err)
				}
			}
		}
		compare(fmt.Sprintf("round %d", round))
	}
	// States: of those who stay, in a roster that has settled.
	for range 60 {
		if sub := joined[rng.IntN(40)]; sub != nil {
			if err := sub.SetState(rng.IntN(100)); err != nil {
				t.Fatal(err)
			}
		}
	}
	compare("after states")
}
