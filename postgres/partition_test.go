package postgres_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire/feed"
)

const partitioned = `CREATE TABLE t (id int, day int, body text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
	CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);
	CREATE TABLE t2 (body text, day int NOT NULL, id int NOT NULL); ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (10) TO (20);
	ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t1 REPLICA IDENTITY FULL; ALTER TABLE t2 REPLICA IDENTITY FULL;`

// P19: changes of partitions are those of the root, whichever way the publication names them, also with columns in another order.
func TestP19_Partitions(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"own":     ``,
		"leaf":    `CREATE PUBLICATION tidewire FOR TABLE t`,
		"root":    `CREATE PUBLICATION tidewire FOR TABLE t WITH (publish_via_partition_root)`,
		"all":     `CREATE PUBLICATION tidewire FOR ALL TABLES`,
		"allroot": `CREATE PUBLICATION tidewire FOR ALL TABLES WITH (publish_via_partition_root)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, partitioned+publication)
			def := e.table("t")
			e.exec(`INSERT INTO t VALUES (1, 5, 'a'), (2, 15, 'b')`)
			tx := e.sink.tx(t)
			expect(t, tx, "insert public.t -> [1 5 a]", "insert public.t -> [2 15 b]")
			for _, c := range tx.Changes {
				if c.Table != def {
					t.Error("the table is another pointer")
				}
			}
			e.exec(`UPDATE t SET body = 'c'`)
			expect(t, e.sink.tx(t), "update public.t [1 5 a] -> [1 5 c]", "update public.t [2 15 b] -> [2 15 c]")
			e.exec(`UPDATE t SET day = 16 WHERE id = 1`) // to the other partition
			expect(t, e.sink.tx(t), "delete public.t [1 5 c]", "insert public.t -> [1 16 c]")
			e.exec(`CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30); INSERT INTO t VALUES (3, 25, 'd'); INSERT INTO t3 VALUES (4, 25, 'e')`)
			expect(t, e.sink.tx(t), "insert public.t -> [3 25 d]", "insert public.t -> [4 25 e]")
			// The new partition has the default identity.
			e.exec(`UPDATE t SET body = 'f' WHERE id IN (2, 3)`)
			tx = e.sink.tx(t)
			if c := tx.Changes[len(tx.Changes)-1]; c.Old[0].Int() != 3 || c.Old[2].String() != "ABSENT" {
				t.Errorf("%s", show(tx))
			}
			e.exec(`DELETE FROM t WHERE id = 3`)
			expect(t, e.sink.tx(t), "delete public.t [3 25 ABSENT]")
			e.exec(`TRUNCATE t`)
			expect(t, e.sink.tx(t), "truncate public.t")
			e.exec(`INSERT INTO t VALUES (9, 9, 'z')`)
			expect(t, e.sink.tx(t), "insert public.t -> [9 9 z]")
		})
	}
}

// P19: what happens to whole partitions is a reset.
func TestP19_PartitionsComeAndGo(t *testing.T) {
	t.Parallel()
	for name, publication := range map[string]string{
		"leaf": ``,
		"root": `CREATE PUBLICATION tidewire FOR TABLE t WITH (publish_via_partition_root)`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := start(t, partitioned+`CREATE TABLE was (id int, day int, body text); INSERT INTO was VALUES (5, 35, 'x');`+publication, beat(50*time.Millisecond))
			e.table("t")
			e.exec(`CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (20) TO (30)`) // empty: nothing to tell
			e.exec(`INSERT INTO t VALUES (1, 25, 'a')`)
			expect(t, e.sink.tx(t), "insert public.t -> [1 25 a]")
			for _, step := range []struct{ sql, reason string }{
				{`ALTER TABLE was ALTER id SET NOT NULL, ALTER day SET NOT NULL; ALTER TABLE t ATTACH PARTITION was FOR VALUES FROM (30) TO (40)`, "has a new partition"},
				{`TRUNCATE was`, "truncated"},
				{`ALTER TABLE t DETACH PARTITION was`, "has lost its partition"},
				{`DROP TABLE t3`, "has lost its partition"},
			} {
				e.exec(step.sql)
				if r := e.sink.reset(t); !strings.Contains(r.reason, step.reason) {
					t.Errorf("%s: reset: %s", step.sql, r.reason)
				}
			}
			e.exec(`INSERT INTO was VALUES (7, 7, 'not of the table any more'); INSERT INTO t VALUES (2, 2, 'b')`)
			expect(t, e.sink.tx(t), "insert public.t -> [2 2 b]")
		})
	}
}

// P19: a partition that was attached and changed before the catalog was compared is found by its first change.
func TestP19_AttachedPartitionChanges(t *testing.T) {
	t.Parallel()
	e := start(t, partitioned+`CREATE TABLE was (id int NOT NULL, day int NOT NULL, body text); INSERT INTO was VALUES (5, 35, 'x');`, beat(time.Minute), func(o *postgresOptions) { o.Timeout = 2 * time.Minute })
	e.table("t")
	e.exec(`ALTER TABLE t ATTACH PARTITION was FOR VALUES FROM (30) TO (40); UPDATE t SET body = 'y'`)
	if r := e.sink.reset(t); !strings.Contains(r.reason, "has a new partition") {
		t.Errorf("reset: %s", r.reason)
	}
	e.exec(`UPDATE t SET body = 'z'`)
	if tx := e.sink.tx(t); len(tx.Changes) != 1 {
		t.Errorf("%s", show(tx))
	}
}

func TestP19_APartitionIsNotATable(t *testing.T) {
	t.Parallel()
	e := prepare(t, partitioned)
	if _, err := e.db.Table(t.Context(), named("t1")); !errors.Is(err, feed.ErrTableUnfit) || !strings.Contains(err.Error(), "root") {
		t.Errorf("Table = %v", err)
	}
}
