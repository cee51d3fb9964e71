package client

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/tidewire/tidewire/presence"
	"github.com/tidewire/tidewire/wire"
)

// Roster is who is in a channel.
type Roster struct {
	Version uint64
	// Total counts all members, Members holds those that the server lists, in the order of arrival, with the states of their sessions.
	Total   int
	Members []wire.Member
}

// roster follows the server's roster of one channel.
type roster struct {
	synced  bool // a snapshot of this connection has come, and no difference was missed since
	resync  bool // a snapshot was asked for
	version uint64
	total   int
	members []wire.Member
	shared  bool        // members was given out
	own     MemberState // what this session sent: the server does not send it back
}

// restart is called for a new connection: what is known is shown until its snapshot comes.
func (r *roster) restart() { r.synced, r.resync, r.own = false, false, MemberState{} }

// apply takes a presence message. gap says that differences are missing.
func (r *roster) apply(m *incoming) (changed, gap bool) {
	switch {
	case m.Snapshot != nil:
		r.members = *m.Snapshot
		r.synced, r.resync = true, false
	case !r.synced:
		return false, false // a snapshot is on the way
	case m.Version <= r.version:
		return false, false
	case m.Version != r.version+1:
		r.synced = false
		return false, true
	default:
		r.diff(m)
	}
	r.version, r.total, r.shared = m.Version, m.Total, false
	return true, false
}

// diff applies the difference to the version before. Members in it come without states: those of sessions that stay are kept.
func (r *roster) diff(m *incoming) {
	states := map[string]map[string]json.RawMessage{}
	for _, old := range r.members {
		if old.State != nil && !slices.Contains(m.Leaves, old.ID) {
			states[old.ID] = old.State
		}
	}
	if own := r.own; own.Data != nil {
		states[own.Member] = with(states[own.Member], own.Session, own.Data)
	}
	r.members = presence.Apply(r.members, wire.Roster{Leaves: m.Leaves, Joins: m.Joins, Updates: m.Updates})
	for _, changed := range [][]wire.Member{m.Joins, m.Updates} {
		for _, c := range changed {
			if i := r.find(c.ID); i >= 0 {
				r.members[i].State = statesOf(r.members[i], states[c.ID])
			}
		}
	}
}

// statesOf returns the states of a member's listed sessions, of those it had.
func statesOf(m wire.Member, had map[string]json.RawMessage) map[string]json.RawMessage {
	var state map[string]json.RawMessage
	for _, session := range m.Sessions {
		if data, ok := had[session]; ok {
			if state == nil {
				state = map[string]json.RawMessage{}
			}
			state[session] = data
		}
	}
	return state
}

func (r *roster) find(id string) int {
	return slices.IndexFunc(r.members, func(m wire.Member) bool { return m.ID == id })
}

// setState takes the newest state of a session. Null clears it.
func (r *roster) setState(member, session string, data json.RawMessage) {
	cleared := len(data) == 0 || string(data) == "null"
	i := r.find(member)
	if i < 0 || !slices.Contains(r.members[i].Sessions, session) {
		return // not known here
	}
	if r.shared {
		r.members, r.shared = slices.Clone(r.members), false
	}
	if cleared {
		data = nil
	}
	r.members[i].State = with(r.members[i].State, session, data)
}

// with returns a copy of states in which the session's is data, or none.
func with(states map[string]json.RawMessage, session string, data json.RawMessage) map[string]json.RawMessage {
	states = maps.Clone(states)
	switch {
	case data == nil:
		delete(states, session)
	case states == nil:
		states = map[string]json.RawMessage{session: data}
	default:
		states[session] = data
	}
	if len(states) == 0 {
		return nil
	}
	return states
}

// setOwn takes the state that this session sends.
func (r *roster) setOwn(member, session string, data json.RawMessage) {
	r.own = MemberState{member, session, data}
	if string(data) == "null" {
		r.own.Data = nil
	}
	r.setState(member, session, data)
}

func (r *roster) view() Roster {
	r.shared = true
	return Roster{Version: r.version, Total: r.total, Members: r.members}
}
