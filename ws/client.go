package ws

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/internal/budget"
)

const (
	maxInbox    = 1 << 20 // bytes that a client has sent and that wait to be handled
	inboxCharge = 64      // bytes that a waiting message costs beside its own
	inboxTurn   = 16      // messages handled before another client's get their turn
)

// Client is one accepted connection. Its methods may be called from any goroutine.
type Client struct {
	// UserID and Claims are those of the [AuthResult]. They are set before OnConnect and must not be changed.
	UserID string
	Claims map[string]any

	hub      *Hub
	conn     *hub.Conn
	late     bool // its token comes as its first message; set before the start
	greeting sync.Once
	accepted atomic.Bool // publishes UserID and Claims

	frames budget.Frames // owned by the event loop

	// Owned by the client's tasks.
	pending *http.Request // of a client that has yet to send its token
	greeted bool          // OnConnect was called

	mu       sync.Mutex // guards below
	expiry   *time.Timer
	gone     bool
	inbox    [][]byte
	inboxLen int  // in bytes, with what each message costs
	handling bool // a task takes from inbox
}

// Subscriptions returns the client's channels, in no order.
func (c *Client) Subscriptions() []string { return c.conn.Channels() }

// Send sends a message to this client alone. A client whose queue is full is disconnected.
func (c *Client) Send(msg Message) error {
	data, err := msg.encode()
	if err != nil {
		return err
	}
	if err := c.conn.Send(data); err != nil {
		return fmt.Errorf("ws: send: %w", err)
	}
	return nil
}

// Close ends the connection with 1000, after what is queued was written. The error is always nil.
func (c *Client) Close() error {
	c.conn.Close(codeNormal, "")
	return nil
}

// Disconnect ends the connection with a close code and a reason, after what is queued was written.
func (c *Client) Disconnect(code uint16, reason string) { c.conn.Close(code, reason) }

// lane is the one lane of a client's tasks: all of them run in order.
const lane = "client"

// accept takes the client in.
func (c *Client) accept(result AuthResult) {
	c.UserID, c.Claims = result.UserID, result.Claims
	c.hub.clients.Add(1)
	c.accepted.Store(true)
}

// expireAt ends the connection at t, if t is not zero.
func (c *Client) expireAt(t time.Time) {
	if t.IsZero() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.expiry = time.AfterFunc(time.Until(t), func() { c.conn.Close(codePolicy, "credential expired") })
	}
}

// greet makes OnConnect the first task of a client that was accepted before it started, whoever calls it first.
func (c *Client) greet() {
	c.greeting.Do(func() { c.conn.Go(lane, c.connected) })
}

func (c *Client) connected() {
	c.greeted = true
	if f := c.hub.cfg.OnConnect; f != nil {
		f(c)
	}
}

// handler is the client as the core sees it.
type handler struct{ client *Client }

// Message runs on the event loop: it only puts the message where a task will find it.
func (h handler) Message(_ *hub.Conn, _ bool, data []byte) {
	c := h.client
	if cfg := &c.hub.cfg; cfg.FramesPerSecond > 0 {
		ok, _, stubborn := c.frames.Take(c.hub.clock(), cfg.FramesPerSecond, cfg.FrameBurst)
		switch {
		case stubborn:
			c.conn.Close(codePolicy, "too many messages")
			return
		case !ok:
			if c.accepted.Load() { // nothing is said to a client that has yet to send its token
				c.fail("too many messages")
			}
			return
		}
	}
	if !c.late {
		c.greet()
	}
	c.mu.Lock()
	c.inboxLen += len(data) + inboxCharge
	full := c.inboxLen > maxInbox
	start := false
	if !full {
		c.inbox = append(c.inbox, bytes.Clone(data))
		start = !c.handling
		c.handling = true
	}
	c.mu.Unlock()
	if full {
		c.conn.Close(codePolicy, "too many messages")
	} else if start {
		c.conn.Go(lane, c.handleInbox)
	}
}

// handleInbox handles what waits, a turn at a time.
func (c *Client) handleInbox() {
	for range inboxTurn {
		c.mu.Lock()
		if len(c.inbox) == 0 {
			c.inbox, c.handling = nil, false
			c.mu.Unlock()
			return
		}
		data := c.inbox[0]
		c.inbox[0] = nil
		c.inbox = c.inbox[1:]
		c.inboxLen -= len(data) + inboxCharge
		c.mu.Unlock()
		c.handle(data)
	}
	c.conn.Go(lane, c.handleInbox)
}

// Closed runs as the last task of the client.
func (h handler) Closed(_ *hub.Conn, reason Reason) {
	c := h.client
	c.mu.Lock()
	c.gone = true
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.mu.Unlock()
	if !c.accepted.Load() {
		if c.pending != nil && reason.Code == codePolicy && !reason.Remote {
			c.hub.authFailed(c.pending, AuthResult{Error: errors.Join(auth.ErrDenied, errLate)})
		}
		return
	}
	c.hub.clients.Add(-1)
	if f := c.hub.cfg.OnDisconnect; f != nil && c.greeted {
		f(c, reason)
	}
}

// handle answers one message of the client.
func (c *Client) handle(data []byte) {
	var req request
	err := json.Unmarshal(data, &req)
	if c.pending != nil {
		c.firstFrame(req)
		return
	}
	if err != nil {
		c.fail("the message is not a JSON object with a type")
		return
	}
	switch req.Type {
	case TypePing:
		_ = c.Send(Message{Type: TypePong})
	case TypeSubscribe:
		c.subscribe(req.channel())
	case TypeUnsubscribe:
		if checkChannel(req.channel()) != nil {
			c.fail("data must name a channel, in 1 to 255 bytes")
			return
		}
		c.hub.Unsubscribe(c, req.channel())
	case TypeAuth: // whoever is here is accepted
	default:
		c.fail("unknown message type")
	}
}

func (c *Client) subscribe(channel string) {
	if checkChannel(channel) != nil {
		c.fail("data must name a channel, in 1 to 255 bytes")
		return
	}
	if f := c.hub.cfg.OnSubscribe; f != nil {
		if err := f(c, channel); err != nil {
			c.hub.cfg.Logger.Debug("subscription refused", "user", c.UserID, "channel", channel, "error", err)
			_ = c.Send(Message{Type: TypeError, Channel: channel, Data: "subscription refused"})
			return
		}
	}
	err := c.hub.Subscribe(c, channel)
	if f := c.hub.cfg.OnUnsubscribe; f != nil && err != nil {
		f(c, channel)
	}
	switch {
	case err == nil, errors.Is(err, hub.ErrClosed):
	case errors.Is(err, hub.ErrConnChannelLimit):
		_ = c.Send(Message{Type: TypeError, Channel: channel, Data: "too many subscriptions"})
	default:
		_ = c.Send(Message{Type: TypeError, Channel: channel, Data: "too many channels"})
	}
}

func (c *Client) fail(text string) {
	_ = c.Send(Message{Type: TypeError, Data: text}) // a client that has gone needs no answer
}

// firstFrame judges the first message of a client that came without a token.
func (c *Client) firstFrame(req request) {
	original := c.pending
	result := AuthResult{Error: errors.Join(auth.ErrDenied, errNoToken)}
	if token := req.text(); req.Type == TypeAuth && token != "" {
		ctx, cancel := context.WithTimeout(original.Context(), firstFrameTime)
		defer cancel()
		stop := context.AfterFunc(*c.hub.ctx.Load(), cancel)
		defer stop()
		r := original.Clone(ctx)
		r.Header.Set("Authorization", "Bearer "+token)
		result = c.hub.authenticate(r)
	}
	if result.Valid {
		c.conn.SetIdle(0, 0, "")
		c.pending = nil
		c.accept(result)
		c.conn.SetMask(hub.Everyone)
		c.expireAt(result.ExpiresAt)
		c.connected()
		return
	}
	c.pending = nil
	c.hub.authFailed(original, result)
	if errors.Is(result.Error, auth.ErrUnavailable) {
		c.conn.Close(codeTryLater, "authentication unavailable")
		return
	}
	c.conn.Close(codePolicy, "unauthorized")
}
