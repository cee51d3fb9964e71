// Package postgres is a PostgreSQL database for live queries: reads that know what they saw, and the stream of committed changes from logical replication (pgoutput). It implements [feed.Database].
//
// # Transactions
//
// A [feed.Tx] is one committed transaction of the database with what it changed in the tables that were asked for with [Database.Table], complete, in order, and in the order of the commits. Its ID is the 64-bit
// transaction id, its Position the end of its commit record in the log as 16 hexadecimal digits. After a reconnect nothing comes twice: what the server sends again is dropped by position.
//
// # Reads
//
// A read is one transaction (repeatable read, read only) that begins with pg_current_snapshot(); its fence compares transaction ids, never positions. A commit is in the log a moment before it is visible, and with
// synchronous replication long before, so the stream can be ahead of a snapshot. Read therefore waits until its snapshot includes every transaction that the stream has begun to deliver: whoever reads after a
// transaction was delivered sees it. The other way round a snapshot can see a commit that is not flushed yet (synchronous_commit=off): the fence includes it when it comes.
// If the server dies before it flushed what a read has seen, the feed is reset.
//
// A snapshot is a [feed.BatchSnapshot]: what is read for many arguments goes to the server and back once.
//
// TRUNCATE does not keep old versions: a read whose snapshot is older than a TRUNCATE that was committed before it came to the table finds the table empty. The fence does not include
// the TRUNCATE, and with it the rows are right again.
//
// # Slots
//
// Without [Options.Slot] the slot is temporary: the server drops it with the connection, so that nothing is left behind and no log is kept after a crash, and every lost connection is a reset. That is the default, since all
// windows are read again when a process starts, and the only thing that a durable slot saves is the reset after a short loss of the connection. A durable slot keeps the log of the server for as long as nobody reads it.
// It is created when it is missing, and again when it was lost; it stays when Run ends, see [Database.DropSlot]. Only one process uses it, the one that holds its advisory lock, which the replication connection
// itself holds; others stand by in Run and begin, with a reset, when it dies.
//
// # Confirmation
//
// A transaction is confirmed to the server after [feed.Sink.Commit] has returned, at least every [Options.Heartbeat], and so is the log of what does not concern the feed: it does not pile up while the feed is idle. Status goes out on its own
// goroutine, so a sink that blocks holds up the stream and the log of the server, but not the connection.
//
// # Loss
//
// The sink is reset when something may be missing: a slot that is gone, lost, or was moved by somebody else; another system or timeline; a crash with unflushed reads; a transaction of more than
// [Options.MaxTransaction] bytes; changes of the catalog that move rows without a change of a row: a table altered, dropped, taken out of the publication, a partition attached, detached or truncated; a publication
// that was altered or created anew: while it leaves kinds of changes out, its tables are refused, and when it has them again all is read again.
// The catalog is compared at every heartbeat.
//
// # Bounds
//
// At most one transaction is held, up to MaxTransaction bytes. There is no queue: the stream is read by the goroutine that calls the sink. Reads are limited by [Options.Reads]; more wait.
//
// # What it refuses
//
// A table without a primary key (or replica identity index), with row security for this role, partitions on their own, views, temporary and unlogged tables, parents of inheritance, and publications with row filters or
// column lists, or without every kind of change: see [feed.ErrTableUnfit]. Databases in other encodings than UTF8. Servers before version 13.
package postgres
