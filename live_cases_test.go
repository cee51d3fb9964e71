package tidewire_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/feed/feedtest"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// The cases of docs/limits.md that need a whole node, or a PostgreSQL server with settings of its own.

// tokens makes tokens of one subject.
func tokens(t *testing.T) (opts tidewire.Options, token func(subject string, valid time.Duration, claims map[string]any) string) {
	t.Helper()
	secret := []byte("a-secret-of-at-least-32-bytes-0123")
	jwt, err := auth.NewJWT(auth.JWTOptions{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	return tidewire.Options{Authenticate: tidewire.AuthenticateWith(jwt), Reauthenticate: tidewire.ReauthenticateWith(jwt)},
		func(subject string, valid time.Duration, claims map[string]any) string {
			tok, err := auth.Sign(secret, auth.Identity{Subject: subject, ExpiresAt: time.Now().Add(valid), Claims: claims})
			if err != nil {
				t.Fatal(err)
			}
			return tok
		}
}

// renew sends a token and returns the next n messages but for the answer, which may stand anywhere among them.
func (c *client) renew(token string, n int) (rest []liveMessage) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"type":"auth","token":%q}`, token))
	for answered := false; !answered || len(rest) < n; {
		if m := c.readLive(); m.Type == "authenticated" {
			answered = true
		} else {
			rest = append(rest, m)
		}
	}
	return rest
}

// S02, S03, P33: the guard of a live query is asked again. A denial ends the subscription, and nothing more comes of it; a guard that fails ends nothing.
func TestS02_S03_P33_LiveQueriesAreDecidedAgain(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	var denied, broken atomic.Bool
	s := startBoard(t, tidewire.Options{Authenticate: bearer}, db, board(func(_ context.Context, a tidewire.Access) error {
		switch {
		case a.Action != tidewire.ActionQuery || a.Channel != "board":
			return fmt.Errorf("asked about %+v", a)
		case broken.Load():
			return errBackendDown
		case denied.Load() && a.Actor.ID == "bob":
			return tidewire.ErrDenied
		}
		return nil
	}))
	ann, bob := s.connectAs("ok-ann"), s.connectAs("ok-bob")
	var la, lb list
	for c, l := range map[*client]*list{ann: &la, bob: &lb} {
		c.query("1", "board", `{"list":"7"}`, "")
		l.apply(t, c.readLive())
	}
	broken.Store(true)
	failures := s.Stats().GuardFailures
	s.Reauthorize("bob")
	if s.Stats().GuardFailures == failures {
		t.Error("the guard was not asked")
	}
	broken.Store(false)
	db.Commit(card(1, "7", "a", ""))
	la.apply(t, ann.readLive())
	lb.apply(t, bob.readLive())
	denied.Store(true)
	s.Reauthorize("bob")
	db.Commit(card(2, "7", "secret", ""))
	la.apply(t, ann.readLive())
	if la.titles() != `{"id":1,"title":"a"} {"id":2,"title":"secret"}` {
		t.Error(la.titles())
	}
	if m := bob.want("unsubscribed"); m.SID != "1" || m.Code != "TOPIC_FORBIDDEN" {
		t.Fatalf("told %+v", m)
	}
	bob.send(`{"type":"subscribe","sid":"1","query":"board","input":{"list":"7"}}`)
	bob.wantRefused("TOPIC_FORBIDDEN") // it is the next thing that comes
	denied.Store(false)
	bob.query("1", "board", `{"list":"7"}`, "")
	lb.apply(t, bob.readLive())
	if lb.titles() != la.titles() {
		t.Error(lb.titles())
	}
}

// S04, P33: a policy in Go decides again with the attributes of a new token, for the rows that are there and for those that come.
func TestS04_P33_PolicyWithNewAttributes(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	db.Commit(card(1, "7", "a", "red"), card(2, "7", "b", "blue"))
	q := board(tidewire.Public)
	q.Policy = func(actor json.RawMessage, r live.PolicyRow) (bool, error) {
		var a struct {
			Orgs []string `json:"orgs"`
		}
		org, _ := r.Value("org")
		return json.Unmarshal(actor, &a) == nil && slices.Contains(a.Orgs, org.Text()), nil
	}
	opts, token := tokens(t)
	s := startBoard(t, opts, db, q)
	orgs := func(names ...string) map[string]any { return map[string]any{"orgs": names} }
	c := s.connectAs(token("ann", time.Hour, orgs("red")))
	c.query("1", "board", `{"list":"7"}`, "")
	var l list
	for _, step := range []struct {
		orgs []string
		want string
	}{
		{[]string{"red"}, `{"id":1,"title":"a"}`},
		{[]string{"red", "blue"}, `{"id":1,"title":"a"} {"id":2,"title":"b"}`},
		{nil, ``},
		{[]string{"blue"}, `{"id":2,"title":"b"}`},
	} {
		var snapshot liveMessage
		if l.epoch == "" {
			snapshot = c.readLive()
		} else {
			told := c.renew(token("ann", time.Hour, orgs(step.orgs...)), 2)
			if told[0].Type != "subscribed" || told[0].SID != "1" || told[1].QID != told[0].QID {
				t.Fatalf("%+v", told)
			}
			snapshot = told[1]
		}
		if l.apply(t, snapshot); l.titles() != step.want {
			t.Errorf("%v: %s, want %s", step.orgs, l.titles(), step.want)
		}
	}
	db.Commit(card(2, "7", "b", "red"), card(1, "7", "a", "blue"))
	if l.apply(t, c.readLive()); l.titles() != `{"id":1,"title":"a"}` {
		t.Error(l.titles())
	}
}

// S02: a token that is renewed and says the same of its actor changes nothing: no row is sent again or read again, and two tokens of one actor share a result, also where a policy decides.
func TestS02_ARenewedTokenKeepsTheList(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	db.Commit(card(1, "7", "a", "red"))
	visible, policed := board(tidewire.Public), board(tidewire.Public)
	visible.Visible = "org = $actor.org"
	policed.Name = "policed"
	policed.Policy = func(json.RawMessage, live.PolicyRow) (bool, error) { return true, nil }
	opts, token := tokens(t)
	s := startBoard(t, opts, db, visible, policed)
	fresh := 0
	next := func() string {
		fresh++
		return token("ann", time.Duration(fresh)*time.Hour, map[string]any{"org": "red", "jti": fmt.Sprint(fresh), "nbf": time.Now().Add(time.Duration(-fresh) * time.Minute).Unix(), "iat": fresh})
	}
	a, b := s.connectAs(next()), s.connectAs(next())
	for sid, name := range []string{"board", "policed"} {
		first := a.query(fmt.Sprint(sid), name, `{"list":"7"}`, "").QID
		a.want("snapshot")
		if other := b.query(fmt.Sprint(sid), name, `{"list":"7"}`, "").QID; other != first {
			t.Errorf("%s: two results for one actor", name)
		}
		b.want("snapshot")
	}
	for i := range 3 {
		if told := a.renew(next(), 0); len(told) != 0 {
			t.Fatalf("%+v", told)
		}
		db.Commit(card(2, "7", fmt.Sprint("b", i), "red"))
		for range 2 {
			if m := a.readLive(); m.Type != "patch" {
				t.Fatalf("%+v after the token was renewed", m)
			}
		}
	}
}

// S06: a result that a connection's queue could not hold is refused, also when it grows to that.
func TestS06_AResultLargerThanTheQueue(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	q := board(tidewire.Public)
	q.Limit = 0
	s := startBoard(t, tidewire.Options{Limits: tidewire.Limits{QueueMessages: 64, QueueBytes: 512 << 10}}, db, q)
	pad := strings.Repeat("x", 100<<10)
	for i := range int64(4) {
		db.Commit(card(i, "7", pad, ""))
	}
	a, b := s.connect(), s.connect()
	a.query("1", "board", `{"list":"7"}`, "")
	a.want("snapshot")
	db.Commit(card(9, "7", pad, ""), card(10, "7", pad, ""))
	a.want("patch")
	b.send(`{"type":"subscribe","sid":"1","query":"board","input":{"list":"7"}}`)
	b.wantRefused("RESULT_TOO_LARGE")
	db.Commit(card(11, "7", pad, ""), card(12, "7", pad, ""), card(13, "7", pad, ""), card(14, "7", pad, ""), card(15, "7", pad, ""), card(16, "7", pad, ""))
	if m := a.want("unsubscribed"); m.Code != "RESULT_TOO_LARGE" || m.SID != "1" { // the patch itself is larger
		t.Fatalf("%+v", m)
	}
}

// follower keeps the list of a live query.
type follower struct {
	mu sync.Mutex // guards below
	l  list
}

func (s *server) followQuery(name string) *follower {
	s.t.Helper()
	c := s.connect()
	c.query("1", name, `{}`, "")
	f := &follower{}
	f.l.apply(s.t, c.readLive())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			_, b, err := c.conn.Read(context.Background())
			if err != nil {
				return
			}
			var m liveMessage
			if err := json.Unmarshal(b, &m); err != nil || m.Type != "patch" && m.Type != "snapshot" {
				s.t.Errorf("%s: %v", b, err)
				return
			}
			f.mu.Lock()
			f.l.apply(s.t, m)
			f.mu.Unlock()
		}
	}()
	s.t.Cleanup(func() {
		_ = c.conn.CloseNow()
		<-done
	})
	return f
}

func (f *follower) rows() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.l.rows, "\n")
}

func (f *follower) keys() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.l.keys, " ")
}

// onPostgres is a node over a PostgreSQL database.
func onPostgres(t *testing.T, url string, defs ...query.Definition) *server {
	t.Helper()
	db, err := postgres.Open(t.Context(), postgres.Options{URL: url, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close) // after the node has stopped
	var declare []func(*tidewire.Node) error
	for _, def := range defs {
		declare = append(declare, func(n *tidewire.Node) error {
			return n.Query(tidewire.Query{Definition: def, Guard: tidewire.Public})
		})
	}
	return start(t, tidewire.Options{Database: db}, declare...)
}

func sqlOf(t *testing.T, url string) (exec func(string), value func(string) string) {
	t.Helper()
	db, err := sql.Open("pgx", url+"&default_query_exec_mode=simple_protocol") // several statements at once
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	exec = func(text string) {
		t.Helper()
		if _, err := db.Exec(text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	value = func(expression string) (out string) {
		t.Helper()
		if err := db.QueryRow("SELECT coalesce((" + expression + ")::text, '')").Scan(&out); err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		return out
	}
	return exec, value
}

// P25, P26, P27, P28: a row is the same whether it came as a patch or was read, in a database whose settings write values in other ways.
func TestP25_P26_P27_P28_PatchesAndSnapshotsShowTheSameValues(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	exec, value := sqlOf(t, url)
	name := value(`current_database()`)
	for _, setting := range []string{`timezone = 'Asia/Kolkata'`, `datestyle = 'German, DMY'`, `intervalstyle = 'sql_standard'`, `extra_float_digits = -10`, `bytea_output = 'escape'`} {
		exec(`ALTER DATABASE ` + name + ` SET ` + setting)
	}
	exec(`CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN positive AS int CHECK (value > 0);
		CREATE TABLE items (id int PRIMARY KEY, c char(5), big bigint, num numeric, f float8, r real, tz timestamptz, ts timestamp, d date, iv interval, b bytea, m mood, p positive, a text[], j jsonb);
		ALTER TABLE items REPLICA IDENTITY FULL`)
	all := func(name string) query.Definition { return query.Definition{Name: name, From: "items"} }
	s := onPostgres(t, url, all("early"), all("late"), all("later"))
	early := s.followQuery("early")
	exec(`INSERT INTO items VALUES
		(1, 'ab', 9223372036854775807, 12345678901234567890.000100, 0.1, 0.1, '2026-11-30 12:00:00.25+05:30', '2026-11-30 12:00:00.000001', '2026-11-30', '1 year -2 days 03:04:05', '\x00ff10', 'happy', 1, ARRAY['a','b,c','d"e',NULL], '{"n": 9007199254740993.10}'),
		(2, '', -9007199254740993, 'NaN', 'Infinity', 'NaN', '-infinity', 'infinity', '0044-03-15 BC', '0', '', 'sad', NULL, '{}', 'null'),
		(3, NULL, 1, 1.50, 1e-300, 1e10, '1883-11-18 00:00:00 America/New_York', '1999-12-31 23:59:59', 'infinity', NULL, NULL, NULL, NULL, NULL, NULL)`)
	eventually(t, "three rows", func() bool { return early.keys() == "1 2 3" })
	if late := s.followQuery("late").rows(); early.rows() != late {
		t.Errorf("patches gave\n%s\na read gave\n%s", early.rows(), late)
	}
	exec(`UPDATE items SET c = 'ab  ', big = -1, num = num / 3, f = f + 0.2, tz = tz + '1 microsecond', d = d + 1, m = 'happy', a = a || 'x'::text, j = '[1.0]' WHERE id = 1; UPDATE items SET id = 0 WHERE id = 3`)
	eventually(t, "the changes", func() bool { return early.keys() == "0 1 2" && strings.Contains(early.rows(), "[1.0]") })
	if later := s.followQuery("later").rows(); early.rows() != later {
		t.Errorf("patches gave\n%s\na read gave\n%s", early.rows(), later)
	}
	for _, want := range []string{`"tz":"2026-11-30T06:30:00.250001Z"`, `"big":"-9007199254740993"`, `"num":"NaN"`, `"f":"Infinity"`, `"tz":"-infinity"`, `"d":"0044-03-15 BC"`} {
		if !strings.Contains(early.rows(), want) {
			t.Errorf("no %s in\n%s", want, early.rows())
		}
	}
}

// P18, P21, P23, P24, P28, P31: what the stream does not send, names of any kind, an order that only the database knows, and one of labels: each list ends as the database's.
func TestP18_P21_P23_ListsOfSpecialColumns(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	exec, value := sqlOf(t, url)
	exec(`CREATE SCHEMA "Odd Schema"; CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
		CREATE TABLE "Odd Schema"."Mixed ""Name""" (id int PRIMARY KEY, "Group Of" int, twice int GENERATED ALWAYS AS ("Group Of" * 2) STORED, name text COLLATE "und-x-icu", m mood);
		ALTER TABLE "Odd Schema"."Mixed ""Name""" REPLICA IDENTITY FULL`)
	const from = `"Odd Schema"."Mixed ""Name"""`
	shapes := []query.Definition{
		{Name: "generated", Where: `twice > 20`, Order: "twice DESC", Limit: 5},
		{Name: "quoted", Where: `"Group Of" < 30`, Order: `"Group Of"`, Limit: 4, Columns: []string{"name"}},
		{Name: "locale", Where: `name LIKE '%e%'`, Order: "name", Limit: 6},
		{Name: "labels", Where: `m >= 'ok'`, Order: `m DESC, "Group Of"`},
	}
	for i := range shapes {
		shapes[i].From = `Odd Schema.Mixed "Name"`
	}
	s := onPostgres(t, url, shapes...)
	var lists []*follower
	for _, d := range shapes {
		lists = append(lists, s.followQuery(d.Name))
	}
	for i := range 12 {
		exec(fmt.Sprintf(`INSERT INTO %s (id, "Group Of", name, m) SELECT 10 * %d + i, (i * 7 + %d) %% 40, (ARRAY['éte', 'Ete', 'ete', 'z', 'Ze', 'ae', 'Äe', E'e\n'])[1 + (i + %d) %% 8], (ARRAY['sad', 'ok', 'happy']::mood[])[1 + (i + %d) %% 3] FROM generate_series(1, 6) i`, from, i, i, i, i))
		exec(fmt.Sprintf(`UPDATE %s SET "Group Of" = ("Group Of" + 11) %% 40, name = reverse(name) WHERE id %% 5 = %d; DELETE FROM %[1]s WHERE id %% 9 = %[2]d`, from, i%5))
	}
	for i, d := range shapes {
		limit := ""
		if d.Limit > 0 {
			limit = fmt.Sprint(" LIMIT ", d.Limit)
		}
		want := value(fmt.Sprintf(`SELECT string_agg(id::text, ' ') FROM (SELECT id FROM %s WHERE %s ORDER BY %s, id%s) q`, from, d.Where, d.Order, limit))
		deadline := time.Now().Add(patience)
		for lists[i].keys() != want && time.Now().Before(deadline) {
			<-time.After(5 * time.Millisecond)
		}
		if got := lists[i].keys(); got != want || want == "" {
			t.Errorf("%s: %s, want %s", d.Name, got, want)
		}
	}
}

// P4: a wal_sender_timeout of zero is none, and the stream is confirmed all the same.
func TestP4_NoTimeoutOfTheServer(t *testing.T) {
	t.Parallel()
	pg := testenv.NewServer(t, "wal_sender_timeout=0")
	exec, value := sqlOf(t, pg.URL)
	exec(`CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE other (id int)`)
	db, err := postgres.Open(t.Context(), postgres.Options{URL: pg.URL, Heartbeat: 50 * time.Millisecond, Timeout: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Table(t.Context(), row.Name{Schema: "public", Table: "items"}); err != nil {
		t.Fatal(err)
	}
	r := feedtest.NewRecorder()
	r.Start(t, db)
	eventually(t, "connected", func() bool { return db.Stats().Connected })
	for range 3 {
		exec(`INSERT INTO other VALUES (1)`)
		end := value(`pg_current_wal_insert_lsn()`)
		eventually(t, "confirmed", func() bool {
			return value(`SELECT confirmed_flush_lsn >= '`+end+`' FROM pg_replication_slots`) == "true"
		})
		<-time.After(300 * time.Millisecond)
	}
	exec(`INSERT INTO items VALUES (1)`)
	r.Changes(t, 1)
	if n := db.Stats().Reconnects; n != 0 {
		t.Errorf("%d reconnects", n)
	}
}

// P9: a server that was promoted has another timeline: the feed begins anew, even where the durable slot is there as it was.
func TestP9_AnotherTimeline(t *testing.T) {
	t.Parallel()
	pg := testenv.NewServer(t)
	exec, _ := sqlOf(t, pg.URL)
	exec(`CREATE TABLE items (id int PRIMARY KEY)`)
	db, err := postgres.Open(t.Context(), postgres.Options{URL: pg.URL, Slot: "failover", Heartbeat: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Table(t.Context(), row.Name{Schema: "public", Table: "items"}); err != nil {
		t.Fatal(err)
	}
	r := feedtest.NewRecorder()
	r.Start(t, db)
	eventually(t, "connected", func() bool { return db.Stats().Connected })
	exec(`INSERT INTO items VALUES (1)`)
	r.Changes(t, 1)
	epoch := db.Stats().Epoch
	pg.Stop()
	eventually(t, "disconnected", func() bool { return !db.Stats().Connected })
	pg.Exec("touch", "data/standby.signal")
	pg.Start()
	pg.Exec("pg_ctl", "promote", "-w", "-D", "data")
	r.Until(t, "a reset for another timeline", func(resets []string, _ []*feed.Tx) bool {
		return resets[len(resets)-1] == "another server or timeline"
	})
	eventually(t, "connected", func() bool { return db.Stats().Connected && db.Stats().Epoch != epoch })
	again, _ := sqlOf(t, pg.URL) // the connections of before are gone
	again(`INSERT INTO items VALUES (2)`)
	r.Changes(t, 1)
}
