package feedtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/row"
)

func start(t *testing.T, b *bench) *Recorder {
	r := NewRecorder()
	r.Start(t, b.db)
	return r
}

// ops writes changes down for comparison.
func ops(changes []feed.Change) (out []string) {
	for _, c := range changes {
		s := fmt.Sprint(c.Op, " ", c.Table.Name.Table)
		if c.Old != nil {
			s += fmt.Sprint(" ", c.Old)
		}
		if c.New != nil {
			s += fmt.Sprint(" to ", c.New)
		}
		out = append(out, s)
	}
	return out
}

func resetFirst(t *testing.T, b *bench) {
	table := b.table("items", two)
	b.insert(false, table, ints(1, 1)) // before Run: it does not come
	r := start(t, b)
	b.insert(false, table, ints(2, 2))
	if got := ops(r.Changes(t, 1)); !slices.Equal(got, []string{"insert items to [2 2]"}) {
		t.Error(got)
	}
}

func tables(t *testing.T, b *bench) {
	name := b.d.Create(t, "items", two)
	first, err := b.db.Table(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.db.Table(t.Context(), name); again != first || err != nil {
		t.Errorf("Table = %p, %v the second time, %p the first", again, err, first)
	}
	if first.Identity() != name || len(first.Columns) != 2 || first.Columns[0].Name != "id" || !slices.Equal(first.Key, []int{0}) || first.Engine != b.db.Engine() {
		t.Errorf("Table = %+v", first)
	}
	name.Table = "nothing"
	if _, err := b.db.Table(t.Context(), name); !errors.Is(err, feed.ErrNoTable) {
		t.Errorf("a table that is not there: %v", err)
	}
	if _, err := b.db.Table(t.Context(), b.d.Create(t, "keyless", []Column{{Name: "n"}})); !errors.Is(err, feed.ErrTableUnfit) {
		t.Errorf("a table without a key: %v", err)
	}
	composite := b.table("pairs", []Column{{Name: "n"}, {Name: "b", Key: true}, {Name: "a", Key: true}})
	r := start(t, b)
	late := b.table("late", two) // covered from now on
	b.insert(false, composite, ints(1, 1, 1), ints(2, 1, 2))
	b.insert(true, late, ints(1, 1))
	if got := ops(r.Changes(t, 3)); !slices.Equal(got, []string{"insert pairs to [1 1 1]", "insert pairs to [2 1 2]", "insert late to [1 1]"}) {
		t.Error(got)
	}
	if got := r.Changes(t, 3)[2].Table; got != late {
		t.Errorf("the change has the table %p, Table gave %p", got, late)
	}
}

func others(t *testing.T, b *bench) {
	table := b.table("items", two)
	r := start(t, b)
	for i := range int64(20) {
		b.insert(i%2 == 0, table, ints(i, i))
	}
	for i, c := range r.Changes(t, 20) {
		if c.New[0].Int() != int64(i) {
			t.Errorf("change %d is of row %v", i, c.New)
		}
	}
}

func whole(t *testing.T, b *bench) {
	items, tags := b.table("items", two), b.table("tags", two)
	b.insert(false, items, ints(1, 1), ints(2, 2))
	r := start(t, b)
	for _, other := range []bool{false, true} {
		b.commit(other, func(tx Tx) error {
			return errors.Join(tx.Insert(items, ints(3, 3)), tx.Insert(tags, ints(1, 3)), tx.Update(items, ints(3, 0), ints(3, 4)), tx.Delete(items, ints(1, 0)),
				tx.Update(items, ints(2, 0), ints(2, 5)), tx.Update(items, ints(2, 0), ints(2, 6)), tx.Insert(items, ints(1, 7)))
		})
		want := []string{
			"insert items to [3 3]", "insert tags to [1 3]", "update items [3 3] to [3 4]", "delete items [1 1]", "update items [2 2] to [2 5]", "update items [2 5] to [2 6]",
			"insert items to [1 7]",
		}
		r.Changes(t, len(want))
		txs := r.Until(t, "a transaction", func(_ []string, txs []*feed.Tx) bool { return len(txs) > 0 })
		if len(txs) != 1 {
			t.Fatalf("it came as %d transactions", len(txs))
		}
		if diff := cmp.Diff(want, ops(txs[0].Changes)); diff != "" {
			t.Error(diff)
		}
		// As it was, and from the beginning.
		b.commit(false, func(tx Tx) error {
			return errors.Join(tx.Delete(items, ints(3, 0)), tx.Delete(tags, ints(1, 0)), tx.Update(items, ints(1, 0), ints(1, 1)), tx.Update(items, ints(2, 0), ints(2, 2)))
		})
		r.Changes(t, len(want)+4)
		r = restart(t, b, r)
	}
}

// restart ends the Run of the test's recorder by beginning another with a new one.
func restart(t *testing.T, b *bench, r *Recorder) *Recorder {
	t.Helper()
	_ = r.stop()
	n := NewRecorder()
	n.Start(t, b.db)
	return n
}

func positions(t *testing.T, b *bench) {
	table := b.table("items", two)
	r := start(t, b)
	for i := range int64(50) {
		b.insert(i%3 == 0, table, ints(i, i))
		r.Changes(t, int(i)+1) // each alone; the recorder compares the positions
	}
	for i, tx := range r.Until(t, "all", func([]string, []*feed.Tx) bool { return true }) {
		if tx.ID == 0 || tx.Position == "" {
			t.Errorf("transaction %d: %+v", i, tx)
		}
		err := b.db.Read(t.Context(), func(s feed.Snapshot) error {
			if !s.Fence().Includes(tx) {
				return fmt.Errorf("transaction %d was delivered, and a read does not include it", i)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func oneState(t *testing.T, b *bench) {
	table := b.table("items", two)
	b.insert(false, table, ints(1, 1))
	r := start(t, b)
	var fence feed.Fence
	err := b.db.Read(t.Context(), func(s feed.Snapshot) error {
		fence = s.Fence()
		for i := range int64(3) {
			rows, err := all(t.Context(), s, table)
			if err != nil || len(rows) != 1 {
				return fmt.Errorf("read %d: %v, %w", i, rows, err)
			}
			b.insert(i == 1, table, ints(10+i, 1))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	r.Changes(t, 3)
	for _, tx := range r.Until(t, "all", func([]string, []*feed.Tx) bool { return true }) {
		if fence.Includes(tx) {
			t.Errorf("the fence includes %v, which came later", ops(tx.Changes))
		}
	}
}

func readInSink(t *testing.T, b *bench) {
	table := b.table("items", two)
	r := NewRecorder()
	errs := make(chan error, 100)
	seen := 0
	r.OnCommit = func(tx *feed.Tx) {
		seen += len(tx.Changes)
		errs <- b.db.Read(context.Background(), func(s feed.Snapshot) error {
			rows, err := all(context.Background(), s, table)
			if err == nil && (len(rows) < seen || !s.Fence().Includes(tx)) {
				err = fmt.Errorf("%d rows after %d were delivered", len(rows), seen)
			}
			return err
		})
	}
	r.Start(t, b.db)
	for i := range int64(10) {
		b.insert(i%2 == 0, table, ints(i, i))
	}
	for range r.Until(t, "all", func(_ []string, txs []*feed.Tx) bool { return len(txs) > 0 && len(flatten(txs)) == 10 }) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func rolledBack(t *testing.T, b *bench) {
	table := b.table("items", two)
	r := start(t, b)
	for i, other := range []bool{false, true} {
		first := int64(i * 10)
		tx, err := b.d.Begin(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(tx.Insert(table, ints(first+9, 9)), tx.Rollback()); err != nil {
			t.Fatal(err)
		}
		b.commit(other, func(tx Tx) error {
			err := errors.Join(tx.Insert(table, ints(first, 0)), tx.Savepoint("a"), tx.Insert(table, ints(first+1, 0)), tx.Update(table, ints(first), ints(first, 1)),
				tx.Savepoint("b"), tx.Insert(table, ints(first+2, 0)), tx.RollbackTo("a"))
			// A statement that fails in the middle, and is taken back as far as the savepoint.
			err = errors.Join(err, tx.Savepoint("c"))
			if tx.Insert(table, ints(first, 5)) == nil {
				err = errors.Join(err, errors.New("the same key twice"))
			}
			return errors.Join(err, tx.RollbackTo("c"), tx.Insert(table, ints(first+3, 0)))
		})
	}
	want := []string{"insert items to [0 0]", "insert items to [3 0]", "insert items to [10 0]", "insert items to [13 0]"}
	if diff := cmp.Diff(want, ops(r.Changes(t, 4))); diff != "" {
		t.Error(diff)
	}
}

func keyChange(t *testing.T, b *bench) {
	table := b.table("items", two)
	b.insert(false, table, ints(1, 1))
	r := start(t, b)
	b.commit(false, func(tx Tx) error {
		return errors.Join(tx.Update(table, ints(1, 0), ints(2, 1)), tx.Update(table, ints(2, 0), ints(2, 3)), tx.Update(table, ints(2, 0), ints(1, 3)))
	})
	want := []string{"delete items [1 1]", "insert items to [2 1]", "update items [2 1] to [2 3]", "delete items [2 3]", "insert items to [1 3]"}
	got := r.Changes(t, len(want))
	s := state{}
	s.load(table, []row.Row{ints(1, 1)})
	for _, c := range got {
		if err := s.change(c); err != nil { // an old row may have no more than its key
			t.Error(err)
		}
	}
	for i := range want {
		if i < len(got) && got[i].Op != [...]feed.Op{feed.Delete, feed.Insert, feed.Update, feed.Delete, feed.Insert}[i] {
			t.Errorf("change %d is %q, want %q", i, ops(got)[i], want[i])
		}
	}
}

func clearing(t *testing.T, b *bench) {
	table, other := b.table("items", two), b.table("others", two)
	b.insert(false, table, ints(1, 1), ints(2, 2), ints(3, 3))
	b.insert(false, other, ints(1, 1))
	s := state{}
	s.load(table, []row.Row{ints(1, 1), ints(2, 2), ints(3, 3)})
	s.load(other, []row.Row{ints(1, 1)})
	r := start(t, b)
	b.commit(false, func(tx Tx) error {
		return errors.Join(tx.Insert(table, ints(4, 4)), tx.Clear(table), tx.Insert(table, ints(2, 5)))
	})
	txs := r.Until(t, "a transaction", func(_ []string, txs []*feed.Tx) bool { return len(txs) > 0 })
	if err := s.apply(txs[0]); err != nil {
		t.Fatal(err)
	}
	want := state{}
	want.load(table, []row.Row{ints(2, 5)})
	want.load(other, []row.Row{ints(1, 1)})
	if err := s.equal(want); err != nil {
		t.Error(err)
	}
}

func names(t *testing.T, b *bench) {
	columns := []Column{{Name: "Id Of", Key: true}, {Name: `select "x"`}, {Name: "v0"}, {Name: "def"}, {Name: "OLD"}}
	table := b.table(`Mixed "case" names`, columns)
	plain := b.table("mixed", two)
	r := start(t, b)
	b.insert(false, table, ints(1, 2, 3, 4, 5))
	b.commit(true, func(tx Tx) error {
		return errors.Join(tx.Update(table, ints(1), ints(1, 3, 4, 5, 6)), tx.Insert(plain, ints(1, 1)), tx.Delete(table, ints(1)))
	})
	got := r.Changes(t, 4)
	s := state{}
	s.load(table, nil)
	s.load(plain, nil)
	for _, c := range got {
		if err := s.change(c); err != nil {
			t.Error(err)
		}
	}
	for i, c := range table.Columns {
		if c.Name != columns[i].Name {
			t.Errorf("column %d is %q, want %q", i, c.Name, columns[i].Name)
		}
	}
}

// values stores each value in its column, then the next one, and compares what the feed and a read say with what was stored.
func values(t *testing.T, b *bench) {
	columns := []Column{{Name: "id", Key: true}}
	rounds := 0
	for i, typed := range b.d.Types() {
		columns = append(columns, Column{Name: fmt.Sprint("c", i), Type: typed.Type})
		rounds = max(rounds, len(typed.Values))
	}
	table := b.table("typed", columns)
	r := start(t, b)
	stored := func(round int) row.Row {
		out := ints(1)
		for _, typed := range b.d.Types() {
			out = append(out, typed.Values[round%len(typed.Values)])
		}
		return out
	}
	check := func(what string, got, want row.Row) {
		t.Helper()
		for i := range want {
			if got[i] != want[i] && got[i].Kind() != row.Absent {
				t.Errorf("%s: a cell of type %q is %s %q, want %s %q", what, columns[i].Type, got[i].Kind(), got[i], want[i].Kind(), want[i])
			}
		}
	}
	for round := range rounds {
		b.commit(round%2 == 0, func(tx Tx) error {
			if round == 0 {
				return tx.Insert(table, stored(round))
			}
			return tx.Update(table, stored(round), stored(round))
		})
		c := r.Changes(t, round+1)[round]
		check("new", c.New, stored(round))
		if round > 0 && c.Old != nil {
			check("old", c.Old, stored(round-1))
		}
		if err := b.db.Read(t.Context(), func(s feed.Snapshot) error {
			rows, err := all(t.Context(), s, table)
			if err == nil {
				check("read", rows[0], stored(round))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// slowSink holds the sink, and lets go: nothing is missing.
func slowSink(t *testing.T, b *bench) {
	table := b.table("items", two)
	r := NewRecorder()
	held, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r.OnCommit = func(*feed.Tx) { once.Do(func() { close(held); <-release }) }
	stop := r.Start(t, b.db)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range int64(100) {
			b.insert(i%2 == 0, table, ints(i, i))
		}
	})
	<-held
	if err := b.db.Read(t.Context(), func(feed.Snapshot) error { return nil }); err != nil {
		t.Error(err)
	}
	close(release)
	wg.Wait()
	for i, c := range r.Changes(t, 100) {
		if c.New[0].Int() != int64(i) {
			t.Fatalf("change %d is of row %v", i, c.New)
		}
	}
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func loss(t *testing.T, b *bench) {
	loser, ok := b.d.(Loser)
	if !ok {
		t.Skip("the driver cannot break the feed")
	}
	table := b.table("items", two)
	r := start(t, b)
	b.insert(false, table, ints(1, 1))
	r.Changes(t, 1)
	loser.Lose(t)
	b.insert(false, table, ints(2, 2))
	r.Until(t, "a reset", func(resets []string, _ []*feed.Tx) bool { return len(resets) == 2 && resets[1] != "" })
	b.insert(false, table, ints(3, 3))
	r.Until(t, "what came after", func(_ []string, txs []*feed.Tx) bool {
		return slices.ContainsFunc(flatten(txs), func(c feed.Change) bool { return c.New[0].Int() == 3 })
	})
}

func again(t *testing.T, b *bench) {
	table := b.table("items", two)
	r := NewRecorder()
	stop := r.Start(t, b.db)
	if err := b.db.Run(t.Context(), NewRecorder()); err == nil {
		t.Error("two at once")
	}
	b.insert(false, table, ints(1, 1))
	r.Changes(t, 1)
	if err := stop(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	b.insert(false, table, ints(2, 2))
	second := NewRecorder()
	second.Start(t, b.db)
	b.insert(false, table, ints(3, 3))
	if got := ops(second.Changes(t, 1)); !slices.Equal(got, []string{"insert items to [3 3]"}) {
		t.Error(got)
	}
	if a, b := r.last(), second.last(); a >= b {
		t.Errorf("the position %s is not above %s of the Run before", b, a)
	}
}

func endedContext(t *testing.T, b *bench) {
	table := b.table("items", two)
	ctx, cancel := context.WithCancel(t.Context())
	err := b.db.Read(ctx, func(s feed.Snapshot) error {
		cancel()
		_, err := all(ctx, s, table)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a read whose context ends: %v", err)
	}
	if err := b.db.Read(t.Context(), func(s feed.Snapshot) error { _, err := all(t.Context(), s, table); return err }); err != nil {
		t.Errorf("the next read: %v", err)
	}
	boom := errors.New("boom")
	if err := b.db.Read(t.Context(), func(feed.Snapshot) error { return boom }); !errors.Is(err, boom) {
		t.Errorf("Read = %v, want the function's error", err)
	}
}

// What exact does at the same time, and how often.
const (
	exactWriters = 4
	exactReaders = 2
	exactLead    = 50
	exactKeys    = 30 // of each writer
)

type observation struct {
	fence feed.Fence
	state state
}

// exact lets writers change two tables at random while others read. Each read is what the transactions that its fence includes make, and the rest makes the final state of
// it. In every state the two tables have the same sum.
func exact(t *testing.T, b *bench) {
	items, sums := b.table("items", two), b.table("sums", two)
	r := start(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seed := time.Now().UnixNano()
	// Neither side leaves the other behind: a transaction allows two reads, and a read one transaction.
	turns, reads := make(chan struct{}, exactReads+exactLead), make(chan struct{}, 2*(exactReads+exactLead))
	for range exactLead {
		turns <- struct{}{}
	}
	var commits atomic.Int64
	var writers, readers sync.WaitGroup
	for w := range exactWriters {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(seed), uint64(w)))
			if err := writeAtRandom(ctx, b.d, random, items, sums, int64(w), turns, reads, &commits); err != nil && ctx.Err() == nil {
				t.Errorf("seed %d: %v", seed, err)
				cancel()
			}
		})
	}
	observe := func() (o observation, err error) {
		o.state = state{}
		err = b.db.Read(t.Context(), func(s feed.Snapshot) error {
			o.fence = s.Fence()
			for _, table := range []*row.Table{items, sums} {
				rows, err := all(t.Context(), s, table)
				if err != nil {
					return err
				}
				o.state.load(table, rows)
			}
			return nil
		})
		return o, err
	}
	observed := make([][]observation, exactReaders)
	for i := range observed {
		readers.Go(func() {
			for range exactReads / exactReaders {
				select {
				case <-reads:
				case <-ctx.Done(): // a writer failed
					return
				}
				o, err := observe()
				turns <- struct{}{}
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				observed[i] = append(observed[i], o)
			}
		})
	}
	readers.Wait()
	cancel()
	writers.Wait()
	b.insert(false, items, ints(-1, 0)) // when this comes, all has come
	final, err := observe()
	if err != nil {
		t.Fatal(err)
	}
	txs := r.Until(t, "the last transaction", func(_ []string, txs []*feed.Tx) bool {
		return slices.ContainsFunc(flatten(txs), func(c feed.Change) bool { return c.New != nil && c.New[0].Int() == -1 })
	})
	t.Logf("seed %d: %d commits in %d transactions, %d reads", seed, commits.Load(), len(txs), exactReads)
	if err := compare(txs, slices.Concat(observed...), final.state, items, sums); err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
}

// compare holds reads against transactions, which begin with empty tables.
func compare(txs []*feed.Tx, reads []observation, final state, items, sums *row.Table) error {
	after := make([][]observation, len(txs)+1) // by how many transactions they include, when these are the first ones
	for _, o := range reads {
		k := 0
		for k < len(txs) && o.fence.Includes(txs[k]) {
			k++
		}
		if !slices.ContainsFunc(txs[k:], o.fence.Includes) {
			after[k] = append(after[k], o)
			continue
		}
		for _, tx := range txs {
			if !o.fence.Includes(tx) {
				if err := o.state.apply(tx); err != nil {
					return err
				}
			}
		}
		if err := o.state.equal(final); err != nil {
			return fmt.Errorf("a read and the transactions that it does not include: %w", err)
		}
	}
	s := state{items: {}, sums: {}}
	for k := range after {
		if a, b := s.sum(items), s.sum(sums); a != b {
			return fmt.Errorf("after %d transactions the sums are %d and %d", k, a, b)
		}
		for _, o := range after[k] {
			if err := o.state.equal(s); err != nil {
				return fmt.Errorf("a read that includes %d of %d transactions: %w", k, len(txs), err)
			}
		}
		if k < len(txs) {
			if err := s.apply(txs[k]); err != nil {
				return err
			}
		}
	}
	if err := final.equal(s); err != nil {
		return fmt.Errorf("after all transactions: %w", err)
	}
	return nil
}

func (s state) sum(t *row.Table) (n int64) {
	for _, r := range s[t] {
		n += r[1].Int()
	}
	return n
}

// writeAtRandom changes the rows of one writer until ctx ends, with savepoints and rollbacks. Its row of sums follows in the same transaction.
func writeAtRandom(ctx context.Context, d Driver, random *rand.Rand, items, sums *row.Table, writer int64, turns <-chan struct{}, reads chan<- struct{}, commits *atomic.Int64) error {
	rows := map[int64]int64{}
	started := false
	for {
		select {
		case <-turns:
		case <-ctx.Done():
			return nil
		}
		tx, err := d.Begin(ctx, random.IntN(2) == 0)
		if err != nil {
			return err
		}
		reads <- struct{}{}
		reads <- struct{}{}
		next := map[int64]int64{}
		for k, v := range rows {
			next[k] = v
		}
		// There is no end before the transaction is whole: an ended context must not leave it half done.
		err = randomStatements(tx, random, items, writer, next)
		total := int64(0)
		for _, v := range next {
			total += v
		}
		if started {
			err = errors.Join(err, tx.Update(sums, ints(writer, 0), ints(writer, total)))
		} else {
			err = errors.Join(err, tx.Insert(sums, ints(writer, total)))
		}
		if err != nil || random.IntN(8) == 0 {
			if err := errors.Join(err, tx.Rollback()); err != nil {
				return err
			}
			continue
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		rows, started = next, true
		commits.Add(1)
	}
}

func randomStatements(tx Tx, random *rand.Rand, items *row.Table, writer int64, rows map[int64]int64) error {
	for i := range 1 + random.IntN(4) {
		undo := random.IntN(5) == 0
		before := map[int64]int64{}
		if undo {
			for k, v := range rows {
				before[k] = v
			}
			if err := tx.Savepoint(fmt.Sprint("s", i)); err != nil {
				return err
			}
		}
		for range 1 + random.IntN(2) {
			if err := randomStatement(tx, random, items, writer, rows); err != nil {
				return err
			}
		}
		if undo {
			if err := tx.RollbackTo(fmt.Sprint("s", i)); err != nil {
				return err
			}
			clear(rows)
			for k, v := range before {
				rows[k] = v
			}
		}
	}
	return nil
}

func randomStatement(tx Tx, random *rand.Rand, items *row.Table, writer int64, rows map[int64]int64) error {
	key, value := writer*1000+random.Int64N(exactKeys), random.Int64N(100)+1
	old, there := rows[key]
	if !there {
		rows[key] = value
		return tx.Insert(items, ints(key, value))
	}
	switch random.IntN(3) {
	case 0:
		delete(rows, key)
		return tx.Delete(items, ints(key, 0))
	case 1:
		other := writer*1000 + random.Int64N(exactKeys)
		if _, taken := rows[other]; !taken {
			delete(rows, key)
			rows[other] = value
			return tx.Update(items, ints(key, 0), ints(other, value))
		}
	}
	if value == old {
		value++
	}
	rows[key] = value
	return tx.Update(items, ints(key, 0), ints(key, value))
}
