package tidewire

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/internal/budget"
	"github.com/tidewire/tidewire/wire"
)

// serveSocket is GET /v1/socket.
func (n *Node) serveSocket(w http.ResponseWriter, r *http.Request) {
	if err := hub.CheckHandshake(r); err != nil {
		n.refuseHandshake(w, err)
		return
	}
	if !offers(r, wire.Subprotocol) {
		n.problem(w, wire.Errorf(wire.CodeProtocolVersion, "the client does not offer the subprotocol %s", wire.Subprotocol))
		return
	}
	grant, err := n.admit(r)
	if err != nil {
		n.problem(w, err)
		return
	}
	c, err := n.hub.Upgrade(w, r, hub.UpgradeOptions{
		Dialect:  dialectNative,
		Protocol: func(p string) bool { return p == wire.Subprotocol },
	})
	if err != nil {
		n.refuseHandshake(w, err)
		return
	}
	s := &session{node: n, conn: c, granted: grant, budget: budget.NewFrames(n.clock(), n.opts.Limits.FrameBurst)}
	c.SetIdle(n.opts.HelloTimeout, wire.CloseNoHello, "no hello")
	n.stats.live.Add(1)
	c.Start(s)
	if n.draining.Load() { // it slipped in while the drain began
		s.sendAway(0)
	}
}

// admit decides whether a connection may come in, cheapest question first: origin, drain, budget, place, and last who it is. The place is asked for again by the
// upgrade, since authentication may take long.
func (n *Node) admit(r *http.Request) (*Grant, error) {
	if !hub.OriginAllowed(r, n.opts.AllowedOrigins) {
		n.log.Warn("origin refused; add it to the allowed origins to accept it", "origin", r.Header.Get("Origin"), "host", r.Host, "setting", "allowed_origins")
		return nil, wire.Errorf(wire.CodeOriginForbidden, "pages of this origin may not connect")
	}
	if n.draining.Load() {
		return nil, &wire.Error{Code: wire.CodeDraining, Message: "the node is going away", Retry: spread(retryLater)}
	}
	if ok, retry := n.accepts.Take(); !ok {
		n.stats.shed.Add(1)
		return nil, &wire.Error{Code: wire.CodeAcceptBudget, Message: "more connections than the node accepts in a second", Retry: retry}
	}
	if n.hub.Full() {
		n.stats.shed.Add(1)
		return nil, &wire.Error{Code: wire.CodeConnectionLimit, Message: "the node is full", Retry: spread(5 * time.Second)}
	}
	if n.opts.Authenticate == nil {
		return nil, nil
	}
	grant, err := n.authenticate(r)
	switch {
	case err != nil:
		n.log.Error("authentication unavailable", "error", err)
		return nil, &wire.Error{Code: wire.CodeSocketAuthUnavailable, Message: "the credential could not be checked", Retry: spread(retryLater), Err: err}
	case grant == nil:
		return nil, wire.Errorf(wire.CodeSocketUnauthenticated, "the credential is missing, wrong or expired")
	}
	if n.draining.Load() {
		return nil, &wire.Error{Code: wire.CodeDraining, Message: "the node is going away", Retry: spread(retryLater)}
	}
	return grant, nil
}

// spread returns a delay around d, so that clients which are sent away together do not come back together.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// authenticate runs the application's authenticator within CommandTimeout. A panic there is a failure to decide, not a decision.
func (n *Node) authenticate(r *http.Request) (grant *Grant, err error) {
	defer func() {
		if p := recover(); p != nil {
			n.log.Error("authenticator panicked", "panic", p)
			grant, err = nil, errors.New("authenticator panicked")
		}
	}()
	ctx, cancel := contextWithTimeout(r, n.opts.CommandTimeout)
	defer cancel()
	return n.opts.Authenticate(r.WithContext(ctx))
}

func (n *Node) refuseHandshake(w http.ResponseWriter, err error) {
	var h *hub.HandshakeError
	switch {
	case errors.Is(err, hub.ErrConnLimit):
		n.stats.shed.Add(1)
		n.problem(w, &wire.Error{Code: wire.CodeConnectionLimit, Message: "the node is full", Retry: spread(5 * time.Second)})
	case errors.Is(err, hub.ErrNotRunning):
		n.problem(w, &wire.Error{Code: wire.CodeDraining, Message: "the node is not running", Retry: spread(retryLater)})
	case errors.As(err, &h):
		if h.Status == http.StatusUpgradeRequired {
			w.Header().Set("Upgrade", "websocket")
			w.Header().Set("Sec-WebSocket-Version", "13")
		}
		n.problemStatus(w, h.Status, wire.Errorf(wire.CodeHandshakeInvalid, "%s", h.Reason))
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		n.log.Error("a connection was cut: no more open files; raise the limit, or lower the limit of connections", "error", err)
	default: // the connection was taken over already and is closed
		n.log.Debug("upgrade failed", "error", err)
	}
}

// offers reports whether the client offers a subprotocol.
func offers(r *http.Request, protocol string) bool {
	for _, v := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(v, ",") {
			if strings.TrimSpace(p) == protocol {
				return true
			}
		}
	}
	return false
}
