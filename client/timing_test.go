package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

// near reports whether two durations differ by less than a millisecond: the backoff's random number is just below one.
func near(a, b time.Duration) bool { return (a - b).Abs() < time.Millisecond }

func TestS31_BackoffGrowsToThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.accept = func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusBadGateway)
			return false
		}
		c := f.run(f.options())
		pass(3 * time.Minute)
		f.end(c)
		want := []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second}
		got := f.dialGaps()
		for i, w := range want {
			if i >= len(got) || !near(got[i], w) {
				t.Fatalf("the delays were %v, want %v …", got, want)
			}
		}
	})
}

func TestP27_ClientsThatLoseTheServerTogetherComeBackSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		opts := f.options()
		opts.Rand = nil
		var clients []*running
		for range 40 {
			clients = append(clients, f.run(opts))
		}
		synctest.Wait()
		pass(time.Second)
		first, _ := f.count()
		if first != 40 {
			t.Fatalf("%d dials", first)
		}
		for i := range 40 {
			_ = f.conn(i).conn.CloseNow()
		}
		pass(time.Second)
		seen := map[time.Duration]int{}
		f.mu.Lock()
		start := f.dials[39]
		for _, d := range f.dials[40:] {
			seen[d.Sub(start)/(50*time.Millisecond)]++
		}
		back := len(f.dials) - 40
		f.mu.Unlock()
		if back != 40 || len(seen) < 5 {
			t.Errorf("%d of 40 came back, in %d of 10 slots of 50 ms", back, len(seen))
		}
		for _, c := range clients {
			c.stop()
			<-c.done
		}
		f.stop()
	})
}

func TestS31_TheServersDelayIsHonoured(t *testing.T) {
	for _, c := range []struct {
		name    string
		headers []string
		want    time.Duration
	}{
		{"retry-after-ms", []string{"retry-after-ms", "1234", "Retry-After", "2"}, 1234 * time.Millisecond},
		{"Retry-After", []string{"Retry-After", "7"}, 7 * time.Second},
		{"bounded", []string{"retry-after-ms", "999999999999999"}, 5 * time.Minute},
		{"nonsense", []string{"retry-after-ms", "soon"}, 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.accept = func(w http.ResponseWriter, _ *http.Request) bool {
					if dials, _ := f.count(); dials > 1 {
						return true
					}
					return refuse(w, http.StatusServiceUnavailable, wire.CodeAcceptBudget, c.headers...)
				}
				r := f.run(f.options())
				synctest.Wait()
				if s := r.State(); s.Status != client.Waiting || !near(s.Retry, c.want) || s.Err == nil {
					t.Errorf("state %+v", s)
				}
				pass(6 * time.Minute)
				if s := r.State(); s.Status != client.Connected {
					t.Errorf("state %+v", s)
				}
				f.end(r)
				if got := f.dialGaps(); len(got) != 1 || !near(got[0], c.want) {
					t.Errorf("delays %v, want %v", got, c.want)
				}
			})
		})
	}
}

func TestS31_ReconnectSlot(t *testing.T) {
	for _, serverCloses := range []bool{false, true} {
		t.Run(fmt.Sprintf("serverCloses=%v", serverCloses), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				r := f.run(f.options())
				synctest.Wait()
				start := time.Now()
				f.conn(0).say(`{"type":"reconnect","afterMs":1830}`)
				if serverCloses {
					pass(time.Second)
					_ = f.conn(0).conn.Close(websocket.StatusServiceRestart, "service restart")
				}
				pass(5 * time.Second)
				f.mu.Lock()
				back := f.dials[1].Sub(start)
				f.mu.Unlock()
				if !near(back, 1830*time.Millisecond) {
					t.Errorf("came back after %v", back)
				}
				if code, _ := f.conn(0).status(); !serverCloses && code != 4004 {
					t.Errorf("left with %d", code)
				}
				f.end(r)
			})
		})
	}
}

func TestS31_SubscribesAndAnnouncesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		r := f.run(f.options())
		var live []string
		note := func(name string) func(client.Subscribed) {
			return func(client.Subscribed) { live = append(live, name) }
		}
		plain, err := r.Subscribe("plain", client.SubscribeOptions{OnSubscribed: note("plain")})
		if err != nil {
			t.Fatal(err)
		}
		member, err := r.Subscribe("member", client.SubscribeOptions{OnSubscribed: note("member"), Presence: &client.Presence{Data: map[string]int{"n": 1}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Subscribe("plain", client.SubscribeOptions{}); err == nil {
			t.Error("a channel was subscribed twice")
		}
		synctest.Wait()
		for _, data := range []int{2, 3} {
			if err := member.UpdatePresence(map[string]int{"n": data}); err != nil {
				t.Fatal(err)
			}
		}
		if err := member.SetState("cursor"); err != nil {
			t.Fatal(err)
		}
		if err := plain.SetState(1); err == nil {
			t.Error("a state without a roster")
		}
		synctest.Wait()
		if got := f.conn(0).commands("presence", "state"); len(got) == 0 || string(got[len(got)-1].Data) != `"cursor"` {
			t.Errorf("sent %+v", got)
		}
		gone, err := r.Subscribe("gone", client.SubscribeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		gone.Close()
		gone.Close()
		synctest.Wait()
		if got := f.conn(0).commands("unsubscribe"); len(got) != 1 {
			t.Errorf("unsubscribed %+v", got)
		}

		_ = f.conn(0).conn.CloseNow()
		pass(time.Second)
		var said []string
		for _, m := range f.conn(1).commands("subscribe", "presence", "state", "unsubscribe") {
			data := m.Data
			if m.Presence != nil {
				data = m.Presence.Data
			}
			said = append(said, m.Type+" "+m.Channel+" "+string(data))
		}
		want := []string{"subscribe plain ", `subscribe member {"n":3}`, `state member "cursor"`}
		if d := cmp.Diff(want, said); d != "" {
			t.Error(d)
		}
		hello := f.conn(0).commands("hello")[0]
		if again := f.conn(1).commands("hello")[0]; again.Client != hello.Client || len(hello.Client) < wire.MinClientBytes {
			t.Errorf("said %q and then %q", hello.Client, again.Client)
		}
		f.end(r)
		if d := cmp.Diff([]string{"plain", "member", "plain", "member"}, live); d != "" {
			t.Error(d)
		}
	})
}

func TestP27_ResubscribesWithinTheAnnouncedRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		const rate, burst = 10, 8
		f.welcome = func(_ *fakeConn, w *wire.Welcome) {
			w.Limits.FramesPerSecond, w.Limits.FrameBurst = rate, burst
		}
		r := f.run(f.options())
		for i := range 64 {
			if _, err := r.Subscribe(fmt.Sprintf("room.%d", i), client.SubscribeOptions{Presence: &client.Presence{}}); err != nil {
				t.Fatal(err)
			}
		}
		pass(time.Minute)
		all := f.conn(0).commands("hello", "subscribe")
		tokens, last := float64(burst), all[0].At
		for i, m := range all {
			tokens = min(burst, tokens+m.At.Sub(last).Seconds()*rate)
			last = m.At
			if tokens--; tokens < 0 {
				t.Fatalf("frame %d of %d is above the rate", i, len(all))
			}
		}
		if len(all) < 64+1 {
			t.Errorf("only %d frames", len(all))
		}
		f.end(r)
	})
}

func TestS32_Beats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		r := f.run(f.options())
		for channel, p := range map[string]*client.Presence{"plain": nil, "member": {Data: 1}, "observer": {Observe: true}} {
			if _, err := r.Subscribe(channel, client.SubscribeOptions{Presence: p}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		f.conn(0).say(`{"type":"presence","channel":"observer","version":1,"total":0,"snapshot":[]}`)
		f.conn(0).say(`{"type":"presence","channel":"member","version":1,"total":0,"snapshot":[]}`)
		start := time.Now()
		pass(46 * time.Second)
		count := map[string]int{}
		for _, m := range f.conn(0).commands("hello", "subscribe") {
			if m.At == start {
				continue
			}
			count[m.Type+" "+m.Channel]++
			if late := m.At.Sub(start) % (15 * time.Second); late > time.Millisecond {
				t.Errorf("%s at %v", m.Type, m.At.Sub(start))
			}
			if m.Presence != nil && m.Presence.Data != nil {
				t.Error("a beat repeats the data, which would undo another session's change")
			}
		}
		if d := cmp.Diff(map[string]int{"hello ": 3, "subscribe member": 3}, count); d != "" {
			t.Error(d)
		}
		f.end(r)
	})
}

func TestS32_SilenceOfTwoIntervalsCloses4000(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(c *fakeConn, m command) bool { // silent after the first welcome
			return c == f.conns[0] && len(c.commands("hello")) > 1
		}
		r := f.run(f.options())
		start := time.Now()
		pass(29 * time.Second)
		if code, ended := f.conn(0).status(); !ended.IsZero() {
			t.Errorf("closed with %d after %v", code, ended.Sub(start))
		}
		pass(3 * time.Second)
		code, ended := f.conn(0).status()
		if code != 4000 || !near(ended.Sub(start), 30*time.Second) {
			t.Errorf("closed with %d after %v, want 4000 after 30 s", code, ended.Sub(start))
		}
		if r.State().Status != client.Connected {
			t.Errorf("state %+v", r.State())
		}
		f.end(r)
	})
}

func TestS32_SlowCallbackIsNotSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		// The pipe holds no bytes: an answer would block the server.
		f.answer = func(c *fakeConn, _ command) bool { return len(c.commands("hello")) > 1 }
		r := f.run(f.options())
		if _, err := r.Subscribe("a", client.SubscribeOptions{OnMessage: func(client.Message) { time.Sleep(50 * time.Second) }}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.conn(0).say(`{"type":"message","channel":"a","id":"1","data":1}`)
		pass(55 * time.Second)
		if dials, _ := f.count(); dials != 1 || r.State().Status != client.Connected {
			t.Errorf("%d dials, state %+v", dials, r.State())
		}
		if got := f.conn(0).commands("hello"); len(got) < 3 {
			t.Errorf("%d beats while a callback ran", len(got)-1)
		}
		f.end(r)
	})
}

func TestS32_SystemSleepIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		var asleep atomic.Int64 // how much further the wall's clock is
		c, err := client.New(f.options())
		if err != nil {
			t.Fatal(err)
		}
		c.SetWall(func() time.Time { return time.Now().Add(time.Duration(asleep.Load())) })
		if _, err := c.Subscribe("member", client.SubscribeOptions{Presence: &client.Presence{Data: "me"}}); err != nil {
			t.Fatal(err)
		}
		var dead atomic.Bool
		f.answer = func(*fakeConn, command) bool { return dead.Load() }
		r := f.start(c)
		pass(time.Second)

		// The server is still there.
		asleep.Add(int64(10 * time.Minute))
		pass(6 * time.Second)
		if got := f.conn(0).commands("hello"); len(got) != 2 {
			t.Fatalf("%d hellos after the sleep, want one more", len(got)-1)
		}
		subs := f.conn(0).commands("subscribe")
		if last := subs[len(subs)-1]; string(last.Presence.Data) != `"me"` {
			t.Errorf("the session is not announced again: %+v", last.Presence)
		}
		pass(20 * time.Second)
		if dials, _ := f.count(); dials != 1 {
			t.Fatal("a connection that answers was given up")
		}

		// It is not.
		dead.Store(true)
		asleep.Add(int64(time.Hour))
		start := time.Now()
		pass(9 * time.Second)
		code, ended := f.conn(0).status()
		if code != 4000 || ended.Sub(start) > 7*time.Second {
			t.Errorf("closed with %d after %v, want 4000 within 5 s + 2 s", code, ended.Sub(start))
		}
		dead.Store(false)
		pass(time.Minute)
		if r.State().Status != client.Connected {
			t.Errorf("state %+v", r.State())
		}
		f.end(r)
	})
}

func TestP31_EachLossOfTheRouteIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		hole := make(chan struct{})
		f.pipe.hole.Store(&hole)
		r := f.run(f.options())
		if _, err := r.Subscribe("a", client.SubscribeOptions{}); err != nil {
			t.Fatal(err)
		}
		for outage := range 10 {
			pass(5 * time.Second)
			if s := r.State(); s.Status != client.Connected {
				t.Fatalf("before outage %d: %+v", outage, s)
			}
			lost := time.Now()
			close(hole)
			hole = make(chan struct{})
			f.pipe.hole.Store(&hole)
			for r.State().Status == client.Connected {
				pass(100 * time.Millisecond)
			}
			if d := time.Since(lost); d > 32*time.Second {
				t.Errorf("outage %d was noticed after %v", outage, d)
			}
		}
		pass(5 * time.Second)
		if got := f.conn(10).commands("subscribe"); len(got) != 1 {
			t.Errorf("subscribed %d times", len(got))
		}
		for i := range 10 {
			_ = f.conn(i).conn.CloseNow()
		}
		f.end(r)
	})
}

func TestS32_NoWelcomeIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(*fakeConn, command) bool { return true }
		r := f.run(f.options())
		start := time.Now()
		pass(10500 * time.Millisecond)
		if _, ended := f.conn(0).status(); !near(ended.Sub(start), 10*time.Second) {
			t.Errorf("given up after %v", ended.Sub(start))
		}
		f.end(r)
	})
}

func TestP31_CloseThatNobodyAnswersEndsSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		hole := make(chan struct{})
		f.pipe.hole.Store(&hole)
		r := f.run(f.options())
		pass(time.Second)
		close(hole)
		start := time.Now()
		r.stop()
		if err := <-r.done; err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("Run returned after %v", d)
		}
		_ = f.conn(0).conn.CloseNow()
		f.stop()
	})
}

// tokens is a token endpoint: it counts calls and how many run at once.
type tokens struct {
	calls, inFlight, most atomic.Int32
	delay                 time.Duration
	next                  func(n int) (string, error)
}

func (k *tokens) token(ctx context.Context) (string, error) {
	n := k.calls.Add(1)
	k.most.Store(max(k.most.Load(), k.inFlight.Add(1)))
	defer k.inFlight.Add(-1)
	select {
	case <-time.After(k.delay):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	return k.next(int(n))
}

func bearer(r *http.Request) string {
	return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
}

func TestP45_ShortTokensForTenMinutesWithDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		const life = 5 * time.Second
		k := &tokens{delay: 200 * time.Millisecond, next: func(int) (string, error) { return time.Now().Add(life).Format(time.RFC3339Nano), nil }}
		left := func(token string) time.Duration {
			end, err := time.Parse(time.RFC3339Nano, token)
			if err != nil {
				t.Errorf("the client sent the token %q", token)
			}
			return time.Until(end)
		}
		f.accept = func(w http.ResponseWriter, r *http.Request) bool {
			if left(bearer(r)) <= 0 {
				return refuse(w, http.StatusUnauthorized, wire.CodeSocketUnauthenticated)
			}
			return true
		}
		expiry := map[*fakeConn]*time.Timer{}
		expired := 0
		grant := func(c *fakeConn, d time.Duration) {
			if expiry[c] != nil {
				expiry[c].Stop()
			}
			expiry[c] = time.AfterFunc(d, func() {
				if !c.dropped {
					expired++
				}
			})
		}
		f.welcome = func(c *fakeConn, w *wire.Welcome) {
			if expiry[c] == nil {
				grant(c, left(bearer(c.request)))
			}
			w.ExpiresInMs = max(1, left(bearer(c.request)).Milliseconds())
		}
		refreshes := 0
		f.answer = func(c *fakeConn, m command) bool {
			if m.Type != wire.TypeAuth {
				return false
			}
			refreshes++
			grant(c, left(m.Token))
			c.say(string(wire.Reply{Type: wire.TypeAuthenticated, ExpiresInMs: left(m.Token).Milliseconds()}.Encode()))
			return true
		}
		opts := f.options()
		opts.Token = k.token
		r := f.run(opts)
		for i := range 5 {
			pass(2 * time.Minute)
			c := f.conn(i)
			c.dropped = true
			_ = c.conn.CloseNow()
		}
		pass(5 * time.Second)
		if most := k.most.Load(); most != 1 {
			t.Errorf("%d calls for a token at once", most)
		}
		dials, _ := f.count()
		if dials != 6 || expired != 0 {
			t.Errorf("%d dials, want 6; %d grants ended before they were renewed", dials, expired)
		}
		if refreshes < 100 || refreshes > 250 || int(k.calls.Load()) > refreshes+dials+1 {
			t.Errorf("%d refreshes and %d calls for a token in 10 min", refreshes, k.calls.Load())
		}
		f.conn(5).dropped = true
		f.end(r)
	})
}

func TestP45_RefusedCredentials(t *testing.T) {
	for _, c := range []struct {
		name  string
		next  func(n int) (string, error)
		calls int32
		dials int
		want  wire.Code // empty if it connects
	}{
		{"a fixed expired token", func(int) (string, error) { return "old", nil }, 2, 1, wire.CodeSocketUnauthenticated},
		{"a fresh token that is wrong too", func(n int) (string, error) { return fmt.Sprint("old", n), nil }, 2, 2, wire.CodeSocketUnauthenticated},
		{"a fresh token", func(n int) (string, error) { return []string{"", "old", "good"}[n], nil }, 2, 2, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.accept = func(w http.ResponseWriter, r *http.Request) bool {
					return bearer(r) == "good" || refuse(w, http.StatusUnauthorized, wire.CodeSocketUnauthenticated)
				}
				k := &tokens{next: c.next}
				opts := f.options()
				opts.Token = k.token
				r := f.run(opts)
				pass(10 * time.Minute)
				dials, _ := f.count()
				if dials != c.dials || k.calls.Load() != c.calls {
					t.Errorf("%d dials and %d calls for a token, want %d and %d", dials, k.calls.Load(), c.dials, c.calls)
				}
				if c.want == "" {
					f.end(r)
					return
				}
				err := <-r.done
				if !errors.Is(err, &wire.Error{Code: c.want}) {
					t.Errorf("Run = %v, want %s", err, c.want)
				}
				if s := r.State(); s.Status != client.Stopped || s.Err == nil {
					t.Errorf("state %+v", s)
				}
				if _, err := r.Publish(t.Context(), "a", 1, client.PublishOptions{}); !errors.Is(err, client.ErrStopped) {
					t.Errorf("Publish = %v", err)
				}
				f.stop()
			})
		})
	}
}

func TestP45_TokenEndpointDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.accept = func(w http.ResponseWriter, r *http.Request) bool {
			if bearer(r) == "" {
				t.Error("the client came without a credential")
			}
			return true
		}
		k := &tokens{next: func(n int) (string, error) {
			switch {
			case n == 3:
				return "", nil // must not make it anonymous
			case n < 6:
				return "", errors.New("status 500")
			}
			return "good", nil
		}}
		opts := f.options()
		opts.Token = k.token
		r := f.run(opts)
		start := time.Now()
		pass(time.Minute)
		f.mu.Lock()
		took := f.dials[0].Sub(start)
		f.mu.Unlock()
		if !near(took, 15500*time.Millisecond) { // 0.5 + 1 + 2 + 4 + 8
			t.Errorf("dialed after %v", took)
		}
		f.end(r)
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		opts := f.options()
		opts.Token = func(context.Context) (string, error) { return "", fmt.Errorf("status 401: %w", client.ErrNoToken) }
		r := f.run(opts)
		if err := <-r.done; !errors.Is(err, client.ErrNoToken) {
			t.Errorf("Run = %v", err)
		}
		if dials, _ := f.count(); dials != 0 {
			t.Errorf("%d dials", dials)
		}
		f.stop()
	})
}

func TestP45_RefreshThatFailsIsTriedAgainAndNeverDoubled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		k := &tokens{next: func(n int) (string, error) {
			if n == 2 || n == 3 {
				return "", errors.New("status 500")
			}
			return fmt.Sprint("t", n), nil
		}}
		f.welcome = func(c *fakeConn, w *wire.Welcome) { w.ExpiresInMs = 60_000 } // also on beats: they must not start another chain
		var auths []command
		f.answer = func(c *fakeConn, m command) bool {
			if m.Type != wire.TypeAuth {
				return false
			}
			auths = append(auths, m)
			if len(auths) == 1 {
				c.say(`{"type":"refused","re":"auth","code":"SOCKET_AUTH_UNAVAILABLE","cause":"down","retryAfterMs":2000}`)
			} else {
				c.say(`{"type":"authenticated"}`) // without an end
			}
			return true
		}
		opts := f.options()
		opts.Token = k.token
		r := f.run(opts)
		pass(5 * time.Minute)
		if len(auths) != 2 || k.calls.Load() != 5 || k.most.Load() != 1 {
			t.Errorf("%d auths, %d calls for a token, %d at once", len(auths), k.calls.Load(), k.most.Load())
		}
		if gap := auths[1].At.Sub(auths[0].At); !near(gap, 2*time.Second) {
			t.Errorf("tried again after %v", gap)
		}
		f.end(r)
	})
}

func TestRun_RefusalsThatEnd(t *testing.T) {
	for code, status := range map[wire.Code]int{wire.CodeOriginForbidden: 403, wire.CodeProtocolVersion: 400, wire.CodeNotFound: 404} {
		t.Run(string(code), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t)
				f.accept = func(w http.ResponseWriter, _ *http.Request) bool { return refuse(w, status, code) }
				r := f.run(f.options())
				if err := <-r.done; !errors.Is(err, &wire.Error{Code: code}) {
					t.Errorf("Run = %v", err)
				}
				f.stop()
			})
		})
	}
}

func TestP27_AServerThatWelcomesAndClosesIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(c *fakeConn, m command) bool {
			c.usual(m)
			go func() { _ = c.conn.Close(websocket.StatusTryAgainLater, "backpressure") }()
			return true
		}
		r := f.run(f.options())
		pass(40 * time.Second)
		if got := f.dialGaps(); len(got) < 4 || !near(got[3], 4*time.Second) {
			t.Errorf("delays %v", got)
		}
		f.end(r)
	})
}

func TestPublish_Answers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.welcome = func(_ *fakeConn, w *wire.Welcome) { w.Limits.FrameBytes = 300 }
		f.answer = func(c *fakeConn, m command) bool {
			switch m.Channel {
			case "no":
				c.say(string(wire.Refused(m.Command, wire.Errorf(wire.CodeTopicForbidden, "no")).Encode()))
			case "silent":
			case "lost":
				_ = c.conn.CloseNow()
			default:
				return false
			}
			return true
		}
		c, err := client.New(f.options())
		if err != nil {
			t.Fatal(err)
		}
		publish := func(ctx context.Context, channel string, data any) error {
			_, err := c.Publish(ctx, channel, data, client.PublishOptions{})
			return err
		}
		early, cancelEarly := context.WithTimeout(t.Context(), time.Second)
		defer cancelEarly()
		if err := publish(early, "a", 1); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUncertain) {
			t.Errorf("without a connection: %v", err)
		}
		r := f.start(c)
		if err := publish(t.Context(), "a", 1); err != nil {
			t.Error(err)
		}
		if err := publish(t.Context(), "no", 1); !errors.Is(err, &wire.Error{Code: wire.CodeTopicForbidden}) {
			t.Errorf("refused: %v", err)
		}
		if err := publish(t.Context(), "a", strings.Repeat("x", 300)); !errors.Is(err, &wire.Error{Code: wire.CodeMessageTooLarge}) {
			t.Errorf("too large: %v", err)
		}
		for _, bad := range []any{make(chan int), rawJSON(strings.Repeat("[", 40) + strings.Repeat("]", 40))} {
			if err := publish(t.Context(), "a", bad); !errors.Is(err, &wire.Error{Code: wire.CodeDataInvalid}) {
				t.Errorf("bad data: %v", err)
			}
		}
		if err := publish(t.Context(), "a..b", 1); !errors.Is(err, &wire.Error{Code: wire.CodeChannelInvalid}) {
			t.Errorf("bad channel: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := publish(ctx, "silent", 1); !errors.Is(err, client.ErrUncertain) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("no answer: %v", err)
		}
		if err := publish(t.Context(), "lost", 1); !errors.Is(err, client.ErrUncertain) {
			t.Errorf("lost: %v", err)
		}
		if err := publish(t.Context(), "a", "after"); err != nil { // waits for the next connection
			t.Error(err)
		}
		p, err := c.Publish(t.Context(), "a", "<&>", client.PublishOptions{ID: "mine", Key: "k", NoEcho: true, NoWait: true})
		if err != nil || p.ID != "mine" {
			t.Error(p, err)
		}
		synctest.Wait()
		got := f.conn(1).commands("publish")
		if m := got[len(got)-1]; m.ID != "mine" || m.Key != "k" || m.Echo == nil || *m.Echo || string(m.Data) != `"<&>"` {
			t.Errorf("sent %+v", m)
		}
		f.end(r)
	})
}

func TestPublish_UnsentMessagesWaitForTheNextConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.welcome = func(_ *fakeConn, w *wire.Welcome) { w.Limits.FramesPerSecond, w.Limits.FrameBurst = 1, 4 }
		r := f.run(f.options())
		synctest.Wait()
		const n = 300 // more than are queued
		results := make(chan error, n)
		for i := range n {
			go func() {
				_, err := r.Publish(t.Context(), "a", i, client.PublishOptions{})
				results <- err
			}()
		}
		pass(time.Second)
		first := f.conn(0)
		_ = first.conn.CloseNow()
		pass(10 * time.Minute)
		seen := map[string]bool{}
		for _, m := range append(first.commands("publish"), f.conn(1).commands("publish")...) {
			if seen[string(m.Data)] {
				t.Errorf("%s was sent twice", m.Data)
			}
			seen[string(m.Data)] = true
		}
		if len(seen) != n {
			t.Errorf("%d of %d were sent", len(seen), n)
		}
		for range n {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		f.end(r)
	})
}

func TestSubscribe_RefusalsAreToldAndTriedAgainWhereThatHelps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(c *fakeConn, m command) bool {
			if m.Type != wire.TypeSubscribe {
				return false
			}
			switch n := len(c.commands("subscribe")); {
			case m.Channel == "never":
				c.say(string(wire.Refused(m.Command, wire.Errorf(wire.CodeTopicForbidden, "no")).Encode()))
			case n < 4:
				c.say(string(wire.Refused(m.Command, &wire.Error{Code: wire.CodeGuardFailed, Message: "down", Retry: time.Second}).Encode()))
			default:
				return false
			}
			return true
		}
		r := f.run(f.options())
		var told []wire.Code
		live := 0
		opts := client.SubscribeOptions{OnSubscribed: func(client.Subscribed) { live++ }, OnRefused: func(e *wire.Error) { told = append(told, e.Code) }}
		if _, err := r.Subscribe("never", opts); err != nil {
			t.Fatal(err)
		}
		sub, err := r.Subscribe("later", opts)
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if d := cmp.Diff([]wire.Code{wire.CodeTopicForbidden, wire.CodeGuardFailed, wire.CodeGuardFailed}, told); d != "" {
			t.Error(d)
		}
		if live != 1 || !sub.Live() {
			t.Errorf("live %d times", live)
		}
		f.conn(0).say(`{"type":"unsubscribed","sid":"` + f.conn(0).commands("subscribe")[1].SID + `","channel":"later","code":"TOPIC_FORBIDDEN","cause":"withdrawn"}`)
		synctest.Wait()
		if sub.Live() || told[len(told)-1] != wire.CodeTopicForbidden {
			t.Errorf("after the server ended it: live %v, told %v", sub.Live(), told)
		}
		f.end(r)
	})
}

func TestSubscribe_OnlyItsOwnMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(c *fakeConn, m command) bool {
			return m.Type == wire.TypeUnsubscribe || m.Type == wire.TypeSubscribe && m.SID != "1"
		}
		r := f.run(f.options())
		var got []string
		on := func(name string) client.SubscribeOptions {
			return client.SubscribeOptions{OnMessage: func(m client.Message) { got = append(got, name+" "+m.ID) }}
		}
		first, err := r.Subscribe("a", on("first"))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		first.Close()
		if _, err := r.Subscribe("a", on("second")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c := f.conn(0)
		c.say(`{"type":"message","channel":"a","id":"of the first","data":1}`)
		c.say(`{"type":"subscribed","sid":"2","channel":"a"}`)
		c.say(`{"type":"future","channel":"a"}`)
		c.say(`{"type":"message","channel":"a","id":"of the second","data":1}`)
		synctest.Wait()
		f.end(r)
		if d := cmp.Diff([]string{"second of the second"}, got); d != "" {
			t.Error(d)
		}
	})
}

func TestFrameRate_ARefusedFrameIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		f.answer = func(c *fakeConn, m command) bool {
			if m.Type == wire.TypeHello || len(c.commands(m.Type)) > 1 {
				return false
			}
			c.say(string(wire.Refused(m.Command, &wire.Error{Code: wire.CodeFrameRateLimit, Message: "slow down", Retry: 3 * time.Second}).Encode()))
			return true
		}
		r := f.run(f.options())
		sub, err := r.Subscribe("a", client.SubscribeOptions{Presence: &client.Presence{}, OnRefused: func(e *wire.Error) { t.Error(e) }})
		if err != nil {
			t.Fatal(err)
		}
		pass(4 * time.Second)
		if err := sub.UpdatePresence(1); err != nil {
			t.Fatal(err)
		}
		pass(4 * time.Second)
		if err := sub.SetState(2); err != nil {
			t.Fatal(err)
		}
		pass(4 * time.Second)
		if !sub.Live() {
			t.Error("not live")
		}
		if _, err := r.Publish(t.Context(), "a", 3, client.PublishOptions{}); !errors.Is(err, &wire.Error{Code: wire.CodeFrameRateLimit}) {
			t.Errorf("Publish = %v", err)
		}
		sub.Close()
		pass(8 * time.Second)
		for kind, want := range map[string]int{"subscribe": 2, "presence": 2, "state": 2, "publish": 1, "unsubscribe": 2} {
			got := f.conn(0).commands(kind)
			if len(got) != want {
				t.Errorf("%s was sent %d times, want %d", kind, len(got), want)
			}
			if want == 2 && got[1].At.Sub(got[0].At) < 3*time.Second {
				t.Errorf("%s was repeated after %v", kind, got[1].At.Sub(got[0].At))
			}
		}
		f.end(r)
	})
}

func TestS11_GapAsksForASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		r := f.run(f.options())
		var versions []uint64
		sub, err := r.Subscribe("a", client.SubscribeOptions{Presence: &client.Presence{Observe: true}, OnPresence: func(r client.Roster) { versions = append(versions, r.Version) }})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		c := f.conn(0)
		c.say(`{"type":"presence","channel":"a","version":7,"total":1,"snapshot":[{"id":"x","sessions":["s"]}]}`)
		c.say(`{"type":"presence","channel":"a","version":7,"total":9,"leaves":["x"]}`)                          // old
		c.say(`{"type":"presence","channel":"a","version":9,"total":2,"joins":[{"id":"z","sessions":["s3"]}]}`)  // 8 is missing
		c.say(`{"type":"presence","channel":"a","version":10,"total":2,"joins":[{"id":"q","sessions":["s4"]}]}`) // must not ask twice
		synctest.Wait()
		got := c.commands("subscribe")
		if len(got) != 2 || !got[1].Presence.Resync || got[1].SID != got[0].SID {
			t.Fatalf("subscribes %+v", got)
		}
		if roster := sub.Roster(); roster.Version != 7 || len(roster.Members) != 1 {
			t.Errorf("roster %+v", roster)
		}
		// The snapshot gets lost, so the next beat asks again.
		pass(16 * time.Second)
		if got := c.commands("subscribe"); len(got) != 3 || !got[2].Presence.Resync {
			t.Fatalf("subscribes %+v", got)
		}
		c.say(`{"type":"presence","channel":"a","version":10,"total":2,"snapshot":[{"id":"y","sessions":["s2"]},{"id":"z","sessions":["s3"]}]}`)
		c.say(`{"type":"presence","channel":"a","version":11,"total":1,"leaves":["y"]}`)
		synctest.Wait()
		if roster := sub.Roster(); roster.Version != 11 || len(roster.Members) != 1 || roster.Members[0].ID != "z" {
			t.Errorf("roster %+v", roster)
		}
		f.end(r)
		if d := cmp.Diff([]uint64{7, 10, 11}, versions); d != "" {
			t.Error(d)
		}
	})
}
