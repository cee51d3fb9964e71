package client

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/tidewire/tidewire/wire"
)

// Message is a message of a channel.
type Message struct {
	Channel string
	ID      string
	Key     string
	// From is nil for a message that a backend published.
	From *wire.From
	Data json.RawMessage
	// Offset and Epoch are the message's position in the log of a channel with history. They are zero without.
	Offset uint64
	Epoch  string
}

// MemberState is the newest state of one session in a roster. Data is null when it was cleared.
type MemberState struct {
	Member, Session string
	Data            json.RawMessage
}

// Presence says what a subscription wants of the channel's roster.
type Presence struct {
	// Data is shown to others beside the member's id; it is encoded as JSON. Nil shows none.
	Data any
	// Observe takes the roster without joining it.
	Observe bool
}

// SubscribeOptions configures a [Subscription]. See the package's comment for how callbacks are called.
type SubscribeOptions struct {
	// Presence joins or observes the roster. Nil does neither.
	Presence *Presence
	// Since is a position to go on from, such as one of [Subscription.Position] that was stored: everything behind it comes, or OnLost is told. Nil begins where the channel is then.
	Since *Position
	// Last is how many of the newest messages of a channel with history come first, of those that are kept. Since cannot be set beside it. Zero means none.
	Last int
	// Ack acknowledges each message when OnMessage has returned, together with others. A channel without history refuses it (HISTORY_DISABLED).
	Ack bool

	// OnSubscribed is called each time the subscription becomes live: what follows from there comes, until the connection ends or OnSkipped or OnLost say otherwise.
	OnSubscribed func(Subscribed)
	OnMessage    func(Message)
	// OnLost is told that messages of a channel with history may be missing that recovery could not give, where they are missing. The application reads its state anew. Nil logs it.
	OnLost func(Lost)
	// OnSkipped is told how many messages the server dropped because this client was too slow, where they are missing. On a channel with history it does not
	// happen unless its policy says so.
	OnSkipped func(count uint64)
	// OnPresence is called with the roster after each change.
	OnPresence func(Roster)
	// OnState is told the newest state of a session. The roster shows it if it lists the session.
	OnState func(MemberState)
	// OnRefused is told that the server refused the subscription, ended it, or refused its presence data or state. With a Retry the client asks again by itself; otherwise
	// a subscription that is not live is asked for again on the next connection.
	OnRefused func(*wire.Error)
}

// phase is where a subscription is on the connection.
type phase int

const (
	idle    phase = iota // not asked for on this connection
	asked                // no answer yet
	live                 // subscribed
	refused              // refused or ended by the server
)

// Subscription is a subscription to a channel. Its methods may be called from any goroutine.
type Subscription struct {
	// Set by Subscribe, then read-only.
	c       *Client
	sid     string
	seq     uint64
	channel string
	opts    SubscribeOptions

	// Guarded by Client.mu.
	closed      bool
	phase       phase
	askedAt     time.Time
	askQueued   bool
	fullBeat    bool // the next repetition carries the data
	retryAt     time.Time
	retries     int
	data        json.RawMessage // of the member
	dataQueued  bool
	state       json.RawMessage
	stateQueued bool
	rejoined    time.Time // when the server was last asked to take the session into the roster again
	roster      roster
	placed      bool      // there is a position
	at          Position  // everything up to there was handled or is lost
	shown       Position  // the same, once the application was told
	logged      bool      // the server gave the position
	last        int       // how many of the newest messages are wanted; zero once there was an answer
	repairing   bool      // messages are missing and were asked for: those that come are ignored until the answer
	skipped     bool      // the server said that messages are missing before the next
	acked       uint64    // the offset last acknowledged
	ackedAt     time.Time // when
	ackQueued   bool
}

// Subscribe subscribes to a channel as soon as there is a connection, and on each later one until Close. A channel has one subscription at a time.
func (c *Client) Subscribe(channel string, opts SubscribeOptions) (*Subscription, error) {
	if !wire.ValidChannel(channel) {
		return nil, fmt.Errorf("client: subscribe: %w", wire.Errorf(wire.CodeChannelInvalid, "malformed channel name"))
	}
	switch {
	case opts.Last < 0 || opts.Last > 0 && opts.Since != nil:
		return nil, fmt.Errorf("client: subscribe: %w", wire.Errorf(wire.CodeDataInvalid, "either Since or a positive Last"))
	case opts.Since != nil && len(opts.Since.Epoch) > wire.MaxIDBytes:
		return nil, fmt.Errorf("client: subscribe: %w", wire.Errorf(wire.CodeDataInvalid, "an epoch has at most %d bytes", wire.MaxIDBytes))
	}
	s := &Subscription{c: c, channel: channel, opts: opts, last: opts.Last}
	if opts.Since != nil {
		s.placed, s.at, s.shown = true, *opts.Since, *opts.Since
	}
	if opts.Presence != nil && opts.Presence.Data != nil {
		data, err := encodeData(opts.Presence.Data)
		if err != nil {
			return nil, fmt.Errorf("client: subscribe: %w", err)
		}
		s.data = data
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, ErrStopped
	}
	if c.subs[channel] != nil {
		return nil, fmt.Errorf("client: subscribe: channel %q is subscribed already", channel)
	}
	c.sids++
	s.seq, s.sid = c.sids, strconv.FormatUint(c.sids, 36)
	c.subs[channel] = s
	if c.link != nil {
		c.link.askLocked(s)
	}
	return s, nil
}

// orderedLocked returns the subscriptions in the order of their making.
func (c *Client) orderedLocked() []*Subscription {
	list := make([]*Subscription, 0, len(c.subs))
	for _, s := range c.subs {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *Subscription) int { return cmp.Compare(a.seq, b.seq) })
	return list
}

// bySIDLocked returns the subscription with a sid, or nil.
func (c *Client) bySIDLocked(sid, channel string) *Subscription {
	if s := c.subs[channel]; s != nil && s.sid == sid {
		return s
	}
	for _, s := range c.subs {
		if s.sid == sid {
			return s
		}
	}
	return nil
}

// Channel returns the channel's name.
func (s *Subscription) Channel() string { return s.channel }

// Position returns where the subscription is in the log of its channel: behind the last message for which OnMessage has returned, or for whose loss OnLost has. A program that stores
// it can go on from there with [SubscribeOptions].Since. It is zero on a channel without history, and before the first answer if there was no Since.
func (s *Subscription) Position() Position {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.shown
}

// Close unsubscribes, after acknowledging what has been handled. The channel may be subscribed again at once. A callback that was about to run may still do so; no other does.
func (s *Subscription) Close() {
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	delete(c.subs, s.channel)
	if c.link != nil && (s.phase == asked || s.phase == live) {
		if s.opts.Ack && s.at.Offset > s.acked {
			c.link.pushLocked(command{kind: wire.TypeAck, frame: encode(outgoing{Type: wire.TypeAck, Channel: s.channel, Offset: s.at.Offset})})
		}
		c.link.pushLocked(command{kind: wire.TypeUnsubscribe, frame: encode(outgoing{Type: wire.TypeUnsubscribe, SID: s.sid})})
	}
}

// joins reports whether the subscription is in the roster.
func (s *Subscription) joins() bool { return s.opts.Presence != nil && !s.opts.Presence.Observe }

var errNotJoined = errors.New("client: the subscription does not join the roster")

// UpdatePresence replaces the data of this session's member, now and on later connections. Only the newest is sent. A refusal comes to OnRefused.
func (s *Subscription) UpdatePresence(data any) error {
	return s.set(data, wire.TypePresence)
}

// SetState sets the state of this session, such as a cursor; nil clears it. Only the newest is sent, and again on later connections. A refusal comes to OnRefused.
func (s *Subscription) SetState(data any) error {
	return s.set(data, wire.TypeState)
}

func (s *Subscription) set(data any, kind string) error {
	if !s.joins() {
		return errNotJoined
	}
	raw, err := encodeData(data)
	if err != nil {
		return fmt.Errorf("client: %s: %w", kind, err)
	}
	c := s.c
	c.mu.Lock()
	defer c.mu.Unlock()
	queued, kept, limit := &s.dataQueued, &s.data, 0
	if kind == wire.TypeState {
		queued, kept = &s.stateQueued, &s.state
	}
	if l := c.link; l != nil {
		limit = l.limits.PresenceBytes
		if kind == wire.TypeState {
			limit = l.limits.StateBytes
		}
	}
	if limit > 0 && len(raw) > limit {
		return fmt.Errorf("client: %s: %w", kind, wire.Errorf(wire.CodeDataInvalid, "data has %d bytes, more than %d", len(raw), limit))
	}
	*kept = raw
	if s.closed || c.link == nil || *queued || s.phase != live && (kind == wire.TypeState || s.phase != asked) {
		return nil // the next subscribe carries the data, and the state is sent after it
	}
	*queued = true
	c.link.pushLocked(command{kind: kind, sub: s})
	return nil
}

// Roster returns the channel's roster as the server showed it last: the listed members and how many there are. It stays as it was while there is no connection. Its
// slices and maps are shared and must not be changed.
func (s *Subscription) Roster() Roster {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.roster.view()
}

// Live reports whether the subscription is live now.
func (s *Subscription) Live() bool {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.phase == live && !s.closed
}

// encodeData encodes what the server will accept as data. Its error is a [*wire.Error].
func encodeData(data any) (json.RawMessage, error) {
	var b bytes.Buffer
	if err := marshal(&b, data); err != nil {
		return nil, &wire.Error{Code: wire.CodeDataInvalid, Message: "data cannot be encoded as JSON", Err: err}
	}
	if err := wire.CheckShape(b.Bytes()); err != nil {
		return nil, wire.Errorf(wire.CodeDataInvalid, "data %v", err)
	}
	return b.Bytes(), nil
}
