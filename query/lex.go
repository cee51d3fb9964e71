package query

import (
	"fmt"
	"strings"
)

// token kinds
const (
	tokEnd = iota
	tokWord
	tokQuoted
	tokParam
	tokNumber
	tokString
	tokSymbol
)

type token struct {
	kind int
	text string
	pos  int
}

// is reports whether the token is a keyword or a symbol.
func (t token) is(s string) bool {
	return t.kind == tokSymbol && t.text == s || t.kind == tokWord && strings.EqualFold(t.text, s)
}

func (t token) String() string {
	if t.kind == tokEnd {
		return "the end"
	}
	return fmt.Sprintf("%q", t.text)
}

func (p *parser) lex(s string) {
	if len(s) > maxText {
		p.fail(maxText, "longer than %d bytes", maxText)
	}
	for i := 0; ; {
		for i < len(s) && strings.IndexByte(" \t\r\n", s[i]) >= 0 {
			i++
		}
		if i == len(s) {
			p.tokens = append(p.tokens, token{tokEnd, "", i})
			return
		}
		t := token{pos: i}
		i = p.scan(s, i, &t)
		p.tokens = append(p.tokens, t)
	}
}

func wordByte(b byte) bool {
	return b|0x20 >= 'a' && b|0x20 <= 'z' || b == '_' || b >= 0x80 || digit(b)
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

// scan reads one token at i and returns where it ends.
func (p *parser) scan(s string, i int, t *token) int {
	b := s[i]
	switch {
	case b == '\'' || b == '"':
		t.kind = tokString
		if b == '"' {
			t.kind = tokQuoted
		}
		return p.quoted(s, i, t)
	case b == '$':
		end := i + 1
		for end < len(s) && (wordByte(s[end]) || s[end] == '.') {
			end++
		}
		if end == i+1 || digit(s[i+1]) {
			p.fail(i, "a parameter is $ and a name")
		}
		t.kind, t.text = tokParam, s[i+1:end]
		return end
	case digit(b), b == '.' && i+1 < len(s) && digit(s[i+1]):
		end := number(s, i)
		if end < len(s) && (wordByte(s[end]) || s[end] == '.') {
			p.fail(i, "not a number")
		}
		t.kind, t.text = tokNumber, s[i:end]
		return end
	case wordByte(b):
		end := i
		for end < len(s) && wordByte(s[end]) {
			end++
		}
		t.kind, t.text = tokWord, s[i:end]
		return end
	}
	for _, symbol := range []string{"<>", "!=", "<=", ">=", "::", "--", "/*"} {
		if strings.HasPrefix(s[i:], symbol) {
			if symbol == "--" || symbol == "/*" {
				p.fail(i, "comments are not in the subset")
			}
			t.kind, t.text = tokSymbol, symbol
			return i + 2
		}
	}
	t.kind, t.text = tokSymbol, s[i:i+1]
	return i + 1
}

func number(s string, i int) int {
	run := func() {
		for i < len(s) && digit(s[i]) {
			i++
		}
	}
	run()
	if i < len(s) && s[i] == '.' {
		i++
		run()
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		j := i + 1
		if j < len(s) && (s[j] == '+' || s[j] == '-') {
			j++
		}
		if j < len(s) && digit(s[j]) {
			i = j
			run()
		}
	}
	return i
}

// quoted reads '…' or "…", where the quote is written twice inside.
func (p *parser) quoted(s string, start int, t *token) int {
	q := s[start]
	var b strings.Builder
	for i := start + 1; i < len(s); i++ {
		if s[i] == q {
			if i+1 < len(s) && s[i+1] == q {
				i++
			} else {
				t.text = b.String()
				return i + 1
			}
		}
		if s[i] == 0 {
			break
		}
		b.WriteByte(s[i])
	}
	p.fail(start, "a quote that does not end")
	return 0
}
