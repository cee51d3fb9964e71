// Package sqlite keeps what Tidewire must not lose in one SQLite file. It needs no C compiler. It has the streams ([Stream], a [stream.Store]), of which the rest of this
// comment speaks, and the application's own database as live queries read and follow it ([Database]).
//
// # Files
//
// Beside the database lie SQLite's own -wal and -shm, and -lock, which is empty. The file carries an application id and a version: a file of something else, and one of a newer version,
// are refused and not touched. New files are for their owner alone (mode 0600).
//
// # One process
//
// A file belongs to one Stream, which holds an exclusive lock on the -lock file for life; the kernel frees it with the process. The second one to open the file gets [ErrInUse], since
// its watchers would miss what the first appends. Other programs may read the database. One that writes makes appends wait for [StreamOptions.BusyTimeout].
//
// # Durability
//
// Append returns after its transaction is synced (write-ahead log, synchronous=FULL), and not before can anybody read the entry. There is no option to relax it: after a loss of
// power the same offsets would be given out again for other entries in the same epoch.
//
// # Group commit
//
// There is no goroutine. An append that finds no commit in progress commits everything that waits, in one transaction, and the others wait for it; so one sync serves as many
// appends as came during the one before. At most [StreamOptions.MaxWaiting] appends wait; one more blocks until there is room or its context ends. An append whose context ends is
// taken back if its commit has not begun; otherwise it may be committed all the same. A commit that fails fails all of its appends, and the store goes on with the next.
//
// # Ordering
//
// Watchers are called by the committing goroutine after the commit, before the appends return and before the next commit: a slow one holds up the whole store.
//
// # Reading
//
// Reads have connections of their own and wait for neither appends nor syncs. Each sees one state of the log, with everything whose Append has returned.
//
// # Retention and space
//
// What is trimmed or has expired is never read again. Its rows are deleted some at a time by later appends to its log: a log that is used holds at most 32 entries or 64 KiB
// more than it shows. Keys are deleted by later appends when their [stream.KeyWindow] is over. What expires in logs that nobody appends to, the rest of large trims and resets, and keys when
// nobody appends, are deleted by [Stream.Sweep], which the owner calls every minute or so. Freed pages are used again; when most of the file is free, Sweep gives
// pages back to the file system.
//
// A log that was ever appended to takes one row, about 100 bytes, until it is reset: its offsets and epoch outlive its entries.
//
// # Failures
//
// Errors say what failed and carry SQLite's own. After [Stream.Close] everything answers [stream.ErrClosed]; Close waits for the commit and the reads in progress.
package sqlite
