package query_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

func quoted(items ...string) []string {
	out := slices.Clone(items)
	for i := range out {
		out[i] = "'" + strings.ReplaceAll(out[i], "'", "''") + "'"
	}
	return out
}

func jsonStrings(items ...string) []string {
	out := make([]string, len(items))
	for i := range out {
		out[i] = string(row.AppendJSON(nil, row.Type{Kind: row.Text}, row.TextValue(items[i])))
	}
	return out
}

func typed(name string, items ...string) []string {
	out := quoted(items...)
	for i := range out {
		if i%2 == 0 {
			out[i] = name + " " + out[i]
		} else {
			out[i] += "::" + name
		}
	}
	return out
}

func pgType(oid uint32, c row.Collation) row.Type {
	t, ok := row.PostgresType(oid, c)
	if !ok {
		panic(oid)
	}
	return t
}

func postgresColumns(rng *rand.Rand) []testColumn {
	ints := []string{"0", "1", "-1", "2", "7", "100", "32767", "-32768"}
	big := append(slices.Clone(ints), "9007199254740993", "9007199254740992", "9223372036854775807", "-9223372036854775808")
	numerics := []string{"0", "0.0", "1", "1.0", "1.00", "1.5", "-1.5", "9", "10", "9007199254740993", "9007199254740992.5", "0.1", "0.10", "1e3", "12345678901234567890.123456789"}
	floats := []string{"0", "1", "-1.5", "0.1", "1e10", "3.4e38", "1e-5", "2.5"}
	texts := []string{"", "a", "A", "b", "ab", "aB", "abc", "ABC", "a b", "é", "É", "aé", "ab%", "a_b", `a\b`, "b\na", "0", "10", "9", "z", " ", "a ", "日本", "😀", "ａ", "K"}
	padded := []string{"", "a", "a ", "ab", "A", "b  ", "é"}
	uuids := []string{"00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "7d444840-9dc0-11d1-b245-5ffdce74fad2", "7d444840-9dc0-11d1-b245-5ffdce74fad3"}
	stamps := []string{
		"2000-01-01 00:00:00", "2026-11-30 12:00:00", "2026-11-30 12:00:00.000001", "1999-12-31 23:59:59.999999", "infinity", "-infinity", "0044-03-15 12:00:00 BC", "10000-01-01 00:00:00",
		"2026-11-30 00:00:00", "294276-12-31 23:59:59.999999", "4713-01-01 00:00:00 BC",
	}
	zones := []string{"2026-11-30 12:00:00+00", "2026-11-30 13:00:00+01", "2026-11-30T12:00:00Z", "2026-11-30 12:00:00.5-05:30", "infinity", "-infinity", "2000-01-01 00:00:00+00", "0044-03-15 12:00:00+00 BC"}
	dates := []string{"2000-01-01", "2026-11-30", "1970-01-01", "infinity", "-infinity", "0001-01-01", "0044-03-15 BC", "12000-02-29", "2024-02-29"}
	byteas := []string{`\x`, `\x00`, `\xff`, `\x6162`, `\x616200`, `\xFE01`}
	labels := []string{"sad", "ok", "happy", "Zorn"}
	bools := []string{"true", "false"}
	stringParams := jsonStrings
	big = append(big, randomInts(rng, 10)...)
	numerics = append(append(numerics, randomInts(rng, 5)...), randomDecimals(rng, 15)...)
	floats = append(floats, randomFloats(rng, 10)...)
	texts = append(texts, extra(rng, 15, 5, "a", "B", "b", "%", "é", " ", "0", "_", "日")...)
	stamps = append(stamps, randomTimes(rng, 10, func() string { return "" })...)
	zones = append(zones, randomTimes(rng, 10, func() string { return fmt.Sprintf("%+03d:%02d", rng.IntN(28)-14, rng.IntN(60)) })...)
	intParams := []string{"0", "1", "-1", "7", "1.0", "1e2", `"9007199254740993"`, `"9223372036854775807"`, "32767"}
	mood := row.Type{Kind: row.Enum, Name: `"Mood"`, Labels: labels}
	return []testColumn{
		{name: "b", ddl: "boolean", typ: pgType(16, 0), values: bools, literals: append(quoted(bools...), "TRUE", "FALSE", "BOOLEAN 'true'"), params: bools, group: "b"},
		{name: "b2", ddl: "boolean", typ: pgType(16, 0), values: bools, literals: []string{"TRUE"}, params: bools, group: "b"},
		{name: "i2", ddl: "smallint", typ: pgType(21, 0), values: ints, literals: append(append(ints, quoted(ints...)...), "1.5", "1.0", "40000", "1e1"), params: intParams, group: "n"},
		{name: "i4", ddl: "integer", typ: pgType(23, 0), values: ints, literals: append(append(ints, typed("int", ints...)...), "1.5", "7.0", "3000000000", "NUMERIC '1.00'"), params: intParams, group: "n"},
		{
			name: "i8", ddl: "bigint", typ: pgType(20, 0), values: big, params: intParams, group: "n",
			literals: append(append(big, typed("bigint", big...)...), "9223372036854775808", "-1.5", "9007199254740992.5"),
		},
		{
			name: "n", ddl: "numeric", typ: pgType(1700, 0), values: append(quoted("NaN", "Infinity", "-Infinity"), numerics...), group: "n",
			literals: slices.Concat(numerics, typed("NUMERIC", numerics...), quoted("NaN", "Infinity", "1.5"), []string{"INT '1'"}), params: []string{"1", "1.50", `"9007199254740993"`, `"NaN"`, `"0.1"`, "-1.5"},
		},
		{name: "n2", ddl: "numeric(20,3)", typ: pgType(1700, 0), values: []string{"1", "1.5", "0.1", "9007199254740993"}, literals: numerics, params: []string{"1.5"}, group: "n"},
		{
			name: "f4", ddl: "real", typ: pgType(700, 0), values: append(quoted("NaN", "Infinity", "-Infinity", "-0"), floats...), group: "f",
			literals: append(slices.Clone(floats), quoted("0.1", "NaN", "1e10", "3.4e38")...), params: []string{"0.1", "1", "-1.5", `"NaN"`, `"Infinity"`, "1e10"},
		},
		{
			name: "f8", ddl: "double precision", typ: pgType(701, 0), values: append(quoted("NaN", "Infinity", "-Infinity", "-0", "0.1", "1e300", "9007199254740993"), floats...), group: "f",
			literals: append(slices.Clone(floats), append(quoted("0.1", "NaN", "1e300"), "NUMERIC '0.1'", "'1e300'::float8", "INT '1'", "9007199254740993")...), params: []string{"0.1", "-0", `"NaN"`, "1e300"},
		},
		{name: "t", ddl: `text COLLATE "C"`, typ: pgType(25, row.C), values: quoted(texts...), literals: append(quoted(texts...), "TEXT 'a'", "'ab'::text"), params: stringParams(texts...), group: "t", text: true},
		{name: "t2", ddl: `varchar(20) COLLATE "C"`, typ: pgType(1043, row.C), values: quoted(texts...), literals: quoted(texts...), params: stringParams(texts...), group: "t", text: true},
		{name: "tu", ddl: `text COLLATE "C.utf8"`, typ: pgType(25, row.CUTF8), values: quoted(texts...), literals: quoted(texts...), params: stringParams(texts...), text: true},
		{name: "tl", ddl: `text COLLATE "und-x-icu"`, typ: pgType(25, row.Locale), values: quoted(texts...), literals: quoted(texts...), params: stringParams(texts...), text: true, inexact: true},
		{name: "bp", ddl: `char(4) COLLATE "C"`, typ: pgType(1042, row.C), values: quoted(padded...), literals: quoted(padded...), params: stringParams(padded...), group: "bp"},
		{name: "bp2", ddl: `char(3) COLLATE "C"`, typ: pgType(1042, row.C), values: quoted(padded...), literals: quoted(padded...), params: stringParams(padded...), group: "bp"},
		{name: "u", ddl: "uuid", typ: pgType(2950, 0), values: quoted(uuids...), literals: append(quoted(uuids...), typed("UUID", uuids...)...), params: append(stringParams(uuids...), stringParams("FFFFFFFF-ffff-ffff-ffff-ffffffffffff")...), group: "u"},
		{
			name: "ts", ddl: "timestamp", typ: pgType(1114, 0), values: quoted(stamps...), group: "ts",
			literals: slices.Concat(quoted(stamps...), typed("TIMESTAMP", stamps...), typed("DATE", "2026-11-30", "infinity", "0044-03-15 BC")), params: append(stringParams(stamps...), `"2026-11-30T12:00:00"`),
		},
		{name: "ts2", ddl: "timestamp", typ: pgType(1114, 0), values: quoted(stamps...), literals: quoted(stamps...), params: stringParams(stamps...), group: "ts"},
		{name: "tz", ddl: "timestamptz", typ: pgType(1184, 0), values: quoted(zones...), literals: append(quoted(zones...), typed("TIMESTAMPTZ", zones...)...), params: stringParams(zones...), group: "tz"},
		{name: "d", ddl: "date", typ: pgType(1082, 0), values: quoted(dates...), literals: append(quoted(dates...), typed("DATE", dates...)...), params: stringParams(dates...), group: "d"},
		{name: "by", ddl: "bytea", typ: pgType(17, 0), values: quoted(byteas...), literals: append(quoted(byteas...), typed("bytea", byteas...)...), params: []string{`""`, `"AA=="`, `"YWI="`}, group: "by"},
		{name: "e", ddl: `"Mood"`, typ: mood, values: quoted(labels...), literals: quoted(labels...), params: stringParams(labels...), group: "e"},
		{name: "e2", ddl: `"Mood"`, typ: mood, values: quoted(labels...), literals: quoted(labels...), params: stringParams(labels...), group: "e"},
		{name: "j", ddl: "jsonb", typ: pgType(3802, 0), values: quoted(`{"a": [1, 2.50]}`, `null`, `"x"`), shown: true},
		{name: "ar", ddl: "integer[]", typ: pgType(1007, 0), values: quoted("{}", "{1,NULL,3}", "{{1},{2}}", "[2:3]={4,5}"), shown: true},
		{name: "ip", ddl: "inet", typ: row.Type{Kind: row.Opaque, Name: "inet"}, values: quoted("10.0.0.1"), shown: true},
	}
}

type pgDatabase struct{ conn *pgx.Conn }

func (d pgDatabase) truths(t testing.TB, s query.Statement) string {
	var out string
	sql := fmt.Sprintf("SELECT string_agg(COALESCE(left((%s)::text, 1), 'u'), '' ORDER BY id) FROM t", s.SQL)
	if err := d.conn.QueryRow(context.Background(), sql, s.Args...).Scan(&out); err != nil {
		t.Errorf("%s %q: %v", sql, s.Args, err)
	}
	return out
}

func (d pgDatabase) ids(t testing.TB, s query.Statement) []int64 {
	rows, err := d.conn.Query(context.Background(), "SELECT id FROM ("+s.SQL+") q", s.Args...)
	if err != nil {
		t.Errorf("%s: %v", s.SQL, err)
		return nil
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Errorf("%s %q: %v", s.SQL, s.Args, err)
	}
	return ids
}

func (d pgDatabase) many(t testing.TB, m []query.Many) [][]int64 {
	args := slices.Clone(m[0].Shared)
	for k := range m[0].Args {
		column := make([]*string, len(m))
		for i := range m {
			if v, ok := m[i].Args[k].(string); ok {
				column[i] = &v
			}
		}
		args = append(args, column)
	}
	out := make([][]int64, len(m))
	rows, err := d.conn.Query(context.Background(), "SELECT input, id FROM ("+m[0].SQL+") AS q (input, id)", args...)
	if err != nil {
		t.Errorf("%s: %v", m[0].SQL, err)
		return nil
	}
	var n, id, last int64
	if _, err := pgx.ForEachRow(rows, []any{&n, &id}, func() error {
		if n < last {
			return fmt.Errorf("a row for %d after one for %d", n, last)
		}
		last = n
		out[n-1] = append(out[n-1], id)
		return nil
	}); err != nil {
		t.Errorf("%s %q: %v", m[0].SQL, args, err)
	}
	return out
}

// pgRows reads a table in text format.
func pgRows(t testing.TB, conn *pgx.Conn, tab *row.Table) []row.Row {
	var out []row.Row
	results, err := conn.PgConn().Exec(context.Background(), "SELECT * FROM t ORDER BY id").ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, cells := range results[0].Rows {
		r := make(row.Row, len(cells))
		for i, cell := range cells {
			if cell == nil {
				continue
			}
			if r[i], err = row.ParseText(tab.Columns[i].Type, string(cell)); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, r)
	}
	return out
}

func TestS15_MatchesAsPostgreSQLDoes(t *testing.T) {
	t.Parallel()
	rng := random(t)
	url := testenv.Postgres(t)
	connect := func() *pgx.Conn {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Error(err)
			return nil
		}
		config.RuntimeParams["timezone"] = "Asia/Kathmandu" // whatever it is, nothing depends on it
		config.DefaultQueryExecMode = pgx.QueryExecModeExec
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Error(err)
			return nil
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	conn := connect()
	columns := postgresColumns(rng)
	tab := table(row.PostgreSQL, columns)
	stmts := []string{
		`CREATE TYPE "Mood" AS ENUM ('sad', 'ok', 'happy', 'Zorn')`,
		"CREATE TABLE t (id bigint PRIMARY KEY, " + sqlList(columns, func(c testColumn) string { return c.name + " " + c.ddl }) + ")",
	}
	g := &generator{rng: rng}
	for _, s := range append(stmts, insertSQL(g, columns, 400)...) {
		if _, err := conn.Exec(t.Context(), s); err != nil {
			t.Fatalf("%.200s: %v", s, err)
		}
	}
	rows := pgRows(t, conn, tab)
	compare(t, rng.Uint64(), tab, rows, columns, func() database { return pgDatabase{connect()} }, quickly(1600))
}

// TestP17_NoNameOfABatchIsTakenForAColumn has a description with columns that the table has no more, called as what a statement for many inputs has inside.
func TestP17_NoNameOfABatchIsTakenForAColumn(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `CREATE TABLE t (id bigint PRIMARY KEY)`); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"n", "a1", "p", "u", "r"} {
		tab := &row.Table{Name: row.Name{Schema: "public", Table: "t"}, Key: []int{0}, Columns: []row.Column{{Name: "id", Type: pgType(20, 0), NotNull: true}, {Name: gone, Type: pgType(25, row.C)}}}
		q, err := query.Compile(query.Definition{Name: "q", Where: "id = $id"}, tab)
		if err != nil {
			t.Fatal(err)
		}
		in, err := q.Input([]byte(`{"id":1}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := q.Bind(in)
		if err != nil {
			t.Fatal(err)
		}
		m, ok := b.Many(10)
		if !ok {
			t.Fatal("it is not read together")
		}
		rows, err := conn.Query(t.Context(), m.SQL, []string{"1"})
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "42703" {
			t.Errorf("column %s is gone: %v", gone, err)
		}
	}
}
