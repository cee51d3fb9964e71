// Command bench compares Tidewire with other servers: the same load, in one run, on one machine.
//
//	go run . [-quick] [-only fanout,rate,mixed,idle,presence,dial,recovery,backlog,commit,shared,restart] [-rivals tidewire,classic,centrifugo,nats]
//
// It builds the servers, starts one at a time, and drives it from this process. CPU is that of the server's process alone.
//
// The last four are live queries: they need PostgreSQL installed, of which they start a private server, and know no rivals.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/internal/load"
)

const (
	marker      = "~b~"
	payloadSize = 128
)

var (
	quick   = flag.Bool("quick", false, "shorter runs, for a look")
	only    = flag.String("only", "idle,fanout,rate,mixed,presence,dial,recovery,backlog,commit,shared,restart", "scenarios")
	which   = flag.String("rivals", "tidewire,history,tidewire-http,portable,kernel,classic,centrifugo,nats", "servers")
	rounds  = flag.Int("rounds", 3, "rounds of each measurement; the median counts")
	profile = flag.String("profile", "", "write CPU profiles of the backlog with queries to files of this name and a number")
	bin     = flag.String("bin", "bin", "folder for built servers")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	var targets []target
	for _, t := range allTargets() {
		if slices.Contains(strings.Split(*which, ","), t.name) {
			if err := t.build(ctx); err != nil {
				return fmt.Errorf("build %s: %w", t.name, err)
			}
			targets = append(targets, t)
		}
	}
	fmt.Printf("# %s, %s, %d cores, %s\n\n", time.Now().Format("2006-01-02"), cpuModel(), runtime.NumCPU(), runtime.Version())
	for _, s := range []struct {
		name string
		run  func(context.Context, []target) error
	}{
		{"idle", idle},
		{"fanout", fanOut},
		{"rate", rate},
		{"mixed", mixed},
		{"presence", roster},
		{"dial", dialRate},
		{"recovery", recovery},
		{"backlog", backlog},
		{"commit", commit},
		{"shared", shared},
		{"restart", restart},
	} {
		if slices.Contains(strings.Split(*only, ","), s.name) {
			if err := s.run(ctx, targets); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	return nil
}

func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	_, rest, _ := strings.Cut(string(b), "model name\t: ")
	model, _, _ := strings.Cut(rest, "\n")
	return model
}

// server is a running target.
type server struct {
	target
	cmd *exec.Cmd
}

func (t target) start(ctx context.Context) (*server, error) {
	cmd := t.command(ctx)
	cmd.Stderr = nil
	cmd.Env = append(os.Environ(), t.env...)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{t, cmd}
	for range 200 {
		resp, err := http.Get("http://" + t.health)
		if err == nil {
			_ = resp.Body.Close()
			return s, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	s.stop()
	return nil, errors.New("it does not answer")
}

func (s *server) stop() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

func (s *server) usage() load.Usage {
	u, err := load.UsageOf(s.cmd.Process.Pid)
	if err != nil {
		log.Fatal(err)
	}
	return u
}

// free makes the server give memory back, where it can be told to.
func (s *server) free() {
	if s.freePath == "" {
		return
	}
	if resp, err := http.Get("http://" + s.freePath); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	time.Sleep(time.Second)
}

func (s *server) fleet(ctx context.Context, conns int, channel func(i int) string) (*load.Fleet, error) {
	return load.Dial(ctx, load.Options{
		URL: s.url, Subprotocols: s.subprotocols, Conns: conns, Retry: true, SayBinary: s.binary,
		Say:   func(i int) []string { return s.subscribe(i, channel(i)) },
		Ready: s.ready, ReadyCount: s.readyCount, Marker: []byte(marker), OnFrame: s.onFrame,
	})
}

func oneChannel(int) string { return "bench" }

// measured is one measurement with the cost of the server.
type measured struct {
	load.Result
	cpu, user float64 // microseconds a delivery
}

// measure drives the load some rounds and returns the median by CPU.
func (s *server) measure(ctx context.Context, f *load.Fleet, r load.Run) (measured, error) {
	var all []measured
	for range *rounds {
		before := s.usage()
		res, err := f.Drive(ctx, r)
		if err != nil {
			return measured{}, err
		}
		after := s.usage()
		m := measured{Result: res}
		m.cpu = float64((after.CPU() - before.CPU()).Microseconds()) / float64(res.Delivered)
		m.user = float64((after.User - before.User).Microseconds()) / float64(res.Delivered)
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b measured) int { return int(math.Copysign(1, a.cpu-b.cpu)) })
	return all[len(all)/2], nil
}

// each runs f with every target that can do the scenario, one at a time.
func each(ctx context.Context, targets []target, f func(*server) error) error {
	for _, t := range targets {
		s, err := t.start(ctx)
		if err != nil {
			return fmt.Errorf("start %s: %w", t.name, err)
		}
		err = f(s)
		s.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}

func idle(ctx context.Context, targets []target) error {
	conns := 10_000
	if *quick {
		conns = 2000
	}
	fmt.Printf("## Idle connections: %d, one subscription each\n\n| server | bytes a connection | after GC | set-up a second | CPU µs a set-up |\n|---|---|---|---|---|\n", conns)
	err := each(ctx, targets, func(s *server) error {
		if s.name == "tidewire-http" || s.name == "history" || s.name == "kernel" {
			return nil
		}
		n := min(conns, s.maxConns)
		s.free()
		base := s.usage()
		start := time.Now()
		f, err := s.fleet(ctx, n, oneChannel)
		if err != nil {
			return err
		}
		took := time.Since(start)
		defer f.Close()
		up := s.usage()
		s.free()
		after := "–"
		if s.freePath != "" {
			after = fmt.Sprint((s.usage().RSS - base.RSS) / uint64(n))
		}
		fmt.Printf("| %s | %d | %s | %.0f | %.0f |\n", s.name, (up.RSS-base.RSS)/uint64(n), after, float64(n)/took.Seconds(), float64((up.CPU()-base.CPU()).Microseconds())/float64(n))
		return nil
	})
	fmt.Println()
	return err
}

func fanOut(ctx context.Context, targets []target) error {
	for _, conns := range []int{1000, 5000} {
		deliveries := 20_000_000
		if *quick {
			deliveries = 3_000_000
		}
		fmt.Printf("## Fan-out, %d connections × %d bytes, at most 64 messages in flight\n\n| server | CPU µs a delivery | user | thousand delivered/s | lost | out of order |\n|---|---|---|---|---|---|\n", conns, payloadSize)
		err := each(ctx, targets, func(s *server) error {
			f, err := s.fleet(ctx, conns, oneChannel)
			if err != nil {
				return err
			}
			defer f.Close()
			p, err := s.publisher(ctx, s)
			if err != nil {
				return err
			}
			defer p.close()
			n := uint64(float64(deliveries) * s.share / float64(conns))
			m, err := s.measure(ctx, f, load.Run{
				Publish: p.to("bench"), Publishers: p.workers, Marker: marker, Size: payloadSize, FanOut: conns, Window: 64, Messages: n,
			})
			if err != nil {
				return err
			}
			fmt.Printf("| %s | %.2f | %.2f | %.0f | %d | %d |\n", s.name, m.cpu, m.user, m.PerSecond()/1000, m.Lost, m.Disorder)
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Println()
	}
	return nil
}

func rate(ctx context.Context, targets []target) error {
	for _, c := range []struct{ conns, rate int }{{1000, 40}, {5000, 8}} {
		d := 10 * time.Second
		if *quick {
			d = 4 * time.Second
		}
		fmt.Printf("## Fixed rate, one message at a time: %d connections × %d messages/s\n\n| server | CPU µs a delivery | user | p50 ms | p99 ms | lost |\n|---|---|---|---|---|---|\n", c.conns, c.rate)
		err := each(ctx, targets, func(s *server) error {
			f, err := s.fleet(ctx, c.conns, oneChannel)
			if err != nil {
				return err
			}
			defer f.Close()
			p, err := s.publisher(ctx, s)
			if err != nil {
				return err
			}
			defer p.close()
			m, err := s.measure(ctx, f, load.Run{
				Publish: p.to("bench"), Publishers: 1, Marker: marker, Size: payloadSize, FanOut: c.conns, Rate: float64(c.rate), Duration: d,
			})
			if err != nil {
				return err
			}
			fmt.Printf("| %s | %.2f | %.2f | %.1f | %.1f | %d |\n", s.name, m.cpu, m.user, ms(m.P50), ms(m.P99), m.Lost)
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Println()
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// mixed is 5,000 connections in 1,000 channels of 50: each connection has ten.
func mixed(ctx context.Context, targets []target) error {
	const conns, channels, perConn, members = 5000, 1000, 10, 50
	messages := 60_000
	if *quick {
		messages = 10_000
	}
	fmt.Printf("## Mixed: %d connections, %d channels of %d, publications to all\n\n| server | CPU µs a delivery | user | thousand delivered/s | lost |\n|---|---|---|---|---|\n", conns, channels, members)
	err := each(ctx, targets, func(s *server) error {
		if s.subscribeMany == nil {
			return nil
		}
		many := s.target
		many.subscribe = func(i int, _ string) []string {
			names := make([]string, perConn)
			for k := range names {
				names[k] = fmt.Sprintf("bench%d", (i*perConn+k)%channels)
			}
			return s.subscribeMany(i, names)
		}
		many.readyCount = s.readyMany(perConn)
		ms := &server{many, s.cmd}
		f, err := ms.fleet(ctx, conns, oneChannel)
		if err != nil {
			return err
		}
		defer f.Close()
		p, err := s.publisher(ctx, s)
		if err != nil {
			return err
		}
		defer p.close()
		var next atomic.Uint64
		m, err := ms.measure(ctx, f, load.Run{
			Publish: func(ctx context.Context, w int, seq uint64, data string) error {
				return p.to(fmt.Sprintf("bench%d", next.Add(1)%channels))(ctx, w, seq, data)
			},
			Publishers: p.workers, Marker: marker, Size: payloadSize, FanOut: members, Window: 2000, Messages: uint64(messages),
		})
		if err != nil {
			return err
		}
		fmt.Printf("| %s | %.2f | %.2f | %.0f | %d |\n", s.name, m.cpu, m.user, m.PerSecond()/1000, m.Lost)
		return nil
	})
	fmt.Println()
	return err
}

// roster is what 10,000 members joining one room cost.
func roster(ctx context.Context, targets []target) error {
	members := 10_000
	if *quick {
		members = 2000
	}
	fmt.Printf("## Presence: %d members join one room, all of them observers\n\n| server | members | seconds | CPU s | CPU µs a join | bytes to all observers | bytes a connection |\n|---|---|---|---|---|---|---|\n", members)
	err := each(ctx, targets, func(s *server) error {
		if s.join == nil || s.name == "tidewire-http" || s.name == "history" {
			return nil
		}
		members := members
		if s.maxMembers > 0 {
			members = min(members, s.maxMembers)
		}
		joining := s.target
		joining.subscribe = s.join
		js := &server{joining, s.cmd}
		base := s.usage()
		start := time.Now()
		f, err := js.fleet(ctx, members, oneChannel)
		if err != nil {
			return err
		}
		defer f.Close()
		settle(f)
		took, after := time.Since(start)-500*time.Millisecond, s.usage()
		fmt.Printf("| %s | %d | %.1f | %.1f | %.0f | %d | %d |\n", s.name, members, took.Seconds(), (after.CPU() - base.CPU()).Seconds(),
			float64((after.CPU()-base.CPU()).Microseconds())/float64(members), f.Bytes(), (after.RSS-base.RSS)/uint64(members))
		return nil
	})
	fmt.Println()
	return err
}

// settle returns when no frame has been read for half a second.
func settle(f *load.Fleet) {
	for last := f.Frames(); ; {
		time.Sleep(500 * time.Millisecond)
		n := f.Frames()
		if n == last {
			return
		}
		last = n
	}
}

// dialRate is how fast connections are set up and ended again.
func dialRate(ctx context.Context, targets []target) error {
	conns, times := 2000, 5
	if *quick {
		times = 2
	}
	fmt.Printf("## Set-up: %d connections with one subscription, opened and closed %d times\n\n| server | set-ups a second | CPU µs a set-up |\n|---|---|---|\n", conns, times)
	err := each(ctx, targets, func(s *server) error {
		if s.name == "tidewire-http" || s.name == "history" || s.name == "kernel" { // which never forgets a connection
			return nil
		}
		base := s.usage()
		start := time.Now()
		for range times {
			f, err := s.fleet(ctx, conns, oneChannel)
			if err != nil {
				return err
			}
			f.Close()
		}
		took, after := time.Since(start), s.usage()
		n := float64(conns * times)
		fmt.Printf("| %s | %.0f | %.0f |\n", s.name, n/took.Seconds(), float64((after.CPU()-base.CPU()).Microseconds())/n)
		return nil
	})
	fmt.Println()
	return err
}

// goBuild builds a package of this module, or installs one of another.
func goBuild(ctx context.Context, pkg, name string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	out := dir + "/" + *bin
	path := out + "/" + name
	if strings.Contains(pkg, "@") {
		if _, err := os.Stat(path); err == nil {
			return nil // a released version does not change
		}
		cmd := exec.CommandContext(ctx, "go", "install", pkg)
		cmd.Env = append(os.Environ(), "GOBIN="+out)
		return runQuietly(cmd)
	}
	return runQuietly(exec.CommandContext(ctx, "go", "build", "-o", path, pkg))
}

func runQuietly(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w\n%s", err, out.String())
	}
	return nil
}
