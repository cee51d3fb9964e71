package sqlite

import (
	"fmt"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/row"
)

// bind binds values to the parameters from the first on: [row.Value] of the kinds that SQLite has, and what drivers take. SQLite itself has no NaN and takes NULL for it.
func (s *statement) bind(args []any) error {
	if n := s.BindCount(); n != len(args) {
		return fmt.Errorf("%d values for %d parameters", len(args), n)
	}
	for i, v := range args {
		if err := s.bindOne(i+1, v); err != nil {
			return fmt.Errorf("parameter %d: %w", i+1, err)
		}
	}
	return nil
}

func (s *statement) bindOne(i int, v any) error {
	switch v := v.(type) {
	case nil:
		return s.BindNull(i)
	case bool:
		return s.BindBool(i, v)
	case int:
		return s.BindInt(i, v)
	case int64:
		return s.BindInt64(i, v)
	case float64:
		return s.BindFloat(i, v)
	case string:
		return s.BindText(i, v)
	case []byte:
		if v == nil {
			return s.BindNull(i)
		}
		return s.BindBlob(i, v)
	case row.Value:
		switch v.Kind() {
		case row.Null:
			return s.BindNull(i)
		case row.Bool:
			return s.BindBool(i, v.Bool())
		case row.Int:
			return s.BindInt64(i, v.Int())
		case row.Float:
			return s.BindFloat(i, v.Float())
		case row.Text:
			return s.BindText(i, v.Text())
		case row.Bytes:
			return s.BindBlob(i, append([]byte{}, v.Text()...))
		}
		return fmt.Errorf("SQLite has no values of kind %s", v.Kind())
	}
	return fmt.Errorf("SQLite has no values of type %T", v)
}

// cells returns the values of n columns from the first on.
func (s *statement) cells(first, n int) row.Row {
	r := make(row.Row, n)
	for i := range r {
		switch c := first + i; s.ColumnType(c) {
		case sqlite3.INTEGER:
			r[i] = row.IntValue(s.ColumnInt64(c))
		case sqlite3.FLOAT:
			r[i] = row.FloatValue(s.ColumnFloat(c))
		case sqlite3.TEXT:
			r[i] = row.TextValue(s.ColumnText(c))
		case sqlite3.BLOB:
			r[i] = row.BytesValue(s.ColumnRawBlob(c))
		}
	}
	return r
}

// rows runs a query to its end.
func (s *statement) rows() (out []row.Row, err error) {
	for n := s.ColumnCount(); s.Step(); {
		out = append(out, s.cells(0, n))
	}
	err = s.Err()
	s.done()
	return out, err
}

// all runs a query once.
func (c *conn) all(sql string, args ...any) ([]row.Row, error) {
	stmt, _, err := c.Prepare(sql)
	if err != nil {
		return nil, err
	}
	s := &statement{Stmt: stmt}
	defer func() { _ = s.Close() }() // the error of the last step, which rows returns
	if err := s.bind(args); err != nil {
		return nil, err
	}
	return s.rows()
}

// run runs a statement once.
func (c *conn) run(sql string, args ...any) error {
	_, err := c.all(sql, args...)
	return err
}

// atomically runs f in a transaction that begins with the statement given, and takes effect if f does not fail.
func (c *conn) atomically(begin string, f func() error) (err error) {
	if err := c.Exec(begin); err != nil {
		return err
	}
	defer c.rollback()
	if err := f(); err != nil {
		return err
	}
	return c.Exec("COMMIT")
}

// rollback ends a transaction, if there is one. It cannot fail in a way that leaves one.
func (c *conn) rollback() {
	if !c.GetAutocommit() {
		old := c.SetInterrupt(background)
		_ = c.Exec("ROLLBACK")
		c.SetInterrupt(old)
	}
}
