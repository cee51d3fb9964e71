package live

import (
	"fmt"
	"time"

	"github.com/tidewire/tidewire/row"
)

// PolicyRow is a row as a [Policy] sees it: all columns of the table.
type PolicyRow struct {
	Table *row.Table
	Row   row.Row
}

// Value returns the value of a column, and false if there is none of this name.
func (r PolicyRow) Value(column string) (row.Value, bool) {
	i := r.Table.Column(column)
	if i < 0 {
		return row.Value{}, false
	}
	return r.Row[i], true
}

// allows asks the policy about a row.
func (en *Entry) allows(t *row.Table, r row.Row) (visible bool, err error) {
	policy := en.ident.t.policy
	if policy == nil {
		return true, nil
	}
	defer func() {
		if p := recover(); p != nil {
			visible, err = false, fmt.Errorf("live: the policy of %s panicked: %v", en.ident.t.def.Name, p)
		}
		switch {
		case err != nil:
			en.e.stats.policyErrors.Add(1)
			en.ident.t.undecided(en.e, err)
		case !visible:
			en.e.stats.denied.Add(1)
		}
	}()
	for i := range r {
		if r[i].Kind() == row.Absent {
			return false, fmt.Errorf("live: column %s is not known", t.Columns[i].Name)
		}
	}
	return policy(en.actor, PolicyRow{t, r})
}

// undecided says that a policy could not decide, at most once in ten seconds for a query: bad data can make it fail for every row and every actor.
func (tp *template) undecided(e *Engine, err error) {
	n := tp.failures.Add(1)
	now, last := e.now(), tp.warned.Load()
	if last != 0 && now-last < int64(10*time.Second) || !tp.warned.CompareAndSwap(last, max(now, 1)) {
		return
	}
	e.log.Warn("a policy could not decide", "query", tp.def.Name, "times", n, "error", err)
}

// held returns what the entry has of a row.
func (en *Entry) held(key row.Value) *image {
	en.logMu.Lock()
	defer en.logMu.Unlock()
	if en.win == nil {
		return nil
	}
	return en.win.get(key)
}
