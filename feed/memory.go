package feed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/tidewire/tidewire/row"
)

// Memory is a database in memory, for tests. A commit returns when the sink has it.
type Memory struct {
	order sync.Mutex // held over a commit and while a sink is called; before mu
	sink  Sink       // guarded by order

	mu     sync.Mutex // guards below
	tables map[row.Name]*memoryTable
	last   uint64
}

type memoryTable struct {
	def  *row.Table
	rows map[row.Value]row.Row
}

// NewMemory makes a database with tables.
func NewMemory(tables ...*row.Table) *Memory {
	m := &Memory{tables: map[row.Name]*memoryTable{}}
	for _, t := range tables {
		m.Create(t)
	}
	return m
}

// Create makes one more table.
func (m *Memory) Create(t *row.Table) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tables[t.Identity()] = &memoryTable{t, map[row.Value]row.Row{}}
}

// Engine implements [Database].
func (m *Memory) Engine() row.Engine { return row.PostgreSQL }

// Table implements [Database].
func (m *Memory) Table(_ context.Context, name row.Name) (*row.Table, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tables[name]
	switch {
	case t == nil:
		return nil, fmt.Errorf("%w: %s", ErrNoTable, name)
	case len(t.def.Key) == 0:
		return nil, fmt.Errorf("%w: %s has no primary key", ErrTableUnfit, name)
	}
	return t.def, nil
}

type memoryFence uint64

func (f memoryFence) Includes(tx *Tx) bool { return tx.ID <= uint64(f) }

type memorySnapshot struct {
	fence memoryFence
	rows  map[row.Name][]row.Row
}

func (s *memorySnapshot) Fence() Fence { return s.fence }

func (s *memorySnapshot) Select(ctx context.Context, q Select) ([]row.Row, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out []row.Row
	for _, r := range s.rows[q.Table.Identity()] {
		if q.Match == nil || q.Match(r) {
			out = append(out, r)
		}
	}
	if q.Less != nil {
		slices.SortFunc(out, func(a, b row.Row) int {
			switch {
			case q.Less(a, b):
				return -1
			case q.Less(b, a):
				return 1
			}
			return 0
		})
	}
	if q.Limit > 0 && len(out) > q.Limit {
		out = out[:q.Limit]
	}
	return out, nil
}

// Read implements [Database].
func (m *Memory) Read(ctx context.Context, f func(Snapshot) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	s := &memorySnapshot{memoryFence(m.last), map[row.Name][]row.Row{}}
	for name, t := range m.tables {
		for _, r := range t.rows {
			s.rows[name] = append(s.rows[name], r)
		}
	}
	m.mu.Unlock()
	return f(s)
}

// Run implements [Database].
func (m *Memory) Run(ctx context.Context, sink Sink) error {
	m.order.Lock()
	if m.sink != nil {
		m.order.Unlock()
		return errors.New("feed: Run called twice")
	}
	m.sink = sink
	sink.Reset(m.position(), "start")
	m.order.Unlock()
	<-ctx.Done()
	m.order.Lock()
	defer m.order.Unlock()
	m.sink = nil
	return ctx.Err()
}

func (m *Memory) position() Position {
	m.mu.Lock()
	defer m.mu.Unlock()
	return positionOf(m.last)
}

func positionOf(id uint64) Position { return Position(fmt.Sprintf("%016x", id)) }

// Write is one statement of a transaction in [Memory.Commit]: the row at New's key becomes New, or the row at Old's key is deleted, or, with neither, the table is emptied.
type Write struct {
	Table    row.Name
	Old, New row.Row
}

// Commit does the writes in one transaction.
func (m *Memory) Commit(writes ...Write) {
	m.order.Lock()
	defer m.order.Unlock()
	if tx := m.apply(writes); m.sink != nil && len(tx.Changes) > 0 {
		m.sink.Commit(tx)
	}
}

func (m *Memory) apply(writes []Write) *Tx {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last++
	tx := &Tx{Position: positionOf(m.last), ID: m.last}
	for _, w := range writes {
		tx.Changes = append(tx.Changes, m.applyLocked(w)...)
	}
	return tx
}

func (m *Memory) applyLocked(w Write) []Change {
	t := m.tables[w.Table]
	switch {
	case w.New != nil:
		key := t.def.KeyOf(w.New)
		old := t.rows[key]
		t.rows[key] = w.New
		if old == nil {
			return []Change{{Op: Insert, Table: t.def, New: w.New}}
		}
		return []Change{{Op: Update, Table: t.def, Old: old, New: w.New}}
	case w.Old != nil:
		key := t.def.KeyOf(w.Old)
		old := t.rows[key]
		if old == nil {
			return nil
		}
		delete(t.rows, key)
		return []Change{{Op: Delete, Table: t.def, Old: old}}
	}
	clear(t.rows)
	return []Change{{Op: Truncate, Table: t.def}}
}

// Lose makes the feed begin anew, as if its slot were gone.
func (m *Memory) Lose(reason string) {
	m.order.Lock()
	defer m.order.Unlock()
	if m.sink != nil {
		m.sink.Reset(m.position(), reason)
	}
}
