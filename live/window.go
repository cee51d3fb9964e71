package live

import (
	"bytes"
	"cmp"
	"slices"
	"sync"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// image is one state of one row as clients see it, encoded at most once. Entries that show the same columns share those that came with a transaction. One that stands for a row that is gone has its key alone.
type image struct {
	row  row.Row
	key  row.Value
	size int // about what the row costs in memory

	projection *row.Projection
	once       sync.Once
	json       []byte
	sum        uint64
}

func newImage(q *query.Query, r row.Row) *image { return imageOf(r, q.Table.KeyOf(r), q.Projection) }

func imageOf(r row.Row, key row.Value, p *row.Projection) *image {
	i := &image{row: r, key: key, size: imageSize + cellSize*len(r), projection: p}
	for k := range r {
		i.size += len(r[k].Text())
	}
	return i
}

// object is the row as JSON.
func (i *image) object() []byte {
	i.once.Do(func() {
		i.json = i.projection.AppendJSON(nil, i.row)
		i.sum = i.projection.Checksum(i.json)
	})
	return i.json
}

func (i *image) checksum() uint64 {
	i.object()
	return i.sum
}

const cellSize, imageSize = 32, 160

// slot is a place in a window.
type slot struct {
	img   *image
	shown bool // clients have the row
	fresh bool // it was put here by the transaction that is being applied
}

// window is the rows of an entry in order: those shown, and behind them, up to slack, those that come next.
type window struct {
	q     *query.Query
	limit int // zero: none
	slack int
	slots []slot
	byKey map[row.Value]*image // nil as long as there are few rows
	// complete says that there are no rows but these. Else all rows up to boundary are here, and what stands behind it is not known.
	complete bool
	boundary row.Row
	sum      uint64 // of the rows shown
	bytes    int
}

func slackOf(limit int) int { return max(16, limit/2) }

// newWindow makes a window of rows that were read, in their order.
func newWindow(q *query.Query, images []*image, complete bool, boundary row.Row) *window {
	limit := q.Definition.Limit
	w := &window{q: q, limit: limit, slack: slackOf(limit), complete: complete, boundary: boundary}
	w.slots = make([]slot, 0, len(images))
	for _, img := range images {
		if w.get(img.key) != nil {
			continue
		}
		w.slots = append(w.slots, slot{img: img})
		w.note(img)
		w.bytes += img.size
	}
	for i := range w.shown() {
		w.slots[i].shown = true
		w.sum += w.slots[i].img.checksum()
	}
	return w
}

// shown is how many rows clients see.
func (w *window) shown() int {
	if w.limit == 0 {
		return len(w.slots)
	}
	return min(w.limit, len(w.slots))
}

// short reports whether rows are missing at the end of what is shown, or may be.
func (w *window) short() bool {
	return w.limit > 0 && !w.complete && len(w.slots) < w.limit
}

// low reports whether the slack should be filled again.
func (w *window) low() bool {
	return w.limit > 0 && !w.complete && len(w.slots)-w.limit < w.slack/4
}

// fewRows is up to how many rows are looked through for a key: a map would cost more memory than most windows have.
const fewRows = 8

// get returns the row with a key, or nil.
func (w *window) get(key row.Value) *image {
	img, _ := w.find(key)
	return img
}

// find also returns its place.
func (w *window) find(key row.Value) (img *image, at int) {
	if w.byKey != nil {
		if img = w.byKey[key]; img != nil {
			at, _ = w.search(img.row)
		}
		return img, at
	}
	for i := range w.slots {
		if img := w.slots[i].img; img.key == key {
			return img, i
		}
	}
	return nil, 0
}

// note makes a row that has its slot one that get finds.
func (w *window) note(img *image) {
	switch {
	case w.byKey != nil:
		w.byKey[img.key] = img
	case len(w.slots) > fewRows:
		w.byKey = make(map[row.Value]*image, 2*fewRows)
		for i := range w.slots {
			w.byKey[w.slots[i].img.key] = w.slots[i].img
		}
	}
}

func (w *window) search(r row.Row) (int, bool) {
	return slices.BinarySearchFunc(w.slots, r, func(s slot, r row.Row) int { return w.q.Order.Compare(s.img.row, r) })
}

// knows reports whether a row's place is within what the window knows.
func (w *window) knows(r row.Row) bool {
	return w.complete || w.q.Order.Compare(r, w.boundary) <= 0
}

// touch is what became of one row in a transaction: a nil image means that it is not in the result.
type touch struct {
	key row.Value
	img *image
}

// apply takes in one transaction, with each key at most once, and returns the patch, in room if that is enough.
func (w *window) apply(touches []touch, room []op) []op {
	half := len(room) / 2
	dels, puts := room[:0:half], room[half:half]
	var few [4]*image
	fresh := few[:0]
	var moved map[*image]*image // the row that clients have, by what replaces it
	for _, t := range touches {
		old, i := w.find(t.key)
		img := t.img
		if img != nil && !w.knows(img.row) {
			img = nil
		}
		if old == nil && img == nil {
			continue
		}
		wasShown := false
		if old != nil {
			wasShown = w.slots[i].shown
			w.bytes -= old.size
			if wasShown {
				w.sum -= old.checksum()
			}
			if img != nil && w.q.Order.Compare(old.row, img.row) == 0 && sameKey(w.q.Table, old.row, img.row) { // it stays where it is
				w.slots[i].img = img
				w.note(img)
				w.bytes += img.size
				if wasShown {
					w.sum += img.checksum()
					if !bytes.Equal(old.object(), img.object()) {
						puts = append(puts, op{img: img})
					}
				}
				continue
			}
			w.slots = slices.Delete(w.slots, i, i+1)
			delete(w.byKey, t.key)
		}
		if img == nil {
			if wasShown {
				dels = append(dels, op{key: old.row})
			}
			continue
		}
		i, _ = w.search(img.row)
		w.slots = slices.Insert(w.slots, i, slot{img: img, fresh: true})
		w.note(img)
		w.bytes += img.size
		fresh = append(fresh, img)
		if wasShown {
			if moved == nil {
				moved = map[*image]*image{}
			}
			moved[img] = old
		}
	}
	// The rows that no transaction touched stand in their old order: those shown, then those not. So where what is shown ends now, a few on one side go or on the other come.
	n := w.shown()
	for i := n; i < len(w.slots); i++ {
		if s := &w.slots[i]; s.shown {
			s.shown = false
			w.sum -= s.img.checksum()
			dels = append(dels, op{key: s.img.row})
		} else if !s.fresh {
			break
		}
	}
	for i := n - 1; i >= 0; i-- {
		if s := &w.slots[i]; !s.fresh {
			if s.shown {
				break
			}
			s.shown = true
			w.sum += s.img.checksum()
			puts = append(puts, op{img: s.img})
		}
	}
	var stale []op // rows that clients have elsewhere
	for _, img := range fresh {
		i, _ := w.search(img.row)
		s := &w.slots[i]
		s.fresh = false
		s.shown = i < n
		old := moved[img]
		switch {
		case s.shown:
			w.sum += img.checksum()
			puts = append(puts, op{img: img})
			if old != nil {
				if sameKey(w.q.Table, old.row, img.row) {
					stale = append(stale, op{key: old.row})
				} else { // a put would not find it
					dels = append(dels, op{key: old.row})
				}
			}
		case old != nil:
			dels = append(dels, op{key: old.row})
		}
	}
	puts = slices.DeleteFunc(puts, func(o op) bool { // one that was changed in its place and then pushed out
		i, _ := w.search(o.img.row)
		return !w.slots[i].shown
	})
	for k := range puts {
		puts[k].at, _ = w.search(puts[k].img.row)
	}
	w.trim()
	return steps(dels, stale, puts)
}

// trim forgets what is behind the slack.
func (w *window) trim() {
	n := w.limit + w.slack
	if w.limit == 0 || len(w.slots) <= n {
		return
	}
	for _, s := range w.slots[n:] {
		delete(w.byKey, s.img.key)
		w.bytes -= s.img.size
	}
	w.slots = slices.Delete(w.slots, n, len(w.slots))
	w.complete, w.boundary = false, w.slots[n-1].img.row
}

// steps puts a patch in order. After the dels the list holds, in the right order, only rows that stay where they are, so that puts by rising index find their places. stale are rows that puts move: a
// put takes its own row out, which is enough when it is alone.
func steps(dels, stale, puts []op) []op {
	if len(puts) > 1 {
		dels = append(dels, stale...)
	}
	slices.SortFunc(puts, func(a, b op) int { return cmp.Compare(a.at, b.at) })
	if len(dels) == 0 {
		return puts
	}
	return append(dels, puts...)
}

func sameKey(t *row.Table, a, b row.Row) bool {
	for _, c := range t.Key {
		if a[c] != b[c] {
			return false
		}
	}
	return true
}

// succeed returns the patch that leads from what w shows to what next shows.
func (w *window) succeed(next *window) []op {
	before, after := w.slots[:w.shown()], next.slots[:next.shown()]
	was := make(map[row.Value]int, len(before))
	for i, s := range before {
		was[s.img.key] = i
	}
	var dels, stale, puts []op
	places := make([]int, 0, len(after)) // of the rows that were there, in their new order
	for _, s := range after {
		if i, ok := was[s.img.key]; ok {
			places = append(places, i)
		}
	}
	stays := longestRising(places)
	kept := make(map[row.Value]bool, len(places))
	for i, s := range after {
		from, ok := was[s.img.key]
		if !ok {
			puts = append(puts, op{img: s.img, at: i})
			continue
		}
		old := before[from].img
		kept[s.img.key] = true
		stay := len(stays) > 0 && stays[0] == from
		if stay {
			stays = stays[1:]
		}
		switch {
		case !sameKey(w.q.Table, old.row, s.img.row):
			dels = append(dels, op{key: old.row})
		case !stay:
			stale = append(stale, op{key: old.row})
		case bytes.Equal(old.object(), s.img.object()):
			continue
		}
		puts = append(puts, op{img: s.img, at: i})
	}
	for _, s := range before {
		if !kept[s.img.key] {
			dels = append(dels, op{key: s.img.row})
		}
	}
	return steps(dels, stale, puts)
}

// longestRising returns a longest rising subsequence.
func longestRising(a []int) []int {
	var ends []int // ends[k] is where the best one of length k+1 ends, by index
	prev := make([]int, len(a))
	for i, v := range a {
		k, _ := slices.BinarySearchFunc(ends, v, func(j, v int) int { return cmp.Compare(a[j], v) })
		prev[i] = -1
		if k > 0 {
			prev[i] = ends[k-1]
		}
		if k == len(ends) {
			ends = append(ends, i)
		} else {
			ends[k] = i
		}
	}
	out := make([]int, len(ends))
	for k, i := len(ends)-1, -1; k >= 0; k-- {
		if i < 0 {
			i = ends[k]
		} else {
			i = prev[i]
		}
		out[k] = a[i]
	}
	return out
}
