package query

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tidewire/tidewire/row"
)

// Truth is a value of three-valued logic. AND is the minimum and OR the maximum.
type Truth int8

// The values. Only True admits a row.
const (
	False Truth = iota
	Unknown
	True
)

func (t Truth) String() string { return [...]string{"false", "unknown", "true"}[t] }

func truth(b bool) Truth {
	if b {
		return True
	}
	return False
}

// Bound is a query with its parameters. It is not changed after Bind and may be used concurrently.
type Bound struct {
	Query *Query
	Input Input

	where  *bound
	access []Access
}

// bound is a node with its values.
type bound struct {
	op      op
	exact   bool
	collate row.Collation
	col     int
	col2    int
	value   row.Value
	list    []row.Value // sorted, without NULL
	null    bool        // the list has a NULL
	known   Truth       // of opConst
	like    *pattern
	kids    []*bound
	boolean bool // the column holds Bool values
}

// Bind gives a query its parameters. An input that the predicate cannot take is an error that wraps [ErrInput].
func (q *Query) Bind(in Input) (*Bound, error) {
	b := &Bound{Query: q, Input: in}
	leaves := map[*node]*bound{}
	values, err := in.values()
	if err != nil {
		return nil, err
	}
	if b.where, err = values.bind(q.where, leaves); err != nil {
		return nil, err
	}
	b.access = q.buildAccess(leaves)
	return b, nil
}

func (in values) bind(n *node, leaves map[*node]*bound) (b *bound, err error) {
	b = &bound{op: n.op, exact: n.exact, collate: n.collate, col: n.col, col2: n.col2}
	for _, kid := range n.kids {
		k, err := in.bind(kid, leaves)
		if err != nil {
			return nil, err
		}
		b.kids = append(b.kids, k)
	}
	if !n.leaf() {
		return b, nil
	}
	leaves[n] = b
	b.boolean = !n.sqlite
	switch n.op {
	case opIn, opNotIn:
		return b, in.bindList(n, b)
	case opParamNull, opParamGiven:
		null := string(in[n.arg.param]) == "null"
		b.op, b.known = opConst, truth(null == (n.op == opParamNull))
		return b, nil
	}
	if n.col2 < 0 {
		if b.value, err = in.resolve(n.arg); err != nil {
			return nil, err
		}
	}
	null := b.value.IsNull() && n.col2 < 0
	switch n.op {
	case opConst, opParam, opNotParam:
		b.op, b.known = opConst, Unknown
		if !null {
			b.known = truth(b.value.Bool() != (n.op == opNotParam))
		}
	case opEq, opNe, opLt, opLe, opGt, opGe:
		if null {
			b.op, b.known = opConst, Unknown
		}
	case opNotDistinct, opDistinct:
		if null {
			b.op = opIsNull
			if n.op == opDistinct {
				b.op = opNotNull
			}
		}
	case opLike, opNotLike:
		if null {
			if !n.sqlite {
				b.op, b.known = opConst, Unknown
			}
			break
		}
		if b.like, err = newPattern(b.value.Text(), n.escape, n.fold); err != nil {
			return nil, fmt.Errorf("%w: parameter %s: %w", ErrInput, n.arg.param, err)
		}
		b.like.cut = n.sqlite
	}
	return b, nil
}

func (in values) bindList(n *node, b *bound) error {
	var values []row.Value
	if n.byList {
		list, given, err := in.list(n.arg)
		if err != nil {
			return err
		}
		if !given {
			b.op, b.known = opConst, Unknown
			return nil
		}
		values = list
	} else {
		for _, a := range n.list {
			v, err := in.resolve(a)
			if err != nil {
				return err
			}
			values = append(values, v)
		}
	}
	for _, v := range values {
		if v.IsNull() {
			b.null = true
		} else {
			b.list = append(b.list, v)
		}
	}
	compare := func(x, y row.Value) int { return row.Compare(x, y, n.collate) }
	slices.SortFunc(b.list, compare)
	b.list = slices.CompactFunc(b.list, func(x, y row.Value) bool { return compare(x, y) == 0 })
	if len(values) == 0 { // whatever the row is, a NULL too
		b.op, b.known = opConst, truth(n.op == opNotIn)
	}
	return nil
}

// Match evaluates the predicate on a row, which must be complete in [Query.Filter]. When the class is Rerun because of the predicate, what cannot be
// decided is taken for true, so that True means may match and anything else does not match. It allocates nothing.
func (b *Bound) Match(r row.Row) Truth { return b.where.eval(r) }

func (b *bound) eval(r row.Row) Truth {
	switch b.op {
	case opAnd:
		out := True
		for _, k := range b.kids {
			if out = min(out, k.eval(r)); out == False {
				break
			}
		}
		return out
	case opOr:
		out := False
		for _, k := range b.kids {
			if out = max(out, k.eval(r)); out == True {
				break
			}
		}
		return out
	case opConst:
		return b.known
	}
	if !b.exact {
		return True
	}
	v := &r[b.col]
	if v.IsNull() {
		return b.evalNull(r)
	}
	switch b.op {
	case opIsNull:
		return False
	case opNotNull:
		return True
	case opTrue:
		return truth(truthy(*v))
	case opFalse:
		return truth(!truthy(*v))
	case opIn, opNotIn:
		return b.evalList(*v)
	case opLike, opNotLike:
		if b.like == nil && v.Kind() != row.Bytes {
			return Unknown
		}
		// A blob in a text column of SQLite matches no pattern, NULL included.
		return truth((v.Kind() == row.Text && b.like.match(v.Text())) == (b.op == opLike))
	}
	other := &b.value
	if b.col2 >= 0 {
		if other = &r[b.col2]; other.IsNull() {
			switch b.op {
			case opDistinct:
				return True
			case opNotDistinct:
				return False
			}
			return Unknown
		}
	}
	if *v == *other {
		return truth(b.op == opEq || b.op == opLe || b.op == opGe || b.op == opNotDistinct)
	}
	c := row.Compare(*v, *other, b.collate)
	switch b.op {
	case opEq, opNotDistinct:
		return truth(c == 0)
	case opNe, opDistinct:
		return truth(c != 0)
	case opLt:
		return truth(c < 0)
	case opLe:
		return truth(c <= 0)
	case opGt:
		return truth(c > 0)
	}
	return truth(c >= 0)
}

// evalNull is a leaf whose column is NULL.
func (b *bound) evalNull(r row.Row) Truth {
	switch b.op {
	case opIsNull:
		return True
	case opNotNull:
		return False
	case opDistinct:
		return truth(b.col2 < 0 || !r[b.col2].IsNull())
	case opNotDistinct:
		return truth(b.col2 >= 0 && r[b.col2].IsNull())
	}
	return Unknown
}

func (b *bound) evalList(v row.Value) Truth {
	found := false
	if len(b.list) <= 8 {
		for i := range b.list {
			if row.Compare(v, b.list[i], b.collate) == 0 {
				found = true
				break
			}
		}
	} else {
		lo, hi := 0, len(b.list)
		for lo < hi && !found {
			mid := (lo + hi) / 2
			switch c := row.Compare(v, b.list[mid], b.collate); {
			case c == 0:
				found = true
			case c < 0:
				hi = mid
			default:
				lo = mid + 1
			}
		}
	}
	switch {
	case found:
		return truth(b.op == opIn)
	case b.null:
		return Unknown
	}
	return truth(b.op == opNotIn)
}

// truthy is what SQLite takes for true: a number that is not zero, or a text or blob that begins with one.
func truthy(v row.Value) bool {
	switch v.Kind() {
	case row.Bool:
		return v.Bool()
	case row.Int:
		return v.Int() != 0
	case row.Float:
		return v.Float() != 0
	}
	s := strings.TrimLeft(v.Text(), " \t\n\v\f\r")
	sign := len(s) > 0 && (s[0] == '-' || s[0] == '+')
	f, _ := strconv.ParseFloat(s[bit(sign):number(s, bit(sign))], 64)
	return f != 0
}
