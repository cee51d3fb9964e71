package tidewire

import (
	"context"
	"errors"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/wire"
)

// poller is how a client waits for the messages of a subscription.
type poller struct {
	event  *object.Event
	handle string
	once   bool // the end of the event is a time-out, not the end of a subscription that the client knows
}

// pollMessage is a message in the answer to a poll.
type pollMessage struct {
	Number uint64 `json:"number"`
	Text   string `json:"text"`
}

// pollAnswer is the answer to a poll, where it is not a time-out.
type pollAnswer struct {
	Status   string        `json:"status"` // "messages" or "ended"
	Messages []pollMessage `json:"messages,omitempty"`
	Reason   *string       `json:"reason,omitempty"`
}

// poll confirms the messages up to after and returns those that follow, at once or when one comes; nil at the time-out.
func (p *poller) poll(ctx context.Context, after uint64, wait time.Duration) (*pollAnswer, error) {
	got, err := p.event.Peek(ctx, p.handle, after, wait)
	switch {
	case err != nil:
		return nil, err
	case got.Status == object.Message:
		a := &pollAnswer{Status: "messages"}
		for i, text := range got.Texts {
			a.Messages = append(a.Messages, pollMessage{Number: after + uint64(i) + 1, Text: text})
		}
		return a, nil
	case got.Status == object.Ended && !(p.once && p.event.Context().Err() != nil):
		return &pollAnswer{Status: "ended", Reason: &got.Reason}, nil
	}
	return nil, nil
}

// answerPoll waits and answers.
func (n *Node) answerPoll(ctx context.Context, w http.ResponseWriter, p *poller, after uint64, wait time.Duration) error {
	a, err := p.poll(ctx, after, wait)
	n.answering(w)
	switch {
	case n.objects.ctx.Err() != nil && (err != nil || a == nil || a.Status == "ended"):
		return errDraining() // whatever it heard, the node's end is why
	case err != nil:
		return err
	case a == nil:
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusNoContent)
	default:
		n.answer(w, a)
	}
	return nil
}

// serveObjectWait is GET …/channels/{channel}/messages: a subscription for one wait.
func (n *Node) serveObjectWait(w http.ResponseWriter, r *http.Request, id string, c caller) error {
	wait, _, err := pollQuery(r, "wait")
	if err != nil {
		return err
	}
	free, err := n.objectPlace(c)
	if err != nil {
		return err
	}
	defer free()
	ctx, cancel := n.objects.within(r.Context(), c)
	defer cancel()
	e, err := n.objects.host.Begin(ctx, id)
	if err != nil {
		return err
	}
	defer e.End()
	handle, err := e.Subscribe(r.PathValue("channel"))
	if err != nil {
		return err
	}
	return n.answerPoll(r.Context(), w, &poller{event: e, handle: handle, once: true}, 0, wait)
}

// pollQuery reads the parameters of a poll.
func pollQuery(r *http.Request, names ...string) (wait time.Duration, after uint64, err error) {
	q, err := parameters(r, names...)
	if err != nil {
		return 0, 0, err
	}
	ms, err := number(q, "wait", 0, uint64(object.MaxWait.Milliseconds()))
	if err != nil {
		return 0, 0, err
	}
	after, err = number(q, "after", 0, math.MaxInt64)
	return time.Duration(ms) * time.Millisecond, after, err
}

// held is a subscription that a client comes back to. Its event ends by itself when the client does not.
type held struct {
	object string
	owner  caller

	turn   chan struct{} // holds the turn when nobody polls
	poller poller

	mu   sync.Mutex // guards next
	next func()     // ends the poll that has the turn, or waits for it
}

// serveObjectSubscribe is POST …/channels/{channel}/subscriptions.
func (n *Node) serveObjectSubscribe(w http.ResponseWriter, r *http.Request, id string, c caller) error {
	o := &n.objects
	free, err := n.objectPlace(c)
	if err != nil {
		return err
	}
	e, err := o.host.Hold(o.ctx, id)
	if err != nil {
		free()
		return err
	}
	handle, err := e.Subscribe(r.PathValue("channel"))
	if err != nil {
		e.End()
		free()
		return err
	}
	h := &held{object: id, owner: caller{backend: c.backend, actor: c.actor}, turn: make(chan struct{}, 1), poller: poller{event: e, handle: handle}}
	h.turn <- struct{}{}
	o.mu.Lock()
	o.held[handle] = h
	o.mu.Unlock()
	context.AfterFunc(e.Context(), func() {
		o.mu.Lock()
		delete(o.held, handle)
		o.mu.Unlock()
		free()
	})
	n.answer(w, map[string]any{"subscription": handle, "channel": r.PathValue("channel"), "idleMs": o.host.IdleTimeout().Milliseconds()})
	return nil
}

// holding returns the subscription of the path, if it is the caller's.
func (o *objects) holding(r *http.Request, id string, c caller) (*held, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.held[r.PathValue("subscription")]
	if h == nil || h.object != id || h.owner != (caller{backend: c.backend, actor: c.actor}) {
		return nil, errHandle()
	}
	return h, nil
}

func errHandle() error {
	return wire.Errorf(wire.CodeHandleUnknown, "there is no such subscription, or no longer")
}

// serveObjectPoll is GET …/subscriptions/{subscription}. A poll ends the one before it: its client has given that up, even if the node does not know yet.
func (n *Node) serveObjectPoll(w http.ResponseWriter, r *http.Request, id string, c caller) error {
	wait, after, err := pollQuery(r, "wait", "after")
	if err != nil {
		return err
	}
	h, err := n.objects.holding(r, id, c)
	if err != nil {
		return err
	}
	ctx, cancel := n.objects.within(r.Context(), c)
	defer cancel()
	h.mu.Lock()
	if h.next != nil {
		h.next()
	}
	h.next = cancel
	h.mu.Unlock()
	select {
	case <-h.turn:
	case <-ctx.Done():
		return errSuperseded(r)
	}
	defer func() { h.turn <- struct{}{} }()
	err = n.answerPoll(ctx, w, &h.poller, after, wait)
	switch {
	case errors.Is(err, context.Canceled):
		return errSuperseded(r)
	case errors.Is(err, object.ErrEnded):
		return errHandle()
	}
	return err
}

// errSuperseded is for a poll that another one has ended, if its client is still there.
func errSuperseded(r *http.Request) error {
	if r.Context().Err() != nil {
		return r.Context().Err()
	}
	return &wire.Error{Code: wire.CodeTimeout, Message: "another poll of the subscription took its place", Retry: retryLater}
}

// serveObjectCancel is DELETE …/subscriptions/{subscription}.
func (n *Node) serveObjectCancel(w http.ResponseWriter, r *http.Request, id string, c caller) error {
	h, err := n.objects.holding(r, id, c)
	if err != nil {
		return err
	}
	h.poller.event.End()
	w.WriteHeader(http.StatusNoContent)
	return nil
}
