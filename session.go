package tidewire

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/internal/budget"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/wire"
)

// retryLater is the delay announced where nothing better is known.
const retryLater = time.Second

// session serves one native connection. The hub calls Message on the connection's event loop; what may wait is done in a lane for each channel.
type session struct {
	node *Node
	conn *hub.Conn

	// Owned by the event loop.
	budget budget.Frames
	client string // the secret of hello

	mu      sync.Mutex // guards below
	granted *Grant
	id      string // public id of the session; empty before hello
	member  string // id in rosters
	subs    []*subscription
	queries []*querySubscription
}

// subscription is one channel of a session. Its place is taken when the command is read, before anything is waited for.
type subscription struct {
	sid     string
	channel string
	tenant  string // in whose count it is, if not empty

	// Owned by the channel's lane.
	live   bool
	log    *history // of a channel with history
	acks   bool     // it acknowledges
	room   *room    // set while it gets the roster
	joined bool     // in the roster
	snapAt time.Time
	owed   bool // a snapshot

	beat time.Time // last repetition; guarded by session.mu
}

func (s *session) grant() *Grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted
}

func (s *session) actor() Actor {
	if g := s.grant(); g != nil {
		return g.Actor
	}
	return Actor{}
}

// identity returns the public id of the session and the id of its member.
func (s *session) identity() (id, member string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id, s.member
}

func (s *session) send(payload []byte) { _ = s.conn.Send(payload) } // a full queue closes the connection

func (s *session) refuse(c wire.Command, err error) {
	e := wire.AsError(err)
	if e.Code == wire.CodeInternal {
		s.node.log.Error("command failed", "type", c.Type, "error", e.Err)
	}
	s.node.stats.refuse(e.Code)
	s.send(wire.Refused(c, e).Encode())
}

// Message takes one frame. It runs on the event loop and does not wait.
func (s *session) Message(_ *hub.Conn, binary bool, data []byte) {
	n := s.node
	if ok, retry, stubborn := s.budget.Take(n.clock(), n.opts.Limits.FramesPerSecond, n.opts.Limits.FrameBurst); !ok {
		if stubborn {
			s.conn.Close(wire.CloseFrameRate, "frame rate")
			return
		}
		c, _ := wire.Decode(data, wire.Limits{}) // only to name what is refused; the next burst closes
		s.refuse(c.Named(), &wire.Error{Code: wire.CodeFrameRateLimit, Message: "more frames than the budget", Retry: retry})
		return
	}
	if binary {
		s.conn.Close(1003, "binary frames are reserved")
		return
	}
	c, err := wire.Decode(data, wire.Limits{PresenceBytes: n.opts.Limits.PresenceBytes, StateBytes: n.opts.Limits.StateBytes})
	if err == nil && c.Type != wire.TypeHello && s.client == "" {
		err = wire.Errorf(wire.CodeProtocolVersion, "the first message must be hello")
	}
	if err != nil {
		s.refuse(c, err)
		return
	}
	switch c.Type {
	case wire.TypeHello:
		err = s.hello(c)
	case wire.TypeSubscribe:
		if c.Query != "" {
			err = s.subscribeQuery(c)
		} else {
			err = s.subscribe(c)
		}
	case wire.TypeUnsubscribe:
		err = s.unsubscribe(c)
	case wire.TypePublish:
		err = s.inLane(c.Channel, c, s.publish)
	case wire.TypePresence:
		err = s.inLane(c.Channel, c, s.updatePresence)
	case wire.TypeState:
		err = s.inLane(c.Channel, c, s.setState)
	case wire.TypeAck:
		s.ack(c)
	case wire.TypeAuth:
		err = s.inLane("", c, s.reauthenticate) // "" is no channel
	}
	if err != nil {
		s.refuse(c, err)
	}
}

// inLane does a command after the earlier ones of the same lane, and refuses it if it fails.
func (s *session) inLane(lane string, c wire.Command, do func(wire.Command) error) error {
	ok := s.conn.Go(lane, func() {
		if err := do(c); err != nil {
			s.refuse(c, err)
		}
	})
	if !ok {
		return &wire.Error{Code: wire.CodeFrameRateLimit, Message: "too many commands are in progress", Retry: retryLater}
	}
	return nil
}

func (s *session) hello(c wire.Command) error {
	n := s.node
	again := s.client != ""
	switch {
	case again && c.Client != "" && c.Client != s.client:
		return wire.Errorf(wire.CodeDataInvalid, "client cannot change on one connection")
	case !again && c.Client == "":
		c.Client = randomHex(16)
	}
	if !again {
		s.client = c.Client
		actor := s.actor().ID
		sum := sha256.Sum256([]byte(c.Client + "\x00" + actor))
		id := "s-" + hex.EncodeToString(sum[:8])
		s.mu.Lock()
		s.id, s.member = id, actor
		if actor == "" {
			s.member = id
		}
		s.mu.Unlock()
		s.conn.SetIdle(n.opts.IdleTimeout, wire.CloseIdle, "idle timeout")
	}
	s.welcome()
	if !again && c.Build != "" && n.opts.Build != "" && c.Build != n.opts.Build {
		s.send(wire.Reply{Type: wire.TypeUpdateAvailable, Build: n.opts.Build}.Encode())
	}
	return nil
}

func (s *session) welcome() {
	o := &s.node.opts
	g := s.grant()
	w := wire.Welcome{
		Connection:  "c-" + o.Name + "-" + strconv.FormatUint(s.conn.ID(), 36),
		Node:        o.Name,
		Build:       o.Build,
		HeartbeatMs: o.HeartbeatInterval.Milliseconds(),
		Limits: wire.Announced{
			FrameBytes:      o.Limits.FrameBytes,
			FramesPerSecond: o.Limits.FramesPerSecond,
			FrameBurst:      o.Limits.FrameBurst,
			Channels:        o.Limits.ChannelsPerConnection,
			PresenceBytes:   o.Limits.PresenceBytes,
			StateBytes:      o.Limits.StateBytes,
		},
	}
	w.Session, _ = s.identity()
	if g != nil {
		w.Actor = g.Actor.ID
		w.ExpiresInMs = expiresIn(g)
	}
	s.send(w.Encode())
}

// expiresIn is the time a grant has left, at least a millisecond; zero if it does not expire.
func expiresIn(g *Grant) int64 {
	if g.ExpiresAt.IsZero() {
		return 0
	}
	return max(1, time.Until(g.ExpiresAt).Milliseconds())
}

// subscribe takes the subscription's place at once and does the rest in the channel's lane.
func (s *session) subscribe(c wire.Command) error {
	sub, repeated, release, err := s.reserve(c)
	if err != nil {
		return err
	}
	if repeated {
		return s.inLane(c.Channel, c, func(c wire.Command) error { return s.repeat(sub, c) })
	}
	err = s.inLane(c.Channel, c, func(c wire.Command) error {
		defer release()
		err := s.start(sub, c)
		if err != nil {
			s.remove(sub)
		}
		return err
	})
	if err != nil {
		release()
		s.remove(sub)
	}
	return err
}

// reserve claims the sid and takes a place under every limit. release gives the hold on the channel back.
func (s *session) reserve(c wire.Command) (sub *subscription, repeated bool, release func(), err error) {
	n := s.node
	actor := s.actor()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queries {
		if q.sid == c.SID {
			return nil, false, nil, wire.Errorf(wire.CodeSubscriptionIDTaken, "the sid is in use for a live query")
		}
	}
	for _, o := range s.subs {
		switch {
		case o.sid == c.SID && o.channel == c.Channel:
			o.beat = time.Now()
			return o, true, nil, nil
		case o.sid == c.SID:
			return nil, false, nil, wire.Errorf(wire.CodeSubscriptionIDTaken, "the sid is in use for another channel")
		case o.channel == c.Channel:
			return nil, false, nil, wire.Errorf(wire.CodeSubscriptionIDTaken, "the channel is subscribed under another sid")
		}
	}
	if len(s.subs) >= n.opts.Limits.ChannelsPerConnection {
		return nil, false, nil, wire.Errorf(wire.CodeSubscriptionLimit, "the connection has %d channels", len(s.subs))
	}
	sub = &subscription{sid: c.SID, channel: c.Channel, beat: time.Now()}
	if limit := n.opts.Limits.SubscriptionsPerTenant; limit > 0 {
		sub.tenant = n.opts.Tenant(actor)
		if sub.tenant != "" && !n.tenants.take(sub.tenant, limit) {
			return nil, false, nil, wire.Errorf(wire.CodeSubscriptionLimit, "the tenant has as many subscriptions as it may")
		}
	}
	release, err = n.hub.Hold(c.Channel)
	if err != nil {
		n.tenants.release(sub.tenant)
		return nil, false, nil, wire.Errorf(wire.CodeSubscriptionLimit, "the node has as many channels as it may")
	}
	s.subs = append(s.subs, sub)
	return sub, false, release, nil
}

// remove takes a subscription out of the session, gives its place back, and reports whether it was there: who gets true ends it.
func (s *session) remove(sub *subscription) bool {
	if !s.take(sub) {
		return false
	}
	s.node.tenants.release(sub.tenant)
	return true
}

// take is remove for a caller who keeps the place in the tenant's count.
func (s *session) take(sub *subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.subs, sub)
	if i >= 0 {
		s.subs = slices.Delete(s.subs, i, i+1)
	}
	return i >= 0
}

func (s *session) subscriptions() []*subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.subs)
}

// find returns the subscription of a channel, or nil.
func (s *session) find(channel string) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sub := range s.subs {
		if sub.channel == channel {
			return sub
		}
	}
	return nil
}

// start makes a reserved subscription live.
func (s *session) start(sub *subscription, c wire.Command) error {
	actions := []Action{ActionSubscribe}
	if c.Presence != nil {
		actions = append(actions, ActionPresence)
	}
	rule, err := s.node.allow(context.Background(), s.actor(), sub.channel, actions...)
	if err != nil {
		return err
	}
	if c.Presence != nil && !rule.opts.Presence {
		return wire.Errorf(wire.CodePresenceDisabled, "the channel keeps no roster")
	}
	if err := s.join(sub, c, rule); err != nil {
		return err
	}
	sub.live = true
	if c.Presence != nil {
		s.joinRoom(sub, c.Presence)
	}
	return nil
}

// join makes the connection a member of the channel, in its log at the position that the client wants, or where it ends.
func (s *session) join(sub *subscription, c wire.Command, rule *rule) error {
	n := s.node
	if rule.opts.History == nil {
		if c.Ack {
			return wire.Errorf(wire.CodeHistoryDisabled, "the channel keeps no history")
		}
		if err := s.conn.Join(sub.channel, maskMessages, s.subscribed(sub, stream.Position{}, nil)); err != nil {
			return joinError(err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.opts.CommandTimeout)
	defer cancel()
	// From here on nothing can be missed: every append reaches the hub's channel, which was held when the place was taken. What is appended before the membership begins is replayed.
	log, err := n.histories.acquire(ctx, sub.channel, rule.opts.Policy)
	if err != nil {
		return n.historyError(sub.channel, err)
	}
	sub.log = log
	if err := s.place(ctx, sub, c, rule, maskMessages); err != nil {
		sub.log = nil
		n.histories.release(log)
		return err
	}
	return nil
}

// place puts a member at its position in the channel's log, and tells it.
func (s *session) place(ctx context.Context, sub *subscription, c wire.Command, rule *rule, mask hub.Mask) error {
	at, recovered, err := s.node.locate(ctx, sub.channel, c.Since)
	if err != nil {
		return s.node.historyError(sub.channel, err)
	}
	if p, live := s.conn.Position(sub.channel); live && c.Since == nil { // it only begins to acknowledge
		at = stream.Position{Offset: p.Offset, Epoch: p.Tag}
	}
	sub.acks = sub.acks || c.Ack
	o := hub.LogOptions{Offset: at.Offset, Tag: at.Epoch}
	if sub.acks {
		o.Window = rule.opts.History.AckWindow
	}
	if err := s.conn.JoinLog(sub.channel, mask, s.subscribed(sub, at, recovered), o); err != nil {
		return joinError(err)
	}
	return nil
}

func joinError(err error) error {
	if errors.Is(err, hub.ErrChannelLimit) || errors.Is(err, hub.ErrConnChannelLimit) {
		return &wire.Error{Code: wire.CodeSubscriptionLimit, Message: "no place for another channel", Err: err}
	}
	if errors.Is(err, hub.ErrClosed) {
		return &wire.Error{Code: wire.CodeDraining, Message: "the connection is closing", Err: err} // it goes nowhere
	}
	return fmt.Errorf("join: %w", err)
}

// repeat is the beat of a subscription. It also joins the roster if it was not joined, and resyncs it.
func (s *session) repeat(sub *subscription, c wire.Command) error {
	if !sub.live {
		return nil // refused meanwhile; the client knows
	}
	if c.Presence != nil && sub.room == nil {
		rule, err := s.node.allow(context.Background(), s.actor(), sub.channel, ActionPresence)
		if err != nil {
			return err
		}
		if !rule.opts.Presence {
			return wire.Errorf(wire.CodePresenceDisabled, "the channel keeps no roster")
		}
	}
	var at stream.Position
	switch {
	case sub.log == nil && c.Ack:
		return wire.Errorf(wire.CodeHistoryDisabled, "the channel keeps no history")
	case sub.log != nil && (c.Since != nil || c.Ack && !sub.acks):
		if err := s.replace(sub, c); err != nil {
			return err
		}
	case sub.log != nil:
		p, _ := s.conn.Position(sub.channel)
		at = stream.Position{Offset: p.Offset, Epoch: p.Tag}
		fallthrough
	default:
		s.send(s.subscribed(sub, at, nil))
	}
	if c.Presence != nil {
		s.joinRoom(sub, c.Presence)
	}
	return nil
}

// replace moves a live subscription to another position: the client found a gap, or wants to read again.
func (s *session) replace(sub *subscription, c wire.Command) error {
	rule, _ := s.node.rules.match(sub.channel)
	mask := maskMessages
	if sub.room != nil {
		mask |= maskRoster
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.node.opts.CommandTimeout)
	defer cancel()
	return s.place(ctx, sub, c, rule, mask)
}

func (s *session) unsubscribe(c wire.Command) error {
	s.mu.Lock()
	i := slices.IndexFunc(s.subs, func(sub *subscription) bool { return sub.sid == c.SID })
	var sub *subscription
	if i >= 0 {
		sub = s.subs[i]
	}
	s.mu.Unlock()
	if sub == nil {
		if known, err := s.unsubscribeQuery(c); known {
			return err
		}
		return wire.Errorf(wire.CodeSubscriptionUnknown, "no subscription with this sid")
	}
	c.Channel = sub.channel
	err := s.inLane(sub.channel, c, func(wire.Command) error {
		s.leave(sub, false)
		s.send(wire.Reply{Type: wire.TypeUnsubscribed, SID: sub.sid, Channel: sub.channel}.Encode())
		return nil
	})
	if err == nil {
		s.remove(sub) // the sid is free for what the client says next
	}
	return err
}

// leave ends the delivery of a subscription. It runs in the channel's lane, or after all lanes. It reports whether a grace keeps the member, and with it the place in the tenant's count.
func (s *session) leave(sub *subscription, abrupt bool) (kept bool) {
	if sub.live {
		s.conn.Leave(sub.channel)
		sub.live = false
	}
	s.node.histories.release(sub.log)
	sub.log = nil
	return s.leaveRoom(sub, abrupt)
}

func (s *session) publish(c wire.Command) error {
	rule, err := s.node.allow(context.Background(), s.actor(), c.Channel, ActionPublish)
	if err != nil {
		return err
	}
	p := wire.Publication{Channel: c.Channel, ID: c.ID, Key: c.Key, Data: c.Data}
	if p.ID == "" {
		p.ID = s.node.newMessageID()
	}
	id, _ := s.identity()
	p.From = &wire.From{Actor: s.actor().ID, Session: id}
	quietly := c.Echo != nil && !*c.Echo
	reply := wire.Reply{Type: wire.TypePublished, ID: c.ID}
	if rule.opts.History != nil {
		key := ""
		if c.ID != "" {
			key = "s/" + id + "/" + c.ID // one that repeats it after a lost answer is the same session
		}
		a, err := s.node.record(context.Background(), p, rule.opts.History, key, quietly)
		if err != nil {
			return err
		}
		reply.Channel = c.Channel
		reply = reply.At(a.Offset, a.Epoch)
	} else {
		var except *hub.Conn
		if quietly {
			except = s.conn
		}
		if err := s.node.publish(p, rule.opts.Policy, except); err != nil {
			return err
		}
	}
	if c.ID != "" {
		s.send(reply.Encode())
	}
	return nil
}

func (s *session) reauthenticate(c wire.Command) error {
	n := s.node
	if n.opts.Reauthenticate == nil {
		return wire.Errorf(wire.CodeAuthRefreshRefused, "this server takes no token on an open connection")
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.opts.CommandTimeout)
	defer cancel()
	g, err := n.opts.Reauthenticate(ctx, c.Token)
	switch {
	case err != nil:
		n.stats.refreshFailures.Add(1)
		n.log.Warn("token could not be checked", "error", err)
		return &wire.Error{Code: wire.CodeSocketAuthUnavailable, Message: "the token could not be checked", Retry: retryLater, Err: err}
	case g == nil:
		return wire.Errorf(wire.CodeAuthRefreshRefused, "the token is not valid")
	case g.Actor.ID != s.actor().ID:
		return wire.Errorf(wire.CodeAuthRefreshRefused, "the token is of another actor")
	}
	s.replaceGrant(g)
	s.send(wire.Reply{Type: wire.TypeAuthenticated, ExpiresInMs: expiresIn(g)}.Encode())
	return nil
}

// Closed ends everything that the connection held. The hub has taken it out of its channels already.
func (s *session) Closed(_ *hub.Conn, reason hub.Reason) {
	// A peer that says goodbye, or is sent away, leaves at once; anything else may come back.
	abrupt := !(reason.Remote && (reason.Code == 1000 || reason.Code == 1001) || reason.Code == 1012 || reason.Code == 1008)
	for _, sub := range s.subscriptions() {
		if !s.take(sub) {
			continue
		}
		sub.live = false
		if !s.leave(sub, abrupt) {
			s.node.tenants.release(sub.tenant)
		}
	}
	s.closeQueries()
	s.node.stats.closed(reason.Code)
}
