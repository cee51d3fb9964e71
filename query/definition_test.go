package query_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// posts is a table of PostgreSQL in a database whose collation is a locale's.
func posts() *row.Table {
	column := func(name string, oid uint32) row.Column { return row.Column{Name: name, Type: pgType(oid, row.Locale)} }
	t := &row.Table{Name: row.Name{Schema: "app", Table: "posts"}, Key: []int{1, 0}, Columns: []row.Column{
		column("id", 25), column("org", 20), column("title", 25), column("done", 16), column("created", 1184), column("price", 1700), column("meta", 3802), column("tags", 1009),
		{Name: "span", Type: row.Type{Kind: row.Opaque, Name: "interval"}},
		column("Mixed", 23), column("day", 1082), column("at", 1114), column("score", 701),
	}}
	t.Columns[2].Type.Collation = row.Locale
	return t
}

func notes() *row.Table {
	t := &row.Table{Name: row.Name{Schema: "main", Table: "notes"}, Engine: row.SQLite, Key: []int{0}}
	for _, c := range [][3]string{{"id", "INTEGER", ""}, {"body", "TEXT", ""}, {"tag", "TEXT", "NOCASE"}, {"n", "INT", ""}, {"any", "", ""}, {"odd", "TEXT", "UNICODE"}} {
		t.Columns = append(t.Columns, row.Column{Name: c[0], Type: row.SQLiteType(c[1], c[2], false)})
	}
	return t
}

func TestS12_WhatIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		table *row.Table
		def   query.Definition
		text  string
	}{
		{posts(), query.Definition{Where: "org ="}, "where at 6: expected a column, a $parameter or a literal, not the end"},
		{posts(), query.Definition{Where: "nope = 1"}, `where at 1: table app.posts has no column "nope"`},
		{posts(), query.Definition{Where: "mixed = 1"}, `no column "mixed"`},
		{posts(), query.Definition{Where: "org = 'x'"}, "where at 7: row: not a value of the type bigint"},
		{posts(), query.Definition{Where: "title = 1"}, "where at 9: a column of type text is not compared with this literal"},
		{posts(), query.Definition{Where: "done = 1"}, "not compared"},
		{posts(), query.Definition{Where: "org"}, "column org is int, not boolean"},
		{posts(), query.Definition{Where: "org = 1 title"}, "where at 9: expected AND, OR or the end"},
		{posts(), query.Definition{Where: "org + 1 = 2"}, `operator "+" is not in the subset`},
		{posts(), query.Definition{Where: "lower(title) = 'x'"}, "function"},
		{posts(), query.Definition{Where: "posts.org = 1"}, "without their table"},
		{posts(), query.Definition{Where: "org = 1 -- x"}, "comments"},
		{posts(), query.Definition{Where: "title = 'x"}, "a quote that does not end"},
		{posts(), query.Definition{Where: "org IN (SELECT 1)"}, "where at 9: expected a column"},
		{posts(), query.Definition{Where: "1 = 1"}, "a comparison needs a column"},
		{posts(), query.Definition{Where: "created > 'now'"}, "not a value of the type timestamp with time zone"},
		{posts(), query.Definition{Where: "created > '2026-11-30 12:00:00'"}, "not a value of the type timestamp with time zone"},
		{posts(), query.Definition{Where: "at > '2026-11-30 12:00:00Z'"}, "not a value of the type timestamp without time zone"},
		{posts(), query.Definition{Where: "created > DATE '2026-11-30'"}, "not compared"},
		{posts(), query.Definition{Where: "day > TIMESTAMP '2026-11-30 00:00:00'"}, "not compared"},
		{posts(), query.Definition{Where: "org = day"}, "column org is int and day is date"},
		{posts(), query.Definition{Where: `title LIKE 'a\'`}, "does not end in its escape"},
		{posts(), query.Definition{Where: "org LIKE 'a'"}, "not text"},
		{posts(), query.Definition{Where: "title LIKE 'a' ESCAPE 'ab'"}, "one character"},
		{posts(), query.Definition{Where: "title LIKE 'a' ESCAPE '%'"}, "no wildcard"},
		{posts(), query.Definition{Where: strings.Repeat("(", 65) + "done" + strings.Repeat(")", 65)}, "more than 64 levels"},
		{posts(), query.Definition{Where: strings.Repeat("NOT ", 10000) + "done"}, "more than 64 levels"},
		{posts(), query.Definition{Where: "org IN (" + strings.Repeat("1,", 1024) + "1)"}, "more than 1024"},
		{posts(), query.Definition{Where: strings.Repeat(" ", 65<<10)}, ""},
		{posts(), query.Definition{Where: "done" + strings.Repeat(" ", 65<<10)}, "longer than"},
		{posts(), query.Definition{Where: "org IN $ids AND org = $ids"}, "used as a list and as a value"},
		{posts(), query.Definition{Where: "org = $user.name"}, "a parameter is called"},
		{posts(), query.Definition{Where: "org = $1"}, "a parameter is $ and a name"},
		{posts(), query.Definition{Where: "org = 1", Input: map[string]query.Param{"x": {}}}, "parameter x is declared and not used"},
		{posts(), query.Definition{Where: "org = $x", Input: map[string]query.Param{"x": {Type: "money"}}}, "is not bool, int"},
		{posts(), query.Definition{Where: "org = $x", Input: map[string]query.Param{"x": {Default: json.RawMessage(`"a"`)}}}, "default"},
		{posts(), query.Definition{Order: "nope"}, `order at 1: table app.posts has no column "nope"`},
		{posts(), query.Definition{Order: "org, org DESC"}, "stands here twice"},
		{posts(), query.Definition{Order: "org sideways"}, "order at 5: expected ,"},
		{posts(), query.Definition{Order: "org COLLATE \"C\""}, "COLLATE is for columns of text"},
		{posts(), query.Definition{Order: "title COLLATE \"de_DE\""}, "the collations of an order"},
		{posts(), query.Definition{Visible: "org = $org"}, "what it may see is not"},
		{posts(), query.Definition{Limit: -1}, "the limit is 0 to"},
		{posts(), query.Definition{Limit: 100000}, "the limit is 0 to"},
		{posts(), query.Definition{Columns: []string{"nope"}}, `no column "nope" to show`},
		{&row.Table{}, query.Definition{}, "no primary key"},
		{notes(), query.Definition{Where: "body = 1"}, "a column of text is compared with a number"},
		{notes(), query.Definition{Where: "body ILIKE 'a'"}, "SQLite has no ILIKE"},
		{notes(), query.Definition{Where: "n = DATE '2026-11-30'"}, "SQLite has no literals of type date"},
		{notes(), query.Definition{Where: "n IS DISTINCT FROM TRUE"}, "test of truth"},
	} {
		c.def.Name = "q"
		_, err := query.Compile(c.def, c.table)
		if c.text == "" {
			if err != nil {
				t.Errorf("Compile(%.80q) = %v", c.def.Where, err)
			}
			continue
		}
		if !errors.Is(err, query.ErrDefinition) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("Compile(%.80q, order %q) = %v, want %q", c.def.Where, c.def.Order, err, c.text)
		}
	}
}

func TestS50_Classes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		table  *row.Table
		def    query.Definition
		class  query.Class
		reason string
	}{
		{posts(), query.Definition{Where: "org = 1"}, query.Routed, ""},
		{posts(), query.Definition{Where: "org = 1", Order: "created DESC"}, query.Routed, ""},
		{posts(), query.Definition{Where: "org = 1", Order: "created DESC", Limit: 10}, query.Windowed, ""},
		{posts(), query.Definition{Where: "title = 'x' AND title LIKE 'a%' AND title IN ('a') AND title IS DISTINCT FROM 'b'"}, query.Routed, ""},
		{posts(), query.Definition{Where: "title < 'x'"}, query.Rerun, "where: column title: row: not comparable here: the order of collation locale"},
		{posts(), query.Definition{Where: "title BETWEEN 'a' AND 'b'"}, query.Rerun, "collation locale"},
		{posts(), query.Definition{Where: "title ILIKE 'a%'"}, query.Rerun, "ILIKE folds case by the locale"},
		{posts(), query.Definition{Order: "title", Limit: 5}, query.Rerun, `COLLATE "C" in the order`},
		{posts(), query.Definition{Order: `title COLLATE "C"`, Limit: 5}, query.Windowed, ""},
		{posts(), query.Definition{Order: "meta"}, query.Rerun, "shown and never compared"},
		{posts(), query.Definition{Where: "meta = '{}'"}, query.Rerun, "shown and never compared"},
		{posts(), query.Definition{Where: "meta IS NOT NULL AND tags IS NULL AND span IS NULL"}, query.Routed, ""},
		{posts(), query.Definition{Where: "span > '1 day'"}, query.Rerun, "type interval"},
		{posts(), query.Definition{Where: "tags = '{a}'"}, query.Rerun, "never compared"},
		{posts(), query.Definition{Where: "score = org"}, query.Rerun, "rounds"},
		{posts(), query.Definition{Where: "price > org"}, query.Routed, ""},
		{posts(), query.Definition{Where: "day < at"}, query.Rerun, "time zone"},
		{posts(), query.Definition{Where: "at < created"}, query.Rerun, "time zone"},
		{posts(), query.Definition{Visible: "title < $actor.name"}, query.Rerun, "visible: "},
		{notes(), query.Definition{Where: "body LIKE 'a%' AND tag < 'x'", Order: "tag", Limit: 1}, query.Windowed, ""},
		{notes(), query.Definition{Where: "odd = 'x'"}, query.Rerun, "collation custom"},
		{notes(), query.Definition{Where: "n LIKE '1%'"}, query.Rerun, "LIKE makes a text"},
		{notes(), query.Definition{Where: "n = body"}, query.Rerun, "different affinity"},
	} {
		c.def.Name = "q"
		q, err := query.Compile(c.def, c.table)
		if err != nil {
			t.Errorf("Compile(%+v): %v", c.def, err)
			continue
		}
		if q.Class != c.class || !strings.Contains(q.Reason, c.reason) || c.reason == "" && q.Reason != "" {
			t.Errorf("Compile(%+v) is %v, %q; want %v, %q", c.def, q.Class, q.Reason, c.class, c.reason)
		}
	}
}

// TestS50_RerunMayMatch: what cannot be decided counts as true, also under NOT, and the keys stay.
func TestS50_RerunMayMatch(t *testing.T) {
	t.Parallel()
	b := bind(t, posts(), "org = 7 AND NOT (title < 'x' OR done)", nil)
	r := make(row.Row, 13)
	for _, c := range []struct {
		org  int64
		done bool
		want query.Truth
	}{{7, false, query.True}, {7, true, query.False}, {8, false, query.False}} {
		r[1], r[2], r[3] = row.IntValue(c.org), row.TextValue("a"), row.BoolValue(c.done)
		if got := b.Match(r); got != c.want {
			t.Errorf("org %d done %v: %v, want %v", c.org, c.done, got, c.want)
		}
	}
	if a := b.Access(); len(a) != 1 || !slices.Equal(a[0].Columns, []int{1, 3}) {
		t.Errorf("access %+v", a)
	}
}

func TestS12_CanonicalInput(t *testing.T) {
	t.Parallel()
	def := query.Definition{
		Name: "q", Where: "org = $org AND price >= $min AND created > $since AND title IN $titles AND (NOT $flag OR day = $day) AND ($opt IS NULL OR title = $opt)", Visible: "id = $actor.id",
		Input: map[string]query.Param{
			"min": {Default: json.RawMessage("0")}, "titles": {List: true, Max: 3}, "flag": {Default: json.RawMessage("false")}, "opt": {Optional: true, Max: 4}, "day": {Optional: true},
		},
	}
	q, err := query.Compile(def, posts())
	if err != nil {
		t.Fatal(err)
	}
	same := []string{
		`{"org": 1, "since": "2026-11-30T12:00:00Z", "titles": ["a", "b"]}`,
		`{"titles":["a","b"],"since":"2026-11-30 13:00:00.000+01","org":"1","min":0.0}`,
		` {"org":1.0,"min":"0","since":"2026-11-30T12:00:00+00:00","opt":null,"flag":false,"day":null,"titles":["\u0061","b"]} `,
	}
	const want = `{"actor.id":"u1","day":null,"flag":false,"min":"0","opt":null,"org":1,"since":"2026-11-30T12:00:00Z","titles":["a","b"]}`
	for _, text := range same {
		in, err := q.Input([]byte(text), []byte(`{"id":"u1","role":"x"}`))
		if err != nil || in.Text != want {
			t.Errorf("Input(%s) = %s, %v", text, in.Text, err)
		}
		if in.Hash != 0x253cfd216ef3a7ea && text == same[0] {
			t.Errorf("hash %#x", in.Hash)
		}
	}
	anonymous, err := q.Input([]byte(same[0]), nil)
	if err != nil || anonymous.Text != strings.Replace(want, `"u1"`, "null", 1) {
		t.Errorf("without an actor: %s, %v", anonymous.Text, err)
	}
	for text, cause := range map[string]string{
		``:                  "missing",
		`[]`:                "a JSON object",
		`{`:                 "not valid JSON",
		`{} x`:              "not valid JSON",
		`{"org":1,"org":2}`: "stands there twice",
		`{"org":"x","since":"2026-11-30T12:00:00Z","titles":[]}`:                  "parameter org: row: not a value",
		`{"org":1.5,"since":"2026-11-30T12:00:00Z","titles":[]}`:                  "parameter org",
		`{"org":99999999999999999999,"since":"2026-11-30T12:00:00Z","titles":[]}`: "parameter org",
		`{"org":1,"since":"2026-11-30T12:00:00","titles":[]}`:                     "parameter since",
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":"a"}`:                   "a list is expected",
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":[["a"]]}`:               "parameter titles",
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":["a","b","c","d"]}`:     "more than 3 values",
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":[],"opt":"12345"}`:      "longer than 4 bytes",
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":["a\u0000"]}`:           "NUL",
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":[],"nope":1}`:           `parameter "nope" is not one of the query's`,
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":[],"actor.id":"u2"}`:    `"actor.id" is not one of the query's`,
		`{"org":1,"since":"2026-11-30T12:00:00Z","titles":[],"flag":"yes"}`:       "parameter flag",
		`{"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`:   "larger than",
		`{"org":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`:   "parameter",
	} {
		if _, err := q.Input([]byte(text), nil); !errors.Is(err, query.ErrInput) || !strings.Contains(err.Error(), cause) {
			t.Errorf("Input(%.80s) = %v, want %q", text, err, cause)
		}
	}
}

// TestS12_ValuesNeverBecomeSQL binds texts that would be SQL.
func TestS12_ValuesNeverBecomeSQL(t *testing.T) {
	t.Parallel()
	evil := `'; DROP TABLE posts; -- " \`
	for _, tab := range []*row.Table{posts(), notes()} {
		column := tab.Columns[2].Name
		b := bind(t, tab, column+" = $x OR "+column+" IN $list OR "+column+" = '''; DROP'", map[string]any{"x": evil, "list": []string{evil}})
		s := b.SQL(query.Read{Limit: 5})
		if strings.Contains(s.SQL, "DROP") {
			t.Errorf("%s", s.SQL)
		}
		r := make(row.Row, len(tab.Columns))
		r[2] = row.TextValue(evil)
		if b.Match(r) != query.True {
			t.Error("the text does not match itself")
		}
	}
	tab := notes()
	tab.Columns[1].Name = `a"; DROP`
	if s := bind(t, tab, `"a""; DROP" = 'x'`, nil).SQL(query.Read{}); !strings.Contains(s.SQL, `"a""; DROP" = ?1`) {
		t.Error(s.SQL)
	}
}

func TestS12_SQL(t *testing.T) {
	t.Parallel()
	q, err := query.Compile(query.Definition{
		Name: "q", Where: "org = $org AND created >= '2026-11-30T12:00:00Z' AND title IN $titles", Order: "created DESC", Limit: 20, Columns: []string{"title"},
	}, posts())
	if err != nil {
		t.Fatal(err)
	}
	in, err := q.Input([]byte(`{"org":7,"titles":["a\"b","c"]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := q.Bind(in)
	if err != nil {
		t.Fatal(err)
	}
	s := b.SQL(query.Read{})
	_, where, _ := strings.Cut(s.SQL, " FROM ")
	want := `"app"."posts" WHERE ("org" = $1::bigint AND "created" >= $2::timestamptz AND "title" = ANY($3::text[]))` +
		` ORDER BY "created" DESC NULLS FIRST, "org" NULLS LAST, "id" COLLATE "C" NULLS LAST LIMIT 20`
	if where != want {
		t.Errorf("SQL\n%s, want\n%s", where, want)
	}
	if args := []any{"7", "2026-11-30 12:00:00+00", `{"a\"b","c"}`}; !slices.Equal(s.Args, args) {
		t.Errorf("args %q, want %q", s.Args, args)
	}
	if want := []int{0, 1, 2}; !slices.Equal(slices.Sorted(slices.Values(q.Columns)), want) {
		t.Errorf("columns %v, want %v", q.Columns, want)
	}
	for i, c := range posts().Columns {
		if want := slices.Contains([]string{"id", "org", "title", "created"}, c.Name); q.Reads.Has(i) != want {
			t.Errorf("reads %s: %v", c.Name, !want)
		}
		if want := slices.Contains([]string{"org", "title", "created"}, c.Name); q.Filter.Has(i) != want {
			t.Errorf("filters %s: %v", c.Name, !want)
		}
	}
}

func TestS16_Access(t *testing.T) {
	t.Parallel()
	// Columns of posts: 1 org, 2 title, 3 done, 4 created, 5 price. Keys, & a range, = when they are the whole predicate.
	for _, c := range []struct{ where, want string }{
		{"org = 1", "[1]:1="},
		{"org = 1 AND title = 'a' AND done", "[1 2 3]:1|a|true="},
		{"org IN (1, 2) AND NOT done", "[1 3]:1|false,2|false="},
		{"org = 1 OR title = 'a'", "[1]:1 [2]:a"},
		{"org = 1 AND (title = 'a' OR price > 5)", "[1 2]:1|a [1]:1&5(5,)"},
		{"org = 1 AND price > 5 AND price < 9", "[1]:1&5(5,9)="},
		{"org IN (1, 2) AND price > 5 AND created > 'infinity'", "[1]:1,2&5(5,)"},
		{"org = 1 AND org > 0", "[1]:1"},
		{"org = 1 AND title LIKE 'a%'", "[1]:1&2[a,b)"},
		{"org = 1 AND price > 5 AND title <> 'a'", "[1]:1&5(5,)"},
		{"title IS NULL", "[2]:NULL="},
		{"title IS NOT DISTINCT FROM NULL AND org = 1", "[1 2]:1|NULL="},
		{"price = 1.50", "[5]:1.5="},
		{"price > 1 AND price <= 10", "5(1,10]="},
		{"price > 1 AND price >= 1", "5(1,)="},
		{"price >= 1 AND price > 1 AND price <= 9 AND price < 9", "5(1,9)="},
		{"price BETWEEN 1 AND 10 AND created > 'infinity'", "5[1,10]"},
		{"NOT (price < 1)", "5[1,)="},
		{"title LIKE 'ab%'", "2[ab,ac)"},
		{`title LIKE 'a\%%'`, "2[a%,a&)"},
		{"title LIKE '%ab'", "scan"},
		{"title < 'x'", "scan"},
		{"org <> 1", "scan"},
		{"org NOT IN (1, 2)", "scan"},
		{"org = 1 OR org <> 2", "scan"},
		{"", "scan="},
		{"FALSE", ""},
		{"org = NULL", ""},
		{"org = 1 AND NULL", ""},
		{"org = 1 OR title = NULL", "[1]:1="},
		{"org IN (NULL)", ""},
		{"(org = 1 OR org = 2) AND (done OR price = 3)", "[1 3]:1|true [1 5]:1|3 [1 3]:2|true [1 5]:2|3"},
		{strings.Repeat("(org = 1 OR org = 2) AND ", 6) + "done", "scan"},
		{strings.Repeat("org = 1 OR ", 32) + "done", "scan"},
	} {
		var got []string
		for _, a := range bind(t, posts(), c.where, nil).Access() {
			got = append(got, accessText(a))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: access %q, want %q", c.where, text, c.want)
		}
	}
	many := make([]int, 100)
	for i := range many {
		many[i] = i
	}
	q, err := query.Compile(query.Definition{Name: "q", Where: "org IN $ids", Input: map[string]query.Param{"ids": {List: true, Max: 100}}}, posts())
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]string{0: "", 2: "[1]:0,1=", 100: "1[0,99]"} {
		raw, _ := json.Marshal(map[string]any{"ids": many[:n]})
		in, err := q.Input(raw, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := q.Bind(in)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, a := range b.Access() {
			got += accessText(a)
		}
		if got != want {
			t.Errorf("a list of %d: access %q, want %q", n, got, want)
		}
	}
}

func accessText(a query.Access) string {
	whole := map[bool]string{true: "="}[a.Whole]
	if a.Scan() {
		return "scan" + whole
	}
	within := ""
	if a.Range != nil {
		out := map[bool]string{false: "[", true: "("}[a.Range.Lo.Open]
		if a.Range.Lo.Set {
			out += a.Range.Lo.Value.String()
		}
		out += ","
		if a.Range.Hi.Set {
			out += a.Range.Hi.Value.String()
		}
		within = string(rune('0'+a.Range.Column)) + out + map[bool]string{false: "]", true: ")"}[a.Range.Hi.Open || !a.Range.Hi.Set]
		if len(a.Columns) == 0 {
			return within + whole
		}
		within = "&" + within
	}
	out := "["
	for i, c := range a.Columns {
		out += strings.Repeat(" ", min(i, 1)) + string(rune('0'+c))
	}
	out += "]:"
	for i, key := range a.Keys {
		out += strings.Repeat(",", min(i, 1))
		for j, v := range key {
			out += strings.Repeat("|", min(j, 1)) + v.String()
		}
	}
	return out + within + whole
}

func TestS49_Explain(t *testing.T) {
	t.Parallel()
	b := bind(t, posts(), "org = 1 AND (done OR price > 5)", nil)
	r := make(row.Row, 13)
	r[1], r[3] = row.IntValue(1), row.BoolValue(false)
	if got, want := b.Explain(r), []string{"done true is false", "price > is unknown"}; !slices.Equal(got, want) {
		t.Errorf("Explain = %q, want %q", got, want)
	}
}

// FuzzCompile: no text panics, and what compiles gives SQL and a match.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{
		"org = $org AND (title LIKE 'a%' OR NOT done)", "created BETWEEN '2026-11-30T12:00:00Z' AND $to", "price IN (1, 2.5, NULL) AND org IN $ids", "day = DATE '2026-11-30'", `"Mixed" IS DISTINCT FROM -1`,
		"'a'::text = title", "((", "NOT NOT done", "title ILIKE 'x' ESCAPE '!'", "org = any($a)", "$x IS NULL OR org = $x",
	} {
		f.Add(s, "created DESC NULLS LAST, title COLLATE \"C\"", `{"org":1}`)
	}
	pg, lite := posts(), notes()
	f.Fuzz(func(t *testing.T, where, order, input string) {
		for _, tab := range []*row.Table{pg, lite} {
			_ = query.ParseOrder(order)
			q, err := query.Compile(query.Definition{Name: "q", Where: where}, tab)
			if err != nil {
				if !errors.Is(err, query.ErrDefinition) {
					t.Fatalf("%v", err)
				}
				continue
			}
			if _, err := json.Marshal(q.Predicate()); err != nil {
				t.Fatal(err)
			}
			in, err := q.Input([]byte(input), nil)
			if err != nil {
				if !errors.Is(err, query.ErrInput) {
					t.Fatalf("%v", err)
				}
				continue
			}
			again, err := q.Input([]byte(in.Text), nil)
			if err != nil || again.Text != in.Text {
				t.Fatalf("canonical input %s is not canonical: %s, %v", in.Text, again.Text, err)
			}
			b, err := q.Bind(in)
			if err != nil {
				if !errors.Is(err, query.ErrInput) {
					t.Fatalf("%v", err)
				}
				continue
			}
			r := make(row.Row, len(tab.Columns))
			b.Match(r)
			b.SQL(query.Read{After: r})
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	tab := posts()
	r := make(row.Row, 13)
	r[1], r[2], r[3] = row.IntValue(7), row.TextValue("abc"), row.BoolValue(true)
	r[4], _ = row.ParseText(tab.Columns[4].Type, "2026-11-30 12:00:00Z")
	r[5], _ = row.ParseText(tab.Columns[5].Type, "12.50")
	for _, bc := range []struct{ name, where string }{
		{"int+bool+timestamptz", "org = 7 AND done AND created > '2026-01-01T00:00:00Z'"},
		{"int+text+numeric", "org = 7 AND title = 'abc' AND price >= 3.5"},
		{"int+like+in", "org = 7 AND title LIKE 'a%c' AND org IN (1, 2, 3, 7)"},
		{"int differs", "org = 8 AND title = 'abc' AND price >= 3.5"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			bound := bind(b, tab, bc.where, nil)
			b.ReportAllocs()
			for b.Loop() {
				bound.Match(r)
			}
		})
	}
	b.Run("compare", func(b *testing.B) {
		q, err := query.Compile(query.Definition{Name: "q", Order: "created DESC, price"}, tab)
		if err != nil {
			b.Fatal(err)
		}
		other := slices.Clone(r)
		other[5], _ = row.ParseText(tab.Columns[5].Type, "12.51")
		b.ReportAllocs()
		for b.Loop() {
			q.Order.Compare(r, other)
		}
	})
	b.Run("compile", func(b *testing.B) {
		for b.Loop() {
			if _, err := query.Compile(query.Definition{Name: "q", Where: "org = $org AND title = 'abc' AND price >= 3.5"}, tab); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("input and bind", func(b *testing.B) {
		q, err := query.Compile(query.Definition{Name: "q", Where: "org = $org AND title = $title AND price >= 3.5"}, tab)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			in, err := q.Input([]byte(`{"org":7,"title":"abc"}`), nil)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := q.Bind(in); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func TestS15_MatchAllocatesNothing(t *testing.T) {
	tab := posts()
	r := make(row.Row, 13)
	r[1], r[2], r[3] = row.IntValue(7), row.TextValue("abc"), row.BoolValue(true)
	r[5], _ = row.ParseText(tab.Columns[5].Type, "12.50")
	b := bind(t, tab, "org = 7 AND org < 7.5 AND title LIKE '%b_' AND price BETWEEN 3.5 AND 99 AND done AND org IN (1,2,3,4,5,6,7,8,9,10) AND price >= org", nil)
	if b.Match(r) != query.True {
		t.Fatal("no match")
	}
	if n := testing.AllocsPerRun(100, func() { b.Match(r) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
