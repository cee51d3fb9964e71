package tidewire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/wire"
)

var cards = row.Name{Schema: "public", Table: "cards"}

// cardsDB is a database in memory with the table cards(id, list, title, org, hidden).
func cardsDB(t *testing.T) *feed.Memory {
	t.Helper()
	typ := func(oid uint32) row.Type {
		typ, ok := row.PostgresType(oid, row.C)
		if !ok {
			t.Fatal(oid)
		}
		return typ
	}
	return feed.NewMemory(&row.Table{Name: cards, Key: []int{0}, Columns: []row.Column{
		{Name: "id", Type: typ(20), NotNull: true}, {Name: "list", Type: typ(25)}, {Name: "title", Type: typ(25)}, {Name: "org", Type: typ(25)},
	}})
}

func card(id int64, list, title, org string) feed.Write {
	return feed.Write{Table: cards, New: row.Row{row.IntValue(id), row.TextValue(list), row.TextValue(title), row.TextValue(org)}}
}

func noCard(id int64) feed.Write {
	return feed.Write{Table: cards, Old: row.Row{row.IntValue(id), {}, {}, {}}}
}

func board(guard tidewire.Guard) tidewire.Query {
	return tidewire.Query{Definition: query.Definition{
		Name: "board", From: "public.cards", Where: "list = $list", Order: "title", Limit: 3, Columns: []string{"title"},
	}, Guard: guard}
}

// list is a live query's result as a client of the protocol keeps it.
type list struct {
	version uint64
	epoch   string
	rows    []string
	keys    []string
}

func (l *list) apply(t *testing.T, m liveMessage) {
	t.Helper()
	key := func(raw json.RawMessage) string {
		var r struct{ ID json.RawMessage }
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatal(err)
		}
		return string(r.ID)
	}
	remove := func(k string) {
		for i := range l.keys {
			if l.keys[i] == k {
				l.rows, l.keys = append(l.rows[:i:i], l.rows[i+1:]...), append(l.keys[:i:i], l.keys[i+1:]...)
				return
			}
		}
	}
	switch m.Type {
	case "snapshot":
		l.version, l.epoch, l.rows, l.keys = m.Version, m.Epoch, nil, nil
		for _, r := range m.Rows {
			l.rows, l.keys = append(l.rows, string(r)), append(l.keys, key(r))
		}
	case "patch":
		if m.Version != l.version+1 {
			t.Fatalf("version %d after %d", m.Version, l.version)
		}
		l.version = m.Version
		for _, op := range m.Ops {
			if op.Del != nil {
				remove(string(op.Del))
				continue
			}
			remove(key(op.Put))
			l.rows = append(l.rows[:op.At:op.At], append([]string{string(op.Put)}, l.rows[op.At:]...)...)
			l.keys = append(l.keys[:op.At:op.At], append([]string{key(op.Put)}, l.keys[op.At:]...)...)
		}
	default:
		t.Fatalf("got %+v", m)
	}
}

func (l *list) titles() string { return strings.Join(l.rows, " ") }

// liveMessage is a message about a live query.
type liveMessage struct {
	message
	QID    string            `json:"qid"`
	Commit uint64            `json:"commit"`
	Sum    string            `json:"sum"`
	Rows   []json.RawMessage `json:"rows"`
	Ops    []struct {
		Del json.RawMessage `json:"del"`
		Put json.RawMessage `json:"put"`
		At  int             `json:"at"`
	} `json:"ops"`
}

// readLive reads the next message but for those that say when a commit is whole.
func (c *client) readLive() liveMessage {
	c.t.Helper()
	for {
		if m := c.readAny(); m.Type != "settled" {
			return m
		}
	}
}

func (c *client) readAny() (m liveMessage) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, b, err := c.conn.Read(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		c.t.Fatal(err)
	}
	return m
}

func (c *client) query(sid, name, input string, since string) liveMessage {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"type":"subscribe","sid":%q,"query":%q,"input":%s%s}`, sid, name, input, since))
	m := c.readLive()
	if m.Type != "subscribed" || m.SID != sid || m.QID == "" {
		c.t.Fatalf("got %+v", m)
	}
	return m
}

func startBoard(t *testing.T, o tidewire.Options, db *feed.Memory, queries ...tidewire.Query) *server {
	t.Helper()
	o.Database = db
	if o.Backend == nil {
		o.Backend = auth.NewAPIKeys(map[string]auth.Identity{apiKey: {Subject: "backend"}})
	}
	return start(t, o, func(n *tidewire.Node) error {
		for _, q := range queries {
			if err := n.Query(q); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestS12_LiveQuery(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	db.Commit(card(1, "7", "b", ""), card(2, "7", "d", ""), card(3, "8", "a", ""))
	s := startBoard(t, tidewire.Options{}, db, board(tidewire.Public))
	a, b := s.connect(), s.connect()
	qid := a.query("1", "board", `{"list":"7"}`, "").QID
	if other := b.query("x", "board", ` {"list" : "7"}`, "").QID; other != qid {
		t.Fatalf("%s and %s", qid, other)
	}
	var la, lb list
	la.apply(t, a.readLive())
	lb.apply(t, b.readLive())
	const first = `{"id":1,"title":"b"} {"id":2,"title":"d"}`
	if la.titles() != first || lb.titles() != first {
		t.Fatalf("%q, %q", la.titles(), lb.titles())
	}
	db.Commit(card(4, "7", "c", ""), card(5, "7", "e", ""), noCard(3)) // one commit, one frame; e is beyond the limit
	db.Commit(card(9, "8", "z", ""))                                   // of another list: nothing
	db.Commit(noCard(1))                                               // e comes in
	for _, c := range []struct {
		*client
		*list
	}{{a, &la}, {b, &lb}} {
		c.apply(t, c.readLive())
		if c.titles() != `{"id":1,"title":"b"} {"id":4,"title":"c"} {"id":2,"title":"d"}` {
			t.Fatal(c.titles())
		}
		for c.titles() != `{"id":4,"title":"c"} {"id":2,"title":"d"} {"id":5,"title":"e"}` {
			c.apply(t, c.readLive())
		}
	}
	// Another input is another result, beside it on the same connection.
	if m := a.query("2", "board", `{"list":"8"}`, ""); m.QID == qid {
		t.Fatal("one qid for two inputs")
	}
	var l8 list
	l8.apply(t, a.readLive())
	if l8.titles() != `{"id":9,"title":"z"}` {
		t.Fatal(l8.titles())
	}
	a.send(`{"type":"unsubscribe","sid":"1"}`)
	a.want("unsubscribed")
	db.Commit(card(10, "7", "a", ""), card(11, "8", "a", ""))
	l8.apply(t, a.readLive()) // and nothing of list 7
	if l8.titles() != `{"id":11,"title":"a"} {"id":9,"title":"z"}` {
		t.Fatal(l8.titles())
	}
	lb.apply(t, b.readLive())
	if !strings.HasPrefix(lb.titles(), `{"id":10,"title":"a"} {"id":4`) {
		t.Fatal(lb.titles())
	}
	resp := s.get(t, "/v1/queries/board?input="+url.QueryEscape(`{"list":"8"}`), http.StatusOK)
	var once liveMessage
	if err := json.NewDecoder(resp.Body).Decode(&once); err != nil {
		t.Fatal(err)
	}
	var l1 list
	l1.apply(t, once)
	if l1.titles() != l8.titles() {
		t.Fatal(l1.titles())
	}
}

func TestS28_LiveQueryResumes(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	db.Commit(card(1, "7", "b", ""))
	s := startBoard(t, tidewire.Options{}, db, board(tidewire.Public))
	a := s.connect()
	a.query("1", "board", `{"list":"7"}`, "")
	var l list
	l.apply(t, a.readLive())
	_ = a.conn.CloseNow()
	eventually(t, "gone", func() bool { return s.Stats().Connections == 0 })
	db.Commit(card(2, "7", "a", ""))
	db.Commit(noCard(1))
	b := s.connect()
	since := fmt.Sprintf(`,"since":{"offset":%d,"epoch":%q}`, l.version, l.epoch)
	if m := b.query("1", "board", `{"list":"7"}`, since); m.Recovered == nil || !*m.Recovered || *m.Offset != l.version {
		t.Fatalf("%+v", m)
	}
	for l.titles() != `{"id":2,"title":"a"}` {
		m := b.readLive()
		if m.Type != "patch" {
			t.Fatalf("%+v", m)
		}
		l.apply(t, m)
	}
	// The same on the live subscription, with a position that is nobody's: a snapshot.
	if m := b.query("1", "board", `{"list":"7"}`, `,"since":{"offset":999,"epoch":"other"}`); m.Recovered == nil || *m.Recovered {
		t.Fatalf("%+v", m)
	}
	if m := b.readLive(); m.Type != "snapshot" {
		t.Fatalf("%+v", m)
	}
	db.Commit(card(3, "7", "c", ""))
	l.apply(t, b.readLive())
	// A feed that lost its place: a snapshot comes by itself.
	db.Lose("slot gone")
	for {
		m := b.readLive()
		l.apply(t, m)
		if m.Type == "snapshot" {
			break
		}
	}
	if l.titles() != `{"id":2,"title":"a"} {"id":3,"title":"c"}` {
		t.Fatal(l.titles())
	}
}

// S29: a client that comes to another node with its checksum gets one patch there, and no snapshot.
func TestS29_LiveQueryResumesOnAnotherNode(t *testing.T) {
	t.Parallel()
	// Each node follows the same commits.
	one, two := cardsDB(t), cardsDB(t)
	commit := func(w feed.Write) {
		one.Commit(w)
		two.Commit(w)
	}
	commit(card(1, "7", "b", ""))
	first, second := startBoard(t, tidewire.Options{}, one, board(tidewire.Public)), startBoard(t, tidewire.Options{}, two, board(tidewire.Public))
	// Somebody is there already: the node has the window, with versions of its own.
	other := second.connect()
	other.query("1", "board", `{"list":"7"}`, "")
	var theirs list
	theirs.apply(t, other.readLive())
	a := first.connect()
	a.query("1", "board", `{"list":"7"}`, "")
	m := a.readLive()
	var l list
	l.apply(t, m)
	_ = a.conn.CloseNow()
	commit(card(2, "7", "a", ""))
	commit(noCard(1))
	for theirs.titles() != `{"id":2,"title":"a"}` {
		theirs.apply(t, other.readLive())
	}
	b := second.connect()
	since := func(sum string) string {
		return fmt.Sprintf(`,"since":{"offset":%d,"epoch":%q,"sum":%q}`, l.version, l.epoch, sum)
	}
	answer := b.query("1", "board", `{"list":"7"}`, since(m.Sum))
	if answer.Recovered == nil || !*answer.Recovered || answer.Epoch != theirs.epoch {
		t.Fatalf("%+v", answer)
	}
	l.version, l.epoch = *answer.Offset, answer.Epoch
	patch := b.readLive()
	if patch.Type != "patch" || patch.Sum == m.Sum {
		t.Fatalf("%+v", patch)
	}
	if l.apply(t, patch); l.titles() != theirs.titles() || l.version != theirs.version {
		t.Fatalf("%s at %d, not %s at %d", l.titles(), l.version, theirs.titles(), theirs.version)
	}
	commit(card(3, "7", "c", ""))
	if l.apply(t, b.readLive()); l.titles() != `{"id":2,"title":"a"} {"id":3,"title":"c"}` {
		t.Fatal(l.titles())
	}
	// A sum that nothing had: a snapshot.
	l.epoch = "other"
	if answer := b.query("1", "board", `{"list":"7"}`, since("0123456789abcdef")); answer.Recovered == nil || *answer.Recovered {
		t.Fatalf("%+v", answer)
	}
	if m := b.readLive(); m.Type != "snapshot" {
		t.Fatalf("%+v", m)
	}
}

func TestS43_LiveQueryRefusals(t *testing.T) {
	t.Parallel()
	closed := board(nil)
	closed.Name = "closed"
	denied := board(func(context.Context, tidewire.Access) error { return tidewire.ErrDenied })
	denied.Name = "denied"
	s := startBoard(t, tidewire.Options{Limits: tidewire.Limits{LiveQueriesPerConnection: 2}}, cardsDB(t), board(tidewire.Public), closed, denied)
	c := s.connect()
	for _, tc := range []struct{ frame, code string }{
		{`{"type":"subscribe","sid":"1","query":"nothing"}`, "LIVE_QUERY_UNKNOWN"},
		{`{"type":"subscribe","sid":"1","query":"closed","input":{"list":"7"}}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","query":"denied","input":{"list":"7"}}`, "TOPIC_FORBIDDEN"},
		{`{"type":"subscribe","sid":"1","query":"board"}`, "INPUT_INVALID"},
		{`{"type":"subscribe","sid":"1","query":"board","input":{"list":7}}`, "INPUT_INVALID"},
		{`{"type":"subscribe","sid":"1","query":"board","input":{"list":"7","more":1}}`, "INPUT_INVALID"},
		{`{"type":"subscribe","sid":"1","query":"board","input":[]}`, "INPUT_INVALID"},
		{`{"type":"unsubscribe","sid":"1"}`, "SUBSCRIPTION_UNKNOWN"},
	} {
		c.send(tc.frame)
		c.wantRefused(tc.code)
	}
	c.query("1", "board", `{"list":"7"}`, "")
	c.want("snapshot")
	c.send(`{"type":"subscribe","sid":"2","query":"board","input":{"list":"7"}}`) // the same result under another sid
	c.wantRefused("SUBSCRIPTION_ID_TAKEN")
	c.send(`{"type":"subscribe","sid":"1","query":"board","input":{"list":"8"}}`)
	c.wantRefused("SUBSCRIPTION_ID_TAKEN")
	c.send(`{"type":"subscribe","sid":"1","channel":"open.a"}`)
	c.wantRefused("SUBSCRIPTION_ID_TAKEN")
	c.query("2", "board", `{"list":"8"}`, "")
	c.want("snapshot")
	c.send(`{"type":"subscribe","sid":"3","query":"board","input":{"list":"9"}}`)
	c.wantRefused("SUBSCRIPTION_LIMIT")
	for path, code := range map[string]wire.Code{
		"nothing": wire.CodeQueryUnknown, "board": wire.CodeInputInvalid, "board?input=x": wire.CodeInputInvalid, "board?wrong=1": wire.CodeQueryInvalid,
	} {
		if p := problemOf(t, s.get(t, "/v1/queries/"+path, code.Info().HTTP)); p.Code != code {
			t.Errorf("%s: %s", path, p.Code)
		}
	}
	none := start(t, tidewire.Options{})
	c = none.connect()
	c.send(`{"type":"subscribe","sid":"1","query":"board"}`)
	c.wantRefused("LIVE_QUERY_UNKNOWN")
	if err := none.Query(board(tidewire.Public)); err == nil {
		t.Error("a query without a database was declared")
	}
}

// The place of a live query may go from one sid to another in one breath.
func TestS44_AnotherSidTakesThePlace(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	s := startBoard(t, tidewire.Options{}, db, board(tidewire.Public))
	c := s.connect()
	c.query("0", "board", `{"list":"7"}`, "")
	c.want("snapshot")
	for i := range 100 {
		c.send(fmt.Sprintf(`{"type":"unsubscribe","sid":"%d"}`, i), fmt.Sprintf(`{"type":"subscribe","sid":"%d","query":"board","input":{"list":"7"}}`, i+1))
		for seen := 0; seen < 3; { // in any order
			switch m := c.readLive(); m.Type {
			case "unsubscribed", "subscribed", "snapshot":
				seen++
			case "patch":
			default:
				t.Fatalf("%+v", m)
			}
		}
		db.Commit(card(int64(i%3), "7", fmt.Sprint(i), ""))
		if m := c.readLive(); m.Type != "patch" {
			t.Fatalf("round %d: %+v", i, m)
		}
	}
}

// S04, S02: each sees what the policy shows; when the attributes change, what is shown changes with them.
func TestS04_S02_VisibleByAttributes(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	db.Commit(card(1, "7", "a", "red"), card(2, "7", "b", "blue"))
	q := board(tidewire.Public)
	q.Visible = "org = $actor.org"
	secret := []byte("a-secret-of-at-least-32-bytes-0123")
	jwt, err := auth.NewJWT(auth.JWTOptions{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	token := func(org string) string {
		tok, err := auth.Sign(secret, auth.Identity{Subject: "ann", ExpiresAt: time.Now().Add(time.Hour), Claims: map[string]any{"org": org}})
		if err != nil {
			t.Fatal(err)
		}
		return tok
	}
	s := startBoard(t, tidewire.Options{Authenticate: tidewire.AuthenticateWith(jwt), Reauthenticate: tidewire.ReauthenticateWith(jwt)}, db, q)
	red, blue := s.connectAs(token("red")), s.connectAs(token("blue"))
	qid := red.query("1", "board", `{"list":"7"}`, "").QID
	blue.query("1", "board", `{"list":"7"}`, "")
	var lr, lb list
	lr.apply(t, red.readLive())
	lb.apply(t, blue.readLive())
	if lr.titles() != `{"id":1,"title":"a"}` || lb.titles() != `{"id":2,"title":"b"}` {
		t.Fatalf("%q, %q", lr.titles(), lb.titles())
	}
	db.Commit(card(1, "7", "a", "blue")) // it leaves one policy, as a delete, and enters the other
	lr.apply(t, red.readLive())
	lb.apply(t, blue.readLive())
	if lr.titles() != "" || lb.titles() != `{"id":1,"title":"a"} {"id":2,"title":"b"}` {
		t.Fatalf("%q, %q", lr.titles(), lb.titles())
	}
	red.send(fmt.Sprintf(`{"type":"auth","token":%q}`, token("blue")))
	red.await("authenticated", func(m message) bool { return m.Type == "authenticated" })
	m := red.readLive()
	if m.Type != "subscribed" || m.SID != "1" || m.QID == qid {
		t.Fatalf("%+v", m)
	}
	lr.apply(t, red.readLive())
	if lr.titles() != lb.titles() {
		t.Fatal(lr.titles())
	}
}

// S04: no query over an entity shows a row or a column that the entity does not, and what it has of its own holds beside it.
func TestS04_EntityBoundsItsQueries(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	db.Commit(card(1, "7", "a", "red"), card(2, "7", "b", "blue"), card(3, "8", "c", "red"), card(4, "7", "secret", "red"))
	shown := func(_ json.RawMessage, r live.PolicyRow) (bool, error) {
		title, _ := r.Value("title")
		return title.Text() != "secret", nil
	}
	entity := tidewire.Entity{Name: "card", From: "cards", Visible: "org = 'red'", Columns: []string{"title", "list"}, Policy: shown}
	q := func(name, where, visible string, policy live.Policy, columns ...string) tidewire.Query {
		return tidewire.Query{Entity: "card", Guard: tidewire.Public, Policy: policy, Definition: query.Definition{Name: name, Where: where, Visible: visible, Columns: columns}}
	}
	of8 := func(_ json.RawMessage, r live.PolicyRow) (bool, error) {
		list, _ := r.Value("list")
		return list.Text() == "8", nil
	}
	undecided := func(json.RawMessage, live.PolicyRow) (bool, error) { return true, errors.New("no idea") }
	s := start(t, tidewire.Options{Database: db, Backend: auth.NewAPIKeys(map[string]auth.Identity{apiKey: {Subject: "backend"}})}, func(n *tidewire.Node) error {
		errs := []error{n.Entity(entity)}
		for _, q := range []tidewire.Query{
			q("all", "", "", nil),
			q("either", "list = '7' OR list = '8'", "org = 'blue' OR list = '8'", nil),
			q("seven", "list = '7'", "", nil, "title"),
			q("visible", "", "TRUE", nil),
			q("loose", "TRUE", "TRUE) OR (TRUE", nil), // not what anybody should write
			q("policy", "", "", of8, "title"),
			q("open", "", "", func(json.RawMessage, live.PolicyRow) (bool, error) { return true, nil }, "title"),
			q("undecided", "", "", undecided, "title"), // of what the entity hides, its no is enough
		} {
			errs = append(errs, n.Query(q))
		}
		return errors.Join(errs...)
	})
	const one, three = `{"id":1,"list":"7","title":"a"}`, `{"id":3,"list":"8","title":"c"}`
	for name, want := range map[string]string{
		"all": one + " " + three, "either": three, "seven": `{"id":1,"title":"a"}`, "visible": one + " " + three, "loose": one + " " + three, "policy": `{"id":3,"title":"c"}`,
		"open": `{"id":1,"title":"a"} {"id":3,"title":"c"}`, "undecided": "",
	} {
		var m liveMessage
		if err := json.NewDecoder(s.get(t, "/v1/queries/"+name, http.StatusOK).Body).Decode(&m); err != nil {
			t.Fatal(err)
		}
		var l list
		l.apply(t, m)
		if l.titles() != want {
			t.Errorf("%s shows %s, want %s", name, l.titles(), want)
		}
	}
	c := s.connect()
	c.query("1", "all", `{}`, "")
	var l list
	l.apply(t, c.readLive())
	db.Commit(card(1, "7", "a", "blue")) // it leaves what the entity shows
	m := c.readLive()
	l.apply(t, m)
	if l.titles() != three || len(m.Ops) != 1 || string(m.Ops[0].Del) != "1" {
		t.Errorf("%s after %+v", l.titles(), m)
	}

	from := board(tidewire.Public)
	for name, err := range map[string]error{
		`the table public.cards is an entity's`:      s.Query(from),
		`there is no entity "none"`:                  s.Query(tidewire.Query{Entity: "none", Definition: query.Definition{Name: "x"}}),
		`leave From out`:                             s.Query(tidewire.Query{Entity: "card", Definition: query.Definition{Name: "x", From: "cards"}}),
		`entity "card" does not show column "org"`:   s.Query(q("x", "", "", nil, "title", "org")),
		`entity "card": declared twice`:              s.Entity(entity),
		`entity "": an entity needs a name`:          s.Entity(tidewire.Entity{From: "cards"}),
		`entity "x": an entity needs a name`:         s.Entity(tidewire.Entity{Name: "x"}),
		`entity "x": there is no database`:           start(t, tidewire.Options{}).Entity(tidewire.Entity{Name: "x", From: "cards"}),
		`query "board" names the table cards itself`: startBoard(t, tidewire.Options{}, cardsDB(t), from).Entity(entity),
	} {
		if !errors.Is(err, &wire.Error{Code: wire.CodeConfigInvalid}) || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
	}
	// Two entities may be over one table: a query says which it means.
	entity.Name = "other"
	if err := s.Entity(entity); err != nil {
		t.Error(err)
	}
}

// probing is a database whose feed can be probed.
type probing struct {
	*feed.Memory
	err error
}

func (p *probing) Probe(context.Context) error { return p.err }

// S51: readiness turns red when a probe through the database's feed does not come back; the engine's figures are among the metrics.
func TestS51_ReadinessProvesTheFeed(t *testing.T) {
	t.Parallel()
	db := &probing{Memory: cardsDB(t)}
	s := start(t, tidewire.Options{Database: db, Backend: auth.NewAPIKeys(map[string]auth.Identity{apiKey: {Subject: "backend"}})}, func(n *tidewire.Node) error {
		return n.Query(board(tidewire.Public))
	})
	eventually(t, "ready", func() bool {
		resp, err := http.Get(s.http.URL + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	c := s.connect()
	c.query("1", "board", `{"list":"7"}`, "")
	c.want("snapshot")
	body, err := io.ReadAll(s.get(t, "/metrics", http.StatusOK).Body)
	if err != nil || !strings.Contains(string(body), "\ntidewire_live_entries 1\n") {
		t.Errorf("%v, %s", err, body)
	}
	db.err = errors.New("gone")
	if p := problemOf(t, s.get(t, "/readyz", http.StatusServiceUnavailable)); p.Code != wire.CodeDatabaseUnavailable {
		t.Errorf("%+v", p)
	}
}

// S20: a subscriber that does not read for a while ends with the list as it is, whatever it missed.
func TestS20_SlowSubscriberEndsCurrent(t *testing.T) {
	t.Parallel()
	db := cardsDB(t)
	q := board(tidewire.Public)
	q.Limit = 0
	s := startBoard(t, tidewire.Options{Limits: tidewire.Limits{QueueMessages: 64, QueueBytes: 512 << 10}}, db, q)
	c := s.connect()
	c.query("1", "board", `{"list":"7"}`, "")
	pad := strings.Repeat("x", 4000)
	const commits = 3000
	for i := range commits {
		db.Commit(card(int64(i%20), "7", fmt.Sprintf("%06d%s", i, pad), ""))
	}
	var l list
	last := fmt.Sprintf(`"title":"%06d`, commits-1)
	for !strings.Contains(l.titles(), last) {
		l.apply(t, c.readLive())
	}
	for i := commits - 20; i < commits; i++ {
		if !strings.Contains(l.titles(), fmt.Sprintf(`"title":"%06d`, i)) {
			t.Fatalf("%d is missing", i)
		}
	}
	if len(l.rows) != 20 {
		t.Fatalf("%d rows", len(l.rows))
	}
}
