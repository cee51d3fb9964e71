package sqlite

import (
	"context"
	"fmt"
	"time"
)

// pruneRows is what one transaction deletes of the log.
const pruneRows = 500

// markEvery is how often the log is marked, which is how exactly its age is known.
func (o *DatabaseOptions) markEvery() time.Duration {
	return min(max(o.KeepAge/64, time.Second), time.Minute)
}

func (f *follower) due() bool {
	return time.Since(f.marked) >= f.d.opts.markEvery() || f.unmarked > f.d.opts.KeepBytes/16
}

// maintain marks how far the log is, and deletes what nobody needs any more, in small transactions.
func (f *follower) maintain(ctx context.Context) error {
	cut, bytes, err := f.measure(ctx)
	if err != nil {
		return err
	}
	cut = min(cut, f.at) // a mark of another process may be ahead
	now := time.Now().Unix()
	for more := bytes > 0 || cut > 0; more; {
		err := f.d.write(ctx, func() error {
			c := f.d.writer.conn
			return c.atomically("BEGIN IMMEDIATE", func() error {
				if bytes > 0 {
					if err := c.run(`INSERT INTO main._tidewire_marks (id, at, bytes) SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM main._tidewire_marks WHERE id >= ?1)`,
						f.at, now, bytes); err != nil {
						return err
					}
					bytes = 0
				}
				// The last entry stays: the numbers go on from it.
				if err := c.run(`DELETE FROM main._tidewire_changes WHERE id IN (SELECT id FROM main._tidewire_changes WHERE id <= ?1
					AND id < (SELECT max(id) FROM main._tidewire_changes) ORDER BY id LIMIT ?2)`, cut, pruneRows); err != nil {
					return err
				}
				if more = c.Changes() == pruneRows; more {
					return nil
				}
				return c.run(`DELETE FROM main._tidewire_marks WHERE id <= ?`, cut)
			})
		})
		if err != nil {
			return fmt.Errorf("sqlite: pruning the log: %w", err)
		}
		f.d.checkpointIdle(ctx)
	}
	f.marked, f.unmarked = time.Now(), 0
	return nil
}

// measure returns up to which entry the log can go, and how many bytes there are since the last mark.
func (f *follower) measure(ctx context.Context) (cut, bytes int64, err error) {
	defer f.r.rollback()
	if _, err := f.d.begin(ctx, f.r, false, func(state) {}); err != nil {
		return 0, 0, err
	}
	last, err := f.r.numbers(`SELECT coalesce(max(id), 0) FROM main._tidewire_marks`)
	if err != nil {
		return 0, 0, err
	}
	if last[0] < f.at {
		cells, err := f.r.numbers(`SELECT count(*) FROM pragma_table_info('_tidewire_changes', 'main') WHERE name GLOB 'v[0-9]*'`)
		if err != nil {
			return 0, 0, err
		}
		sum := "(16"
		for i := range cells[0] {
			if i%100 == 99 { // deep expressions are refused
				sum += ") + (0"
			}
			sum += fmt.Sprintf(" + coalesce(octet_length(v%d), 0)", i)
		}
		sum += ")"
		s, err := f.r.statement("SELECT coalesce(sum(" + sum + "), 0) FROM main._tidewire_changes WHERE id > ? AND id <= ?")
		if err != nil {
			return 0, 0, err
		}
		rows, err := s.ints(1, last[0], f.at).rows()
		if err != nil {
			return 0, 0, err
		}
		bytes = rows[0][0].Int()
	}
	// From the newest mark back: the first beyond what is kept.
	s, err := f.r.statement(`SELECT id, at, bytes FROM main._tidewire_marks ORDER BY id DESC`)
	if err != nil {
		return 0, 0, err
	}
	marks, err := s.rows()
	if err != nil {
		return 0, 0, err
	}
	old := time.Now().Add(-f.d.opts.KeepAge).Unix()
	kept := bytes
	for _, m := range marks {
		if m[1].Int() < old || kept > f.d.opts.KeepBytes {
			return m[0].Int(), bytes, nil
		}
		kept += m[2].Int()
	}
	return 0, bytes, nil
}

// checkpointIdle is a checkpoint of who does not have the turn.
func (d *Database) checkpointIdle(ctx context.Context) {
	_ = d.write(ctx, func() error { d.checkpoint(); return nil }) // the next one will
}
