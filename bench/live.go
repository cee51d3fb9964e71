package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// liveServer is a node over a database with live queries, whose connections ask for one each.
func liveServer(database string, queries []query.Definition, subscribe func(i int) (name, input string)) target {
	t := tidewire()
	definitions, _ := json.Marshal(queries)
	t.env = []string{"DATABASE=" + database, "QUERIES=" + string(definitions)}
	t.subscribe = func(i int, _ string) []string {
		name, input := subscribe(i)
		return []string{`{"type":"hello","protocol":1}`, fmt.Sprintf(`{"type":"subscribe","sid":"q","query":%q,"input":%s}`, name, input)}
	}
	t.ready = []byte(`"type":"snapshot"`)
	return t
}

func buildServer(ctx context.Context) error { return goBuild(ctx, "./server", "tidewire") }

// arrivals notes when the frame of a row came to a connection.
type arrivals []atomic.Int64

// frame is called for every frame.
func (a arrivals) frame(payload []byte) string {
	now := time.Now().UnixNano()
	if bytes.HasPrefix(payload, []byte(`{"type":"patch"`)) {
		for _, put := range bytes.Split(payload, []byte(`"id":`))[1:] {
			id, _ := strconv.Atoi(string(upTo(put, ',')))
			if id < len(a) {
				a[id].CompareAndSwap(0, now)
			}
		}
	}
	return ""
}

func upTo(b []byte, end byte) []byte {
	b, _, _ = bytes.Cut(b, []byte{end})
	return b
}

// Reset and Commit make it the sink of a feed.
func (a arrivals) Reset(feed.Position, string) {}

func (a arrivals) Commit(tx *feed.Tx) {
	now := time.Now().UnixNano()
	for _, c := range tx.Changes {
		a[c.New[0].Int()].CompareAndSwap(0, now)
	}
}

// after waits for all, and returns how long after the commits the last of them came.
func (a arrivals) after(ctx context.Context, commits []int64) (p50, p99, most float64, err error) {
	late := make([]float64, len(commits))
	err = until(ctx, "all frames", 10*time.Second, func() bool {
		for i := range a {
			if a[i].Load() == 0 {
				return false
			}
		}
		return true
	})
	first := len(a) - len(commits)
	for i, at := range commits {
		late[i] = max(0, float64(a[first+i].Load()-at)/1e6)
	}
	slices.Sort(late)
	return late[len(late)/2], late[len(late)*99/100], late[len(late)-1], err
}

// commit is the time from a commit that the writer knows of to the frame on a client's socket.
func commit(ctx context.Context, _ []target) error {
	if err := buildServer(ctx); err != nil {
		return err
	}
	fmt.Print("## Commit acknowledged to frame on a client's socket\n\n| database | writes | to | p50 ms | p99 ms | longest ms | transactions/s |\n|---|---|---|---|---|---|---|\n")
	if err := commitPostgres(ctx); err != nil {
		return err
	}
	if err := commitSQLite(ctx); err != nil {
		return err
	}
	fmt.Println()
	return nil
}

const tails = 100

// tail is the query of the commits: each of 100 connections has the newest 20 rows of a tenant.
var tail = query.Definition{Name: "tail", From: "w", Where: "tenant = $tenant", Order: "id DESC", Limit: 20}

func ofTenant(i int) (name, input string) { return "tail", fmt.Sprintf(`{"tenant":%d}`, i) }

func commitPostgres(ctx context.Context) error {
	d, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := d.exec(ctx, `CREATE TABLE w (id bigint PRIMARY KEY, tenant int, body text); ALTER TABLE w REPLICA IDENTITY FULL; CREATE INDEX ON w (tenant, id)`); err != nil {
		return err
	}
	n := 10_000
	if *quick {
		n = 3000
	}
	measure := func(to string, a arrivals) error {
		commits, rate, err := d.write(ctx, n, 1000)
		if err != nil {
			return err
		}
		p50, p99, most, err := a.after(ctx, commits)
		fmt.Printf("| PostgreSQL | 4 connections | %s | %.2f | %.2f | %.1f | %.0f |\n", to, p50, p99, most, rate)
		return errors.Join(err, d.exec(ctx, "TRUNCATE w"))
	}

	// The same without a node: the feed in this process.
	db, err := postgres.Open(ctx, postgres.Options{URL: d.url, Logger: slog.New(slog.DiscardHandler), Tables: []row.Name{{Schema: "public", Table: "w"}}})
	if err != nil {
		return err
	}
	defer db.Close()
	a := make(arrivals, n)
	feedCtx, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { _ = db.Run(feedCtx, truncates{a}) })
	if err := until(ctx, "the feed", time.Minute, func() bool { return db.Stats().Connected }); err != nil {
		return err
	}
	err = measure("decoded in this process, no node", a)
	stop()
	running.Wait()
	if err != nil {
		return err
	}

	a = make(arrivals, n)
	t := liveServer(d.url, []query.Definition{tail}, ofTenant)
	t.onFrame = a.frame
	return each(ctx, []target{t}, func(s *server) error {
		f, err := s.fleet(ctx, tails, oneChannel)
		if err != nil {
			return err
		}
		defer f.Close()
		return measure("frame on the socket", a)
	})
}

// truncates leaves out truncates, which have no rows.
type truncates struct{ arrivals }

func (t truncates) Commit(tx *feed.Tx) {
	if tx.Changes[0].New != nil {
		t.arrivals.Commit(tx)
	}
}

// write inserts rows in transactions of their own, so many a second, and returns when each commit was acknowledged.
func (d *database) write(ctx context.Context, n, rate int) (commits []int64, reached float64, err error) {
	const writers = 4
	commits = make([]int64, n)
	var g sync.WaitGroup
	var failed atomic.Pointer[error]
	begin := time.Now()
	for w := range writers {
		c, err := pgx.Connect(ctx, d.url)
		if err != nil {
			return nil, 0, err
		}
		defer func() { _ = c.Close(ctx) }()
		g.Go(func() {
			for id := w; id < n; id += writers {
				time.Sleep(time.Until(begin.Add(time.Duration(id) * time.Second / time.Duration(rate))))
				if _, err := c.Exec(ctx, `INSERT INTO w VALUES ($1, $2, 'a body of some length')`, id, id%tails); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				commits[id] = time.Now().UnixNano()
			}
		})
	}
	g.Wait()
	if err := failed.Load(); err != nil {
		return nil, 0, *err
	}
	return commits, float64(n) / time.Since(begin).Seconds(), nil
}

func commitSQLite(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "tidewire-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "db")
	other, err := sqlite3.Open("file:" + path + "?_pragma=journal_mode(wal)&_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer func() { _ = other.Close() }()
	if err := other.Exec(`CREATE TABLE w (id INTEGER PRIMARY KEY, tenant INTEGER, body TEXT)`); err != nil {
		return err
	}
	n, pauses := 400, 20
	if *quick {
		n, pauses = 100, 5
	}
	t := liveServer("sqlite:"+path, []query.Definition{tail}, ofTenant)
	var current atomic.Pointer[arrivals]
	t.onFrame = func(payload []byte) string { return (*current.Load()).frame(payload) }
	none := make(arrivals, 0)
	current.Store(&none)
	insert := func(id int) string {
		return fmt.Sprintf(`INSERT INTO w VALUES (%d, %d, 'a body of some length')`, id, id%tails)
	}
	return each(ctx, []target{t}, func(s *server) error {
		f, err := s.fleet(ctx, tails, oneChannel)
		if err != nil {
			return err
		}
		defer f.Close()
		base := 0
		for _, w := range []struct {
			name  string
			n     int
			pause time.Duration
			write func(id int) (int64, error)
		}{
			{"this process", n, 0, func(id int) (int64, error) { return runSQL(ctx, insert(id)) }},
			{"another process", n, 0, func(id int) (int64, error) { err := other.Exec(insert(id)); return time.Now().UnixNano(), err }},
			{"another process, after a pause of 1 s", pauses, time.Second, func(id int) (int64, error) { err := other.Exec(insert(id)); return time.Now().UnixNano(), err }},
		} {
			a := make(arrivals, base+w.n)
			for i := range base {
				a[i].Store(1)
			}
			current.Store(&a)
			commits := make([]int64, w.n)
			begin := time.Now()
			for i := range w.n {
				time.Sleep(w.pause + time.Duration(i%7)*time.Millisecond) // not in step with the polls
				if commits[i], err = w.write(base + i); err != nil {
					return err
				}
			}
			rate := float64(w.n) / time.Since(begin).Seconds()
			p50, p99, most, err := a.after(ctx, commits)
			if err != nil {
				return err
			}
			fmt.Printf("| SQLite | %s | frame on the socket | %.2f | %.2f | %.1f | %.0f |\n", w.name, p50, p99, most, rate)
			base += w.n
		}
		return nil
	})
}

// runSQL has the server write, and returns the time of the commit.
func runSQL(ctx context.Context, sql string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+tidewireAddr+"/sql", strings.NewReader(sql))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(string(b))
	}
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(b), 10, 64)
}
