package sqlite_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/sqlite"
)

// sinkFunc takes transactions.
type sinkFunc func(*feed.Tx)

func (f sinkFunc) Commit(tx *feed.Tx)        { f(tx) }
func (sinkFunc) Reset(feed.Position, string) {}

// BenchmarkWakeup is the time from the return of a commit to the call of the sink.
func BenchmarkWakeup(b *testing.B) {
	for _, writer := range []string{"own", "other", "other after a pause"} {
		b.Run(writer, func(b *testing.B) {
			path := newPath(b)
			db, o := openDatabase(b, path, sqlite.DatabaseOptions{}), openOther(b, path)
			o.must(b, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
			tableOf(b, db, "t")
			arrived := make(chan time.Time, 1)
			started := make(chan struct{}, 10)
			ctx := b.Context()
			go func() { _ = db.Run(ctx, startedSink{sinkFunc(func(*feed.Tx) { arrived <- time.Now() }), started}) }()
			<-started
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				sql := fmt.Sprintf(`INSERT INTO t VALUES (%d, 0)`, i)
				if writer == "own" {
					write(b, db, sql)
				} else {
					o.must(b, sql)
				}
				committed := time.Now()
				took = append(took, max(0, (<-arrived).Sub(committed)))
				pause := time.Duration(i%7) * time.Millisecond // not in step with the polls
				if strings.Contains(writer, "pause") {
					pause += time.Second
				}
				time.Sleep(pause)
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
		})
	}
}

type startedSink struct {
	sinkFunc
	started chan struct{}
}

func (s startedSink) Reset(feed.Position, string) { s.started <- struct{}{} }

// BenchmarkCapture is what following a table costs its writers: the same statements on a plain table and on a followed one, in turns.
func BenchmarkCapture(b *testing.B) {
	const create = `CREATE TABLE %s (id INTEGER PRIMARY KEY, org INTEGER, title TEXT, body TEXT, score REAL, done INTEGER, at TEXT, likes INTEGER)`
	const values = `7, 'a title of some length', 'a body that is somewhat longer than the title, as they are', 3.25, 0, '2026-11-30T12:00:00Z', 1`
	for _, size := range []int{1, 1000} {
		for _, what := range []string{"insert", "update", "replace", "delete"} {
			b.Run(fmt.Sprintf("%s/rows=%d", what, size), func(b *testing.B) {
				path := newPath(b)
				db, o := openDatabase(b, path, sqlite.DatabaseOptions{}), openOther(b, path)
				o.must(b, fmt.Sprintf(create, "plain")+";"+fmt.Sprintf(create, "followed"))
				tableOf(b, db, "followed")
				var took [2]time.Duration
				n := 0
				for b.Loop() {
					for i, table := range []string{"plain", "followed"} {
						took[i] += captureRound(b, o, what, table, values, n, size)
					}
					n += size
				}
				for i, table := range []string{"plain", "followed"} {
					b.ReportMetric(float64(n)/took[i].Seconds(), table+"-rows/s")
				}
				b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "times")
			})
		}
	}
}

func captureRound(b *testing.B, o *other, what, table, values string, first, size int) time.Duration {
	insert, _, err := o.Prepare(fmt.Sprintf(`INSERT INTO %s VALUES (?, %s)`, table, values))
	if err != nil {
		b.Fatal(err)
	}
	do, _, err := o.Prepare(fmt.Sprintf(map[string]string{
		"insert": `INSERT INTO %s VALUES (?, ` + values + `)`, "replace": `INSERT OR REPLACE INTO %s VALUES (?, ` + values + `)`,
		"update": `UPDATE %s SET likes = likes + 1 WHERE id = ?`, "delete": `DELETE FROM %s WHERE id = ?`,
	}[what], table))
	if err != nil {
		b.Fatal(err)
	}
	all := func(begin bool, f func(id int)) {
		if begin {
			o.must(b, "BEGIN IMMEDIATE")
		}
		for i := range size {
			f(first + i)
		}
		if begin {
			o.must(b, "COMMIT")
		}
	}
	step := func(stmt interface {
		BindInt(int, int) error
		Exec() error
	},
	) func(id int) {
		return func(id int) {
			if err := stmt.BindInt(1, id); err != nil {
				b.Fatal(err)
			}
			if err := stmt.Exec(); err != nil {
				b.Fatal(err)
			}
		}
	}
	if what != "insert" {
		all(size > 1, step(insert))
	}
	begin := time.Now()
	all(size > 1, step(do))
	took := time.Since(begin)
	if err := insert.Close(); err != nil {
		b.Fatal(err)
	}
	if err := do.Close(); err != nil {
		b.Fatal(err)
	}
	return took
}
