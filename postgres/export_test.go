package postgres

import (
	"context"
	"log/slog"

	"github.com/tidewire/tidewire/feed"
)

// Stream takes messages of pgoutput without a server. Its database follows the table t (id int, body text) with the OID 1.
func Stream(sink feed.Sink, limit int) (take func([]byte) error) {
	d := &Database{opts: Options{MaxTransaction: limit}, log: slog.New(slog.DiscardHandler)}
	d.tables.put(&description{
		OID: 1, Schema: "public", Name: "t", Kind: "r", Persistence: "p", Identity: "f", Covered: true, Primary: []string{"id"},
		Columns: []column{{Name: "id", Type: 23, Mod: -1}, {Name: "body", Type: 25, Mod: -1}},
	})
	s := &stream{d: d, sink: sink, relations: map[uint32]*source{}}
	return s.take
}

// Fits reports whether a message is no relation that only a server can explain.
func Fits(payload []byte) bool {
	if len(payload) == 0 || payload[0] != 'R' {
		return true
	}
	m := message{s: string(payload[1:])}
	r, err := m.relation()
	return err != nil || r.oid != 1 || len(r.columns) == 2 && r.columns[0] == (relationColumn{"id", 23, -1, r.columns[0].key}) && r.columns[1] == (relationColumn{"body", 25, -1, r.columns[1].key})
}

// Widen is widen.
func Widen(xid uint32, recent uint64) uint64 { return widen(xid, recent) }

// ParseFence reads a snapshot.
func ParseFence(s string) (feed.Fence, error) {
	f, err := parseFence(s)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// XIDs is a set of transaction ids.
type XIDs struct{ set xidSet }

// Add adds an id.
func (x *XIDs) Add(xid uint64) { x.set.add(xid) }

// HiddenFrom returns an id that a snapshot does not see.
func (x *XIDs) HiddenFrom(f feed.Fence) (uint64, bool) { return x.set.hiddenFrom(f.(*fence)) }

// XIDSpan is how far back they are remembered.
const XIDSpan = xidSpan

// RunBacklog runs the feed from where the slot is, and not from now.
func (d *Database) RunBacklog(ctx context.Context, sink feed.Sink) error {
	return (&runner{d: d, sink: sink, begun: true}).run(ctx)
}
