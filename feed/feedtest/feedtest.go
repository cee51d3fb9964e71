// Package feedtest holds every [feed.Database] against the promises of package feed.
//
// The suite makes tables and changes them through a [Driver], on the database's own side and as another program would, and compares what the feed says with what was done.
package feedtest

import (
	"context"
	"fmt"
	"testing"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// Driver is an empty database and the means to change it. Its methods may be called from any goroutine.
type Driver interface {
	Database() feed.Database
	// Create makes a table with the columns given.
	Create(t *testing.T, name string, columns []Column) row.Name
	// Begin begins a transaction; other means: as another program does. It waits for its turn.
	Begin(ctx context.Context, other bool) (Tx, error)
	// Types are columns of all types that the database has, each with values to store.
	Types() []Typed
}

// Column is a column of a table of the suite.
type Column struct {
	Name string
	Key  bool   // it is part of the primary key
	Type string // in SQL; empty means a 64-bit integer
}

// Typed is a type with values of it.
type Typed struct {
	Type   string
	Values []row.Value
}

// Tx is a transaction. A table's rows are complete, and keys are the rows that have them; the rest of such a row does not count.
type Tx interface {
	Insert(t *row.Table, r row.Row) error
	Update(t *row.Table, key, r row.Row) error
	Delete(t *row.Table, key row.Row) error
	// Clear empties a table, by TRUNCATE where there is one.
	Clear(t *row.Table) error
	Savepoint(name string) error
	RollbackTo(name string) error
	// Commit and Rollback end the transaction, also if they fail.
	Commit() error
	Rollback() error
}

// Loser is a [Driver] that can break its feed in a way that the feed must report.
type Loser interface{ Lose(t *testing.T) }

// Run runs the suite. open makes a driver, which is closed by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Driver) {
	for _, tc := range []struct {
		name string
		test func(*testing.T, *bench)
	}{
		{"S22 reset comes first", resetFirst},
		{"S22 tables", tables},
		{"S22 other programs are seen", others},
		{"S14 a transaction comes whole, in order", whole},
		{"S14 positions", positions},
		{"S14 a snapshot is one state", oneState},
		{"S14 the sink can read what it was told", readInSink},
		{"S14 P30 reads and transactions together are exact", exact},
		{"P45 savepoints and rollbacks", rolledBack},
		{"P15 changes of the key", keyChange},
		{"P16 clearing a table", clearing},
		{"S26 P21 names", names},
		{"S26 P26 values", values},
		{"P04 P43 a slow sink", slowSink},
		{"P06 loss", loss},
		{"Run ends and begins again", again},
		{"ended context", endedContext},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d := open(t)
			tc.test(t, &bench{t: t, d: d, db: d.Database()})
		})
	}
}

// bench is a driver with short forms.
type bench struct {
	t  *testing.T
	d  Driver
	db feed.Database
}

var two = []Column{{Name: "id", Key: true}, {Name: "n"}}

func (b *bench) table(name string, columns []Column) *row.Table {
	b.t.Helper()
	t, err := b.db.Table(b.t.Context(), b.d.Create(b.t, name, columns))
	if err != nil {
		b.t.Fatal(err)
	}
	return t
}

// commit does f in a transaction.
func (b *bench) commit(other bool, f func(tx Tx) error) {
	b.t.Helper()
	tx, err := b.d.Begin(b.t.Context(), other)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := f(tx); err != nil {
		b.t.Error(tx.Rollback())
		b.t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) insert(other bool, t *row.Table, rows ...row.Row) {
	b.t.Helper()
	b.commit(other, func(tx Tx) error {
		for _, r := range rows {
			if err := tx.Insert(t, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// all reads a table.
func all(ctx context.Context, s feed.Snapshot, t *row.Table) ([]row.Row, error) {
	sql := ""
	for i, c := range t.Columns {
		if i > 0 {
			sql += ", "
		}
		sql += Quote(c.Name)
	}
	return s.Select(ctx, feed.Select{Table: t, SQL: "SELECT " + sql + " FROM " + Quote(t.Schema) + "." + Quote(t.Table)})
}

// Quote makes an identifier of SQL.
func Quote(name string) string {
	out := `"`
	for _, r := range name {
		if r == '"' {
			out += `"`
		}
		out += string(r)
	}
	return out + `"`
}

// ints makes a row of integers.
func ints(values ...int64) row.Row {
	var r row.Row
	for _, v := range values {
		r = append(r, row.IntValue(v))
	}
	return r
}

// state is the rows of tables by key, as a reader of the feed keeps them.
type state map[*row.Table]map[row.Value]row.Row

func (s state) load(t *row.Table, rows []row.Row) {
	s[t] = map[row.Value]row.Row{}
	for _, r := range rows {
		s[t][t.KeyOf(r)] = r
	}
}

// apply applies a transaction, every change of which must fit.
func (s state) apply(tx *feed.Tx) error {
	for i, c := range tx.Changes {
		if err := s.change(c); err != nil {
			return fmt.Errorf("change %d of the transaction at %s: %w", i, tx.Position, err)
		}
	}
	return nil
}

func (s state) change(c feed.Change) error {
	rows := s[c.Table]
	if rows == nil {
		return fmt.Errorf("%s of the unknown table %s (%p)", c.Op, c.Table.Name, c.Table)
	}
	switch c.Op {
	case feed.Insert:
		if c.Old != nil || rows[c.Table.KeyOf(c.New)] != nil {
			return fmt.Errorf("insert of %v, which is there", c.New)
		}
		rows[c.Table.KeyOf(c.New)] = c.New
	case feed.Update:
		key := c.Table.KeyOf(c.New)
		if key != c.Table.KeyOf(c.Old) {
			return fmt.Errorf("update from %v to %v changes the key", c.Old, c.New)
		}
		if !known(c.Old, rows[key]) {
			return fmt.Errorf("update from %v to %v, it is %v", c.Old, c.New, rows[key])
		}
		rows[key] = c.New
	case feed.Delete:
		key := c.Table.KeyOf(c.Old)
		if c.New != nil || !known(c.Old, rows[key]) {
			return fmt.Errorf("delete of %v, it is %v", c.Old, rows[key])
		}
		delete(rows, key)
	case feed.Truncate:
		if c.Old != nil || c.New != nil {
			return fmt.Errorf("truncate with rows")
		}
		clear(rows)
	default:
		return fmt.Errorf("%s", c.Op)
	}
	return nil
}

// known reports whether what the feed knows of a row is what it is.
func known(said, is row.Row) bool {
	if len(said) != len(is) {
		return false
	}
	for i, v := range said {
		if v != is[i] && v.Kind() != row.Absent {
			return false
		}
	}
	return true
}

func (s state) equal(o state) error {
	for t, rows := range s {
		if len(rows) != len(o[t]) {
			return fmt.Errorf("%s has %d rows, want %d", t.Name, len(rows), len(o[t]))
		}
		for key, r := range rows {
			if want := o[t][key]; !known(r, want) {
				return fmt.Errorf("%s has %v, want %v", t.Name, r, want)
			}
		}
	}
	return nil
}
