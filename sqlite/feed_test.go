package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/feed/feedtest"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/sqlite"
)

func start(t testing.TB, db *sqlite.Database) (*feedtest.Recorder, func() error) {
	t.Helper()
	r := feedtest.NewRecorder()
	return r, r.Start(t, db)
}

func write(t testing.TB, db *sqlite.Database, sql string, args ...any) {
	t.Helper()
	if err := db.Write(t.Context(), func(tx *sqlite.Tx) error { _, err := tx.Exec(sql, args...); return err }); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func untilReset(t testing.TB, r *feedtest.Recorder, n int, reason string) {
	t.Helper()
	r.Until(t, "a reset that says "+reason, func(resets []string, _ []*feed.Tx) bool {
		return len(resets) >= n && strings.Contains(resets[len(resets)-1], reason)
	})
}

// TestS26_P17_P20_SchemaChanges alters a followed table as another program does, while the feed runs and while it does not. No statement of the program fails,
// and the feed begins anew.
func TestS26_P17_P20_SchemaChanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, sql, reason string }{
		{"add", `ALTER TABLE t ADD COLUMN d DEFAULT 4; UPDATE t SET d = 5 WHERE id = 2`, "t was altered"},
		{"drop", `ALTER TABLE t DROP COLUMN b; UPDATE t SET a = 'n' WHERE id = 1; INSERT OR REPLACE INTO t (id, a) VALUES (2, 'q'); DELETE FROM t WHERE id = 1; UPDATE t SET id = 7`, "t was altered"},
		{"rename column", `ALTER TABLE t RENAME COLUMN b TO bb; UPDATE t SET bb = 5; INSERT OR REPLACE INTO t (id, bb) VALUES (2, 1)`, "t was altered"},
		{"rename key", `ALTER TABLE t RENAME COLUMN id TO "the id"; UPDATE t SET "the id" = 5 WHERE "the id" = 1; DELETE FROM t WHERE "the id" = 2`, "t was altered"},
		{"several", `BEGIN; ALTER TABLE t ADD COLUMN d; ALTER TABLE t DROP COLUMN a; ALTER TABLE t RENAME COLUMN c TO a; INSERT INTO t (id, a, d) VALUES (9, 9, 9); COMMIT`, "t was altered"},
		{"unique index", `CREATE UNIQUE INDEX t_a ON t (a); INSERT OR REPLACE INTO t (id, a) VALUES (8, 'x')`, "t was altered"},
		{"made anew", `DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c); INSERT INTO t VALUES (1, 2, 3, 4)`, "t was altered"},
		{"the long way", `BEGIN; CREATE TABLE new_t (id INTEGER PRIMARY KEY, b); INSERT INTO new_t SELECT id, b FROM t; DROP TABLE t; ALTER TABLE new_t RENAME TO t; COMMIT; UPDATE t SET b = 5`, "t was altered"},
		{"legacy", `PRAGMA legacy_alter_table = ON; ALTER TABLE t RENAME TO t_old; CREATE TABLE t (id INTEGER PRIMARY KEY, z); INSERT INTO t SELECT id, a FROM t_old; DROP TABLE t_old`, "t was altered"},
		{"a trigger", `CREATE TRIGGER app AFTER INSERT ON t BEGIN UPDATE t SET a = 'stamp' WHERE id = NEW.id; END; INSERT INTO t (id) VALUES (5)`, "new trigger"},
		{"triggers dropped", `DROP TRIGGER _tidewire_1_insert; INSERT INTO t (id) VALUES (5)`, "t was altered"},
	} {
		for _, running := range []bool{true, false} {
			t.Run(fmt.Sprint(tc.name, ", running ", running), func(t *testing.T) {
				t.Parallel()
				path := newPath(t)
				o := openOther(t, path)
				o.must(t, `PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, a, b, c); CREATE TABLE u (id INTEGER PRIMARY KEY, n); INSERT INTO t VALUES (1, 'x', 2, 3), (2, 'y', 3, 4)`)
				db, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { closeDatabase(t, db) }()
				before, untouched := tableOf(t, db, "t"), tableOf(t, db, "u")
				at := newReplica(t, db, "t").at
				var r *feedtest.Recorder
				if running {
					r, _ = start(t, db)
				} else {
					closeDatabase(t, db)
				}
				o.must(t, tc.sql)
				if running {
					untilReset(t, r, 2, tc.reason)
				} else {
					db = openDatabase(t, path, sqlite.DatabaseOptions{})
				}
				if _, err := db.Since(t.Context(), at); !errors.Is(err, sqlite.ErrGap) {
					t.Errorf("Since = %v", err)
				}
				after := tableOf(t, db, "t")
				if running && (after == before || tableOf(t, db, "u") != untouched) {
					t.Error("the table that was altered must be another one, and the other the same")
				}
				rep := newReplica(t, db, "t", "u")
				o.must(t, `INSERT INTO t SELECT * FROM t WHERE 0; UPDATE t SET `+feedtest.Quote(after.Columns[1].Name)+` = 'later' || rowid; DELETE FROM t WHERE `+
					feedtest.Quote(after.Columns[0].Name)+` = 2; INSERT INTO u VALUES (1, 1)`)
				mustFollow(t, rep)
			})
		}
	}
}

func closeDatabase(t testing.TB, db *sqlite.Database) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

func TestP20_TableThatGoes(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, n); CREATE TABLE u (id INTEGER PRIMARY KEY, n); INSERT INTO t VALUES (1, 1)`)
	tableOf(t, db, "t")
	u := tableOf(t, db, "u")
	r, _ := start(t, db)
	o.must(t, `ALTER TABLE t RENAME TO elsewhere; UPDATE elsewhere SET n = 2`)
	untilReset(t, r, 2, "no such table: t")
	if _, err := db.Table(t.Context(), row.Name{Table: "t"}); !errors.Is(err, feed.ErrNoTable) {
		t.Error(err)
	}
	o.must(t, `UPDATE elsewhere SET n = 3; INSERT INTO u VALUES (1, 1)`)
	if got := r.Changes(t, 1); got[0].Table != u {
		t.Error(got)
	}
	var triggers int64
	if err := db.Write(t.Context(), func(tx *sqlite.Tx) error {
		rows, err := tx.Query(`SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'elsewhere'`)
		triggers = rows[0][0].Int()
		return err
	}); err != nil || triggers != 0 {
		t.Errorf("%d triggers are left, %v", triggers, err)
	}
}

func TestS22_TablesThatDoNotFit(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	if err := o.CreateCollation("mine", func(a, b []byte) int { return strings.Compare(string(a), string(b)) }); err != nil {
		t.Fatal(err)
	}
	o.must(t, `CREATE VIEW v AS SELECT 1 AS id; PRAGMA writable_schema = ON; INSERT INTO sqlite_schema VALUES ('table', 'ft', 'ft', 0, 'CREATE VIRTUAL TABLE ft USING unknown(x)'); PRAGMA writable_schema = RESET;
		CREATE TABLE keyless (n); CREATE TABLE custom (id TEXT PRIMARY KEY COLLATE mine);
		CREATE TABLE new (id INTEGER PRIMARY KEY); CREATE TABLE nulls (a, b, PRIMARY KEY (a, b)); INSERT INTO nulls VALUES (1, NULL);
		CREATE TABLE wide (id INTEGER PRIMARY KEY`+func() (s string) {
		for i := range 990 {
			s += fmt.Sprint(", c", i)
		}
		return s
	}()+`)`)
	for name, reason := range map[string]string{
		"v": "is a view", "ft": "virtual", "keyless": "no primary key", "custom": "collation mine", "new": "name", "nulls": "NULL in its primary key", "wide": "991 columns",
	} {
		if _, err := db.Table(t.Context(), row.Name{Table: name}); !errors.Is(err, feed.ErrTableUnfit) || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"_tidewire_changes", "sqlite_master2", "nothing"} {
		if _, err := db.Table(t.Context(), row.Name{Table: name}); !errors.Is(err, feed.ErrNoTable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestS22_NullInTheKeyEndsTheTable(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id TEXT PRIMARY KEY, n); CREATE TABLE u (id INTEGER PRIMARY KEY)`)
	tableOf(t, db, "t")
	tableOf(t, db, "u")
	r, _ := start(t, db)
	o.must(t, `INSERT INTO t VALUES ('a', 1); INSERT INTO t VALUES (NULL, 1)`)
	untilReset(t, r, 2, "t has a row with NULL in its primary key")
	if _, err := db.Table(t.Context(), row.Name{Table: "t"}); !errors.Is(err, feed.ErrTableUnfit) {
		t.Error(err)
	}
	o.must(t, `INSERT INTO t VALUES (NULL, 2); INSERT INTO u VALUES (1)`)
	r.Changes(t, 1)
	o.must(t, `DELETE FROM t WHERE id IS NULL`)
	rep := newReplica(t, db, "t")
	o.must(t, `INSERT INTO t VALUES ('b', 1)`)
	mustFollow(t, rep)
}

func TestS15_ColumnsAsDeclared(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	o := openOther(t, path)
	o.must(t, `PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (id TEXT PRIMARY KEY NOT NULL, a TEXT, b TEXT COLLATE NOCASE, v GENERATED ALWAYS AS (a || 'é') VIRTUAL)`)
	db := openDatabase(t, path, sqlite.DatabaseOptions{})
	table := tableOf(t, db, "t")
	if c := table.Columns[1].Type.Collation; c != row.Custom {
		t.Errorf("BINARY in UTF-16 is %s", c)
	}
	if c := table.Columns[2].Type.Collation; c != row.NoCase {
		t.Errorf("NOCASE in UTF-16 is %s", c)
	}
	r := newReplica(t, db, "t")
	o.must(t, `INSERT INTO t (id, a, b) VALUES ('ключ', '🌊', 'b'); INSERT OR REPLACE INTO t (id, a) VALUES ('ключ', x'00d8')`)
	mustFollow(t, r)
	o.must(t, `CREATE TABLE s (b ANY, id ANY, a INT NOT NULL, PRIMARY KEY (a, id)) STRICT, WITHOUT ROWID`)
	s := tableOf(t, db, "s")
	if !slices.Equal(s.Key, []int{2, 1}) || !s.Columns[1].NotNull || s.Columns[0].NotNull || s.Columns[1].Type.Kind != row.Dynamic || s.Columns[2].Type.Kind != row.Int {
		t.Errorf("%+v", s)
	}
}

// TestS14_OwnTransactionsStayApart holds the sink while transactions of this process are committed: each comes as one. Others may come together.
func TestS14_OwnTransactionsStayApart(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	tableOf(t, db, "t")
	r := feedtest.NewRecorder()
	held, release := make(chan struct{}), make(chan struct{})
	first := true
	r.OnCommit = func(*feed.Tx) {
		if first {
			first = false
			close(held)
			<-release
		}
	}
	r.Start(t, db)
	write(t, db, `INSERT INTO t VALUES (0, 0)`)
	<-held
	for i := 1; i <= 9; i++ {
		if i == 5 {
			o.must(t, `INSERT INTO t VALUES (5, 0), (105, 0)`)
			continue
		}
		write(t, db, `INSERT INTO t VALUES (?1, 0), (?1 + 100, 0)`, i)
	}
	close(release)
	txs := r.Until(t, "ten transactions", func(_ []string, txs []*feed.Tx) bool { return len(txs) == 10 })
	for i, tx := range txs[1:] {
		if len(tx.Changes) != 2 || tx.Changes[0].New[0].Int() != int64(i+1) {
			t.Errorf("transaction %d has %v", i+1, tx.Changes)
		}
	}
}

// TestS14_ReadsSplitTransactionsOfOthers holds the sink while another program commits and reads are made between: each read ends where a transaction ends.
func TestS14_ReadsSplitTransactionsOfOthers(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	tableOf(t, db, "t")
	r := feedtest.NewRecorder()
	held, release := make(chan struct{}), make(chan struct{})
	first := true
	r.OnCommit = func(*feed.Tx) {
		if first {
			first = false
			close(held)
			<-release
		}
	}
	r.Start(t, db)
	write(t, db, `INSERT INTO t VALUES (0, 0)`)
	<-held
	var fences []feed.Fence
	for i := 1; i <= 6; i++ {
		o.must(t, fmt.Sprintf(`INSERT INTO t VALUES (%d, 0)`, i))
		if i%2 == 0 {
			if err := db.Read(t.Context(), func(s feed.Snapshot) error { fences = append(fences, s.Fence()); return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(release)
	r.Changes(t, 7)
	txs := r.Until(t, "all", func([]string, []*feed.Tx) bool { return true })
	if len(txs) != 4 {
		t.Fatalf("%d transactions", len(txs))
	}
	for i, f := range fences {
		for j, tx := range txs {
			if f.Includes(tx) != (j <= i+1) {
				t.Errorf("fence %d and transaction %d", i, j)
			}
		}
	}
}

func TestS28_ResumeAcrossARestart(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db := openDatabase(t, path, sqlite.DatabaseOptions{})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	rep := newReplica(t, db, "t")
	r, stop := start(t, db)
	write(t, db, `INSERT INTO t VALUES (1, 1)`)
	r.Changes(t, 1)
	mustFollow(t, rep)
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	closeDatabase(t, db)
	o := openOther(t, path)
	o.must(t, `INSERT INTO t VALUES (2, 2); UPDATE t SET n = 5`) // while nobody follows
	again := openDatabase(t, path, sqlite.DatabaseOptions{})
	txs, err := again.Since(t.Context(), rep.at)
	if err != nil || len(txs) != 1 || len(txs[0].Changes) != 3 {
		t.Fatalf("Since = %v, %v", txs, err)
	}
	if txs, err := again.Since(t.Context(), txs[0].Position); err != nil || len(txs) != 0 {
		t.Errorf("Since the last one = %v, %v", txs, err)
	}
	for _, p := range []feed.Position{"0000000000000001", "7fffffffffffffff"} {
		if _, err := again.Since(t.Context(), p); !errors.Is(err, sqlite.ErrGap) {
			t.Errorf("Since(%s) = %v", p, err)
		}
	}
	for _, p := range []feed.Position{"", "1", "x000000000000001", "-000000000000001", "00000000000000AB"} {
		if _, err := again.Since(t.Context(), p); err == nil || errors.Is(err, sqlite.ErrGap) {
			t.Errorf("Since(%q) = %v", p, err)
		}
	}
}

func count(t testing.TB, db *sqlite.Database, sql string) (n int64) {
	t.Helper()
	if err := db.Write(t.Context(), func(tx *sqlite.Tx) error {
		rows, err := tx.Query(sql)
		if err == nil {
			n = rows[0][0].Int()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestS28_LogIsPrunedBySize(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{KeepBytes: 256 << 10})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, b)`)
	tableOf(t, db, "t")
	begin := newReplica(t, db, "t").at
	r, _ := start(t, db)
	for i := range 100 {
		write(t, db, `INSERT INTO t VALUES (?, zeroblob(20000))`, i)
	}
	r.Changes(t, 100)
	until(t, "pruning", func() bool { return count(t, db, `SELECT count(*) FROM _tidewire_changes`) < 35 })
	if n := count(t, db, `SELECT count(*) FROM _tidewire_changes`); n < 10 { // 256 KiB are 13 of them
		t.Errorf("%d entries are kept", n)
	}
	if _, err := db.Since(t.Context(), begin); !errors.Is(err, sqlite.ErrGap) {
		t.Errorf("Since what was pruned = %v", err)
	}
	rep := newReplica(t, db, "t")
	write(t, db, `DELETE FROM t WHERE id < 50`)
	mustFollow(t, rep)
}

func TestS28_LogIsPrunedByAge(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{KeepAge: time.Second})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, b)`)
	tableOf(t, db, "t")
	r, _ := start(t, db)
	for i := range 600 {
		write(t, db, `INSERT INTO t VALUES (?, 1)`, i)
	}
	r.Changes(t, 600)
	until(t, "pruning", func() bool { return count(t, db, `SELECT count(*) FROM _tidewire_changes`) == 1 })
	write(t, db, `INSERT INTO t VALUES (-1, 1)`) // the numbers go on
	r.Changes(t, 601)
}

func TestP29_TransactionThatIsTooLarge(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{MaxBytes: 100 << 10})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, b)`)
	tableOf(t, db, "t")
	at := newReplica(t, db, "t").at
	r, _ := start(t, db)
	write(t, db, `INSERT INTO t VALUES (1, 'small')`)
	r.Changes(t, 1)
	write(t, db, `INSERT INTO t SELECT value, zeroblob(1000) FROM generate_series(2, 200)`)
	untilReset(t, r, 2, "more than 102400 bytes")
	write(t, db, `INSERT INTO t VALUES (201, 'small')`)
	if got := r.Changes(t, 1); got[0].New[0].Int() != 201 {
		t.Error(got)
	}
	if _, err := db.Since(t.Context(), at); !errors.Is(err, sqlite.ErrGap) {
		t.Error(err)
	}
}

func TestS22_NothingIsLeft(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	o := openOther(t, path)
	schema := func() (out []string) {
		stmt, _, err := o.Prepare(`SELECT type || name || sql FROM sqlite_schema ORDER BY 1`)
		if err != nil {
			t.Fatal(err)
		}
		for stmt.Step() {
			out = append(out, stmt.ColumnText(0))
		}
		if err := errors.Join(stmt.Err(), stmt.Close()); err != nil {
			t.Fatal(err)
		}
		return out
	}
	o.must(t, `PRAGMA journal_mode = WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, n UNIQUE); CREATE TRIGGER tidewire AFTER INSERT ON t BEGIN SELECT 1; END`)
	before := schema()
	db := openDatabase(t, path, sqlite.DatabaseOptions{})
	tableOf(t, db, "t")
	r, stop := start(t, db)
	_ = r
	if err := db.Uninstall(t.Context()); err == nil {
		t.Error("uninstalled under a Run")
	}
	_ = stop()
	for _, s := range schema() {
		if !strings.Contains(s, "tidewire") && !slices.Contains(before, s) {
			t.Errorf("%s has a name that says nothing", s)
		}
	}
	if err := db.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := schema(); !slices.Equal(before, after) {
		t.Errorf("the schema is %q, was %q", after, before)
	}
	if _, err := db.Table(t.Context(), row.Name{Table: "t"}); !errors.Is(err, sqlite.ErrClosed) {
		t.Error(err)
	}
	// Positions of a log that was made anew are above those before.
	again := openDatabase(t, path, sqlite.DatabaseOptions{})
	tableOf(t, again, "t")
}

// TestS22_TwoNodesOnOneFile has two databases over one file, as two processes have: each follows all, and an altered table resets both.
func TestS22_TwoNodesOnOneFile(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	dbs := []*sqlite.Database{openDatabase(t, path, sqlite.DatabaseOptions{KeepBytes: 1000}), openDatabase(t, path, sqlite.DatabaseOptions{})}
	write(t, dbs[0], `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	var rs []*feedtest.Recorder
	for _, db := range dbs {
		tableOf(t, db, "t")
		r, _ := start(t, db)
		rs = append(rs, r)
	}
	for i := range 40 {
		write(t, dbs[i%2], `INSERT INTO t VALUES (?, 0)`, i)
		for _, r := range rs { // the first one prunes at once what it has delivered
			r.Changes(t, i+1)
		}
	}
	write(t, dbs[0], `ALTER TABLE t ADD COLUMN m`)
	for i, r := range rs {
		untilReset(t, r, 2, "t was altered")
		if n := len(tableOf(t, dbs[i], "t").Columns); n != 3 {
			t.Errorf("%d columns", n)
		}
	}
	write(t, dbs[1], `INSERT INTO t VALUES (100, 1, 2)`)
	for _, r := range rs {
		r.Changes(t, 1)
	}
}

func TestS14_LogPrunedByAnotherIsAReset(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db, o := openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)
	o.must(t, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	tableOf(t, db, "t")
	r, _ := start(t, db)
	o.must(t, `BEGIN; INSERT INTO t VALUES (1, 1), (2, 2), (3, 3); DELETE FROM _tidewire_changes WHERE id < (SELECT max(id) FROM _tidewire_changes); COMMIT`)
	untilReset(t, r, 2, "pruned by another")
	o.must(t, `BEGIN; DELETE FROM _tidewire_changes WHERE id > 0; INSERT INTO _tidewire_changes (id, op, v0) VALUES (7, 0, 'restored'); COMMIT`)
	untilReset(t, r, 3, "another one")
	o.must(t, `INSERT INTO t VALUES (4, 4)`)
	r.Changes(t, 1)
}

func TestS22_Failures(t *testing.T) {
	t.Parallel()
	t.Run("locked", func(t *testing.T) {
		t.Parallel()
		path := newPath(t)
		db, o := openDatabase(t, path, sqlite.DatabaseOptions{BusyTimeout: 20 * time.Millisecond}), openOther(t, path)
		write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
		tableOf(t, db, "t")
		r, _ := start(t, db)
		o.must(t, `BEGIN IMMEDIATE; INSERT INTO t VALUES (1, 1)`)
		if err := db.Write(t.Context(), func(*sqlite.Tx) error { return nil }); !errors.Is(err, sqlite3.BUSY) {
			t.Errorf("Write = %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := db.Write(ctx, func(*sqlite.Tx) error { return nil }); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, sqlite3.BUSY) {
			t.Errorf("Write = %v", err)
		}
		if err := db.Read(t.Context(), func(feed.Snapshot) error { return nil }); err != nil {
			t.Errorf("Read = %v", err)
		}
		o.must(t, `ALTER TABLE t ADD COLUMN m; COMMIT`) // and it is locked again when the triggers are to be made anew
		o.must(t, `BEGIN IMMEDIATE; INSERT INTO t VALUES (2, 2, 2)`)
		o.must(t, `COMMIT`)
		untilReset(t, r, 2, "altered")
		write(t, db, `INSERT INTO t VALUES (3, 3, 3)`)
		r.Until(t, "the row", func(_ []string, txs []*feed.Tx) bool { return len(txs) > 0 })
	})
	t.Run("full", func(t *testing.T) {
		t.Parallel()
		db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{})
		write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, n); PRAGMA max_page_count = 40`)
		rep := newReplica(t, db, "t")
		err := db.Write(t.Context(), func(tx *sqlite.Tx) error {
			_, err := tx.Exec(`INSERT INTO t SELECT value, zeroblob(4000) FROM generate_series(1, 100)`)
			return err
		})
		if !errors.Is(err, sqlite3.FULL) {
			t.Errorf("Write = %v", err)
		}
		write(t, db, `INSERT INTO t VALUES (1, 1)`)
		mustFollow(t, rep)
	})
	t.Run("ended inside", func(t *testing.T) {
		t.Parallel()
		db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{})
		for _, sql := range []string{"COMMIT", "ROLLBACK"} {
			if err := db.Write(t.Context(), func(tx *sqlite.Tx) error { _, err := tx.Exec(sql); return err }); err == nil || !strings.Contains(err.Error(), "ended inside") {
				t.Errorf("%s: %v", sql, err)
			}
		}
	})
	t.Run("panic", func(t *testing.T) {
		t.Parallel()
		db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{})
		func() {
			defer func() { _ = recover() }()
			_ = db.Write(t.Context(), func(*sqlite.Tx) error { panic("boom") })
		}()
		write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY)`)
	})
	t.Run("not a database", func(t *testing.T) {
		t.Parallel()
		path := newPath(t)
		if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{}); !errors.Is(err, sqlite3.NOTADB) {
			t.Errorf("OpenDatabase = %v", err)
		}
		if _, err := sqlite.OpenDatabase("", sqlite.DatabaseOptions{}); err == nil {
			t.Error("no name")
		}
		if _, err := sqlite.OpenDatabase(filepath.Join(path, "x"), sqlite.DatabaseOptions{}); err == nil {
			t.Error("no folder")
		}
	})
	t.Run("gone", func(t *testing.T) {
		t.Parallel()
		path := newPath(t)
		db, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r := feedtest.NewRecorder()
		done := make(chan error, 1)
		go func() { done <- db.Run(context.Background(), r) }()
		untilReset(t, r, 1, "start")
		if err := os.Rename(path, path+"-elsewhere"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, sqlite.ErrFileGone) {
			t.Errorf("Run = %v", err)
		}
		closeDatabase(t, db)
	})
	t.Run("closed", func(t *testing.T) {
		t.Parallel()
		db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{})
		r := feedtest.NewRecorder()
		stop := r.Start(t, db)
		closeDatabase(t, db)
		if err := stop(); !errors.Is(err, sqlite.ErrClosed) && !errors.Is(err, context.Canceled) {
			t.Errorf("Run = %v", err)
		}
		if err := db.Read(t.Context(), func(feed.Snapshot) error { return nil }); !errors.Is(err, sqlite.ErrClosed) {
			t.Errorf("Read = %v", err)
		}
		if err := db.Write(t.Context(), func(*sqlite.Tx) error { return nil }); !errors.Is(err, sqlite.ErrClosed) {
			t.Errorf("Write = %v", err)
		}
		closeDatabase(t, db)
	})
}

// TestS26_StarAfterAChange reads through one connection, whose statements are kept.
func TestS26_StarAfterAChange(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{Readers: 1})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)`)
	newReplica(t, db, "t")
	write(t, db, `ALTER TABLE t ADD COLUMN n DEFAULT 2`)
	if rows, _ := newReplica(t, db, "t").read(tableOf(t, db, "t")); fmt.Sprint(rows) != "map[1:[1 2]]" {
		t.Error(rows)
	}
}

func TestS14_Selects(t *testing.T) {
	t.Parallel()
	db := openDatabase(t, newPath(t), sqlite.DatabaseOptions{})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	table := tableOf(t, db, "t")
	for i, v := range []any{nil, row.Value{}, true, 5, int64(1) << 60, 1.5, "a\x00b", []byte{}, []byte{1}, row.TextValue("\xff"), row.BytesValue(nil), row.BoolValue(true)} {
		write(t, db, `INSERT INTO t VALUES (?, ?)`, i, v)
	}
	var over feed.Snapshot
	err := db.Read(t.Context(), func(s feed.Snapshot) error {
		over = s
		for _, tc := range []struct {
			sql  string
			args []any
			want string
		}{
			{`SELECT id, n FROM t WHERE n = ? ORDER BY id`, []any{row.TextValue("a\x00b")}, "[[6 a\x00b]]"},
			{`SELECT id, n FROM t WHERE n = ? ORDER BY id`, []any{[]byte{}}, `[[7 \x] [10 \x]]`},
			{`SELECT id, n FROM t WHERE n IS ? ORDER BY id LIMIT 1`, []any{row.Value{}}, "[[0 NULL]]"},
			{`SELECT id, n FROM t WHERE n = ? AND id = ?`, []any{int64(1) << 60, 4}, "[[4 1152921504606846976]]"},
		} {
			rows, err := s.Select(t.Context(), feed.Select{Table: table, SQL: tc.sql, Args: tc.args})
			if err != nil || fmt.Sprint(rows) != tc.want {
				t.Errorf("%s %v = %v, %v, want %s", tc.sql, tc.args, rows, err, tc.want)
			}
		}
		for _, tc := range []struct {
			sql  string
			args []any
			want string
		}{
			{`SELECT id FROM t`, nil, "1 columns"},
			{`SELECT id, n FROM t WHERE id = ?`, nil, "0 values for 1"},
			{`SELECT id, n FROM t WHERE id = ?`, []any{row.JSONValue("1")}, "kind json"},
			{`SELECT id, n FROM t WHERE id = ?`, []any{struct{}{}}, "struct"},
			{`DELETE FROM t RETURNING id, n`, nil, "not one query"},
			{`SELECT id, n FROM t; DELETE FROM t`, nil, "not one query"},
			{``, nil, "not one query"},
			{`SELECT id, nix FROM t`, nil, "no such column"},
		} {
			if rows, err := s.Select(t.Context(), feed.Select{Table: table, SQL: tc.sql, Args: tc.args}); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s = %v, %v, want %s", tc.sql, rows, err, tc.want)
			}
		}
		for i := range 200 { // more than are kept
			if _, err := s.Select(t.Context(), feed.Select{Table: table, SQL: fmt.Sprintf(`SELECT id, n FROM t WHERE id = %d`, i)}); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		long := `WITH RECURSIVE r (a, b) AS (SELECT 1, 2 UNION ALL SELECT a + 1, b FROM r) SELECT max(a), b FROM r`
		if _, err := s.Select(ctx, feed.Select{Table: table, SQL: long}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a long query = %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := over.Select(t.Context(), selectAll(table)); err == nil {
		t.Error("a snapshot that is over")
	}
}

// TestS51_Probe: a probe comes back when what was committed before is delivered, and not at all while the feed stands still.
func TestS51_Probe(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db := openDatabase(t, path, sqlite.DatabaseOptions{Poll: time.Hour})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	tableOf(t, db, "t")
	other := openOther(t, path)
	refuse := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := db.Probe(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: Probe = %v", what, err)
		}
	}
	refuse("before Run")
	r := feedtest.NewRecorder()
	held, release := make(chan struct{}), make(chan struct{})
	r.OnCommit = func(tx *feed.Tx) {
		if tx.Changes[0].New[0].Int() == 20 {
			close(held)
			<-release
		}
	}
	stop := r.Start(t, db)
	delivered := func() (n int) {
		r.Until(t, "anything", func(_ []string, txs []*feed.Tx) bool {
			for _, tx := range txs {
				n += len(tx.Changes)
			}
			return true
		})
		return n
	}
	for i := range 20 {
		other.must(t, fmt.Sprintf(`INSERT INTO t VALUES (%d, 0)`, i)) // which nobody is told of
		if err := db.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := delivered(); n != i+1 {
			t.Fatalf("%d changes are delivered, want %d", n, i+1)
		}
	}
	write(t, db, `INSERT INTO t VALUES (20, 0)`)
	<-held
	refuse("while the sink holds the feed up")
	close(release)
	if err := db.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	refuse("after Run")
	closeDatabase(t, db)
	if err := db.Probe(t.Context()); !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("after Close: Probe = %v", err)
	}
}
