package postgres

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tidewire/tidewire/row"
)

// layout is a table as it was at one time.
type layout struct {
	table     *row.Table
	columns   []relationColumn // of the table's columns; key is not used
	generated []bool
}

func (l *layout) equal(o *layout) bool {
	return reflect.DeepEqual(l.table, o.table) && slices.Equal(l.columns, o.columns) && slices.Equal(l.generated, o.generated)
}

// fits reports whether the stream's columns are those of the layout. Generated columns may be missing: before version 18 they always are.
func (l *layout) fits(columns []relationColumn) bool {
	for _, c := range columns {
		i := indexOf(l.columns, c.name)
		if i < 0 || l.columns[i].oid != c.oid || l.columns[i].mod != c.mod {
			return false
		}
	}
	for i, c := range l.columns {
		if !l.generated[i] && indexOf(columns, c.name) < 0 {
			return false
		}
	}
	return true
}

// maxLayouts bounds the layouts of a table that are remembered, so that a stream that is behind finds the one of its time.
const maxLayouts = 8

// followed is a table of the feed.
type followed struct {
	last    *description // what the catalog said last
	layouts []*layout    // newest last
}

func (f *followed) fitting(columns []relationColumn) *layout {
	for _, l := range slices.Backward(f.layouts) {
		if l.fits(columns) {
			return l
		}
	}
	return nil
}

// registry has the tables of the feed.
type registry struct {
	generation atomic.Uint64 // changes with every change below

	mu     sync.Mutex // guards below
	byOID  map[uint32]*followed
	leaves map[uint32]uint32 // partitions: their root
}

// put takes what the catalog says of a table and returns the layout, which is the same one while nothing is altered.
func (r *registry) put(x *description) *layout {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byOID == nil {
		r.byOID, r.leaves = map[uint32]*followed{}, map[uint32]uint32{}
	}
	for oid, f := range r.byOID {
		if f.last.name() == x.name() && oid != x.OID {
			r.removeLocked(oid)
		}
	}
	f := r.byOID[x.OID]
	if f == nil {
		f = &followed{}
		r.byOID[x.OID] = f
	}
	f.last = x
	maps.DeleteFunc(r.leaves, func(_, root uint32) bool { return root == x.OID })
	for _, n := range x.Nodes {
		r.leaves[n.OID] = x.OID
	}
	r.generation.Add(1)
	return f.addLocked(x.layout())
}

func (f *followed) addLocked(l *layout) *layout {
	if i := slices.IndexFunc(f.layouts, l.equal); i >= 0 {
		l = f.layouts[i]
		f.layouts = slices.Delete(f.layouts, i, i+1)
	}
	f.layouts = append(f.layouts, l)
	if len(f.layouts) > maxLayouts {
		f.layouts = slices.Delete(f.layouts, 0, 1)
	}
	return l
}

// remember takes a layout of the past.
func (r *registry) remember(oid uint32, l *layout) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.byOID[oid]
	switch {
	case f == nil:
	case len(f.layouts) < maxLayouts:
		f.layouts = slices.Insert(f.layouts, 0, l)
	default:
		f.layouts[0] = l
	}
}

func (r *registry) removeLocked(oid uint32) {
	delete(r.byOID, oid)
	maps.DeleteFunc(r.leaves, func(_, root uint32) bool { return root == oid })
	r.generation.Add(1)
}

func (r *registry) remove(oid uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.removeLocked(oid)
}

// root returns the table under which a relation of the stream is known: itself, or the root of a partition; 0 is none.
func (r *registry) root(oid uint32) uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byOID[oid] != nil {
		return oid
	}
	return r.leaves[oid]
}

// fitting returns the newest layout that the columns fit, and the latest description.
func (r *registry) fitting(oid uint32, columns []relationColumn) (*layout, *description) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.byOID[oid]
	if f == nil {
		return nil, nil
	}
	return f.fitting(columns), f.last
}

// all returns the latest description of each table.
func (r *registry) all() map[uint32]*description {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[uint32]*description, len(r.byOID))
	for oid, f := range r.byOID {
		out[oid] = f.last
	}
	return out
}

// partitioned reports whether any table is.
func (r *registry) partitioned() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.byOID {
		if f.last.Kind == "p" {
			return true
		}
	}
	return false
}
