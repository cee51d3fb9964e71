package postgres_test

import (
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

const full = `; ALTER TABLE t REPLICA IDENTITY FULL`

func TestS22_Changes(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, name text)`+full)
	def := e.table("t")
	e.exec(`INSERT INTO t VALUES (1, 'a'), (2, NULL)`)
	tx := e.sink.tx(t)
	expect(t, tx, "insert public.t -> [1 a]", "insert public.t -> [2 NULL]")
	if tx.Changes[0].Table != def {
		t.Error("the table is another pointer than Table returned")
	}
	e.exec(`UPDATE t SET name = 'b' WHERE id = 1`)
	next := e.sink.tx(t)
	expect(t, next, "update public.t [1 a] -> [1 b]")
	if next.Position <= tx.Position || next.ID <= tx.ID {
		t.Errorf("positions %s, %s and ids %d, %d", tx.Position, next.Position, tx.ID, next.ID)
	}
	e.exec(`DELETE FROM t WHERE id = 2`)
	expect(t, e.sink.tx(t), "delete public.t [2 NULL]")
	if err := e.stop(); !errors.Is(err, e.Context().Err()) && err == nil {
		t.Errorf("Run = %v", err)
	}
}

// S26: every type comes from the stream as it comes from a read, and as the server writes it.
func TestS26_Types(t *testing.T) {
	t.Parallel()
	columns := []struct{ typ, value, want, kind string }{
		{"boolean", "true", "true", "bool"},
		{"smallint", "-32768", "-32768", "int"},
		{"integer", "2147483647", "2147483647", "int"},
		{"bigint", "9223372036854775807", "9223372036854775807", "int"},
		{"real", "0.1::real", "0.10000000149011612", "float"},
		{"double precision", "'-Infinity'", "-Infinity", "float"},
		{"double precision", "'NaN'", "NaN", "float"},
		{"numeric", "12345678901234567890.000100", "12345678901234567890.000100", "numeric"},
		{"numeric(10,2)", "'NaN'", "NaN", "numeric"},
		{"text", "E'a\\nb\\\\ \"ü😀'", "a\nb\\ \"ü😀", "text"},
		{"varchar(10)", "''", "", "text"},
		{"char(5)", "'ab'", "ab   ", "text"},
		{"name", "'n'", "n", "text"},
		{"uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "uuid"},
		{"bytea", `'\x00ff10'`, `\x00ff10`, "bytes"},
		{"json", `'{"n": 9007199254740993}'`, `{"n": 9007199254740993}`, "json"},
		{"jsonb", `'{"n": 9007199254740993.10}'`, `{"n": 9007199254740993.10}`, "json"},
		{"date", "'0044-03-15 BC'", "0044-03-15 BC", "date"},
		{"date", "'infinity'", "infinity", "date"},
		{"timestamp", "'2026-11-30 12:00:00.000001'", "2026-11-30 12:00:00.000001", "timestamp"},
		{"timestamptz", "'2026-11-30 12:00:00.25+05:30'", "2026-11-30 06:30:00.25+00", "timestamptz"},
		{"timestamptz", "'-infinity'", "-infinity", "timestamptz"},
		{"time", "'24:00:00'", "24:00:00", "opaque"},
		{"timetz", "'12:00+05:30'", "12:00:00+05:30", "opaque"},
		{"interval", "'1 year -2 days 03:04:05.6'", "1 year -2 days +03:04:05.6", "opaque"},
		{"inet", "'10.0.0.1/8'", "10.0.0.1/8", "opaque"},
		{"macaddr", "'08:00:2b:01:02:03'", "08:00:2b:01:02:03", "opaque"},
		{"money", "'1234.5'", "$1,234.50", "opaque"},
		{"bit varying", "B'101'", "101", "opaque"},
		{"point", "'(1,2.5)'", "(1,2.5)", "opaque"},
		{"int4range", "'[1,5)'", "[1,5)", "opaque"},
		{"tsvector", "'a:1 b'", "'a':1 'b'", "opaque"},
		{"xml", "'<a/>'", "<a/>", "opaque"},
		{"int[]", "'{1,NULL,3}'", "{1,NULL,3}", "array"},
		{"text[]", `ARRAY['a','b,c','d"e',NULL]`, `{a,"b,c","d\"e",NULL}`, "array"},
		{"uuid[]", "'{}'", "{}", "array"},
		{"mood", "'happy'", "happy", "enum"},
		{"mood[]", "'{sad,happy}'", "{sad,happy}", "array"},
		{`"Odd Type"`, "'x y'", "x y", "enum"},
		{"positive", "7", "7", "int"},
		{"pair", "ROW(1,'b')", "(1,b)", "opaque"},
		{"int2vector", "'1 2'", "1 2", "opaque"},
		{"text", "NULL", "NULL", "text"},
	}
	var ddl, values strings.Builder
	ddl.WriteString(`CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TYPE "Odd Type" AS ENUM ('x y'); CREATE DOMAIN positive AS int CHECK (value > 0); CREATE TYPE pair AS (a int, b text); CREATE TABLE t (id int PRIMARY KEY`)
	for i, c := range columns {
		fmt.Fprintf(&ddl, ", c%d %s", i, c.typ)
		fmt.Fprintf(&values, ", %s", c.value)
	}
	e := start(t, ddl.String()+")"+full)
	def := e.table("t")
	e.exec("INSERT INTO t VALUES (1" + values.String() + ")")
	streamed := e.sink.tx(t).Changes[0].New
	read := e.read(def, "SELECT * FROM public.t")[0]
	for i, c := range columns {
		if streamed[i+1] != read[i+1] {
			t.Errorf("%s: streamed %v, read %v", c.typ, streamed[i+1], read[i+1])
		}
		if got := streamed[i+1].String(); got != c.want {
			t.Errorf("%s = %q, want %q", c.typ, got, c.want)
		}
		if k := def.Columns[i+1].Type.Kind.String(); k != c.kind {
			t.Errorf("%s is %s, want %s", c.typ, k, c.kind)
		}
	}
	if name := def.Columns[1+40-2].Type; name.Name != `public."Odd Type"` && def.Columns[39].Type.Name != `public."Odd Type"` {
		t.Errorf("the name of the type: %q", name.Name)
	}
	// A row of NULLs, and back again: the old row is exact as well.
	e.exec("UPDATE t SET c0 = NULL, c3 = NULL")
	if c := e.sink.tx(t).Changes[0]; c.Op != feed.Update || c.Old[1] != read[1] || !c.New[1].IsNull() {
		t.Errorf("update: %v -> %v", c.Old[1], c.New[1])
	}
}

// P23: how text is compared is known from the catalog.
func TestS15_Collations(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE COLLATION blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
		CREATE TABLE t (id int PRIMARY KEY, a text, b text COLLATE "C", c text COLLATE "POSIX", d text COLLATE "C.utf8", e text COLLATE "und-x-icu", f text COLLATE blind, g char(3), h name, i varchar(3) COLLATE ucs_basic)`)
	want := []row.Collation{row.C, row.C, row.C, row.C, row.CUTF8, row.Locale, row.Custom, row.RTrim, row.C, row.C}
	for i, c := range e.table("t").Columns {
		if c.Type.Collation != want[i] {
			t.Errorf("%s: %v, want %v", c.Name, c.Type.Collation, want[i])
		}
	}
}

// big is a value that is stored out of line.
const big = `(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) i)`

func TestP10_UnchangedOutOfLineColumn(t *testing.T) {
	t.Parallel()
	for _, identity := range []string{"FULL", "DEFAULT", "USING INDEX t_code"} {
		t.Run(identity, func(t *testing.T) {
			t.Parallel()
			e := start(t, `CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL, n int, body text); CREATE UNIQUE INDEX t_code ON t (code); ALTER TABLE t REPLICA IDENTITY `+identity)
			def := e.table("t")
			e.exec(`INSERT INTO t SELECT 1, 10, 0, ` + big)
			body := e.sink.tx(t).Changes[0].New[3]
			e.exec(`UPDATE t SET n = 1`)
			c := e.sink.tx(t).Changes[0]
			switch {
			case identity == "FULL" && (c.New[3] != body || c.Old[3] != body):
				t.Errorf("body: %.20s -> %.20s", c.Old[3], c.New[3])
			case identity != "FULL" && (c.New[3].Kind() != row.Absent || c.Old[3].Kind() != row.Absent):
				t.Errorf("body: %.20s -> %.20s, want absent", c.Old[3], c.New[3])
			}
			if key := def.Columns[def.Key[0]].Name; (identity == "USING INDEX t_code") != (key == "code") {
				t.Errorf("the key is %s", key)
			}
			if c.Op != feed.Update || def.KeyOf(c.Old) != def.KeyOf(c.New) {
				t.Errorf("%s of %v", c.Op, c.Old)
			}
			if partial := e.db.Stats().PartialOldRows; (partial == 0) != (identity == "FULL") {
				t.Errorf("%d partial old rows", partial)
			}
		})
	}
}

func TestP11_KeyOnlyOldRow(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, n int)`)
	e.table("t")
	e.exec(`INSERT INTO t VALUES (1, 5)`)
	e.sink.tx(t)
	e.exec(`UPDATE t SET n = 6`)
	expect(t, e.sink.tx(t), "update public.t [1 ABSENT] -> [1 6]")
	e.exec(`DELETE FROM t`)
	expect(t, e.sink.tx(t), "delete public.t [1 ABSENT]")
}

func TestP15_KeyChange(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (b text, n int, a int, PRIMARY KEY (a, b)); ALTER TABLE t REPLICA IDENTITY FULL; CREATE TABLE u (id text PRIMARY KEY, body text)`)
	if k := fmt.Sprint(e.table("t").Key); k != "[2 0]" { // U10
		t.Errorf("key %s", k)
	}
	e.table("u")
	e.exec(`INSERT INTO t VALUES ('x', 0, 1)`)
	e.sink.tx(t)
	e.exec(`UPDATE t SET b = 'y'`)
	expect(t, e.sink.tx(t), "delete public.t [x 0 1]", "insert public.t -> [y 0 1]")
	e.exec(`UPDATE t SET a = a, n = 2`)
	expect(t, e.sink.tx(t), "update public.t [y 0 1] -> [y 2 1]")
	// With the default identity the old row is its key, and a column out of line that did not change is not known.
	e.exec(`INSERT INTO u SELECT 'a', ` + big)
	e.sink.tx(t)
	e.exec(`UPDATE u SET id = 'b'`)
	expect(t, e.sink.tx(t), "delete public.u [a ABSENT]", "insert public.u -> [b ABSENT]")
	// A key that is itself out of line.
	e.exec(`ALTER TABLE u ALTER id SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL; INSERT INTO u VALUES (repeat('k', 2300), 'x')`)
	key := e.sink.tx(t).Changes[0].New[0]
	e.exec(`UPDATE u SET body = 'y' WHERE id LIKE 'k%'`)
	if c := e.sink.tx(t).Changes[0]; c.Op != feed.Update || c.Old[0] != key || c.New[0] != key {
		t.Errorf("%s %.20s -> %.20s", c.Op, c.Old[0], c.New[0])
	}
}

func TestP16_Truncate(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a); CREATE TABLE c (id int PRIMARY KEY); CREATE TABLE unseen (id int PRIMARY KEY)`)
	e.table("a")
	e.table("b")
	e.table("c")
	e.exec(`INSERT INTO a VALUES (1); INSERT INTO b VALUES (1, 1); INSERT INTO c VALUES (1)`)
	e.sink.tx(t)
	e.exec(`BEGIN; INSERT INTO c VALUES (2); TRUNCATE a, c, unseen CASCADE; INSERT INTO a VALUES (7); COMMIT`)
	tx := e.sink.tx(t)
	var got []string
	for _, c := range tx.Changes[1 : len(tx.Changes)-1] {
		got = append(got, c.Op.String()+" "+c.Table.Table)
	}
	if s := strings.Join(got, ", "); s != "truncate a, truncate c, truncate b" {
		t.Errorf("changes: %s", s)
	}
	if c := tx.Changes[len(tx.Changes)-1]; c.Op != feed.Insert || c.Table.Table != "a" {
		t.Errorf("the last change: %v", show(tx))
	}
}

func TestP45_Savepoints(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY)`)
	e.table("t")
	e.exec(`BEGIN; INSERT INTO t VALUES (1); SAVEPOINT s; INSERT INTO t VALUES (2); ROLLBACK TO s; INSERT INTO t VALUES (3); SAVEPOINT r; INSERT INTO t VALUES (4); RELEASE r; COMMIT`)
	expect(t, e.sink.tx(t), "insert public.t -> [1]", "insert public.t -> [3]", "insert public.t -> [4]")
	e.exec(`BEGIN; INSERT INTO t VALUES (5); ROLLBACK; INSERT INTO t VALUES (6)`)
	expect(t, e.sink.tx(t), "insert public.t -> [6]")
}

// S22: a prepared transaction comes when it is committed, and a snapshot in between does not see it.
func TestS22_PreparedTransactions(t *testing.T) {
	t.Parallel()
	s := testenv.NewServer(t, "max_prepared_transactions=5")
	e := &env{TB: t, url: s.URL, sink: &sink{}, sql: connect(t, s.URL)}
	e.exec(`CREATE TABLE t (id int PRIMARY KEY)`)
	e.db = open(t, options(t, s.URL))
	e.run()
	def := e.table("t")
	e.exec(`BEGIN; INSERT INTO t VALUES (1); PREPARE TRANSACTION 'p'`)
	e.exec(`INSERT INTO t VALUES (2)`)
	expect(t, e.sink.tx(t), "insert public.t -> [2]")
	rows, fence := e.snapshot(def)
	e.exec(`COMMIT PREPARED 'p'`)
	tx := e.sink.tx(t)
	expect(t, tx, "insert public.t -> [1]")
	if len(rows) != 1 || fence.Includes(tx) {
		t.Errorf("the snapshot has %v and includes the transaction: %v", rows, fence.Includes(tx))
	}
	e.exec(`BEGIN; INSERT INTO t VALUES (3); PREPARE TRANSACTION 'q'`)
	e.exec(`ROLLBACK PREPARED 'q'`)
	e.exec(`INSERT INTO t VALUES (4)`)
	expect(t, e.sink.tx(t), "insert public.t -> [4]")
}

func TestP17_ColumnsChange(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, a text, b int)`+full)
	def := e.table("t")
	steps := []struct{ ddl, insert, want string }{
		{`ALTER TABLE t ADD c numeric DEFAULT 1.50`, `INSERT INTO t VALUES (1, 'x', 2)`, "insert public.t -> [1 x 2 1.50]"},
		{`ALTER TABLE t DROP a`, `INSERT INTO t VALUES (2, 3)`, "insert public.t -> [2 3 1.50]"},
		{`ALTER TABLE t RENAME b TO "B b"`, `UPDATE t SET "B b" = 9 WHERE id = 2`, "update public.t [2 3 1.50] -> [2 9 1.50]"},
		{`ALTER TABLE t ALTER "B b" TYPE text USING 'n' || "B b"`, `DELETE FROM t WHERE id = 2`, "delete public.t [2 n9 1.50]"},
	}
	for _, s := range steps {
		e.exec(s.ddl)
		e.exec(s.insert)
		tx := e.sink.tx(t)
		expect(t, tx, s.want)
		if tx.Changes[0].Table == def {
			t.Errorf("%s: the table is the same pointer", s.ddl)
		}
		def = tx.Changes[0].Table
		if now := e.table("t"); now != def {
			t.Errorf("%s: Table returns another pointer than the stream", s.ddl)
		}
	}
	// In one transaction both layouts come, each with its own rows.
	e.exec(`BEGIN; INSERT INTO t VALUES (5, 'a'); ALTER TABLE t ADD d int; INSERT INTO t VALUES (6, 'b', 1, 4); COMMIT`)
	tx := e.sink.tx(t)
	expect(t, tx, "insert public.t -> [5 a 1.50]", "insert public.t -> [6 b 1 4]")
	if tx.Changes[0].Table == tx.Changes[1].Table {
		t.Error("both have one table")
	}
}

// P17: a stream that is behind still has the columns of its time, and comes to those that Table has said.
func TestP17_ColumnsChangeAheadOfTheStream(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, a text COLLATE "C")`+full)
	e.table("t")
	e.sink.mu.Lock()
	e.sink.block = make(chan struct{})
	e.sink.mu.Unlock()
	e.exec(`INSERT INTO t VALUES (1, 'a')`) // the stream stands here
	e.sink.tx(t)
	e.exec(`INSERT INTO t VALUES (2, 'b')`)
	e.exec(`ALTER TABLE t ADD b int; INSERT INTO t VALUES (3, 'c', 1); ALTER TABLE t DROP a`)
	e.exec(`INSERT INTO t VALUES (4, 2)`)
	e.exec(`ALTER TABLE t ADD c int`)
	now := e.table("t")
	close(e.sink.block)
	expect(t, e.sink.tx(t), "insert public.t -> [2 b]")
	tx := e.sink.tx(t)
	expect(t, tx, "insert public.t -> [3 c 1]")
	if c := tx.Changes[0].Table.Columns[1]; c.Type.Kind != row.Text {
		t.Errorf("column %+v", c)
	}
	expect(t, e.sink.tx(t), "insert public.t -> [4 2]")
	e.exec(`INSERT INTO t VALUES (5, 2, 3)`)
	tx = e.sink.tx(t)
	expect(t, tx, "insert public.t -> [5 2 3]")
	if tx.Changes[0].Table != now {
		t.Error("the stream has another pointer than Table returned")
	}
}

// P17: what changes all rows without a change of any is a reset.
func TestP17_QuietTableWasAltered(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, a int)`+full, beat(50*time.Millisecond))
	def := e.table("t")
	e.exec(`ALTER TABLE t ALTER a TYPE text USING 'x' || a`)
	if r := e.sink.reset(t); r.reason != "table public.t was altered" {
		t.Errorf("reset: %s", r.reason)
	}
	now := e.table("t")
	if now == def {
		t.Error("the table is the same pointer")
	}
	e.exec(`INSERT INTO t VALUES (1, 'a')`)
	if tx := e.sink.tx(t); tx.Changes[0].Table != now {
		t.Error("the stream has another pointer")
	}
}

func TestP18_GeneratedColumn(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, a int, twice int GENERATED ALWAYS AS (a * 2) STORED, b int)`+full)
	def := e.table("t")
	e.exec(`INSERT INTO t VALUES (1, 2, DEFAULT, 3)`)
	tx := e.sink.tx(t)
	expect(t, tx, "insert public.t -> [1 2 ABSENT 3]")
	if tx.Changes[0].Table != def {
		t.Error("another pointer")
	}
	if r := e.read(def, `SELECT * FROM public.t`); fmt.Sprint(r) != "[[1 2 4 3]]" {
		t.Errorf("read: %v", r)
	}
}

func TestP28_EnumGetsLabels(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TABLE t (id int PRIMARY KEY, m mood, n int)`+full)
	def := e.table("t")
	e.exec(`INSERT INTO t VALUES (1, 'happy')`)
	e.sink.tx(t)
	e.exec(`ALTER TYPE mood ADD VALUE 'fair' BEFORE 'happy'`)
	e.exec(`UPDATE t SET m = 'fair'`)
	tx := e.sink.tx(t)
	expect(t, tx, "update public.t [1 happy NULL] -> [1 fair NULL]")
	c := tx.Changes[0]
	if c.Table == def || row.Compare(c.Old[1], c.New[1], row.C) <= 0 {
		t.Errorf("old %d, new %d, the same pointer: %v", c.Old[1].Int(), c.New[1].Int(), c.Table == def)
	}
	e.exec(`ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'`)
	e.exec(`INSERT INTO t VALUES (2, 'blue')`)
	if tx := e.sink.tx(t); tx.Changes[0].New[1].Text() != "blue" || tx.Changes[0].New[1].Int() != 0 {
		t.Errorf("%s", show(tx))
	}
}

func TestU9_TwoSchemasAndOddNames(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE SCHEMA "Other Schema"; CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE "Other Schema".t (id int PRIMARY KEY); CREATE TABLE "Camel""Case" ("Mixed Name" int PRIMARY KEY)`)
	e.table("public.t")
	e.table("Other Schema.t")
	e.table(`public.Camel"Case`) // P21
	e.exec(`INSERT INTO t VALUES (1); INSERT INTO "Other Schema".t VALUES (2); INSERT INTO "Camel""Case" VALUES (3)`)
	expect(t, e.sink.tx(t), "insert public.t -> [1]", "insert Other Schema.t -> [2]", `insert public.Camel"Case -> [3]`)
}

// Only tables that were asked for are of the feed, whatever is in the publication.
func TestS22_OtherTablesAreNotOfTheFeed(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE PUBLICATION tidewire FOR ALL TABLES; CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)`)
	e.table("t")
	e.exec(`INSERT INTO u VALUES (1); INSERT INTO t VALUES (1); INSERT INTO u VALUES (2)`)
	expect(t, e.sink.tx(t), "insert public.t -> [1]")
	e.table("u")
	e.exec(`INSERT INTO u VALUES (3)`)
	expect(t, e.sink.tx(t), "insert public.u -> [3]")
}

func TestP29_LargeTransaction(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY, a text)`+full, func(o *postgres.Options) { o.MaxTransaction = 100 << 10 })
	e.table("t")
	e.exec(`INSERT INTO t SELECT i, 'a' FROM generate_series(1, 3000) i`)
	if tx := e.sink.tx(t); len(tx.Changes) != 3000 {
		t.Errorf("%d changes", len(tx.Changes))
	}
	e.exec(`UPDATE t SET a = repeat('b', 100)`)
	e.exec(`INSERT INTO t VALUES (0, 'after')`)
	if r := e.sink.reset(t); r.reason != "a transaction of more than 102400 bytes" {
		t.Errorf("reset: %s", r.reason)
	}
	expect(t, e.sink.tx(t), "insert public.t -> [0 after]")
}

func TestP20_DroppedAndLeftOut(t *testing.T) {
	t.Parallel()
	e := start(t, `CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE v (id int PRIMARY KEY, a int)`, beat(50*time.Millisecond))
	e.table("t")
	e.table("u")
	e.table("v")
	e.exec(`DROP TABLE t; CREATE TABLE t (id text PRIMARY KEY)`)
	if r := e.sink.reset(t); r.reason != "table public.t was dropped" {
		t.Errorf("reset: %s", r.reason)
	}
	e.table("t")
	e.exec(`INSERT INTO t VALUES ('new')`)
	expect(t, e.sink.tx(t), "insert public.t -> [new]")
	e.exec(`ALTER PUBLICATION tidewire DROP TABLE u`)
	if r := e.sink.reset(t); r.reason != "table public.u was taken out of the publication" {
		t.Errorf("reset: %s", r.reason)
	}
	e.table("u")
	e.exec(`INSERT INTO u VALUES (1)`)
	expect(t, e.sink.tx(t), "insert public.u -> [1]")
	e.exec(`ALTER TABLE u RENAME TO w`)
	if r := e.sink.reset(t); r.reason != "table public.u was renamed" {
		t.Errorf("reset: %s", r.reason)
	}
	if _, err := e.db.Table(t.Context(), named("u")); !errors.Is(err, feed.ErrNoTable) {
		t.Errorf("Table = %v", err)
	}
	e.exec(`ALTER TABLE v DROP CONSTRAINT v_pkey`)
	if r := e.sink.reset(t); !strings.Contains(r.reason, "no primary key") {
		t.Errorf("reset: %s", r.reason)
	}
	e.exec(`DROP PUBLICATION tidewire`)
	e.sink.reset(t)
	e.table("t")
	e.exec(`INSERT INTO t VALUES ('again')`)
	for {
		if ev := e.sink.await(t); ev.tx != nil {
			expect(t, ev.tx, "insert public.t -> [again]")
			break
		}
	}
}

func TestP12_UnfitTables(t *testing.T) {
	t.Parallel()
	e := prepare(t, `CREATE TABLE nokey (id int); CREATE TABLE fullnokey (id int); ALTER TABLE fullnokey REPLICA IDENTITY FULL;
		CREATE TABLE nothing (id int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING; CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE);
		CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS id; CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent);
		CREATE TABLE root (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE leaf PARTITION OF root FOR VALUES FROM (0) TO (10);
		CREATE TABLE filtered (id int PRIMARY KEY); CREATE PUBLICATION tidewire FOR TABLE filtered WHERE (id > 5);
		CREATE TABLE hidden (id int PRIMARY KEY); ALTER TABLE hidden ENABLE ROW LEVEL SECURITY`)
	for _, name := range []string{"nokey", "fullnokey", "nothing", "deferred", "unlogged", "v", "parent", "leaf", "filtered"} {
		_, err := e.db.Table(t.Context(), named(name))
		if !errors.Is(err, feed.ErrTableUnfit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.db.Table(t.Context(), named("absent")); !errors.Is(err, feed.ErrNoTable) {
		t.Errorf("absent: %v", err)
	}
	// What is refused is not in the publication, so the application's own statements go on.
	e.exec(`INSERT INTO nokey VALUES (1); UPDATE nokey SET id = 2; INSERT INTO nothing VALUES (1); DELETE FROM nothing`)
	e.table("hidden") // a superuser is not subject to row security
}
