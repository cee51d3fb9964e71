package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// What cannot work is refused at start, by the name of its key.
func TestConfig_LimitsOfValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bad := filepath.Join(dir, "keys.json")
	if err := os.WriteFile(bad, []byte(`{"keys": 7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, key := range map[string]string{
		"limits: {queue_messages: 15}":               "limits.queue_messages",
		"limits: {queue_bytes: 1073741825}":          "limits.queue_bytes",
		"limits: {frame_burst: 65537}":               "limits.frame_burst",
		"addr: 'localhost:65536'":                    "addr",
		"addr: nowhere":                              "addr",
		"auth: {jwt: {jwks_file: " + dir + "/none}}": "auth.jwt.jwks_file",
		"auth: {jwt: {jwks_file: " + bad + "}}":      "auth.jwt.jwks_file",
	} {
		file := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := tw(t, nil, "serve", "-c", file, "--print-config")
		if err == nil || !strings.Contains(err.Error(), key) || exitCode(err) != 2 {
			t.Errorf("%s: %v, want an error that names %s", text, err, key)
		}
	}
}

func TestUnknownEnv(t *testing.T) {
	t.Parallel()
	got := unknownEnv([]string{
		"TIDEWIRE_LIMITS_CONECTIONS=3", "TIDEWIRE_LIMITS_CONNECTIONS=3", "TIDEWIRE_TEST_LONG=1", "TIDEWIRE_MY_SECRET=x", "TIDEWIRE_ELSEWHERE_ENTIRELY=1",
		"TIDEWIRE_CONFIG=c", "PATH=/bin",
	}, []string{"TIDEWIRE_MY_SECRET"})
	if len(got) != 2 || got["TIDEWIRE_LIMITS_CONECTIONS"] != "TIDEWIRE_LIMITS_CONNECTIONS" || got["TIDEWIRE_ELSEWHERE_ENTIRELY"] != "" {
		t.Errorf("unknownEnv = %v", got)
	}
	s := serve(t, "auth: {anonymous: true}", env{"TIDEWIRE_LIMITS_CONECTIONS": "3"})
	if log := s.stderr.String(); !strings.Contains(log, "TIDEWIRE_LIMITS_CONECTIONS") {
		t.Errorf("not named in the log:\n%s", log)
	}
}

// A load test of channels that the server does not allow ends at once, and says why.
func TestBench_RefusedChannels(t *testing.T) {
	t.Parallel()
	s := serve(t, "auth: {anonymous: true}\nchannels: [{pattern: a, guard: public}]", nil)
	began := time.Now()
	_, _, err := tw(t, nil, "bench", "--url", s.url, "--conns", "20", "--duration", "1s")
	if err == nil || !strings.Contains(err.Error(), "TOPIC_FORBIDDEN") || !strings.Contains(err.Error(), "bench.0") {
		t.Errorf("bench = %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// S02: a fresh token without the claim that a guard reads ends what the claim had allowed.
func TestS02_LosingAClaimEndsTheSubscription(t *testing.T) {
	t.Parallel()
	s := serve(t, "auth: {jwt: {secret: "+jwtSecret+"}}\nchannels: [{pattern: 'org.{org}', guard: 'actor.claims.org == params.org'}]", nil)
	messages := rawClient(t, s.url, token(t, "alice", map[string]any{"org": "7"}))
	messages.say(`{"type":"hello","protocol":1}`, `{"type":"subscribe","sid":"1","channel":"org.7"}`)
	messages.await("subscribed")
	messages.say(`{"type":"auth","token":"` + token(t, "alice", nil) + `"}`)
	if m := messages.await("unsubscribed"); m["code"] != "TOPIC_FORBIDDEN" {
		t.Errorf("told %v", m)
	}
}

// raw is a client that says exactly what it is told to.
type raw struct {
	t    *testing.T
	conn *websocket.Conn
}

func rawClient(t *testing.T, url, token string) raw {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), strings.Replace(url, "http", "ws", 1)+"/v1/socket", &websocket.DialOptions{
		Subprotocols: []string{"tidewire.1"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return raw{t, conn}
}

func (r raw) say(frames ...string) {
	r.t.Helper()
	for _, f := range frames {
		if err := r.conn.Write(r.t.Context(), websocket.MessageText, []byte(f)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// await returns the next message of a type.
func (r raw) await(typ string) map[string]any {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	for {
		_, b, err := r.conn.Read(ctx)
		if err != nil {
			r.t.Fatalf("waiting for %s: %v", typ, err)
		}
		var m map[string]any
		if err := json.Unmarshal(b, &m); err != nil {
			r.t.Fatal(err)
		}
		if m["type"] == typ {
			return m
		}
	}
}
