package postgres

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/tidewire/tidewire/feed"
)

// lsn is a place in the log.
type lsn uint64

func (l lsn) String() string { return fmt.Sprintf("%X/%X", uint64(l)>>32, uint32(l)) }

// position is text that sorts.
func (l lsn) position() feed.Position { return feed.Position(fmt.Sprintf("%016X", uint64(l))) }

func parseLSN(s string) (lsn, error) {
	hi, lo, ok := strings.Cut(s, "/")
	h, err1 := strconv.ParseUint(hi, 16, 32)
	l, err2 := strconv.ParseUint(lo, 16, 32)
	if !ok || err1 != nil || err2 != nil {
		return 0, fmt.Errorf("postgres: not a position of the log: %q", s)
	}
	return lsn(h<<32 | l), nil
}

// widen returns the 64-bit id of a 32-bit one: the nearest to a recent id. Transactions in the log are never 2^31 apart, or the server would have stopped.
func widen(xid uint32, recent uint64) uint64 {
	return recent + uint64(int64(int32(xid-uint32(recent))))
}

// fence is pg_snapshot: what a snapshot sees.
type fence struct {
	xmin, xmax uint64
	running    []uint64 // sorted, from xmin to below xmax
}

// Includes implements [feed.Fence].
func (f *fence) Includes(tx *feed.Tx) bool { return f.sees(tx.ID) }

func (f *fence) sees(xid uint64) bool {
	if xid < f.xmin {
		return true
	}
	_, running := slices.BinarySearch(f.running, xid)
	return xid < f.xmax && !running
}

// parseFence reads xmin:xmax:xip,xip.
func parseFence(s string) (*fence, error) {
	var err error
	number := func(s string) uint64 {
		n, e := strconv.ParseUint(s, 10, 64)
		if e != nil {
			err = fmt.Errorf("postgres: not a snapshot: %w", e)
		}
		return n
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return nil, fmt.Errorf("postgres: not a snapshot: %q", s)
	}
	f := &fence{xmin: number(parts[0]), xmax: number(parts[1])}
	if parts[2] != "" {
		for x := range strings.SplitSeq(parts[2], ",") {
			f.running = append(f.running, number(x))
		}
	}
	slices.Sort(f.running)
	return f, err
}

// xidSpan is how many ids back a transaction is remembered. One that has been in the log for that long without being visible is given up on.
const xidSpan = 1 << 20

// xidSet is a set of the latest transaction ids: a bit for each, by the id modulo the span.
type xidSet struct {
	mu   sync.Mutex // guards below
	bits []uint64
	end  uint64 // above every id of the set
}

func (s *xidSet) add(xid uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bits == nil {
		s.bits, s.end = make([]uint64, xidSpan/64), xid
	}
	if xid >= s.end+xidSpan {
		clear(s.bits)
		s.end = xid
	}
	for ; s.end <= xid; s.end++ {
		s.bits[s.end%xidSpan/64] &^= 1 << (s.end % 64)
	}
	if xid+xidSpan >= s.end {
		s.bits[xid%xidSpan/64] |= 1 << (xid % 64)
	}
}

// forget takes ids out that the server has not given to anybody yet: they were another server's, or lost with its crash.
func (s *xidSet) forget(from uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = min(s.end, from)
}

// hiddenFrom returns an id of the set that the snapshot does not see.
func (s *xidSet) hiddenFrom(f *fence) (xid uint64, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bits == nil {
		return 0, false
	}
	has := func(x uint64) bool {
		return x < s.end && x+xidSpan >= s.end && s.bits[x%xidSpan/64]>>(x%64)&1 != 0
	}
	for _, x := range f.running {
		if has(x) {
			return x, true
		}
	}
	for x := max(f.xmax, s.end-min(s.end, xidSpan)); x < s.end; x++ {
		if has(x) {
			return x, true
		}
	}
	return 0, false
}
