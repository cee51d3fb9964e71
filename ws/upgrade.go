package ws

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/internal/budget"
)

// Subprotocol is what the hub selects, if a client offers it. A client that offers no subprotocol needs none.
const Subprotocol = "tidewire.ws"

// firstFrameTime is how long a client may take to send its token.
const firstFrameTime = 10 * time.Second

// retryAfter is in seconds, for answers that are a failure of the server.
const retryAfter = "5"

// The close codes that this package sends.
const (
	codeNormal   = 1000
	codePolicy   = 1008
	codeTryLater = 1013
)

var (
	errNoToken = errors.New("ws: the first message was not a token")
	errLate    = errors.New("ws: no token came in time")
	errPanic   = errors.New("ws: the authenticator panicked")
)

// Handler returns the handler that accepts clients.
func (h *Hub) Handler() http.HandlerFunc { return h.HandleWebSocket }

// HandleWebSocket accepts one client. It answers 403 to a page of another origin, 401 to a client that is refused, and 503 with Retry-After if the hub is full or does not run, or if the
// client could not be judged.
func (h *Hub) HandleWebSocket(w http.ResponseWriter, r *http.Request) {
	if err := hub.CheckHandshake(r); err != nil {
		answer(w, err)
		return
	}
	if !h.originAllowed(r) {
		h.cfg.Logger.Warn("WebSocket connection refused: the page's origin is not in AllowedOrigins",
			"origin", r.Header.Get("Origin"), "host", r.Host)
		http.Error(w, "origin not allowed", http.StatusForbidden)
		return
	}
	result, wait := h.authenticateUpgrade(r)
	if !result.Valid && !wait {
		h.authFailed(r, result)
		if errors.Is(result.Error, auth.ErrUnavailable) {
			w.Header().Set("Retry-After", retryAfter)
			http.Error(w, "authentication unavailable", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "unauthorized", http.StatusUnauthorized)
		return
	}
	conn, err := h.core.Upgrade(w, r, hub.UpgradeOptions{
		Dialect:  h.dialect,
		Protocol: func(offered string) bool { return offered == Subprotocol },
	})
	if err != nil {
		answer(w, err)
		return
	}
	c := &Client{hub: h, conn: conn, late: wait, frames: budget.NewFrames(h.clock(), h.cfg.FrameBurst)}
	if wait {
		c.pending = r.Clone(context.WithoutCancel(r.Context()))
		conn.SetMask(0) // no broadcast reaches it
		conn.SetIdle(firstFrameTime, codePolicy, "no token came in time")
	} else {
		c.accept(result)
	}
	conn.Start(handler{c})
	if !wait {
		c.expireAt(result.ExpiresAt)
		c.greet()
	}
}

// clock is in milliseconds since the hub was made.
func (h *Hub) clock() uint32 { return uint32(time.Since(h.started).Milliseconds()) }

// answer tells a client that its handshake was refused. Any other error comes after the connection was taken over, and there is nobody to tell.
func answer(w http.ResponseWriter, err error) {
	var refused *hub.HandshakeError
	if !errors.As(err, &refused) {
		return
	}
	switch refused.Status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", retryAfter)
	case http.StatusUpgradeRequired:
		w.Header().Set("Upgrade", "websocket")
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Sec-WebSocket-Version", "13")
	}
	http.Error(w, refused.Reason, refused.Status)
}

func (h *Hub) originAllowed(r *http.Request) (ok bool) {
	if h.cfg.CheckOrigin == nil {
		return hub.OriginAllowed(r, h.cfg.AllowedOrigins)
	}
	h.contain(func() { ok = h.cfg.CheckOrigin(r) })
	return ok
}

// authenticateUpgrade judges a request. wait says that the token may come as the first message.
func (h *Hub) authenticateUpgrade(r *http.Request) (result AuthResult, wait bool) {
	if h.cfg.Authenticator == nil {
		return AuthResult{Valid: true}, false
	}
	result = h.authenticate(r)
	if result.Valid || !h.cfg.AllowFirstFrameAuth || errors.Is(result.Error, auth.ErrUnavailable) {
		return result, false
	}
	_, presented := auth.Token(r)
	return result, !presented
}

// authenticate asks the authenticator. One that panics could not decide.
func (h *Hub) authenticate(r *http.Request) (result AuthResult) {
	result.Error = errors.Join(auth.ErrUnavailable, errPanic)
	h.contain(func() { result = h.cfg.Authenticator.Authenticate(r) })
	return result
}

func (h *Hub) authFailed(r *http.Request, result AuthResult) {
	h.refused.Add(1)
	if h.cfg.OnAuthFailure != nil {
		h.contain(func() { h.cfg.OnAuthFailure(r, result) })
	}
}

// contain runs a callback that belongs to no connection.
func (h *Hub) contain(f func()) {
	defer func() {
		if v := recover(); v != nil {
			h.panics.Add(1)
			h.cfg.Logger.Error("panic in a callback", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	f()
}
