package postgres

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// compare looks at every heartbeat whether the catalog still says what the feed has said, and raises the alarm when rows moved without a change in the stream.
func (d *Database) compare(ctx context.Context, alarm *alarm, wake chan<- struct{}) {
	t := time.NewTicker(d.opts.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		reason, err := d.moved(ctx)
		if err == nil {
			var other string
			if other, err = d.republished(ctx); reason == "" { // after the tables, so that none is found unfit later for what it has seen
				reason = other
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.log.Warn("the catalog cannot be compared", "error", err)
		case reason != "":
			alarm.set(reason)
			select {
			case wake <- struct{}{}: // the answer of the server wakes the reader
			default:
			}
		}
	}
}

// moved compares all tables of the feed with the catalog, and takes over what it says.
func (d *Database) moved(ctx context.Context) (reason string, err error) {
	before := d.tables.all()
	if len(before) == 0 {
		return "", nil
	}
	oids := make([]uint32, 0, len(before))
	for oid := range before {
		oids = append(oids, oid)
	}
	slices.Sort(oids)
	found, err := d.describe(ctx, `c.oid = ANY ($2::oid[])`, oidArray(oids))
	if err != nil {
		return "", err
	}
	for _, oid := range oids {
		var now *description
		if i := slices.IndexFunc(found, func(x *description) bool { return x.OID == oid }); i >= 0 {
			now = found[i]
		}
		what := moved(before[oid], now)
		if what != "" && reason == "" {
			reason = "table " + before[oid].name().String() + " " + what
		}
		d.adopt(oid, before[oid], now)
	}
	return reason, nil
}

// adopt takes over what the catalog says of a table of the feed. One that cannot be followed any more leaves it.
func (d *Database) adopt(oid uint32, before, now *description) {
	switch {
	case now == nil || now.unfit() != "" || !now.Covered || before.name() != now.name():
		d.tables.remove(oid)
	case !now.same(before):
		d.tables.put(now)
		d.warnPartial(now)
	}
}

// same reports whether nothing at all has changed.
func (x *description) same(o *description) bool {
	return x.Identity == o.Identity && x.ViaRoot == o.ViaRoot && slices.Equal(x.Nodes, o.Nodes) && x.layout().equal(o.layout())
}

// refresh asks the catalog for a table of the feed, takes over what it says, and returns what has happened to it, as moved does.
func (d *Database) refresh(ctx context.Context, oid uint32) (what string, err error) {
	before := d.tables.all()[oid]
	if before == nil {
		return "", nil
	}
	found, err := d.describe(ctx, `c.oid = $2::oid`, oidText(oid))
	if err != nil {
		return "", err
	}
	var now *description
	if len(found) > 0 {
		now = found[0]
	}
	d.adopt(oid, before, now)
	return moved(before, now), nil
}

// Probe writes to the log and waits until the stream has passed it: then the feed works from end to end. It takes a transaction id.
func (d *Database) Probe(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("postgres: probe: %w", err)
	}
	rows, err := script(ctx, conn.Conn().PgConn(), "BEGIN; SET LOCAL synchronous_commit = local; SELECT pg_logical_emit_message(true, 'tidewire', ''); COMMIT")
	conn.Release()
	if err != nil {
		return fmt.Errorf("postgres: probe: %w", err)
	}
	at, err := parseLSN(rows[0][0])
	if err != nil {
		return err
	}
	for wait := time.Millisecond; d.seen.Load() < uint64(at); wait = min(2*wait, 50*time.Millisecond) {
		if err := sleep(ctx, wait); err != nil {
			return fmt.Errorf("postgres: probe: the stream has not reached %s: %w", at, err)
		}
	}
	return nil
}

func oidText(oid uint32) string { return strconv.FormatUint(uint64(oid), 10) }

func parseOID(s string) uint32 {
	n, _ := strconv.ParseUint(s, 10, 32)
	return uint32(n)
}

func columnOIDs(columns []relationColumn) []uint32 {
	out := make([]uint32, len(columns))
	for i, c := range columns {
		out[i] = c.oid
	}
	return out
}
