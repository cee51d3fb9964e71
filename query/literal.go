package query

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/tidewire/tidewire/row"
)

// typeKinds are the types of literals. PostgreSQL alone has them.
var typeKinds = map[string]row.Kind{
	"date": row.Date, "timestamp": row.Timestamp, "timestamptz": row.TimestampTZ, "uuid": row.UUID, "numeric": row.Numeric, "decimal": row.Numeric,
	"int": row.Int, "integer": row.Int, "bigint": row.Int, "double": row.Float, "float8": row.Float, "text": row.Text, "bool": row.Bool, "boolean": row.Bool, "bytea": row.Bytes,
}

// arg turns a literal or a parameter into a value for a column of the type.
func (c *compiler) arg(o operand, t row.Type) arg {
	if o.kind == isParam {
		return c.param(o, t, false)
	}
	v, err := literal(o, t)
	if err != nil {
		c.fail(o.pos, "%v", err)
	}
	return arg{value: v, typ: t}
}

func literal(o operand, t row.Type) (row.Value, error) {
	if o.kind == isNull {
		return row.Value{}, nil
	}
	if (o.kind == isString || o.kind == isTyped) && !row.Valid(o.text) {
		return row.Value{}, fmt.Errorf("not UTF-8")
	}
	if t.Engine == row.SQLite {
		return sqliteLiteral(o, t)
	}
	mismatch := fmt.Errorf("a column of type %s is not compared with this literal", t.Kind)
	switch o.kind {
	case isTrue, isFalse:
		if t.Kind != row.Bool {
			return row.Value{}, mismatch
		}
		return row.BoolValue(o.kind == isTrue), nil
	case isNumber:
		switch t.Kind {
		case row.Int: // against a decimal the database compares as decimals
			if v, err := row.ParseText(row.Type{Kind: row.Int}, o.text); err == nil {
				return v, nil
			}
			return row.ParseText(row.Type{Kind: row.Numeric}, o.text)
		case row.Float:
			return row.ParseText(row.Type{Kind: row.Float}, o.text)
		case row.Numeric:
			return row.ParseText(t, o.text)
		}
		return row.Value{}, mismatch
	case isTyped:
		return typedLiteral(o, t, mismatch)
	}
	return row.ParseText(wide(t), o.text)
}

// wide is the type that a literal or parameter has beside a column of the type: it may be larger than any integer of the column, but it is real beside real.
func wide(t row.Type) row.Type {
	if t.Kind == row.Int {
		t.Bits = 64
	}
	return t
}

func typedLiteral(o operand, t row.Type, mismatch error) (row.Value, error) {
	kind := typeKinds[o.typ]
	switch {
	case kind == t.Kind, kind == row.Int && (t.Kind == row.Numeric || t.Kind == row.Float), kind == row.Numeric && t.Kind == row.Float, kind == row.Numeric && t.Kind == row.Int:
	case kind == row.Date && t.Kind == row.Timestamp:
		v, err := row.ParseText(row.Type{Kind: row.Date}, o.text)
		if err != nil || v.Int() == row.Infinity || v.Int() == row.NegInfinity {
			return row.TimestampValue(v.Int()), err
		}
		date, bc := strings.CutSuffix(v.String(), " BC")
		return row.ParseText(t, date+" 00:00:00"+strings.Repeat(" BC", bit(bc)))
	default:
		return row.Value{}, mismatch
	}
	v, err := row.ParseText(row.Type{Kind: kind}, o.text)
	if err != nil || t.Kind == kind {
		return v, err
	}
	if t.Kind == row.Int {
		return v, nil // a decimal beside an int
	}
	return row.ParseText(row.Type{Kind: t.Kind}, string(row.AppendText(nil, v)))
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func sqliteLiteral(o operand, t row.Type) (row.Value, error) {
	var v row.Value
	switch o.kind {
	case isTrue, isFalse:
		v = row.IntValue(int64(bit(o.kind == isTrue)))
	case isNumber:
		if i, err := strconv.ParseInt(o.text, 10, 64); err == nil {
			v = row.IntValue(i)
			break
		}
		f, err := strconv.ParseFloat(o.text, 64)
		if err != nil {
			return v, fmt.Errorf("the number is too large")
		}
		v = row.FloatValue(f)
	case isTyped:
		return v, fmt.Errorf("SQLite has no literals of type %s: write the text or the number that is stored", o.typ)
	default:
		v = row.TextValue(o.text)
	}
	return applyAffinity(v, t)
}

// applyAffinity converts a value as SQLite does before it compares it with a column. Text stored by SQLite never needs the conversion from a number, whose
// text is SQLite's own, so that is refused.
func applyAffinity(v row.Value, t row.Type) (row.Value, error) {
	switch {
	case t.Affinity == row.AffinityText && (v.Kind() == row.Int || v.Kind() == row.Float):
		return v, fmt.Errorf("a column of text is compared with a number")
	case t.Affinity.Number() && v.Kind() == row.Text:
		if s := strings.Trim(v.Text(), " \t\n\v\f\r"); sqliteNumber(s) {
			if i, err := strconv.ParseInt(s, 10, 64); err == nil {
				return row.IntValue(i), nil
			}
			if f, err := strconv.ParseFloat(s, 64); err == nil || math.IsInf(f, 0) {
				return row.FloatValue(f), nil
			}
		}
	}
	return v, nil
}

// sqliteNumber reports whether a text without spaces around it is a number for SQLite.
func sqliteNumber(s string) bool {
	if s != "" && (s[0] == '-' || s[0] == '+') {
		s = s[1:]
	}
	if s == "" || !digit(s[0]) && s[0] != '.' || number(s, 0) != len(s) {
		return false
	}
	mantissa, _, _ := strings.Cut(strings.ToLower(s), "e")
	return strings.Trim(mantissa, ".") != ""
}
