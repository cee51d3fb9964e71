package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire/wire"
)

const (
	// A client keeps to a part of the announced rate: delays on the way push frames together.
	rateShare  = 0.9
	burstShare = 0.75

	// closeMoving says that the client goes to another node, in the slot that the server gave it.
	closeMoving websocket.StatusCode = 4004

	// probeWait is the server's time to answer when the machine has slept.
	probeWait = 2 * time.Second
	// lookInterval is how often a sleep of the machine is looked for, when beats are rarer.
	lookInterval = 5 * time.Second
	minHeartbeat = 100 * time.Millisecond
)

// link is one connection. The goroutine of Run reads from it and runs the callbacks; the keeper writes, beats and watches for silence.
type link struct {
	c       *Client
	conn    *websocket.Conn
	wake    chan struct{} // holds one element while the keeper has something to look at
	work    sync.WaitGroup
	calling sync.Mutex // held while a message is handled and its callbacks run; before Client.mu

	hard   context.Context // ends reads and writes at once
	cancel context.CancelFunc

	// Guarded by Client.mu.
	queue       []command
	pending     map[string]*publication // sent, not answered
	welcomed    time.Time
	limits      wire.Announced
	session     string
	member      string // the id in rosters
	heartbeat   time.Duration
	tokens      float64
	rate, burst float64
	refilled    time.Time
	paused      time.Time // nothing is sent before
	heard       time.Time // when something arrived, or reading began again after callbacks
	busy        bool      // callbacks run, and nothing is read
	nextBeat    time.Time
	lastBeat    time.Time // on the clock that goes on in sleep
	probing     time.Time // when the probe after a sleep was sent; zero if answered
	leaveAt     time.Time // the server's slot; zero if none
	refreshAt   time.Time // zero if none
	refreshing  bool
	refreshes   int       // failed ones in a row
	expires     time.Time // zero if never
	nextRetry   time.Time // the first of the subscriptions'; zero if none
	nextAck     time.Time // the same
	together    together
	closing     error // why the keeper closed
	fatal       bool
}

// command is something to be sent. Its frame is made when its turn comes.
type command struct {
	kind  string // a type of wire
	sub   *Subscription
	query *LiveQuery
	pub   *publication
	frame []byte
}

func newLink(c *Client, conn *websocket.Conn) *link {
	now := time.Now()
	l := &link{
		c: c, conn: conn, wake: make(chan struct{}, 1), pending: map[string]*publication{},
		heard: now, nextBeat: now.Add(time.Hour), lastBeat: c.wall(), refilled: now, tokens: 1, burst: 1, heartbeat: welcomeTimeout / 2,
	}
	l.hard, l.cancel = context.WithCancel(context.Background())
	l.queue = append(l.queue, command{kind: wire.TypeHello})
	return l
}

// serve runs the connection to its end. When it returns all its goroutines have stopped.
func (l *link) serve(ctx context.Context) ending {
	keeping, stopKeeper := context.WithCancel(ctx)
	l.work.Go(func() { l.keep(keeping) })
	// Whatever still hangs a moment after ctx has ended is torn down.
	stopLate := context.AfterFunc(ctx, func() { time.AfterFunc(closeWait, l.cancel) })
	defer stopLate()
	err := l.read()

	l.c.mu.Lock()
	if l.closing == nil {
		l.closing = err // the keeper must not close again
	}
	end := ending{err: l.closing, terminal: l.fatal, after: -1, welcomed: l.welcomed}
	if !l.leaveAt.IsZero() {
		end.after = max(0, time.Until(l.leaveAt))
	}
	l.detachLocked()
	l.c.mu.Unlock()
	stopKeeper()
	l.cancel()
	_ = l.conn.CloseNow()
	l.work.Wait()
	return end
}

// detachLocked ends what hangs on the connection.
func (l *link) detachLocked() {
	c := l.c
	for _, cmd := range l.queue {
		if cmd.pub != nil {
			cmd.pub.finish(outcome{err: errNotSent})
		}
	}
	for _, p := range l.pending {
		p.finish(l.lostLocked(p))
	}
	l.queue, l.pending = nil, nil
	if c.link != l {
		return
	}
	c.link = nil
	c.announceLocked()
	for _, s := range c.subs {
		s.phase, s.roster.synced, s.roster.resync = idle, false, false
	}
	for _, q := range c.queries {
		q.phase = idle
	}
}

// read handles messages until the connection ends.
func (l *link) read() error {
	for {
		typ, data, err := l.conn.Read(l.hard)
		if err != nil {
			return err
		}
		l.c.mu.Lock()
		l.heard, l.busy, l.probing = time.Now(), true, time.Time{}
		l.c.mu.Unlock()
		if typ == websocket.MessageText { // binary frames are of a later version
			var m incoming
			if err := json.Unmarshal(data, &m); err != nil {
				l.c.log.Warn("the server sent something that is not of the protocol", "error", err)
			} else {
				l.handle(&m)
			}
		}
		l.c.mu.Lock()
		l.heard, l.busy = time.Now(), false
		l.c.mu.Unlock()
		l.poke()
	}
}

// poke makes the keeper look again.
func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// pushLocked queues a command.
func (l *link) pushLocked(cmd command) {
	l.queue = append(l.queue, cmd)
	l.poke()
}

// keep sends what is queued, and does what is due.
func (l *link) keep(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if ctx.Err() != nil {
			l.close(websocket.StatusNormalClosure, "", ctx.Err(), false)
			return
		}
		l.c.mu.Lock()
		now := time.Now()
		over, wait := l.dueLocked(now)
		var frame []byte
		if over == nil {
			var paced time.Duration
			frame, paced = l.nextLocked(now)
			wait = min(wait, paced)
		}
		l.c.mu.Unlock()
		switch {
		case over != nil:
			l.close(over.code, over.reason, errors.New(over.reason), false)
			return
		case frame != nil:
			if err := l.write(frame); err != nil {
				l.cancel() // the reader sees it too
				return
			}
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
	}
}

func (l *link) write(frame []byte) error {
	ctx, cancel := context.WithTimeout(l.hard, writeTimeout)
	defer cancel()
	return l.conn.Write(ctx, websocket.MessageText, frame)
}

// close ends the connection, and gives the peer a moment to answer.
func (l *link) close(code websocket.StatusCode, reason string, why error, fatal bool) {
	l.c.mu.Lock()
	over := l.closing != nil
	if !over {
		l.closing, l.fatal = why, fatal
	}
	l.c.mu.Unlock()
	if over {
		return
	}
	timer := time.AfterFunc(closeWait, l.cancel)
	defer timer.Stop()
	_ = l.conn.Close(code, reason)
}

// over is why the keeper closes.
type over struct {
	code   websocket.StatusCode
	reason string
}

// dueLocked does what the time has come for, and returns how long nothing is due, or that the connection is over.
func (l *link) dueLocked(now time.Time) (*over, time.Duration) {
	if l.welcomed.IsZero() {
		if wait := l.heard.Add(welcomeTimeout).Sub(now); wait > 0 || l.busy {
			return nil, max(wait, time.Second)
		}
		return &over{websocket.StatusCode(wire.CloseServerSilent), "no welcome"}, 0
	}
	if !l.leaveAt.IsZero() && !now.Before(l.leaveAt) {
		return &over{closeMoving, "moving"}, 0
	}
	silence := now.Sub(l.heard)
	if !l.busy && (silence >= 2*l.heartbeat || !l.probing.IsZero() && now.Sub(l.probing) >= probeWait) {
		return &over{websocket.StatusCode(wire.CloseServerSilent), "server silent"}, 0
	}
	l.beatLocked(now)
	l.retryLocked(now)
	l.acksLocked(now)
	l.refreshLocked(now)

	wait := min(l.nextBeat.Sub(now), lookInterval)
	if !l.busy {
		wait = min(wait, 2*l.heartbeat-silence)
		if !l.probing.IsZero() {
			wait = min(wait, l.probing.Add(probeWait).Sub(now))
		}
	}
	for _, t := range []time.Time{l.leaveAt, l.nextRetry, l.nextAck, l.refreshAt, l.lateLocked(now)} {
		if !t.IsZero() {
			wait = min(wait, t.Sub(now))
		}
	}
	return nil, max(wait, 0)
}

// beatLocked sends a beat when it is time, or when the machine has slept since the last.
func (l *link) beatLocked(now time.Time) {
	wall := l.c.wall()
	slept := wall.Sub(l.lastBeat) > 2*l.heartbeat
	if now.Before(l.nextBeat) && !slept {
		return
	}
	l.nextBeat, l.lastBeat = now.Add(l.heartbeat), wall
	if slept && !l.busy {
		l.probing = now
	}
	if len(l.queue) == 0 || l.queue[0].kind != wire.TypeHello {
		l.queue = slices.Insert(l.queue, 0, command{kind: wire.TypeHello})
	}
	for _, s := range l.c.orderedLocked() {
		switch {
		case (s.phase == asked || s.repairing) && now.Sub(s.askedAt) >= l.heartbeat: // the answer is late, or the command was lost
			l.askLocked(s)
		case s.phase == live && s.joins():
			s.fullBeat = slept // the server may have taken the session out of the roster
			l.askLocked(s)
		case s.phase == live && s.opts.Presence != nil && !s.roster.synced:
			l.askLocked(s)
		}
	}
	l.beatQueriesLocked(now)
}

// retryLocked asks again for subscriptions whose time has come.
func (l *link) retryLocked(now time.Time) {
	if l.nextRetry.IsZero() || now.Before(l.nextRetry) {
		return
	}
	l.nextRetry = time.Time{}
	for _, s := range l.c.orderedLocked() {
		switch {
		case s.retryAt.IsZero():
		case now.Before(s.retryAt):
			l.nextRetry = earliest(l.nextRetry, s.retryAt)
		default:
			l.askLocked(s)
		}
	}
	for _, q := range l.c.queriesLocked() {
		switch {
		case q.retryAt.IsZero():
		case now.Before(q.retryAt):
			l.nextRetry = earliest(l.nextRetry, q.retryAt)
		default:
			l.askQueryLocked(q)
		}
	}
}

// nextLocked takes the next frame off the queue, or returns how long to wait for the right to send it.
func (l *link) nextLocked(now time.Time) ([]byte, time.Duration) {
	l.tokens = min(l.burst, l.tokens+now.Sub(l.refilled).Seconds()*l.rate)
	l.refilled = now
	for len(l.queue) > 0 {
		if wait := l.paused.Sub(now); wait > 0 {
			return nil, wait
		}
		if l.tokens < 1 {
			if l.rate == 0 { // before welcome
				return nil, time.Hour
			}
			return nil, time.Duration(math.Ceil((1 - l.tokens) / l.rate * float64(time.Second)))
		}
		cmd := l.queue[0]
		l.queue[0] = command{}
		l.queue = l.queue[1:]
		if frame := l.frameLocked(cmd, now); frame != nil {
			l.tokens--
			return frame, 0
		}
	}
	l.queue = nil
	return nil, time.Hour
}

// outgoing is a command as it is sent.
type outgoing struct {
	Type     string          `json:"type"`
	Protocol int             `json:"protocol,omitempty"`
	Client   string          `json:"client,omitempty"`
	Build    string          `json:"build,omitempty"`
	SID      string          `json:"sid,omitempty"`
	Channel  string          `json:"channel,omitempty"`
	Presence *wish           `json:"presence,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
	ID       string          `json:"id,omitempty"`
	Key      string          `json:"key,omitempty"`
	Echo     *bool           `json:"echo,omitempty"`
	Token    string          `json:"token,omitempty"`
	Since    *outgoingSince  `json:"since,omitempty"`
	Ack      bool            `json:"ack,omitempty"`
	Offset   uint64          `json:"offset,omitempty"`
	Query    string          `json:"query,omitempty"`
	Input    json.RawMessage `json:"input,omitempty"`
}

type wish struct {
	Data    json.RawMessage `json:"data,omitempty"`
	Observe bool            `json:"observe,omitempty"`
	Resync  bool            `json:"resync,omitempty"`
}

// frameLocked makes the frame of a command, or nil if there is no use for it any more.
func (l *link) frameLocked(cmd command, now time.Time) []byte {
	s := cmd.sub
	switch cmd.kind {
	case wire.TypeHello:
		return encode(outgoing{Type: cmd.kind, Protocol: wire.Version, Client: l.c.id, Build: l.c.opts.Build})
	case wire.TypeSubscribe:
		if cmd.query != nil {
			return l.queryFrameLocked(cmd.query, now)
		}
		return l.subscribeLocked(s, now)
	case wire.TypePresence:
		s.dataQueued = false
		if s.closed || s.phase == refused || s.data == nil {
			return nil
		}
		return encode(outgoing{Type: cmd.kind, Channel: s.channel, Data: s.data})
	case wire.TypeState:
		s.stateQueued = false
		if s.closed || s.phase == refused || s.state == nil {
			return nil
		}
		s.roster.setOwn(l.member, l.session, s.state)
		return encode(outgoing{Type: cmd.kind, Channel: s.channel, Data: s.state})
	case wire.TypeAck:
		if s != nil {
			return s.ackFrameLocked(now)
		}
	case wire.TypePublish:
		return l.sendLocked(cmd.pub)
	}
	return cmd.frame
}

func (l *link) subscribeLocked(s *Subscription, now time.Time) []byte {
	s.askQueued = false
	if s.closed {
		return nil
	}
	out := outgoing{Type: wire.TypeSubscribe, SID: s.sid, Channel: s.channel, Ack: s.opts.Ack}
	if p := s.opts.Presence; p != nil {
		out.Presence = &wish{Observe: p.Observe, Resync: s.phase == live && !s.roster.synced}
		if s.phase != live || s.fullBeat {
			out.Presence.Data = s.data
		}
	}
	s.fullBeat = false
	if s.phase != live || s.repairing {
		out.Since, s.askedAt = s.sinceLocked(), now
	}
	if s.phase != live {
		s.phase = asked
	}
	return encode(out)
}

// askLocked queues a subscribe, once.
func (l *link) askLocked(s *Subscription) {
	s.retryAt = time.Time{}
	if !s.askQueued {
		s.askQueued = true
		l.pushLocked(command{kind: wire.TypeSubscribe, sub: s})
	}
}

// encode cannot fail: the raw members are checked where they come in.
func encode(v any) []byte {
	var b bytes.Buffer
	if err := marshal(&b, v); err != nil {
		panic("client: " + err.Error())
	}
	return b.Bytes()
}

// marshal writes JSON as it is, not as it would have to be inside HTML.
func marshal(b *bytes.Buffer, v any) error {
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // the line's end
	return nil
}

// refreshLocked starts a refresh of the grant when it is time.
func (l *link) refreshLocked(now time.Time) {
	if l.refreshAt.IsZero() || now.Before(l.refreshAt) || l.refreshing {
		return
	}
	l.refreshAt, l.refreshing = time.Time{}, true
	l.work.Go(l.refresh)
}

// planRefreshLocked sets the time of the next refresh from what is left of the grant.
func (l *link) planRefreshLocked(left time.Duration, now time.Time) {
	l.refreshing, l.refreshes = false, 0
	l.refreshAt, l.expires = time.Time{}, time.Time{}
	if left > 0 && l.c.opts.Token != nil {
		l.expires = now.Add(left)
		l.refreshAt = now.Add(left * 3 / 4)
	}
}

// refresh asks for a token and sends it. The answer ends the refresh.
func (l *link) refresh() {
	token, err := l.c.askToken(l.hard)
	if err == nil && token == l.c.usedToken() {
		err = errors.New("token: Token returns the same again")
	}
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	if err != nil {
		l.refreshFailedLocked(err, -1, !errors.Is(err, ErrNoToken))
		return
	}
	l.c.token = token
	l.pushLocked(command{kind: wire.TypeAuth, frame: encode(outgoing{Type: wire.TypeAuth, Token: token})})
}

// refreshFailedLocked plans another refresh, if that can help before the grant ends: then the server closes, and the next dial decides.
func (l *link) refreshFailedLocked(err error, after time.Duration, again bool) {
	if l.hard.Err() != nil {
		return
	}
	l.c.log.Warn("the grant was not renewed", "error", err, "again", again)
	l.refreshing = false
	l.refreshes++
	if !again {
		return
	}
	if after < 0 {
		after = max(min(l.c.backoff.Delay(l.refreshes), time.Until(l.expires)/4), 100*time.Millisecond)
	}
	l.refreshAt = time.Now().Add(after)
	l.poke()
}
