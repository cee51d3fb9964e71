// Package stream keeps an append-only log for each name. It is the one mechanism behind the history of channels and the event logs of objects.
//
// # Offsets and epochs
//
// The entries of a log have the offsets 1, 2, 3 and so on, without gaps. What was appended before is never changed; the oldest entries may be trimmed. The epoch of a log is an
// opaque text that is another whenever the log was lost or reset, so offsets can be compared within one epoch only. A name that was never appended to has an
// epoch too, with the head 0: reading it costs nothing and is not remembered.
//
// # Durability
//
// Append returns when the entry is as durable as the store makes it: in this process's memory ([Memory]), or synced to disk. An entry whose Append failed may be there all the same,
// if the failure came late: repeating it with the same [AppendOptions.Key] tells, and appends once.
//
// # Ordering
//
// Entries are seen by [Store.Watch] in the order of their offsets, each once, after they are durable and before their Append returns. Appends of one goroutine to one name
// keep their order.
//
// # Recovery
//
// [Store.Read] answers either exactly what follows a position, or [ErrGap] with the head: a part of a gap is never passed off as the whole.
//
// # Bounds
//
// A log keeps what its [Retention] allows, measured at each append and read; an expired entry is never read. Keys of appends are remembered for [KeyWindow], but only the newest [MaxKeys] of a log.
// A store refuses an entry larger than [MaxEntryBytes] and a name longer than [MaxNameBytes].
package stream

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Bounds of every store.
const (
	MaxNameBytes  = 512
	MaxKeyBytes   = 256
	MaxEntryBytes = 1 << 20
	// MaxPageBytes bounds the data of a page, unless one entry alone is larger.
	MaxPageBytes = 256 << 10
	// KeyWindow is how long the key of an append is remembered, and MaxKeys how many of one log are.
	KeyWindow = 2 * time.Minute
	MaxKeys   = 100_000
)

// Errors of every store.
var (
	// ErrGap means that what follows a position cannot be given whole: it was trimmed, has expired, or is of another epoch, or the position is ahead of the log.
	ErrGap = errors.New("stream: the log does not continue this position")
	// ErrInvalid means that a name, a key or an entry is empty where it must not be, or too long.
	ErrInvalid = errors.New("stream: invalid")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("stream: closed")
)

// Position is a place in a log: just behind the entry with the offset, or before the first one if it is 0.
type Position struct {
	Offset uint64
	// Epoch may be empty where a position is given: then any is right.
	Epoch string
}

// Head is where a log ends, and where what it keeps begins.
type Head struct {
	Position
	// First is the offset of the oldest entry that is kept; Offset+1 if there is none.
	First uint64
}

// Continues reports whether everything that follows p is there.
func (h Head) Continues(p Position) bool {
	return (p.Epoch == "" || p.Epoch == h.Epoch) && p.Offset <= h.Offset && p.Offset+1 >= h.First
}

// Entry is one entry of a log. Its data are shared and must not be changed.
type Entry struct {
	Offset uint64
	Time   time.Time // when it was appended, by the store's clock
	Data   []byte
}

// Page is a run of entries.
type Page struct {
	// Entries follow the position without a gap.
	Entries []Entry
	// Head is that of the log when it was read.
	Head Head
}

// Ends reports whether there was nothing behind the page, which was read after an offset.
func (p Page) Ends(after uint64) bool {
	if n := len(p.Entries); n > 0 {
		after = p.Entries[n-1].Offset
	}
	return after >= p.Head.Offset
}

// Retention bounds what a log keeps. A zero field bounds nothing.
type Retention struct {
	Count int           // entries
	Age   time.Duration // since the append
	Bytes int64         // of data, beside the newest entry
}

// AppendOptions are the optional parts of an append.
type AppendOptions struct {
	// Key makes the append idempotent: if the log remembers it, nothing is appended. Empty does not.
	Key string
	// Retain bounds the log from this append on. The zero value keeps everything.
	Retain Retention
}

// Appended is what became of an append.
type Appended struct {
	// Position is behind the entry.
	Position
	// Duplicate is true if the key was remembered; the position is then that of the first append.
	Duplicate bool
}

// Store keeps logs. Its methods may be called from any goroutine. Implementations pass package streamtest.
type Store interface {
	// Append adds an entry. The store keeps data.
	Append(ctx context.Context, name string, data []byte, opts AppendOptions) (Appended, error)
	// Head returns where a log is.
	Head(ctx context.Context, name string) (Head, error)
	// Read returns entries behind a position: at most limit, and at most [MaxPageBytes] of data, but one at least if there is one; [Page.Ends] says whether these are all. With [ErrGap] the page has the head alone.
	Read(ctx context.Context, name string, after Position, limit int) (Page, error)
	// Trim removes the oldest entries until the log is within r.
	Trim(ctx context.Context, name string, r Retention) error
	// Reset removes a log. What is appended to the name later is of another epoch.
	Reset(ctx context.Context, name string) error
	// Watch calls f for each entry appended to a name from now on, also by others, in the order of their offsets. The next append to this name waits until f returns; f must
	// not call the store. A store that hears of appends over a network may miss some: then the offsets that f sees have a gap, or the epoch changes, and the
	// missing ones can be read. After stop has returned, f is not called; f must not call stop.
	Watch(name string, f func(epoch string, e Entry)) (stop func(), err error)
}

// Check holds an append against the bounds of every store.
func Check(name string, data []byte, opts AppendOptions) error {
	switch {
	case len(data) > MaxEntryBytes:
		return fmt.Errorf("%w: an entry of %d bytes, more than %d", ErrInvalid, len(data), MaxEntryBytes)
	case len(opts.Key) > MaxKeyBytes:
		return fmt.Errorf("%w: a key of %d bytes, more than %d", ErrInvalid, len(opts.Key), MaxKeyBytes)
	}
	return CheckName(name)
}

// CheckName holds a name against the bounds of every store.
func CheckName(name string) error {
	if name == "" || len(name) > MaxNameBytes {
		return fmt.Errorf("%w: a name has 1 to %d bytes", ErrInvalid, MaxNameBytes)
	}
	return nil
}

// Last returns the newest entries of a log, at most n, and everything that it keeps if there are fewer.
func Last(ctx context.Context, s Store, name string, n int) (Page, error) {
	for {
		h, err := s.Head(ctx, name)
		if err != nil || n <= 0 {
			return Page{Head: h}, err
		}
		after := Position{Offset: h.First - 1, Epoch: h.Epoch}
		if kept := h.Offset - after.Offset; kept > uint64(n) {
			after.Offset = h.Offset - uint64(n)
		}
		p, err := s.Read(ctx, name, after, n)
		for err == nil && !p.Ends(after.Offset) && len(p.Entries) < n {
			var more Page
			more, err = s.Read(ctx, name, Position{p.Entries[len(p.Entries)-1].Offset, h.Epoch}, n-len(p.Entries))
			p.Entries = append(p.Entries, more.Entries...)
			p.Head = more.Head
		}
		if !errors.Is(err, ErrGap) { // it was trimmed meanwhile
			return p, err
		}
	}
}

// followPage is how many entries Follow reads at once.
const followPage = 256

// Follow yields the entries behind a position, each once and in order, and waits for more, until ctx ends or the log no longer continues what was
// yielded ([ErrGap]): an error is yielded last, with no entry. It holds no queue, so a slow consumer loses nothing that the log keeps.
func Follow(ctx context.Context, s Store, name string, after Position) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		wake := make(chan struct{}, 1)
		stop, err := s.Watch(name, func(string, Entry) {
			select {
			case wake <- struct{}{}:
			default:
			}
		})
		if err != nil {
			yield(Entry{}, err)
			return
		}
		defer stop()
		for {
			page, err := s.Read(ctx, name, after, followPage)
			if err != nil {
				yield(Entry{}, err)
				return
			}
			// An empty position takes the epoch that it meets: from there on it must stay the same.
			after.Epoch = page.Head.Epoch
			ends := page.Ends(after.Offset)
			for i, e := range page.Entries {
				page.Entries[i] = Entry{} // a consumer may take long
				after.Offset = e.Offset
				if !yield(e, nil) {
					return
				}
			}
			if !ends {
				continue
			}
			select {
			case <-wake:
			case <-ctx.Done():
				yield(Entry{}, ctx.Err())
				return
			}
		}
	}
}
