package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
)

// spy is a database that may have no batches.
type spy struct {
	feed.Database
	alone bool // it has no batches
}

func (d *spy) Read(ctx context.Context, f func(feed.Snapshot) error) error {
	return d.Database.Read(ctx, func(s feed.Snapshot) error {
		if d.alone {
			return f(struct{ feed.Snapshot }{s})
		}
		return f(s)
	})
}

// server is a PostgreSQL database with a table of everything, and engines over it.
type server struct {
	t    *testing.T
	conn *pgx.Conn
	url  string
}

func newServer(t *testing.T, rows int) *server {
	s := &server{t: t, url: testenv.Postgres(t)}
	var err error
	if s.conn, err = pgx.Connect(t.Context(), s.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close(context.Background()) })
	s.exec(`CREATE TABLE items (id bigint PRIMARY KEY, org bigint, price numeric, title text COLLATE "C", done boolean, at timestamptz, tags text[], loc text COLLATE "und-x-icu")`)
	s.exec(fmt.Sprintf(`INSERT INTO items SELECT i, nullif(i %% 100, 7), nullif(i %% 13, 5) + 0.50, nullif(chr(97 + i %% 26) || E'\\',  'c\\'), i %% 3 = 0, '2026-11-30 12:00:00+00'::timestamptz + i * interval '1 min',
		ARRAY['x', NULL, i::text], chr(97 + i %% 5) FROM generate_series(1, %d) i`, rows))
	s.exec(`CREATE INDEX ON items (org, price); ANALYZE items`)
	return s
}

func (s *server) exec(sql string) {
	s.t.Helper()
	if _, err := s.conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		s.t.Fatal(err)
	}
}

// engine returns an engine that does not run yet.
func (s *server) engine(d *spy, o Options, defs ...query.Definition) *Engine {
	s.t.Helper()
	db, err := postgres.Open(s.t.Context(), postgres.Options{URL: s.url, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(db.Close)
	d.Database = db
	o.Database, o.Logger = d, slog.New(slog.DiscardHandler)
	e := New(o)
	for _, def := range defs {
		if err := e.Declare(def); err != nil {
			s.t.Fatal(err)
		}
	}
	return e
}

func (s *server) run(e *Engine) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.t.Errorf("Run: %v", err)
		}
	})
}

// ask is what a client asks for.
type ask struct{ name, input, actor string }

// cold asks an engine for everything before it runs, and returns what it says.
func (s *server) cold(e *Engine, asks []ask) (entries []*Entry, errs []error) {
	entries, errs = make([]*Entry, len(asks)), make([]error, len(asks))
	var all sync.WaitGroup
	for i, a := range asks {
		all.Go(func() {
			entries[i], errs[i] = e.Acquire(s.t.Context(), a.name, json.RawMessage(a.input), json.RawMessage(a.actor))
			if errors.Is(errs[i], query.ErrInput) {
				panic(errs[i])
			}
		})
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		n := 0
		for _, en := range e.entries {
			n += en.refs
		}
		entries := len(e.entries)
		e.mu.Unlock()
		e.reads.mu.Lock()
		waiting := len(e.reads.later)
		e.reads.mu.Unlock()
		if n == len(asks) && waiting == entries {
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%d of %d wait", n, len(asks))
		}
	}
	s.run(e)
	all.Wait()
	return entries, errs
}

// rowsOf is what an entry shows, without what is its own.
func rowsOf(en *Entry) string {
	p := string(en.Snapshot().Payload)
	return p[strings.Index(p, `"key"`):]
}

// template of a test, with its inputs.
type asked struct {
	query.Definition
	input func() string
}

func allKinds(rng *rand.Rand) []asked {
	text := func(format string, values ...func() string) func() string {
		return func() string {
			args := make([]any, len(values))
			for i, v := range values {
				args[i] = v()
			}
			return fmt.Sprintf(format, args...)
		}
	}
	org := func() string {
		return pick(rng, "null", "3", "7", fmt.Sprint(rng.IntN(100)), fmt.Sprint(rng.IntN(100)))
	}
	id := func() string { return fmt.Sprint(rng.IntN(5000)) }
	price := func() string {
		return pick(rng, "null", "12.50", `"NaN"`, "1e-30", fmt.Sprint(rng.IntN(13)), fmt.Sprint(rng.IntN(13)))
	}
	title := func() string {
		return pick(rng, "null", `"a\\\\"`, `"c\\\\"`, `"%"`, `"b%"`, `"\"quoted\", {NULL}"`, `""`, `"é'; DROP TABLE items; --"`)
	}
	at := func() string { return fmt.Sprintf(`"2026-11-30T%02d:30:00+02:00"`, rng.IntN(24)) }
	list := func() string {
		return pick(rng, "null", "[]", "[1,null]", fmt.Sprintf("[%d,%d,3]", rng.IntN(100), rng.IntN(100)))
	}
	return []asked{
		{query.Definition{Name: "org", From: "items", Where: "org = $org"}, text(`{"org":%s}`, org)},
		{query.Definition{Name: "page", From: "items", Where: "org = $org AND price < $p", Order: "price DESC, title", Limit: 5}, text(`{"org":%s,"p":%s}`, org, price)},
		{query.Definition{Name: "one", From: "items", Where: "id = $id"}, text(`{"id":%s}`, id)},
		{query.Definition{Name: "list", From: "items", Where: "org IN $list AND NOT done", Order: "at", Limit: 3}, text(`{"list":%s}`, list)},
		{query.Definition{Name: "pair", From: "items", Where: "org IN ($org, 3) AND id < $id", Limit: 4}, text(`{"org":%s,"id":%s}`, org, id)},
		{query.Definition{Name: "null", From: "items", Where: "org = $org AND title IS NOT DISTINCT FROM $t"}, text(`{"org":%s,"t":%s}`, org, title)},
		{query.Definition{Name: "range", From: "items", Where: "price > $p AND at BETWEEN $at AND '2026-12-01 00:00:00+00' AND org IS NULL", Order: "at DESC", Limit: 10}, text(`{"p":%s,"at":%s}`, price, at)},
		{query.Definition{Name: "like", From: "items", Where: "title LIKE $t AND org = $org"}, text(`{"org":%s,"t":%s}`, org, title)},
		{query.Definition{Name: "rerun", From: "items", Where: "org = $org AND tags <> '{x}'", Order: "loc, title DESC", Limit: 4}, text(`{"org":%s}`, org)},
	}
}

// TestS28_ARestartReadsEachQueryOnce has many cold entries of few queries: with as many statements as there are queries they read what they read alone.
func TestS28_ARestartReadsEachQueryOnce(t *testing.T) {
	t.Parallel()
	rng := random(t)
	s := newServer(t, 5000)
	var defs []query.Definition
	var asks []ask
	for _, k := range allKinds(rng) {
		defs = append(defs, k.Definition)
		for range 100 {
			asks = append(asks, ask{k.Name, k.input(), ""})
		}
	}
	rng.Shuffle(len(asks), func(i, j int) { asks[i], asks[j] = asks[j], asks[i] })
	together, alone := s.engine(&spy{}, Options{}, defs...), s.engine(&spy{alone: true}, Options{}, defs...)
	got, errs := s.cold(together, asks)
	want, _ := s.cold(alone, asks)
	x, y := together.Stats(), alone.Stats()
	t.Logf("%d entries of %d queries: %d statements in %d snapshots; alone %d in %d", x.Entries, len(defs), x.Selects, x.Reads, y.Selects, y.Reads)
	rows := 0
	for i, a := range asks {
		if errs[i] != nil || want[i] == nil {
			t.Fatalf("%v: %v", a, errs[i])
		}
		if g, w := rowsOf(got[i]), rowsOf(want[i]); g != w {
			t.Errorf("%v\ntogether %s\nalone    %s", a, g, w)
		}
		x, y := got[i].win, want[i].win
		if len(x.slots) != len(y.slots) || x.complete != y.complete || !slices.Equal(x.boundary, y.boundary) {
			t.Errorf("%v: %d rows to %v, complete %v; alone %d to %v, %v", a, len(x.slots), x.boundary, x.complete, len(y.slots), y.boundary, y.complete)
		}
		rows += len(x.slots)
		got[i].Release()
		want[i].Release()
	}
	if x.Selects > uint64(len(defs)) || y.Selects < uint64(y.Entries) || rows < 2000 {
		t.Errorf("%d statements for %d queries, %d rows", x.Selects, len(defs), rows)
	}
}

// TestS13_OneEntryDoesNotFailTheOthers has an input that the server refuses, which ends the transaction for all.
func TestS13_OneEntryDoesNotFailTheOthers(t *testing.T) {
	t.Parallel()
	s := newServer(t, 1)
	s.exec(`CREATE TABLE hosts (id int PRIMARY KEY, ip inet); INSERT INTO hosts SELECT i, '10.0.0.0'::inet + i FROM generate_series(0, 499) i`)
	var asks []ask
	for i := range 500 {
		asks = append(asks, ask{"host", fmt.Sprintf(`{"ip":"10.0.%d.%d"}`, i/256, i%256), ""})
	}
	asks[333].input = `{"ip":"nowhere"}`
	e := s.engine(&spy{}, Options{}, query.Definition{Name: "host", From: "hosts", Where: "ip = $ip"})
	entries, errs := s.cold(e, asks)
	for i, err := range errs {
		switch {
		case i == 333:
			if !errors.Is(err, ErrRead) || !strings.Contains(err.Error(), "nowhere") {
				t.Errorf("the culprit: %v", err)
			}
		case err != nil:
			t.Fatalf("%v: %v", asks[i], err)
		case len(entries[i].win.slots) != 1:
			t.Errorf("%v: %d rows", asks[i], len(entries[i].win.slots))
		default:
			entries[i].Release()
		}
	}
	st := e.Stats()
	t.Logf("%d statements in %d snapshots, %d errors", st.Selects, st.Reads, st.ReadErrors)
	if st.Selects > 30 || st.ReadErrors != 1 {
		t.Errorf("%d statements to find one in 500, %d errors", st.Selects, st.ReadErrors)
	}
}

// TestS06_OneResultTooLargeDoesNotFailTheOthers is about the bounds of an entry that is read with others.
func TestS06_OneResultTooLargeDoesNotFailTheOthers(t *testing.T) {
	t.Parallel()
	s := newServer(t, 300)
	e := s.engine(&spy{}, Options{MaxRows: 50}, query.Definition{Name: "first", From: "items", Where: "id <= $n"})
	var asks []ask
	for i := range 100 {
		asks = append(asks, ask{"first", fmt.Sprintf(`{"n":%d}`, i), ""})
	}
	entries, errs := s.cold(e, asks)
	for i, err := range errs {
		switch {
		case i > 50:
			if !errors.Is(err, ErrRows) {
				t.Errorf("%d rows: %v", i, err)
			}
		case err != nil || len(entries[i].win.slots) != i:
			t.Errorf("%d rows: %v", i, err)
		default:
			entries[i].Release()
		}
	}
	if n := e.Stats().Selects; n != 1 {
		t.Errorf("%d statements", n)
	}
}

// TestS06_ALargeResultIsNotKeptWhileItIsRead: what comes behind the bound is let go.
func TestS06_ALargeResultIsNotKeptWhileItIsRead(t *testing.T) {
	t.Parallel()
	q, err := query.Compile(all, items("items"))
	if err != nil {
		t.Fatal(err)
	}
	e := New(Options{Database: feed.NewMemory(), MaxEntryBytes: 4000})
	tp := &template{def: all}
	rd := newReading(&Entry{e: e, ident: ident{t: tp}, plan: &plan{t: tp, q: q}})
	for i := range int64(100) {
		rd.take(newImage(q, item(i, 0, 0, "t")))
		if len(rd.res.images)*imageSize > 4000 {
			t.Fatalf("%d rows are kept", len(rd.res.images))
		}
	}
	if !rd.turn() || !errors.Is(rd.err, ErrRows) || rd.res.images != nil {
		t.Errorf("%v, %d rows", rd.err, len(rd.res.images))
	}
}

// TestS04_ActorsOfOneQueryShareTheRead and read their next pages alone, as far as the policy hides what was read.
func TestS04_ActorsOfOneQueryShareTheRead(t *testing.T) {
	t.Parallel()
	s := newServer(t, 1000)
	def := query.Definition{Name: "mine", From: "items", Where: "id < $n", Order: "id", Limit: 3}
	policy := func(actor json.RawMessage, r PolicyRow) (bool, error) {
		var a struct{ From int64 }
		err := json.Unmarshal(actor, &a)
		return r.Row[0].Int() >= a.From, err
	}
	e := s.engine(&spy{}, Options{})
	if err := e.DeclareWith(def, policy); err != nil {
		t.Fatal(err)
	}
	var asks []ask
	statements := uint64(1)
	for i := range 20 {
		asks = append(asks, ask{"mine", fmt.Sprintf(`{"n":%d}`, 900+i%2), fmt.Sprintf(`{"from":%d}`, i*3)})
		for read, page := 19, 38; read < max(0, i*3-1)+19; read, page = read+page, 2*page { // a page after the first, each twice as long
			statements++
		}
	}
	entries, errs := s.cold(e, asks)
	for i, en := range entries {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if first := en.win.slots[0].img.row[0].Int(); first != int64(max(1, i*3)) || en.win.shown() != 3 || len(en.win.slots) != 19 {
			t.Errorf("actor %d: %d rows from %d", i, len(en.win.slots), first)
		}
		en.Release()
	}
	if n := e.Stats().Selects; n != statements {
		t.Errorf("%d statements, want %d", n, statements)
	}
}

// TestS04_APolicyThatHidesMost: a query with a limit reads on until there are enough rows, and says so when it gives up: never is a part taken for the result.
func TestS04_APolicyThatHidesMost(t *testing.T) {
	t.Parallel()
	s := newServer(t, 4000)
	def := query.Definition{Name: "rare", From: "items", Order: "id", Limit: 5}
	policy := func(actor json.RawMessage, r PolicyRow) (bool, error) {
		var a struct{ Nth int64 }
		err := json.Unmarshal(actor, &a)
		return r.Row[0].Int()%a.Nth == 0, err
	}
	e := s.engine(&spy{}, Options{MaxRows: 300})
	if err := e.DeclareWith(def, policy); err != nil {
		t.Fatal(err)
	}
	entries, errs := s.cold(e, []ask{{"rare", "", `{"nth":100}`}, {"rare", "", `{"nth":1999}`}})
	if errs[0] != nil {
		t.Fatal(errs[0])
	}
	for i, want := range []int64{100, 200, 300, 400, 500} {
		if got := entries[0].win.slots[i].img.row[0].Int(); got != want {
			t.Errorf("row %d is %d, want %d", i, got, want)
		}
	}
	entries[0].Release()
	if !errors.Is(errs[1], ErrRows) { // after 3,000 rows
		t.Errorf("%v", errs[1])
	}
}

// TestS13_NobodyWaitsForOthers: a cold entry is read at once when the readers are idle, whatever may share a statement.
func TestS13_NobodyWaitsForOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, Options{}, byOrg)
		b.start()
		for i := range 10 {
			begun := time.Now()
			b.acquire("byOrg", fmt.Sprintf(`{"org":%d}`, i)).Release()
			if d := time.Since(begun); d != 0 {
				t.Errorf("it waited for %v", d)
			}
		}
		if s := b.e.Stats(); s.Reads != 10 {
			t.Errorf("%d reads", s.Reads)
		}
	})
}

// TestS13_SomebodyKnowsWhatIsDueNext: a reader that takes something leaves word of what it does not wait for any more, and nothing is taken in part while it is being asked for.
func TestS13_SomebodyKnowsWhatIsDueNext(t *testing.T) {
	t.Parallel()
	e := New(Options{Database: feed.NewMemory()})
	r := &e.reads
	woken := func() bool {
		select {
		case <-r.wake:
			return true
		default:
			return false
		}
	}
	request := func(in time.Duration) {
		r.requestLocked(&Entry{e: e, ident: ident{t: &template{}}}, e.now()+int64(in))
	}
	request(time.Minute)
	if group, next := r.take(); len(group) > 0 || next > time.Minute || !woken() || woken() {
		t.Errorf("%d are taken, the next in %v", len(group), next)
	}
	request(0)
	woken()
	if group, _ := r.take(); len(group) != 1 || !woken() {
		t.Errorf("%d are taken, and nobody is told of the other", len(group))
	}
	r.hold(1)
	request(0)
	if group, _ := r.take(); len(group) > 0 {
		t.Error("one is taken in between")
	}
	woken()
	r.hold(-1)
	if !woken() {
		t.Error("nobody is told when all are there")
	}
	if group, _ := r.take(); len(group) != 1 {
		t.Errorf("%d are taken", len(group))
	}
}

// TestS13_GroupsAreByQuery is about which entries a reader takes.
func TestS13_GroupsAreByQuery(t *testing.T) {
	t.Parallel()
	e := New(Options{Database: feed.NewMemory(), Reads: 1, ReadGroup: 10})
	a, b, c := &template{}, &template{}, &template{}
	names := map[*template]string{a: "a", b: "b", c: "c"}
	request := func(tp *template, n, most int) {
		for range n {
			en := &Entry{e: e, ident: ident{t: tp}, readMost: most}
			e.reads.requestLocked(en, 0)
		}
	}
	take := func() (out string) {
		group, _ := e.reads.take()
		for i, w := range group {
			if name := names[w.en.ident.t]; i == 0 || !strings.HasSuffix(out, name) {
				out += name
			}
		}
		return fmt.Sprint(out, len(group))
	}
	expect := func(what string, want ...string) {
		t.Helper()
		for i, w := range want {
			if got := take(); got != w {
				t.Errorf("%s: group %d is %s, want %s", what, i, got, w)
			}
		}
		if got := take(); got != "0" || len(e.reads.due)+len(e.reads.turn)+e.reads.ready != 0 {
			t.Errorf("%s: %s is left", what, got)
		}
	}
	for range 12 {
		request(a, 1, 0)
		request(b, 1, 0)
	}
	expect("two queries", "a10", "b10", "ab4")
	request(a, 5, 2)
	request(b, 1, 0)
	expect("few at once", "ab3", "a2", "a1")
	c.size.Store(maxGroupBytes / 4)
	request(c, 9, 0)
	request(a, 1, 0)
	expect("large results", "c4", "ac5", "c1")
	e.opts.Reads = 4
	for range 6 {
		request(a, 1, 0)
		request(b, 1, 0)
	}
	expect("several readers", "a6", "b6")
}

// TestS29_TwoNodesOnOneServer: each has a replication slot and a process of its own.
func TestS29_TwoNodesOnOneServer(t *testing.T) {
	t.Parallel()
	s := newServer(t, 500)
	s.exec(`ALTER TABLE items REPLICA IDENTITY FULL`)
	def := query.Definition{Name: "page", From: "items", Where: "org = $org", Order: "price DESC", Limit: 4}
	a, b := s.engine(&spy{}, Options{}, def), s.engine(&spy{}, Options{}, def)
	s.run(a)
	s.run(b)
	<-a.following
	<-b.following
	get := func(e *Engine, org int) *Entry {
		en, err := e.Acquire(t.Context(), "page", json.RawMessage(fmt.Sprintf(`{"org":%d}`, org)), nil)
		if err != nil {
			t.Fatal(err)
		}
		return en
	}
	first, other := get(a, 3), get(b, 5)
	c := visitor(t, first)
	before := b.Stats().Transactions
	s.exec(`UPDATE items SET price = 99 WHERE id = 303`)
	s.exec(`DELETE FROM items WHERE org = 3 AND id < 100; INSERT INTO items (id, org, price) VALUES (1000, 3, 50)`)
	for deadline := time.Now().Add(time.Minute); b.Stats().Transactions < before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the feed is late")
		}
	}
	second := get(b, 3)
	if !c.visit(second) {
		t.Fatal("there is no delta")
	}
	c.same(second)
	if got := c.patches[0].String(); !strings.HasSuffix(got, "+303@0 +1000@1") || b.Stats().Selects != 2 {
		t.Errorf("patch %s, %d reads", got, b.Stats().Selects)
	}
	for _, en := range []*Entry{first, second, other} {
		en.Release()
	}
}
