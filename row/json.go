package row

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

const maxSafe = 1<<53 - 1

// AppendJSON appends a value of a column as clients see it; the package comment has the forms. Everything but json columns is canonical (RFC 8785).
func AppendJSON(dst []byte, t Type, v Value) []byte {
	switch v.kind {
	case Null, Absent:
		return append(dst, "null"...)
	case Bool:
		return strconv.AppendBool(dst, v.n != 0)
	case Int:
		return appendInt(dst, t, int64(v.n))
	case Float:
		return appendFloat(dst, v.Float(), t.Bits)
	case Text:
		switch t.Kind {
		case JSON:
			if json.Valid([]byte(v.s)) {
				return append(dst, v.s...)
			}
		case Int, Float, Bytes: // SQLite; a string means something else there
			return append(appendString(append(dst, `{"$text":`...), v.s), '}')
		}
		return appendString(dst, v.s)
	case JSON:
		if !json.Valid([]byte(v.s)) {
			return appendString(dst, v.s)
		}
		return append(dst, v.s...)
	case UUID, Date:
		return append(AppendText(append(dst, '"'), v), '"')
	case Timestamp:
		return append(appendTime(append(dst, '"'), int64(v.n), 'T', ""), '"')
	case TimestampTZ:
		return append(appendTime(append(dst, '"'), int64(v.n), 'T', "Z"), '"')
	case Bytes:
		if t.Kind != Bytes {
			dst = append(dst, `{"$bytes":`...)
		}
		dst = append(base64.StdEncoding.AppendEncode(append(dst, '"'), []byte(v.s)), '"')
		if t.Kind != Bytes {
			dst = append(dst, '}')
		}
		return dst
	case Array:
		if out, ok := appendArray(dst, t, v.s); ok {
			return out
		}
	}
	return appendString(dst, v.s)
}

func appendInt(dst []byte, t Type, i int64) []byte {
	switch {
	case t.Kind == Bool && (i == 0 || i == 1):
		return strconv.AppendBool(dst, i == 1)
	case (i > maxSafe || i < -maxSafe) && t.Engine == SQLite && t.Kind != Int:
		return append(strconv.AppendInt(append(dst, `{"$int":"`...), i, 10), `"}`...)
	case i > maxSafe || i < -maxSafe:
		return append(strconv.AppendInt(append(dst, '"'), i, 10), '"')
	}
	return strconv.AppendInt(dst, i, 10)
}

// appendFloat writes a number as JavaScript does.
func appendFloat(dst []byte, f float64, bits uint8) []byte {
	switch {
	case math.IsNaN(f), math.IsInf(f, 0):
		return append(AppendText(append(dst, '"'), FloatValue(f)), '"')
	case f == 0:
		return append(dst, '0')
	case bits == 32:
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'g', -1, 32), 64)
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); dst[n-2] == '0' && (dst[n-3] == '-' || dst[n-3] == '+') { // e-07 is e-7
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// appendString writes a string as JSON.stringify does; what is not UTF-8 becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		b := s[i]
		if b >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(append(dst, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		if b >= ' ' && b != '"' && b != '\\' {
			i++
			continue
		}
		dst = append(dst, s[from:i]...)
		if short := strings.IndexByte("\"\\\b\t\n\f\r", b); short >= 0 {
			dst = append(dst, '\\', `"\btnfr`[short])
		} else {
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		}
		i++
		from = i
	}
	return append(append(dst, s[from:]...), '"')
}

// maxDepth bounds nested arrays, as PostgreSQL does, and json that is made canonical.
const (
	maxDimensions = 6
	maxDepth      = 1000
)

// appendArray reads {a,"b\"",NULL,{…}} with elements of the type.
func appendArray(dst []byte, t Type, s string) ([]byte, bool) {
	elem := Type{Kind: Text}
	if t.Elem != nil {
		elem = *t.Elem
	}
	if strings.HasPrefix(s, "[") { // [2:3]={…}: bounds are not shown
		_, s, _ = strings.Cut(s, "=")
	}
	dst, rest, ok := appendArrayLevel(dst, elem, s, 0)
	return dst, ok && rest == ""
}

func appendArrayLevel(dst []byte, elem Type, s string, depth int) (_ []byte, rest string, ok bool) {
	if s == "" || s[0] != '{' || depth == maxDimensions {
		return dst, s, false
	}
	s = s[1:]
	dst = append(dst, '[')
	for first := true; ; first = false {
		switch {
		case s == "":
			return dst, s, false
		case s[0] == '}' && first:
			return append(dst, ']'), s[1:], true
		case s[0] == '{':
			if dst, s, ok = appendArrayLevel(dst, elem, s, depth+1); !ok {
				return dst, s, false
			}
		default:
			var text string
			var quoted bool
			if text, quoted, s, ok = arrayElement(s); !ok {
				return dst, s, false
			}
			if !quoted && text == "NULL" {
				dst = append(dst, "null"...)
				break
			}
			v, ok := parseText(elem, text)
			if !ok {
				return dst, s, false
			}
			dst = AppendJSON(dst, elem, v)
		}
		if s == "" {
			return dst, s, false
		}
		sep := s[0]
		s = s[1:]
		if sep == '}' {
			return append(dst, ']'), s, true
		}
		if sep != ',' {
			return dst, s, false
		}
		dst = append(dst, ',')
	}
}

func arrayElement(s string) (text string, quoted bool, rest string, ok bool) {
	if s[0] != '"' {
		i := strings.IndexAny(s, ",}")
		if i <= 0 {
			return "", false, s, false
		}
		return s[:i], false, s[i:], true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), true, s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", true, "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", true, "", false
}

var errJSON = errors.New("row: not the JSON of a value")

// ParseJSON is the reverse of [AppendJSON], and how a parameter is read. A number is taken for an int when it is whole, and a string of digits
// always is; decimals may be numbers and are taken by their text.
func ParseJSON(t Type, raw []byte) (Value, error) {
	raw = bytes.TrimSpace(raw)
	fail := func() (Value, error) {
		return Value{}, fmt.Errorf("%w %s: %s", ErrSyntax, t.label(), clip(string(raw)))
	}
	if len(raw) == 0 || !json.Valid(raw) {
		return Value{}, errJSON
	}
	if string(raw) == "null" {
		return Value{}, nil
	}
	if t.Engine == SQLite {
		return parseSQLiteJSON(t, raw, fail)
	}
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return Value{}, errJSON
		}
		switch t.Kind {
		case Bytes:
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return fail()
			}
			return BytesValue(b), nil
		case JSON:
			return JSONValue(string(raw)), nil
		case Array, Bool:
			return fail()
		}
		return ParseText(t, s)
	case 't', 'f':
		if t.Kind == Bool {
			return BoolValue(raw[0] == 't'), nil
		}
	case '[':
		if t.Kind == Array {
			return Value{}, fmt.Errorf("%w: arrays are not read from JSON", ErrNotComparable)
		}
	case '{':
	default:
		return parseNumber(t, string(raw), fail)
	}
	if t.Kind == JSON {
		return JSONValue(string(raw)), nil
	}
	return fail()
}

func parseNumber(t Type, s string, fail func() (Value, error)) (Value, error) {
	switch t.Kind {
	case JSON:
		return JSONValue(s), nil
	case Int: // 1e2 and 1.0 are whole numbers too
		v, ok := parseNumeric(s)
		if !ok {
			return fail()
		}
		if v = Canonical(v, C); v.kind != Int {
			return fail()
		}
		return ParseText(t, strconv.FormatInt(v.Int(), 10))
	case Float, Numeric:
		return ParseText(t, s)
	}
	return fail()
}

func parseSQLiteJSON(t Type, raw []byte, fail func() (Value, error)) (Value, error) {
	switch raw[0] {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return Value{}, errJSON
		}
		switch t.Kind {
		case Int, Float:
			if v, ok := parseText(Type{Kind: t.Kind}, s); ok {
				return v, nil
			}
		case Bytes:
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				return fail()
			}
			return BytesValue(b), nil
		}
		return TextValue(s), nil
	case 't', 'f':
		return IntValue(int64(bit(raw[0] == 't'))), nil
	case '{', '[':
		var b struct {
			Bytes *[]byte `json:"$bytes"`
			Int   *int64  `json:"$int,string"`
			Text  *string `json:"$text"`
		}
		switch err := json.Unmarshal(raw, &b); {
		case err == nil && b.Bytes != nil:
			return BytesValue(*b.Bytes), nil
		case err == nil && b.Int != nil:
			return IntValue(*b.Int), nil
		case err == nil && b.Text != nil:
			return TextValue(*b.Text), nil
		case t.Kind == JSON:
			return TextValue(string(raw)), nil
		}
		return fail()
	}
	s := string(raw)
	if v, ok := parseNumeric(s); ok {
		if v = Canonical(v, C); v.kind == Int {
			return v, nil
		}
	}
	return ParseText(Type{Kind: Float}, s)
}

// Projection writes chosen columns of rows of one table as JSON objects.
type Projection struct {
	fields []field
	json   bool // some column is json, so the JSON of a row need not be canonical
}

type field struct {
	column int
	typ    Type
	name   []byte // "name":
}

// NewProjection returns the projection on columns by position.
func NewProjection(t *Table, columns []int) *Projection {
	p := &Projection{}
	sorted := slices.Clone(columns)
	slices.SortFunc(sorted, func(a, b int) int {
		return slices.Compare(utf16.Encode([]rune(t.Columns[a].Name)), utf16.Encode([]rune(t.Columns[b].Name)))
	})
	for _, c := range slices.Compact(sorted) {
		col := t.Columns[c]
		p.fields = append(p.fields, field{c, col.Type, append(appendString(nil, col.Name), ':')})
		p.json = p.json || col.Type.Kind == JSON || col.Type.Kind == Array && col.Type.Elem != nil && col.Type.Elem.Kind == JSON
	}
	return p
}

// AppendJSON appends the row as an object, keys in the order of RFC 8785.
func (p *Projection) AppendJSON(dst []byte, r Row) []byte {
	if dst == nil {
		dst = make([]byte, 0, p.size(r))
	}
	sep := byte('{')
	for i := range p.fields {
		f := &p.fields[i]
		dst = append(append(dst, sep), f.name...)
		dst = AppendJSON(dst, f.typ, r[f.column])
		sep = ','
	}
	if sep == '{' {
		dst = append(dst, '{')
	}
	return append(dst, '}')
}

// size is about that of a row: right for texts without escapes and numbers of usual length.
func (p *Projection) size(r Row) int {
	n := 2
	for i := range p.fields {
		f := &p.fields[i]
		n += len(f.name) + 7 + len(r[f.column].s)
		if k := r[f.column].kind; k >= UUID && k <= TimestampTZ {
			n += 20
		}
	}
	return n
}

// Checksum returns the checksum of a row that AppendJSON of this projection has written.
func (p *Projection) Checksum(object []byte) uint64 {
	if p.json {
		if canonical, err := CanonicalJSON(object); err == nil {
			object = canonical
		}
	}
	return Checksum(object)
}

// Checksum is FNV-1a of 64 bits with the finalizer of MurmurHash3, over canonical JSON.
func Checksum(canonical []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, b := range canonical {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// CanonicalJSON returns a JSON text in the form of RFC 8785: what JSON.stringify of JavaScript writes when keys are sorted. Numbers are rounded to float64, as
// JavaScript does; one beyond its range is an error. The last of equal keys counts.
func CanonicalJSON(raw []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", errJSON, err)
	}
	if d.InputOffset() != int64(len(bytes.TrimRight(raw, " \t\r\n"))) {
		return nil, errJSON
	}
	return appendCanonical(nil, v, 0)
}

func appendCanonical(dst []byte, v any, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%w: nested too deep", errJSON)
	}
	var err error
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case json.Number:
		f, err := strconv.ParseFloat(string(v), 64)
		if err != nil {
			return nil, fmt.Errorf("%w: number %s", errJSON, clip(string(v)))
		}
		return appendFloat(dst, f, 64), nil
	case string:
		return appendString(dst, v), nil
	case []any:
		dst = append(dst, '[')
		for i, e := range v {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = appendCanonical(dst, e, depth+1); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case map[string]any:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.SortFunc(keys, func(a, b string) int { return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b))) })
		dst = append(dst, '{')
		for i, k := range keys {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendString(dst, k), ':')
			if dst, err = appendCanonical(dst, v[k], depth+1); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	}
	return nil, errJSON
}
