package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"

	"github.com/tidewire/tidewire"
)

const (
	// guardCost bounds the evaluation of one guard or policy, in the units of CEL: about one for each operation and ten characters.
	guardCost = 100_000
	// guardBytes bounds an expression.
	guardBytes = 8 << 10
	// actorType is the name of Actor in CEL.
	actorType = "tidewire.Actor"
)

// Actor is what a guard or a policy sees of who asks. It is exported for CEL alone.
type Actor struct {
	ID     string         `cel:"id"`
	Claims map[string]any `cel:"claims"`
}

// actorEnv is what guards and policies have in common.
func actorEnv(more ...cel.EnvOption) (*cel.Env, error) {
	return cel.NewEnv(append([]cel.EnvOption{
		ext.NativeTypes(reflect.TypeFor[Actor](), ext.ParseStructTags(true), types.NativeTypeAlias(actorType)),
		cel.Variable("actor", cel.ObjectType(actorType)),
		cel.OptionalTypes(),
		ext.Strings(),
		cel.CrossTypeNumericComparisons(true),
		cel.ParserExpressionSizeLimit(guardBytes),
	}, more...)...)
}

// guardEnv is the language of guards.
func guardEnv() (*cel.Env, error) {
	return actorEnv(
		cel.Variable("action", cel.StringType),
		cel.Variable("channel", cel.StringType),
		cel.Variable("params", cel.MapType(cel.StringType, cel.StringType)),
	)
}

// newGuard makes the guard of a channel's declaration.
func newGuard(env *cel.Env, pattern, text string) (tidewire.Guard, error) {
	switch strings.TrimSpace(text) {
	case "public":
		return tidewire.Public, nil
	case "readonly":
		return tidewire.ReadOnly, nil
	}
	compiled, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, errors.New(issueText(issues))
	}
	if out := compiled.OutputType(); !out.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("the expression gives %s, want bool", out)
	}
	if name, ok := unknownParam(compiled, pattern); ok {
		return nil, fmt.Errorf("params.%s: the pattern has no {%s}", name, name)
	}
	program, err := env.Program(compiled, cel.CostLimit(guardCost), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, a tidewire.Access) error { return decide(ctx, program, a) }, nil
}

// missing is what CEL says of a key that a map does not have.
const missing = "no such key"

// decide evaluates a guard. False is a denial, and so is a claim that the actor does not have: a fresh token without it withdraws what it gave. Any other error is a failure to decide.
func decide(ctx context.Context, program cel.Program, a tidewire.Access) error {
	claims, params := a.Actor.Claims, a.Params
	if claims == nil {
		claims = map[string]any{}
	}
	if params == nil {
		params = map[string]string{}
	}
	out, _, err := program.ContextEval(ctx, map[string]any{
		"actor":   Actor{ID: a.Actor.ID, Claims: claims},
		"action":  string(a.Action),
		"channel": a.Channel,
		"params":  params,
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && strings.Contains(err.Error(), missing):
		return fmt.Errorf("guard: %w: %w", tidewire.ErrDenied, err)
	case err != nil:
		return fmt.Errorf("guard: %w", err)
	case out == types.True:
		return nil
	case out == types.False:
		return tidewire.ErrDenied
	}
	return fmt.Errorf("guard: the expression gave %v, want a bool", out.Type())
}

// issueText names where the errors of an expression are.
func issueText(issues *cel.Issues) string {
	var texts []string
	for _, e := range issues.Errors() {
		texts = append(texts, fmt.Sprintf("line %d, column %d: %s", e.Location.Line(), e.Location.Column()+1, e.Message))
	}
	return strings.Join(texts, "; ")
}

// unknownParam returns a parameter that an expression reads and the pattern does not have: it would fail for every channel.
func unknownParam(compiled *cel.Ast, pattern string) (name string, found bool) {
	var known []string
	for segment := range strings.SplitSeq(pattern, ".") {
		if _, param, ok := strings.Cut(segment, "{"); ok {
			known = append(known, strings.TrimSuffix(param, "}"))
		}
	}
	ast.PostOrderVisit(compiled.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() != ast.SelectKind {
			return
		}
		s := e.AsSelect()
		if of := s.Operand(); of.Kind() == ast.IdentKind && of.AsIdent() == "params" && !slices.Contains(known, s.FieldName()) {
			name, found = s.FieldName(), true
		}
	}))
	return name, found
}
