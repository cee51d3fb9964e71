package client

import (
	"encoding/json"
	"time"

	"github.com/tidewire/tidewire/wire"
)

// SetWall replaces the clock that goes on while the machine sleeps. It is called before Run.
func (c *Client) SetWall(f func() time.Time) { c.wall = f }

// Follower follows a roster without a connection.
type Follower struct{ r roster }

// Apply takes a presence message and reports whether a difference is missing.
func (f *Follower) Apply(frame []byte) (gap bool) {
	var m incoming
	if err := json.Unmarshal(frame, &m); err != nil {
		panic(err)
	}
	_, gap = f.r.apply(&m)
	return gap
}

// SetState takes a state message.
func (f *Follower) SetState(s wire.State) { f.r.setState(s.Member, s.Session, s.Data) }

// View returns the roster.
func (f *Follower) View() Roster { return f.r.view() }

// Handle lets a connected client, which is at offset 5 of channel a and version 5 of the query with the sid 2 and the qid q, take a message. It returns false if it is not JSON of the protocol.
func Handle(frame []byte, opts SubscribeOptions) bool {
	c, err := New(Options{URL: "ws://test"})
	if err != nil {
		panic(err)
	}
	l := newLink(c, nil)
	l.handle(&incoming{Type: wire.TypeWelcome})
	s, err := c.Subscribe("a", opts)
	if err != nil {
		panic(err)
	}
	l.frameLocked(command{kind: wire.TypeSubscribe, sub: s}, time.Now())
	l.handle(&incoming{Type: wire.TypeSubscribed, SID: s.sid, Channel: "a", Offset: new(uint64(5)), Epoch: "e"})
	q, err := c.Query("q", nil, QueryOptions{OnChange: func(Result) {}, OnRefused: opts.OnRefused})
	if err != nil {
		panic(err)
	}
	l.frameLocked(command{kind: wire.TypeSubscribe, query: q}, time.Now())
	l.handle(&incoming{Type: wire.TypeSubscribed, SID: q.sid, QID: "q"})
	l.handle(&incoming{
		Type: wire.TypeSnapshot, QID: "q", Version: 5, Epoch: "e", Key: keyMember{columns: []string{"id"}}, Rows: []json.RawMessage{[]byte(`{"id":1}`), []byte(`{"id":2}`)},
	})
	var m incoming
	if json.Unmarshal(frame, &m) != nil {
		return false
	}
	l.handle(&m)
	return true
}
