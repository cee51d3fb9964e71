package wire_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

var update = flag.Bool("update", false, "write spec/vectors and docs/errors.md from the code")

var limits = wire.Limits{PresenceBytes: 1024, StateBytes: 1024}

func TestValidChannel(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"a": true, "room.1": true, "process:proc-1": true, "A_b.c-d.e@f~g=h": true, strings.Repeat("x", 255): true,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, "a b": false, "ä": false, "a/b": false, "*": false,
		"a\x00": false, strings.Repeat("x", 256): false,
	} {
		if got := wire.ValidChannel(name); got != want {
			t.Errorf("ValidChannel(%q) = %v", name, got)
		}
	}
}

func TestCheckShape(t *testing.T) {
	t.Parallel()
	nest := func(n int) string { return strings.Repeat(`{"a":[`, n/2) + strings.Repeat(`]}`, n/2) }
	for _, tc := range []struct {
		json string
		ok   bool
	}{
		{"\"a\xffb\"", false},
		{`1`, true},
		{`"]]]{{{\"[["`, true},
		{nest(32), true},
		{nest(34), false},
		{`[` + strings.Repeat(`1,`, 9_998) + `1]`, true},
		{`[` + strings.Repeat(`1,`, 9_999) + `1]`, false},
	} {
		if err := wire.CheckShape([]byte(tc.json)); (err == nil) != tc.ok {
			t.Errorf("CheckShape(%.30s…) = %v", tc.json, err)
		}
	}
}

// vector is one message of the protocol that every implementation must read or write.
type vector struct {
	Name      string          `json:"name"`
	Direction string          `json:"direction"` // client or server
	Message   json.RawMessage `json:"message"`
	Refused   wire.Code       `json:"refused,omitempty"` // the code with which a server refuses it
}

// S43: the vectors are what Go writes, and what it refuses.
func TestVectors(t *testing.T) {
	t.Parallel()
	vectors := append(clientVectors(), serverVectors()...)
	testenv.Written(t, "../spec/vectors/messages.json", vectors, *update)
	for _, v := range vectors {
		if v.Direction != "client" {
			continue
		}
		c, err := wire.Decode(v.Message, limits)
		if v.Refused == "" {
			if err != nil {
				t.Errorf("%s: %v", v.Name, err)
			}
			if c.Type == "" {
				t.Errorf("%s: no type", v.Name)
			}
			continue
		}
		if !errors.Is(err, &wire.Error{Code: v.Refused}) {
			t.Errorf("%s: %v, want %s", v.Name, err, v.Refused)
		}
	}
}

func clientVectors() []vector {
	ok := func(name, msg string) vector {
		return vector{Name: name, Direction: "client", Message: json.RawMessage(msg)}
	}
	bad := func(name, msg string, code wire.Code) vector {
		return vector{name, "client", json.RawMessage(msg), code}
	}
	return []vector{
		ok("hello", `{"type":"hello","protocol":1,"client":"b1c2d3e4f5a6978800112233","build":"a1"}`),
		ok("hello without a secret", `{"type":"hello","protocol":1}`),
		ok("unknown members are ignored", `{"type":"hello","protocol":1,"later":{"x":[1]}}`),
		ok("subscribe", `{"type":"subscribe","sid":"1","channel":"room.1"}`),
		ok("subscribe and join", `{"type":"subscribe","sid":"1","channel":"room.1","presence":{"data":{"name":"Ann"}}}`),
		ok("subscribe and observe", `{"type":"subscribe","sid":"1","channel":"room.1","presence":{"observe":true}}`),
		ok("resync", `{"type":"subscribe","sid":"1","channel":"room.1","presence":{"resync":true}}`),
		ok("subscribe since a position, acknowledging", `{"type":"subscribe","sid":"1","channel":"room.1","since":{"offset":41,"epoch":"kQ3"},"ack":true}`),
		ok("subscribe with the last messages", `{"type":"subscribe","sid":"1","channel":"room.1","since":{"last":50}}`),
		ok("subscribe to a live query", `{"type":"subscribe","sid":"1","query":"board","input":{"list":"7"},"since":{"offset":12,"epoch":"k2x.1"}}`),
		ok("ack", `{"type":"ack","channel":"room.1","offset":42}`),
		ok("unsubscribe", `{"type":"unsubscribe","sid":"1"}`),
		ok("publish", `{"type":"publish","channel":"room.1","id":"p1","key":"k","echo":false,"data":{"text":"Grüße \u0000"}}`),
		ok("publish null", `{"type":"publish","channel":"room.1","data":null}`),
		ok("presence", `{"type":"presence","channel":"room.1","data":{"name":"Bo"}}`),
		ok("state", `{"type":"state","channel":"room.1","data":{"x":1.5,"y":-2e3}}`),
		ok("clear state", `{"type":"state","channel":"room.1","data":null}`),
		ok("auth", `{"type":"auth","token":"abc"}`),
		bad("protocol 2", `{"type":"hello","protocol":2}`, wire.CodeProtocolVersion),
		bad("no type", `{"protocol":1}`, wire.CodeProtocolVersion),
		bad("unknown type", `{"type":"mutate"}`, wire.CodeProtocolVersion),
		bad("an array", `[1]`, wire.CodeProtocolVersion),
		bad("a wrong type of member", `{"type":"subscribe","sid":1,"channel":"a"}`, wire.CodeDataInvalid),
		bad("no sid", `{"type":"subscribe","channel":"a"}`, wire.CodeDataInvalid),
		bad("bad channel", `{"type":"subscribe","sid":"1","channel":"a..b"}`, wire.CodeChannelInvalid),
		bad("no data", `{"type":"publish","channel":"a"}`, wire.CodeDataInvalid),
		bad("too deep", `{"type":"publish","channel":"a","data":`+strings.Repeat("[", 33)+strings.Repeat("]", 33)+`}`, wire.CodeDataInvalid),
		bad("a live query of a channel", `{"type":"subscribe","sid":"1","query":"board","channel":"a"}`, wire.CodeDataInvalid),
		bad("a live query with a long name", `{"type":"subscribe","sid":"1","query":"`+strings.Repeat("q", 65)+`"}`, wire.CodeDataInvalid),
		bad("ack without a channel", `{"type":"ack","offset":42}`, wire.CodeChannelInvalid),
		bad("since with both", `{"type":"subscribe","sid":"1","channel":"a","since":{"last":1,"offset":2}}`, wire.CodeDataInvalid),
		bad("since with a negative last", `{"type":"subscribe","sid":"1","channel":"a","since":{"last":-1}}`, wire.CodeDataInvalid),
		bad("since with a negative offset", `{"type":"subscribe","sid":"1","channel":"a","since":{"offset":-1}}`, wire.CodeDataInvalid),
		bad("empty token", `{"type":"auth","token":""}`, wire.CodeDataInvalid),
	}
}

func serverVectors() []vector {
	say := func(name string, msg []byte) vector {
		return vector{Name: name, Direction: "server", Message: msg}
	}
	members := []wire.Member{
		{ID: "alice", Data: json.RawMessage(`{"name":"Alice"}`), Sessions: []string{"s-1", "s-2"}},
		{ID: "bob", Sessions: []string{"s-3"}, State: map[string]json.RawMessage{"s-3": json.RawMessage(`{"x":1}`)}},
	}
	return []vector{
		say("welcome", wire.Welcome{
			Connection: "c-n1-1", Session: "s-1", Actor: "alice", Node: "n1", Build: "b", ExpiresInMs: 600000, HeartbeatMs: 15000,
			Limits: wire.Announced{FrameBytes: 262144, FramesPerSecond: 64, FrameBurst: 256, Channels: 64, PresenceBytes: 1024, StateBytes: 1024},
		}.Encode()),
		say("subscribed", wire.Reply{Type: wire.TypeSubscribed, SID: "1", Channel: "room.1"}.Encode()),
		say("subscribed at a position", wire.Reply{Type: wire.TypeSubscribed, SID: "1", Channel: "room.1"}.At(0, "kQ3").Encode()),
		say("subscribed, recovered", wire.Reply{Type: wire.TypeSubscribed, SID: "1", Channel: "room.1", Recovered: new(true)}.At(41, "kQ3").Encode()),
		say("subscribed, not recovered", wire.Reply{Type: wire.TypeSubscribed, SID: "1", Channel: "room.1", Recovered: new(false)}.At(7, "zz9").Encode()),
		say("subscribed to a live query", wire.Reply{Type: wire.TypeSubscribed, SID: "1", QID: "8f3a0c5d11e2b794", Recovered: new(true)}.At(12, "k2x.1").Encode()),
		say("snapshot of a live query", []byte(`{"type":"snapshot","qid":"8f3a0c5d11e2b794","version":12,"epoch":"k2x.1","key":["id"],"rows":[{"id":1,"title":"a"}],"sum":"00c1d2e3f4a5b697"}`)),
		say("patch of a live query", []byte(`{"type":"patch","qid":"8f3a0c5d11e2b794","version":13,"ops":[{"del":1},{"put":{"id":9,"title":"b"},"at":0}],"sum":"5d0e1f2a3b4c5d6e"}`)),
		say("patch of a commit that changed several live queries", []byte(`{"type":"patch","qid":"8f3a0c5d11e2b794","version":14,"ops":[{"del":9}],"sum":"0000000000000000","commit":7}`)),
		say("settled", wire.Settled(7)),
		say("published at a position", wire.Reply{Type: wire.TypePublished, ID: "p1", Channel: "room.1"}.At(42, "kQ3").Encode()),
		say("message at an offset", wire.Publication{ID: "m-4", Data: json.RawMessage(`{"text":"hi"}`), From: &wire.From{Session: "s-9"}}.Record(false).Message("room.1", 42)),
		say("unsubscribed", wire.Reply{Type: wire.TypeUnsubscribed, SID: "1", Channel: "room.1"}.Encode()),
		say("unsubscribed by the server", wire.Reply{Type: wire.TypeUnsubscribed, SID: "1", Channel: "room.1", Code: wire.CodeTopicForbidden, Cause: "no"}.Encode()),
		say("published", wire.Reply{Type: wire.TypePublished, ID: "p1"}.Encode()),
		say("authenticated", wire.Reply{Type: wire.TypeAuthenticated, ExpiresInMs: 1000}.Encode()),
		say("message", wire.Publication{Channel: "room.1", ID: "m-1", Data: json.RawMessage(`{"text":"hi"}`), From: &wire.From{Actor: "alice", Session: "s-1"}}.Encode()),
		say("message of a backend", wire.Publication{Channel: "room.1", ID: "m\"2", Key: "k\u00e9", Data: json.RawMessage(`[1,null]`)}.Encode()),
		say("message of an anonymous client", wire.Publication{Channel: "room.1", ID: "m-3", Data: json.RawMessage(`1`), From: &wire.From{Session: "s-9"}}.Encode()),
		say("skipped", wire.Skipped("room.1", 12)),
		say("refused", wire.Refused(wire.Command{Type: "subscribe", SID: "1", Channel: "room.1"}, &wire.Error{Code: wire.CodeGuardFailed, Message: "no", Retry: time.Second}).Encode()),
		say("refused, unreadable", wire.Refused(wire.Command{}, wire.Errorf(wire.CodeProtocolVersion, "no")).Encode()),
		say("reconnect", wire.Reconnect(1830*time.Millisecond).Encode()),
		say("reconnect now", wire.Reconnect(0).Encode()),
		say("update-available", wire.Reply{Type: wire.TypeUpdateAvailable, Build: "c"}.Encode()),
		say("presence snapshot", wire.Roster{Channel: "room.1", Version: 7, Total: 2, Snapshot: &members}.Encode()),
		say("presence snapshot, empty", wire.Roster{Channel: "room.1", Version: 1, Snapshot: &[]wire.Member{}}.Encode()),
		say("presence joins", wire.Roster{Channel: "room.1", Version: 8, Total: 3, Joins: []wire.Member{{ID: "carol", Sessions: []string{"s-4"}}}}.Encode()),
		say("presence updates", wire.Roster{Channel: "room.1", Version: 9, Total: 3, Updates: []wire.Member{{ID: "bob", Sessions: []string{"s-3"}, SessionCount: 17}}}.Encode()),
		say("presence leaves", wire.Roster{Channel: "room.1", Version: 10, Total: 2, Leaves: []string{"alice"}}.Encode()),
		say("presence total only", wire.Roster{Channel: "room.1", Version: 11, Total: 5000}.Encode()),
		say("state", wire.State{Channel: "room.1", Member: "bob", Session: "s-3", Data: json.RawMessage(`{"x":2}`)}.Encode()),
		say("state cleared", wire.State{Channel: "room.1", Member: "bob", Session: "s-3"}.Encode()),
	}
}

// S43: one table of codes, the same in Go, in docs/errors.md and in TypeScript.
func TestS43_ErrorTable(t *testing.T) {
	t.Parallel()
	seen := map[wire.Code]bool{}
	var b strings.Builder
	b.WriteString("# Error codes\n\nEvery refusal carries one of these codes: in `refused` and `unsubscribed` messages, and in the problem documents (RFC 9457) of HTTP answers. Codes are\nstable; texts are for people and may change. `retry`: the same request may succeed later, after `retryAfterMs`.\n\nThis file is written from `wire/error.go` by `go test ./wire -update`; a test holds it and the TypeScript client against it.\n\n| code | HTTP | retry | cause | fix |\n| --- | --- | --- | --- | --- |\n")
	for _, c := range wire.Codes() {
		if seen[c.Code] || c.Cause == "" || c.Fix == "" {
			t.Errorf("%s is there twice, or has no cause or fix", c.Code)
		}
		seen[c.Code] = true
		if c.Code.Info() != c {
			t.Errorf("Info(%s) = %+v", c.Code, c.Code.Info())
		}
		status, retry := "–", ""
		if c.HTTP != 0 {
			status = fmt.Sprint(c.HTTP)
		}
		if c.Retry {
			retry = "yes"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", c.Code, status, retry, c.Cause, c.Fix)
	}
	b.WriteString("\nThe browser package adds codes for what never reached a server; see [js/README.md](../js/README.md).\n")
	testenv.Written(t, "../docs/errors.md", []byte(b.String()), *update)
	testenv.Written(t, "../spec/vectors/errors.json", wire.Codes(), *update)
}

func TestAsError_HidesWhatLiesBehind(t *testing.T) {
	t.Parallel()
	e := wire.AsError(errors.New("password=x"))
	if got := string(wire.Refused(wire.Command{}, e).Encode()); strings.Contains(got, "password") || e.Code != wire.CodeInternal {
		t.Fatalf("refused: %s", got)
	}
	inner := &wire.Error{Code: wire.CodeTimeout, Message: "late", Err: errors.New("secret")}
	if got := string(wire.Refused(wire.Command{}, wire.AsError(fmt.Errorf("wrapped: %w", inner))).Encode()); strings.Contains(got, "secret") || !strings.Contains(got, "TIMEOUT") {
		t.Fatalf("refused: %s", got)
	}
}

// What a client named is repeated only if it is well formed.
func TestDecode_NamesOnlyWhatIsWellFormed(t *testing.T) {
	t.Parallel()
	c, err := wire.Decode([]byte(`{"type":"publish","channel":"a b","id":"`+strings.Repeat("x", 100)+`","sid":"ok","data":1}`), limits)
	if err == nil || c.Channel != "" || c.ID != "" || c.SID != "ok" || c.Data != nil {
		t.Fatalf("Decode = %+v, %v", c, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, v := range clientVectors() {
		f.Add([]byte(v.Message))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := wire.Decode(data, limits)
		if err != nil {
			e := wire.AsError(err)
			if e.Code == wire.CodeInternal {
				t.Fatalf("%q: %v", data, err)
			}
			if !json.Valid(wire.Refused(c, e).Encode()) {
				t.Fatalf("%q: the refusal is not JSON", data)
			}
			return
		}
		if c.Type == wire.TypePublish {
			p := wire.Publication{Channel: c.Channel, ID: c.ID, Key: c.Key, Data: c.Data, From: &wire.From{Actor: c.Token, Session: "s-1"}}
			if out := p.Encode(); !json.Valid(out) {
				t.Fatalf("%q: published as %q", data, out)
			}
		}
	})
}

func BenchmarkDecodePublish(b *testing.B) {
	frame := []byte(`{"type":"publish","channel":"room.1","id":"p1","data":{"text":"` + strings.Repeat("x", 100) + `"}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := wire.Decode(frame, limits); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodePublication(b *testing.B) {
	p := wire.Publication{Channel: "room.1", ID: "p1", Data: json.RawMessage(`{"text":"` + strings.Repeat("x", 100) + `"}`), From: &wire.From{Actor: "alice", Session: "s-1"}}
	b.ReportAllocs()
	for b.Loop() {
		_ = p.Encode()
	}
}
