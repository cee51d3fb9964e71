package tidewire_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/sqlite"
)

// liveShape is a live query and what it means, as SQL over the same parameters.
type liveShape struct {
	def   query.Definition
	input func(*rand.Rand) map[string]any
	where func(in map[string]any, actor string) string
	order string
	limit int
}

var liveShapes = []liveShape{
	{
		def:   query.Definition{Name: "top", From: "items", Where: "grp = $g", Order: "score DESC", Limit: 10},
		input: func(r *rand.Rand) map[string]any { return map[string]any{"g": r.IntN(8)} },
		where: func(in map[string]any, _ string) string { return fmt.Sprintf("grp = %v", in["g"]) },
		order: "score DESC, id", limit: 10,
	},
	{
		def: query.Definition{Name: "between", From: "items", Where: "score BETWEEN $lo AND $hi", Order: "title", Limit: 20},
		input: func(r *rand.Rand) map[string]any {
			lo := r.IntN(80)
			return map[string]any{"lo": lo, "hi": lo + 20}
		},
		where: func(in map[string]any, _ string) string {
			return fmt.Sprintf("score BETWEEN %v AND %v", in["lo"], in["hi"])
		},
		order: "title, id", limit: 20,
	},
	{
		def:   query.Definition{Name: "mine", From: "items", Where: "grp <> $g", Visible: "owner = $actor.id", Order: "score", Limit: 5},
		input: func(r *rand.Rand) map[string]any { return map[string]any{"g": r.IntN(8)} },
		where: func(in map[string]any, actor string) string {
			return fmt.Sprintf("grp <> %v AND owner = '%s'", in["g"], actor)
		},
		order: "score, id", limit: 5,
	},
	{
		def:   query.Definition{Name: "like", From: "items", Where: "title LIKE $p OR note IS NULL", Visible: "owner IN ('ann', $actor.id)"},
		input: func(r *rand.Rand) map[string]any { return map[string]any{"p": string(rune('a'+r.IntN(4))) + "%"} },
		where: func(in map[string]any, actor string) string {
			return fmt.Sprintf("(title LIKE '%v' OR note IS NULL) AND owner IN ('ann', '%s')", in["p"], actor)
		},
		order: "id",
	},
	{
		def:   query.Definition{Name: "not", From: "items", Where: "NOT (score < $s OR note = 'n1')", Order: "title DESC", Limit: 7},
		input: func(r *rand.Rand) map[string]any { return map[string]any{"s": r.IntN(100)} },
		where: func(in map[string]any, _ string) string {
			return fmt.Sprintf("NOT (score < %v OR note = 'n1')", in["s"])
		},
		order: "title DESC, id", limit: 7,
	},
}

// S14, S17, S47: writers change a database at random while clients hold live queries, drop, resume and change who they are; whenever the writers rest, each client's list is what the database gives
// for its query and its actor, order included.
func TestS14_S17_S47_Convergence(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "app.db")
		db, err := sql.Open("sqlite3", "file:"+path+"?_pragma=journal_mode(wal)&_pragma=busy_timeout(10000)&_pragma=synchronous(off)&_txlock=immediate")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := db.Exec(`CREATE TABLE items(id INTEGER PRIMARY KEY, grp INTEGER, score INTEGER, title TEXT, owner TEXT, note TEXT)`); err != nil {
			t.Fatal(err)
		}
		followed, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = followed.Close() }) // after the node has stopped
		converge(t, db, followed, "DELETE FROM items")
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		url := testenv.Postgres(t)
		db, err := sql.Open("pgx", url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := db.Exec(`CREATE TABLE items(id bigint PRIMARY KEY, grp int, score int, title text COLLATE "C", owner text, note text); ALTER TABLE items REPLICA IDENTITY FULL`); err != nil {
			t.Fatal(err)
		}
		followed, err := postgres.Open(context.Background(), postgres.Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(followed.Close)
		converge(t, db, followed, "TRUNCATE items")
	})
}

var liveActors = []string{"ann", "bob", "cyd"}

func converge(t *testing.T, db *sql.DB, followed feed.Database, empty string) {
	const writers, clients, perClient = 8, 40, 5
	rounds, writing := 4, 700*time.Millisecond
	minutes, _ := strconv.Atoi(os.Getenv("TIDEWIRE_TEST_CONVERGENCE"))
	until := time.Now().Add(time.Duration(minutes) * time.Minute)
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("TIDEWIRE_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("TIDEWIRE_TEST_SEED=%d", seed)

	secret := []byte("a-secret-of-at-least-32-bytes-0123")
	jwt, err := auth.NewJWT(auth.JWTOptions{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	var declare []func(*tidewire.Node) error
	for _, shape := range liveShapes {
		declare = append(declare, func(n *tidewire.Node) error {
			return n.Query(tidewire.Query{Definition: shape.def, Guard: tidewire.Public})
		})
	}
	s := start(t, tidewire.Options{
		Database: followed, Authenticate: tidewire.AuthenticateWith(jwt),
		Limits: tidewire.Limits{AcceptsPerSecond: 100_000, FramesPerSecond: 10_000, FrameBurst: 10_000},
	}, declare...)

	// Writers write while gate is open to them.
	ctx, cancel := context.WithCancel(t.Context())
	var gate sync.RWMutex
	var work sync.WaitGroup
	for w := range writers {
		work.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(w)))
			for ctx.Err() == nil {
				gate.RLock()
				writeItems(ctx, db, rnd, empty)
				gate.RUnlock()
			}
		})
	}
	fleet := make([]*liveFleet, clients)
	for i := range fleet {
		fleet[i] = newLiveFleet(t, s, secret, rand.New(rand.NewPCG(seed, uint64(1000+i))), perClient)
		work.Go(func() { fleet[i].run(ctx) })
	}
	defer work.Wait()
	defer cancel()
	round := 0
	for ; round < rounds || time.Now().Before(until); round++ {
		tick := time.NewTimer(writing)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		gate.Lock()
		rest := &atRest{db: db, rows: map[string]string{}, ids: map[string]string{}}
		for i, f := range fleet {
			if !f.settle(t, rest, fmt.Sprintf("round %d, client %d", round, i)) {
				gate.Unlock()
				t.FailNow()
			}
		}
		gate.Unlock()
	}
	t.Logf("%d rounds", round)
}

// writeItems does one random transaction.
func writeItems(ctx context.Context, db *sql.DB, rnd *rand.Rand, empty string) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback() }()
	str := func(v string) string { return "'" + v + "'" }
	title := func() string { return str(fmt.Sprintf("%c%d", 'a'+rnd.IntN(6), rnd.IntN(50))) }
	note := func() string {
		if rnd.IntN(3) == 0 {
			return "NULL"
		}
		return str(fmt.Sprint("n", rnd.IntN(4)))
	}
	id := func() int { return rnd.IntN(300) }
	for range 1 + rnd.IntN(4) {
		var stmt string
		switch op := rnd.IntN(200); {
		case op < 80:
			stmt = fmt.Sprintf("INSERT INTO items VALUES (%d, %d, %d, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET score = excluded.score, grp = excluded.grp", id(), rnd.IntN(8), rnd.IntN(100), title(), str(liveActors[rnd.IntN(3)]), note())
		case op < 120:
			stmt = fmt.Sprintf("UPDATE items SET score = %d, title = %s WHERE id = %d", rnd.IntN(100), title(), id())
		case op < 130:
			stmt = fmt.Sprintf("UPDATE items SET score = score + 1, note = %s WHERE grp = %d", note(), rnd.IntN(8))
		case op < 140:
			stmt = fmt.Sprintf("UPDATE items SET owner = %s WHERE id BETWEEN %d AND %d", str(liveActors[rnd.IntN(3)]), id(), id())
		case op < 165:
			stmt = fmt.Sprintf("DELETE FROM items WHERE id = %d", id())
		case op < 175:
			stmt = fmt.Sprintf("UPDATE items SET id = %d WHERE id = %d", 300+id(), id())
		case op < 180:
			stmt = fmt.Sprintf("DELETE FROM items WHERE grp = %d AND score > 50", rnd.IntN(8))
		case op < 198:
			if _, err := tx.ExecContext(ctx, "SAVEPOINT s"); err != nil {
				return
			}
			_, _ = tx.ExecContext(ctx, fmt.Sprintf("UPDATE items SET score = 999, grp = %d", rnd.IntN(8)))
			if _, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT s"); err != nil {
				return
			}
			continue
		default:
			stmt = empty
		}
		if _, err := tx.ExecContext(ctx, stmt); err != nil {
			return // such as a key that is there: nothing of the transaction counts
		}
	}
	if rnd.IntN(6) > 0 {
		_ = tx.Commit()
	}
}

// liveFleet is one client with several live queries.
type liveFleet struct {
	t      *testing.T
	s      *server
	secret []byte
	rnd    *rand.Rand

	mu      sync.Mutex // guards below
	actor   string
	queries []*liveHeld
}

type liveHeld struct {
	shape liveShape
	input map[string]any
	text  string
	qid   string
	list  list
}

func newLiveFleet(t *testing.T, s *server, secret []byte, rnd *rand.Rand, n int) *liveFleet {
	f := &liveFleet{t: t, s: s, secret: secret, rnd: rnd, actor: liveActors[rnd.IntN(3)]}
	seen := map[string]bool{}
	for len(f.queries) < n {
		shape := liveShapes[rnd.IntN(len(liveShapes))]
		in := shape.input(rnd)
		raw, _ := json.Marshal(in)
		if key := shape.def.Name + string(raw); !seen[key] {
			seen[key] = true
			f.queries = append(f.queries, &liveHeld{shape: shape, input: in, text: string(raw)})
		}
	}
	return f
}

func (f *liveFleet) token() string {
	tok, err := auth.Sign(f.secret, auth.Identity{Subject: f.actor, ExpiresAt: time.Now().Add(time.Hour)})
	if err != nil {
		f.t.Error(err)
	}
	return tok
}

// run connects, drops and connects again, sometimes as somebody else.
func (f *liveFleet) run(ctx context.Context) {
	for ctx.Err() == nil {
		f.mu.Lock()
		if f.rnd.IntN(4) == 0 {
			f.actor = liveActors[f.rnd.IntN(3)] // another credential: what it held is no longer its own
			for _, q := range f.queries {
				q.list = list{}
			}
		}
		token := f.token()
		life := time.Duration(100+f.rnd.IntN(1500)) * time.Millisecond
		f.mu.Unlock()
		conn, _, err := f.s.dialRaw(dialOptions{header: map[string][]string{"Authorization": {"Bearer " + token}}})
		if err != nil {
			if ctx.Err() == nil {
				f.t.Error(err)
			}
			return
		}
		live, stop := context.WithTimeout(ctx, life)
		f.serve(live, &client{t: f.t, conn: conn})
		stop()
		_ = conn.CloseNow()
	}
}

func (f *liveFleet) serve(ctx context.Context, c *client) {
	say := func(text string) { _ = c.conn.Write(ctx, 1, []byte(text)) }
	say(`{"type":"hello","protocol":1}`)
	f.mu.Lock()
	for i, q := range f.queries {
		since := ""
		if q.list.epoch != "" {
			since = fmt.Sprintf(`,"since":{"offset":%d,"epoch":%q}`, q.list.version, q.list.epoch)
		}
		q.qid = ""
		say(fmt.Sprintf(`{"type":"subscribe","sid":"%d","query":%q,"input":%s%s}`, i, q.shape.def.Name, q.text, since))
	}
	f.mu.Unlock()
	for {
		_, b, err := c.conn.Read(ctx)
		if err != nil {
			return
		}
		var m liveMessage
		if err := json.Unmarshal(b, &m); err != nil {
			f.t.Errorf("%s: %v", b, err)
			return
		}
		f.mu.Lock()
		switch m.Type {
		case "subscribed":
			i, _ := strconv.Atoi(m.SID)
			f.queries[i].qid = m.QID
		case "snapshot", "patch":
			for _, q := range f.queries {
				if q.qid == m.QID {
					if m.Type == "patch" && m.Version != q.list.version+1 {
						f.t.Errorf("%s: version %d after %d", m.QID, m.Version, q.list.version)
					}
					q.list.apply(f.t, m)
				}
			}
		case "refused", "unsubscribed":
			f.t.Errorf("%s", b)
		}
		f.mu.Unlock()
	}
}

// settle waits until every list is what the database says.
func (f *liveFleet) settle(t *testing.T, db *atRest, what string) bool {
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		f.mu.Lock()
		wrong := ""
		for _, q := range f.queries {
			want := q.want(t, db, f.actor)
			if got := strings.Join(q.list.keys, " "); got != want {
				wrong = fmt.Sprintf("%s, %s as %s: %s %s (version %d)\n got %s\nwant %s", what, q.qid, f.actor, q.shape.def.Name, q.text, q.list.version, got, want)
				break
			}
			for _, r := range q.list.rows {
				if wrong = q.check(t, db, r); wrong != "" {
					break
				}
			}
			if wrong != "" {
				wrong = what + ": " + wrong
				break
			}
		}
		f.mu.Unlock()
		if wrong == "" {
			return true
		}
		if time.Now().After(deadline) {
			t.Error(wrong)
			return false
		}
		<-tick.C
	}
}

// atRest is what the database gives while nobody writes.
type atRest struct {
	db   *sql.DB
	ids  map[string]string // by statement
	rows map[string]string // by id
}

// want is the ids that the database gives, in order.
func (q *liveHeld) want(t *testing.T, db *atRest, actor string) string {
	stmt := "SELECT id FROM items WHERE " + q.shape.where(q.input, actor) + " ORDER BY " + q.shape.order
	if q.shape.limit > 0 {
		stmt += fmt.Sprint(" LIMIT ", q.shape.limit)
	}
	if known, ok := db.ids[stmt]; ok {
		return known
	}
	rows, err := db.db.Query(stmt)
	if err != nil {
		t.Fatal(stmt, err)
	}
	defer func() { _ = rows.Close() }()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	db.ids[stmt] = strings.Join(ids, " ")
	return db.ids[stmt]
}

type shownItem struct {
	ID, Grp, Score     int
	Title, Owner, Note *string
}

// check compares a row that a client holds with the database's, and returns what is wrong.
func (q *liveHeld) check(t *testing.T, db *atRest, shown string) string {
	var got shownItem
	if err := json.Unmarshal([]byte(shown), &got); err != nil {
		t.Fatal(shown, err)
	}
	if len(db.rows) == 0 {
		rows, err := db.db.Query("SELECT id, grp, score, title, owner, note FROM items")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var r shownItem
			if err := rows.Scan(&r.ID, &r.Grp, &r.Score, &r.Title, &r.Owner, &r.Note); err != nil {
				t.Fatal(err)
			}
			b, _ := json.Marshal(r)
			db.rows[strconv.Itoa(r.ID)] = string(b)
		}
	}
	b, _ := json.Marshal(got)
	if want := db.rows[strconv.Itoa(got.ID)]; string(b) != want {
		return fmt.Sprintf("a client shows %s, the database has %s", b, want)
	}
	return ""
}
