package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

var background = context.Background()

var (
	// ErrClosed means that the database was closed.
	ErrClosed = errors.New("sqlite: closed")
	// ErrGap means that the log does not tell everything since a position: it was pruned, or a table was altered.
	ErrGap = errors.New("sqlite: the log does not reach back to the position")
	// ErrFileGone means that the file was deleted, or another was put in its place: what is open is no longer what others see.
	ErrFileGone = errors.New("sqlite: the file was deleted or replaced")
)

// DatabaseOptions configures a [Database]. The zero value is ready to use.
type DatabaseOptions struct {
	// Logger receives what went wrong and was mended. Nil means [slog.Default].
	Logger *slog.Logger
	// Poll is how often to look for commits of other programs; five times as often for a second after there was one. Zero means 25 ms.
	Poll time.Duration
	// Readers is how many reads run at once, each on a connection of its own. Zero means 4.
	Readers int
	// BusyTimeout is how long to wait for another program that writes to the file. Zero means 5 s.
	BusyTimeout time.Duration
	// KeepAge and KeepBytes are how much of the log is kept for [Database.Since]. Zero means 24 hours and 64 MiB.
	KeepAge   time.Duration
	KeepBytes int64
	// MaxBytes bounds the values of one transaction in memory; a larger one resets the feed. Zero means 64 MiB.
	MaxBytes int64
}

// Database is a SQLite file whose tables can be followed. It implements [feed.Database]; its methods may be called from any goroutine. docs/sqlite.md says what
// it has in the file.
//
// # Capture
//
// Triggers write each change of a followed table, with all cells of the old and the new row, into a log in the same transaction. So writes of all processes are
// seen, what was rolled back is not, and the log survives both the writers and this process. Other programs need nothing but SQLite. What fires no triggers is
// not seen: the backup API, incremental blob I/O, edits of the schema table.
//
// # Transactions
//
// SQLite does not say which transaction an entry of the log belongs to. A transaction of [Database.Write] comes as one. Those of other programs that were
// committed between two looks at the log come together as one, in their order; one is never divided, and none straddles the state that a [Database.Read] saw. Two processes
// may join them differently.
//
// # Schema changes
//
// Every read looks at the version of the schema. When a followed table was altered, its triggers are made anew before anything is read, the log gets a cut, and
// the feed begins anew ([feed.Sink].Reset).
//
// # Bounds
//
// The log is kept for KeepAge and KeepBytes, and pruned by Run in transactions of a few rows; when no Run is there for long, it grows. In memory is one chunk of
// it: about 4 MiB, or one transaction up to MaxBytes. A sink that does not return keeps the log.
//
// # Failures
//
// A locked or full file and failed I/O are logged and tried again, with delays up to 5 s; nothing is lost meanwhile. Run returns when the file is damaged, was
// deleted or replaced ([ErrFileGone]), and after Close ([ErrClosed]).
type Database struct {
	opts    DatabaseOptions
	path    string
	file    os.FileInfo
	turn    chan struct{} // full while somebody has the writer; Close keeps it
	writer  *feedWriter
	readers chan *feedReader // those that are idle
	closing chan struct{}
	close   func() error
	wake    chan struct{}

	// verified is a version of the schema in which all triggers were found as they must be.
	verified atomic.Int64

	// The feed's looks at the file: the number of the last that began, and of the last after which all was delivered.
	looks, looked atomic.Int64

	// committing is held over a commit and the note of its end, so that the follower never sees one without the other.
	committing sync.Mutex

	mu      sync.Mutex // guards below; also held while a read or the follower takes its state of the file
	running bool
	marks   []int64              // ends of transactions that the follower has not passed, ascending
	tables  map[int64]*row.Table // by the number of their triggers
}

var _ feed.Database = (*Database)(nil)

type feedWriter struct {
	*conn
	pages, next int // of the write-ahead log: how many there are, and when to checkpoint
}

// OpenDatabase opens a file, and makes it if there is none. It turns write-ahead logging on, and makes the tables of the log.
func OpenDatabase(path string, opts DatabaseOptions) (*Database, error) {
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	if opts.Readers <= 0 {
		opts.Readers = 4
	}
	if opts.Poll <= 0 {
		opts.Poll = 25 * time.Millisecond
	}
	if opts.BusyTimeout <= 0 {
		opts.BusyTimeout = 5 * time.Second
	}
	if opts.KeepAge <= 0 {
		opts.KeepAge = 24 * time.Hour
	}
	if opts.KeepBytes <= 0 {
		opts.KeepBytes = 64 << 20
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 64 << 20
	}
	d := &Database{
		opts: opts, turn: make(chan struct{}, 1), readers: make(chan *feedReader, opts.Readers), closing: make(chan struct{}), wake: make(chan struct{}, 1),
		tables: map[int64]*row.Table{},
	}
	d.close = sync.OnceValue(d.closeOnce)
	if err := d.open(path); err != nil {
		return nil, fmt.Errorf("sqlite: opening %s: %w", path, errors.Join(err, d.release(len(d.readers))))
	}
	return d, nil
}

func (d *Database) open(path string) (err error) {
	if d.path, err = create(path); err != nil {
		return err
	}
	if d.file, err = os.Stat(d.path); err != nil {
		return err
	}
	c, err := connect(d.path, d.opts.BusyTimeout)
	if err != nil {
		return err
	}
	d.writer = &feedWriter{conn: c, next: walPages}
	mode, err := c.all("PRAGMA main.journal_mode = WAL")
	if err != nil {
		return err
	}
	if got := mode[0][0].Text(); got != "wal" {
		return fmt.Errorf("the file stays in journal mode %s", got)
	}
	if err := c.Exec("PRAGMA synchronous = FULL"); err != nil {
		return err
	}
	c.WALHook(func(_ *sqlite3.Conn, _ string, pages int) error { // and no automatic checkpoints, which would be part of the commit
		d.writer.pages = pages
		return nil
	})
	if _, err := d.mend(background, ""); err != nil {
		return err
	}
	for len(d.readers) < cap(d.readers) {
		r, err := d.newReader()
		if err != nil {
			return err
		}
		d.readers <- r
	}
	return sameMode(d.path, d.path+"-wal", d.path+"-shm")
}

// Close ends the database and waits for what is in progress. Run returns [ErrClosed].
func (d *Database) Close() error { return d.close() }

func (d *Database) closeOnce() error {
	close(d.closing)
	d.turn <- struct{}{}
	if err := d.release(cap(d.readers)); err != nil {
		return fmt.Errorf("sqlite: closing: %w", err)
	}
	return nil
}

func (d *Database) release(readers int) error {
	var errs []error
	for range readers {
		errs = append(errs, (<-d.readers).Close())
	}
	if d.writer != nil {
		errs = append(errs, d.writer.Close())
	}
	return errors.Join(errs...)
}

// write calls f with the connection that writes.
func (d *Database) write(ctx context.Context, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-d.closing:
		return ErrClosed
	default:
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-ctx.Done():
		return ctx.Err()
	case <-d.closing:
		return ErrClosed
	}
	d.writer.SetInterrupt(ctx)
	defer d.writer.SetInterrupt(background)
	if err := f(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

// Tx is a transaction of [Database.Write]. It is good until the function returns, and used by one goroutine.
type Tx struct{ c *conn }

// Exec runs statements, or one with arguments, and returns how many rows were inserted, updated or deleted by the last one, triggers apart.
func (t *Tx) Exec(sql string, args ...any) (changed int64, err error) {
	if len(args) == 0 {
		err = t.c.Exec(sql)
	} else {
		err = t.c.run(sql, args...)
	}
	if err != nil {
		return 0, err
	}
	return t.c.Changes(), nil
}

// Query runs a query with the arguments given and returns its rows.
func (t *Tx) Query(sql string, args ...any) ([]row.Row, error) { return t.c.all(sql, args...) }

// Write calls f in a transaction, which is committed if f does not fail, and synced when Write returns. One runs at a time; it waits for its turn, and as long as
// [DatabaseOptions.BusyTimeout] for other programs. The feed is told at once, and has the transaction as one.
func (d *Database) Write(ctx context.Context, f func(tx *Tx) error) error {
	return d.write(ctx, func() error {
		w := d.writer
		if err := w.Exec("BEGIN IMMEDIATE"); err != nil {
			return fmt.Errorf("sqlite: writing: %w", err)
		}
		defer w.rollback()
		first, err := w.number(lastSQL)
		if err != nil {
			return err
		}
		if err := f(&Tx{w.conn}); err != nil {
			return err
		}
		if w.GetAutocommit() {
			return errors.New("sqlite: writing: the transaction was ended inside")
		}
		last, err := w.number(lastSQL)
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		w.SetInterrupt(background)
		if err := d.commit(first, last); err != nil {
			return fmt.Errorf("sqlite: committing: %w", err)
		}
		if last > first {
			d.notify()
		}
		d.checkpoint()
		return nil
	})
}

// commit commits the transaction between two entries of the log.
func (d *Database) commit(first, last int64) error {
	d.committing.Lock()
	defer d.committing.Unlock()
	if err := d.writer.Exec("COMMIT"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.markLocked(first)
	d.markLocked(last)
	return nil
}

// maxMarks bounds the ends of transactions that are remembered for a slow sink: what comes then is delivered together.
const maxMarks = 1 << 16

// markLocked notes that a transaction ended at an entry of the log.
func (d *Database) markLocked(id int64) {
	i := len(d.marks)
	for i > 0 && d.marks[i-1] > id {
		i--
	}
	if !d.running || len(d.marks) == maxMarks || i > 0 && d.marks[i-1] == id {
		return
	}
	d.marks = append(d.marks, 0)
	copy(d.marks[i+1:], d.marks[i:])
	d.marks[i] = id
}

func (d *Database) notify() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// checkpoint moves the write-ahead log into the file when it has grown, and is called by who has the turn. The transactions in it are safe: a failure is for the
// log alone.
func (d *Database) checkpoint() {
	w := d.writer
	if w.pages < w.next {
		return
	}
	all, done, err := w.WALCheckpoint("main", sqlite3.CHECKPOINT_PASSIVE)
	w.next = walPages
	if err != nil || done < all { // readers need the rest: not at each commit again
		w.next = w.pages + walPages
	}
	if err != nil {
		d.opts.Logger.Warn("sqlite: the write-ahead log was not checkpointed", "error", err)
	}
}

// Engine implements [feed.Database].
func (d *Database) Engine() row.Engine { return row.SQLite }

// Table implements [feed.Database]. The schema is main, or empty.
func (d *Database) Table(ctx context.Context, name row.Name) (*row.Table, error) {
	if name.Schema != "" && !strings.EqualFold(name.Schema, "main") {
		return nil, fmt.Errorf("sqlite: %w: %s", feed.ErrNoTable, name)
	}
	var table *row.Table
	find := func(c *conn) error {
		defs, err := c.followed()
		if err != nil {
			return err
		}
		s, err := c.describe(name.Table)
		if err != nil {
			return err
		}
		for def, followed := range defs {
			if followed == s.table.Table {
				table = d.remember(def, s)
			}
		}
		return nil
	}
	if err := d.read(ctx, func(r *feedReader) error { return find(r.conn) }); err != nil || table != nil {
		return table, err
	}
	if _, err := d.mend(ctx, name.Table); err != nil {
		return nil, err
	}
	err := d.read(ctx, func(r *feedReader) error { return find(r.conn) })
	if err == nil && table == nil {
		err = fmt.Errorf("sqlite: %w: %s", feed.ErrNoTable, name) // it was dropped meanwhile
	}
	return table, err
}

// remember returns the one table of a number.
func (d *Database) remember(def int64, s *shape) *row.Table {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tables[def] == nil {
		d.tables[def] = s.table
	}
	return d.tables[def]
}

// Uninstall removes the triggers and the log from the file and closes the database. Another process that follows the file would make them again: end it first.
func (d *Database) Uninstall(ctx context.Context) error {
	d.mu.Lock()
	running := d.running
	d.mu.Unlock()
	if running {
		return errors.New("sqlite: uninstalling: Run has not returned")
	}
	err := d.write(ctx, func() error {
		return d.writer.atomically("BEGIN IMMEDIATE", func() error {
			found, err := d.writer.all(`SELECT type, name FROM main.sqlite_schema WHERE type IN ('table', 'trigger') AND substr(name, 1, ?) = ? ORDER BY type DESC`,
				len(prefix), prefix)
			if err != nil {
				return err
			}
			for _, r := range found {
				if err := d.writer.Exec("DROP " + r[0].Text() + " main." + quote(r[1].Text())); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("sqlite: uninstalling: %w", err)
	}
	return d.Close()
}
