package sqlite

import (
	"errors"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/stream"
)

const (
	// walPages is how large the write-ahead log grows before it is moved into the database.
	walPages = 4096

	// Entries that are dead but not deleted, of one log.
	slackEntries = 32
	slackBytes   = 64 << 10

	// What one transaction deletes at most: entries of one log, keys; in Sweep the sum.
	deleteRows  = 1024
	deleteBytes = 16 << 20
	// Sweep gives pages back when there are more free ones than others, and than this; as many at once.
	freePages = 1024
)

// log is the row of a log, for one transaction.
type log struct {
	id                int64
	epoch             string
	head, first, tail int64
	bytes             int64
	age               int64
	keyed             int64
	due               int64 // 0 is never

	retain stream.Retention // of the newest append of this transaction
	grown  bool             // so retain is to be applied
	aged   int64            // the age that was applied in this transaction
}

// writer is the connection that writes.
type writer struct {
	*conn
	logs  map[string]*log // those of this transaction
	batch []*pending      // scratch

	// Pages of the write-ahead log: those in it, when to checkpoint it, and how large it should grow.
	pages, next, limit int

	begin, commit                                      *statement
	state, find, add, save, retire, remove, regenerate *statement
	look, insert, deleteUpTo                           *statement
	key, remember, forget, oldestKeys                  *statement
	dueLogs                                            *statement
}

const logColumns = `id, epoch, head, first, tail, bytes, age, keyed, coalesce(due, 0)`

// newWriter returns a writer to be closed even if it fails.
func newWriter(c *conn) (*writer, error) {
	w := &writer{
		conn: c, logs: map[string]*log{}, next: walPages, limit: walPages,
		begin:  c.prepare(`BEGIN IMMEDIATE`),
		commit: c.prepare(`COMMIT`),

		state:      c.prepare(`SELECT generation FROM stream_state`),
		find:       c.prepare(`SELECT ` + logColumns + ` FROM stream_logs WHERE name = ?`),
		add:        c.prepare(`INSERT INTO stream_logs VALUES (NULL, ?, ?, 0, 1, 1, 0, 0, 0, NULL)`),
		save:       c.prepare(`UPDATE stream_logs SET head = ?2, first = ?3, tail = ?4, bytes = ?5, age = ?6, keyed = ?7, due = nullif(?8, 0) WHERE id = ?1`),
		retire:     c.prepare(`UPDATE stream_logs SET name = NULL WHERE id = ?`),
		remove:     c.prepare(`DELETE FROM stream_logs WHERE id = ?`),
		regenerate: c.prepare(`UPDATE stream_state SET generation = ?`),
		dueLogs:    c.prepare(`SELECT name IS NULL, ` + logColumns + ` FROM stream_logs WHERE due <= ? ORDER BY due LIMIT 1`),

		look:       c.prepare(lookSQL),
		insert:     c.prepare(`INSERT INTO stream_entries VALUES (?, ?, ?, ?, ?)`),
		deleteUpTo: c.prepare(`DELETE FROM stream_entries WHERE log = ? AND "offset" < ?`),

		key:        c.prepare(`SELECT "offset", number, at FROM stream_keys WHERE log = ? AND key = ?`),
		remember:   c.prepare(`INSERT OR REPLACE INTO stream_keys VALUES (NULL, ?, ?5, ?2, ?3, ?4)`),
		forget:     c.prepare(`DELETE FROM stream_keys WHERE id <= ?`),
		oldestKeys: c.prepare(`SELECT id, at FROM stream_keys ORDER BY id LIMIT ?`),
	}
	if c.err != nil {
		return w, c.err
	}
	w.WALHook(func(_ *sqlite3.Conn, _ string, pages int) error { // and no automatic checkpoints
		w.pages = pages
		return nil
	})
	return w, w.transaction(w.init)
}

func (w *writer) init() error {
	found, err := w.state.row()
	if err != nil || found {
		w.state.done()
		return err
	}
	return w.Exec(`INSERT INTO stream_state VALUES ('` + stream.NewEpoch() + `')`)
}

// transaction runs f in a transaction, which takes effect if f does not fail.
func (w *writer) transaction(f func() error) (err error) {
	clear(w.logs)
	defer func() {
		if !w.GetAutocommit() { // SQLite may have rolled back itself
			err = errors.Join(err, w.Exec("ROLLBACK"))
		}
	}()
	if err := w.begin.exec(); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return w.commit.exec()
}

// full reports whether it is time for a checkpoint.
func (w *writer) full() bool { return w.pages >= w.next }

// starved reports whether checkpoints have not helped for long.
func (w *writer) starved() bool { return w.pages >= 8*w.limit }

func (w *writer) checkpoint() error {
	all, done, err := w.WALCheckpoint("main", sqlite3.CHECKPOINT_PASSIVE)
	w.next = w.limit
	if err != nil || done < all { // readers need the rest: not at each commit again
		w.next = w.pages + w.limit
	}
	return err
}

// findLog returns the log of a name, or nil.
func (w *writer) findLog(name string) (*log, error) {
	if l := w.logs[name]; l != nil {
		return l, nil
	}
	found, err := w.find.text(1, name).row()
	if err != nil || !found {
		return nil, err
	}
	defer w.find.done()
	l := scanLog(w.find, 0)
	w.logs[name] = l
	return l, nil
}

func scanLog(s *statement, first int) *log {
	n := func(i int) int64 { return s.ColumnInt64(first + i) }
	return &log{id: n(0), epoch: s.ColumnText(first + 1), head: n(2), first: n(3), tail: n(4), bytes: n(5), age: n(6), keyed: n(7), due: n(8)}
}

func (w *writer) saveLog(l *log) error {
	return w.save.ints(1, l.id, l.head, l.first, l.tail, l.bytes, l.age, l.keyed, l.due).exec()
}

// makeLog makes the log of a name that has none.
func (w *writer) makeLog(name string) (*log, error) {
	found, err := w.state.row()
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errors.New("the generation is missing")
	}
	epoch := w.state.ColumnText(0)
	w.state.done()
	if err := w.add.text(1, name).text(2, epoch).exec(); err != nil {
		return nil, err
	}
	l := &log{id: w.LastInsertRowID(), epoch: epoch, first: 1, tail: 1}
	w.logs[name] = l
	return l, nil
}

func (w *writer) appendAll(batch []*pending, now int64) error {
	for _, p := range batch {
		if err := w.append(p, now); err != nil {
			return err
		}
	}
	for _, l := range w.logs {
		if err := w.finish(l, now); err != nil {
			return err
		}
	}
	_, err := w.forgetKeys(2*len(batch), now) // more than there came
	return err
}

func (w *writer) append(p *pending, now int64) error {
	l, err := w.findLog(p.name)
	if err == nil && l == nil {
		l, err = w.makeLog(p.name)
	}
	if err != nil {
		return err
	}
	if key := p.opts.Key; key != "" {
		offset, err := w.remembered(l, key, now)
		if err != nil {
			return err
		}
		if offset > 0 {
			p.result = stream.Appended{Position: stream.Position{Offset: uint64(offset), Epoch: l.epoch}, Duplicate: true}
			return nil
		}
	}
	switch {
	case !l.grown: // what has expired must not come back with a longer age
		err = w.trim(l, stream.Retention{Age: time.Duration(l.age)}, now)
	case l.retain != p.opts.Retain: // equal ones are applied once, with the same result
		err = w.trim(l, l.retain, now)
	}
	if err != nil {
		return err
	}
	l.head++
	if err := w.insert.ints(1, l.id, l.head, now, l.bytes).blob(5, p.data).exec(); err != nil {
		return err
	}
	l.bytes += int64(len(p.data))
	l.retain, l.grown, l.age = p.opts.Retain, true, max(int64(p.opts.Retain.Age), 0)
	if l.age > 0 {
		l.dueAt(now + l.age + 1)
	}
	if p.opts.Key != "" {
		l.keyed++
		if err := w.remember.ints(1, l.id, l.head, l.keyed, now).text(5, p.opts.Key).exec(); err != nil {
			return err
		}
	}
	p.result = stream.Appended{Position: stream.Position{Offset: uint64(l.head), Epoch: l.epoch}}
	return nil
}

// dueAt moves due forward. An earlier time stays, so that appends seldom touch the index.
func (l *log) dueAt(t int64) {
	if l.due == 0 || t < l.due {
		l.due = t
	}
}

// remembered returns the offset of the append that had a key, or 0.
func (w *writer) remembered(l *log, key string, now int64) (int64, error) {
	found, err := w.key.ints(1, l.id).text(2, key).row()
	if err != nil || !found {
		return 0, err
	}
	defer w.key.done()
	offset, number, at := w.key.ColumnInt64(0), w.key.ColumnInt64(1), w.key.ColumnInt64(2)
	if number <= l.keyed-stream.MaxKeys || oldKey(at, now) {
		return 0, nil
	}
	return offset, nil
}

// oldKey reports whether a key is to be forgotten. One of the far future is: the clock was wrong then.
func oldKey(at, now int64) bool { return max(now-at, at-now) > int64(stream.KeyWindow) }

// forgetKeys deletes the oldest keys that are to be forgotten, at most some, and returns how many.
func (w *writer) forgetKeys(limit int, now int64) (n int, err error) {
	w.oldestKeys.ints(1, int64(limit))
	var last int64
	for {
		found, err := w.oldestKeys.row()
		if err != nil {
			return 0, err
		}
		if !found {
			break
		}
		if !oldKey(w.oldestKeys.ColumnInt64(1), now) {
			w.oldestKeys.done()
			break
		}
		last = w.oldestKeys.ColumnInt64(0)
		n++
	}
	if n == 0 {
		return 0, nil
	}
	return n, w.forget.ints(1, last).exec()
}

// finish applies what the appends of a transaction left to do.
func (w *writer) finish(l *log, now int64) error {
	if !l.grown {
		return nil
	}
	if err := w.trim(l, l.retain, now); err != nil {
		return err
	}
	if dead := l.first - l.tail; dead >= slackEntries || dead*l.entrySize() >= slackBytes {
		if _, err := w.deleteDead(l); err != nil {
			return err
		}
		if l.tail < l.first {
			l.due = now
		}
	}
	return w.saveLog(l)
}

// entrySize is about what an entry of a log takes.
func (l *log) entrySize() int64 { return l.bytes/max(l.head, 1) + 32 }

// trim moves first to where a retention lets the log begin.
func (w *writer) trim(l *log, r stream.Retention, now int64) (err error) {
	if r.Count > 0 {
		l.first = max(l.first, l.head-int64(r.Count)+1)
	}
	if r.Bytes > 0 {
		l.first, err = seek(w.look, l.id, l.first, l.head-1, func(_, before int64) bool { return l.bytes-before <= r.Bytes })
		if err != nil {
			return err
		}
	}
	if age := int64(r.Age); age > 0 && (l.aged == 0 || age < l.aged) {
		l.aged = age
		l.first, err = seek(w.look, l.id, l.first, l.head, func(at, _ int64) bool { return now-at <= age })
	}
	return err
}

// deleteDead deletes rows of trimmed entries, a bounded number.
func (w *writer) deleteDead(l *log) (n int64, err error) {
	n = min(l.first-l.tail, max(1, min(deleteRows, deleteBytes/l.entrySize())))
	if n <= 0 {
		return 0, nil
	}
	l.tail += n
	return n, w.deleteUpTo.ints(1, l.id, l.tail).exec()
}

func (w *writer) trimLog(name string, r stream.Retention, now int64) error {
	l, err := w.findLog(name)
	if err != nil || l == nil {
		return err
	}
	if err := w.trim(l, r, now); err != nil {
		return err
	}
	if _, err := w.deleteDead(l); err != nil {
		return err
	}
	if l.tail < l.first {
		l.due = now
	}
	return w.saveLog(l)
}

func (w *writer) resetLog(name string, now int64) error {
	l, err := w.findLog(name)
	if err != nil || l == nil {
		return err
	}
	l.first, l.due = l.head+1, now
	return errors.Join(w.saveLog(l), w.retire.ints(1, l.id).exec(), w.regenerate.text(1, stream.NewEpoch()).exec())
}

// sweep deletes at most about deleteRows keys and entries that are due.
func (w *writer) sweep(now int64) (more bool, err error) {
	n, err := w.forgetKeys(deleteRows, now)
	if err != nil {
		return false, err
	}
	for budget := deleteRows - int64(n); budget > 0; {
		found, err := w.dueLogs.ints(1, now).row()
		if err != nil {
			return false, err
		}
		if !found {
			return w.shrink()
		}
		reset, l := w.dueLogs.ColumnBool(0), scanLog(w.dueLogs, 1)
		w.dueLogs.done()
		n, err := w.sweepLog(l, reset, now)
		if err != nil {
			return false, err
		}
		budget -= n + 8 // the log's row is work too
	}
	return true, nil
}

// sweepLog deletes dead entries of a log and says when it is due next.
func (w *writer) sweepLog(l *log, reset bool, now int64) (n int64, err error) {
	if err := w.trim(l, stream.Retention{Age: time.Duration(l.age)}, now); err != nil {
		return 0, err
	}
	if n, err = w.deleteDead(l); err != nil {
		return 0, err
	}
	l.due = 0
	switch {
	case l.tail < l.first:
		l.due = now
	case reset:
		return n, w.remove.ints(1, l.id).exec()
	case l.age > 0 && l.first <= l.head:
		found, err := w.look.ints(1, l.id, l.first).row()
		if err != nil {
			return 0, err
		}
		if found {
			l.due = w.look.ColumnInt64(0) + l.age + 1
			w.look.done()
		}
	}
	return n, w.saveLog(l)
}

// shrink gives some pages back if most are free.
func (w *writer) shrink() (more bool, err error) {
	free, err := w.number("PRAGMA freelist_count")
	if err != nil {
		return false, err
	}
	all, err := w.number("PRAGMA page_count")
	if err != nil || free <= freePages || free <= all/2 {
		return false, err
	}
	return true, w.Exec("PRAGMA incremental_vacuum(1024)")
}
