package row

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Ordered returns nil when values of the type can be ordered here, else an error that wraps [ErrNotComparable] and says why.
func (t Type) Ordered() error {
	switch t.Kind {
	case JSON, Array, Opaque:
		if t.Engine == PostgreSQL {
			return fmt.Errorf("%w: values of type %s are shown and never compared", ErrNotComparable, t.label())
		}
	}
	if !t.Collation.Ordered() {
		return fmt.Errorf("%w: the order of collation %s is known to the database alone", ErrNotComparable, t.Collation)
	}
	return nil
}

// Equatable returns nil when equality of the type can be decided here, else an error that wraps [ErrNotComparable].
func (t Type) Equatable() error {
	if t.Collation == Locale {
		return nil
	}
	return t.Ordered()
}

// InBytes returns the type under COLLATE "C" of PostgreSQL or COLLATE BINARY of SQLite. The padding of char(n) does not count even then.
func (t Type) InBytes() Type {
	t.Collation = C
	if t.Engine == PostgreSQL && t.Kind == Text && t.Name == "character" {
		t.Collation = RTrim
	}
	return t
}

func (t Type) label() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Kind.String()
}

func wrap(column string, err error) error { return fmt.Errorf("column %s: %w", column, err) }

// class orders the kinds: the numbers are one class, and SQLite's text stands before its blobs.
func (k Kind) class() int {
	if k == Float || k == Numeric {
		return int(Int)
	}
	return int(k)
}

// Compare returns -1, 0 or 1: the order of two values of one column. NULL stands before everything; a query decides about NULL before it compares. Numbers of
// different kinds are compared exactly.
func Compare(a, b Value, c Collation) int {
	if a.kind != b.kind {
		if a.kind.class() != b.kind.class() {
			return cmp.Compare(a.kind.class(), b.kind.class())
		}
		return compareNumbers(a, b)
	}
	switch a.kind {
	case Bool, Enum:
		return cmp.Compare(a.n, b.n)
	case Int, Timestamp, TimestampTZ, Date:
		return cmp.Compare(int64(a.n), int64(b.n))
	case Float:
		return compareFloats(a.Float(), b.Float())
	case Numeric:
		return compareDecimals(a.s, b.s)
	case Text:
		return compareText(a.s, b.s, c)
	}
	return strings.Compare(a.s, b.s)
}

// compareFloats has NaN equal to itself and above everything, as PostgreSQL has.
func compareFloats(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	case a == b:
		return 0
	}
	return cmp.Compare(bit(a != a), bit(b != b))
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func compareNumbers(a, b Value) int {
	switch {
	case a.kind == Int && b.kind == Float:
		return compareIntFloat(int64(a.n), b.Float())
	case a.kind == Float && b.kind == Int:
		return -compareIntFloat(int64(b.n), a.Float())
	}
	var buf [24]byte
	switch {
	case a.kind == Int:
		return compareDecimals(string(strconv.AppendInt(buf[:0], int64(a.n), 10)), decimalText(b))
	case b.kind == Int:
		return compareDecimals(decimalText(a), string(strconv.AppendInt(buf[:0], int64(b.n), 10)))
	}
	return compareDecimals(decimalText(a), decimalText(b))
}

func compareIntFloat(i int64, f float64) int {
	switch {
	case f != f, f >= 1<<63:
		return -1
	case f < -1<<63:
		return 1
	}
	whole := int64(f) // towards zero
	if c := cmp.Compare(i, whole); c != 0 {
		return c
	}
	return compareFloats(0, f-float64(whole))
}

func decimalText(v Value) string {
	if v.kind != Float {
		return v.s
	}
	switch f := v.Float(); {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	default:
		return strconv.FormatFloat(f, 'f', 1074, 64) // every digit
	}
}

func compareText(a, b string, c Collation) int {
	switch c {
	case NoCase:
		return compareNoCase(a, b)
	case RTrim:
		return strings.Compare(strings.TrimRight(a, " "), strings.TrimRight(b, " "))
	}
	return strings.Compare(a, b)
}

// compareNoCase is SQLite's NOCASE, which looks no further than a NUL byte and then at the lengths.
func compareNoCase(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := lower(a[i]), lower(b[i])
		if x != y {
			return cmp.Compare(x, y)
		}
		if x == 0 {
			break
		}
	}
	return cmp.Compare(len(a), len(b))
}

func lower(b byte) byte {
	if b-'A' < 26 {
		b += 'a' - 'A'
	}
	return b
}

// decimal is a number in plain decimal text taken apart: its digits without leading and trailing zeros, and where the point stands.
type decimal struct {
	class       int8 // -2 -Infinity, -1 negative, 0 zero, 1 positive, 2 Infinity, 3 NaN
	whole, frac string
}

func parseDecimal(s string) decimal {
	d := decimal{class: 1}
	switch s {
	case "NaN":
		return decimal{class: 3}
	case "Infinity":
		return decimal{class: 2}
	case "-Infinity":
		return decimal{class: -2}
	}
	if s != "" && s[0] == '-' {
		d.class, s = -1, s[1:]
	}
	d.whole, d.frac, _ = strings.Cut(s, ".")
	d.whole = strings.TrimLeft(d.whole, "0")
	d.frac = strings.TrimRight(d.frac, "0")
	if d.whole == "" && d.frac == "" {
		d.class = 0
	}
	return d
}

// compareDecimals compares plain decimal texts, as PostgreSQL writes numeric, and allocates nothing.
func compareDecimals(a, b string) int {
	if a == b {
		return 0
	}
	x, y := parseDecimal(a), parseDecimal(b)
	if x.class != y.class {
		return cmp.Compare(x.class, y.class)
	}
	if x.class != 1 && x.class != -1 {
		return 0
	}
	c := cmp.Compare(len(x.whole), len(y.whole))
	if c == 0 {
		c = strings.Compare(x.whole, y.whole)
	}
	if c == 0 {
		c = strings.Compare(x.frac, y.frac)
	}
	return c * int(x.class)
}

// Canonical returns the one value that stands for all values equal to v under the collation: of two values of a column, Compare is 0 exactly when their canonical
// values are ==. Whole numbers become Int, other decimals lose trailing zeros, text is folded.
func Canonical(v Value, c Collation) Value {
	switch v.kind {
	case Float:
		f := v.Float()
		if f == math.Trunc(f) && f >= -1<<63 && f < 1<<63 {
			return IntValue(int64(f))
		}
	case Numeric:
		return canonicalDecimal(v)
	case Text:
		switch c {
		case NoCase:
			v.s = foldNoCase(v.s)
		case RTrim:
			v.s = strings.TrimRight(v.s, " ")
		}
	case Enum:
		v.s = "" // the position says it
	}
	return v
}

func canonicalDecimal(v Value) Value {
	d := parseDecimal(v.s)
	if d.class != 1 && d.class != -1 {
		if d.class == 0 {
			return IntValue(0)
		}
		return v
	}
	sign := ""
	if d.class < 0 {
		sign = "-"
	}
	if d.frac == "" {
		if i, err := strconv.ParseInt(sign+d.whole, 10, 64); err == nil {
			return IntValue(i)
		}
		return Value{kind: Numeric, s: sign + d.whole}
	}
	if n := len(sign) + max(len(d.whole), 1) + 1 + len(d.frac); n == len(v.s) {
		return v
	}
	if d.whole == "" {
		d.whole = "0"
	}
	return Value{kind: Numeric, s: sign + d.whole + "." + d.frac}
}

func foldNoCase(s string) string {
	i := strings.IndexFunc(s, func(r rune) bool { return r == 0 || r >= 'A' && r <= 'Z' })
	if i < 0 {
		return s
	}
	b := []byte(s)
	for i := range b {
		if b[i] == 0 { // what follows counts by its length alone
			clear(b[i:])
			break
		}
		b[i] = lower(b[i])
	}
	return string(b)
}
