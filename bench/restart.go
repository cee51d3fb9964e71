package main

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/internal/load"
	"github.com/tidewire/tidewire/query"
)

// storm is 10,000 clients of 100 queries with 100 inputs each, half of the queries with an order and a limit.
type storm struct {
	d          *database
	conns      int
	target     target
	generation int // in a row of every result, and in what clients must be told of it

	killed  time.Time
	want    atomic.Pointer[[]byte]
	current load.Histogram // from the kill to the snapshot
	stale   atomic.Int64   // snapshots without the change
}

const templates, perResult = 100, 10

func newStorm(ctx context.Context, d *database, conns int) (*storm, error) {
	inputs := conns / templates
	err := d.exec(ctx, fmt.Sprintf(`CREATE EXTENSION pg_stat_statements;
		CREATE TABLE items (id int PRIMARY KEY, kind int, owner int, n int, title text);
		ALTER TABLE items REPLICA IDENTITY FULL;
		INSERT INTO items SELECT i, i %% %d, i / %d %% %d, 0, 'title ' || i FROM generate_series(0, %d) i;
		CREATE INDEX ON items (kind, owner); ANALYZE items`, templates, templates, inputs, conns*perResult-1))
	var queries []query.Definition
	for k := range templates {
		q := query.Definition{Name: fmt.Sprintf("q%d", k), From: "items", Where: fmt.Sprintf("kind = %d AND owner = $owner", k)}
		if k%2 == 1 {
			q.Order, q.Limit = "n DESC", 5
		}
		queries = append(queries, q)
	}
	s := &storm{d: d, conns: conns}
	s.target = liveServer(d.url, queries, func(i int) (name, input string) {
		return fmt.Sprintf("q%d", i%templates), fmt.Sprintf(`{"owner":%d}`, i/templates)
	})
	s.target.onFrame = func(payload []byte) string {
		if want := s.want.Load(); want != nil && bytes.HasPrefix(payload, []byte(`{"type":"snapshot"`)) {
			s.current.Add(time.Since(s.killed))
			if !bytes.Contains(payload, *want) {
				s.stale.Add(1)
			}
		}
		return ""
	}
	return s, err
}

// restart kills a node under the clients, changes a row of every result, starts it again, and waits until every client has a snapshot with the change.
func restart(ctx context.Context, _ []target) error {
	conns := 10_000
	if *quick {
		conns = 2000
	}
	if err := buildServer(ctx); err != nil {
		return err
	}
	d, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	s, err := newStorm(ctx, d, conns)
	if err != nil {
		return err
	}
	fmt.Printf("## A node killed under %d clients of %d live queries with %d inputs each\n\n", conns, templates, conns/templates)
	fmt.Println("| accepted a second | node up after s | half current after s | p99 | all | snapshots of the database | statements | on the table, as PostgreSQL counts them | stale |\n|---|---|---|---|---|---|---|---|---|")
	for _, accepts := range []string{"1000", "1000000"} { // the default, and no bound
		if err := s.run(ctx, accepts); err != nil {
			return err
		}
	}
	fmt.Println()
	return nil
}

func (s *storm) run(ctx context.Context, accepts string) error {
	t := s.target
	t.env = append(slices.Clone(t.env), "ACCEPTS="+accepts)
	s.want.Store(nil)
	node, err := t.start(ctx)
	if err != nil {
		return err
	}
	f, err := node.fleet(ctx, s.conns, oneChannel)
	if err != nil {
		node.stop()
		return err
	}
	if err := s.d.exec(ctx, "SELECT pg_stat_statements_reset()"); err != nil {
		return err
	}
	s.current.Reset()
	s.stale.Store(0)
	s.killed = time.Now()
	node.stop()
	f.Close()
	s.generation++
	want := fmt.Appendf(nil, `"n":%d,`, s.generation)
	s.want.Store(&want)
	if err := s.d.exec(ctx, "UPDATE items SET n = $1 WHERE id < $2", s.generation, s.conns); err != nil {
		return err
	}
	if node, err = t.start(ctx); err != nil {
		return err
	}
	defer node.stop()
	up := time.Since(s.killed)
	f, err = load.Dial(ctx, load.Options{
		URL: node.url, Subprotocols: node.subprotocols, Conns: s.conns, DialsAtOnce: 1000, Retry: true, Ready: node.ready, ReadyCount: 1, OnFrame: node.onFrame,
		Say: func(i int) []string { return node.subscribe(i, "") },
	})
	if err != nil {
		return err
	}
	defer f.Close()
	all := time.Since(s.killed)
	var statements int
	err = s.d.sql.QueryRow(ctx, `SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements WHERE query ~ 'FROM .*items' AND query ~ '^(SELECT|WITH)' AND query !~ 'pg_class|pg_attribute'`).Scan(&statements)
	fmt.Printf("| %s | %.2f | %.2f | %.2f | %.2f | %.0f | %.0f | %d | %d |\n", accepts, up.Seconds(), s.current.Quantile(0.5).Seconds(), s.current.Quantile(0.99).Seconds(), all.Seconds(),
		node.metric("tidewire_live_reads_total"), node.metric("tidewire_live_selects_total"), statements, s.stale.Load())
	return err
}
