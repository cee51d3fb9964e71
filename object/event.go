package object

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"maps"
	"time"

	"github.com/tidewire/tidewire/stream"
)

// Status says how a wait went.
type Status int

// The statuses.
const (
	Message  Status = 0 // the text is the message
	TimedOut Status = 1 // the text is empty
	Ended    Status = 2 // the subscription has ended; the text is the reason
)

func (s Status) String() string {
	switch s {
	case Message:
		return "message"
	case TimedOut:
		return "timeout"
	case Ended:
		return "ended"
	}
	return fmt.Sprintf("Status(%d)", int(s))
}

// cancelled is the reason of a subscription that was cancelled, by its event or because the event ended.
const cancelled = "subscription cancelled"

// Event is one piece of work on an object. Its methods may be called from any goroutine.
type Event struct {
	host   *Host
	object *instance
	ctx    context.Context
	cancel context.CancelFunc
	stop   func() bool   // of watching ctx
	idle   time.Duration // zero: not held

	// Guarded by object.mu.
	subs  map[string]*subscription // by handle
	ended bool
	lease *time.Timer // of a held event
	calls int         // that block
	used  time.Time   // the end of the last call
}

// Context is the event's: it has ended when the event has.
func (e *Event) Context() context.Context { return e.ctx }

// End ends the event and cancels its subscriptions. It may be called more than once.
func (e *Event) End() {
	e.object.mu.Lock()
	defer e.object.mu.Unlock()
	e.endLocked()
}

func (e *Event) endLocked() {
	if e.ended {
		return
	}
	e.ended = true
	for _, s := range e.subs {
		e.object.cancel(e.host, s)
	}
	e.subs = nil
	if e.lease != nil {
		e.lease.Stop()
	}
	e.stop()
	e.cancel()
	e.host.leave(e.object)
}

// expire ends a held event whose lease is over.
func (e *Event) expire() {
	e.object.mu.Lock()
	defer e.object.mu.Unlock()
	if e.calls == 0 && time.Since(e.used) >= e.idle {
		e.endLocked()
	}
}

// lock begins a call: with an error nothing is locked.
func (e *Event) lock() error {
	e.object.mu.Lock()
	if e.ctx.Err() != nil {
		e.endLocked()
	}
	if e.ended {
		e.object.mu.Unlock()
		return ErrEnded
	}
	return nil
}

// unlock ends a call.
func (e *Event) unlock() {
	if e.lease != nil && e.calls == 0 && !e.ended {
		e.used = time.Now()
		e.lease.Reset(e.idle)
	}
	e.object.mu.Unlock()
}

// Subscribe subscribes to a channel: once it returns, every later message is queued. The handle is good in this event alone.
func (e *Event) Subscribe(name string) (handle string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	if err := e.lock(); err != nil {
		return "", err
	}
	defer e.unlock()
	// An event remembers how its subscriptions ended, but not without bound: then it forgets those whose end it was told.
	if most := e.host.opts.MaxChannels * e.host.opts.MaxSubscriptions; len(e.subs) >= most {
		maps.DeleteFunc(e.subs, func(_ string, s *subscription) bool { return s.told })
		if len(e.subs) >= most {
			return "", limited(ErrSubscriptions, most)
		}
	}
	s, err := e.object.subscribe(e.host, name)
	if err != nil {
		return "", err
	}
	handle = rand.Text()
	if e.subs == nil {
		e.subs = map[string]*subscription{}
	}
	e.subs[handle] = s
	return handle, nil
}

func limited(err error, most int) error { return fmt.Errorf("%w: %d", err, most) }

// Publish gives a text to the subscriptions that the channel has now, in the order in which they came, and returns how many got it.
func (e *Event) Publish(name, text string) (delivered int, err error) {
	if err := checkName(name); err != nil {
		return 0, err
	}
	if err := checkText(text); err != nil {
		return 0, err
	}
	if err := e.lock(); err != nil {
		return 0, err
	}
	defer e.unlock()
	return e.object.publish(e.host, name, text), nil
}

// Wait waits at most for timeout, 0 to 1 h, for a message or the end of a subscription. What was queued before a channel was closed comes first; once the end was
// told, it is told again. A timeout of zero only looks. When ctx ends first, its error is returned and nothing is lost; when the event ends, that is the end of the subscription.
func (e *Event) Wait(ctx context.Context, handle string, timeout time.Duration) (status Status, text string, err error) {
	err = e.await(ctx, handle, timeout, func(s *subscription) (done bool, _ error) {
		status, text, done = s.take(e.host)
		return done, nil
	})
	if err != nil {
		return 0, "", err
	}
	return status, text, nil
}

// Bounds of the messages that Peek returns at once: so many, and no more once they have so many bytes.
const (
	PeekMessages = 100
	PeekBytes    = 256 << 10
)

// Peeked is what Peek returns: the status, with Message some texts, and with Ended the reason.
type Peeked struct {
	Status Status
	Texts  []string
	Reason string
}

// Peek is [Event.Wait] for a reader whose messages may get lost on the way. The messages of a subscription are numbered from 1. Peek confirms those up to after, and returns the ones
// behind it, which stay in the backlog until they are confirmed. With an after that was confirmed before, or not given yet, it is [ErrAfter].
func (e *Event) Peek(ctx context.Context, handle string, after uint64, timeout time.Duration) (p Peeked, err error) {
	err = e.await(ctx, handle, timeout, func(s *subscription) (done bool, _ error) {
		if first, last := s.number(), max(s.number(), s.peeked); after < uint64(first) || after > uint64(last) {
			return false, fmt.Errorf("%w: got %d, want %d to %d", ErrAfter, after, first, last)
		}
		p, done = s.peek(e.host, int(after))
		return done, nil
	})
	return p, err
}

// await calls try, with the lock, whenever there may be something, until it is done, the time is over or ctx ends.
func (e *Event) await(ctx context.Context, handle string, timeout time.Duration, try func(*subscription) (done bool, err error)) error {
	if timeout < 0 || timeout > MaxWait {
		return fmt.Errorf("%w: got %s", ErrWait, timeout)
	}
	if err := e.lock(); err != nil {
		return err
	}
	defer e.unlock()
	s := e.subs[handle]
	if s == nil {
		return ErrHandle
	}
	if done, err := try(s); done || err != nil || timeout == 0 {
		return err
	}
	e.calls++
	defer func() { e.calls-- }()
	if e.lease != nil {
		e.lease.Stop()
	}
	e.host.waiters.Add(1)
	defer e.host.waiters.Add(-1)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		wake := s.waking()
		e.object.mu.Unlock()
		expired, left := false, false
		select {
		case <-wake:
		case <-timer.C:
			expired = true
		case <-ctx.Done():
			left = true
		case <-e.ctx.Done():
		}
		e.object.mu.Lock()
		if e.ctx.Err() != nil {
			e.endLocked()
		}
		if left && !e.ended {
			return ctx.Err()
		}
		if done, err := try(s); done || err != nil || expired {
			return err
		}
	}
}

// Cancel ends a subscription and drops what is queued for it. Doing it again does nothing.
func (e *Event) Cancel(handle string) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.unlock()
	s := e.subs[handle]
	if s == nil {
		return ErrHandle
	}
	e.object.cancel(e.host, s)
	return nil
}

// CloseChannel ends a channel and returns how many subscriptions it had: each gets what is queued for it, and then the reason.
func (e *Event) CloseChannel(name, reason string) (closed int, err error) {
	if err := checkName(name); err != nil {
		return 0, err
	}
	if err := checkReason(reason); err != nil {
		return 0, err
	}
	if err := e.lock(); err != nil {
		return 0, err
	}
	defer e.unlock()
	return e.object.close(e.host, name, reason), nil
}

// SubscriberCount returns how many subscriptions a channel has now.
func (e *Event) SubscriberCount(name string) (int, error) {
	if err := checkName(name); err != nil {
		return 0, err
	}
	if err := e.lock(); err != nil {
		return 0, err
	}
	defer e.unlock()
	if c := e.object.channels[name]; c != nil {
		return len(c.subs), nil
	}
	return 0, nil
}

// Append adds a text to the object's log and wakes its followers. The offset of the answer is the entry's seq: one more than that of the entry before. A key makes it
// idempotent: see [stream.AppendOptions]. After an error the entry may be there all the same, which repeating with the same key tells.
func (e *Event) Append(ctx context.Context, text, key string) (stream.Appended, error) {
	if err := checkText(text); err != nil {
		return stream.Appended{}, err
	}
	ctx, done, err := e.enter(ctx)
	if err != nil {
		return stream.Appended{}, err
	}
	defer done()
	a, err := e.host.opts.Log.Append(ctx, LogName(e.object.id), []byte(text), stream.AppendOptions{Key: key, Retain: e.host.opts.Retain})
	return a, e.explain(err)
}

// Read returns at most limit entries of the object's log behind a position, and its head: fewer if they are large, see [stream.Store]. Where the log does not continue the position it is [stream.ErrGap], with the head.
func (e *Event) Read(ctx context.Context, after stream.Position, limit int) (stream.Page, error) {
	ctx, done, err := e.enter(ctx)
	if err != nil {
		return stream.Page{}, err
	}
	defer done()
	p, err := e.host.opts.Log.Read(ctx, LogName(e.object.id), after, limit)
	return p, e.explain(err)
}

// Trim removes the oldest entries of the object's log until it is within r. Followers that have not read them meet [stream.ErrGap].
func (e *Event) Trim(ctx context.Context, r stream.Retention) error {
	ctx, done, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	return e.explain(e.host.opts.Log.Trim(ctx, LogName(e.object.id), r))
}

// Reset removes the object's log with its idempotency keys. What is appended later has the seqs from 1 in another epoch, with which followers meet [stream.ErrGap].
func (e *Event) Reset(ctx context.Context) error {
	ctx, done, err := e.enter(ctx)
	if err != nil {
		return err
	}
	defer done()
	return e.explain(e.host.opts.Log.Reset(ctx, LogName(e.object.id)))
}

// Follow yields the entries of the object's log behind a position and waits for more: each once and in order, until ctx or the event ends, or the log does not
// continue ([stream.ErrGap]). See [stream.Follow].
func (e *Event) Follow(ctx context.Context, after stream.Position) iter.Seq2[stream.Entry, error] {
	return func(yield func(stream.Entry, error) bool) {
		ctx, done, err := e.enter(ctx)
		if err != nil {
			yield(stream.Entry{}, err)
			return
		}
		defer done()
		for entry, err := range stream.Follow(ctx, e.host.opts.Log, LogName(e.object.id), after) {
			if !yield(entry, e.explain(err)) {
				return
			}
		}
	}
}

// LogName is the name of an object's log in the store. No channel's name has a slash.
func LogName(id string) string { return "object/" + id }

// enter begins a call that may block and returns a context that ends with the event too.
func (e *Event) enter(ctx context.Context) (context.Context, func(), error) {
	if err := e.lock(); err != nil {
		return nil, nil, err
	}
	defer e.unlock()
	e.calls++
	if e.lease != nil {
		e.lease.Stop()
	}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		e.object.mu.Lock()
		e.calls--
		e.unlock()
	}, nil
}

// explain says of an error that it is the event's end.
func (e *Event) explain(err error) error {
	if err != nil && e.ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return err
}
