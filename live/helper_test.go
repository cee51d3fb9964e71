package live

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.M{M: m}) }

// random returns a generator whose seed is logged and can be set by TIDEWIRE_TEST_SEED.
func random(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TIDEWIRE_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("TIDEWIRE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func pick[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

// items is a table with a bit of everything. The text of loc is under a collation that only the database can order.
func items(name string) *row.Table {
	return &row.Table{
		Name: row.Name{Schema: "public", Table: name},
		Columns: []row.Column{
			{Name: "id", Type: row.Type{Kind: row.Int}, NotNull: true},
			{Name: "org", Type: row.Type{Kind: row.Int}},
			{Name: "price", Type: row.Type{Kind: row.Int}},
			{Name: "title", Type: row.Type{Kind: row.Text}},
			{Name: "done", Type: row.Type{Kind: row.Bool}},
			{Name: "loc", Type: row.Type{Kind: row.Text, Collation: row.Locale}},
			{Name: "note", Type: row.Type{Kind: row.Text}},
		},
		Key: []int{0},
	}
}

// pairs is a table with a key of two columns.
func pairs() *row.Table {
	return &row.Table{
		Name: row.Name{Schema: "public", Table: "pairs"},
		Columns: []row.Column{
			{Name: "n", Type: row.Type{Kind: row.Int}},
			{Name: "b", Type: row.Type{Kind: row.Text}, NotNull: true},
			{Name: "a", Type: row.Type{Kind: row.Int}, NotNull: true},
		},
		Key: []int{2, 1},
	}
}

func item(id, org, price int64, title string) row.Row {
	return row.Row{row.IntValue(id), row.IntValue(org), row.IntValue(price), row.TextValue(title), row.BoolValue(false), row.TextValue("x"), row.TextValue("")}
}

func put(r row.Row) feed.Write { return feed.Write{Table: itemsName, New: r} }

func del(id int64) feed.Write { return feed.Write{Table: itemsName, Old: item(id, 0, 0, "")} }

var itemsName = row.Name{Schema: "public", Table: "items"}

// database is a Memory that can be made slow, fail, and know less of its rows.
type database struct {
	*feed.Memory
	before  func(ctx context.Context) error // a read, before its snapshot
	during  func(ctx context.Context) error // a read, after its snapshot
	deliver func(tx *feed.Tx) *feed.Tx      // a transaction, before the sink has it
	table   func(name row.Name) (*row.Table, error)
}

func (d *database) Table(ctx context.Context, name row.Name) (*row.Table, error) {
	if d.table != nil {
		return d.table(name)
	}
	return d.Memory.Table(ctx, name)
}

func (d *database) Read(ctx context.Context, f func(feed.Snapshot) error) error {
	if d.before != nil {
		if err := d.before(ctx); err != nil {
			return err
		}
	}
	return d.Memory.Read(ctx, func(s feed.Snapshot) error {
		if d.during != nil {
			if err := d.during(ctx); err != nil {
				return err
			}
		}
		return f(s)
	})
}

func (d *database) Run(ctx context.Context, s feed.Sink) error {
	return d.Memory.Run(ctx, delivery{s, d})
}

type delivery struct {
	feed.Sink
	d *database
}

func (d delivery) Commit(tx *feed.Tx) {
	if d.d.deliver != nil {
		tx = d.d.deliver(tx)
	}
	d.Sink.Commit(tx)
}

// bed is an engine under test, in a bubble of synctest.
type bed struct {
	t    *testing.T
	db   *database
	e    *Engine
	mu   sync.Mutex
	subs map[*Entry][]*client
	lost map[*Entry]error
}

func newBed(t *testing.T, o Options, defs ...query.Definition) *bed {
	b := &bed{t: t, db: &database{Memory: feed.NewMemory(items("items"), items("other"), pairs())}, subs: map[*Entry][]*client{}, lost: map[*Entry]error{}}
	o.Database = b.db
	publish := o.Publish
	o.Publish = func(e *Entry, f Frame) {
		if publish != nil {
			publish(e, f)
		}
		b.mu.Lock()
		subs := slices.Clone(b.subs[e])
		b.mu.Unlock()
		for _, c := range subs {
			c.published(e, f)
		}
	}
	o.Failed = func(e *Entry, err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.lost[e] = err
	}
	o.Logger = slog.New(slog.DiscardHandler)
	b.e = New(o)
	for _, d := range defs {
		if err := b.e.Declare(d); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// start runs the engine until the test ends.
func (b *bed) start() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.e.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			b.t.Errorf("Run: %v", err)
		}
	})
	<-b.e.following
}

func (b *bed) acquire(name, input string) *Entry {
	b.t.Helper()
	en, err := b.e.Acquire(b.t.Context(), name, json.RawMessage(input), nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return en
}

// settle waits until nothing is under way.
func settle() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
}

// client is a subscriber that keeps a list as the protocol says, and catches up as the hub does.
type client struct {
	b *bed

	mu      sync.Mutex
	en      *Entry
	drop    func() bool // whether what is published finds no room
	last    uint64      // published
	behind  bool
	epoch   string
	version uint64
	rows    []map[string]json.RawMessage
	key     []string
	frames  int
	patches []patch
	snaps   int
}

// subscribe takes an entry over from its caller.
func (b *bed) subscribe(en *Entry) *client {
	c := &client{b: b}
	c.join(en)
	return c
}

func (c *client) join(en *Entry) {
	c.mu.Lock()
	c.en, c.behind, c.last = en, true, 0
	if en.Epoch() != c.epoch {
		c.version, c.epoch = 1<<62, "" // a position that is void
	}
	c.mu.Unlock()
	c.b.mu.Lock()
	c.b.subs[en] = append(c.b.subs[en], c)
	c.b.mu.Unlock()
	c.catchUp(64)
}

func (c *client) leave() {
	c.b.mu.Lock()
	c.b.subs[c.en] = slices.DeleteFunc(c.b.subs[c.en], func(o *client) bool { return o == c })
	c.b.mu.Unlock()
	c.en.Release()
}

func (c *client) published(en *Entry, f Frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.en != en {
		return
	}
	c.last = f.Version
	switch {
	case c.behind || f.Version <= c.version:
	case f.Version > c.version+1:
		c.behind = true
	case c.drop != nil && c.drop():
		c.behind = true
	default:
		c.take(f)
	}
}

// catchUp reads pages of the log until the client is live.
func (c *client) catchUp(page int) {
	for {
		c.mu.Lock()
		en, after, behind := c.en, c.version, c.behind
		c.mu.Unlock()
		if !behind {
			return
		}
		frames, ok := en.Since(after, page)
		if !ok {
			frames = []Frame{en.Snapshot()}
		}
		c.mu.Lock()
		for _, f := range frames {
			c.take(f)
		}
		if ok && len(frames) < page && c.version >= c.last {
			c.behind = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
}

type patch struct {
	Type    string                       `json:"type"`
	QID     string                       `json:"qid"`
	Version uint64                       `json:"version"`
	Epoch   string                       `json:"epoch"`
	Key     []string                     `json:"key"`
	Rows    []map[string]json.RawMessage `json:"rows"`
	Sum     string                       `json:"sum"`
	Ops     []struct {
		Del json.RawMessage            `json:"del"`
		Put map[string]json.RawMessage `json:"put"`
		At  int                        `json:"at"`
	} `json:"ops"`
}

func (p patch) String() string {
	var out []string
	for _, o := range p.Ops {
		if o.Put == nil {
			out = append(out, "-"+string(o.Del))
		} else {
			out = append(out, fmt.Sprintf("+%s@%d", o.Put["id"], o.At))
		}
	}
	return strings.Join(out, " ")
}

func (c *client) keyOf(r map[string]json.RawMessage) string {
	if len(c.key) == 1 {
		return string(r[c.key[0]])
	}
	var out []string
	for _, k := range c.key {
		out = append(out, string(r[k]))
	}
	return "[" + strings.Join(out, ",") + "]"
}

func (c *client) find(key string) int {
	return slices.IndexFunc(c.rows, func(r map[string]json.RawMessage) bool { return c.keyOf(r) == key })
}

// take applies a frame as strictly as the protocol allows.
func (c *client) take(f Frame) {
	t := c.b.t
	var p patch
	if err := json.Unmarshal(f.Payload, &p); err != nil {
		t.Errorf("payload %q: %v", f.Payload, err)
		return
	}
	if p.Version != f.Version || p.QID != c.en.ID() || (p.Type == "snapshot") != f.Snapshot {
		t.Errorf("frame %d of %s: %s", f.Version, c.en.ID(), f.Payload)
	}
	c.frames++
	if p.Type == "snapshot" {
		c.rows, c.epoch, c.key = p.Rows, p.Epoch, p.Key
		c.snaps++
	} else {
		if p.Version != c.version+1 {
			t.Errorf("patch %d after version %d", p.Version, c.version)
		}
		c.patches = append(c.patches, p)
		for _, o := range p.Ops {
			key := string(o.Del)
			if o.Put != nil {
				key = c.keyOf(o.Put)
			}
			i := c.find(key)
			if i >= 0 {
				c.rows = slices.Delete(slices.Clone(c.rows), i, i+1)
			} else if o.Put == nil {
				t.Errorf("version %d: del of %s, which is not there: %s", p.Version, key, f.Payload)
			}
			if o.Put != nil {
				if o.At > len(c.rows) {
					t.Errorf("version %d: put at %d of %d: %s", p.Version, o.At, len(c.rows), f.Payload)
					return
				}
				c.rows = slices.Insert(slices.Clone(c.rows), o.At, o.Put)
			}
		}
	}
	c.version = p.Version
	if sum := c.sum(); sum != p.Sum {
		t.Errorf("version %d: the sum of the rows is %s, the frame says %s", p.Version, sum, p.Sum)
	}
}

func (c *client) sum() string {
	var sum uint64
	for _, r := range c.rows {
		raw, err := json.Marshal(r)
		if err != nil {
			c.b.t.Error(err)
		}
		canonical, err := row.CanonicalJSON(raw)
		if err != nil {
			c.b.t.Error(err)
		}
		sum += row.Checksum(canonical)
	}
	return fmt.Sprintf("%016x", sum)
}

// ids is what the client shows.
func (c *client) ids() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := []string{}
	for _, r := range c.rows {
		out = append(out, c.keyOf(r))
	}
	return strings.Join(out, " ")
}

// last patches, as text.
func (c *client) tail(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, p := range c.patches[max(0, len(c.patches)-n):] {
		out = append(out, p.String())
	}
	return strings.Join(out, " | ")
}

// check compares what a client shows with the query evaluated from nothing.
func (c *client) check(visible func(row.Row) bool) {
	c.b.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	q, bound := c.en.plan.q, c.en.bound
	var want []string
	err := c.b.db.Memory.Read(context.Background(), func(s feed.Snapshot) error {
		rows, err := s.Select(context.Background(), feed.Select{
			Table: q.Table,
			Match: func(r row.Row) bool { return bound.Match(r) == query.True && (visible == nil || visible(r)) },
			Less: func(x, y row.Row) bool {
				if q.Order == nil {
					return row.Compare(x[q.Table.Key[0]], y[q.Table.Key[0]], row.C) < 0
				}
				return q.Order.Compare(x, y) < 0
			},
			Limit: q.Definition.Limit,
		})
		for _, r := range rows {
			want = append(want, string(q.Projection.AppendJSON(nil, r)))
		}
		return err
	})
	if err != nil {
		c.b.t.Error(err)
	}
	var got []string
	for _, r := range c.rows {
		raw, _ := json.Marshal(r)
		canonical, _ := row.CanonicalJSON(raw)
		got = append(got, string(canonical))
	}
	if !slices.Equal(got, want) {
		c.b.t.Errorf("%s %s %s: version %d (entry %d, behind %v)\nshows %s\nis    %s", q.Definition.Name, q.Definition.Where, c.en.ident.text, c.version, c.en.Version(), c.behind, strings.Join(got, "\n      "), strings.Join(want, "\n      "))
	}
}
