// Package auth decides who a request comes from, by API keys or JSON Web Tokens.
//
// # Three answers
//
// A [Verifier] accepts, denies, or cannot decide. [ErrDenied] is a decision: the same token will be denied again. [ErrUnavailable] is a failure, such as a key
// server that is down: the same token may be accepted later, so a client must not be told that it is wrong.
//
// # Secrecy
//
// No error of this package holds a token, a key or a part of one, and the package logs nothing. API keys are compared in constant time over all of them.
//
// # Time
//
// New functions start nothing. A [JWT] whose keys come from a URL or a file fetches them when they are first needed, and again when they are old or a token names an unknown key;
// [JWT.Run], which is optional, fetches them ahead of need. One caller fetches at a time, and what is fetched is bounded in bytes and time.
package auth

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

var (
	// ErrDenied means that the token is wrong, missing or expired.
	ErrDenied = errors.New("auth: denied")
	// ErrUnavailable means that the token could not be judged.
	ErrUnavailable = errors.New("auth: unavailable")
)

// Identity is who a token stands for.
type Identity struct {
	// Subject names the user or program. It is empty if a JWT has no "sub".
	Subject string
	// Claims are what else the token says. They are shared and must not be changed.
	Claims map[string]any
	// ExpiresAt is when the identity ends. Zero means never.
	ExpiresAt time.Time
}

// Verifier judges tokens. It may be used concurrently.
type Verifier interface {
	// Verify returns the identity, or an error that is ErrDenied or ErrUnavailable. An empty token is denied.
	Verify(ctx context.Context, token string) (Identity, error)
}

// Prefixes of the WebSocket subprotocol entries that carry a token.
const (
	protocolToken   = "tidewire.token."
	protocolToken64 = "tidewire.token64."
)

// Token returns the token that a request presents, from the first of: an "Authorization: Bearer TOKEN" header, a WebSocket subprotocol entry
// "tidewire.token.TOKEN", or an entry "tidewire.token64.BASE64URL" (no padding) for tokens with characters that such an entry cannot hold. ok says whether there was any.
// What was presented and cannot be read is returned as an empty token, which every verifier denies, so that it is never taken for no token at all.
func Token(r *http.Request) (token string, ok bool) {
	if scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(rest), true
	}
	var encoded string
	found := false
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for entry := range strings.SplitSeq(line, ",") {
			entry = strings.TrimSpace(entry)
			if t, is := strings.CutPrefix(entry, protocolToken); is {
				return t, true
			}
			if t, is := strings.CutPrefix(entry, protocolToken64); is && !found {
				encoded, found = t, true
			}
		}
	}
	if !found {
		return "", false
	}
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return "", true
	}
	return string(decoded), true
}

// Any returns a verifier that asks the given ones in order and returns the first identity. It denies only if all of them deny: if one could not decide, neither can it.
func Any(verifiers ...Verifier) Verifier { return anyOf(verifiers) }

type anyOf []Verifier

func (a anyOf) Verify(ctx context.Context, token string) (Identity, error) {
	var denied, unavailable error
	for _, v := range a {
		id, err := v.Verify(ctx, token)
		switch {
		case err == nil:
			return id, nil
		case errors.Is(err, ErrDenied):
			denied = err
		case unavailable == nil:
			unavailable = err
		}
	}
	switch {
	case unavailable == nil && denied == nil:
		return Identity{}, deny("no verifier")
	case unavailable == nil && len(a) == 1:
		return Identity{}, denied
	case unavailable == nil:
		return Identity{}, deny("by every verifier")
	case errors.Is(unavailable, ErrUnavailable):
		return Identity{}, unavailable
	}
	return Identity{}, fmt.Errorf("%w: %w", ErrUnavailable, unavailable)
}

func deny(why string) error { return fmt.Errorf("%w: %s", ErrDenied, why) }
