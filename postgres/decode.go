package postgres

import (
	"encoding/binary"
	"errors"
	"strings"
)

// errProtocol means that a message is not one of pgoutput, version 1.
var errProtocol = errors.New("postgres: replication message not understood")

// relation is how the stream describes a table.
type relation struct {
	oid          uint32
	schema, name string
	identity     byte // d, n, f or i
	columns      []relationColumn
}

type relationColumn struct {
	name string
	oid  uint32
	mod  int32
	key  bool // of the replica identity
}

func (r *relation) equal(o *relation) bool {
	if r.schema != o.schema || r.name != o.name || r.identity != o.identity || len(r.columns) != len(o.columns) {
		return false
	}
	for i := range r.columns {
		if r.columns[i] != o.columns[i] {
			return false
		}
	}
	return true
}

// begin and commit frame a transaction.
type begin struct {
	final lsn // where the commit record begins
	xid   uint32
}

type commit struct{ start, end lsn }

// message reads a message from the left. A read beyond its end gives zeros and sets bad, so that callers look once, at the end. It reads from a string, so that values are parts of it and need no copies.
type message struct {
	s   string
	bad bool
}

func (m *message) take(n int) string {
	if n < 0 || n > len(m.s) {
		m.bad, m.s = true, ""
		return ""
	}
	s := m.s[:n]
	m.s = m.s[n:]
	return s
}

func (m *message) byte() byte {
	if s := m.take(1); s != "" {
		return s[0]
	}
	return 0
}

func (m *message) uint16() int {
	s := m.take(2)
	if s == "" {
		return 0
	}
	return int(s[0])<<8 | int(s[1])
}

func (m *message) uint32() uint32 {
	s := m.take(4)
	if s == "" {
		return 0
	}
	return uint32(s[0])<<24 | uint32(s[1])<<16 | uint32(s[2])<<8 | uint32(s[3])
}

func (m *message) uint64() uint64 { return uint64(m.uint32())<<32 | uint64(m.uint32()) }

func (m *message) text() string {
	i := strings.IndexByte(m.s, 0)
	if i < 0 {
		m.bad, m.s = true, ""
		return ""
	}
	s := m.s[:i]
	m.s = m.s[i+1:]
	return s
}

func (m *message) begin() (b begin, err error) {
	b.final = lsn(m.uint64())
	m.take(8) // when it was committed
	b.xid = m.uint32()
	return b, m.end()
}

func (m *message) commit() (c commit, err error) {
	m.take(1)
	c.start, c.end = lsn(m.uint64()), lsn(m.uint64())
	m.take(8)
	return c, m.end()
}

func (m *message) relation() (*relation, error) {
	r := &relation{oid: m.uint32(), schema: m.text(), name: m.text(), identity: m.byte()}
	if r.schema == "" {
		r.schema = "pg_catalog"
	}
	n := m.uint16()
	for i := 0; i < n && !m.bad; i++ {
		r.columns = append(r.columns, relationColumn{key: m.byte()&1 != 0, name: m.text(), oid: m.uint32(), mod: int32(m.uint32())})
	}
	return r, m.end()
}

func (m *message) truncate() (oids []uint32, err error) {
	n := m.uint32()
	m.take(1) // cascade, restart identity
	for i := uint32(0); i < n && !m.bad; i++ {
		oids = append(oids, m.uint32())
	}
	return oids, m.end()
}

func (m *message) end() error {
	if m.bad || m.s != "" {
		return errProtocol
	}
	return nil
}

// cell is one value of a tuple.
type cell struct {
	kind byte // n null, u unchanged and not sent, t text
	text string
}

// tuple reads the cells of one row of n columns into dst.
func (m *message) tuple(dst []cell) {
	if m.uint16() != len(dst) {
		m.bad = true
		return
	}
	for i := range dst {
		c := cell{kind: m.byte()}
		switch c.kind {
		case 'n', 'u':
		case 't':
			c.text = m.take(int(int32(m.uint32())))
		default:
			m.bad = true
			return
		}
		dst[i] = c
	}
}

// rows is an insert, update or delete: which tuples there are, and whether the old one has all columns or those of the identity.
type rows struct {
	old, full, new bool
}

// rows reads the tuples of a change, behind the number of the relation.
func (m *message) rows(op byte, old, new []cell) (r rows, err error) {
	kind := m.byte()
	if op != 'I' && (kind == 'K' || kind == 'O') {
		m.tuple(old)
		r.old, r.full = true, kind == 'O'
		if op == 'U' {
			kind = m.byte()
		}
	}
	if op != 'D' {
		if kind != 'N' {
			return r, errProtocol
		}
		m.tuple(new)
		r.new = true
	} else if !r.old {
		return r, errProtocol
	}
	return r, m.end()
}

// oidOf is the relation of a change, before the rest of it is looked at.
func oidOf(payload []byte) (uint32, bool) {
	if len(payload) < 5 {
		return 0, false
	}
	return binary.BigEndian.Uint32(payload[1:]), true
}
