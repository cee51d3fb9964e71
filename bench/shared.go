package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tidewire/tidewire/internal/load"
	"github.com/tidewire/tidewire/query"
)

// shared is one query with one result for 10,000 subscribers, beside a channel with as many.
func shared(ctx context.Context, _ []target) error {
	conns, deliveries := 10_000, 20_000_000
	if *quick {
		conns, deliveries = 2000, 3_000_000
	}
	if err := buildServer(ctx); err != nil {
		return err
	}
	d, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	const writers = 32
	if err := d.exec(ctx, `CREATE TABLE wall (id int PRIMARY KEY, data json); ALTER TABLE wall REPLICA IDENTITY FULL; INSERT INTO wall SELECT i, '0' FROM generate_series(0, 31) i`); err != nil {
		return err
	}
	sql := make([]*pgx.Conn, writers)
	for i := range sql {
		if sql[i], err = pgx.Connect(ctx, d.url); err != nil {
			return err
		}
		defer func() { _ = sql[i].Close(ctx) }()
	}
	t := liveServer(d.url, []query.Definition{{Name: "wall", From: "wall"}}, func(int) (name, input string) { return "wall", "{}" })
	say := t.subscribe
	t.subscribe = func(i int, channel string) []string {
		return append(say(i, channel), `{"type":"subscribe","sid":"c","channel":"bench"}`)
	}
	fmt.Printf("## One live query with %d subscribers, at most 64 changes in flight\n\n", conns)
	fmt.Println("| what | CPU µs a delivery | user | thousand frames/s | commits/s | patches made | encodings | lost |\n|---|---|---|---|---|---|---|---|")
	err = each(ctx, []target{t}, func(s *server) error {
		f, err := s.fleet(ctx, conns, oneChannel)
		if err != nil {
			return err
		}
		defer f.Close()
		settle(f)
		p, err := s.publisher(ctx, s)
		if err != nil {
			return err
		}
		defer p.close()
		for _, w := range []struct {
			name    string
			writers int
			publish func(ctx context.Context, worker int, seq uint64, data string) error
		}{
			{"channel", 1, p.to("bench")},
			{"live query", writers, func(ctx context.Context, worker int, _ uint64, data string) error {
				_, err := sql[worker].Exec(ctx, `UPDATE wall SET data = $1 WHERE id = $2`, data, worker)
				return err
			}},
		} {
			patches, encodings := s.metric("tidewire_live_patches_total"), s.metric("tidewire_encodings_total")
			m, err := s.measure(ctx, f, load.Run{
				Publish: w.publish, Publishers: w.writers, Marker: marker, Size: payloadSize, FanOut: conns, Window: 64, Messages: uint64(deliveries / conns),
			})
			if err != nil {
				return err
			}
			n := float64(*rounds)
			fmt.Printf("| %s | %.2f | %.2f | %.0f | %.0f | %.2f each | %.2f each | %d |\n", w.name, m.cpu, m.user, m.PerSecond()/1000, float64(m.Published)/m.Elapsed.Seconds(),
				(s.metric("tidewire_live_patches_total")-patches)/n/float64(m.Published), (s.metric("tidewire_encodings_total")-encodings)/n/float64(m.Published), m.Lost)
		}
		return nil
	})
	fmt.Println()
	return err
}
