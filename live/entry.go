package live

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// Entry is the shared result of one query with one input.
//
// Its lane is whichever worker holds it (scheduled): that one alone changes the window, so that frames have one order. Others leave transactions and what was read in its queue.
type Entry struct {
	// Guarded by the table's mutex; plan and bound are changed with mu held too. They stand first and together, as matching a change is above all waiting for memory.
	plan    *plan
	bound   *query.Bound
	seq     uint64 // the last change that looked at it
	place   int32  // in table.entries, -1 when it is in none
	touched bool   // it has hits of the transaction that is being matched
	dead    atomic.Bool
	first   posting // of those in the index, of which most entries have one
	others  []posting
	hits    []hit

	e     *Engine
	id    string
	ident ident
	actor json.RawMessage // of a policy

	refs      int  // guarded by e.mu
	lingering bool // guarded by e.mu: it is in the queue of those that linger

	mu        sync.Mutex // guards below; after the table's
	ready     chan struct{}
	err       error // why it is dead
	jobs      []job
	weight    int  // of jobs and captured
	scheduled bool // it is in the queue of the workers, or one has it
	blocked   bool // jobs wait for a read
	void      bool // what is being read is of no use any more
	newEpoch  bool // the next read begins a new epoch
	again     bool // read again after this
	capturing bool
	captured  []job // what was applied since the read on its way began
	result    *result
	read      readState
	readSeq   uint64     // of its place among the reads that wait
	readAt    int64      // when it is due: the one that waits, or the one after that on its way
	lastRead  int64      // when the last read began
	fence     feed.Fence // of the lane

	history
}

type readState uint8

const (
	readNone readState = iota
	readQueued
	readRunning // up to when the lane has taken the result
)

// ident is what makes an entry: entries with equal ones are the same.
type ident struct {
	t     *template
	text  string
	actor string
}

// job is what one transaction means for an entry.
type job struct {
	tx   *feed.Tx
	hits []hit
}

// hit is what one change means for an entry.
type hit struct {
	kind hitKind
	key  row.Value
	img  *image
}

type hitKind uint8

const (
	hitPut     hitKind = iota // the row matches
	hitGone                   // it does not, or is no more
	hitPartial                // img has cells that are not known, and may match
	hitClear                  // there are no rows
)

// result is what was read.
type result struct {
	plan     *plan
	fence    feed.Fence
	images   []*image
	complete bool
	capped   bool
	boundary row.Row
}

func (en *Entry) query() *query.Query {
	en.mu.Lock()
	defer en.mu.Unlock()
	return en.plan.q
}

// enqueue gives the entry a transaction.
func (en *Entry) enqueue(j job) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.dead.Load() {
		return
	}
	if en.plan.q.Class == query.Rerun {
		en.e.reads.requestLocked(en, en.lastRead+int64(en.e.opts.Debounce))
		return
	}
	en.weight += 1 + len(j.hits)>>4
	if en.weight > en.e.opts.Buffer && (en.blocked || en.capturing) {
		en.e.stats.overflows.Add(1)
		en.voidLocked()
		en.e.reads.requestLocked(en, 0)
		return
	}
	en.jobs = append(en.jobs, j)
	if !en.blocked {
		en.e.pending.Add(1)
		en.e.lanes.scheduleLocked(en)
	}
}

// blockLocked makes jobs wait for a read.
func (en *Entry) blockLocked() {
	if !en.blocked {
		en.blocked = true
		en.e.unpend(len(en.jobs))
	}
}

// voidLocked gives up what the entry keeps for a read: only one that begins later will do.
func (en *Entry) voidLocked() {
	en.blockLocked()
	en.jobs, en.captured, en.weight, en.capturing = nil, nil, 0, false
	if en.result != nil { // which the lane has not taken yet
		en.result, en.read = nil, readNone
		return
	}
	en.void = true
}

// invalidateLocked is voidLocked after a loss.
func (en *Entry) invalidateLocked() {
	en.voidLocked()
	en.newEpoch = true
}

// work runs the lane for a while, and reports whether there is more to do.
func (en *Entry) work() (more bool) {
	for range 64 {
		en.mu.Lock()
		switch {
		case en.dead.Load():
			if !en.blocked {
				en.e.unpend(len(en.jobs))
			}
			en.jobs, en.captured, en.result, en.scheduled = nil, nil, nil, false
			en.mu.Unlock()
			return false
		case en.result != nil:
			res, captured, first, newEpoch := en.result, en.captured, en.ready != nil, en.newEpoch
			en.result, en.captured, en.capturing, en.newEpoch = nil, nil, false, false
			for _, j := range captured {
				en.weight -= 1 + len(j.hits)>>4
			}
			en.fence = res.fence
			if en.blocked {
				en.blocked = false
				en.e.pending.Add(int64(len(en.jobs)))
			}
			bound := en.bound
			en.mu.Unlock()
			en.renew(res, captured, bound, newEpoch || first)
		case len(en.jobs) > 0 && !en.blocked:
			j, bound := en.jobs[0], en.bound
			en.jobs[0] = job{}
			en.jobs = en.jobs[1:]
			en.e.unpend(1)
			if en.capturing {
				en.captured = append(en.captured, j)
			} else {
				en.weight -= 1 + len(j.hits)>>4
			}
			en.mu.Unlock()
			if !en.fence.Includes(j.tx) {
				en.apply(j, bound)
			}
		default:
			en.scheduled = false
			en.mu.Unlock()
			return false
		}
	}
	return true
}

// apply takes in a transaction.
func (en *Entry) apply(j job, bound *query.Bound) {
	touches, failed, unknown := en.touches(en.win, j, bound)
	if failed {
		en.rereadAfter(en.e.opts.Retry)
	}
	if unknown {
		en.e.stats.partial.Add(1)
		en.stall(false)
	}
	if len(touches) == 0 {
		return
	}
	for _, t := range touches {
		if t.img != nil {
			t.img.object() // not under the lock
		}
	}
	en.logMu.Lock()
	w := en.win
	ops := w.apply(touches)
	f, ok := en.patchLocked(ops)
	err := en.boundsLocked()
	capped := w.capped && ok
	short, low := w.short(), w.low()
	en.logMu.Unlock()
	if ok {
		en.publish(f)
	}
	switch {
	case err != nil:
		en.e.fail(en, err)
	case short:
		en.stall(true)
	case low:
		en.rereadAfter(0)
	case capped:
		en.rereadAfter(en.e.opts.Debounce)
	}
}

// stall makes the entry wait for a read before it goes on, or only asks for one that sees what it has seen.
func (en *Entry) stall(block bool) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if block {
		en.blockLocked()
	}
	if block && en.read == readRunning && en.capturing {
		return // the read on its way will do: what was applied since it began is kept
	}
	if en.read == readRunning {
		en.again = true
		return
	}
	en.e.reads.requestLocked(en, 0)
}

func (en *Entry) rereadAfter(d time.Duration) {
	en.mu.Lock()
	defer en.mu.Unlock()
	switch {
	case d > 0:
		en.e.reads.requestLocked(en, en.e.now()+int64(d))
	case en.read != readRunning: // else the one on its way will do
		en.e.reads.requestLocked(en, 0)
	}
}

// renew puts what was read in the place of the window.
func (en *Entry) renew(res *result, captured []job, bound *query.Bound, newEpoch bool) {
	next := newWindow(res.plan.q, res.images, res.complete, res.boundary)
	next.capped = res.capped
	failed, unknown := false, false
	for _, j := range captured {
		if res.fence.Includes(j.tx) {
			continue
		}
		touches, f, u := en.touches(next, j, bound)
		failed, unknown = failed || f, unknown || u
		next.apply(touches)
	}
	en.logMu.Lock()
	old := en.win
	en.win = next
	var f Frame
	var ok bool
	if old == nil || newEpoch {
		en.version++
		en.epoch = en.e.nextEpoch()
		en.forgetLocked()
	} else {
		f, ok = en.patchLocked(old.succeed(next))
	}
	err := en.boundsLocked()
	short, low := next.short(), next.low()
	en.logMu.Unlock()
	if old != nil && newEpoch {
		f, ok = en.snapshot(), true
	}
	if ok && err == nil {
		en.publish(f)
	}
	if err != nil {
		en.e.fail(en, err)
		return
	}
	en.mu.Lock()
	en.read = readNone
	if short {
		en.blockLocked()
	}
	again, at := en.again, en.readAt
	en.again = false
	switch {
	case short || low || unknown:
		en.e.reads.requestLocked(en, 0)
	case again:
		en.e.reads.requestLocked(en, at)
	case failed:
		en.e.reads.requestLocked(en, en.e.now()+int64(en.e.opts.Retry))
	}
	if en.ready != nil {
		close(en.ready)
		en.ready = nil
	}
	en.mu.Unlock()
}

// touches is what a transaction does to the rows of a window, each key once. failed means that the policy could not decide, unknown that a row is not known well enough.
func (en *Entry) touches(w *window, j job, bound *query.Bound) (out []touch, failed, unknown bool) {
	var places map[row.Value]int
	set := func(key row.Value, img *image) {
		if len(j.hits) == 1 {
			out = append(out, touch{key, img})
			return
		}
		if places == nil {
			places = map[row.Value]int{}
		}
		if i, ok := places[key]; ok {
			out[i].img = img
			return
		}
		places[key] = len(out)
		out = append(out, touch{key, img})
	}
	current := func(key row.Value) *image {
		if i, ok := places[key]; ok {
			return out[i].img
		}
		return w.byKey[key]
	}
	for _, h := range j.hits {
		switch h.kind {
		case hitClear:
			for i := range out {
				out[i].img = nil
			}
			for i := range w.slots {
				set(w.slots[i].img.key, nil)
			}
			if len(j.hits) == 1 {
				return out, failed, unknown
			}
			continue
		case hitGone:
			set(h.key, nil)
			continue
		case hitPartial:
			if h.img = fill(w.q, h.img, current(h.key)); h.img == nil {
				unknown = true
				continue
			}
			if bound.Match(h.img.row) != query.True {
				set(h.key, nil)
				continue
			}
		}
		switch visible, err := en.allows(w.q.Table, h.img.row); {
		case err != nil:
			failed = true // the row keeps the state it had
		case visible:
			set(h.key, h.img)
		default:
			set(h.key, nil)
		}
	}
	return out, failed, unknown
}

// fill completes a row with the cells that the entry has of it. Nil means that it cannot.
func fill(q *query.Query, img, held *image) *image {
	if held == nil {
		return nil
	}
	r := append(row.Row(nil), img.row...)
	for i := range r {
		if r[i].Kind() == row.Absent {
			r[i] = held.row[i]
		}
	}
	if !r.Complete(q.Reads) {
		return nil
	}
	return newImage(q, r)
}

// patchLocked makes the next version of what was done to the window. ok is false when clients see no difference. logMu is held.
func (en *Entry) patchLocked(ops []op) (f Frame, ok bool) {
	if len(ops) == 0 {
		return f, false
	}
	w := en.win
	en.version++
	if len(ops) > 16+2*w.shown() {
		en.forgetLocked()
		rows := w.slots[:w.shown()]
		f = Frame{en.version, appendSnapshot(nil, en.id, en.version, en.epoch, w.q.Table, rows, w.sum), true}
	} else {
		f = Frame{Version: en.version, Payload: appendPatch(nil, en.id, en.version, w.q.Table, ops, w.sum)}
		en.retainLocked(f)
	}
	en.e.stats.patches.Add(1)
	return f, true
}

// boundsLocked reports that the window is larger than an entry may be. logMu is held.
func (en *Entry) boundsLocked() error {
	w, o := en.win, &en.e.opts
	switch {
	case w.limit == 0 && len(w.slots) > o.MaxRows:
		return fmt.Errorf("%w: %s: more than %d rows", ErrRows, en.ident.t.def.Name, o.MaxRows)
	case w.bytes > o.MaxEntryBytes:
		return fmt.Errorf("%w: %s: more than %d bytes", ErrRows, en.ident.t.def.Name, o.MaxEntryBytes)
	}
	return nil
}

func (en *Entry) publish(f Frame) {
	if en.e.opts.Publish != nil {
		en.e.opts.Publish(en, f)
	}
}
