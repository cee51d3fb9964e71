package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/row"
)

const (
	// rowType is the name of a row's type in CEL.
	rowType = "tidewire.Row"
	// maxActors bounds the actors that a policy remembers.
	maxActors = 1024
)

// newPolicy makes a policy of an expression over actor and row. The columns of the table are typed; without a table the expression is only read.
//
// NULL is CEL's unknown, which has the logic of SQL's: what is compared with it is neither true nor false, and only true shows the row, whatever
// beside it could not be decided. has(row.c) asks for it.
func newPolicy(table *row.Table, text string) (live.Policy, error) {
	typ := cel.DynType
	var provider cel.EnvOption = func(e *cel.Env) (*cel.Env, error) { return e, nil }
	if table != nil {
		typ = cel.ObjectType(rowType)
		provider = func(e *cel.Env) (*cel.Env, error) {
			return cel.CustomTypeProvider(columns{e.CELTypeProvider(), table})(e)
		}
	}
	env, err := actorEnv(provider, cel.Variable("row", typ))
	if err != nil {
		return nil, err
	}
	compiled, issues := env.Parse(text)
	if issues.Err() == nil {
		if err := unreadable(compiled, table); err != nil {
			return nil, err
		}
		compiled, issues = env.Check(compiled)
	}
	if issues.Err() != nil {
		return nil, errors.New(issueText(issues))
	}
	if out := compiled.OutputType(); !out.IsExactType(cel.BoolType) && (table != nil || !out.IsExactType(cel.DynType)) {
		return nil, fmt.Errorf("the expression gives %s, want bool", out)
	}
	program, err := env.Program(compiled, cel.CostLimit(guardCost))
	if err != nil {
		return nil, err
	}
	known := &actors{known: map[string]Actor{}}
	return func(actor json.RawMessage, r live.PolicyRow) (bool, error) {
		a, err := known.read(actor)
		if err != nil {
			return false, err
		}
		return visible(program, policyVars{a, r})
	}, nil
}

// visible evaluates a policy. As for guards, a claim that the actor does not have gives nothing.
func visible(program cel.Program, vars policyVars) (bool, error) {
	out, _, err := program.Eval(vars)
	switch {
	case err != nil && strings.Contains(err.Error(), missing):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("policy: %w", err)
	case out == types.True:
		return true, nil
	case out == types.False, types.IsUnknown(out):
		return false, nil
	}
	return false, fmt.Errorf("policy: the expression gave %v, want a bool", out.Type())
}

// policyVars are the variables of a policy.
type policyVars struct {
	actor Actor
	row   live.PolicyRow
}

// ResolveName implements [cel.Activation].
func (v policyVars) ResolveName(name string) (any, bool) {
	switch name {
	case "actor":
		return v.actor, true
	case "row":
		return v.row, true
	}
	return nil, false
}

// Parent implements [cel.Activation].
func (v policyVars) Parent() cel.Activation { return nil }

// actors remembers actors by their JSON: a policy is asked about many rows for each.
type actors struct {
	mu    sync.Mutex // guards below
	known map[string]Actor
}

func (a *actors) read(raw json.RawMessage) (Actor, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if actor, ok := a.known[string(raw)]; ok {
		return actor, nil
	}
	var actor Actor
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &actor.Claims); err != nil {
			return actor, fmt.Errorf("policy: the actor: %w", err)
		}
	}
	switch id := actor.Claims["id"].(type) {
	case nil:
	case string:
		actor.ID = id
	default:
		return actor, errors.New("policy: the actor's id is not a text")
	}
	delete(actor.Claims, "id")
	if actor.Claims == nil {
		actor.Claims = map[string]any{}
	}
	if len(a.known) >= maxActors {
		clear(a.known)
	}
	a.known[string(raw)] = actor
	return actor, nil
}

// columns are the types of a table's columns.
type columns struct {
	types.Provider
	table *row.Table
}

// FindStructType implements [types.Provider].
func (c columns) FindStructType(name string) (*types.Type, bool) {
	if name == rowType {
		return types.NewTypeTypeWithParam(cel.ObjectType(rowType)), true
	}
	return c.Provider.FindStructType(name)
}

// FindStructFieldType implements [types.Provider].
func (c columns) FindStructFieldType(name, field string) (*types.FieldType, bool) {
	if name != rowType {
		return c.Provider.FindStructFieldType(name, field)
	}
	i := c.table.Column(field)
	if i < 0 {
		return nil, false
	}
	typ := c.table.Columns[i].Type
	out := celType(typ)
	if out == nil {
		return nil, false
	}
	get := func(target any) (row.Value, error) {
		r, ok := target.(live.PolicyRow)
		if !ok {
			return row.Value{}, fmt.Errorf("%T is no row", target)
		}
		if r.Table == c.table {
			return r.Row[i], nil
		}
		if v, ok := r.Value(field); ok { // the table was altered
			return v, nil
		}
		return row.Value{}, fmt.Errorf("column %s is gone", field)
	}
	return &types.FieldType{
		Type: out,
		IsSet: func(target any) bool {
			v, err := get(target)
			return err != nil || !v.IsNull() // the error comes with the value
		},
		GetFrom: func(target any) (any, error) {
			v, err := get(target)
			if err != nil {
				return nil, err
			}
			if v.IsNull() {
				return types.NewUnknown(0, nil), nil
			}
			if out, ok := celValue(typ, v); ok {
				return out, nil
			}
			return nil, fmt.Errorf("column %s holds a value of kind %s that CEL does not have for %s", field, v.Kind(), out)
		},
	}, true
}

// celType is the type of a column in CEL, nil for what it cannot hold exactly. A column of SQLite that may hold anything is dyn.
func celType(t row.Type) *cel.Type {
	switch t.Kind {
	case row.Bool:
		return cel.BoolType
	case row.Int:
		return cel.IntType
	case row.Float:
		return cel.DoubleType
	case row.Text, row.UUID, row.Enum:
		return cel.StringType
	case row.Timestamp, row.TimestampTZ, row.Date:
		return cel.TimestampType
	case row.Bytes:
		return cel.BytesType
	case row.Dynamic:
		return cel.DynType
	}
	return nil
}

// celValue is a value in CEL; ok is false if it is none of the column's type: SQLite keeps anything anywhere.
func celValue(t row.Type, v row.Value) (out ref.Val, ok bool) {
	kind := v.Kind()
	switch {
	case kind == t.Kind:
	case t.Kind == row.Bool && kind == row.Int: // SQLite
		return types.Bool(v.Int() == 1), v.Int() == 0 || v.Int() == 1
	case t.Kind != row.Dynamic:
		return nil, false
	}
	switch kind {
	case row.Bool:
		return types.Bool(v.Bool()), true
	case row.Int:
		return types.Int(v.Int()), true
	case row.Float:
		return types.Double(v.Float()), true
	case row.Text, row.Enum:
		return types.String(v.Text()), true
	case row.UUID:
		return types.String(v.String()), true
	case row.Bytes:
		return types.Bytes(v.Text()), true
	case row.Timestamp, row.TimestampTZ:
		return types.Timestamp{Time: v.Time()}, v.Int() != row.Infinity && v.Int() != row.NegInfinity
	case row.Date:
		const day = 86_400_000_000 // microseconds
		days := v.Int()
		if days < math.MinInt64/day || days > math.MaxInt64/day {
			return nil, false
		}
		return types.Timestamp{Time: row.TimestampValue(days * day).Time()}, true
	}
	return nil, false
}

// unreadable reports a column that an expression names and cannot read.
func unreadable(parsed *cel.Ast, table *row.Table) (err error) {
	if table == nil {
		return nil
	}
	ast.PostOrderVisit(parsed.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.SelectKind || err != nil {
			return
		}
		s := e.AsSelect()
		if of := s.Operand(); of.Kind() != ast.IdentKind || of.AsIdent() != "row" {
			return
		}
		switch i := table.Column(s.FieldName()); {
		case i < 0:
			err = fmt.Errorf("row.%s: table %s has no such column", s.FieldName(), table.Name)
		case celType(table.Columns[i].Type) == nil:
			err = fmt.Errorf("row.%s: CEL has no exact values of type %s; compare the column in visible", s.FieldName(), table.Columns[i].Type.Kind)
		}
	}))
	return err
}
