package row

import (
	"strconv"
	"strings"
)

const (
	day = 86400 * 1000000 // microseconds
	// PostgreSQL's ranges: from 4714-11-24 BC to before 294277 and 5874898.
	firstDay    = -2451545
	endDay      = 2145031949
	firstMicros = firstDay * day
	endMicros   = 9223371331200000000
)

// cursor reads a text from the left.
type cursor struct {
	s  string
	ok bool
}

// number reads a run of digits of a length between lo and hi.
func (c *cursor) number(lo, hi int) int64 {
	n := 0
	for n < len(c.s) && n < hi && c.s[n]-'0' < 10 {
		n++
	}
	if n < lo {
		c.ok = false
		return 0
	}
	i, _ := strconv.ParseInt(c.s[:n], 10, 64)
	c.s = c.s[n:]
	return i
}

func (c *cursor) next(set string) byte {
	if c.s == "" || strings.IndexByte(set, c.s[0]) < 0 {
		c.ok = false
		return 0
	}
	b := c.s[0]
	c.s = c.s[1:]
	return b
}

func (c *cursor) at(set string) bool { return c.s != "" && strings.IndexByte(set, c.s[0]) >= 0 }

// date reads year-month-day.
func (c *cursor) date() (y, m, d int64) {
	y = c.number(4, 7)
	c.next("-")
	m = c.number(2, 2)
	c.next("-")
	d = c.number(2, 2)
	return y, m, d
}

func parseDate(s string) (Value, bool) {
	switch s {
	case "infinity":
		return DateValue(Infinity), true
	case "-infinity":
		return DateValue(NegInfinity), true
	}
	s, bc := strings.CutSuffix(s, " BC")
	c := cursor{s, true}
	days, ok := c.days(c.date())(bc)
	return DateValue(days), ok && c.ok && c.s == "" && days >= firstDay && days < endDay
}

// days returns the day of a date of the calendar, once it is known whether the year is before Christ.
func (c *cursor) days(y, m, d int64) func(bc bool) (int64, bool) {
	return func(bc bool) (int64, bool) {
		if y == 0 {
			return 0, false
		}
		if bc {
			y = 1 - y
		}
		if m < 1 || m > 12 || d < 1 || d > monthDays(y, m) {
			return 0, false
		}
		return daysFromCivil(y, m, d), true
	}
}

func monthDays(y, m int64) int64 {
	switch m {
	case 2:
		if y%4 == 0 && (y%100 != 0 || y%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

func parseTimestamp(s string, kind Kind) (Value, bool) {
	switch s {
	case "infinity":
		return Value{kind: kind, n: uint64(int64(Infinity))}, true
	case "-infinity":
		n := int64(NegInfinity)
		return Value{kind: kind, n: uint64(n)}, true
	}
	s, bc := strings.CutSuffix(s, " BC")
	c := cursor{s, true}
	days, ok := c.days(c.date())(bc)
	c.next("T ")
	hour := c.number(2, 2)
	c.next(":")
	minute := c.number(2, 2)
	var sec, micros int64
	if c.at(":") {
		c.next(":")
		sec = c.number(2, 2)
		if c.at(".") {
			c.next(".")
			n := len(c.s)
			micros = c.number(1, 6)
			for n -= len(c.s); n < 6; n++ {
				micros *= 10
			}
		}
	}
	if hour > 23 || minute > 59 || sec > 59 || days < firstDay || days > endMicros/day {
		return Value{}, false
	}
	micros += ((hour*60+minute)*60 + sec) * 1e6
	if kind == TimestampTZ {
		micros -= c.zone() * 1e6
	}
	total := days*day + micros
	return Value{kind: kind, n: uint64(total)}, ok && c.ok && c.s == "" && total >= firstMicros && total < endMicros
}

// zone reads Z or an offset and returns its seconds.
func (c *cursor) zone() int64 {
	sign := int64(1)
	switch c.next("Z+-") {
	case 'Z':
		return 0
	case '-':
		sign = -1
	}
	offset := c.number(2, 2) * 3600
	for unit := int64(60); unit > 0 && c.s != ""; unit /= 60 {
		if c.at(":") {
			c.next(":")
		}
		n := c.number(2, 2)
		if n > 59 {
			c.ok = false
		}
		offset += n * unit
	}
	if offset >= 16*3600 {
		c.ok = false
	}
	return sign * offset
}

// daysFromCivil counts days since 2000-01-01 in the proleptic Gregorian calendar; year 0 is 1 BC.
func daysFromCivil(y, m, d int64) int64 {
	if m <= 2 {
		y--
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	mp := (m + 9) % 12
	doy := (153*mp+2)/5 + d - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 730425
}

func civilFromDays(days int64) (y, m, d int64) {
	days += 730425
	era := floorDiv(days, 146097)
	doe := days - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	d = doy - (153*mp+2)/5 + 1
	m = mp + 3
	if m > 12 {
		m -= 12
	}
	y = yoe + era*400
	if m <= 2 {
		y++
	}
	return y, m, d
}

func appendEnd(dst []byte, n int64) ([]byte, bool) {
	switch n {
	case Infinity:
		return append(dst, "infinity"...), true
	case NegInfinity:
		return append(dst, "-infinity"...), true
	}
	return dst, false
}

func appendCivil(dst []byte, days int64) (_ []byte, bc bool) {
	y, m, d := civilFromDays(days)
	if bc = y <= 0; bc {
		y = 1 - y
	}
	dst = appendPadded(dst, y, 4)
	dst = appendPadded(append(dst, '-'), m, 2)
	return appendPadded(append(dst, '-'), d, 2), bc
}

func appendPadded(dst []byte, n int64, width int) []byte {
	for limit := int64(10); width > 1; width-- {
		if n < limit {
			dst = append(dst, "000"[:width-1]...)
			break
		}
		limit *= 10
	}
	return strconv.AppendInt(dst, n, 10)
}

func appendBC(dst []byte, bc bool) []byte {
	if bc {
		return append(dst, " BC"...)
	}
	return dst
}

func appendDate(dst []byte, days int64) []byte {
	dst, end := appendEnd(dst, days)
	if end {
		return dst
	}
	dst, bc := appendCivil(dst, days)
	return appendBC(dst, bc)
}

func appendTime(dst []byte, micros int64, sep byte, zone string) []byte {
	dst, end := appendEnd(dst, micros)
	if end {
		return dst
	}
	days := floorDiv(micros, day)
	rest := micros - days*day
	dst, bc := appendCivil(dst, days)
	sec := rest / 1e6
	dst = appendPadded(append(dst, sep), sec/3600, 2)
	dst = appendPadded(append(dst, ':'), sec/60%60, 2)
	dst = appendPadded(append(dst, ':'), sec%60, 2)
	if frac := rest % 1e6; frac != 0 {
		dst = append(dst, '.')
		for unit := int64(1e5); frac > 0; unit /= 10 {
			dst = append(dst, byte('0'+frac/unit))
			frac %= unit
		}
	}
	return appendBC(append(dst, zone...), bc)
}
