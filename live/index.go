package live

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// index finds the entries of one table that a row can concern. It is guarded by its table's mutex. It may name an entry several times, and one that the row does not concern.
type index struct {
	table *row.Table
	seed  maphash.Seed
	salt  uint64
	keys  []*keyIndex
	rest  bucket      // of those without a key
	uses  []int       // by column: the postings that look at it
	tuple []row.Value // of the row that is being looked for
}

// verdict is what the index knows of an entry that it names. The first one that it gives of an entry for a change is right.
type verdict uint8

const (
	unknown verdict = iota // the predicate decides
	matches                // the new row matches
	left                   // the old row matched, and the new one does not or is no more
)

// posting is one place of an entry in the index, in one list.
type posting struct {
	entry      *Entry
	prev, next *posting
	bucket     *bucket
	node       *rangeNode // nil when it has no range
	whole      bool       // its condition is the entry's whole predicate
}

// list is postings that stand for the same condition. Adding and removing costs nothing but the posting's own place.
type list struct{ head *posting }

func (l *list) add(p *posting) {
	p.prev, p.next = nil, l.head
	if l.head != nil {
		l.head.prev = p
	}
	l.head = p
}

func (l *list) remove(p *posting) {
	if p.next != nil {
		p.next.prev = p.prev
	}
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.head = p.next
	}
}

// keyIndex is the postings of all conditions on the same columns, by the hash of the values.
type keyIndex struct {
	columns []int
	buckets map[uint64]*bucket
}

// bucket is the postings of conditions with the same values: without a further range, and by range.
type bucket struct {
	keys   *keyIndex
	hash   uint64
	tuple  []row.Value
	next   *bucket // of another tuple with the same hash
	list   list
	ranges *rangeIndex
}

// rangeIndex is the ranges on one column: a treap by the lower end, in which each node knows the highest upper end below it.
type rangeIndex struct {
	column    int
	collation row.Collation
	root      *rangeNode
	next      *rangeIndex // on another column
}

type rangeNode struct {
	ends        // a copy, as a walk is above all waiting for memory
	maxHi       query.End
	left, right *rangeNode
	postings    list
	ranges      *rangeIndex
	priority    uint32
}

type ends struct{ lo, hi query.End }

func newIndex(t *row.Table) *index {
	return &index{table: t, seed: maphash.MakeSeed(), salt: rand.Uint64(), uses: make([]int, len(t.Columns))}
}

// add makes the postings of an entry.
func (x *index) add(en *Entry, access []query.Access) {
	n := 0
	for i := range access {
		n += max(1, len(access[i].Keys))
	}
	if n > 1 {
		en.others = make([]posting, 0, n-1)
	}
	for i := range access {
		a := &access[i]
		if len(a.Columns) == 0 {
			x.put(&x.rest, x.posting(en), a)
			continue
		}
		k := x.keysOn(a.Columns)
		for _, tuple := range a.Keys {
			x.put(x.bucketOf(k, tuple), x.posting(en), a)
		}
	}
}

func (x *index) put(b *bucket, p *posting, a *query.Access) {
	p.bucket, p.whole = b, a.Whole
	if a.Range == nil {
		b.list.add(p)
	} else {
		p.node = b.rangesOn(a.Range).insert(ends{a.Range.Lo, a.Range.Hi})
		p.node.postings.add(p)
	}
	x.count(p, 1)
}

// count notes which columns a posting looks at.
func (x *index) count(p *posting, n int) {
	if p.bucket.keys != nil {
		for _, c := range p.bucket.keys.columns {
			x.uses[c] += n
		}
	}
	if p.node != nil {
		x.uses[p.node.ranges.column] += n
	}
}

func (x *index) posting(en *Entry) *posting {
	if en.first.entry == nil {
		en.first.entry = en
		return &en.first
	}
	en.others = append(en.others, posting{entry: en})
	return &en.others[len(en.others)-1]
}

// remove takes the postings of an entry out.
func (x *index) remove(en *Entry) {
	if en.first.entry == nil {
		return
	}
	x.removePosting(&en.first)
	for i := range en.others {
		x.removePosting(&en.others[i])
	}
	en.first, en.others = posting{}, nil
}

func (x *index) removePosting(p *posting) {
	x.count(p, -1)
	b := p.bucket
	if p.node == nil {
		b.list.remove(p)
	} else if p.node.postings.remove(p); p.node.postings.head == nil {
		p.node.ranges.remove(p.node)
		b.ranges = b.ranges.trim()
	}
	if b == &x.rest || b.list.head != nil || b.ranges != nil {
		return
	}
	k := b.keys
	first := k.buckets[b.hash]
	for at := &first; *at != nil; at = &(*at).next {
		if *at == b {
			*at = b.next
			break
		}
	}
	if first != nil {
		k.buckets[b.hash] = first
	} else if delete(k.buckets, b.hash); len(k.buckets) == 0 {
		x.keys = slices.DeleteFunc(x.keys, func(o *keyIndex) bool { return o == k })
	}
}

// trim returns the indexes that are not empty.
func (r *rangeIndex) trim() *rangeIndex {
	if r == nil {
		return nil
	}
	if r.next = r.next.trim(); r.root == nil {
		return r.next
	}
	return r
}

func (x *index) keysOn(columns []int) *keyIndex {
	for _, k := range x.keys {
		if slices.Equal(k.columns, columns) {
			return k
		}
	}
	k := &keyIndex{columns: columns, buckets: map[uint64]*bucket{}}
	x.keys = append(x.keys, k)
	return k
}

// bucketOf returns the bucket of a tuple, a new one if there is none.
func (x *index) bucketOf(k *keyIndex, tuple []row.Value) *bucket {
	h := x.hash(tuple)
	if b := k.buckets[h].of(tuple); b != nil {
		return b
	}
	b := &bucket{keys: k, hash: h, tuple: tuple, next: k.buckets[h]}
	k.buckets[h] = b
	return b
}

// of returns the bucket of a tuple among those of one hash, or nil.
func (b *bucket) of(tuple []row.Value) *bucket {
	for b != nil && !slices.Equal(b.tuple, tuple) {
		b = b.next
	}
	return b
}

func (b *bucket) rangesOn(g *query.Range) *rangeIndex {
	for r := b.ranges; r != nil; r = r.next {
		if r.column == g.Column {
			return r
		}
	}
	b.ranges = &rangeIndex{column: g.Column, collation: g.Collation, next: b.ranges}
	return b.ranges
}

// mix joins the hashes of a tuple.
func mix(h, v uint64) uint64 { return (h^v)*0x9e3779b97f4a7c15 ^ h>>29 }

func (x *index) hash(tuple []row.Value) uint64 {
	h := x.salt
	for i := range tuple {
		v := &tuple[i]
		h = mix(mix(h, uint64(v.Kind())), uint64(v.Int()))
		if s := v.Text(); s != "" {
			h = mix(h, maphash.String(x.seed, s))
		}
	}
	return h
}

// find returns the bucket of a row, or nil.
func (x *index) find(k *keyIndex, r row.Row) *bucket {
	x.tuple = x.tuple[:0]
	for _, c := range k.columns {
		x.tuple = append(x.tuple, row.Canonical(r[c], x.table.Columns[c].Type.Collation))
	}
	return k.buckets[x.hash(x.tuple)].of(x.tuple)
}

// decides reports whether every cell that the index looks at is known.
func (x *index) decides(r row.Row) bool {
	for i := range r {
		if r[i].Kind() == row.Absent && x.uses[i] > 0 {
			return false
		}
	}
	return true
}

// candidates calls f for the entries that a change from old to r can concern; either may be nil. The rows must be such that it decides them.
func (x *index) candidates(old, r row.Row, f func(*Entry, verdict)) {
	for _, k := range x.keys {
		var now, was *bucket
		if r != nil {
			now = x.find(k, r)
		}
		switch {
		case old == nil:
		case r != nil && sameCells(k.columns, old, r):
			was = now
		default:
			was = x.find(k, old)
		}
		candidates(now, was, old, r, f)
	}
	var now, was *bucket
	if r != nil {
		now = &x.rest
	}
	if old != nil {
		was = &x.rest
	}
	candidates(now, was, old, r, f)
}

// candidates does it for the bucket where a row is, and the one where it was. The new row goes first, as both may name an entry.
func candidates(now, was *bucket, old, r row.Row, f func(*Entry, verdict)) {
	if now != nil {
		now.list.name(matches, f)
		for g := now.ranges; g != nil; g = g.next {
			g.stab(g.root, &r[g.column], matches, f)
		}
	}
	if was != nil {
		if was != now {
			was.list.name(left, f)
		}
		for g := was.ranges; g != nil; g = g.next {
			if was != now || old[g.column] != r[g.column] {
				g.stab(g.root, &old[g.column], left, f)
			}
		}
	}
}

func sameCells(columns []int, a, b row.Row) bool {
	for _, c := range columns {
		if a[c] != b[c] {
			return false
		}
	}
	return true
}

// name calls f for all postings, with a verdict for those that it is one for.
func (l *list) name(v verdict, f func(*Entry, verdict)) {
	for p := l.head; p != nil; p = p.next {
		if p.whole {
			f(p.entry, v)
		} else {
			f(p.entry, unknown)
		}
	}
}

// stab names the entries whose range holds a value.
func (x *rangeIndex) stab(n *rangeNode, v *row.Value, is verdict, f func(*Entry, verdict)) {
	for n != nil && !v.IsNull() && x.reaches(&n.maxHi, v) {
		x.stab(n.left, v, is, f)
		if n.lo.Set {
			if c := row.Compare(*v, n.lo.Value, x.collation); c < 0 || c == 0 && n.lo.Open {
				return // and so does everything to the right begin behind it
			}
		}
		if x.reaches(&n.hi, v) {
			n.postings.name(is, f)
		}
		n = n.right
	}
}

// reaches reports whether a value is within an upper end.
func (x *rangeIndex) reaches(hi *query.End, v *row.Value) bool {
	if !hi.Set {
		return true
	}
	c := row.Compare(*v, hi.Value, x.collation)
	return c < 0 || c == 0 && !hi.Open
}

func (x *rangeIndex) compareHi(a, b *query.End) int {
	if !a.Set || !b.Set {
		return bit(!a.Set) - bit(!b.Set)
	}
	if c := row.Compare(a.Value, b.Value, x.collation); c != 0 {
		return c
	}
	return bit(b.Open) - bit(a.Open)
}

// compare orders ranges: by the lower end, then by the upper one. It is 0 for equal ranges.
func (x *rangeIndex) compare(a, b *ends) int {
	switch {
	case a.lo.Set != b.lo.Set:
		return bit(a.lo.Set) - bit(b.lo.Set)
	case a.lo.Set:
		if c := row.Compare(a.lo.Value, b.lo.Value, x.collation); c != 0 {
			return c
		}
		if a.lo.Open != b.lo.Open {
			return bit(a.lo.Open) - bit(b.lo.Open)
		}
	}
	return x.compareHi(&a.hi, &b.hi)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (x *rangeIndex) lift(n *rangeNode) {
	n.maxHi = n.hi
	for _, kid := range [...]*rangeNode{n.left, n.right} {
		if kid != nil && x.compareHi(&kid.maxHi, &n.maxHi) > 0 {
			n.maxHi = kid.maxHi
		}
	}
}

// insert returns the node of a range, a new one if there is none.
func (x *rangeIndex) insert(g ends) (node *rangeNode) {
	x.root, node = x.insertAt(x.root, &g)
	return node
}

func (x *rangeIndex) insertAt(n *rangeNode, g *ends) (root, node *rangeNode) {
	if n == nil {
		n = &rangeNode{ends: *g, maxHi: g.hi, ranges: x, priority: rand.Uint32()}
		return n, n
	}
	switch c := x.compare(g, &n.ends); {
	case c == 0:
		return n, n
	case c < 0:
		n.left, node = x.insertAt(n.left, g)
		if l := n.left; l.priority > n.priority {
			n.left, l.right = l.right, n
			x.lift(n)
			n = l
		}
	default:
		n.right, node = x.insertAt(n.right, g)
		if r := n.right; r.priority > n.priority {
			n.right, r.left = r.left, n
			x.lift(n)
			n = r
		}
	}
	x.lift(n)
	return n, node
}

func (x *rangeIndex) remove(node *rangeNode) { x.root = x.removeAt(x.root, node) }

func (x *rangeIndex) removeAt(n, node *rangeNode) *rangeNode {
	if n == node {
		return x.join(n.left, n.right)
	}
	if x.compare(&node.ends, &n.ends) < 0 {
		n.left = x.removeAt(n.left, node)
	} else {
		n.right = x.removeAt(n.right, node)
	}
	x.lift(n)
	return n
}

func (x *rangeIndex) join(a, b *rangeNode) *rangeNode {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	case a.priority > b.priority:
		a.right = x.join(a.right, b)
		x.lift(a)
		return a
	}
	b.left = x.join(a, b.left)
	x.lift(b)
	return b
}
