package hub

import (
	"errors"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Errors of joining.
var (
	// ErrChannelLimit means that the hub holds [Options.MaxChannels] channels.
	ErrChannelLimit = errors.New("hub: too many channels")
	// ErrConnChannelLimit means that the connection holds [Options.MaxChannelsPerConn] memberships.
	ErrConnChannelLimit = errors.New("hub: too many channels on one connection")
	// ErrClosed means that the connection is closed or closing.
	ErrClosed = errors.New("hub: connection closed")
)

// chunkSize bounds what a join or a leave copies. A fan-out reads one chunk without a lock.
const chunkSize = 64

// channel is a set of members.
//
// A fan-out reads the table and its chunks without mu: a chunk's slice is never changed, only replaced, and a member never moves to
// another chunk while it could be missed there. Members join where there is room and leave from their own chunk. When most of the table is empty it is
// built anew, and fan-outs that still hold the old one find there everyone who was a member when they began.
type channel struct {
	name string

	// order is held while one publication is queued to everyone, so that all see the same order. It is never held during I/O. seq numbers the publications.
	order sync.Mutex
	seq   atomic.Uint64
	last  atomic.Uint64 // the offset of the last publication that had one, set before any member gets it

	mu    sync.Mutex // guards below; taken after a connection's lock, never before
	table atomic.Pointer[[]*chunk]
	room  []*chunk // chunks with fewer than chunkSize members
	n     int
	holds int // reservations and members being added: the channel stays while it is not zero
	dead  bool
}

type chunk struct {
	subs   atomic.Pointer[[]*Sub]
	inRoom bool // guarded by channel.mu
}

// Sub is the membership of one connection in one channel.
type Sub struct {
	conn  *Conn
	ch    *channel
	chunk *chunk // guarded by ch.mu
	since uint64 // the last publication that began before it joined: one who leaves and joins again meanwhile must not get it twice

	// Guarded by conn.mu.
	pos    *position // in the channel's log, or nil
	marker *frame    // the mark at the end of the queue, if no publication of the channel stands behind it
	mask   Mask
	left   bool
}

// add makes s a member.
func (ch *channel) add(s *Sub) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	s.since = ch.seq.Load()
	var k *chunk
	if n := len(ch.room); n > 0 {
		k = ch.room[n-1]
	} else {
		k = &chunk{inRoom: true}
		k.subs.Store(new([]*Sub))
		var table []*chunk
		if t := ch.table.Load(); t != nil {
			table = *t
		}
		// A reader of the old header never looks past its length, so the arrays may be shared.
		table = append(table, k)
		ch.table.Store(&table)
		ch.room = append(ch.room, k)
	}
	old := *k.subs.Load()
	next := make([]*Sub, len(old)+1)
	copy(next, old)
	next[len(old)] = s
	k.subs.Store(&next)
	s.chunk = k
	if len(next) == chunkSize {
		k.inRoom = false
		ch.room = ch.room[:len(ch.room)-1]
	}
	ch.n++
}

// remove ends a membership and returns the number of members left.
func (ch *channel) remove(s *Sub) int {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	k := s.chunk
	if k == nil {
		return ch.n
	}
	s.chunk = nil
	old := *k.subs.Load()
	next := make([]*Sub, 0, len(old)-1)
	for _, o := range old {
		if o != s {
			next = append(next, o)
		}
	}
	k.subs.Store(&next)
	if !k.inRoom {
		k.inRoom = true
		ch.room = append(ch.room, k)
	}
	ch.n--
	if t := *ch.table.Load(); len(t) > 4 && ch.n < len(t)*chunkSize/4 {
		ch.rebuildLocked(t)
	}
	return ch.n
}

// rebuildLocked packs the members of a sparse table into a new one, which replaces it at once: a fan-out that begins meanwhile misses nobody.
func (ch *channel) rebuildLocked(old []*chunk) {
	all := make([]*Sub, 0, ch.n)
	for _, k := range old {
		all = append(all, *k.subs.Load()...)
	}
	table := make([]*chunk, 0, len(all)/chunkSize+1)
	ch.room = nil
	for part := range slices.Chunk(all, chunkSize) {
		k := &chunk{inRoom: len(part) < chunkSize}
		k.subs.Store(new(slices.Clone(part)))
		for _, s := range part {
			s.chunk = k
		}
		if k.inRoom {
			ch.room = append(ch.room, k)
		}
		table = append(table, k)
	}
	ch.table.Store(&table)
}

func (ch *channel) size() int {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	return ch.n
}

// each calls f for every member, without a lock, until f returns false.
func (ch *channel) each(f func(*Sub) bool) {
	t := ch.table.Load()
	if t == nil {
		return
	}
	for _, k := range *t {
		for _, s := range *k.subs.Load() {
			if !f(s) {
				return
			}
		}
	}
}

// channelMap finds channels by name, sharded so that joins of different channels do not meet.
type channelMap struct {
	seed   maphash.Seed
	shards [64]channelShard
	count  atomic.Int64
	max    int64
	free   string // prefix of the names that do not count
}

type channelShard struct {
	mu sync.RWMutex
	m  map[string]*channel
	_  [64]byte
}

func (cm *channelMap) init(limit int64, free string) {
	cm.seed = maphash.MakeSeed()
	cm.max, cm.free = limit, free
}

// counts reports whether a channel counts against the limit.
func (cm *channelMap) counts(name string) bool {
	return cm.free == "" || !strings.HasPrefix(name, cm.free)
}

func (cm *channelMap) shard(name string) *channelShard {
	return &cm.shards[maphash.String(cm.seed, name)&63]
}

func (cm *channelMap) get(name string) *channel {
	s := cm.shard(name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.m[name]
}

// hold returns the channel, made if there is none, and keeps it in the map until release.
func (cm *channelMap) hold(name string) (*channel, error) {
	s := cm.shard(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	ch := s.m[name]
	if ch == nil {
		if cm.counts(name) && cm.count.Add(1) > cm.max {
			cm.count.Add(-1)
			return nil, ErrChannelLimit
		}
		ch = &channel{name: name}
		if s.m == nil {
			s.m = make(map[string]*channel)
		}
		s.m[name] = ch
	}
	ch.mu.Lock()
	ch.holds++
	ch.mu.Unlock()
	return ch, nil
}

// release gives a hold back.
func (cm *channelMap) release(ch *channel) { cm.drop(ch, 1) }

// drop gives back holds and removes the channel when nothing keeps it.
func (cm *channelMap) drop(ch *channel, holds int) {
	s := cm.shard(ch.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.holds -= holds
	if ch.holds == 0 && ch.n == 0 && !ch.dead {
		ch.dead = true
		delete(s.m, ch.name)
		if cm.counts(ch.name) {
			cm.count.Add(-1)
		}
	}
}
