package query

import (
	"fmt"
	"strings"
)

// Bounds of a definition.
const (
	maxText   = 64 << 10 // bytes of a where or an order
	maxNested = 64       // parentheses and NOTs within each other
	maxLeaves = 1024     // comparisons, and values of all lists
)

// The tree of a where as it is written: positions are kept, types are not known yet.
type (
	expr interface{}

	logical struct { // AND, OR, NOT
		op   string
		args []expr
	}
	// test is left op args, or left alone when op is empty.
	test struct {
		left   operand
		op     string // = <> < <= > >= in like ilike null distinct
		not    bool
		args   []operand
		list   bool // args is one parameter that is a list
		escape *string
		pos    int
	}
	operand struct {
		kind operandKind
		text string // column, parameter or the text of a literal
		typ  string // of a typed literal, in lower case
		bare bool   // a column without quotes
		pos  int
	}
	operandKind uint8
)

const (
	isColumn operandKind = iota
	isParam
	isNumber
	isString
	isTyped
	isTrue
	isFalse
	isNull
)

// SyntaxError says where a definition is wrong. It wraps [ErrDefinition].
type SyntaxError struct {
	Part string // where, visible or order
	Pos  int    // byte, from 1
	Text string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("query: %s at %d: %s", e.Part, e.Pos, e.Text)
}

// Unwrap makes the error one of [ErrDefinition].
func (e *SyntaxError) Unwrap() error { return ErrDefinition }

type parser struct {
	part   string
	tokens []token
	at     int
	depth  int
	leaves int
}

// fail is how the parser leaves; parse recovers it.
func (p *parser) fail(pos int, format string, args ...any) {
	panic(&SyntaxError{p.part, pos + 1, fmt.Sprintf(format, args...)})
}

func catch(err *error) {
	switch e := recover().(type) {
	case nil:
	case *SyntaxError:
		*err = e
	default:
		panic(e)
	}
}

func parseWhere(part, text string) (e expr, err error) {
	defer catch(&err)
	p := &parser{part: part}
	p.lex(text)
	e = p.or()
	if t := p.peek(); t.kind != tokEnd {
		p.fail(t.pos, "expected AND, OR or the end, not %s", t)
	}
	return e, nil
}

// orderItem is one key of an order as it is written.
type orderItem struct {
	column operand
	desc   bool
	nulls  string // first, last or empty
	bytes  bool
	pos    int
}

func parseOrder(text string) (items []orderItem, err error) {
	defer catch(&err)
	p := &parser{part: "order"}
	p.lex(text)
	for p.peek().kind != tokEnd {
		if len(items) > 0 {
			p.expect(",")
		}
		it := orderItem{pos: p.peek().pos}
		if it.column = p.operand(); it.column.kind != isColumn {
			p.fail(it.pos, "an order is made of columns")
		}
		if p.accept("collate") {
			t := p.next()
			name := strings.ToUpper(t.text)
			if t.kind != tokWord && t.kind != tokQuoted || name != "C" && name != "BINARY" {
				p.fail(t.pos, `the collations of an order are "C" (PostgreSQL) and BINARY (SQLite)`)
			}
			it.bytes = true
		}
		if it.desc = p.accept("desc"); !it.desc {
			p.accept("asc")
		}
		if p.accept("nulls") {
			switch t := p.next(); {
			case t.is("first"), t.is("last"):
				it.nulls = strings.ToLower(t.text)
			default:
				p.fail(t.pos, "expected FIRST or LAST, not %s", t)
			}
		}
		items = append(items, it)
	}
	return items, nil
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEnd {
		p.at++
	}
	return t
}

func (p *parser) accept(s string) bool {
	ok := p.peek().is(s)
	if ok {
		p.at++
	}
	return ok
}

func (p *parser) expect(s string) {
	if t := p.peek(); !p.accept(s) {
		p.fail(t.pos, "expected %s, not %s", strings.ToUpper(s), t)
	}
}

func (p *parser) or() expr { return p.joined("or", p.and) }

func (p *parser) and() expr { return p.joined("and", p.not) }

func (p *parser) joined(op string, item func() expr) expr {
	args := []expr{item()}
	for p.accept(op) {
		args = append(args, item())
	}
	if len(args) == 1 {
		return args[0]
	}
	return logical{op, args}
}

func (p *parser) not() expr {
	t := p.peek()
	switch {
	case p.accept("not"):
		p.enter(t.pos)
		e := p.not()
		p.depth--
		return logical{"not", []expr{e}}
	case p.accept("("):
		p.enter(t.pos)
		e := p.or()
		p.depth--
		p.expect(")")
		return e
	}
	return p.test()
}

func (p *parser) enter(pos int) {
	if p.depth++; p.depth > maxNested {
		p.fail(pos, "more than %d levels", maxNested)
	}
}

func (p *parser) count(pos int) {
	if p.leaves++; p.leaves > maxLeaves {
		p.fail(pos, "more than %d comparisons and values", maxLeaves)
	}
}

func (p *parser) test() expr {
	e := test{left: p.operand(), pos: p.peek().pos}
	p.count(e.pos)
	t := p.next()
	if t.kind == tokSymbol {
		switch t.text {
		case "=", "<>", "<", "<=", ">", ">=":
			e.op = t.text
		case "!=":
			e.op = "<>"
		}
		if e.op != "" {
			if e.op == "=" && p.accept("any") {
				p.expect("(")
				e.op, e.list = "in", true
				e.args = []operand{p.param()}
				p.expect(")")
				return e
			}
			e.args = []operand{p.operand()}
			return e
		}
	}
	if t.is("not") {
		e.not = true
		t = p.next()
		if !t.is("in") && !t.is("between") && !t.is("like") && !t.is("ilike") {
			p.fail(t.pos, "expected IN, BETWEEN, LIKE or ILIKE after NOT, not %s", t)
		}
	}
	switch {
	case t.is("in"):
		return p.in(e)
	case t.is("between"):
		e.op = "between"
		e.args = []operand{p.operand()}
		p.expect("and")
		e.args = append(e.args, p.operand())
		p.count(t.pos)
		return e
	case t.is("like"), t.is("ilike"):
		e.op = strings.ToLower(t.text)
		e.args = []operand{p.operand()}
		if p.accept("escape") {
			t := p.next()
			if t.kind != tokString {
				p.fail(t.pos, "ESCAPE takes a 'character', not %s", t)
			}
			e.escape = &t.text
		}
		return e
	case t.is("is"):
		e.not = p.accept("not")
		switch t := p.next(); {
		case t.is("null"):
			e.op = "null"
		case t.is("distinct"):
			p.expect("from")
			e.op = "distinct"
			e.args = []operand{p.operand()}
		default:
			p.fail(t.pos, "expected NULL or DISTINCT FROM, not %s", t)
		}
		return e
	}
	if t.kind == tokSymbol && t.text != ")" {
		p.fail(t.pos, "operator %s is not in the subset", t)
	}
	if t.kind != tokEnd {
		p.at--
	}
	return e // a boolean
}

func (p *parser) in(e test) expr {
	e.op = "in"
	if t := p.peek(); t.kind == tokParam {
		e.list = true
		e.args = []operand{p.param()}
		return e
	}
	p.expect("(")
	for {
		e.args = append(e.args, p.operand())
		p.count(e.pos)
		if p.accept(")") {
			return e
		}
		p.expect(",")
	}
}

func (p *parser) param() operand {
	t := p.next()
	if t.kind != tokParam {
		p.fail(t.pos, "expected a $parameter that is a list, not %s", t)
	}
	return operand{kind: isParam, text: t.text, pos: t.pos}
}

// reserved words are no columns unless quoted.
var reserved = map[string]bool{
	"and": true, "or": true, "not": true, "in": true, "between": true, "like": true, "ilike": true, "is": true, "escape": true, "collate": true, "any": true,
	"select": true, "from": true, "where": true, "case": true, "cast": true, "exists": true, "asc": true, "desc": true,
}

func (p *parser) operand() operand {
	t := p.next()
	o := operand{text: t.text, pos: t.pos}
	switch t.kind {
	case tokParam:
		o.kind = isParam
	case tokNumber:
		o.kind = isNumber
	case tokString:
		o.kind = isString
		if p.accept("::") {
			o.kind, o.typ = isTyped, p.typeName()
		}
	case tokQuoted:
		o.kind = isColumn
	case tokWord:
		return p.word(t, o)
	default:
		if (t.is("-") || t.is("+")) && p.peek().kind == tokNumber {
			o.kind = isNumber
			o.text = strings.TrimPrefix(t.text+p.next().text, "+")
			return o
		}
		p.fail(t.pos, "expected a column, a $parameter or a literal, not %s", t)
	}
	return o
}

func (p *parser) word(t token, o operand) operand {
	lower := strings.ToLower(t.text)
	switch {
	case lower == "true":
		o.kind = isTrue
	case lower == "false":
		o.kind = isFalse
	case lower == "null":
		o.kind = isNull
	case reserved[lower]:
		p.fail(t.pos, "expected a column, a $parameter or a literal, not %s", t)
	case p.peek().kind == tokString:
		if typeKinds[lower] == 0 {
			p.fail(t.pos, "%s is not a type of literals", t)
		}
		o.kind, o.typ, o.text = isTyped, lower, p.next().text
	case p.peek().is("("):
		p.fail(t.pos, "function %s is not in the subset", t)
	case p.peek().is("."):
		p.fail(t.pos, "columns are named without their table")
	default:
		o.kind, o.bare = isColumn, true
	}
	return o
}

// typeName reads what follows :: .
func (p *parser) typeName() string {
	t := p.next()
	name := strings.ToLower(t.text)
	if t.kind == tokWord && name == "double" {
		p.expect("precision")
	} else if t.kind != tokWord || typeKinds[name] == 0 {
		p.fail(t.pos, "%s is not a type of literals", t)
	}
	return name
}
