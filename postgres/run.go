package postgres

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/backoff"
)

var (
	// ErrRunning means that Run was called twice.
	ErrRunning = errors.New("postgres: Run is running")
	errSilent  = errors.New("postgres: the server is silent")
)

// standbyEvery is how often a process that stands by looks whether the slot is free.
const standbyEvery = time.Second

// runner is one call of Run.
type runner struct {
	d    *Database
	sink feed.Sink

	begun  bool   // the sink was reset once
	broken bool   // the slot is good for nothing, although the server says that it is
	system string // and timeline, of the last reset
}

// Run implements [feed.Database]. It returns an [Error] for what it cannot mend; before the stream was established once that includes wrong passwords and missing privileges, afterwards they are retried.
func (d *Database) Run(ctx context.Context, sink feed.Sink) error {
	if !d.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer d.running.Store(false)
	defer d.count(func(s *Stats) { s.Connected, s.StandingBy = false, false })
	return (&runner{d: d, sink: sink}).run(ctx)
}

func (r *runner) run(ctx context.Context) error {
	d := r.d
	delay := backoff.Backoff{Initial: 100 * time.Millisecond, Max: 10 * time.Second, Jitter: true}
	for attempt := 1; ; attempt++ {
		established, err := r.connection(ctx)
		d.count(func(s *Stats) { s.Connected = false })
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case isFatal(err):
			return err
		case established:
			attempt = 1
		}
		// What the stream needs was missing in the catalog at some place of the log that cannot be passed: the publication.
		r.broken = established && sqlState(err) == "42704"
		d.log.Warn("change feed lost, it reconnects", "attempt", attempt, "error", err)
		d.count(func(s *Stats) { s.Reconnects++ })
		if sleep(ctx, delay.Delay(attempt)) != nil {
			return ctx.Err()
		}
	}
}

// connection is one connection from its beginning to its end. established reports whether the stream was.
func (r *runner) connection(ctx context.Context) (established bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.prepare(ctx); err != nil {
		return false, err
	}
	conn, err := pgconn.ConnectConfig(ctx, r.d.replication)
	if err != nil {
		if f := replicationRefused(err); f.Fatal && !r.begun {
			return false, fatal(f)
		}
		return false, fmt.Errorf("postgres: replication: %w", err)
	}
	c := &link{d: r.d, pg: conn}
	defer c.close()
	if err := c.hold(ctx); err != nil {
		return false, err
	}
	start, reason, err := r.start(ctx, c)
	if err != nil {
		return false, err
	}
	s := &stream{d: r.d, ctx: ctx, sink: r.sink, relations: map[uint32]*source{}}
	if reason != "" {
		if err := r.settle(ctx); err != nil {
			return false, err
		}
		r.d.count(func(st *Stats) { st.Epoch = c.system + "/" + string(start.position()) })
		s.reset(start, reason)
		r.begun, r.system = true, c.system
	}
	if err := c.begin(ctx, start); err != nil {
		return false, err
	}
	r.d.count(func(st *Stats) { st.Connected, st.StandingBy = true, false })
	r.d.log.Info("change feed connected", "slot", c.slot, "position", start.String())
	return true, r.follow(ctx, cancel, c, s)
}

// prepare looks whether the feed can work at all, and covers the tables of the options, before a slot exists.
func (r *runner) prepare(ctx context.Context) error {
	if !r.begun {
		for _, f := range r.d.Check(ctx) {
			if f.Fatal {
				return fatal(f)
			}
		}
	}
	if err := r.d.ensurePublication(ctx); err != nil {
		return err
	}
	if !r.begun { // what is altered while a connection is lost, the comparison sees afterwards
		r.d.watch = watch{}
		if _, err := r.d.republished(ctx); err != nil {
			return err
		}
	}
	if !r.begun {
		for _, n := range r.d.opts.Tables {
			if _, err := r.d.Table(ctx, n); err != nil {
				return err
			}
		}
	}
	now, err := r.d.fence(ctx)
	if err != nil {
		return err
	}
	r.d.lastXID.Store(now.xmax)
	return nil
}

// start finds or makes the slot and says where the stream begins. The reason is empty when it goes on where it was.
func (r *runner) start(ctx context.Context, c *link) (at lsn, reason string, err error) {
	rows, err := c.ask(ctx, "IDENTIFY_SYSTEM")
	if err != nil {
		return 0, "", fmt.Errorf("postgres: identify system: %w", err)
	}
	c.system = rows[0][0] + "/" + rows[0][1]
	if r.d.opts.Slot == "" {
		c.slot = fmt.Sprintf("tidewire_%016x", rand.Uint64())
		at, err = c.create(ctx, " TEMPORARY")
		if r.begun {
			return at, "the connection was lost, and with it the temporary slot", err
		}
		return at, "start", err
	}
	c.slot = r.d.opts.Slot
	s, err := r.d.slotState(ctx)
	delivered := lsn(r.d.delivered.Load())
	switch {
	case err != nil:
		return 0, "", err
	case s != nil && s.foreign != "":
		return 0, "", fatal(r.d.foreignSlot(s))
	case s != nil && s.pid != 0:
		return 0, "", fmt.Errorf("postgres: slot %s is read by process %d of the server, which does not hold the lock", s.name, s.pid)
	case s == nil:
		at, err = c.create(ctx, "")
		reason = "the slot is gone"
	case s.lost || r.broken:
		if err = r.d.DropSlot(ctx); err != nil {
			return 0, "", err
		}
		at, err = c.create(ctx, "")
		reason = "the server has thrown away what the slot needs"
		if r.broken {
			reason = "the publication was missing"
		}
	case !r.begun:
		at, err = r.d.insertLSN(ctx) // what was committed before is read, not replayed
	case c.system != r.system:
		at, reason = s.confirmed, "another server or timeline"
	case s.confirmed > delivered:
		at, reason = s.confirmed, "the slot was moved by somebody else"
	case r.d.readLSN.Load() > r.d.seen.Load():
		at, reason = delivered, "the server may have lost commits that were read"
	default:
		return delivered, "", nil
	}
	if !r.begun {
		reason = "start"
	}
	return at, reason, err
}

func (d *Database) insertLSN(ctx context.Context) (lsn, error) {
	rows, err := d.query(ctx, "SELECT pg_current_wal_insert_lsn()")
	if err != nil {
		return 0, err
	}
	return parseLSN(rows[0][0])
}

// How long settle waits, without and with synchronous replication.
const (
	settleLocal = 200 * time.Millisecond
	settleSync  = 5 * time.Second
)

// settle waits until what was committed before the stream begins is visible. Such a transaction stands in the snapshot as running, as one that really runs does, so all that run are waited for, but not for
// long: from the commit record to visibility it takes microseconds, or with synchronous replication what the standby takes. It takes a transaction id, since a snapshot lists as running only ids below one that has ended.
func (r *runner) settle(ctx context.Context) error {
	rows, err := r.d.query(ctx, "SELECT set_config('synchronous_commit', 'local', true), pg_current_xact_id(), current_setting('synchronous_standby_names') <> ''")
	if err != nil {
		return err
	}
	next, err := strconv.ParseUint(rows[0][1], 10, 64)
	if err != nil {
		return err
	}
	r.d.begun.forget(next)
	deadline := time.Now().Add(settleLocal)
	if rows[0][2] == "t" {
		deadline = time.Now().Add(settleSync)
	}
	for first := (*fence)(nil); ; {
		now, err := r.d.fence(ctx)
		if err != nil {
			return err
		}
		if first == nil {
			first = now
		}
		if !slices.ContainsFunc(first.running, func(x uint64) bool { return !now.sees(x) }) || time.Now().After(deadline) {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// link is a replication connection. Its server process holds the lock and the slot, so both go when it does.
type link struct {
	// Set before follow, then read-only.
	d            *Database
	slot, system string             // the system with its timeline
	pg           *pgconn.PgConn     // until begin
	conn         net.Conn           // from then on
	in           *pgproto3.Frontend // read by one goroutine
	wake         chan struct{}      // asks for a status now
	free         func()             // takes the connection from the context
	interval     time.Duration      // between statuses

	writing sync.Mutex // held while a message is written
}

// ask runs a statement that is answered at once, if the server is there.
func (c *link) ask(ctx context.Context, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.d.opts.Timeout)
	defer cancel()
	return script(ctx, c.pg, sql)
}

// hold takes the lock of a durable slot. Only its holder touches the slot. It does not wait in the server, where a waiting statement would keep vacuum from its work.
func (c *link) hold(ctx context.Context) error {
	if c.d.opts.Slot == "" {
		return nil
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, "tidewire replication slot "+c.d.opts.Slot)
	for said := false; ; said = true {
		rows, err := c.ask(ctx, fmt.Sprintf("SELECT pg_catalog.pg_try_advisory_lock(%d)", int64(h.Sum64())))
		if err != nil {
			return fmt.Errorf("postgres: lock: %w", err)
		}
		if rows[0][0] == "t" {
			c.d.count(func(s *Stats) { s.StandingBy = false })
			return nil
		}
		if !said {
			c.d.log.Info("another process has the slot, this one stands by", "code", CodeSlotHeld, "slot", c.d.opts.Slot)
			c.d.count(func(s *Stats) { s.StandingBy = true })
		}
		if err := sleep(ctx, min(standbyEvery, c.d.opts.Heartbeat)); err != nil {
			return err
		}
	}
}

// create creates the slot. The server waits for the transactions that run to end.
func (c *link) create(ctx context.Context, kind string) (lsn, error) {
	slow := time.AfterFunc(5*time.Second, func() {
		c.d.log.Warn("the slot waits for transactions that are open", "fix", "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start")
	})
	defer slow.Stop()
	rows, err := script(ctx, c.pg, "CREATE_REPLICATION_SLOT "+quote(c.slot)+kind+" LOGICAL pgoutput NOEXPORT_SNAPSHOT")
	if err != nil {
		return 0, fmt.Errorf("postgres: create slot: %w", err)
	}
	c.d.log.Info("replication slot created", "slot", c.slot, "temporary", kind != "")
	return parseLSN(rows[0][1])
}

// begin starts the stream and takes the connection over from the driver.
func (c *link) begin(ctx context.Context, at lsn) error {
	rows, err := c.ask(ctx, "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'")
	if err != nil {
		return err
	}
	c.interval = c.d.opts.Heartbeat
	if ms, _ := strconv.Atoi(rows[0][0]); ms > 0 { // 0 is never
		c.interval = max(min(c.interval, time.Duration(ms)*time.Millisecond/3), time.Millisecond)
	}
	if err := c.pg.SyncConn(ctx); err != nil {
		return err
	}
	h, err := c.pg.Hijack()
	if err != nil {
		return err
	}
	c.conn, c.pg = h.Conn, nil
	c.wake = make(chan struct{}, 1)
	c.free = interrupt(ctx, c.conn)
	in := &watched{conn: c.conn, ctx: ctx, timeout: c.d.opts.Timeout}
	c.in = pgproto3.NewFrontend(bufio.NewReaderSize(in, 64<<10), c.conn)
	c.in.SendQuery(&pgproto3.Query{String: "START_REPLICATION SLOT " + quote(c.slot) + " LOGICAL " + at.String() + " (proto_version '1', publication_names '" + c.d.opts.Publication + "')"})
	if err := c.in.Flush(); err != nil {
		return err
	}
	for {
		msg, err := c.in.Receive()
		switch msg := msg.(type) {
		case *pgproto3.CopyBothResponse:
			return nil
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("postgres: start replication: %w", pgconn.ErrorResponseToPgError(msg))
		}
		if err != nil {
			return fmt.Errorf("postgres: start replication: %w", err)
		}
	}
}

// interrupt ends reads of a connection with the context. The function that it returns takes that back, and has done so when it returns.
func interrupt(ctx context.Context, conn net.Conn) func() {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = conn.SetReadDeadline(time.Now())
		close(done)
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// close ends the connection, and waits a moment for the server to have let go of the slot.
func (c *link) close() {
	if c.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = c.pg.Close(ctx)
		return
	}
	c.free()
	_ = c.conn.SetDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.conn.Write([]byte{'X', 0, 0, 0, 4}); err == nil {
		_, _ = io.Copy(io.Discard, c.conn)
	}
	_ = c.conn.Close()
}

// watched is a connection whose reads end with the context, and when nothing has come for the timeout.
type watched struct {
	conn    net.Conn
	ctx     context.Context
	timeout time.Duration
}

func (w *watched) Read(b []byte) (int, error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(w.timeout)); err != nil {
		return 0, err
	}
	if err := w.ctx.Err(); err != nil { // after the deadline: whoever cancels later sets another
		return 0, err
	}
	n, err := w.conn.Read(b)
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		err = errSilent
	}
	return n, err
}

// follow reads the stream until the connection or the context ends. Two goroutines run beside it: one sends the status, one compares the catalog.
func (r *runner) follow(ctx context.Context, cancel context.CancelFunc, c *link, s *stream) error {
	var wg sync.WaitGroup
	var alarm alarm
	wg.Go(func() { c.status(ctx, cancel) })
	wg.Go(func() { r.d.compare(ctx, &alarm, c.wake) })
	err := c.read(s, &alarm)
	if ctx.Err() != nil && r.d.opts.Slot != "" {
		_ = c.confirm(false) // so that the next one begins here
	}
	cancel()
	wg.Wait()
	return err
}

// alarm carries the reason for a reset from the goroutine that found it to the one that reads.
type alarm struct {
	mu     sync.Mutex // guards below
	reason string
}

func (a *alarm) set(reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reason = reason
}

func (a *alarm) take() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	reason := a.reason
	a.reason = ""
	return reason
}

func (c *link) read(s *stream, alarm *alarm) error {
	for {
		msg, err := c.in.Receive()
		if err != nil {
			return fmt.Errorf("postgres: replication: %w", err)
		}
		switch msg := msg.(type) {
		case *pgproto3.CopyData:
			if err := c.data(s, msg.Data); err != nil {
				return err
			}
			if !s.open {
				if reason := alarm.take(); reason != "" {
					s.reset(lsn(c.d.delivered.Load()), reason)
				}
			}
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("postgres: replication: %w", pgconn.ErrorResponseToPgError(msg))
		case *pgproto3.CopyDone, *pgproto3.CommandComplete:
			return errors.New("postgres: replication: the server ended the stream")
		}
	}
}

// data takes what the server packs into the stream: a message of pgoutput, or a sign of life.
func (c *link) data(s *stream, b []byte) error {
	switch {
	case len(b) >= 25 && b[0] == 'w':
		raise(&c.d.seen, binary.BigEndian.Uint64(b[1:]))
		return s.take(b[25:])
	case len(b) == 18 && b[0] == 'k':
		end := binary.BigEndian.Uint64(b[1:])
		if !s.open { // all that was committed before has been delivered
			raise(&c.d.delivered, end)
			raise(&c.d.seen, end)
		}
		if b[17] != 0 {
			return c.confirm(false)
		}
		return nil
	}
	return errProtocol
}

// status confirms what was delivered, also while the sink blocks, and asks for a sign of life.
func (c *link) status(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	t := time.NewTicker(c.interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-c.wake:
		}
		if err := c.confirm(true); err != nil {
			c.d.log.Warn("the status of the change feed cannot be sent", "error", err)
			return
		}
	}
}

func (c *link) confirm(ask bool) error {
	at := c.d.delivered.Load()
	b := make([]byte, 0, 39)
	b = append(b, 'd', 0, 0, 0, 38, 'r')
	for range 3 { // written, flushed, applied
		b = binary.BigEndian.AppendUint64(b, at)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(time.Since(epoch).Microseconds()))
	if ask {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.conn.SetWriteDeadline(time.Now().Add(c.d.opts.Timeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

// epoch is where PostgreSQL's clock begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// raise makes a value larger, never smaller.
func raise(a *atomic.Uint64, to uint64) {
	for {
		now := a.Load()
		if now >= to || a.CompareAndSwap(now, to) {
			return
		}
	}
}
