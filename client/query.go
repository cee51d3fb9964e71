package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tidewire/tidewire/row"
	"github.com/tidewire/tidewire/wire"
)

// QueryOptions configures a [LiveQuery]. See the package's comment for how callbacks are called.
type QueryOptions struct {
	// OnChange is called with the rows when they are there, after each commit that changes them, and when the query is live again on a later connection.
	OnChange func(Result)
	// OnRefused is told that the server refused the query or ended it. With a Retry the client asks again by itself, otherwise on the next connection. The rows stay.
	OnRefused func(*wire.Error)
}

// Result is the rows of a live query at one version.
type Result struct {
	// Rows stand in the order of the query. They are shared and must not be changed.
	Rows []json.RawMessage
	// Version counts the commits that changed the rows.
	Version uint64
	// Live means that the rows are the server's newest. Without a connection they are those of the last one.
	Live bool
	// Ops led here from the rows before, one after another. They are nil when the rows were replaced as a whole, and when nothing changed.
	Ops []Op
}

// Op is one step from one version to the next.
type Op struct {
	// Key is the primary key: the value of its column, or the array of their values.
	Key json.RawMessage
	// Row is what stands at the index At after the step, instead of an earlier row with the key if there was one. It is nil when the row with the key was taken out.
	Row json.RawMessage
	At  int
}

// LiveQuery is a subscription to a live query. Its methods may be called from any goroutine.
type LiveQuery struct {
	// Set by Query, then read-only.
	c     *Client
	sid   string
	seq   uint64
	name  string
	input json.RawMessage
	opts  QueryOptions

	// Guarded by Client.mu.
	closed    bool
	phase     phase
	askedAt   time.Time
	askQueued bool
	retryAt   time.Time
	retries   int
	qid       string // names the query on this connection
	list      list
	waiting   bool // patches are ignored until an answer or a snapshot
	afresh    bool // the next subscribe asks for a snapshot
	distrust  bool // the snapshot already had another sum: asking again would not help
	drifts    uint64
}

// Query follows a live query that the server declares, as soon as there is a connection, and on each later one until Close. input is encoded as a JSON object with the parameters; nil has none. One
// connection follows a query with an input once: the server refuses the second with SUBSCRIPTION_ID_TAKEN.
func (c *Client) Query(name string, input any, opts QueryOptions) (*LiveQuery, error) {
	if len(name) < 1 || len(name) > wire.MaxIDBytes {
		return nil, fmt.Errorf("client: query: %w", wire.Errorf(wire.CodeDataInvalid, "a query's name has 1 to %d bytes", wire.MaxIDBytes))
	}
	q := &LiveQuery{c: c, name: name, opts: opts}
	if input != nil {
		raw, err := encodeData(input)
		if err != nil {
			return nil, fmt.Errorf("client: query: %w", err)
		}
		if b := bytes.TrimSpace(raw); len(b) == 0 || b[0] != '{' {
			return nil, fmt.Errorf("client: query: %w", wire.Errorf(wire.CodeDataInvalid, "input is not a JSON object"))
		}
		q.input = raw
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, ErrStopped
	}
	c.sids++
	q.seq, q.sid = c.sids, strconv.FormatUint(c.sids, 36)
	c.queries[q.sid] = q
	if c.link != nil {
		c.link.askQueryLocked(q)
	}
	return q, nil
}

// Rows returns the rows as they were last known: nil before they first came. They are shared and must not be changed.
func (q *LiveQuery) Rows() []json.RawMessage {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.list.rows
}

// Result returns the rows with their version, and whether they are live.
func (q *LiveQuery) Result() Result {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.resultLocked(nil)
}

// Live reports whether the rows follow the database now.
func (q *LiveQuery) Live() bool {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.liveLocked()
}

// Drifts returns how many times the rows did not have the server's checksum, and were read anew. That is a bug, of this package or of the server.
func (q *LiveQuery) Drifts() uint64 {
	q.c.mu.Lock()
	defer q.c.mu.Unlock()
	return q.drifts
}

// Close ends the subscription. A callback that was about to run may still do so; no other does.
func (q *LiveQuery) Close() {
	c := q.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	delete(c.queries, q.sid)
	if c.link != nil && (q.phase == asked || q.phase == live) {
		c.link.pushLocked(command{kind: wire.TypeUnsubscribe, frame: encode(outgoing{Type: wire.TypeUnsubscribe, SID: q.sid})})
	}
}

func (q *LiveQuery) liveLocked() bool { return q.phase == live && !q.waiting && !q.closed }

func (q *LiveQuery) resultLocked(ops []Op) Result {
	return Result{Rows: q.list.rows, Version: q.list.version, Live: q.liveLocked(), Ops: ops}
}

// tellLocked returns the call of OnChange.
func (q *LiveQuery) tellLocked(ops []Op) func() {
	f := q.opts.OnChange
	if f == nil {
		return nil
	}
	r := q.resultLocked(ops)
	return func() { f(r) }
}

func (q *LiveQuery) tellRefused(e *wire.Error) func() {
	if q.opts.OnRefused == nil {
		q.c.log.Warn("the server refused", "query", q.name, "error", e)
		return nil
	}
	return func() { q.opts.OnRefused(e) }
}

// queriesLocked returns the live queries in the order of their making.
func (c *Client) queriesLocked() []*LiveQuery {
	all := make([]*LiveQuery, 0, len(c.queries))
	for _, q := range c.queries {
		all = append(all, q)
	}
	slices.SortFunc(all, func(a, b *LiveQuery) int { return cmp.Compare(a.seq, b.seq) })
	return all
}

// askQueryLocked queues a subscribe, once.
func (l *link) askQueryLocked(q *LiveQuery) {
	q.retryAt = time.Time{}
	if !q.askQueued {
		q.askQueued = true
		l.pushLocked(command{kind: wire.TypeSubscribe, query: q})
	}
}

// restartQueryLocked asks on a new connection.
func (l *link) restartQueryLocked(q *LiveQuery) {
	q.phase, q.askQueued, q.retries, q.qid, q.waiting = idle, false, 0, "", true
	l.askQueryLocked(q)
}

func (l *link) queryFrameLocked(q *LiveQuery, now time.Time) []byte {
	q.askQueued = false
	if q.closed {
		return nil
	}
	out := outgoing{Type: wire.TypeSubscribe, SID: q.sid, Query: q.name, Input: q.input}
	switch {
	case q.afresh:
		out.Since = &outgoingSince{Offset: new(uint64)}
	case q.list.epoch != "":
		at := q.list.version
		out.Since = &outgoingSince{Offset: &at, Epoch: q.list.epoch, Sum: q.list.digest()}
	}
	q.askedAt, q.waiting = now, true
	if q.phase != live {
		q.phase = asked
	}
	return encode(out)
}

// beatQueriesLocked asks again where an answer is late, or the command was lost.
func (l *link) beatQueriesLocked(now time.Time) {
	for _, q := range l.c.queriesLocked() {
		if (q.phase == asked || q.phase == live && q.waiting) && now.Sub(q.askedAt) >= l.heartbeat {
			l.askQueryLocked(q)
		}
	}
}

// queryLocked takes a message about a live query.
func (l *link) queryLocked(q *LiveQuery, m *incoming) func() {
	switch m.Type {
	case wire.TypeSubscribed:
		return l.querySubscribedLocked(q, m)
	case wire.TypeUnsubscribed:
		if q.phase != live && q.phase != asked {
			return nil
		}
		q.phase, q.qid, q.waiting = refused, "", true
		return l.queryRefusedLocked(q, m.err())
	case wire.TypeRefused:
		e := m.err()
		if e.Code == wire.CodeFrameRateLimit && !l.welcomed.IsZero() {
			l.slowDownLocked(m, e)
			l.askQueryLocked(q)
			return nil
		}
		if q.phase == asked {
			q.phase = refused
		}
		return l.queryRefusedLocked(q, e)
	}
	return nil
}

func (l *link) queryRefusedLocked(q *LiveQuery, e *wire.Error) func() {
	if e.Retry > 0 {
		q.retries++
		q.retryAt = time.Now().Add(min(e.Retry, maxRetryAfter) + l.c.backoff.Delay(q.retries))
		l.nextRetry = earliest(l.nextRetry, q.retryAt)
	}
	return q.tellRefused(e)
}

// querySubscribedLocked takes an answer, or the word of the server that the query has another qid from here on.
func (l *link) querySubscribedLocked(q *LiveQuery, m *incoming) func() {
	resumed := q.phase != live
	q.phase, q.qid, q.retries, q.retryAt = live, m.QID, 0, time.Time{}
	q.waiting = m.Recovered == nil || !*m.Recovered               // then a snapshot follows
	if !q.waiting && m.Offset != nil && m.Epoch != q.list.epoch { // another node may count otherwise
		q.list.version, q.list.epoch = *m.Offset, m.Epoch
	}
	if q.waiting || !resumed {
		return nil
	}
	return q.tellLocked(nil)
}

// rowsLocked takes a snapshot or a patch.
func (l *link) rowsLocked(m *incoming) func() {
	for _, q := range l.c.queries {
		if q.phase != live || q.qid != m.QID {
			continue
		}
		if m.Type == wire.TypeSnapshot {
			return l.snapshotLocked(q, m)
		}
		return l.patchLocked(q, m)
	}
	return nil
}

func (l *link) snapshotLocked(q *LiveQuery, m *incoming) func() {
	next, err := newList(m)
	if err != nil {
		l.c.log.Error("a snapshot cannot be used", "query", q.name, "error", err)
		return nil
	}
	q.distrust = m.Sum != next.digest()
	if q.distrust {
		q.drifts++
		l.c.log.Error("a snapshot does not have its own checksum", "query", q.name, "version", m.Version)
	}
	q.list, q.waiting, q.afresh = next, false, false
	return q.tellLocked(nil)
}

func (l *link) patchLocked(q *LiveQuery, m *incoming) func() {
	switch {
	case q.waiting || m.Version <= q.list.version:
		return nil
	case m.Version != q.list.version+1:
		l.c.log.Debug("commits are missing and are asked for", "query", q.name, "version", q.list.version, "next", m.Version)
		q.waiting = true
		l.askQueryLocked(q)
		return nil
	}
	next, ops, err := q.list.patched(m)
	if err == nil && m.Sum != next.digest() && !q.distrust {
		err = errSum
	}
	if err != nil {
		q.drifts++
		l.c.log.Error("the rows are not the server's and are read anew", "query", q.name, "version", m.Version, "error", err)
		q.waiting, q.afresh = true, true
		l.askQueryLocked(q)
		return nil
	}
	q.list = next
	return q.tellLocked(ops)
}

// list is the rows of a live query. It is not changed: a patch makes another.
type list struct {
	version uint64
	epoch   string
	columns []string // of the primary key
	rows    []json.RawMessage
	keys    []string // of the rows, as canonical JSON
	sums    []uint64 // of the rows
	sum     uint64
}

var (
	errSum = errors.New("client: another checksum")
	errOp  = errors.New("client: an op that does not fit the rows")
)

func newList(m *incoming) (list, error) {
	n := len(m.Rows)
	l := list{version: m.Version, epoch: m.Epoch, columns: m.Key.columns, rows: make([]json.RawMessage, 0, n), keys: make([]string, 0, n), sums: make([]uint64, 0, n)}
	if len(l.columns) == 0 {
		return list{}, errors.New("client: no key")
	}
	for _, r := range m.Rows {
		key, err := l.key(r)
		if err != nil {
			return list{}, err
		}
		l.insert(len(l.rows), key, r)
	}
	return l, nil
}

// patched returns the list after a patch, and the steps as the application sees them.
func (l list) patched(m *incoming) (list, []Op, error) {
	n := len(l.rows) + len(m.Ops)
	l.rows, l.keys, l.sums = append(make([]json.RawMessage, 0, n), l.rows...), append(make([]string, 0, n), l.keys...), append(make([]uint64, 0, n), l.sums...)
	l.version = m.Version
	ops := make([]Op, 0, len(m.Ops))
	for _, o := range m.Ops {
		if o.Put == nil {
			key, err := row.CanonicalJSON(o.Del)
			if err != nil || !l.remove(string(key)) {
				return list{}, nil, errOp
			}
			ops = append(ops, Op{Key: o.Del})
			continue
		}
		key, err := l.key(o.Put)
		if err != nil {
			return list{}, nil, err
		}
		l.remove(key)
		if o.At < 0 || o.At > len(l.rows) {
			return list{}, nil, errOp
		}
		l.insert(o.At, key, o.Put)
		ops = append(ops, Op{Key: json.RawMessage(key), Row: o.Put, At: o.At})
	}
	return l, ops, nil
}

func (l *list) insert(at int, key string, r json.RawMessage) {
	sum := checksum(r)
	l.rows, l.keys, l.sums = slices.Insert(l.rows, at, r), slices.Insert(l.keys, at, key), slices.Insert(l.sums, at, sum)
	l.sum += sum
}

func (l *list) remove(key string) bool {
	i := slices.Index(l.keys, key)
	if i < 0 {
		return false
	}
	l.sum -= l.sums[i]
	l.rows, l.keys, l.sums = slices.Delete(l.rows, i, i+1), slices.Delete(l.keys, i, i+1), slices.Delete(l.sums, i, i+1)
	return true
}

// key returns the primary key of a row as canonical JSON.
func (l *list) key(r json.RawMessage) (string, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(r, &members); err != nil {
		return "", fmt.Errorf("client: a row: %w", err)
	}
	var key []byte
	for i, c := range l.columns {
		if members[c] == nil {
			return "", fmt.Errorf("client: a row without %q", c)
		}
		key = append(key, "[,"[min(i, 1)])
		key = append(key, members[c]...)
	}
	if len(l.columns) > 1 {
		key = append(key, ']')
	} else {
		key = key[1:]
	}
	key, err := row.CanonicalJSON(key)
	if err != nil {
		return "", fmt.Errorf("client: a row's key: %w", err)
	}
	return string(key), nil
}

func (l *list) digest() string { return fmt.Sprintf("%016x", l.sum) }

// checksum is that of a row. JSON that has no canonical form counts as it is.
func checksum(r json.RawMessage) uint64 {
	if canonical, err := row.CanonicalJSON(r); err == nil {
		return row.Checksum(canonical)
	}
	return row.Checksum(r)
}
