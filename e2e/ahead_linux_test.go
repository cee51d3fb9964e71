package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidewire/tidewire/internal/load"
)

// cost is what a server process spent.
type cost struct {
	cpu    float64 // µs a delivery
	memory uint64  // bytes a connection
}

// H27: fan-out and idle memory are ahead of the classic hub (a goroutine that reads and one that writes for each connection), side by side in one run. The margin is far below what
// bench/ measures, so that a busy machine does not matter.
func TestH27_AheadOfTheClassicHub(t *testing.T) {
	hello := []string{`{"type":"hello","protocol":1}`}
	ours := measure(t, "server", "/v1/socket", load.Options{
		Subprotocols: []string{"tidewire.1"}, Ready: []byte(`"subscribed"`), ReadyCount: 1,
		Say: func(int) []string { return append(hello, `{"type":"subscribe","sid":"1","channel":"a"}`) },
	}, hello, func(data string) string { return `{"type":"publish","channel":"a","data":` + data + `}` })
	classic := measure(t, "classic", "/ws", load.Options{}, nil, func(data string) string { return data })
	t.Logf("Tidewire %.2f µs a delivery and %d bytes a connection, classic %.2f µs and %d bytes", ours.cpu, ours.memory, classic.cpu, classic.memory)
	if ours.cpu > classic.cpu/2 {
		t.Errorf("%.2f µs of CPU a delivery, more than half of the classic hub's %.2f", ours.cpu, classic.cpu)
	}
	if ours.memory > classic.memory/2 {
		t.Errorf("%d bytes a connection, more than half of the classic hub's %d", ours.memory, classic.memory)
	}
}

// measure runs a server of bench/ under 1,000 connections.
func measure(t *testing.T, pkg, path string, o load.Options, hello []string, encode func(data string) string) cost {
	t.Helper()
	const conns, messages, marker = 1000, 1000, "~b~"
	bin := filepath.Join(t.TempDir(), pkg)
	build := exec.Command("go", "build", "-C", "../bench", "-o", bin, "./"+pkg)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	cmd := exec.Command(bin, addr)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	free := func() bool {
		resp, err := http.Get("http://" + addr + "/free")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return true
	}
	use := func() load.Usage {
		u, err := load.UsageOf(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	eventually(t, 10*time.Second, "the server answers", free)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	base := use()
	o.URL, o.Conns, o.Marker = "ws://"+addr+path, conns, []byte(marker)
	fleet, err := load.Dial(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Close()
	free()
	idle := use()
	publisher, err := load.Dial(ctx, load.Options{
		URL: o.URL, Subprotocols: o.Subprotocols, Conns: 1, Say: func(int) []string { return hello },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer publisher.Close()
	before := use()
	res, err := fleet.Drive(ctx, load.Run{
		Publish:    func(_ context.Context, _ int, _ uint64, data string) error { return publisher.Send(0, encode(data)) },
		Publishers: 1, Marker: marker, Size: 128, FanOut: conns, Window: 64, Messages: messages,
	})
	if err != nil || res.Lost > 0 {
		t.Fatalf("%s: %+v, %v", pkg, res, err)
	}
	after := use()
	return cost{
		cpu:    float64((after.CPU() - before.CPU()).Microseconds()) / float64(res.Delivered),
		memory: (idle.RSS - base.RSS) / conns,
	}
}
