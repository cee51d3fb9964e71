package query

import (
	"encoding/json"
	"slices"

	"github.com/tidewire/tidewire/row"
)

// Predicate is the JSON of a compiled predicate, for clients that match rows of their own before the server has seen them.
//
// Where is a tree in negation normal form. A node has an op:
//
//   - and, or: args.
//   - const: value is true, false or null.
//   - param, not param: a boolean parameter; param is null, param is not null: a parameter, by its name in param.
//   - true, false, is null, is not null: column.
//   - =, <>, <, <=, >, >=, is distinct, is not distinct: column with value, {"param": name}, or other (a column).
//   - in, not in: column with values, a list of {"value"} or {"param"}; or with list, the name of a parameter that is a list.
//   - like, not like: column with value or param (the pattern), escape (absent: none), fold (the case of ASCII letters does not count).
//
// A node with exact false cannot be decided by a client, and a node with an $actor parameter neither: both count as true. Values and
// parameters have the form of [row.AppendJSON] for their column; a decimal beside an int is a string, and values for SQLite have the form of a column that
// holds anything. In SQLite parameters are converted by the affinity of the column before they are compared.
type Predicate struct {
	Engine  string                     `json:"engine"`
	Columns map[string]PredicateColumn `json:"columns"`
	Where   *PredicateNode             `json:"where"`
}

// PredicateColumn is a column that a predicate touches.
type PredicateColumn struct {
	Type      string   `json:"type"`
	Collation string   `json:"collation,omitempty"` // of text and of SQLite; absent means c
	Affinity  string   `json:"affinity,omitempty"`  // text, numeric, integer, real
	Labels    []string `json:"labels,omitempty"`    // of an enum, in their order
	Bits      int      `json:"bits,omitempty"`      // 32: cells and parameters are rounded to that (Math.fround), literals are not
}

// PredicateNode is one node of the tree.
type PredicateNode struct {
	Op     string           `json:"op"`
	Args   []*PredicateNode `json:"args,omitempty"`
	Column string           `json:"column,omitempty"`
	Other  string           `json:"other,omitempty"`
	Value  json.RawMessage  `json:"value,omitempty"`
	Param  string           `json:"param,omitempty"`
	Values []PredicateValue `json:"values,omitempty"`
	List   string           `json:"list,omitempty"`
	Escape string           `json:"escape,omitempty"`
	Fold   bool             `json:"fold,omitempty"`
	Exact  *bool            `json:"exact,omitempty"` // absent means true
}

// PredicateValue is a value or the name of a parameter.
type PredicateValue struct {
	Value json.RawMessage `json:"value,omitempty"`
	Param string          `json:"param,omitempty"`
}

var affinityNames = [...]string{"", "text", "numeric", "integer", "real"}

// Predicate returns the predicate for clients.
func (q *Query) Predicate() *Predicate {
	p := &Predicate{Engine: q.Table.Engine.String(), Columns: map[string]PredicateColumn{}}
	for i, c := range q.Table.Columns {
		if !q.Filter.Has(i) {
			continue
		}
		out := PredicateColumn{Type: c.Type.Kind.String(), Affinity: affinityNames[c.Type.Affinity], Labels: c.Type.Labels}
		if c.Type.Collation != row.C {
			out.Collation = c.Type.Collation.String()
		}
		if c.Type.Kind == row.Float && c.Type.Bits == 32 {
			out.Bits = 32
		}
		p.Columns[c.Name] = out
	}
	p.Where = q.tree(q.where)
	return p
}

func (q *Query) tree(n *node) *PredicateNode {
	out := &PredicateNode{Op: opNames[n.op], Escape: n.escape, Fold: n.fold}
	for _, kid := range n.kids {
		out.Args = append(out.Args, q.tree(kid))
	}
	if !n.leaf() {
		return out
	}
	exact := n.exact
	if n.col >= 0 {
		c := q.Table.Columns[n.col]
		out.Column = c.Name
		// The JSON of such a cell does not tell text from what the text says.
		exact = exact && (c.Type.Kind != row.JSON || n.op == opIsNull || n.op == opNotNull)
	}
	if !exact {
		out.Exact = &exact
	}
	switch n.op {
	case opTrue, opFalse, opIsNull, opNotNull:
	case opIn, opNotIn:
		if n.byList {
			out.List = n.arg.param
		}
		for _, a := range n.list {
			v, param := a.json()
			out.Values = append(out.Values, PredicateValue{v, param})
		}
	default:
		if n.col2 >= 0 {
			out.Other = q.Table.Columns[n.col2].Name
		} else {
			out.Value, out.Param = n.arg.json()
		}
	}
	return out
}

func (a arg) json() (json.RawMessage, string) {
	if a.param != "" {
		return nil, a.param
	}
	t := a.typ
	t.Bits = 64
	if t.Engine == row.SQLite {
		t.Kind = row.Dynamic
	}
	return row.AppendJSON(nil, t, a.value), ""
}

// Explain names the leaves of the predicate that did not hold for a row, as SQL-like text with columns and operators and without values.
func (b *Bound) Explain(r row.Row) []string {
	var out []string
	b.where.explain(b.Query.Table, r, &out)
	slices.Sort(out)
	return slices.Compact(out)
}

func (b *bound) explain(t *row.Table, r row.Row, out *[]string) {
	truth := b.eval(r)
	if truth == True {
		return
	}
	for _, k := range b.kids {
		k.explain(t, r, out)
	}
	if b.op <= opOr {
		return
	}
	name := opNames[b.op]
	if b.col >= 0 {
		name = t.Columns[b.col].Name + " " + name
	}
	*out = append(*out, name+" is "+truth.String())
}
