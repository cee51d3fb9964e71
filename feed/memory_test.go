package feed_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/feed/feedtest"
	"github.com/tidewire/tidewire/row"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	feedtest.Run(t, func(*testing.T) feedtest.Driver {
		return &memory{db: feed.NewMemory(), keys: map[*row.Table]map[row.Value]bool{}}
	})
}

// memory is a driver over [feed.Memory], which has transactions that are committed at once. One transaction runs at a time.
type memory struct {
	db   *feed.Memory
	turn sync.Mutex
	keys map[*row.Table]map[row.Value]bool // of the rows that there are; guarded by turn
}

func (m *memory) Database() feed.Database { return m.db }

func (m *memory) Lose(*testing.T) { m.db.Lose("lost") }

func (m *memory) Create(_ *testing.T, name string, columns []feedtest.Column) row.Name {
	t := &row.Table{Name: row.Name{Schema: "public", Table: name}}
	for i, c := range columns {
		t.Columns = append(t.Columns, row.Column{Name: c.Name, Type: row.Type{Kind: row.Int}})
		if c.Key {
			t.Key = append(t.Key, i)
		}
	}
	m.db.Create(t)
	return t.Name
}

func (m *memory) Types() []feedtest.Typed {
	return []feedtest.Typed{{Values: []row.Value{{}, row.IntValue(math.MinInt64), row.FloatValue(math.NaN()), row.TextValue("\x00\xff"), row.BytesValue([]byte{0})}}}
}

func (m *memory) Begin(context.Context, bool) (feedtest.Tx, error) {
	m.turn.Lock()
	return &memoryTx{m: m, savepoints: map[string]int{}}, nil
}

type memoryTx struct {
	m          *memory
	writes     []feed.Write
	savepoints map[string]int
}

// has reports whether there is a row with the key, after the writes so far.
func (tx *memoryTx) has(t *row.Table, r row.Row) bool {
	key := t.KeyOf(r)
	there := tx.m.keys[t][key]
	for _, w := range tx.writes {
		switch {
		case w.Table != t.Name:
		case w.New != nil && t.KeyOf(w.New) == key:
			there = true
		case w.New == nil && (w.Old == nil || t.KeyOf(w.Old) == key):
			there = false
		}
	}
	return there
}

// complete completes a key, as the suite may name the key's cells alone.
func complete(t *row.Table, r row.Row) row.Row {
	return append(slices.Clone(r), make(row.Row, len(t.Columns)-len(r))...)
}

func (tx *memoryTx) Insert(t *row.Table, r row.Row) error {
	if tx.has(t, r) {
		return errors.New("the key is taken")
	}
	return tx.put(t, feed.Write{New: r})
}

func (tx *memoryTx) put(t *row.Table, w feed.Write) error {
	w.Table = t.Name
	tx.writes = append(tx.writes, w)
	return nil
}

func (tx *memoryTx) Update(t *row.Table, key, r row.Row) error {
	key = complete(t, key)
	if !tx.has(t, key) {
		return errors.New("no such row")
	}
	if t.KeyOf(key) != t.KeyOf(r) {
		if tx.has(t, r) {
			return errors.New("the key is taken")
		}
		if err := tx.put(t, feed.Write{Old: key}); err != nil {
			return err
		}
	}
	return tx.put(t, feed.Write{New: r})
}

func (tx *memoryTx) Delete(t *row.Table, key row.Row) error {
	return tx.put(t, feed.Write{Old: complete(t, key)})
}
func (tx *memoryTx) Clear(t *row.Table) error { return tx.put(t, feed.Write{}) }

func (tx *memoryTx) Savepoint(name string) error {
	tx.savepoints[name] = len(tx.writes)
	return nil
}

func (tx *memoryTx) RollbackTo(name string) error {
	tx.writes = tx.writes[:tx.savepoints[name]]
	return nil
}

func (tx *memoryTx) Rollback() error {
	tx.m.turn.Unlock()
	return nil
}

func (tx *memoryTx) Commit() error {
	defer tx.m.turn.Unlock()
	for _, w := range tx.writes {
		t, err := tx.m.db.Table(context.Background(), w.Table)
		if err != nil {
			return err
		}
		keys := tx.m.keys[t]
		switch {
		case keys == nil || w.New == nil && w.Old == nil:
			keys = map[row.Value]bool{}
			tx.m.keys[t] = keys
		case w.New == nil:
			delete(keys, t.KeyOf(w.Old))
		}
		if w.New != nil {
			keys[t.KeyOf(w.New)] = true
		}
	}
	tx.m.db.Commit(tx.writes...)
	return nil
}
