package ws

import (
	"net/http"
	"time"

	"github.com/tidewire/tidewire/auth"
)

// Authenticator decides who may connect. It may be used concurrently.
type Authenticator interface {
	// Authenticate judges a request to upgrade. It may look at any part of it; [auth.Token] finds a token wherever the client could put it. With [HubConfig.AllowFirstFrameAuth] a token that came in
	// the first message is shown as the request's Authorization header.
	Authenticate(r *http.Request) AuthResult
}

// AuthResult is the decision of an [Authenticator].
type AuthResult struct {
	// Valid accepts the client.
	Valid bool
	// UserID and Claims become those of the [Client].
	UserID string
	Claims map[string]any
	// Error says why Valid is false. It must not hold the token. If it is [auth.ErrUnavailable], the client is told to try again later and not that its token is wrong.
	Error error
	// ExpiresAt is when the connection of a valid client is closed. Zero means never.
	ExpiresAt time.Time
}

// AuthenticatorFunc is a function that is an [Authenticator].
type AuthenticatorFunc func(r *http.Request) AuthResult

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) AuthResult { return f(r) }

// TokenAuthenticator accepts requests whose token a verifier accepts. UserID is the identity's subject.
type TokenAuthenticator struct{ verifier auth.Verifier }

// NewTokenAuth returns an authenticator that asks v.
func NewTokenAuth(v auth.Verifier) *TokenAuthenticator { return &TokenAuthenticator{v} }

// Authenticate implements [Authenticator].
func (a *TokenAuthenticator) Authenticate(r *http.Request) AuthResult {
	token, _ := auth.Token(r)
	id, err := a.verifier.Verify(r.Context(), token)
	if err != nil {
		return AuthResult{Error: err}
	}
	return AuthResult{Valid: true, UserID: id.Subject, Claims: id.Claims, ExpiresAt: id.ExpiresAt}
}

// APIKeyAuthenticator accepts a fixed set of keys.
type APIKeyAuthenticator struct{ TokenAuthenticator }

// NewAPIKeyAuth returns an authenticator for keys, each with its user's id. The keys are compared in constant time. An empty key is never accepted.
func NewAPIKeyAuth(keys map[string]string) *APIKeyAuthenticator {
	ids := make(map[string]auth.Identity, len(keys))
	for key, user := range keys {
		ids[key] = auth.Identity{Subject: user}
	}
	return &APIKeyAuthenticator{TokenAuthenticator{auth.NewAPIKeys(ids)}}
}

// JWTAuthenticator accepts JSON Web Tokens.
type JWTAuthenticator struct {
	TokenAuthenticator
	// JWT is the verifier. Its Run keeps a key set from a URL or a file fresh; calling it is optional.
	JWT *auth.JWT
}

// NewJWTAuth returns an authenticator for JSON Web Tokens, or the error of [auth.NewJWT].
func NewJWTAuth(opts auth.JWTOptions) (*JWTAuthenticator, error) {
	j, err := auth.NewJWT(opts)
	if err != nil {
		return nil, err
	}
	return &JWTAuthenticator{TokenAuthenticator{j}, j}, nil
}
