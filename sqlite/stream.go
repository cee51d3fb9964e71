package sqlite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tidewire/tidewire/stream"
)

// StreamOptions configures a [Stream]. The zero value is ready to use.
type StreamOptions struct {
	// Now is the clock. Nil means [time.Now].
	Now func() time.Time
	// Logger receives what fails without an append failing. Nil means [slog.Default].
	Logger *slog.Logger
	// MaxWaiting bounds the appends that wait for a commit; past it Append blocks. Zero means 4096.
	MaxWaiting int
	// MaxBatchBytes bounds what one commit takes: data, and 1 KiB for each append. Zero means 4 MiB.
	MaxBatchBytes int
	// Readers is how many reads run at once, each on a connection of its own. Zero means 4.
	Readers int
	// BusyTimeout is how long to wait for another program that writes to the file. Zero means 5 s.
	BusyTimeout time.Duration
}

// Stream keeps logs in a file. It implements [stream.Store]; its methods may be called from any goroutine.
type Stream struct {
	now      func() time.Time
	logger   *slog.Logger
	maxBatch int

	lock    *conn
	writer  *writer       // used by who holds the turn
	turn    chan struct{} // full while somebody holds it; Close keeps it
	readers chan *reader  // those that are idle
	slots   chan struct{} // one for each append under way
	closing chan struct{} // closed by Close
	close   func() error

	mu     sync.Mutex // guards below
	closed bool
	queue  []*pending // in the order of arrival

	// watching is held while watchers are called, so that none is called after its stop has returned.
	watching sync.Mutex
	watchers map[string][]*watcher
}

var _ stream.Store = (*Stream)(nil)

// pending is an append that waits for its commit.
type pending struct {
	name string
	data []byte
	opts stream.AppendOptions
	done chan struct{} // closed when the rest is set

	result stream.Appended
	err    error
}

type watcher struct {
	f func(epoch string, e stream.Entry)
}

// OpenStream opens a file, and makes it if there is none.
func OpenStream(path string, opts StreamOptions) (*Stream, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Logger == nil {
		opts.Logger = slog.Default()
	}
	for _, o := range []struct {
		value *int
		zero  int
	}{{&opts.MaxWaiting, 4096}, {&opts.MaxBatchBytes, 4 << 20}, {&opts.Readers, 4}} {
		if *o.value <= 0 {
			*o.value = o.zero
		}
	}
	if opts.BusyTimeout <= 0 {
		opts.BusyTimeout = 5 * time.Second
	}
	s := &Stream{
		now: opts.Now, logger: opts.Logger, maxBatch: opts.MaxBatchBytes,
		turn:     make(chan struct{}, 1),
		readers:  make(chan *reader, opts.Readers),
		slots:    make(chan struct{}, opts.MaxWaiting),
		closing:  make(chan struct{}),
		watchers: map[string][]*watcher{},
	}
	db, lock, file, err := open(path, opts.BusyTimeout)
	if err != nil {
		return nil, fmt.Errorf("sqlite: opening %s: %w", path, err)
	}
	s.lock = lock
	s.writer, err = newWriter(db)
	for err == nil && len(s.readers) < opts.Readers {
		var r *reader
		if r, err = newReader(file, opts.BusyTimeout); err == nil {
			s.readers <- r
		}
	}
	s.close = sync.OnceValue(s.closeOnce)
	if err != nil {
		opts.Readers = len(s.readers)
		return nil, fmt.Errorf("sqlite: opening %s: %w", path, errors.Join(err, s.release(opts.Readers)))
	}
	return s, nil
}

// Close ends the store. Appends whose commit has not begun fail with [stream.ErrClosed]; what is in progress is waited for.
func (s *Stream) Close() error { return s.close() }

func (s *Stream) closeOnce() error {
	close(s.closing)
	s.turn <- struct{}{}
	s.mu.Lock()
	s.closed = true
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	for _, p := range queue {
		p.err = stream.ErrClosed
		close(p.done)
	}
	if err := s.release(cap(s.readers)); err != nil {
		return fmt.Errorf("sqlite: closing: %w", err)
	}
	return nil
}

// release closes the connections; the writer's last, so that it leaves the write-ahead log empty.
func (s *Stream) release(readers int) error {
	var errs []error
	for range readers {
		errs = append(errs, (<-s.readers).Close())
	}
	return errors.Join(append(errs, s.writer.Close(), s.lock.Close())...)
}

// Append implements [stream.Store].
func (s *Stream) Append(ctx context.Context, name string, data []byte, opts stream.AppendOptions) (stream.Appended, error) {
	if err := stream.Check(name, data, opts); err != nil {
		return stream.Appended{}, err
	}
	if err := ctx.Err(); err != nil {
		return stream.Appended{}, err
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return stream.Appended{}, ctx.Err()
	case <-s.closing:
		return stream.Appended{}, stream.ErrClosed
	}
	p := &pending{name: name, data: data, opts: opts, done: make(chan struct{})}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return stream.Appended{}, stream.ErrClosed
	}
	s.queue = append(s.queue, p)
	s.mu.Unlock()
	for {
		select {
		case <-p.done:
			return p.result, p.err
		case s.turn <- struct{}{}:
			s.lead()
		case <-ctx.Done():
			s.takeBack(p)
			return stream.Appended{}, ctx.Err()
		}
	}
}

func (s *Stream) takeBack(p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.queue, p); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
}

// lead commits what waits, as much as fits, and gives the turn back.
func (s *Stream) lead() {
	defer func() { <-s.turn }()
	if s.commit() {
		s.checkpoint()
	}
}

// commit reports whether there was anything to commit.
func (s *Stream) commit() bool {
	batch := s.take()
	// A watcher that panics does so in the goroutine of any append: the others must get their results all the same.
	defer func() {
		for _, p := range batch {
			close(p.done)
		}
		clear(batch)
	}()
	if len(batch) == 0 {
		return false
	}
	now := s.now().UnixNano()
	err := s.writer.transaction(func() error { return s.writer.appendAll(batch, now) })
	if err != nil {
		err = fmt.Errorf("sqlite: appending: %w", err)
		for _, p := range batch {
			p.result, p.err = stream.Appended{}, err
		}
		return true
	}
	s.notify(batch, time.Unix(0, now))
	return true
}

// take takes the oldest appends, at least one, out of the queue.
func (s *Stream) take() []*pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, bytes := 0, 0
	for n < len(s.queue) && (n == 0 || bytes < s.maxBatch) {
		bytes += len(s.queue[n].data) + 1024
		n++
	}
	batch := append(s.writer.batch[:0], s.queue[:n]...)
	s.writer.batch = batch
	s.queue = slices.Delete(s.queue, 0, n)
	return batch
}

func (s *Stream) notify(batch []*pending, now time.Time) {
	s.watching.Lock()
	defer s.watching.Unlock()
	if len(s.watchers) == 0 {
		return
	}
	for _, p := range batch {
		if p.result.Duplicate {
			continue
		}
		for _, w := range s.watchers[p.name] {
			w.f(p.result.Epoch, stream.Entry{Offset: p.result.Offset, Time: now, Data: p.data})
		}
	}
}

// Watch implements [stream.Store].
func (s *Stream) Watch(name string, f func(epoch string, e stream.Entry)) (stop func(), err error) {
	if err := stream.CheckName(name); err != nil {
		return nil, err
	}
	select {
	case <-s.closing:
		return nil, stream.ErrClosed
	default:
	}
	w := &watcher{f}
	s.watching.Lock()
	defer s.watching.Unlock()
	s.watchers[name] = append(s.watchers[name], w)
	return sync.OnceFunc(func() {
		s.watching.Lock()
		defer s.watching.Unlock()
		rest := slices.DeleteFunc(s.watchers[name], func(o *watcher) bool { return o == w })
		if s.watchers[name] = rest; len(rest) == 0 {
			delete(s.watchers, name)
		}
	}), nil
}

// Head implements [stream.Store].
func (s *Stream) Head(ctx context.Context, name string) (stream.Head, error) {
	p, err := s.Read(ctx, name, stream.Position{}, 0)
	if errors.Is(err, stream.ErrGap) { // it begins later
		err = nil
	}
	return p.Head, err
}

// Read implements [stream.Store].
func (s *Stream) Read(ctx context.Context, name string, after stream.Position, limit int) (stream.Page, error) {
	if err := stream.CheckName(name); err != nil {
		return stream.Page{}, err
	}
	if err := ctx.Err(); err != nil {
		return stream.Page{}, err
	}
	select { // after Close there may be an idle one still
	case <-s.closing:
		return stream.Page{}, stream.ErrClosed
	default:
	}
	select {
	case r := <-s.readers:
		defer func() { s.readers <- r }()
		p, err := r.read(ctx, name, after, limit, s.now().UnixNano())
		if err != nil && !errors.Is(err, stream.ErrGap) && ctx.Err() == nil {
			err = fmt.Errorf("sqlite: reading: %w", err)
		}
		return p, err
	case <-ctx.Done():
		return stream.Page{}, ctx.Err()
	case <-s.closing:
		return stream.Page{}, stream.ErrClosed
	}
}

// Trim implements [stream.Store].
func (s *Stream) Trim(ctx context.Context, name string, r stream.Retention) error {
	if err := stream.CheckName(name); err != nil {
		return err
	}
	return s.change(ctx, "trimming", func(now int64) error { return s.writer.trimLog(name, r, now) })
}

// Reset implements [stream.Store].
func (s *Stream) Reset(ctx context.Context, name string) error {
	if err := stream.CheckName(name); err != nil {
		return err
	}
	return s.change(ctx, "resetting", func(now int64) error { return s.writer.resetLog(name, now) })
}

// Sweep deletes some of what has expired, in one short transaction, and reports whether there is more: then call it again.
func (s *Stream) Sweep(ctx context.Context) (more bool, err error) {
	err = s.change(ctx, "sweeping", func(now int64) (err error) {
		more, err = s.writer.sweep(now)
		return err
	})
	return more && err == nil, err
}

// change runs f in a transaction of its own.
func (s *Stream) change(ctx context.Context, what string, f func(now int64) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return stream.ErrClosed
	}
	if err := s.writer.transaction(func() error { return f(s.now().UnixNano()) }); err != nil {
		return fmt.Errorf("sqlite: %s: %w", what, err)
	}
	s.checkpoint()
	return nil
}

// checkpoint moves the write-ahead log into the database when it has grown. What was appended is durable before: a failure is for the log alone.
func (s *Stream) checkpoint() {
	if !s.writer.full() {
		return
	}
	if s.writer.starved() {
		// Reads that overlap all the time never let the log begin anew: let none run for a moment.
		for range cap(s.readers) {
			r := <-s.readers
			defer func() { s.readers <- r }()
		}
	}
	if err := s.writer.checkpoint(); err != nil {
		s.logger.Warn("sqlite: the write-ahead log was not checkpointed", "error", err)
	}
}
