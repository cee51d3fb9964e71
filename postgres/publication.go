package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/backoff"
)

// coverFor is how long Table tries to get the lock for adding a table to the publication.
const coverFor = 30 * time.Second

// ensurePublication creates the publication when it is missing. It is created without publish_via_partition_root: changes then come under the name of the partition, with its own replica identity, and a TRUNCATE of
// one partition comes at all. A publication with it works too.
// One that leaves kinds of changes out makes all tables unfit.
func (d *Database) ensurePublication(ctx context.Context) error {
	rows, err := d.query(ctx, `SELECT FROM pg_publication WHERE pubname = $1`, d.opts.Publication)
	switch {
	case err != nil:
		return fmt.Errorf("postgres: publication: %w", err)
	case len(rows) == 1:
		return nil
	}
	_, err = d.query(ctx, "CREATE PUBLICATION "+d.opts.Publication)
	switch sqlState(err) {
	case "":
		if err == nil {
			d.log.Info("publication created", "publication", d.opts.Publication)
		}
		return err
	case "42710", "23505": // another process was faster
		return nil
	case "42501":
		return fatal(d.noPublication())
	}
	return fmt.Errorf("postgres: publication: %w", err)
}

// watch is what the catalog said last of the publication. It belongs to Run, and outlives its connections.
type watch struct {
	version string // changes with every ALTER of it, also when it was dropped and created anew
	open    *fence // the transactions that ran when that was seen, until they have ended
}

// republished looks whether the publication was altered, and returns the reason for a reset when it was, and now publishes all: changes of before are missing. Of a transaction that was open then, what it changed before is
// not in the stream either, but not to be read before it ends: then there is another reset.
func (d *Database) republished(ctx context.Context) (reason string, err error) {
	rows, err := d.query(ctx, `SELECT oid::text || '/' || xmin::text, `+publishesAll+`, pg_current_snapshot() FROM pg_publication WHERE pubname = $1`, d.opts.Publication)
	if err != nil || len(rows) == 0 { // without it the stream ends, or its tables are not covered
		return "", err
	}
	version, all := rows[0][0], rows[0][1] == "t"
	now, err := parseFence(rows[0][2])
	if err != nil {
		return "", err
	}
	w := &d.watch
	altered := w.version != "" && w.version != version
	w.version = version
	switch {
	case altered:
		w.open = now
	case w.open == nil || slices.ContainsFunc(w.open.running, func(x uint64) bool { return !now.sees(x) }):
		return "", nil
	}
	if !all { // its tables are unfit
		return "", nil
	}
	reason = "the publication was altered"
	if altered && len(now.running) > 0 {
		return reason, nil
	}
	w.open = nil
	return reason, nil
}

// cover adds a table to the publication. The lock waits for the transactions that have written to the table and keeps others out for the moment: what such a transaction wrote before would never be in the stream, and what it
// writes afterwards is not either in older servers, which keep what they know of the table for as long as the stream lasts. A second of waiting at most keeps
// writers from queueing behind us; then they go first, and it is tried again.
func (d *Database) cover(ctx context.Context, x *description) error {
	d.ddl.Lock()
	defer d.ddl.Unlock()
	if err := d.ensurePublication(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, coverFor)
	defer cancel()
	table := quoteName(x.name())
	sql := "BEGIN; SET LOCAL lock_timeout = '1s'; LOCK TABLE " + table + " IN SHARE ROW EXCLUSIVE MODE; ALTER PUBLICATION " + d.opts.Publication + " ADD TABLE " + table + "; COMMIT"
	for attempt := 1; ; attempt++ {
		err := d.script(ctx, sql)
		switch sqlState(err) {
		case "42710": // another process was faster
			return nil
		case "42501":
			return fmt.Errorf("%w: %s is not in publication %s, and this role may not add it: ALTER PUBLICATION %s ADD TABLE %s", feed.ErrNoTable, x.name(), d.opts.Publication, d.opts.Publication, table)
		case "55P03": // the lock took too long
			d.log.Info("a table waits for its writers to be added to the publication", "table", x.name().String())
			if sleep(ctx, backoff.Backoff{Initial: 100 * time.Millisecond, Max: 3 * time.Second}.Delay(attempt)) != nil {
				return fmt.Errorf("postgres: %s cannot be added to the publication while transactions that have written to it are open: %w", x.name(), err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("postgres: %s cannot be added to the publication: %w", x.name(), err)
		}
		d.log.Info("table added to the publication", "table", x.name().String(), "publication", d.opts.Publication)
		return nil
	}
}

func (d *Database) script(ctx context.Context, sql string) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // a connection in a failed transaction is not used again
	_, err = script(ctx, conn.Conn().PgConn(), sql)
	return err
}

// sleep waits, and returns early with the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Error is what Run cannot mend by itself.
type Error struct{ Finding }

func (e *Error) Error() string {
	return fmt.Sprintf("postgres: %s: %s (%s)", e.Code, e.Cause, e.Fix)
}

func fatal(f Finding) error { return &Error{f} }

func isFatal(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}
