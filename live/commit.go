package live

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// table is a table that is queried.
type table struct {
	name row.Name
	// broken means that its entries are to be read anew and wait for that: what is committed up to then will be in what they read.
	broken atomic.Bool
	// waiting is how many changes wait for mu.
	waiting atomic.Int32

	mu      sync.Mutex // guards below, and of entries what they say; before theirs
	def     *row.Table
	index   *index
	entries []*Entry
	plans   map[*template]*plan
	recent  recent
	leaf    *row.Table // the partition last seen
	columns []int      // where it has the table's columns, nil when it is the same
}

// plan is a compiled query. What follows q is the matcher's notes on the change at hand, guarded by the table's mutex.
type plan struct {
	t     *template
	table *table
	q     *query.Query
	reads row.Mask // [template.reads]

	seq         uint64
	skip        bool // the change changes nothing that the query reads
	oldComplete bool // the predicate can be decided for the old row
	newComplete bool // the new row is known as far as it must be
	newDecides  bool // the predicate can be decided for the new row
	shape       *shape
}

// shape is the image of the change at hand for all plans that show the same columns.
type shape struct {
	columns []int
	seq     uint64
	img     *image
}

// newPlan makes a plan for a table, whose mu is held.
func newPlan(tp *template, t *table, q *query.Query) *plan {
	p := &plan{t: tp, table: t, q: q, reads: tp.reads(q)}
	for _, o := range t.plans {
		if slices.Equal(o.shape.columns, q.Columns) {
			p.shape = o.shape
			return p
		}
	}
	p.shape = &shape{columns: q.Columns}
	return p
}

// reads is what must be known of a row: with a policy, which may look at any column, all.
func (tp *template) reads(q *query.Query) row.Mask {
	m := q.Reads
	if tp.policy != nil {
		for i := range q.Table.Columns {
			m = m.With(i)
		}
	}
	return m
}

// commit is [feed.Sink.Commit]: it matches in the feed's goroutine, and leaves the transaction to the lanes of the entries that it concerns.
func (e *Engine) commit(tx *feed.Tx) {
	e.admit()
	e.stats.transactions.Add(1)
	touched := e.touched[:0]
	for i := range tx.Changes {
		if t := e.tableOf(tx.Changes[i].Table); t != nil {
			touched = t.match(e, tx, &tx.Changes[i], touched)
		}
	}
	g := e.newGroup(len(touched))
	e.pending.Add(int64(len(touched)))
	ready, aside := e.ready[:0], 0
	for _, en := range touched {
		en.touched = false
		j := job{tx, en.hit, en.more, g}
		en.hit, en.more = hit{}, nil
		waits, idle := en.enqueue(j)
		if !waits {
			aside++
		}
		if idle {
			ready = append(ready, en)
		}
	}
	e.unpend(aside)
	e.lanes.push(ready...)
	e.stats.affected.Add(uint64(len(touched)))
	clear(touched)
	clear(ready)
	e.touched, e.ready = touched[:0], ready[:0]
}

// match finds the entries that a change concerns and appends those that the transaction had not touched before.
func (t *table) match(e *Engine, tx *feed.Tx, ch *feed.Change, touched []*Entry) []*Entry {
	t.waiting.Add(1)
	t.mu.Lock()
	t.waiting.Add(-1)
	defer t.mu.Unlock()
	if t.broken.Load() {
		t.recent.forget(tx)
		return touched
	}
	old, now := ch.Old, ch.New
	if ch.Table != t.def {
		remap, ok := t.layout(ch.Table)
		if !ok {
			e.breakLocked(t, "the table was altered")
			return touched
		}
		old, now = remap(old), remap(now)
	}
	t.recent.add(tx, ch.Op, old, now, e.opts.RecentBytes)
	if len(t.entries) == 0 {
		return touched
	}
	e.seq++
	e.stats.changes.Add(1)
	m := matcher{t: t, op: ch.Op, old: old, now: now, seq: e.seq, touched: touched}
	switch {
	case ch.Op == feed.Truncate:
		for _, en := range t.entries {
			m.touch(en, hit{kind: hitClear})
		}
		return m.touched
	case now != nil:
		m.key = t.def.KeyOf(now)
	default:
		m.key = t.def.KeyOf(old)
	}
	if old != nil && !t.index.decides(old) || now != nil && !t.index.decides(now) {
		e.stats.partialRows.Add(1)
		for _, en := range t.entries {
			m.consider(en, unknown)
		}
	} else {
		t.index.candidates(old, now, m.consider)
	}
	e.stats.candidates.Add(m.candidates)
	return m.touched
}

// matcher is one change on its way through a table's entries.
type matcher struct {
	t          *table
	op         feed.Op
	old, now   row.Row
	key        row.Value
	gone       *image
	seq        uint64
	touched    []*Entry
	candidates uint64
}

func (m *matcher) touch(en *Entry, h hit) {
	if en.touched {
		en.more = append(en.more, h)
		return
	}
	en.touched, en.hit = true, h
	m.touched = append(m.touched, en)
}

// study notes what a change means for all entries of a query.
func (m *matcher) study(p *plan) {
	q := p.q
	p.seq, p.skip = m.seq, false
	p.oldComplete = m.old != nil && m.old.Complete(q.Filter)
	p.newComplete, p.newDecides = false, false
	if m.now != nil {
		p.newComplete = m.now.Complete(p.reads)
		p.newDecides = p.newComplete || m.now.Complete(q.Filter)
	}
	p.skip = m.op == feed.Update && p.newComplete && m.old.Complete(p.reads) && !p.reads.Differs(m.old, m.now)
}

// consider decides what a change means for an entry. The entry itself knows which rows it holds; this only leaves out what cannot concern it.
func (m *matcher) consider(en *Entry, v verdict) {
	if en.seq == m.seq {
		return
	}
	en.seq = m.seq
	m.candidates++
	p := en.plan
	if p.seq != m.seq {
		m.study(p)
	}
	if p.skip {
		return
	}
	switch {
	case v == matches, v == unknown && m.now != nil && (!p.newDecides || en.bound.Match(m.now) == query.True):
		kind := hitPut
		if !p.newComplete {
			kind = hitPartial
		}
		m.touch(en, hit{kind, m.image(p)})
	case v == left, m.old != nil && (!p.oldComplete || en.bound.Match(m.old) == query.True):
		if m.gone == nil {
			m.gone = &image{key: m.key}
		}
		m.touch(en, hit{hitGone, m.gone})
	}
}

// image is the new row as a plan shows it.
func (m *matcher) image(p *plan) *image {
	s := p.shape
	if s.seq != m.seq {
		s.seq, s.img = m.seq, imageOf(m.now, m.key, p.q.Projection)
	}
	return s.img
}

// layout says how the rows of a table that is not quite t's become t's: a partition may have its columns elsewhere. ok is false when it is another table by now.
func (t *table) layout(other *row.Table) (remap func(row.Row) row.Row, ok bool) {
	if other != t.leaf {
		columns := make([]int, len(t.def.Columns))
		straight := len(other.Columns) == len(t.def.Columns)
		for i, c := range t.def.Columns {
			at := other.Column(c.Name)
			if at < 0 || !sameType(c.Type, other.Columns[at].Type) {
				return nil, false
			}
			columns[i] = at
			straight = straight && at == i
		}
		if other.Root == (row.Name{}) && !(straight && slices.Equal(other.Key, t.def.Key)) {
			return nil, false
		}
		if straight {
			columns = nil
		}
		t.leaf, t.columns = other, columns
	}
	if t.columns == nil {
		return func(r row.Row) row.Row { return r }, true
	}
	return func(r row.Row) row.Row {
		if r == nil {
			return nil
		}
		out := make(row.Row, len(t.columns))
		for i, at := range t.columns {
			out[i] = r[at]
		}
		return out
	}, true
}

func sameType(a, b row.Type) bool {
	return a.Kind == b.Kind && a.Collation == b.Collation && a.Affinity == b.Affinity && a.Name == b.Name && slices.Equal(a.Labels, b.Labels)
}

// reset is [feed.Sink.Reset].
func (e *Engine) reset(at feed.Position, reason string) {
	if !e.began.Load() {
		defer func() {
			e.began.Store(true)
			e.checks.rouse()
		}()
	} else {
		e.stats.resets.Add(1)
		e.log.Warn("the change feed begins anew; all live queries are read again", "reason", reason, "at", at)
	}
	e.mu.Lock()
	tables := make([]*table, 0, len(e.tables))
	for _, t := range e.tables {
		tables = append(tables, t)
	}
	e.mu.Unlock()
	e.expire(true)
	for _, t := range tables {
		t.mu.Lock()
		e.breakLocked(t, reason)
		t.mu.Unlock()
	}
}

// breakLocked makes the entries of a table wait for new reads, after the table was described again. Its mu is held.
func (e *Engine) breakLocked(t *table, reason string) {
	t.recent.forget(t.recent.tx)
	if t.broken.Swap(true) {
		e.checkTable(t)
		return
	}
	e.log.Debug("a table is read again", "table", t.name, "reason", reason)
	for _, en := range t.entries {
		en.mu.Lock()
		en.invalidateLocked()
		en.mu.Unlock()
	}
	e.checkTable(t)
}

// admit waits for room in the lanes.
func (e *Engine) admit() {
	if e.pending.Load() < int64(e.opts.Pending) {
		return
	}
	e.stats.held.Add(1)
	e.room.L.Lock()
	for e.pending.Load() >= int64(e.opts.Pending) && !e.stopping {
		e.room.Wait()
	}
	e.room.L.Unlock()
}

// unpend notes that transactions wait for a worker no more.
func (e *Engine) unpend(n int) {
	if n == 0 {
		return
	}
	if now := e.pending.Add(-int64(n)); now < int64(e.opts.Pending) && now+int64(n) >= int64(e.opts.Pending) {
		e.room.L.Lock()
		e.room.Broadcast()
		e.room.L.Unlock()
	}
}

// lanes is the queue of entries that have something to do, and of groups that are settled.
type lanes struct {
	mu      sync.Mutex // after an entry's
	cond    sync.Cond
	queue   fifo[*Entry]
	settled []*group
	idle    int // workers that wait
	closed  bool
}

// scheduleLocked gives an entry to the workers, unless they have it. Its mu is held.
func (l *lanes) scheduleLocked(en *Entry) {
	if !en.scheduled {
		en.scheduled = true
		l.push(en)
	}
}

func (l *lanes) push(entries ...*Entry) {
	l.mu.Lock()
	for _, en := range entries {
		l.queue.push(en)
	}
	l.wakeLocked()
	l.mu.Unlock()
}

// wakeLocked wakes one worker if there is something left to do. It wakes the next one.
func (l *lanes) wakeLocked() {
	if l.idle > 0 && l.queue.len()+len(l.settled) > 0 {
		l.cond.Signal()
	}
}

func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cond.Broadcast()
}

// run is one worker.
func (l *lanes) run() {
	for {
		l.mu.Lock()
		for l.queue.len() == 0 && len(l.settled) == 0 && !l.closed {
			l.idle++
			l.cond.Wait()
			l.idle--
		}
		if l.closed {
			l.mu.Unlock()
			return
		}
		if len(l.settled) > 0 {
			settled := l.settled
			l.settled = nil
			l.wakeLocked()
			l.mu.Unlock()
			for _, g := range settled {
				g.tell()
			}
			continue
		}
		en := l.queue.pop()
		l.wakeLocked()
		l.mu.Unlock()
		if en.work() {
			l.push(en)
		}
	}
}

// replan compiles the queries of a table anew when it is another one than it was, and has its entries read if they wait for that.
func (e *Engine) replan(t *table, def *row.Table) {
	type casualty struct {
		en  *Entry
		err error
	}
	var lost []casualty
	t.mu.Lock()
	if def != t.def {
		if !t.broken.Load() {
			e.breakLocked(t, "the table was altered")
		}
		t.def, t.leaf, t.columns = def, nil, nil
		old := t.entries
		t.entries, t.index = nil, newIndex(def)
		plans := t.plans
		t.plans = map[*template]*plan{}
		for tp := range plans {
			q, err := query.Compile(tp.def, def)
			if err != nil {
				tp.refuse(fmt.Errorf("%w: %s: %w", ErrRefused, tp.def.Name, err))
				continue
			}
			t.plans[tp] = newPlan(tp, t, q)
			tp.plan.Store(t.plans[tp])
		}
		for _, en := range old {
			en.place, en.first, en.others = -1, posting{}, nil
			p := t.plans[en.ident.t]
			if p == nil {
				lost = append(lost, casualty{en, *en.ident.t.err.Load()})
				continue
			}
			bound, err := p.q.Bind(query.Input{Text: en.ident.text, Hash: en.bound.Input.Hash})
			if err != nil {
				lost = append(lost, casualty{en, fmt.Errorf("%w: %s: %w", ErrRefused, en.ident.t.def.Name, err)})
				continue
			}
			en.mu.Lock()
			en.plan, en.bound = p, bound
			en.mu.Unlock()
			t.insertLocked(en)
		}
	}
	if t.broken.Swap(false) {
		e.reads.hold(1)
		for _, en := range t.entries {
			en.mu.Lock()
			e.reads.requestLocked(en, 0)
			en.mu.Unlock()
		}
		e.reads.hold(-1)
	}
	t.mu.Unlock()
	for _, c := range lost {
		e.fail(c.en, c.err)
	}
}

func (t *table) insertLocked(en *Entry) {
	en.place = int32(len(t.entries))
	t.entries = append(t.entries, en)
	t.index.add(en, en.bound.Access())
}

// yield unlocks mu, and lets a change that waits for it go first: the mutex alone would leave the processor to who has it, and with it the next lock.
func (t *table) yield() {
	t.mu.Unlock()
	if t.waiting.Load() > 0 {
		runtime.Gosched()
	}
}

// remove takes an entry out, at the cost of its own postings.
func (t *table) remove(en *Entry) {
	t.mu.Lock()
	defer t.yield()
	if en.place < 0 {
		return
	}
	t.index.remove(en)
	last := len(t.entries) - 1
	moved := t.entries[last]
	t.entries[en.place], moved.place = moved, en.place
	t.entries[last] = nil
	t.entries = t.entries[:last]
	en.place = -1
}
