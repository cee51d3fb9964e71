package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/tidewire/tidewire/wire"
)

// PublishOptions are the optional parts of a publication.
type PublishOptions struct {
	// ID identifies the message to its receivers; at most 64 bytes. Empty makes one.
	ID string
	// Key says what the message replaces on a channel with the policy latest; at most 64 bytes.
	Key string
	// NoEcho leaves out this client.
	NoEcho bool
	// NoWait returns when the message is sent, without an answer: a refusal is only logged.
	NoWait bool
}

// Published is what became of a publication.
type Published struct {
	// ID is the message's. It is empty with NoWait and no PublishOptions.ID.
	ID string
}

// errNotSent means that the connection ended before the message was sent: it is tried on the next.
var errNotSent = errors.New("client: not sent")

// publication is one call of Publish.
type publication struct {
	id      string // empty if no answer is wanted
	release func() // gives the place in the queue back
	done    chan error
	once    sync.Once
	sent    bool // guarded by Client.mu
}

func (p *publication) finish(err error) {
	p.once.Do(func() {
		p.release()
		p.done <- err
	})
}

// Publish sends a message to a channel, to which the client need not be subscribed, and waits for the answer. It waits for a connection while there is none, and for the frame rate. The error is a
// [*wire.Error] if the message was refused, has [ErrUncertain] in it if the effect is unknown, and means that nothing was published otherwise.
func (c *Client) Publish(ctx context.Context, channel string, data any, o PublishOptions) (Published, error) {
	id, frame, err := c.publication(channel, data, o)
	if err != nil {
		return Published{}, fmt.Errorf("client: publish: %w", err)
	}
	for {
		err := c.tryPublish(ctx, id, frame, o.NoWait)
		switch {
		case err == nil:
			return Published{ID: id}, nil
		case !errors.Is(err, errNotSent):
			return Published{}, fmt.Errorf("client: publish: %w", err)
		}
	}
}

// publication checks and encodes a message.
func (c *Client) publication(channel string, data any, o PublishOptions) (id string, frame []byte, err error) {
	if !wire.ValidChannel(channel) {
		return "", nil, wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	if len(o.ID) > wire.MaxIDBytes || len(o.Key) > wire.MaxIDBytes {
		return "", nil, wire.Errorf(wire.CodeDataInvalid, "id and key have at most %d bytes", wire.MaxIDBytes)
	}
	raw, err := encodeData(data)
	if err != nil {
		return "", nil, err
	}
	out := outgoing{Type: wire.TypePublish, Channel: channel, Data: raw, ID: o.ID, Key: o.Key}
	if out.ID == "" && !o.NoWait {
		out.ID = c.prefix + "-" + strconv.FormatUint(c.ids.Add(1), 36)
	}
	if o.NoEcho {
		out.Echo = new(bool)
	}
	return out.ID, encode(out), nil
}

func (c *Client) tryPublish(ctx context.Context, id string, frame []byte, noWait bool) error {
	l, err := c.ready(ctx)
	if err != nil {
		return err
	}
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	p := &publication{done: make(chan error, 1), release: sync.OnceFunc(func() { <-c.slots })}
	if !noWait {
		p.id = id
	}
	if err := l.publish(p, frame); err != nil {
		p.release()
		return err
	}
	select {
	case err := <-p.done:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	sent := p.sent
	l.queue = slices.DeleteFunc(l.queue, func(cmd command) bool { return cmd.pub == p })
	if p.id != "" && l.pending[p.id] == p {
		delete(l.pending, p.id)
	}
	c.mu.Unlock()
	p.release()
	if !sent {
		return ctx.Err()
	}
	select {
	case err := <-p.done: // it came meanwhile
		return err
	default:
		return fmt.Errorf("%w: %w", ErrUncertain, ctx.Err())
	}
}

// publish queues a message.
func (l *link) publish(p *publication, frame []byte) error {
	l.c.mu.Lock()
	defer l.c.mu.Unlock()
	switch {
	case l.c.link != l:
		return errNotSent
	case l.limits.FrameBytes > 0 && len(frame) > l.limits.FrameBytes:
		return wire.Errorf(wire.CodeMessageTooLarge, "the message takes a frame of %d bytes, more than the server's %d", len(frame), l.limits.FrameBytes)
	case p.id != "" && l.awaits(p.id):
		return wire.Errorf(wire.CodeDataInvalid, "a message with this id is on its way")
	}
	l.pushLocked(command{kind: wire.TypePublish, pub: p, frame: frame})
	return nil
}

// awaits reports whether a message with an id is queued or not answered.
func (l *link) awaits(id string) bool {
	if l.pending[id] != nil {
		return true
	}
	for _, cmd := range l.queue {
		if cmd.pub != nil && cmd.pub.id == id {
			return true
		}
	}
	return false
}
