package query

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tidewire/tidewire/row"
)

// Bounds of an input.
const (
	MaxInput   = 16 << 10 // bytes
	maxList    = 1000
	defaultMax = 4096 // bytes of a text
	defaultLen = 64   // of a list
)

// actorPrefix begins the parameters that the actor gives.
const actorPrefix = "actor."

// Input is a canonical input of a query: with the same parameters it is the same text, whatever the order, spaces and spelling were. It can be a map key.
type Input struct {
	// Text is the canonical JSON, actor attributes included. Two entries are the same when name and Text are; compare it, not only Hash.
	Text string
	// Hash is the first 64 bits of SHA-256 of the name, a zero byte, and Text.
	Hash uint64
}

// values are the parameters of a canonical input.
type values map[string]json.RawMessage

func (in Input) values() (values, error) {
	v, err := object([]byte(in.Text))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	return v, nil
}

// Params returns what the query takes: for messages and documentation.
func (q *Query) Params() []string {
	var names []string
	for _, p := range q.params {
		names = append(names, p.name)
	}
	return names
}

// Input checks an input, a JSON object or nothing, and the actor's attributes, a JSON object or nothing, of which only those that the query uses are looked at.
// A bad input is an error that wraps [ErrInput].
func (q *Query) Input(input, actor json.RawMessage) (Input, error) {
	in, err := q.canonical(input, actor)
	if err != nil {
		return Input{}, fmt.Errorf("%w: query %q: %w", ErrInput, q.Definition.Name, err)
	}
	return in, nil
}

func (q *Query) canonical(input, actor json.RawMessage) (Input, error) {
	if len(input) > MaxInput {
		return Input{}, fmt.Errorf("larger than %d bytes", MaxInput)
	}
	given, err := object(input)
	if err != nil {
		return Input{}, err
	}
	attributes, err := object(actor)
	if err != nil {
		return Input{}, fmt.Errorf("actor: %w", err)
	}
	text := []byte{'{'}
	for i := range q.params {
		p := &q.params[i]
		var raw json.RawMessage
		var ok bool
		if name, fromActor := strings.CutPrefix(p.name, actorPrefix); fromActor {
			raw, ok = attributes[name], true
		} else {
			raw, ok = given[p.name]
			delete(given, p.name)
		}
		if !ok {
			if !p.spec.Optional && p.spec.Default == nil {
				return Input{}, fmt.Errorf("parameter %s is missing", p.name)
			}
			raw = p.spec.Default
		}
		canonical, err := p.canonical(raw)
		if err != nil {
			return Input{}, fmt.Errorf("parameter %s: %w", p.name, err)
		}
		if len(text) > 1 {
			text = append(text, ',')
		}
		text = row.AppendJSON(text, row.Type{Kind: row.Text}, row.TextValue(p.name))
		text = append(append(text, ':'), canonical...)
	}
	for name := range given {
		return Input{}, fmt.Errorf("parameter %.64q is not one of the query's", name)
	}
	in := Input{Text: string(append(text, '}'))}
	sum := sha256.Sum256([]byte(q.Definition.Name + "\x00" + in.Text))
	in.Hash = binary.BigEndian.Uint64(sum[:])
	return in, nil
}

// object reads the members of a JSON object, each once.
func object(raw json.RawMessage) (map[string]json.RawMessage, error) {
	out := map[string]json.RawMessage{}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return out, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, errors.New("an input is a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, errors.New("not valid JSON")
		}
		name := t.(string)
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("parameter %.64q stands there twice", name)
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, errors.New("not valid JSON")
		}
		if out[name] = v; len(out) > MaxParams {
			return nil, fmt.Errorf("more than %d parameters", MaxParams)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, errors.New("not valid JSON")
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("not valid JSON")
	}
	return out, nil
}

// canonical returns the one text of a value.
func (p *param) canonical(raw json.RawMessage) (json.RawMessage, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("null"), nil
	}
	if !p.list {
		return p.scalar(nil, raw)
	}
	var items []json.RawMessage
	if raw[0] != '[' || json.Unmarshal(raw, &items) != nil {
		return nil, errors.New("a list is expected")
	}
	if limit := p.max(defaultLen); len(items) > limit {
		return nil, fmt.Errorf("more than %d values", limit)
	}
	out := []byte{'['}
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if out, err = p.scalar(out, item); err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

func (p *param) max(zero int) int {
	if p.spec.Max > 0 {
		return p.spec.Max
	}
	return zero
}

func (p *param) scalar(dst []byte, raw json.RawMessage) ([]byte, error) {
	v, err := row.ParseJSON(p.typ, raw)
	if err != nil {
		return nil, err
	}
	if v, err = p.check(v); err != nil {
		return nil, err
	}
	if k := v.Kind(); k == row.Numeric || k == row.Float { // 1.50 is 1.5
		v = row.Canonical(v, row.C)
		if v.Kind() == row.Int && p.typ.Kind == row.Numeric {
			v, err = row.ParseText(p.typ, v.String())
		}
	}
	return row.AppendJSON(dst, p.typ, v), err
}

// check holds a value to the declared type where SQLite would take anything, and to its bounds.
func (p *param) check(v row.Value) (row.Value, error) {
	kind := v.Kind()
	if kind == row.Text || kind == row.Opaque {
		limit := defaultMax
		if !p.list {
			limit = p.max(defaultMax)
		}
		if len(v.Text()) > limit {
			return v, fmt.Errorf("longer than %d bytes", limit)
		}
		if !row.Valid(v.Text()) {
			return v, errors.New("a text has no NUL characters")
		}
	}
	if p.typ.Engine != row.SQLite || v.IsNull() {
		return v, nil
	}
	ok := true
	switch p.typ.Kind {
	case row.Bool:
		ok = kind == row.Int && (v.Int() == 0 || v.Int() == 1)
	case row.Int:
		ok = kind == row.Int
	case row.Float:
		ok = kind == row.Int || kind == row.Float
	case row.Text:
		ok = kind == row.Text
	case row.Bytes:
		ok = kind == row.Bytes
	}
	if !ok {
		return v, fmt.Errorf("%s is expected", p.typ.Kind)
	}
	return v, nil
}

// paramTypes are the types of declared parameters; those in the second map have the types of SQLite there.
var (
	paramTypes = map[string]row.Kind{
		"bool": row.Bool, "int": row.Int, "number": row.Numeric, "text": row.Text, "uuid": row.UUID, "date": row.Date, "timestamp": row.Timestamp,
		"timestamptz": row.TimestampTZ, "bytes": row.Bytes,
	}
	sqliteParamTypes = map[string]row.Kind{"bool": row.Bool, "int": row.Int, "number": row.Float, "bytes": row.Bytes}
)

func (c *compiler) declare() error {
	if len(c.q.Definition.Input) > MaxParams {
		return fmt.Errorf("more than %d parameters", MaxParams)
	}
	for _, name := range slices.Sorted(maps.Keys(c.q.Definition.Input)) {
		spec := c.q.Definition.Input[name]
		p := param{name: name, spec: spec, list: spec.List}
		if name == "" || len(name) > 64 || strings.Contains(strings.TrimPrefix(name, actorPrefix), ".") || digit(name[0]) ||
			strings.IndexFunc(name, func(r rune) bool { return r >= 0x80 || !wordByte(byte(r)) && r != '.' }) >= 0 {
			return fmt.Errorf("parameter %.64q: a name is letters, digits and _", name)
		}
		if spec.Max < 0 || spec.List && spec.Max > maxList || spec.Max > MaxInput {
			return fmt.Errorf("parameter %s: max is too large", name)
		}
		if spec.Type != "" {
			kind, ok := paramTypes[spec.Type]
			if !ok {
				return fmt.Errorf("parameter %s: type %.32q is not bool, int, number, text, uuid, date, timestamp, timestamptz or bytes", name, spec.Type)
			}
			p.typ, p.known = row.Type{Kind: kind}, true
			if kind, ok := sqliteParamTypes[spec.Type]; ok && c.q.Table.Engine == row.SQLite {
				p.typ = row.Type{Kind: kind, Engine: row.SQLite}
			}
		}
		c.q.params = append(c.q.params, p)
	}
	return nil
}

// param notes the use of a parameter as a value of the type.
func (c *compiler) param(o operand, t row.Type, list bool) arg {
	name := o.text
	if c.part == "visible" && !strings.HasPrefix(name, actorPrefix) {
		c.fail(o.pos, "$%s is the subscriber's choice, and what it may see is not: $actor.%s?", name, name)
	}
	params := c.q.params
	i := slices.IndexFunc(params, func(p param) bool { return p.name == name })
	if i < 0 {
		rest, actor := strings.CutPrefix(name, actorPrefix)
		if rest == "" || strings.ContainsRune(rest, '.') || len(name) > 64 {
			c.fail(o.pos, "a parameter is called $name or $actor.name")
		}
		if len(params) == MaxParams {
			c.fail(o.pos, "more than %d parameters", MaxParams)
		}
		i = len(params)
		params = append(params, param{name: name, list: list, spec: Param{Optional: actor}})
	}
	p := &params[i]
	if p.list != list && t.Kind != row.Null {
		c.fail(o.pos, "parameter $%s is used as a list and as a value", name)
	}
	if t.Kind != row.Null && !p.known {
		p.typ, p.known = wide(t), true
		if t.Engine == row.SQLite && t.Kind == row.JSON {
			p.typ.Kind = row.Dynamic
		}
	}
	p.used = true
	c.q.params = params
	return arg{param: name, typ: wide(t)}
}

func (c *compiler) finishParams() error {
	slices.SortFunc(c.q.params, func(a, b param) int { return strings.Compare(a.name, b.name) })
	for i := range c.q.params {
		p := &c.q.params[i]
		if !p.known {
			p.typ = row.Type{Kind: row.Text}
		}
		if !p.used {
			return fmt.Errorf("parameter %s is declared and not used", p.name)
		}
		if p.spec.Default != nil {
			if _, err := p.canonical(p.spec.Default); err != nil {
				return fmt.Errorf("parameter %s: default: %w", p.name, err)
			}
		}
	}
	return nil
}

// resolve returns the value of an argument for its type, and a list when it is one.
func (in values) resolve(a arg) (row.Value, error) {
	if a.param == "" {
		return a.value, nil
	}
	return in.value(a, in[a.param])
}

func (in values) value(a arg, raw json.RawMessage) (row.Value, error) {
	v, err := row.ParseJSON(a.typ, raw)
	if err == nil && a.typ.Engine == row.SQLite {
		v, err = applyAffinity(v, a.typ)
	}
	if err != nil {
		return v, fmt.Errorf("%w: parameter %s: %w", ErrInput, a.param, err)
	}
	return v, nil
}

func (in values) list(a arg) ([]row.Value, bool, error) {
	raw := in[a.param]
	if string(raw) == "null" {
		return nil, false, nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		return nil, false, fmt.Errorf("%w: parameter %s: a list is expected", ErrInput, a.param)
	}
	var out []row.Value
	for _, item := range items {
		v, err := in.value(a, item)
		if err != nil {
			return nil, false, err
		}
		out = append(out, v)
	}
	return out, true, nil
}
