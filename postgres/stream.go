package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

// stream turns the messages of one connection into transactions. It belongs to the goroutine that reads.
type stream struct {
	d         *Database
	ctx       context.Context
	sink      feed.Sink
	relations map[uint32]*source
	cells     []cell // reused

	// Of the transaction.
	open    bool // between begin and commit
	tx      *feed.Tx
	skip    bool   // it was delivered before
	lost    string // why it cannot be delivered
	bytes   int
	partial uint64 // old rows with only their key
}

// source is a relation of the stream and what is known of it here.
type source struct {
	relation
	resolved   bool
	generation uint64      // of the registry, when it was resolved
	table      *row.Table  // nil: not of the feed
	root       uint32      // under which the registry knows the table
	full       bool        // old rows of kind O are whole
	position   []int       // of each column in the table
	types      []*row.Type // of each column
	keys       []bool      // of the table's columns
	asked      bool        // the catalog was asked whether it is a partition
	gone       bool        // and does not have it any more
}

// reset tells the sink that the feed begins anew.
func (s *stream) reset(at lsn, reason string) {
	s.d.log.Info("change feed reset", "position", at.String(), "reason", reason)
	s.d.count(func(st *Stats) { st.Resets++ })
	s.d.delivered.Store(uint64(at))
	s.sink.Reset(at.position(), reason)
}

// take handles one message. What it returns ends the connection.
func (s *stream) take(payload []byte) error {
	if len(payload) == 0 {
		return errProtocol
	}
	op := payload[0]
	switch op {
	case 'I', 'U', 'D':
		oid, ok := oidOf(payload)
		if !ok || !s.open {
			return errProtocol
		}
		if s.skip || s.lost != "" {
			return nil
		}
		return s.change(op, oid, payload)
	case 'Y', 'O', 'M': // type, origin, logical message
		return nil
	}
	switch op {
	case 'B':
		m := message{s: string(payload[1:])} // stays on the stack, as the next
		b, err := m.begin()
		if err != nil || s.open {
			return errProtocol
		}
		s.begin(b)
	case 'C':
		m := message{s: string(payload[1:])}
		c, err := m.commit()
		if err != nil || !s.open {
			return errProtocol
		}
		s.commit(c)
	case 'R':
		m := message{s: string(payload[1:])}
		r, err := m.relation()
		if err != nil {
			return err
		}
		s.relate(r)
	case 'T':
		m := message{s: string(payload[1:])}
		oids, err := m.truncate()
		if err != nil || !s.open {
			return errProtocol
		}
		if !s.skip && s.lost == "" {
			return s.truncate(oids)
		}
	default:
		return fmt.Errorf("%w: type %q", errProtocol, op)
	}
	return nil
}

// begin notes the transaction before anything of it is looked at: a read that does not see it yet waits, so a table may join the feed at any moment.
func (s *stream) begin(b begin) {
	id := widen(b.xid, s.d.lastXID.Load())
	raise(&s.d.lastXID, id)
	s.d.begun.add(id)
	s.open, s.lost, s.bytes, s.partial = true, "", 0, 0
	s.skip = uint64(b.final) < s.d.delivered.Load()
	s.tx = &feed.Tx{ID: id}
}

func (s *stream) commit(c commit) {
	tx := s.tx
	s.open, s.tx = false, nil
	switch {
	case s.skip:
		return
	case s.lost != "":
		s.reset(c.end, s.lost)
		return
	case len(tx.Changes) > 0:
		tx.Position = c.end.position()
		s.d.count(func(st *Stats) {
			st.Transactions++
			st.Changes += uint64(len(tx.Changes))
			st.PartialOldRows += s.partial
		})
		s.sink.Commit(tx)
	}
	raise(&s.d.delivered, uint64(c.end))
}

// lose gives the transaction up: the sink is reset instead.
func (s *stream) lose(format string, args ...any) {
	s.lost = fmt.Sprintf(format, args...)
	s.tx.Changes = nil
}

func (s *stream) relate(r *relation) {
	old := s.relations[r.oid]
	if old != nil && old.equal(r) {
		return
	}
	s.relations[r.oid] = &source{relation: *r}
	for _, o := range s.relations { // a partition can change what is known of its root
		o.resolved = false
	}
}

// source returns the relation, with what is known of it. It asks the catalog when the relation is new or was altered.
func (s *stream) source(oid uint32) (*source, error) {
	src := s.relations[oid]
	if src == nil {
		return nil, fmt.Errorf("%w: a change of relation %d before its description", errProtocol, oid)
	}
	if src.resolved && src.generation == s.d.tables.generation.Load() {
		return src, nil
	}
	return src, s.resolve(src)
}

func (s *stream) resolve(src *source) error {
	src.generation = s.d.tables.generation.Load()
	src.table = nil
	root, err := s.adopt(src)
	if err != nil {
		return err
	}
	src.root = root
	if src.root == 0 {
		src.resolved = true
		return nil
	}
	l, err := s.layout(src)
	if err != nil || l == nil {
		return err
	}
	src.resolved = true
	src.table = l.table
	src.full = src.identity == 'f'
	if src.full && src.root == src.oid {
		if src.full, err = s.whole(src.oid); err != nil {
			return err
		}
	}
	src.position, src.types, src.keys = nil, nil, make([]bool, len(l.columns))
	for _, c := range src.columns {
		i := indexOf(l.columns, c.name)
		src.position = append(src.position, i)
		src.types = append(src.types, &l.table.Columns[i].Type)
	}
	for _, k := range l.table.Key {
		src.keys[k] = true
	}
	return nil
}

// adopt finds out whether an unknown relation is a new partition of a table of the feed, and returns its root.
func (s *stream) adopt(src *source) (uint32, error) {
	if root := s.d.tables.root(src.oid); root != 0 || src.asked || !s.d.tables.partitioned() {
		return root, nil
	}
	src.asked = true
	rows, err := s.d.catalog(s.ctx, `SELECT CASE WHEN relispartition THEN pg_partition_root(oid)::oid ELSE 0 END FROM pg_class WHERE oid = $1::oid`, oidText(src.oid))
	if err != nil {
		return 0, err
	}
	if src.gone = len(rows) == 0; src.gone {
		return 0, nil // if it was a partition, the comparison of the catalog finds it missing from its root
	}
	root := parseOID(rows[0][0])
	if root == 0 || s.d.tables.root(root) != root {
		return 0, nil
	}
	err = s.refresh(root)
	return s.d.tables.root(src.oid), err
}

// whole reports whether old rows that come under the name of a root are whole: the stream describes its partitions too, and they are only as whole as each partition's identity makes them.
func (s *stream) whole(root uint32) (bool, error) {
	for oid, other := range s.relations {
		if oid == root || other.identity == 'f' {
			continue
		}
		of, err := s.adopt(other)
		if err != nil {
			return false, err
		}
		if of == root || other.gone {
			return false, nil
		}
	}
	return true, nil
}

// refresh takes over what the catalog says of a table. Columns that have changed come with the change that is looked at; anything else cannot be told in changes.
func (s *stream) refresh(root uint32) error {
	_, before := s.d.tables.fitting(root, nil)
	what, err := s.d.refresh(s.ctx, root)
	if err == nil && what != "" && what != altered {
		s.lose("table %s %s", before.name(), what)
	}
	return err
}

// layout finds the layout that the stream's columns fit, or makes it. The catalog says what is now, which the stream may not have reached: so the columns count, and the catalog adds to them what
// the stream does not say.
func (s *stream) layout(src *source) (*layout, error) {
	l, x := s.d.tables.fitting(src.root, src.columns)
	if l != nil || x == nil {
		return l, nil
	}
	if err := s.refresh(src.root); err != nil || s.lost != "" {
		return nil, err
	}
	if l, x = s.d.tables.fitting(src.root, src.columns); l != nil || x == nil {
		return l, nil
	}
	types, err := s.d.types(s.ctx, columnOIDs(src.columns))
	if err != nil {
		return nil, err
	}
	l = pastLayout(src, x, types)
	if l == nil {
		s.lose("table %s was altered: its key is not in the stream", x.name())
		return nil, nil
	}
	s.d.tables.remember(src.root, l)
	return l, nil
}

// pastLayout makes a layout of the stream's columns, with the help of a description of another time. It is nil when a column of the key is missing.
func pastLayout(src *source, x *description, types map[uint32]pgType) *layout {
	t := &row.Table{Name: x.name()}
	l := &layout{table: t, columns: slices.Clone(src.columns), generated: make([]bool, len(src.columns))}
	for i, c := range src.columns {
		l.columns[i].key = false
		col := row.Column{Name: c.name, Type: typeOf(types, c.oid, row.Custom)}
		if j := slices.IndexFunc(x.Columns, func(o column) bool { return o.Name == c.name && o.Type == c.oid }); j >= 0 {
			col.Type = typeOf(types, c.oid, x.Columns[j].Collation)
		}
		t.Columns = append(t.Columns, col)
	}
	for _, k := range x.key() {
		i := t.Column(k)
		if i < 0 {
			return nil
		}
		t.Key = append(t.Key, i)
	}
	return l
}

func (s *stream) truncate(oids []uint32) error {
	for _, oid := range oids {
		src, err := s.source(oid)
		switch {
		case err != nil:
			return err
		case s.lost != "":
			return nil
		case src.table == nil:
		case src.root != oid:
			// The statement may have named the root, which is then the same for all partitions, or one partition alone.
			_, x := s.d.tables.fitting(src.root, nil)
			if x != nil && !allLeavesIn(x, oids) {
				s.lose("partition %s.%s was truncated", src.schema, src.name)
				return nil
			}
			if !s.truncated(src.table) {
				s.tx.Changes = append(s.tx.Changes, feed.Change{Op: feed.Truncate, Table: src.table})
			}
		default:
			s.tx.Changes = append(s.tx.Changes, feed.Change{Op: feed.Truncate, Table: src.table})
		}
	}
	return nil
}

// truncated reports whether the last changes are truncations with one of the table among them.
func (s *stream) truncated(t *row.Table) bool {
	for _, c := range slices.Backward(s.tx.Changes) {
		if c.Op != feed.Truncate {
			return false
		}
		if c.Table == t {
			return true
		}
	}
	return false
}

func allLeavesIn(x *description, oids []uint32) bool {
	for _, n := range x.Nodes {
		if n.Leaf && !slices.Contains(oids, n.OID) {
			return false
		}
	}
	return true
}

func (s *stream) change(op byte, oid uint32, payload []byte) error {
	src, err := s.source(oid)
	if err != nil || src.table == nil || s.lost != "" {
		return err
	}
	if s.bytes += len(payload); s.bytes > s.d.opts.MaxTransaction {
		s.lose("a transaction of more than %d bytes", s.d.opts.MaxTransaction)
		return nil
	}
	n := len(src.columns)
	if cap(s.cells) < 2*n {
		s.cells = make([]cell, 2*n)
	}
	old, new := s.cells[:n], s.cells[n:2*n]
	m := message{s: string(payload[5:])}
	r, err := m.rows(op, old, new)
	if err != nil {
		return err
	}
	defer clear(s.cells[:2*n])
	return s.rows(op, r, src, old, new)
}

// rows makes the change, or two when the key changed.
func (s *stream) rows(op byte, r rows, src *source, oldCells, newCells []cell) error {
	full := r.full && src.full
	var before, after row.Row
	var err error
	if r.new {
		if r.old {
			fill(src, full, newCells, oldCells)
		}
		if after, err = s.row(&src, newCells, false); err != nil {
			return err
		}
	}
	if r.old {
		if before, err = s.row(&src, oldCells, !full); err != nil {
			return err
		}
	} else if op == 'U' { // no old tuple: the key did not change
		before = keyOnly(src, after)
	}
	if s.lost != "" {
		return nil
	}
	if op != 'I' && !full {
		s.partial++
	}
	t := src.table
	switch {
	case op == 'I':
		s.tx.Changes = append(s.tx.Changes, feed.Change{Op: feed.Insert, Table: t, New: after})
	case op == 'D':
		s.tx.Changes = append(s.tx.Changes, feed.Change{Op: feed.Delete, Table: t, Old: before})
	case r.old && t.KeyOf(before) != t.KeyOf(after):
		s.tx.Changes = append(s.tx.Changes, feed.Change{Op: feed.Delete, Table: t, Old: before}, feed.Change{Op: feed.Insert, Table: t, New: after})
	default:
		s.tx.Changes = append(s.tx.Changes, feed.Change{Op: feed.Update, Table: t, Old: before, New: after})
	}
	return nil
}

// fill gives cells that were not sent the values of the old row, as far as it has them.
func fill(src *source, full bool, cells, old []cell) {
	for i := range cells {
		if cells[i].kind == 'u' && (full || src.columns[i].key && src.identity != 'f') {
			cells[i] = old[i]
		}
	}
}

// row parses a tuple. Of one that has the key alone, the rest is absent: its nulls say nothing. It replaces src when the table turns out to have been altered.
func (s *stream) row(src **source, cells []cell, keyAlone bool) (row.Row, error) {
	for attempt := 0; ; attempt++ {
		r, bad := parseRow(*src, cells, keyAlone)
		if bad < 0 {
			return r, nil
		}
		// A label that an enum did not have is the one thing that changes without a new description in the stream.
		if (*src).types[bad].Kind != row.Enum || attempt > 0 {
			s.lose("column %s of %s has a value that is not understood", (*src).columns[bad].name, (*src).table.Name)
			return nil, nil
		}
		if err := s.refresh((*src).root); err != nil || s.lost != "" {
			return nil, err
		}
		if err := s.resolve(*src); err != nil || (*src).table == nil {
			if err == nil && s.lost == "" {
				s.lose("relation %s.%s is not of the feed any more", (*src).schema, (*src).name)
			}
			return nil, err
		}
	}
}

// parseRow returns the row, and the position of a cell that is not a value of its column, or -1.
func parseRow(src *source, cells []cell, keyAlone bool) (row.Row, int) {
	r := make(row.Row, len(src.table.Columns))
	if len(cells) < len(r) || keyAlone {
		for i := range r {
			r[i] = row.AbsentValue()
		}
	}
	for i, c := range cells {
		at := src.position[i]
		if keyAlone && !src.keys[at] {
			continue
		}
		switch c.kind {
		case 'n':
			r[at] = row.Value{}
		case 'u':
			r[at] = row.AbsentValue()
		default:
			v, err := row.ParseText(*src.types[i], c.text)
			if err != nil {
				return nil, i
			}
			r[at] = v
		}
	}
	for at, key := range src.keys {
		if key && r[at].Kind() == row.Absent {
			return nil, slices.Index(src.position, at)
		}
	}
	return r, -1
}

func keyOnly(src *source, r row.Row) row.Row {
	out := make(row.Row, len(r))
	for i := range out {
		out[i] = row.AbsentValue()
		if src.keys[i] {
			out[i] = r[i]
		}
	}
	return out
}
