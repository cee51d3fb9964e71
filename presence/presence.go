// Package presence keeps the roster of a channel: who is there, in the order of arrival, with a version that observers can follow.
//
// # What it promises
//
// A [Roster] has a true state, which [Roster.Join], [Roster.Leave], [Roster.Update] and [Roster.SetState] change at once, and a published state with a
// version, which [Roster.Publish] moves to the true one. Publish returns the difference; applied to the published state before it ([Apply] is the reference), it
// gives exactly the published state after it. An observer who has the snapshot at v and every difference up to w has the published state at w.
//
// # What is listed
//
// The published state is the listed part: the [wire.RosterLimit] members who have been there longest, in the order of arrival, and the total. So a room
// of any size costs an observer the same.
//
// # Members and sessions
//
// A member may be there with several sessions; it arrives with the first and leaves with the last. A session has an owner, the connection that
// speaks for it. When a client comes back on a new connection before the old one was noticed to be dead, the new one takes the session over,
// and the late end of the old one changes nothing.
//
// A Roster is not safe for concurrent use and keeps no time: its owner does both.
package presence

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/tidewire/tidewire/wire"
)

// Owner is what speaks for a session: compared, never used.
type Owner any

// Roster is the roster of one channel.
type Roster struct {
	channel     string
	members     map[string]*member
	first, last *member // by arrival

	version   uint64
	published []shown
	total     int

	snapshot []byte // of the published state with the states of now; nil when it must be made again
}

type member struct {
	id         string
	data       json.RawMessage
	sessions   []session
	arrival    *int // identity of this stay: a member who left and came back is another stay
	rev        uint64
	prev, next *member
}

type session struct {
	id    string
	owner Owner
	state json.RawMessage
	stay  *int // identity of this stay, as a member's arrival is
}

// shown is one published entry.
type shown struct {
	m       *member
	arrival *int
	rev     uint64
	view    wire.Member
	stays   []*int // of the sessions of view
}

// New returns an empty roster at version 1.
func New(channel string) *Roster {
	return &Roster{channel: channel, members: map[string]*member{}, version: 1}
}

// Len returns the number of members now.
func (r *Roster) Len() int { return len(r.members) }

// Version returns the published version.
func (r *Roster) Version() uint64 { return r.version }

// Join adds a session of a member, or gives it a new owner, and reports whether something changed that others can see. Nil data keeps what the member had.
func (r *Roster) Join(id, sess string, owner Owner, data json.RawMessage) bool {
	m := r.members[id]
	if m == nil {
		m = &member{id: id, data: data, arrival: new(int), prev: r.last}
		if r.last != nil {
			r.last.next = m
		} else {
			r.first = m
		}
		r.last = m
		r.members[id] = m
	}
	changed := false
	if data != nil && !bytes.Equal(data, m.data) {
		m.data = data
		changed = true
	}
	if i := m.find(sess); i >= 0 {
		m.sessions[i].owner = owner
	} else {
		m.sessions = append(m.sessions, session{id: sess, owner: owner, stay: new(int)})
		changed = true
	}
	if changed {
		m.rev++
	}
	return changed
}

// Leave ends a session if owner speaks for it, and reports whether it did.
func (r *Roster) Leave(id, sess string, owner Owner) bool {
	m := r.members[id]
	if m == nil {
		return false
	}
	i := m.find(sess)
	if i < 0 || m.sessions[i].owner != owner {
		return false
	}
	m.sessions = slices.Delete(m.sessions, i, i+1)
	m.rev++
	if len(m.sessions) > 0 {
		return true
	}
	delete(r.members, id)
	if m.prev != nil {
		m.prev.next = m.next
	} else {
		r.first = m.next
	}
	if m.next != nil {
		m.next.prev = m.prev
	} else {
		r.last = m.prev
	}
	return true
}

// Update replaces the data of a member, and reports whether owner's session is there and the data differ.
func (r *Roster) Update(id, sess string, owner Owner, data json.RawMessage) (there, changed bool) {
	m := r.owned(id, sess, owner)
	if m == nil {
		return false, false
	}
	if bytes.Equal(m.data, data) {
		return true, false
	}
	m.data = data
	m.rev++
	return true, true
}

// SetState replaces the state of a session. It reports whether owner's session is there, and whether observers know it already: if not, they get its state from
// [Roster.Publish]. Nil clears the state.
func (r *Roster) SetState(id, sess string, owner Owner, state json.RawMessage) (there, known bool) {
	m := r.owned(id, sess, owner)
	if m == nil {
		return false, false
	}
	s := &m.sessions[m.find(sess)]
	s.state = state
	r.snapshot = nil
	i := slices.IndexFunc(r.published, func(p shown) bool { return p.m == m })
	return true, i >= 0 && slices.Contains(r.published[i].stays, s.stay)
}

func (r *Roster) owned(id, sess string, owner Owner) *member {
	m := r.members[id]
	if m == nil {
		return nil
	}
	if i := m.find(sess); i < 0 || m.sessions[i].owner != owner {
		return nil
	}
	return m
}

func (m *member) find(sess string) int {
	return slices.IndexFunc(m.sessions, func(s session) bool { return s.id == sess })
}

// Owns reports whether owner speaks for the session.
func (r *Roster) Owns(id, sess string, owner Owner) bool { return r.owned(id, sess, owner) != nil }

func (m *member) show() shown {
	v := wire.Member{ID: m.id, Data: m.data, Sessions: make([]string, 0, min(len(m.sessions), wire.SessionsListed))}
	stays := make([]*int, 0, cap(v.Sessions))
	for i := range min(len(m.sessions), wire.SessionsListed) {
		v.Sessions = append(v.Sessions, m.sessions[i].id)
		stays = append(stays, m.sessions[i].stay)
	}
	if len(m.sessions) > wire.SessionsListed {
		v.SessionCount = len(m.sessions)
	}
	return shown{m, m.arrival, m.rev, v, stays}
}

// Publish moves the published state to the true one and returns the difference, and the states that observers must be told after it: those of sessions which it lists for the first
// time, and null for one that was there before, left and came back without. ok is false if there is no difference; the version stays then.
func (r *Roster) Publish() (diff wire.Roster, states []wire.State, ok bool) {
	next := make([]shown, 0, min(len(r.members), wire.RosterLimit))
	was := make(map[*int]*shown, len(r.published))
	for i := range r.published {
		was[r.published[i].arrival] = &r.published[i]
	}
	for m := r.first; m != nil && len(next) < wire.RosterLimit; m = m.next {
		old := was[m.arrival]
		switch {
		case old == nil:
			s := m.show()
			diff.Joins = append(diff.Joins, s.view)
			next = append(next, s)
			states = r.fresh(states, s, nil)
		case old.rev != m.rev:
			s := m.show()
			diff.Updates = append(diff.Updates, s.view)
			next = append(next, s)
			states = r.fresh(states, s, old)
		default:
			next = append(next, *old)
		}
		delete(was, m.arrival)
	}
	for _, s := range r.published {
		if _, gone := was[s.arrival]; gone {
			diff.Leaves = append(diff.Leaves, s.view.ID)
		}
	}
	if len(diff.Joins)+len(diff.Updates)+len(diff.Leaves) == 0 && r.total == len(r.members) {
		return wire.Roster{}, nil, false
	}
	r.published, r.total, r.snapshot = next, len(r.members), nil
	r.version++
	diff.Channel, diff.Version, diff.Total = r.channel, r.version, r.total
	return diff, states, true
}

// fresh appends the states of the sessions of now that was did not list.
func (r *Roster) fresh(states []wire.State, now shown, was *shown) []wire.State {
	for i, stay := range now.stays {
		if was != nil && slices.Contains(was.stays, stay) {
			continue
		}
		s := now.m.sessions[i]
		if s.state == nil && (was == nil || !slices.Contains(was.view.Sessions, s.id)) {
			continue
		}
		states = append(states, wire.State{Channel: r.channel, Member: now.m.id, Session: s.id, Data: s.state})
	}
	return states
}

// Snapshot returns the published state with the sessions' newest states, encoded. It is made once for each version and set of states. States are left out once they
// would take more than stateBytes together: an observer learns them when they change.
func (r *Roster) Snapshot(stateBytes int) []byte {
	if r.snapshot == nil {
		r.snapshot = r.View(stateBytes).Encode()
	}
	return r.snapshot
}

// View is Snapshot before it is encoded.
func (r *Roster) View(stateBytes int) wire.Roster {
	members := make([]wire.Member, len(r.published))
	for i, s := range r.published {
		members[i] = s.view
		for _, sess := range s.m.sessions {
			if sess.state == nil || !slices.Contains(s.view.Sessions, sess.id) || stateBytes < len(sess.state) {
				continue
			}
			stateBytes -= len(sess.state) + len(sess.id)
			if members[i].State == nil {
				members[i].State = map[string]json.RawMessage{}
			}
			members[i].State[sess.id] = sess.state
		}
	}
	return wire.Roster{Type: wire.TypePresence, Channel: r.channel, Version: r.version, Total: r.total, Snapshot: &members}
}

// Apply is what an observer does with a difference: leaves, then joins at the end, then updates in place.
func Apply(members []wire.Member, diff wire.Roster) []wire.Member {
	members = slices.DeleteFunc(slices.Clone(members), func(m wire.Member) bool { return slices.Contains(diff.Leaves, m.ID) })
	members = append(members, diff.Joins...)
	for _, u := range diff.Updates {
		if i := slices.IndexFunc(members, func(m wire.Member) bool { return m.ID == u.ID }); i >= 0 {
			members[i] = u
		}
	}
	return members
}
