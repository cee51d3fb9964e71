package tidewire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/wire"
)

// The HTTP face of package object. A request is an event on its object, and ends with the client. What waits, streams or is held takes a place of Limits.ObjectWaits, and ends
// when the node drains. A quarter of the places is for backends alone, and one client has at most Limits.ObjectWaitsPerClient.

// objects are the node's durable objects.
type objects struct {
	host  *object.Host
	rules ruleSet
	ctx   context.Context // ends when the node drains
	stop  context.CancelFunc

	places objectPlaces

	mu   sync.Mutex       // guards held
	held map[string]*held // by handle
}

// ObjectOptions declares objects.
type ObjectOptions struct {
	// Guard decides what clients may do: ActionSubscribe is to wait, to read and to follow the log, ActionPublish to publish, to append, to trim the log and
	// to close. Access.Channel is the object's id. Nil denies everything to clients; backends with an API key may do everything.
	Guard Guard
}

// Object declares the objects whose ids match a pattern, as [Node.Channel] does channels.
func (n *Node) Object(pattern string, opts ObjectOptions) error {
	segments, err := parsePattern(pattern)
	if err != nil {
		return &wire.Error{Code: wire.CodeConfigInvalid, Message: err.Error()}
	}
	return n.declare(&n.objects.rules, "object", &rule{pattern, segments, ChannelOptions{Guard: opts.Guard}})
}

// Objects returns the host of the node's objects, for the application's own events.
func (n *Node) Objects() *object.Host { return n.objects.host }

func (n *Node) initObjects() error {
	o := &n.objects
	o.host = n.opts.Objects
	if o.host == nil {
		host, err := object.NewHost(object.Options{Log: n.opts.Streams})
		if err != nil {
			return err
		}
		o.host = host
	}
	o.ctx, o.stop = context.WithCancel(context.Background())
	o.held = map[string]*held{}
	gauge := func(name, help string, f func(object.Stats) int) {
		n.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(f(o.host.Stats())) }))
	}
	counter := func(name, help string, f func(object.Stats) uint64) {
		n.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(f(o.host.Stats())) }))
	}
	gauge("tidewire_objects", "Objects with a running event.", func(s object.Stats) int { return s.Objects })
	gauge("tidewire_object_events", "Running events of objects.", func(s object.Stats) int { return s.Events })
	gauge("tidewire_object_subscriptions", "Subscriptions of channels in objects.", func(s object.Stats) int { return s.Subscriptions })
	gauge("tidewire_object_waiters", "Waits for a message of an object.", func(s object.Stats) int { return s.Waiters })
	gauge("tidewire_object_waits", "Streams, waits and held subscriptions over HTTP.", func(object.Stats) int { return o.places.count() })
	gauge("tidewire_object_backlog_bytes", "What waits for subscriptions of channels in objects.", func(s object.Stats) int { return int(s.BacklogBytes) })
	counter("tidewire_object_publications_total", "Messages to channels in objects that had a subscription.", func(s object.Stats) uint64 { return s.Published })
	counter("tidewire_object_cut_total", "Subscriptions in objects cut off for their backlog.", func(s object.Stats) uint64 { return s.Cut })
	return nil
}

func (n *Node) objectRoutes() []route {
	const at = "/v1/objects/{object}"
	return []route{
		{http.MethodPost, at + "/channels/{channel}/messages", n.onObject(ActionPublish, n.serveObjectPublish), false},
		{http.MethodGet, at + "/channels/{channel}/messages", n.onObject(ActionSubscribe, n.serveObjectWait), false},
		{http.MethodPost, at + "/channels/{channel}/subscriptions", n.onObject(ActionSubscribe, n.serveObjectSubscribe), false},
		{http.MethodGet, at + "/channels/{channel}", n.onObject(ActionSubscribe, n.serveObjectCount), false},
		{http.MethodDelete, at + "/channels/{channel}", n.onObject(ActionPublish, n.serveObjectClose), false},
		{http.MethodGet, at + "/subscriptions/{subscription}", n.onObject(ActionSubscribe, n.serveObjectPoll), false},
		{http.MethodDelete, at + "/subscriptions/{subscription}", n.onObject(ActionSubscribe, n.serveObjectCancel), false},
		{http.MethodPost, at + "/log", n.onObject(ActionPublish, n.serveObjectAppend), false},
		{http.MethodGet, at + "/log", n.onObject(ActionSubscribe, n.serveObjectLog), false},
		{http.MethodDelete, at + "/log", n.onObject(ActionPublish, n.serveObjectTrim), false},
	}
}

// caller is who makes a request about an object.
type caller struct {
	backend bool
	actor   string
	client  string    // who it counts as: its API key, its actor, or where it comes from
	expires time.Time // of the grant; zero: never
}

// address is what an anonymous client counts as: its IP address, of which a network has many if it is IPv6.
func address(r *http.Request) string {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "address " + r.RemoteAddr
	}
	ip := a.Addr().Unmap().WithZone("")
	if ip.Is6() {
		ip = netip.PrefixFrom(ip, 64).Masked().Addr()
	}
	return "address " + ip.String()
}

// objectHandler answers a request about an object, or returns the error to answer.
type objectHandler func(w http.ResponseWriter, r *http.Request, id string, c caller) error

// onObject lets those through who may.
func (n *Node) onObject(action Action, handle objectHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("object")
		if !wire.ValidChannel(id) {
			n.problem(w, wire.Errorf(wire.CodeQueryInvalid, "an object's id is segments of A-Z a-z 0-9 _ - : @ ~ = joined by dots, at most %d bytes", wire.MaxChannelBytes))
			return
		}
		c, err := n.objectCaller(r, id, action)
		if err == nil {
			err = handle(w, r, id, c)
		}
		if err != nil && r.Context().Err() == nil { // otherwise there is nobody to tell
			n.problem(w, n.objectError(err))
		}
	}
}

// answering gives an answer WriteTimeout from now on: the server's own limit counts from the request, and may be over. A server that cannot do it has no limit.
func (n *Node) answering(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(n.opts.WriteTimeout))
}

// objectCaller finds out who asks, a backend or a client, and asks the guard about a client.
func (n *Node) objectCaller(r *http.Request, id string, action Action) (caller, error) {
	if key, presented := auth.Token(r); presented && n.opts.Backend != nil {
		err := n.backend(r)
		if err == nil {
			return caller{backend: true, client: "key " + key}, nil
		}
		if n.opts.Authenticate == nil || !errors.Is(err, &wire.Error{Code: wire.CodeAPIKeyRequired}) {
			return caller{}, err
		}
	}
	if !hub.OriginAllowed(r, n.opts.AllowedOrigins) {
		return caller{}, wire.Errorf(wire.CodeOriginForbidden, "pages of this origin may not use objects")
	}
	var grant Grant
	if n.opts.Authenticate != nil {
		g, err := n.authenticate(r)
		switch {
		case err != nil:
			n.log.Error("authentication unavailable", "error", err)
			return caller{}, &wire.Error{Code: wire.CodeSocketAuthUnavailable, Message: "the credential could not be checked", Retry: spread(retryLater), Err: err}
		case g == nil || g.expired(time.Now()):
			return caller{}, wire.Errorf(wire.CodeSocketUnauthenticated, "the credential is missing, wrong or expired")
		}
		grant = *g
	}
	if err := n.allowObject(r.Context(), grant.Actor, id, action); err != nil {
		return caller{}, err
	}
	c := caller{actor: grant.Actor.ID, client: "actor " + grant.Actor.ID, expires: grant.ExpiresAt}
	if c.actor == "" {
		c.client = address(r)
	}
	return c, nil
}

// allowObject asks the guard of an object.
func (n *Node) allowObject(ctx context.Context, actor Actor, id string, action Action) error {
	_, err := n.ask(ctx, &n.objects.rules, "object", actor, id, action)
	return err
}

// objectError makes what a client may see of an error of package object or of the store.
func (n *Node) objectError(err error) error {
	var known *wire.Error
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, object.ErrText):
		return wire.Errorf(wire.CodeDataInvalid, "%v", err)
	case errors.Is(err, object.ErrChannels), errors.Is(err, object.ErrSubscriptions):
		return wire.Errorf(wire.CodeSubscriptionLimit, "%v", err)
	case errors.Is(err, object.ErrEnded), errors.Is(err, context.DeadlineExceeded):
		return &wire.Error{Code: wire.CodeTimeout, Message: "the request took longer than an event may", Retry: spread(retryLater), Err: err}
	case errors.Is(err, object.ErrViolation), errors.Is(err, stream.ErrInvalid):
		return wire.Errorf(wire.CodeQueryInvalid, "%v", err)
	}
	n.log.Error("an object's log failed", "error", err)
	return &wire.Error{Code: wire.CodeHistoryUnavailable, Message: "the log could not be read or written", Retry: spread(retryLater), Err: err}
}

// objectPlaces counts what waits, streams or is held.
type objectPlaces struct {
	mu      sync.Mutex // guards below
	all     int
	clients int            // those of clients
	of      map[string]int // those of each client that has one, by caller.client
}

func (p *objectPlaces) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all
}

// take takes a place for a caller, or says why not.
func (p *objectPlaces) take(c caller, limits Limits) (refused string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.all >= limits.ObjectWaits, !c.backend && p.clients >= limits.ObjectWaits-limits.ObjectWaits/4:
		return "the node has as many streams, waits and held subscriptions of objects as it may"
	case !c.backend && p.of[c.client] >= limits.ObjectWaitsPerClient:
		return fmt.Sprintf("this client has %d streams, waits and held subscriptions of objects, as many as it may", p.of[c.client])
	}
	p.all++
	if c.backend {
		return ""
	}
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.clients++
	p.of[c.client]++
	return ""
}

func (p *objectPlaces) free(c caller) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if c.backend {
		return
	}
	p.clients--
	if p.of[c.client]--; p.of[c.client] == 0 {
		delete(p.of, c.client)
	}
}

// objectPlace takes a place among what waits, streams or is held; free gives it back.
func (n *Node) objectPlace(c caller) (free func(), err error) {
	o := &n.objects
	if o.ctx.Err() != nil {
		return nil, errDraining()
	}
	if refused := o.places.take(c, n.opts.Limits); refused != "" {
		return nil, &wire.Error{Code: wire.CodeSubscriptionLimit, Message: refused, Retry: spread(5 * time.Second)}
	}
	return func() { o.places.free(c) }, nil
}

func errDraining() error {
	return &wire.Error{Code: wire.CodeDraining, Message: "the node is going away", Retry: spread(retryLater)}
}

// within returns a context that also ends when the node drains, and when the caller's grant expires.
func (o *objects) within(ctx context.Context, c caller) (context.Context, context.CancelFunc) {
	var cancel context.CancelFunc
	if c.expires.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, c.expires)
	}
	stop := context.AfterFunc(o.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// textBody reads {"text": …}. Escapes may make six bytes of one.
func textBody(w http.ResponseWriter, r *http.Request) (string, error) {
	var body struct {
		Text json.RawMessage `json:"text"`
	}
	if err := decodeBody(w, r, 6*object.MaxTextBytes+1024, &body); err != nil {
		return "", err
	}
	var text *string
	switch err := json.Unmarshal(body.Text, &text); {
	case err != nil || text == nil:
		return "", wire.Errorf(wire.CodeBodyInvalid, "text is missing, or not a text")
	case !utf8.Valid(body.Text), halfPair(body.Text): // decoding would replace it
		return "", wire.Errorf(wire.CodeDataInvalid, "text is not UTF-8, or has one half of a surrogate pair")
	}
	return *text, nil
}

// halfPair reports whether a JSON string, which is well-formed, escapes a surrogate that is not one of a pair.
func halfPair(raw []byte) bool {
	surrogate := func(i int) rune { // at i, or zero
		if len(raw) < i+6 || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0
		}
		v, _ := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		if r := rune(v); utf16.IsSurrogate(r) {
			return r
		}
		return 0
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if first := surrogate(i); first != 0 {
			if utf16.DecodeRune(first, surrogate(i+6)) == utf8.RuneError {
				return true
			}
			i += 10
		}
		i++ // what is escaped
	}
	return false
}

// number reads a parameter of the query.
func number(q url.Values, name string, fallback, most uint64) (uint64, error) {
	text := q.Get(name)
	if text == "" {
		return fallback, nil
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil || v > most {
		return 0, wire.Errorf(wire.CodeQueryInvalid, "%s is a whole number from 0 to %d", name, most)
	}
	return v, nil
}

// parameters returns those of the address, if there are none but those with the names.
func parameters(r *http.Request, names ...string) (url.Values, error) {
	q := r.URL.Query()
	for name := range q {
		if !slices.Contains(names, name) {
			return nil, wire.Errorf(wire.CodeQueryInvalid, "unknown parameter %q", name)
		}
	}
	return q, nil
}

// serveObjectPublish is POST …/channels/{channel}/messages.
func (n *Node) serveObjectPublish(w http.ResponseWriter, r *http.Request, id string, _ caller) error {
	text, err := textBody(w, r)
	if err != nil {
		return err
	}
	return n.objects.host.Do(r.Context(), id, func(_ context.Context, e *object.Event) error {
		delivered, err := e.Publish(r.PathValue("channel"), text)
		if err == nil {
			n.answer(w, map[string]int{"delivered": delivered})
		}
		return err
	})
}

// serveObjectCount is GET …/channels/{channel}.
func (n *Node) serveObjectCount(w http.ResponseWriter, r *http.Request, id string, _ caller) error {
	return n.objects.host.Do(r.Context(), id, func(_ context.Context, e *object.Event) error {
		count, err := e.SubscriberCount(r.PathValue("channel"))
		if err == nil {
			n.answer(w, map[string]any{"channel": r.PathValue("channel"), "subscribers": count})
		}
		return err
	})
}

// serveObjectClose is DELETE …/channels/{channel}.
func (n *Node) serveObjectClose(w http.ResponseWriter, r *http.Request, id string, _ caller) error {
	q, err := parameters(r, "reason")
	if err != nil {
		return err
	}
	return n.objects.host.Do(r.Context(), id, func(_ context.Context, e *object.Event) error {
		closed, err := e.CloseChannel(r.PathValue("channel"), q.Get("reason"))
		if err == nil {
			n.answer(w, map[string]int{"closed": closed})
		}
		return err
	})
}
