package row

import "strings"

// postgresTypes are the built-in types by OID; those with a text form that is not understood here are Opaque.
var postgresTypes = map[uint32]Type{
	16:   {Kind: Bool, Name: "boolean"},
	17:   {Kind: Bytes, Name: "bytea"},
	19:   {Kind: Text, Name: "name"},
	20:   {Kind: Int, Bits: 64, Name: "bigint"},
	21:   {Kind: Int, Bits: 16, Name: "smallint"},
	23:   {Kind: Int, Bits: 32, Name: "integer"},
	25:   {Kind: Text, Name: "text"},
	114:  {Kind: JSON, Name: "json"},
	700:  {Kind: Float, Bits: 32, Name: "real"},
	701:  {Kind: Float, Bits: 64, Name: "double precision"},
	1042: {Kind: Text, Name: "character"},
	1043: {Kind: Text, Name: "character varying"},
	1082: {Kind: Date, Name: "date"},
	1114: {Kind: Timestamp, Name: "timestamp without time zone"},
	1184: {Kind: TimestampTZ, Name: "timestamp with time zone"},
	1700: {Kind: Numeric, Name: "numeric"},
	2950: {Kind: UUID, Name: "uuid"},
	3802: {Kind: JSON, Name: "jsonb"},
}

var postgresArrays = map[uint32]uint32{
	199: 114, 1000: 16, 1001: 17, 1003: 19, 1005: 21, 1007: 23, 1009: 25, 1014: 1042, 1015: 1043, 1016: 20, 1021: 700, 1022: 701,
	1115: 1114, 1182: 1082, 1185: 1184, 1231: 1700, 2951: 2950, 3807: 3802,
}

// PostgresType returns a built-in type by its OID, with the collation of the column (it counts for text alone). ok is false for
// any other OID: an enum or domain, which the caller builds from the catalog (a domain is its base type), or else a type that is Opaque.
func PostgresType(oid uint32, c Collation) (t Type, ok bool) {
	if elem, array := postgresArrays[oid]; array {
		e, _ := PostgresType(elem, c)
		return Type{Kind: Array, Name: e.Name + "[]", Elem: &e}, true
	}
	t, ok = postgresTypes[oid]
	if t.Kind != Text {
		return t, ok
	}
	t.Collation = c
	switch {
	case oid == 19:
		t.Collation = C
	case oid == 1042 && c <= CUTF8:
		t.Collation = RTrim
	case oid == 1042:
		t.Collation = Custom // equality depends on trailing spaces, order on the locale
	}
	return t, ok
}

// SQLiteType returns the type of a column by its declaration, as SQLite derives affinity from it, and by its collation's name ("" is BINARY). A strict table has
// the same rules: its type names are those of the list, and ANY has no affinity.
func SQLiteType(declared, collation string, strict bool) Type {
	d := strings.ToUpper(declared)
	has := func(s string) bool { return strings.Contains(d, s) }
	t := Type{Engine: SQLite, Name: declared, Kind: Dynamic}
	switch {
	case has("INT"):
		t.Affinity, t.Kind = AffinityInteger, Int
	case has("CHAR"), has("CLOB"), has("TEXT"):
		t.Affinity, t.Kind = AffinityText, Text
	case d == "":
	case has("BLOB"):
		t.Kind = Bytes
	case has("REAL"), has("FLOA"), has("DOUB"):
		t.Affinity, t.Kind = AffinityReal, Float
	case strict && d == "ANY":
	default:
		t.Affinity = AffinityNumeric
		switch {
		case has("BOOL"):
			t.Kind = Bool
		case has("JSON"):
			t.Kind = JSON
		}
	}
	switch strings.ToUpper(collation) {
	case "", "BINARY":
	case "NOCASE":
		t.Collation = NoCase
	case "RTRIM":
		t.Collation = RTrim
	default:
		t.Collation = Custom
	}
	return t
}
