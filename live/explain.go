package live

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// Reason is why an entry shows a row or does not.
type Reason string

// The reasons.
const (
	Shown     Reason = "shown"
	NoRow     Reason = "no row"    // the table has no row with the key
	Predicate Reason = "predicate" // the row does not match; Leaves did not hold
	Denied    Reason = "policy"    // the policy hides it
	Undecided Reason = "failure"   // the policy could not decide
	Beyond    Reason = "limit"     // it stands behind the last row shown
	Underway  Reason = "under way" // the database has it already, and the entry does not
)

// Explanation says why an entry shows a row or does not.
type Explanation struct {
	Reason  Reason   `json:"reason"`
	Index   int      `json:"index"`            // where it is shown, or -1
	Leaves  []string `json:"leaves,omitempty"` // of the predicate, without values
	Error   string   `json:"error,omitempty"`  // of the policy
	Version uint64   `json:"version"`          // of the window that was looked at
}

// Explain says why an entry shows the row with a key, in the form of [Frame], or does not. It reads the row from the database. It tells what an operator may know, not a subscriber.
func (e *Engine) Explain(ctx context.Context, en *Entry, key json.RawMessage) (Explanation, error) {
	en.mu.Lock()
	q, bound := en.plan.q, en.bound
	en.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, e.opts.ReadTimeout)
	defer cancel()
	r, err := e.readRow(ctx, q.Table, key)
	if err != nil {
		return Explanation{}, err
	}
	x := Explanation{Index: -1, Reason: NoRow}
	if r == nil {
		x.Version = en.Version()
		return x, nil
	}
	en.logMu.Lock()
	w := en.win
	x.Version = en.version
	limited, held := false, false
	if w != nil {
		limited = !w.complete
		held = w.get(q.Table.KeyOf(r)) != nil
		for i := range w.shown() {
			if w.slots[i].img.key == q.Table.KeyOf(r) {
				x.Index = i
			}
		}
	}
	en.logMu.Unlock()
	visible, failure := en.allows(q.Table, r)
	switch {
	case x.Index >= 0:
		x.Reason = Shown
	case bound.Match(r) != query.True:
		x.Reason, x.Leaves = Predicate, bound.Explain(r)
	case failure != nil:
		x.Reason, x.Error = Undecided, failure.Error()
	case !visible:
		x.Reason = Denied
	case held || limited:
		x.Reason = Beyond
	default:
		x.Reason = Underway
	}
	return x, nil
}

// readRow reads the row with a key, nil if there is none.
func (e *Engine) readRow(ctx context.Context, t *row.Table, key json.RawMessage) (r row.Row, err error) {
	parts := []json.RawMessage{key}
	if len(t.Key) > 1 {
		if err := json.Unmarshal(key, &parts); err != nil || len(parts) != len(t.Key) {
			return nil, fmt.Errorf("%w: a key of %s is an array of %d values", query.ErrInput, t.Name, len(t.Key))
		}
	}
	in := map[string]json.RawMessage{}
	var where []string
	for i, c := range t.Key {
		name := fmt.Sprint("k", i)
		in[name] = parts[i]
		where = append(where, fmt.Sprintf(`"%s" = $%s`, strings.ReplaceAll(t.Columns[c].Name, `"`, `""`), name))
	}
	q, err := query.Compile(query.Definition{Name: "explain", From: t.Identity().String(), Where: strings.Join(where, " AND ")}, t)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("%w: a key is JSON: %w", query.ErrInput, err)
	}
	input, err := q.Input(raw, nil)
	if err != nil {
		return nil, err
	}
	bound, err := q.Bind(input)
	if err != nil {
		return nil, err
	}
	err = e.opts.Database.Read(ctx, func(s feed.Snapshot) error {
		rows, err := selectRows(ctx, s, bound, 1, nil)
		if len(rows) > 0 {
			r = rows[0]
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRead, err)
	}
	return r, nil
}
