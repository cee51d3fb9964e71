package row_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tidewire/tidewire/row"
)

func random(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TIDEWIRE_TEST_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("TIDEWIRE_TEST_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func pg(t testing.TB, oid uint32) row.Type {
	typ, ok := row.PostgresType(oid, row.C)
	if !ok {
		t.Fatalf("no type %d", oid)
	}
	return typ
}

func parse(t testing.TB, typ row.Type, s string) row.Value {
	t.Helper()
	v, err := row.ParseText(typ, s)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestS26_ValueIsSmallAndComparable(t *testing.T) {
	t.Parallel()
	if n := unsafe.Sizeof(row.Value{}); n > 32 {
		t.Errorf("a value has %d bytes", n)
	}
	if row.FloatValue(math.NaN()) != row.FloatValue(math.Copysign(math.NaN(), -1)) {
		t.Error("NaN is not itself")
	}
	if (row.Value{}).Kind() != row.Null || row.TextValue("") == (row.Value{}) {
		t.Error("the zero value is not NULL alone")
	}
}

// TestS26_TextFormat has each type in PostgreSQL's text, as JSON, and back.
func TestS26_TextFormat(t *testing.T) {
	t.Parallel()
	mood := row.Type{Kind: row.Enum, Name: "mood", Labels: []string{"sad", "ok"}}
	for _, c := range []struct {
		typ              row.Type
		text, json, back string // back is the text again when it is another
	}{
		{pg(t, 16), "t", "true", "true"},
		{pg(t, 16), "false", "false", ""},
		{pg(t, 20), "9007199254740991", "9007199254740991", ""},
		{pg(t, 20), "9007199254740992", `"9007199254740992"`, ""},
		{pg(t, 20), "-9223372036854775808", `"-9223372036854775808"`, ""},
		{pg(t, 1700), "12.50", `"12.50"`, ""},
		{pg(t, 1700), "NaN", `"NaN"`, ""},
		{pg(t, 701), "0.1", "0.1", ""},
		{pg(t, 701), "-0", "0", ""},
		{pg(t, 701), "1e+21", "1e+21", ""},
		{pg(t, 701), "1e-07", "1e-7", ""},
		{pg(t, 701), "100000", "100000", ""},
		{pg(t, 701), "Infinity", `"Infinity"`, ""},
		{pg(t, 701), "NaN", `"NaN"`, ""},
		{pg(t, 700), "0.1", "0.1", "0.10000000149011612"},
		{pg(t, 700), "1e-06", "0.000001", "9.999999974752427e-07"},
		{pg(t, 25), "a\"\\\n\u2028\x01é😀", `"a\"\\\n` + "\u2028" + `\u0001é😀"`, ""},
		{pg(t, 2950), "7D444840-9dc0-11d1-b245-5ffdce74fad2", `"7d444840-9dc0-11d1-b245-5ffdce74fad2"`, "7d444840-9dc0-11d1-b245-5ffdce74fad2"},
		{pg(t, 1114), "2026-11-30 12:00:00.25", `"2026-11-30T12:00:00.25"`, ""},
		{pg(t, 1114), "infinity", `"infinity"`, ""},
		{pg(t, 1114), "0044-03-15 00:00:00 BC", `"0044-03-15T00:00:00 BC"`, ""},
		{pg(t, 1114), "294276-12-31 23:59:59.999999", `"294276-12-31T23:59:59.999999"`, ""},
		{pg(t, 1114), "4714-11-24 00:00:00 BC", `"4714-11-24T00:00:00 BC"`, ""},
		{pg(t, 1184), "2026-11-30 12:00:00.000001+05:30", `"2026-11-30T06:30:00.000001Z"`, "2026-11-30 06:30:00.000001+00"},
		{pg(t, 1184), "2026-01-01 00:00:00-03:30:15", `"2026-01-01T03:30:15Z"`, "2026-01-01 03:30:15+00"},
		{pg(t, 1184), "-infinity", `"-infinity"`, ""},
		{pg(t, 1082), "2024-02-29", `"2024-02-29"`, ""},
		{pg(t, 1082), "5874897-12-31", `"5874897-12-31"`, ""},
		{pg(t, 1082), "0001-01-01 BC", `"0001-01-01 BC"`, ""},
		{pg(t, 17), `\x00ff61`, `"AP9h"`, ""},
		{pg(t, 3802), `{"a": 9007199254740993}`, `{"a": 9007199254740993}`, ""},
		{mood, "ok", `"ok"`, ""},
		{row.Type{Kind: row.Opaque, Name: "interval"}, "1 day", `"1 day"`, ""},
		{pg(t, 1009), `{a,"b,c","d\"e",NULL,"NULL",""}`, `["a","b,c","d\"e",null,"NULL",""]`, ""},
		{pg(t, 1016), `[2:3]={1,9007199254740993}`, `[1,"9007199254740993"]`, ""},
		{pg(t, 1007), `{{1,2},{3,NULL}}`, `[[1,2],[3,null]]`, ""},
		{pg(t, 1007), `{}`, `[]`, ""},
		{pg(t, 1007), `{1,`, `"{1,"`, ""},
	} {
		v := parse(t, c.typ, c.text)
		want := c.text
		if c.back != "" {
			want = c.back
		}
		if got := v.String(); got != want {
			t.Errorf("%s %q is written %q, want %q", c.typ.Kind, c.text, got, want)
		}
		j := string(row.AppendJSON(nil, c.typ, v))
		if j != c.json {
			t.Errorf("%s %q is %s as JSON, want %s", c.typ.Kind, c.text, j, c.json)
		}
		if c.typ.Kind == row.Array {
			continue
		}
		again, err := row.ParseJSON(c.typ, []byte(j))
		if err != nil || row.Compare(again, v, row.C) != 0 {
			t.Errorf("%s %s is read as %v, %v, want %v", c.typ.Kind, j, again, err, v)
		}
	}
}

func TestS26_NoValuesOfTheType(t *testing.T) {
	t.Parallel()
	for oid, texts := range map[uint32][]string{
		16:   {"", "yes", "1", "TRUE"},
		20:   {"", "x", "1.0", "+1", " 1", "9223372036854775808", "1_000"},
		21:   {"32768"},
		23:   {"2147483648"},
		1700: {"", ".", "-", "1e", "e1", "1e99999", "0x1", "1.2.3", "nan", "1 "},
		701:  {"", "x", "0x1p-2", "1_0", "inf", "1e400", "nan"},
		700:  {"1e39"},
		2950: {"", "7d4448409dc011d1b2455ffdce74fad2", "7d444840-9dc0-11d1-b245-5ffdce74fadg", "{7d444840-9dc0-11d1-b245-5ffdce74fad2}"},
		1114: {
			"", "now", "2026-11-30", "2026-11-30 12:00:00Z", "2026-13-01 00:00:00", "2026-02-29 00:00:00", "2026-11-30 24:00:00", "2026-11-30 12:60:00", "0000-01-01 00:00:00",
			"294277-01-01 00:00:00", "2026-11-30 12:00:00.1234567", "2026-11-30 12", "12026-1-1 00:00:00", "4714-11-23 00:00:00 BC",
		},
		1184: {"2026-11-30 12:00:00", "2026-11-30 12:00:00+", "2026-11-30 12:00:00+99", "2026-11-30 12:00:00 Europe/Berlin", "2026-11-30 12:00:00+01:60"},
		1082: {"", "today", "2026-11-30 12:00:00", "26-11-30", "2026-00-10", "2026-11-31", "5874898-01-01", "9999999-01-01"},
		17:   {"", `\x0`, `\xzz`, "abc"},
	} {
		for _, text := range texts {
			if v, err := row.ParseText(pg(t, oid), text); !errors.Is(err, row.ErrSyntax) {
				t.Errorf("%d %q is %v, %v", oid, text, v, err)
			}
		}
	}
	if _, err := row.ParseText(row.Type{Kind: row.Enum, Name: "mood", Labels: []string{"a"}}, "b"); !errors.Is(err, row.ErrSyntax) {
		t.Error("a label that the enum does not have is taken")
	}
}

func TestS26_TimeAgreesWithTheCalendar(t *testing.T) {
	t.Parallel()
	rng := random(t)
	for range 20000 {
		at := time.Unix(rng.Int64N(300e9)-60e9, rng.Int64N(1e6)*1e3).UTC()
		v := row.TimeValue(at)
		if at.Year() < 1 || at.Year() > 9999 {
			continue
		}
		want := at.Format("2006-01-02 15:04:05.999999") + "+00"
		if got := v.String(); got != want {
			t.Fatalf("%v is written %s", at, got)
		}
		if back := parse(t, pg(t, 1184), want); back != v || !back.Time().Equal(at) {
			t.Fatalf("%s is read as %v", want, back)
		}
	}
	for _, typ := range []row.Type{pg(t, 1114), pg(t, 1082)} {
		for range 20000 {
			v := row.TimestampValue(rng.Int64N(9e18) - 2e17)
			if typ.Kind == row.Date {
				v = row.DateValue(rng.Int64N(2e9) - 2e6)
			}
			if got := parse(t, typ, v.String()); got != v {
				t.Fatalf("%v is read as %v", v, got)
			}
		}
	}
}

// numbers in every form, with edges, for comparison with arbitrary precision.
func someNumber(rng *rand.Rand) (row.Value, *big.Rat) {
	edges := []float64{0, 1, -1, 0.5, 1 << 53, 1<<53 + 2, 1 << 62, 1 << 63, -1 << 63, 1e300, 5e-324, 0.1}
	switch rng.IntN(4) {
	case 0:
		i := int64(rng.Uint64()) >> rng.IntN(64)
		return row.IntValue(i), new(big.Rat).SetInt64(i)
	case 1:
		f := edges[rng.IntN(len(edges))]
		return row.FloatValue(f), new(big.Rat).SetFloat64(f)
	case 2:
		f := float64(int64(rng.Uint64())>>rng.IntN(64)) / float64(int64(1)<<rng.IntN(4))
		return row.FloatValue(f), new(big.Rat).SetFloat64(f)
	}
	text := fmt.Sprintf("%s%d.%0*d", []string{"", "-"}[rng.IntN(2)], rng.Uint64()>>rng.IntN(64), 1+rng.IntN(4), rng.IntN(10))
	v, err := row.ParseText(row.Type{Kind: row.Numeric}, text)
	if err != nil {
		panic(err)
	}
	r, _ := new(big.Rat).SetString(text)
	return v, r
}

func TestS15_NumbersWithoutLoss(t *testing.T) {
	t.Parallel()
	rng := random(t)
	for range 50000 {
		a, x := someNumber(rng)
		b, y := someNumber(rng)
		if rng.IntN(4) == 0 && a.Kind() != row.Float {
			b, y = a, x
		}
		if got, want := row.Compare(a, b, row.C), x.Cmp(y); got != want {
			t.Fatalf("Compare(%v %v, %v %v) = %d, want %d", a.Kind(), a, b.Kind(), b, got, want)
		}
		if a.Kind() == b.Kind() || a.Kind() != row.Numeric && b.Kind() != row.Numeric {
			if same := row.Canonical(a, row.C) == row.Canonical(b, row.C); same != (x.Cmp(y) == 0) {
				t.Fatalf("Canonical(%v) == Canonical(%v) is %v", a, b, same)
			}
		}
	}
}

func TestS15_Ends(t *testing.T) {
	t.Parallel()
	ordered := func(values ...row.Value) {
		t.Helper()
		for i, a := range values {
			for j, b := range values {
				if got := row.Compare(a, b, row.C); (got < 0) != (i < j) || (got == 0) != (i == j) {
					t.Errorf("Compare(%v, %v) = %d", a, b, got)
				}
			}
		}
	}
	numeric := func(s string) row.Value { return parse(t, pg(t, 1700), s) }
	ordered(numeric("-Infinity"), numeric("-10"), numeric("-9.99"), numeric("0"), numeric("9"), numeric("10"), numeric("Infinity"), numeric("NaN"))
	ordered(row.FloatValue(math.Inf(-1)), row.FloatValue(-1), row.FloatValue(0), row.FloatValue(math.Inf(1)), row.FloatValue(math.NaN()))
	ordered(row.TimestampTZValue(row.NegInfinity), row.TimestampTZValue(0), row.TimestampTZValue(row.Infinity))
	ordered(row.Value{}, row.IntValue(5), row.TextValue("1"), row.BytesValue([]byte("0")))
	if row.Compare(row.FloatValue(0), row.FloatValue(math.Copysign(0, -1)), row.C) != 0 {
		t.Error("-0 is not 0")
	}
}

func TestS15_Collations(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		collation row.Collation
		a, b      string
		want      int
	}{
		{row.C, "a", "B", 1},
		{row.C, "a", "é", -1},
		{row.C, "\uffff", "😀", -1}, // bytes, not UTF-16 code units
		{row.NoCase, "abc", "ABC", 0},
		{row.NoCase, "É", "é", -1},
		{row.NoCase, "_", "A", -1},
		{row.NoCase, "a\x00b", "A\x00c", 0},
		{row.NoCase, "a\x00b", "a\x00cd", -1},
		{row.RTrim, "a  ", "a", 0},
		{row.RTrim, "a\t", "a", 1},
		{row.RTrim, " a", "a", -1},
	} {
		a, b := row.TextValue(c.a), row.TextValue(c.b)
		if got := row.Compare(a, b, c.collation); got != c.want {
			t.Errorf("%q %v %q = %d, want %d", c.a, c.collation, c.b, got, c.want)
		}
		if same := row.Canonical(a, c.collation) == row.Canonical(b, c.collation); same != (c.want == 0) {
			t.Errorf("%q and %q under %v: canonical %v", c.a, c.b, c.collation, same)
		}
	}
}

func TestS17_OrderRefusesWhatTheDatabaseAloneKnows(t *testing.T) {
	t.Parallel()
	column := func(name string, typ row.Type) row.Column { return row.Column{Name: name, Type: typ} }
	locale, _ := row.PostgresType(25, row.Locale)
	padded, _ := row.PostgresType(1042, row.Locale)
	tab := &row.Table{Columns: []row.Column{column("t", locale), column("j", pg(t, 3802)), column("a", pg(t, 1007)), column("p", padded), column("n", pg(t, 20))}}
	for i := range 4 {
		if _, err := row.NewOrder(tab, row.OrderKey{Column: i}); !errors.Is(err, row.ErrNotComparable) || !strings.Contains(err.Error(), "column "+tab.Columns[i].Name) {
			t.Errorf("order by %s: %v", tab.Columns[i].Name, err)
		}
	}
	o, err := row.NewOrder(tab, row.OrderKey{Column: 4, Desc: true, NullsFirst: true}, row.OrderKey{Column: 0, Bytes: true}, row.OrderKey{Column: 3, Bytes: true})
	if err != nil {
		t.Fatal(err)
	}
	r := func(n row.Value, s, p string) row.Row {
		return row.Row{row.TextValue(s), {}, {}, row.TextValue(p), n}
	}
	want := []row.Row{r(row.Value{}, "z", ""), r(row.IntValue(2), "B", ""), r(row.IntValue(2), "a", "x"), r(row.IntValue(1), "a", "x")}
	for i, a := range want {
		for j, b := range want {
			if got := o.Compare(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("Compare(%v, %v) = %d", a, b, got)
			}
		}
	}
	if o.Compare(r(row.IntValue(1), "a", "x"), r(row.IntValue(1), "a", "x  ")) != 0 {
		t.Error("padding of char(n) counts")
	}
}

func TestS26_SQLiteAffinity(t *testing.T) {
	t.Parallel()
	for declared, want := range map[string]row.Type{
		"INTEGER":          {Affinity: row.AffinityInteger, Kind: row.Int},
		"unsigned big int": {Affinity: row.AffinityInteger, Kind: row.Int},
		"CHARINT":          {Affinity: row.AffinityInteger, Kind: row.Int},
		"VARCHAR(9)":       {Affinity: row.AffinityText, Kind: row.Text},
		"clob":             {Affinity: row.AffinityText, Kind: row.Text},
		"BLOB":             {Kind: row.Bytes},
		"":                 {Kind: row.Dynamic},
		"DOUBLE PRECISION": {Affinity: row.AffinityReal, Kind: row.Float},
		"FLOATING POINT":   {Affinity: row.AffinityInteger, Kind: row.Int},
		"DECIMAL(10,5)":    {Affinity: row.AffinityNumeric, Kind: row.Dynamic},
		"BOOLEAN":          {Affinity: row.AffinityNumeric, Kind: row.Bool},
		"JSON":             {Affinity: row.AffinityNumeric, Kind: row.JSON},
		"DATETIME":         {Affinity: row.AffinityNumeric, Kind: row.Dynamic},
		"STRING":           {Affinity: row.AffinityNumeric, Kind: row.Dynamic},
	} {
		got := row.SQLiteType(declared, "", false)
		if got.Affinity != want.Affinity || got.Kind != want.Kind {
			t.Errorf("%s: %v %v", declared, got.Affinity, got.Kind)
		}
	}
	if got := row.SQLiteType("ANY", "", true); got.Affinity != row.AffinityNone || got.Kind != row.Dynamic {
		t.Errorf("ANY of a strict table: %+v", got)
	}
}

func TestS26_SQLiteJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		declared string
		v        row.Value
		want     string
	}{
		{"BOOLEAN", row.IntValue(1), "true"},
		{"BOOLEAN", row.IntValue(2), "2"},
		{"INTEGER", row.IntValue(1 << 60), `"1152921504606846976"`},
		{"TEXT", row.BytesValue([]byte("a")), `{"$bytes":"YQ=="}`},
		{"BLOB", row.BytesValue([]byte("a")), `"YQ=="`},
		{"BLOB", row.TextValue("YQ=="), `{"$text":"YQ=="}`},
		{"BLOB", row.IntValue(1 << 60), `{"$int":"1152921504606846976"}`},
		{"REAL", row.TextValue("Infinity"), `{"$text":"Infinity"}`},
		{"REAL", row.FloatValue(math.Inf(1)), `"Infinity"`},
		{"INT", row.TextValue("a"), `{"$text":"a"}`},
		{"", row.IntValue(1 << 60), `{"$int":"1152921504606846976"}`},
		{"", row.TextValue("1152921504606846976"), `"1152921504606846976"`},
		{"DECIMAL", row.FloatValue(1.5), "1.5"},
		{"JSON", row.TextValue(`{"a": [1]}`), `{"a": [1]}`},
		{"JSON", row.TextValue(`{"a`), `"{\"a"`},
		{"TEXT", row.TextValue("a\xff"), "\"a\uFFFD\""},
	} {
		typ := row.SQLiteType(c.declared, "", false)
		got := string(row.AppendJSON(nil, typ, c.v))
		if got != c.want {
			t.Errorf("%s %v is %s, want %s", c.declared, c.v, got, c.want)
		}
		if back, err := row.ParseJSON(typ, []byte(got)); !strings.Contains(got, "\uFFFD") && c.declared != "JSON" && (err != nil || back != c.v) {
			t.Errorf("%s %s is read as %v, %v", c.declared, got, back, err)
		}
	}
}

func TestS17_KeysAndMasks(t *testing.T) {
	t.Parallel()
	columns := []row.Column{{Name: "a", Type: pg(t, 25)}, {Name: "b", Type: pg(t, 1700)}, {Name: "c", Type: row.SQLiteType("TEXT", "NOCASE", false)}}
	tab := &row.Table{Name: row.Name{Schema: "s", Table: "leaf"}, Root: row.Name{Schema: "s", Table: "root"}, Columns: columns, Key: []int{0, 1}}
	key := func(a, b string) row.Value {
		return tab.KeyOf(row.Row{row.TextValue(a), parse(t, pg(t, 1700), b), {}})
	}
	if key("x", "1.0") != key("x", "1.00") || key("x", "1") == key("x", "2") || key("ab", "1") == key("a", "1") {
		t.Error("keys of two columns")
	}
	tab.Key = []int{2}
	if tab.KeyOf(row.Row{{}, {}, row.TextValue("A")}) != tab.KeyOf(row.Row{{}, {}, row.TextValue("a")}) {
		t.Error("a key under NOCASE")
	}
	if tab.Identity().String() != "s.root" {
		t.Error(tab.Identity())
	}
	m := row.Mask{}.With(2).With(70)
	if !m.Has(2) || !m.Has(70) || m.Has(1) || m.Has(1000) {
		t.Errorf("mask %v", m)
	}
	a, b := row.Row{row.IntValue(1), {}, row.IntValue(3)}, row.Row{row.IntValue(2), {}, row.IntValue(3)}
	if m.Differs(a, b) || !m.With(0).Differs(a, b) {
		t.Error("Differs")
	}
	if (row.Row{{}, row.AbsentValue()}).Complete(m.With(1)) || !(row.Row{{}, row.AbsentValue()}).Complete(m) {
		t.Error("Complete")
	}
}

func TestS48_Checksum(t *testing.T) {
	t.Parallel()
	// The finalizer of FNV-1a's published values.
	mix := func(h uint64) uint64 {
		h = (h ^ h>>33) * 0xff51afd7ed558ccd
		h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
		return h ^ h>>33
	}
	for text, fnv := range map[string]uint64{"": 0xcbf29ce484222325, "a": 0xaf63dc4c8601ec8c, "foobar": 0x85944171f73967e8} {
		if got := row.Checksum([]byte(text)); got != mix(fnv) {
			t.Errorf("Checksum(%q) = %x", text, got)
		}
	}
	tab := &row.Table{Columns: []row.Column{{Name: "b", Type: pg(t, 3802)}, {Name: "a", Type: pg(t, 701)}, {Name: "é", Type: pg(t, 25)}}}
	p := row.NewProjection(tab, []int{0, 1, 2})
	r := row.Row{row.JSONValue(`{"z": 1.0, "y": [1e2, "\u00e9"]}`), row.FloatValue(0.5), {}}
	got := p.AppendJSON(nil, r)
	if want := `{"a":0.5,"b":{"z": 1.0, "y": [1e2, "\u00e9"]},"é":null}`; string(got) != want {
		t.Errorf("row %s, want %s", got, want)
	}
	canonical := `{"a":0.5,"b":{"y":[100,"é"],"z":1},"é":null}`
	if p.Checksum(got) != row.Checksum([]byte(canonical)) {
		t.Error("the checksum is not that of the canonical form")
	}
	if got := row.NewProjection(tab, nil).AppendJSON(nil, r); string(got) != "{}" {
		t.Errorf("no columns: %s", got)
	}
}

func TestS48_CanonicalJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`{"b":1,"a":{"d":[ ],"c":null}}`:                                       `{"a":{"c":null,"d":[]},"b":1}`,
		`[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001,-0]`: `[333333333.3333333,1e+30,4.5,0.002,1e-27,0]`,
		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew","1":"One","\ud83d\ude00":"Emoji","\u0080":"Control","\u00f6":"Latin"}`: "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin\",\"€\":\"Euro Sign\",\"😀\":\"Emoji\",\"\ufb33\":\"Hebrew\"}",
		`"\u003c\/\u2028"`: "\"</\u2028\"",
		" 1 ":              "1",
	} {
		got, err := row.CanonicalJSON([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("CanonicalJSON(%s) = %s, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "{", "1 2", "1e999", strings.Repeat("[", 2000) + strings.Repeat("]", 2000)} {
		if got, err := row.CanonicalJSON([]byte(bad)); err == nil {
			t.Errorf("CanonicalJSON(%.20s) = %s", bad, got)
		}
	}
}

func FuzzParseText(f *testing.F) {
	oids := []uint32{16, 17, 20, 21, 25, 700, 701, 1042, 1082, 1114, 1184, 1700, 2950, 3802, 1007, 1009, 1185}
	for i, s := range []string{"t", `\x00`, "12", "1", "a", "1.5", "NaN", "x ", "2026-11-30", "2026-11-30 12:00:00.5", "0044-03-15 12:00:00+01:30 BC", "1e-5", "7d444840-9dc0-11d1-b245-5ffdce74fad2", `{"a":1}`, "{1,{2}}", `{"a\"",b}`} {
		f.Add(i, s)
	}
	f.Fuzz(func(t *testing.T, i int, s string) {
		typ := pg(t, oids[uint(i)%uint(len(oids))])
		v, err := row.ParseText(typ, s)
		if err != nil {
			return
		}
		again, err := row.ParseText(typ, v.String())
		if err != nil || again != v {
			t.Fatalf("%s %q is written %q, which is %v, %v", typ.Name, s, v, again, err)
		}
		j := row.AppendJSON(nil, typ, v)
		if !json.Valid(j) {
			t.Fatalf("%s %q is %s", typ.Name, s, j)
		}
		c := row.Canonical(v, typ.Collation)
		if row.Canonical(c, typ.Collation) != c {
			t.Fatalf("%v is not canonical", c)
		}
		if row.Compare(v, v, typ.Collation) != 0 {
			t.Fatalf("%v is not equal to itself", v)
		}
	})
}

func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`1`, `"a"`, `{"$bytes":"YQ=="}`, `{"$int":"1"}`, `[1]`, `1e400`, `-0.0`, `"2026-11-30T12:00:00Z"`, `true`} {
		f.Add(uint32(1184), s)
	}
	f.Fuzz(func(t *testing.T, oid uint32, s string) {
		types := []row.Type{row.SQLiteType([]string{"INT", "TEXT", "REAL", "", "BOOL", "JSON", "BLOB"}[oid%7], "", false)}
		if typ, ok := row.PostgresType(oid, row.C); ok {
			types = append(types, typ)
		}
		for _, typ := range types {
			v, err := row.ParseJSON(typ, []byte(s))
			if err != nil || v.IsNull() {
				continue
			}
			j := row.AppendJSON(nil, typ, v)
			again, err := row.ParseJSON(typ, j)
			if err != nil || typ.Kind != row.JSON && row.Compare(again, v, row.C) != 0 {
				t.Fatalf("%s %s is %v and written %s, which is %v, %v", typ.Kind, s, v, j, again, err)
			}
		}
		if c, err := row.CanonicalJSON([]byte(s)); err == nil {
			again, err := row.CanonicalJSON(c)
			if err != nil || !bytes.Equal(c, again) {
				t.Fatalf("%s is not canonical: %s, %v", c, again, err)
			}
		}
	})
}

func BenchmarkRow(b *testing.B) {
	tab := &row.Table{Key: []int{0}}
	for i, oid := range []uint32{20, 25, 16, 1184, 1700, 2950, 701, 25} {
		tab.Columns = append(tab.Columns, row.Column{Name: string(rune('a' + i)), Type: pg(b, oid)})
	}
	texts := []string{"42", "hello world, this is a title", "t", "2026-11-30 12:00:00.123456+00", "12.50", "7d444840-9dc0-11d1-b245-5ffdce74fad2", "0.25", "body text of forty bytes, more or less.."}
	parseRow := func() row.Row {
		r := make(row.Row, len(texts))
		for i, s := range texts {
			r[i], _ = row.ParseText(tab.Columns[i].Type, s)
		}
		return r
	}
	r := parseRow()
	p := row.NewProjection(tab, slices.Collect(func(yield func(int) bool) {
		for i := range texts {
			if !yield(i) {
				return
			}
		}
	}))
	buf := p.AppendJSON(nil, r)
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			parseRow()
		}
	})
	b.Run("json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = p.AppendJSON(buf[:0], r)
		}
	})
	b.Run("checksum", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p.Checksum(buf)
		}
	})
	b.Run("key", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			tab.KeyOf(r)
		}
	})
}
