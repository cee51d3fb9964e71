package query_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/tidewire/tidewire/row"
)

// testColumn is a column with what is put into it and what it is compared with.
type testColumn struct {
	name, ddl string
	typ       row.Type
	values    []string // SQL of cells
	literals  []string // SQL of literals that fit
	params    []string // JSON of parameters that fit
	group     string   // columns of one group can be compared with each other; empty means with none
	shown     bool     // IS NULL only
	inexact   bool     // comparisons by order are re-run
	text      bool     // LIKE
}

// generator makes random predicates: as text, and the parameters.
type generator struct {
	rng     *rand.Rand
	columns []testColumn
	sqlite  bool
	params  map[string]json.RawMessage
	makers  map[string]func() string // of other values of the parameters
	noParam bool                     // literals only
	rerun   bool                     // also tests that the database alone can decide
}

func (g *generator) where() string {
	g.fresh()
	g.noParam = g.rng.IntN(2) == 0
	return g.expr(3)
}

// fresh begins without parameters.
func (g *generator) fresh() {
	g.params, g.makers = map[string]json.RawMessage{}, map[string]func() string{}
}

func (g *generator) expr(depth int) string {
	if depth == 0 || g.rng.IntN(4) == 0 {
		return g.leaf()
	}
	switch g.rng.IntN(5) {
	case 0:
		return "NOT (" + g.expr(depth-1) + ")"
	case 1:
		return "NOT " + g.leaf()
	}
	op := pick(g.rng, []string{" AND ", " OR "})
	parts := make([]string, 2+g.rng.IntN(2))
	for i := range parts {
		parts[i] = g.expr(depth - 1)
	}
	return "(" + strings.Join(parts, op) + ")"
}

// value is a literal, or a parameter that is given a value.
func (g *generator) value(c testColumn) string {
	if g.noParam || len(c.params) == 0 || g.rng.IntN(2) == 0 {
		if g.rng.IntN(20) == 0 {
			return "NULL"
		}
		return pick(g.rng, c.literals)
	}
	return g.param(func() string { return pick(g.rng, c.params) })
}

func (g *generator) param(value func() string) string {
	name := fmt.Sprint("p", len(g.params))
	g.makers[name] = func() string {
		if g.rng.IntN(20) == 0 {
			return "null"
		}
		return value()
	}
	g.params[name] = json.RawMessage(g.makers[name]())
	return "$" + name
}

// input gives the parameters other values.
func (g *generator) input() json.RawMessage {
	for _, name := range slices.Sorted(maps.Keys(g.makers)) {
		g.params[name] = json.RawMessage(g.makers[name]())
	}
	raw, _ := json.Marshal(g.params)
	return raw
}

var likeAtoms = []string{"a", "A", "b", "B", "%", "%", "_", "é", "ab", `\%`, `\_`, "!%", "!", " ", "\n", "c", "0", "."}

func (g *generator) pattern() string {
	var b strings.Builder
	for range g.rng.IntN(5) {
		b.WriteString(pick(g.rng, likeAtoms))
	}
	return b.String()
}

var inexactTests = map[bool][]string{
	false: {
		"tl < 'b'", "tl BETWEEN 'A' AND 'z'", "tu ILIKE '%É%'", "tl NOT ILIKE 'a%'", "f8 > n", "i4 = f8", "d < ts", "ts >= tz", "bp LIKE 'a%'", "j = '{}'", "ar <> '{}'", "ip > '9.0.0.0'",
		"j IS DISTINCT FROM '\"x\"'", "tl IN ('a', 'é') AND tl > 'a'", "d IS NOT DISTINCT FROM tz",
	},
	true: {"i LIKE '1%'", "i < t", "x LIKE 'a%'", "bl = t", "NOT x = tn", "r IS DISTINCT FROM t", "bo NOT LIKE '%'"},
}

func (g *generator) leaf() string {
	if g.rerun && g.rng.IntN(3) == 0 {
		return pick(g.rng, inexactTests[g.sqlite])
	}
	c := pick(g.rng, g.columns)
	n := g.rng.IntN(12)
	not := pick(g.rng, []string{"", "NOT "})
	if c.shown || n == 0 {
		return c.name + " IS " + not + "NULL"
	}
	if (c.typ.Kind == row.Bool || g.sqlite && c.typ.Affinity.Number()) && n < 4 {
		return c.name
	}
	if c.text && n < 5 {
		return g.like(c, not)
	}
	switch {
	case n < 3:
		items := make([]string, 1+g.rng.IntN(4))
		if !g.noParam && len(c.params) > 0 && g.rng.IntN(2) == 0 {
			return c.name + " " + not + "IN " + g.param(func() string {
				list := make([]string, g.rng.IntN(5))
				for i := range list {
					list[i] = pick(g.rng, append(slices.Clip(c.params), "null"))
				}
				return "[" + strings.Join(list, ",") + "]"
			})
		}
		for i := range items {
			items[i] = g.value(c)
		}
		return c.name + " " + not + "IN (" + strings.Join(items, ", ") + ")"
	case n < 4 && !c.inexact:
		return c.name + " " + not + "BETWEEN " + g.value(c) + " AND " + g.value(c)
	case n < 6:
		o := g.other(c)
		for g.sqlite && (o == "TRUE" || o == "FALSE") {
			o = g.other(c)
		}
		return c.name + " IS " + not + "DISTINCT FROM " + o
	case n == 6 && !c.inexact:
		return g.value(c) + " " + pick(g.rng, []string{"=", "<>", "<", "<=", ">", ">="}) + " " + c.name
	case c.inexact:
		return c.name + " " + pick(g.rng, []string{"=", "<>", "!="}) + " " + g.other(c)
	}
	return c.name + " " + pick(g.rng, []string{"=", "=", "<>", "!=", "<", "<=", ">", ">="}) + " " + g.other(c)
}

// other is a value or another column of the group.
func (g *generator) other(c testColumn) string {
	if c.group != "" && g.rng.IntN(5) == 0 {
		if o := pick(g.rng, g.columns); o.group == c.group {
			return o.name
		}
	}
	return g.value(c)
}

func (g *generator) like(c testColumn, not string) string {
	op, escape := "LIKE", ""
	if !g.sqlite && c.typ.Collation == row.C && g.rng.IntN(2) == 0 {
		op = "ILIKE"
	}
	switch g.rng.IntN(4) {
	case 0:
		escape = "!"
	case 1:
		if g.sqlite {
			escape = "é"
		} else if g.rng.IntN(4) == 0 {
			escape = "none"
		}
	}
	end := escape
	if end == "" && !g.sqlite {
		end = `\`
	}
	pattern := func() string {
		p := g.pattern()
		if end != "" && strings.HasSuffix(p, end) {
			p += "x"
		}
		return p
	}
	out := c.name + " " + not + op + " "
	if g.noParam || g.rng.IntN(2) == 0 {
		out += "'" + pattern() + "'"
	} else {
		out += g.param(func() string {
			raw, _ := json.Marshal(pattern())
			return string(raw)
		})
	}
	switch escape {
	case "":
		return out
	case "none":
		return out + " ESCAPE ''"
	}
	return out + " ESCAPE '" + escape + "'"
}

// extra returns random texts made of atoms.
func extra(rng *rand.Rand, count, length int, atoms ...string) []string {
	out := make([]string, count)
	for i := range out {
		for range rng.IntN(length + 1) {
			out[i] += pick(rng, atoms)
		}
	}
	return out
}

func randomInts(rng *rand.Rand, count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprint(int64(rng.Uint64()) >> rng.IntN(64))
	}
	return out
}

func randomDecimals(rng *rand.Rand, count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprintf("%d.%s", int64(rng.Uint64())>>rng.IntN(64), pick(rng, []string{"0", "5", "50", "05", "125", "3333333333333333"}))
	}
	return out
}

func randomFloats(rng *rand.Rand, count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprint((rng.Float64() - 0.5) * pick(rng, []float64{1e-30, 1, 1e9, 1e30}))
	}
	return out
}

func randomTimes(rng *rand.Rand, count int, zone func() string) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = fmt.Sprintf("%04d-%02d-%02d %02d:%02d:%02d.%06d%s", 1+rng.IntN(9999), 1+rng.IntN(12), 1+rng.IntN(28), rng.IntN(24), rng.IntN(60), rng.IntN(60), rng.IntN(1e6), zone())
	}
	return out
}
