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

// reads are the entries that are to be read. Those that are due share a read, up to a bound; while all readers are busy the next groups grow.
type reads struct {
	e    *Engine
	mu   sync.Mutex // after an entry's
	heap waiting
	seq  uint64
	wake chan struct{}
}

// wait is an entry's place in the queue. One that was asked for again sooner leaves its old place behind, which its number tells.
type wait struct {
	en  *Entry
	seq uint64
	at  int64
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
	heap.Push(&r.heap, wait{en, r.seq, at})
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// due takes entries whose time has come, and says when the next one's comes.
func (r *reads) due(into []wait, most int) (group []wait, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.e.now()
	for len(into) < most && len(r.heap) > 0 && r.heap[0].at <= now {
		into = append(into, heap.Pop(&r.heap).(wait))
	}
	if len(r.heap) == 0 {
		return into, time.Hour
	}
	return into, time.Duration(max(0, r.heap[0].at-now))
}

// run hands groups to readers until ctx ends.
func (r *reads) run(ctx context.Context) {
	groups := make(chan []wait)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer close(groups)
	for range r.e.opts.Reads {
		readers.Go(func() {
			for g := range groups {
				r.read(ctx, g)
			}
		})
	}
	select {
	case <-r.e.following: // what is read before the feed begins could miss a change
	case <-ctx.Done():
		return
	}
	var group []wait
	for {
		var next time.Duration
		group, next = r.due(group, r.e.opts.ReadGroup)
		timer := time.NewTimer(next)
		var out chan []wait
		if len(group) > 0 {
			out = groups
		}
		expired := timer.C
		if len(group) >= r.e.opts.ReadGroup {
			expired = nil
		}
		select {
		case out <- group:
			group = nil
		case <-r.wake:
		case <-expired:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// reading is an entry that is being read.
type reading struct {
	en    *Entry
	plan  *plan
	bound *query.Bound
	res   *result
	err   error
	done  bool
}

// begin marks an entry as being read: from here on it keeps what it is given.
func (r *reads) begin(w wait) (reading, bool) {
	en := w.en
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.dead.Load() || en.read != readQueued || en.readSeq != w.seq {
		return reading{}, false
	}
	if en.plan.table.broken.Load() {
		en.read = readNone // it is asked for again when its table is known
		return reading{}, false
	}
	en.read, en.lastRead = readRunning, r.e.now()
	en.void, en.again = false, false
	en.capturing = !en.blocked
	return reading{en: en, plan: en.plan, bound: en.bound}, true
}

// read reads a group in one snapshot.
func (r *reads) read(ctx context.Context, group []wait) {
	e := r.e
	var all []reading
	for _, w := range group {
		if rd, ok := r.begin(w); ok {
			all = append(all, rd)
		}
	}
	if len(all) == 0 {
		return
	}
	e.stats.reads.Add(1)
	ctx, cancel := context.WithTimeout(ctx, e.opts.ReadTimeout)
	defer cancel()
	err := e.opts.Database.Read(ctx, func(s feed.Snapshot) error {
		fence := s.Fence()
		for i := range all {
			rd := &all[i]
			e.stats.selects.Add(1)
			rd.res, rd.err = r.selectRows(ctx, s, rd)
			rd.done = true
			if rd.err != nil && !errors.Is(rd.err, ErrRows) {
				return rd.err // the snapshot may be of no use any more
			}
			if rd.res != nil {
				rd.res.fence = fence
			}
		}
		return nil
	})
	failed := false
	for i := range all {
		rd := &all[i]
		switch {
		case rd.done:
			failed = failed || rd.err != nil
			r.finish(rd, rd.err)
		case err != nil && !failed: // nobody's own: the snapshot itself could not be had
			r.finish(rd, err)
		default:
			r.finish(rd, errOthers)
		}
	}
}

// errOthers means that another entry of the group was in the way.
var errOthers = errors.New("live: read again")

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
	if err == nil {
		en.result = rd.res
		e.lanes.scheduleLocked(en)
		en.mu.Unlock()
		return
	}
	// What was captured was applied too, and a read that begins later sees it.
	en.captured, en.capturing, en.again, en.read = nil, false, false, readNone
	cold := en.ready != nil
	delay := int64(0)
	if !errors.Is(err, errOthers) {
		delay = e.now() + int64(e.opts.Retry)
		e.stats.readErrors.Add(1)
	}
	if !cold || errors.Is(err, errOthers) {
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

// Bounds of reading for a policy that hides most rows.
const maxPages = 16

// selectRows reads the rows of an entry.
func (r *reads) selectRows(ctx context.Context, s feed.Snapshot, rd *reading) (*result, error) {
	q, opts := rd.plan.q, &r.e.opts
	res := &result{plan: rd.plan}
	limit := q.Definition.Limit
	want := opts.MaxRows + 1
	if limit > 0 {
		want = limit + slackOf(limit)
	}
	var after row.Row
	bytes, failed := 0, false
	page := want
	for pages := 1; ; pages++ {
		rows, err := r.page(ctx, s, rd.bound, page, after)
		if err != nil {
			return nil, err
		}
		end := len(rows) < page
		if q.Order == nil { // it was read from the start again
			res.images, bytes = nil, 0
		}
		for _, rw := range rows {
			after = rw
			img := newImage(q, rw)
			switch visible, err := rd.en.allows(q.Table, rw); {
			case err != nil: // it keeps the state it had
				failed = true
				if img = rd.en.held(img.key); img == nil {
					continue
				}
			case !visible:
				continue
			}
			if bytes += img.size(); bytes > opts.MaxEntryBytes {
				return nil, fmt.Errorf("%w: %s: more than %d bytes", ErrRows, q.Definition.Name, opts.MaxEntryBytes)
			}
			if res.images = append(res.images, img); limit > 0 && len(res.images) == want {
				end = end && sameRow(rw, rows[len(rows)-1])
				break
			}
		}
		if limit == 0 && len(res.images) > opts.MaxRows {
			return nil, fmt.Errorf("%w: %s: more than %d rows", ErrRows, q.Definition.Name, opts.MaxRows)
		}
		res.complete = end
		if end || len(res.images) == want {
			break
		}
		if pages == maxPages {
			if limit == 0 {
				return nil, fmt.Errorf("%w: %s: the policy hides most of it", ErrRows, q.Definition.Name)
			}
			res.capped = true
			break
		}
		if q.Order == nil {
			page *= 2
		}
	}
	if failed {
		rd.en.rereadAfter(opts.Retry)
	}
	if !res.complete {
		res.boundary = after
	}
	if q.Order != nil { // as the window's own order is what it searches by
		slices.SortFunc(res.images, func(a, b *image) int { return q.Order.Compare(a.row, b.row) })
	}
	return res, nil
}

func sameRow(a, b row.Row) bool { return &a[0] == &b[0] }

func (r *reads) page(ctx context.Context, s feed.Snapshot, b *query.Bound, limit int, after row.Row) ([]row.Row, error) {
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
