package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidewire/tidewire/row"
)

// Code names a finding. Codes are stable.
type Code string

// The codes, in the order in which they are looked for.
const (
	CodeUnreachable     Code = "PG_UNREACHABLE"        // no connection
	CodeVersion         Code = "PG_VERSION"            // the server is too old
	CodeEncoding        Code = "PG_ENCODING"           // the database is not in UTF8
	CodeStandby         Code = "PG_STANDBY"            // the server is a read-only standby
	CodeWALLevel        Code = "PG_WAL_LEVEL"          // wal_level is not logical
	CodeSlots           Code = "PG_SLOTS"              // no replication slot is free
	CodeSenders         Code = "PG_SENDERS"            // no WAL sender is free
	CodePrivileges      Code = "PG_PRIVILEGES"         // the role may not replicate
	CodeOtherDatabase   Code = "PG_OTHER_DATABASE"     // the two URLs lead to two databases
	CodePublication     Code = "PG_PUBLICATION"        // the publication is missing, or leaves something out
	CodeTable           Code = "PG_TABLE"              // a table cannot be followed
	CodeReplicaIdentity Code = "LIVE_REPLICA_IDENTITY" // old rows have only their key
	CodeSlot            Code = "PG_SLOT"               // the slot belongs to something else
	CodeSlotHeld        Code = "REPLICATOR_SLOT_HELD"  // another process reads the slot
	CodeSlotLost        Code = "PG_SLOT_LOST"          // the server has thrown away what the slot needs
	CodeRetained        Code = "PG_RETAINED"           // the slot keeps much of the log, or may keep any amount of it
)

// Finding is one thing that is wrong, or not as it should be.
type Finding struct {
	Code Code
	// Fatal reports whether Run ends with it. Others are warnings.
	Fatal bool
	Cause string // one line
	Fix   string // what to do: statements, or settings
}

func (f Finding) String() string { return fmt.Sprintf("%s: %s: %s", f.Code, f.Cause, f.Fix) }

// retainedMuch is from where on the log that a slot keeps is a finding.
const retainedMuch = 1 << 30

// Check looks for everything that keeps the feed from working, and at the tables of [Options.Tables] and those that were asked for. It changes nothing. None is found when all is well.
func (d *Database) Check(ctx context.Context) []Finding {
	c := &check{d: d}
	c.server(ctx)
	if c.stop {
		return c.found
	}
	c.replication(ctx)
	c.publication(ctx)
	c.tables(ctx)
	if d.opts.Slot != "" {
		c.slot(ctx)
	}
	return c.found
}

// check collects findings.
type check struct {
	d     *Database
	found []Finding
	stop  bool // nothing more can be asked
}

func (c *check) add(code Code, fatal bool, cause, fix string) {
	c.found = append(c.found, Finding{code, fatal, cause, fix})
}

// ask runs a query, and without an answer notes that.
func (c *check) ask(ctx context.Context, sql string, args ...string) [][]string {
	rows, err := c.d.query(ctx, sql, args...)
	if err != nil && !c.stop {
		c.stop = true
		c.found = append(c.found, unreachable("URL", err))
	}
	return rows
}

func unreachable(which string, err error) Finding {
	return Finding{CodeUnreachable, false, oneLine(err), "start the server, or correct the " + which}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

func (c *check) server(ctx context.Context) {
	rows := c.ask(ctx, `SELECT current_setting('server_version'), current_setting('server_version_num'), current_setting('server_encoding'), pg_is_in_recovery(), current_setting('wal_level'),
		current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots), current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_replication),
		(SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1), current_setting('max_replication_slots'), current_setting('max_wal_senders')`, c.d.opts.Slot)
	if c.stop {
		return
	}
	r := rows[0]
	number := func(i int) int { n, _ := strconv.Atoi(r[i]); return n }
	if number(1) < 130000 {
		c.add(CodeVersion, true, "the server is version "+r[0], "upgrade to PostgreSQL 13 or newer")
	}
	if r[2] != "UTF8" {
		c.add(CodeEncoding, true, "the database is encoded in "+r[2], "create it with ENCODING 'UTF8'")
	}
	if r[3] == "t" {
		c.add(CodeStandby, true, "the server is a standby", "name the primary in the URL, for example with target_session_attrs=read-write")
	}
	if r[4] != "logical" {
		c.add(CodeWALLevel, true, "wal_level is "+r[4], "ALTER SYSTEM SET wal_level = 'logical', and restart the server")
	}
	running := c.d.Stats().Connected
	if number(5) <= 0 && number(7) == 0 && !running {
		c.add(CodeSlots, false, "all "+r[8]+" replication slots are taken", "drop one that nobody needs (SELECT pg_drop_replication_slot(…)), or raise max_replication_slots and restart the server")
	}
	if number(6) <= 0 && !running {
		c.add(CodeSenders, false, "all "+r[9]+" WAL senders are in use", "raise max_wal_senders and restart the server")
	}
}

// replication connects as Run does, and looks who and where it is then.
func (c *check) replication(ctx context.Context) {
	conn, err := pgconn.ConnectConfig(ctx, c.d.replication)
	if err != nil {
		c.found = append(c.found, replicationRefused(err))
		return
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	there, err := script(ctx, conn, identitySQL)
	if err != nil {
		c.found = append(c.found, unreachable("replication URL", err))
		return
	}
	if here := c.ask(ctx, identitySQL); !c.stop && (here[0][0] != there[0][0] || here[0][1] != there[0][1]) {
		c.found = append(c.found, otherDatabase)
	}
}

// identitySQL tells one database from another, wherever it is and whatever it is called.
const identitySQL = `SELECT (SELECT system_identifier FROM pg_control_system()), (SELECT oid FROM pg_database WHERE datname = current_database())`

var otherDatabase = Finding{CodeOtherDatabase, true, "the replication URL leads to another database than the URL", "give the same host, port and database in both"}

// replicationRefused tells missing privileges from a server that is not there.
func replicationRefused(err error) Finding {
	switch sqlState(err) {
	case "42501", "28000":
		return Finding{CodePrivileges, true, oneLine(err), "ALTER ROLE … REPLICATION, and a line in pg_hba.conf that lets the role connect to the database"}
	case "28P01", "3D000":
		return Finding{CodeUnreachable, true, oneLine(err), "correct the replication URL"}
	case "53300":
		return Finding{CodeSenders, false, oneLine(err), "raise max_wal_senders and restart the server"}
	}
	return unreachable("replication URL", err)
}

func (d *Database) noPublication() Finding {
	return Finding{
		CodePublication, true, "publication " + d.opts.Publication + " does not exist, and this role may not create it",
		"CREATE PUBLICATION " + d.opts.Publication + " FOR TABLE …, or GRANT CREATE ON DATABASE … TO …",
	}
}

func (d *Database) partialPublication() Finding {
	return Finding{
		CodePublication, true, "publication " + d.opts.Publication + " leaves kinds of changes out",
		publishAll(d.opts.Publication),
	}
}

// publishesAll is the condition over pg_publication that no kind of change is left out, and publishAll the statement that mends it.
const publishesAll = `(pubinsert AND pubupdate AND pubdelete AND pubtruncate)`

func publishAll(publication string) string {
	return "ALTER PUBLICATION " + publication + " SET (publish = 'insert, update, delete, truncate')"
}

func (c *check) publication(ctx context.Context) {
	rows := c.ask(ctx, `SELECT `+publishesAll+` FROM pg_publication WHERE pubname = $1`, c.d.opts.Publication)
	switch {
	case c.stop:
	case len(rows) == 1 && rows[0][0] != "t":
		c.found = append(c.found, c.d.partialPublication())
	case len(rows) == 0:
		if may := c.ask(ctx, `SELECT has_database_privilege(current_database(), 'CREATE')`); !c.stop && may[0][0] != "t" {
			c.found = append(c.found, c.d.noPublication())
		}
	}
}

func (c *check) tables(ctx context.Context) {
	wanted := map[row.Name]bool{}
	for _, n := range c.d.opts.Tables {
		wanted[n] = true
	}
	for _, x := range c.d.tables.all() {
		wanted[x.name()] = true
	}
	for n := range wanted {
		all, err := c.d.describe(ctx, `n.nspname = $2 AND c.relname = $3`, n.Schema, n.Table)
		switch {
		case err != nil:
			c.found = append(c.found, unreachable("URL", err))
			return
		case len(all) == 0:
			c.add(CodeTable, true, "table "+n.String()+" does not exist", "create it, or take it out of the configuration")
			continue
		}
		x := all[0]
		if why := x.unfit(); why != "" {
			cause, fix, _ := strings.Cut(why, ": ")
			c.add(CodeTable, true, "table "+n.String()+" cannot be followed: "+cause, fix)
			continue
		}
		if !x.Covered {
			c.uncovered(ctx, x)
		}
		if fix := x.partial(); len(fix) > 0 {
			c.add(CodeReplicaIdentity, false, "old rows of "+n.String()+" have only their key", strings.Join(fix, "; "))
		}
	}
}

// uncovered notes a table that is not in the publication and that this role may not add.
func (c *check) uncovered(ctx context.Context, x *description) {
	rows := c.ask(ctx, `SELECT pg_has_role(relowner, 'USAGE') AND coalesce((SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = $1), true)
		FROM pg_class WHERE oid = $2::oid`, c.d.opts.Publication, strconv.FormatUint(uint64(x.OID), 10))
	if !c.stop && len(rows) == 1 && rows[0][0] != "t" {
		c.add(CodePublication, true, "table "+x.name().String()+" is not in publication "+c.d.opts.Publication+", and this role may not add it",
			"ALTER PUBLICATION "+c.d.opts.Publication+" ADD TABLE "+quoteName(x.name()))
	}
}

func (c *check) slot(ctx context.Context) {
	s, err := c.d.slotState(ctx)
	switch {
	case err != nil:
		c.found = append(c.found, unreachable("URL", err))
		return
	case s == nil:
		return // it is created
	case s.foreign != "":
		c.found = append(c.found, c.d.foreignSlot(s))
		return
	case s.lost:
		c.add(CodeSlotLost, false, "the server has thrown away what slot "+s.name+" needs", "none is needed: it is created again and the feed is reset; raise max_slot_wal_keep_size to keep it next time")
	case s.pid != 0 && !c.d.Stats().Connected:
		c.add(CodeSlotHeld, false, fmt.Sprintf("slot %s is read by process %d of the server (%s)", s.name, s.pid, s.by), "none, if that is another node: this one stands by")
	}
	if s.retained >= retainedMuch {
		c.add(CodeRetained, false, fmt.Sprintf("slot %s keeps %d MiB of the log (%s)", s.name, s.retained>>20, s.status), "start a node that reads it, or SELECT pg_drop_replication_slot("+literal(s.name)+")")
	} else if s.unlimited {
		c.add(CodeRetained, false, "a slot that nobody reads may keep any amount of the log", "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB', and reload the server")
	}
}

// slot is what the server knows of the durable slot.
type slot struct {
	name, status, foreign, by string
	pid                       int // of the backend that reads it
	confirmed                 lsn
	lost, unlimited           bool
	retained                  int64
}

func (d *Database) foreignSlot(s *slot) Finding {
	return Finding{CodeSlot, true, "slot " + s.name + " " + s.foreign, "choose another name, or SELECT pg_drop_replication_slot(" + literal(s.name) + ")"}
}

// slotState returns nil when there is no slot.
func (d *Database) slotState(ctx context.Context) (*slot, error) {
	rows, err := d.query(ctx, `SELECT coalesce(plugin, ''), slot_type, coalesce(database, ''), coalesce(active_pid, 0), coalesce(confirmed_flush_lsn::text, '0/0'), coalesce(wal_status, ''), temporary,
		coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::int8, current_setting('max_slot_wal_keep_size') = '-1', current_database(),
		coalesce((SELECT application_name || ' at ' || coalesce(client_addr::text, 'local') FROM pg_stat_replication r WHERE r.pid = s.active_pid), 'not known'),
		coalesce(to_jsonb(s)->>'invalidation_reason', '') FROM pg_replication_slots s WHERE slot_name = $1`, d.opts.Slot)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	r := rows[0]
	s := &slot{name: d.opts.Slot, status: r[5], by: r[10], lost: r[5] == "lost" || r[11] != "", unlimited: r[8] == "t"}
	s.pid, _ = strconv.Atoi(r[3])
	s.retained, _ = strconv.ParseInt(r[7], 10, 64)
	switch {
	case r[1] != "logical" || r[0] != "pgoutput":
		s.foreign = "is of another kind (" + r[1] + " " + r[0] + ")"
	case r[2] != r[9]:
		s.foreign = "belongs to the database " + r[2]
	case r[6] == "t":
		s.foreign = "is temporary"
	}
	s.confirmed, err = parseLSN(r[4])
	return s, err
}

// DropSlot drops the durable slot, which nobody may be reading. A missing slot is no error.
func (d *Database) DropSlot(ctx context.Context) error {
	_, err := d.query(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, d.opts.Slot)
	if err != nil {
		return fmt.Errorf("postgres: drop slot %s: %w", d.opts.Slot, err)
	}
	return nil
}
