// Package live keeps the results of queries up to date: it reads each once, matches every committed change against all of them, and says what changed as versioned frames.
//
// # What it promises
//
// An [Entry] is the result of one query with one input, shared by all who ask for it. Its window goes through the states of the database and never back. Each commit that changes what is shown makes
// exactly one [Frame], so nobody sees half of a transaction; while an entry is read again for a reason below, several may become one. What was read and what was committed meet exactly: the entry
// takes in transactions before its read begins, and then applies those that the read's [feed.Fence] does not include.
//
// The frames that one transaction makes of several entries come one after another, with the number of the transaction; [Options.Settled] says when all are out, so that who shows several entries may show it in all of
// them at once. Entries that are read, or wait for that, come in their own time.
//
// A delete is told at once, and only to an entry that shows the row. A window with a limit keeps rows behind its end, from which those that leave are replaced in the same frame; when they run low it is
// read again in the background, and when there are none it goes on only with what was read. A row of which the feed does not say enough is completed from what the entry has of it, or read; it is
// never taken for one that does not match.
//
// # How a query is kept
//
// Routed and windowed queries ([query.Class]) are matched in memory. An index over the predicates of each table names the few entries that the old or the new row can concern: by
// equal values, by ranges in a tree, by ranges among those of equal values, and a list of those that every row concerns. Where the values and the range say all that the predicate says ([query.Access]), the
// index decides; elsewhere the predicate does. Changes to columns that a query does not read end there. The entry itself decides by key what it holds, so old rows are needed only to find it; where they lack
// the columns of the index, all entries of the table are asked ([Stats.PartialRows]).
//
// A query of the class rerun is read again when the index says that its result may have changed, at most once in [Options.Debounce], and compared.
//
// # Reading
//
// Entries that are to be read at the same time share one snapshot of the database, up to [Options.ReadGroup], and [Options.Reads] snapshots are open at a time. A reader takes them query by query, and where the
// database can ([feed.BatchSnapshot]) one statement reads all entries of a query: a restart costs as many statements as there are queries, not entries. Nobody waits for a statement to fill up; entries come together
// while all readers are busy. Each entry is served as soon as its own rows are there, and one whose policy hides so many that it needs more pages reads them alone. A statement that fails is tried again with half of
// its entries, until the one that it fails for stands alone and the others are served.
//
// There is one kind of read: the window as a whole, rows behind its end included. To fill up a window by what follows its last row would read less (a fifth to a third of it), but it would have to join two states of
// the database; read as a whole it costs at most four rows for each row that left.
//
// # Other nodes
//
// Versions and epochs are an engine's own, but checksums are not. Each engine keeps the last changes of every table it follows, whether there are entries or not, and a subscriber that comes from another node with
// rows and their checksum gets what it lacks ([Entry.Delta]): the window is led back through these changes until it shows rows with that sum.
//
// # Loss
//
// When the feed begins anew, or a table was altered, all entries concerned are read again, begin a new [Entry.Epoch] and publish a snapshot; entries that nobody holds end. An entry that was given more
// than [Options.Buffer] transactions while it waits for a read gives them up and is read again. A failed read is tried again, and the window stays as it was; a cold entry ends with the error.
//
// # Policies
//
// A predicate over row and actor belongs into [query.Definition.Visible]: actors with the same attributes share an entry then. A [Policy] in Go makes entries of one actor each, reads on until there
// are enough rows that it shows (10 times [Options.MaxRows] are read at most, else it is [ErrRows]), and its errors never hide a row or show one.
//
// # Order and queues
//
// The feed's goroutine matches and leaves each transaction in the queues of the entries it concerns; workers apply them, one worker to an entry at a time, so frames of one entry are in order and no
// entry waits for another one's read. When more than [Options.Pending] wait for workers, the feed waits. Locks are taken in this order: the engine's, a table's, an entry's, the queues'; none is held
// while the database, a policy or Publish is called, but for what makes callers of one entry's Delta wait for each other. Everything that grows has a bound in [Options].
package live
