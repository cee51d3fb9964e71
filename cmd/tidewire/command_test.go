package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/wire"
)

const openConfig = `
auth: {anonymous: true, jwt: {secret: ` + jwtSecret + `}}
backend_keys: [{name: b, key: backend-key-0123456789}]
channels:
  - {pattern: 'open.**', guard: public, presence: true}
  - {pattern: 'closed', guard: 'false'}
`

func TestSubAndPub(t *testing.T) {
	t.Parallel()
	s := serve(t, openConfig, nil)
	sub := start(t, env{"TIDEWIRE_URL": s.url, "TIDEWIRE_TOKEN": token(t, "alice", nil)}, "sub", "open.a", "--presence", "--join", `{"name":"Alice"}`)
	roster := sub.wait(`"members":[{"id":"alice"`)
	if !strings.Contains(roster, `"type":"presence"`) || !strings.Contains(roster, `{"name":"Alice"}`) {
		t.Errorf("printed %s", roster)
	}
	for _, c := range []struct {
		args  []string
		env   env
		stdin string
		lines int
		want  string // a part of what sub prints
	}{
		{args: []string{"pub", "open.a", `{"over":"HTTP"}`, "--key", "backend-key-0123456789", "--id", "m1"}, lines: 1, want: `"id":"m1","data":{"over":"HTTP"}`},
		{args: []string{"pub", "open.a", `{"over":"a key of the environment"}`}, env: env{"TIDEWIRE_KEY": "backend-key-0123456789"}, lines: 1, want: "environment"},
		{args: []string{"pub", "open.a", `"<&> over the socket"`, "--token", token(t, "bob", nil)}, lines: 1, want: `"from":{"actor":"bob"`},
		{args: []string{"pub", "open.a", "-", "--key", "backend-key-0123456789"}, stdin: "1\n\n {\"line\": 2} \n\"last\"", lines: 3, want: `"data":"last"`},
		{args: []string{"pub", "open.a", "-"}, stdin: "[4]\n[5]\n", lines: 2, want: `"data":[5]`},
	} {
		out, stderr, err := twStdin(t, c.env, c.stdin, append(c.args, "--url", s.url)...)
		if err != nil {
			t.Fatal(c.args, err, stderr)
		}
		if n := strings.Count(out, `{"id":"`); n != c.lines {
			t.Errorf("%v printed %s", c.args, out)
		}
		if line := sub.wait(c.want); !strings.Contains(line, `"type":"message"`) {
			t.Errorf("%v: printed %s", c.args, line)
		}
	}
	for line := range strings.Lines(sub.stdout.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
	if err := sub.stop(); err != nil {
		t.Error(err)
	}
}

func TestSubAndPub_History(t *testing.T) {
	t.Parallel()
	s := serve(t, strings.Replace(openConfig, "channels:", "channels:\n  - {pattern: 'log.**', guard: public, history: {size: 3}}", 1), nil)
	out, _, err := twStdin(t, nil, "1\n2\n3\n4\n", "pub", "log.a", "-", "--url", s.url)
	if err != nil {
		t.Fatal(err)
	}
	overHTTP, _, err := tw(t, nil, "pub", "log.a", "5", "--url", s.url, "--key", "backend-key-0123456789")
	if err != nil {
		t.Fatal(err)
	}
	var at []pubLine
	for line := range strings.Lines(out + overHTTP) {
		var p pubLine
		if err := json.Unmarshal([]byte(line), &p); err != nil || p.ID == "" || p.Offset != uint64(len(at)+1) || p.Epoch == "" {
			t.Errorf("printed %s", line)
		}
		at = append(at, p)
	}
	epoch := at[0].Epoch
	for _, c := range []struct {
		args []string
		want []string // lines, in order
	}{
		{[]string{"--last", "2", "-n", "2"}, []string{`"offset":4,"epoch":"` + epoch + `","data":4}`, `"offset":5,"epoch":"` + epoch + `","data":5}`}},
		{[]string{"--since", "2", "--epoch", epoch, "-n", "3"}, []string{`"data":3}`, `"data":4}`, `"data":5}`}},
		{[]string{"--since", "4", "-n", "1"}, []string{`"data":5}`}},
	} {
		out, stderr, err := tw(t, nil, append([]string{"sub", "log.a", "--url", s.url}, c.args...)...)
		if err != nil {
			t.Fatal(c.args, err, stderr)
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		for i, want := range c.want {
			if i >= len(lines) || !strings.HasSuffix(lines[i], want) {
				t.Errorf("%v printed %s", c.args, out)
				break
			}
		}
	}
	for _, since := range [][]string{{"--since", "0"}, {"--since", "5", "--epoch", "another"}} {
		sub := start(t, nil, append([]string{"sub", "log.a", "--url", s.url}, since...)...)
		line := sub.wait(`"type":"lost"`)
		if known := strings.Contains(line, `"lost":{"count":5,`); known != (since[1] == "0") || !strings.Contains(line, `"to":{"offset":5,"epoch":"`+epoch+`"}`) {
			t.Errorf("%v printed %s", since, line)
		}
		if err := sub.stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestSub_Count(t *testing.T) {
	t.Parallel()
	s := serve(t, openConfig, nil)
	sub := start(t, nil, "sub", "open.a", "--url", s.url, "-n", "2", "--presence", "--quiet")
	sub.wait(`"total":0`)
	if _, _, err := twStdin(t, nil, "1\n2\n3\n", "pub", "open.a", "-", "--url", s.url); err != nil {
		t.Fatal(err)
	}
	if err := sub.end(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(sub.stdout.String(), `"type":"message"`); n != 2 {
		t.Errorf("%d messages: %s", n, sub.stdout)
	}
	if sub.stderr.String() != "" {
		t.Errorf("--quiet, and said %s", sub.stderr)
	}
}

func TestCommands_Failures(t *testing.T) {
	t.Parallel()
	s := serve(t, openConfig, nil)
	for _, c := range []struct {
		args  []string
		stdin string
		want  string
		code  int
	}{
		{args: []string{"sub", "closed", "--url", s.url}, want: "TOPIC_FORBIDDEN", code: 1},
		{args: []string{"sub", "open.a", "--url", s.url, "--token", "x"}, want: "SOCKET_UNAUTHENTICATED", code: 1},
		{args: []string{"sub", "a..b", "--url", s.url}, want: "CHANNEL_INVALID", code: 2},
		{args: []string{"sub", "open.a", "--url", "ftp://x"}, want: "scheme", code: 2},
		{args: []string{"sub", "open.a", "--join", "{", "--url", s.url}, want: "--join is not JSON", code: 2},
		{args: []string{"sub", "open.a", "--ca", "/nowhere", "--url", s.url}, want: "--ca", code: 2},
		{args: []string{"sub", "open.a", "--last", "-1", "--url", s.url}, want: "--last", code: 2},
		{args: []string{"sub", "open.a", "--last", "1", "--since", "1", "--url", s.url}, want: "one of them", code: 2},
		{args: []string{"sub", "open.a", "--epoch", "a", "--url", s.url}, want: "--epoch", code: 2},
		{args: []string{"pub", "closed", "1", "--url", s.url}, want: "TOPIC_FORBIDDEN", code: 1},
		{args: []string{"pub", "open.a", "1", "--url", s.url, "--token", "x"}, want: "SOCKET_UNAUTHENTICATED", code: 1},
		{args: []string{"pub", "open.a", "1", "--url", s.url, "--key", "x"}, want: "API_KEY_REQUIRED", code: 1},
		{args: []string{"pub", "open.a", "hello", "--url", s.url}, want: "not JSON", code: 2},
		{args: []string{"pub", "open.a", "-", "--url", s.url}, stdin: "1\nhello\n", want: "line 2 is not JSON", code: 2},
		{args: []string{"pub", "a..b", "1", "--url", s.url, "--key", "x"}, want: "CHANNEL_INVALID", code: 1},
		{args: []string{"pub", "open.a", "1", "--url", "http://127.0.0.1:1", "--key", "x"}, want: "refused", code: 1},
		{args: []string{"pub", "open.a", "1", "--key", "x", "--token", "y"}, want: "one of them", code: 2},
		{args: []string{"pub", "open.a", "-", "--id", "x"}, want: "--id", code: 2},
		{args: []string{"pub", "open.a"}, want: "<data>", code: 2},
		{args: []string{"nothing"}, want: "nothing", code: 2},
		{args: []string{"serve", "--loud"}, want: "--loud", code: 2},
		{args: []string{"token", "--subject", "a"}, want: "TIDEWIRE_AUTH_JWT_SECRET", code: 2},
		{args: []string{"token", "--subject", "a", "--secret", "short"}, want: "5 bytes", code: 2},
		{args: []string{"token", "--subject", "a", "--secret", jwtSecret, "--ttl", "0s"}, want: "--ttl", code: 2},
	} {
		_, _, err := twStdin(t, nil, c.stdin, c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%v: error %v, exit code %d; want %q and %d", c.args, err, exitCode(err), c.want, c.code)
		}
	}
}

func TestToken(t *testing.T) {
	t.Parallel()
	out, _, err := tw(t, env{"TIDEWIRE_AUTH_JWT_SECRET": jwtSecret}, "token", "--subject", "alice", "--ttl", "10m", "--claim", "org=o1", "--claim", `roles=["a","b"]`, "--claim", "level=3", "--claim", "expr=a=b;c")
	if err != nil {
		t.Fatal(err)
	}
	v, err := auth.NewJWT(auth.JWTOptions{Secret: []byte(jwtSecret)})
	if err != nil {
		t.Fatal(err)
	}
	id, err := v.Verify(t.Context(), strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	claims, err := json.Marshal(map[string]any{"org": id.Claims["org"], "roles": id.Claims["roles"], "level": id.Claims["level"], "expr": id.Claims["expr"]})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"expr":"a=b;c","level":3,"org":"o1","roles":["a","b"]}`; id.Subject != "alice" || string(claims) != want {
		t.Errorf("%s: %s, want %s", id.Subject, claims, want)
	}
	if left := time.Until(id.ExpiresAt); left < 9*time.Minute || left > 10*time.Minute {
		t.Errorf("valid for %v", left)
	}
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	out, _, err := tw(t, nil, "version")
	if err != nil || !strings.Contains(out, "protocol 1") || !strings.Contains(out, "commit ") {
		t.Errorf("%s, %v", out, err)
	}
	out, _, err = tw(t, env{"TIDEWIRE_TOKEN": "a-secret-token", "TIDEWIRE_KEY": "a-secret-key"}, "pub", "--help")
	if err != nil || !strings.Contains(out, "TIDEWIRE_KEY") || strings.Contains(out, "a-secret") {
		t.Errorf("%s, %v", out, err)
	}
	out, _, err = tw(t, nil, "--help")
	for _, command := range []string{"serve", "sub", "pub", "token", "version"} {
		if err != nil || !strings.Contains(out, command) {
			t.Errorf("%s, %v", out, err)
		}
	}
	if exitCode(&wire.Error{Code: wire.CodeConfigInvalid}) != 2 || exitCode(&wire.Error{Code: wire.CodeInternal}) != 1 || exitCode(nil) != 0 {
		t.Error("exit codes")
	}
}
