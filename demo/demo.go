// Package demo is the program that `tidewire demo` runs: one page, a shared room with live cursors, a roster, reactions and a feed, and a board that follows a table in SQLite, on a node of its own.
//
// Everybody who opens the page is a guest with a token that it fetches and renews by itself, so that the demo goes the way an application would. The key that signs tokens lives in a
// folder for temporary files, and so do the rooms' histories and the board, so a page survives a restart of the server.
package demo

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/stream"
)

// dist is built from web by `make web`.
//
//go:embed all:dist
var dist embed.FS

// A page's token is short, so that renewing is part of the demo; the one for the terminal is not, so that it can be copied.
const (
	tokenLife         = 2 * time.Minute
	terminalTokenLife = 24 * time.Hour
)

// Options configures the demo.
type Options struct {
	// Addr is where it listens. Zero means localhost:8080, or the next free port.
	Addr string
	// Dir keeps the signing key and the board. Zero means [DefaultDir].
	Dir string
	// Streams keeps the rooms' histories. Nil means memory.
	Streams stream.Store
	// Stdout gets the address and what to try. Nil means nothing.
	Stdout io.Writer
	// Logger receives diagnostics. Nil means [slog.Default].
	Logger *slog.Logger
	// Ready is called with the address when the demo serves.
	Ready func(url string)
}

// Run serves the demo until ctx ends.
func Run(ctx context.Context, o Options) error {
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	if o.Dir == "" {
		o.Dir = DefaultDir()
	}
	secret, err := signingKey(o.Dir)
	if err != nil {
		return err
	}
	key := "demo-" + hex.EncodeToString(secret[:8])
	cards, file, err := openBoard(ctx, o.Dir, o.Logger)
	if err != nil {
		return err
	}
	defer func() { _ = cards.db.Close() }()
	node, err := newNode(secret, key, cards, o)
	if err != nil {
		return err
	}
	l, err := listen(o.Addr)
	if err != nil {
		return fmt.Errorf("demo: listen: %w", err)
	}
	handler, err := newHandler(node, secret, cards)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()

	url := "http://" + l.Addr().String()
	token, err := guestToken(secret, "guest-terminal", terminalTokenLife)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Stdout, `Tidewire demo on %[1]s

Open it in two windows, and %[1]s/tabs.html?mode=coordinated in five tabs. To take part from a terminal:

  tidewire sub demo.lobby --url %[1]s --token %[3]s
  tidewire pub demo.lobby '{"kind":"say","text":"hello"}' --url %[1]s --key %[2]s

The board is the table cards in %[4]s. Change it from outside, and follow it:

  sqlite3 %[4]s "UPDATE cards SET title = 'Seen at once' WHERE id = 1"
  tidewire query board --url %[1]s --token %[3]s

API key  %[2]s
Token    %[3]s (for a day)
Stop     Ctrl-C

`, url, key, token, file)
	if o.Ready != nil {
		o.Ready(url)
	}
	nodeCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	tide := make(chan struct{})
	go func() {
		defer close(tide)
		runTide(nodeCtx, node)
	}()
	failed := make(chan error, 1)
	go func() {
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("demo: %w", err)
			cancel()
		}
	}()
	err = node.Run(nodeCtx)
	cancel()
	<-tide
	stop, done := context.WithTimeout(context.Background(), 2*time.Second)
	defer done()
	if serr := srv.Shutdown(stop); serr != nil {
		_ = srv.Close()
	}
	select {
	case ferr := <-failed:
		return ferr
	default:
		return err
	}
}

// listen takes the address, or by default the first free port from 8080 on.
func listen(addr string) (net.Listener, error) {
	if addr != "" {
		return net.Listen("tcp", addr)
	}
	var err error
	for port := 8080; port < 8100; port++ {
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("localhost:%d", port)); err == nil {
			return l, nil
		}
	}
	return nil, err
}

func newNode(secret []byte, key string, cards *board, o Options) (*tidewire.Node, error) {
	jwt, err := auth.NewJWT(auth.JWTOptions{Secret: secret})
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	node, err := tidewire.New(tidewire.Options{
		Authenticate:   tidewire.AuthenticateWith(jwt),
		Reauthenticate: tidewire.ReauthenticateWith(jwt),
		Backend:        auth.NewAPIKeys(map[string]auth.Identity{key: {Subject: "terminal"}}),
		DrainWindow:    time.Second,
		Build:          buildID(),
		Logger:         o.Logger,
		Streams:        o.Streams,
		Database:       cards.db,
	})
	if err != nil {
		return nil, err
	}
	if err := cards.declare(node); err != nil {
		return nil, err
	}
	if err := declareTide(node); err != nil {
		return nil, err
	}
	// The pages measure the way to the server on channels of their own, which need no history.
	if err := node.Channel("demo.echo-*", tidewire.ChannelOptions{Guard: tidewire.Public}); err != nil {
		return nil, err
	}
	return node, node.Channel("demo.{room}", tidewire.ChannelOptions{
		Guard: tidewire.Public, Presence: true, History: &tidewire.History{Size: 200, TTL: 7 * 24 * time.Hour},
	})
}

// buildID names the page that this server serves.
func buildID() string {
	h := sha256.New()
	_ = fs.WalkDir(dist, "dist", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			b, _ := dist.ReadFile(path)
			_, _ = h.Write(b)
		}
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)[:6])
}

func newHandler(node *tidewire.Node, secret []byte, cards *board) (http.Handler, error) {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("/v1/", node)
	mux.Handle("/ws", node)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		mux.Handle(path, node)
	}
	mux.HandleFunc("/demo/session", func(w http.ResponseWriter, r *http.Request) { serveSession(w, r, secret) })
	mux.HandleFunc("/demo/tide", func(w http.ResponseWriter, _ *http.Request) { serveTide(w, node) })
	cards.routes(mux)
	pages := http.FileServerFS(files)
	tag := `"` + buildID() + `"`
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("ETag", tag)
		w.Header().Set("Content-Security-Policy", "default-src 'self'; connect-src 'self' ws: wss:; style-src 'self'; img-src 'self' data:")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		pages.ServeHTTP(w, r)
	})
	return mux, nil
}

var guestName = regexp.MustCompile(`^guest-[a-z0-9]{6,32}$`)

// serveSession gives a guest a token and tells the page its build.
func serveSession(w http.ResponseWriter, r *http.Request, secret []byte) {
	guest := r.URL.Query().Get("guest")
	if !guestName.MatchString(guest) {
		http.Error(w, "guest must be guest- and 6 to 32 letters or digits", http.StatusBadRequest)
		return
	}
	token, err := guestToken(secret, guest, tokenLife)
	if err != nil {
		http.Error(w, "no token", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expiresInMs": tokenLife.Milliseconds(), "build": buildID()})
}

func guestToken(secret []byte, guest string, life time.Duration) (string, error) {
	return auth.Sign(secret, auth.Identity{Subject: guest, ExpiresAt: time.Now().Add(life)})
}

// DefaultDir is the folder for temporary files of this user's demo.
func DefaultDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("tidewire-demo-%d", os.Getuid()))
}

// signingKey reads the key, or makes it.
func signingKey(dir string) ([]byte, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	path := filepath.Join(dir, "key")
	if b, err := os.ReadFile(path); err == nil && len(b) == 32 {
		return b, nil
	}
	b := make([]byte, 32)
	_, _ = rand.Read(b)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	return b, nil
}
