package row

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

var (
	// ErrSyntax means that a text is not a value of its type.
	ErrSyntax = errors.New("row: not a value of the type")
	// ErrNotComparable means that the order of a column is known to its database alone.
	ErrNotComparable = errors.New("row: not comparable here")
)

// Engine is a database system.
type Engine uint8

// The engines. The zero value is PostgreSQL.
const (
	PostgreSQL Engine = iota
	SQLite
)

func (e Engine) String() string {
	if e == SQLite {
		return "sqlite"
	}
	return "postgresql"
}

// Kind is what a value is, or what the values of a column are.
type Kind uint8

// The kinds. A value is never Dynamic; a column is never Null or Absent.
const (
	Null        Kind = iota
	Bool             // PostgreSQL; in SQLite a column declared BOOL, whose values are Int
	Int              // up to 64 bits, signed
	Float            // 64 bits; a float4 is widened, which is exact
	Numeric          // exact decimal, as PostgreSQL writes it, NaN and infinities included
	Text             // also varchar, char(n), name
	UUID             //
	Timestamp        // without zone
	TimestampTZ      // an instant
	Date             //
	Bytes            //
	JSON             // json and jsonb: shown, never compared
	Enum             //
	Array            // in PostgreSQL's text form: shown, never compared
	Opaque           // any other type, in the database's text form: shown, never compared
	Dynamic          // a column of SQLite that may hold anything
	Absent           // the feed does not know this cell (an unchanged out-of-line column); see [Row.Complete]
)

var kindNames = [...]string{
	"null", "bool", "int", "float", "numeric", "text", "uuid", "timestamp", "timestamptz", "date", "bytes", "json", "enum", "array", "opaque", "dynamic", "absent",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", k)
}

// Collation is how a database compares a text column.
type Collation uint8

// The collations. The zero value is C.
const (
	C      Collation = iota // bytes; case is ASCII: PostgreSQL's C and POSIX, SQLite's BINARY
	CUTF8                   // bytes; case is Unicode's: PostgreSQL's C.UTF-8
	NoCase                  // SQLite's NOCASE
	RTrim                   // trailing spaces do not count: SQLite's RTRIM, PostgreSQL's char(n) under C
	Locale                  // any deterministic collation of PostgreSQL: equal means the same bytes, order is the database's
	Custom                  // neither equality nor order is known here
)

var collationNames = [...]string{"c", "c.utf8", "nocase", "rtrim", "locale", "custom"}

func (c Collation) String() string {
	if int(c) < len(collationNames) {
		return collationNames[c]
	}
	return fmt.Sprintf("Collation(%d)", c)
}

// Ordered reports whether text can be ordered here as its database does.
func (c Collation) Ordered() bool { return c <= RTrim }

// Affinity is what SQLite prefers to store in a column.
type Affinity uint8

// The affinities. AffinityNone is every column of PostgreSQL; SQLite calls its own BLOB.
const (
	AffinityNone Affinity = iota
	AffinityText
	AffinityNumeric
	AffinityInteger
	AffinityReal
)

// Number reports whether the column turns text that looks like a number into one.
func (a Affinity) Number() bool { return a >= AffinityNumeric }

// Type is the type of a column.
type Type struct {
	Kind      Kind
	Engine    Engine
	Bits      uint8     // of Int (16, 32, 64) and Float (32, 64); 0 means 64
	Collation Collation // of Text, and of every column of SQLite
	Affinity  Affinity  // SQLite
	Name      string    // the type in SQL, quoted where it must be, without modifiers: what a parameter is cast to ("public"."mood"); may be empty for built-in kinds
	Labels    []string  // of Enum, in the database's order
	Elem      *Type     // of Array
}

// Column is a column of a table.
type Column struct {
	Name    string
	Type    Type
	NotNull bool
}

// Name names a table. SQLite's schema is main.
type Name struct{ Schema, Table string }

func (n Name) String() string { return n.Schema + "." + n.Table }

// Table is a table as its rows are received: columns by position, and the primary key.
type Table struct {
	Name
	Root    Name // the partitioned table this one is a leaf of; zero when it is none
	Engine  Engine
	Columns []Column
	Key     []int // positions of the primary key's columns, in the key's order; never empty for a table that is queried live
}

// Identity is the name under which queries know the table: the root of a partition.
func (t *Table) Identity() Name {
	if t.Root != (Name{}) {
		return t.Root
	}
	return t.Name
}

// Column returns the position of a column, or -1.
func (t *Table) Column(name string) int {
	return slices.IndexFunc(t.Columns, func(c Column) bool { return c.Name == name })
}

// KeyOf returns the primary key of a row as one value that can be a map key: equal keys are ==. A key of one column is its canonical value and
// allocates nothing for most types.
func (t *Table) KeyOf(r Row) Value {
	if len(t.Key) == 1 {
		c := t.Key[0]
		return Canonical(r[c], t.Columns[c].Type.Collation)
	}
	var b []byte
	for _, c := range t.Key {
		v := Canonical(r[c], t.Columns[c].Type.Collation)
		b = append(b, byte(v.kind))
		b = binary.BigEndian.AppendUint64(b, v.n)
		b = binary.AppendUvarint(b, uint64(len(v.s)))
		b = append(b, v.s...)
	}
	return Value{kind: Opaque, s: string(b)}
}

// Row is the values of a row by the position of the column. A row that was handed over is never changed.
type Row []Value

// Complete reports whether every cell of the mask is known. A row that is not complete must be read again before it is matched.
func (r Row) Complete(m Mask) bool {
	for i, v := range r {
		if v.kind == Absent && m.Has(i) {
			return false
		}
	}
	return true
}

// Mask is a set of columns by position. The zero value is empty.
type Mask []uint64

// Has reports whether column i is in the set.
func (m Mask) Has(i int) bool { return i>>6 < len(m) && m[i>>6]>>(i&63)&1 != 0 }

// With returns the set with column i.
func (m Mask) With(i int) Mask {
	out := make(Mask, max(len(m), i>>6+1))
	copy(out, m)
	out[i>>6] |= 1 << (i & 63)
	return out
}

// Differs reports whether a column of the set is not identical in two rows.
func (m Mask) Differs(a, b Row) bool {
	for i := range a {
		if m.Has(i) && a[i] != b[i] {
			return true
		}
	}
	return false
}

// Value is one immutable cell. The zero value is NULL. Values are compared with == for identity, and may be map keys.
type Value struct {
	s    string // Numeric, Text, UUID (16 bytes), Bytes, JSON, Enum (the label), Array, Opaque
	n    uint64 // Bool, Int, Float (bits), Timestamp and TimestampTZ (microseconds), Date (days), Enum (position)
	kind Kind
}

// Ends of time, as PostgreSQL has them.
const (
	Infinity    = math.MaxInt64
	NegInfinity = math.MinInt64
)

// BoolValue makes a Bool.
func BoolValue(b bool) Value {
	v := Value{kind: Bool}
	if b {
		v.n = 1
	}
	return v
}

// IntValue makes an Int.
func IntValue(i int64) Value { return Value{kind: Int, n: uint64(i)} }

// FloatValue makes a Float. Every NaN is the same value.
func FloatValue(f float64) Value {
	if math.IsNaN(f) {
		f = math.NaN()
	}
	return Value{kind: Float, n: math.Float64bits(f)}
}

// TextValue makes a Text.
func TextValue(s string) Value { return Value{kind: Text, s: s} }

// BytesValue makes Bytes from a copy of b.
func BytesValue(b []byte) Value { return Value{kind: Bytes, s: string(b)} }

// UUIDValue makes a UUID.
func UUIDValue(u [16]byte) Value { return Value{kind: UUID, s: string(u[:])} }

// JSONValue makes a JSON from its text.
func JSONValue(s string) Value { return Value{kind: JSON, s: s} }

// OpaqueValue makes an Opaque from the database's text.
func OpaqueValue(s string) Value { return Value{kind: Opaque, s: s} }

// ArrayValue makes an Array from PostgreSQL's text.
func ArrayValue(s string) Value { return Value{kind: Array, s: s} }

// TimestampValue makes a Timestamp from microseconds since 2000-01-01 00:00, or from an end of time.
func TimestampValue(micros int64) Value { return Value{kind: Timestamp, n: uint64(micros)} }

// TimestampTZValue makes a TimestampTZ from microseconds since 2000-01-01 00:00 UTC, or from an end of time.
func TimestampTZValue(micros int64) Value { return Value{kind: TimestampTZ, n: uint64(micros)} }

// TimeValue makes a TimestampTZ from a time, to the microsecond.
func TimeValue(t time.Time) Value { return TimestampTZValue(t.UnixMicro() - epoch*1e6) }

// DateValue makes a Date from days since 2000-01-01, or from an end of time.
func DateValue(days int64) Value { return Value{kind: Date, n: uint64(days)} }

// AbsentValue marks a cell that the feed does not know.
func AbsentValue() Value { return Value{kind: Absent} }

// EnumValue makes an Enum; ok is false for a label that the type does not have.
func EnumValue(t Type, label string) (v Value, ok bool) {
	i := slices.Index(t.Labels, label)
	return Value{kind: Enum, s: label, n: uint64(i)}, i >= 0
}

// epoch is 2000-01-01 in seconds of Unix time.
const epoch = 946684800

// Kind returns what the value is.
func (v Value) Kind() Kind { return v.kind }

// IsNull reports whether the value is NULL.
func (v Value) IsNull() bool { return v.kind == Null }

// Bool returns a Bool.
func (v Value) Bool() bool { return v.n != 0 }

// Int returns an Int, the microseconds of a timestamp, the days of a date or the position of an enum's label.
func (v Value) Int() int64 { return int64(v.n) }

// Float returns a Float.
func (v Value) Float() float64 { return math.Float64frombits(v.n) }

// Text returns the text of a Text, Numeric, JSON, Enum, Array or Opaque, and the raw bytes of Bytes and UUID.
func (v Value) Text() string { return v.s }

// Time returns a timestamp as an instant, and a timestamp without zone as if it were UTC. It is undefined at the ends of time.
func (v Value) Time() time.Time {
	micros := int64(v.n)
	sec := floorDiv(micros, 1e6)
	return time.Unix(sec+epoch, (micros-sec*1e6)*1e3).UTC()
}

// String returns the value as PostgreSQL writes it, bytes as \x and NULL as NULL: for messages and tests.
func (v Value) String() string {
	if v.kind == Null || v.kind == Absent {
		return strings.ToUpper(v.kind.String())
	}
	return string(AppendText(nil, v))
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
