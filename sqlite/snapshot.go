package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// maxStatements is how many statements a connection keeps.
const maxStatements = 64

// feedReader is a connection that reads. It is used by one goroutine at a time.
type feedReader struct {
	*conn
	statements map[string]*statement
	version    int64 // of the schema that the statements were made for
}

func (d *Database) newReader() (*feedReader, error) {
	c, err := connect(d.path, d.opts.BusyTimeout)
	if err != nil {
		return nil, err
	}
	r := &feedReader{conn: c, statements: map[string]*statement{}}
	if err := c.Exec("PRAGMA query_only = ON"); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return r, nil
}

// statement returns a statement that is kept.
func (r *feedReader) statement(sql string) (*statement, error) {
	if s := r.statements[sql]; s != nil {
		return s, nil
	}
	stmt, tail, err := r.PrepareFlags(sql, sqlite3.PREPARE_PERSISTENT)
	switch {
	case err != nil:
		return nil, err
	case stmt == nil || tail != "" || !stmt.ReadOnly():
		if stmt != nil {
			err = stmt.Close()
		}
		return nil, errors.Join(errors.New("not one query"), err)
	}
	if len(r.statements) == maxStatements {
		r.forget()
	}
	s := &statement{Stmt: stmt}
	r.statements[sql] = s
	return s, nil
}

func (r *feedReader) forget() {
	for sql, s := range r.statements {
		_ = s.Close() // the error of its last step
		delete(r.statements, sql)
	}
}

func (r *feedReader) numbers(sql string) ([]int64, error) {
	s, err := r.statement(sql)
	if err != nil {
		return nil, err
	}
	rows, err := s.rows()
	if err != nil || len(rows) == 0 {
		return nil, errors.Join(err, sqlite3.CORRUPT)
	}
	var out []int64
	for _, v := range rows[0] {
		out = append(out, v.Int())
	}
	return out, nil
}

// state is one state of the file: the first and the last entry of the log.
type state struct{ first, last int64 }

const endsSQL = `SELECT (SELECT min(id) FROM main._tidewire_changes), (SELECT max(id) FROM main._tidewire_changes)`

// maxMends bounds how often the triggers are made anew before a read gives up.
const maxMends = 10

// begin begins a read transaction in which all that is followed has its triggers. note is called with the state while Database.mu is held, and between commits if
// alone is set.
func (d *Database) begin(ctx context.Context, r *feedReader, alone bool, note func(state)) (state, error) {
	for range maxMends {
		s, ok, err := d.tryBegin(r, alone, note)
		if err != nil {
			r.rollback()
			return state{}, err
		}
		if ok {
			return s, nil
		}
		r.rollback()
		if _, err := d.mend(ctx, ""); err != nil {
			return state{}, err
		}
	}
	return state{}, errors.New("the triggers do not stay as they were made: does another version of this program use the file?")
}

func (d *Database) tryBegin(r *feedReader, alone bool, note func(state)) (s state, ok bool, err error) {
	if alone {
		d.committing.Lock()
		defer d.committing.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := r.Exec("BEGIN"); err != nil {
		return s, false, err
	}
	version, err := r.numbers("PRAGMA main.schema_version")
	if err != nil {
		return s, false, err
	}
	if r.version != version[0] { // SQLite makes statements anew, but * may stand for other columns then
		r.forget()
		r.version = version[0]
	}
	if d.verified.Load() != version[0] {
		if reasons, stray, log, err := r.altered(); err != nil || !log || len(reasons)+len(stray) > 0 {
			return s, false, err
		}
		defs, err := r.followed()
		if err != nil {
			return s, false, err
		}
		for def := range d.tables {
			if _, current := defs[def]; !current {
				delete(d.tables, def)
			}
		}
		d.verified.Store(version[0])
	}
	ends, err := r.numbers(endsSQL)
	if err != nil {
		return s, false, err
	}
	s = state{ends[0], ends[1]}
	note(s)
	return s, true, nil
}

// borrow calls f with a connection that reads.
func (d *Database) borrow(ctx context.Context, f func(*feedReader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-d.closing: // there may be an idle one still
		return ErrClosed
	default:
	}
	select {
	case r := <-d.readers:
		defer func() { d.readers <- r }()
		old := r.SetInterrupt(ctx)
		defer r.SetInterrupt(old)
		err := f(r)
		if err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-d.closing:
		return ErrClosed
	}
}

// read calls f in a read transaction.
func (d *Database) read(ctx context.Context, f func(*feedReader) error) error {
	return d.borrow(ctx, func(r *feedReader) error {
		defer r.rollback()
		if _, err := d.begin(ctx, r, false, func(state) {}); err != nil {
			return fmt.Errorf("sqlite: reading: %w", err)
		}
		return f(r)
	})
}

// fence is the last entry of the log that was seen.
type fence int64

func (f fence) Includes(tx *feed.Tx) bool { return tx.ID <= uint64(f) }

type snapshot struct {
	r     *feedReader // nil when it is over
	fence fence
}

// Read implements [feed.Database].
func (d *Database) Read(ctx context.Context, f func(feed.Snapshot) error) error {
	return d.borrow(ctx, func(r *feedReader) error {
		defer r.rollback()
		// What the read sees ends where a transaction ended, and the follower must end one there too.
		at, err := d.begin(ctx, r, false, func(s state) { d.markLocked(s.last) })
		if err != nil {
			return fmt.Errorf("sqlite: reading: %w", err)
		}
		s := &snapshot{r, fence(at.last)}
		defer func() { s.r = nil }()
		return f(s)
	})
}

func (s *snapshot) Fence() feed.Fence { return s.fence }

func (s *snapshot) Select(ctx context.Context, q feed.Select) ([]row.Row, error) {
	if s.r == nil {
		return nil, errors.New("sqlite: the snapshot is over")
	}
	// The one of Read stays in force.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outer := s.r.GetInterrupt()
	defer context.AfterFunc(outer, cancel)()
	defer s.r.SetInterrupt(outer)
	s.r.SetInterrupt(ctx)

	rows, err := s.query(q)
	switch {
	case err != nil && outer.Err() != nil:
		return nil, outer.Err()
	case err != nil && ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("sqlite: selecting from %s: %w", q.Table.Name, err)
	}
	return rows, nil
}

func (s *snapshot) query(q feed.Select) ([]row.Row, error) {
	stmt, err := s.r.statement(q.SQL)
	if err != nil {
		return nil, err
	}
	if n := stmt.ColumnCount(); n != len(q.Table.Columns) {
		return nil, fmt.Errorf("%w: %d columns instead of %d", feed.ErrAltered, n, len(q.Table.Columns))
	}
	if err := stmt.bind(q.Args); err != nil {
		return nil, err
	}
	return stmt.rows()
}
