package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
)

const lastSQL = `SELECT max(id) FROM main._tidewire_changes`

// followed are the tables that are followed, by number.
func (c *conn) followed() (map[int64]string, error) {
	rows, err := c.all(`SELECT def, name FROM main._tidewire_tables WHERE name IS NOT NULL`)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]string, len(rows))
	for _, r := range rows {
		out[r[0].Int()] = r[1].Text()
	}
	return out, nil
}

// trigger is a trigger in the file.
type trigger struct {
	sql, table string
	age        int64 // a newer one has more
	after      bool
}

// installed are all triggers in the file by name, and whether the log is there.
func (c *conn) installed() (triggers map[string]trigger, log bool, err error) {
	rows, err := c.all(`SELECT name, sql, tbl_name, rowid FROM main.sqlite_schema WHERE type = 'trigger'`)
	if err != nil {
		return nil, false, err
	}
	triggers = make(map[string]trigger, len(rows))
	for _, r := range rows {
		sql := r[1].Text()
		triggers[r[0].Text()] = trigger{sql, r[2].Text(), r[3].Int(), isAfter(sql)}
	}
	tables, err := c.number(`SELECT count(*) FROM main.sqlite_schema WHERE type = 'table'
		AND name IN ('_tidewire_changes', '_tidewire_tables', '_tidewire_marks', '_tidewire_replaced')`)
	return triggers, tables == 4, err
}

// altered says which of the tables that are followed are not as their triggers have them, and why, among them those that have gone or cannot be followed any more; and
// which triggers of the feed belong to no table.
func (c *conn) altered() (reasons map[int64]string, stray []string, log bool, err error) {
	have, log, err := c.installed()
	if err != nil || !log {
		return nil, nil, false, err
	}
	defs, err := c.followed()
	if err != nil {
		return nil, nil, false, err
	}
	reasons = map[int64]string{}
	known := map[string]bool{}
	for def, name := range defs {
		s, err := c.describe(name)
		switch {
		case errors.Is(err, feed.ErrNoTable), errors.Is(err, feed.ErrTableUnfit):
			reasons[def] = err.Error()
			continue
		case err != nil:
			return nil, nil, false, err
		}
		for trigger, sql := range s.triggers(def) {
			if have[trigger].sql != sql {
				reasons[def] = name + " was altered"
			}
			for other, t := range have {
				// The newest trigger is the first one: what a trigger of the program does to the new row must stand behind the row in the log.
				if t.table == name && !ours(other) && t.after && t.age > have[trigger].age && reasons[def] == "" {
					reasons[def] = name + " has a new trigger"
				}
			}
			known[trigger] = true
		}
		if reasons[def] != "" {
			for trigger := range s.triggers(def) {
				delete(known, trigger)
			}
		}
	}
	for trigger := range have {
		if ours(trigger) && !known[trigger] {
			stray = append(stray, trigger)
		}
	}
	return reasons, stray, true, nil
}

// mend makes the log and all triggers as they must be, and follows one more table if it is named. It reports whether anything was amiss: then the log has a cut.
func (d *Database) mend(ctx context.Context, name string) (cut bool, err error) {
	err = d.write(ctx, func() error {
		c := d.writer.conn
		return c.atomically("BEGIN IMMEDIATE", func() error {
			cut, err = c.mend()
			if err == nil && name != "" {
				err = c.followNew(name)
			}
			return err
		})
	})
	if cut {
		d.notify()
	}
	return cut, err
}

func (c *conn) mend() (cut bool, err error) {
	if err := c.Exec(feedSchema); err != nil {
		return false, err
	}
	last, err := c.number(`SELECT coalesce(max(id), 0) FROM main._tidewire_changes`)
	if err != nil {
		return false, err
	}
	if last == 0 {
		cut = true
		if err := c.run(`INSERT INTO main._tidewire_changes (id, op, v0) VALUES (?, ?, ?)`, time.Now().UnixMicro(), opCut, "the log was made"); err != nil {
			return false, err
		}
	}
	reasons, stray, _, err := c.altered()
	if err != nil {
		return false, err
	}
	defs, err := c.followed()
	if err != nil {
		return false, err
	}
	for _, trigger := range stray {
		if err := c.Exec("DROP TRIGGER main." + quote(trigger)); err != nil {
			return false, err
		}
	}
	for def, reason := range reasons {
		if err := c.unfollow(def, reason); err != nil {
			return false, err
		}
		cut = true
		err := c.followNew(defs[def])
		if err != nil && !errors.Is(err, feed.ErrNoTable) && !errors.Is(err, feed.ErrTableUnfit) {
			return false, err
		}
	}
	return cut, nil
}

// unfollow forgets a table, whose triggers are gone, and cuts the log.
func (c *conn) unfollow(def int64, reason string) error {
	if err := c.run(`UPDATE main._tidewire_tables SET name = NULL WHERE def = ?`, def); err != nil {
		return err
	}
	if err := c.run(`DELETE FROM main._tidewire_replaced WHERE def = ?`, def); err != nil {
		return err
	}
	return c.run(`INSERT INTO main._tidewire_changes (op, v0) VALUES (?, ?)`, opCut, reason)
}

// followNew follows a table, if it is not followed already.
func (c *conn) followNew(name string) error {
	s, err := c.describe(name)
	if err != nil {
		return err
	}
	if err := c.nullKey(s); err != nil {
		return err
	}
	name = s.table.Table
	followed, err := c.all(`SELECT 1 FROM main._tidewire_tables WHERE name = ?`, name)
	if err != nil || len(followed) > 0 {
		return err
	}
	if err := errors.Join(c.widen("_tidewire_changes", 2*len(s.table.Columns)), c.widen("_tidewire_replaced", len(s.table.Columns))); err != nil {
		return err
	}
	def, err := c.number(`SELECT coalesce(max(def), 0) + 1 FROM main._tidewire_tables`)
	if err != nil {
		return err
	}
	if err := c.run(`INSERT INTO main._tidewire_tables (def, name) VALUES (?, ?)`, def, name); err != nil {
		return err
	}
	for _, sql := range s.triggers(def) {
		if err := c.Exec(sql); err != nil {
			return fmt.Errorf("sqlite: following %s: %w", name, err)
		}
	}
	return nil
}

// widen gives a table of the log as many columns for cells as are asked for.
func (c *conn) widen(table string, cells int) error {
	have, err := c.number(fmt.Sprintf(`SELECT count(*) FROM pragma_table_info('%s', 'main') WHERE name GLOB 'v[0-9]*'`, table))
	for ; err == nil && have < int64(cells); have++ {
		err = c.Exec(fmt.Sprintf("ALTER TABLE main.%s ADD COLUMN v%d", table, have))
	}
	return err
}

// transient reports whether an error may be gone the next time.
func transient(err error) bool {
	for _, code := range []sqlite3.ErrorCode{sqlite3.BUSY, sqlite3.LOCKED, sqlite3.FULL, sqlite3.IOERR, sqlite3.NOMEM, sqlite3.PROTOCOL, sqlite3.SCHEMA} {
		if errors.Is(err, code) {
			return true
		}
	}
	return false
}
