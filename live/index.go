package live

import (
	"hash/maphash"
	"math/rand/v2"
	"slices"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// index finds the entries of one table that a row can concern. It is guarded by its table's mutex. It may name an entry several times, and one that the row does not concern: the predicate decides.
type index struct {
	table  *row.Table
	seed   maphash.Seed
	keys   []*keyIndex
	ranges []*rangeIndex
	scan   list
}

// posting is one place of an entry in the index, in one list.
type posting struct {
	entry      *Entry
	prev, next *posting
	// Of these one is set, or none for the scan list.
	keys *keyIndex
	hash uint64
	node *rangeNode
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

// keyIndex is the postings of all conditions on the same columns, by the hash of the values. Two tuples of one hash share a list, which costs a needless candidate.
type keyIndex struct {
	columns []int
	byHash  map[uint64]*posting
	n       int
}

// rangeIndex is the ranges on one column: a treap by the lower end, in which each node knows the highest upper end below it.
type rangeIndex struct {
	column    int
	collation row.Collation
	root      *rangeNode
}

type rangeNode struct {
	g           *query.Range
	postings    list
	priority    uint32
	left, right *rangeNode
	maxHi       query.End
}

func newIndex(t *row.Table) *index { return &index{table: t, seed: maphash.MakeSeed()} }

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
		switch {
		case len(a.Columns) > 0:
			k := x.keysOn(a.Columns)
			for _, tuple := range a.Keys {
				h := x.hashTuple(tuple)
				p := x.posting(en)
				p.keys, p.hash = k, h
				l := list{k.byHash[h]}
				l.add(p)
				k.byHash[h] = p
				k.n++
			}
		case a.Range != nil:
			p := x.posting(en)
			p.node = x.rangesOn(a.Range).insert(a.Range)
			p.node.postings.add(p)
		default:
			x.scan.add(x.posting(en))
		}
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
	switch {
	case p.keys != nil:
		l := list{p.keys.byHash[p.hash]}
		l.remove(p)
		if l.head == nil {
			delete(p.keys.byHash, p.hash)
		} else {
			p.keys.byHash[p.hash] = l.head
		}
		if p.keys.n--; p.keys.n == 0 {
			x.keys = slices.DeleteFunc(x.keys, func(k *keyIndex) bool { return k == p.keys })
		}
	case p.node != nil:
		p.node.postings.remove(p)
		if p.node.postings.head == nil {
			x.rangesOn(p.node.g).remove(p.node)
		}
	default:
		x.scan.remove(p)
	}
}

func (x *index) keysOn(columns []int) *keyIndex {
	for _, k := range x.keys {
		if slices.Equal(k.columns, columns) {
			return k
		}
	}
	k := &keyIndex{columns: columns, byHash: map[uint64]*posting{}}
	x.keys = append(x.keys, k)
	return k
}

func (x *index) rangesOn(g *query.Range) *rangeIndex {
	for _, r := range x.ranges {
		if r.column == g.Column {
			return r
		}
	}
	r := &rangeIndex{column: g.Column, collation: g.Collation}
	x.ranges = append(x.ranges, r)
	return r
}

// mix joins the hashes of a tuple.
func mix(h, v uint64) uint64 { return (h^v)*0x9e3779b97f4a7c15 ^ h>>29 }

func (x *index) hashTuple(tuple []row.Value) (h uint64) {
	for _, v := range tuple {
		h = mix(h, maphash.Comparable(x.seed, v))
	}
	return h
}

func (x *index) hashRow(columns []int, r row.Row) (h uint64) {
	for _, c := range columns {
		h = mix(h, maphash.Comparable(x.seed, row.Canonical(r[c], x.table.Columns[c].Type.Collation)))
	}
	return h
}

// decides reports whether every cell that the index looks at is known.
func (x *index) decides(r row.Row) bool {
	for _, k := range x.keys {
		for _, c := range k.columns {
			if r[c].Kind() == row.Absent {
				return false
			}
		}
	}
	for _, g := range x.ranges {
		if r[g.column].Kind() == row.Absent {
			return false
		}
	}
	return true
}

// candidates calls f for the entries that a change from old to r can concern; either may be nil. The rows must be such that it decides them.
func (x *index) candidates(old, r row.Row, f func(*Entry)) {
	for _, k := range x.keys {
		var h, was uint64
		if r != nil {
			h = x.hashRow(k.columns, r)
			for p := k.byHash[h]; p != nil; p = p.next {
				f(p.entry)
			}
		}
		if old != nil {
			if was = x.hashRow(k.columns, old); r != nil && was == h {
				continue
			}
			for p := k.byHash[was]; p != nil; p = p.next {
				f(p.entry)
			}
		}
	}
	for _, g := range x.ranges {
		if r != nil {
			g.stab(g.root, &r[g.column], f)
		}
		if old != nil && (r == nil || old[g.column] != r[g.column]) {
			g.stab(g.root, &old[g.column], f)
		}
	}
	for p := x.scan.head; p != nil; p = p.next {
		f(p.entry)
	}
}

// stab calls f for the entries whose range holds a value.
func (x *rangeIndex) stab(n *rangeNode, v *row.Value, f func(*Entry)) {
	for n != nil && !v.IsNull() && x.reaches(n.maxHi, *v) {
		x.stab(n.left, v, f)
		if n.g.Lo.Set {
			if c := row.Compare(*v, n.g.Lo.Value, x.collation); c < 0 || c == 0 && n.g.Lo.Open {
				return // and so does everything to the right begin behind it
			}
		}
		if x.reaches(n.g.Hi, *v) {
			for p := n.postings.head; p != nil; p = p.next {
				f(p.entry)
			}
		}
		n = n.right
	}
}

// reaches reports whether a value is within an upper end.
func (x *rangeIndex) reaches(hi query.End, v row.Value) bool {
	if !hi.Set {
		return true
	}
	c := row.Compare(v, hi.Value, x.collation)
	return c < 0 || c == 0 && !hi.Open
}

func (x *rangeIndex) compareHi(a, b query.End) int {
	if !a.Set || !b.Set {
		return bit(!a.Set) - bit(!b.Set)
	}
	if c := row.Compare(a.Value, b.Value, x.collation); c != 0 {
		return c
	}
	return bit(b.Open) - bit(a.Open)
}

// compare orders ranges: by the lower end, then by the upper one. It is 0 for equal ranges.
func (x *rangeIndex) compare(a, b *query.Range) int {
	switch {
	case a.Lo.Set != b.Lo.Set:
		return bit(a.Lo.Set) - bit(b.Lo.Set)
	case a.Lo.Set:
		if c := row.Compare(a.Lo.Value, b.Lo.Value, x.collation); c != 0 {
			return c
		}
		if a.Lo.Open != b.Lo.Open {
			return bit(a.Lo.Open) - bit(b.Lo.Open)
		}
	}
	return x.compareHi(a.Hi, b.Hi)
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (x *rangeIndex) lift(n *rangeNode) {
	n.maxHi = n.g.Hi
	for _, kid := range [...]*rangeNode{n.left, n.right} {
		if kid != nil && x.compareHi(kid.maxHi, n.maxHi) > 0 {
			n.maxHi = kid.maxHi
		}
	}
}

// insert returns the node of a range, a new one if there is none.
func (x *rangeIndex) insert(g *query.Range) (node *rangeNode) {
	x.root, node = x.insertAt(x.root, g)
	return node
}

func (x *rangeIndex) insertAt(n *rangeNode, g *query.Range) (root, node *rangeNode) {
	if n == nil {
		n = &rangeNode{g: g, priority: rand.Uint32(), maxHi: g.Hi}
		return n, n
	}
	switch c := x.compare(g, n.g); {
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
	if x.compare(node.g, n.g) < 0 {
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
