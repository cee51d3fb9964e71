package tidewire_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/ws"
)

func (s *server) dialWS(token string) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := &websocket.DialOptions{}
	if token != "" {
		o.HTTPHeader = http.Header{"Authorization": {"Bearer " + token}}
	}
	conn, resp, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(s.http.URL, "http")+"/ws", o)
	if conn != nil {
		s.t.Cleanup(func() { _ = conn.CloseNow() })
	}
	return conn, resp, err
}

func readWS(t *testing.T, conn *websocket.Conn) (ws.Message, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var m ws.Message
	_, b, err := conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m, err
}

// H10, H11: a go-ws client on the node gets what native clients publish, under the node's authenticator and guards.
func TestH10_GoWSFaceOfTheNode(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{Authenticate: bearer}, func(n *tidewire.Node) error {
		return n.Channel("process:{id}", tidewire.ChannelOptions{Guard: func(_ context.Context, a tidewire.Access) error {
			if a.Actor.ID != "alice" {
				return tidewire.ErrDenied
			}
			return nil
		}})
	})
	if _, resp, err := s.dialWS("wrong"); err == nil || resp.StatusCode != 401 {
		t.Fatalf("wrong token: %v", err)
	}
	if _, resp, err := s.dialWS("down"); err == nil || resp.StatusCode != 503 {
		t.Fatalf("no decision: %v", err)
	}
	alice, _, err := s.dialWS("ok-alice")
	if err != nil {
		t.Fatal(err)
	}
	bob, _, err := s.dialWS("ok-bob")
	if err != nil {
		t.Fatal(err)
	}
	say := func(conn *websocket.Conn, text string) {
		t.Helper()
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	say(alice, `{"type":"subscribe","data":"process:1"}`)
	say(bob, `{"type":"subscribe","data":"process:1"}`)
	if m, err := readWS(t, bob); err != nil || m.Type != ws.TypeError {
		t.Fatalf("bob got %+v, %v", m, err)
	}
	eventually(t, "alice is subscribed", func() bool { return s.Subscribers("process:1") == 1 })
	native := s.connectAs("ok-alice")
	native.subscribe("1", "process:1")
	native.send(`{"type":"publish","channel":"process:1","data":{"line":"hi"},"id":"p"}`)
	m, err := readWS(t, alice)
	if err != nil || m.Type != ws.TypeEvent || m.Channel != "process:1" || m.Timestamp.IsZero() || m.Data.(map[string]any)["line"] != "hi" {
		t.Fatalf("alice got %+v, %v", m, err)
	}
	native.want("message")
	say(alice, `{"type":"ping"}`)
	if m, err := readWS(t, alice); err != nil || m.Type != ws.TypePong {
		t.Fatalf("ping got %+v, %v", m, err)
	}
	if n := s.Disconnect("alice"); n != 2 {
		t.Fatalf("Disconnect = %d", n)
	}
	if _, err := readWS(t, alice); websocket.CloseStatus(err) != 1008 {
		t.Fatalf("alice: %v", err)
	}
}

func TestS30_DrainClosesGoWSClientsOverTheWindow(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{DrainWindow: 400 * time.Millisecond})
	conns := make([]*websocket.Conn, 8)
	for i := range conns {
		conn, _, err := s.dialWS("")
		if err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	eventually(t, "all are there", func() bool { return s.Stats().Connections == len(conns) })
	began := time.Now()
	ended := make(chan time.Duration, len(conns))
	for _, conn := range conns {
		go func() {
			_, err := readWS(t, conn)
			if websocket.CloseStatus(err) != 1012 {
				t.Errorf("closed with %v", err)
			}
			ended <- time.Since(began)
		}()
	}
	go s.stop()
	var first, last time.Duration
	for i := range conns {
		d := <-ended
		if i == 0 {
			first = d
		}
		last = d
	}
	if last-first < 200*time.Millisecond {
		t.Fatalf("all were closed between %s and %s", first, last)
	}
	s.stop()
}

// S06, S07: the node's frame budget and the tenant's count hold for go-ws clients too.
func TestS06_LimitsHoldForGoWSClients(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{
		Authenticate: bearer, Tenant: func(a tidewire.Actor) string { return a.ID },
		Limits: tidewire.Limits{FramesPerSecond: 1, FrameBurst: 20, SubscriptionsPerTenant: 3},
	})
	conn, _, err := s.dialWS("ok-alice")
	if err != nil {
		t.Fatal(err)
	}
	say := func(format string, args ...any) {
		t.Helper()
		if err := conn.Write(t.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		say(`{"type":"subscribe","data":"open.c%d"}`, i)
	}
	if m, err := readWS(t, conn); err != nil || m.Type != ws.TypeError || m.Channel != "open.c3" {
		t.Fatalf("the fourth: %+v, %v", m, err)
	}
	say(`{"type":"unsubscribe","data":"open.c0"}`)
	say(`{"type":"subscribe","data":"open.c4"}`)
	eventually(t, "the place was given back", func() bool { return s.Subscribers("open.c4") == 1 })
	native := s.connectAs("ok-alice")
	native.send(`{"type":"subscribe","sid":"1","channel":"open.n"}`)
	native.wantRefused("SUBSCRIPTION_LIMIT")
	for range 100 {
		if conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"ping"}`)) != nil {
			break
		}
	}
	pongs := 0
	for {
		m, err := readWS(t, conn)
		if err != nil {
			if websocket.CloseStatus(err) != 1008 {
				t.Fatalf("closed with %v", err)
			}
			break
		}
		if m.Type == ws.TypePong {
			pongs++
		}
	}
	if pongs > 16 {
		t.Fatalf("%d pings were answered with a burst of 20", pongs)
	}
	eventually(t, "the places are given back", func() bool { return s.Stats().Connections == 1 })
	eventually(t, "a native client has room", func() bool {
		native.send(`{"type":"subscribe","sid":"1","channel":"open.n"}`)
		m, err := native.read()
		return err == nil && m.Type == "subscribed"
	})
}
