package live

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// Errors of [Engine.Acquire]. A bad input is an error that wraps [query.ErrInput]; a context that ends is that context's error.
var (
	// ErrUnknown means that no query of this name was declared.
	ErrUnknown = errors.New("live: unknown query")
	// ErrRefused means that the database cannot serve the declaration: there is no such table, or the definition does not fit it. It says which.
	ErrRefused = errors.New("live: declaration refused")
	// ErrEntries means that the node has as many entries as it may ([Options.MaxEntries]).
	ErrEntries = errors.New("live: too many live queries")
	// ErrRows means that the result of a query without a limit is larger than an entry may be ([Options.MaxRows], [Options.MaxEntryBytes]).
	ErrRows = errors.New("live: result too large")
	// ErrTimeout means that the read did not come back within [Options.ReadTimeout].
	ErrTimeout = errors.New("live: read timed out")
	// ErrRead means that the database could not be read.
	ErrRead = errors.New("live: read failed")
	// ErrStopped means that the engine has stopped.
	ErrStopped = errors.New("live: stopped")
)

// Options configure an [Engine].
type Options struct {
	// Database is read and followed. It is required.
	Database feed.Database
	// Publish gets the frames of an entry in the order of their versions, one at a time for one entry and at the same time for several. [Entry.Since] and [Entry.Snapshot] have a frame before it is
	// published, so what they return covers everything that was published before. It may call the entry's methods, must not wait for the database, and delays only its entry until all workers are held
	// up. Nil publishes nothing.
	Publish func(e *Entry, f Frame)
	// Settled says that every entry that a transaction concerned has taken it in, and which published frames of it; it is called after Publish has returned for each of them, from several goroutines at a time and in
	// any order, and like Publish must not wait. It is called once for each [Frame.Commit] that was published. Commits are numbered in the order of the transactions; one that concerns a single entry has no number. An
	// entry that is read, or waits for that, is not waited for: what it shows of the transaction comes without the number. Nil: there are no groups.
	Settled func(commit uint64, published []*Entry)
	// Failed says that an entry is over: it grew beyond its bounds, or its table can no longer serve it. It publishes no more, and the next [Engine.Acquire] makes a new one. Holders still release it.
	Failed func(e *Entry, err error)

	// MaxEntries bounds the pairs of query and input, those that linger included; reservations are taken before any wait. Zero means 10,000.
	MaxEntries int
	// MaxRows bounds the rows of a query without a limit. Zero means 10,000.
	MaxRows int
	// MaxEntryBytes bounds the rows of an entry. Zero means 16 MiB.
	MaxEntryBytes int
	// RingFrames and RingBytes bound what an entry retains for [Entry.Since], RetainBytes what all do, encoded snapshots included. Zero means 256, 1 MiB and 64 MiB.
	RingFrames  int
	RingBytes   int
	RetainBytes int
	// RecentBytes bounds what is kept of the last changes of each table for [Entry.Delta]. Zero means 4 MiB, negative nothing.
	RecentBytes int
	// Linger is how long an entry stays up to date after the last release. Zero means 30 s, negative not at all.
	Linger time.Duration

	// ReadTimeout bounds a read of the database. Zero means 30 s.
	ReadTimeout time.Duration
	// Reads bounds the snapshots of the database at the same time, ReadGroup the entries that share one and, as far as they are of one query and the database can ([feed.BatchSnapshot]), one statement. Zero means 4
	// and 1,000.
	Reads     int
	ReadGroup int
	// Debounce is the least time between two reads of one entry of the class rerun. Zero means 100 ms.
	Debounce time.Duration
	// Retry is the delay before an entry is read again after a failure. Zero means 1 s.
	Retry time.Duration

	// Buffer bounds the transactions that an entry keeps while it is being read; with more it is read again. Zero means 1,024.
	Buffer int
	// Pending bounds the transactions that wait for a worker, counted for each entry; with more the feed waits. Zero means 16,384.
	Pending int
	// Workers is the number of goroutines that apply transactions to entries. Zero means GOMAXPROCS, at least two.
	Workers int

	// Logger gets what an operator must know. Nil means slog.Default.
	Logger *slog.Logger
}

// Engine keeps live queries up to date.
type Engine struct {
	opts  Options
	log   *slog.Logger
	start time.Time
	epoch string // of this engine

	mu        sync.Mutex // guards below; never held while anything waits, and before all others
	templates map[string]*template
	tables    map[row.Name]*table
	entries   map[ident]*Entry
	ids       map[string]*Entry
	lingerers []lingerer // in the order in which their time is up
	running   bool

	// Of the feed's goroutine.
	seq       uint64
	commits   uint64 // groups
	touched   []*Entry
	ready     []*Entry
	lastDef   *row.Table
	lastTable *table

	began      atomic.Bool   // the feed has
	following  chan struct{} // closed when the feed has begun and its tables are known
	followOnce sync.Once
	stopped    chan struct{}
	room       sync.Cond
	stopping   bool // guarded by room.L
	pending    atomic.Int64
	retained   atomic.Int64
	epochs     atomic.Uint64
	lanes      lanes
	reads      reads
	checks     checks
	stats      counters
}

// New makes an engine. It starts nothing.
func New(o Options) *Engine { return newEngine(o) }

// Run follows the database until ctx ends, and returns when every goroutine has stopped. It returns an error that wraps [ErrRefused] at once when the database refuses a declaration, and the
// feed's error when that cannot go on. It is called once.
func (e *Engine) Run(ctx context.Context) error { return e.run(ctx) }

// Declare declares a query, before or during Run. It is compiled when Run begins or when it is used first; a declaration that is refused then is an [ErrRefused] of Run or Acquire.
func (e *Engine) Declare(def query.Definition) error { return e.declare(def, nil) }

// Policy decides whether an actor may see a row. It is called from several goroutines at a time. An error means that it could not decide: the row keeps the state it had, the failure is counted
// and logged, and the entry is read again after [Options.Retry].
type Policy func(actor json.RawMessage, r PolicyRow) (visible bool, err error)

// DeclareWith declares a query whose rows also pass a policy. Its entries belong to one actor each: the actor's JSON is part of what identifies them.
func (e *Engine) DeclareWith(def query.Definition, policy Policy) error {
	return e.declare(def, policy)
}

// QueryInfo is a declared query as it is shown to operators.
type QueryInfo struct {
	Name     string
	Table    string
	Compiled bool        // Class and Reason are known
	Class    query.Class // how it is kept up to date
	Reason   string      // why it is [query.Rerun], or why it was refused
	Policy   bool
	Entries  int
}

// Queries lists the declared queries by name.
func (e *Engine) Queries() []QueryInfo { return e.queries() }

// Acquire returns the entry of a query with an input, ready to be read; it is shared by all who ask with the same input and the same attributes of the actor, as far as the query uses them. A cold
// entry is read once; who comes meanwhile waits for the same read. Each success is one [Entry.Release] to come.
func (e *Engine) Acquire(ctx context.Context, name string, input, actor json.RawMessage) (*Entry, error) {
	return e.acquire(ctx, name, input, actor)
}

// ID identifies the entry on the wire (qid): 16 hex digits of the hash of name and input, and a suffix if another entry has those.
func (en *Entry) ID() string { return en.id }

// Query returns what the entry's query was compiled to, for its key and its predicate ([query.Query.Predicate]). It is another one after the table was altered.
func (en *Entry) Query() *query.Query { return en.query() }

// Epoch names the continuity of the versions. It is another one after every loss (and for every new entry): a position of another epoch is void. Versions go on rising over a change of epoch, so that
// a position from before it is never one of the new epoch by accident.
func (en *Entry) Epoch() string { return en.epochNow() }

// Version is that of the last frame.
func (en *Entry) Version() uint64 { return en.versionNow() }

// Since returns the frames behind a version, at most limit of them (zero: all), and true. Empty and true means that there are none. False means that the entry does not have them all: then its
// [Entry.Snapshot] says everything.
func (en *Entry) Since(after uint64, limit int) ([]Frame, bool) { return en.since(after, limit) }

// Snapshot returns the window at its last version, encoded once per version.
func (en *Entry) Snapshot() Frame { return en.snapshot() }

// Delta returns the frame of the entry's version that leads there from rows with a checksum, as frames carry it in sum, whichever engine over the same database made them. It undoes the last changes of the
// table ([Options.RecentBytes]) until the window has that sum, so no database work is done. A subscriber that comes from another node with it is at the version before, in the entry's epoch. It is false when the
// sum is not met, because the rows are too old, or of a state that this engine's feed did not show (SQLite may join transactions), or not of this query; when old rows are not known as a whole; and when a
// snapshot is less work.
func (en *Entry) Delta(sum string) (Frame, bool) { return en.delta(sum) }

// Release gives the entry back. After the last release it lingers ([Options.Linger]), and is gone. A release too many is ignored.
func (en *Entry) Release() { en.release() }
