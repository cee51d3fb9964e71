package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire/wire"
)

// credentials are what the dials of one Run remember of their tokens.
type credentials struct {
	refused bool // the last token was
}

// dial opens a connection, or returns how it failed.
func (c *Client) dial(ctx context.Context, creds *credentials) (*websocket.Conn, ending) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for {
		header, end, ok := c.credential(ctx, creds)
		if !ok {
			return nil, end
		}
		conn, resp, err := websocket.Dial(ctx, c.url, &websocket.DialOptions{
			HTTPClient:   c.opts.HTTPClient,
			HTTPHeader:   header,
			Subprotocols: []string{wire.Subprotocol},
		})
		if err == nil && conn.Subprotocol() != wire.Subprotocol {
			_ = conn.CloseNow()
			return nil, ending{err: errors.New("the server does not select the subprotocol " + wire.Subprotocol), after: -1}
		}
		if err == nil {
			conn.SetReadLimit(c.opts.MaxMessageBytes)
			return conn, ending{}
		}
		if resp == nil || resp.StatusCode == http.StatusSwitchingProtocols {
			return nil, ending{err: fmt.Errorf("dial: %w", err), after: -1}
		}
		end = refusedDial(resp)
		if resp.StatusCode != http.StatusUnauthorized {
			return nil, end
		}
		if creds.refused || c.opts.Token == nil {
			end.terminal = true
			return nil, end
		}
		creds.refused = true // once more, with a fresh one
	}
}

// credential returns the headers of a dial. ok is false if there is no use in dialing, and how that ends then.
func (c *Client) credential(ctx context.Context, creds *credentials) (header http.Header, end ending, ok bool) {
	header = c.opts.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	if c.opts.Token == nil {
		return header, ending{}, true
	}
	token, err := c.askToken(ctx)
	switch {
	case err != nil:
		return nil, ending{err: err, terminal: errors.Is(err, ErrNoToken), after: -1}, false
	case creds.refused && token == c.usedToken():
		return nil, ending{err: wire.Errorf(wire.CodeSocketUnauthenticated, "the credential was refused, and Token returns the same again"), terminal: true}, false
	}
	c.useToken(token)
	header.Set("Authorization", "Bearer "+token)
	return header, ending{}, true
}

// askToken asks the application. An empty token is a failure: it must not make the client anonymous.
func (c *Client) askToken(ctx context.Context) (string, error) {
	token, err := c.opts.Token(ctx)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	if token == "" {
		return "", errors.New("token: Token returned none")
	}
	return token, nil
}

// refusedDial reads the server's refusal.
func refusedDial(resp *http.Response) ending {
	var problem struct {
		Code         wire.Code `json:"code"`
		Title        string    `json:"title"`
		Detail       string    `json:"detail"`
		RetryAfterMs int64     `json:"retryAfterMs"`
	}
	e := &wire.Error{Message: "status " + strconv.Itoa(resp.StatusCode)}
	known := false
	if body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10)); err == nil && json.Unmarshal(body, &problem) == nil && problem.Code != "" {
		e.Code, e.Message, known = problem.Code, problem.Detail, true
		if e.Message == "" {
			e.Message = problem.Title
		}
	}
	if !known {
		switch resp.StatusCode {
		case http.StatusUnauthorized:
			e.Code = wire.CodeSocketUnauthenticated
		default: // something between, such as a load balancer
			return ending{err: errors.New("dial: " + e.Message), after: retryAfter(resp.Header)}
		}
	}
	end := ending{err: e, after: retryAfter(resp.Header)}
	if end.after < 0 && problem.RetryAfterMs > 0 {
		end.after = time.Duration(problem.RetryAfterMs) * time.Millisecond
	}
	e.Retry = max(end.after, 0)
	// 401 is judged by the caller.
	end.terminal = known && resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusUnauthorized &&
		resp.StatusCode != http.StatusTooManyRequests && end.after < 0
	return end
}

// retryAfter returns the delay that a response asks for, or -1.
func retryAfter(h http.Header) time.Duration {
	if ms, err := strconv.ParseInt(h.Get("retry-after-ms"), 10, 64); err == nil && ms >= 0 {
		return min(time.Duration(min(ms, int64(maxRetryAfter/time.Millisecond)))*time.Millisecond, maxRetryAfter)
	}
	if s, err := strconv.ParseInt(h.Get("Retry-After"), 10, 64); err == nil && s >= 0 {
		return time.Duration(min(s, int64(maxRetryAfter/time.Second))) * time.Second
	}
	return -1
}
