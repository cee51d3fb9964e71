package tidewire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/wire"
)

// Actor is who a connection is.
type Actor struct {
	// ID identifies the actor. Zero means anonymous.
	ID string
	// Claims are what is known of the actor: the claims of a token, or what the authenticator found.
	Claims map[string]any
}

// Action is what an actor wants to do on a channel.
type Action string

// The actions.
const (
	ActionSubscribe Action = "subscribe"
	ActionPublish   Action = "publish"
	ActionPresence  Action = "presence" // join or see the roster
)

// Access is a question to a [Guard].
type Access struct {
	Actor   Actor
	Action  Action
	Channel string
	// Params are the parts of the channel's name at the {names} of the pattern.
	Params map[string]string
}

// ErrDenied is a guard's no. It may be wrapped.
var ErrDenied = errors.New("tidewire: denied")

// Guard decides. Nil means yes, [ErrDenied] no; any other error means that it could not decide: a new subscription is refused then, and one that stands is kept. It
// must respect ctx, which ends after Options.CommandTimeout. It may be called from many goroutines.
type Guard func(ctx context.Context, a Access) error

// Public is a guard that allows everything to everyone.
func Public(context.Context, Access) error { return nil }

// ReadOnly is a guard that allows everyone to subscribe and to see the roster.
func ReadOnly(_ context.Context, a Access) error {
	if a.Action == ActionPublish {
		return ErrDenied
	}
	return nil
}

// Policy says what happens to a message for a subscriber that is too slow.
type Policy string

// The policies.
const (
	// PolicyDropNewest drops what does not fit, and closes with 1013 after Limits.DroppedFrames without having caught up. It is the default.
	PolicyDropNewest Policy = "drop-newest"
	// PolicyDropOldest drops the oldest waiting message of the channel.
	PolicyDropOldest Policy = "drop-oldest"
	// PolicyDisconnect closes the connection with 1013.
	PolicyDisconnect Policy = "disconnect"
	// PolicyCatchUp stops live delivery to the subscriber and replays from the history what it missed, as soon as it has read what waits for it. It is the default of channels with history.
	PolicyCatchUp Policy = "catch-up"
	// PolicyLatest keeps only the newest message of each key.
	PolicyLatest Policy = "latest"
)

func (p Policy) hub() hub.Policy {
	switch p {
	case PolicyDropOldest:
		return hub.DropOldest
	case PolicyDisconnect:
		return hub.Disconnect
	case PolicyCatchUp:
		return hub.CatchUp
	case PolicyLatest:
		return hub.Latest
	}
	return hub.DropNewest
}

// ChannelOptions declares channels.
type ChannelOptions struct {
	// Guard decides who may do what. Nil denies everything to clients; the application can still publish.
	Guard Guard
	// Presence keeps a roster.
	Presence bool
	// Policy is for slow subscribers. Zero means PolicyCatchUp with History, and PolicyDropNewest without.
	Policy Policy
	// History keeps the last messages, so that none is missed by who comes back in time. Nil keeps none.
	History *History
}

// rule is one declaration.
type rule struct {
	pattern  string
	segments []segment
	opts     ChannelOptions
}

// segment is one part of a pattern: a literal, or a literal beginning and then anything, which may have a name.
type segment struct {
	literal string
	open    bool   // more may follow
	name    string // of what follows
	rest    bool   // **
}

// ruleSet is the declarations in order.
type ruleSet struct {
	mu    sync.RWMutex // guards rules
	rules []*rule
}

// Channel declares the channels that match a pattern: segments joined by dots, where {name} or * stands for a segment, or for the rest of one ("process:{id}"), and a last ** for one or more segments. The first declaration that matches a channel counts.
func (n *Node) Channel(pattern string, opts ChannelOptions) error {
	segments, err := parsePattern(pattern)
	if err != nil {
		return &wire.Error{Code: wire.CodeConfigInvalid, Message: err.Error()}
	}
	if opts.History != nil {
		opts.History = new(opts.History.withDefaults())
	}
	switch opts.Policy {
	case "":
		opts.Policy = PolicyDropNewest
		if opts.History != nil {
			opts.Policy = PolicyCatchUp
		}
	case PolicyDropNewest, PolicyDropOldest, PolicyDisconnect:
	case PolicyCatchUp:
		if opts.History == nil {
			return wire.Errorf(wire.CodeConfigInvalid, "channel %q: the policy catch-up needs a history to catch up from", pattern)
		}
	case PolicyLatest:
		if opts.History != nil {
			return wire.Errorf(wire.CodeConfigInvalid, "channel %q: the policy latest leaves messages out, and a history promises them all", pattern)
		}
	default:
		return wire.Errorf(wire.CodeConfigInvalid, "channel %q: unknown policy %q", pattern, opts.Policy)
	}
	return n.declare(&n.rules, "channel", &rule{pattern, segments, opts})
}

// declare adds a declaration.
func (n *Node) declare(rs *ruleSet, what string, d *rule) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.rules {
		if r.pattern == d.pattern {
			return wire.Errorf(wire.CodeConfigInvalid, "%s %q is declared twice", what, d.pattern)
		}
		if covers(r.segments, d.segments) {
			n.log.Warn("a declaration of a "+what+" never counts: an earlier one matches all that it matches", "pattern", d.pattern, "earlier", r.pattern)
		}
	}
	rs.rules = append(rs.rules, d)
	return nil
}

func parsePattern(pattern string) ([]segment, error) {
	parts := strings.Split(pattern, ".")
	segments := make([]segment, len(parts))
	names := map[string]bool{}
	for i, part := range parts {
		if part == "**" {
			if i != len(parts)-1 {
				return nil, fmt.Errorf("channel pattern %q: ** must be last", pattern)
			}
			segments[i] = segment{rest: true}
			continue
		}
		s := segment{literal: part}
		if literal, ok := strings.CutSuffix(part, "*"); ok {
			s = segment{literal: literal, open: true}
		} else if literal, name, ok := strings.Cut(part, "{"); ok {
			name, closed := strings.CutSuffix(name, "}")
			if !closed || !wire.ValidChannel(name) || names[name] {
				return nil, fmt.Errorf("channel pattern %q: bad or repeated parameter in %q", pattern, part)
			}
			names[name] = true
			s = segment{literal: literal, open: true, name: name}
		}
		if s.literal == "" && !s.open || s.literal != "" && !wire.ValidChannel(s.literal) {
			return nil, fmt.Errorf("channel pattern %q: bad segment %q", pattern, part)
		}
		segments[i] = s
	}
	return segments, nil
}

// covers reports whether a matches every channel that b matches.
func covers(a, b []segment) bool {
	for i, s := range a {
		switch {
		case i == len(b):
			return false
		case s.rest:
			return true
		case b[i].rest, !s.covers(b[i]):
			return false
		}
	}
	return len(a) == len(b)
}

func (s segment) covers(o segment) bool {
	if !s.open {
		return !o.open && s.literal == o.literal
	}
	return strings.HasPrefix(o.literal, s.literal) && (o.open || len(o.literal) > len(s.literal))
}

// match returns the rule for a channel with the parameters, or nil.
func (rs *ruleSet) match(channel string) (*rule, map[string]string) {
	rs.mu.RLock()
	defer rs.mu.RUnlock()
	for _, r := range rs.rules {
		if params, ok := r.match(channel); ok {
			return r, params
		}
	}
	return nil, nil
}

func (r *rule) match(channel string) (map[string]string, bool) {
	var params map[string]string
	rest, more := channel, true
	for _, s := range r.segments {
		if !more {
			return nil, false
		}
		if s.rest {
			return params, true
		}
		var part string
		part, rest, more = strings.Cut(rest, ".")
		value, ok := strings.CutPrefix(part, s.literal)
		if !ok || s.open == (value == "") {
			return nil, false
		}
		if s.name != "" {
			if params == nil {
				params = map[string]string{}
			}
			params[s.name] = value
		}
	}
	return params, !more
}

// allow asks the guard of a channel. The error is an [*wire.Error]: TOPIC_FORBIDDEN for a denial, something else for a failure to decide.
func (n *Node) allow(ctx context.Context, actor Actor, channel string, actions ...Action) (*rule, error) {
	return n.ask(ctx, &n.rules, "channel", actor, channel, actions...)
}

// ask asks the guard of what has a name.
func (n *Node) ask(ctx context.Context, rs *ruleSet, what string, actor Actor, channel string, actions ...Action) (*rule, error) {
	r, params := rs.match(channel)
	if r == nil {
		return nil, wire.Errorf(wire.CodeTopicForbidden, "no declaration allows this %s", what)
	}
	if r.opts.Guard == nil {
		return nil, wire.Errorf(wire.CodeTopicForbidden, "the %s is not open to clients", what)
	}
	if err := n.askGuard(ctx, r.opts.Guard, what, Access{Actor: actor, Channel: channel, Params: params}, actions...); err != nil {
		return nil, err
	}
	return r, nil
}

// askGuard asks a guard about actions.
func (n *Node) askGuard(ctx context.Context, guard Guard, what string, a Access, actions ...Action) error {
	ctx, cancel := context.WithTimeout(ctx, n.opts.CommandTimeout)
	defer cancel()
	for _, action := range actions {
		a.Action = action
		err := guard(ctx, a)
		switch {
		case err == nil:
		case errors.Is(err, ErrDenied):
			return wire.Errorf(wire.CodeTopicForbidden, "the guard does not allow %s", action)
		case errors.Is(err, context.DeadlineExceeded):
			n.stats.guardFailures.Add(1)
			n.log.Warn("guard timed out", what, a.Channel, "action", action)
			return &wire.Error{Code: wire.CodeTimeout, Message: "the guard did not answer in time", Retry: retryLater, Err: err}
		default:
			n.stats.guardFailures.Add(1)
			n.log.Error("guard failed", what, a.Channel, "action", action, "error", err)
			return &wire.Error{Code: wire.CodeGuardFailed, Message: "the guard could not decide", Retry: retryLater, Err: err}
		}
	}
	return nil
}

// tenantCounts holds the subscriptions of each tenant that has one.
type tenantCounts struct {
	mu sync.Mutex // guards m
	m  map[string]int
}

func (t *tenantCounts) take(tenant string, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[tenant] >= limit {
		return false
	}
	if t.m == nil {
		t.m = map[string]int{}
	}
	t.m[tenant]++
	return true
}

// release gives a place back. The empty tenant has none.
func (t *tenantCounts) release(tenant string) {
	if tenant == "" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m[tenant]--; t.m[tenant] <= 0 {
		delete(t.m, tenant)
	}
}

func encodeData(data any) (json.RawMessage, error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeDataInvalid, Message: "data cannot be encoded as JSON", Err: err}
	}
	if err := wire.CheckShape(raw); err != nil {
		return nil, wire.Errorf(wire.CodeDataInvalid, "data %v", err)
	}
	return raw, nil
}
