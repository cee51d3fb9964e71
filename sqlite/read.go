package sqlite

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidewire/tidewire/stream"
)

const lookSQL = `SELECT at, before FROM stream_entries WHERE log = ? AND "offset" = ?`

type reader struct {
	*conn
	log, look, entries *statement
}

func newReader(path string, busy time.Duration) (*reader, error) {
	c, err := connect(path, busy)
	if err != nil {
		return nil, err
	}
	r := &reader{
		conn:    c,
		log:     c.prepare(`SELECT generation, id, epoch, head, first, age FROM stream_state LEFT JOIN stream_logs ON name = ?`),
		look:    c.prepare(lookSQL),
		entries: c.prepare(`SELECT "offset", at, data FROM stream_entries WHERE log = ? AND "offset" > ? ORDER BY "offset" LIMIT ?`),
	}
	if c.err != nil {
		return nil, errors.Join(c.err, c.Close())
	}
	return r, nil
}

func (r *reader) read(ctx context.Context, name string, after stream.Position, limit int, now int64) (stream.Page, error) {
	found, err := r.log.text(1, name).row()
	if err != nil {
		return stream.Page{}, err
	}
	if !found {
		return stream.Page{}, errors.New("the generation is missing")
	}
	// As long as this statement is on its row, the others see the same state of the database.
	defer r.log.done()
	p := stream.Page{Head: stream.Head{Position: stream.Position{Epoch: r.log.ColumnText(0)}, First: 1}}
	id, head, age := r.log.ColumnInt64(1), r.log.ColumnInt64(3), r.log.ColumnInt64(5)
	if head > 0 {
		first := r.log.ColumnInt64(4)
		if age > 0 {
			if first, err = seek(r.look, id, first, head, func(at, _ int64) bool { return now-at <= age }); err != nil {
				return stream.Page{}, err
			}
		}
		p.Head = stream.Head{Position: stream.Position{Offset: uint64(head), Epoch: r.log.ColumnText(2)}, First: uint64(first)}
	}
	if !p.Head.Continues(after) {
		return p, stream.ErrGap
	}
	n := min(int64(max(limit, 0)), head-int64(after.Offset))
	if n == 0 {
		return p, nil
	}
	p.Entries = make([]stream.Entry, 0, min(n, 256))
	r.entries.ints(1, id, int64(after.Offset), n)
	cut, bytes := false, 0
	for {
		more, err := r.entries.row()
		if err != nil {
			return stream.Page{}, err
		}
		if !more {
			break
		}
		if err := ctx.Err(); err != nil {
			r.entries.done()
			return stream.Page{}, err
		}
		data := r.entries.ColumnBlob(2, nil)
		if bytes += len(data); bytes > stream.MaxPageBytes && len(p.Entries) > 0 {
			cut = true
			r.entries.done()
			break
		}
		p.Entries = append(p.Entries, stream.Entry{Offset: uint64(r.entries.ColumnInt64(0)), Time: time.Unix(0, r.entries.ColumnInt64(1)), Data: data})
	}
	got := len(p.Entries)
	if !cut && int64(got) != n || p.Entries[got-1].Offset != after.Offset+uint64(got) {
		return stream.Page{}, fmt.Errorf("the file is damaged: entries behind %d are missing", after.Offset)
	}
	return p, nil
}

// seek returns the oldest entry between first and last that keep wants; last+1 if there is none. Whoever keep wants, it wants what is newer too. It looks at one
// entry if the first is wanted, and at a few more than the logarithm of those that it passes otherwise.
func seek(look *statement, log, first, last int64, keep func(at, before int64) bool) (int64, error) {
	kept := func(offset int64) (bool, error) {
		found, err := look.ints(1, log, offset).row()
		if err != nil {
			return false, err
		}
		if !found {
			return false, fmt.Errorf("the file is damaged: entry %d is missing", offset)
		}
		defer look.done()
		return keep(look.ColumnInt64(0), look.ColumnInt64(1)), nil
	}
	low, high := first, last+1 // those before low are not wanted, high is
	for step := int64(1); low < high; step *= 2 {
		probe := min(low+step-1, last)
		wanted, err := kept(probe)
		if err != nil {
			return 0, err
		}
		if wanted {
			high = probe
			break
		}
		low = probe + 1
	}
	for low < high {
		middle := low + (high-low)/2
		wanted, err := kept(middle)
		switch {
		case err != nil:
			return 0, err
		case wanted:
			high = middle
		default:
			low = middle + 1
		}
	}
	return low, nil
}
