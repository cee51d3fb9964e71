package live

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// lingerer is an entry that nobody held at some time.
type lingerer struct {
	en *Entry
	at int64
}

// template is a declared query.
type template struct {
	def    query.Definition
	name   row.Name // of the table
	policy Policy
	plan   atomic.Pointer[plan]
	mu     chan struct{} // held while it is compiled
	err    atomic.Pointer[error]
	size   atomic.Int64 // about the bytes of a result

	failures atomic.Uint64 // of the policy
	warned   atomic.Int64  // when that was logged last
}

func (tp *template) refuse(err error) {
	tp.plan.Store(nil)
	tp.err.Store(&err)
}

func orElse[T cmp.Ordered](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func newEngine(o Options) *Engine {
	orElse(&o.MaxEntries, 10_000)
	orElse(&o.MaxRows, 10_000)
	orElse(&o.MaxEntryBytes, 16<<20)
	orElse(&o.RingFrames, 256)
	orElse(&o.RingBytes, 1<<20)
	orElse(&o.RetainBytes, 64<<20)
	orElse(&o.RecentBytes, 4<<20)
	orElse(&o.Linger, 30*time.Second)
	orElse(&o.ReadTimeout, 30*time.Second)
	orElse(&o.Reads, 4)
	orElse(&o.ReadGroup, 1000)
	orElse(&o.Debounce, 100*time.Millisecond)
	orElse(&o.Retry, time.Second)
	orElse(&o.Buffer, 1024)
	orElse(&o.Pending, 16_384)
	orElse(&o.Workers, max(2, runtime.GOMAXPROCS(0)))
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	e := &Engine{}
	e.opts, e.log, e.start = o, o.Logger, time.Now()
	e.epoch = strconv.FormatUint(rand.Uint64(), 36)
	e.templates, e.tables, e.entries, e.ids = map[string]*template{}, map[row.Name]*table{}, map[ident]*Entry{}, map[string]*Entry{}
	e.following, e.stopped = make(chan struct{}), make(chan struct{})
	e.room.L, e.lanes.cond.L = &sync.Mutex{}, &e.lanes.mu
	e.reads.e, e.reads.due, e.reads.wake = e, map[*template][]wait{}, make(chan struct{}, 1)
	e.checks.wake = make(chan struct{}, 1)
	return e
}

// now is the engine's clock.
func (e *Engine) now() int64 { return int64(time.Since(e.start)) }

func (e *Engine) nextEpoch() string {
	return e.epoch + "." + strconv.FormatUint(e.epochs.Add(1), 36)
}

func (e *Engine) declare(def query.Definition, policy Policy) error {
	if def.Name == "" || def.From == "" {
		return fmt.Errorf("%w: a query needs a name and a table", query.ErrDefinition)
	}
	schema, name, dotted := strings.Cut(def.From, ".")
	if !dotted {
		schema, name = "public", def.From
		if e.opts.Database.Engine() == row.SQLite {
			schema = "main"
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.templates[def.Name] != nil {
		return fmt.Errorf("%w: %s is declared twice", query.ErrDefinition, def.Name)
	}
	e.templates[def.Name] = &template{def: def, name: row.Name{Schema: schema, Table: name}, policy: policy, mu: make(chan struct{}, 1)}
	return nil
}

func (e *Engine) queries() []QueryInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	counts := map[*template]int{}
	for id := range e.entries {
		counts[id.t]++
	}
	out := []QueryInfo{}
	for _, tp := range e.templates {
		q := QueryInfo{Name: tp.def.Name, Table: tp.name.String(), Policy: tp.policy != nil, Entries: counts[tp]}
		if p := tp.plan.Load(); p != nil {
			q.Compiled, q.Class, q.Reason = true, p.q.Class, p.q.Reason
		} else if err := tp.err.Load(); err != nil {
			q.Reason = (*err).Error()
		}
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b QueryInfo) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// compile returns the plan of a declared query.
func (e *Engine) compile(ctx context.Context, tp *template) (*plan, error) {
	if p := tp.plan.Load(); p != nil {
		return p, nil
	}
	select {
	case tp.mu <- struct{}{}:
		defer func() { <-tp.mu }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p := tp.plan.Load(); p != nil {
		return p, nil
	}
	p, err := e.compileNow(ctx, tp)
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, feed.ErrNoTable), errors.Is(err, feed.ErrTableUnfit), errors.Is(err, query.ErrDefinition):
		err = fmt.Errorf("%w: %s: %w", ErrRefused, tp.def.Name, err)
		tp.refuse(err) // and tried again by the next: the table may be mended
	case ctx.Err() == nil:
		err = fmt.Errorf("%w: %s: %w", ErrRead, tp.def.Name, err)
	}
	return nil, err
}

func (e *Engine) compileNow(ctx context.Context, tp *template) (*plan, error) {
	def, err := e.opts.Database.Table(ctx, tp.name)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	t := e.tables[def.Identity()]
	if t == nil {
		t = &table{name: def.Identity(), def: def, index: newIndex(def), plans: map[*template]*plan{}}
		e.tables[t.name] = t
	}
	e.mu.Unlock()
	e.replan(t, def)
	t.mu.Lock()
	defer t.mu.Unlock()
	q, err := query.Compile(tp.def, t.def)
	if err != nil {
		return nil, err
	}
	p := newPlan(tp, t, q)
	t.plans[tp] = p
	tp.plan.Store(p)
	return p, nil
}

// tableOf returns the table of a change, nil when it is not queried. It is called by the feed's goroutine.
func (e *Engine) tableOf(def *row.Table) *table {
	if def == e.lastDef {
		return e.lastTable
	}
	e.mu.Lock()
	t := e.tables[def.Identity()]
	e.mu.Unlock()
	if t != nil {
		e.lastDef, e.lastTable = def, t
	}
	return t
}

func (e *Engine) acquire(ctx context.Context, name string, input, actor json.RawMessage) (*Entry, error) {
	e.mu.Lock()
	tp := e.templates[name]
	e.mu.Unlock()
	if tp == nil {
		return nil, ErrUnknown
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.opts.ReadTimeout, ErrTimeout)
	defer cancel()
	for {
		en, err := e.acquireOnce(ctx, tp, input, actor)
		switch {
		case errors.Is(err, errReplanned):
			continue
		case err != nil && errors.Is(err, context.DeadlineExceeded) && errors.Is(context.Cause(ctx), ErrTimeout):
			err = fmt.Errorf("%w: %s", ErrTimeout, name)
		}
		return en, err
	}
}

// errReplanned means that the table was altered in between.
var errReplanned = errors.New("live: the query was compiled anew")

func (e *Engine) acquireOnce(ctx context.Context, tp *template, input, actor json.RawMessage) (*Entry, error) {
	p, err := e.compile(ctx, tp)
	if err != nil {
		return nil, err
	}
	in, err := p.q.Input(input, actor)
	if err != nil {
		return nil, err
	}
	id := ident{t: tp, text: in.Text}
	if tp.policy != nil {
		canonical := []byte("null")
		if len(actor) > 0 {
			if canonical, err = row.CanonicalJSON(actor); err != nil {
				return nil, fmt.Errorf("%w: actor: %w", query.ErrInput, err)
			}
		}
		id.actor = string(canonical)
		h := fnv.New64a()
		_, _ = h.Write(canonical)
		in.Hash ^= h.Sum64()
	}
	en, ready := e.hold(id)
	if en == nil {
		bound, err := p.q.Bind(in)
		if err != nil {
			return nil, err
		}
		if en, ready, err = e.reserve(id, p, bound); err != nil {
			return nil, err
		}
	}
	if ready == nil {
		return en, nil
	}
	select {
	case <-ready:
		en.mu.Lock()
		err = en.err
		en.mu.Unlock()
	case <-ctx.Done():
		err = ctx.Err()
	case <-e.stopped:
		err = ErrStopped
	}
	if err != nil {
		en.release()
		return nil, err
	}
	return en, nil
}

// hold takes a reference to an entry that exists. ready is nil when it can be read.
func (e *Engine) hold(id ident) (*Entry, chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holdLocked(id)
}

func (e *Engine) holdLocked(id ident) (*Entry, chan struct{}) {
	en := e.entries[id]
	if en == nil {
		return nil, nil
	}
	en.refs++
	en.mu.Lock()
	defer en.mu.Unlock()
	return en, en.ready
}

// reserve makes an entry.
func (e *Engine) reserve(id ident, p *plan, bound *query.Bound) (*Entry, chan struct{}, error) {
	e.mu.Lock()
	if en, ready := e.holdLocked(id); en != nil {
		e.mu.Unlock()
		return en, ready, nil
	}
	select {
	case <-e.stopped:
		e.mu.Unlock()
		return nil, nil, ErrStopped
	default:
	}
	var evicted *Entry
	if len(e.entries) >= e.opts.MaxEntries {
		if evicted = e.evictLocked(); evicted == nil {
			e.mu.Unlock()
			e.stats.refused.Add(1)
			return nil, nil, ErrEntries
		}
	}
	en := &Entry{e: e, ident: id, refs: 1, plan: p, bound: bound, place: -1, ready: make(chan struct{}), blocked: true}
	if id.actor != "" {
		en.actor = json.RawMessage(id.actor)
	}
	hash := fmt.Sprintf("%016x", bound.Input.Hash)
	en.id = hash
	for n := 1; e.ids[en.id] != nil; n++ {
		en.id = hash + "-" + strconv.Itoa(n)
	}
	e.entries[id], e.ids[en.id] = en, en
	ready := en.ready
	e.mu.Unlock()
	if evicted != nil {
		evicted.bury(nil)
	}

	t := p.table
	t.mu.Lock()
	current := t.plans[id.t] == p
	if current && !en.dead.Load() {
		t.insertLocked(en)
		if !t.broken.Load() { // else it is read when the table is known
			en.mu.Lock()
			e.reads.requestLocked(en, 0)
			en.mu.Unlock()
		}
	}
	t.yield()
	if !current {
		e.fail(en, errReplanned)
	}
	return en, ready, nil
}

func (en *Entry) release() {
	e := en.e
	e.mu.Lock()
	if en.refs == 0 {
		e.mu.Unlock()
		return
	}
	en.refs--
	if en.refs > 0 || en.dead.Load() {
		e.mu.Unlock()
		return
	}
	en.mu.Lock()
	cold := en.ready != nil
	en.mu.Unlock()
	if cold || e.opts.Linger < 0 {
		e.forgetLocked(en)
		e.mu.Unlock()
		en.bury(nil)
		return
	}
	if !en.lingering {
		en.lingering = true
		e.lingerers = append(e.lingerers, lingerer{en, e.now() + int64(e.opts.Linger)})
	}
	e.mu.Unlock()
}

// forgetLocked takes an entry out of the registry. mu is held; the caller buries it afterwards.
func (e *Engine) forgetLocked(en *Entry) {
	if e.entries[en.ident] == en {
		delete(e.entries, en.ident)
	}
	if e.ids[en.id] == en {
		delete(e.ids, en.id)
	}
	en.dead.Store(true)
}

// bury ends an entry that is in the registry no more.
func (en *Entry) bury(err error) {
	en.mu.Lock()
	p := en.plan
	if err != nil && en.err == nil {
		en.err = err
	}
	if en.ready != nil {
		if en.err == nil {
			en.err = ErrRead
		}
		close(en.ready)
		en.ready = nil
	}
	if !en.scheduled {
		en.jobs, en.captured, en.result = nil, nil, nil
	}
	en.mu.Unlock()
	p.table.remove(en)
	en.logMu.Lock()
	en.forgetLocked()
	en.logMu.Unlock()
}

// fail ends an entry that cannot go on.
func (e *Engine) fail(en *Entry, err error) {
	e.mu.Lock()
	was := en.dead.Load()
	e.forgetLocked(en)
	e.mu.Unlock()
	if was {
		return
	}
	en.mu.Lock()
	cold := en.ready != nil
	en.mu.Unlock()
	en.bury(err)
	e.stats.failed.Add(1)
	if !cold && e.opts.Failed != nil {
		e.opts.Failed(en, err)
	}
}

// evictLocked takes the entry out that has lingered longest.
func (e *Engine) evictLocked() *Entry {
	for len(e.lingerers) > 0 {
		en := e.lingerers[0].en
		e.lingerers[0] = lingerer{}
		e.lingerers = e.lingerers[1:]
		en.lingering = false
		if en.refs == 0 && !en.dead.Load() {
			e.forgetLocked(en)
			return en
		}
	}
	return nil
}

// expire ends the entries that have lingered long enough, or all that linger, a few at a time.
func (e *Engine) expire(all bool) {
	for more := true; more; {
		more = false
		var gone []*Entry
		now := e.now()
		e.mu.Lock()
		for n := 0; len(e.lingerers) > 0 && (all || e.lingerers[0].at <= now); n++ {
			if n == 256 {
				more = true
				break
			}
			l := e.lingerers[0]
			e.lingerers[0] = lingerer{}
			e.lingerers = e.lingerers[1:]
			l.en.lingering = false
			if l.en.refs == 0 && !l.en.dead.Load() {
				e.forgetLocked(l.en)
				gone = append(gone, l.en)
			}
		}
		e.mu.Unlock()
		for _, en := range gone {
			en.bury(nil)
		}
	}
}

// checks are the tables to be described again.
type checks struct {
	mu     sync.Mutex
	tables map[*table]bool
	wake   chan struct{}
}

// checkTable has a table described again.
func (e *Engine) checkTable(t *table) {
	c := &e.checks
	c.mu.Lock()
	if c.tables == nil {
		c.tables = map[*table]bool{}
	}
	c.tables[t] = true
	c.mu.Unlock()
	c.rouse()
}

func (c *checks) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// runChecks describes tables again until ctx ends.
func (e *Engine) runChecks(ctx context.Context) {
	c := &e.checks
	var retry <-chan time.Time
	for {
		select {
		case <-c.wake:
		case <-retry:
		case <-ctx.Done():
			return
		}
		began := e.began.Load()
		c.mu.Lock()
		tables := slices.Collect(maps.Keys(c.tables))
		clear(c.tables)
		c.mu.Unlock()
		for _, t := range tables {
			if err := e.check(ctx, t); err != nil && ctx.Err() == nil {
				e.log.Warn("a table could not be described; its live queries wait", "table", t.name, "error", err)
				c.mu.Lock()
				c.tables[t] = true
				c.mu.Unlock()
				retry = time.After(e.opts.Retry)
			}
		}
		if began { // and who waits for a read can be read, all together
			e.followOnce.Do(func() { close(e.following) })
		}
	}
}

func (e *Engine) check(ctx context.Context, t *table) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.ReadTimeout)
	defer cancel()
	def, err := e.opts.Database.Table(ctx, t.name)
	switch {
	case errors.Is(err, feed.ErrNoTable), errors.Is(err, feed.ErrTableUnfit):
		e.dropTable(t, err)
		return nil
	case err != nil:
		return err
	}
	e.replan(t, def)
	return nil
}

// dropTable ends the entries of a table that is no more.
func (e *Engine) dropTable(t *table, err error) {
	t.mu.Lock()
	entries := slices.Clone(t.entries)
	for tp := range t.plans {
		tp.refuse(fmt.Errorf("%w: %s: %w", ErrRefused, tp.def.Name, err))
	}
	clear(t.plans)
	t.def = &row.Table{Name: t.name} // whatever comes is another one
	t.mu.Unlock()
	for _, en := range entries {
		e.fail(en, fmt.Errorf("%w: %s: %w", ErrRefused, en.ident.t.def.Name, err))
	}
}

func (e *Engine) run(ctx context.Context) error {
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return errors.New("live: Run called twice")
	}
	e.running = true
	templates := slices.Collect(maps.Values(e.templates))
	e.mu.Unlock()
	defer close(e.stopped)
	var refused []error
	for _, tp := range templates {
		if _, err := e.compile(ctx, tp); errors.Is(err, ErrRefused) {
			refused = append(refused, err)
		} else if err != nil && ctx.Err() == nil {
			e.log.Warn("a live query could not be prepared; it is tried again when it is used", "query", tp.def.Name, "error", err)
		}
	}
	if len(refused) > 0 {
		return errors.Join(refused...)
	}
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for range e.opts.Workers {
		all.Go(e.lanes.run)
	}
	all.Go(func() { e.reads.run(ctx) })
	all.Go(func() { e.runChecks(ctx) })
	all.Go(func() { e.runLinger(ctx) })
	all.Go(func() {
		<-ctx.Done()
		e.room.L.Lock()
		e.stopping = true
		e.room.Broadcast()
		e.room.L.Unlock()
	})
	err := e.opts.Database.Run(ctx, sink{e})
	cancel()
	e.lanes.close()
	all.Wait()
	return err
}

// sink is the engine as the feed sees it.
type sink struct{ e *Engine }

// Commit implements [feed.Sink].
func (s sink) Commit(tx *feed.Tx) { s.e.commit(tx) }

// Reset implements [feed.Sink].
func (s sink) Reset(at feed.Position, reason string) { s.e.reset(at, reason) }

func (e *Engine) runLinger(ctx context.Context) {
	tick := time.NewTicker(max(min(e.opts.Linger/8, time.Second), time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.expire(false)
		case <-ctx.Done():
			return
		}
	}
}
