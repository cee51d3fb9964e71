package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"github.com/tidewire/tidewire/client"
)

// remote is how a command reaches a server.
type remote struct {
	URL   string `help:"The server. TIDEWIRE_URL in the environment, or http://localhost:8080." placeholder:"URL"`
	Token string `help:"The token to connect with. TIDEWIRE_TOKEN in the environment keeps it out of the list of processes." placeholder:"TOKEN"`
	CA    string `help:"A file with the certificates to trust beside the system's." placeholder:"FILE" name:"ca"`
	Quiet bool   `short:"q" help:"Say nothing about the connection."`
}

// resolve takes from the environment what was not said.
func (r *remote) resolve(p *program) {
	for _, v := range []struct {
		value          *string
		name, fallback string
	}{{&r.URL, "TIDEWIRE_URL", "http://localhost:8080"}, {&r.Token, "TIDEWIRE_TOKEN", ""}} {
		if *v.value == "" {
			*v.value = p.getenv(v.name)
		}
		if *v.value == "" {
			*v.value = v.fallback
		}
	}
}

// httpClient returns a client that leaves nothing open.
func (r *remote) httpClient() (*http.Client, error) {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	if r.CA != "" {
		pem, err := os.ReadFile(r.CA)
		if err != nil {
			return nil, &usageError{fmt.Errorf("--ca: %w", err)}
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, &usageError{errors.New("--ca: no certificate in the file")}
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: t}, nil
}

// connect returns a client of the server's socket. What happens to the connection is told on stderr.
func (r *remote) connect(p *program) (*client.Client, error) {
	httpClient, err := r.httpClient()
	if err != nil {
		return nil, err
	}
	level := slog.LevelInfo
	if r.Quiet {
		level = slog.LevelError
	}
	log := slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	header := http.Header{}
	if r.Token != "" {
		header.Set("Authorization", "Bearer "+r.Token)
	}
	c, err := client.New(client.Options{
		URL: r.URL, Header: header, HTTPClient: httpClient, Logger: log,
		OnState: func(s client.State) {
			switch s.Status {
			case client.Connected:
				log.Info("connected", "node", s.Node, "actor", s.Actor, "session", s.Session)
			case client.Waiting:
				log.Warn("not connected", "error", s.Err, "retry", s.Retry)
			}
		},
	})
	if err != nil {
		return nil, &usageError{err}
	}
	return c, nil
}
