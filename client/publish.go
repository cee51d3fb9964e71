package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tidewire/tidewire/wire"
)

// PublishOptions are the optional parts of a publication.
type PublishOptions struct {
	// ID identifies the message to its receivers; at most 64 bytes. Empty makes one. On a channel with history the server takes a message with an id that this client published there within
	// two minutes for the same, and keeps the first.
	ID string
	// Key says what the message replaces on a channel with the policy latest; at most 64 bytes.
	Key string
	// NoEcho leaves out this client. Its position on a channel with history moves all the same.
	NoEcho bool
	// NoWait returns when the message is sent, without an answer: a refusal is only logged, and a lost connection may take it along.
	NoWait bool
}

// Published is what became of a publication.
type Published struct {
	// ID is the message's. It is empty with NoWait and no PublishOptions.ID.
	ID string
	// Position is the message's in the log of a channel with history. It is zero without, and with NoWait.
	Position
}

var (
	// errNotSent means that the connection ended before the message was sent: it is tried on the next.
	errNotSent = errors.New("client: not sent")
	// errRepeat means that the connection ended before the answer, and that the server knows a repetition.
	errRepeat = errors.New("client: to be repeated")
	errLost   = fmt.Errorf("%w: connection lost", ErrUncertain)
)

// logs are channels of which the server has said that they have history.
type logs map[string]struct{}

func (l logs) note(channel string, has bool) {
	if !has {
		delete(l, channel)
		return
	}
	if _, known := l[channel]; !known && len(l) >= maxLogs {
		for other := range l { // any: what is not known is not repeated
			delete(l, other)
			break
		}
	}
	l[channel] = struct{}{}
}

// message is what one call of Publish sends.
type message struct {
	channel string
	id      string
	frame   []byte
	noWait  bool // no answer is wanted

	// When it was first sent, and by which session. Guarded by Client.mu.
	first   time.Time
	session string
}

// publication is one attempt at a message, on one connection.
type publication struct {
	*message
	release func()       // gives the place in the queue back
	done    chan outcome // gets one element
	once    sync.Once
	sent    bool // guarded by Client.mu
}

// outcome is how an attempt ended.
type outcome struct {
	at  Position
	err error
}

func (p *publication) finish(o outcome) {
	p.once.Do(func() {
		p.release()
		p.done <- o
	})
}

// Publish sends a message to a channel, to which the client need not be subscribed, and waits for the answer. It waits for a connection while there is none, and for the frame rate. The error is a
// [*wire.Error] if the message was refused, has [ErrUncertain] in it if the effect is unknown, and means that nothing was published otherwise. After Publish has returned the message is not sent.
//
// On a channel with history a message whose connection was lost before the answer is sent again on the next one, within 90 s, and published once: see the package's comment.
func (c *Client) Publish(ctx context.Context, channel string, data any, o PublishOptions) (Published, error) {
	m, err := c.message(channel, data, o)
	if err != nil {
		return Published{}, fmt.Errorf("client: publish: %w", err)
	}
	for repeated := false; ; {
		at, err := c.tryPublish(ctx, m, repeated)
		switch {
		case err == nil:
			return Published{ID: m.id, Position: at}, nil
		case errors.Is(err, errRepeat):
			repeated = true
			continue
		case errors.Is(err, errNotSent):
			continue
		case repeated && !errors.Is(err, ErrUncertain): // whatever became of the repetition, the first may have been published
			err = fmt.Errorf("%w: %w", ErrUncertain, err)
		}
		return Published{}, fmt.Errorf("client: publish: %w", err)
	}
}

// message checks and encodes a message.
func (c *Client) message(channel string, data any, o PublishOptions) (*message, error) {
	if !wire.ValidChannel(channel) {
		return nil, wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	if len(o.ID) > wire.MaxIDBytes || len(o.Key) > wire.MaxIDBytes {
		return nil, wire.Errorf(wire.CodeDataInvalid, "id and key have at most %d bytes", wire.MaxIDBytes)
	}
	raw, err := encodeData(data)
	if err != nil {
		return nil, err
	}
	out := outgoing{Type: wire.TypePublish, Channel: channel, Data: raw, ID: o.ID, Key: o.Key}
	if out.ID == "" && !o.NoWait {
		out.ID = c.prefix + "-" + strconv.FormatUint(c.ids.Add(1), 36)
	}
	if o.NoEcho {
		out.Echo = new(bool)
	}
	return &message{channel: channel, id: out.ID, frame: encode(out), noWait: o.NoWait}, nil
}

func (c *Client) tryPublish(ctx context.Context, m *message, repeated bool) (Position, error) {
	l, err := c.queueing(ctx, m, repeated)
	if err != nil {
		return Position{}, err
	}
	p := &publication{message: m, done: make(chan outcome, 1), release: sync.OnceFunc(func() { <-c.slots })}
	if err := l.publish(ctx, p); err != nil {
		p.release()
		return Position{}, err
	}
	select {
	case o := <-p.done:
		return o.at, o.err
	case <-ctx.Done():
	}
	c.mu.Lock()
	sent := p.sent
	l.queue = slices.DeleteFunc(l.queue, func(cmd command) bool { return cmd.pub == p })
	if l.pending[p.id] == p {
		delete(l.pending, p.id)
	}
	c.mu.Unlock()
	p.release()
	select {
	case o := <-p.done: // it came meanwhile
		if o.err == nil || !errors.Is(o.err, errRepeat) && !errors.Is(o.err, errNotSent) {
			return o.at, o.err
		}
	default:
	}
	if !sent {
		return Position{}, ctx.Err()
	}
	return Position{}, fmt.Errorf("%w: %w", ErrUncertain, ctx.Err())
}

// queueing waits for a connection and a place in its queue.
func (c *Client) queueing(ctx context.Context, m *message, repeated bool) (*link, error) {
	wait := ctx
	if repeated {
		c.mu.Lock()
		end := m.first.Add(repeatWindow)
		c.mu.Unlock()
		var cancel context.CancelFunc
		wait, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	l, err := c.ready(wait)
	if err == nil {
		select {
		case c.slots <- struct{}{}:
			return l, nil
		case <-wait.Done():
			err = wait.Err()
		}
	}
	if repeated && wait.Err() != nil && ctx.Err() == nil {
		err = errLost // it is too late to repeat it
	}
	return nil, err
}

// publish queues a message.
func (l *link) publish(ctx context.Context, p *publication) error {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case l.c.link != l:
		return errNotSent
	case l.limits.FrameBytes > 0 && len(p.frame) > l.limits.FrameBytes:
		return wire.Errorf(wire.CodeMessageTooLarge, "the message takes a frame of %d bytes, more than the server's %d", len(p.frame), l.limits.FrameBytes)
	case !p.noWait && l.awaits(p.id):
		return wire.Errorf(wire.CodeDataInvalid, "a message with this id is on its way")
	}
	l.pushLocked(command{kind: wire.TypePublish, pub: p, frame: p.frame})
	return nil
}

// awaits reports whether a message with an id is queued or not answered.
func (l *link) awaits(id string) bool {
	if l.pending[id] != nil {
		return true
	}
	for _, cmd := range l.queue {
		if cmd.pub != nil && !cmd.pub.noWait && cmd.pub.id == id {
			return true
		}
	}
	return false
}

// sendLocked returns the frame of a message whose turn has come, or nil if it must not be repeated any more: the server may have forgotten it, or takes this client for another session.
func (l *link) sendLocked(p *publication) []byte {
	c := l.c
	if p.first.IsZero() {
		p.first, p.session = time.Now(), l.session
	} else if late := max(time.Since(p.first), c.wall().Sub(p.first.Round(0))) > repeatWindow; late || p.session != l.session {
		p.finish(outcome{err: errLost})
		return nil
	}
	p.sent = true
	p.release()
	if p.noWait {
		p.finish(outcome{})
	} else {
		l.pending[p.id] = p
	}
	return p.frame
}

// lostLocked is how an attempt ends whose connection ended before the answer.
func (l *link) lostLocked(p *publication) outcome {
	s := l.c.subs[p.channel]
	if _, known := l.c.logs[p.channel]; known || s != nil && s.logged {
		return outcome{err: errRepeat}
	}
	return outcome{err: errLost}
}
