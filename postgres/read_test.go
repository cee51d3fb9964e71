package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/row"
)

// state is a table as it follows from a snapshot and the transactions after it.
type state map[row.Value]row.Row

func (s state) apply(tx *feed.Tx) {
	for _, c := range tx.Changes {
		if c.Table.Table == "mark" {
			continue
		}
		switch c.Op {
		case feed.Insert, feed.Update:
			s[c.Table.KeyOf(c.New)] = c.New
		case feed.Delete:
			delete(s, c.Table.KeyOf(c.Old))
		case feed.Truncate:
			clear(s)
		}
	}
}

// log is a sink that keeps every transaction.
type log struct {
	mu  sync.Mutex // guards below
	txs []*feed.Tx
}

func (l *log) Commit(tx *feed.Tx) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.txs = append(l.txs, tx)
}
func (l *log) Reset(feed.Position, string) {}

func (l *log) from(i int) []*feed.Tx {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.txs[i:len(l.txs):len(l.txs)]
}

// S14, P30: a snapshot and the transactions after it that it does not include are the table, whatever writers do. A reader looks where the stream stands before it reads, and applies only what comes from there on.
func TestS14_SnapshotAndStreamMeetExactly(t *testing.T) {
	t.Parallel()
	rounds := 1000
	if os.Getenv("TIDEWIRE_TEST_LONG") != "" {
		rounds = 20_000
	}
	e := prepare(t, `CREATE TABLE t (id int PRIMARY KEY, n int, pad text); ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE mark (id serial PRIMARY KEY)`, func(o *postgres.Options) { o.Reads = 8 })
	stream := &log{}
	run(t, e.db, stream)
	eventually(t, func() bool { return e.db.Stats().Connected })
	def := e.table("t")
	e.table("mark")

	ctx, cancel := context.WithCancel(t.Context())
	var writers, readers sync.WaitGroup
	for w := range 6 {
		c := connect(t, e.url)
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 1))
			for ctx.Err() == nil {
				var sql strings.Builder
				sql.WriteString("BEGIN; SET LOCAL synchronous_commit = " + []string{"on", "off"}[random.IntN(2)] + ";")
				for range 1 + random.IntN(4) {
					id, n := random.IntN(40), random.IntN(1e6)
					switch random.IntN(12) {
					case 0, 1:
						fmt.Fprintf(&sql, "DELETE FROM t WHERE id = %d;", id)
					case 2:
						fmt.Fprintf(&sql, "SAVEPOINT s; INSERT INTO t VALUES (%d, 0) ON CONFLICT DO NOTHING; ROLLBACK TO s;", id)
					case 3:
						if random.IntN(20) == 0 {
							sql.WriteString("TRUNCATE t;")
						}
					case 4:
						fmt.Fprintf(&sql, "SAVEPOINT s; UPDATE t SET n = n + 1 WHERE id > %d; RELEASE s;", id)
					default:
						fmt.Fprintf(&sql, "INSERT INTO t VALUES (%d, %d) ON CONFLICT (id) DO UPDATE SET n = %d;", id, n, n)
					}
				}
				sql.WriteString([]string{"COMMIT", "COMMIT", "COMMIT", "ROLLBACK"}[random.IntN(4)])
				if _, err := c.PgConn().Exec(context.Background(), sql.String()).ReadAll(); err != nil { // a deadlock, say
					_, _ = c.PgConn().Exec(context.Background(), "ROLLBACK").ReadAll()
				}
			}
		})
	}

	// Each reader takes a snapshot, follows the stream for a while, and takes another: both must agree.
	var done, skipped, applied atomic.Int64
	for range 6 {
		readers.Go(func() {
			for int(done.Add(1)) <= rounds && !t.Failed() {
				from := len(stream.from(0))
				before, fence := e.snapshot(def)
				now := state{}
				for _, r := range before {
					now[def.KeyOf(r)] = r
				}
				// The second one, and then a mark: once it has come, so has everything that the second one can have seen.
				after, second := e.snapshot(def)
				mark := e.markTx(t)
				var seen []*feed.Tx
				for deadline := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
					seen = stream.from(from)
					if len(seen) > 0 && seen[len(seen)-1].Position >= mark {
						break
					}
					if time.Now().After(deadline) {
						t.Error("the mark did not come")
						return
					}
				}
				if truncatedAfter(seen, second) {
					continue // the second snapshot may be of an empty table too early
				}
				for _, tx := range seen {
					if !second.Includes(tx) {
						continue
					}
					if fence.Includes(tx) {
						skipped.Add(1)
						continue
					}
					applied.Add(1)
					now.apply(tx)
				}
				want := state{}
				for _, r := range after {
					want[def.KeyOf(r)] = r
				}
				if len(now) != len(want) {
					t.Errorf("%d rows, want %d", len(now), len(want))
					return
				}
				for k, r := range want {
					if fmt.Sprint(now[k]) != fmt.Sprint(r) {
						t.Errorf("row %v, want %v", now[k], r)
						return
					}
				}
			}
		})
	}
	readers.Wait()
	cancel()
	writers.Wait()
	t.Logf("%d rounds, %d transactions skipped by the fence, %d applied", min(done.Load(), int64(rounds)), skipped.Load(), applied.Load())
	if applied.Load() == 0 || skipped.Load() == 0 {
		t.Error("the fence was not tried")
	}
}

// truncatedAfter reports whether a snapshot may have found the table empty for a TRUNCATE that it does not see.
func truncatedAfter(txs []*feed.Tx, fence feed.Fence) bool {
	for _, tx := range txs {
		for _, c := range tx.Changes {
			if c.Op == feed.Truncate && !fence.Includes(tx) {
				return true
			}
		}
	}
	return false
}

var markMu sync.Mutex

// markTx commits something, and returns a position that its transaction is not before.
func (e *env) markTx(t *testing.T) feed.Position {
	markMu.Lock()
	defer markMu.Unlock()
	var at string
	if err := e.sql.QueryRow(context.Background(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&at); err != nil {
		t.Error(err)
	}
	if _, err := e.sql.Exec(context.Background(), `INSERT INTO mark DEFAULT VALUES`); err != nil {
		t.Error(err)
	}
	var hi, lo uint64
	_, _ = fmt.Sscanf(at, "%X/%X", &hi, &lo)
	return feed.Position(fmt.Sprintf("%016X", hi<<32|lo))
}

// P46: a commit can be in the stream before it is visible, for as long as a synchronous standby does not answer. Whoever reads after it was delivered must see it.
func TestP46_StreamAheadOfVisibility(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t)
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(`CREATE TABLE t (id int PRIMARY KEY)`)
	e.db = open(t, options(t, s.URL))
	e.run()
	def := e.table("t")
	e.exec(`ALTER SYSTEM SET synchronous_standby_names = 'nobody'`)
	e.exec(`SELECT pg_reload_conf()`)
	eventually(t, func() bool { return e.value("current_setting('synchronous_standby_names')") == "nobody" })
	writer := connect(t, s.URL)
	committed := make(chan error, 1)
	go func() {
		_, err := writer.Exec(context.Background(), `INSERT INTO t VALUES (1)`)
		committed <- err
	}()
	tx := e.sink.tx(t)
	expect(t, tx, "insert public.t -> [1]")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := e.db.Read(ctx, func(feed.Snapshot) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Read = %v, want it to wait", err)
	}
	read := make(chan int, 1)
	go func() {
		rows, fence := e.snapshot(def)
		if !fence.Includes(tx) {
			t.Error("the fence does not include a transaction that was delivered before the read")
		}
		read <- len(rows)
	}()
	e.exec(`ALTER SYSTEM RESET synchronous_standby_names`)
	e.exec(`SELECT pg_reload_conf()`)
	if n := <-read; n != 1 {
		t.Errorf("%d rows", n)
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
}

// P46: with synchronous_commit=off a snapshot sees what is not in the stream yet, and the fence says so when it comes.
func TestP46_VisibilityAheadOfStream(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY)`)
	def := e.table("t")
	e.exec(`SET synchronous_commit = off; INSERT INTO t VALUES (1)`)
	rows, fence := e.snapshot(def)
	if tx := e.sink.tx(t); len(rows) != 1 || !fence.Includes(tx) {
		t.Errorf("rows %v, included %v", rows, fence.Includes(tx))
	}
}

// S26: arguments come to the server without loss, as the type that they are compared with.
func TestS26_Arguments(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE t (id bigint PRIMARY KEY, f real, n numeric, s text, u uuid, at timestamptz, d date, b bytea, j jsonb, m mood, a int[], ok bool);
		INSERT INTO t VALUES (9007199254740993, 0.1, 0.30, E'ü\\', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2026-11-30 12:00:00.000001+01', '-infinity', '\x00ff', '{"a": 1}', 'happy', '{1,NULL}', true)`)
	def := e.table("t")
	r := e.read(def, `SELECT * FROM public.t`)[0]
	for i, c := range def.Columns {
		if got := e.read(def, `SELECT * FROM public.t WHERE "`+c.Name+`" = $1`, r[i]); len(got) != 1 {
			t.Errorf("%s = %v finds %d rows", c.Name, r[i], len(got))
		}
	}
	if got := e.read(def, `SELECT * FROM public.t WHERE f = $1::double precision AND m = $2::public.mood AND $3::text IS NULL`, r[1], r[9], row.Value{}); len(got) != 1 {
		t.Errorf("%d rows", len(got))
	}
	if got := e.read(def, `SELECT * FROM public.t WHERE s = $1`, row.TextValue(`'; DROP TABLE t; --`)); len(got) != 0 {
		t.Errorf("%d rows", len(got))
	}
}

// S28: one statement reads for many arguments, which come to the server without loss too.
func TestS28_ManyReadsInOneStatement(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TABLE t (id int PRIMARY KEY, s text, n numeric, a int[]); INSERT INTO t VALUES (1, 'x', 1.50, '{1,NULL}'), (2, E'"{,}\\\\ \n''é', NULL, NULL), (3, '', -1, '{}'), (4, 'NULL', 0, NULL), (5, NULL, 2, NULL)`)
	def := e.table("t")
	batch := feed.Batch{
		Table:  def,
		SQL:    `SELECT p.n, t.* FROM (SELECT u.n, u.a1::text AS a1, u.a2::int[] AS a2 FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS u(a1, a2, n) ORDER BY u.n) AS p CROSS JOIN LATERAL (SELECT * FROM public.t AS r WHERE r.id < $1 AND (r.s = p.a1 OR r.id = ANY (p.a2)) ORDER BY r.id DESC LIMIT 2) AS t ORDER BY p.n, t.id DESC`,
		Shared: []any{"5"},
		Args:   [][]any{{"x", nil}, {nil, nil}, {"\"{,}\\\\ \n'é", "{1,3,5}"}, {"NULL", "{}"}, {"", "{NULL}"}, {"'; DROP TABLE t; --", "{1,2,3,4,5}"}},
	}
	read := func(b feed.Batch) (got string, err error) {
		err = e.db.Read(t.Context(), func(s feed.Snapshot) error {
			return s.(feed.BatchSnapshot).SelectMany(t.Context(), b, func(i int, r row.Row) { got += fmt.Sprint(i, ":", r[0], " ") })
		})
		return got, err
	}
	if got, err := read(batch); err != nil || got != "0:1 2:3 2:2 3:4 4:3 5:4 5:3 " {
		t.Errorf("SelectMany = %s, %v", got, err)
	}
	for what, change := range map[string]func(b *feed.Batch){
		"invalid input syntax": func(b *feed.Batch) { b.Args = append(slices.Clone(b.Args), []any{"x", "{a}"}) },
		"text in the server":   func(b *feed.Batch) { b.Args = append(slices.Clone(b.Args), []any{1, "{}"}) },
		"of 6":                 func(b *feed.Batch) { b.SQL = strings.Replace(b.SQL, "p.n, t.*", "p.n + 6, t.*", 1) },
		"2 columns instead":    func(b *feed.Batch) { b.SQL = strings.Replace(b.SQL, "t.*", "t.id, t.s", 1) },
		"does not exist":       func(b *feed.Batch) { b.SQL = strings.ReplaceAll(b.SQL, "r.s", "r.gone") },
	} {
		b := batch
		change(&b)
		_, err := read(b)
		if err == nil || !strings.Contains(err.Error(), what) || errors.Is(err, feed.ErrAltered) != (what == "2 columns instead" || what == "does not exist") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestP17_ReadOfAnAlteredTable(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 2)`)
	def := e.table("t")
	e.exec(`ALTER TABLE t ALTER a TYPE text USING 'x'`)
	err := e.db.Read(t.Context(), func(s feed.Snapshot) error {
		_, err := s.Select(t.Context(), feed.Select{Table: def, SQL: `SELECT id, a FROM public.t`})
		return err
	})
	if !errors.Is(err, feed.ErrAltered) {
		t.Errorf("Read = %v", err)
	}
	e.exec(`ALTER TABLE t DROP a`)
	err = e.db.Read(t.Context(), func(s feed.Snapshot) error {
		_, err := s.Select(t.Context(), feed.Select{Table: def, SQL: `SELECT id, a FROM public.t`})
		return err
	})
	if !errors.Is(err, feed.ErrAltered) {
		t.Errorf("Read = %v", err)
	}
	if rows := e.read(e.table("t"), `SELECT * FROM public.t`); fmt.Sprint(rows) != "[[1]]" {
		t.Errorf("rows %v", rows)
	}
}

func TestS13_ReadsAreBoundedAndCancelled(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TABLE t (id int PRIMARY KEY)`, func(o *postgres.Options) { o.Reads = 1 })
	def := e.table("t")
	ctx, cancel := context.WithCancel(t.Context())
	inside := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- e.db.Read(ctx, func(s feed.Snapshot) error {
			close(inside)
			_, err := s.Select(ctx, feed.Select{Table: def, SQL: `SELECT 1 FROM pg_sleep(60)`})
			return err
		})
	}()
	<-inside
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := e.db.Read(short, func(feed.Snapshot) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second read: %v", err)
	}
	if now := e.table("t"); now != def { // the catalog has connections of its own
		t.Error("another pointer")
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("the read was not cancelled")
	}
	if rows, _ := e.snapshot(def); len(rows) != 0 {
		t.Errorf("rows %v", rows)
	}
	// A snapshot sees one state, and cannot write.
	err := e.db.Read(t.Context(), func(s feed.Snapshot) error {
		e.exec(`INSERT INTO t VALUES (1)`)
		rows, err := s.Select(t.Context(), feed.Select{Table: def, SQL: `SELECT * FROM public.t`})
		if len(rows) != 1 && err == nil { // the snapshot was taken before
			_, err = s.Select(t.Context(), feed.Select{Table: def, SQL: `INSERT INTO public.t VALUES (2) RETURNING *`})
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("Read = %v", err)
	}
}
