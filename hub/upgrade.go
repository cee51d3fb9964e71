package hub

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gobwas/ws"
)

// HandshakeError is a refused upgrade. Nothing has been written to the client: the caller answers with Status.
type HandshakeError struct {
	Status int
	Reason string
	Err    error // [ErrConnLimit] or [ErrNotRunning], where that is the cause
}

func (e *HandshakeError) Error() string { return "hub: handshake: " + e.Reason }
func (e *HandshakeError) Unwrap() error { return e.Err }

// UpgradeOptions says how a connection is accepted.
type UpgradeOptions struct {
	// Dialect is how messages are encoded for the connection.
	Dialect Dialect
	// Protocol selects a subprotocol among those that the client offers, in its order. Nil selects none.
	Protocol func(offered string) bool
}

// CheckHandshake reports what is wrong with a request to upgrade, or nil. It does not look at the origin: see [OriginAllowed].
func CheckHandshake(r *http.Request) error {
	bad := func(status int, reason string) error { return &HandshakeError{Status: status, Reason: reason} }
	switch {
	case r.Method != http.MethodGet:
		return bad(http.StatusMethodNotAllowed, "the method is not GET")
	case r.ProtoMajor != 1 || r.ProtoMinor < 1:
		return bad(http.StatusHTTPVersionNotSupported, "HTTP/1.1 is needed")
	case !headerHas(r.Header, "Connection", "upgrade") || !headerHas(r.Header, "Upgrade", "websocket"):
		return bad(http.StatusUpgradeRequired, "not a WebSocket upgrade")
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return bad(http.StatusUpgradeRequired, "Sec-WebSocket-Version is not 13")
	case len(r.Header.Get("Sec-WebSocket-Key")) != 24:
		return bad(http.StatusBadRequest, "bad Sec-WebSocket-Key")
	}
	return nil
}

func headerHas(h http.Header, name, token string) bool {
	for _, v := range h.Values(name) {
		for t := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

// OriginAllowed reports whether a page of the request's origin may connect. A request without an Origin header (not a browser) may, and so may a page of the same host.
// Others need an entry in allowed: an origin such as "https://app.example.com", a host pattern such as "https://*.example.com" where * is one or more
// labels, "null", or "*" for all.
func OriginAllowed(r *http.Request, allowed []string) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if u, err := url.Parse(origin); err == nil && u.Host != "" && strings.EqualFold(u.Host, r.Host) {
		return true
	}
	for _, a := range allowed {
		if a == "*" || strings.EqualFold(a, origin) {
			return true
		}
		scheme, host, ok := strings.Cut(a, "://*.")
		if !ok {
			continue
		}
		if u, err := url.Parse(origin); err == nil && strings.EqualFold(u.Scheme, scheme) &&
			strings.HasSuffix(strings.ToLower(u.Host), "."+strings.ToLower(host)) {
			return true
		}
	}
	return false
}

// CheckOrigins reports an entry that [OriginAllowed] would never match.
func CheckOrigins(allowed []string) error {
	for _, a := range allowed {
		if a == "*" || a == "null" {
			continue
		}
		u, err := url.Parse(strings.Replace(a, "://*.", "://x.", 1))
		if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || strings.Contains(u.Host, "*") {
			return fmt.Errorf("hub: origin %q: want scheme://host[:port], scheme://*.host, null or *", a)
		}
	}
	return nil
}

// Upgrade answers a request to upgrade and returns the connection, which does nothing until [Conn.Start]. The caller has decided that the client may connect.
// A refusal is a [*HandshakeError], and nothing has been written.
func (h *Hub) Upgrade(w http.ResponseWriter, r *http.Request, o UpgradeOptions) (*Conn, error) {
	if o.Dialect >= MaxDialects {
		panic("hub: no such dialect")
	}
	if err := CheckHandshake(r); err != nil {
		return nil, err
	}
	if err := h.reserve(r.Context()); err != nil {
		return nil, &HandshakeError{Status: http.StatusServiceUnavailable, Reason: err.Error(), Err: err}
	}
	c, err := h.upgrade(w, r, o)
	if err != nil {
		h.unreserve()
	}
	return c, err
}

func (h *Hub) upgrade(w http.ResponseWriter, r *http.Request, o UpgradeOptions) (*Conn, error) {
	up := ws.HTTPUpgrader{Protocol: o.Protocol, Timeout: h.opts.WriteTimeout}
	agree := newNegotiation()
	if h.opts.Compression {
		up.Negotiate = agree.negotiate
	}
	conn, rw, _, err := up.Upgrade(r, w)
	if err != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return nil, fmt.Errorf("hub: upgrade: %w", err)
	}
	_ = conn.SetDeadline(time.Time{})
	var early []byte // bytes that came with the request
	if n := rw.Reader.Buffered(); n > 0 {
		early = make([]byte, n)
		_, _ = rw.Read(early)
	}
	c := h.newConn(o.Dialect)
	c.deflate = agree.agreed()
	if err := c.attach(conn, early); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("hub: upgrade: %w", err)
	}
	return c, nil
}

// attach gives the connection its socket.
func (c *Conn) attach(conn net.Conn, early []byte) error {
	if !c.hub.opts.Portable {
		if ok, err := attachPoll(c, conn, early); ok || err != nil {
			return err
		}
	}
	c.link = &portableLink{c: c, conn: conn, early: early}
	return nil
}
