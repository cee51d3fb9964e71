package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/feed/feedtest"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/sqlite"
)

func openDatabase(t testing.TB, path string, opts sqlite.DatabaseOptions) *sqlite.Database {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	d, err := sqlite.OpenDatabase(path, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// other is a connection that knows nothing of the feed, as another program has.
type other struct {
	*sqlite3.Conn
	turn chan struct{}
}

func openOther(t testing.TB, path string) *other {
	t.Helper()
	c, err := sqlite3.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	o := &other{c, make(chan struct{}, 1)}
	t.Cleanup(func() {
		o.turn <- struct{}{}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.BusyTimeout(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *other) must(t testing.TB, sql string) {
	t.Helper()
	if err := o.Exec(sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (o *other) run(sql string, args ...row.Value) error {
	stmt, _, err := o.Prepare(sql)
	if err != nil {
		return err
	}
	for i, v := range args {
		switch v.Kind() {
		case row.Null:
			err = errors.Join(err, stmt.BindNull(i+1))
		case row.Int:
			err = errors.Join(err, stmt.BindInt64(i+1, v.Int()))
		case row.Float:
			err = errors.Join(err, stmt.BindFloat(i+1, v.Float()))
		case row.Text:
			err = errors.Join(err, stmt.BindText(i+1, v.Text()))
		case row.Bytes:
			err = errors.Join(err, stmt.BindBlob(i+1, append([]byte{}, v.Text()...)))
		}
	}
	return errors.Join(err, stmt.Exec(), stmt.Close())
}

type driver struct {
	db    *sqlite.Database
	other *other
}

func newDriver(t *testing.T) *driver {
	path := newPath(t)
	return &driver{openDatabase(t, path, sqlite.DatabaseOptions{}), openOther(t, path)}
}

func (d *driver) Database() feed.Database { return d.db }

func (d *driver) Create(t *testing.T, name string, columns []feedtest.Column) row.Name {
	var parts, key []string
	for _, c := range columns {
		kind := c.Type
		if kind == "" {
			kind = "INTEGER"
		}
		parts = append(parts, feedtest.Quote(c.Name)+" "+kind)
		if c.Key {
			key = append(key, feedtest.Quote(c.Name))
		}
	}
	if key != nil {
		parts = append(parts, "PRIMARY KEY ("+strings.Join(key, ", ")+")")
	}
	d.other.turn <- struct{}{}
	defer func() { <-d.other.turn }()
	d.other.must(t, fmt.Sprintf("CREATE TABLE %s (%s)", feedtest.Quote(name), strings.Join(parts, ", ")))
	return row.Name{Schema: "main", Table: name}
}

func (d *driver) Types() []feedtest.Typed {
	any := []row.Value{
		{},
		row.IntValue(0), row.IntValue(math.MaxInt64), row.IntValue(math.MinInt64), row.FloatValue(0.1), row.FloatValue(-1.5e300), row.FloatValue(math.Inf(1)),
		row.FloatValue(math.Inf(-1)), row.FloatValue(5e-324), row.FloatValue(9007199254740993), row.TextValue(""), row.TextValue("naïve 🌊"), row.TextValue("a\x00b"),
		row.TextValue("not\xff\xfeutf-8"), row.TextValue(strings.Repeat("long ", 5000)), row.BytesValue(nil), row.BytesValue([]byte{0, 1, 0xff, 0}), row.TextValue("12"), row.TextValue("1e3"),
	}
	return []feedtest.Typed{
		{Type: "BLOB", Values: any},
		{Type: "INTEGER", Values: []row.Value{{}, row.IntValue(1 << 60), row.TextValue("no number"), row.FloatValue(1.5), row.BytesValue([]byte("1"))}},
		{Type: "TEXT", Values: []row.Value{{}, row.TextValue("a\x00"), row.TextValue("007"), row.BytesValue([]byte{0})}},
		{Type: "REAL", Values: []row.Value{{}, row.FloatValue(1), row.FloatValue(-0.25), row.FloatValue(math.Inf(1)), row.TextValue("x")}},
		{Type: "DECIMAL(10,2)", Values: []row.Value{{}, row.IntValue(7), row.FloatValue(7.25), row.TextValue("12345678901234567890x")}},
		{Type: "BOOLEAN", Values: []row.Value{{}, row.IntValue(0), row.IntValue(1), row.TextValue("yes")}},
		{Type: "JSON", Values: []row.Value{{}, row.TextValue(`{"a": [1, 9007199254740993]}`), row.TextValue("{"), row.BytesValue([]byte{1})}},
		{Type: "TEXT COLLATE NOCASE", Values: []row.Value{row.TextValue("a"), row.TextValue("A"), row.TextValue("a")}},
		{Type: "DATETIME", Values: []row.Value{row.TextValue("2026-11-30 12:00:00"), row.IntValue(1700000000)}},
	}
}

func (d *driver) Lose(t *testing.T) {
	d.other.turn <- struct{}{}
	defer func() { <-d.other.turn }()
	d.other.must(t, `ALTER TABLE items ADD COLUMN more DEFAULT 7`)
}

func (d *driver) Begin(ctx context.Context, other bool) (feedtest.Tx, error) {
	if !other {
		return d.beginOwn()
	}
	select {
	case d.other.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := d.other.Exec("BEGIN IMMEDIATE"); err != nil {
		<-d.other.turn
		return nil, err
	}
	end := func(sql string) func() error {
		return func() error {
			defer func() { <-d.other.turn }()
			return d.other.Exec(sql)
		}
	}
	return &sqlTx{exec: d.other.run, commit: end("COMMIT"), rollback: end("ROLLBACK")}, nil
}

var errRollback = errors.New("rolled back")

// beginOwn runs a transaction of Database.Write until it is ended.
func (d *driver) beginOwn() (feedtest.Tx, error) {
	begun, ended, done := make(chan *sqlite.Tx), make(chan error), make(chan error, 1)
	go func() {
		done <- d.db.Write(context.Background(), func(tx *sqlite.Tx) error {
			begun <- tx
			return <-ended
		})
	}()
	select {
	case err := <-done:
		return nil, err
	case tx := <-begun:
		return &sqlTx{
			exec: func(sql string, args ...row.Value) error {
				var values []any
				for _, v := range args {
					values = append(values, v)
				}
				_, err := tx.Exec(sql, values...)
				return err
			},
			commit: func() error { ended <- nil; return <-done },
			rollback: func() error {
				ended <- errRollback
				if err := <-done; !errors.Is(err, errRollback) {
					return fmt.Errorf("Write = %w, want the function's error", err)
				}
				return nil
			},
		}, nil
	}
}

// sqlTx is a transaction in SQL.
type sqlTx struct {
	exec             func(sql string, args ...row.Value) error
	commit, rollback func() error
}

func (tx *sqlTx) Commit() error   { return tx.commit() }
func (tx *sqlTx) Rollback() error { return tx.rollback() }

func (tx *sqlTx) Insert(t *row.Table, r row.Row) error {
	return tx.exec(fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", feedtest.Quote(t.Table), list(t, func(c string) string { return c }), list(t, func(string) string { return "?" })), r...)
}

func (tx *sqlTx) Update(t *row.Table, key, r row.Row) error {
	where, args := which(t, key)
	return tx.exec(fmt.Sprintf("UPDATE %s SET %s WHERE %s", feedtest.Quote(t.Table), list(t, func(c string) string { return c + " = ?" }), where), append(append([]row.Value{}, r...), args...)...)
}

func (tx *sqlTx) Delete(t *row.Table, key row.Row) error {
	where, args := which(t, key)
	return tx.exec(fmt.Sprintf("DELETE FROM %s WHERE %s", feedtest.Quote(t.Table), where), args...)
}

func (tx *sqlTx) Clear(t *row.Table) error     { return tx.exec("DELETE FROM " + feedtest.Quote(t.Table)) }
func (tx *sqlTx) Savepoint(name string) error  { return tx.exec("SAVEPOINT " + name) }
func (tx *sqlTx) RollbackTo(name string) error { return tx.exec("ROLLBACK TO " + name) }

func list(t *row.Table, f func(column string) string) string {
	var parts []string
	for _, c := range t.Columns {
		parts = append(parts, f(feedtest.Quote(c.Name)))
	}
	return strings.Join(parts, ", ")
}

func which(t *row.Table, key row.Row) (string, []row.Value) {
	var parts []string
	var args []row.Value
	for _, k := range t.Key {
		parts = append(parts, feedtest.Quote(t.Columns[k].Name)+" = ?")
		args = append(args, key[k])
	}
	return strings.Join(parts, " AND "), args
}

func TestDatabase(t *testing.T) {
	t.Parallel()
	feedtest.Run(t, func(t *testing.T) feedtest.Driver { return newDriver(t) })
}
