package client_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/presence"
	"github.com/tidewire/tidewire/wire"
)

// TestS11_RosterFollowsTheServers holds the client's roster against the server's over random changes, with more members than are listed, and with messages that get lost.
func TestS11_RosterFollowsTheServers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 11))
		server := presence.New("room")
		var observer client.Follower
		snapshot := func() {
			if observer.Apply(server.View(1 << 20).Encode()) {
				t.Fatalf("seed %d: a snapshot leaves a gap", seed)
			}
		}
		snapshot()
		most := []int{4, 40, 320}[seed%3]
		for step := range 800 {
			id := fmt.Sprintf("m%d", rng.IntN(most))
			session := fmt.Sprintf("%s-s%d", id, rng.IntN(3))
			switch rng.IntN(10) {
			case 0, 1, 2, 3, 4:
				server.Join(id, session, id, json.RawMessage(fmt.Sprint(rng.IntN(3))))
			case 5:
				server.Leave(id, session, id)
			case 6, 7:
				server.Update(id, session, id, json.RawMessage(fmt.Sprintf("%d", step)))
			default:
				data := json.RawMessage(fmt.Sprint(step))
				if rng.IntN(4) == 0 {
					data = nil
				}
				if _, known := server.SetState(id, session, id, data); known {
					observer.SetState(wire.State{Member: id, Session: session, Data: data})
				}
			}
			if rng.IntN(4) != 0 {
				continue
			}
			if diff, states, ok := server.Publish(); ok {
				if rng.IntN(10) == 0 {
					snapshot() // the difference was lost, and asked for
				} else if observer.Apply(diff.Encode()) {
					t.Fatalf("seed %d, step %d: a gap", seed, step)
				}
				for _, state := range states {
					observer.SetState(state)
				}
			}
			want, got := server.View(1<<20), observer.View()
			if got.Version != want.Version || got.Total != want.Total {
				t.Fatalf("seed %d, step %d: version %d, total %d; the server has %d, %d", seed, step, got.Version, got.Total, want.Version, want.Total)
			}
			if a, b := normal(*want.Snapshot), normal(got.Members); !reflect.DeepEqual(a, b) {
				t.Fatalf("seed %d, step %d: %s", seed, step, cmp.Diff(a, b))
			}
		}
	}
}

// normal makes rosters comparable: an empty roster is an empty list.
func normal(members []wire.Member) []wire.Member {
	if len(members) == 0 {
		return []wire.Member{}
	}
	return members
}

func TestS11_StatesStayWithTheirSessions(t *testing.T) {
	t.Parallel()
	var f client.Follower
	f.Apply([]byte(`{"version":1,"total":1,"snapshot":[{"id":"a","sessions":["a1","a2"],"state":{"a1":0}}]}`))
	before := f.View()
	f.SetState(wire.State{Member: "a", Session: "a2", Data: json.RawMessage("1")})
	f.SetState(wire.State{Member: "a", Session: "a9", Data: json.RawMessage("2")}) // nobody
	f.SetState(wire.State{Member: "b", Session: "b1", Data: json.RawMessage("3")})
	f.Apply([]byte(`{"version":2,"total":2,"joins":[{"id":"b","sessions":["b1"]}],"updates":[{"id":"a","data":1,"sessions":["a1","a2","a9"]}]}`))
	got := f.View()
	want := []wire.Member{
		{ID: "a", Data: json.RawMessage("1"), Sessions: []string{"a1", "a2", "a9"}, State: map[string]json.RawMessage{"a1": json.RawMessage("0"), "a2": json.RawMessage("1")}},
		{ID: "b", Sessions: []string{"b1"}},
	}
	if d := cmp.Diff(want, got.Members); d != "" {
		t.Error(d)
	}
	// What was given out does not change.
	f.SetState(wire.State{Member: "a", Session: "a2", Data: json.RawMessage("9")})
	f.SetState(wire.State{Member: "a", Session: "a1"})
	f.Apply([]byte(`{"version":3,"total":1,"leaves":["b"],"updates":[{"id":"a","sessions":["a1"]}]}`))
	if d := cmp.Diff(want, got.Members); d != "" {
		t.Error(d)
	}
	if m := before.Members; len(m) != 1 || len(m[0].Sessions) != 2 || len(m[0].State) != 1 {
		t.Errorf("an old view changed: %+v", before)
	}
	if d := cmp.Diff([]wire.Member{{ID: "a", Sessions: []string{"a1"}}}, f.View().Members); d != "" {
		t.Error(d)
	}
}

// FuzzHandle shows that nothing a server sends makes a client panic.
func FuzzHandle(f *testing.F) {
	for _, seed := range []string{
		`{"type":"welcome","expiresInMs":-1,"heartbeatMs":-5,"limits":{"frameBurst":-1}}`,
		`{"type":"message","channel":"a","id":"1","data":{"x":[1]},"from":{"actor":"b","session":"s"}}`,
		`{"type":"presence","channel":"a","version":7,"total":-2,"snapshot":[{"id":"x","sessions":["s","s"],"state":{"s":null}},{"id":"x"}]}`,
		`{"type":"presence","channel":"a","version":18446744073709551615,"leaves":["x"],"joins":[{"id":"x"}],"updates":[{"id":"y"}]}`,
		`{"type":"state","channel":"a","member":"x","session":"s","data":1}`,
		`{"type":"refused","re":"subscribe","sid":"1","code":"X","retryAfterMs":9223372036854775807}`,
		`{"type":"refused","re":"","code":"FRAME_RATE_LIMIT","retryAfterMs":-1}`,
		`{"type":"refused","re":"presence","channel":"a","code":"PRESENCE_NOT_JOINED"}`,
		`{"type":"unsubscribed","sid":"1","channel":"a","code":"TOPIC_FORBIDDEN"}`,
		`{"type":"reconnect","afterMs":-9}`,
		`{"type":"skipped","channel":"a","count":3}`,
		`{"type":"message","channel":"a","offset":6,"id":"1","data":1}`, `{"type":"message","channel":"a","offset":18446744073709551615}`,
		`{"type":"message","channel":"a","offset":0}`, `{"type":"published","id":"p","channel":"a","offset":6}`,
		`{"type":"subscribed","sid":"1","channel":"a","offset":0,"epoch":"e","recovered":true}`, `{"type":"subscribed","sid":"1","channel":"a","recovered":false}`,
		`{"type":"refused","re":"ack","channel":"a","code":"FRAME_RATE_LIMIT"}`, `{"type":"refused","re":"subscribe","sid":"1","channel":"a","code":"FRAME_RATE_LIMIT"}`,
		`{"type":"published","id":"p"}`, `{"type":"authenticated","expiresInMs":1}`, `null`, `[]`,
		`{"type":"snapshot","qid":"q","version":9,"epoch":"f","key":["id"],"rows":[{"id":1},{"id":1}],"sum":"x"}`, `{"type":"snapshot","qid":"q","key":[],"rows":[null]}`,
		`{"type":"patch","qid":"q","version":6,"ops":[{"del":1},{"put":{"id":9},"at":1}],"sum":""}`, `{"type":"patch","qid":"q","version":6,"ops":[{"put":[],"at":-1},{"del":null}]}`,
		`{"type":"patch","qid":"q","version":8,"ops":[{}]}`, `{"type":"subscribed","sid":"2","qid":"r","recovered":true}`, `{"type":"unsubscribed","sid":"2","code":"TIMEOUT","retryAfterMs":5}`,
		`{"type":"refused","re":"subscribe","sid":"2","code":"FRAME_RATE_LIMIT"}`, `{"type":"message","channel":"a","key":["k"],"offset":6}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(_ *testing.T, frame []byte) {
		for _, p := range []*client.Presence{nil, {Data: 1}} {
			var got []client.Roster
			client.Handle(frame, client.SubscribeOptions{
				Presence: p, Ack: p != nil, OnLost: func(client.Lost) {}, OnMessage: func(client.Message) {}, OnRefused: func(*wire.Error) {}, OnSkipped: func(uint64) {},
				OnPresence: func(r client.Roster) { got = append(got, r) }, OnState: func(client.MemberState) {},
			})
			_ = slices.Clone(got)
		}
	})
}
