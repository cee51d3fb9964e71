package tidewire

import (
	"context"
	"sync"
	"time"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/presence"
	"github.com/tidewire/tidewire/wire"
)

const (
	// rosterInterval is the least time between two roster messages of a channel.
	rosterInterval = 100 * time.Millisecond
	// sweepInterval is how often the ends of grace and late snapshots are looked for.
	sweepInterval = 250 * time.Millisecond
)

// room is the roster of a channel and its observers. Its changes are published under its lock, so that they leave in the order of their versions; publishing only queues.
type room struct {
	node    *Node
	channel string
	refs    int    // guarded by rooms.mu: who gets the roster, and members in grace
	release func() // gives back the channel, which the room holds: a roster in grace counts against the limit of channels

	mu     sync.Mutex // guards below
	roster *presence.Roster
	last   time.Time   // when a difference was last published
	timer  *time.Timer // set while a difference waits for its time
}

// rooms are the rooms of a node.
type rooms struct {
	node *Node

	mu      sync.Mutex // guards below
	m       map[string]*room
	graces  []grace // by deadline; at most one for each connection and channel that was lost within the grace
	late    []lateSnapshot
	stopped bool
}

// grace keeps a lost session in the roster until its deadline.
type grace struct {
	deadline time.Time
	room     *room
	member   string
	session  string
	owner    *session
	tenant   string // whose place it keeps
}

// lateSnapshot is owed to a connection whose queue had no room for it.
type lateSnapshot struct {
	s   *session
	sub *subscription
}

func (rs *rooms) init(n *Node) {
	rs.node = n
	rs.m = map[string]*room{}
}

func (rs *rooms) acquire(channel string) *room {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.m[channel]
	if r == nil {
		r = &room{node: rs.node, channel: channel, roster: presence.New(channel), release: func() {}}
		if release, err := rs.node.hub.Hold(channel); err == nil { // the caller is a member, so it exists
			r.release = release
		}
		rs.m[channel] = r
	}
	r.refs++
	return r
}

func (rs *rooms) release(r *room) {
	rs.mu.Lock()
	r.refs--
	last := r.refs == 0
	if last {
		delete(rs.m, r.channel)
	}
	rs.mu.Unlock()
	if last {
		r.stop() // takes room.mu, which comes before rooms.mu
		r.release()
	}
}

func (r *room) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}

// changedLocked publishes the difference now, or when the interval has passed.
func (r *room) changedLocked() {
	if r.timer != nil {
		return
	}
	wait := rosterInterval - time.Since(r.last)
	if wait <= 0 {
		r.flushLocked()
		return
	}
	r.timer = time.AfterFunc(wait, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.timer != nil {
			r.timer = nil
			r.flushLocked()
		}
	})
}

func (r *room) flushLocked() {
	diff, states, ok := r.roster.Publish()
	if !ok {
		return
	}
	r.last = time.Now()
	r.node.stats.rosterFrames.Add(1)
	r.sendLocked(diff.Encode(), hub.DropNewest, "", nil)
	for _, state := range states {
		r.sendStateLocked(state, nil)
	}
}

func (r *room) sendStateLocked(state wire.State, except *hub.Conn) {
	r.sendLocked(state.Encode(), hub.Latest, "state "+state.Session, except)
}

func (r *room) sendLocked(payload []byte, policy hub.Policy, key string, except *hub.Conn) {
	_, err := r.node.hub.Publish(r.channel, hub.Message{
		Policy: policy, Key: key, Mask: maskRoster, Except: except,
		Encode: func(d hub.Dialect) []byte {
			if d != dialectNative {
				return nil
			}
			return payload
		},
	})
	if err != nil {
		r.node.log.Error("roster message lost; observers will ask for a snapshot", "channel", r.channel, "error", err)
	}
}

// joinRoom gives a subscription the roster, and makes its session a member, or, if it only observes, none.
func (s *session) joinRoom(sub *subscription, wish *wire.PresenceWish) {
	first := sub.room == nil
	if first {
		sub.room = s.node.rooms.acquire(sub.channel)
	}
	r := sub.room
	id, member := s.identity()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case wish.Observe && sub.joined:
		sub.joined = false
		if r.roster.Leave(member, id, s) {
			r.changedLocked()
		}
	case !wish.Observe:
		data := wish.Data
		if sub.joined {
			data = nil // a beat changes nothing: another session of the member may have updated it
		}
		if r.roster.Join(member, id, s, data) {
			r.changedLocked()
		}
		sub.joined = true
	}
	if first || wish.Resync {
		s.sendSnapshotLocked(sub)
	}
}

// snapshotInterval is the least time between two snapshots of a roster for one connection: they are large, and cheap to ask for.
const snapshotInterval = time.Second

// sendSnapshotLocked queues the roster, and from there on the differences. sub.room.mu is held.
func (s *session) sendSnapshotLocked(sub *subscription) {
	n := s.node
	if sub.owed {
		return
	}
	if time.Since(sub.snapAt) < snapshotInterval {
		n.rooms.oweSnapshot(s, sub)
		return
	}
	snap := sub.room.roster.Snapshot(n.opts.Limits.QueueBytes / 8)
	if _, waiting := s.conn.Buffered(); waiting > 0 && waiting+len(snap) > n.opts.Limits.QueueBytes/2 {
		// Many rosters at once would overflow the queue of a connection that does nothing wrong.
		n.rooms.oweSnapshot(s, sub)
		return
	}
	sub.snapAt = time.Now()
	_ = s.conn.Join(sub.channel, maskMessages|maskRoster, snap)
}

func (rs *rooms) oweSnapshot(s *session, sub *subscription) {
	sub.owed = true
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.late = append(rs.late, lateSnapshot{s, sub})
}

// leaveRoom takes a subscription out of its room, at once or after the grace, which it reports.
func (s *session) leaveRoom(sub *subscription, abrupt bool) (kept bool) {
	r := sub.room
	if r == nil {
		return false
	}
	sub.room = nil
	n := s.node
	id, member := s.identity()
	if sub.joined && abrupt && n.opts.PresenceGrace > 0 && n.rooms.keep(grace{time.Now().Add(n.opts.PresenceGrace), r, member, id, s, sub.tenant}) {
		return true // the grace holds the room
	}
	if sub.joined {
		r.leave(member, id, s)
	}
	n.rooms.release(r)
	return false
}

func (r *room) leave(member, id string, owner *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.roster.Leave(member, id, owner) {
		r.changedLocked()
	}
}

// keep begins a grace. It reports false when the node is stopping.
func (rs *rooms) keep(g grace) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.stopped {
		return false
	}
	rs.graces = append(rs.graces, g)
	return true
}

func (s *session) updatePresence(c wire.Command) error {
	return s.inRoom(c, func(r *room, member, id string) bool {
		there, changed := r.roster.Update(member, id, s, c.Data)
		if changed {
			r.changedLocked()
		}
		return there
	})
}

func (s *session) setState(c wire.Command) error {
	return s.inRoom(c, func(r *room, member, id string) bool {
		data := c.Data
		if string(data) == "null" {
			data = nil
		}
		there, known := r.roster.SetState(member, id, s, data)
		if known {
			r.sendStateLocked(wire.State{Channel: c.Channel, Member: member, Session: id, Data: data}, s.conn)
		}
		return there
	})
}

func (s *session) inRoom(c wire.Command, do func(r *room, member, id string) bool) error {
	notJoined := wire.Errorf(wire.CodePresenceNotJoined, "this session is not in the roster")
	sub := s.find(c.Channel)
	if sub == nil || sub.room == nil || !sub.joined {
		return notJoined
	}
	id, member := s.identity()
	sub.room.mu.Lock()
	defer sub.room.mu.Unlock()
	if !do(sub.room, member, id) {
		return notJoined
	}
	return nil
}

// Roster returns the members of a channel on this node: the listed part and the total.
func (n *Node) Roster(channel string) wire.Roster {
	n.rooms.mu.Lock()
	r := n.rooms.m[channel]
	n.rooms.mu.Unlock()
	if r == nil {
		return wire.Roster{Type: wire.TypePresence, Channel: channel, Snapshot: &[]wire.Member{}}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roster.View(n.opts.Limits.QueueBytes / 8)
}

// sweepLoop ends graces, sends late snapshots and takes out members that do not beat.
func (rs *rooms) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	nextTTL := time.Now()
	ttlEvery := min(rs.node.opts.PresenceTTL/4, 10*time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			rs.sweep(now)
			rs.node.logDropped()
			if now.After(nextTTL) {
				nextTTL = now.Add(ttlEvery)
				rs.sweepSilent(now)
			}
		}
	}
}

func (rs *rooms) sweep(now time.Time) {
	rs.mu.Lock()
	due := 0
	for due < len(rs.graces) && !rs.graces[due].deadline.After(now) {
		due++
	}
	over := rs.graces[:due:due]
	rs.graces = rs.graces[due:]
	late := rs.late
	rs.late = nil
	rs.mu.Unlock()
	rs.end(over)
	for _, l := range late {
		l.s.conn.Go(l.sub.channel, func() {
			l.sub.owed = false
			if r := l.sub.room; r != nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				l.s.sendSnapshotLocked(l.sub)
			}
		})
	}
}

func (rs *rooms) end(over []grace) {
	for _, g := range over {
		g.room.leave(g.member, g.session, g.owner)
		rs.release(g.room)
		rs.node.tenants.release(g.tenant)
	}
}

// sweepSilent takes sessions out of rosters that have not repeated their subscribe for PresenceTTL. They still get the roster.
func (rs *rooms) sweepSilent(now time.Time) {
	n := rs.node
	n.eachSession(func(s *session) {
		s.mu.Lock()
		var silent []*subscription
		for _, sub := range s.subs {
			if now.Sub(sub.beat) > n.opts.PresenceTTL {
				silent = append(silent, sub)
			}
		}
		s.mu.Unlock()
		for _, sub := range silent {
			s.conn.Go(sub.channel, func() {
				if sub.room == nil || !sub.joined {
					return
				}
				s.mu.Lock()
				came := time.Since(sub.beat) <= n.opts.PresenceTTL
				s.mu.Unlock()
				if came {
					return
				}
				sub.joined = false
				id, member := s.identity()
				sub.room.leave(member, id, s)
			})
		}
	})
}

// stop ends all graces, so that nobody is left in a roster, and every timer.
func (rs *rooms) stop() {
	rs.mu.Lock()
	rs.stopped = true
	over := rs.graces
	rs.graces, rs.late = nil, nil
	rs.mu.Unlock()
	rs.end(over)
	rs.mu.Lock()
	left := make([]*room, 0, len(rs.m))
	for _, r := range rs.m {
		left = append(left, r)
	}
	rs.mu.Unlock()
	for _, r := range left {
		r.stop()
	}
}
