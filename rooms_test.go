package tidewire_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire"
)

// observer follows a roster as the protocol says.
type observer struct {
	t       *testing.T
	version uint64
	total   int
	members []member
	frames  int
}

func (o *observer) take(m message) {
	o.t.Helper()
	if m.Type != "presence" {
		return
	}
	o.frames++
	switch {
	case m.Snapshot != nil:
		o.members = append([]member(nil), *m.Snapshot...)
	case m.Version <= o.version:
		return
	case m.Version != o.version+1:
		o.t.Fatalf("version %d after %d", m.Version, o.version)
	default:
		for _, id := range m.Leaves {
			for i := range o.members {
				if o.members[i].ID == id {
					o.members = append(o.members[:i:i], o.members[i+1:]...)
					break
				}
			}
		}
		o.members = append(o.members, m.Joins...)
		for _, u := range m.Updates {
			for i := range o.members {
				if o.members[i].ID == u.ID {
					u.State = o.members[i].State
					o.members[i] = u
				}
			}
		}
	}
	o.version, o.total = m.Version, m.Total
}

func (o *observer) has(id string) bool {
	for _, m := range o.members {
		if m.ID == id {
			return true
		}
	}
	return false
}

// observe subscribes without joining.
func (s *server) observe(channel string) (*client, *observer) {
	s.t.Helper()
	c := s.connect()
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":"o","channel":%q,"presence":{"observe":true}}`, channel))
	c.want("subscribed")
	o := &observer{t: s.t}
	o.take(c.want("presence"))
	return c, o
}

// until follows the roster until f holds.
func (c *client) until(o *observer, what string, f func() bool) {
	c.t.Helper()
	for !f() {
		m, err := c.read()
		if err != nil {
			c.t.Fatalf("waiting until %s: %v", what, err)
		}
		o.take(m)
	}
}

func (c *client) join(sid, channel, data string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":%q,"channel":%q,"presence":{"data":%s}}`, sid, channel, data))
	c.want("subscribed")
	c.want("presence")
}

func TestS11_JoinUpdateStateLeave(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Authenticate: func(r *http.Request) (*tidewire.Grant, error) {
		if r.Header.Get("Authorization") == "" {
			return &tidewire.Grant{}, nil
		}
		return bearer(r)
	}})
	watch, o := s.observe("open.room")
	if o.total != 0 || len(o.members) != 0 {
		t.Fatalf("an observer is in the roster: %+v", o)
	}
	a := s.connectAs("ok-alice")
	a.join("1", "open.room", `{"name":"Alice"}`)
	watch.until(o, "alice is there", func() bool { return o.has("alice") })
	session := o.members[0].Sessions[0]

	a.send(`{"type":"presence","channel":"open.room","data":{"name":"Al"}}`)
	m := watch.await("update", func(m message) bool { return m.Type == "presence" })
	if len(m.Updates) != 1 || len(m.Joins)+len(m.Leaves) != 0 || string(m.Updates[0].Data) != `{"name":"Al"}` {
		t.Fatalf("P22: update shown as %+v", m)
	}
	o.take(m)

	a.send(`{"type":"state","channel":"open.room","data":{"x":1}}`)
	if m := watch.want("state"); m.Member != "alice" || m.Session != session || string(m.Data) != `{"x":1}` {
		t.Fatalf("state %+v", m)
	}
	// A newcomer sees the state that was set before it came.
	_, late := s.observe("open.room")
	if string(late.members[0].State[session]) != `{"x":1}` {
		t.Fatalf("newcomer sees %+v", late.members)
	}
	a.send(`{"type":"state","channel":"open.room","data":null}`)
	if m := watch.want("state"); string(m.Data) != "null" {
		t.Fatalf("state %+v", m)
	}
	// A repeated subscribe leaves the roster and comes back, without a gap in the messages.
	a.send(`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"observe":true}}`)
	watch.until(o, "alice only observes", func() bool { return !o.has("alice") })
	a.send(`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"data":{}}}`)
	watch.until(o, "alice is back", func() bool { return o.has("alice") })
	a.send(`{"type":"unsubscribe","sid":"1"}`)
	watch.until(o, "alice has left", func() bool { return !o.has("alice") })
	eventually(t, "the close hook finds nobody (P26)", func() bool { return s.Roster("open.room").Total == 0 })
}

func TestS11_SubscribersWithoutPresenceGetNoRoster(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	plain := s.connect()
	plain.subscribe("1", "open.room")
	a := s.connect()
	a.join("1", "open.room", `1`)
	a.send(`{"type":"state","channel":"open.room","data":1}`)
	a.send(`{"type":"publish","channel":"open.room","data":"hi"}`)
	plain.want("message")
}

// P23: a lost connection is not seen within the grace; a clean close is at once.
func TestS11_GraceOnAbruptLoss(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{PresenceGrace: 700 * time.Millisecond})
	watch, o := s.observe("open.room")
	secret := `"client":"0123456789abcdef-alice"`
	come := func() *client {
		c := s.dial(dialOptions{})
		c.send(`{"type":"hello","protocol":1,` + secret + `}`)
		c.want("welcome")
		c.join("1", "open.room", `{"n":1}`)
		return c
	}
	a := come()
	watch.until(o, "she is there", func() bool { return o.total == 1 })
	frames, id := o.frames, o.members[0].ID
	_ = a.conn.CloseNow() // no close frame
	eventually(t, "the connection is gone", func() bool { return s.Stats().Connections == 1 })
	b := come()
	watch.send(`{"type":"subscribe","sid":"o","channel":"open.room","presence":{"observe":true,"resync":true}}`)
	watch.until(o, "resynced", func() bool { return o.frames > frames })
	if len(o.members) != 1 || o.members[0].ID != id || o.frames != frames+1 {
		t.Fatalf("others saw her go: %+v after %d frames", o.members, o.frames-frames)
	}
	// Nobody comes back: the grace ends.
	_ = b.conn.CloseNow()
	began := time.Now()
	watch.until(o, "grace ends", func() bool { return o.total == 0 })
	if took := time.Since(began); took < 500*time.Millisecond || took > 3*time.Second {
		t.Fatalf("left after %s with a grace of 700 ms", took)
	}
	// A clean close is seen at once.
	c := come()
	watch.until(o, "again", func() bool { return o.total == 1 })
	began = time.Now()
	_ = c.conn.Close(websocket.StatusNormalClosure, "")
	watch.until(o, "clean leave", func() bool { return o.total == 0 })
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Fatalf("a clean leave took %s", took)
	}
}

// P24: several sessions of one member.
func TestS11_OneMemberSeveralSessions(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Authenticate: bearer})
	w := s.connectAs("ok-watch")
	w.send(`{"type":"subscribe","sid":"o","channel":"open.room","presence":{"observe":true}}`)
	w.want("subscribed")
	o := &observer{t: t}
	o.take(w.want("presence"))
	tabs := make([]*client, 3)
	for i := range tabs {
		tabs[i] = s.connectAs("ok-alice")
		tabs[i].join("1", "open.room", `{}`)
		w.until(o, "a tab more", func() bool { return len(o.members) == 1 && len(o.members[0].Sessions) == i+1 })
	}
	if o.total != 1 {
		t.Fatalf("total %d", o.total)
	}
	for i, tab := range tabs {
		_ = tab.conn.Close(websocket.StatusNormalClosure, "")
		w.until(o, "a tab less", func() bool {
			return i == 2 && o.total == 0 || i < 2 && len(o.members) == 1 && len(o.members[0].Sessions) == 2-i
		})
	}
}

func TestS11_SilentMemberIsSweptAndComesBackByItsBeat(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{PresenceTTL: 300 * time.Millisecond})
	watch, o := s.observe("open.room")
	a := s.connect()
	a.join("1", "open.room", `{}`)
	watch.until(o, "there", func() bool { return o.total == 1 })
	watch.until(o, "swept", func() bool { return o.total == 0 })
	a.send(`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"data":{}}}`)
	watch.until(o, "back", func() bool { return o.total == 1 })
}

// P25: joins of many are merged into at most ten frames a second for each observer.
func TestS11_JoinStormIsCoalesced(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{AcceptsPerSecond: 100_000}})
	watch, o := s.observe("open.room")
	const people = 400
	began := time.Now()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i := range people {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			c := s.connect()
			c.join("1", "open.room", fmt.Sprintf(`{"n":%d}`, i))
		})
	}
	watch.until(o, "all are there", func() bool { return o.total == people })
	wg.Wait()
	if most := 3 + int(time.Since(began)/(100*time.Millisecond)); o.frames > most {
		t.Fatalf("%d frames in %s, want at most %d", o.frames, time.Since(began), most)
	}
	if len(o.members) != 256 {
		t.Fatalf("%d members are listed, want 256 of %d", len(o.members), people)
	}
	roster := s.Roster("open.room")
	if len(*roster.Snapshot) != 256 || roster.Total != people {
		t.Fatalf("Roster lists %d of %d", len(*roster.Snapshot), roster.Total)
	}
	for i, m := range *roster.Snapshot {
		if o.members[i].ID != m.ID {
			t.Fatalf("the observer's list differs at %d", i)
		}
	}
}

// Random members come, change, vanish and come back; each observer, whenever it came, holds the server's roster.
func TestS11_ObserversConverge(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{PresenceGrace: 30 * time.Millisecond, Limits: tidewire.Limits{AcceptsPerSecond: 100_000}})
	seed := uint64(time.Now().UnixNano())
	rnd := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	type watcher struct {
		c *client
		o *observer
	}
	var watchers []watcher
	people := map[int]*client{}
	for step := range 250 {
		i := rnd.IntN(20)
		c := people[i]
		switch {
		case step%60 == 10:
			w, o := s.observe("open.room")
			watchers = append(watchers, watcher{w, o})
		case c == nil:
			c = s.dial(dialOptions{})
			c.send(fmt.Sprintf(`{"type":"hello","protocol":1,"client":"0123456789abcdef-%d"}`, i))
			c.want("welcome")
			c.send(fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"data":%d}}`, step))
			c.want("subscribed")
			people[i] = c
		case rnd.IntN(3) == 0:
			_ = c.conn.CloseNow()
			delete(people, i)
		case rnd.IntN(3) == 0:
			_ = c.conn.Close(websocket.StatusNormalClosure, "")
			delete(people, i)
		default:
			c.send(fmt.Sprintf(`{"type":"presence","channel":"open.room","data":%d}`, step))
		}
	}
	eventually(t, "the roster settles", func() bool { return s.Roster("open.room").Total == len(people) })
	// One more change that everybody sees marks the end.
	last := s.connect()
	last.join("1", "open.room", `"last"`)
	for n, w := range watchers {
		w.c.until(w.o, "the last one is seen", func() bool {
			for _, m := range w.o.members {
				if string(m.Data) == `"last"` {
					return true
				}
			}
			return false
		})
		want := s.Roster("open.room")
		raw, _ := json.Marshal(want.Snapshot)
		var members []member
		_ = json.Unmarshal(raw, &members)
		if w.o.version != want.Version {
			w.c.until(w.o, "the present version", func() bool { return w.o.version == want.Version })
		}
		if d := cmp.Diff(members, w.o.members); d != "" {
			t.Fatalf("seed %d: observer %d (-server +observer):\n%s", seed, n, d)
		}
	}
}

// A state set right after joining reaches those who learn of the session a moment later.
func TestS11_StateRightAfterJoining(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	watch, o := s.observe("open.room")
	const people = 5
	for i := range people {
		c := s.connect()
		c.send(fmt.Sprintf(`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"data":%d}}`, i),
			fmt.Sprintf(`{"type":"state","channel":"open.room","data":%d}`, i))
	}
	states := map[string]string{}
	for len(states) < people {
		m, err := watch.read()
		if err != nil {
			t.Fatal(err)
		}
		o.take(m)
		if m.Type == "state" {
			if !o.has(m.Member) {
				t.Fatalf("the state of %s came before its join", m.Member)
			}
			states[m.Session] = string(m.Data)
		}
	}
}

// S06, S07: a roster in grace counts against the limits of channels and of the tenant, so that clients which come, join and vanish cannot pass them.
func TestS06_GraceKeepsItsPlaces(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{
		PresenceGrace: time.Second,
		Tenant:        func(tidewire.Actor) string { return "all" },
		Limits:        tidewire.Limits{Channels: 10, SubscriptionsPerTenant: 12},
	})
	vanish := func(prefix string) (joined int) {
		c := s.connect()
		for i := range 8 {
			c.send(fmt.Sprintf(`{"type":"subscribe","sid":"%d","channel":"open.%s%d","presence":{"data":1}}`, i, prefix, i))
			m := c.await("an answer", func(m message) bool { return m.Type == "subscribed" || m.Type == "refused" })
			if m.Type == "subscribed" {
				joined++
			}
		}
		_ = c.conn.CloseNow()
		eventually(t, "it is gone", func() bool { return s.Stats().Connections == 0 })
		return joined
	}
	if a, b := vanish("a"), vanish("b"); a != 8 || b != 2 {
		t.Fatalf("joined %d, then %d of a limit of 10 channels", a, b)
	}
	if rooms := s.Stats().Rooms; rooms != 10 {
		t.Fatalf("%d rooms", rooms)
	}
	eventually(t, "the graces end", func() bool { return s.Stats().Rooms == 0 && s.Stats().Channels == 0 })
	if n := vanish("c"); n != 8 {
		t.Fatalf("%d places were given back", n)
	}
}

// A client that asks for snapshots again and again gets one a second.
func TestS11_ResyncIsBounded(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{})
	c := s.connect()
	c.join("1", "open.room", `1`)
	began := time.Now()
	for range 40 {
		c.send(`{"type":"state","channel":"open.room","data":1}`,
			`{"type":"subscribe","sid":"1","channel":"open.room","presence":{"resync":true}}`)
	}
	snapshots, replies := 0, 0
	for snapshots == 0 || replies < 40 {
		m, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if m.Type == "subscribed" {
			replies++
		}
		if m.Type == "presence" && m.Snapshot != nil {
			snapshots++
		}
	}
	if most := 1 + int(time.Since(began)/time.Second); snapshots > most {
		t.Fatalf("%d snapshots in %s", snapshots, time.Since(began))
	}
}

// A publication with the key of a state does not touch the state.
func TestS10_KeysOfMessagesAndStatesAreApart(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Limits: tidewire.Limits{FrameBytes: 128 << 10}}, func(n *tidewire.Node) error {
		return n.Channel("late", tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true, Policy: tidewire.PolicyLatest})
	})
	watch, o := s.observe("late")
	victim := s.connect()
	victim.join("1", "late", `1`)
	watch.until(o, "she is there", func() bool { return o.total == 1 })
	session := o.members[0].Sessions[0]
	// The watcher's socket is full when her state and then the attack come.
	pad := `"` + strings.Repeat("x", 100<<10) + `"`
	for i := range 150 {
		if _, err := s.Publish(t.Context(), "late", json.RawMessage(pad), tidewire.PublishOptions{Key: fmt.Sprint(i % 5)}); err != nil {
			t.Fatal(err)
		}
	}
	victim.send(`{"type":"state","channel":"late","data":"hers"}`, `{"type":"publish","channel":"late","id":"p","data":1}`)
	victim.await("her state is set", func(m message) bool { return m.Type == "published" })
	if _, err := s.Publish(t.Context(), "late", "attack", tidewire.PublishOptions{Key: "state " + session}); err != nil {
		t.Fatal(err)
	}
	watch.await("her state", func(m message) bool { return m.Type == "state" && string(m.Data) == `"hers"` })
}
