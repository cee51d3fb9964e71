package query_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

func bind(t testing.TB, tab *row.Table, where string, params any) *query.Bound {
	t.Helper()
	q, err := query.Compile(query.Definition{Name: "q", Where: where}, tab)
	if err != nil {
		t.Fatalf("Compile(%s): %v", where, err)
	}
	input, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	in, err := q.Input(input, nil)
	if err != nil {
		t.Fatalf("Input(%s, %s): %v", where, input, err)
	}
	b, err := q.Bind(in)
	if err != nil {
		t.Fatalf("Bind(%s, %s): %v", where, input, err)
	}
	return b
}

// ladder is three values of a type in their order.
type ladder struct {
	typ     row.Type
	cells   [3]row.Value
	literal [3]string
	equal   string // another literal for the middle
}

func ladders(t testing.TB) map[string]ladder {
	out := map[string]ladder{}
	mood := row.Type{Kind: row.Enum, Name: "mood", Labels: []string{"z", "m", "a"}}
	for name, l := range map[string]ladder{
		"bool":         {typ: pgType(16, 0), literal: [3]string{"FALSE", "TRUE", "TRUE"}},
		"int":          {typ: pgType(20, 0), literal: [3]string{"9007199254740992", "9007199254740993", "9007199254740994"}, equal: "9007199254740993.0"},
		"numeric":      {typ: pgType(1700, 0), literal: [3]string{"9", "10", "'NaN'"}, equal: "10.00"},
		"float":        {typ: pgType(701, 0), literal: [3]string{"-1.5", "'Infinity'", "'NaN'"}},
		"text":         {typ: pgType(25, row.C), literal: [3]string{"'Z'", "'a'", "'é'"}},
		"char":         {typ: pgType(1042, row.C), literal: [3]string{"'A'", "'a '", "'b'"}, equal: "'a'"},
		"uuid":         {typ: pgType(2950, 0), literal: [3]string{"'00000000-0000-0000-0000-000000000009'", "'00000000-0000-0000-0000-00000000000a'", "UUID 'f0000000-0000-0000-0000-000000000000'"}},
		"timestamp":    {typ: pgType(1114, 0), literal: [3]string{"'0044-03-15 00:00:00 BC'", "'2026-11-30 12:00:00'", "'infinity'"}, equal: "'2026-11-30T12:00'"},
		"timestamptz":  {typ: pgType(1184, 0), literal: [3]string{"'-infinity'", "'2026-11-30 12:00:00+00'", "'2026-11-30 12:00:00-01'"}, equal: "'2026-11-30 13:30:00+01:30'"},
		"date":         {typ: pgType(1082, 0), literal: [3]string{"'1999-12-31'", "'2000-01-01'", "DATE '10000-01-01'"}},
		"bytes":        {typ: pgType(17, 0), literal: [3]string{`'\x'`, `'\x61'`, `'\xff'`}},
		"enum":         {typ: mood, literal: [3]string{"'z'", "'m'", "'a'"}},
		"sqlite int":   {typ: row.SQLiteType("INT", "", false), literal: [3]string{"1.5", "2", "'a'"}, equal: "' 2.0 '"},
		"sqlite text":  {typ: row.SQLiteType("TEXT", "", false), literal: [3]string{"'A'", "'a'", "'é'"}},
		"sqlite nocas": {typ: row.SQLiteType("TEXT", "NOCASE", false), literal: [3]string{"'A'", "'b'", "'C'"}, equal: "'B'"},
		"sqlite rtrim": {typ: row.SQLiteType("TEXT", "RTRIM", false), literal: [3]string{"'A'", "'b  '", "'b!'"}, equal: "'b'"},
		"sqlite any":   {typ: row.SQLiteType("", "", false), literal: [3]string{"7", "'7'", "'é'"}},
	} {
		for i, text := range l.literal {
			var err error
			text = strings.TrimPrefix(strings.TrimPrefix(text, "UUID "), "DATE ")
			bare := strings.Trim(text, "'")
			switch {
			case l.typ.Engine == row.PostgreSQL:
				l.cells[i], err = row.ParseText(l.typ, strings.ToLower(bare))
				if err != nil {
					l.cells[i], err = row.ParseText(l.typ, bare)
				}
				if l.typ.Kind == row.Text {
					l.cells[i] = row.TextValue(bare)
				}
			case text == bare:
				l.cells[i], err = row.ParseJSON(row.Type{Engine: row.SQLite, Kind: row.Dynamic}, []byte(text))
			default:
				l.cells[i] = row.TextValue(bare)
			}
			if err != nil {
				t.Fatal(name, err)
			}
		}
		out[name] = l
	}
	return out
}

// TestS15_OperatorsTypesAndNull is the table: every operator, every type, below, equal, above and NULL on either side.
func TestS15_OperatorsTypesAndNull(t *testing.T) {
	t.Parallel()
	u, f, y := query.Unknown, query.False, query.True
	// By the cell: below, equal, above, NULL. @ is the middle literal and # the highest.
	operators := []struct {
		where string
		want  [4]query.Truth
	}{
		{"c = @", [4]query.Truth{f, y, f, u}},
		{"c <> @", [4]query.Truth{y, f, y, u}},
		{"c != @", [4]query.Truth{y, f, y, u}},
		{"c < @", [4]query.Truth{y, f, f, u}},
		{"c <= @", [4]query.Truth{y, y, f, u}},
		{"c > @", [4]query.Truth{f, f, y, u}},
		{"c >= @", [4]query.Truth{f, y, y, u}},
		{"@ < c", [4]query.Truth{f, f, y, u}},
		{"@ >= c", [4]query.Truth{y, y, f, u}},
		{"NOT c > @", [4]query.Truth{y, y, f, u}},
		{"c IN (@, #)", [4]query.Truth{f, y, y, u}},
		{"c IN (@, NULL)", [4]query.Truth{u, y, u, u}},
		{"c NOT IN (@, #)", [4]query.Truth{y, f, f, u}},
		{"c NOT IN (NULL, @)", [4]query.Truth{u, f, u, u}},
		{"c BETWEEN @ AND #", [4]query.Truth{f, y, y, u}},
		{"c NOT BETWEEN @ AND #", [4]query.Truth{y, f, f, u}},
		{"c BETWEEN @ AND NULL", [4]query.Truth{f, u, u, u}},
		{"c NOT BETWEEN @ AND NULL", [4]query.Truth{y, u, u, u}},
		{"@ BETWEEN c AND c", [4]query.Truth{f, y, f, u}},
		{"c IS NULL", [4]query.Truth{f, f, f, y}},
		{"c IS NOT NULL", [4]query.Truth{y, y, y, f}},
		{"c = NULL", [4]query.Truth{u, u, u, u}},
		{"c <> NULL", [4]query.Truth{u, u, u, u}},
		{"c IS DISTINCT FROM @", [4]query.Truth{y, f, y, y}},
		{"c IS NOT DISTINCT FROM @", [4]query.Truth{f, y, f, f}},
		{"c IS DISTINCT FROM NULL", [4]query.Truth{y, y, y, f}},
		{"c IS NOT DISTINCT FROM NULL", [4]query.Truth{f, f, f, y}},
		{"c = c", [4]query.Truth{y, y, y, u}},
		{"c IS DISTINCT FROM c", [4]query.Truth{f, f, f, f}},
		{"c IS NOT DISTINCT FROM c", [4]query.Truth{y, y, y, y}},
		{"c = @ OR c IS NULL", [4]query.Truth{f, y, f, y}},
		{"c = @ AND c IS NULL", [4]query.Truth{f, f, f, u}},
		{"c = @ OR NULL", [4]query.Truth{u, y, u, u}},
		{"c = @ AND NULL", [4]query.Truth{f, u, f, u}},
		{"NOT (c = @ AND NULL)", [4]query.Truth{y, u, y, u}},
		{"NOT (c = @ OR FALSE)", [4]query.Truth{y, f, y, u}},
	}
	for name, l := range ladders(t) {
		tab := table(l.typ.Engine, []testColumn{{name: "c", typ: l.typ}})
		for _, o := range operators {
			for _, middle := range []string{l.literal[1], l.equal} {
				if middle == "" {
					continue
				}
				where := strings.NewReplacer("@", middle, "#", l.literal[2]).Replace(o.where)
				b := bind(t, tab, where, nil)
				for i, want := range o.want {
					cell := row.Value{}
					if i < 3 {
						cell = l.cells[i]
					}
					if name == "bool" && i == 2 { // there is nothing above true
						continue
					}
					r := row.Row{row.IntValue(1), cell}
					if got := b.Match(r); got != want {
						t.Errorf("%s: %s for %v = %v, want %v", name, where, cell, got, want)
					}
					if err := checkAccess(b, r); err != nil {
						t.Errorf("%s: %s, %v: %v", name, where, cell, err)
					}
				}
			}
		}
	}
}

func TestS15_BooleansAlone(t *testing.T) {
	t.Parallel()
	tab := table(row.PostgreSQL, []testColumn{{name: "b", typ: pgType(16, 0)}})
	lite := table(row.SQLite, []testColumn{{name: "b", typ: row.SQLiteType("BOOLEAN", "", false)}})
	for _, c := range []struct {
		tab   *row.Table
		where string
		cell  row.Value
		want  query.Truth
	}{
		{tab, "b", row.BoolValue(true), query.True},
		{tab, "b", row.BoolValue(false), query.False},
		{tab, "b", row.Value{}, query.Unknown},
		{tab, "NOT b", row.BoolValue(false), query.True},
		{tab, "NOT b", row.Value{}, query.Unknown},
		{tab, "b = TRUE", row.BoolValue(true), query.True},
		{tab, "TRUE", row.Value{}, query.True},
		{tab, "NULL", row.Value{}, query.Unknown},
		{tab, "NOT NULL", row.Value{}, query.Unknown},
		{tab, "NOT FALSE", row.Value{}, query.True},
		{lite, "b", row.IntValue(2), query.True},
		{lite, "b = TRUE", row.IntValue(2), query.False},
		{lite, "b", row.TextValue("abc"), query.False},
		{lite, "b", row.TextValue(" 1abc"), query.True},
		{lite, "NOT b", row.FloatValue(0), query.True},
		{lite, "NOT b", row.Value{}, query.Unknown},
	} {
		if got := bind(t, c.tab, c.where, nil).Match(row.Row{row.IntValue(1), c.cell}); got != c.want {
			t.Errorf("%s %s for %v = %v, want %v", c.tab.Engine, c.where, c.cell, got, c.want)
		}
	}
}

func TestS15_Like(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text, pattern, escape string
		fold, want            bool
	}{
		{"", "", "", false, true},
		{"", "%", "", false, true},
		{"a", "", "", false, false},
		{"abc", "a%", "", false, true},
		{"abc", "%c", "", false, true},
		{"abc", "%b%", "", false, true},
		{"abc", "a_c", "", false, true},
		{"aéc", "a_c", "", false, true},
		{"a\nc", "a_c", "", false, true},
		{"a\nbc", "a%c", "", false, true},
		{"ABC", "abc", "", false, false},
		{"ABC", "abc", "", true, true},
		{"É", "é", "", true, false},
		{"a%", `a\%`, `\`, false, true},
		{"ab", `a\%`, `\`, false, false},
		{"a_", "a!_", "!", false, true},
		{`a\`, `a\`, "", false, true},
		{"aXbXc", "%X%X%", "", false, true},
		{"aaaaab", "%a_b", "", false, true},
		{"ab", "%a_b", "", false, false},
		{"日本語", "_本_", "", false, true},
		{"日本語", "__", "", false, false},
	} {
		got, err := query.PatternMatch(c.text, c.pattern, c.escape, c.fold)
		if err != nil || got != c.want {
			t.Errorf("%q LIKE %q ESCAPE %q = %v, %v", c.text, c.pattern, c.escape, got, err)
		}
	}
	if _, err := query.PatternMatch("a", `a\`, `\`, false); err == nil {
		t.Error("a pattern that ends in its escape character is taken")
	}
	// It goes back to the last % only: a pattern of many is no trap.
	if ok, _ := query.PatternMatch(strings.Repeat("a", 20000), strings.Repeat("%a", 50)+"%b", "", false); ok {
		t.Error("a text without b matches")
	}
}

// TestS15_KleeneLaws checks negation and De Morgan on random predicates and rows.
func TestS15_KleeneLaws(t *testing.T) {
	t.Parallel()
	rng := random(t)
	columns := slices.DeleteFunc(postgresColumns(rng), func(c testColumn) bool { return c.shown })
	tab := table(row.PostgreSQL, columns)
	g := &generator{rng: rng, columns: columns}
	for range 2000 {
		r := row.Row{row.IntValue(1)}
		for _, c := range columns {
			v := row.Value{}
			if rng.IntN(4) > 0 {
				text := pick(rng, c.values)
				if strings.HasPrefix(text, "'") {
					text = strings.ReplaceAll(text[1:len(text)-1], "''", "'")
				}
				parsed, err := row.ParseText(c.typ, text)
				if err == nil {
					v = parsed
				}
			}
			r = append(r, v)
		}
		g.fresh()
		g.noParam = false
		a, b := g.expr(2), g.expr(2)
		match := func(format string, args ...any) query.Truth {
			where := fmt.Sprintf(format, args...)
			in := map[string]json.RawMessage{}
			for name, v := range g.params {
				if slices.Contains(strings.FieldsFunc(where, func(r rune) bool { return strings.ContainsRune(" (),", r) }), "$"+name) {
					in[name] = v
				}
			}
			return bind(t, tab, where, in).Match(r)
		}
		x, y := match("%s", a), match("%s", b)
		for _, law := range []struct {
			where string
			want  query.Truth
		}{
			{fmt.Sprintf("NOT (%s)", a), 2 - x},
			{fmt.Sprintf("NOT NOT (%s)", a), x},
			{fmt.Sprintf("(%s) AND (%s)", a, b), min(x, y)},
			{fmt.Sprintf("(%s) OR (%s)", a, b), max(x, y)},
			{fmt.Sprintf("NOT ((%s) AND (%s))", a, b), 2 - min(x, y)},
			{fmt.Sprintf("NOT (%s) OR NOT (%s)", a, b), 2 - min(x, y)},
			{fmt.Sprintf("NOT (%s) AND NOT (%s)", a, b), 2 - max(x, y)},
		} {
			if got := match("%s", law.where); got != law.want {
				t.Fatalf("%s\nrow %v = %v, want %v", law.where, r, got, law.want)
			}
		}
	}
}
