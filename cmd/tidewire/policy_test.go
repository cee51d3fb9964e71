package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/sqlite"
)

// typesTable has a column of each type, with one row of values and one of NULLs.
func typesTable(t *testing.T) (table *row.Table, full, null row.Row) {
	t.Helper()
	table = &row.Table{Name: row.Name{Schema: "public", Table: "things"}, Key: []int{0}}
	add := func(name string, typ row.Type, text string) {
		v, err := row.ParseText(typ, text)
		if err != nil {
			t.Fatal(err)
		}
		table.Columns = append(table.Columns, row.Column{Name: name, Type: typ})
		full, null = append(full, v), append(null, row.Value{})
	}
	for _, c := range []struct {
		name string
		oid  uint32
		text string
	}{
		{"id", 20, "9223372036854775807"},
		{"b", 16, "true"},
		{"f", 701, "NaN"},
		{"t", 25, "é"},
		{"u", 2950, "F0000000-0000-0000-0000-00000000000a"},
		{"ts", 1114, "2026-11-30 12:00:00.25"},
		{"tz", 1184, "2026-11-30 13:00:00+01"},
		{"d", 1082, "2026-11-30"},
		{"y", 17, `\x6162`},
		{"n", 1700, "1.5"},
		{"j", 3802, "{}"},
		{"end", 1184, "infinity"},
	} {
		typ, _ := row.PostgresType(c.oid, row.C)
		add(c.name, typ, c.text)
	}
	add("e", row.Type{Kind: row.Enum, Name: "mood", Labels: []string{"sad", "ok"}}, "ok")
	return table, full, null
}

const (
	shows = "shows"
	hides = "hides"
	fails = "fails"
)

func outcome(policy live.Policy, actor string, r live.PolicyRow) string {
	switch visible, err := policy(json.RawMessage(actor), r); {
	case err != nil:
		return fails
	case visible:
		return shows
	}
	return hides
}

func TestS04_S05_PoliciesInCEL(t *testing.T) {
	t.Parallel()
	table, full, null := typesTable(t)
	const ann = `{"id":"ann","org":"o1","level":3,"roles":["editor"],"nested":{"x":true}}`
	for _, c := range []struct {
		policy, actor string
		full, null    string
	}{
		{"true", "", shows, shows},
		{"row.id == 9223372036854775807", "", shows, hides},
		{"row.id > 9223372036854775806", "", shows, hides},
		{"row.b", "", shows, hides},
		{"!row.b", "", hides, hides},
		{"row.f != row.f", "", shows, hides}, // CEL's NaN
		{`row.t == "é" && row.t.size() == 1`, "", shows, hides},
		{`row.u == "f0000000-0000-0000-0000-00000000000a"`, "", shows, hides},
		{`row.ts == timestamp("2026-11-30T12:00:00.25Z")`, "", shows, hides},
		{`row.tz < timestamp("2026-11-30T12:00:01Z") && row.tz.getFullYear() == 2026`, "", shows, hides},
		{`row.d == timestamp("2026-11-30T00:00:00Z")`, "", shows, hides},
		{`row.y == b"ab"`, "", shows, hides},
		{`row.e in ["ok", "happy"]`, "", shows, hides},
		// NULL is neither true nor false.
		{`row.t != "x"`, "", shows, hides},
		{`!(row.t == "x")`, "", shows, hides},
		{`row.t == "x" || true`, "", shows, shows},
		{"row.id > 3 || row.b", "", shows, hides},
		{"has(row.t)", "", shows, hides},
		{"!has(row.t)", "", hides, shows},
		{`!has(row.t) || row.t == "é"`, "", shows, shows},
		{`row.?t.orValue("none") == "none"`, "", hides, shows},
		{`row.t == row.t`, "", shows, hides},
		// The actor, as guards see it.
		{`actor.id == "ann"`, ann, shows, shows},
		{`actor.id == ""`, `{"id":null}`, shows, shows},
		{`actor.id == ""`, "null", shows, shows},
		{`actor.id == ""`, "", shows, shows},
		{`actor.claims.org == "o1" && row.id >= actor.claims.level`, ann, shows, hides},
		{`"editor" in actor.claims.roles && actor.claims.nested.x == true`, ann, shows, shows},
		{`actor.claims.org == "o1"`, `{"id":"bob"}`, hides, hides},
		{`!(actor.claims.org == "o1")`, `{"id":"bob"}`, hides, hides},
		{`actor.claims.admin == true || row.t == "é"`, ann, shows, hides},
		{`has(actor.claims.id)`, ann, hides, hides},
		// What cannot be decided.
		{`1 / (row.id - row.id) == 1`, "", fails, hides},
		{`actor.claims.org > 3`, ann, fails, fails},
		{`actor.id == ""`, `{"id":7}`, fails, fails},
		{`actor.id == ""`, `[]`, fails, fails},
		{`row.end > timestamp("2026-01-01T00:00:00Z")`, "", fails, hides},
		{strings.Repeat("[1,2,3,4,5,6,7,8,9,0].all(x, ", 7) + "row.id > 0" + strings.Repeat(")", 7), "", fails, fails},
	} {
		policy, err := newPolicy(table, c.policy)
		if err != nil {
			t.Errorf("%s: %v", c.policy, err)
			continue
		}
		if got := outcome(policy, c.actor, live.PolicyRow{Table: table, Row: full}); got != c.full {
			t.Errorf("%s for %s %s the row, want %s", c.policy, c.actor, got, c.full)
		}
		if got := outcome(policy, c.actor, live.PolicyRow{Table: table, Row: null}); got != c.null {
			t.Errorf("%s for %s %s the row of NULLs, want %s", c.policy, c.actor, got, c.null)
		}
	}
}

func TestS05_ValuesThatAreNotTheColumnsAreFailures(t *testing.T) {
	t.Parallel()
	column := func(name, declared string) row.Column {
		return row.Column{Name: name, Type: row.SQLiteType(declared, "", false)}
	}
	table := &row.Table{Name: row.Name{Schema: "main", Table: "t"}, Engine: row.SQLite, Key: []int{0}, Columns: []row.Column{column("i", "INTEGER"), column("b", "BOOLEAN"), column("t", "TEXT"), column("x", "")}}
	for _, c := range []struct {
		policy string
		row    row.Row
		want   string
	}{
		{"row.i > 0", row.Row{row.IntValue(1)}, shows},
		{"row.i > 0", row.Row{row.TextValue("1")}, fails},
		{"row.i > 0", row.Row{row.FloatValue(1.5)}, fails},
		{"row.b", row.Row{{}, row.IntValue(1)}, shows},
		{"row.b", row.Row{{}, row.IntValue(0)}, hides},
		{"row.b", row.Row{{}, row.IntValue(2)}, fails},
		{`row.t == "a"`, row.Row{{}, {}, row.BytesValue([]byte("a"))}, fails},
		{`row.x == "a"`, row.Row{{}, {}, {}, row.TextValue("a")}, shows},
		{`row.x == 1`, row.Row{{}, {}, {}, row.FloatValue(1)}, shows},
		{`row.x == "a"`, row.Row{{}, {}, {}, row.IntValue(1)}, hides},
		{`row.x > "a"`, row.Row{{}, {}, {}, row.IntValue(1)}, fails},
		{`row.x > "a"`, row.Row{{}, {}, {}, {}}, hides},
	} {
		policy, err := newPolicy(table, c.policy)
		if err != nil {
			t.Fatal(err)
		}
		if got := outcome(policy, "", live.PolicyRow{Table: table, Row: c.row}); got != c.want {
			t.Errorf("%s %s %v, want %s", c.policy, got, c.row, c.want)
		}
	}
	policy, err := newPolicy(table, "row.i > 0")
	if err != nil {
		t.Fatal(err)
	}
	// A column that came before it changes nothing, another type does.
	moved := &row.Table{Name: table.Name, Engine: row.SQLite, Key: []int{0}, Columns: []row.Column{column("new", "TEXT"), column("i", "INTEGER")}}
	retyped := &row.Table{Name: table.Name, Engine: row.SQLite, Key: []int{0}, Columns: []row.Column{column("i", "TEXT")}}
	dropped := &row.Table{Name: table.Name, Engine: row.SQLite, Key: []int{0}, Columns: []row.Column{column("x", "")}}
	for _, c := range []struct {
		r    live.PolicyRow
		want string
	}{
		{live.PolicyRow{Table: moved, Row: row.Row{row.TextValue("a"), row.IntValue(1)}}, shows},
		{live.PolicyRow{Table: retyped, Row: row.Row{row.TextValue("1")}}, fails},
		{live.PolicyRow{Table: dropped, Row: row.Row{row.IntValue(1)}}, fails},
	} {
		if got := outcome(policy, "", c.r); got != c.want {
			t.Errorf("%v %s, want %s", c.r.Row, got, c.want)
		}
	}
}

// The actors that a policy remembers are bounded.
func TestS05_PolicyActorsAreBounded(t *testing.T) {
	t.Parallel()
	a := &actors{known: map[string]Actor{}}
	for i := range 3 * maxActors {
		actor, err := a.read(json.RawMessage(fmt.Sprintf(`{"id":"%d"}`, i)))
		if err != nil || actor.ID != fmt.Sprint(i) {
			t.Fatalf("%+v, %v", actor, err)
		}
	}
	if len(a.known) > maxActors {
		t.Errorf("%d actors", len(a.known))
	}
}

// sqliteFile is a database of the application.
func sqliteFile(t *testing.T, ddl string) (path string, sql func(string)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "app.db")
	db, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	sql = func(text string) {
		t.Helper()
		err := db.Write(t.Context(), func(tx *sqlite.Tx) error {
			_, err := tx.Exec(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sql(ddl)
	return path, sql
}

const cardsDDL = `CREATE TABLE cards (id INTEGER PRIMARY KEY, org TEXT, owner TEXT, level INTEGER, title TEXT NOT NULL, secret TEXT, price NUMERIC, extra JSON);
	INSERT INTO cards VALUES (1, 'red', 'ann', 1, 'a', 's1', 1, '{}'), (2, 'red', 'bob', 5, 'b', 's2', 2, '{}'), (3, 'blue', 'cid', 1, 'c', 's3', 3, '{}'), (4, 'red', NULL, NULL, 'd', 's4', 4, '{}')`

func TestConfig_WrongPoliciesAndEntitiesAreNamedWithTheirPlace(t *testing.T) {
	t.Parallel()
	path, _ := sqliteFile(t, cardsDDL)
	for _, c := range []struct{ yaml, want string }{
		{`queries: [{name: q, from: cards, guard: public, policy: row.titel == "x"}]`, `queries[0] "q": policy: row.titel: table main.cards has no such column`},
		{`queries: [{name: q, from: cards, guard: public, policy: row.extra == "x"}]`, `queries[0] "q": policy: row.extra: CEL has no exact values of type json`},
		{`queries: [{name: q, from: cards, guard: public, policy: row.title == 3}]`, `queries[0] "q": policy: line 1, column 11: found no matching overload`},
		{`queries: [{name: q, from: cards, guard: public, policy: row.title == null}]`, `queries[0] "q": policy: line 1, column 11: found no matching overload`},
		{`queries: [{name: q, from: cards, guard: public, policy: row.title}]`, `the expression gives string, want bool`},
		{`queries: [{name: q, from: cards, guard: public, policy: row.price}]`, `the expression gives dyn, want bool`},
		{`queries: [{name: q, from: cards, guard: public, policy: 'row.level >'}]`, `queries[0] "q": policy: line 1, column 12: Syntax error`},
		{`queries: [{name: q, from: cards, guard: public, policy: channel == "q"}]`, `undeclared reference to 'channel'`},
		{`queries: [{name: q, from: cards, guard: public, where: titel = 'x'}]`, `queries[0] "q": where at 1: table main.cards has no column "titel"`},
		{`queries: [{name: q, from: nothing, guard: public}]`, `queries[0] "q": from: sqlite: feed: no such table`},
		{`queries: [{name: q, guard: public}]`, `queries[0] "q": want entity or from`},
		{`queries: [{name: q, entity: card, guard: public}]`, `queries[0] "q": there is no entity "card"`},
		{"entities: [{name: card, from: cards}]\nqueries: [{name: q, entity: card, from: cards, guard: public}]", `queries[0] "q": want entity or from`},
		{"entities: [{name: card, from: cards}]\nqueries: [{name: q, from: main.Cards, guard: public}]", `queries[0] "q": the table main.Cards is an entity's`},
		{"entities: [{name: card, from: cards, columns: [title]}]\nqueries: [{name: q, entity: card, columns: [secret], guard: public}]", `queries[0] "q": entity "card" does not show column "secret"`},
		{"entities: [{name: card, from: cards, hide: [secret]}]\nqueries: [{name: q, entity: card, columns: [title, secret], guard: public}]", `queries[0] "q": entity "card" does not show column "secret"`},
		{"entities: [{name: card, from: cards}]\nqueries: [{name: q, entity: card, visible: 'TRUE) OR (TRUE', guard: public}]", `queries[0] "q": visible at 5: expected AND, OR or the end`},
		{"entities: [{from: cards}]", `entities[0]: name is missing`},
		{"entities: [{name: card}]", `entities[0] "card": from is missing`},
		{"entities: [{name: card, from: cards}, {name: card, from: others}]", `entities[1] "card": declared twice`},
		{"entities: [{name: card, from: cards, columns: [title], hide: [secret]}]", `entities[0] "card": columns and hide exclude each other`},
		{"entities: [{name: card, from: cards, columns: [titel]}]", `entities[0] "card": table main.cards has no column "titel" to show`},
		{"entities: [{name: card, from: cards, hide: [sceret]}]", `entities[0] "card": hide: table main.cards has no column "sceret"`},
		{"entities: [{name: card, from: cards, hide: [id]}]", `entities[0] "card": hide: column "id" is of the primary key`},
		{"entities: [{name: card, from: cards, visible: ogr = $actor.org}]", `entities[0] "card": visible at 1: table main.cards has no column "ogr"`},
		{"entities: [{name: card, from: cards, policy: row.owner == 7}]", `entities[0] "card": policy: line 1, column 11: found no matching overload`},
		{"entities: [{name: card, from: nothing}]", `entities[0] "card": from: sqlite: feed: no such table`},
	} {
		_, _, err := tw(t, nil, "serve", "-c", writeConfig(t, "addr: 127.0.0.1:0\nstreams: {objects: memory}\ndatabase: sqlite:"+path+"\n"+c.yaml))
		if err == nil {
			t.Errorf("%s: no error", c.yaml)
			continue
		}
		wantConfigError(t, err, c.want)
	}
	// Without the database, as far as it goes.
	for yaml, want := range map[string]string{
		"queries: [{name: q, from: cards, guard: public, policy: 'row.level >'}]":                    `queries[0] "q": policy: line 1, column 12: Syntax error`,
		"queries: [{name: q, from: cards, guard: public, policy: row.flag}]":                         "",
		"queries: [{name: q, from: cards, guard: publik}]":                                           `queries[0] "q": guard: line 1`,
		"entities: [{name: card, from: cards, policy: user.id == row.owner}]":                        `entities[0] "card": policy: line 1, column 1: undeclared reference to 'user'`,
		"entities: [{name: card, from: cards, hide: [x], policy: row.public || row.a == actor.id }]": "",
	} {
		_, _, err := tw(t, nil, "serve", "--print-config", "-c", writeConfig(t, "database: sqlite:"+path+"\n"+yaml))
		switch {
		case want != "":
			wantConfigError(t, err, want)
		case err != nil:
			t.Errorf("%s: %v", yaml, err)
		}
	}
	for yaml, want := range map[string]string{"entities: [{name: card, from: cards}]": "entities needs database", "queries: [{name: q, from: cards, guard: public}]": "queries needs database"} {
		_, _, err := tw(t, nil, "serve", "--print-config", "-c", writeConfig(t, yaml))
		wantConfigError(t, err, want)
	}
}

// watcher keeps the ops of a live query.
type watcher struct {
	t *testing.T
	q *client.LiveQuery

	mu  sync.Mutex // guards below
	ops []client.Op
}

func watch(t *testing.T, s *running, query, subject string, claims map[string]any) *watcher {
	t.Helper()
	f := &watcher{t: t}
	q, err := connect(t, s.url, token(t, subject, claims)).Query(query, nil, client.QueryOptions{OnChange: func(r client.Result) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.ops = append(f.ops, r.Ops...)
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.q = q
	return f
}

func (f *watcher) rows() string {
	var b strings.Builder
	for _, r := range f.q.Rows() {
		b.Write(r)
	}
	return b.String()
}

// wants waits for the rows.
func (f *watcher) wants(rows ...string) {
	f.t.Helper()
	want := strings.Join(rows, "")
	defer func() {
		if f.t.Failed() {
			f.t.Logf("the rows are %s, want %s", f.rows(), want)
		}
	}()
	eventually(f.t, "the rows "+want, func() bool { return f.q.Live() && f.rows() == want })
}

// wantsDelete looks for a row that was taken out.
func (f *watcher) wantsDelete(key string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.ContainsFunc(f.ops, func(o client.Op) bool { return o.Row == nil && string(o.Key) == key }) {
		f.t.Errorf("row %s left without a delete: %+v", key, f.ops)
	}
}

func metric(t *testing.T, s *running, name string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer backend-key-0123456789")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindSubmatch(body)
	if m == nil {
		t.Fatalf("no %s in %s", name, body)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

func TestS04_PolicyGivesEachActorItsOwnRows(t *testing.T) {
	t.Parallel()
	path, sql := sqliteFile(t, cardsDDL)
	s := serve(t, openConfig+`
streams: {objects: memory}
database: sqlite:`+path+`
queries:
  - name: mine
    from: cards
    order: title
    columns: [title]
    policy: row.org == actor.claims.org && (row.owner == actor.id || row.level <= 3)
    guard: public
`, nil)
	red := map[string]any{"org": "red"}
	ann, bob, cid, eve := watch(t, s, "mine", "ann", red), watch(t, s, "mine", "bob", red), watch(t, s, "mine", "cid", map[string]any{"org": "blue"}), watch(t, s, "mine", "eve", nil)
	const one, two, three = `{"id":1,"title":"a"}`, `{"id":2,"title":"b"}`, `{"id":3,"title":"c"}`
	ann.wants(one)
	bob.wants(one, two) // not the row whose owner and level are NULL
	cid.wants(three)
	eve.wants()
	sql(`UPDATE cards SET level = 9 WHERE id = 1`) // it leaves bob's policy, and stays in that of its owner
	bob.wants(two)
	bob.wantsDelete("1")
	ann.wants(one)
	sql(`UPDATE cards SET org = 'blue', level = 2 WHERE id = 1`)
	ann.wants()
	ann.wantsDelete("1")
	cid.wants(one, three)
	sql(`UPDATE cards SET owner = 'ann' WHERE id = 4`)
	ann.wants(`{"id":4,"title":"d"}`)
	if metric(t, s, "tidewire_live_denied_total") == 0 || metric(t, s, "tidewire_live_policy_errors_total") != 0 {
		t.Error("denials are not counted as such")
	}
}

func TestS05_PolicyThatCannotDecideIsNoDenial(t *testing.T) {
	t.Parallel()
	path, sql := sqliteFile(t, cardsDDL)
	s := serve(t, openConfig+`
streams: {objects: memory}
database: sqlite:`+path+`
queries: [{name: q, from: cards, columns: [title], policy: 10 / row.level > 2, guard: public}]
`, nil)
	ann := watch(t, s, "q", "ann", nil)
	ann.wants(`{"id":1,"title":"a"}`, `{"id":3,"title":"c"}`)
	sql(`UPDATE cards SET level = 0, title = 'x' WHERE id IN (1, 2)`)
	sql(`UPDATE cards SET level = 9 WHERE id = 3`)
	ann.wants(`{"id":1,"title":"a"}`) // as it was: shown is still shown, hidden is hidden
	if metric(t, s, "tidewire_live_policy_errors_total") == 0 || !strings.Contains(s.stderr.String(), "a policy could not decide") {
		t.Error("the failure is neither counted nor logged")
	}
	sql(`UPDATE cards SET level = 2 WHERE id IN (1, 2)`)
	ann.wants(`{"id":1,"title":"x"}`, `{"id":2,"title":"x"}`)
}

func TestS04_AQueryShowsNoMoreThanItsEntity(t *testing.T) {
	t.Parallel()
	path, sql := sqliteFile(t, cardsDDL)
	s := serve(t, openConfig+`
streams: {objects: memory}
database: sqlite:`+path+`
entities:
  - name: card
    from: cards
    visible: org = $actor.org
    policy: row.owner != "bob"
    hide: [secret, price, extra, level, owner, org]
  - {name: title, from: cards, columns: [title]}
queries:
  - {name: all, entity: card, guard: public}
  - {name: bold, entity: card, where: TRUE OR TRUE, visible: TRUE OR id > 0, policy: 'true || true', guard: public}
  - {name: own, entity: card, where: id > 0 OR id < 0, visible: owner = $actor.id OR owner = 'cid', policy: row.title != "a", guard: public}
  - {name: hidden, entity: card, where: secret = 's3', order: secret DESC, columns: [title], guard: public}
  - {name: titles, entity: title, where: id < 3, guard: public}
`, nil)
	red, blue := map[string]any{"org": "red"}, map[string]any{"org": "blue"}
	const one, three = `{"id":1,"title":"a"}`, `{"id":3,"title":"c"}`
	for query, rows := range map[string][2]string{
		"all":    {one, three},
		"bold":   {one, three},
		"own":    {"", three},
		"hidden": {"", three},
		"titles": {one + `{"id":2,"title":"b"}`, one + `{"id":2,"title":"b"}`},
	} {
		watch(t, s, query, "ann", red).wants(rows[0])
		watch(t, s, query, "cid", blue).wants(rows[1])
	}
	ann, cid := watch(t, s, "all", "ann", red), watch(t, s, "all", "cid", blue)
	ann.wants(one)
	cid.wants(three)
	sql(`UPDATE cards SET org = 'blue' WHERE id = 1; UPDATE cards SET owner = 'bob' WHERE id = 3`)
	ann.wants()
	ann.wantsDelete("1")
	cid.wants(one)
	cid.wantsDelete("3")
	// A backend that names no actor sees what nobody in particular may.
	out, stderr, err := tw(t, nil, "query", "all", "--once", "--key", "backend-key-0123456789", "--url", s.url)
	if err != nil || out != "" {
		t.Errorf("printed %s: %v %s", out, err, stderr)
	}
}
