package sqlite_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/sqlite"
)

// replica follows tables by the log alone. It reads with Since, so that a test waits for nothing.
type replica struct {
	t    testing.TB
	db   *sqlite.Database
	at   feed.Position
	rows map[*row.Table]map[row.Value]row.Row
}

func newReplica(t testing.TB, db *sqlite.Database, tables ...string) *replica {
	t.Helper()
	r := &replica{t: t, db: db, rows: map[*row.Table]map[row.Value]row.Row{}}
	for _, name := range tables {
		r.rows[tableOf(t, db, name)] = nil
	}
	end := feed.Position("")
	for table := range r.rows {
		r.rows[table], end = r.read(table)
	}
	r.at = end
	return r
}

func tableOf(t testing.TB, db *sqlite.Database, name string) *row.Table {
	t.Helper()
	table, err := db.Table(t.Context(), row.Name{Schema: "main", Table: name})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func selectAll(table *row.Table) feed.Select {
	return feed.Select{Table: table, SQL: fmt.Sprintf(`SELECT * FROM main."%s"`, strings.ReplaceAll(table.Table, `"`, `""`))}
}

func (r *replica) read(table *row.Table) (map[row.Value]row.Row, feed.Position) {
	r.t.Helper()
	out := map[row.Value]row.Row{}
	var at feed.Position
	err := r.db.Read(r.t.Context(), func(s feed.Snapshot) error {
		at = feed.Position(fmt.Sprintf("%016x", s.Fence()))
		rows, err := s.Select(r.t.Context(), selectAll(table))
		for _, row := range rows {
			out[table.KeyOf(row)] = row
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out, at
}

// follow applies what the log says since the last time, and compares with the tables.
func (r *replica) follow() error {
	r.t.Helper()
	txs, err := r.db.Since(r.t.Context(), r.at)
	if err != nil {
		return err
	}
	for _, tx := range txs {
		r.at = tx.Position
		for _, c := range tx.Changes {
			if err := r.change(c); err != nil {
				return err
			}
		}
	}
	for table, have := range r.rows {
		want, _ := r.read(table)
		if len(want) != len(have) {
			return fmt.Errorf("%s: the log makes %d rows of it, there are %d", table.Name, len(have), len(want))
		}
		for key, w := range want {
			if !slices.Equal(w, have[key]) {
				return fmt.Errorf("%s: the log makes %v of the row %v", table.Name, have[key], w)
			}
		}
	}
	return nil
}

func (r *replica) change(c feed.Change) error {
	rows := r.rows[c.Table]
	if rows == nil {
		return fmt.Errorf("a change of %s, which is unknown", c.Table.Name)
	}
	if c.Old != nil {
		key := c.Table.KeyOf(c.Old)
		if !slices.Equal(rows[key], c.Old) {
			return fmt.Errorf("%s of %v, it is %v", c.Op, c.Old, rows[key])
		}
		delete(rows, key)
	}
	if c.New != nil {
		key := c.Table.KeyOf(c.New)
		if rows[key] != nil {
			return fmt.Errorf("%s to %v, there is %v", c.Op, c.New, rows[key])
		}
		rows[key] = c.New
	}
	if c.Op == feed.Update && (slices.Equal(c.Old, c.New) || c.Table.KeyOf(c.Old) != c.Table.KeyOf(c.New)) {
		return fmt.Errorf("update of %v to %v", c.Old, c.New)
	}
	return nil
}

// captureSchemas are tables t (id, a, b, c), each with something that makes capture hard.
var captureSchemas = map[string]string{
	"rowid":             `CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c)`,
	"uniques":           `CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b, c, UNIQUE (b, c))`,
	"text key":          `CREATE TABLE t (id TEXT PRIMARY KEY COLLATE NOCASE NOT NULL, a TEXT UNIQUE COLLATE RTRIM, b, c) WITHOUT ROWID`,
	"index's collation": `CREATE TABLE t (id TEXT NOT NULL, a TEXT, b, c, PRIMARY KEY (id COLLATE NOCASE)); CREATE UNIQUE INDEX u ON t (a COLLATE NOCASE DESC)`,
	"composite":         `CREATE TABLE t (a NOT NULL, id NOT NULL, b UNIQUE, c, PRIMARY KEY (id, a))`,
	"partial":           `CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c); CREATE UNIQUE INDEX u ON t (a) WHERE b > 3; CREATE UNIQUE INDEX u2 ON t (c, b) WHERE a IS NOT NULL AND c <> ')'`,
	"expressions":       `CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c); CREATE UNIQUE INDEX u ON t (lower(a), abs(b) % 5 DESC); CREATE UNIQUE INDEX "u, (2" ON t (c || '),(' /* , */ ) WHERE a <> 1`,
	"generated":         `CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c, g AS (abs(a) % 4) UNIQUE, s AS (lower(b)) STORED)`,
	"on conflict":       `CREATE TABLE t (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, a UNIQUE ON CONFLICT REPLACE, b UNIQUE ON CONFLICT IGNORE, c NOT NULL ON CONFLICT REPLACE DEFAULT 3 UNIQUE ON CONFLICT REPLACE)`,
	"cascade": `CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b REFERENCES t (id) ON DELETE CASCADE ON UPDATE CASCADE DEFERRABLE INITIALLY DEFERRED, c);
		CREATE TABLE child (id INTEGER PRIMARY KEY, t REFERENCES t (id) ON DELETE CASCADE ON UPDATE SET NULL);
		CREATE TRIGGER app AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO child VALUES (NEW.id, NEW.id), (NEW.id + 100, NEW.id); END`,
	"triggers that make room": `CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b, c); CREATE TRIGGER app BEFORE INSERT ON t BEGIN DELETE FROM t WHERE a = NEW.a; UPDATE t SET c = NEW.c WHERE b = NEW.b; END`,
	"triggers after": `CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b, c);
		CREATE TRIGGER app AFTER INSERT ON t BEGIN UPDATE t SET c = 'stamp' WHERE id = NEW.id; DELETE FROM t WHERE id = NEW.id AND b = 3; END;
		CREATE TRIGGER app2 AFTER UPDATE OF b ON t WHEN NEW.id < 10 BEGIN INSERT OR REPLACE INTO t VALUES (NEW.id + 20, NEW.b, 0, 0); END;`,
	"triggers that are newer": `CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b, c)`,
	"strict, odd names":       `CREATE TABLE t (id TEXT PRIMARY KEY, a ANY UNIQUE, b ANY, c ANY, "v0" ANY, "OLD" INT, "def" TEXT DEFAULT 'x', "a ""b" INT AS (1)) STRICT`,
}

// captureLater is what comes after the table is followed.
var captureLater = map[string]string{
	"triggers after": `CREATE TRIGGER /* ON */ "before" BEFORE INSERT ON t WHEN NEW.id < 10 BEGIN INSERT OR REPLACE INTO t VALUES (NEW.id + 10, NEW.b, NEW.a, 0); END;
		CREATE TRIGGER "before2" BEFORE UPDATE OF a ON t WHEN OLD.id < 10 BEGIN UPDATE t SET c = 9, id = id + 1 WHERE id > 20 AND a = NEW.a; END`,
	"triggers that are newer": `CREATE TRIGGER "app on" AFTER INSERT ON t BEGIN UPDATE t SET c = 'stamp' WHERE id = NEW.id; DELETE FROM t WHERE id = NEW.id AND b = 3; END`,
}

// captureStatement is any way to change t. The values are few, so that they meet.
func captureStatement(random *rand.Rand) string {
	v := func() string {
		return []string{"NULL", "1", "2", "3", "4", "5.5", "1.0", "'a'", "'A'", "'a '", "'B'", "x'61'", "'é'", "-3"}[random.IntN(14)]
	}
	id := func() string { return fmt.Sprint(1 + random.IntN(8)) }
	or := []string{"", "", " OR REPLACE", " OR REPLACE", " OR IGNORE", " OR FAIL", " OR ABORT", " OR ROLLBACK"}[random.IntN(8)]
	column := func() string { return []string{"id", "a", "b", "c"}[random.IntN(4)] }
	values := func() string { return fmt.Sprintf("(%s, %s, %s, %s)", id(), v(), v(), v()) }
	if random.IntN(4) == 0 {
		values = func() string { return fmt.Sprintf("(%s, %s, %s, %s)", v(), v(), v(), v()) }
	}
	switch random.IntN(10) {
	case 0, 1, 2:
		return fmt.Sprintf("INSERT%s INTO t (id, a, b, c) VALUES %s", or, values())
	case 3:
		return fmt.Sprintf("INSERT%s INTO t (id, a, b, c) VALUES %s, %s, %s", or, values(), values(), values())
	case 4:
		return fmt.Sprintf("INSERT INTO t (id, a, b, c) VALUES %s ON CONFLICT DO UPDATE SET %s = excluded.%s, c = 'up'", values(), column(), column())
	case 5:
		return fmt.Sprintf("INSERT OR REPLACE INTO t (id, a, b, c) SELECT id + 1, a, c, b FROM t WHERE %s = %s", column(), v())
	case 6, 7:
		return fmt.Sprintf("UPDATE%s t SET %s = %s, %s = %s WHERE id = %s", or, column(), v(), column(), v(), id())
	case 8:
		if random.IntN(3) == 0 {
			return fmt.Sprintf("UPDATE%s t SET %s = %s, b = b", or, column(), column())
		}
		return fmt.Sprintf("DELETE FROM t WHERE %s = %s", column(), v())
	}
	if random.IntN(4) > 0 {
		return fmt.Sprintf("DELETE FROM t WHERE id = %s", id())
	}
	return "DELETE FROM t"
}

// TestS22_P45_CaptureAgainstTheTable does random statements as another program does, and holds what the log makes of them against the table.
func TestS22_P45_CaptureAgainstTheTable(t *testing.T) {
	t.Parallel()
	for name, schema := range captureSchemas {
		for _, recursive := range []string{"OFF", "ON"} {
			t.Run(name+", recursive triggers "+recursive, func(t *testing.T) {
				t.Parallel()
				seed := uint64(time.Now().UnixNano())
				random := rand.New(rand.NewPCG(seed, 0))
				path := newPath(t)
				db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
				o.must(t, "PRAGMA synchronous = OFF; PRAGMA foreign_keys = ON; PRAGMA recursive_triggers = "+recursive+";"+schema)
				tables := []string{"t"}
				if strings.Contains(schema, "TABLE child") {
					tables = append(tables, "child")
				}
				newReplica(t, db, tables...) // from here on they are followed
				o.must(t, captureLater[name])
				r := newReplica(t, db, tables...)
				var done []string
				changed := 0
				for range captureRounds {
					statements := captureTransaction(random)
					for _, sql := range statements {
						if err := o.Exec(sql); err == nil {
							changed++
						} else if strings.Contains(err.Error(), "_tidewire") {
							t.Fatalf("%s: %v", sql, err)
						}
					}
					if !o.GetAutocommit() && o.Exec("COMMIT") != nil {
						o.must(t, "ROLLBACK") // a foreign key
					}
					done = append(done, strings.Join(statements, "; "))
					if err := r.follow(); err != nil {
						t.Fatalf("seed %d: %v after\n%s", seed, err, strings.Join(done[max(0, len(done)-12):], "\n"))
					}
				}
				if changed < captureRounds/4 { // statements of few values often meet a key that is there
					t.Errorf("only %d statements did something", changed)
				}
			})
		}
	}
}

func captureTransaction(random *rand.Rand) []string {
	if random.IntN(2) == 0 {
		return []string{captureStatement(random)}
	}
	out := []string{"BEGIN"}
	for range 1 + random.IntN(5) {
		switch random.IntN(6) {
		case 0:
			out = append(out, "SAVEPOINT s")
		case 1:
			out = append(out, "ROLLBACK TO s") // may fail
		case 2:
			out = append(out, "RELEASE s")
		}
		out = append(out, captureStatement(random))
	}
	if random.IntN(8) == 0 {
		out = append(out, "ROLLBACK")
	}
	return out
}

func mustFollow(t testing.TB, r *replica) {
	t.Helper()
	if err := r.follow(); err != nil {
		t.Fatal(err)
	}
}

func TestS22_ReplacedRowIsAnUpdateOrADelete(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, n); INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 2)`)
	r := newReplica(t, db, "t")
	for _, tc := range []struct{ sql, want string }{
		{`INSERT OR REPLACE INTO t VALUES (1, 'x', 5)`, `[update [1 x 1] [1 x 5]]`},
		{`INSERT OR REPLACE INTO t VALUES (1, 'x', 5)`, `[]`},
		{`INSERT OR REPLACE INTO t VALUES (3, 'x', 6)`, `[delete [1 x 5] [] insert [] [3 x 6]]`},
		{`INSERT OR REPLACE INTO t VALUES (3, 'y', 7)`, `[delete [2 y 2] [] update [3 x 6] [3 y 7]]`},
		{`INSERT OR IGNORE INTO t VALUES (3, 'z', 8); INSERT INTO t VALUES (4, 'z', 8)`, `[insert [] [4 z 8]]`},
		{`UPDATE OR REPLACE t SET a = 'y', n = 9 WHERE id = 4`, `[delete [3 y 7] [] update [4 z 8] [4 y 9]]`},
		{`UPDATE t SET n = 9; UPDATE t SET n = n + 0`, `[]`},
		{`UPDATE t SET n = 9.0`, `[update [4 y 9] [4 y 9]]`}, // of another type
	} {
		o.must(t, tc.sql)
		txs, err := db.Since(t.Context(), r.at)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, tx := range txs {
			for _, c := range tx.Changes {
				got = append(got, fmt.Sprint(c.Op, " ", c.Old, " ", c.New))
			}
		}
		if fmt.Sprint(got) != tc.want {
			t.Errorf("%s: %v, want %s", tc.sql, got, tc.want)
		}
		mustFollow(t, r)
	}
}

func TestS22_OtherSchemasAreNotOurs(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	r := newReplica(t, db, "t")
	o.must(t, `CREATE TEMP TABLE t (id INTEGER PRIMARY KEY, n); CREATE TEMP TABLE _tidewire_changes (x); CREATE TEMP TABLE _tidewire_replaced (y);
		INSERT INTO t VALUES (1, 'temporary'); INSERT INTO main.t VALUES (1, 'ours'); INSERT OR REPLACE INTO main.t VALUES (1, 'still')`)
	mustFollow(t, r)
	// The file as another program's second one, beside a table of the same name.
	second := openOther(t, newPath(t))
	second.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, n); ATTACH '`+path+`' AS ours; INSERT INTO t VALUES (2, 'theirs'); INSERT INTO ours.t VALUES (2, 'ours');
		INSERT OR REPLACE INTO ours.t VALUES (2, 'replaced'); UPDATE ours.t SET n = 3 WHERE id = 1`)
	mustFollow(t, r)
	table := tableOf(t, db, "T")
	if n := len(r.rows[table]); n != 2 {
		t.Errorf("%d rows", n)
	}
	if _, err := db.Table(t.Context(), row.Name{Schema: "temp", Table: "t"}); !errors.Is(err, feed.ErrNoTable) {
		t.Error(err)
	}
}
