package postgres

import (
	"context"
	"errors"
	"fmt"
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

// ErrAltered means that a read does not fit its table, which was altered since it was described: Table describes it again.
var ErrAltered = errors.New("postgres: the table was altered")

// Select implements [feed.Snapshot]. Arguments are strings in the server's text format, or nil, and the server reads them as the type that the statement casts them to, or compares them with.
func (s *snapshot) Select(ctx context.Context, q feed.Select) ([]row.Row, error) {
	args := make([][]byte, len(q.Args))
	for i, v := range q.Args {
		switch v := v.(type) {
		case nil:
		case string:
			args[i] = []byte(v)
		default:
			return nil, fmt.Errorf("postgres: argument %d of a read is a %T: text in the server's format, or nil", i+1, v)
		}
	}
	reader := s.conn.ExecParams(ctx, q.SQL, args, nil, nil, nil)
	out, err := rowsOf(reader, q.Table)
	if _, e := reader.Close(); e != nil {
		err = e
	}
	switch sqlState(err) {
	case "42703", "42P01": // no such column, no such table
		err = fmt.Errorf("%w: %w", ErrAltered, err)
	}
	if err != nil {
		return nil, fmt.Errorf("postgres: read %s: %w", q.Table.Name, err)
	}
	return out, nil
}

func rowsOf(reader *pgconn.ResultReader, t *row.Table) (out []row.Row, err error) {
	for reader.NextRow() {
		values := reader.Values()
		if len(values) != len(t.Columns) {
			return nil, fmt.Errorf("%w: %d columns instead of %d", ErrAltered, len(values), len(t.Columns))
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
			r[i], err = row.ParseText(t.Columns[i].Type, rest[:len(v)])
			if err != nil {
				return nil, fmt.Errorf("%w: column %s: %w", ErrAltered, t.Columns[i].Name, err)
			}
			rest = rest[len(v):]
		}
		out = append(out, r)
	}
	return out, nil
}
