package live

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// reads are the entries that are to be read. Those that are due stand in line by query, so that one statement can read many of them. A reader takes what there is: a single entry waits for nobody, and the longer all
// readers are busy, the more come together.
type reads struct {
	e     *Engine
	mu    sync.Mutex // after an entry's
	later waiting    // by the time at which they are due
	due   map[*template][]wait
	turn  []*template // those of due, who is next first
	ready int         // in due
	held  int         // callers of hold
	seq   uint64
	wake  chan struct{} // there may be something to take
}

// wait is an entry's place in the queue. One that was asked for again sooner leaves its old place behind, which its number tells.
type wait struct {
	en   *Entry
	seq  uint64
	at   int64
	most int // how many may share the statement, if not zero
}

type waiting []wait

func (h waiting) Len() int { return len(h) }

func (h waiting) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h waiting) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *waiting) Push(x any)   { *h = append(*h, x.(wait)) }
func (h *waiting) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = wait{}
	*h = old[:len(old)-1]
	return last
}

// requestLocked asks for a read of an entry that sees all that the entry was given so far; not before a time on the engine's clock. The entry's mu is held.
func (r *reads) requestLocked(en *Entry, at int64) {
	if en.dead.Load() {
		return
	}
	switch en.read {
	case readRunning:
		if !en.again || at < en.readAt {
			en.again, en.readAt = true, at
		}
		return
	case readQueued:
		if at >= en.readAt {
			return
		}
	}
	r.mu.Lock()
	r.seq++
	en.read, en.readSeq, en.readAt = readQueued, r.seq, at
	heap.Push(&r.later, wait{en, r.seq, at, en.readMost})
	r.mu.Unlock()
	r.rouse()
}

func (r *reads) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// hold keeps what is asked for from the readers until all of it is there (1, and -1 when it is).
func (r *reads) hold(by int) {
	r.mu.Lock()
	r.held += by
	r.mu.Unlock()
	r.rouse()
}

// maxGroupBytes is about how much is read at once, by what the queries read before.
const maxGroupBytes = 8 << 20

// take returns a reader's share of what is due, query by query, and when the next entry is.
func (r *reads) take() (group []wait, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held > 0 {
		return nil, time.Hour
	}
	for now := r.e.now(); len(r.later) > 0 && r.later[0].at <= now; r.ready++ {
		w := heap.Pop(&r.later).(wait)
		t := w.en.ident.t
		if r.due[t] = append(r.due[t], w); len(r.due[t]) == 1 {
			r.turn = append(r.turn, t)
		}
	}
	share, bytes := min(r.e.opts.ReadGroup, (r.ready+r.e.opts.Reads-1)/r.e.opts.Reads), int64(0)
	for turns := len(r.turn); turns > 0 && len(group) < share && bytes < maxGroupBytes; turns-- {
		t := r.turn[0]
		line, n, most := r.due[t], 0, r.e.opts.ReadGroup-len(group)
		for ; n < min(most, len(line)) && bytes < maxGroupBytes; n++ {
			if m := line[n].most; m > 0 {
				if most = min(most, m); n >= most {
					break
				}
			}
			group = append(group, line[n])
			bytes += t.size.Load()
		}
		r.turn = r.turn[1:]
		if r.ready -= n; n == len(line) {
			delete(r.due, t)
		} else {
			r.due[t] = line[n:]
			r.turn = append(r.turn, t)
		}
	}
	if r.ready > 0 || len(group) > 0 && len(r.later) > 0 { // somebody idle has to know when the next one is due
		r.rouse()
	}
	if len(r.later) == 0 {
		return group, time.Hour
	}
	return group, time.Duration(max(0, r.later[0].at-r.e.now()))
}

// run reads until ctx ends.
func (r *reads) run(ctx context.Context) {
	select {
	case <-r.e.following: // what is read before the feed begins could miss a change
	case <-ctx.Done():
		return
	}
	var readers sync.WaitGroup
	defer readers.Wait()
	for range r.e.opts.Reads {
		readers.Go(func() { r.reader(ctx) })
	}
}

func (r *reads) reader(ctx context.Context) {
	for ctx.Err() == nil {
		group, next := r.take()
		if len(group) > 0 {
			r.read(ctx, group)
			continue
		}
		timer := time.NewTimer(next)
		select {
		case <-r.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// begin marks an entry as being read: from here on it keeps what it is given.
func (r *reads) begin(w wait) *reading {
	en := w.en
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.dead.Load() || en.read != readQueued || en.readSeq != w.seq {
		return nil
	}
	if en.plan.table.broken.Load() {
		en.read = readNone // it is asked for again when its table is known
		return nil
	}
	en.read, en.lastRead = readRunning, r.e.now()
	en.void, en.again = false, false
	en.capturing = !en.blocked
	return newReading(en)
}

var (
	// errOthers means that other entries of the group were in the way.
	errOthers = errors.New("live: read again")
	// errTogether means that a statement failed for one of several entries, and so for all.
	errTogether = errors.New("live: read again with fewer")
)

// read reads a group in one snapshot.
func (r *reads) read(ctx context.Context, group []wait) {
	e := r.e
	var all []*reading
	for _, w := range group {
		if rd := r.begin(w); rd != nil {
			all = append(all, rd)
		}
	}
	if len(all) == 0 {
		return
	}
	batches := batchesOf(all)
	e.stats.reads.Add(1)
	ctx, cancel := context.WithTimeout(ctx, e.opts.ReadTimeout)
	defer cancel()
	late := e.now() + int64(e.opts.ReadTimeout/2)
	began := false
	err := e.opts.Database.Read(ctx, func(s feed.Snapshot) error {
		began = true
		for _, b := range batches {
			if e.now() > late { // no statement pays for the time of those before it
				return nil
			}
			if err := r.ask(ctx, s, b); err != nil { // the snapshot may be of no use any more
				return err
			}
		}
		return nil
	})
	for _, rd := range all {
		switch {
		case rd.done:
		case rd.err != nil:
			r.finish(rd, rd.err)
		case began:
			r.finish(rd, errOthers)
		default: // nobody's own: the snapshot could not be had
			r.finish(rd, err)
		}
	}
}

// question is what entries with the same input ask, of which there are several when a policy tells them apart.
type question struct {
	readings []*reading
	args     []any // of batch.many
}

// batch is questions that one statement can answer.
type batch struct {
	many      query.Many
	questions []*question
}

func batchesOf(all []*reading) (batches []*batch) {
	type key struct {
		plan *plan
		text string // of the input, or of the statement
	}
	questions, byText := map[key]*question{}, map[key]*batch{}
	for _, rd := range all {
		k := key{rd.plan, rd.bound.Input.Text}
		if q := questions[k]; q != nil {
			q.readings = append(q.readings, rd)
			continue
		}
		q := &question{readings: []*reading{rd}}
		questions[k] = q
		many, ok := rd.bound.Many(rd.page)
		q.args = many.Args
		k.text = many.SQL
		if b := byText[k]; b != nil {
			b.questions = append(b.questions, q)
			continue
		}
		b := &batch{many, []*question{q}}
		if batches = append(batches, b); ok {
			byText[k] = b
		}
	}
	return batches
}

// ask reads what a batch asks for. The entries that are served have it at once.
func (r *reads) ask(ctx context.Context, s feed.Snapshot, b *batch) error {
	many, ok := s.(feed.BatchSnapshot)
	if ok && len(b.questions) > 1 {
		if err := r.askTogether(ctx, many, b); err != nil {
			return err
		}
	}
	for _, q := range b.questions {
		if q.readings[0].pages == 0 {
			if err := r.page(ctx, s, q); err != nil {
				return err
			}
		}
		for _, rd := range q.readings { // a policy hid so much that more is needed
			for !rd.done && rd.err == nil {
				if err := r.page(ctx, s, &question{readings: []*reading{rd}}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// page reads the next page of a question, which is the same for all who ask it.
func (r *reads) page(ctx context.Context, s feed.Snapshot, q *question) error {
	rd := q.readings[0]
	r.e.stats.selects.Add(1)
	rows, err := selectRows(ctx, s, rd.bound, rd.page, rd.after)
	if err != nil {
		q.fail(err)
		return err
	}
	for _, rw := range rows {
		q.take(rw)
	}
	r.end(q, s.Fence())
	return nil
}

// askTogether reads the first page of all questions with one statement.
func (r *reads) askTogether(ctx context.Context, s feed.BatchSnapshot, b *batch) error {
	fb := feed.Batch{Table: b.questions[0].readings[0].plan.q.Table, SQL: b.many.SQL, Shared: b.many.Shared}
	entries := 0
	for _, q := range b.questions {
		fb.Args = append(fb.Args, q.args)
		entries += len(q.readings)
	}
	r.e.stats.selects.Add(1)
	rest, fence := b.questions, s.Fence()
	at := 0
	err := s.SelectMany(ctx, fb, func(i int, rw row.Row) {
		for ; at < i; at++ {
			r.end(rest[at], fence)
		}
		rest[i].take(rw)
	})
	for ; at < len(rest); at++ {
		switch {
		case err == nil:
			r.end(rest[at], fence)
		case errors.Is(err, feed.ErrAltered):
			rest[at].fail(err)
		default:
			rest[at].fail(errTogether)
			for _, rd := range rest[at].readings {
				rd.most = max(1, entries/2)
			}
		}
	}
	return err
}

func (q *question) fail(err error) {
	for _, rd := range q.readings {
		rd.err = err
	}
}

func (q *question) take(rw row.Row) {
	img := newImage(q.readings[0].plan.q, rw)
	for _, rd := range q.readings {
		rd.take(img)
	}
}

// end ends a page of a question, and serves the entries that need no other.
func (r *reads) end(q *question, fence feed.Fence) {
	for _, rd := range q.readings {
		if !rd.turn() || rd.err != nil {
			continue
		}
		if rd.failed {
			rd.en.rereadAfter(r.e.opts.Retry)
		}
		rd.res.fence = fence
		rd.done = true
		size := &rd.en.ident.t.size
		size.Add((int64(rd.bytes) - size.Load()) / 8)
		r.finish(rd, nil)
	}
}

// finish gives the entry what was read, or plans the next attempt.
func (r *reads) finish(rd *reading, err error) {
	en, e := rd.en, r.e
	en.mu.Lock()
	if en.dead.Load() {
		en.mu.Unlock()
		return
	}
	if en.void || en.plan != rd.plan {
		en.read, en.void = readNone, false
		r.requestLocked(en, 0)
		en.mu.Unlock()
		return
	}
	if en.readMost = rd.most; err == nil {
		en.result = rd.res
		e.lanes.scheduleLocked(en)
		en.mu.Unlock()
		return
	}
	// What was captured was applied too, and a read that begins later sees it.
	en.captured, en.capturing, en.again, en.read = nil, false, false, readNone
	cold := en.ready != nil
	delay, own := int64(0), !errors.Is(err, errOthers) && !errors.Is(err, errTogether)
	if own {
		delay = e.now() + int64(e.opts.Retry)
		e.stats.readErrors.Add(1)
	}
	if !cold || !own {
		r.requestLocked(en, delay)
		en.mu.Unlock()
		if delay > 0 {
			e.log.Warn("a live query could not be read again; its subscribers see what was", "query", en.ident.t.def.Name, "error", err)
			if errors.Is(err, ErrRows) {
				e.fail(en, err)
			}
			e.checkTable(rd.plan.table)
		}
		return
	}
	en.mu.Unlock()
	switch {
	case errors.Is(err, ErrRows):
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %s: %w", ErrTimeout, en.ident.t.def.Name, err)
	default:
		err = fmt.Errorf("%w: %s: %w", ErrRead, en.ident.t.def.Name, err)
		e.checkTable(rd.plan.table)
	}
	e.fail(en, err)
}

// mostRead bounds the rows of one reading, in MaxRows, for a policy that hides most of them.
const mostRead = 10

// reading is an entry that is being read.
type reading struct {
	en    *Entry
	plan  *plan
	bound *query.Bound
	res   *result

	want   int     // rows, at most
	page   int     // how many are asked for at once
	pages  int     // that have ended
	rows   int     // of the page
	total  int     // of all pages
	beyond bool    // of which some were not looked at, as there are enough
	after  row.Row // the last that was looked at
	bytes  int
	failed bool // the policy could not decide about some row

	err  error
	most int // with [errTogether]
	done bool
}

// newReading is called with the entry's mu held.
func newReading(en *Entry) *reading {
	rd := &reading{en: en, plan: en.plan, bound: en.bound, res: &result{plan: en.plan}}
	rd.want = en.e.opts.MaxRows + 1
	if limit := en.plan.q.Definition.Limit; limit > 0 {
		rd.want = limit + slackOf(limit)
	}
	rd.page = rd.want
	return rd
}

func (rd *reading) full() bool { return len(rd.res.images) == rd.want }

// take takes the next row of the page.
func (rd *reading) take(img *image) {
	rd.rows++
	if rd.err != nil || rd.full() {
		rd.beyond = true
		return
	}
	rd.after = img.row
	q, most := rd.plan.q, rd.en.e.opts.MaxEntryBytes
	switch visible, err := rd.en.allows(q.Table, img.row); {
	case err != nil: // it keeps the state it had
		rd.failed = true
		if img = rd.en.held(img.key); img == nil {
			return
		}
	case !visible:
		return
	}
	if rd.bytes += img.size; rd.bytes > most {
		rd.err = fmt.Errorf("%w: %s: more than %d bytes", ErrRows, q.Definition.Name, most)
		rd.res.images = nil
		return
	}
	rd.res.images = append(rd.res.images, img)
}

// turn ends a page, and reports whether it was the last one.
func (rd *reading) turn() (last bool) {
	q, res := rd.plan.q, rd.res
	limited := q.Definition.Limit > 0
	rd.pages++
	rd.total += rd.rows
	res.complete = rd.rows < rd.page && !rd.beyond
	switch {
	case rd.err != nil:
		return true
	case !limited && rd.full():
		rd.err = fmt.Errorf("%w: %s: more than %d rows", ErrRows, q.Definition.Name, rd.want-1)
		return true
	case res.complete || rd.full():
	case rd.total < mostRead*rd.en.e.opts.MaxRows:
		if q.Order == nil { // it is read from the start again
			res.images, rd.bytes = nil, 0
			rd.page *= 2
		} else {
			rd.page = min(2*rd.page, max(rd.page, rd.en.e.opts.MaxRows))
		}
		rd.rows, rd.beyond = 0, false
		return false
	default: // a part of it would be taken for the result
		rd.err = fmt.Errorf("%w: %s: the policy hides most of the %d rows that were read", ErrRows, q.Definition.Name, rd.total)
		return true
	}
	if !res.complete {
		res.boundary = rd.after
	}
	if q.Order != nil { // as the window's own order is what it searches by
		slices.SortFunc(res.images, func(a, b *image) int { return q.Order.Compare(a.row, b.row) })
	}
	return true
}

// selectRows reads the rows of a query, a page behind a row if it can be read so.
func selectRows(ctx context.Context, s feed.Snapshot, b *query.Bound, limit int, after row.Row) ([]row.Row, error) {
	q := b.Query
	if q.Order == nil {
		after = nil
	}
	stmt := b.SQL(query.Read{Limit: limit, After: after})
	return s.Select(ctx, feed.Select{
		Table: q.Table, SQL: stmt.SQL, Args: stmt.Args, Limit: limit,
		Match: func(r row.Row) bool {
			return b.Match(r) == query.True && (after == nil || q.Order.Compare(r, after) > 0)
		},
		Less: func(x, y row.Row) bool {
			if q.Order != nil {
				return q.Order.Compare(x, y) < 0
			}
			for _, c := range q.Table.Key {
				if d := row.Compare(x[c], y[c], row.C); d != 0 {
					return d < 0
				}
			}
			return false
		},
	})
}
