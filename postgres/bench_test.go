package postgres_test

import (
	"context"
	"fmt"
	osexec "os/exec"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
)

// counter is a sink that counts.
type counter struct {
	want int64
	seen int64
	done chan struct{}
}

func (c *counter) Reset(feed.Position, string) {}
func (c *counter) Commit(tx *feed.Tx) {
	if c.seen += int64(len(tx.Changes)); c.seen == c.want {
		close(c.done)
	}
}

const wide = `CREATE TABLE w (id bigint PRIMARY KEY, tenant int, title text, state text, n int, price numeric(10,2), at timestamptz, body text); ALTER TABLE w REPLICA IDENTITY FULL;
	INSERT INTO w SELECT i, i % 100, 'title ' || i, 'open', i, i / 7.0, now(), repeat('x', 60) FROM generate_series(1, 2000) i;
	CREATE PUBLICATION tidewire FOR TABLE w`

// BenchmarkBacklog drains the same backlog with pg_recvlogical, which throws it away, and with the feed, in turns. recv/s and feed/s are changes per second (medians of three), ratio is feed over recv.
func BenchmarkBacklog(b *testing.B) {
	for name, load := range map[string]struct {
		changes int64
		sql     string
	}{
		"updates in transactions of 1000": {300_000, `DO $$ BEGIN FOR i IN 1..300 LOOP UPDATE w SET n = n + 1, title = 'title ' || n WHERE id <= 1000; COMMIT; END LOOP; END $$`},
		"inserts one by one":              {100_000, `DO $$ BEGIN FOR i IN 1..100000 LOOP INSERT INTO w VALUES (i + 10000, i % 100, 'title ' || i, 'open', i, i / 7.0, now(), repeat('x', 60)); COMMIT; END LOOP; END $$`},
	} {
		b.Run(name, func(b *testing.B) {
			url := testenv.Postgres(b)
			sql := connect(b, url)
			e := &env{TB: b, url: url, sql: sql}
			e.exec(wide)
			e.exec(`SELECT pg_create_logical_replication_slot('source_' || current_database(), 'pgoutput')`)
			e.exec(`SET synchronous_commit = off`)
			e.exec(load.sql)
			e.exec(`SET synchronous_commit = on`)
			end := e.value(`pg_current_wal_insert_lsn()`)
			e.exec(`UPDATE w SET n = 0 WHERE id = 2000`) // flushed, and where both end
			var recv, ours, mallocs, bytes []float64
			for i := range 3 {
				for _, what := range []string{"recv", "feed"} {
					slot := fmt.Sprintf("%s_%d_%s", what, i, e.value(`current_database()`))
					e.exec(fmt.Sprintf(`SELECT pg_copy_logical_replication_slot('source_' || current_database(), '%s')`, slot))
					var took time.Duration
					if what == "recv" {
						took = receive(b, url, slot, end)
						recv = append(recv, float64(load.changes)/took.Seconds())
					} else {
						var m [2]runtime.MemStats
						took = drain(b, url, slot, load.changes+1, &m)
						ours = append(ours, float64(load.changes)/took.Seconds())
						mallocs = append(mallocs, float64(m[1].Mallocs-m[0].Mallocs)/float64(load.changes))
						bytes = append(bytes, float64(m[1].TotalAlloc-m[0].TotalAlloc)/float64(load.changes))
					}
					eventually(b, func() bool {
						_, err := sql.Exec(context.Background(), `SELECT pg_drop_replication_slot('`+slot+`')`)
						return err == nil
					})
				}
			}
			e.exec(`SELECT pg_drop_replication_slot('source_' || current_database())`)
			b.Logf("recv %.0f, feed %.0f", recv, ours)
			b.ReportMetric(median(recv), "recv/s")
			b.ReportMetric(median(ours), "feed/s")
			b.ReportMetric(median(ours)/median(recv), "ratio")
			b.ReportMetric(median(mallocs), "mallocs/change")
			b.ReportMetric(median(bytes), "B/change")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func median(f []float64) float64 {
	slices.Sort(f)
	return f[len(f)/2]
}

func receive(b *testing.B, url, slot, end string) time.Duration {
	cmd := osexec.Command(testenv.PostgresBin(b, "pg_recvlogical"), "-d", url, "-S", slot, "--start", "-n", "-f", "/dev/null", "-F", "0", "-E", end, "-o", "proto_version=1", "-o", "publication_names=tidewire")
	begin := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("pg_recvlogical: %v: %s", err, out)
	}
	return time.Since(begin)
}

// drain includes the connection, as pg_recvlogical's time does.
func drain(b *testing.B, url, slot string, changes int64, m *[2]runtime.MemStats) time.Duration {
	o := options(b, url)
	o.Slot = slot
	db, err := postgres.Open(context.Background(), o)
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Table(context.Background(), named("w")); err != nil {
		b.Fatal(err)
	}
	c := &counter{want: changes, done: make(chan struct{})}
	runtime.ReadMemStats(&m[0])
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	begin := time.Now()
	go func() { ended <- db.RunBacklog(ctx, c) }()
	select {
	case <-c.done:
	case err := <-ended:
		b.Fatal(err)
	case <-time.After(2 * time.Minute):
		b.Fatalf("%+v", db.Stats())
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&m[1])
	cancel()
	<-ended
	return took
}

// arrivals is a sink that notes when each row came.
type arrivals struct {
	mu   sync.Mutex // guards below
	at   map[int64]time.Time
	seen atomic.Int64
}

func (a *arrivals) Reset(feed.Position, string) {}
func (a *arrivals) Commit(tx *feed.Tx) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range tx.Changes {
		a.at[c.New[0].Int()] = now
	}
	a.seen.Add(int64(len(tx.Changes)))
}

// BenchmarkLatency writes 1,000 transactions of one row each second, and measures from the moment that the writer knows of the commit to the call of the sink. Negative is 0.
func BenchmarkLatency(b *testing.B) {
	e := prepare(b, `CREATE TABLE w (id bigint PRIMARY KEY, body text); ALTER TABLE w REPLICA IDENTITY FULL`)
	e.table("w")
	a := &arrivals{at: map[int64]time.Time{}}
	stop := run(b, e.db, a)
	eventually(b, func() bool { return e.db.Stats().Connected })
	const writers, seconds = 4, 10
	acks := make([]map[int64]time.Time, writers)
	var wg sync.WaitGroup
	for w := range writers {
		c := connect(b, e.url)
		acks[w] = map[int64]time.Time{}
		wg.Go(func() {
			tick := time.NewTicker(time.Second * writers / 1000)
			defer tick.Stop()
			for n := range int64(1000 * seconds / writers) {
				<-tick.C
				id := n*writers + int64(w)
				if _, err := c.Exec(context.Background(), `INSERT INTO w VALUES ($1, 'a body of some length')`, id); err != nil {
					b.Error(err)
					return
				}
				acks[w][id] = time.Now()
			}
		})
	}
	begin := time.Now()
	wg.Wait()
	rate := 1000 * seconds / time.Since(begin).Seconds()
	eventually(b, func() bool { return a.seen.Load() == 1000*seconds })
	_ = stop()
	var late []float64
	for _, ack := range acks {
		for id, at := range ack {
			late = append(late, max(0, a.at[id].Sub(at).Seconds()*1000))
		}
	}
	slices.Sort(late)
	b.ReportMetric(late[len(late)/2], "p50-ms")
	b.ReportMetric(late[len(late)*99/100], "p99-ms")
	b.ReportMetric(late[len(late)-1], "max-ms")
	b.ReportMetric(rate, "tx/s")
	b.ReportMetric(0, "ns/op")
}
