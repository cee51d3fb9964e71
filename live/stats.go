package live

import "sync/atomic"

// Stats are figures since the engine was made, unless they say otherwise.
type Stats struct {
	Entries   int   // now
	Lingering int   // now, of Entries, about
	Pending   int   // now: transactions that wait for a worker, counted for each entry
	Retained  int64 // now: bytes of patches and encoded snapshots

	Transactions uint64
	Changes      uint64 // in tables that are queried
	Candidates   uint64 // entries that the index named for a change
	Affected     uint64 // entries that a transaction was given to
	Patches      uint64
	PartialRows  uint64 // changes with cells that the feed does not know, for which the index does not help
	Partial      uint64 // entries read again for such a change
	Held         uint64 // times that the feed waited for the workers

	Reads      uint64 // snapshots of the database
	Selects    uint64 // statements in them: one reads the results of many entries of a query
	ReadErrors uint64
	Overflows  uint64 // entries read again because they were given too much meanwhile
	Resets     uint64
	Refused    uint64 // acquisitions over MaxEntries
	Failed     uint64 // entries that ended with an error

	Denied       uint64 // rows that policies hid
	PolicyErrors uint64
}

type counters struct {
	transactions, changes, candidates, affected, patches, partialRows, partial, held     atomic.Uint64
	reads, selects, readErrors, overflows, resets, refused, failed, denied, policyErrors atomic.Uint64
}

// Stats returns the engine's figures.
func (e *Engine) Stats() Stats {
	c := &e.stats
	e.mu.Lock()
	entries, lingering := len(e.entries), len(e.lingerers)
	e.mu.Unlock()
	return Stats{
		Entries: entries, Lingering: lingering, Pending: int(e.pending.Load()), Retained: e.retained.Load(),
		Transactions: c.transactions.Load(), Changes: c.changes.Load(), Candidates: c.candidates.Load(), Affected: c.affected.Load(), Patches: c.patches.Load(),
		PartialRows: c.partialRows.Load(), Partial: c.partial.Load(), Held: c.held.Load(),
		Reads: c.reads.Load(), Selects: c.selects.Load(), ReadErrors: c.readErrors.Load(), Overflows: c.overflows.Load(), Resets: c.resets.Load(),
		Refused: c.refused.Load(), Failed: c.failed.Load(), Denied: c.denied.Load(), PolicyErrors: c.policyErrors.Load(),
	}
}
