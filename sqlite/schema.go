package sqlite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// shape is a table as the file has it: what a [row.Table] says, and what its triggers need.
type shape struct {
	table   *row.Table
	key     []operand // the primary key, in the order of the table's Key
	uniques []unique  // the others
	alias   bool      // the key is the rowid

	defined   []string // the default of each column in SQL, "" if there is none
	generated []bool   // which columns are computed from others
}

// unique is a unique index.
type unique struct {
	operands []operand
	where    string // the condition of a partial index, "" if it is not one
}

// operand is one part of a key.
type operand struct {
	column    int    // negative: it is an expression
	expr      string // in SQL, over the columns of the table
	collation string
}

// plain reports whether an update changes the index only if it names one of its columns.
func (u unique) plain() bool {
	return u.where == "" && !slices.ContainsFunc(u.operands, func(o operand) bool { return o.column < 0 })
}

func unfit(table, reason, fix string) error {
	return fmt.Errorf("sqlite: %w: %s %s; %s", feed.ErrTableUnfit, table, reason, fix)
}

// describe reads the shape of a table. The name is looked up as SQLite does, without regard to case.
func (c *conn) describe(name string) (*shape, error) {
	found, err := c.all(`SELECT name, type, wr, strict FROM pragma_table_list(?) WHERE schema = 'main'`, name)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 || ours(name) {
		return nil, fmt.Errorf("sqlite: %w: %s", feed.ErrNoTable, name)
	}
	name = found[0][0].Text()
	switch kind := found[0][1].Text(); kind {
	case "view":
		return nil, unfit(name, "is a view", "follow the tables that it reads")
	case "virtual", "shadow":
		return nil, unfit(name, "is a virtual table or a part of one, which has no triggers", "follow a table that holds the rows")
	}
	if strings.EqualFold(name, "new") || strings.EqualFold(name, "old") {
		return nil, unfit(name, "is what triggers call rows", "give the table another name")
	}
	s := &shape{table: &row.Table{Name: row.Name{Schema: "main", Table: name}, Engine: row.SQLite}}
	withoutRowid, strict := found[0][2].Int() != 0, found[0][3].Int() != 0
	if err := c.describeColumns(s, strict); err != nil {
		return nil, err
	}
	if len(s.table.Key) == 0 {
		return nil, unfit(name, "has no primary key", "declare one: INTEGER PRIMARY KEY, or PRIMARY KEY with NOT NULL columns")
	}
	if len(s.table.Columns) > maxColumns {
		return nil, unfit(name, fmt.Sprintf("has %d columns", len(s.table.Columns)), fmt.Sprintf("%d is the most", maxColumns))
	}
	if err := c.describeKeys(s); err != nil {
		return nil, err
	}
	for _, o := range s.key {
		if !builtin(o.collation) {
			return nil, unfit(name, fmt.Sprintf("has the collation %s in its primary key, which only its own program knows", o.collation), "use BINARY, NOCASE or RTRIM there")
		}
		if withoutRowid || s.alias {
			s.table.Columns[o.column].NotNull = true
		}
	}
	return s, nil
}

// nullKey says that a row has no key, if there is one.
func (c *conn) nullKey(s *shape) error {
	name := s.table.Table
	for _, k := range s.table.Key {
		column := s.table.Columns[k]
		if column.NotNull {
			continue
		}
		null, err := c.all(fmt.Sprintf(`SELECT 1 FROM main.%s WHERE %s IS NULL LIMIT 1`, quote(name), quote(column.Name)))
		if err != nil {
			return err
		}
		if len(null) > 0 {
			return unfit(name, "has a row with NULL in its primary key", fmt.Sprintf("give it one, and declare %s NOT NULL", column.Name))
		}
	}
	return nil
}

func (c *conn) describeColumns(s *shape, strict bool) error {
	encoding, err := c.all("PRAGMA encoding")
	if err != nil {
		return err
	}
	columns, err := c.all(`SELECT name, "notnull", coalesce(dflt_value, ''), pk, hidden FROM pragma_table_xinfo(?, 'main') WHERE hidden <> 1 ORDER BY cid`, s.table.Table)
	if err != nil {
		return err
	}
	key := map[int64]int{}
	for i, r := range columns {
		name := r[0].Text()
		declared, collation, _, _, _, err := c.TableColumnMetadata("main", s.table.Table, name)
		if err != nil {
			return err
		}
		if strings.EqualFold(collation, "BINARY") && encoding[0][0].Text() != "UTF-8" {
			collation = encoding[0][0].Text() // other bytes are compared than those that are received
		}
		s.table.Columns = append(s.table.Columns, row.Column{Name: name, Type: row.SQLiteType(declared, collation, strict), NotNull: r[1].Int() != 0})
		s.defined, s.generated = append(s.defined, r[2].Text()), append(s.generated, r[4].Int() != 0)
		if pk := r[3].Int(); pk > 0 {
			key[pk] = i
		}
	}
	for pk := range int64(len(key)) {
		s.table.Key = append(s.table.Key, key[pk+1])
	}
	return nil
}

// describeKeys reads the unique indexes.
func (c *conn) describeKeys(s *shape) error {
	indexes, err := c.all(`SELECT i.name, origin, sql FROM pragma_index_list(?, 'main') AS i LEFT JOIN main.sqlite_schema AS s ON s.type = 'index' AND s.name = i.name
		WHERE "unique" ORDER BY i.name`, s.table.Table)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		parts, err := c.all(`SELECT cid, coll FROM pragma_index_xinfo(?, 'main') WHERE key ORDER BY seqno`, index[0])
		if err != nil {
			return err
		}
		var exprs []string
		var u unique
		if sql := index[2]; !sql.IsNull() {
			if exprs, u.where, err = parseIndex(sql.Text()); err != nil {
				return unfit(s.table.Table, fmt.Sprintf("has the unique index %s, which cannot be read (%v)", index[0], err), "declare it in plainer words")
			}
		}
		for i, p := range parts {
			o := operand{column: int(p[0].Int()), collation: p[1].Text()}
			if o.column < 0 {
				if i >= len(exprs) {
					return unfit(s.table.Table, fmt.Sprintf("has the unique index %s, which cannot be read", index[0]), "declare it in plainer words")
				}
				o.expr = exprs[i]
			}
			u.operands = append(u.operands, o)
		}
		if index[1].Text() == "pk" {
			s.key = u.operands
		} else {
			s.uniques = append(s.uniques, u)
		}
	}
	if s.key == nil {
		s.alias = true
		s.key = []operand{{column: s.table.Key[0], collation: "BINARY"}}
	}
	return nil
}

func builtin(collation string) bool {
	switch strings.ToUpper(collation) {
	case "BINARY", "NOCASE", "RTRIM":
		return true
	}
	return false
}

// ours reports whether a name is of the feed's own.
func ours(name string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// quote makes an identifier.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// parseIndex takes the operands and the condition out of a CREATE INDEX statement, as they were written.
func parseIndex(sql string) (operands []string, where string, err error) {
	depth, from := 0, 0
	for i := 0; i < len(sql); {
		n := token(sql[i:])
		if n == 0 {
			return nil, "", errors.New("it ends early")
		}
		switch sql[i] {
		case '(':
			if depth++; depth == 1 {
				from = i + 1
			}
		case ')', ',':
			if depth == 1 {
				operands = append(operands, bare(sql[from:i]))
				from = i + 1
			}
			if sql[i] == ',' {
				break
			}
			if depth--; depth == 0 {
				return operands, condition(sql[i+1:]), nil
			}
		}
		i += n
	}
	return nil, "", errors.New("it ends early")
}

// token is the length of the first token: a quoted name or string, a comment, or one character. It is 0 if the token does not end.
func token(s string) int {
	end, quoted := "", 1
	switch s[0] {
	case '\'', '"', '`':
		end = s[:1]
	case '[':
		end = "]"
	case '-':
		if strings.HasPrefix(s, "--") {
			end = "\n"
		}
	case '/':
		if strings.HasPrefix(s, "/*") {
			end, quoted = "*/", 2
		}
	}
	if end == "" {
		return 1
	}
	i := strings.Index(s[quoted:], end) // a doubled quote is two strings side by side
	if i < 0 {
		if end == "\n" {
			return len(s)
		}
		return 0
	}
	return quoted + i + len(end)
}

// bare cuts the direction off an operand.
func bare(operand string) string {
	operand = strings.TrimSpace(operand)
	for _, direction := range []string{"ASC", "DESC"} {
		if n := len(operand) - len(direction); n > 0 && strings.EqualFold(operand[n:], direction) && strings.ContainsAny(operand[n-1:n], " \t\r\n)\"]`'") {
			return strings.TrimSpace(operand[:n])
		}
	}
	return operand
}

// condition is what stands behind WHERE.
func condition(rest string) string {
	for i := 0; i < len(rest); {
		if len(rest)-i > 5 && strings.EqualFold(rest[i:i+5], "WHERE") {
			return strings.TrimSpace(rest[i+5:])
		}
		n := token(rest[i:])
		if n == 0 {
			break
		}
		i += n
	}
	return ""
}

// isAfter reports whether a CREATE TRIGGER statement makes one that fires after the change.
func isAfter(sql string) bool {
	for i := 0; i < len(sql); {
		if n := len("AFTER"); len(sql)-i > n && strings.ContainsAny(sql[i:i+1], " \t\r\n/") && strings.EqualFold(sql[i+1:i+1+n], "AFTER") {
			return true
		}
		if len(sql)-i > 4 && strings.EqualFold(sql[i+1:i+3], "ON") && strings.TrimSpace(sql[i:i+1]+sql[i+3:i+4]) == "" {
			return false
		}
		n := token(sql[i:])
		if n == 0 {
			return false
		}
		i += n
	}
	return false
}
