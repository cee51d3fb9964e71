package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// Options configures a [Database].
type Options struct {
	// URL is the database, as libpq writes it. Its role reads the tables, and creates the publication and adds tables to it where that was not done before.
	URL string
	// ReplicationURL is the same database with a role that may replicate. Empty means URL. It must not go through a pooler.
	ReplicationURL string
	// Publication is created when it is missing, if the role of URL may. Empty means "tidewire".
	Publication string
	// Slot is the name of a durable slot. Empty means a temporary slot with a name of its own.
	Slot string
	// Tables are followed from the beginning. Others are when Table is called for them.
	Tables []row.Name
	// Reads is how many reads there may be at once. Zero means 4.
	Reads int
	// Heartbeat is how often the stream is confirmed and asked for a sign of life, and how often the catalog is compared. Zero means 10 s.
	Heartbeat time.Duration
	// Timeout is after which silence a connection is dead. Zero means 60 s. It must be longer than Heartbeat.
	Timeout time.Duration
	// MaxTransaction is how many bytes of changes one transaction may have, as the server sends them; a larger one resets the feed. Zero means 64 MiB.
	MaxTransaction int
	// Logger receives diagnostics. Nil means [slog.Default].
	Logger *slog.Logger
}

// ErrConfig means that the options are wrong.
var ErrConfig = errors.New("postgres: configuration")

// names are not quoted anywhere by people, so only those that need no quotes are taken; slots have no others.
var namePattern = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// session pins what the text of values depends on. And a read for a thousand arguments costs enough, in all, for the server to compile it, which takes longer than to run it.
var session = map[string]string{
	"jit":                "off",
	"application_name":   "tidewire",
	"bytea_output":       "hex",
	"client_encoding":    "UTF8",
	"DateStyle":          "ISO",
	"extra_float_digits": "3",
	"IntervalStyle":      "postgres",
	"lc_monetary":        "C",
	"search_path":        "pg_catalog",
	"TimeZone":           "UTC",
	"xmloption":          "content",
}

// Database is one PostgreSQL database. It may be used concurrently.
type Database struct {
	opts        Options
	log         *slog.Logger
	replication *pgconn.Config
	pool        *pgxpool.Pool
	version     int           // of the server, as 150018
	reads       chan struct{} // a place for each read; the pool has two connections more, for the catalog
	running     atomic.Bool

	// Positions and transaction ids, as far as they are known.
	seen      atomic.Uint64 // end of the log that has arrived
	delivered atomic.Uint64 // confirmed: the sink has everything before
	readLSN   atomic.Uint64 // end of the log that reads have seen, flushed or not
	lastXID   atomic.Uint64 // some recent 64-bit transaction id
	begun     xidSet        // transactions of the stream that have begun to arrive

	watch  watch // of Run
	tables registry
	ddl    sync.Mutex // held while a table is added to the publication

	mu    sync.Mutex // guards below
	stats Stats
	warn  map[row.Name]bool // warned of its replica identity
}

// Stats is what a database has done.
type Stats struct {
	// Connected reports whether the stream is established.
	Connected bool
	// StandingBy reports whether another process has the slot.
	StandingBy bool
	// Epoch names the stretch of the stream since the last reset that a loss caused: system, timeline and the position where it began.
	Epoch string
	// Position is behind the last transaction that was delivered, or the log without changes for the feed.
	Position feed.Position
	// Transactions, Changes, PartialOldRows, Resets and Reconnects are counted since Open.
	Transactions, Changes, Resets, Reconnects uint64
	// PartialOldRows counts old rows of which only the key was known, for want of REPLICA IDENTITY FULL.
	PartialOldRows uint64
}

// Open checks the options and connects. Close must be called.
func Open(ctx context.Context, o Options) (*Database, error) {
	if o.Publication == "" {
		o.Publication = "tidewire"
	}
	if o.ReplicationURL == "" {
		o.ReplicationURL = o.URL
	}
	if o.Reads <= 0 {
		o.Reads = 4
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = 10 * time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = max(60*time.Second, 3*o.Heartbeat)
	}
	if o.MaxTransaction <= 0 {
		o.MaxTransaction = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	for what, name := range map[string]string{"publication": o.Publication, "slot": o.Slot} {
		if name != "" && !namePattern.MatchString(name) {
			return nil, fmt.Errorf("%w: the %s %q must be of lower-case letters, digits and _, and not begin with a digit, with 63 at most", ErrConfig, what, name)
		}
	}
	if o.Timeout <= o.Heartbeat {
		return nil, fmt.Errorf("%w: the timeout %s must be longer than the heartbeat %s", ErrConfig, o.Timeout, o.Heartbeat)
	}
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: URL: %w", ErrConfig, err)
	}
	replication, err := pgconn.ParseConfig(o.ReplicationURL)
	if err != nil {
		return nil, fmt.Errorf("%w: replication URL: %w", ErrConfig, err)
	}
	if a, b := config.ConnConfig.Database, replication.Database; a != b {
		return nil, fmt.Errorf("%w: the replication URL names the database %q, the URL %q", ErrConfig, b, a)
	}
	config.MaxConns = int32(o.Reads) + 2
	for name, value := range session {
		config.ConnConfig.RuntimeParams[name] = value
		replication.RuntimeParams[name] = value
	}
	replication.RuntimeParams["replication"] = "database"
	replication.ConnectTimeout = min(o.Timeout, 15*time.Second)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: open: %w", err)
	}
	d := &Database{opts: o, log: o.Logger, replication: replication, pool: pool, reads: make(chan struct{}, o.Reads), warn: map[row.Name]bool{}}
	v, err := d.query(ctx, "SHOW server_version_num")
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: open: %w", err)
	}
	d.version, _ = strconv.Atoi(v[0][0])
	return d, nil
}

// Close closes the connections for reads, once they are done. Run must have returned.
func (d *Database) Close() { d.pool.Close() }

// Engine implements [feed.Database].
func (d *Database) Engine() row.Engine { return row.PostgreSQL }

// Stats returns what happened so far.
func (d *Database) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.stats
	s.Position = lsn(d.delivered.Load()).position()
	return s
}

func (d *Database) count(f func(*Stats)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(&d.stats)
}

// query runs one statement that is answered soon on a connection of the pool; all values come as text.
func (d *Database) query(ctx context.Context, sql string, args ...string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Timeout)
	defer cancel()
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	return texts(conn.Conn().PgConn().ExecParams(ctx, sql, values, nil, nil, nil).Read())
}

// texts turns a result into text; NULL is empty.
func texts(result *pgconn.Result) ([][]string, error) {
	if result.Err != nil {
		return nil, result.Err
	}
	out := make([][]string, len(result.Rows))
	for i, r := range result.Rows {
		out[i] = make([]string, len(r))
		for j, v := range r {
			out[i][j] = string(v)
		}
	}
	return out, nil
}

// script runs statements of which the last that returns rows counts.
func script(ctx context.Context, conn *pgconn.PgConn, sql string) ([][]string, error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	for i := len(results) - 1; i >= 0; i-- {
		if len(results[i].FieldDescriptions) > 0 {
			return texts(results[i])
		}
	}
	return nil, nil
}

// sqlState returns the code of an error of the server, or "".
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
