package query_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

var update = flag.Bool("update", false, "write spec/vectors/match.json and order.json")

// vectorColumn is a column of an order, as a client is told of it.
type vectorColumn struct {
	Name      string   `json:"name"`
	Type      string   `json:"type"`
	Collation string   `json:"collation,omitempty"`
	Affinity  string   `json:"affinity,omitempty"`
	Labels    []string `json:"labels,omitempty"`
}

// matchVector is one predicate with rows: each has the JSON that a client sees and what the predicate is for it.
type matchVector struct {
	Name      string                     `json:"name"`
	Where     string                     `json:"where"`
	Predicate *query.Predicate           `json:"predicate"`
	Params    map[string]json.RawMessage `json:"params"`
	Rows      []matchRow                 `json:"rows"`
}

type matchRow struct {
	Row      json.RawMessage `json:"row"`
	Expected string          `json:"expected"` // true, false, unknown
}

// orderVector is rows in their order. Keys that are equal have the order of the list.
type orderVector struct {
	Name    string            `json:"name"`
	Engine  string            `json:"engine"`
	Columns []vectorColumn    `json:"columns"`
	Keys    []orderKey        `json:"keys"`
	Rows    []json.RawMessage `json:"rows"`
}

type orderKey struct {
	Column string `json:"column"`
	Desc   bool   `json:"desc"`
	Nulls  string `json:"nulls"`           // first or last
	Bytes  bool   `json:"bytes,omitempty"` // whatever the collation
}

// checksumVector is a row with its canonical JSON and checksum; sum is of all rows so far.
type checksumVector struct {
	Row       json.RawMessage `json:"row"`
	Canonical string          `json:"canonical"`
	Checksum  string          `json:"checksum"`
	Sum       string          `json:"sum"`
}

// inputVector is an input of the query with what it shares.
type inputVector struct {
	Query     string `json:"query"`
	Canonical string `json:"canonical"`
	Hash      string `json:"hash"`
}

type orderFile struct {
	Orders    []orderVector    `json:"orders"`
	Checksums []checksumVector `json:"checksums"`
	Inputs    []inputVector    `json:"inputs"`
}

func vectorTables() (pg, lite *row.Table) {
	mood := row.Type{Kind: row.Enum, Name: "mood", Labels: []string{"sad", "ok", "happy"}}
	pg = table(row.PostgreSQL, []testColumn{
		{name: "b", typ: pgType(16, 0)},
		{name: "i", typ: pgType(20, 0)},
		{name: "n", typ: pgType(1700, 0)},
		{name: "f", typ: pgType(701, 0)},
		{name: "t", typ: pgType(25, row.C)},
		{name: "l", typ: pgType(25, row.Locale)},
		{name: "p", typ: pgType(1042, row.C)},
		{name: "u", typ: pgType(2950, 0)},
		{name: "ts", typ: pgType(1114, 0)},
		{name: "tz", typ: pgType(1184, 0)},
		{name: "d", typ: pgType(1082, 0)},
		{name: "y", typ: pgType(17, 0)},
		{name: "e", typ: mood},
		{name: "j", typ: pgType(3802, 0)},
		{name: "f4", typ: pgType(700, 0)},
	})
	lite = table(row.SQLite, []testColumn{
		{name: "i", typ: row.SQLiteType("INTEGER", "", false)},
		{name: "r", typ: row.SQLiteType("REAL", "", false)},
		{name: "n", typ: row.SQLiteType("NUMERIC", "", false)},
		{name: "b", typ: row.SQLiteType("BOOLEAN", "", false)},
		{name: "t", typ: row.SQLiteType("TEXT", "", false)},
		{name: "c", typ: row.SQLiteType("TEXT", "NOCASE", false)},
		{name: "s", typ: row.SQLiteType("TEXT", "RTRIM", false)},
		{name: "x", typ: row.SQLiteType("", "", false)},
		{name: "y", typ: row.SQLiteType("BLOB", "", false)},
	})
	return pg, lite
}

// vectorRows are three rows, below, at and above what the predicates compare with, and one of NULLs; SQLite has one of unusual storage classes too.
func vectorRows(t testing.TB) (pg, lite []row.Row) {
	tab, _ := vectorTables()
	cells := map[string][3]string{
		"b": {"false", "true", "true"}, "i": {"-5", "9007199254740993", "9223372036854775807"}, "n": {"9", "10.0", "NaN"}, "f": {"-0.5", "0.1", "Infinity"}, "t": {"B", "a%b", "é😀"},
		"l": {"B", "ab", "é"}, "p": {"a", "b  ", "c"}, "u": {"00000000-0000-0000-0000-000000000001", "7d444840-9dc0-11d1-b245-5ffdce74fad2", "f0000000-0000-0000-0000-000000000000"},
		"ts": {"0044-03-15 12:00:00 BC", "2026-11-30 12:00:00.25", "infinity"}, "tz": {"-infinity", "2026-11-30 12:00:00+00", "12026-01-01 00:00:00+00"}, "d": {"1999-12-31", "2026-11-30", "10000-01-01"},
		"y": {`\x`, `\x6162`, `\xff`}, "e": {"sad", "ok", "happy"}, "j": {`{"a":1}`, "2", `"x"`}, "f4": {"-1", "0.1", "3e30"},
	}
	for i := range 3 {
		r := row.Row{row.IntValue(int64(i + 1))}
		for _, c := range tab.Columns[1:] {
			v, err := row.ParseText(c.Type, cells[c.Name][i])
			if err != nil {
				t.Fatal(err)
			}
			r = append(r, v)
		}
		pg = append(pg, r)
	}
	pg = append(pg, append(row.Row{row.IntValue(4)}, make(row.Row, len(tab.Columns)-1)...))
	n, f, s := row.IntValue, row.FloatValue, row.TextValue
	y := func(text string) row.Value { return row.BytesValue([]byte(text)) }
	lite = []row.Row{
		{n(1), n(1), f(-0.5), n(9), n(0), s("B"), s("A"), s("a "), n(7), y("")},
		{n(2), n(9007199254740993), f(1), f(1.5), n(1), s("a%b"), s("b"), s("b"), s("7"), y("ab")},
		{n(3), s("abc"), f(1e300), s("x"), n(2), s("é😀"), s("C"), s("b!"), y("7"), s("7")},
		append(row.Row{n(4)}, make(row.Row, 9)...),
		{n(5), f(1.5), f(0), n(1 << 60), s("1x"), y("a"), s("É"), s(""), n(1 << 60), n(1)},
	}
	return pg, lite
}

type vectorCase struct {
	where  string
	params string
}

func vectorCases() (pg, lite []vectorCase) {
	middle := map[string]string{
		"i": "9007199254740993", "n": "10", "f": "0.1", "t": "'a%b'", "p": "'b'", "u": "'7d444840-9dc0-11d1-b245-5ffdce74fad2'", "ts": "'2026-11-30 12:00:00.25'",
		"tz": "'2026-11-30T13:00:00+01:00'", "d": "'2026-11-30'", "y": `'\x6162'`, "e": "'ok'", "f4": "'0.1'", "b": "TRUE",
	}
	operators := []string{"c = V", "c <> V", "c < V", "c >= V", "c BETWEEN V AND V", "c NOT IN (V, NULL)", "c IS DISTINCT FROM V", "NOT (c > V OR c IS NULL)"}
	for _, c := range []string{"b", "i", "n", "f", "f4", "t", "p", "u", "ts", "tz", "d", "y", "e"} {
		for _, o := range operators {
			pg = append(pg, vectorCase{strings.ReplaceAll(strings.NewReplacer("c ", c+" ").Replace(o), "V", middle[c]), ""})
		}
	}
	pg = append(pg, []vectorCase{
		{"b", ""},
		{"NOT b OR e = $e", `{"e":"happy"}`},
		{"NULL OR b", ""},
		{"i > 9007199254740992.5 AND n <> 10.00", ""},
		{"n = 'NaN' OR n = 9", ""},
		{"f IN (0.1, 'Infinity', 'NaN')", ""},
		{"t LIKE 'a\\%_'", ""},
		{"t NOT LIKE '_'", ""},
		{"t LIKE '__'", ""},
		{"t ILIKE 'A!%B' ESCAPE '!'", ""},
		{"t LIKE $p", `{"p":"%b"}`},
		{"t LIKE $p", `{"p":null}`},
		{"i IN $ids", `{"ids":["9007199254740993",-5]}`},
		{"i NOT IN $ids", `{"ids":[1,null]}`},
		{"i IN $ids", `{"ids":[]}`},
		{"i NOT IN $ids", `{"ids":null}`},
		{"$day IS NULL OR d = $day", `{"day":null}`},
		{"$day IS NULL OR d = $day", `{"day":"2026-11-30"}`},
		{"$all OR u = $u", `{"all":false,"u":"F0000000-0000-0000-0000-000000000000"}`},
		{"ts > DATE '2026-11-30' AND ts < 'infinity'", ""},
		{"i = n OR n > i", ""},
		{"f4 = 0.1", ""},
		{"f4 = $f", `{"f":0.1}`},
		{"f4 IN (0.1, 5)", ""},
		{"l = 'ab' AND l < 'z'", ""},
		{"NOT (l < 'z' OR b)", ""},
		{"j IS NOT NULL", ""},
		{"e < 'ok' OR y >= '\\x62'", ""},
	}...)
	for _, c := range [][2]string{{"i", "9007199254740993"}, {"i", "'abc'"}, {"r", "1"}, {"r", "' 1.0 '"}, {"n", "1.5"}, {"n", "'x'"}, {"t", "'a%b'"}, {"c", "'B'"}, {"s", "'b   '"}, {"x", "7"}, {"x", "'7'"}, {"y", "1"}} {
		for _, o := range operators {
			lite = append(lite, vectorCase{strings.ReplaceAll(strings.NewReplacer("c ", c[0]+" ").Replace(o), "V", c[1]), ""})
		}
	}
	lite = append(lite, []vectorCase{
		{"b", ""},
		{"NOT b", ""},
		{"b = TRUE", ""},
		{"t LIKE 'A!%%' ESCAPE '!'", ""},
		{"t LIKE '_%'", ""},
		{"c LIKE 'é'", ""},
		{"t LIKE NULL", ""},
		{"x = $x", `{"x":{"$bytes":"Nw=="}}`},
		{"x = $x", `{"x":{"$int":"1152921504606846976"}}`},
		{"i = $i OR r < $r", `{"i":"9007199254740993","r":0}`},
		{"c IN ('a', 'B')", ""},
		{"i < n", ""},
		{"x IS NOT DISTINCT FROM y", ""},
	}...)
	return pg, lite
}

func projection(tab *row.Table) *row.Projection {
	all := make([]int, len(tab.Columns))
	for i := range all {
		all[i] = i
	}
	return row.NewProjection(tab, all)
}

func matchVectors(t testing.TB) []matchVector {
	var out []matchVector
	pg, lite := vectorTables()
	pgRows, liteRows := vectorRows(t)
	pgCases, liteCases := vectorCases()
	for _, side := range []struct {
		tab   *row.Table
		rows  []row.Row
		cases []vectorCase
	}{{pg, pgRows, pgCases}, {lite, liteRows, liteCases}} {
		for _, c := range side.cases {
			q, err := query.Compile(query.Definition{Name: "q", Where: c.where}, side.tab)
			if err != nil {
				t.Fatalf("%s: %v", c.where, err)
			}
			in, err := q.Input([]byte(c.params), nil)
			if err != nil {
				t.Fatalf("%s: %v", c.where, err)
			}
			b, err := q.Bind(in)
			if err != nil {
				t.Fatalf("%s: %v", c.where, err)
			}
			v := matchVector{Name: fmt.Sprintf("%s: %s", side.tab.Engine, c.where), Where: c.where, Predicate: q.Predicate(), Params: map[string]json.RawMessage{}}
			if err := json.Unmarshal([]byte(in.Text), &v.Params); err != nil {
				t.Fatal(err)
			}
			var touched []int
			for i := range side.tab.Columns {
				if q.Filter.Has(i) {
					touched = append(touched, i)
				}
			}
			p := row.NewProjection(side.tab, touched)
			for _, r := range side.rows {
				v.Rows = append(v.Rows, matchRow{p.AppendJSON(nil, r), b.Match(r).String()})
			}
			out = append(out, v)
		}
	}
	return out
}

func orderVectors(t testing.TB) orderFile {
	var out orderFile
	pg, lite := vectorTables()
	pgRows, liteRows := vectorRows(t)
	for _, side := range []struct {
		tab    *row.Table
		rows   []row.Row
		orders []string
	}{
		{pg, pgRows, []string{"b", "b DESC", "i DESC NULLS LAST", "n", "n DESC", "f NULLS FIRST", "t", `l COLLATE "C" DESC`, "p", "u DESC", "ts", "tz DESC NULLS LAST", "d", "y", "e DESC", "f4", "b, i DESC"}},
		{lite, liteRows, []string{"i", "i DESC", "r", "n DESC NULLS FIRST", "b", "t", "c", "c COLLATE BINARY", "s DESC", "x", "y DESC", "x NULLS LAST"}},
	} {
		for _, o := range side.orders {
			q, err := query.Compile(query.Definition{Name: "q", Order: o}, side.tab)
			if err != nil || q.Order == nil {
				t.Fatalf("%s: %v", o, err)
			}
			rows := slices.Clone(side.rows)
			slices.SortFunc(rows, q.Order.Compare)
			v := orderVector{Name: fmt.Sprintf("%s: %s", side.tab.Engine, o), Engine: side.tab.Engine.String()}
			var touched []int
			for _, k := range q.Order.Keys() {
				col := side.tab.Columns[k.Column]
				key := orderKey{Column: col.Name, Desc: k.Desc, Bytes: k.Bytes, Nulls: "last"}
				if k.NullsFirst {
					key.Nulls = "first"
				}
				v.Keys = append(v.Keys, key)
				touched = append(touched, k.Column)
				c := vectorColumn{Name: col.Name, Type: col.Type.Kind.String(), Labels: col.Type.Labels}
				if col.Type.Collation != row.C {
					c.Collation = col.Type.Collation.String()
				}
				c.Affinity = map[row.Affinity]string{row.AffinityText: "text", row.AffinityNumeric: "numeric", row.AffinityInteger: "integer", row.AffinityReal: "real"}[col.Type.Affinity]
				v.Columns = append(v.Columns, c)
			}
			p := row.NewProjection(side.tab, touched)
			for _, r := range rows {
				v.Rows = append(v.Rows, p.AppendJSON(nil, r))
			}
			out.Orders = append(out.Orders, v)
		}
	}
	var sum uint64
	for _, side := range []struct {
		tab  *row.Table
		rows []row.Row
	}{{pg, append(pgRows, jsonRow(pg))}, {lite, liteRows}} {
		p := projection(side.tab)
		for _, r := range side.rows {
			object := p.AppendJSON(nil, r)
			canonical, err := row.CanonicalJSON(object)
			if err != nil {
				t.Fatal(err)
			}
			sum += p.Checksum(object)
			out.Checksums = append(out.Checksums, checksumVector{object, string(canonical), fmt.Sprintf("%016x", p.Checksum(object)), fmt.Sprintf("%016x", sum)})
		}
	}
	for _, text := range []string{`{}`, `{"org": "9007199254740993", "since": "2026-11-30T13:00:00+01:00", "x": "é\u2028"}`} {
		def := query.Definition{Name: "liveFeed"}
		if text != "{}" {
			def.Where = "i = $org AND tz > $since AND t = $x"
		}
		q, err := query.Compile(def, pg)
		if err != nil {
			t.Fatal(err)
		}
		in, err := q.Input([]byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		out.Inputs = append(out.Inputs, inputVector{def.Name, in.Text, fmt.Sprintf("%016x", in.Hash)})
	}
	return out
}

// jsonRow has a json cell that is not canonical.
func jsonRow(tab *row.Table) row.Row {
	r := make(row.Row, len(tab.Columns))
	r[0] = row.IntValue(5)
	r[tab.Column("j")] = row.JSONValue(`{"10": 1.50, "9": [1e21, 1E-7, -0.0, 9007199254740993], "é": "\u00e9\ud83d\ude00", "\ud83d\ude00": {}, "\uffff": null}`)
	r[tab.Column("t")] = row.TextValue("\"\\\b\f\n\r\t\x01\u007f\u2028</é😀")
	r[tab.Column("f")] = row.FloatValue(1e21)
	r[tab.Column("f4")] = row.FloatValue(float64(float32(1e-6)))
	return r
}

func encode(t testing.TB, v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// lines puts each element of a list on a line of its own, which is kinder to a diff than one value a line.
func lines[T any](t testing.TB, b *bytes.Buffer, items []T) {
	b.WriteString("[\n")
	for i, item := range items {
		var line bytes.Buffer
		if err := json.Compact(&line, encode(t, item)); err != nil {
			t.Fatal(err)
		}
		b.Write(line.Bytes())
		if i < len(items)-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	b.WriteString("]")
}

func TestS15_Vectors(t *testing.T) {
	t.Parallel()
	var match, order bytes.Buffer
	lines(t, &match, matchVectors(t))
	match.WriteByte('\n')
	o := orderVectors(t)
	order.WriteString("{\n\"orders\": ")
	lines(t, &order, o.Orders)
	order.WriteString(",\n\"checksums\": ")
	lines(t, &order, o.Checksums)
	order.WriteString(",\n\"inputs\": ")
	lines(t, &order, o.Inputs)
	order.WriteString("\n}\n")
	for name, want := range map[string][]byte{"match.json": match.Bytes(), "order.json": order.Bytes()} {
		path := "../spec/vectors/" + name
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the matcher gives: run go test ./query -run Vectors -update and look at the difference", path)
		}
	}
}
