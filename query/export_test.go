package query

// PredicateSQL returns the predicate alone, as SQL with arguments.
func (b *Bound) PredicateSQL() Statement {
	w := newWriter(b)
	w.node(b.Query.where)
	return Statement{w.String(), w.args}
}

// PatternMatch is a LIKE.
func PatternMatch(text, pattern, escape string, fold bool) (bool, error) {
	p, err := newPattern(pattern, escape, fold)
	if err != nil {
		return false, err
	}
	return p.match(text), nil
}

// ParseOrder parses an order.
func ParseOrder(s string) error {
	_, err := parseOrder(s)
	return err
}
