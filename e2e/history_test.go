package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidewire/tidewire/client"
)

// P10, S10: a server with its histories in SQLite is killed again and again under publishers and subscribers: what was acknowledged is kept once, and every subscriber gets it once and in order, whatever
// it had seen.
func TestS10_P10_KillTheServer(t *testing.T) {
	kills := 8
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	conf := filepath.Join(t.TempDir(), "tidewire.yaml")
	text := fmt.Sprintf("addr: %s\nauth: {anonymous: true}\nbackend_keys: [{name: e2e, key: %s}]\nstreams: {channels: 'sqlite:history.db', objects: 'sqlite:history.db'}\n"+
		"channels: [{pattern: 'log.**', guard: public, history: {size: 1000000, bytes: 1000000000}}]\n", addr, key)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, addr: addr, conf: conf}
	s.start()
	defer func() { s.signal(syscall.SIGTERM) }()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var running sync.WaitGroup
	connect := func() *client.Client {
		c, err := client.New(client.Options{URL: "ws://" + addr, MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = c.Run(ctx) })
		return c
	}
	defer running.Wait()
	defer cancel()

	const readers = 4
	var seen [readers]atomic.Int64
	var mu sync.Mutex
	orders := make([][]string, readers)
	for r := range readers {
		_, err := connect().Subscribe("log.a", client.SubscribeOptions{
			Since: &client.Position{},
			OnMessage: func(m client.Message) {
				mu.Lock()
				defer mu.Unlock()
				if m.Offset != uint64(len(orders[r])+1) {
					t.Errorf("reader %d got offset %d after %d", r, m.Offset, len(orders[r]))
				}
				orders[r] = append(orders[r], string(m.Data))
				seen[r].Add(1)
			},
			OnLost: func(l client.Lost) { t.Errorf("reader %d lost %+v", r, l) },
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	const publishers = 4
	var acked [publishers]atomic.Int64
	stop := make(chan struct{})
	var publishing sync.WaitGroup
	for p := range publishers {
		c := connect()
		publishing.Go(func() {
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				for {
					// One whose answer was lost is repeated with the same id: by the client, and, before it knows that the channel has a history, here.
					_, err := c.Publish(ctx, "log.a", fmt.Sprintf("%d %d", p, i), client.PublishOptions{ID: fmt.Sprintf("%d-%d", p, i)})
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						t.Errorf("publisher %d: %v", p, err)
						return
					}
				}
				acked[p].Store(i + 1)
			}
		})
	}
	for range kills {
		before := acked[0].Load()
		more := rand.Int64N(300)
		eventually(t, 30*time.Second, "publishing goes on", func() bool { return acked[0].Load() > before+more })
		s.signal(syscall.SIGKILL)
		s.start()
	}
	close(stop)
	publishing.Wait()
	total := int64(0)
	for p := range acked {
		total += acked[p].Load()
	}
	for r := range seen {
		eventually(t, 30*time.Second, "reader "+strconv.Itoa(r)+" has everything", func() bool { return seen[r].Load() >= total })
	}
	mu.Lock()
	defer mu.Unlock()
	var next [publishers]int64
	for i, m := range orders[0] {
		var p int
		var n int64
		if _, err := fmt.Sscanf(m, `"%d %d"`, &p, &n); err != nil || n != next[p] {
			t.Fatalf("message %d is %s, want number %d (%v)", i, m, next[p], err)
		}
		next[p]++
		for r := range orders {
			if orders[r][i] != m {
				t.Fatalf("reader %d differs at %d", r, i)
			}
		}
	}
	if int64(len(orders[0])) != total {
		t.Fatalf("%d messages are kept, %d were acknowledged", len(orders[0]), total)
	}
	t.Logf("%d messages over %d kills", total, kills)
}
