package live

import (
	"maps"
	"slices"
	"strconv"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// recent is the last changes of a table, so that windows can be led back. It is guarded by its table's mutex.
type recent struct {
	changes []past
	bytes   int
	tx      *feed.Tx // the one that is being recorded
	skip    bool     // it is not, as not all of it can be
}

// past is one change, as the table has its columns.
type past struct {
	tx       *feed.Tx
	old, now row.Row
	bytes    int
}

// forget gives everything up, the rest of a transaction that has begun included.
func (r *recent) forget(tx *feed.Tx) { *r = recent{tx: tx, skip: true} }

// add records a change. Transactions are whole in it or not at all.
func (r *recent) add(tx *feed.Tx, op feed.Op, old, now row.Row, most int) {
	if tx != r.tx {
		r.tx, r.skip = tx, false
	}
	if op == feed.Truncate { // nobody knows what was there
		r.forget(tx)
	}
	if r.skip {
		return
	}
	p := past{tx, old, now, 2 * cellSize}
	for _, x := range [...]row.Row{old, now} {
		for i := range x {
			p.bytes += cellSize + len(x[i].Text())
		}
	}
	r.changes, r.bytes = append(r.changes, p), r.bytes+p.bytes
	for r.bytes > most {
		first := r.changes[0].tx
		if first == tx {
			r.forget(tx)
			return
		}
		n := slices.IndexFunc(r.changes, func(p past) bool { return p.tx != first })
		for i := range n {
			r.bytes -= r.changes[i].bytes
		}
		r.changes = r.changes[n:] // and nothing is written over, as it is read without the lock
	}
}

func (w *window) clone() *window {
	c := *w
	c.slots, c.byKey = slices.Clone(w.slots), maps.Clone(w.byKey)
	return &c
}

// delta makes the frame of [Entry.Delta].
func (en *Entry) delta(sum string) (f Frame, ok bool) {
	from, err := strconv.ParseUint(sum, 16, 64)
	if err != nil {
		return f, false
	}
	en.mu.Lock()
	t, bound := en.plan.table, en.bound
	en.mu.Unlock()
	en.snapMu.Lock() // who comes meanwhile with the same sum gets the same frame
	defer en.snapMu.Unlock()
	en.logMu.Lock()
	version, win := en.version, en.win
	if win == nil || bound.Query != win.q || win.q.Class == query.Rerun {
		en.logMu.Unlock()
		return f, false
	}
	if en.turned != nil && en.turnedAt == version && en.turnedFrom == from {
		defer en.logMu.Unlock()
		return Frame{Version: version, Payload: en.turned}, true
	}
	now, then := win.clone(), win.clone()
	en.logMu.Unlock()
	t.mu.Lock()
	changes := t.recent.changes // all that the window has, and perhaps more, which leaves it as it is when it is undone
	t.mu.Unlock()
	if !en.leadBack(then, bound, changes, from) {
		return f, false
	}
	payload := appendPatch(nil, en.id, version, now.q.Table, then.succeed(now), now.sum)
	en.logMu.Lock()
	defer en.logMu.Unlock()
	if en.version == version && !en.dead.Load() && en.e.retained.Load()+int64(len(payload)) <= int64(en.e.opts.RetainBytes) {
		en.dropSnapLocked()
		en.turned, en.turnedAt, en.turnedFrom = payload, version, from
		en.chargeLocked(len(payload))
	}
	return Frame{Version: version, Payload: payload}, true
}

// leadBack undoes transactions in a window until it shows what has the sum. It gives up when a snapshot is less work.
func (en *Entry) leadBack(w *window, bound *query.Bound, changes []past, sum uint64) bool {
	reads, budget := en.ident.t.reads(w.q), 16+2*w.shown()
	for w.sum != sum {
		if len(changes) == 0 || budget < 0 {
			return false
		}
		tx := changes[len(changes)-1].tx
		undone := map[row.Value]*image{}
		for len(changes) > 0 && changes[len(changes)-1].tx == tx {
			c := changes[len(changes)-1]
			changes = changes[:len(changes)-1]
			if c.now != nil {
				undone[w.q.Table.KeyOf(c.now)] = nil
			}
			if c.old == nil {
				continue
			}
			img := newImage(w.q, c.old)
			undone[img.key] = nil
			if !c.old.Complete(w.q.Filter) {
				return false
			}
			if bound.Match(c.old) != query.True {
				continue
			}
			if !c.old.Complete(reads) {
				return false
			}
			visible, err := en.allows(w.q.Table, c.old)
			if err != nil {
				return false
			}
			if visible {
				undone[img.key] = img
			}
		}
		var touches []touch
		for key, img := range undone {
			if img != nil || w.get(key) != nil {
				touches = append(touches, touch{key, img})
			}
		}
		budget -= len(touches)
		if w.apply(touches, nil); w.short() {
			return false
		}
	}
	return true
}
