package query

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewire/tidewire/row"
)

var (
	// ErrDefinition means that a definition is refused: it is the author's error, found at start.
	ErrDefinition = errors.New("query: definition refused")
	// ErrInput means that an input is refused: it is the caller's error.
	ErrInput = errors.New("query: input refused")
)

// Bounds of what may be declared.
const (
	MaxLimit  = 10000
	MaxParams = 64
)

// Definition declares a query.
type Definition struct {
	// Name is what clients ask for.
	Name string
	// From names the table. Compile is given the table and does not look at From.
	From string
	// Where decides which rows belong. Empty means all.
	Where string
	// Visible decides which of them a subscriber may see, by attributes of the actor ($actor.…). Empty means all.
	Visible string
	// Order is a list of columns: "created_at DESC NULLS LAST, title COLLATE \"C\"". The primary key is always added at the end.
	Order string
	// Limit bounds the result. Zero means no limit.
	Limit int
	// Columns are shown to clients, together with the primary key. Nil means all.
	Columns []string
	// Input declares parameters. One that is used and not declared is required, and has the type of the column it meets first. $actor.… parameters come
	// from the actor, never from the input, and are NULL when the actor has no such attribute.
	Input map[string]Param
}

// Param declares a parameter.
type Param struct {
	// Type is bool, int, number, text, uuid, date, timestamp, timestamptz or bytes. Empty means the type of the column it meets first.
	Type string
	// List makes it a list, for IN $name.
	List bool
	// Optional makes a missing parameter NULL, or Default when there is one.
	Optional bool
	// Default stands for a missing parameter. It makes the parameter optional.
	Default json.RawMessage
	// Max bounds the bytes of a text, and the length of a list. Zero means 4,096 and 64.
	Max int
}

// Class says how a query is kept up to date.
type Class uint8

// The classes.
const (
	Routed    Class = iota // each change is matched in memory, no limit
	Windowed               // matched in memory, with an order and a limit
	Dependent              // membership through another table; Compile never gives it, it is declared where the join is
	Rerun                  // something is known to the database alone: a change that may matter leads to a new read
)

func (c Class) String() string { return [...]string{"routed", "windowed", "dependent", "re-run"}[c] }

// Query is a compiled definition. It is not changed after Compile and may be used concurrently.
type Query struct {
	Definition Definition
	Table      *row.Table
	// Class is how the query is kept up to date, and Reason why it is Rerun.
	Class  Class
	Reason string
	// Order is the total order of the rows: that of the definition, then the primary key. Nil when Class is Rerun because of the order.
	Order *row.Order
	// Projection writes what clients see.
	Projection *row.Projection
	// Reads is the columns that the predicate, the order and the projection touch, and the primary key: an update that changes none of them
	// changes nothing. Filter is those of the predicate alone.
	Reads, Filter row.Mask
	// Columns is what clients see, by position.
	Columns []int

	where  *node
	dnf    [][]*node // nil when it would be too large
	order  []row.OrderKey
	params []param // by name
}

// Compile checks a definition against its table. A definition that cannot be right is refused with an error that wraps [ErrDefinition];
// one that is right and cannot be matched here has the class Rerun, with the reason.
func Compile(def Definition, table *row.Table) (*Query, error) {
	q := &Query{Definition: def, Table: table}
	if err := q.compile(); err != nil {
		var at *SyntaxError
		if errors.As(err, &at) || errors.Is(err, ErrDefinition) {
			return nil, fmt.Errorf("query %q: %w", def.Name, err)
		}
		return nil, fmt.Errorf("%w: query %q: %w", ErrDefinition, def.Name, err)
	}
	return q, nil
}

func (q *Query) compile() error {
	def, t := &q.Definition, q.Table
	switch {
	case def.Name == "" || len(def.Name) > 256:
		return errors.New("a name has 1 to 256 bytes")
	case len(t.Key) == 0:
		return fmt.Errorf("table %s has no primary key", t.Name)
	case def.Limit < 0 || def.Limit > MaxLimit:
		return fmt.Errorf("the limit is 0 to %d", MaxLimit)
	}
	c := &compiler{q: q}
	if err := c.declare(); err != nil {
		return err
	}
	var parts []*node
	for _, p := range []struct{ part, text string }{{"where", def.Where}, {"visible", def.Visible}} {
		if strings.TrimSpace(p.text) == "" {
			continue
		}
		n, err := c.predicate(p.part, p.text)
		if err != nil {
			return err
		}
		parts = append(parts, n)
	}
	q.where = conjunction(parts)
	q.dnf = disjunctiveForm(q.where)
	if err := c.finishParams(); err != nil {
		return err
	}
	if err := c.project(); err != nil {
		return err
	}
	if err := c.orderBy(); err != nil {
		return err
	}
	for _, k := range t.Key {
		q.Reads = q.Reads.With(k)
	}
	q.classify(c.inexact)
	return nil
}

func (q *Query) classify(inexact []string) {
	if q.Class == Rerun { // by the order
		inexact = append(inexact, q.Reason)
	}
	switch {
	case len(inexact) > 0:
		q.Class, q.Reason = Rerun, strings.Join(slices.Compact(inexact), "; ")
	case q.Definition.Limit > 0:
		q.Class = Windowed
	}
}

func (c *compiler) project() error {
	q, t := c.q, c.q.Table
	for i := range t.Columns {
		if q.Definition.Columns == nil || slices.Contains(t.Key, i) {
			q.Columns = append(q.Columns, i)
		}
	}
	for _, name := range q.Definition.Columns {
		i := t.Column(name)
		if i < 0 {
			return fmt.Errorf("table %s has no column %q to show", t.Name, name)
		}
		if !slices.Contains(q.Columns, i) {
			q.Columns = append(q.Columns, i)
		}
	}
	for _, i := range q.Columns {
		q.Reads = q.Reads.With(i)
	}
	q.Projection = row.NewProjection(t, q.Columns)
	return nil
}

func (c *compiler) orderBy() (err error) {
	q, t := c.q, c.q.Table
	items, err := parseOrder(q.Definition.Order)
	if err != nil {
		return err
	}
	seen := map[int]bool{}
	for _, it := range items {
		i, err := c.column(it.column, "order")
		if err != nil {
			return err
		}
		if seen[i] {
			return &SyntaxError{"order", it.pos + 1, fmt.Sprintf("column %s stands here twice", t.Columns[i].Name)}
		}
		seen[i] = true
		k := row.OrderKey{Column: i, Desc: it.desc, Bytes: it.bytes, NullsFirst: it.nulls == "first"}
		if it.nulls == "" { // NULL is the largest value for PostgreSQL and the smallest for SQLite
			k.NullsFirst = it.desc == (t.Engine == row.PostgreSQL)
		}
		if k.Bytes && t.Engine == row.PostgreSQL && t.Columns[i].Type.Kind != row.Text {
			return &SyntaxError{"order", it.pos + 1, "COLLATE is for columns of text"}
		}
		q.Reads = q.Reads.With(i)
		q.order = append(q.order, k)
	}
	for _, i := range t.Key {
		if !seen[i] {
			typ := t.Columns[i].Type // a tie is broken by bytes where the order of the collation is not known here
			q.order = append(q.order, row.OrderKey{Column: i, Bytes: !typ.Collation.Ordered(), NullsFirst: t.Engine == row.SQLite})
		}
	}
	if q.Order, err = row.NewOrder(t, q.order...); err != nil {
		q.Class, q.Reason = Rerun, "order: "+err.Error()
		if t.Engine == row.PostgreSQL && strings.Contains(err.Error(), "collation") {
			q.Reason += ` (COLLATE "C" in the order would make it one)`
		}
	}
	return nil
}
