package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
)

// S23, S24: a publication that comes to leave kinds of changes out is a loss: its tables are refused, and when it has all of them again everything is read again, also what an open transaction had changed meanwhile.
func TestS23_S24_PublicationLeavesChangesOut(t *testing.T) {
	t.Parallel()
	const mend = `ALTER PUBLICATION tidewire SET (publish = 'insert, update, delete, truncate')`
	for name, less := range map[string]string{
		"altered":       `ALTER PUBLICATION tidewire SET (publish = 'insert')`,
		"created anew":  `BEGIN; DROP PUBLICATION tidewire; CREATE PUBLICATION tidewire FOR TABLE t WITH (publish = 'insert, update'); COMMIT`,
		"without table": `BEGIN; DROP PUBLICATION tidewire; CREATE PUBLICATION tidewire WITH (publish = 'insert, update'); COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, simple, beat(50*time.Millisecond))
			e.table("t")
			e.insert(1)
			e.exec(less)
			e.exec(`DELETE FROM t`)
			if r := e.sink.reset(t); !strings.Contains(r.reason, "public.t") || name != "without table" && !strings.Contains(r.reason, mend) {
				t.Errorf("reset: %s", r.reason)
			}
			if _, err := e.db.Table(t.Context(), named("t")); !errors.Is(err, feed.ErrTableUnfit) || !strings.Contains(err.Error(), mend) {
				t.Errorf("Table = %v", err)
			}
			writer := connect(t, e.url)
			exec(t, writer, `BEGIN; INSERT INTO t VALUES (2); DELETE FROM t`)
			e.exec(mend)
			if r := e.sink.reset(t); r.reason != "the publication was altered" {
				t.Errorf("reset: %s", r.reason)
			}
			exec(t, writer, `COMMIT`)
			for e.sink.await(t).reason != "the publication was altered" { // the insertion may come before
			}
			if rows, _ := e.snapshot(e.table("t")); len(rows) != 0 {
				t.Errorf("rows: %v", rows)
			}
			e.insert(3)
		})
	}
}

// S24: so is one that lost kinds of changes and got them back between two comparisons, or was created anew with all.
func TestS24_PublicationIsAlteredInBetween(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"altered": `ALTER PUBLICATION tidewire SET (publish = 'insert'); DELETE FROM t; ALTER PUBLICATION tidewire SET (publish = 'insert, update, delete, truncate')`,
		"created anew": `BEGIN; DROP PUBLICATION tidewire; CREATE PUBLICATION tidewire FOR TABLE t WITH (publish = 'insert'); DELETE FROM t;
			DROP PUBLICATION tidewire; CREATE PUBLICATION tidewire FOR TABLE t; COMMIT`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, simple, beat(time.Second))
			e.table("t")
			e.insert(1)
			e.exec(sql)
			for r := e.sink.await(t); r.reason != "the publication was altered"; r = e.sink.await(t) { // the server may have seen the deletion
				if r.tx == nil {
					t.Fatalf("reset: %s", r.reason)
				}
			}
		})
	}
}
