package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

const (
	// chunkBytes is about how much is read of the log at once.
	chunkBytes = 4 << 20
	// fileCheck is how often to look whether the file is still there.
	fileCheck = time.Second
	// busyPolls is how much more often it looks for busyFor after there was something.
	busyPolls = 5
	busyFor   = time.Second

	logSQL = `SELECT * FROM main._tidewire_changes WHERE id > ? AND id <= ? ORDER BY id`
)

func position(id int64) feed.Position { return feed.Position(fmt.Sprintf("%016x", id)) }

// event is what a sink is called with: a transaction, or a reset.
type event struct {
	tx     *feed.Tx
	at     int64
	reason string
}

// Run implements [feed.Database].
func (d *Database) Run(ctx context.Context, sink feed.Sink) error {
	d.mu.Lock()
	if d.running {
		d.mu.Unlock()
		return errors.New("sqlite: Run called twice")
	}
	d.running = true
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.running, d.marks = false, nil
	}()
	r, err := d.newReader()
	if err != nil {
		return fmt.Errorf("sqlite: following: %w", err)
	}
	r.SetInterrupt(ctx)
	f := &follower{d: d, r: r, sink: sink, watch: watch{r: r, path: d.path}}
	err = f.run(ctx)
	return errors.Join(err, f.watch.close(), r.Close())
}

// follower is one Run.
type follower struct {
	d     *Database
	r     *feedReader
	sink  feed.Sink
	watch watch

	at       int64 // the last entry that was delivered; 0 before the first reset
	unmarked int64 // bytes delivered since the log was marked
	marked   time.Time
	checked  time.Time // that the file is there
	active   time.Time
}

func (f *follower) run(ctx context.Context) error {
	delay := f.d.opts.Poll
	for {
		err := f.once(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			delay = f.d.opts.Poll
		case !transient(err):
			return err
		default:
			f.d.opts.Logger.Warn("sqlite: following the log failed, trying again", "error", err)
			delay = min(2*delay, 5*time.Second)
			select {
			case <-time.After(delay):
			case <-f.d.closing:
				return ErrClosed
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		if err := f.wait(ctx); err != nil {
			return err
		}
	}
}

// wait returns when there may be something new.
func (f *follower) wait(ctx context.Context) error {
	f.active = time.Now()
	timer := time.NewTimer(f.d.opts.Poll / busyPolls)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.d.closing:
			return ErrClosed
		case <-f.d.wake:
			return nil
		case now := <-timer.C:
			poll := f.d.opts.Poll
			if now.Sub(f.active) < busyFor {
				poll /= busyPolls
			}
			timer.Reset(poll)
			if now.Sub(f.checked) > fileCheck {
				f.checked = now
				if info, err := os.Stat(f.d.path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(info, f.d.file) {
					return ErrFileGone
				}
			}
			if f.due() {
				return nil
			}
			if f.watch.changed() {
				return nil
			}
		}
	}
}

// once delivers everything that is committed.
func (f *follower) once(ctx context.Context) error {
	look := f.d.looks.Add(1)
	seen, err := f.watch.look() // before the rest, so that what comes now is seen the next time
	if err != nil {
		return err
	}
	for more := true; more; {
		var events []event
		if events, more, err = f.read(ctx); err != nil {
			return err
		}
		for _, e := range events {
			if err := ctx.Err(); err != nil {
				return err
			}
			if e.tx != nil {
				f.sink.Commit(e.tx)
			} else {
				f.sink.Reset(position(e.at), e.reason)
			}
		}
	}
	f.watch.seen = seen
	f.d.looked.Store(look)
	if f.due() {
		if err := f.maintain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// read reads what comes next; more means that there is more.
func (f *follower) read(ctx context.Context) (events []event, more bool, err error) {
	defer f.r.rollback()
	var marks []int64
	s, err := f.d.begin(ctx, f.r, true, func(s state) {
		passed, _ := slices.BinarySearch(f.d.marks, f.at+1)
		f.d.marks = slices.Delete(f.d.marks, 0, passed)
		marks = slices.Clone(f.d.marks)
	})
	switch {
	case err != nil:
		return nil, false, err
	case f.at == 0:
		events, f.at = []event{{at: s.last, reason: "start"}}, s.last
		return events, false, nil
	case s.last < f.at:
		events, f.at = []event{{at: s.last, reason: "the log is another one"}}, s.last
		return events, false, nil
	case s.first > f.at+1:
		events, f.at = []event{{at: s.last, reason: "the log was pruned by another process"}}, s.last
		return events, false, nil
	}
	l := logReader{d: f.d, r: f.r, last: s.last, marks: marks}
	end, err := l.read(f.at)
	if errors.Is(err, errNullKey) {
		f.r.rollback()
		if err := f.d.drop(ctx, l.bad); err != nil {
			return nil, false, err
		}
		return nil, true, nil // there is a cut now
	}
	if err != nil {
		return nil, false, err
	}
	f.at = end
	f.unmarked += l.total
	return l.events, end < s.last, nil
}

var errNullKey = errors.New("a row has NULL in its primary key")

// Probe has the feed look at the file, and returns when everything that was committed before is delivered: then it works from end to end. It writes nothing.
func (d *Database) Probe(ctx context.Context) error {
	look := d.looks.Load() + 1
	d.notify()
	for wait := time.Millisecond; d.looked.Load() < look; wait = min(2*wait, 50*time.Millisecond) {
		select {
		case <-time.After(wait):
		case <-d.closing:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("sqlite: probe: the feed does not answer: %w", ctx.Err())
		}
	}
	return nil
}

// drop ends the following of a table that cannot be followed any more.
func (d *Database) drop(ctx context.Context, def int64) error {
	return d.write(ctx, func() error {
		c := d.writer.conn
		return c.atomically("BEGIN IMMEDIATE", func() error {
			defs, err := c.followed()
			if err != nil || defs[def] == "" {
				return err
			}
			if err := c.unfollow(def, defs[def]+" has a row with NULL in its primary key"); err != nil {
				return err
			}
			_, err = c.mend() // takes the triggers away
			return err
		})
	})
}

// logReader makes events of the log's entries.
type logReader struct {
	d     *Database
	r     *feedReader
	last  int64   // where to end
	marks []int64 // where transactions ended

	events   []event
	total    int64 // bytes
	tx       *feed.Tx
	bytes    int64 // of tx
	replaced []int // the changes of tx that the next insert may belong to
	bad      int64 // the number of a table with a NULL in a key
}

// read reads the entries behind one, up to the last or to the end of a transaction before, and returns the last that was read.
func (l *logReader) read(after int64) (end int64, err error) {
	s, err := l.r.statement(logSQL)
	if err != nil {
		return 0, err
	}
	s.ints(1, after, l.last)
	defer s.done()
	for {
		more, err := s.row()
		if err != nil {
			return 0, err
		}
		if !more {
			l.finish()
			return l.last, nil
		}
		id := s.ColumnInt64(0)
		if l.tx != nil && uint64(id) > l.tx.ID {
			end := int64(l.tx.ID)
			l.finish()
			if l.total > chunkBytes {
				return end, nil
			}
		}
		if l.tx == nil {
			i, _ := slices.BinarySearch(l.marks, id)
			end := l.last
			if i < len(l.marks) {
				end = min(end, l.marks[i])
			}
			l.tx, l.bytes = &feed.Tx{Position: position(end), ID: uint64(end)}, 0
		}
		before := l.bytes
		if err := l.add(s, id); err != nil {
			return 0, err
		}
		l.total += l.bytes - before
		if l.bytes > l.d.opts.MaxBytes {
			end := int64(l.tx.ID)
			l.events = []event{{at: end, reason: fmt.Sprintf("a transaction has more than %d bytes", l.d.opts.MaxBytes)}}
			l.tx = nil
			return end, nil
		}
	}
}

func (l *logReader) finish() {
	if l.tx != nil && len(l.tx.Changes) > 0 {
		l.events = append(l.events, event{tx: l.tx})
	}
	l.tx, l.replaced = nil, nil
}

func (l *logReader) add(s *statement, id int64) error {
	def, op := s.ColumnInt64(1), s.ColumnInt64(2)
	if op == opCut {
		l.events = []event{{at: id, reason: s.ColumnText(3)}} // what was before is void
		l.tx.Changes = nil
		return nil
	}
	t, err := l.d.table(l.r, def)
	if t == nil {
		return err // a cut follows
	}
	n := len(t.Columns)
	first := s.cells(3, n)
	l.bytes += size(first)
	var second row.Row
	if op == opUpdate {
		second = s.cells(3+n, n)
		l.bytes += size(second)
	}
	for _, k := range t.Key {
		if first[k].IsNull() || second != nil && second[k].IsNull() {
			l.bad = def
			return errNullKey
		}
	}
	l.change(t, op, first, second)
	return nil
}

func (l *logReader) change(t *row.Table, op int64, first, second row.Row) {
	changes := &l.tx.Changes
	replaced := l.replaced
	l.replaced = nil
	switch op {
	case opInsert:
		for _, i := range replaced {
			if old := (*changes)[i].Old; t.KeyOf(old) == t.KeyOf(first) {
				*changes = slices.Delete(*changes, i, i+1)
				if !slices.Equal(old, first) {
					*changes = append(*changes, feed.Change{Op: feed.Update, Table: t, Old: old, New: first})
				}
				return
			}
		}
		*changes = append(*changes, feed.Change{Op: feed.Insert, Table: t, New: first})
	case opUpdate:
		switch {
		case slices.Equal(first, second):
		case t.KeyOf(first) != t.KeyOf(second):
			l.moved(t, first, second, len(replaced))
		default:
			*changes = append(*changes, feed.Change{Op: feed.Update, Table: t, Old: first, New: second})
		}
	case opReplaced:
		l.replaced = append(replaced, len(*changes))
		fallthrough
	case opDelete:
		*changes = append(*changes, feed.Change{Op: feed.Delete, Table: t, Old: first})
	}
}

// moved adds a change of the key; the last changes are as many rows that it replaced. A foreign key of the row to itself is followed before the triggers fire, so
// what that changed in the row stands before its cause in the log, and is put behind it.
func (l *logReader) moved(t *row.Table, from, to row.Row, replaced int) {
	changes := l.tx.Changes
	cause := append(slices.Clone(changes[len(changes)-replaced:]), feed.Change{Op: feed.Delete, Table: t, Old: from}, feed.Change{Op: feed.Insert, Table: t, New: to})
	changes = changes[:len(changes)-replaced]
	at := len(changes)
	for i := at - 1; i >= 0 && changes[i].Op == feed.Update; i-- {
		if changes[i].Table == t && slices.Equal(changes[i].Old, to) {
			at = i
		}
	}
	l.tx.Changes = slices.Insert(changes, at, cause...)
}

// size is about what a row takes in memory.
func size(r row.Row) int64 {
	n := 32 * len(r)
	for _, v := range r {
		n += len(v.Text())
	}
	return int64(n)
}

// table returns the table of a number, or nil if it is no longer followed.
func (d *Database) table(r *feedReader, def int64) (*row.Table, error) {
	d.mu.Lock()
	t := d.tables[def]
	d.mu.Unlock()
	if t != nil {
		return t, nil
	}
	defs, err := r.followed()
	if err != nil || defs[def] == "" {
		return nil, err
	}
	s, err := r.describe(defs[def])
	if err != nil {
		return nil, err
	}
	return d.remember(def, s), nil
}

// Since returns the transactions behind a position, for who comes back with it; those of other programs may come together as one. It returns [ErrGap] when the log does
// not tell all of it, or more than [DatabaseOptions.MaxBytes]. What Run delivers with a position above the last of them goes on from there.
func (d *Database) Since(ctx context.Context, after feed.Position) (txs []*feed.Tx, err error) {
	number, err := strconv.ParseUint(string(after), 16, 63)
	from := int64(number)
	if err != nil || position(from) != after {
		return nil, fmt.Errorf("sqlite: not a position: %q", after)
	}
	err = d.borrow(ctx, func(r *feedReader) error {
		defer r.rollback()
		l := logReader{d: d, r: r}
		s, err := d.begin(ctx, r, false, func(s state) {
			d.markLocked(s.last)
			l.last, l.marks = s.last, slices.Clone(d.marks)
		})
		if err != nil {
			return fmt.Errorf("sqlite: reading the log: %w", err)
		}
		if from < s.first-1 || from > s.last {
			return ErrGap
		}
		for from < s.last {
			if from, err = l.read(from); err != nil {
				return fmt.Errorf("sqlite: reading the log: %w", err)
			}
			for _, e := range l.events {
				if e.tx == nil {
					return fmt.Errorf("%w: %s", ErrGap, e.reason)
				}
				txs = append(txs, e.tx)
			}
			if l.events = nil; l.total > d.opts.MaxBytes {
				return fmt.Errorf("%w: it has more than %d bytes since", ErrGap, d.opts.MaxBytes)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return txs, nil
}
