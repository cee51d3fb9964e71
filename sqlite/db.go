package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/ncruces/go-sqlite3"
)

const (
	applicationID = 0x54576972 // "TWir"
	schemaVersion = 1
)

// ErrInUse means that another process, or another store of this one, has the file open.
var ErrInUse = errors.New("the file is in use by another process")

const schema = `
-- One row. The generation is the epoch of names that have no log.
CREATE TABLE stream_state (generation TEXT NOT NULL);

-- name is NULL in a log that was reset, until its rows are swept. An id is never used again.
-- Entries from tail on are stored, from first on they are kept. bytes is the data of all entries ever. age is the retention in nanoseconds.
-- keyed counts the keyed appends ever. due is when Sweep should look.
CREATE TABLE stream_logs (
	id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, epoch TEXT NOT NULL, head INTEGER NOT NULL, first INTEGER NOT NULL, tail INTEGER NOT NULL,
	bytes INTEGER NOT NULL, age INTEGER NOT NULL, keyed INTEGER NOT NULL, due INTEGER) STRICT;
CREATE INDEX stream_logs_due ON stream_logs (due) WHERE due IS NOT NULL;

-- before is the data of all entries before this one: so the size of any run is a difference of two.
CREATE TABLE stream_entries (
	log INTEGER NOT NULL, "offset" INTEGER NOT NULL, at INTEGER NOT NULL, before INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (log, "offset")) STRICT, WITHOUT ROWID;

-- In the order of the appends of all logs, so that old ones are found without an index. number counts the keyed appends of the log.
CREATE TABLE stream_keys (
	id INTEGER PRIMARY KEY, log INTEGER NOT NULL, key TEXT NOT NULL, "offset" INTEGER NOT NULL, number INTEGER NOT NULL, at INTEGER NOT NULL, UNIQUE (log, key)) STRICT;
`

// conn is a connection with the statements that it keeps. It is used by one goroutine at a time.
type conn struct {
	*sqlite3.Conn
	err error // of prepare
}

// statement keeps the first error of its bindings until it is run.
type statement struct {
	*sqlite3.Stmt
	err error
}

func connect(path string, busy time.Duration) (*conn, error) {
	db, err := sqlite3.OpenFlags(path, sqlite3.OPEN_READWRITE)
	if err != nil {
		return nil, err
	}
	if err := db.BusyTimeout(busy); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &conn{Conn: db}, nil
}

func (c *conn) prepare(sql string) *statement {
	stmt, _, err := c.PrepareFlags(sql, sqlite3.PREPARE_PERSISTENT)
	if c.err == nil {
		c.err = err
	}
	return &statement{Stmt: stmt}
}

// Close closes the connection with its statements.
func (c *conn) Close() error {
	var errs []error
	for _, s := range slices.Collect(c.Stmts()) {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.Conn.Close())...)
}

// number asks for one number.
func (c *conn) number(sql string) (n int64, err error) {
	stmt, _, err := c.Prepare(sql)
	if err != nil {
		return 0, err
	}
	if stmt.Step() {
		n = stmt.ColumnInt64(0)
	}
	return n, errors.Join(stmt.Err(), stmt.Close())
}

func (s *statement) keep(err error) {
	if s.err == nil {
		s.err = err
	}
}

// ints binds numbers to the parameters from the first on.
func (s *statement) ints(first int, values ...int64) *statement {
	for i, v := range values {
		s.keep(s.BindInt64(first+i, v))
	}
	return s
}

func (s *statement) text(param int, value string) *statement {
	s.keep(s.BindText(param, value))
	return s
}

func (s *statement) blob(param int, value []byte) *statement {
	if value == nil {
		value = []byte{}
	}
	s.keep(s.BindBlob(param, value))
	return s
}

func (s *statement) exec() error {
	if err := s.err; err != nil {
		s.err = nil
		return err
	}
	return s.Exec()
}

// row steps to the next row and reports whether there is one. After the last one, and after an error, the statement is reset; before, the caller must.
func (s *statement) row() (bool, error) {
	err := s.err
	s.err = nil
	if err == nil {
		if s.Step() {
			return true, nil
		}
		err = s.Err()
	}
	s.done()
	return false, err
}

// done ends a query. The error of a reset is that of the step before it.
func (s *statement) done() { _ = s.Reset() }

// open opens the file and its lock, and makes the schema in a new one.
func open(path string, busy time.Duration) (db *conn, lock *conn, file string, err error) {
	if file, err = create(path); err != nil {
		return nil, nil, "", err
	}
	if lock, err = acquire(file + "-lock"); err != nil {
		return nil, nil, "", err
	}
	if db, err = connect(file, busy); err != nil {
		return nil, nil, "", errors.Join(err, lock.Close())
	}
	if err = db.init(); err == nil {
		// SQLite makes its own files with the mode of any file; the database may have been given more than its owner's since.
		err = sameMode(file, file+"-wal", file+"-shm")
	}
	if err != nil {
		return nil, nil, "", errors.Join(err, db.Close(), lock.Close())
	}
	return db, lock, file, nil
}

// create makes a file for its owner alone, if there is none, and returns its real name, so that two names of one file have one lock.
func create(path string) (file string, err error) {
	if path == "" {
		return "", errors.New("no name of a file")
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// acquire locks a file for as long as the connection is open. SQLite's own locks serve: they work on every system that the database does.
func acquire(path string) (*conn, error) {
	if _, err := create(path); err != nil {
		return nil, err
	}
	lock, err := connect(path, 0)
	if err != nil {
		return nil, err
	}
	if err := lock.Exec("PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE"); err != nil {
		if errors.Is(err, sqlite3.BUSY) {
			err = ErrInUse
		}
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func (c *conn) init() error {
	application, err := c.number("PRAGMA application_id")
	if err != nil {
		return err
	}
	version, err := c.number("PRAGMA user_version")
	if err != nil {
		return err
	}
	tables, err := c.number("SELECT count(*) FROM sqlite_schema")
	if err != nil {
		return err
	}
	fresh := application == 0 && version == 0 && tables == 0
	switch {
	case fresh:
		if err := c.Exec("PRAGMA auto_vacuum = INCREMENTAL"); err != nil { // before anything is written
			return err
		}
	case application != applicationID:
		return errors.New("the file is a database of something else")
	case version > schemaVersion:
		return fmt.Errorf("the file has the version %d, and this program knows up to %d", version, schemaVersion)
	}
	if err := c.Exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -32768"); err != nil {
		return err
	}
	if !fresh {
		return nil
	}
	return c.Exec(fmt.Sprintf("BEGIN IMMEDIATE; %s PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT", schema, applicationID, schemaVersion))
}

func sameMode(path string, others ...string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, o := range others {
		if err := os.Chmod(o, info.Mode().Perm()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
