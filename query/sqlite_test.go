package query_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

func sqliteColumns(rng *rand.Rand) []testColumn {
	cells := []string{
		"0", "1", "-1", "7", "1.5", "-0.0", "1e300", "9007199254740993", "9223372036854775807", "-9223372036854775808", "9007199254740992.0", "0.1", "9223372036854775808.0",
		"''", "'a'", "'A'", "'ab'", "'aB'", "'ABC'", "'abc'", "'a '", "' a'", "'b'", "'é'", "'É'", "'aé'", "'1'", "' 1 '", "'1.0'", "'1e0'", "'1abc'", "'0x1'", "'.5'", "'5.'", "'-'", "'+1'",
		"'a%'", "'a_b'", "'b' || char(10) || 'a'", "'日本'", "'😀'", "CAST(x'610062' AS TEXT)", "CAST(x'410063' AS TEXT)", "'9007199254740993'", "'99999999999999999999'", "'Z'", "'['", "'@'",
		"x''", "x'00'", "x'61'", "x'6162'", "x'ff'", "x'31'",
	}
	numbers := []string{"0", "1", "-1", "7", "1.5", "1e300", "9007199254740993", "9007199254740992", "9223372036854775807", "0.1", "9223372036854775808", "TRUE", "FALSE"}
	texts := quoted("", "a", "A", "ab", "abc", "ABC", "a ", "b", "é", "É", "1", " 1 ", "1.0", "1e0", "1abc", ".5", "5.", "+1", "a%", "0x1", "-", "9007199254740993", "日本", "Z", "[", "@")
	random := append(append(extra(rng, 15, 6, " ", "-", "+", ".", "e", "E", "0", "1", "23", "x", "\t"), randomDecimals(rng, 5)...), extra(rng, 10, 5, "a", "B", "é", " ", "%")...)
	texts = append(texts, quoted(random...)...)
	cells = append(cells, quoted(random...)...)
	floats := append(append(randomFloats(rng, 10), randomInts(rng, 10)...), randomDecimals(rng, 10)...)
	cells = append(cells, floats...)
	numbers = append(numbers, floats...)
	textParams := jsonStrings("", "a", "A", "abc", "a ", "é", "1", " 1 ", "1abc")
	numberParams := []string{"0", "1", "1.5", "1e300", `"9007199254740993"`, "0.1"}
	all := append(slices.Clone(numbers), texts...)
	column := func(name, ddl, collation string, c testColumn) testColumn {
		c.name, c.ddl = name, ddl
		if collation != "" {
			c.ddl += " COLLATE " + collation
		}
		c.typ = row.SQLiteType(ddl, collation, false)
		c.values = cells
		return c
	}
	return []testColumn{
		column("i", "INTEGER", "", testColumn{literals: all, params: []string{"0", "1", "-1", `"9007199254740993"`, "1.0"}, group: "n"}),
		column("i2", "BIGINT", "NOCASE", testColumn{literals: all, params: []string{"7"}, group: "n"}),
		column("r", "DOUBLE", "", testColumn{literals: all, params: numberParams, group: "n"}),
		column("n", "DECIMAL(10,2)", "", testColumn{literals: all, params: append(textParams, "0", "1", "1.5"), group: "n"}),
		column("bo", "BOOLEAN", "", testColumn{literals: all, params: []string{"true", "false"}, group: "n"}),
		column("t", "TEXT", "", testColumn{literals: texts, params: textParams, group: "t", text: true}),
		column("tn", "VARCHAR(10)", "NOCASE", testColumn{literals: texts, params: textParams, group: "t", text: true}),
		column("tr", "TEXT", "RTRIM", testColumn{literals: texts, params: textParams, group: "t", text: true}),
		column("bl", "BLOB", "", testColumn{literals: all, params: []string{`"YQ=="`, `""`}, group: "x"}),
		column("x", "", "", testColumn{literals: all, params: append(textParams, "1", "1.5", `{"$bytes":"YQ=="}`), group: "x"}),
		column("xn", "", "NOCASE", testColumn{literals: all, params: append(textParams, "1"), group: "x"}),
		column("j", "JSON", "", testColumn{literals: all, params: textParams}),
	}
}

type sqliteDatabase struct{ conn *sqlite3.Conn }

func (d sqliteDatabase) run(t testing.TB, s query.Statement, each func(*sqlite3.Stmt)) {
	stmt, tail, err := d.conn.Prepare(s.SQL)
	if err != nil || tail != "" {
		t.Errorf("%s: %v %s", s.SQL, err, tail)
		return
	}
	defer stmt.Close()
	for i, a := range s.Args {
		switch a := a.(type) {
		case nil:
			err = stmt.BindNull(i + 1)
		case int64:
			err = stmt.BindInt64(i+1, a)
		case float64:
			err = stmt.BindFloat(i+1, a)
		case string:
			err = stmt.BindText(i+1, a)
		case []byte:
			err = stmt.BindBlob(i+1, a)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for stmt.Step() {
		each(stmt)
	}
	if err := stmt.Err(); err != nil {
		t.Errorf("%s %q: %v", s.SQL, s.Args, err)
	}
}

func (d sqliteDatabase) truths(t testing.TB, s query.Statement) (out string) {
	s.SQL = "SELECT group_concat(CASE WHEN p THEN 't' WHEN NOT p THEN 'f' ELSE 'u' END, '' ORDER BY id) FROM (SELECT id, (" + s.SQL + ") AS p FROM t)"
	d.run(t, s, func(stmt *sqlite3.Stmt) { out = stmt.ColumnText(0) })
	return out
}

func (d sqliteDatabase) ids(t testing.TB, s query.Statement) (out []int64) {
	d.run(t, s, func(stmt *sqlite3.Stmt) { out = append(out, stmt.ColumnInt64(0)) })
	return out
}

func sqliteCell(stmt *sqlite3.Stmt, i int) row.Value {
	switch stmt.ColumnType(i) {
	case sqlite3.INTEGER:
		return row.IntValue(stmt.ColumnInt64(i))
	case sqlite3.FLOAT:
		return row.FloatValue(stmt.ColumnFloat(i))
	case sqlite3.TEXT:
		return row.TextValue(string(stmt.ColumnRawText(i)))
	case sqlite3.BLOB:
		return row.BytesValue(stmt.ColumnRawBlob(i))
	}
	return row.Value{}
}

func TestS15_MatchesAsSQLiteDoes(t *testing.T) {
	t.Parallel()
	rng := random(t)
	columns := sqliteColumns(rng)
	tab := table(row.SQLite, columns)
	stmts := append([]string{
		"CREATE TABLE t (id INTEGER PRIMARY KEY, " + sqlList(columns, func(c testColumn) string { return c.name + " " + c.ddl }) + ")",
	}, insertSQL(&generator{rng: rng}, columns, 400)...)
	open := func() *sqlite3.Conn {
		conn, err := sqlite3.Open(":memory:")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		for _, s := range stmts {
			if err := conn.Exec(s); err != nil {
				t.Fatalf("%.200s: %v", s, err)
			}
		}
		return conn
	}
	var rows []row.Row
	sqliteDatabase{open()}.run(t, query.Statement{SQL: "SELECT * FROM t ORDER BY id"}, func(stmt *sqlite3.Stmt) {
		r := make(row.Row, stmt.ColumnCount())
		for i := range r {
			r[i] = sqliteCell(stmt, i)
		}
		rows = append(rows, r)
	})
	compare(t, rng.Uint64(), tab, rows, columns, func() database { return sqliteDatabase{open()} }, quickly(2400))
}
