package postgres_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/feed/feedtest"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/row"
)

func TestS22_Feed(t *testing.T) {
	t.Parallel()
	for name, slot := range map[string]func(*postgres.Options){"temporary slot": func(*postgres.Options) {}, "durable slot": durable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			feedtest.Run(t, func(t *testing.T) feedtest.Driver {
				url := testenv.Postgres(t)
				o := options(t, url)
				slot(&o)
				d := &driver{db: open(t, o), slot: o.Slot}
				var err error
				if d.pool, err = pgxpool.New(context.Background(), url); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { // after Run has ended
					if err := d.db.DropSlot(context.Background()); err != nil {
						t.Error(err)
					}
					d.pool.Close()
				})
				return d
			})
		})
	}
}

// driver changes a database for the suite; all of its transactions are those of another program.
type driver struct {
	db   *postgres.Database
	pool *pgxpool.Pool
	slot string
}

func (d *driver) Database() feed.Database { return d.db }

func (d *driver) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := d.pool.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Lose implements [feedtest.Loser]: the connection is lost, and a durable slot moved meanwhile.
func (d *driver) Lose(t *testing.T) {
	const where = ` FROM pg_replication_slots WHERE database = current_database()`
	if d.slot == "" {
		d.exec(t, `SELECT pg_terminate_backend(active_pid)`+where)
		return
	}
	eventually(t, func() bool {
		d.exec(t, `SELECT pg_terminate_backend(active_pid)`+where)
		_, err := d.pool.Exec(context.Background(), `SELECT pg_drop_replication_slot(slot_name)`+where)
		return err == nil
	})
}

func (d *driver) Create(t *testing.T, name string, columns []feedtest.Column) row.Name {
	var defs, key []string
	for _, c := range columns {
		typ := c.Type
		if typ == "" {
			typ = "bigint"
		}
		defs = append(defs, feedtest.Quote(c.Name)+" "+typ)
		if c.Key {
			key = append(key, feedtest.Quote(c.Name))
		}
	}
	if len(key) > 0 {
		defs = append(defs, "PRIMARY KEY ("+strings.Join(key, ", ")+")")
	}
	d.exec(t, "CREATE TABLE "+feedtest.Quote(name)+" ("+strings.Join(defs, ", ")+")")
	d.exec(t, "ALTER TABLE "+feedtest.Quote(name)+" REPLICA IDENTITY FULL")
	return row.Name{Schema: "public", Table: name}
}

func (d *driver) Types() []feedtest.Typed {
	parse := func(oid uint32, texts ...string) (out []row.Value) {
		typ, _ := row.PostgresType(oid, row.C)
		for _, s := range texts {
			v, err := row.ParseText(typ, s)
			if err != nil {
				panic(err)
			}
			out = append(out, v)
		}
		return append(out, row.Value{})
	}
	return []feedtest.Typed{
		{Type: "boolean", Values: parse(16, "t", "f")},
		{Type: "smallint", Values: parse(21, "-32768", "32767")},
		{Type: "bigint", Values: []row.Value{row.IntValue(math.MinInt64), {}, row.IntValue(math.MaxInt64)}},
		{Type: "real", Values: parse(700, "0.1", "NaN", "-Infinity", "1e-45")},
		{Type: "double precision", Values: parse(701, "0.1", "NaN", "Infinity", "5e-324", "-0")},
		{Type: "numeric", Values: parse(1700, "0.00", "-12345678901234567890.123456789", "NaN", "Infinity", "1"+strings.Repeat("0", 200))},
		{Type: "text", Values: parse(25, "", "a'b\\c\n\t\"ü😀", strings.Repeat("long ", 5000))},
		{Type: "uuid", Values: parse(2950, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")},
		{Type: "bytea", Values: parse(17, `\x`, `\x00ff5c27`)},
		{Type: "jsonb", Values: parse(3802, `{"a": [1, null, 9007199254740993]}`, `null`)},
		{Type: "date", Values: parse(1082, "2026-11-30", "infinity", "4713-01-01 BC", "5874897-12-31")},
		{Type: "timestamp", Values: parse(1114, "2026-11-30 12:00:00.000001", "-infinity", "294276-12-31 23:59:59.999999")},
		{Type: "timestamptz", Values: parse(1184, "2026-11-30 12:00:00+00", "infinity", "0001-01-01 00:00:00+00 BC")},
		{Type: "int[]", Values: parse(1007, "{1,NULL,3}", "{{1,2},{3,4}}")},
		{Type: "text[]", Values: parse(1009, `{a,"b,c","d\"e",NULL,"NULL"}`)},
		{Type: "inet", Values: []row.Value{row.OpaqueValue("10.0.0.1/8"), {}}},
		{Type: "int4range", Values: []row.Value{row.OpaqueValue("[1,5)"), row.OpaqueValue("empty")}},
	}
}

func (d *driver) Begin(ctx context.Context, _ bool) (feedtest.Tx, error) {
	tx, err := d.pool.Begin(context.WithoutCancel(ctx))
	return &driverTx{tx}, err
}

type driverTx struct{ tx pgx.Tx }

// exec runs a statement with arguments as literals.
func (d *driverTx) exec(sql string) error {
	_, err := d.tx.Exec(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func literal(v row.Value) string {
	if v.IsNull() {
		return "NULL"
	}
	return "'" + strings.ReplaceAll(string(row.AppendText(nil, v)), "'", "''") + "'"
}

func name(t *row.Table) string { return feedtest.Quote(t.Schema) + "." + feedtest.Quote(t.Table) }

func where(t *row.Table, key row.Row) string {
	var out []string
	for _, k := range t.Key {
		out = append(out, feedtest.Quote(t.Columns[k].Name)+" = "+literal(key[k]))
	}
	return " WHERE " + strings.Join(out, " AND ")
}

func (d *driverTx) Insert(t *row.Table, r row.Row) error {
	var out []string
	for _, v := range r {
		out = append(out, literal(v))
	}
	return d.exec("INSERT INTO " + name(t) + " VALUES (" + strings.Join(out, ", ") + ")")
}

func (d *driverTx) Update(t *row.Table, key, r row.Row) error {
	var out []string
	for i, v := range r {
		out = append(out, feedtest.Quote(t.Columns[i].Name)+" = "+literal(v))
	}
	return d.exec("UPDATE " + name(t) + " SET " + strings.Join(out, ", ") + where(t, key))
}

func (d *driverTx) Delete(t *row.Table, key row.Row) error {
	return d.exec("DELETE FROM " + name(t) + where(t, key))
}
func (d *driverTx) Clear(t *row.Table) error     { return d.exec("TRUNCATE " + name(t)) }
func (d *driverTx) Savepoint(name string) error  { return d.exec(fmt.Sprint("SAVEPOINT ", name)) }
func (d *driverTx) RollbackTo(name string) error { return d.exec(fmt.Sprint("ROLLBACK TO ", name)) }
func (d *driverTx) Commit() error                { return d.tx.Commit(context.Background()) }
func (d *driverTx) Rollback() error              { return d.tx.Rollback(context.Background()) }
