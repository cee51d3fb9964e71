package query_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// database is one of the two: it answers for all rows of table t at once, in the order of id.
type database interface {
	// truths evaluates predicates for every row, as one of t, f and u for each.
	truths(t testing.TB, s query.Statement) string
	// ids runs a statement and returns the column id of what it gives.
	ids(t testing.TB, s query.Statement) []int64
}

// batcher is a database that reads for many inputs with one statement.
type batcher interface {
	// many returns the ids for each input.
	many(t testing.TB, m []query.Many) [][]int64
}

var pairsTested, wholeTested, manyTested atomic.Int64

// compare runs random predicates on both sides.
func compare(t *testing.T, seed uint64, table *row.Table, rows []row.Row, columns []testColumn, open func() database, predicates int) {
	var wg sync.WaitGroup
	const workers = 2
	for w := range workers {
		wg.Go(func() {
			db := open()
			g := generator{rng: newRand(seed, uint64(w)+2), columns: columns, sqlite: table.Engine == row.SQLite}
			for i := 0; i < predicates/workers && !t.Failed(); i++ {
				g.rerun = i%4 == 1
				comparePredicate(t, &g, table, rows, db)
				if i%4 == 0 {
					compareOrder(t, &g, table, rows, db)
					compareMany(t, &g, table, db)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d pairs of predicate and row, of which the index alone decides %d, and %d reads together so far", pairsTested.Load(), wholeTested.Load(), manyTested.Load())
}

func comparePredicate(t *testing.T, g *generator, table *row.Table, rows []row.Row, db database) {
	where := g.where()
	input, _ := json.Marshal(g.params)
	q, err := query.Compile(query.Definition{Name: "q", Where: where}, table)
	if err != nil {
		t.Errorf("Compile(%s): %v", where, err)
		return
	}
	may := q.Class == query.Rerun
	if may && !g.rerun {
		t.Errorf("Compile(%s) is re-run: %s", where, q.Reason)
		return
	}
	in, err := q.Input(input, nil)
	if err != nil {
		t.Errorf("Input(%s, %s): %v", where, input, err)
		return
	}
	b, err := q.Bind(in)
	if err != nil {
		t.Errorf("Bind(%s, %s): %v", where, input, err)
		return
	}
	stmts := []query.Statement{b.PredicateSQL()}
	if len(g.params) == 0 { // also as it is written
		stmts = append(stmts, query.Statement{SQL: where})
	}
	for n, s := range stmts {
		want := db.truths(t, s)
		if len(want) != len(rows) {
			t.Errorf("%s: %d answers for %d rows", s.SQL, len(want), len(rows))
			return
		}
		for i, r := range rows {
			got := b.Match(r)
			if got.String()[0] != want[i] && !(may && (got == query.True || want[i] != 't')) {
				t.Errorf("where %s\ninput %s\nsql %s %q\nrow %v\nMatch = %v, the database says %c", where, input, s.SQL, s.Args, r, got, want[i])
				return
			}
			if n == 0 {
				if err := checkAccess(b, r); err != nil {
					t.Errorf("where %s\ninput %s\nrow %v: %v", where, input, r, err)
					return
				}
			}
		}
		pairsTested.Add(int64(len(rows)))
	}
}

// checkAccess compares the index keys of a predicate with what it says of a row.
func checkAccess(b *query.Bound, r row.Row) error {
	meets := slices.ContainsFunc(b.Access(), func(a query.Access) bool { return a.Holds(b.Query.Table, r) })
	whole := len(b.Access()) == 1 && b.Access()[0].Whole
	switch match := b.Match(r); {
	case match == query.True && !meets:
		return fmt.Errorf("matches and meets no access of %+v", b.Access())
	case match != query.True && meets && whole:
		return fmt.Errorf("meets what is the whole predicate and does not match: %+v", b.Access())
	}
	if whole {
		wholeTested.Add(1)
	}
	return nil
}

// order is some columns that can be ordered by.
func (g *generator) order() string {
	var keys []string
	for range g.rng.IntN(4) {
		c := pick(g.rng, g.columns)
		if c.shown || c.inexact && c.typ.Kind != row.Text || slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, c.name+" ") }) {
			continue
		}
		key := c.name + " "
		if c.inexact || c.typ.Kind == row.Text && g.rng.IntN(4) == 0 {
			key += map[bool]string{false: `COLLATE "C" `, true: "COLLATE BINARY "}[g.sqlite]
		}
		keys = append(keys, key+pick(g.rng, []string{"", "ASC", "DESC"})+pick(g.rng, []string{"", " NULLS FIRST", " NULLS LAST"}))
	}
	return strings.Join(keys, ", ")
}

// compareMany holds reads for several inputs against one after another.
func compareMany(t *testing.T, g *generator, table *row.Table, db database) {
	together, ok := db.(batcher)
	def := query.Definition{Name: "q", Where: g.where(), Order: g.order()}
	q, err := query.Compile(def, table)
	if err != nil {
		t.Errorf("Compile(%+v): %v", def, err)
		return
	}
	limit := pick(g.rng, []int{1, 7, 1000})
	groups, singles := map[string][]query.Many{}, map[string][]query.Statement{}
	for range 12 {
		in, err := q.Input(g.input(), nil)
		if err != nil {
			t.Errorf("Input: %v", err)
			return
		}
		b, err := q.Bind(in)
		if err != nil {
			t.Errorf("Bind: %v", err)
			return
		}
		if m, can := b.Many(limit); can && !ok {
			t.Errorf("%+v can be read together", def)
		} else if can {
			groups[m.SQL] = append(groups[m.SQL], m)
			singles[m.SQL] = append(singles[m.SQL], b.SQL(query.Read{Limit: limit}))
		}
	}
	for sql, m := range groups {
		got := together.many(t, m)
		for i, s := range singles[sql] {
			if want := db.ids(t, s); i >= len(got) || !slices.Equal(got[i], want) {
				t.Errorf("%+v\nsql %s\nshared %q, each %q\ntogether %v\nalone    %v", def, sql, m[i].Shared, m[i].Args, got, want)
				return
			}
			manyTested.Add(1)
		}
	}
}

func compareOrder(t *testing.T, g *generator, table *row.Table, rows []row.Row, db database) {
	where := g.where()
	input, _ := json.Marshal(g.params)
	def := query.Definition{Name: "q", Where: where, Order: g.order(), Limit: pick(g.rng, []int{0, 1, 10, 50})}
	q, err := query.Compile(def, table)
	if err != nil || q.Class == query.Rerun {
		t.Errorf("Compile(%+v): %v", def, err)
		return
	}
	in, err := q.Input(input, nil)
	if err != nil {
		t.Errorf("Input: %v", err)
		return
	}
	b, err := q.Bind(in)
	if err != nil {
		t.Errorf("Bind: %v", err)
		return
	}
	var matched []row.Row
	for _, r := range rows {
		if b.Match(r) == query.True {
			matched = append(matched, r)
		}
	}
	slices.SortFunc(matched, q.Order.Compare)
	var read query.Read
	if len(matched) > 0 && g.rng.IntN(2) == 0 {
		i := g.rng.IntN(len(matched))
		read.After = matched[i]
		matched = matched[i+1:]
	}
	if def.Limit > 0 && len(matched) > def.Limit {
		matched = matched[:def.Limit]
	}
	var want []int64
	for _, r := range matched {
		want = append(want, r[0].Int())
	}
	s := b.SQL(read)
	if got := db.ids(t, s); !slices.Equal(got, want) {
		t.Errorf("%+v\ninput %s\nsql %s %q\nthe database says %v\nwe say           %v", def, input, s.SQL, s.Args, got, want)
	}
}

// quickly returns fewer predicates in short runs.
func quickly(n int) int {
	if testing.Short() || os.Getenv("CI") == "" && raceEnabled {
		return n / 10
	}
	return n
}

func sqlList[T any](items []T, f func(T) string) string {
	out := make([]string, len(items))
	for i, it := range items {
		out[i] = f(it)
	}
	return strings.Join(out, ", ")
}

func table(engine row.Engine, columns []testColumn) *row.Table {
	t := &row.Table{Name: row.Name{Schema: "public", Table: "t"}, Engine: engine, Key: []int{0}}
	id := row.Type{Kind: row.Int, Bits: 64}
	if engine == row.SQLite {
		t.Schema = "main"
		id = row.SQLiteType("INTEGER", "", false)
	}
	t.Columns = []row.Column{{Name: "id", Type: id, NotNull: true}}
	for _, c := range columns {
		t.Columns = append(t.Columns, row.Column{Name: c.name, Type: c.typ})
	}
	return t
}

func insertSQL(g *generator, columns []testColumn, ids int) []string {
	var out []string
	for from := 1; from <= ids; from += 100 {
		var tuples []string
		for id := from; id < from+100; id++ {
			tuples = append(tuples, fmt.Sprintf("(%d, %s)", id, sqlList(columns, func(c testColumn) string {
				if g.rng.IntN(6) == 0 {
					return "NULL"
				}
				return pick(g.rng, c.values)
			})))
		}
		out = append(out, "INSERT INTO t VALUES "+strings.Join(tuples, ", "))
	}
	return out
}
