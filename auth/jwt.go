package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

const (
	minSecret  = 32       // bytes: HS256 with less is weaker than its hash
	minRSABits = 2048     // of a public key
	maxToken   = 16 << 10 // bytes
)

// JWTOptions configures a [JWT]. Exactly one of Secret, PublicKey, JWKSURL and JWKSFile says where the keys are; [Any] joins several.
type JWTOptions struct {
	// Secret verifies HS256, HS384 and HS512. It holds at least 32 bytes.
	Secret []byte
	// PublicKey verifies RS256 with an *rsa.PublicKey of at least 2048 bits, ES256 with an *ecdsa.PublicKey on P-256, or EdDSA with an ed25519.PublicKey.
	PublicKey crypto.PublicKey
	// JWKSURL and JWKSFile are where a JSON Web Key Set is. Its RSA, P-256 and Ed25519 public keys verify RS256, ES256 and EdDSA; others are ignored.
	JWKSURL  string
	JWKSFile string

	// Issuer is the required "iss". Empty accepts any.
	Issuer string
	// Audience holds the accepted values of "aud", of which a token must have one. Empty accepts any.
	Audience []string
	// AllowNoExpiry accepts tokens without "exp". False denies them.
	AllowNoExpiry bool
	// Leeway is how far clocks may differ when "exp" and "nbf" are compared. Zero means none.
	Leeway time.Duration

	// Client fetches JWKSURL. Nil means [http.DefaultClient].
	Client *http.Client
	// FetchTimeout bounds one fetch. Zero means 5 s.
	FetchTimeout time.Duration
	// RefreshInterval is the age at which the key set is fetched again. Zero means 15 min.
	RefreshInterval time.Duration
	// MinRefresh is the least time between two fetches, whatever tokens come. A key that is not in a set younger than this does not exist. Zero means 5 s.
	MinRefresh time.Duration
	// MaxStale is the age at which a key set that cannot be fetched again is no longer trusted. Zero means 24 h.
	MaxStale time.Duration
}

// JWT verifies JSON Web Tokens. The accepted methods follow from the kind of the key, never from the token; "none" is never among them.
type JWT struct {
	parser    *jwt.Parser
	validator *jwt.Validator
	key       any     // []byte or a public key; nil if keys is used
	keys      *keySet // nil if key is used
}

// NewJWT returns a verifier, or an error if the options contradict each other or the key is too weak. It fetches nothing.
func NewJWT(o JWTOptions) (*JWT, error) {
	j := &JWT{}
	sources := 0
	var methods []string
	if o.Secret != nil {
		sources++
		if len(o.Secret) < minSecret {
			return nil, fmt.Errorf("auth: the JWT secret has %d bytes, want at least %d", len(o.Secret), minSecret)
		}
		j.key, methods = slices.Clone(o.Secret), []string{"HS256", "HS384", "HS512"}
	}
	if o.PublicKey != nil {
		sources++
		method, err := methodOf(o.PublicKey)
		if err != nil {
			return nil, err
		}
		j.key, methods = o.PublicKey, []string{method}
	}
	if o.JWKSURL != "" || o.JWKSFile != "" {
		sources++
		if o.JWKSURL != "" && o.JWKSFile != "" {
			sources++
		}
		var err error
		if j.keys, err = newKeySet(o); err != nil {
			return nil, err
		}
		methods = []string{"RS256", "ES256", "EdDSA"}
	}
	if sources != 1 {
		return nil, errors.New("auth: a JWT verifier needs exactly one of Secret, PublicKey, JWKSURL and JWKSFile")
	}
	if o.Leeway < 0 {
		return nil, errors.New("auth: the leeway is negative")
	}

	rules := []jwt.ParserOption{jwt.WithValidMethods(methods), jwt.WithStrictDecoding(), jwt.WithLeeway(o.Leeway)}
	if o.Issuer != "" {
		rules = append(rules, jwt.WithIssuer(o.Issuer))
	}
	if len(o.Audience) > 0 {
		rules = append(rules, jwt.WithAudience(o.Audience...))
	}
	if !o.AllowNoExpiry {
		rules = append(rules, jwt.WithExpirationRequired())
	}
	j.parser, j.validator = jwt.NewParser(rules...), jwt.NewValidator(rules...)
	return j, nil
}

// methodOf returns the only method that a public key verifies.
func methodOf(key crypto.PublicKey) (string, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N == nil || k.N.BitLen() < minRSABits {
			return "", fmt.Errorf("auth: an RSA key needs at least %d bits", minRSABits)
		}
		return "RS256", nil
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return "", errors.New("auth: an ECDSA key must be on P-256")
		}
		return "ES256", nil
	case ed25519.PublicKey:
		if len(k) != ed25519.PublicKeySize {
			return "", errors.New("auth: bad length of an Ed25519 key")
		}
		return "EdDSA", nil
	}
	return "", fmt.Errorf("auth: no method for a key of type %T", key)
}

// Run keeps a key set from a URL or a file fresh until ctx ends, and returns nil. With other keys it only waits. It is optional: without it, an old key set is
// fetched again by the first token that meets it.
func (j *JWT) Run(ctx context.Context) error {
	if j.keys != nil {
		j.keys.run(ctx)
	}
	<-ctx.Done()
	return nil
}

// Load reads the key set once and returns what is wrong with it: for a program that would rather not start. Verify reads it by itself otherwise.
func (j *JWT) Load(ctx context.Context) error {
	if j.keys == nil {
		return nil
	}
	_, err := j.keys.load(ctx)
	return err
}

// Verify implements [Verifier].
func (j *JWT) Verify(ctx context.Context, token string) (Identity, error) {
	if token == "" {
		return Identity{}, deny("no token")
	}
	if len(token) > maxToken {
		return Identity{}, deny("too long")
	}
	if strings.ContainsAny(token, "\r\n") { // which base64 would skip
		return Identity{}, deny("malformed")
	}
	claims := jwt.MapClaims{}
	_, err := j.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) { return j.keyOf(ctx, t) })
	if err != nil {
		return Identity{}, verdict(err)
	}
	id := Identity{Claims: claims}
	if _, has := claims["sub"]; has {
		if id.Subject, err = claims.GetSubject(); err != nil {
			return Identity{}, deny("bad claims")
		}
	}
	if exp, err := claims.GetExpirationTime(); err == nil && exp != nil {
		id.ExpiresAt = exp.Time
	}
	return id, nil
}

// keyOf returns the key for a token whose method was found valid. What can be denied without a key is denied first, so that it costs no fetch.
func (j *JWT) keyOf(ctx context.Context, t *jwt.Token) (any, error) {
	if _, has := t.Header["crit"]; has {
		return nil, errCritical
	}
	if err := j.validator.Validate(t.Claims); err != nil {
		return nil, err
	}
	if j.keys == nil {
		return j.key, nil
	}
	return j.keys.keyOf(ctx, t)
}

var errCritical = errors.New("critical header")

// verdict replaces an error of the parser, which may quote the token, by one that does not.
func verdict(err error) error {
	var unavailable *unavailableError
	if errors.As(err, &unavailable) {
		return unavailable
	}
	for _, v := range []struct {
		is  error
		why string
	}{
		{jwt.ErrTokenExpired, "expired"},
		{jwt.ErrTokenNotValidYet, "not valid yet"},
		{jwt.ErrTokenInvalidIssuer, "wrong issuer"},
		{jwt.ErrTokenInvalidAudience, "wrong audience"},
		{jwt.ErrTokenRequiredClaimMissing, "a required claim is missing"},
		{jwt.ErrTokenInvalidClaims, "bad claims"},
		{jwt.ErrInvalidType, "bad claims"},
		{errCritical, "unknown critical header"},
		{jwkset.ErrKeyNotFound, "unknown key"},
		{jwt.ErrTokenMalformed, "malformed"},
		{jwt.ErrTokenSignatureInvalid, "wrong method or signature"},
	} {
		if errors.Is(err, v.is) {
			return deny(v.why)
		}
	}
	return deny("unverifiable")
}

// Sign makes an HS256 token for id, valid until id.ExpiresAt, or without expiry if that is zero. Claims such as "iss" and "aud" are taken from id.Claims. It serves development
// and tests: a server that issues tokens needs more than this.
func Sign(secret []byte, id Identity) (string, error) {
	if len(secret) < minSecret {
		return "", fmt.Errorf("auth: the JWT secret has %d bytes, want at least %d", len(secret), minSecret)
	}
	claims := jwt.MapClaims{"iat": time.Now().Unix()}
	maps.Copy(claims, id.Claims)
	if id.Subject != "" {
		claims["sub"] = id.Subject
	}
	if !id.ExpiresAt.IsZero() {
		claims["exp"] = id.ExpiresAt.Unix()
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString(secret)
	if err != nil {
		return "", fmt.Errorf("auth: sign: %w", err)
	}
	return token, nil
}
