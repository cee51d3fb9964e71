// Package e2e tries the program as a whole: real processes, killed and started again under their clients.
package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/client"
)

const key = "e2e-backend-key-0123456789"

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tidewire-e2e-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "tidewire")
	build := exec.Command("go", "build", "-o", binary, "../cmd/tidewire")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		http.DefaultClient.CloseIdleConnections()
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// freePort finds a loopback port below the range that outgoing connections use.
func freePort(t *testing.T) int {
	t.Helper()
	for port := 21000 + os.Getpid()%5000; port < 32000; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// server is a `tidewire serve` process.
type server struct {
	t    *testing.T
	addr string
	conf string
	cmd  *exec.Cmd
}

func newServer(t *testing.T, config string) *server {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	conf := filepath.Join(t.TempDir(), "tidewire.yaml")
	text := fmt.Sprintf("addr: %s\nauth: {anonymous: true}\nbackend_keys: [{name: e2e, key: %s}]\nchannels: [{pattern: \"**\", guard: public, presence: true}]\n%s", addr, key, config)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return &server{t: t, addr: addr, conf: conf}
}

// start runs the process and waits until it is ready.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(binary, "serve", "-c", s.conf)
	s.cmd.Dir = filepath.Dir(s.conf)
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "panic") {
				s.t.Errorf("server: %s", lines.Text())
			}
		}
	}()
	eventually(s.t, 20*time.Second, "the server is ready", func() bool {
		resp, err := http.Get("http://" + s.addr + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (s *server) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
	_ = s.cmd.Wait()
}

func (s *server) get(path string, into any) error {
	req, err := http.NewRequest(http.MethodGet, "http://"+s.addr+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	return json.NewDecoder(resp.Body).Decode(into)
}

func (s *server) publish(channel, data string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.addr+"/v1/channels/"+channel+"/messages", strings.NewReader(`{"data":`+data+`}`))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("publish: %s %s", resp.Status, b)
	}
}

func eventually(t *testing.T, patience time.Duration, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline.C:
			t.Fatalf("%s: not within %s", what, patience)
		case <-tick.C:
		}
	}
}

// herd is many clients, each subscribed to one channel.
type herd struct {
	got     atomic.Int64 // messages
	live    atomic.Int64 // connected
	cancel  context.CancelFunc
	clients sync.WaitGroup
}

func newHerd(t *testing.T, s *server, n int, channel func(i int) string) *herd {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h := &herd{cancel: cancel}
	t.Cleanup(h.stop)
	for i := range n {
		connected := false // state changes of one client come one at a time
		c, err := client.New(client.Options{
			URL: "ws://" + s.addr, Logger: slog.New(slog.DiscardHandler), HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
			OnState: func(st client.State) {
				now := st.Status == client.Connected
				if now != connected {
					connected = now
					if now {
						h.live.Add(1)
					} else {
						h.live.Add(-1)
					}
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Subscribe(channel(i), client.SubscribeOptions{OnMessage: func(client.Message) { h.got.Add(1) }}); err != nil {
			t.Fatal(err)
		}
		h.clients.Go(func() { _ = c.Run(ctx) })
	}
	return h
}

func (h *herd) stop() {
	h.cancel()
	h.clients.Wait()
}

type stats struct {
	Connections int
	Channels    int
	Accepted    uint64
	Shed        uint64
}

// P27, S31: a server that is killed under its clients and started again has all of them back, and never takes more of them in than its accept budget.
func TestS31_KillAndRestartUnderManyClients(t *testing.T) {
	clients, rate := 1000, 200
	if os.Getenv("TIDEWIRE_TEST_LONG") != "" {
		clients, rate = 5000, 500
	}
	s := newServer(t, fmt.Sprintf("limits: {accepts_per_second: %d, accept_burst: %d}\n", rate, rate))
	s.start()
	defer func() { s.signal(syscall.SIGKILL) }()
	h := newHerd(t, s, clients, func(i int) string { return fmt.Sprintf("room.%d", i%50) })
	eventually(t, 3*time.Minute, "all have come", func() bool {
		var st stats
		return s.get("/v1/stats", &st) == nil && st.Connections == clients && st.Channels == 50
	})
	s.publish("room.7", `1`)
	eventually(t, 10*time.Second, "a room has its message", func() bool { return h.got.Load() == int64(clients/50) })

	s.signal(syscall.SIGKILL)
	began := time.Now()
	s.start()
	type sample struct {
		asked, answered time.Time
		accepted        uint64
	}
	var samples []sample
	var st stats
	eventually(t, 3*time.Minute, "all are back", func() bool {
		asked := time.Now()
		if s.get("/v1/stats", &st) == nil {
			samples = append(samples, sample{asked, time.Now(), st.Accepted})
		}
		return st.Connections == clients && st.Channels == 50
	})
	took := time.Since(began)
	// In any stretch of time at most the burst and the rate times the stretch were taken in.
	for i, from := range samples {
		for _, to := range samples[i:] {
			d := to.answered.Sub(from.asked).Seconds()
			if most := float64(rate) + float64(rate)*d; float64(to.accepted-from.accepted) > most+1 {
				t.Fatalf("%d accepted in %.2f s with a budget of %d a second", to.accepted-from.accepted, d, rate)
			}
		}
	}
	t.Logf("%d clients back after %s, %d dials shed", clients, took.Round(time.Millisecond), st.Shed)
	h.got.Store(0)
	s.publish("room.7", `2`)
	eventually(t, 10*time.Second, "a room has its message again", func() bool { return h.got.Load() == int64(clients/50) })
}

// P28, S30: on SIGTERM readiness turns red first, clients move in their slots, and the process ends in time.
func TestS30_SIGTERMDrains(t *testing.T) {
	const clients = 100
	s := newServer(t, "timing: {drain_window: 1s}\n")
	s.start()
	h := newHerd(t, s, clients, func(int) string { return "room.1" })
	eventually(t, 20*time.Second, "all have come", func() bool {
		var st stats
		return s.get("/v1/stats", &st) == nil && st.Connections == clients
	})
	began := time.Now()
	ended := make(chan error, 1)
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- s.cmd.Wait() }()
	eventually(t, 5*time.Second, "readiness is red while clients are still there", func() bool {
		resp, err := http.Get("http://" + s.addr + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	select {
	case err := <-ended:
		if err != nil {
			t.Fatalf("exit: %v", err)
		}
	case <-time.After(8 * time.Second):
		_ = s.cmd.Process.Kill()
		t.Fatal("it did not end within the window plus 5 s")
	}
	if took := time.Since(began); took < 500*time.Millisecond {
		t.Fatalf("all were cut within %s", took)
	}
	s.start() // a new server, the same address
	defer func() { s.signal(syscall.SIGKILL) }()
	eventually(t, time.Minute, "all are back", func() bool {
		var st stats
		return s.get("/v1/stats", &st) == nil && st.Connections == clients
	})
	s.publish("room.1", `1`)
	eventually(t, 10*time.Second, "all get a message", func() bool { return h.got.Load() == clients })
}
