package sqlite

import (
	"fmt"
	"strings"
)

// What the feed has in the file. It is plain SQL that every SQLite of the last ten years reads: one that cannot read a part of the schema cannot open the file.
const (
	prefix = "_tidewire_"

	// maxColumns is how wide a table can be: an entry of the log has the cells of two rows, and SQLite has 2000 columns at most.
	maxColumns = 990

	// slackReplaced is how many rows that were not replaced after all are kept.
	slackReplaced = 8

	feedSchema = `
-- One entry for each change, in the order of the changes. id begins with the time in microseconds at which the log was made, so that positions of an older log are
-- below. op: 0 a cut (nothing can be said of what was before; v0 is the reason), 1 insert (v0… is the row), 2 update (v0… is the old row, then the new one), 3 delete,
-- 4 replaced by the insert or update that follows (v0… is the row).
CREATE TABLE IF NOT EXISTS main._tidewire_changes (id INTEGER PRIMARY KEY, def INTEGER, op INTEGER, v0);

-- The tables that are followed. name is NULL when one no longer is. A def is never used again.
CREATE TABLE IF NOT EXISTS main._tidewire_tables (def INTEGER PRIMARY KEY, name TEXT);

-- How far the log was at a time (Unix seconds), and how many bytes since the mark before.
CREATE TABLE IF NOT EXISTS main._tidewire_marks (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, bytes INTEGER NOT NULL);

-- Rows that a statement is about to replace. moving is 1 for those that it is about to delete or to give another key, which are logged for that. All but empty.
CREATE TABLE IF NOT EXISTS main._tidewire_replaced (def INTEGER, moving INTEGER NOT NULL DEFAULT 0);
`
)

const (
	opCut = iota
	opInsert
	opUpdate
	opDelete
	opReplaced
)

// triggers are the triggers that follow a table under a number.
//
// # Replaced rows
//
// REPLACE removes rows and fires no trigger for them, unless the program turned recursive triggers on; and a trigger cannot see whether a statement may replace. So
// the rows that are in the way of a new one are put aside before (_tidewire_replaced), and after it those of them that are gone are logged. A row that was in the
// way and is still there afterwards (the insert was ignored, or became an update) stays aside until a few more have come.
//
// # Dropped columns
//
// SQLite refuses to drop a column that a trigger names. Each cell is therefore a subquery (SELECT OLD.x) below a query with a source of the name OLD, whose columns
// are all NULL: when the table has no column x any more, it is that source's. The triggers are made anew as soon as the change is seen, and nothing that was logged in
// between is used.
func (s *shape) triggers(def int64) map[string]string {
	b := triggerBuilder{s, def, quote(s.table.Table)}
	out := map[string]string{}
	add := func(name, when, guard string, body ...string) {
		name = fmt.Sprintf("%s%d_%s", prefix, def, name)
		out[name] = fmt.Sprintf("CREATE TRIGGER %s %s ON %s%s BEGIN\n%s;\nEND", name, when, b.name, guard, strings.Join(body, ";\n"))
	}
	put, gone := b.putAside(""), b.logReplaced(b.same("NEW", aside))
	add("before_insert", "BEFORE INSERT", b.inTheWay(""), put...)
	add("insert", "AFTER INSERT", "", append(gone, b.log(opInsert, "NEW"))...)

	others := "NOT " + b.same("OLD", b.name)
	put, gone = b.putAside(others), b.logReplaced("NOT "+b.same("OLD", aside)+" AND "+b.same("NEW", aside))
	moves := fmt.Sprintf("EXISTS (SELECT 1 FROM %s WHERE def = %d AND %s)", aside, def, b.same("OLD", aside))
	move := fmt.Sprintf("UPDATE %s SET moving = 1 WHERE def = %d AND %s", aside, def, b.same("OLD", aside))
	add("before_update", "BEFORE UPDATE"+b.ofKeys(), b.inTheWay(others)+" OR "+moves, append(put, move)...)
	add("update", "AFTER UPDATE", "", append(gone, b.follow(), b.log(opUpdate, "OLD", "NEW"))...)

	add("before_delete", "BEFORE DELETE", " WHEN "+moves, move)
	// What follows a replaced row by a foreign key may be the very row that is updated, whose trigger does not fire then.
	add("delete", "AFTER DELETE", "", append(b.logReplaced("0"), b.forget(b.same("OLD", aside)), b.log(opDelete, "OLD"))...)
	return out
}

const aside = "_tidewire_replaced"

type triggerBuilder struct {
	*shape
	def  int64
	name string // of the table, quoted
}

func (b triggerBuilder) column(i int) string { return quote(b.table.Columns[i].Name) }

// each joins what f says of every column.
func (b triggerBuilder) each(f func(i int, column string) string) string {
	var parts []string
	for i := range b.table.Columns {
		parts = append(parts, f(i, b.column(i)))
	}
	return strings.Join(parts, ", ")
}

func variables(first, n int) string {
	var parts []string
	for i := range n {
		parts = append(parts, fmt.Sprint("v", first+i))
	}
	return strings.Join(parts, ", ")
}

// nulls is a source of one row with a NULL for each column.
func (b triggerBuilder) nulls(alias string) string {
	return fmt.Sprintf("(SELECT %s FROM _tidewire_tables WHERE def = %d) AS %s", b.each(func(_ int, c string) string { return "NULL AS " + c }), b.def, alias)
}

// log logs the rows given.
func (b triggerBuilder) log(op int, rows ...string) string {
	var cells, sources []string
	for _, r := range rows {
		cells = append(cells, b.each(func(_ int, c string) string { return "(SELECT " + r + "." + c + ")" }))
		sources = append(sources, b.nulls(r))
	}
	return fmt.Sprintf("INSERT INTO _tidewire_changes (def, op, %s) SELECT %d, %d, %s FROM %s",
		variables(0, len(rows)*len(b.table.Columns)), b.def, op, strings.Join(cells, ", "), strings.Join(sources, ", "))
}

// same is the condition that a row (NEW, OLD, an alias or a table) has the key of another, or of one that was put aside.
func (b triggerBuilder) same(a, other string) string {
	var parts []string
	for _, o := range b.key {
		right := other + "." + b.column(o.column)
		if other == aside {
			right = fmt.Sprintf("%s.v%d", aside, o.column)
		}
		parts = append(parts, fmt.Sprintf("%s.%s = %s COLLATE %s", a, b.column(o.column), right, quote(o.collation)))
	}
	return "(" + strings.Join(parts, " AND ") + ")"
}

// conflicts are the conditions on rows of the table, one for each unique index, that they are in the way of NEW.
func (b triggerBuilder) conflicts() (out []string) {
	for _, u := range append([]unique{{operands: b.key}}, b.uniques...) {
		var parts []string
		for _, o := range u.operands {
			var left, right string
			if o.column < 0 {
				left = "(" + o.expr + "\n)"
				right = fmt.Sprintf("(SELECT %s FROM (SELECT %s) AS %s)", left, b.named(o.expr), b.name)
			} else {
				c := b.column(o.column)
				left, right = b.name+"."+c, "NEW."+c
				if d := b.defined[o.column]; d != "" && b.table.Columns[o.column].NotNull {
					right = fmt.Sprintf("coalesce(%s, %s)", right, d) // REPLACE takes the default for a NULL
				}
			}
			parts = append(parts, fmt.Sprintf("%s = %s COLLATE %s", left, right, quote(o.collation)))
		}
		if u.where != "" {
			parts = append(parts, "("+u.where+"\n)")
		}
		out = append(out, strings.Join(parts, " AND "))
	}
	return out
}

// named are the columns of NEW that an expression may name.
func (b triggerBuilder) named(expr string) string {
	parts := []string{"NULL"}
	for i, c := range b.table.Columns {
		if strings.Contains(strings.ToLower(expr), strings.ToLower(c.Name)) {
			parts = append(parts, "NEW."+b.column(i)+" AS "+b.column(i))
		}
	}
	return strings.Join(parts, ", ")
}

// inTheWay is the guard of a trigger that puts rows aside.
func (b triggerBuilder) inTheWay(others string) string {
	var parts []string
	for _, c := range b.conflicts() {
		parts = append(parts, fmt.Sprintf("EXISTS (SELECT 1 FROM %s WHERE %s)", b.name, and(c, others)))
	}
	return " WHEN " + strings.Join(parts, " OR ")
}

func and(a, b string) string {
	if b == "" {
		return a
	}
	return a + " AND " + b
}

// putAside puts the rows aside that are in the way. It names no conflict clause: that of the program's statement would count instead.
func (b triggerBuilder) putAside(others string) []string {
	body := []string{fmt.Sprintf("DELETE FROM %s WHERE (SELECT count(*) FROM %s) >= %d", aside, aside, slackReplaced)}
	var key []string
	for _, o := range b.key {
		c := b.column(o.column)
		key = append(key, b.name+"."+c+" AS "+c)
	}
	cells := b.each(func(_ int, c string) string {
		return fmt.Sprintf("(SELECT x.%s FROM %s AS x WHERE %s)", c, b.name, b.same("x", "y"))
	})
	for _, c := range b.conflicts() {
		rows := fmt.Sprintf("(SELECT %s FROM %s WHERE %s) AS y", strings.Join(key, ", "), b.name, and(c, others))
		// One that did not move after all is taken anew.
		body = append(body, fmt.Sprintf("DELETE FROM %s WHERE def = %d AND moving AND EXISTS (SELECT 1 FROM %s WHERE %s)", aside, b.def, rows, b.same("y", aside)),
			fmt.Sprintf("INSERT INTO %s (def, %s) SELECT %d, %s FROM %s, %s WHERE NOT EXISTS (SELECT 1 FROM %s WHERE def = %d AND %s)",
				aside, variables(0, len(b.table.Columns)), b.def, cells, b.nulls("x"), rows, aside, b.def, b.same("y", aside)))
	}
	return body
}

// logReplaced logs the rows put aside that are gone, or that NEW took the key of.
func (b triggerBuilder) logReplaced(taken string) []string {
	gone := fmt.Sprintf("NOT moving AND (%s OR NOT EXISTS (SELECT 1 FROM %s AS x WHERE %s))", taken, b.name, b.same("x", aside))
	cells := variables(0, len(b.table.Columns))
	return []string{
		fmt.Sprintf("INSERT INTO _tidewire_changes (def, op, %s) SELECT def, %d, %s FROM %s WHERE def = %d AND %s", cells, opReplaced, cells, aside, b.def, gone),
		b.forget(gone),
	}
}

func (b triggerBuilder) forget(which string) string {
	return fmt.Sprintf("DELETE FROM %s WHERE def = %d AND %s", aside, b.def, which)
}

// follow updates a row that was put aside with the table's, which may be newer than NEW.
func (b triggerBuilder) follow() string {
	now := fmt.Sprintf("FROM %s AS x WHERE %s", b.name, b.same("x", "NEW"))
	cells := b.each(func(i int, c string) string {
		return fmt.Sprintf("v%d = (SELECT (SELECT x.%s %s) FROM (SELECT NULL AS %s) AS x)", i, c, now, c)
	})
	return fmt.Sprintf("UPDATE %s SET moving = 0, %s WHERE def = %d AND %s", aside, cells, b.def, b.same("OLD", aside))
}

// ofKeys names the columns whose update may replace other rows; nothing if any may.
func (b triggerBuilder) ofKeys() string {
	var columns []string
	if b.alias {
		columns = append(columns, "rowid", "oid", "_rowid_")
	}
	for _, u := range append([]unique{{operands: b.key}}, b.uniques...) {
		if !u.plain() {
			return ""
		}
		for _, o := range u.operands {
			if b.generated[o.column] {
				return ""
			}
			columns = append(columns, b.column(o.column))
		}
	}
	return " OF " + strings.Join(columns, ", ")
}
