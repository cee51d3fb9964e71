package auth_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/auth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// marker stands in every secret of these tests: no error may hold it.
const marker = "M4rk3rM4rk3r"

var secret = []byte("0123456789abcdef0123456789abcdef")

// Keys are made once: RSA takes a while.
var (
	rsaKey = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	ecKey  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	edKey  = sync.OnceValue(func() ed25519.PrivateKey { return ed25519.NewKeyFromSeed(secret) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// denied checks that err is a denial and nothing else, and quotes no secret.
func denied(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, auth.ErrDenied) || errors.Is(err, auth.ErrUnavailable) {
		t.Errorf("err = %v, want ErrDenied", err)
	}
	quiet(t, err)
}

func unavailable(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, auth.ErrUnavailable) || errors.Is(err, auth.ErrDenied) {
		t.Errorf("err = %v, want ErrUnavailable", err)
	}
	quiet(t, err)
}

func quiet(t *testing.T, err error) {
	t.Helper()
	for e := err; e != nil; e = errors.Unwrap(e) {
		if s := fmt.Sprintf("%v %+v %#v", e, e, e); strings.Contains(s, marker) || strings.Contains(s, b64(marker)) {
			t.Errorf("the error holds a part of the token: %s", s)
		}
	}
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// sign makes a token. Header members replace or add to the usual ones.
func sign(method jwt.SigningMethod, key any, claims jwt.MapClaims, header map[string]any) string {
	t := jwt.NewWithClaims(method, claims)
	for k, v := range header {
		t.Header[k] = v
	}
	return must(t.SignedString(key))
}

func soon() int64 { return time.Now().Add(time.Hour).Unix() }

func TestH17_Token(t *testing.T) {
	const token64 = "tidewire.token64."
	for _, c := range []struct {
		name     string
		header   []string
		protocol []string
		want     string
		ok       bool
	}{
		{name: "nothing"},
		{"bearer", []string{"Bearer abc"}, nil, "abc", true},
		{"scheme in any case", []string{"bEARER abc"}, nil, "abc", true},
		{"space around", []string{"Bearer   abc "}, nil, "abc", true},
		{"another scheme", []string{"Basic abc"}, nil, "", false},
		{"another scheme that begins alike", []string{"Bearerx abc"}, nil, "", false},
		{"empty bearer is a bad token, not none", []string{"Bearer"}, nil, "", true},
		{"header before subprotocol", []string{"Bearer abc"}, []string{"tidewire.token.def"}, "abc", true},
		{"subprotocol beside another scheme", []string{"Basic abc"}, []string{"tidewire.token.def"}, "def", true},
		{"subprotocol", nil, []string{"tidewire.1, tidewire.token.abc.def"}, "abc.def", true},
		{"second line", nil, []string{"tidewire.1", "tidewire.token.abc"}, "abc", true},
		{"base64", nil, []string{"tidewire.1, " + token64 + b64("a b/ü")}, "a b/ü", true},
		{"plain before base64", nil, []string{token64 + b64("x"), "tidewire.token.abc"}, "abc", true},
		{"first of two", nil, []string{"tidewire.token.a,tidewire.token.b"}, "a", true},
		{"bad base64 is a bad token, not none", nil, []string{token64 + "*"}, "", true},
		{"padded base64", nil, []string{token64 + "YQ=="}, "", true},
		{"empty entry is a bad token, not none", nil, []string{"tidewire.token."}, "", true},
		{"other entries", nil, []string{"tidewire.tokens.a, tidewire.ws, graphql-ws"}, "", false},
	} {
		r := &http.Request{Header: http.Header{"Authorization": c.header, "Sec-Websocket-Protocol": c.protocol}}
		if got, ok := auth.Token(r); got != c.want || ok != c.ok {
			t.Errorf("%s: Token = %q, %v, want %q, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestH17_APIKeys(t *testing.T) {
	a := auth.NewAPIKeys(map[string]auth.Identity{
		"key-1": {Subject: "one", Claims: map[string]any{"role": "admin"}},
		"key-2": {Subject: "two"},
		"old":   {Subject: "old", ExpiresAt: time.Now().Add(-time.Second)},
		"":      {Subject: "nobody"},
	})
	id, err := a.Verify(t.Context(), "key-1")
	if diff := cmp.Diff(auth.Identity{Subject: "one", Claims: map[string]any{"role": "admin"}}, id); diff != "" || err != nil {
		t.Errorf("Verify: %v, (-want +got)\n%s", err, diff)
	}
	if id, err := a.Verify(t.Context(), "key-2"); id.Subject != "two" || err != nil {
		t.Errorf("Verify = %v, %v, want two", id, err)
	}
	for _, key := range []string{"", "old", "key-", "key-11", "KEY-1", marker, "key-1 "} {
		_, err := a.Verify(t.Context(), key)
		denied(t, err)
	}
	_, err = auth.NewAPIKeys(nil).Verify(t.Context(), marker)
	denied(t, err)
}

type fixed struct {
	id  auth.Identity
	err error
}

func (f fixed) Verify(context.Context, string) (auth.Identity, error) { return f.id, f.err }

func TestH17_Any(t *testing.T) {
	yes := fixed{id: auth.Identity{Subject: "a"}}
	other := fixed{id: auth.Identity{Subject: "b"}}
	no := fixed{err: auth.ErrDenied}
	down := fixed{err: auth.ErrUnavailable}
	broken := fixed{err: errors.New("something else")}
	for _, c := range []struct {
		name string
		vs   []auth.Verifier
		want string
		err  error
	}{
		{"none", nil, "", auth.ErrDenied},
		{"first", []auth.Verifier{yes, other}, "a", nil},
		{"second", []auth.Verifier{no, other}, "b", nil},
		{"after a failure", []auth.Verifier{down, no, other}, "b", nil},
		{"all deny", []auth.Verifier{no, no}, "", auth.ErrDenied},
		{"a failure beats denials", []auth.Verifier{no, down, no}, "", auth.ErrUnavailable},
		{"an unknown error is a failure", []auth.Verifier{broken, no}, "", auth.ErrUnavailable},
		{"nested", []auth.Verifier{auth.Any(no), auth.Any(no, yes)}, "a", nil},
	} {
		id, err := auth.Any(c.vs...).Verify(t.Context(), "token")
		if id.Subject != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: Verify = %q, %v, want %q, %v", c.name, id.Subject, err, c.want, c.err)
		}
		if c.err == auth.ErrUnavailable && errors.Is(err, auth.ErrDenied) {
			t.Errorf("%s: err = %v is also a denial", c.name, err)
		}
	}
}

func TestH17_JWTMethods(t *testing.T) {
	keys := map[string]auth.JWTOptions{
		"hmac": {Secret: secret},
		"rsa":  {PublicKey: &rsaKey().PublicKey},
		"ec":   {PublicKey: &ecKey().PublicKey},
		"ed":   {PublicKey: edKey().Public()},
	}
	rsaPublic, edPublic := rsaKey().N.Bytes(), []byte(edKey().Public().(ed25519.PublicKey))
	for _, c := range []struct {
		name   string
		method jwt.SigningMethod
		key    any
		by     string // the only verifier that accepts it
	}{
		{"HS256", jwt.SigningMethodHS256, secret, "hmac"},
		{"HS384", jwt.SigningMethodHS384, secret, "hmac"},
		{"HS512", jwt.SigningMethodHS512, secret, "hmac"},
		{"RS256", jwt.SigningMethodRS256, rsaKey(), "rsa"},
		{"ES256", jwt.SigningMethodES256, ecKey(), "ec"},
		{"EdDSA", jwt.SigningMethodEdDSA, edKey(), "ed"},
		{"RS512 is not offered", jwt.SigningMethodRS512, rsaKey(), ""},
		{"PS256 is not offered", jwt.SigningMethodPS256, rsaKey(), ""},
		{"none", jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, ""},
		{"HS256 with the RSA modulus", jwt.SigningMethodHS256, rsaPublic, ""},
		{"HS256 with the Ed25519 public key", jwt.SigningMethodHS256, edPublic, ""},
		{"HS256 with another secret", jwt.SigningMethodHS256, []byte(marker + marker + marker), ""},
	} {
		token := sign(c.method, c.key, jwt.MapClaims{"sub": "u", "exp": soon(), "x": marker}, nil)
		for name, o := range keys {
			id, err := must(auth.NewJWT(o)).Verify(t.Context(), token)
			if name == c.by {
				if err != nil || id.Subject != "u" || id.ExpiresAt.Unix() != int64(id.Claims["exp"].(float64)) {
					t.Errorf("%s by %s: Verify = %v, %v, want u", c.name, name, id, err)
				}
				continue
			}
			denied(t, err)
		}
	}
}

func TestH17_JWTClaims(t *testing.T) {
	now := time.Now()
	opts := auth.JWTOptions{Secret: secret, Issuer: "iss", Audience: []string{"aud", "aud2"}, Leeway: 10 * time.Second}
	good := jwt.MapClaims{"sub": "u", "iss": "iss", "aud": "aud", "exp": soon(), "marker": marker}
	with := func(name string, v any) jwt.MapClaims {
		c := jwt.MapClaims{}
		for k, v := range good {
			c[k] = v
		}
		if v == nil {
			delete(c, name)
		} else {
			c[name] = v
		}
		return c
	}
	for _, c := range []struct {
		name   string
		claims jwt.MapClaims
		header map[string]any
		change func(*auth.JWTOptions)
		ok     bool
	}{
		{name: "good", claims: good, ok: true},
		{name: "one of several audiences", claims: with("aud", []string{"x", "aud2"}), ok: true},
		{name: "expired within the leeway", claims: with("exp", now.Add(-5*time.Second).Unix()), ok: true},
		{name: "not yet valid within the leeway", claims: with("nbf", now.Add(5*time.Second).Unix()), ok: true},
		{name: "no subject", claims: with("sub", nil), ok: true},
		{name: "no expiry where allowed", claims: with("exp", nil), change: func(o *auth.JWTOptions) { o.AllowNoExpiry = true }, ok: true},
		{name: "any issuer", claims: with("iss", marker), change: func(o *auth.JWTOptions) { o.Issuer = "" }, ok: true},
		{name: "any audience", claims: with("aud", marker), change: func(o *auth.JWTOptions) { o.Audience = nil }, ok: true},
		{name: "expired", claims: with("exp", now.Add(-time.Minute).Unix())},
		{name: "expired where none is needed", claims: with("exp", now.Add(-time.Minute).Unix()), change: func(o *auth.JWTOptions) { o.AllowNoExpiry = true }},
		{name: "no expiry", claims: with("exp", nil)},
		{name: "expiry of another type", claims: with("exp", marker)},
		{name: "not yet valid", claims: with("nbf", now.Add(time.Minute).Unix())},
		{name: "not before of another type", claims: with("nbf", marker)},
		{name: "another issuer", claims: with("iss", marker)},
		{name: "no issuer", claims: with("iss", nil)},
		{name: "another audience", claims: with("aud", marker)},
		{name: "no audience", claims: with("aud", nil)},
		{name: "subject of another type", claims: with("sub", 7)},
		{name: "critical header", claims: good, header: map[string]any{"crit": []string{marker}, marker: true}},
		{name: "unknown method", claims: good, header: map[string]any{"alg": marker}},
		{name: "method of another type", claims: good, header: map[string]any{"alg": []string{marker}}},
	} {
		o := opts
		if c.change != nil {
			c.change(&o)
		}
		id, err := must(auth.NewJWT(o)).Verify(t.Context(), sign(jwt.SigningMethodHS256, secret, c.claims, c.header))
		if !c.ok {
			if err == nil {
				t.Errorf("%s: accepted", c.name)
				continue
			}
			denied(t, err)
			continue
		}
		if err != nil || id.Claims["marker"] != marker {
			t.Errorf("%s: Verify = %v, %v, want an identity", c.name, id, err)
		}
	}
}

func TestH17_JWTMalformed(t *testing.T) {
	j := must(auth.NewJWT(auth.JWTOptions{Secret: secret, AllowNoExpiry: true}))
	good := sign(jwt.SigningMethodHS256, secret, jwt.MapClaims{"sub": "u"}, nil)
	parts := strings.Split(good, ".")
	header := b64(`{"alg":"HS256"}`)
	for _, token := range []string{
		"", marker, ".", "..", "...", good + ".", good + "." + marker, parts[0] + "." + parts[1] + ".", parts[0] + "." + parts[1],
		marker + "." + parts[1] + "." + parts[2],
		parts[0] + "." + b64(marker) + "." + parts[2],
		header + "." + b64(`{"sub":"`+marker) + "." + parts[2],
		b64(`{"alg":"HS256","x":"`+marker) + "." + parts[1] + "." + parts[2],
		b64(`{"`+marker+`":1}`) + "." + parts[1] + "." + parts[2],
		b64(`null`) + "." + parts[1] + "." + parts[2],
		parts[0] + "." + parts[1] + "." + marker, parts[0] + "." + parts[1] + ".*" + marker,
		strings.Repeat(marker, 2000), "Bearer " + good, good + "\n",
	} {
		_, err := j.Verify(t.Context(), token)
		denied(t, err)
	}
	if _, err := j.Verify(t.Context(), good); err != nil {
		t.Errorf("the good token: %v", err)
	}
}

func TestH17_JWTOptions(t *testing.T) {
	small := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	weak := &rsa.PublicKey{N: new(big.Int).Rsh(rsaKey().N, 1024), E: 3}
	for name, o := range map[string]auth.JWTOptions{
		"no key":            {},
		"short secret":      {Secret: []byte(marker)},
		"empty secret":      {Secret: []byte{}},
		"two keys":          {Secret: secret, PublicKey: edKey().Public()},
		"two sets":          {JWKSURL: "https://example.com/jwks", JWKSFile: "jwks.json"},
		"not a URL":         {JWKSURL: "example.com/jwks"},
		"other scheme":      {JWKSURL: "file:///etc/passwd"},
		"private key":       {PublicKey: edKey()},
		"secret as public":  {PublicKey: secret},
		"P-384":             {PublicKey: &small.PublicKey},
		"weak RSA":          {PublicKey: weak},
		"empty RSA":         {PublicKey: &rsa.PublicKey{}},
		"short Ed25519":     {PublicKey: ed25519.PublicKey("short")},
		"negative leeway":   {Secret: secret, Leeway: -1},
		"a secret and file": {Secret: secret, JWKSFile: "jwks.json"},
	} {
		if _, err := auth.NewJWT(o); err == nil {
			t.Errorf("%s: NewJWT accepts it", name)
		} else {
			quiet(t, err)
		}
	}
}

func TestH17_Sign(t *testing.T) {
	id := auth.Identity{Subject: "dev", Claims: map[string]any{"iss": "me", "role": "admin"}, ExpiresAt: time.Now().Add(time.Hour).Truncate(time.Second)}
	token, err := auth.Sign(secret, id)
	if err != nil {
		t.Fatal(err)
	}
	got, err := must(auth.NewJWT(auth.JWTOptions{Secret: secret, Issuer: "me"})).Verify(t.Context(), token)
	if err != nil || got.Subject != "dev" || got.Claims["role"] != "admin" || !got.ExpiresAt.Equal(id.ExpiresAt) {
		t.Errorf("Verify = %v, %v, want %v", got, err, id)
	}
	if _, err := auth.Sign([]byte(marker), id); err == nil {
		t.Error("Sign accepts a short secret")
	} else {
		quiet(t, err)
	}
	if _, err := auth.Sign(secret, auth.Identity{Claims: map[string]any{"x": func() {}}}); err == nil {
		t.Error("Sign accepts claims that JSON cannot hold")
	}
}

func FuzzToken(f *testing.F) {
	f.Add("Bearer abc", "tidewire.1, tidewire.token.abc")
	f.Add("", "tidewire.token64.YWJj,tidewire.token.")
	f.Add("bearer", "tidewire.token64.=")
	f.Fuzz(func(t *testing.T, authorization, protocol string) {
		r := &http.Request{Header: http.Header{"Authorization": {authorization}, "Sec-Websocket-Protocol": {protocol}}}
		token, ok := auth.Token(r)
		if !ok && token != "" {
			t.Errorf("Token = %q, false", token)
		}
		if !ok && (strings.HasPrefix(strings.ToLower(authorization), "bearer ") || strings.HasPrefix(protocol, "tidewire.token.")) {
			t.Errorf("a credential was taken for none: %q, %q", authorization, protocol)
		}
	})
}

func FuzzVerify(f *testing.F) {
	j := must(auth.NewJWT(auth.JWTOptions{Secret: secret}))
	good := sign(jwt.SigningMethodHS256, secret, jwt.MapClaims{"sub": "u", "exp": soon()}, nil)
	f.Add(good, "")
	f.Add(b64(`{"alg":"none"}`)+"."+b64(`{"exp":9999999999}`)+".", "")
	f.Add("a.b.c", `{"exp":1e300,"nbf":-1e300,"sub":null}`)
	f.Add("a.b.c", `{"exp":[],"aud":[1],"iss":{}}`)
	f.Fuzz(func(t *testing.T, token, claims string) {
		if _, err := j.Verify(t.Context(), token); err == nil && token != good && !signedByUs(token) {
			t.Errorf("accepts %q", token)
		} else if err != nil && !errors.Is(err, auth.ErrDenied) {
			t.Errorf("err = %v, want ErrDenied", err)
		}
		// The same with claims that are signed: they come from a key's owner, and still must not break anything.
		var m jwt.MapClaims
		if json.Unmarshal([]byte(claims), &m) != nil {
			return
		}
		if _, err := j.Verify(t.Context(), sign(jwt.SigningMethodHS256, secret, m, nil)); err != nil && !errors.Is(err, auth.ErrDenied) {
			t.Errorf("err = %v, want ErrDenied", err)
		}
	})
}

// signedByUs says that a token that the fuzzer found is one of those that this test signed, as the corpus may hold it from an earlier run.
func signedByUs(token string) bool {
	_, err := jwt.Parse(token, func(*jwt.Token) (any, error) { return secret, nil }, jwt.WithoutClaimsValidation())
	return err == nil
}
