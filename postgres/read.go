package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// snapshot is a transaction that reads.
type snapshot struct {
	conn  *pgconn.PgConn
	fence *fence
}

// Fence implements [feed.Snapshot].
func (s *snapshot) Fence() feed.Fence { return s.fence }

// The log's end is taken after the snapshot, so everything that the snapshot sees is before it.
const beginSQL = `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT pg_current_snapshot(), pg_current_wal_insert_lsn()`

// Read implements [feed.Database].
func (d *Database) Read(ctx context.Context, f func(feed.Snapshot) error) error {
	select {
	case d.reads <- struct{}{}:
		defer func() { <-d.reads }()
	case <-ctx.Done():
		return ctx.Err()
	}
	pooled, err := d.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("postgres: read: %w", err)
	}
	defer pooled.Release()
	conn := pooled.Conn().PgConn()
	s, err := d.snapshot(ctx, conn)
	if err != nil {
		return fmt.Errorf("postgres: read: %w", err)
	}
	err = f(s)
	if _, e := script(ctx, conn, "ROLLBACK"); e != nil && err == nil {
		err = fmt.Errorf("postgres: read: %w", e)
	}
	return err
}

// snapshot begins a transaction that sees everything that the stream has begun to deliver.
func (d *Database) snapshot(ctx context.Context, conn *pgconn.PgConn) (*snapshot, error) {
	warned := time.Now().Add(time.Second)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		rows, err := script(ctx, conn, beginSQL)
		if err != nil {
			return nil, err
		}
		fence, err := parseFence(rows[0][0])
		if err != nil {
			return nil, err
		}
		end, err := parseLSN(rows[0][1])
		if err != nil {
			return nil, err
		}
		raise(&d.lastXID, fence.xmax)
		xid, hidden := d.begun.hiddenFrom(fence)
		if !hidden {
			raise(&d.readLSN, uint64(end))
			return &snapshot{conn, fence}, nil
		}
		if _, err := script(ctx, conn, "ROLLBACK"); err != nil {
			return nil, err
		}
		if now := time.Now(); now.After(warned) {
			warned = now.Add(10 * time.Second)
			d.log.Warn("a read waits for a commit that is in the log and not visible: does a synchronous standby answer?", "xid", xid)
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// fence returns what a snapshot sees that is taken now.
func (d *Database) fence(ctx context.Context) (*fence, error) {
	rows, err := d.query(ctx, "SELECT pg_current_snapshot()")
	if err != nil {
		return nil, err
	}
	return parseFence(rows[0][0])
}

// Select implements [feed.Snapshot]. Arguments are strings in the server's text format, or nil, and the server reads them as the type that the statement casts them to, or compares them with.
func (s *snapshot) Select(ctx context.Context, q feed.Select) (out []row.Row, err error) {
	args, err := encode(q.Args)
	if err != nil {
		return nil, err
	}
	err = s.rows(ctx, q.Table, q.SQL, args, func(values [][]byte) error {
		r, err := rowOf(values, q.Table)
		out = append(out, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// SelectMany implements [feed.BatchSnapshot].
func (s *snapshot) SelectMany(ctx context.Context, b feed.Batch, f func(i int, r row.Row)) error {
	args, err := encode(b.Shared)
	if err != nil {
		return err
	}
	for k := range b.Args[0] {
		column := make([]any, len(b.Args))
		for i := range b.Args {
			column[i] = b.Args[i][k]
		}
		texts, err := encode(column)
		if err != nil {
			return err
		}
		args = append(args, textArray(texts))
	}
	return s.rows(ctx, b.Table, b.SQL, args, func(values [][]byte) error {
		if len(values) == 0 {
			return fmt.Errorf("%w: no columns", feed.ErrAltered)
		}
		n, err := strconv.Atoi(string(values[0]))
		if err != nil || n < 1 || n > len(b.Args) {
			return fmt.Errorf("a row for number %q of %d", values[0], len(b.Args))
		}
		r, err := rowOf(values[1:], b.Table)
		if err == nil {
			f(n-1, r)
		}
		return err
	})
}

// encode makes parameters of arguments; nil is NULL.
func encode(args []any) ([][]byte, error) {
	out := make([][]byte, len(args))
	for i, v := range args {
		switch v := v.(type) {
		case nil:
		case string:
			out[i] = []byte(v) // which is not nil
		default:
			return nil, fmt.Errorf("postgres: argument %d of a read is a %T: text in the server's format, or nil", i+1, v)
		}
	}
	return out, nil
}

// textArray makes an array of text.
func textArray(items [][]byte) []byte {
	out := []byte{'{'}
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		if item == nil {
			out = append(out, "NULL"...)
			continue
		}
		out = append(out, '"')
		for _, c := range item {
			if c == '"' || c == '\\' {
				out = append(out, '\\')
			}
			out = append(out, c)
		}
		out = append(out, '"')
	}
	return append(out, '}')
}

// rows runs a statement and calls f with the values of each row, which are good until it returns.
func (s *snapshot) rows(ctx context.Context, t *row.Table, sql string, args [][]byte, f func(values [][]byte) error) (err error) {
	reader := s.conn.ExecParams(ctx, sql, args, nil, nil, nil)
	for err == nil && reader.NextRow() {
		err = f(reader.Values())
	}
	if _, e := reader.Close(); e != nil {
		err = e
	}
	switch sqlState(err) {
	case "42703", "42P01", "42804", "42883": // no such column, no such table, other types
		err = fmt.Errorf("%w: %w", feed.ErrAltered, err)
	}
	if err != nil {
		return fmt.Errorf("postgres: read %s: %w", t.Name, err)
	}
	return nil
}

func rowOf(values [][]byte, t *row.Table) (_ row.Row, err error) {
	if len(values) != len(t.Columns) {
		return nil, fmt.Errorf("%w: %d columns instead of %d", feed.ErrAltered, len(values), len(t.Columns))
	}
	total := 0
	for _, v := range values {
		total += len(v)
	}
	var text strings.Builder // one copy for the row, which its values share
	text.Grow(total)
	for _, v := range values {
		text.Write(v)
	}
	rest := text.String()
	r := make(row.Row, len(values))
	for i, v := range values {
		if v == nil {
			continue
		}
		if r[i], err = row.ParseText(t.Columns[i].Type, rest[:len(v)]); err != nil {
			return nil, fmt.Errorf("%w: column %s: %w", feed.ErrAltered, t.Columns[i].Name, err)
		}
		rest = rest[len(v):]
	}
	return r, nil
}
