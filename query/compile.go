package query

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidewire/tidewire/row"
)

type op uint8

const (
	opAnd op = iota
	opOr
	opConst       // arg
	opParam       // a boolean parameter
	opNotParam    // its negation
	opParamNull   // a parameter is NULL
	opParamGiven  // a parameter is not NULL
	opTrue        // a boolean column
	opFalse       // its negation
	opEq          // col with arg, or with col2
	opNe          //
	opLt          //
	opLe          //
	opGt          //
	opGe          //
	opNotDistinct //
	opDistinct    //
	opIn          // col with list, or with arg, which is a list
	opNotIn       //
	opIsNull      //
	opNotNull     //
	opLike        // col with arg
	opNotLike     //
)

var opNames = [...]string{
	"and", "or", "const", "param", "not param", "param is null", "param is not null", "true", "false", "=", "<>", "<", "<=", ">", ">=", "is not distinct", "is distinct", "in", "not in",
	"is null", "is not null", "like", "not like",
}

// negated is the operation that is true where the other is false, and unknown where it is unknown.
func (o op) negated() op {
	switch o {
	case opLt:
		return opGe
	case opGe:
		return opLt
	case opGt:
		return opLe
	case opLe:
		return opGt
	}
	for _, pair := range [][2]op{
		{opAnd, opOr},
		{opParam, opNotParam},
		{opParamNull, opParamGiven},
		{opTrue, opFalse},
		{opEq, opNe},
		{opNotDistinct, opDistinct},
		{opIn, opNotIn},
		{opIsNull, opNotNull},
		{opLike, opNotLike},
	} {
		switch o {
		case pair[0]:
			return pair[1]
		case pair[1]:
			return pair[0]
		}
	}
	return o
}

// flipped is the operation with its sides exchanged.
func (o op) flipped() op {
	switch o {
	case opLt:
		return opGt
	case opGt:
		return opLt
	case opLe:
		return opGe
	case opGe:
		return opLe
	}
	return o
}

// node is a predicate in negation normal form: AND, OR and leaves.
type node struct {
	op      op
	kids    []*node
	col     int
	col2    int // -1 when the other side is no column
	arg     arg
	list    []arg  // of IN
	byList  bool   // arg is a parameter that is a list
	escape  string // of LIKE; empty means none
	fold    bool   // LIKE ignores case
	exact   bool   // the leaf can be matched here
	sqlite  bool
	collate row.Collation
}

// arg is a constant, or a parameter as a value for the type.
type arg struct {
	param string
	value row.Value
	typ   row.Type
}

// leaf reports whether the node is one.
func (n *node) leaf() bool { return n.op > opOr }

func conjunction(parts []*node) *node {
	switch len(parts) {
	case 0:
		return &node{op: opConst, arg: arg{value: row.BoolValue(true)}, exact: true, col: -1, col2: -1}
	case 1:
		return parts[0]
	}
	return &node{op: opAnd, kids: parts}
}

// param is a parameter with what is known of it.
type param struct {
	name  string
	spec  Param
	typ   row.Type
	known bool // typ is
	list  bool
	used  bool
}

type compiler struct {
	q       *Query
	part    string
	inexact []string
}

func (c *compiler) fail(pos int, format string, args ...any) {
	panic(&SyntaxError{c.part, pos + 1, fmt.Sprintf(format, args...)})
}

func (c *compiler) predicate(part, text string) (n *node, err error) {
	e, err := parseWhere(part, text)
	if err != nil {
		return nil, err
	}
	defer catch(&err)
	c.part = part
	return c.node(e, false), nil
}

// column finds a column as its engine does: PostgreSQL takes bare names in lower case, SQLite takes all names without regard to case.
func (c *compiler) column(o operand, part string) (int, error) {
	t := c.q.Table
	name := o.text
	if o.bare && t.Engine == row.PostgreSQL {
		name = strings.ToLower(name)
	}
	i := t.Column(name)
	if i < 0 && t.Engine == row.SQLite {
		i = slices.IndexFunc(t.Columns, func(col row.Column) bool { return strings.EqualFold(col.Name, name) })
	}
	if i < 0 {
		return i, &SyntaxError{part, o.pos + 1, fmt.Sprintf("table %s has no column %q", t.Name, name)}
	}
	return i, nil
}

func (c *compiler) use(o operand) int {
	i, err := c.column(o, c.part)
	if err != nil {
		panic(err)
	}
	c.q.Reads, c.q.Filter = c.q.Reads.With(i), c.q.Filter.With(i)
	return i
}

func (c *compiler) typ(col int) row.Type { return c.q.Table.Columns[col].Type }

func (c *compiler) node(e expr, not bool) *node {
	l, ok := e.(logical)
	if !ok {
		return c.test(e.(test), not)
	}
	if l.op == "not" {
		return c.node(l.args[0], !not)
	}
	n := &node{op: opAnd}
	if (l.op == "or") != not {
		n.op = opOr
	}
	for _, a := range l.args {
		kid := c.node(a, not)
		if kid.op == n.op {
			n.kids = append(n.kids, kid.kids...)
		} else {
			n.kids = append(n.kids, kid)
		}
	}
	return n
}

func (c *compiler) test(t test, not bool) *node {
	not = not != t.not
	switch t.op {
	case "":
		return c.boolean(t, not)
	case "null":
		return c.null(t, not)
	case "between":
		return c.between(t, not)
	case "in":
		return c.in(t, not)
	case "like", "ilike":
		return c.like(t, not)
	case "distinct":
		if o := t.args[0]; c.q.Table.Engine == row.SQLite && (o.kind == isTrue || o.kind == isFalse) {
			c.fail(o.pos, "SQLite reads this as a test of truth: write 1 or 0")
		}
	}
	o := map[string]op{"=": opEq, "<>": opNe, "<": opLt, "<=": opLe, ">": opGt, ">=": opGe, "distinct": opDistinct}[t.op]
	if not {
		o = o.negated()
	}
	return c.compare(t.left, o, t.args[0])
}

func (c *compiler) leaf(o op) *node {
	return &node{op: o, col: -1, col2: -1, exact: true, sqlite: c.q.Table.Engine == row.SQLite}
}

// rerun marks a leaf as one that the database alone can decide.
func (c *compiler) rerun(n *node, format string, args ...any) *node {
	n.exact = false
	c.inexact = append(c.inexact, c.part+": "+fmt.Sprintf(format, args...))
	return n
}

// boolean is an operand that stands alone.
func (c *compiler) boolean(t test, not bool) *node {
	o := t.left
	flip := func(n *node) *node {
		if not {
			n.op = n.op.negated()
		}
		return n
	}
	switch o.kind {
	case isTrue, isFalse:
		n := c.leaf(opConst)
		n.arg.value = row.BoolValue((o.kind == isTrue) != not)
		return n
	case isNull:
		return c.leaf(opConst)
	case isParam:
		n := c.leaf(opParam)
		n.arg = c.param(o, row.Type{Kind: row.Bool}, false)
		return flip(n)
	case isColumn:
		n := c.leaf(opTrue)
		n.col = c.use(o)
		if typ := c.typ(n.col); typ.Engine == row.PostgreSQL && typ.Kind != row.Bool {
			c.fail(o.pos, "column %s is %s, not boolean", o.text, typ.Kind)
		}
		return flip(n)
	}
	c.fail(o.pos, "expected a comparison or a boolean")
	return nil
}

func (c *compiler) null(t test, not bool) *node {
	n := c.leaf(opIsNull)
	switch t.left.kind {
	case isColumn:
		n.col = c.use(t.left)
	case isParam:
		n.op = opParamNull
		n.arg = c.param(t.left, row.Type{}, false)
	default:
		c.fail(t.left.pos, "IS NULL of a literal")
	}
	if not {
		n.op = n.op.negated()
	}
	return n
}

func (c *compiler) between(t test, not bool) *node {
	lo, hi := opGe, opLe
	n := &node{op: opAnd}
	if not {
		lo, hi, n.op = lo.negated(), hi.negated(), opOr
	}
	n.kids = []*node{c.compare(t.left, lo, t.args[0]), c.compare(t.left, hi, t.args[1])}
	return n
}

func (c *compiler) in(t test, not bool) *node {
	n := c.leaf(opIn)
	if not {
		n.op = opNotIn
	}
	byColumn := t.left.kind != isColumn || slices.ContainsFunc(t.args, func(o operand) bool { return o.kind == isColumn })
	if t.list {
		if t.left.kind != isColumn {
			c.fail(t.left.pos, "a list is compared with a column")
		}
		n.byList = true
	}
	if byColumn { // x IN (a, 1) is x = a OR x = 1
		o := opEq
		n = &node{op: opOr}
		if not {
			o, n.op = opNe, opAnd
		}
		for _, a := range t.args {
			n.kids = append(n.kids, c.compare(t.left, o, a))
		}
		if len(n.kids) == 1 {
			return n.kids[0]
		}
		return n
	}
	n.col = c.use(t.left)
	typ := c.typ(n.col)
	n.collate = typ.Collation
	if n.byList {
		n.arg = c.param(t.args[0], typ, true)
	} else {
		for _, a := range t.args {
			if typ.Kind == row.Float && typ.Bits == 32 && len(t.args) > 1 && a.kind == isNumber {
				a.kind = isString // PostgreSQL makes the values of a list real, and one alone double precision
			}
			n.list = append(n.list, c.arg(a, typ))
		}
	}
	if err := typ.Equatable(); err != nil {
		return c.rerun(n, "column %s: %v", t.left.text, err)
	}
	return n
}

// compare is one of the six comparisons or [NOT] DISTINCT, with a column on at least one side.
func (c *compiler) compare(left operand, o op, right operand) *node {
	if left.kind != isColumn {
		if right.kind != isColumn {
			c.fail(left.pos, "a comparison needs a column")
		}
		left, right, o = right, left, o.flipped()
	}
	n := c.leaf(o)
	n.col = c.use(left)
	typ := c.typ(n.col)
	n.collate = typ.Collation
	if right.kind == isColumn {
		n.col2 = c.use(right)
		c.pair(n, left, right)
	} else {
		n.arg = c.arg(right, typ)
	}
	if !n.exact {
		return n
	}
	err := typ.Ordered()
	if o == opEq || o == opNe || o == opDistinct || o == opNotDistinct {
		err = typ.Equatable()
	}
	if err != nil {
		return c.rerun(n, "column %s: %v", left.text, err)
	}
	return n
}

// pair checks two columns that are compared.
func (c *compiler) pair(n *node, left, right operand) {
	a, b := c.typ(n.col), c.typ(n.col2)
	if a.Engine == row.SQLite {
		if a.Affinity != b.Affinity && !(a.Affinity.Number() && b.Affinity.Number()) {
			c.rerun(n, "columns %s and %s have different affinity, so one of them is converted", left.text, right.text)
		}
		return
	}
	number := func(t row.Type) bool { return t.Kind == row.Int || t.Kind == row.Float || t.Kind == row.Numeric }
	switch {
	case a.Kind == b.Kind && a.Kind != row.Enum && a.Kind != row.Text, a.Kind == row.Enum && b.Kind == row.Enum && a.Name == b.Name:
	case a.Kind == row.Text && b.Kind == row.Text:
		if a.Collation != b.Collation {
			c.rerun(n, "columns %s and %s are compared by rules of the database", left.text, right.text)
		}
	case number(a) && number(b):
		if a.Kind == row.Float || b.Kind == row.Float {
			c.rerun(n, "columns %s and %s: the database rounds one of them to float", left.text, right.text)
		}
	case a.Kind >= row.Timestamp && a.Kind <= row.Date && b.Kind >= row.Timestamp && b.Kind <= row.Date:
		c.rerun(n, "columns %s and %s: the comparison depends on the time zone of a session", left.text, right.text)
	default:
		c.fail(right.pos, "column %s is %s and %s is %s", left.text, a.Kind, right.text, b.Kind)
	}
}

func (c *compiler) like(t test, not bool) *node {
	n := c.leaf(opLike)
	if not {
		n.op = opNotLike
	}
	if t.left.kind != isColumn || t.args[0].kind == isColumn {
		c.fail(t.left.pos, "LIKE needs a column before it and a pattern after it")
	}
	n.col = c.use(t.left)
	typ := c.typ(n.col)
	n.collate = typ.Collation
	sqlite := typ.Engine == row.SQLite
	n.fold = sqlite || t.op == "ilike"
	switch {
	case sqlite && t.op == "ilike":
		c.fail(t.pos, "SQLite has no ILIKE: its LIKE ignores the case of ASCII letters")
	case !sqlite && typ.Kind != row.Text:
		c.fail(t.pos, "column %s is %s, not text", t.left.text, typ.Kind)
	}
	if !sqlite {
		n.escape = `\`
	}
	if t.escape != nil {
		n.escape = *t.escape
		if utf8.RuneCountInString(n.escape) > 1 || sqlite && n.escape == "" || n.escape == "%" || n.escape == "_" {
			c.fail(t.pos, "ESCAPE takes one character that is no wildcard")
		}
	}
	if o := t.args[0]; o.kind == isParam {
		n.arg = c.param(o, row.Type{Kind: row.Text}, false)
	} else if o.kind == isString {
		n.arg = arg{value: row.TextValue(o.text), typ: row.Type{Kind: row.Text}}
		if _, err := newPattern(o.text, n.escape, n.fold); err != nil {
			c.fail(o.pos, "%v", err)
		}
	} else if o.kind != isNull {
		c.fail(o.pos, "a pattern is a text")
	}
	switch {
	case sqlite && typ.Affinity != row.AffinityText:
		return c.rerun(n, "column %s: LIKE makes a text of what is not one", t.left.text)
	case sqlite:
	case typ.Collation == row.RTrim || typ.Collation == row.Custom:
		return c.rerun(n, "column %s: LIKE under collation %s", t.left.text, typ.Collation)
	case n.fold && typ.Collation != row.C:
		return c.rerun(n, "column %s: ILIKE folds case by the locale of collation %s", t.left.text, typ.Collation)
	}
	return n
}
