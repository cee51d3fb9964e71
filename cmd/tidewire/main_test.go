package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

// patience bounds every wait of a test.
const patience = 30 * time.Second

// asMain makes the test's binary the program, for tests that need a process.
const asMain = "TIDEWIRE_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// buffer takes what a program writes while a test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// env is an environment.
type env map[string]string

// get keeps logs in memory unless the test says otherwise, so that none is left in the folder.
func (e env) get(name string) string {
	if _, set := e[name]; !set && name == "TIDEWIRE_STREAMS_OBJECTS" {
		return "memory"
	}
	return e[name]
}

func (e env) list() []string {
	var out []string
	for name, value := range e {
		out = append(out, name+"="+value)
	}
	return out
}

// tidewire runs the program to its end.
func tw(t *testing.T, e env, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return twStdin(t, e, "", args...)
}

func twStdin(t *testing.T, e env, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs buffer
	p := &program{getenv: e.get, environ: e.list, stdin: strings.NewReader(stdin), stdout: &out, stderr: &errs}
	err = p.run(ctx, args)
	return out.String(), errs.String(), err
}

// running is the program while it runs.
type running struct {
	t              *testing.T
	stdout, stderr *buffer
	url            string // of a server
	cancel         context.CancelFunc
	done           chan error
	end            func() error
}

// start runs the program until the end of the test, or until stop.
func start(t *testing.T, e env, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, stdout: &buffer{}, stderr: &buffer{}, cancel: cancel, done: make(chan error, 1)}
	p := &program{getenv: e.get, environ: e.list, stdin: strings.NewReader(""), stdout: r.stdout, stderr: r.stderr}
	go func() { r.done <- p.run(ctx, args) }()
	r.end = sync.OnceValue(func() error { return <-r.done })
	t.Cleanup(func() {
		cancel()
		_ = r.end()
	})
	return r
}

// stop ends the program as a signal does, and returns what run returned.
func (r *running) stop() error {
	r.cancel()
	return r.end()
}

// wait waits for a line on stdout.
func (r *running) wait(part string) string {
	r.t.Helper()
	var line string
	eventually(r.t, "on stdout: "+part, func() bool {
		select {
		case err := <-r.done:
			r.done <- err
			r.t.Fatalf("the program ended with %v: %s", err, r.stderr)
		default:
		}
		for l := range strings.Lines(r.stdout.String()) {
			if strings.Contains(l, part) && strings.HasSuffix(l, "\n") {
				line = strings.TrimSpace(l)
				return true
			}
		}
		return false
	})
	return line
}

// serve starts a server with a configuration, at a free port unless the configuration says where, and waits until it is ready.
func serve(t *testing.T, yaml string, e env, args ...string) *running {
	t.Helper()
	if !strings.Contains(yaml, "addr:") {
		yaml = "addr: 127.0.0.1:0\n" + yaml
	}
	if !strings.Contains(yaml, "drain_window:") && !strings.Contains(yaml, "timing:") {
		yaml += "\ntiming: {drain_window: 0s}\n"
	}
	r := start(t, e, append([]string{"serve", "-c", file(t, "tidewire.yaml", yaml)}, args...)...)
	r.url = strings.TrimPrefix(r.wait("listening on "), "listening on ")
	return r
}

// file writes a file.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// eventually waits until f holds.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	testenv.Eventually(t, patience, what, f)
}

// get asks the server over HTTP and returns the status and the body.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// wantConfigError checks that err is a wrong configuration and names what is wrong.
func wantConfigError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if !errors.Is(err, &wire.Error{Code: wire.CodeConfigInvalid}) || exitCode(err) != 2 {
		t.Fatalf("error %v, exit code %d; want CONFIG_INVALID and 2", err, exitCode(err))
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func sprint(v any) string { return fmt.Sprint(v) }

func sprintf(format string, v ...any) string { return fmt.Sprintf(format, v...) }
