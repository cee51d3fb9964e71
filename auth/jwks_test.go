package auth_test

import (
	"context"
	"crypto"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/tidewire/tidewire/auth"
)

// keySet returns the JSON of public keys, by key id.
func keySet(keys map[string]crypto.PublicKey) string {
	store := jwkset.NewMemoryStorage()
	for kid, key := range keys {
		jwk := must(jwkset.NewJWKFromKey(key, jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: kid}}))
		if err := store.KeyWrite(context.Background(), jwk); err != nil {
			panic(err)
		}
	}
	return string(must(store.JSONPublic(context.Background())))
}

// endpoint is a key server without a network.
type endpoint struct {
	mu    sync.Mutex // guards below
	calls int
	do    func(*http.Request) (*http.Response, error)
}

func (e *endpoint) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.calls++
	do := e.do
	e.mu.Unlock()
	return do(r)
}

func (e *endpoint) set(do func(*http.Request) (*http.Response, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.do = do
}

func (e *endpoint) serve(status int, body string) {
	e.set(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body))}, nil
	})
}

func (e *endpoint) fail() {
	e.set(func(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") })
}

// hang makes the endpoint accept requests and never answer.
func (e *endpoint) hang() {
	e.set(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
}

func (e *endpoint) fetches() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls
}

func (e *endpoint) verifier(change func(*auth.JWTOptions)) *auth.JWT {
	o := auth.JWTOptions{JWKSURL: "https://keys.example.com/jwks.json", Client: &http.Client{Transport: e}, AllowNoExpiry: true}
	if change != nil {
		change(&o)
	}
	return must(auth.NewJWT(o))
}

func edToken(kid string) string {
	header := map[string]any{}
	if kid != "" {
		header["kid"] = kid
	}
	return sign(jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{"sub": "u", "marker": marker}, header)
}

func TestH17_KeySetMethods(t *testing.T) {
	e := &endpoint{}
	e.serve(200, keySet(map[string]crypto.PublicKey{"r": &rsaKey().PublicKey, "e": &ecKey().PublicKey, "d": edKey().Public()}))
	j := e.verifier(nil)
	for _, c := range []struct {
		name   string
		method jwt.SigningMethod
		key    any
		kid    any
		ok     bool
	}{
		{"RS256", jwt.SigningMethodRS256, rsaKey(), "r", true},
		{"ES256", jwt.SigningMethodES256, ecKey(), "e", true},
		{"EdDSA", jwt.SigningMethodEdDSA, edKey(), "d", true},
		{"no key id", jwt.SigningMethodES256, ecKey(), nil, true},
		{"the id of another key", jwt.SigningMethodES256, ecKey(), "d", false},
		{"unknown key id", jwt.SigningMethodES256, ecKey(), marker, false},
		{"key id of another type", jwt.SigningMethodES256, ecKey(), []string{marker}, false},
		{"HS256 with a key id", jwt.SigningMethodHS256, []byte(secret), "d", false},
		{"HS256 without", jwt.SigningMethodHS256, []byte(secret), nil, false},
		{"none", jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, "d", false},
	} {
		header := map[string]any{}
		if c.kid != nil {
			header["kid"] = c.kid
		}
		id, err := j.Verify(t.Context(), sign(c.method, c.key, jwt.MapClaims{"sub": "u", "marker": marker}, header))
		if !c.ok {
			denied(t, err)
		} else if err != nil || id.Subject != "u" {
			t.Errorf("%s: Verify = %v, %v, want u", c.name, id, err)
		}
	}
	if n := e.fetches(); n != 1 {
		t.Errorf("%d fetches, want 1", n)
	}
}

// A set may hold what this package cannot use, and must not lend itself to be used as a secret.
func TestH17_KeySetIgnores(t *testing.T) {
	e := &endpoint{}
	good := strings.TrimSuffix(strings.TrimPrefix(keySet(map[string]crypto.PublicKey{"d": edKey().Public()}), `{"keys":[`), `]}`)
	e.serve(200, `{"keys":[{"kty":"oct","kid":"o","k":"`+b64(string(secret))+`"},{"kty":"XYZ","kid":"x"},{"kty":"EC","crv":"P-999","kid":"e"},`+
		strings.Replace(good, `"kid":"d"`, `"kid":"enc","use":"enc"`, 1)+`,`+good+`]}`)
	j := e.verifier(nil)
	if _, err := j.Verify(t.Context(), edToken("d")); err != nil {
		t.Errorf("Verify: %v", err)
	}
	_, err := j.Verify(t.Context(), edToken("enc"))
	denied(t, err)
	_, err = j.Verify(t.Context(), sign(jwt.SigningMethodHS256, secret, jwt.MapClaims{}, map[string]any{"kid": "o"}))
	denied(t, err)
}

func TestH17_KeySetFailures(t *testing.T) {
	for name, prepare := range map[string]func(*endpoint){
		"refused":        (*endpoint).fail,
		"hangs":          (*endpoint).hang,
		"500":            func(e *endpoint) { e.serve(500, keySet(nil)) },
		"404":            func(e *endpoint) { e.serve(404, "") },
		"not JSON":       func(e *endpoint) { e.serve(200, "<html>") },
		"another object": func(e *endpoint) { e.serve(200, `{"error":"no"}`) },
		"no usable key":  func(e *endpoint) { e.serve(200, `{"keys":[{"kty":"XYZ"}]}`) },
		"too large":      func(e *endpoint) { e.serve(200, `{"keys":[]}`+strings.Repeat(" ", 1<<20)) },
		"body hangs": func(e *endpoint) {
			e.set(func(r *http.Request) (*http.Response, error) {
				pr, pw := io.Pipe()
				context.AfterFunc(r.Context(), func() { _ = pw.CloseWithError(r.Context().Err()) })
				return &http.Response{StatusCode: 200, Body: pr}, nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &endpoint{}
				prepare(e)
				j := e.verifier(nil)
				start := time.Now()
				_, err := j.Verify(t.Context(), edToken("d"))
				unavailable(t, err)
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("took %v, want at most 5 s", d)
				}
				// While the endpoint was tried just now, nobody waits for it.
				start = time.Now()
				_, err = j.Verify(t.Context(), edToken("d"))
				unavailable(t, err)
				if d := time.Since(start); d != 0 || e.fetches() != 1 {
					t.Errorf("took %v and %d fetches, want 0 and 1", d, e.fetches())
				}
				// It comes back.
				e.serve(200, keySet(map[string]crypto.PublicKey{"d": edKey().Public()}))
				time.Sleep(5 * time.Second)
				if _, err := j.Verify(t.Context(), edToken("d")); err != nil {
					t.Errorf("after it came back: %v", err)
				}
			})
		})
	}
}

// What can be denied without a key costs no fetch, and is denied even if the endpoint is down.
func TestH17_KeySetIsNotAskedForNothing(t *testing.T) {
	e := &endpoint{}
	e.fail()
	j := e.verifier(func(o *auth.JWTOptions) { o.Issuer = "iss" })
	for _, token := range []string{
		"", marker, edToken("d"),
		sign(jwt.SigningMethodEdDSA, edKey(), jwt.MapClaims{"iss": "iss", "exp": 1}, nil),
		sign(jwt.SigningMethodHS256, secret, jwt.MapClaims{"iss": "iss"}, nil),
	} {
		_, err := j.Verify(t.Context(), token)
		denied(t, err)
	}
	if n := e.fetches(); n != 0 {
		t.Errorf("%d fetches, want 0", n)
	}
}

func TestH17_KeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		e.serve(200, keySet(map[string]crypto.PublicKey{"old": edKey().Public()}))
		j := e.verifier(nil)
		verify := func(kid string) error {
			_, err := j.Verify(t.Context(), edToken(kid))
			return err
		}
		if err := verify("old"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		e.serve(200, keySet(map[string]crypto.PublicKey{"new": edKey().Public()}))
		if err := verify("new"); err != nil {
			t.Errorf("a new key: %v", err)
		}
		denied(t, verify("old"))

		// However many unknown keys come, the endpoint is asked once in 5 s.
		before := e.fetches()
		for range 100 {
			denied(t, verify(marker))
		}
		time.Sleep(5 * time.Second)
		for range 100 {
			denied(t, verify(marker))
		}
		if n := e.fetches() - before; n != 1 {
			t.Errorf("%d fetches for 200 unknown keys within 5 s, want 1", n)
		}

		// With the endpoint down an unknown key may be new: no denial. Known ones are accepted for a day.
		e.fail()
		time.Sleep(5 * time.Second)
		unavailable(t, verify(marker))
		unavailable(t, verify(marker))
		if err := verify("new"); err != nil {
			t.Errorf("a known key with the endpoint down: %v", err)
		}
		time.Sleep(23 * time.Hour)
		if err := verify("new"); err != nil {
			t.Errorf("a known key after 23 h: %v", err)
		}
		time.Sleep(time.Hour)
		unavailable(t, verify("new"))
	})
}

// An old set is fetched again, and serves others while the endpoint hangs.
func TestH17_KeySetRefresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		e.serve(200, keySet(map[string]crypto.PublicKey{"a": edKey().Public()}))
		j := e.verifier(func(o *auth.JWTOptions) { o.RefreshInterval = time.Minute })
		_ = must(j.Verify(t.Context(), edToken("a")))
		e.hang()
		time.Sleep(time.Minute)
		first := make(chan time.Duration, 1)
		go func() {
			start := time.Now()
			_, _ = j.Verify(t.Context(), edToken("a"))
			first <- time.Since(start)
		}()
		synctest.Wait()
		start := time.Now()
		if _, err := j.Verify(t.Context(), edToken("a")); err != nil || time.Since(start) != 0 {
			t.Errorf("a second caller: %v after %v, want nil at once", err, time.Since(start))
		}
		if d := <-first; d != 5*time.Second {
			t.Errorf("the caller that fetches waited %v, want 5 s", d)
		}
	})
}

// One caller fetches; the others wait for the same set, or until they give up.
func TestH17_KeySetOneFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		body := keySet(map[string]crypto.PublicKey{"a": edKey().Public()})
		e.set(func(*http.Request) (*http.Response, error) {
			time.Sleep(2 * time.Second)
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(body))}, nil
		})
		j := e.verifier(nil)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := j.Verify(t.Context(), edToken("a")); err != nil {
					t.Errorf("Verify: %v", err)
				}
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := j.Verify(ctx, edToken("a"))
		unavailable(t, err)
		wg.Wait()
		if n := e.fetches(); n != 1 {
			t.Errorf("%d fetches, want 1", n)
		}
	})
}

// A caller that gives up while it fetches says nothing about the endpoint: the next one tries at once.
func TestH17_KeySetCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		e.hang()
		j := e.verifier(nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := j.Verify(ctx, edToken("a"))
		unavailable(t, err)
		e.serve(200, keySet(map[string]crypto.PublicKey{"a": edKey().Public()}))
		if _, err := j.Verify(t.Context(), edToken("a")); err != nil {
			t.Errorf("Verify: %v", err)
		}
	})
}

func TestH17_KeySetRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &endpoint{}
		e.fail()
		j := e.verifier(func(o *auth.JWTOptions) { o.RefreshInterval = time.Minute })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- j.Run(ctx) }()
		time.Sleep(time.Second) // fetched at 0
		e.serve(200, keySet(map[string]crypto.PublicKey{"a": edKey().Public()}))
		time.Sleep(5 * time.Second) // fetched at 5
		if n := e.fetches(); n != 2 {
			t.Errorf("%d fetches, want 2", n)
		}
		for range 10 {
			time.Sleep(59 * time.Second)
			if _, err := j.Verify(t.Context(), edToken("a")); err != nil {
				t.Errorf("Verify: %v", err)
			}
		}
		if n := e.fetches(); n > 12 {
			t.Errorf("%d fetches in 10 min, want one a minute", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestH17_RunWithoutKeySetWaits(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := must(auth.NewJWT(auth.JWTOptions{Secret: secret})).Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestH17_KeySetFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks.json")
	j := must(auth.NewJWT(auth.JWTOptions{JWKSFile: file, AllowNoExpiry: true, MinRefresh: 1}))
	_, err := j.Verify(t.Context(), edToken("a"))
	unavailable(t, err)
	write := func(keys map[string]crypto.PublicKey) {
		t.Helper()
		if err := os.WriteFile(file, []byte(keySet(keys)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(map[string]crypto.PublicKey{"a": edKey().Public()})
	if _, err := j.Verify(t.Context(), edToken("a")); err != nil {
		t.Errorf("Verify: %v", err)
	}
	write(map[string]crypto.PublicKey{"b": edKey().Public()})
	if _, err := j.Verify(t.Context(), edToken("b")); err != nil {
		t.Errorf("a new key: %v", err)
	}
	_, err = j.Verify(t.Context(), edToken("a"))
	denied(t, err)
}

func TestH17_KeySetServer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, keySet(map[string]crypto.PublicKey{"a": edKey().Public()}))
	}))
	j := must(auth.NewJWT(auth.JWTOptions{JWKSURL: srv.URL, Client: srv.Client(), AllowNoExpiry: true, MinRefresh: 1}))
	if _, err := j.Verify(t.Context(), edToken("a")); err != nil {
		t.Errorf("Verify: %v", err)
	}
	srv.Close()
	_, err := j.Verify(t.Context(), edToken("b"))
	unavailable(t, err)
}
