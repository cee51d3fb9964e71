package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/wire"
)

const (
	// maxHeaderBytes bounds a request's headers: a token has at most 16 KiB.
	maxHeaderBytes = 32 << 10
	// bodyTimeout bounds reading a request and writing its answer. It does not hold for connections that were upgraded.
	bodyTimeout = time.Minute
	// keepAlive is how long an HTTP connection may be idle.
	keepAlive = 2 * time.Minute
	// shutdownWait is the time for requests in progress after the node has drained.
	shutdownWait = 5 * time.Second
	readyWait    = 10 * time.Second

	defaultConfigFile = "tidewire.yaml"
)

type serveCmd struct {
	Config      string `short:"c" help:"The configuration file; without, tidewire.yaml if it is there." placeholder:"FILE"`
	Addr        string `help:"Where to listen, [HOST]:PORT." placeholder:"ADDR"`
	Dev         bool   `help:"Let everybody do everything on every channel and object that the configuration does not declare. Not for production."`
	PrintConfig bool   `help:"Print the configuration that results, without secrets, and exit."`
}

// Run serves until ctx ends, then drains.
func (c *serveCmd) Run(ctx context.Context, p *program) error {
	cfg, file, err := c.load(p)
	if err != nil {
		return err
	}
	logger := newLogger(cfg.Log, p.stderr)
	if !c.PrintConfig {
		cfg.Limits.Connections = raiseFileLimit(logger, cfg.Limits.Connections)
	}
	kept := &streams{} // the configuration is checked without opening anything
	if !c.PrintConfig {
		if kept, err = openStreams(cfg.Streams, logger); err != nil {
			return err
		}
		defer func() {
			if cerr := kept.close(); cerr != nil {
				logger.Error("a store was not closed well", "error", cerr)
			}
		}()
	}
	var db feed.Database
	if !c.PrintConfig {
		var closeDB func()
		if db, closeDB, err = awaitDatabase(ctx, cfg.Database, logger); err != nil {
			if ctx.Err() != nil {
				return nil // stopped before it began
			}
			return err
		}
		defer closeDB()
		if db != nil && p.getenv("GOGC") == "" && p.getenv("GOMEMLIMIT") == "" { // live queries are many small objects, which each collection marks again
			debug.SetGCPercent(200)
		}
	}
	s, err := newServer(ctx, cfg, c.Dev, kept, db, logger)
	if err != nil {
		return err
	}
	if c.PrintConfig {
		out, err := cfg.print()
		if err == nil {
			_, err = p.stdout.Write(out)
		}
		return err
	}
	version, commit := buildVersion()
	logger.Info("tidewire", "version", version, "commit", commit, "config", file)
	s.warn(c.Dev)
	s.warnEnv(p)
	return s.run(ctx, p.stdout)
}

// load reads the configuration, and returns where from.
func (c *serveCmd) load(p *program) (config, string, error) {
	path, asked := c.Config, true
	if path == "" {
		path = p.getenv("TIDEWIRE_CONFIG")
	}
	if path == "" {
		path, asked = defaultConfigFile, false
	}
	var data []byte
	if _, err := os.Stat(path); asked || !errors.Is(err, fs.ErrNotExist) {
		if data, err = readConfigFile(path); err != nil {
			return config{}, "", err
		}
	} else {
		path = "none"
	}
	flags := map[string]any{}
	if c.Addr != "" {
		flags["addr"] = c.Addr
	}
	cfg, err := decodeConfig(data, p.getenv, flags)
	if err != nil && path != "none" {
		e := wire.AsError(err)
		err = &wire.Error{Code: e.Code, Message: path + ": " + e.Message, Err: e.Err}
	}
	return cfg, path, err
}

func newLogger(c logConfig, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // checked by config.check
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// server is a node with its HTTP server.
type server struct {
	cfg       config
	log       *slog.Logger
	streams   *streams
	node      *tidewire.Node
	jwt       *auth.JWT // nil without
	tls       *tls.Config
	open      bool // somebody can connect
	anonymous bool
}

func newServer(ctx context.Context, cfg config, dev bool, kept *streams, db feed.Database, logger *slog.Logger) (*server, error) {
	s := &server{cfg: cfg, log: logger, streams: kept, anonymous: cfg.Auth.Anonymous || dev}
	opts := cfg.nodeOptions()
	opts.Logger = logger
	opts.Streams = kept.channels
	host, err := object.NewHost(object.Options{Log: kept.objects, EventTimeout: cfg.Timing.ObjectEvent})
	if err != nil {
		return nil, configError("objects: %v", err)
	}
	opts.Objects = host
	opts.Database = db
	if err := s.authentication(&opts); err != nil {
		return nil, err
	}
	node, err := tidewire.New(opts)
	if err != nil {
		return nil, err
	}
	s.node = node
	if err := declare(node, cfg, dev); err != nil {
		return nil, err
	}
	if _, refused := declareQueries(ctx, node, db, cfg); len(refused) > 0 {
		return nil, errors.Join(refused...)
	}
	if cfg.TLS.Cert != "" {
		pair, err := tls.LoadX509KeyPair(cfg.TLS.Cert, cfg.TLS.Key)
		if err != nil {
			return nil, configError("tls: %v", err)
		}
		s.tls = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	}
	return s, nil
}

// authentication sets who may connect and who may publish over HTTP.
func (s *server) authentication(opts *tidewire.Options) error {
	c := s.cfg.Auth
	var verifiers []auth.Verifier
	if len(c.APIKeys) > 0 {
		verifiers = append(verifiers, auth.NewAPIKeys(identities(c.APIKeys)))
	}
	if c.JWT.enabled() {
		o := auth.JWTOptions{JWKSURL: c.JWT.JWKSURL, JWKSFile: c.JWT.JWKSFile, Issuer: c.JWT.Issuer, Audience: c.JWT.Audience, Leeway: c.JWT.Leeway}
		if c.JWT.Secret != "" {
			o.Secret = []byte(string(c.JWT.Secret))
		}
		var err error
		if s.jwt, err = auth.NewJWT(o); err != nil {
			return configError("auth.jwt: %v", err)
		}
		if c.JWT.JWKSFile != "" { // an address may be down for now, a file should be there
			if err := s.jwt.Load(context.Background()); err != nil {
				return configError("auth.jwt.jwks_file: %v", err)
			}
		}
		verifiers = append(verifiers, named{s.jwt})
	}
	s.open = s.anonymous || len(verifiers) > 0
	check := tidewire.AuthenticateWith(auth.Any(verifiers...))
	opts.Authenticate = func(r *http.Request) (*tidewire.Grant, error) {
		_, presented := auth.Token(r)
		if s.anonymous && (!presented || len(verifiers) == 0) {
			return &tidewire.Grant{}, nil
		}
		return check(r) // a wrong token never makes anonymous
	}
	if len(verifiers) > 0 {
		opts.Reauthenticate = tidewire.ReauthenticateWith(auth.Any(verifiers...))
	}
	if len(s.cfg.BackendKeys) > 0 {
		opts.Backend = auth.NewAPIKeys(identities(s.cfg.BackendKeys))
	}
	if claim := c.TenantClaim; claim != "" {
		opts.Tenant = func(a tidewire.Actor) string {
			tenant, _ := a.Claims[claim].(string)
			return tenant
		}
	}
	return nil
}

func identities(keys []keyConfig) map[string]auth.Identity {
	ids := make(map[string]auth.Identity, len(keys))
	for _, k := range keys {
		ids[string(k.Key)] = auth.Identity{Subject: k.Name}
	}
	return ids
}

// named denies tokens of nobody: their actor would be taken for an anonymous one.
type named struct{ auth.Verifier }

func (n named) Verify(ctx context.Context, token string) (auth.Identity, error) {
	id, err := n.Verifier.Verify(ctx, token)
	if err == nil && id.Subject == "" {
		return auth.Identity{}, fmt.Errorf("%w: no subject", auth.ErrDenied)
	}
	return id, err
}

// declare declares the channels and the objects, and in development all others.
func declare(node *tidewire.Node, cfg config, dev bool) error {
	env, err := guardEnv()
	if err != nil {
		return fmt.Errorf("guards: %w", err)
	}
	for i, c := range cfg.Channels {
		guard, err := newGuard(env, c.Pattern, c.Guard)
		if err != nil {
			return configError("channels[%d] %q: guard: %v", i, c.Pattern, err)
		}
		if err := node.Channel(c.Pattern, tidewire.ChannelOptions{Guard: guard, Presence: c.Presence, Policy: tidewire.Policy(c.Policy), History: c.History.options()}); err != nil {
			return configError("channels[%d]: %s", i, wire.AsError(err).Message)
		}
	}
	for i, c := range cfg.Objects {
		guard, err := newGuard(env, c.Pattern, c.Guard)
		if err != nil {
			return configError("objects[%d] %q: guard: %v", i, c.Pattern, err)
		}
		if err := node.Object(c.Pattern, tidewire.ObjectOptions{Guard: guard}); err != nil {
			return configError("objects[%d]: %s", i, wire.AsError(err).Message)
		}
	}
	if !dev {
		return nil
	}
	err = node.Channel("**", tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true})
	if err != nil && len(cfg.Channels) == 0 { // otherwise ** is declared
		return err
	}
	err = node.Object("**", tidewire.ObjectOptions{Guard: tidewire.Public})
	if err != nil && len(cfg.Objects) == 0 {
		return err
	}
	return nil
}

// warnEnv names variables that look like ours and set nothing. A file's unknown key is an error; a variable may belong to another program.
func (s *server) warnEnv(p *program) {
	if p.environ == nil {
		return
	}
	known := []string{s.cfg.Auth.JWT.SecretEnv}
	for _, k := range slices.Concat(s.cfg.Auth.APIKeys, s.cfg.BackendKeys) {
		known = append(known, k.KeyEnv)
	}
	for name, near := range unknownEnv(p.environ(), known) {
		s.log.Warn("a variable in the environment sets nothing", "name", name, "nearest", near)
	}
}

// warn says what an operator may not have meant.
func (s *server) warn(dev bool) {
	if dev {
		s.log.Warn("DEVELOPMENT MODE (--dev): anybody may connect without a credential and do everything on every channel and object; never use it in production")
	}
	if !s.open {
		s.log.Warn("no client can connect: the configuration has no auth. Start with --dev to try things out, or write auth.jwt, auth.api_keys or auth.anonymous into tidewire.yaml; see docs/configuration.md")
	}
	if len(s.cfg.Channels) == 0 && !dev {
		s.log.Warn("no channels are declared: clients may use none. Write channels into tidewire.yaml, or start with --dev")
	}
	if s.cfg.Auth.Anonymous && !dev {
		s.log.Warn("anonymous clients may connect (auth.anonymous)")
	}
	if len(s.cfg.BackendKeys) == 0 {
		s.log.Info("no backend_keys: the HTTP interface for backends is closed")
	}
}

// run serves until ctx ends, then drains, and returns when everything has stopped.
func (s *server) run(ctx context.Context, stdout io.Writer) error {
	listener, err := net.Listen("tcp", s.cfg.Addr)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	scheme := "http"
	if s.tls != nil {
		scheme, listener = "https", tls.NewListener(listener, s.tls)
	}
	srv := &http.Server{
		Handler:           s.node,
		ReadHeaderTimeout: s.cfg.Timing.HeaderTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       keepAlive,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(httpErrors{s.log}, "", 0),
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	if s.jwt != nil {
		work.Go(func() { _ = s.jwt.Run(ctx) })
	}
	work.Go(func() {
		if err := srv.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			cancel(fmt.Errorf("serve: %w", err))
		}
	})
	work.Go(func() { s.streams.sweep(ctx, s.log) })
	work.Go(func() { s.sayReady(ctx, stdout, scheme+"://"+listener.Addr().String()) })

	runErr := s.node.Run(ctx) // HTTP goes on while it drains: probes see it
	cancel(nil)
	stop, done := context.WithTimeout(context.Background(), shutdownWait)
	defer done()
	if err := srv.Shutdown(stop); err != nil {
		_ = srv.Close()
	}
	work.Wait()
	s.log.Info("stopped")
	if cause := context.Cause(ctx); runErr == nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return runErr
}

// httpErrors logs what net/http complains about: mostly of clients.
type httpErrors struct{ log *slog.Logger }

func (h httpErrors) Write(p []byte) (int, error) {
	level := slog.LevelDebug
	switch {
	case bytes.Contains(p, []byte("panic")):
		level = slog.LevelError
	case bytes.Contains(p, []byte("Accept error")): // no open files are left; net/http waits between tries
		level = slog.LevelWarn
	}
	h.log.Log(context.Background(), level, "http: "+string(bytes.TrimSpace(p)))
	return len(p), nil
}

// sayReady prints the address when the node is ready.
func (s *server) sayReady(ctx context.Context, stdout io.Writer, url string) {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.ready(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	_, _ = fmt.Fprintln(stdout, "listening on "+url)
	s.log.Info("listening", "url", url)
}

// ready asks the node itself.
func (s *server) ready(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil)
	if err != nil {
		return false
	}
	w := &status{header: http.Header{}}
	s.node.ServeHTTP(w, r)
	return w.code == http.StatusOK
}

// status is an answer of which only the status matters.
type status struct {
	header http.Header
	code   int
}

func (s *status) Header() http.Header { return s.header }

func (s *status) WriteHeader(code int) {
	if s.code == 0 {
		s.code = code
	}
}

func (s *status) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	return len(p), nil
}
