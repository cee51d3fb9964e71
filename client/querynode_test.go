package client_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// cuts dials, and can cut what it has dialled.
type cuts struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cuts) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			c.mu.Lock()
			c.conns = append(c.conns, conn)
			c.mu.Unlock()
		}
		return conn, err
	}}}
}

func (c *cuts) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.conns = nil
}

// S14: a real node over a database, with random commits, cuts and another node in its place: the rows end as the database's, and never drift.
func TestS14_FollowsANode(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	rnd := rand.New(rand.NewPCG(seed, 2))
	typ := func(oid uint32) row.Type {
		typ, ok := row.PostgresType(oid, row.C)
		if !ok {
			t.Fatal(oid)
		}
		return typ
	}
	name := row.Name{Schema: "public", Table: "cards"}
	db := feed.NewMemory(&row.Table{Name: name, Key: []int{0}, Columns: []row.Column{
		{Name: "id", Type: typ(20), NotNull: true}, {Name: "lane", Type: typ(25)}, {Name: "title", Type: typ(25)}, {Name: "pos", Type: typ(20)},
	}})
	open := func(addr string) *node {
		s := startNode(t, addr, tidewire.Options{Database: db})
		def := query.Definition{Name: "board", From: "public.cards", Where: "lane = $lane", Order: "pos DESC", Limit: 6}
		if err := s.Query(tidewire.Query{Definition: def, Guard: tidewire.Public}); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open("")
	var line cuts
	c := s.connect(client.Options{HTTPClient: line.client()})
	follow := func(lane string) *client.LiveQuery {
		q, err := c.Query("board", map[string]string{"lane": lane}, client.QueryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return q
	}
	queries := map[string]*client.LiveQuery{"a": follow("a"), "b": follow("b")}

	type card struct {
		id, pos     int64
		lane, title string
	}
	have := map[int64]card{}
	want := func(lane string) (out []string) {
		var cards []card
		for _, c := range have {
			if c.lane == lane {
				cards = append(cards, c)
			}
		}
		slices.SortFunc(cards, func(a, b card) int { return cmp.Or(cmp.Compare(b.pos, a.pos), cmp.Compare(a.id, b.id)) })
		for _, c := range cards[:min(6, len(cards))] {
			out = append(out, fmt.Sprintf(`{"id":%d,"lane":%q,"pos":%d,"title":%q}`, c.id, c.lane, c.pos, c.title))
		}
		return out
	}
	settled := func() {
		t.Helper()
		for lane, q := range queries {
			eventually(t, "the rows of the database in lane "+lane, func() bool { return q.Live() && slices.Equal(texts(q.Rows()), want(lane)) })
		}
	}
	for i := range 600 {
		var writes []feed.Write
		for range 1 + rnd.IntN(3) {
			c := card{rnd.Int64N(30), rnd.Int64N(50), []string{"a", "b", "c"}[rnd.IntN(3)], fmt.Sprint("t", rnd.IntN(1000))}
			r := row.Row{row.IntValue(c.id), row.TextValue(c.lane), row.TextValue(c.title), row.IntValue(c.pos)}
			if rnd.IntN(4) == 0 {
				delete(have, c.id)
				writes = append(writes, feed.Write{Table: name, Old: r})
				continue
			}
			have[c.id] = c
			writes = append(writes, feed.Write{Table: name, New: r})
		}
		db.Commit(writes...)
		switch {
		case i == 300:
			s.stop()
			s = open(s.addr)
		case i%37 == 0:
			line.cut()
		case i%50 == 0:
			settled()
		}
	}
	settled()
	for lane, q := range queries {
		if q.Drifts() != 0 {
			t.Errorf("lane %s: %d drifts", lane, q.Drifts())
		}
	}
	for range 30 {
		queries["a"].Close()
		queries["a"] = follow("a") // under another sid
		settled()
	}
}
