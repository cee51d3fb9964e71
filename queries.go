package tidewire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/wire"
)

// A live query is delivered as a channel with history is. The engine keeps its result as a log of versions (live.Entry); the hub's channel of the entry carries the frames, encoded once for all
// subscribers; who is new, slow or back after a cut is behind, and gets from the log the patches that it lacks, or, if the log does not reach so far, a snapshot.

// Entity is what all queries over a table have in common. A query over it shows no row and no column that the entity does not: whoever adds one cannot show more by mistake.
type Entity struct {
	// Name is what queries say in [Query.Entity].
	Name string
	// From names the table, as [query.Definition] has it. No query may name the table itself then.
	From string
	// Visible decides which rows a subscriber may see: see [query.Definition]. Empty means all. What a query has of its own holds beside it.
	Visible string
	// Policy decides beside Visible, as [Query.Policy] does. Nil allows all.
	Policy live.Policy
	// Columns are what a query may show; those that it does not choose from are all shown. The primary key always is. Nil means all of the table. A query may filter and sort by others.
	Columns []string
}

// Query declares a live query: see [query.Definition] for the subset of SQL.
type Query struct {
	query.Definition
	// Entity names the entity that the query is over, instead of From. See [Node.Entity].
	Entity string
	// Guard decides who may subscribe: Access.Action is ActionQuery, Access.Channel the query's name. Nil denies it to clients.
	Guard Guard
	// Policy, if not nil, decides for each row whether an actor sees it, where Definition.Visible cannot say it. An entry is then of one actor, and costs what one costs.
	Policy live.Policy
}

// ActionQuery is to subscribe to a live query.
const ActionQuery Action = "query"

// queries are the live queries of a node.
type queries struct {
	engine  *live.Engine // nil without a database
	several atomic.Int64 // sessions with more than one

	mu       sync.RWMutex // guards below
	guards   map[string]Guard
	entities map[string]Entity
	tables   map[string]string // a query that names the table itself; empty if an entity does
}

// queryPrefix begins the hub's channels of live queries, so that none is the name of a channel.
const queryPrefix = "?"

func (n *Node) initQueries() {
	if n.opts.Database == nil {
		return
	}
	n.queries.guards, n.queries.entities, n.queries.tables = map[string]Guard{}, map[string]Entity{}, map[string]string{}
	n.queries.engine = live.New(live.Options{
		Database:   n.opts.Database,
		Publish:    n.publishQuery,
		Settled:    n.settleQueries,
		Failed:     func(e *live.Entry, err error) { n.endQuery(e, queryError(err)) },
		MaxEntries: n.opts.Limits.LiveQueries,
		Logger:     n.log,
	})
}

// queryMetrics registers the engine's figures.
func (n *Node) queryMetrics(gauge func(name, help string, f func(live.Stats) float64), counter func(name, help string, f func(live.Stats) uint64)) {
	gauge("tidewire_live_entries", "Pairs of a live query and its input that are kept up to date.", func(s live.Stats) float64 { return float64(s.Entries) })
	gauge("tidewire_live_retained_bytes", "Bytes of patches and snapshots that are kept.", func(s live.Stats) float64 { return float64(s.Retained) })
	counter("tidewire_live_transactions_total", "Transactions from the database.", func(s live.Stats) uint64 { return s.Transactions })
	counter("tidewire_live_changes_total", "Changes in tables that are queried.", func(s live.Stats) uint64 { return s.Changes })
	counter("tidewire_live_candidates_total", "Entries that the index named for a change.", func(s live.Stats) uint64 { return s.Candidates })
	counter("tidewire_live_patches_total", "Patches made.", func(s live.Stats) uint64 { return s.Patches })
	counter("tidewire_live_reads_total", "Snapshots read from the database.", func(s live.Stats) uint64 { return s.Reads })
	counter("tidewire_live_selects_total", "Results read in these snapshots.", func(s live.Stats) uint64 { return s.Selects })
	counter("tidewire_live_read_errors_total", "Reads of the database that failed.", func(s live.Stats) uint64 { return s.ReadErrors })
	counter("tidewire_live_resets_total", "Times that the feed began anew and everything was read again.", func(s live.Stats) uint64 { return s.Resets })
	counter("tidewire_live_partial_rows_total", "Changes with unknown cells, such as under REPLICA IDENTITY DEFAULT.", func(s live.Stats) uint64 { return s.PartialRows })
	counter("tidewire_live_denied_total", "Rows that a policy hid.", func(s live.Stats) uint64 { return s.Denied })
	counter("tidewire_live_policy_errors_total", "Policies that could not decide.", func(s live.Stats) uint64 { return s.PolicyErrors })
}

// Entity declares an entity over Options.Database, before the queries over it.
func (n *Node) Entity(e Entity) error {
	refuse := func(format string, args ...any) error {
		return wire.Errorf(wire.CodeConfigInvalid, "entity %q: %s", e.Name, fmt.Sprintf(format, args...))
	}
	switch {
	case n.queries.engine == nil:
		return refuse("there is no database")
	case e.Name == "" || e.From == "":
		return refuse("an entity needs a name and a table")
	}
	table := n.tableOf(e.From)
	n.queries.mu.Lock()
	defer n.queries.mu.Unlock()
	if _, twice := n.queries.entities[e.Name]; twice {
		return refuse("declared twice")
	}
	if q := n.queries.tables[table]; q != "" {
		return refuse("query %q names the table %s itself", q, e.From)
	}
	e.Columns = slices.Clone(e.Columns)
	n.queries.entities[e.Name], n.queries.tables[table] = e, ""
	return nil
}

// tableOf is one text for all names of a table.
func (n *Node) tableOf(from string) string {
	schema := "public."
	if n.opts.Database.Engine().String() == "sqlite" {
		schema, from = "main.", strings.ToLower(from)
	}
	if !strings.Contains(from, ".") {
		from = schema + from
	}
	return from
}

// overEntity is a query with what its entity says. The entity's condition stays apart from the query's own, so that no text of a query can get out of it.
func (q Query) overEntity(e Entity) (Query, error) {
	if q.From != "" {
		return q, wire.Errorf(wire.CodeConfigInvalid, "query %q: the table is that of entity %q: leave From out", q.Name, e.Name)
	}
	q.From = e.From
	if e.Visible != "" {
		if strings.TrimSpace(q.Where) != "" && strings.TrimSpace(q.Visible) != "" {
			q.Where = "(" + q.Where + ") AND (" + q.Visible + ")"
		} else {
			q.Where += q.Visible
		}
		q.Visible = e.Visible
	}
	if q.Columns == nil {
		q.Columns = e.Columns
	}
	for _, c := range q.Columns {
		if e.Columns != nil && !slices.Contains(e.Columns, c) {
			return q, wire.Errorf(wire.CodeConfigInvalid, "query %q: entity %q does not show column %q", q.Name, e.Name, c)
		}
	}
	q.Policy = bothPolicies(e.Policy, q.Policy)
	return q, nil
}

// bothPolicies shows what both show. One that says no decides, whatever the other does not know.
func bothPolicies(a, b live.Policy) live.Policy {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(actor json.RawMessage, r live.PolicyRow) (bool, error) {
		visible, err := a(actor, r)
		if err == nil && !visible {
			return false, nil
		}
		also, err2 := b(actor, r)
		if err2 == nil && !also {
			return false, nil
		}
		return err == nil && err2 == nil, errors.Join(err, err2)
	}
}

// Query declares a live query over Options.Database.
func (n *Node) Query(q Query) error {
	if n.queries.engine == nil {
		return wire.Errorf(wire.CodeConfigInvalid, "query %q: there is no database", q.Name)
	}
	if len(q.Name) > wire.MaxIDBytes {
		return wire.Errorf(wire.CodeConfigInvalid, "query %q: the name has more than %d bytes", q.Name, wire.MaxIDBytes)
	}
	n.queries.mu.Lock()
	defer n.queries.mu.Unlock()
	over := q.Entity != ""
	if over {
		e, known := n.queries.entities[q.Entity]
		if !known {
			return wire.Errorf(wire.CodeConfigInvalid, "query %q: there is no entity %q", q.Name, q.Entity)
		}
		var err error
		if q, err = q.overEntity(e); err != nil {
			return err
		}
	}
	table := n.tableOf(q.From)
	if of, known := n.queries.tables[table]; known && of == "" && !over {
		return wire.Errorf(wire.CodeConfigInvalid, "query %q: the table %s is an entity's: name the entity", q.Name, q.From)
	}
	var err error
	if q.Policy != nil {
		err = n.queries.engine.DeclareWith(q.Definition, q.Policy)
	} else {
		err = n.queries.engine.Declare(q.Definition)
	}
	if err != nil {
		return &wire.Error{Code: wire.CodeConfigInvalid, Message: err.Error()}
	}
	if !over {
		n.queries.tables[table] = q.Name
	}
	n.queries.guards[q.Name] = q.Guard
	return nil
}

// Queries lists the declared live queries: how each is kept up to date, and why.
func (n *Node) Queries() []live.QueryInfo {
	if n.queries.engine == nil {
		return nil
	}
	return n.queries.engine.Queries()
}

func (n *Node) allowQuery(ctx context.Context, actor Actor, name string) error {
	n.queries.mu.RLock()
	guard, known := n.queries.guards[name]
	n.queries.mu.RUnlock()
	if !known {
		return wire.Errorf(wire.CodeQueryUnknown, "no live query of this name")
	}
	if guard == nil {
		return wire.Errorf(wire.CodeTopicForbidden, "the query is not open to clients")
	}
	return n.askGuard(ctx, guard, "query", Access{Actor: actor, Channel: name}, ActionQuery)
}

// actorJSON is what a query's $actor attributes are read from: the claims, and the id. What a token says of itself is left out, so that another token of the same actor is no other actor.
func actorJSON(a Actor) json.RawMessage {
	attributes := maps.Clone(a.Claims)
	if attributes == nil {
		attributes = map[string]any{}
	}
	for _, claim := range []string{"exp", "iat", "jti", "nbf"} {
		delete(attributes, claim)
	}
	attributes["id"] = a.ID
	if a.ID == "" {
		attributes["id"] = nil
	}
	raw, err := json.Marshal(attributes)
	if err != nil { // claims that a token cannot have
		return json.RawMessage(`{}`)
	}
	return raw
}

// queryError is what a client is told.
func queryError(err error) *wire.Error {
	switch {
	case errors.Is(err, live.ErrUnknown):
		return wire.Errorf(wire.CodeQueryUnknown, "no live query of this name")
	case errors.Is(err, query.ErrInput):
		return wire.Errorf(wire.CodeInputInvalid, "%v", err)
	case errors.Is(err, live.ErrEntries):
		return &wire.Error{Code: wire.CodeSubscriptionLimit, Message: "the node has as many live queries as it may", Retry: retryLater}
	case errors.Is(err, live.ErrRows), errors.Is(err, hub.ErrTooLarge):
		return wire.Errorf(wire.CodeResultTooLarge, "the result has more rows or bytes than a live query may")
	case errors.Is(err, live.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Code: wire.CodeTimeout, Message: "the database did not answer in time", Retry: retryLater, Err: err}
	}
	return &wire.Error{Code: wire.CodeDatabaseUnavailable, Message: "the database could not be read", Retry: retryLater, Err: err}
}

// publishQuery gives a frame to the subscribers of an entry. The engine calls it in the order of the versions.
func (n *Node) publishQuery(e *live.Entry, f live.Frame) {
	_, err := n.hub.Publish(queryPrefix+e.ID(), hub.Message{
		Policy: hub.CatchUp, Mask: maskMessages, Offset: f.Version,
		Encode: func(d hub.Dialect) []byte {
			if d != dialectNative {
				return nil
			}
			return ofCommit(f)
		},
	})
	if err != nil {
		n.endQuery(e, queryError(err))
	}
}

// ofCommit is a frame as it is published: with the number of the commit, if that changed other live queries too. What is replayed has none, as nothing settles it.
func ofCommit(f live.Frame) []byte {
	if f.Commit == 0 {
		return f.Payload
	}
	b := append(make([]byte, 0, len(f.Payload)+32), f.Payload[:len(f.Payload)-1]...)
	b = append(b, `,"commit":`...)
	return append(strconv.AppendUint(b, f.Commit, 10), '}')
}

// settleQueries says behind the frames of a commit that they are all: to sessions that have several live queries, so that they show it in all at once. One that is slow is not told: it waits no longer than it may,
// and soon gets by replay what it has no room for.
func (n *Node) settleQueries(commit uint64, entries []*live.Entry) {
	if n.queries.several.Load() == 0 {
		return
	}
	message := wire.Settled(commit)
	told := map[*session]bool{}
	for _, e := range entries {
		n.hub.Positions(queryPrefix+e.ID(), func(c *hub.Conn, _ hub.Position) {
			s, ok := c.Handler().(*session)
			if !ok || told[s] || !s.hasSeveralQueries() {
				return
			}
			told[s] = true
			if messages, bytes := c.Buffered(); messages < n.opts.Limits.QueueMessages/2 && bytes < n.opts.Limits.QueueBytes/2 {
				s.send(message)
			}
		})
	}
}

func (s *session) hasSeveralQueries() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queries) > 1
}

// endQuery ends all subscriptions of an entry that is over.
func (n *Node) endQuery(e *live.Entry, why *wire.Error) {
	n.log.Warn("a live query is over", "query", e.Query().Definition.Name, "error", why)
	channel := queryPrefix + e.ID()
	n.hub.Positions(channel, func(c *hub.Conn, _ hub.Position) {
		s, ok := c.Handler().(*session)
		if !ok {
			return
		}
		for _, q := range s.querySubscriptions() {
			c.Go(q.lane(), func() {
				if q.entry == e && s.takeQuery(q) {
					s.leaveQuery(q)
					s.tellEnded(q, why)
				}
			})
		}
	})
}

// fresh is the position of a subscriber that has nothing.
const fresh = math.MaxUint64

// readQuery replays to a connection what follows a version of a live query.
func (n *Node) readQuery(s *session, channel string, after uint64, limit int) (next []hub.Replayed, end bool, err error) {
	e, delta := s.entryOf(channel, after)
	if e == nil { // it ends
		return nil, true, nil
	}
	if delta != nil {
		return []hub.Replayed{{Offset: delta.Version, Payload: delta.Payload}}, false, nil
	}
	if after != fresh {
		if frames, ok := e.Since(after, limit); ok {
			out := make([]hub.Replayed, len(frames))
			for i, f := range frames {
				out[i] = hub.Replayed{Offset: f.Version, Payload: f.Payload}
			}
			return out, len(out) < limit, nil
		}
	}
	f := e.Snapshot()
	if len(f.Payload)+1024 > n.opts.Limits.QueueBytes {
		n.endQuery(e, queryError(hub.ErrTooLarge))
		return nil, false, hub.ErrTooLarge
	}
	return []hub.Replayed{{Offset: f.Version, Payload: f.Payload, Moved: true}}, true, nil
}

// querySubscription is one live query of a session.
type querySubscription struct {
	sid    string
	name   string
	input  json.RawMessage
	tenant string // in whose count it is, if not empty

	// Owned by its lane, but for entry, which the session's lock guards too where it is set.
	actor json.RawMessage
	entry *live.Entry
	since *wire.Since // what the client has, until the first answer
	delta *live.Frame // guarded by the session's lock: what is sent first
}

// lane orders what is done about one subscription. It is no channel's.
func (q *querySubscription) lane() string { return queryPrefix + queryPrefix + q.sid }

// subscribeQuery takes the place of a subscription. The rest waits for the database, on a goroutine of its own, so that it holds up nothing else.
func (s *session) subscribeQuery(c wire.Command) error {
	n := s.node
	if n.queries.engine == nil {
		return wire.Errorf(wire.CodeQueryUnknown, "this server has no live queries")
	}
	q, repeated, err := s.reserveQuery(c)
	if err != nil {
		return err
	}
	if repeated {
		c.Channel = ""
		return s.inLane(q.lane(), c, func(c wire.Command) error {
			if q.entry == nil { // it is on its way
				return nil
			}
			return s.placeQuery(q, c.Since)
		})
	}
	err = s.inLane(q.lane(), c, func(wire.Command) error {
		if err := n.allowQuery(context.Background(), s.actor(), q.name); err != nil {
			s.takeQuery(q)
			return err
		}
		s.openQuery(q)
		return nil
	})
	if err != nil {
		s.takeQuery(q)
	}
	return err
}

func (s *session) reserveQuery(c wire.Command) (q *querySubscription, repeated bool, err error) {
	n := s.node
	actor := s.actor()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.subs {
		if o.sid == c.SID {
			return nil, false, wire.Errorf(wire.CodeSubscriptionIDTaken, "the sid is in use for a channel")
		}
	}
	for _, o := range s.queries {
		switch {
		case o.sid != c.SID:
		case o.name == c.Query && string(o.input) == string(c.Input):
			return o, true, nil
		default:
			return nil, false, wire.Errorf(wire.CodeSubscriptionIDTaken, "the sid is in use for another live query")
		}
	}
	if len(s.queries) >= n.opts.Limits.LiveQueriesPerConnection {
		return nil, false, wire.Errorf(wire.CodeSubscriptionLimit, "the connection has %d live queries", len(s.queries))
	}
	q = &querySubscription{sid: c.SID, name: c.Query, input: c.Input, since: c.Since}
	if limit := n.opts.Limits.SubscriptionsPerTenant; limit > 0 {
		q.tenant = n.opts.Tenant(actor)
		if q.tenant != "" && !n.tenants.take(q.tenant, limit) {
			return nil, false, wire.Errorf(wire.CodeSubscriptionLimit, "the tenant has as many subscriptions as it may")
		}
	}
	s.queries = append(s.queries, q)
	if len(s.queries) == 2 {
		n.queries.several.Add(1)
	}
	return q, false, nil
}

// takeQuery takes a subscription out of the session, gives its place back, and reports whether it was there: who gets true ends it.
func (s *session) takeQuery(q *querySubscription) bool {
	s.mu.Lock()
	i := slices.Index(s.queries, q)
	if i >= 0 {
		s.queries = slices.Delete(s.queries, i, i+1)
		if len(s.queries) == 1 {
			s.node.queries.several.Add(-1)
		}
	}
	s.mu.Unlock()
	if i >= 0 {
		s.node.tenants.release(q.tenant)
	}
	return i >= 0
}

func (s *session) querySubscriptions() []*querySubscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.queries)
}

// entryOf returns the entry whose frames come on a channel of the hub, and once the patch that leads there from what the client had, if it is behind the position.
func (s *session) entryOf(channel string, after uint64) (e *live.Entry, delta *live.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queries {
		if q.entry == nil || queryPrefix+q.entry.ID() != channel {
			continue
		}
		if delta = q.delta; delta != nil && delta.Version-1 != after {
			delta = nil
		}
		q.delta = nil
		return q.entry, delta
	}
	return nil, nil
}

// openQuery gets the entry, and goes on in the lane when it has it. It is called in the lane.
func (s *session) openQuery(q *querySubscription) {
	n := s.node
	q.actor = actorJSON(s.actor())
	actor := q.actor
	n.work.Go(func() {
		e, err := n.queries.engine.Acquire(n.ctx, q.name, q.input, actor)
		ok := s.conn.Go(q.lane(), func() {
			if err == nil {
				err = s.enterQuery(q, e)
			}
			if err != nil && s.takeQuery(q) {
				s.refuse(wire.Command{Type: wire.TypeSubscribe, SID: q.sid}, s.logQueryError(q, err))
			}
		})
		if !ok && err == nil { // the connection is closing, or too busy
			e.Release()
			s.takeQuery(q)
		}
	})
}

func (s *session) logQueryError(q *querySubscription, err error) *wire.Error {
	var known *wire.Error
	if errors.As(err, &known) {
		return known
	}
	e := queryError(err)
	if e.Err != nil {
		s.node.log.Error("a live query could not be served", "query", q.name, "error", e.Err)
	}
	return e
}

// enterQuery makes a subscription live. The entry is the subscription's from here on, or is given back with the error.
func (s *session) enterQuery(q *querySubscription, e *live.Entry) error {
	s.mu.Lock()
	here, same := false, false
	for _, o := range s.queries {
		here = here || o == q
		same = same || o != q && o.entry != nil && o.entry.ID() == e.ID()
	}
	if here && !same {
		q.entry = e
	}
	s.mu.Unlock()
	switch {
	case !here: // unsubscribed meanwhile
		e.Release()
		return nil
	case same:
		e.Release()
		return wire.Errorf(wire.CodeSubscriptionIDTaken, "the live query is subscribed with this input under another sid")
	}
	if err := s.placeQuery(q, q.since); err != nil {
		s.leaveQuery(q)
		return err
	}
	q.since = nil
	return nil
}

// placeQuery puts the connection at its version of the entry's log, and tells it.
func (s *session) placeQuery(q *querySubscription, since *wire.Since) error {
	e := q.entry
	o := hub.LogOptions{Offset: fresh}
	r := wire.Reply{Type: wire.TypeSubscribed, SID: q.sid, QID: e.ID()}
	epoch := e.Epoch()
	if since != nil {
		_, ok := e.Since(since.Offset, 1)
		ok = ok && since.Epoch == epoch && epoch == e.Epoch()
		if ok {
			o.Offset = since.Offset
		} else if f, made := e.Delta(since.Sum); made && epoch == e.Epoch() {
			// What the client has was another node's, or of before this entry: one patch leads from there.
			ok, o.Offset = true, f.Version-1
			s.mu.Lock()
			q.delta = &f
			s.mu.Unlock()
		}
		if r.Recovered = &ok; ok {
			r = r.At(o.Offset, epoch)
		}
	}
	if o.Offset == fresh && len(e.Snapshot().Payload)+1024 > s.node.opts.Limits.QueueBytes {
		return queryError(hub.ErrTooLarge)
	}
	if err := s.conn.JoinLog(queryPrefix+e.ID(), maskMessages, r.Encode(), o); err != nil {
		return joinError(err)
	}
	return nil
}

// leaveQuery ends the delivery of a subscription.
func (s *session) leaveQuery(q *querySubscription) {
	e := q.entry
	if e == nil {
		return
	}
	s.mu.Lock()
	q.entry = nil
	// Another sid may have the place by now: this one was taken out of the session before its lane came here.
	if !slices.ContainsFunc(s.queries, func(o *querySubscription) bool { return o.entry != nil && o.entry.ID() == e.ID() }) {
		s.conn.Leave(queryPrefix + e.ID())
	}
	s.mu.Unlock()
	e.Release()
}

// tellEnded says that the server ended a subscription. With a delay the client asks again.
func (s *session) tellEnded(q *querySubscription, why *wire.Error) {
	s.send(wire.Reply{
		Type: wire.TypeUnsubscribed, SID: q.sid, Code: why.Code, Cause: why.Message, RetryAfterMs: why.Retry.Milliseconds(),
	}.Encode())
}

// unsubscribeQuery reports whether the sid is that of a live query.
func (s *session) unsubscribeQuery(c wire.Command) (known bool, err error) {
	var q *querySubscription
	for _, o := range s.querySubscriptions() {
		if o.sid == c.SID {
			q = o
		}
	}
	if q == nil {
		return false, nil
	}
	err = s.inLane(q.lane(), c, func(wire.Command) error {
		s.leaveQuery(q)
		s.send(wire.Reply{Type: wire.TypeUnsubscribed, SID: q.sid}.Encode())
		return nil
	})
	if err == nil {
		s.takeQuery(q) // the sid is free for what the client says next
	}
	return true, err
}

// recheckQuery asks the guard again, and reads anew what depends on the actor's attributes. It runs in the subscription's lane.
func (s *session) recheckQuery(q *querySubscription) {
	err := s.node.allowQuery(context.Background(), s.actor(), q.name)
	if errors.Is(err, &wire.Error{Code: wire.CodeTopicForbidden}) {
		if s.takeQuery(q) {
			s.leaveQuery(q)
			s.tellEnded(q, wire.AsError(err))
		}
		return
	}
	if q.entry != nil && string(actorJSON(s.actor())) != string(q.actor) {
		s.leaveQuery(q) // nothing more comes under the old attributes
		s.openQuery(q)
	}
}

// closeQueries gives back what the session's live queries held. It runs after all lanes.
func (s *session) closeQueries() {
	for _, q := range s.querySubscriptions() {
		if s.takeQuery(q) {
			s.leaveQuery(q)
		}
	}
}

// serveQuery is GET /v1/queries/{name}?input=JSON&actor=JSON: the result as it is now.
func (n *Node) serveQuery(w http.ResponseWriter, r *http.Request) {
	params := r.URL.Query()
	for name := range params {
		if name != "input" && name != "actor" {
			n.problem(w, wire.Errorf(wire.CodeQueryInvalid, "unknown parameter %q", name))
			return
		}
	}
	if n.queries.engine == nil {
		n.problem(w, wire.Errorf(wire.CodeQueryUnknown, "this server has no live queries"))
		return
	}
	raw := func(name string) json.RawMessage {
		if text := strings.TrimSpace(params.Get(name)); text != "" {
			return json.RawMessage(text)
		}
		return nil
	}
	ctx, cancel := contextWithTimeout(r, n.opts.CommandTimeout)
	defer cancel()
	e, err := n.queries.engine.Acquire(ctx, r.PathValue("name"), raw("input"), raw("actor"))
	if err != nil {
		e := queryError(err)
		if e.Err != nil {
			n.log.Error("a live query could not be served", "query", r.PathValue("name"), "error", e.Err)
		}
		n.problem(w, e)
		return
	}
	defer e.Release()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(e.Snapshot().Payload)
}
