package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/load"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// The table of the backlog: 9 columns, 2,000 rows of about 160 bytes.
const backlogTable = `CREATE TABLE w (id bigint PRIMARY KEY, tenant int, project int, owner int, n int, price int, done_at timestamptz, title text, body text);
	ALTER TABLE w REPLICA IDENTITY FULL;
	CREATE INDEX ON w (tenant); CREATE INDEX ON w (owner); CREATE INDEX ON w (price);
	INSERT INTO w SELECT i, i % 1000, i % 50, i * 10, i % 1000, i * 50, NULL, 'title ' || i, repeat('x', 60) FROM generate_series(1, 2000) i;
	ANALYZE w;
	CREATE PUBLICATION tidewire FOR TABLE w;
	CREATE ROLE decode SUPERUSER REPLICATION LOGIN; CREATE ROLE engine SUPERUSER REPLICATION LOGIN`

// mix is the live queries: each with its share in a hundred, and the input of the k-th. All pairs of query and input are distinct, and a change concerns about 13 of them.
var mix = []struct {
	share int
	where string
	input func(k int) string
}{
	{50, "tenant = $tenant AND project = $project", func(k int) string { return fmt.Sprintf(`{"tenant":%d,"project":%d}`, k%1000, k/1000) }},
	{20, "owner = $owner", func(k int) string { return fmt.Sprintf(`{"owner":%d}`, k) }},
	{12, "tenant = $tenant AND n >= $from AND n < $to", func(k int) string {
		return fmt.Sprintf(`{"tenant":%d,"from":%d,"to":%d}`, k%1000, k/1000*80, k/1000*80+250)
	}},
	{6, "owner IN ($a, $b)", func(k int) string { return fmt.Sprintf(`{"a":%d,"b":%d}`, k*3, k*3+1) }},
	{5, "id = $id", func(k int) string { return fmt.Sprintf(`{"id":%d}`, k+1) }},
	{4, "price >= $from AND price < $to", func(k int) string { return fmt.Sprintf(`{"from":%d,"to":%d}`, k*25, k*25+100) }},
	{3, "owner = $owner AND done_at IS NULL", func(k int) string { return fmt.Sprintf(`{"owner":%d}`, k*6) }},
}

type backlogLoad struct {
	name    string
	changes int
	sql     string
}

func backlogLoads() []backlogLoad {
	bulk, single := 300, 150_000
	if *quick {
		bulk, single = 60, 30_000
	}
	const set = `UPDATE w SET n = (n + 37) % 1000, project = (project + 1) % 50, title = 'title ' || n`
	return []backlogLoad{
		{fmt.Sprintf("%d transactions of 1,000 rows", bulk), bulk * 1000, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP %s WHERE id <= 1000; COMMIT; END LOOP; END $$`, bulk, set)},
		{fmt.Sprintf("%d transactions of one row", single), single, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP %s WHERE id = 1 + i %% 2000; COMMIT; END LOOP; END $$`, single, set)},
	}
}

// follower is a feed that is cut off while a backlog is made, and drains it then: a role of its own may log in, or not.
type follower struct {
	name   string // of the role and of the slot
	db     *postgres.Database
	engine *live.Engine // nil: the feed alone, counted
	seen   atomic.Int64 // changes
	frames atomic.Int64
	bytes  atomic.Int64
}

func (f *follower) Reset(feed.Position, string) {}
func (f *follower) Commit(tx *feed.Tx)          { f.seen.Add(int64(len(tx.Changes))) }

// taken is how many changes were taken in, and how many wait inside.
func (f *follower) taken() (changes, waiting int) {
	if f.engine == nil {
		return int(f.seen.Load()), 0
	}
	s := f.engine.Stats()
	return int(s.Changes), s.Pending
}

func newFollower(ctx context.Context, d *database, name string, withEngine bool) (*follower, error) {
	f := &follower{name: name}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	f.db, err = postgres.Open(ctx, postgres.Options{
		URL: d.url, ReplicationURL: strings.Replace(d.url, "postgres@", name+"@", 1), Slot: name, Heartbeat: time.Second, Logger: quiet,
		Tables: []row.Name{{Schema: "public", Table: "w"}},
	})
	if err != nil || !withEngine {
		return f, err
	}
	f.engine = live.New(live.Options{
		Database: f.db, MaxEntries: 100_000, Logger: quiet,
		Publish: func(_ *live.Entry, frame live.Frame) {
			f.frames.Add(1)
			f.bytes.Add(int64(len(frame.Payload)))
		},
	})
	for _, m := range mix {
		if err := f.engine.Declare(query.Definition{Name: m.where, From: "w", Where: m.where}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *follower) run(ctx context.Context) error {
	if f.engine != nil {
		return f.engine.Run(ctx)
	}
	return f.db.Run(ctx, f)
}

// subscribe acquires all entries.
func (f *follower) subscribe(ctx context.Context, n int) error {
	var g sync.WaitGroup
	var failed atomic.Pointer[error]
	places := make(chan struct{}, 1024)
	for _, m := range mix {
		for k := range n * m.share / 100 {
			places <- struct{}{}
			g.Go(func() {
				defer func() { <-places }()
				if _, err := f.engine.Acquire(ctx, m.where, json.RawMessage(m.input(k)), nil); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			})
		}
	}
	g.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// cut ends the connection, and lets none in.
func (f *follower) cut(ctx context.Context, d *database) error {
	if err := d.exec(ctx, "ALTER ROLE "+f.name+" NOLOGIN"); err != nil {
		return err
	}
	if err := d.exec(ctx, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active", f.name); err != nil {
		return err
	}
	return until(ctx, "the slot is free", time.Minute, func() bool { return !f.active(ctx, d) })
}

func (f *follower) active(ctx context.Context, d *database) bool {
	v, _ := d.value(ctx, "SELECT active FROM pg_replication_slots WHERE slot_name = '"+f.name+"'")
	return v == "true"
}

// cost is what a drain took: from when the server has begun the connection, so its setting up is part of it, as it is of pg_recvlogical's time.
type cost struct {
	took        time.Duration
	cpu, sender time.Duration // of this process, and of the server's that sends
	allocated   uint64
}

// drain lets the feed in again, until it has taken in so many changes.
func (f *follower) drain(ctx context.Context, d *database, target int) (c cost, err error) {
	if f.engine != nil {
		defer profiled()()
	}
	var mem [2]runtime.MemStats
	runtime.ReadMemStats(&mem[0])
	before, _ := load.UsageOf(os.Getpid())
	if err := d.exec(ctx, "ALTER ROLE "+f.name+" LOGIN"); err != nil {
		return c, err
	}
	err = until(ctx, "the backlog of "+f.name, 5*time.Minute, func() bool {
		changes, waiting := f.taken()
		return changes >= target && waiting == 0
	})
	end := time.Now()
	if err != nil {
		return c, err
	}
	after, _ := load.UsageOf(os.Getpid())
	runtime.ReadMemStats(&mem[1])
	var begin time.Time
	var sender int
	err = d.sql.QueryRow(ctx, "SELECT backend_start, pid FROM pg_stat_activity JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = $1", f.name).Scan(&begin, &sender)
	if err != nil {
		return c, err
	}
	if n, _ := f.taken(); n != target {
		return c, fmt.Errorf("%s: %d changes, not %d", f.name, n, target)
	}
	u, err := load.UsageOf(sender)
	return cost{end.Sub(begin), after.CPU() - before.CPU(), u.CPU(), mem[1].TotalAlloc - mem[0].TotalAlloc}, err
}

var profiles atomic.Int64

// profiled writes a CPU profile of this process, if asked for, until the function that it returns is called.
func profiled() (stop func()) {
	if *profile == "" {
		return func() {}
	}
	f, err := os.Create(fmt.Sprintf("%s.%d", *profile, profiles.Add(1)))
	if err != nil {
		log.Fatal(err)
	}
	_ = pprof.StartCPUProfile(f)
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}
}

func receive(ctx context.Context, d *database, slot, end string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, testenv.PostgresBin(d, "pg_recvlogical"), "-d", d.url, "-S", slot, "--start", "-n", "-f", "/dev/null", "-F", "0", "-E", end,
		"-o", "proto_version=1", "-o", "publication_names=tidewire")
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("pg_recvlogical: %w: %s", err, out)
	}
	return time.Since(begin), nil
}

// backlog drains the same backlog with pg_recvlogical, which throws it away, with the feed alone, and with an engine of 100,000 live queries that makes frames of it.
func backlog(ctx context.Context, _ []target) error {
	const entries = 100_000
	d, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := d.exec(ctx, backlogTable); err != nil {
		return err
	}
	var followers []*follower
	var running sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	defer running.Wait()
	defer stop()
	for _, name := range []string{"decode", "engine"} {
		f, err := newFollower(ctx, d, name, name == "engine")
		if err != nil {
			return err
		}
		defer f.db.Close()
		followers = append(followers, f)
		running.Go(func() {
			if err := f.run(run); err != nil && run.Err() == nil {
				fmt.Fprintln(os.Stderr, name, err)
			}
		})
		if err := until(ctx, name+" is connected", time.Minute, func() bool { return f.db.Stats().Connected }); err != nil {
			return err
		}
	}
	engine := followers[1]
	begin, before := time.Now(), heap()
	if err := engine.subscribe(ctx, entries); err != nil {
		return err
	}
	s := engine.engine.Stats()
	fmt.Printf("## Backlog: decoded, and matched against %d live queries\n\n%d entries read in %.1f s with %d statements in %d snapshots; %d bytes of heap each, with its rows\n\n",
		entries, s.Entries, time.Since(begin).Seconds(), s.Selects, s.Reads, (heap()-before)/uint64(s.Entries))
	fmt.Println("| backlog | pg_recvlogical, changes/s | feed alone | ratio | with queries and frames | ratio | frames a change | thousand frames/s | CPU µs a change | of the server's sender | KiB allocated a change |\n|---|---|---|---|---|---|---|---|---|---|---|")
	for _, l := range backlogLoads() {
		if err := l.measure(ctx, d, followers[0], engine); err != nil {
			return err
		}
	}
	fmt.Println()
	return nil
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (l backlogLoad) measure(ctx context.Context, d *database, decode, engine *follower) error {
	type round struct{ recv, decode, engine, frames, perSecond, cpu, sender, kib float64 }
	var all []round
	for i := range *rounds {
		// Both stand at the same place of the log, which the slot for pg_recvlogical is a copy of.
		if err := d.exec(ctx, "UPDATE w SET n = 0 WHERE id = 2000"); err != nil {
			return err
		}
		at, err := d.value(ctx, "pg_current_wal_flush_lsn()")
		if err != nil {
			return err
		}
		for _, f := range []*follower{decode, engine} {
			err := until(ctx, f.name+" confirms", time.Minute, func() bool {
				v, _ := d.value(ctx, "SELECT confirmed_flush_lsn >= '"+at+"' FROM pg_replication_slots WHERE slot_name = '"+f.name+"'")
				return v == "true"
			})
			if err != nil {
				return err
			}
			if err := f.cut(ctx, d); err != nil {
				return err
			}
		}
		resets := engine.engine.Stats().Resets
		for _, sql := range []string{"SELECT pg_copy_logical_replication_slot('engine', 'recv')", "SET synchronous_commit = off", l.sql, "SET synchronous_commit = on"} {
			if err := d.exec(ctx, sql); err != nil {
				return err
			}
		}
		end, err := d.value(ctx, "pg_current_wal_insert_lsn()")
		if err != nil {
			return err
		}
		if err := d.exec(ctx, "UPDATE w SET n = 0 WHERE id = 2000"); err != nil { // flushed, and where all end
			return err
		}
		var r round
		steps := []func() error{
			func() error {
				took, err := receive(ctx, d, "recv", end)
				r.recv = float64(l.changes) / took.Seconds()
				return err
			},
			func() error {
				n, _ := decode.taken()
				c, err := decode.drain(ctx, d, n+l.changes+1)
				r.decode = float64(l.changes) / c.took.Seconds()
				return err
			},
			func() error {
				n, _ := engine.taken()
				frames := engine.frames.Load()
				c, err := engine.drain(ctx, d, n+l.changes+1)
				made, changes := float64(engine.frames.Load()-frames), float64(l.changes)
				r.engine, r.frames, r.perSecond = changes/c.took.Seconds(), made/changes, made/c.took.Seconds()/1000
				r.cpu, r.sender, r.kib = float64(c.cpu.Microseconds())/changes, float64(c.sender.Microseconds())/changes, float64(c.allocated)/1024/changes
				return err
			},
		}
		for k := range steps { // each is first once
			if err := steps[(k+i)%len(steps)](); err != nil {
				return err
			}
		}
		if n := engine.engine.Stats().Resets; n != resets {
			return fmt.Errorf("the feed began anew %d times", n-resets)
		}
		if err := d.exec(ctx, "SELECT pg_drop_replication_slot('recv')"); err != nil {
			return err
		}
		all = append(all, r)
	}
	m := func(f func(round) float64) float64 {
		v := make([]float64, len(all))
		for i, r := range all {
			v[i] = f(r)
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	fmt.Printf("| %s | %.0f | %.0f | %.2f | %.0f | %.2f | %.1f | %.0f | %.1f | %.1f | %.1f |\n", l.name, m(func(r round) float64 { return r.recv }),
		m(func(r round) float64 { return r.decode }), m(func(r round) float64 { return r.decode / r.recv }),
		m(func(r round) float64 { return r.engine }), m(func(r round) float64 { return r.engine / r.recv }),
		m(func(r round) float64 { return r.frames }), m(func(r round) float64 { return r.perSecond }), m(func(r round) float64 { return r.cpu }), m(func(r round) float64 { return r.sender }), m(func(r round) float64 { return r.kib }))
	return nil
}
