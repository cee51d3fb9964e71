package row

// OrderKey is one key of an order.
type OrderKey struct {
	Column     int
	Desc       bool
	NullsFirst bool
	Bytes      bool // text is compared by its bytes, whatever the collation of the column: COLLATE "C", COLLATE BINARY
}

// Order compares rows.
type Order struct {
	keys       []OrderKey
	collations []Collation
}

// NewOrder returns the order by keys. It refuses a column that cannot be ordered here with [ErrNotComparable]. An order is total when its last keys are the primary key.
func NewOrder(t *Table, keys ...OrderKey) (*Order, error) {
	o := &Order{keys: keys}
	for _, k := range keys {
		c := t.Columns[k.Column]
		if k.Bytes {
			c.Type = c.Type.InBytes()
		}
		if err := c.Type.Ordered(); err != nil {
			return nil, wrap(c.Name, err)
		}
		o.collations = append(o.collations, c.Type.Collation)
	}
	return o, nil
}

// Keys returns the keys, which the caller must not change.
func (o *Order) Keys() []OrderKey { return o.keys }

// Compare returns a negative number when a stands before b, a positive one after, and 0 when no key tells them apart. It allocates nothing.
func (o *Order) Compare(a, b Row) int {
	for i := range o.keys {
		k := &o.keys[i]
		x, y := a[k.Column], b[k.Column]
		if x == y {
			continue
		}
		if x.kind == Null || y.kind == Null {
			if (x.kind == Null) == k.NullsFirst {
				return -1
			}
			return 1
		}
		if c := Compare(x, y, o.collations[i]); c != 0 {
			if k.Desc {
				return -c
			}
			return c
		}
	}
	return 0
}
