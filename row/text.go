package row

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ParseText parses a value in PostgreSQL's text format (DateStyle ISO, bytea_output hex), which is also how literals and parameters are written. A timestamp with
// zone needs its zone and one without must not have one, as the meaning would depend on a session else; words such as now are refused.
func ParseText(t Type, s string) (Value, error) {
	v, ok := parseText(t, s)
	if !ok {
		return Value{}, fmt.Errorf("%w %s: %q", ErrSyntax, t.label(), clip(s))
	}
	return v, nil
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

func parseText(t Type, s string) (Value, bool) {
	switch t.Kind {
	case Bool:
		switch s {
		case "t", "true":
			return BoolValue(true), true
		case "f", "false":
			return BoolValue(false), true
		}
	case Int:
		bits := int(t.Bits)
		if bits == 0 {
			bits = 64
		}
		i, err := strconv.ParseInt(s, 10, bits)
		return IntValue(i), err == nil && s[0] != '+'
	case Float:
		return parseFloat(s, t.Bits)
	case Numeric:
		return parseNumeric(s)
	case Text:
		return TextValue(s), true
	case UUID:
		return parseUUID(s)
	case Timestamp, TimestampTZ:
		return parseTimestamp(s, t.Kind)
	case Date:
		return parseDate(s)
	case Bytes:
		if h, found := strings.CutPrefix(s, `\x`); found {
			b, err := hex.DecodeString(h)
			return Value{kind: Bytes, s: string(b)}, err == nil
		}
	case Enum:
		return EnumValue(t, s)
	case JSON:
		return JSONValue(s), true
	case Array:
		return ArrayValue(s), true
	case Opaque:
		return OpaqueValue(s), true
	}
	return Value{}, false
}

func parseFloat(s string, bits uint8) (Value, bool) {
	switch s {
	case "NaN":
		return FloatValue(math.NaN()), true
	case "Infinity":
		return FloatValue(math.Inf(1)), true
	case "-Infinity":
		return FloatValue(math.Inf(-1)), true
	}
	if strings.Trim(s, "0123456789.eE+-") != "" {
		return Value{}, false // no hexadecimal, no underscores, no other words
	}
	if bits != 32 {
		bits = 64
	}
	f, err := strconv.ParseFloat(s, int(bits))
	return FloatValue(f), err == nil
}

// maxExponent bounds what a decimal may become when its exponent is written out.
const maxExponent = 1000

// parseNumeric takes PostgreSQL's output as it is and writes exponents out.
func parseNumeric(s string) (Value, bool) {
	switch s {
	case "NaN", "Infinity", "-Infinity":
		return Value{kind: Numeric, s: s}, true
	}
	rest := strings.TrimPrefix(s, "-")
	mantissa, exponent, hasExponent := strings.Cut(strings.ToLower(rest), "e")
	whole, frac, _ := strings.Cut(mantissa, ".")
	if whole+frac == "" || !digits(whole) || !digits(frac) {
		return Value{}, false
	}
	if !hasExponent {
		if whole == "" || strings.HasSuffix(mantissa, ".") {
			return Value{kind: Numeric, s: plainDecimal(s[:len(s)-len(rest)], whole, frac)}, true
		}
		return Value{kind: Numeric, s: s}, true
	}
	e, err := strconv.Atoi(exponent)
	if err != nil || e > maxExponent || e < -maxExponent {
		return Value{}, false
	}
	if e >= 0 {
		frac += strings.Repeat("0", max(0, e-len(frac)))
		whole, frac = whole+frac[:e], frac[e:]
	} else {
		whole = strings.Repeat("0", max(0, -e-len(whole))) + whole
		whole, frac = whole[:len(whole)+e], whole[len(whole)+e:]+frac
	}
	return Value{kind: Numeric, s: plainDecimal(s[:len(s)-len(rest)], whole, frac)}, true
}

func plainDecimal(sign, whole, frac string) string {
	whole = strings.TrimLeft(whole, "0")
	if whole == "" {
		whole = "0"
	}
	if frac != "" {
		frac = "." + frac
	}
	return sign + whole + frac
}

func digits(s string) bool { return strings.Trim(s, "0123456789") == "" }

func parseUUID(s string) (Value, bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return Value{}, false
	}
	var u [16]byte
	if _, err := hex.Decode(u[:], []byte(s[:8]+s[9:13]+s[14:18]+s[19:23]+s[24:])); err != nil {
		return Value{}, false
	}
	return UUIDValue(u), true
}

// AppendText appends a value that is not NULL as PostgreSQL writes it, timestamps with zone in UTC.
func AppendText(dst []byte, v Value) []byte {
	switch v.kind {
	case Bool:
		return strconv.AppendBool(dst, v.n != 0)
	case Int:
		return strconv.AppendInt(dst, int64(v.n), 10)
	case Float:
		switch f := v.Float(); {
		case f != f:
			return append(dst, "NaN"...)
		case math.IsInf(f, 0):
			return append(dst, decimalText(v)...)
		default:
			return strconv.AppendFloat(dst, f, 'g', -1, 64)
		}
	case UUID:
		for i := range len(v.s) {
			if i == 4 || i == 6 || i == 8 || i == 10 {
				dst = append(dst, '-')
			}
			dst = append(dst, hexDigits[v.s[i]>>4], hexDigits[v.s[i]&15])
		}
		return dst
	case Bytes:
		return hex.AppendEncode(append(dst, `\x`...), []byte(v.s))
	case Timestamp:
		return appendTime(dst, int64(v.n), ' ', "")
	case TimestampTZ:
		return appendTime(dst, int64(v.n), ' ', "+00")
	case Date:
		return appendDate(dst, int64(v.n))
	}
	return append(dst, v.s...)
}

const hexDigits = "0123456789abcdef"

// Valid reports whether text is UTF-8 without NUL, which is all that PostgreSQL stores and JSON carries.
func Valid(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }
