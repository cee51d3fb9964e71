package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tidewire/tidewire"
)

func TestS03_GuardsInCEL(t *testing.T) {
	t.Parallel()
	env, err := guardEnv()
	if err != nil {
		t.Fatal(err)
	}
	alice := tidewire.Actor{ID: "alice", Claims: map[string]any{"org": "o1", "level": 3.0, "roles": []any{"editor"}, "nested": map[string]any{"x": true}}}
	const allow, deny, fail = "allow", "deny", "fail"
	for _, c := range []struct {
		guard, pattern, channel string
		actor                   tidewire.Actor
		action                  tidewire.Action
		params                  map[string]string
		want                    string
	}{
		{guard: "public", want: allow},
		{guard: " public ", action: tidewire.ActionPublish, want: allow},
		{guard: "readonly", action: tidewire.ActionSubscribe, want: allow},
		{guard: "readonly", action: tidewire.ActionPublish, want: deny},
		{guard: "true", want: allow},
		{guard: "false", want: deny},
		{guard: `actor.id != ""`, want: deny},
		{guard: `actor.id != ""`, actor: alice, want: allow},
		{guard: "actor.id == params.id", pattern: "user.{id}", params: map[string]string{"id": "alice"}, actor: alice, want: allow},
		{guard: "actor.id == params.id", pattern: "user.{id}", params: map[string]string{"id": "bob"}, actor: alice, want: deny},
		{guard: "actor.id == params.id", pattern: "user:{id}", params: map[string]string{"id": "alice"}, actor: alice, want: allow},
		{guard: `action == "subscribe"`, action: tidewire.ActionSubscribe, want: allow},
		{guard: `action == "subscribe"`, action: tidewire.ActionPublish, want: deny},
		{guard: `channel.startsWith("a.")`, channel: "a.b", want: allow},
		{guard: `channel.startsWith("a.")`, channel: "b.b", want: deny},
		{guard: `actor.claims.org == "o1"`, actor: alice, want: allow},
		{guard: `actor.claims.org == "o2"`, actor: alice, want: deny},
		{guard: `actor.claims.level >= 3`, actor: alice, want: allow},
		{guard: `"editor" in actor.claims.roles`, actor: alice, want: allow},
		{guard: `actor.claims.nested.x == true`, actor: alice, want: allow},
		// A claim that is not there gives nothing. What cannot be decided for another reason is no denial.
		{guard: `actor.claims.org == "o1"`, want: deny},
		{guard: `actor.claims.missing == "o1"`, actor: alice, want: deny},
		{guard: `actor.claims["missing"] == "o1"`, actor: alice, want: deny},
		{guard: `actor.claims.nested.y == true`, actor: alice, want: deny},
		{guard: `actor.claims.roles.x == 1`, actor: alice, want: fail},
		{guard: `1 / (2 - 2) == 1`, want: fail},
		{guard: `has(actor.claims.org) && actor.claims.org == "o1"`, want: deny},
		{guard: `actor.claims[?"org"].orValue("") == "o1"`, want: deny},
		{guard: `actor.claims[?"org"].orValue("") == "o1"`, actor: alice, want: allow},
		{guard: `[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, a+b+c+d+e > 0)))))`, want: fail},
	} {
		guard, err := newGuard(env, c.pattern, c.guard)
		if err != nil {
			t.Errorf("%s: %v", c.guard, err)
			continue
		}
		err = guard(t.Context(), tidewire.Access{Actor: c.actor, Action: c.action, Channel: c.channel, Params: c.params})
		got := fail
		switch {
		case err == nil:
			got = allow
		case errors.Is(err, tidewire.ErrDenied):
			got = deny
		}
		if got != c.want {
			t.Errorf("%s for %q: %s (%v), want %s", c.guard, c.actor.ID, got, err, c.want)
		}
	}
}

func TestS05_GuardThatTakesTooLongIsAFailure(t *testing.T) {
	t.Parallel()
	env, err := guardEnv()
	if err != nil {
		t.Fatal(err)
	}
	guard, err := newGuard(env, "a", "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, a+b > 0))")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	if err := guard(ctx, tidewire.Access{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("guard = %v", err)
	}
	// And none takes long.
	start := time.Now()
	guard, err = newGuard(env, "a", strings.Repeat("[1,2,3,4,5,6,7,8,9,0].all(x, ", 9)+"true"+strings.Repeat(")", 9))
	if err != nil {
		t.Fatal(err)
	}
	if err := guard(t.Context(), tidewire.Access{}); err == nil || errors.Is(err, tidewire.ErrDenied) {
		t.Errorf("guard = %v", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestConfig_WrongGuardsAreNamedWithTheirPlace(t *testing.T) {
	t.Parallel()
	for guard, want := range map[string]string{
		`actor.id ==`:             `channels[1] "org.{org}": guard: line 1, column 12: Syntax error`,
		`actor.name == "x"`:       `line 1, column 6: undefined field 'name'`,
		`user.id == "x"`:          `line 1, column 1: undeclared reference to 'user'`,
		`actor.id == 3`:           `line 1, column 10: found no matching overload`,
		`actor.claims.admin`:      `the expression gives dyn, want bool`,
		`actor.id`:                `the expression gives string, want bool`,
		`params.ogr == actor.id`:  `params.ogr: the pattern has no {ogr}`,
		`publik`:                  `undeclared reference to 'publik'`,
		"action == 'x' &&\n  foo": `line 2, column 3: undeclared reference to 'foo'`,
	} {
		yaml := "channels:\n  - {pattern: a, guard: public}\n  - pattern: org.{org}\n    guard: |-\n      " + strings.ReplaceAll(guard, "\n", "\n      ") + "\n"
		_, _, err := tw(t, nil, "serve", "--print-config", "-c", writeConfig(t, yaml))
		if err == nil {
			t.Errorf("%s: no error", guard)
			continue
		}
		wantConfigError(t, err, want, `channels[1] "org.{org}"`)
	}
}
