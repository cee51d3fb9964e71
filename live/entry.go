package live

import (
	"encoding/json"
	"fmt"
	"slices"
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
	first   posting // of those in the index, of which most entries have one: see others
	hit     hit     // of that transaction, the first and what follows, if any
	more    []hit

	e     *Engine
	id    string
	ident ident

	mu        sync.Mutex // guards below; after the table's
	jobs      []job
	room      [1]job // for jobs, of which there is seldom more than one
	weight    int    // of jobs and captured
	scheduled bool   // it is in the queue of the workers, or one has it
	blocked   bool   // jobs wait for a read
	void      bool   // what is being read is of no use any more
	newEpoch  bool   // the next read begins a new epoch
	again     bool   // read again after this
	capturing bool
	read      readState
	result    *result
	fence     feed.Fence // of the lane
	ready     chan struct{}
	err       error  // why it is dead
	captured  []job  // what was applied since the read on its way began
	readSeq   uint64 // of its place among the reads that wait
	readAt    int64  // when it is due: the one that waits, or the one after that on its way
	readMost  int    // how many may share the next one's statement, if not zero
	lastRead  int64  // when the last read began

	history

	others    []posting       // guarded by the table's mutex
	actor     json.RawMessage // of a policy
	refs      int             // guarded by e.mu
	lingering bool            // guarded by e.mu: it is in the queue of those that linger
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
	tx    *feed.Tx
	hit   hit // the first, of often one
	more  []hit
	group *group // nil when it is in none, or has left it
}

func (j *job) weight() int { return 1 + len(j.more)>>4 }

// hit is what one change means for an entry.
type hit struct {
	kind hitKind
	img  *image // of hitGone with the key alone
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
	boundary row.Row
}

func (en *Entry) query() *query.Query {
	en.mu.Lock()
	defer en.mu.Unlock()
	return en.plan.q
}

// enqueue gives the entry a transaction, which is counted as pending. waits is false when it does not wait for a worker, and idle true when no worker has the entry: the caller gives it to them.
func (en *Entry) enqueue(j job) (waits, idle bool) {
	en.mu.Lock()
	defer en.mu.Unlock()
	if en.dead.Load() {
		j.group.leave()
		return false, false
	}
	if en.plan.q.Class == query.Rerun {
		j.group.leave()
		en.e.reads.requestLocked(en, en.lastRead+int64(en.e.opts.Debounce))
		return false, false
	}
	en.weight += j.weight()
	if en.weight > en.e.opts.Buffer && (en.blocked || en.capturing) {
		en.e.stats.overflows.Add(1)
		j.group.leave()
		en.voidLocked()
		en.e.reads.requestLocked(en, 0)
		return false, false
	}
	if en.blocked {
		j.group.leave()
		j.group = nil
	}
	if len(en.jobs) == 0 {
		en.jobs = en.room[:0]
	}
	en.jobs = append(en.jobs, j)
	if en.blocked {
		return false, false
	}
	idle, en.scheduled = !en.scheduled, true
	return true, idle
}

// blockLocked makes jobs wait for a read. No group waits for one.
func (en *Entry) blockLocked() {
	if !en.blocked {
		en.blocked = true
		en.e.unpend(len(en.jobs))
		en.leaveLocked()
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
			en.leaveLocked()
			en.jobs, en.captured, en.result, en.scheduled = nil, nil, nil, false
			en.mu.Unlock()
			return false
		case en.result != nil:
			res, captured, first, newEpoch := en.result, en.captured, en.ready != nil, en.newEpoch
			en.result, en.captured, en.capturing, en.newEpoch = nil, nil, false, false
			for _, j := range captured {
				en.weight -= j.weight()
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
				en.captured = append(en.captured, job{j.tx, j.hit, j.more, nil})
			} else {
				en.weight -= j.weight()
			}
			en.mu.Unlock()
			if !en.fence.Includes(j.tx) {
				en.apply(j, bound)
			}
			j.group.leave()
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
	var room [4]touch
	touches, failed, unknown := en.touches(room[:0], en.win, j, bound)
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
	var steps [4]op
	ops := w.apply(touches, steps[:])
	f, ok := en.patchLocked(ops)
	err := en.boundsLocked()
	short, low := w.short(), w.low()
	en.logMu.Unlock()
	if ok {
		f.Commit = j.group.number()
		en.publish(f)
		j.group.published(en)
	}
	switch {
	case err != nil:
		en.e.fail(en, err)
	case short:
		en.stall(true)
	case low:
		en.rereadAfter(0)
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
	failed, unknown := false, false
	for _, j := range captured {
		if res.fence.Includes(j.tx) {
			continue
		}
		touches, f, u := en.touches(nil, next, j, bound)
		failed, unknown = failed || f, unknown || u
		next.apply(touches, nil)
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

// touches appends what a transaction does to the rows of a window, each key once. failed means that the policy could not decide, unknown that a row is not known well enough.
func (en *Entry) touches(out []touch, w *window, j job, bound *query.Bound) (_ []touch, failed, unknown bool) {
	var places map[row.Value]int // where out has a key, when it is long
	at := func(key row.Value) int {
		if len(out) < 8 {
			return slices.IndexFunc(out, func(t touch) bool { return t.key == key })
		}
		if places == nil {
			places = make(map[row.Value]int, len(j.more))
			for i := range out {
				places[out[i].key] = i
			}
		}
		if i, ok := places[key]; ok {
			return i
		}
		return -1
	}
	set := func(key row.Value, img *image) {
		if i := at(key); i >= 0 {
			out[i].img = img
			return
		}
		if places != nil {
			places[key] = len(out)
		}
		out = append(out, touch{key, img})
	}
	take := func(h hit) {
		switch h.kind {
		case hitClear:
			for i := range out {
				out[i].img = nil
			}
			for i := range w.slots {
				set(w.slots[i].img.key, nil)
			}
			return
		case hitGone:
			set(h.img.key, nil)
			return
		case hitPartial:
			key, held := h.img.key, w.get(h.img.key)
			if i := at(key); i >= 0 {
				held = out[i].img
			}
			if h.img = fill(w.q, en.ident.t.reads(w.q), h.img, held); h.img == nil {
				unknown = true
				return
			}
			if bound.Match(h.img.row) != query.True {
				set(key, nil)
				return
			}
		}
		switch visible, err := en.allows(w.q.Table, h.img.row); {
		case err != nil:
			failed = true // the row keeps the state it had
		case visible:
			set(h.img.key, h.img)
		default:
			set(h.img.key, nil)
		}
	}
	take(j.hit)
	for _, h := range j.more {
		take(h)
	}
	return out, failed, unknown
}

// fill completes a row with the cells that the entry has of it. Nil means that it cannot.
func fill(q *query.Query, reads row.Mask, img, held *image) *image {
	if held == nil {
		return nil
	}
	r := append(row.Row(nil), img.row...)
	for i := range r {
		if r[i].Kind() == row.Absent {
			r[i] = held.row[i]
		}
	}
	if !r.Complete(reads) {
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
		f = Frame{Version: en.version, Payload: appendSnapshot(nil, en.id, en.version, en.epoch, w.q.Table, rows, w.sum), Snapshot: true}
	} else {
		f = Frame{Version: en.version, Payload: appendPatch(make([]byte, 0, patchSize(en.id, w.q.Table, ops)), en.id, en.version, w.q.Table, ops, w.sum)}
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
