package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"

	"github.com/tidewire/tidewire/internal/backoff"
)

// maxKeySet bounds what is read of a key set, in bytes.
const maxKeySet = 1 << 20

// unavailableError is an ErrUnavailable of a key set. It is a type so that it survives the parser's wrapping.
type unavailableError struct{ cause error }

func (e *unavailableError) Error() string {
	return ErrUnavailable.Error() + ": key set: " + e.cause.Error()
}
func (e *unavailableError) Is(target error) bool { return target == ErrUnavailable }
func (e *unavailableError) Unwrap() error        { return e.cause }

// keySet is a JSON Web Key Set that is fetched when needed. The library that holds the keys could fetch them too, but it starts a goroutine when it is made, reads without a bound and takes
// a set that cannot be fetched for one without the key.
type keySet struct {
	// Set by newKeySet, then read-only.
	fetch                                   func(ctx context.Context) (io.ReadCloser, error)
	timeout, refresh, minRefresh, staleness time.Duration

	turn chan struct{} // holds one element while somebody fetches

	mu      sync.Mutex // guards below
	keys    keyfunc.Keyfunc
	fetched time.Time // when keys was
	tried   time.Time // when the last fetch ended
	err     error     // of the last fetch
}

func newKeySet(o JWTOptions) (*keySet, error) {
	def := func(d, zero time.Duration) time.Duration {
		if d <= 0 {
			return zero
		}
		return d
	}
	k := &keySet{
		timeout:    def(o.FetchTimeout, 5*time.Second),
		refresh:    def(o.RefreshInterval, 15*time.Minute),
		minRefresh: def(o.MinRefresh, 5*time.Second),
		staleness:  def(o.MaxStale, 24*time.Hour),
		turn:       make(chan struct{}, 1),
	}
	if o.JWKSURL == "" {
		k.fetch = func(context.Context) (io.ReadCloser, error) { return os.Open(o.JWKSFile) }
		return k, nil
	}
	u, err := url.Parse(o.JWKSURL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("auth: JWKSURL is not an http or https address")
	}
	client := o.Client
	if client == nil {
		client = http.DefaultClient
	}
	k.fetch = func(ctx context.Context) (io.ReadCloser, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.JWKSURL, nil)
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK {
			_ = resp.Body.Close()
			return nil, fmt.Errorf("status %d", resp.StatusCode)
		}
		return resp.Body, nil
	}
	return k, nil
}

// keyOf finds the key that a token names, or all keys if it names none.
func (k *keySet) keyOf(ctx context.Context, t *jwt.Token) (any, error) {
	keys, err := k.current(ctx, k.refresh, false)
	if err != nil {
		return nil, err
	}
	key, err := keys.KeyfuncCtx(ctx)(t)
	if !errors.Is(err, jwkset.ErrKeyNotFound) {
		return key, err
	}
	// The key may be new: look again, unless the set is.
	keys, ferr := k.current(ctx, k.minRefresh, true)
	if ferr != nil {
		return nil, ferr
	}
	if key, err = keys.KeyfuncCtx(ctx)(t); !errors.Is(err, jwkset.ErrKeyNotFound) {
		return key, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil { // the set is old, and cannot say that there is no such key
		return nil, &unavailableError{k.err}
	}
	return nil, err
}

// current returns the key set, fetched again if it is older than maxAge and the last fetch was not just now. If that fails, an old set serves until it is too old, and
// with wait false also while somebody else fetches.
func (k *keySet) current(ctx context.Context, maxAge time.Duration, wait bool) (keyfunc.Keyfunc, error) {
	if !k.recent(maxAge) {
		select {
		case k.turn <- struct{}{}:
			if !k.recent(maxAge) { // somebody else may have fetched meanwhile
				k.update(ctx)
			}
			<-k.turn
		default:
			if keys, err := k.last(ctx); err == nil && !wait {
				return keys, nil
			}
			select {
			case k.turn <- struct{}{}: // and is done
				<-k.turn
				return k.current(ctx, maxAge, wait)
			case <-ctx.Done():
			}
		}
	}
	return k.last(ctx)
}

// recent reports whether to do without a fetch.
func (k *keySet) recent(maxAge time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys != nil && time.Since(k.fetched) < maxAge || !k.tried.IsZero() && time.Since(k.tried) < k.minRefresh
}

// last returns what the last fetches left.
func (k *keySet) last(ctx context.Context) (keyfunc.Keyfunc, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.keys != nil && (k.err == nil || time.Since(k.fetched) < k.staleness):
		return k.keys, nil
	case k.err != nil:
		return nil, &unavailableError{k.err}
	case ctx.Err() != nil:
		return nil, &unavailableError{ctx.Err()}
	}
	return nil, &unavailableError{errors.New("not fetched yet")}
}

// update fetches the set. The caller holds the turn.
func (k *keySet) update(ctx context.Context) {
	keys, err := k.load(ctx)
	if ctx.Err() != nil {
		return // the caller's end says nothing about the set
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried, k.err = time.Now(), err
	if err == nil {
		k.keys, k.fetched = keys, k.tried
	}
}

func (k *keySet) load(ctx context.Context) (keyfunc.Keyfunc, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	body, err := k.fetch(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, maxKeySet+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxKeySet {
		return nil, fmt.Errorf("more than %d bytes", maxKeySet)
	}
	return parseKeySet(ctx, data)
}

// parseKeySet takes the keys that this package can use, and ignores the others as RFC 7517 asks.
func parseKeySet(ctx context.Context, data []byte) (keyfunc.Keyfunc, error) {
	var set jwkset.JWKSMarshal
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, errors.New("not a JSON Web Key Set")
	}
	if set.Keys == nil {
		return nil, errors.New("not a JSON Web Key Set: no keys member")
	}
	store := jwkset.NewMemoryStorage()
	usable := 0
	for _, m := range set.Keys {
		key, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{}) // refuses shared secrets
		if err != nil {
			continue
		}
		if _, err := methodOf(key.Key()); err != nil {
			continue
		}
		if err := store.KeyWrite(ctx, key); err != nil {
			return nil, err
		}
		usable++
	}
	if usable == 0 && len(set.Keys) > 0 {
		return nil, errors.New("no usable key in the set")
	}
	return keyfunc.New(keyfunc.Options{Storage: store, UseWhitelist: []jwkset.USE{jwkset.UseSig, ""}})
}

// run fetches the set at once and then whenever it becomes old, with growing delays while that fails.
func (k *keySet) run(ctx context.Context) {
	retry := backoff.Backoff{Initial: k.minRefresh, Max: k.refresh}
	failures := 0
	for {
		select {
		case k.turn <- struct{}{}:
		case <-ctx.Done():
			return
		}
		k.update(ctx)
		<-k.turn
		k.mu.Lock()
		failed := k.err != nil
		k.mu.Unlock()
		wait := k.refresh
		if failed {
			failures++
			wait = retry.Delay(failures)
		} else {
			failures = 0
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
