package e2e

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

// Live queries of a real server over a real database, which random writers change while one of the three is killed, or their connections are reset. The clients are those of package client; the team in
// their tokens, on which what they may see depends, changes with every other token. Whenever the writers rest, each client shows what the database gives for its query and its team.
//
// TIDEWIRE_TEST_SEED repeats what is random here, TIDEWIRE_TEST_CONVERGENCE is the minutes of a longer run.

const tokenSecret = "a-secret-of-at-least-32-bytes-0123"

var teams = []string{"red", "blue", "green"}

// liveShape is a live query of the configuration.
type liveShape struct {
	name, where, visible, order string
	limit                       int
	input                       func(*mathrand.Rand) map[string]any
}

var liveShapes = []liveShape{
	{name: "top", where: "grp = $g", order: "score DESC", limit: 10, input: func(r *mathrand.Rand) map[string]any { return map[string]any{"g": r.IntN(8)} }},
	{name: "between", where: "score BETWEEN $lo AND $hi", order: "title", limit: 20, input: func(r *mathrand.Rand) map[string]any {
		lo := r.IntN(80)
		return map[string]any{"lo": lo, "hi": lo + 20}
	}},
	{name: "ours", where: "grp <> $g", visible: "team = $actor.team", order: "score", limit: 5, input: func(r *mathrand.Rand) map[string]any { return map[string]any{"g": r.IntN(8)} }},
	{name: "like", where: "title LIKE $p OR note IS NULL", visible: "team IN ('red', $actor.team)", input: func(r *mathrand.Rand) map[string]any { return map[string]any{"p": string(rune('a'+r.IntN(4))) + "%"} }},
	{name: "not", where: "NOT (score < $s OR note = 'n1')", order: "title DESC", limit: 7, input: func(r *mathrand.Rand) map[string]any { return map[string]any{"s": r.IntN(100)} }},
}

// sql is what a shape means, with values in the place of parameters.
func (s liveShape) sql(input map[string]any, team string) string {
	literal := func(v any) string {
		if text, ok := v.(string); ok {
			return "'" + text + "'"
		}
		return fmt.Sprint(v)
	}
	where := s.where
	if s.visible != "" {
		where = "(" + where + ") AND " + strings.ReplaceAll(s.visible, "$actor.team", literal(team))
	}
	for name, v := range input {
		where = strings.ReplaceAll(where, "$"+name, literal(v))
	}
	order, limit := "id", ""
	if s.order != "" {
		order = s.order + ", id"
	}
	if s.limit > 0 {
		limit = fmt.Sprint(" LIMIT ", s.limit)
	}
	return "SELECT id FROM items WHERE " + where + " ORDER BY " + order + limit
}

func (s liveShape) yaml() string {
	out := fmt.Sprintf("  - {name: %s, from: items, guard: public, where: %q", s.name, s.where)
	for _, f := range [][2]string{{"visible", s.visible}, {"order", s.order}} {
		if f[1] != "" {
			out += fmt.Sprintf(", %s: %q", f[0], f[1])
		}
	}
	if s.limit > 0 {
		out += fmt.Sprint(", limit: ", s.limit)
	}
	return out + "}\n"
}

// liveWorld is a database, the server over it, writers and clients.
type liveWorld struct {
	t       *testing.T
	rnd     *mathrand.Rand
	db      *sql.DB // straight to the database
	empty   string  // the statement that empties the table
	server  *server
	front   *proxy // between clients and server
	back    *proxy // between server and PostgreSQL
	commits atomic.Int64

	gate  sync.RWMutex // writers write while they hold it
	fleet []*liveClient
}

// newWorld starts a server over a database, with no client and no writer. database is what its configuration says.
func newWorld(t *testing.T, database, driver, dsn, create, empty string, back *proxy) *liveWorld {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("TIDEWIRE_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("TIDEWIRE_TEST_SEED=%d", seed)
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	w := &liveWorld{t: t, rnd: mathrand.New(mathrand.NewPCG(seed, 1)), db: db, empty: empty, back: back}
	w.exec(create)
	addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	conf := filepath.Join(t.TempDir(), "tidewire.yaml")
	text := fmt.Sprintf("addr: %s\nauth: {jwt: {secret: %s}}\nbackend_keys: [{name: e2e, key: %s}]\nstreams: {objects: memory}\ndatabase: %q\ntiming: {drain_window: 500ms}\n", addr, tokenSecret, key, database) +
		"limits: {accepts_per_second: 100000, accept_burst: 100000, frames_per_second: 10000, frame_burst: 10000}\nqueries:\n"
	for _, s := range liveShapes {
		text += s.yaml()
	}
	w.server = w.serve(conf, addr, text)
	w.front = newProxy(t, addr)
	return w
}

// serve starts a server that ends with the test.
func (w *liveWorld) serve(conf, addr, text string) *server {
	w.t.Helper()
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	s := &server{t: w.t, addr: addr, conf: conf}
	s.start()
	w.t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	})
	return s
}

// postgresWorld has a PostgreSQL server of its own.
func postgresWorld(t *testing.T, settings ...string) (*liveWorld, *testenv.Server) {
	t.Helper()
	// The writers lock rows in any order, and a slot can only be made when the transactions that run have ended.
	pg := testenv.NewServer(t, append(settings, "timezone=UTC", "deadlock_timeout=20ms")...)
	u, err := url.Parse(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	back := newProxy(t, u.Host)
	u.Host = back.addr
	return newWorld(t, u.String(), "pgx", pg.URL,
		`CREATE TABLE items(id bigint PRIMARY KEY, grp int, score int, title text COLLATE "C", team text, note text); ALTER TABLE items REPLICA IDENTITY FULL`, "TRUNCATE items", back), pg
}

func sqliteWorld(t *testing.T) *liveWorld {
	t.Helper()
	path := filepath.Join(t.TempDir(), "app.db")
	return newWorld(t, "sqlite:"+path, "sqlite3", "file:"+path+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)&_pragma=synchronous(off)&_txlock=immediate",
		`CREATE TABLE items(id INTEGER PRIMARY KEY, grp INTEGER, score INTEGER, title TEXT, team TEXT, note TEXT)`, "DELETE FROM items", nil)
}

func (w *liveWorld) exec(stmt string) {
	w.t.Helper()
	if _, err := w.db.Exec(stmt); err != nil {
		w.t.Fatalf("%s: %v", stmt, err)
	}
}

func (w *liveWorld) value(expression string) (out string) {
	w.t.Helper()
	if err := w.db.QueryRow("SELECT (" + expression + ")::text").Scan(&out); err != nil {
		w.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// pass lets the others work for a while.
func (w *liveWorld) pass(least, most time.Duration) {
	<-time.After(least + time.Duration(w.rnd.Int64N(int64(most-least))))
}

// run lets eight writers and n clients of five live queries each work, hurts them in the middle, and compares at quiet points.
func (w *liveWorld) run(rounds, n int, hurt func()) {
	t := w.t
	end := time.Time{}
	if minutes, _ := strconv.Atoi(os.Getenv("TIDEWIRE_TEST_CONVERGENCE")); minutes > 0 {
		end = time.Now().Add(time.Duration(minutes) * time.Minute)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for range 8 {
		rnd := w.random()
		work.Go(func() {
			for ctx.Err() == nil {
				w.gate.RLock()
				ok := w.write(ctx, rnd)
				w.gate.RUnlock()
				if !ok {
					select {
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	for range n {
		c := w.connect()
		work.Go(func() { _ = c.c.Run(ctx) })
	}
	for round := 0; round < rounds || time.Now().Before(end); round++ {
		w.pass(200*time.Millisecond, 700*time.Millisecond)
		hurt()
		w.pass(100*time.Millisecond, 500*time.Millisecond)
		w.gate.Lock()
		began := time.Now()
		ok := w.settle(fmt.Sprint("round ", round))
		w.gate.Unlock()
		if !ok {
			t.FailNow()
		}
		if end.IsZero() {
			t.Logf("round %d: all are right after %s", round, time.Since(began).Round(time.Millisecond))
		}
	}
	var patches, others, drifts int64
	changes := 0
	for _, c := range w.fleet {
		patches, others = patches+c.patches.Load(), others+c.others.Load()
		c.mu.Lock()
		changes += c.changes
		c.mu.Unlock()
		for _, q := range c.queries {
			drifts += int64(q.live.Drifts())
		}
	}
	if drifts != 0 {
		t.Errorf("%d times the rows had another checksum than the server's", drifts)
	}
	t.Logf("%d commits; %d patches, %d snapshots and resumptions; %d changes of team", w.commits.Load(), patches, others, changes)
}

func (w *liveWorld) random() *mathrand.Rand {
	return mathrand.New(mathrand.NewPCG(w.rnd.Uint64(), w.rnd.Uint64()))
}

// write does one random transaction and reports whether the database answers.
func (w *liveWorld) write(ctx context.Context, rnd *mathrand.Rand) bool {
	tx, err := w.db.BeginTx(ctx, nil)
	if err != nil {
		return false
	}
	defer func() { _ = tx.Rollback() }()
	title := func() string { return fmt.Sprintf("'%c%d'", 'a'+rnd.IntN(6), rnd.IntN(50)) }
	team := func() string { return "'" + teams[rnd.IntN(len(teams))] + "'" }
	note := func() string {
		if rnd.IntN(3) == 0 {
			return "NULL"
		}
		return fmt.Sprintf("'n%d'", rnd.IntN(4))
	}
	id := func() int { return rnd.IntN(300) }
	for range 1 + rnd.IntN(4) {
		var stmt string
		switch op := rnd.IntN(200); {
		case op < 80:
			stmt = fmt.Sprintf("INSERT INTO items VALUES (%d, %d, %d, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET score = excluded.score, grp = excluded.grp", id(), rnd.IntN(8), rnd.IntN(100), title(), team(), note())
		case op < 120:
			stmt = fmt.Sprintf("UPDATE items SET score = %d, title = %s WHERE id = %d", rnd.IntN(100), title(), id())
		case op < 130:
			stmt = fmt.Sprintf("UPDATE items SET score = score + 1, note = %s WHERE grp = %d", note(), rnd.IntN(8))
		case op < 140:
			stmt = fmt.Sprintf("UPDATE items SET team = %s WHERE id BETWEEN %d AND %d", team(), id(), id())
		case op < 165:
			stmt = fmt.Sprintf("DELETE FROM items WHERE id = %d", id())
		case op < 175:
			stmt = fmt.Sprintf("UPDATE items SET id = %d WHERE id = %d", 300+id(), id())
		case op < 180:
			stmt = fmt.Sprintf("DELETE FROM items WHERE grp = %d AND score > 50", rnd.IntN(8))
		case op < 198:
			if _, err := tx.ExecContext(ctx, "SAVEPOINT s"); err != nil {
				return true
			}
			_, _ = tx.ExecContext(ctx, fmt.Sprintf("UPDATE items SET score = 999, grp = %d", rnd.IntN(8)))
			if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT s"); err != nil {
				return true
			}
			continue
		default:
			stmt = w.empty
		}
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return true // such as a key that is there, or a server that was killed: nothing of the transaction counts
		}
	}
	if rnd.IntN(6) > 0 && tx.Commit() == nil {
		w.commits.Add(1)
	}
	return true
}

// liveClient is a client with several live queries.
type liveClient struct {
	c               *client.Client
	queries         []*liveQuery
	patches, others atomic.Int64

	mu      sync.Mutex // guards below
	team    string     // of the newest token
	changes int
}

type liveQuery struct {
	shape liveShape
	input map[string]any
	live  *client.LiveQuery
}

// connect makes a client with five live queries. Its caller runs it.
func (w *liveWorld) connect() *liveClient {
	t, rnd := w.t, w.random()
	c := &liveClient{}
	var err error
	c.c, err = client.New(client.Options{
		URL: "ws://" + w.front.addr, MinBackoff: 10 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		Token: func(context.Context) (string, error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if team := teams[rnd.IntN(len(teams))]; c.team == "" || rnd.IntN(2) == 0 && team != c.team {
				c.team = team
				c.changes++
			}
			return auth.Sign([]byte(tokenSecret), auth.Identity{Subject: "ann", ExpiresAt: time.Now().Add(2500 * time.Millisecond), Claims: map[string]any{"team": c.team, "jti": rand.Text()}})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for len(c.queries) < len(liveShapes) {
		q := &liveQuery{shape: liveShapes[rnd.IntN(len(liveShapes))]}
		q.input = q.shape.input(rnd)
		id := q.shape.sql(q.input, "")
		if seen[id] {
			continue
		}
		seen[id] = true
		q.live, err = c.c.Query(q.shape.name, q.input, client.QueryOptions{
			OnChange: func(r client.Result) {
				if r.Ops != nil {
					c.patches.Add(1)
				} else {
					c.others.Add(1)
				}
			},
			OnRefused: func(e *wire.Error) {
				if e.Retry == 0 { // the client would not ask again
					t.Errorf("%s is refused: %v", id, e)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		c.queries = append(c.queries, q)
	}
	w.fleet = append(w.fleet, c)
	return c
}

// settle waits until every client shows what the database says. The writers rest.
func (w *liveWorld) settle(when string) bool {
	rest := &atRest{w: w, ids: map[string]string{}}
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for i := 0; i < len(w.fleet); {
		wrong := rest.compare(w.fleet[i])
		if wrong == "" {
			i++
			continue
		}
		if time.Now().After(deadline) {
			w.t.Errorf("%s, client %d: %s", when, i, wrong)
			return false
		}
		<-tick.C
	}
	return true
}

// atRest is what the database gives while nobody writes.
type atRest struct {
	w    *liveWorld
	ids  map[string]string // by statement
	rows map[string]string // by id
}

type shownItem struct {
	ID, Grp, Score    int64
	Title, Team, Note *string
}

func (i shownItem) String() string {
	b, _ := json.Marshal(i)
	return string(b)
}

// compare returns what is wrong with what a client shows.
func (a *atRest) compare(c *liveClient) string {
	c.mu.Lock()
	team := c.team
	c.mu.Unlock()
	for _, q := range c.queries {
		stmt := q.shape.sql(q.input, team)
		r := q.live.Result()
		if !r.Live {
			return "not live: " + stmt
		}
		var ids []string
		for _, raw := range r.Rows {
			var shown shownItem
			if err := json.Unmarshal(raw, &shown); err != nil {
				return fmt.Sprintf("%s: %v", raw, err)
			}
			id := strconv.FormatInt(shown.ID, 10)
			if want := a.row(id); shown.String() != want {
				return fmt.Sprintf("%s: shows %s, the database has %s", stmt, shown, want)
			}
			ids = append(ids, id)
		}
		if got, want := strings.Join(ids, " "), a.want(stmt); got != want {
			return fmt.Sprintf("%s (version %d)\n got %s\nwant %s", stmt, r.Version, got, want)
		}
	}
	return ""
}

func (a *atRest) want(stmt string) string {
	if known, ok := a.ids[stmt]; ok {
		return known
	}
	var ids []string
	a.query(stmt, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		ids = append(ids, id)
		return err
	})
	a.ids[stmt] = strings.Join(ids, " ")
	return a.ids[stmt]
}

func (a *atRest) row(id string) string {
	if a.rows == nil {
		a.rows = map[string]string{}
		a.query("SELECT id, grp, score, title, team, note FROM items", func(scan func(...any) error) error {
			var r shownItem
			err := scan(&r.ID, &r.Grp, &r.Score, &r.Title, &r.Team, &r.Note)
			a.rows[strconv.FormatInt(r.ID, 10)] = r.String()
			return err
		})
	}
	return a.rows[id]
}

func (a *atRest) query(stmt string, each func(scan func(...any) error) error) {
	a.w.t.Helper()
	rows, err := a.w.db.Query(stmt)
	if err != nil {
		a.w.t.Fatalf("%s: %v", stmt, err)
	}
	for rows.Next() {
		err = cmp.Or(err, each(rows.Scan))
	}
	if err := cmp.Or(err, rows.Err(), rows.Close()); err != nil {
		a.w.t.Fatalf("%s: %v", stmt, err)
	}
}

var worlds = map[string]func(*testing.T) *liveWorld{
	"postgres": func(t *testing.T) *liveWorld { w, _ := postgresWorld(t); return w },
	"sqlite":   sqliteWorld,
}

// S14, S28: the server is killed under writers and clients.
func TestS14_S28_KillTheServer(t *testing.T) {
	for name, world := range worlds {
		t.Run(name, func(t *testing.T) {
			w := world(t)
			w.run(4, 10, func() {
				w.server.signal(syscall.SIGKILL)
				w.pass(0, 200*time.Millisecond)
				began := time.Now()
				w.server.start()
				t.Logf("the server is ready after %s", time.Since(began).Round(time.Millisecond))
			})
			if name == "postgres" {
				w.server.signal(syscall.SIGKILL)
				w.noSlots()
			}
		})
	}
}

// S14, S24, S42: PostgreSQL is killed under writers and server: all its processes at once, or by an immediate shutdown.
func TestS14_S24_KillPostgreSQL(t *testing.T) {
	w, pg := postgresWorld(t)
	round := 0
	w.run(4, 10, func() {
		if round++; round%2 == 1 {
			// Stopped first, so that no process is started between the list and the kill, which would keep the shared memory.
			pg.Exec("sh", "-c", `p=$(head -n 1 data/postmaster.pid); kill -STOP $p; kill -9 $(ps -o pid= --ppid $p) $p`)
		}
		pg.Kill()
		w.pass(0, 200*time.Millisecond)
		pg.Start()
	})
	w.server.signal(syscall.SIGTERM)
	w.noSlots()
}

// S14, S28, S20: connections are reset, between clients and server, between server and database, or both.
func TestS14_S28_CutConnections(t *testing.T) {
	for name, sides := range map[string][2]bool{"clients": {true, false}, "database": {false, true}, "both": {true, true}} {
		t.Run(name, func(t *testing.T) {
			w, _ := postgresWorld(t)
			w.run(2, 10, func() {
				for range 4 {
					if sides[0] {
						w.front.cut()
					}
					if sides[1] {
						w.back.cut()
					}
					w.pass(20*time.Millisecond, 300*time.Millisecond)
				}
			})
			t.Logf("%d and %d connections were cut", w.front.cuts, w.back.cuts)
			w.server.signal(syscall.SIGTERM)
			w.noSlots()
		})
	}
}

// P44, S30: a server takes the place of another: it is ready before the clients of the other are told to move.
func TestP44_S30_Redeploy(t *testing.T) {
	for name, world := range worlds {
		t.Run(name, func(t *testing.T) {
			w := world(t)
			w.run(2, 10, func() {
				text, err := os.ReadFile(w.server.conf)
				if err != nil {
					t.Fatal(err)
				}
				addr := fmt.Sprintf("127.0.0.1:%d", freePort(t))
				next := w.serve(filepath.Join(t.TempDir(), "tidewire.yaml"), addr, strings.Replace(string(text), w.server.addr, addr, 1))
				w.front.lead(addr)
				w.server.signal(syscall.SIGTERM)
				w.server = next
			})
		})
	}
}

// noSlots waits until the replication slots of a process that has ended are gone.
func (w *liveWorld) noSlots() {
	w.t.Helper()
	eventually(w.t, 10*time.Second, "no replication slot is left", func() bool { return w.value("SELECT count(*) FROM pg_replication_slots") == "0" })
}

// P1, S24: while only tables are written that no live query reads, the database lets go of its log, and does not get more of it from the server; and what a server of any end leaves behind is no slot.
func TestP1_S24_NothingIsKept(t *testing.T) {
	w, _ := postgresWorld(t, "wal_sender_timeout=1500ms", "max_wal_size=64MB", "min_wal_size=32MB")
	w.exec("CREATE TABLE other (id int, pad text)")
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	c := w.connect()
	running.Go(func() { _ = c.c.Run(ctx) })
	if !w.settle("at first") {
		t.FailNow()
	}
	if got := w.value("SELECT string_agg(temporary::text || active::text, ' ') FROM pg_replication_slots"); got != "truetrue" {
		t.Fatalf("slots: %s", got)
	}
	begin := w.value("pg_current_wal_insert_lsn()")
	var kept []int
	for range 8 {
		w.exec("INSERT INTO other SELECT i, repeat('x', 300) FROM generate_series(1, 100000) i")
		end := w.value("pg_current_wal_insert_lsn()")
		eventually(t, 15*time.Second, "the log is confirmed and let go", func() bool {
			w.exec("CHECKPOINT")
			return w.value("SELECT confirmed_flush_lsn >= '"+end+"' AND restart_lsn >= '"+end+"' FROM pg_replication_slots") == "true"
		})
		w.exec("CHECKPOINT")
		n, err := strconv.Atoi(w.value("SELECT sum(size) FROM pg_ls_waldir()"))
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, n>>20)
	}
	written, err := strconv.ParseFloat(w.value("pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '"+begin+"')"), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f MiB were written, pg_wal had %v MiB", written/(1<<20), kept)
	if most := slices.Max(kept); written < 200<<20 || most > 128 {
		t.Errorf("pg_wal has %d MiB", most)
	}
	// Nobody writes.
	begin = w.value("pg_current_wal_insert_lsn()")
	w.pass(2*time.Second, 2*time.Second+1)
	if grown, err := strconv.Atoi(w.value("pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '" + begin + "')")); err != nil || grown > 1000 {
		t.Errorf("the log grew by %d bytes in two idle seconds, %v", grown, err)
	}
	w.exec("INSERT INTO items VALUES (1, 1, 50, 'a', 'red', NULL)")
	if !w.settle("at last") {
		t.FailNow()
	}
	w.server.signal(syscall.SIGKILL)
	w.noSlots()
	w.server.start()
	w.server.signal(syscall.SIGTERM)
	w.noSlots()
}
