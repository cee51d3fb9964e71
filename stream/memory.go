package stream

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// MemoryOptions configures a [Memory].
type MemoryOptions struct {
	// MaxLogs bounds the logs. Past it, one that was not used for long and is not watched is lost. Zero means 100,000.
	MaxLogs int
	// MaxBytes bounds the memory of all entries and keys. Past it the largest logs lose their older entries, small ones keep theirs. Zero means 256 MiB.
	MaxBytes int64
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time
}

// Memory keeps logs in memory: they are lost with the process, and the epochs tell.
//
// It holds no goroutine. What has expired is freed when its log is used, and, of other logs, as appends go on.
type Memory struct {
	maxLogs  int
	maxBytes int64
	now      func() time.Time
	bytes    atomic.Int64

	mu         sync.Mutex // guards below; taken before memoryLog.mu
	logs       map[string]*memoryLog
	generation string // the epoch of logs that do not exist; it changes when a log is removed
}

// NewMemory makes a store.
func NewMemory(opts MemoryOptions) *Memory {
	m := &Memory{maxLogs: opts.MaxLogs, maxBytes: opts.MaxBytes, now: opts.Now, logs: map[string]*memoryLog{}, generation: NewEpoch()}
	if m.maxLogs <= 0 {
		m.maxLogs = 100_000
	}
	if m.maxBytes <= 0 {
		m.maxBytes = 256 << 20
	}
	if m.now == nil {
		m.now = time.Now
	}
	return m
}

// NewEpoch returns a text that was never an epoch before.
func NewEpoch() string { return rand.Text()[:10] }

// memoryLog is the log of one name. It exists while it has had an append, or is watched.
type memoryLog struct {
	name string

	// order is held while one entry is appended and shown to the watchers; mu only for moments, so that readers do not wait for watchers. order comes before mu.
	order sync.Mutex

	mu       sync.Mutex // guards below
	epoch    string
	gone     bool // removed from the store: look again
	head     uint64
	entries  []Entry // the newest; those before start are trimmed
	start    int
	bytes    int64 // of the data of the kept entries
	keys     map[string]uint64
	keyAges  []keyAge // in the order of their appends; a key is in keys as long as it is here
	retain   Retention
	used     time.Time
	watchers []*watcher
}

type keyAge struct {
	key string
	at  time.Time
}

type watcher struct{ f func(epoch string, e Entry) }

// What an entry and a key cost beside their bytes, about.
const (
	entryOverhead = 64
	keyOverhead   = 128
)

// log returns the log of a name, or nil. With make it makes one.
func (m *Memory) log(name string, create bool) *memoryLog {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.logs[name]
	if l == nil && create {
		for len(m.logs) >= m.maxLogs && m.evictLocked() {
		}
		l = &memoryLog{name: name, epoch: m.generation, used: m.now()}
		m.logs[name] = l
	}
	return l
}

// Append implements [Store].
func (m *Memory) Append(ctx context.Context, name string, data []byte, opts AppendOptions) (Appended, error) {
	if err := Check(name, data, opts); err != nil {
		return Appended{}, err
	}
	if err := ctx.Err(); err != nil {
		return Appended{}, err
	}
	for {
		l := m.log(name, true)
		if a, ok := m.append(l, data, opts); ok {
			m.shrink(l)
			return a, nil
		}
	}
}

// append reports false if the log was removed meanwhile.
func (m *Memory) append(l *memoryLog, data []byte, opts AppendOptions) (Appended, bool) {
	l.order.Lock()
	defer l.order.Unlock()
	now := m.now()
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		return Appended{}, false
	}
	l.used = now
	grown := l.forgetKeysLocked(now, MaxKeys) + l.trimLocked(l.retain, now) // what has expired stays away, whatever is retained from now on
	if opts.Key != "" {
		if offset, known := l.keys[opts.Key]; known {
			epoch := l.epoch
			l.mu.Unlock()
			m.bytes.Add(grown)
			return Appended{Position{offset, epoch}, true}, true
		}
	}
	l.head++
	e := Entry{Offset: l.head, Time: now, Data: data}
	l.entries = append(l.entries, e)
	l.bytes += int64(len(data))
	grown += int64(len(data)) + entryOverhead
	if opts.Key != "" {
		grown += l.forgetKeysLocked(now, MaxKeys-1)
		if l.keys == nil {
			l.keys = map[string]uint64{}
		}
		l.keys[opts.Key] = l.head
		l.keyAges = append(l.keyAges, keyAge{opts.Key, now})
		grown += int64(len(opts.Key)) + keyOverhead
	}
	l.retain = opts.Retain
	grown += l.trimLocked(l.retain, now)
	a := Appended{Position: Position{l.head, l.epoch}}
	watchers := l.watchers // replaced, never changed
	l.mu.Unlock()
	m.bytes.Add(grown)
	for _, w := range watchers {
		w.f(a.Epoch, e)
	}
	return a, true
}

// forgetKeysLocked forgets old keys, and the oldest beyond keep, and returns the change of the memory in use.
func (l *memoryLog) forgetKeysLocked(now time.Time, keep int) (grown int64) {
	n := 0
	for n < len(l.keyAges) && (len(l.keyAges)-n > keep || now.Sub(l.keyAges[n].at) > KeyWindow) {
		delete(l.keys, l.keyAges[n].key)
		grown -= int64(len(l.keyAges[n].key)) + keyOverhead
		l.keyAges[n] = keyAge{}
		n++
	}
	l.keyAges = l.keyAges[n:]
	if len(l.keyAges) == 0 {
		l.keys, l.keyAges = nil, nil
	}
	return grown
}

// trimLocked removes the oldest entries that r does not keep and returns the change of the memory in use.
func (l *memoryLog) trimLocked(r Retention, now time.Time) (grown int64) {
	for l.start < len(l.entries) {
		e := &l.entries[l.start]
		over := r.Count > 0 && len(l.entries)-l.start > r.Count ||
			r.Age > 0 && now.Sub(e.Time) > r.Age ||
			r.Bytes > 0 && l.bytes > r.Bytes && l.start < len(l.entries)-1
		if !over {
			break
		}
		l.bytes -= int64(len(e.Data))
		grown -= int64(len(e.Data)) + entryOverhead
		*e = Entry{}
		l.start++
	}
	switch {
	case l.start == len(l.entries):
		l.entries, l.start = nil, 0
	case l.start > 16 && l.start > len(l.entries)/2:
		l.entries = append(make([]Entry, 0, len(l.entries)-l.start+16), l.entries[l.start:]...)
		l.start = 0
	}
	return grown
}

func (l *memoryLog) headLocked() Head {
	return Head{Position{l.head, l.epoch}, l.head - uint64(len(l.entries)-l.start) + 1}
}

// sample is how many logs are looked at to find one to take from.
const sample = 16

// shrink brings the memory of all logs under its bound after l has grown. It takes from the largest log of some, so that who fills much loses first, and the small logs of others stay.
func (m *Memory) shrink(l *memoryLog) {
	for m.bytes.Load() > m.maxBytes {
		m.mu.Lock()
		largest, size := l, l.size()
		seen := 0
		for _, o := range m.logs { // in random order
			if n := o.size(); n > size {
				largest, size = o, n
			}
			if seen++; seen == sample {
				break
			}
		}
		m.mu.Unlock()
		freed := largest.halve(m.now())
		m.bytes.Add(freed)
		if freed == 0 { // nothing is left but the newest entries
			return
		}
	}
}

// size is about what a log costs.
func (l *memoryLog) size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes + int64(len(l.entries)-l.start)*entryOverhead + int64(len(l.keyAges))*keyOverhead
}

// halve frees what has expired, and the older half of the rest, and returns the change of the memory in use.
func (l *memoryLog) halve(now time.Time) (grown int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	grown = l.trimLocked(l.retain, now)
	if n := len(l.entries) - l.start; n > 1 {
		return grown + l.trimLocked(Retention{Count: (n + 1) / 2}, now)
	}
	return grown + l.forgetKeysLocked(now, len(l.keyAges)/2)
}

// evictLocked removes the log used least recently among some that nobody watches, and reports whether there was one.
func (m *Memory) evictLocked() bool {
	var oldest *memoryLog
	var since time.Time
	seen := 0
	for _, l := range m.logs { // in random order
		l.mu.Lock()
		idle, used := len(l.watchers) == 0, l.used
		l.mu.Unlock()
		if idle && (oldest == nil || used.Before(since)) {
			oldest, since = l, used
		}
		if seen++; seen >= sample && oldest != nil || seen == 16*sample {
			break
		}
	}
	return oldest != nil && m.removeLocked(oldest)
}

// removeLocked loses a log that nobody watches, or reports false.
func (m *Memory) removeLocked(l *memoryLog) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.watchers) > 0 {
		return false
	}
	l.gone = true
	m.freeLocked(l)
	delete(m.logs, l.name)
	m.generation = NewEpoch()
	return true
}

// freeLocked takes everything out of a log.
func (m *Memory) freeLocked(l *memoryLog) {
	free := l.bytes + int64(len(l.entries)-l.start)*entryOverhead
	for _, k := range l.keyAges {
		free += int64(len(k.key)) + keyOverhead
	}
	m.bytes.Add(-free)
	l.head, l.entries, l.start, l.bytes, l.keys, l.keyAges = 0, nil, 0, 0, nil, nil
}

// Head implements [Store].
func (m *Memory) Head(ctx context.Context, name string) (Head, error) {
	p, err := m.Read(ctx, name, Position{}, 0)
	if errors.Is(err, ErrGap) { // it begins later
		err = nil
	}
	return p.Head, err
}

// Read implements [Store].
func (m *Memory) Read(ctx context.Context, name string, after Position, limit int) (Page, error) {
	if err := CheckName(name); err != nil {
		return Page{}, err
	}
	if err := ctx.Err(); err != nil {
		return Page{}, err
	}
	m.mu.Lock()
	l := m.logs[name]
	generation := m.generation
	m.mu.Unlock()
	if l == nil {
		p := Page{Head: Head{Position{0, generation}, 1}}
		if !p.Head.Continues(after) {
			return p, ErrGap
		}
		return p, nil
	}
	now := m.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = now
	m.bytes.Add(l.trimLocked(l.retain, now))
	p := Page{Head: l.headLocked()}
	if !p.Head.Continues(after) {
		return p, ErrGap
	}
	from := l.start + int(after.Offset+1-p.Head.First)
	to, bytes := from, 0
	for to < len(l.entries) && to-from < limit {
		if bytes += len(l.entries[to].Data); bytes > MaxPageBytes && to > from {
			break
		}
		to++
	}
	p.Entries = slices.Clone(l.entries[from:to])
	return p, nil
}

// Trim implements [Store].
func (m *Memory) Trim(ctx context.Context, name string, r Retention) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if l := m.log(name, false); l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		m.bytes.Add(l.trimLocked(r, m.now()))
	}
	return nil
}

// Reset implements [Store].
func (m *Memory) Reset(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	l := m.logs[name]
	if l == nil || m.removeLocked(l) {
		return nil
	}
	l.mu.Lock() // its watchers stay
	defer l.mu.Unlock()
	m.freeLocked(l)
	m.generation = NewEpoch()
	l.epoch = m.generation // it stays that of the name when the watchers have gone
	return nil
}

// Watch implements [Store].
func (m *Memory) Watch(name string, f func(epoch string, e Entry)) (stop func(), err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	w := &watcher{f}
	for {
		l := m.log(name, true)
		l.mu.Lock()
		if l.gone {
			l.mu.Unlock()
			continue
		}
		l.watchers = append(append([]*watcher(nil), l.watchers...), w)
		l.mu.Unlock()
		return sync.OnceFunc(func() { m.unwatch(l, w) }), nil
	}
}

// unwatch returns when w is not called any more.
func (m *Memory) unwatch(l *memoryLog, w *watcher) {
	l.order.Lock()
	defer l.order.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	l.mu.Lock()
	kept := make([]*watcher, 0, len(l.watchers))
	for _, o := range l.watchers {
		if o != w {
			kept = append(kept, o)
		}
	}
	l.watchers = kept
	// One that was only watched is as if it had never been: its epoch is that of unknown names, unless a log was removed since.
	unused := len(kept) == 0 && l.head == 0 && !l.gone
	if unused {
		l.gone = true
		delete(m.logs, l.name)
	}
	l.mu.Unlock()
}
