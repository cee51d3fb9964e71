package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/row"
)

const simple = `CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE other (id int)`

// insert writes one row, and expects it to come next.
func (e *env) insert(id int) *feed.Tx {
	e.Helper()
	e.exec(fmt.Sprintf("INSERT INTO t VALUES (%d)", id))
	tx := e.sink.tx(e)
	expect(e, tx, fmt.Sprintf("insert public.t -> [%d]", id))
	return tx
}

func (e *env) slots() string {
	return e.value(`SELECT coalesce(string_agg(slot_name || ' ' || temporary, ', ' ORDER BY slot_name), 'none') FROM pg_replication_slots WHERE database = current_database()`)
}

func TestS24_TemporarySlotIsGoneWithRun(t *testing.T) {
	t.Parallel()
	e := start(t, simple)
	e.table("t")
	e.insert(1)
	if s := e.slots(); !strings.HasSuffix(s, "true") {
		t.Errorf("slots: %s", s)
	}
	if err := e.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	if s := e.slots(); s != "none" {
		t.Errorf("slots: %s", s)
	}
	// And Run can run again: from the state at the call on.
	e.exec(`INSERT INTO t VALUES (2)`)
	e.run()
	e.insert(3)
}

func TestS24_TemporarySlotIsAResetAfterALoss(t *testing.T) {
	t.Parallel()
	e := start(t, simple)
	e.table("t")
	e.insert(1)
	epoch := e.db.Stats().Epoch
	e.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()`)
	if r := e.sink.reset(t); !strings.Contains(r.reason, "temporary slot") {
		t.Errorf("reset: %s", r.reason)
	}
	e.insert(2)
	if now := e.db.Stats().Epoch; now == epoch || now == "" {
		t.Errorf("epoch %s after %s", now, epoch)
	}
}

// S24: a durable slot goes on after a loss, without a reset, a loss or a repetition.
func TestS24_DurableSlotGoesOn(t *testing.T) {
	t.Parallel()
	e := start(t, simple, durable)
	e.table("t")
	var last feed.Position
	for i := range 10 {
		e.exec(fmt.Sprintf(`INSERT INTO t VALUES (%d)`, 10*i))
		e.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()`)
		e.exec(fmt.Sprintf(`INSERT INTO t VALUES (%d); INSERT INTO other VALUES (1)`, 10*i+1))
		for j := range 2 {
			tx := e.sink.tx(t)
			expect(t, tx, fmt.Sprintf("insert public.t -> [%d]", 10*i+j))
			if tx.Position <= last {
				t.Errorf("position %s after %s", tx.Position, last)
			}
			last = tx.Position
		}
		eventually(t, func() bool { return e.db.Stats().Connected })
	}
	if err := e.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	if s := e.slots(); !strings.HasSuffix(s, "false") {
		t.Errorf("slots: %s", s)
	}
	if err := e.db.DropSlot(t.Context()); err != nil {
		t.Error(err)
	}
	if s := e.slots(); s != "none" {
		t.Errorf("slots: %s", s)
	}
	if e.db.Stats().Reconnects < 10 {
		t.Errorf("%+v", e.db.Stats())
	}
}

// S25: what was delivered and not confirmed is not delivered again; positions are the same for everybody.
func TestS25_NothingTwiceAfterACut(t *testing.T) {
	t.Parallel()
	e := prepare(t, simple)
	p := newProxy(t, e.url)
	o := options(t, e.url)
	o.ReplicationURL, o.Heartbeat = p.url, 20*time.Second // nothing is confirmed in between
	durable(&o)
	second := &env{TB: t, url: e.url, sql: e.sql, sink: &sink{}, db: open(t, o)}
	second.table("t")
	second.run()
	e.run() // with a slot of its own
	e.table("t")
	id := 0
	for range 20 {
		for range 3 {
			id++
			a := e.insert(id)
			b := second.sink.tx(t)
			expect(t, b, fmt.Sprintf("insert public.t -> [%d]", id))
			if a.Position != b.Position || a.ID != b.ID {
				t.Errorf("%s %d and %s %d", a.Position, a.ID, b.Position, b.ID)
			}
		}
		p.cut()
	}
	if second.db.Stats().Reconnects == 0 {
		t.Error("the connection was not cut")
	}
}

// P5: a connection that is dead without a sign of it is noticed.
func TestP5_HalfOpenConnection(t *testing.T) {
	t.Parallel()
	e := prepare(t, simple)
	p := newProxy(t, e.url)
	o := options(t, e.url)
	o.ReplicationURL, o.Heartbeat, o.Timeout = p.url, 100*time.Millisecond, 400*time.Millisecond
	durable(&o)
	e.db = open(t, o)
	e.table("t")
	e.run()
	e.insert(1)
	p.stall()
	e.exec(`INSERT INTO t VALUES (2)`)
	eventually(t, func() bool { return !e.db.Stats().Connected })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := e.db.Probe(ctx); !errors.Is(err, context.DeadlineExceeded) { // S51
		t.Errorf("Probe = %v", err)
	}
	// The server still has the old connection; the lock is free when it is gone.
	p.cut()
	p.flow()
	expect(t, e.sink.tx(t), "insert public.t -> [2]")
	e.insert(3)
}

func TestS51_Probe(t *testing.T) {
	t.Parallel()
	e := start(t, simple, beat(time.Hour), func(o *postgres.Options) { o.Timeout = 2 * time.Hour })
	begin := time.Now()
	for range 20 {
		if err := e.db.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(begin); d > 10*time.Second {
		t.Errorf("20 probes took %s", d)
	}
}

// P1: an idle feed lets go of the log of what does not concern it.
func TestP1_LogIsNotKeptWhileIdle(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t)
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(simple)
	e.exec(`CREATE DATABASE elsewhere`)
	o := options(t, s.URL)
	o.Slot, o.Heartbeat = "idle", 50*time.Millisecond
	e.db = open(t, o)
	e.table("t")
	e.run()
	elsewhere := connect(t, strings.Replace(s.URL, "/postgres?", "/elsewhere?", 1))
	exec(t, elsewhere, `CREATE TABLE other (id int, pad text)`)
	for name, c := range map[string]func(string){"unpublished table": e.exec, "other database": func(sql string) { exec(t, elsewhere, sql) }} {
		c(`INSERT INTO other (id) SELECT i FROM generate_series(1, 200000) i`)
		end := e.value(`pg_current_wal_insert_lsn()`)
		eventually(t, func() bool {
			// The server moves the start of what it keeps with its own notes of what runs, which a checkpoint writes.
			e.exec(`CHECKPOINT`)
			return e.value(`(SELECT confirmed_flush_lsn >= '`+end+`' AND restart_lsn >= '`+end+`' FROM pg_replication_slots WHERE slot_name = 'idle')`) == "true"
		})
		t.Logf("%s: %s bytes kept", name, e.value(`(SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) FROM pg_replication_slots)`))
	}
	// And the feed itself writes nothing while nothing happens.
	before := e.value(`pg_current_wal_insert_lsn()`)
	beats := time.Now().Add(500 * time.Millisecond)
	eventually(t, func() bool { return time.Now().After(beats) })
	if grown := e.value(`pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '` + before + `')`); len(grown) > 3 {
		t.Errorf("the log grew by %s bytes", grown)
	}
	e.insert(1)
}

// P2: what the sink has not taken is not confirmed. P4: a sink that blocks for longer than wal_sender_timeout does not cost the connection.
func TestP2_P4_BlockedSink(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t, "wal_sender_timeout=1s")
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(simple)
	o := options(t, s.URL)
	o.Slot = "blocked" // the heartbeat is longer than the server's timeout
	e.db = open(t, o)
	e.table("t")
	e.run()
	block := make(chan struct{})
	e.sink.mu.Lock()
	e.sink.block = block
	e.sink.mu.Unlock()
	first := e.insert(1)
	pid := e.value(`(SELECT active_pid FROM pg_replication_slots)`)
	e.exec(`INSERT INTO t SELECT i FROM generate_series(2, 50000) i`) // more than the buffers between us hold
	until := time.Now().Add(3 * time.Second)
	eventually(t, func() bool { return time.Now().After(until) })
	var hi, lo uint64
	_, _ = fmt.Sscanf(e.value(`(SELECT confirmed_flush_lsn FROM pg_replication_slots)`), "%X/%X", &hi, &lo)
	if at := feed.Position(fmt.Sprintf("%016X", hi<<32|lo)); at >= first.Position {
		t.Errorf("%s is confirmed, the transaction ends at %s", at, first.Position)
	}
	if now := e.value(`(SELECT active_pid FROM pg_replication_slots)`); now != pid {
		t.Errorf("the connection was lost: %s, %s", pid, now)
	}
	close(block)
	if tx := e.sink.tx(t); len(tx.Changes) != 49999 {
		t.Errorf("%d changes", len(tx.Changes))
	}
}

// P6: a slot that somebody dropped, moved or replaced is a reset, and the feed goes on.
func TestP6_SlotIsGone(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]struct{ sql, reason string }{
		"dropped": {`SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()`, "the slot is gone"},
		"moved":   {`SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots WHERE database = current_database()`, "the slot was moved by somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := prepare(t, simple)
			p := newProxy(t, e.url)
			o := options(t, e.url)
			o.ReplicationURL = p.url
			durable(&o)
			e.db = open(t, o)
			e.table("t")
			e.run()
			e.insert(1)
			epoch := e.db.Stats().Epoch
			p.stall() // a new connection gets nowhere
			p.cut()
			eventually(t, func() bool {
				return e.value(`(SELECT active_pid IS NULL FROM pg_replication_slots WHERE database = current_database())`) == "true"
			})
			e.exec(`INSERT INTO t VALUES (2)`)
			e.exec(step.sql)
			p.flow()
			p.cut()
			if r := e.sink.reset(t); r.reason != step.reason {
				t.Errorf("reset: %s", r.reason)
			}
			eventually(t, func() bool { return e.db.Stats().Connected })
			e.insert(3)
			if e.db.Stats().Epoch == epoch {
				t.Error("the epoch is the same")
			}
		})
	}
}

// P20: changes that were made while there was no publication cannot be decoded by a server before version 18, ever. The slot is made again.
func TestP20_PublicationWasMissing(t *testing.T) {
	t.Parallel()
	e := start(t, simple, durable, beat(50*time.Millisecond))
	e.table("t")
	e.insert(1)
	e.exec(`DROP PUBLICATION tidewire`)
	e.exec(`INSERT INTO t VALUES (2)`)
	for {
		r := e.sink.reset(t)
		if r.reason == "the publication was missing" {
			break
		}
	}
	eventually(t, func() bool { return e.db.Stats().Connected })
	e.table("t")
	for id := 3; ; id++ { // resets for the table that left the publication may still come
		e.exec(fmt.Sprintf("INSERT INTO t VALUES (%d)", id))
		if e.sink.await(t).tx != nil {
			return
		}
		e.table("t")
	}
}

// P6: a slot that the server has invalidated is made again.
func TestP6_SlotIsLost(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t, "max_slot_wal_keep_size=1MB", "max_wal_size=32MB", "min_wal_size=32MB")
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(simple)
	p := newProxy(t, e.url)
	o := options(t, s.URL)
	o.Slot, o.ReplicationURL = "lost", p.url
	e.db = open(t, o)
	e.table("t")
	e.run()
	e.insert(1)
	p.stall()
	p.cut()
	eventually(t, func() bool { return e.value(`(SELECT active_pid IS NULL FROM pg_replication_slots)`) == "true" })
	eventually(t, func() bool {
		e.exec(`INSERT INTO other SELECT i FROM generate_series(1, 100000) i`)
		e.exec(`SELECT pg_switch_wal()`)
		e.exec(`CHECKPOINT`)
		return e.value(`(SELECT wal_status FROM pg_replication_slots)`) == "lost"
	})
	direct := options(t, s.URL)
	direct.Slot = o.Slot
	if find(t, open(t, direct).Check(t.Context()), postgres.CodeSlotLost).Fatal {
		t.Error("a lost slot is made again")
	}
	p.flow()
	p.cut()
	if r := e.sink.reset(t); r.reason != "the server has thrown away what the slot needs" {
		t.Errorf("reset: %s", r.reason)
	}
	e.insert(2)
}

// S25: one process reads the slot; another stands by and takes over.
func TestS25_StandbyTakesOver(t *testing.T) {
	t.Parallel()
	e := prepare(t, simple)
	o := options(t, e.url)
	o.Heartbeat = 100 * time.Millisecond
	durable(&o)
	e.db = open(t, o)
	e.table("t")
	e.run()
	other := &env{TB: t, url: e.url, sql: e.sql, sink: &sink{}, db: open(t, o)}
	other.table("t")
	stop := run(t, other.db, other.sink)
	eventually(t, func() bool { return other.db.Stats().StandingBy })
	for i := range 5 {
		e.insert(i)
	}
	if n := len(other.sink.rest()); n != 0 {
		t.Errorf("the standby was told %d things", n)
	}
	if err := e.stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	other.sink.reset(t)
	other.insert(10)
	// A standby can be cancelled, and leaves nothing behind.
	third := open(t, o)
	stopThird := run(t, third, &sink{})
	eventually(t, func() bool { return third.Stats().StandingBy })
	if err := stopThird(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	// The lock goes with the server's process, so whoever comes first goes on.
	e.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()`)
	other.insert(11)
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// S42: the server is killed, and started again.
func TestS24_ServerIsKilled(t *testing.T) {
	t.Parallel()
	for _, slot := range []string{"", "killed"} {
		t.Run("slot "+slot, func(t *testing.T) {
			t.Parallel()
			s := testenv.NewServer(t)
			e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
			e.exec(simple)
			o := options(t, s.URL)
			o.Slot = slot
			e.db = open(t, o)
			def := e.table("t")
			e.run()
			e.insert(1)
			for i := range 3 {
				if i == 1 {
					s.Stop()
				} else {
					s.Kill()
				}
				eventually(t, func() bool { return !e.db.Stats().Connected })
				s.Start()
				e.sql = connect(t, s.URL)
				if slot == "" {
					e.sink.reset(t)
				} else {
					eventually(t, func() bool { return e.db.Stats().Connected })
				}
				e.insert(2 + i)
				if rows, _ := e.snapshot(def); len(rows) != 2+i {
					t.Errorf("%d rows", len(rows))
				}
			}
		})
	}
}

// P46: what a read has seen before it was flushed can be gone after a crash. Then everything is read again.
func TestP46_CrashLosesWhatWasRead(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t, "wal_writer_delay=10s")
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(simple)
	o := options(t, s.URL)
	o.Slot = "crash"
	e.db = open(t, o)
	def := e.table("t")
	e.run()
	e.insert(1)
	e.exec(`SET synchronous_commit = off; INSERT INTO t VALUES (2)`)
	if rows, _ := e.snapshot(def); len(rows) != 2 {
		t.Fatalf("rows %v", rows)
	}
	s.Kill()
	s.Start()
	e.sql = connect(t, s.URL)
	if r := e.sink.reset(t); r.reason != "the server may have lost commits that were read" {
		t.Errorf("reset: %s", r.reason)
	}
	if rows, _ := e.snapshot(def); len(rows) != 1 {
		t.Errorf("rows %v: the commit was not lost, so the test shows nothing", rows)
	}
	e.insert(3)
}

// P7: a slot that waits for an open transaction says so, and Run can be cancelled meanwhile.
func TestP7_SlotWaitsForAnOpenTransaction(t *testing.T) {
	t.Parallel()
	e := prepare(t, simple)
	e.table("t")
	long := connect(t, e.url)
	exec(t, long, `BEGIN; INSERT INTO other VALUES (1)`)
	stop := run(t, e.db, e.sink)
	eventually(t, func() bool {
		return e.value(`(SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%' AND datname = current_database())`) == "1"
	})
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	eventually(t, func() bool { return e.slots() == "none" })
	e.stop = run(t, e.db, e.sink)
	eventually(t, func() bool { return !strings.HasPrefix(e.slots(), "none") })
	if n := len(e.sink.rest()); n != 0 {
		t.Errorf("%d events", n)
	}
	exec(t, long, `COMMIT`)
	e.sink.reset(t)
	e.insert(1)
}

func TestS22_RunOnce(t *testing.T) {
	t.Parallel()
	e := start(t, simple)
	if err := e.db.Run(t.Context(), e.sink); !errors.Is(err, postgres.ErrRunning) {
		t.Errorf("Run = %v", err)
	}
}

// S22: Run returns when it is cancelled while there is no server.
func TestS22_CancelWithoutServer(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t)
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.db = open(t, options(t, s.URL))
	e.run()
	s.Kill()
	eventually(t, func() bool { return e.db.Stats().Reconnects > 1 })
	if err := e.stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
}

// P20: a table joins the feed when the transactions that have written to it have ended: what they wrote before would not come.
func TestP20_TableJoinsBehindItsWriters(t *testing.T) {
	t.Parallel()
	e := start(t, simple)
	writer := connect(t, e.url)
	exec(t, writer, `BEGIN; INSERT INTO t VALUES (1)`)
	joined := make(chan *row.Table)
	go func() { joined <- e.table("t") }()
	waited := time.Now().Add(1500 * time.Millisecond)
	eventually(t, func() bool {
		select {
		case <-joined:
			t.Fatal("the table has joined")
		default:
		}
		return time.Now().After(waited)
	})
	exec(t, writer, `INSERT INTO t VALUES (2); COMMIT`)
	def := <-joined
	if rows, _ := e.snapshot(def); len(rows) != 2 {
		t.Errorf("rows %v", rows)
	}
	if n := len(e.sink.rest()); n != 0 {
		t.Errorf("%d events", n)
	}
	e.insert(3)
}

// P20: a table that joins the feed while it is written to misses nothing: what was written before is in the read.
func TestP20_TableJoinsWhileItIsWritten(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE seed (id int PRIMARY KEY)`, func(o *postgres.Options) { o.Tables = []feedName{named("seed")} })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	writer := connect(t, e.url)
	for i := range 12 {
		e.exec(fmt.Sprintf(`CREATE TABLE j%d (id int PRIMARY KEY)`, i))
	}
	go func() {
		defer close(done)
		for n := 0; ctx.Err() == nil; n++ {
			var sql strings.Builder
			sql.WriteString("BEGIN;")
			for i := range 12 {
				fmt.Fprintf(&sql, "INSERT INTO j%d VALUES (%d);", i, n)
			}
			sql.WriteString("COMMIT")
			_, _ = writer.PgConn().Exec(context.Background(), sql.String()).ReadAll()
		}
	}()
	type joined struct {
		rows  int
		fence feed.Fence
	}
	var tables []joined
	for i := range 12 {
		def := e.table(fmt.Sprintf("j%d", i))
		rows, fence := e.snapshot(def)
		tables = append(tables, joined{len(rows), fence})
	}
	cancel()
	<-done
	if err := e.db.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := e.sink.rest()
	for i, j := range tables {
		n := j.rows
		for _, ev := range events {
			for _, c := range ev.tx.Changes {
				if c.Table.Table == fmt.Sprintf("j%d", i) && !j.fence.Includes(ev.tx) {
					n++
				}
			}
		}
		if want := e.value(fmt.Sprintf("(SELECT count(*) FROM j%d)", i)); fmt.Sprint(n) != want {
			t.Errorf("j%d: %d rows, want %s", i, n, want)
		}
	}
}

// P46: what was committed before the stream begins and is not visible yet is waited for, since it is not in the stream.
func TestP46_StreamBeginsBehindWhatIsNotVisible(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t)
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(simple)
	o := options(t, s.URL)
	o.Slot = "settle"
	e.db = open(t, o)
	def := e.table("t")
	e.run()
	if err := e.stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	e.exec(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	e.exec(`SELECT pg_reload_conf()`)
	eventually(t, func() bool { return e.value("current_setting('synchronous_standby_names')") == "nobody" })
	writer := connect(t, s.URL)
	committed := make(chan error, 1)
	go func() {
		_, err := writer.Exec(context.Background(), `INSERT INTO t VALUES (1)`)
		committed <- err
	}()
	eventually(t, func() bool {
		return e.value(`(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep')`) == "1"
	})
	e.stop = run(t, e.db, e.sink)
	until := time.Now().Add(500 * time.Millisecond)
	eventually(t, func() bool { return time.Now().After(until) })
	if n := len(e.sink.rest()); n != 0 {
		t.Errorf("the stream has begun: %d", n)
	}
	e.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	e.exec(`SELECT pg_reload_conf()`)
	e.sink.reset(t)
	if rows, _ := e.snapshot(def); len(rows) != 1 {
		t.Errorf("rows %v", rows)
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	e.insert(2)
}

// S14: transaction ids of the stream have 32 bits, and those of snapshots 64. Here they pass the end of an epoch.
func TestS14_TransactionIDsWrapAround(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t, "autovacuum=off")
	exec(t, connect(t, s.URL), `VACUUM FREEZE`) // what the catalog has so far would be in the future
	s.Stop()
	s.Exec("dd", "if=/dev/zero", "of=data/pg_xact/0FFF", "bs=8192", "count=32")
	s.Exec("pg_resetwal", "-D", "data", "-e", "5", "-x", "4294966996", "-u", "4294966000")
	s.Start()
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(`CREATE TABLE t (id int PRIMARY KEY)`)
	o := options(t, s.URL)
	o.Slot = "wrap"
	e.db = open(t, o)
	def := e.table("t")
	e.run()
	const epoch = 1 << 32
	var last uint64
	over := 0
	for id := 1; over < 20; id++ {
		before, fence := e.snapshot(def)
		tx := e.insert(id)
		after, next := e.snapshot(def)
		if len(before) != id-1 || fence.Includes(tx) || len(after) != id || !next.Includes(tx) {
			t.Fatalf("transaction %d: included %v of %d rows, then %v of %d", tx.ID, fence.Includes(tx), len(before), next.Includes(tx), len(after))
		}
		if tx.ID <= last || tx.ID < 5*epoch {
			t.Fatalf("transaction %d after %d", tx.ID, last)
		}
		if last = tx.ID; last >= 6*epoch {
			over++
			e.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots`)
		}
	}
}
