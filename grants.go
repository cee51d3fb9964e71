package tidewire

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/wire"
)

// Grant is what an authenticator gives a connection.
type Grant struct {
	Actor Actor
	// ExpiresAt is when the grant must be decided again. Zero means never.
	ExpiresAt time.Time
	// Refresh decides again. A nil grant means no, an error that it could not decide: the connection is kept and asked for again. Nil closes an expired
	// connection with 1008, so that the client comes back with a fresh credential.
	Refresh func(ctx context.Context) (*Grant, error)
}

func (g *Grant) expired(now time.Time) bool {
	return g != nil && !g.ExpiresAt.IsZero() && !now.Before(g.ExpiresAt)
}

// reauthorizeLoop decides expired grants again, a bounded number at a time.
func (n *Node) reauthorizeLoop(ctx context.Context) {
	tick := time.NewTicker(n.opts.ReauthorizeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var due []*session
		now := time.Now()
		n.eachSession(func(s *session) {
			if s.grant().expired(now) {
				due = append(due, s)
			}
		})
		slots := make(chan struct{}, 16)
		var wg sync.WaitGroup
		for _, s := range due {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				s.renew(ctx)
			})
		}
		wg.Wait()
	}
}

// renew decides an expired grant again.
func (s *session) renew(ctx context.Context) {
	n, g := s.node, s.grant()
	if g.Refresh == nil {
		s.conn.Close(1008, "grant expired")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, n.opts.CommandTimeout)
	defer cancel()
	next, err := s.callRefresh(ctx, g)
	switch {
	case err != nil:
		n.stats.refreshFailures.Add(1)
		n.log.Warn("grant refresh failed; the connection is kept", "actor", g.Actor.ID, "error", err)
	case next == nil || next.Actor.ID != g.Actor.ID:
		s.conn.Close(1008, "grant withdrawn")
	default:
		s.replaceGrant(next)
	}
}

// callRefresh runs the application's code: a panic there is a failure to decide.
func (s *session) callRefresh(ctx context.Context, g *Grant) (next *Grant, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.New("refresh panicked")
			s.node.log.Error("grant refresh panicked", "panic", r)
		}
	}()
	return g.Refresh(ctx)
}

// replaceGrant gives the connection a fresh grant of the same actor and asks every guard again.
func (s *session) replaceGrant(g *Grant) {
	s.mu.Lock()
	s.granted = g
	s.mu.Unlock()
	s.reauthorize()
}

// Reauthorize asks the guards again for every subscription of an actor: call it when the actor's rights have changed. When it returns, nothing more
// reaches a connection whose guard denied it.
func (n *Node) Reauthorize(actor string) {
	var wg sync.WaitGroup
	n.eachSession(func(s *session) {
		if s.actor().ID == actor {
			s.reauthorizeWith(&wg)
		}
	})
	n.recheckWS(actor)
	wg.Wait()
}

func (s *session) reauthorize() { s.reauthorizeWith(nil) }

// reauthorizeWith asks the guards of all subscriptions, each in its channel's lane. A denial ends the subscription; a guard that fails keeps it.
func (s *session) reauthorizeWith(wg *sync.WaitGroup) {
	for _, sub := range s.subscriptions() {
		s.recheckIn(sub.channel, wg, func() { s.recheck(sub) })
	}
	for _, q := range s.querySubscriptions() {
		s.recheckIn(q.lane(), wg, func() { s.recheckQuery(q) })
	}
}

func (s *session) recheckIn(lane string, wg *sync.WaitGroup, recheck func()) {
	if wg == nil {
		wg = new(sync.WaitGroup)
	}
	wg.Add(1)
	ok := s.conn.Go(lane, func() {
		defer wg.Done()
		recheck()
	})
	if !ok {
		wg.Done()
		// Too busy to ask, or closing. An unasked guard must not let anything through.
		s.conn.Close(1008, "could not be authorized again")
	}
}

func (s *session) recheck(sub *subscription) {
	actions := []Action{ActionSubscribe}
	if sub.room != nil {
		actions = append(actions, ActionPresence)
	}
	_, err := s.node.allow(context.Background(), s.actor(), sub.channel, actions...)
	if !errors.Is(err, &wire.Error{Code: wire.CodeTopicForbidden}) {
		return
	}
	if s.remove(sub) {
		s.leave(sub, false)
		e := wire.AsError(err)
		s.send(wire.Reply{Type: wire.TypeUnsubscribed, SID: sub.sid, Channel: sub.channel, Code: e.Code, Cause: e.Message}.Encode())
	}
}

// AuthenticateWith makes an authenticator for [Options] of a verifier: the token is read by [auth.Token], the actor is the identity's subject with its
// claims, and the grant expires with the token.
func AuthenticateWith(v auth.Verifier) func(*http.Request) (*Grant, error) {
	return func(r *http.Request) (*Grant, error) {
		token, ok := auth.Token(r)
		if !ok {
			return nil, nil
		}
		return verify(r.Context(), v, token)
	}
}

// ReauthenticateWith is the same for [Options.Reauthenticate].
func ReauthenticateWith(v auth.Verifier) func(context.Context, string) (*Grant, error) {
	return func(ctx context.Context, token string) (*Grant, error) { return verify(ctx, v, token) }
}

func verify(ctx context.Context, v auth.Verifier, token string) (*Grant, error) {
	id, err := v.Verify(ctx, token)
	switch {
	case errors.Is(err, auth.ErrDenied):
		return nil, nil
	case err != nil:
		return nil, err
	case id.Subject == "":
		return nil, nil // a token that names nobody must not make an anonymous actor
	}
	return &Grant{Actor: Actor{ID: id.Subject, Claims: id.Claims}, ExpiresAt: id.ExpiresAt}, nil
}
