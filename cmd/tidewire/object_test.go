package main

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

const objectsYAML = `
auth: {anonymous: true, jwt: {secret: ` + jwtSecret + `}}
backend_keys: [{name: b, key: backend-key-0123456789}]
objects:
  - {pattern: 'job.{id}', guard: 'action == "subscribe" && actor.id == params.id'}
  - {pattern: 'open.**', guard: public}
`

func TestO19_ObjectCommands(t *testing.T) {
	t.Parallel()
	s := serve(t, objectsYAML, nil)
	backend := env{"TIDEWIRE_URL": s.url, "TIDEWIRE_KEY": "backend-key-0123456789"}
	run := func(e env, want string, args ...string) {
		t.Helper()
		out, stderr, err := tw(t, e, append([]string{"object"}, args...)...)
		if err != nil || strings.TrimSpace(out) != want && !strings.HasPrefix(out, want) {
			t.Errorf("%v printed %s%s, %v; want %s", args, out, stderr, err, want)
		}
	}
	run(backend, `{"delivered":0}`, "publish", "job.alice", "c", "nobody")
	alice := env{"TIDEWIRE_URL": s.url, "TIDEWIRE_TOKEN": token(t, "alice", nil)}
	wait := start(t, alice, "object", "wait", "job.alice", "c", "-n", "5")
	count := func() string {
		out, _, err := tw(t, backend, "object", "count", "job.alice", "c")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	eventually(t, "a subscription", func() bool { return strings.Contains(count(), `"subscribers":1`) })
	run(backend, `{"delivered":1}`, "publish", "job.alice", "c", "<one> & two")
	run(backend, `{"delivered":1}`, "publish", "job.alice", "c", "")
	wait.wait(`{"status":"message","text":"<one> & two"}`)
	wait.wait(`{"status":"message","text":""}`)
	run(backend, `{"closed":1}`, "close", "job.alice", "c", "--reason", "收摊")
	if err := wait.end(); err != nil || !strings.HasSuffix(wait.stdout.String(), `{"status":"ended","reason":"收摊"}`+"\n") {
		t.Errorf("%v, printed %s", err, wait.stdout)
	}
	run(alice, `{"status":"timeout"}`, "wait", "job.alice", "c", "--timeout", "10ms")
	eventually(t, "no subscription", func() bool { return strings.Contains(count(), `"subscribers":0`) })
	run(backend, `{"duplicate":false,"epoch":"`, "append", "job.alice", "t1", "--idempotency-key", "k")
	run(backend, `{"duplicate":true,"epoch":"`, "append", "job.alice", "t1", "--idempotency-key", "k")
	run(backend, `{"duplicate":false,"epoch":"`, "append", "job.alice", "t2")
	defer func() {
		run(backend, `{"epoch":"`, "trim", "job.alice", "--keep", "1")
		if out, _, err := tw(t, backend, "object", "trim", "job.alice", "--keep", "0"); err != nil || !strings.Contains(out, `"first":1,"head":0`) {
			t.Errorf("printed %s, %v", out, err)
		}
	}()
	out, _, err := tw(t, alice, "object", "follow", "job.alice", "-n", "1", "--after", "1")
	if err != nil || strings.Count(out, "\n") != 1 || !strings.Contains(out, `"seq":2,"text":"t2"`) || !strings.Contains(out, `"type":"entry"`) {
		t.Errorf("printed %s, %v", out, err)
	}
}

func TestO19_ObjectCommands_Failures(t *testing.T) {
	t.Parallel()
	s := serve(t, objectsYAML, nil)
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"follow", "job.alice"}, "TOPIC_FORBIDDEN", 1},
		{[]string{"wait", "job.alice", "c", "--token", "x"}, "SOCKET_UNAUTHENTICATED", 1},
		{[]string{"publish", "a b", "c", "x"}, "QUERY_INVALID", 1},
		{[]string{"publish", "open.a", "a/b", "x"}, "QUERY_INVALID", 1},
		{[]string{"count", "open.a", "c", "--key", "a", "--token", "b"}, "one of them", 2},
		{[]string{"wait", "open.a", "c", "--timeout", "16m"}, "--timeout", 2},
		{[]string{"follow", "open.a", "--url", "ftp://x"}, "--url", 2},
		{[]string{"append", "open.a"}, "<text>", 2},
		{[]string{"trim", "open.a"}, "--keep", 2},
		{[]string{"trim", "open.a", "--keep", "-1"}, "--keep", 2},
		{[]string{"trim", "job.alice", "--keep", "0"}, "TOPIC_FORBIDDEN", 1},
		{[]string{"publish", "open.a", "c", "x", "--url", "http://127.0.0.1:1"}, "refused", 1},
	} {
		args := append([]string{"object"}, c.args...)
		_, _, err := tw(t, env{"TIDEWIRE_URL": s.url}, args...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%v: error %v, exit code %d; want %q and %d", c.args, err, exitCode(err), c.want, c.code)
		}
	}
	for _, wrong := range []string{"{pattern: a}", "{guard: public}", "{pattern: a, guard: '1 +'}", "{pattern: 'a..b', guard: public}", "{pattern: a, guard: public, presence: true}"} {
		_, _, err := tw(t, nil, "serve", "--print-config", "-c", file(t, "tidewire.yaml", "objects: ["+wrong+"]"))
		wantConfigError(t, err, "objects[0]")
	}
}

// In development every object is open.
func TestO19_ObjectsInDevelopment(t *testing.T) {
	t.Parallel()
	s := serve(t, "", nil, "--dev")
	if out, _, err := tw(t, env{"TIDEWIRE_URL": s.url}, "object", "append", "any.thing", "x"); err != nil || !strings.Contains(out, `"seq":1`) {
		t.Errorf("%s, %v", out, err)
	}
}

// O18: follow and wait go on behind what they have when their connection is cut.
func TestO18_CommandsResume(t *testing.T) {
	t.Parallel()
	s := serve(t, objectsYAML, nil)
	direct := env{"TIDEWIRE_URL": s.url}
	between := newCutter(t, strings.TrimPrefix(s.url, "http://"))
	cut := env{"TIDEWIRE_URL": "http://" + between.addr()}
	follow := start(t, cut, "object", "follow", "open.a")
	wait := start(t, cut, "object", "wait", "open.a", "c", "-n", "4")
	eventually(t, "a subscription", func() bool {
		out, _, err := tw(t, direct, "object", "count", "open.a", "c")
		return err == nil && strings.Contains(out, `"subscribers":1`)
	})
	for _, text := range []string{"one", "two", "three"} {
		between.cut()
		for _, args := range [][]string{{"append", "open.a", text}, {"publish", "open.a", "c", text}} {
			if _, _, err := tw(t, direct, append([]string{"object"}, args...)...); err != nil {
				t.Fatal(err)
			}
		}
		follow.wait(`"text":"` + text + `"`)
		wait.wait(`"text":"` + text + `"`)
	}
	if err := wait.stop(); err != nil {
		t.Error(err)
	}
	if err := follow.stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(follow.stdout.String(), "\n"); n != 3 {
		t.Errorf("follow printed %s", follow.stdout)
	}
	if n := strings.Count(wait.stdout.String(), "\n"); n != 3 {
		t.Errorf("wait printed %s", wait.stdout)
	}
}

// wait subscribes again when the server was started anew, and says so.
func TestO19_WaitSubscribesAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, objectsYAML, nil)
	between := newCutter(t, strings.TrimPrefix(s.url, "http://"))
	wait := start(t, env{"TIDEWIRE_URL": "http://" + between.addr()}, "object", "wait", "open.a", "c", "-n", "4")
	publish := func(text string) {
		t.Helper()
		eventually(t, "delivered", func() bool {
			out, _, err := tw(t, env{"TIDEWIRE_URL": s.url}, "object", "publish", "open.a", "c", text)
			return err == nil && strings.Contains(out, `"delivered":1`)
		})
	}
	publish("one")
	publish("two")
	wait.wait(`{"status":"message","text":"two"}`)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	s = serve(t, objectsYAML, nil)
	between.point(strings.TrimPrefix(s.url, "http://"))
	wait.wait(`{"status":"resubscribed","reason":"`)
	publish("three")
	publish("four")
	if err := wait.end(); err != nil || strings.Count(wait.stdout.String(), "\n") != 5 || !strings.HasSuffix(wait.stdout.String(), `{"status":"message","text":"four"}`+"\n") {
		t.Errorf("%v, printed %s", err, wait.stdout)
	}
}

// cutter forwards connections until they are cut.
type cutter struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex // guards below
	to    string
	conns []net.Conn
}

func newCutter(t *testing.T, to string) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: l, to: to}
	c.wg.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			c.mu.Lock()
			to := c.to
			c.mu.Unlock()
			b, err := net.DialTimeout("tcp", to, time.Second)
			if err != nil {
				_ = a.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, a, b)
			c.mu.Unlock()
			for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
				c.wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) addr() string { return c.listener.Addr().String() }

// point cuts, and forwards to another address from now on.
func (c *cutter) point(to string) {
	c.mu.Lock()
	c.to = to
	c.mu.Unlock()
	c.cut()
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}
