package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidewire/tidewire/internal/testenv"
)

// lab stands where a test stands that starts a private PostgreSQL: what would fail it ends the program.
type lab struct {
	testing.TB
	cleanups []func()
}

func (*lab) Helper()                      {}
func (*lab) Skip(args ...any)             { log.Fatal(args...) }
func (*lab) Fatal(args ...any)            { log.Fatal(args...) }
func (*lab) Fatalf(f string, args ...any) { log.Fatalf(f, args...) }
func (l *lab) Cleanup(f func())           { l.cleanups = append(l.cleanups, f) }

// database is a private PostgreSQL, without fsync, and a connection to it.
type database struct {
	*lab
	url string
	sql *pgx.Conn
}

func startPostgres(ctx context.Context) (*database, error) {
	l := &lab{}
	s := testenv.NewServer(l, "full_page_writes=off", "max_replication_slots=20", "max_wal_senders=20", "max_wal_size=8GB", "timezone=UTC",
		"shared_preload_libraries=pg_stat_statements")
	sql, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return nil, err
	}
	return &database{l, s.URL, sql}, nil
}

func (d *database) stop() {
	_ = d.sql.Close(context.Background())
	for _, f := range d.cleanups {
		f()
	}
}

func (d *database) exec(ctx context.Context, sql string, args ...any) error {
	if _, err := d.sql.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", strings.SplitN(sql, "\n", 2)[0], err)
	}
	return nil
}

// value returns the only cell of a result, as text.
func (d *database) value(ctx context.Context, expression string) (text string, err error) {
	err = d.sql.QueryRow(ctx, "SELECT ("+expression+")::text").Scan(&text)
	return text, err
}

// until tries every few milliseconds whether something is so.
func until(ctx context.Context, what string, patience time.Duration, f func() bool) error {
	for deadline := time.Now().Add(patience); !f(); {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: not within %v", what, patience)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// metric reads one figure of the running server.
func (s *server) metric(name string) float64 {
	resp, err := http.Get("http://" + tidewireAddr + "/metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	_, rest, _ := strings.Cut(string(b), "\n"+name+" ")
	line, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(line, 64)
	if err != nil {
		log.Fatalf("/metrics has no %s", name)
	}
	return v
}
