// Package feed is what live queries need of a database: reads of which one knows exactly what they saw, and the stream of committed changes. Implementations pass package feedtest.
//
// # Transactions
//
// A [Tx] is everything that one transaction changed in the tables of the feed, in the order in which it did, and comes only after its commit. What was rolled back, to a savepoint or
// altogether, is not in it. Transactions come in the order of their commits, each once: its [Position] is above that of the one before.
//
// A database whose log does not say where a transaction ends may deliver several that were committed one after another as one Tx, in their order (SQLite does with those of other programs). A Tx is always whole
// commits, and no fence divides it: who applies a Tx at once goes from one state of the database to a later one, never to half a transaction.
//
// # Reads
//
// A [Snapshot] sees one state of the database. Its [Fence] says of every transaction of the feed whether that state includes it. So who asks for the feed first, and reads then, applies to what was
// read exactly the transactions that the fence does not include, and neither loses one nor applies it twice.
//
// A read that does not fit its table any more fails with [ErrAltered]. A snapshot that is a [BatchSnapshot] does the same read for many arguments in one statement.
//
// # Loss
//
// A feed that cannot go on where it was (its slot or its log is gone, tables were changed in ways it cannot follow) says so with [Sink.Reset]: everything that was read before is void and must be read again. It
// is never silent about a gap.
//
// # Ownership
//
// A Tx belongs to the sink; rows are shared and never changed. A sink that does not return holds the feed up, and with it the database's log: it must queue within bounds, or give up what it keeps.
package feed

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidewire/tidewire/row"
)

// Position is where a feed is: text that sorts as the commits do, within one feed. Empty is before everything.
type Position string

// Op is what happened to a row.
type Op uint8

// The operations.
const (
	Insert Op = iota + 1
	Update
	Delete
	Truncate // of the whole table; there are no rows
)

func (o Op) String() string {
	switch o {
	case Insert:
		return "insert"
	case Update:
		return "update"
	case Delete:
		return "delete"
	case Truncate:
		return "truncate"
	}
	return fmt.Sprintf("Op(%d)", o)
}

// Change is one change of one row.
type Change struct {
	Op Op
	// Table is the table as it was at the change. It is another pointer after the table was altered, and the same otherwise.
	Table *row.Table
	// Old is the row before an Update or Delete, New that after an Insert or Update. A cell that the feed does not know is Absent; the key is always known. A change of the key is a Delete and an Insert.
	Old, New row.Row
}

// Tx is one committed transaction, or several that no fence divides.
type Tx struct {
	// Position is behind the transaction.
	Position Position
	// ID is what fences compare: in PostgreSQL the transaction's 64-bit id, in SQLite the number of its last entry in the log.
	ID uint64
	// Changes are in the order in which they were made.
	Changes []Change
}

// Fence says what a snapshot saw.
type Fence interface {
	// Includes reports whether the snapshot saw the transaction.
	Includes(tx *Tx) bool
}

// Select is one read.
type Select struct {
	Table *row.Table
	// SQL selects all columns of the table in their order, with Args as the parameters.
	SQL  string
	Args []any
	// Rows says the same without SQL, for databases that have none: which rows, in which order, at most how many (zero: all).
	Match func(row.Row) bool
	Less  func(a, b row.Row) bool
	Limit int
}

// Snapshot reads one state of a database.
type Snapshot interface {
	Fence() Fence
	// Select returns the rows of a read.
	Select(ctx context.Context, s Select) ([]row.Row, error)
}

// Batch is one read for many arguments.
type Batch struct {
	Table *row.Table
	// SQL selects the number of the arguments, from 1 on, and then all columns of the table in their order: by rising number, and for each in the order of the read. Shared are its first parameters. For each
	// column of Args an array of texts follows, with one element for each row.
	SQL    string
	Shared []any
	Args   [][]any
}

// BatchSnapshot is a [Snapshot] that can read for many arguments in one statement. Where a statement costs no way to a server there is no need for it: from any other Snapshot one reads one after another.
type BatchSnapshot interface {
	Snapshot
	// SelectMany calls f with each row and the index in Args of what it was read for. The indexes rise, so that a read is complete when a row of a later one comes, or when SelectMany returns without an error; after
	// an error the last one may lack rows. f must not use the snapshot.
	SelectMany(ctx context.Context, b Batch, f func(i int, r row.Row)) error
}

// Sink takes what a feed delivers. Its methods are called from one goroutine at a time.
type Sink interface {
	// Commit takes the next transaction.
	Commit(tx *Tx)
	// Reset says that the feed begins anew at a position: transactions may be missing before it.
	Reset(at Position, reason string)
}

// Errors of databases.
var (
	// ErrNoTable means that there is no such table, or that the feed does not cover it.
	ErrNoTable = errors.New("feed: no such table")
	// ErrTableUnfit means that a table cannot be followed: it has no primary key, say.
	ErrTableUnfit = errors.New("feed: table cannot be followed")
	// ErrAltered means that a read does not fit its table, which was altered since it was described: Table describes it again.
	ErrAltered = errors.New("feed: the table was altered")
)

// Database is one database. Its methods may be called from any goroutine.
type Database interface {
	// Engine says how values are compared.
	Engine() row.Engine
	// Table describes a table and makes sure that the feed covers it.
	Table(ctx context.Context, name row.Name) (*row.Table, error)
	// Read calls f with a snapshot, which is good until f returns.
	Read(ctx context.Context, f func(Snapshot) error) error
	// Run feeds the sink until ctx ends, from the state at the call on, and returns when every goroutine has stopped. The first call of the sink is Reset, before any transaction: from that moment on nothing is
	// missing. It comes back by itself after a lost connection; the error says what it cannot mend. Only one Run at a time.
	Run(ctx context.Context, sink Sink) error
}
