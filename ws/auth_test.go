package ws_test

import (
	"context"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/ws"
)

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func token64(token string) string {
	return "tidewire.token64." + base64.RawURLEncoding.EncodeToString([]byte(token))
}

var secret = []byte("0123456789abcdef0123456789abcdef")

func TestH15_NoAuthenticator(t *testing.T) {
	s := start(t, ws.HubConfig{})
	s.dial(t, nil).sync()
	s.dial(t, bearer("anything")).sync()
}

func TestH15_Refused(t *testing.T) {
	failures := make(chan ws.AuthResult, 1)
	s := start(t, ws.HubConfig{
		Authenticator: ws.NewAPIKeyAuth(map[string]string{"key": "user"}),
		OnAuthFailure: func(r *http.Request, result ws.AuthResult) {
			if r.URL.Path != "/" {
				t.Errorf("path %q", r.URL.Path)
			}
			failures <- result
		},
		OnConnect: func(*ws.Client) { t.Error("OnConnect was called") },
	})
	for _, header := range []http.Header{nil, bearer("wrong"), bearer(""), {"Authorization": {"Basic key"}}} {
		_, resp, err := s.tryDial(t, header)
		if err == nil || resp.StatusCode != http.StatusUnauthorized || resp.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%v: %v, %v, want 401", header, resp, err)
		}
		if f := receive(t, failures); f.Valid || !errors.Is(f.Error, auth.ErrDenied) {
			t.Errorf("result %+v, want a denial", f)
		}
	}
	if st := s.Stats(); st.Refused != 4 || st.Clients != 0 {
		t.Errorf("stats %+v, want 4 refused", st)
	}
}

// A failure to decide is not a denial.
func TestH15_Unavailable(t *testing.T) {
	s := start(t, ws.HubConfig{
		AllowFirstFrameAuth: true,
		Authenticator: ws.AuthenticatorFunc(func(r *http.Request) ws.AuthResult {
			if _, ok := auth.Token(r); !ok {
				return ws.AuthResult{Error: auth.ErrDenied}
			}
			return ws.AuthResult{Error: auth.ErrUnavailable}
		}),
	})
	_, resp, err := s.tryDial(t, bearer("key"))
	if err == nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("dial: %v, %v, want 503 with Retry-After", resp, err)
	}
	c := s.dial(t, nil)
	c.send(`{"type":"auth","data":"key"}`)
	if code := c.closed(); code != 1013 {
		t.Errorf("close code %d, want 1013", code)
	}
}

func TestH16_Authenticator(t *testing.T) {
	clients := make(chan *ws.Client, 1)
	s := start(t, ws.HubConfig{
		Authenticator: ws.AuthenticatorFunc(func(r *http.Request) ws.AuthResult {
			cookie, err := r.Cookie("session")
			if err != nil {
				return ws.AuthResult{Error: err}
			}
			return ws.AuthResult{Valid: true, UserID: cookie.Value, Claims: map[string]any{"role": "admin"}}
		}),
		OnConnect: func(c *ws.Client) {
			if c.UserID != "alice" || c.Claims["role"] != "admin" {
				t.Errorf("client %q, %v in OnConnect", c.UserID, c.Claims)
			}
			clients <- c
		},
		OnSubscribe: func(c *ws.Client, channel string) error {
			if channel != "user:"+c.UserID {
				return errors.New("not yours")
			}
			return nil
		},
	})
	if _, resp, err := s.tryDial(t, nil); err == nil || resp.StatusCode != 401 {
		t.Errorf("without a cookie: %v, want 401", err)
	}
	c := s.dial(t, http.Header{"Cookie": {"session=alice"}})
	c.send(`{"type":"subscribe","data":"user:alice"}`)
	c.send(`{"type":"subscribe","data":"user:bob"}`)
	if m := c.next(); m.Type != ws.TypeError || m.Channel != "user:bob" {
		t.Errorf("got %+v, want a refusal of user:bob", m)
	}
	if got := receive(t, clients).Subscriptions(); len(got) != 1 || got[0] != "user:alice" {
		t.Errorf("subscriptions %v, want user:alice", got)
	}
}

func TestH17_WhereATokenIsAccepted(t *testing.T) {
	token, err := auth.Sign(secret, auth.Identity{Subject: "bob", ExpiresAt: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := ws.NewJWTAuth(auth.JWTOptions{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ws.NewJWTAuth(auth.JWTOptions{}); err == nil {
		t.Error("NewJWTAuth without a key: no error")
	}
	for _, a := range []struct {
		name  string
		by    ws.Authenticator
		token string
		user  string
	}{
		{"API key", ws.NewAPIKeyAuth(map[string]string{"key one": "alice"}), "key one", "alice"},
		{"JWT", tokens, token, "bob"},
		{"either", ws.NewTokenAuth(auth.Any(auth.NewAPIKeys(nil), tokens.JWT)), token, "bob"},
	} {
		for _, c := range []struct {
			name     string
			header   http.Header
			protocol []string
			first    string
			selected string
		}{
			{name: "header", header: bearer(a.token)},
			{name: "header beside a subprotocol", header: bearer(a.token), protocol: []string{"graphql-ws"}},
			{name: "subprotocol", protocol: []string{"tidewire.ws", "tidewire.token." + a.token}, selected: "tidewire.ws"},
			{name: "subprotocol first", protocol: []string{"tidewire.token." + a.token, "tidewire.ws"}, selected: "tidewire.ws"},
			{name: "base64", protocol: []string{token64(a.token), "tidewire.ws"}, selected: "tidewire.ws"},
			{name: "base64 alone", protocol: []string{token64(a.token)}},
			{name: "first frame", first: a.token},
		} {
			if strings.Contains(a.token, " ") && strings.HasPrefix(c.name, "subprotocol") {
				continue // cannot be written there
			}
			t.Run(a.name+"/"+c.name, func(t *testing.T) {
				users := make(chan string, 1)
				s := start(t, ws.HubConfig{Authenticator: a.by, AllowFirstFrameAuth: true, OnConnect: func(c *ws.Client) { users <- c.UserID }})
				conn := s.dial(t, c.header, c.protocol...)
				if c.first != "" {
					conn.send(`{"type":"auth","data":"` + c.first + `"}`)
				}
				conn.sync()
				if u := receive(t, users); u != a.user {
					t.Errorf("user %q, want %q", u, a.user)
				}
				if p := conn.Subprotocol(); p != c.selected {
					t.Errorf("selected %q, want %q", p, c.selected)
				}
			})
		}
	}
}

func TestH17_FirstFrame(t *testing.T) {
	for _, c := range []struct {
		name, first string
	}{
		{"wrong token", `{"type":"auth","data":"wrong"}`},
		{"no token", `{"type":"auth"}`},
		{"token of another type", `{"type":"auth","data":7}`},
		{"another message", `{"type":"subscribe","data":"c"}`},
		{"ping", `{"type":"ping"}`},
		{"not JSON", `key`},
		{"token in a broken message", `{"type":"auth","data":"key"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			failures := make(chan error, 1)
			s := start(t, ws.HubConfig{
				Authenticator: ws.NewAPIKeyAuth(map[string]string{"key": "user"}), AllowFirstFrameAuth: true,
				OnAuthFailure: func(r *http.Request, result ws.AuthResult) {
					if _, ok := auth.Token(r); ok {
						t.Error("the request shows a token")
					}
					failures <- result.Error
				},
				OnConnect:    func(*ws.Client) { t.Error("OnConnect was called") },
				OnDisconnect: func(*ws.Client, ws.Reason) { t.Error("OnDisconnect was called") },
			})
			conn := s.dial(t, nil)
			_ = s.SendError("a broadcast for those who are accepted")
			conn.send(c.first)
			conn.send(`{"type":"auth","data":"key"}`) // too late
			_, err := conn.raw()
			if !websocket.IsCloseError(err, 1008) {
				t.Errorf("got %v, want a close with 1008 and nothing before", err)
			}
			if err := receive(t, failures); !errors.Is(err, auth.ErrDenied) {
				t.Errorf("failure %v, want a denial", err)
			}
			if n := s.ClientCount(); n != 0 {
				t.Errorf("%d clients, want 0", n)
			}
		})
	}

	t.Run("not allowed", func(t *testing.T) {
		s := start(t, ws.HubConfig{Authenticator: ws.NewAPIKeyAuth(map[string]string{"key": "user"})})
		if _, resp, err := s.tryDial(t, nil); err == nil || resp.StatusCode != 401 {
			t.Errorf("dial: %v, want 401", err)
		}
	})
	t.Run("a wrong token in the request is no absent one", func(t *testing.T) {
		s := start(t, ws.HubConfig{Authenticator: ws.NewAPIKeyAuth(map[string]string{"key": "user"}), AllowFirstFrameAuth: true})
		for _, protocols := range [][]string{{"tidewire.token.wrong"}, {"tidewire.token64.***"}} {
			if _, resp, err := s.tryDial(t, nil, protocols...); err == nil || resp.StatusCode != 401 {
				t.Errorf("%v: %v, want 401", protocols, err)
			}
		}
		if _, resp, err := s.tryDial(t, bearer("wrong")); err == nil || resp.StatusCode != 401 {
			t.Errorf("dial: %v, want 401", err)
		}
	})
	t.Run("accepted", func(t *testing.T) {
		var connected atomic.Bool
		release := make(chan struct{})
		keys := ws.NewAPIKeyAuth(map[string]string{"key": "user"})
		s := start(t, ws.HubConfig{
			Authenticator: ws.AuthenticatorFunc(func(r *http.Request) ws.AuthResult {
				if _, ok := auth.Token(r); ok {
					<-release
				}
				return keys.Authenticate(r)
			}),
			AllowFirstFrameAuth: true,
			OnConnect:           func(*ws.Client) { connected.Store(true) },
			OnSubscribe: func(c *ws.Client, _ string) error {
				if !connected.Load() || c.UserID != "user" {
					t.Error("handled before OnConnect")
				}
				return nil
			},
		})
		conn := s.dial(t, nil)
		for range s.AllClients() {
			t.Error("a client that was not accepted is among the clients")
		}
		if n := s.ClientCount(); n != 0 {
			t.Errorf("%d clients before the token, want 0", n)
		}
		conn.send(`{"type":"auth","data":"key"}`)
		conn.send(`{"type":"subscribe","data":"c"}`) // waits for the token to be judged
		eventually(t, "the messages were not received", func() bool { return s.Stats().Received == 2 })
		close(release)
		conn.sync()
		_ = s.SendError("all")
		if m := conn.next(); m.Data != "all" {
			t.Errorf("got %+v, want the broadcast", m)
		}
		if n := s.ClientCount(); n != 1 {
			t.Errorf("%d clients, want 1", n)
		}
	})
}

// A client that waits for its token to be judged does not hold up the end of the hub.
func TestH17_FirstFrameShutdown(t *testing.T) {
	asked := make(chan struct{})
	s := start(t, ws.HubConfig{
		AllowFirstFrameAuth: true,
		Authenticator: ws.AuthenticatorFunc(func(r *http.Request) ws.AuthResult {
			if _, ok := auth.Token(r); ok {
				close(asked)
				<-r.Context().Done()
				return ws.AuthResult{Error: auth.ErrUnavailable}
			}
			return ws.AuthResult{}
		}),
	})
	conn := s.dial(t, nil)
	conn.send(`{"type":"auth","data":"key"}`)
	receive(t, asked)
	before := time.Now()
	s.stop()
	if d := time.Since(before); d > 5*time.Second {
		t.Errorf("the hub stopped after %v", d)
	}
	if code := conn.closed(); code != 1001 && code != 1013 {
		t.Errorf("close code %d, want 1001 or 1013", code)
	}
}

func TestH17_ExpiryEndsTheConnection(t *testing.T) {
	var expires atomic.Pointer[time.Time]
	in := func(d time.Duration) time.Time {
		at := time.Now().Add(d)
		expires.Store(&at)
		return at
	}
	s := start(t, ws.HubConfig{
		AllowFirstFrameAuth: true,
		Authenticator: ws.AuthenticatorFunc(func(r *http.Request) ws.AuthResult {
			_, ok := auth.Token(r)
			return ws.AuthResult{Valid: ok, ExpiresAt: *expires.Load()}
		}),
	})
	at := in(50 * time.Millisecond)
	if code := s.dial(t, bearer("x")).closed(); code != 1008 || time.Now().Before(at) {
		t.Errorf("close code %d, want 1008 after the expiry", code)
	}
	c := s.dial(t, nil)
	in(-time.Hour) // expired when it comes
	c.send(`{"type":"auth","data":"x"}`)
	if code := c.closed(); code != 1008 {
		t.Errorf("close code %d, want 1008", code)
	}
	in(time.Hour)
	s.dial(t, bearer("x")).sync()
}

// No failing path writes a token to the log or to the client.
func TestH17_TokensAreNotLogged(t *testing.T) {
	const marker = "M4rk3rM4rk3rM4rk3r"
	b64 := base64.RawURLEncoding.EncodeToString([]byte(marker))
	jwtAuth, err := ws.NewJWTAuth(auth.JWTOptions{JWKSURL: "http://127.0.0.1:1/", FetchTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	accept := func(*http.Request) ws.AuthResult { return ws.AuthResult{Valid: true} }
	// A JWT whose parts hold the marker.
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	fake := part(`{"alg":"EdDSA","kid":"`+marker+`"}`) + "." + part(`{"exp":9999999999,"sub":"`+marker+`"}`) + "." + part(marker)
	for name, cfg := range map[string]ws.HubConfig{
		"API key":       {Authenticator: ws.NewAPIKeyAuth(map[string]string{"key": "user"}), AllowFirstFrameAuth: true},
		"JWT":           {Authenticator: jwtAuth, AllowFirstFrameAuth: true},
		"panic":         {Authenticator: ws.AuthenticatorFunc(func(*http.Request) ws.AuthResult { panic("boom") }), AllowFirstFrameAuth: true},
		"accepted":      {Authenticator: ws.AuthenticatorFunc(accept), OnConnect: func(*ws.Client) { panic("boom") }},
		"origin":        {CheckOrigin: func(*http.Request) bool { return false }},
		"not for auth":  {OnSubscribe: func(*ws.Client, string) error { return errors.New("no") }},
		"no room":       {Authenticator: ws.AuthenticatorFunc(accept), MaxClients: 1},
		"first, failed": {Authenticator: ws.NewAPIKeyAuth(nil), AllowFirstFrameAuth: true, OnAuthFailure: func(*http.Request, ws.AuthResult) { panic("boom") }},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, cfg)
			var seen strings.Builder
			for _, token := range []string{marker, fake} {
				for _, c := range []struct {
					header   http.Header
					protocol []string
				}{
					{header: bearer(token)},
					{protocol: []string{"tidewire.token." + token}},
					{protocol: []string{token64(token)}},
					{},
					{protocol: []string{"tidewire.token64.***" + token}},
				} {
					conn, resp, err := s.tryDial(t, c.header, c.protocol...)
					if resp != nil {
						_ = resp.Header.Write(&seen)
						_, _ = io.Copy(&seen, resp.Body)
					}
					if err != nil {
						continue
					}
					for _, text := range []string{
						`{"type":"auth","data":"` + token + `"}`, `{"type":"auth","data":"` + token, token,
						`{"type":"` + token + `"}`, `{"type":"ping"}`,
					} {
						_ = conn.WriteMessage(websocket.TextMessage, []byte(text))
					}
					_ = conn.WriteControl(websocket.CloseMessage, nil, time.Now().Add(patience))
					for {
						data, err := conn.raw()
						seen.Write(data)
						if err != nil {
							seen.WriteString(err.Error())
							break
						}
					}
				}
			}
			s.stop()
			for what, text := range map[string]string{"log": s.logs.String(), "answers": seen.String()} {
				for _, secret := range []string{marker, b64, part(`{"alg":"EdDSA"`)} {
					if strings.Contains(text, secret) {
						t.Errorf("the %s hold a token: %s", what, text)
					}
				}
			}
		})
	}
}

// Run of a JWT authenticator is optional, and stops.
func TestH17_JWTAuthRun(t *testing.T) {
	j, err := ws.NewJWTAuth(auth.JWTOptions{Secret: secret})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.JWT.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}
