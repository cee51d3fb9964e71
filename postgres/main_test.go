package postgres_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/row"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.M{M: m}) }

// limit is how long anything may take.
const limit = 30 * time.Second

// event is what a sink was told.
type event struct {
	tx     *feed.Tx
	at     feed.Position
	reason string // of a reset
}

// sink keeps what it is told.
type sink struct {
	mu     sync.Mutex // guards below
	events []event
	next   int
	block  chan struct{} // Commit waits for it, when it is set
}

func (s *sink) add(e event) {
	s.mu.Lock()
	s.events = append(s.events, e)
	block := s.block
	s.mu.Unlock()
	if block != nil && e.tx != nil {
		<-block
	}
}

func (s *sink) Commit(tx *feed.Tx)                    { s.add(event{tx: tx}) }
func (s *sink) Reset(at feed.Position, reason string) { s.add(event{at: at, reason: reason}) }

// await returns the next event, which must come.
func (s *sink) await(t testing.TB) event {
	t.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		if s.next < len(s.events) {
			e := s.events[s.next]
			s.next++
			s.mu.Unlock()
			return e
		}
		s.mu.Unlock()
	}
	t.Fatal("nothing came")
	return event{}
}

func (s *sink) tx(t testing.TB) *feed.Tx {
	t.Helper()
	e := s.await(t)
	if e.tx == nil {
		t.Fatalf("reset (%s) instead of a transaction", e.reason)
	}
	return e.tx
}

func (s *sink) reset(t testing.TB) event {
	t.Helper()
	e := s.await(t)
	if e.tx != nil {
		t.Fatalf("a transaction instead of a reset: %v", show(e.tx))
	}
	return e
}

// rest returns how many events were not looked at.
func (s *sink) rest() []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[s.next:])
}

// show writes changes in one line each.
func show(tx *feed.Tx) string {
	var out []string
	for _, c := range tx.Changes {
		line := c.Op.String() + " " + c.Table.Name.String()
		if c.Old != nil {
			line += " " + fmt.Sprint(c.Old)
		}
		if c.New != nil {
			line += " -> " + fmt.Sprint(c.New)
		}
		out = append(out, line)
	}
	return strings.Join(out, "; ")
}

func expect(t testing.TB, got *feed.Tx, want ...string) {
	t.Helper()
	if s := show(got); s != strings.Join(want, "; ") {
		t.Fatalf("transaction:\n got %s\nwant %s", s, strings.Join(want, "; "))
	}
}

// env is a database and a feed of it.
type env struct {
	testing.TB
	url  string
	db   *postgres.Database
	sink *sink
	stop func() error // of Run
	sql  *pgx.Conn
}

func connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func (e *env) exec(sql string) {
	e.Helper()
	exec(e, e.sql, sql)
}

func exec(t testing.TB, c *pgx.Conn, sql string) {
	t.Helper()
	if _, err := c.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (e *env) value(sql string) string {
	e.Helper()
	var s *string
	if err := e.sql.QueryRow(context.Background(), "SELECT ("+sql+")::text").Scan(&s); err != nil {
		e.Fatalf("%s: %v", sql, err)
	}
	if s == nil {
		return ""
	}
	return *s
}

func (e *env) table(name string) *row.Table {
	e.Helper()
	t, err := e.db.Table(e.Context(), named(name))
	if err != nil {
		e.Fatal(err)
	}
	return t
}

func named(name string) row.Name {
	schema, table, ok := strings.Cut(name, ".")
	if !ok {
		return row.Name{Schema: "public", Table: name}
	}
	return row.Name{Schema: schema, Table: table}
}

func options(t testing.TB, url string) postgres.Options {
	level := slog.LevelError + 1
	if os.Getenv("TIDEWIRE_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return postgres.Options{URL: url, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))}
}

func open(t testing.TB, o postgres.Options) *postgres.Database {
	t.Helper()
	db, err := postgres.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	return db
}

// run runs a feed until the test ends or stop is called.
func run(t testing.TB, db *postgres.Database, s feed.Sink) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- db.Run(ctx, s) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(limit):
			return fmt.Errorf("Run did not return")
		}
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// start makes a database with a schema and a feed of it that has begun.
func start(t testing.TB, ddl string, change ...func(*postgres.Options)) *env {
	t.Helper()
	e := prepare(t, ddl, change...)
	e.run()
	return e
}

func prepare(t testing.TB, ddl string, change ...func(*postgres.Options)) *env {
	t.Helper()
	e := &env{TB: t, url: testenv.Postgres(t), sink: &sink{}}
	e.sql = connect(t, e.url)
	e.exec(ddl)
	o := options(t, e.url)
	for _, f := range change {
		f(&o)
	}
	e.db = open(t, o)
	return e
}

func (e *env) run() {
	e.Helper()
	e.stop = run(e, e.db, e.sink)
	if r := e.sink.reset(e); r.reason != "start" {
		e.Fatalf("reset: %s", r.reason)
	}
	eventually(e, func() bool { return e.db.Stats().Connected })
}

func eventually(t testing.TB, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

// durable gives the feed a slot of its own.
func durable(o *postgres.Options) {
	u, _ := url.Parse(o.URL)
	o.Slot = "slot_" + strings.TrimPrefix(u.Path, "/")
}

func beat(d time.Duration) func(*postgres.Options) {
	return func(o *postgres.Options) { o.Heartbeat = d }
}

// read returns the rows of a statement.
func (e *env) read(t *row.Table, sql string, args ...row.Value) (rows []row.Row) {
	e.Helper()
	err := e.db.Read(e.Context(), func(s feed.Snapshot) (err error) {
		rows, err = s.Select(e.Context(), feed.Select{Table: t, SQL: sql, Args: texts(args)})
		return err
	})
	if err != nil {
		e.Fatal(err)
	}
	return rows
}

// snapshot returns all rows of a table, and the fence.
func (e *env) snapshot(t *row.Table) (rows []row.Row, fence feed.Fence) {
	e.Helper()
	err := e.db.Read(e.Context(), func(s feed.Snapshot) (err error) {
		fence = s.Fence()
		rows, err = s.Select(e.Context(), feed.Select{Table: t, SQL: "SELECT * FROM " + t.Name.String() + " ORDER BY 1"})
		return err
	})
	if err != nil {
		e.Fatal(err)
	}
	return rows, fence
}

type (
	postgresOptions = postgres.Options
	feedName        = row.Name
)

// texts writes arguments as statements have them.
func texts(args []row.Value) (out []any) {
	for _, a := range args {
		if a.IsNull() {
			out = append(out, nil)
		} else {
			out = append(out, string(row.AppendText(nil, a)))
		}
	}
	return out
}
