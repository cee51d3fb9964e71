package query

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tidewire/tidewire/row"
)

// Statement is SQL with its arguments. For PostgreSQL the parameters are $1 with a cast and the arguments are strings in text format or nil; for SQLite they are ?1 and
// int64, float64, string, []byte or nil.
type Statement struct {
	SQL  string
	Args []any
}

// Read says what of a result is read.
type Read struct {
	// Limit is the number of rows. Zero means the limit of the definition.
	Limit int
	// After reads only rows that stand after this one in the order of the query. Nil reads from the start. It needs a query that has an [Query.Order].
	After row.Row
}

// SQL returns the statement that reads rows of the query: every column of the table in the table's order, in the order of the query. For one query
// the text depends on Read and, for SQLite, on the length of lists only.
func (b *Bound) SQL(r Read) Statement {
	w := newWriter(b)
	w.read(r)
	return Statement{w.String(), w.args}
}

// Many is a statement that does the same read for many inputs.
type Many struct {
	// SQL selects the number of the input, from 1 on, and then what [Bound.SQL] selects, in the order of the numbers and, for each, of the query. Its first parameters are Shared; then comes for each of Args
	// an array of texts, whose n-th element is the argument of input number n.
	SQL    string
	Shared []any
	Args   []any
}

// Many returns the statement that reads the first rows of the query for this input and others: those of the same query whose Many has the same text, and thus the same Shared. The tests that look at parameters alone
// are decided here and not left to the database, as it must know them to choose an index. It is false where one statement for each is as good or better: for SQLite, without parameters, and where a LIKE with
// a pattern from the input is all that an index could serve, which takes a pattern that is known when the statement is planned.
func (b *Bound) Many(limit int) (m Many, ok bool) {
	q := b.Query
	if q.Table.Engine != row.PostgreSQL {
		return m, false
	}
	w := newWriter(b)
	w.many, w.row = true, "r."
	w.read(Read{Limit: limit})
	if len(w.each) == 0 || slices.Contains(w.casts, "") || w.pattern && slices.ContainsFunc(b.access, func(a Access) bool { return len(a.Columns) == 0 }) {
		return m, false
	}
	read := w.String()
	w.Reset()
	// The casts stand apart from the reads, so that each is done once, and the sorting makes the database leave them there.
	w.text("SELECT p.n, t.* FROM (SELECT u.n")
	for i, cast := range w.casts {
		a := strconv.Itoa(i + 1)
		w.text(", u.a", a, "::", cast, " AS a", a)
	}
	w.text(" FROM unnest(")
	for i := range w.each {
		if i > 0 {
			w.text(", ")
		}
		w.text("$", strconv.Itoa(len(w.args)+i+1), "::text[]")
	}
	w.text(") WITH ORDINALITY AS u(")
	for i := range w.each {
		w.text("a", strconv.Itoa(i+1), ", ")
	}
	w.text("n) ORDER BY u.n) AS p CROSS JOIN LATERAL (", read, ") AS t ORDER BY p.n, ")
	w.row = "t."
	w.order()
	return Many{w.String(), w.args, w.each}, true
}

func (w *writer) read(r Read) {
	q := w.q
	w.text("SELECT ")
	for i := range q.Table.Columns {
		if i > 0 {
			w.text(", ")
		}
		w.column(i)
	}
	w.text(" FROM ", quote(q.Table.Schema), ".", quote(q.Table.Identity().Table))
	if w.many { // so that no name of the table's hides one of the inputs', or is taken for one when it is gone
		w.text(" AS r")
	}
	w.text(" WHERE ")
	w.node(q.where)
	if r.After != nil {
		w.text(" AND ")
		w.after(r.After)
	}
	w.text(" ORDER BY ")
	w.order()
	if r.Limit == 0 {
		r.Limit = q.Definition.Limit
	}
	if r.Limit > 0 {
		w.text(" LIMIT ", strconv.Itoa(r.Limit))
	}
}

func (w *writer) order() {
	for i, k := range w.q.order {
		if i > 0 {
			w.text(", ")
		}
		w.key(k)
		if k.Desc {
			w.text(" DESC")
		}
		if k.NullsFirst {
			w.text(" NULLS FIRST")
		} else {
			w.text(" NULLS LAST")
		}
	}
}

// writer builds a statement.
type writer struct {
	strings.Builder
	q    *Query
	in   values
	row  string // what stands before a column
	args []any

	// Of [Bound.Many].
	many    bool
	each    []any    // the arguments that inputs differ in, p.a1 and so on
	casts   []string // of these
	pattern bool     // one of these is a pattern
}

func newWriter(b *Bound) *writer {
	in, _ := b.Input.values() // Bind has read them
	return &writer{q: b.Query, in: in}
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func (w *writer) text(parts ...string) {
	for _, p := range parts {
		w.WriteString(p)
	}
}

func (w *writer) column(i int) { w.text(w.row, quote(w.q.Table.Columns[i].Name)) }

// key writes the column of an order with its collation.
func (w *writer) key(k row.OrderKey) {
	w.column(k.Column)
	switch {
	case !k.Bytes:
	case w.q.Table.Engine == row.SQLite:
		w.text(" COLLATE BINARY")
	default:
		w.text(` COLLATE "C"`)
	}
}

// arg writes the value of an argument.
func (w *writer) arg(a arg) {
	v, _ := w.in.resolve(a) // Bind has seen that it resolves
	w.value(v, a.typ, a.param != "")
}

// value writes a parameter of the statement, cast to what stands beside a column of the type.
func (w *writer) value(v row.Value, t row.Type, input bool) {
	if w.q.Table.Engine == row.SQLite {
		w.args = append(w.args, sqliteArg(v))
		w.text("?", strconv.Itoa(len(w.args)))
		return
	}
	var a any
	if !v.IsNull() {
		a = string(row.AppendText(nil, v))
	}
	if t.Kind == row.Int && v.Kind() == row.Numeric {
		t = row.Type{Kind: row.Numeric}
	}
	w.cast(a, castName(t), input)
}

func (w *writer) cast(a any, name string, input bool) {
	if w.many && input {
		w.each, w.casts = append(w.each, a), append(w.casts, name)
		w.text("p.a", strconv.Itoa(len(w.each)))
		return
	}
	w.args = append(w.args, a)
	w.text("$", strconv.Itoa(len(w.args)))
	if name != "" {
		w.text("::", name)
	}
}

func sqliteArg(v row.Value) any {
	switch v.Kind() {
	case row.Null:
		return nil
	case row.Bool:
		return int64(bit(v.Bool()))
	case row.Int:
		return v.Int()
	case row.Float:
		return v.Float()
	case row.Bytes:
		return []byte(v.Text())
	}
	return v.String()
}

// castName is the widest type of the kind, so that nothing is rounded before it is compared.
func castName(t row.Type) string {
	switch t.Kind {
	case row.Bool:
		return "boolean"
	case row.Int:
		return "bigint"
	case row.Float:
		return "double precision"
	case row.Numeric:
		return "numeric"
	case row.Text:
		if t.Name == "character" {
			return "bpchar"
		}
		return "text"
	case row.UUID:
		return "uuid"
	case row.Timestamp:
		return "timestamp"
	case row.TimestampTZ:
		return "timestamptz"
	case row.Date:
		return "date"
	case row.Bytes:
		return "bytea"
	case row.JSON:
		return "jsonb"
	}
	return t.Name
}

func (w *writer) node(n *node) {
	if !n.leaf() {
		sep := " AND "
		if n.op == opOr {
			sep = " OR "
		}
		for i, kid := range n.kids {
			if i > 0 {
				w.text(sep)
			} else {
				w.text("(")
			}
			w.node(kid)
		}
		w.text(")")
		return
	}
	w.leaf(n)
}

func (w *writer) leaf(n *node) {
	if n.col >= 0 {
		if n.op == opFalse {
			w.text("NOT ")
		}
		w.column(n.col)
	}
	switch n.op {
	case opConst:
		w.truth(n.arg.value)
	case opParam, opNotParam:
		if n.op == opNotParam {
			w.text("NOT ")
		}
		v, _ := w.in.resolve(n.arg)
		if w.many {
			w.truth(v)
			return
		}
		w.value(v, row.Type{Kind: row.Bool}, true)
	case opParamNull, opParamGiven:
		var v row.Value
		if raw := string(w.in[n.arg.param]); raw != "null" {
			v = row.TextValue(raw)
		}
		if w.many {
			w.truth(row.BoolValue(v.IsNull() == (n.op == opParamNull)))
			return
		}
		w.value(v, row.Type{Kind: row.Text}, true)
		w.text(map[op]string{opParamNull: " IS NULL", opParamGiven: " IS NOT NULL"}[n.op])
	case opTrue, opFalse:
	case opIsNull:
		w.text(" IS NULL")
	case opNotNull:
		w.text(" IS NOT NULL")
	case opIn, opNotIn:
		w.inList(n)
	case opLike, opNotLike:
		w.like(n)
	default:
		w.text(map[op]string{
			opEq: " = ", opNe: " <> ", opLt: " < ", opLe: " <= ", opGt: " > ", opGe: " >= ", opNotDistinct: " IS NOT DISTINCT FROM ", opDistinct: " IS DISTINCT FROM ",
		}[n.op])
		if n.col2 >= 0 {
			w.column(n.col2)
			return
		}
		w.arg(n.arg)
	}
}

// truth writes a boolean, or NULL.
func (w *writer) truth(v row.Value) {
	w.text(map[bool]string{true: "NULL", false: strings.ToUpper(v.String())}[v.IsNull()])
}

func (w *writer) inList(n *node) {
	not := n.op == opNotIn
	var values []row.Value
	given := true
	if n.byList {
		values, given, _ = w.in.list(n.arg)
		if w.q.Table.Engine == row.PostgreSQL {
			w.text(map[bool]string{false: " = ANY(", true: " <> ALL("}[not])
			var a any
			if given {
				a = arrayText(values)
			}
			w.cast(a, castName(n.arg.typ)+"[]", true)
			w.text(")")
			return
		}
	}
	w.text(map[bool]string{false: " IN (", true: " NOT IN ("}[not])
	if !given {
		w.text("NULL")
	}
	for i, v := range values {
		if i > 0 {
			w.text(", ")
		}
		w.value(v, n.arg.typ, true)
	}
	for i, a := range n.list {
		if i > 0 {
			w.text(", ")
		}
		w.arg(a)
	}
	w.text(")")
}

// arrayText writes an array for PostgreSQL.
func arrayText(values []row.Value) string {
	b := []byte{'{'}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		if v.IsNull() {
			b = append(b, "NULL"...)
			continue
		}
		b = append(b, '"')
		b = append(b, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(v.String())...)
		b = append(b, '"')
	}
	return string(append(b, '}'))
}

func (w *writer) like(n *node) {
	if n.op == opNotLike {
		w.text(" NOT")
	}
	if n.fold && !n.sqlite {
		w.text(" ILIKE ")
	} else {
		w.text(" LIKE ")
	}
	w.pattern = w.pattern || n.arg.param != ""
	w.arg(n.arg)
	if n.sqlite && n.escape == "" || !n.sqlite && n.escape == `\` {
		return
	}
	w.text(" ESCAPE '", strings.ReplaceAll(n.escape, "'", "''"), "'")
}

// after writes that a row stands after another: greater in the first key, or equal in it and greater in the second, and so on. That the first key is not
// smaller follows, and is said where an index can begin there.
func (w *writer) after(r row.Row) {
	if k := w.q.order[0]; !r[k.Column].IsNull() && !w.nullsAfter(k) {
		w.key(k)
		w.text(map[bool]string{false: " >= ", true: " <= "}[k.Desc])
		w.value(r[k.Column], w.q.Table.Columns[k.Column].Type, false)
		w.text(" AND ")
	}
	w.text("(")
	for i := range w.q.order {
		if i > 0 {
			w.text(" OR ")
		}
		w.text("(")
		for _, k := range w.q.order[:i] {
			w.key(k)
			if v := r[k.Column]; v.IsNull() {
				w.text(" IS NULL")
			} else {
				w.text(" = ")
				w.value(v, w.q.Table.Columns[k.Column].Type, false)
			}
			w.text(" AND ")
		}
		w.beyond(w.q.order[i], r)
		w.text(")")
	}
	w.text(")")
}

// nullsAfter reports whether NULLs may stand after a value.
func (w *writer) nullsAfter(k row.OrderKey) bool {
	return !k.NullsFirst && !w.q.Table.Columns[k.Column].NotNull
}

// beyond writes that one key stands after that of a row.
func (w *writer) beyond(k row.OrderKey, r row.Row) {
	v := r[k.Column]
	if v.IsNull() {
		if k.NullsFirst {
			w.column(k.Column)
			w.text(" IS NOT NULL")
		} else {
			w.text("FALSE")
		}
		return
	}
	if w.nullsAfter(k) {
		w.text("(")
	}
	w.key(k)
	w.text(map[bool]string{false: " > ", true: " < "}[k.Desc])
	w.value(v, w.q.Table.Columns[k.Column].Type, false)
	if w.nullsAfter(k) {
		w.text(" OR ")
		w.column(k.Column)
		w.text(" IS NULL)")
	}
}
