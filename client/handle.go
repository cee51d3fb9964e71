package client

import (
	"cmp"
	"encoding/json"
	"math"
	"time"

	"github.com/tidewire/tidewire/wire"
)

// incoming is any message from the server.
type incoming struct {
	Type         string          `json:"type"`
	SID          string          `json:"sid"`
	ID           string          `json:"id"`
	Re           string          `json:"re"`
	Channel      string          `json:"channel"`
	Code         wire.Code       `json:"code"`
	Cause        string          `json:"cause"`
	RetryAfterMs int64           `json:"retryAfterMs"`
	AfterMs      int64           `json:"afterMs"`
	ExpiresInMs  int64           `json:"expiresInMs"`
	HeartbeatMs  int64           `json:"heartbeatMs"`
	Connection   string          `json:"connection"`
	Session      string          `json:"session"`
	Actor        string          `json:"actor"`
	Node         string          `json:"node"`
	Build        string          `json:"build"`
	Limits       wire.Announced  `json:"limits"`
	Data         json.RawMessage `json:"data"`
	Key          keyMember       `json:"key"`
	From         *wire.From      `json:"from"`
	Member       string          `json:"member"`
	Count        uint64          `json:"count"`
	Version      uint64          `json:"version"`
	Total        int             `json:"total"`
	Snapshot     *[]wire.Member  `json:"snapshot"`
	Leaves       []string        `json:"leaves"`
	Joins        []wire.Member   `json:"joins"`
	Updates      []wire.Member   `json:"updates"`
	Offset       *uint64         `json:"offset"`
	Epoch        string          `json:"epoch"`
	Recovered    *bool           `json:"recovered"`

	// Of live queries.
	QID    string            `json:"qid"`
	Commit uint64            `json:"commit"`
	Rows   []json.RawMessage `json:"rows"`
	Sum    string            `json:"sum"`
	Ops    []struct {
		Del json.RawMessage `json:"del"`
		Put json.RawMessage `json:"put"`
		At  int             `json:"at"`
	} `json:"ops"`
}

// keyMember is the key of a message, or the columns of the primary key of a snapshot.
type keyMember struct {
	text    string
	columns []string
}

func (k *keyMember) UnmarshalJSON(b []byte) error {
	if b[0] == '[' {
		return json.Unmarshal(b, &k.columns)
	}
	return json.Unmarshal(b, &k.text)
}

// err is the refusal that a message tells.
func (m *incoming) err() *wire.Error {
	return &wire.Error{Code: m.Code, Message: m.Cause, Retry: millis(m.RetryAfterMs)}
}

func millis(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

// handle takes one message: it changes what is known under the lock, and then runs the callback.
func (l *link) handle(m *incoming) {
	l.calling.Lock()
	defer l.calling.Unlock()
	l.c.mu.Lock()
	call := l.handleLocked(m)
	l.c.mu.Unlock()
	if call != nil {
		call()
	}
}

func (l *link) handleLocked(m *incoming) (call func()) {
	if q := l.c.queries[m.SID]; q != nil && l.c.link == l {
		return l.queryLocked(q, m)
	}
	switch m.Type {
	case wire.TypeWelcome:
		return l.welcomeLocked(m)
	case wire.TypeAuthenticated:
		l.planRefreshLocked(millis(m.ExpiresInMs), time.Now())
	case wire.TypeSubscribed:
		return l.subscribedLocked(m)
	case wire.TypeUnsubscribed:
		return l.unsubscribedLocked(m)
	case wire.TypePublished:
		return l.publishedLocked(m)
	case wire.TypeMessage, wire.TypeSkipped, wire.TypePresence, wire.TypeState:
		// What still comes from an earlier subscription of the channel comes before the subscribed of this one.
		if s := l.c.subs[m.Channel]; s != nil && s.phase == live {
			return l.channelLocked(s, m)
		}
	case wire.TypeSnapshot, wire.TypePatch:
		switch {
		case !l.holdLocked(m):
			return l.rowsLocked(m)
		case len(l.together.frames) > maxHeld:
			return l.releaseLocked(math.MaxUint64)
		}
	case wire.TypeSettled:
		return l.settledLocked(m.Commit)
	case wire.TypeRefused:
		return l.refusedLocked(m)
	case wire.TypeReconnect:
		l.leaveAt = time.Now().Add(min(millis(m.AfterMs), maxRetryAfter))
	case wire.TypeUpdateAvailable:
		if f := l.c.opts.OnUpdate; f != nil {
			return func() { f(m.Build) }
		}
	}
	return nil
}

func (l *link) welcomeLocked(m *incoming) func() {
	if !l.welcomed.IsZero() {
		return nil // the answer to a beat
	}
	c, now := l.c, time.Now()
	orElse := func(v, zero int) float64 {
		if v <= 0 {
			return float64(zero)
		}
		return float64(v)
	}
	l.welcomed = now
	l.limits, l.session, l.member = m.Limits, m.Session, cmp.Or(m.Actor, m.Session)
	l.rate = rateShare * orElse(m.Limits.FramesPerSecond, 64)
	l.burst = max(1, math.Floor(burstShare*orElse(m.Limits.FrameBurst, 256)))
	l.tokens, l.refilled = max(0, l.burst-1), now // hello was one
	l.heartbeat = c.opts.Heartbeat
	if l.heartbeat <= 0 {
		l.heartbeat = millis(m.HeartbeatMs)
		if l.heartbeat <= 0 {
			l.heartbeat = 15 * time.Second
		}
	}
	l.heartbeat = max(l.heartbeat, minHeartbeat)
	l.nextBeat, l.lastBeat = now.Add(l.heartbeat), c.wall()
	l.planRefreshLocked(millis(m.ExpiresInMs), now)
	for _, s := range c.orderedLocked() {
		s.phase, s.askQueued, s.dataQueued, s.stateQueued, s.retryAt, s.retries = idle, false, false, false, time.Time{}, 0
		s.repairing, s.skipped, s.ackQueued = false, false, false
		s.roster.restart()
		l.askLocked(s)
	}
	for _, q := range c.queriesLocked() {
		l.restartQueryLocked(q)
	}
	c.link = l
	c.announceLocked()
	return func() {
		c.setState(State{Status: Connected, Connection: m.Connection, Session: m.Session, Actor: m.Actor, Node: m.Node})
	}
}

// restoreStateLocked queues the state that the session has when it joins.
func (l *link) restoreStateLocked(s *Subscription) {
	if s.joins() && s.state != nil && string(s.state) != "null" && !s.stateQueued {
		s.stateQueued = true
		l.pushLocked(command{kind: wire.TypeState, sub: s})
	}
}

func (l *link) subscribedLocked(m *incoming) func() {
	s := l.c.bySIDLocked(m.SID, m.Channel)
	if s == nil { // closed meanwhile
		return nil
	}
	first := s.phase == asked
	if !first && !(s.phase == live && (m.Recovered != nil || m.Offset == nil && s.placed)) { // the answer to a beat
		return nil
	}
	recovered, lost := s.placeLocked(m, first)
	at := s.at
	s.retries = 0
	if first {
		s.phase = live
		l.restoreStateLocked(s)
	}
	if lost == nil {
		s.shown = at
	}
	return func() {
		if lost != nil {
			s.tellLost(*lost)
			l.c.mu.Lock()
			s.shown = at
			l.c.mu.Unlock()
		}
		if f := s.opts.OnSubscribed; f != nil && first && s.Live() { // OnLost may have closed it
			f(Subscribed{at, recovered})
		}
	}
}

func (s *Subscription) tellLost(lost Lost) {
	if f := s.opts.OnLost; f != nil {
		f(lost)
		return
	}
	s.c.log.Warn("messages may be missing", "channel", s.channel, "count", lost.Count, "from", lost.From, "to", lost.To)
}

// publishedLocked takes the answer to a publication, or, if there is no epoch, the note that stands in the place of a message of this session that asked for no echo. An answer never moves
// the position: it overtakes messages that the server replays.
func (l *link) publishedLocked(m *incoming) func() {
	if m.Offset != nil && m.Epoch == "" {
		if s := l.c.subs[m.Channel]; s != nil && s.phase == live && s.placed && l.followsLocked(s, *m.Offset) {
			l.handledLocked(s, *m.Offset)
		}
		return nil
	}
	if p := l.pending[m.ID]; p != nil {
		delete(l.pending, m.ID)
		l.c.logs.note(p.channel, m.Offset != nil)
		out := outcome{}
		if m.Offset != nil {
			out.at = Position{*m.Offset, m.Epoch}
		}
		p.finish(out)
	}
	return nil
}

func (l *link) unsubscribedLocked(m *incoming) func() {
	s := l.c.bySIDLocked(m.SID, m.Channel)
	if s == nil || s.phase != live && s.phase != asked {
		return nil
	}
	s.phase, s.roster.synced = refused, false
	s.repairing, s.retryAt = false, time.Time{}
	return s.tellRefused(m.err())
}

func (s *Subscription) tellRefused(e *wire.Error) func() {
	if s.opts.OnRefused == nil {
		s.c.log.Warn("the server refused", "channel", s.channel, "error", e)
		return nil
	}
	return func() { s.opts.OnRefused(e) }
}

// channelLocked takes a message about a live subscription.
func (l *link) channelLocked(s *Subscription, m *incoming) func() {
	switch m.Type {
	case wire.TypeMessage:
		return l.messageLocked(s, m)
	case wire.TypeSkipped:
		if s.repairing { // they are asked for
			return nil
		}
		s.skipped = true
		if f := s.opts.OnSkipped; f != nil {
			return func() { f(m.Count) }
		}
	case wire.TypePresence:
		changed, gap := s.roster.apply(m)
		if gap && !s.roster.resync {
			s.roster.resync = true
			l.askLocked(s)
		}
		if f := s.opts.OnPresence; f != nil && changed {
			view := s.roster.view()
			return func() { f(view) }
		}
	case wire.TypeState:
		s.roster.setState(m.Member, m.Session, m.Data)
		if f := s.opts.OnState; f != nil {
			return func() { f(MemberState{Member: m.Member, Session: m.Session, Data: m.Data}) }
		}
	}
	return nil
}

func (l *link) messageLocked(s *Subscription, m *incoming) func() {
	msg := Message{Channel: m.Channel, ID: m.ID, Key: m.Key.text, From: m.From, Data: m.Data}
	inLog := m.Offset != nil && s.placed
	if inLog {
		if !l.followsLocked(s, *m.Offset) {
			return nil
		}
		msg.Offset, msg.Epoch = *m.Offset, s.at.Epoch
	}
	return func() {
		if f := s.opts.OnMessage; f != nil {
			f(msg)
		}
		if inLog {
			l.c.mu.Lock()
			defer l.c.mu.Unlock()
			l.handledLocked(s, msg.Offset)
		}
	}
}

func (l *link) refusedLocked(m *incoming) func() {
	e := m.err()
	if e.Code == wire.CodeFrameRateLimit && !l.welcomed.IsZero() {
		if l.slowDownLocked(m, e) {
			return nil
		}
	}
	switch m.Re {
	case wire.TypeSubscribe:
		return l.subscribeRefusedLocked(m, e)
	case wire.TypePublish:
		if p := l.pending[m.ID]; p != nil {
			delete(l.pending, m.ID)
			p.finish(outcome{err: e})
			return nil
		}
	case wire.TypePresence, wire.TypeState:
		s := l.c.subs[m.Channel]
		if s == nil {
			return nil
		}
		if e.Code == wire.CodePresenceNotJoined && s.phase == live && (s.fullBeat || time.Since(s.rejoined) >= l.heartbeat) {
			// The server took the session out, as it does when beats are missing.
			s.fullBeat, s.rejoined = true, time.Now()
			l.askLocked(s)
			l.restoreStateLocked(s)
			return nil
		}
		return s.tellRefused(e)
	case wire.TypeAuth:
		l.refreshFailedLocked(e, retryOf(e), e.Retry > 0)
		return nil
	case wire.TypeHello:
		if l.welcomed.IsZero() {
			l.closing, l.fatal = e, e.Retry == 0
			l.cancel()
			return nil
		}
	}
	l.c.log.Warn("the server refused", "re", m.Re, "channel", m.Channel, "error", e)
	return nil
}

// slowDownLocked waits as long as the server asks for, and says the same again then where the newest is known. Publications are the caller's.
func (l *link) slowDownLocked(m *incoming, e *wire.Error) (done bool) {
	l.paused = time.Now().Add(min(e.Retry, time.Minute))
	l.tokens = 0
	l.c.log.Warn("the server refused", "re", m.Re, "channel", m.Channel, "error", e)
	s := l.c.subs[m.Channel]
	switch {
	case m.Re == wire.TypePublish && m.ID != "", m.Re == wire.TypeAuth:
		return false
	case m.Re == wire.TypeUnsubscribe:
		l.pushLocked(command{kind: m.Re, frame: encode(outgoing{Type: m.Re, SID: m.SID})})
	case s == nil:
	case m.Re == wire.TypeSubscribe && s.sid == m.SID:
		l.askLocked(s)
	case m.Re == wire.TypePresence && !s.dataQueued:
		s.dataQueued = true
		l.pushLocked(command{kind: m.Re, sub: s})
	case m.Re == wire.TypeAck && !s.ackQueued:
		s.ackQueued = true
		l.pushLocked(command{kind: m.Re, sub: s})
	case m.Re == wire.TypeState && !s.stateQueued:
		s.stateQueued = true
		l.pushLocked(command{kind: m.Re, sub: s})
	}
	return true
}

func retryOf(e *wire.Error) time.Duration {
	if e.Retry > 0 {
		return e.Retry
	}
	return -1
}

func (l *link) subscribeRefusedLocked(m *incoming, e *wire.Error) func() {
	s := l.c.bySIDLocked(m.SID, m.Channel)
	if s == nil {
		return nil
	}
	if s.phase == asked || s.repairing {
		if s.phase == asked {
			s.phase = refused
		}
		if e.Retry > 0 {
			s.retries++
			s.retryAt = time.Now().Add(min(e.Retry, maxRetryAfter) + l.c.backoff.Delay(s.retries))
			l.nextRetry = earliest(l.nextRetry, s.retryAt)
		}
	}
	return s.tellRefused(e)
}
