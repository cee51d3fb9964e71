package query

import (
	"errors"
	"unicode/utf8"
)

// pattern is a LIKE that was taken apart.
type pattern struct {
	tokens []uint16 // a byte, one or many
	prefix string   // what every match begins with
	fold   bool     // the case of ASCII letters does not count, and literals are in lower case
	cut    bool     // SQLite: text ends at a NUL byte
}

const (
	one  = 256 + iota // _
	many              // %
)

var errEscapeEnd = errors.New("a pattern does not end in its escape character")

// newPattern reads a pattern with an escape character, or none.
func newPattern(text, escape string, fold bool) (*pattern, error) {
	p := &pattern{fold: fold}
	plain := true
	literal := func(s string) {
		for i := range len(s) {
			b := s[i]
			if fold {
				b = lower(b)
			}
			p.tokens = append(p.tokens, uint16(b))
			if plain {
				p.prefix += string([]byte{b})
			}
		}
	}
	for i := 0; i < len(text); {
		_, n := utf8.DecodeRuneInString(text[i:])
		ch := text[i : i+n]
		i += n
		switch {
		case ch == escape:
			if i == len(text) {
				return nil, errEscapeEnd
			}
			_, n = utf8.DecodeRuneInString(text[i:])
			literal(text[i : i+n])
			i += n
		case ch == "%":
			plain = false
			p.tokens = append(p.tokens, many)
		case ch == "_":
			plain = false
			p.tokens = append(p.tokens, one)
		default:
			literal(ch)
		}
	}
	return p, nil
}

func lower(b byte) byte {
	if b-'A' < 26 {
		b += 'a' - 'A'
	}
	return b
}

// char returns where the character at i ends. What is not UTF-8 is cut as SQLite cuts it.
func char(s string, i int) int {
	b := s[i]
	i++
	if b >= 0xc0 {
		for i < len(s) && s[i]&0xc0 == 0x80 {
			i++
		}
	}
	return i
}

// match goes back to the last % only, which is enough, and allocates nothing.
func (p *pattern) match(s string) bool {
	at, star, retry := 0, -1, 0
	for i := 0; i < len(s); {
		b := s[i]
		if p.cut && b == 0 {
			break
		}
		if p.fold {
			b = lower(b)
		}
		switch {
		case at < len(p.tokens) && p.tokens[at] == many:
			star, retry = at, i
			at++
		case at < len(p.tokens) && p.tokens[at] == one:
			i = char(s, i)
			at++
		case at < len(p.tokens) && p.tokens[at] == uint16(b):
			i++
			at++
		case star >= 0:
			retry = char(s, retry)
			i, at = retry, star+1
		default:
			return false
		}
	}
	for at < len(p.tokens) && p.tokens[at] == many {
		at++
	}
	return at == len(p.tokens)
}
