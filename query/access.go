package query

import (
	"slices"

	"github.com/tidewire/tidewire/row"
)

// Bounds of the access predicates.
const (
	maxConjunctions = 32
	maxKeyColumns   = 3
	maxKeys         = 64 // of one conjunction
)

// Access is a necessary condition of one conjunction of the predicate: a row that matches meets at least one Access of its query. The zero value is met by
// every row (a scan). Equal conditions of different queries can share an index, because Columns are in ascending order.
type Access struct {
	// Columns are what Keys are made of. Empty means no keys.
	Columns []int
	// Keys are tuples of canonical values ([row.Canonical] with the column's collation), NULL for IS NULL: the row's values are one of them.
	Keys [][]row.Value
	// Range is a range on one column that is none of Columns: the row's value is in it, too.
	Range *Range
	// Whole says that the condition is the predicate: a row matches if and only if it meets it. There is one Access then.
	Whole bool
}

// Range is the values of one column between two ends, by [row.Compare] with the collation of the column; NULL is in no range.
type Range struct {
	Column    int
	Collation row.Collation
	Lo, Hi    End
}

// End is one end of a range. One that is not Set is without end.
type End struct {
	Value row.Value
	Set   bool
	Open  bool // the value itself is outside
}

// Scan reports whether every row meets the condition.
func (a *Access) Scan() bool { return len(a.Columns) == 0 && a.Range == nil }

// Holds reports whether a row meets the condition: the reference for indexes.
func (a *Access) Holds(t *row.Table, r row.Row) bool {
	if a.Range != nil && !a.Range.Contains(r[a.Range.Column]) {
		return false
	}
	return len(a.Columns) == 0 || slices.ContainsFunc(a.Keys, func(key []row.Value) bool {
		for i, c := range a.Columns {
			if row.Canonical(r[c], t.Columns[c].Type.Collation) != key[i] {
				return false
			}
		}
		return true
	})
}

// Contains reports whether a value is in the range.
func (g *Range) Contains(v row.Value) bool {
	if v.IsNull() {
		return false
	}
	if g.Lo.Set {
		if c := row.Compare(v, g.Lo.Value, g.Collation); c < 0 || c == 0 && g.Lo.Open {
			return false
		}
	}
	if g.Hi.Set {
		if c := row.Compare(v, g.Hi.Value, g.Collation); c > 0 || c == 0 && g.Hi.Open {
			return false
		}
	}
	return true
}

// Access returns the conditions under which a row can match, one for each conjunction. None at all means that no row ever matches.
func (b *Bound) Access() []Access { return b.access }

// disjunctiveForm expands a predicate into conjunctions of leaves. It gives up, with nil, past the bound.
func disjunctiveForm(n *node) [][]*node {
	switch n.op {
	case opAnd:
		out := [][]*node{nil}
		for _, kid := range n.kids {
			sub := disjunctiveForm(kid)
			if sub == nil || len(out)*len(sub) > maxConjunctions {
				return nil
			}
			var next [][]*node
			for _, a := range out {
				for _, b := range sub {
					next = append(next, slices.Concat(a, b))
				}
			}
			out = next
		}
		return out
	case opOr:
		var out [][]*node
		for _, kid := range n.kids {
			sub := disjunctiveForm(kid)
			if sub == nil || len(out)+len(sub) > maxConjunctions {
				return nil
			}
			out = append(out, sub...)
		}
		return out
	}
	return [][]*node{{n}}
}

func (q *Query) buildAccess(leaves map[*node]*bound) []Access {
	if q.dnf == nil {
		return []Access{{}}
	}
	out := []Access{}
	for _, conj := range q.dnf {
		a, possible := q.conjunctionAccess(conj, leaves)
		if !possible {
			continue
		}
		if a.Scan() { // it covers all others
			return []Access{a}
		}
		out = append(out, a)
	}
	if len(out) > 1 {
		for i := range out {
			out[i].Whole = false
		}
	}
	return out
}

// choice is what one column of a key can be.
type choice struct {
	column int
	values []row.Value
}

// conjunctionAccess picks the access predicate of a conjunction: equality first, then a range, else nothing. possible is false when a leaf is never true.
func (q *Query) conjunctionAccess(conj []*node, leaves map[*node]*bound) (a Access, possible bool) {
	var choices []choice
	ranges := map[int]*Range{}
	within := map[int]int{} // the leaves that a range is made of
	tests := 0
	for _, n := range conj {
		b := leaves[n]
		if b.op == opConst {
			if b.known != True {
				return a, false
			}
			continue
		}
		if tests++; !b.exact {
			continue
		}
		if values, ok := b.keys(); ok {
			if len(values) == 0 {
				return a, false
			}
			if len(values) <= maxKeys && !slices.ContainsFunc(choices, func(c choice) bool { return c.column == b.col }) {
				choices = append(choices, choice{b.col, values})
				continue
			}
		}
		if g := b.narrow(q.Table); g != nil {
			if ranges[b.col] == nil {
				ranges[b.col] = &Range{Column: b.col, Collation: g.Collation}
			}
			ranges[b.col].intersect(g)
			if b.op >= opLt && b.op <= opGe { // others are narrower than their range
				within[b.col]++
			}
		}
	}
	if len(choices) > 0 {
		a = q.keyAccess(choices)
	}
	for _, n := range conj { // in the order of the text, so that the choice does not depend on a map
		if g := ranges[n.col]; g != nil && !slices.Contains(a.Columns, n.col) && (a.Range == nil || !(a.Range.Lo.Set && a.Range.Hi.Set) && g.Lo.Set && g.Hi.Set) {
			a.Range = g
		}
	}
	said := len(a.Columns)
	if a.Range != nil {
		said += within[a.Range.Column]
	}
	a.Whole = said == tests
	return a, true
}

// keyAccess makes tuples of the columns with the fewest values.
func (q *Query) keyAccess(choices []choice) Access {
	slices.SortStableFunc(choices, func(x, y choice) int {
		if c := len(x.values) - len(y.values); c != 0 {
			return c
		}
		return bit(x.values[0].IsNull()) - bit(y.values[0].IsNull()) // NULL says less than a value
	})
	product := 1
	n := 0
	for n < len(choices) && n < maxKeyColumns && product*len(choices[n].values) <= maxKeys {
		product *= len(choices[n].values)
		n++
	}
	choices = choices[:n]
	slices.SortFunc(choices, func(x, y choice) int { return x.column - y.column })
	a := Access{Keys: [][]row.Value{nil}}
	for _, c := range choices {
		a.Columns = append(a.Columns, c.column)
		collation := q.Table.Columns[c.column].Type.Collation
		var next [][]row.Value
		for _, key := range a.Keys {
			for _, v := range c.values {
				next = append(next, append(slices.Clone(key), row.Canonical(v, collation)))
			}
		}
		a.Keys = next
	}
	return a
}

// keys returns the values that a leaf of equality admits.
func (b *bound) keys() ([]row.Value, bool) {
	if b.col2 >= 0 {
		return nil, false
	}
	switch b.op {
	case opEq, opNotDistinct:
		return []row.Value{b.value}, true
	case opIsNull:
		return []row.Value{{}}, true
	case opIn:
		return b.list, true
	case opTrue, opFalse:
		if b.boolean {
			return []row.Value{row.BoolValue(b.op == opTrue)}, true
		}
	}
	return nil, false
}

// narrow returns the range that a leaf admits.
func (b *bound) narrow(t *row.Table) *Range {
	if b.col2 >= 0 {
		return nil
	}
	g := &Range{Column: b.col, Collation: t.Columns[b.col].Type.Collation}
	switch b.op {
	case opLt, opLe:
		g.Hi = End{b.value, true, b.op == opLt}
	case opGt, opGe:
		g.Lo = End{b.value, true, b.op == opGt}
	case opIn:
		if len(b.list) == 0 {
			return nil
		}
		g.Lo, g.Hi = End{b.list[0], true, false}, End{b.list[len(b.list)-1], true, false}
	case opLike:
		if b.like == nil {
			return nil
		}
		return b.like.narrow(g)
	default:
		return nil
	}
	return g
}

// narrow makes a range of what every match begins with, where the order of the column keeps such texts together.
func (p *pattern) narrow(g *Range) *Range {
	prefix := p.prefix
	if g.Collation == row.RTrim {
		return nil
	}
	if p.fold && g.Collation != row.NoCase {
		for i := range len(prefix) {
			if prefix[i] >= 'a' && prefix[i] <= 'z' {
				prefix = prefix[:i]
				break
			}
		}
	}
	if prefix == "" {
		return nil
	}
	g.Lo = End{row.TextValue(prefix), true, false}
	next := []byte(prefix)
	for len(next) > 0 && next[len(next)-1] >= 0xfe {
		next = next[:len(next)-1]
	}
	if len(next) > 0 {
		next[len(next)-1]++
		g.Hi = End{row.TextValue(string(next)), true, true}
	}
	return g
}

func (g *Range) intersect(o *Range) {
	if o.Lo.Set {
		c := 1
		if g.Lo.Set {
			c = row.Compare(o.Lo.Value, g.Lo.Value, g.Collation)
		}
		if c > 0 || c == 0 && o.Lo.Open {
			g.Lo = o.Lo
		}
	}
	if o.Hi.Set {
		c := -1
		if g.Hi.Set {
			c = row.Compare(o.Hi.Value, g.Hi.Value, g.Collation)
		}
		if c < 0 || c == 0 && o.Hi.Open {
			g.Hi = o.Hi
		}
	}
}
