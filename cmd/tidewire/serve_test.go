package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

const jwtSecret = "a secret of at least thirty-two bytes"

func token(t *testing.T, subject string, claims map[string]any) string {
	t.Helper()
	token, err := auth.Sign([]byte(jwtSecret), auth.Identity{Subject: subject, Claims: claims, ExpiresAt: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// connect runs a client of a server until the end of the test.
func connect(t *testing.T, url, token string) *client.Client {
	t.Helper()
	c, stop := connectUntil(t, url, token)
	t.Cleanup(stop)
	return c
}

func connectUntil(t *testing.T, url, token string) (c *client.Client, stop func()) {
	t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	c, err := client.New(client.Options{URL: url, Header: header, MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return c, func() {
		cancel()
		<-done
	}
}

// dialError is what a connection that cannot be made ends with.
func dialError(t *testing.T, url, token string) error {
	t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	result := make(chan error, 1)
	c, err := client.New(client.Options{URL: url, Header: header, OnState: func(s client.State) {
		switch s.Status {
		case client.Connected, client.Waiting, client.Stopped:
			select {
			case result <- s.Err:
			default:
			}
			cancel()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Run(ctx)
	return <-result
}

func wantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if !errors.Is(err, &wire.Error{Code: code}) {
		t.Errorf("error %v, want %s", err, code)
	}
}

func publish(t *testing.T, c *client.Client, channel string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.Publish(ctx, channel, 1, client.PublishOptions{})
	return err
}

func TestS01_WithoutConfigurationNobodyConnectsAndTheLogSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	s := serve(t, "", nil)
	wantCode(t, dialError(t, s.url, ""), wire.CodeSocketUnauthenticated)
	wantCode(t, dialError(t, s.url, "x"), wire.CodeSocketUnauthenticated)
	for _, want := range []string{"no client can connect", "--dev", "auth.jwt", "no channels are declared", "limit of open files"} {
		if !strings.Contains(s.stderr.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, s.stderr)
		}
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestS01_DevAllowsEverybodyAndSaysSo(t *testing.T) {
	t.Parallel()
	s := serve(t, "channels: [{pattern: closed, guard: 'false'}]", nil, "--dev")
	if !strings.Contains(s.stderr.String(), "DEVELOPMENT MODE") {
		t.Errorf("the log does not say so:\n%s", s.stderr)
	}
	c := connect(t, s.url, "")
	if err := publish(t, c, "anything.at.all"); err != nil {
		t.Error(err)
	}
	wantCode(t, publish(t, c, "closed"), wire.CodeTopicForbidden) // a declared channel keeps its guard
	sub, err := c.Subscribe("anything", client.SubscribeOptions{Presence: &client.Presence{Data: 1}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "in the roster", func() bool { return sub.Roster().Total == 1 })
}

func TestS01_WhoMayConnect(t *testing.T) {
	t.Parallel()
	e := env{"SECRET": jwtSecret}
	without, err := auth.Sign([]byte(jwtSecret), auth.Identity{ExpiresAt: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	const config = `
auth:
  anonymous: %v
  api_keys: [{name: robot, key: client-key-0123456789}]
  jwt: {secret_env: SECRET, audience: [here]}
channels: [{pattern: '**', guard: public}]
`
	for _, c := range []struct {
		name, token string
		anonymous   bool
		actor       string
		refused     bool
	}{
		{name: "nobody", refused: true},
		{name: "nobody, allowed", anonymous: true},
		{name: "a JWT", token: token(t, "alice", map[string]any{"aud": "here"}), actor: "alice"},
		{name: "a JWT for another audience", token: token(t, "alice", map[string]any{"aud": "there"}), refused: true},
		{name: "a JWT of nobody", token: without, refused: true},
		{name: "an API key", token: "client-key-0123456789", actor: "robot"},
		{name: "a wrong token", token: "x", refused: true},
		{name: "a wrong token does not make anonymous", token: "x", anonymous: true, refused: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, fmt.Sprintf(config, c.anonymous), e)
			if c.refused {
				wantCode(t, dialError(t, s.url, c.token), wire.CodeSocketUnauthenticated)
				return
			}
			conn := connect(t, s.url, c.token)
			if err := publish(t, conn, "a"); err != nil {
				t.Fatal(err)
			}
			if got := conn.State().Actor; got != c.actor {
				t.Errorf("the actor is %q, want %q", got, c.actor)
			}
		})
	}
}

func TestS03_GuardsOfAServer(t *testing.T) {
	t.Parallel()
	s := serve(t, `
auth: {anonymous: true, jwt: {secret: `+jwtSecret+`}}
channels:
  - {pattern: 'org.{org}', guard: 'actor.claims.org == params.org'}
  - {pattern: 'news', guard: readonly}
  - {pattern: 'broken', guard: '1 / (2 - 2) == 1'}
`, nil)
	member, nobody := connect(t, s.url, token(t, "alice", map[string]any{"org": "o1"})), connect(t, s.url, "")
	if err := publish(t, member, "org.o1"); err != nil {
		t.Error(err)
	}
	wantCode(t, publish(t, member, "org.o2"), wire.CodeTopicForbidden)
	wantCode(t, publish(t, member, "news"), wire.CodeTopicForbidden)
	wantCode(t, publish(t, member, "undeclared"), wire.CodeTopicForbidden)
	wantCode(t, publish(t, nobody, "org.o1"), wire.CodeTopicForbidden) // a claim that is not there gives nothing
	wantCode(t, publish(t, nobody, "broken"), wire.CodeGuardFailed)
	if !strings.Contains(s.stderr.String(), "guard failed") {
		t.Errorf("the failure is not logged:\n%s", s.stderr)
	}
}

func TestS06_LimitsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	s := serve(t, "auth: {anonymous: true, tenant_claim: org}\nlimits: {connections: 1, channels_per_connection: 1}\nchannels: [{pattern: '**', guard: public}]", nil)
	c := connect(t, s.url, "")
	told := make(chan *wire.Error, 1)
	for _, channel := range []string{"a", "b"} {
		if _, err := c.Subscribe(channel, client.SubscribeOptions{OnRefused: func(e *wire.Error) { told <- e }}); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, <-told, wire.CodeSubscriptionLimit)
	err := dialError(t, s.url, "")
	wantCode(t, err, wire.CodeConnectionLimit)
	if e := wire.AsError(err); e.Retry <= 0 {
		t.Errorf("no delay in %v", err)
	}
}

// certificate makes one for 127.0.0.1, and returns the files of the chain and the key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert = file(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	key = file(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
	return cert, key
}

func TestServe_TLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	s := serve(t, fmt.Sprintf("tls: {cert: %s, key: %s}\nbackend_keys: [{name: b, key: backend-key-0123456789}]", cert, key), nil, "--dev")
	if !strings.HasPrefix(s.url, "https://") {
		t.Fatalf("listening on %s", s.url)
	}
	sub := start(t, nil, "sub", "a", "--url", strings.Replace(s.url, "https", "wss", 1), "--ca", cert, "--presence", "--join", `"me"`)
	sub.wait(`"data":"me"`)
	for _, args := range [][]string{{"--key", "backend-key-0123456789"}, {}} {
		if _, stderr, err := tw(t, nil, append([]string{"pub", "a", `"over TLS"`, "--url", s.url, "--ca", cert}, args...)...); err != nil {
			t.Fatal(err, stderr)
		}
	}
	eventually(t, "both messages", func() bool { return strings.Count(sub.stdout.String(), `"over TLS"`) == 2 })
	if _, _, err := tw(t, nil, "pub", "a", "1", "--url", s.url, "--key", "backend-key-0123456789"); err == nil {
		t.Error("a certificate of nobody was trusted")
	}
	if err := sub.stop(); err != nil {
		t.Error(err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

func TestS30_StopDrainsAndClientsComeBackToTheNextServer(t *testing.T) {
	t.Parallel()
	const config = "addr: %s\nauth: {anonymous: true}\nchannels: [{pattern: '**', guard: public, presence: true}]\ntiming: {drain_window: 2s}\n"
	first := serve(t, fmt.Sprintf(config, "127.0.0.1:0"), nil)
	addr := strings.TrimPrefix(first.url, "http://")
	var live atomic.Int32
	c := connect(t, first.url, "")
	if _, err := c.Subscribe("a", client.SubscribeOptions{Presence: &client.Presence{Data: "me"}, OnSubscribed: func(client.Subscribed) { live.Add(1) }}); err != nil {
		t.Fatal(err)
	}
	others := make([]func(), 8) // one of them has a late slot
	for i := range others {
		var other *client.Client
		other, others[i] = connectUntil(t, first.url, "")
		if err := publish(t, other, "b"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "live", func() bool { return live.Load() == 1 })
	if code, _ := get(t, first.url+"/readyz"); code != http.StatusOK {
		t.Errorf("/readyz is %d", code)
	}
	first.cancel()
	eventually(t, "draining", func() bool { return strings.Contains(first.stderr.String(), "draining") })
	if code, body := get(t, first.url+"/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "DRAINING") {
		t.Errorf("/readyz is %d while draining: %s", code, body)
	}
	if err := first.end(); err != nil {
		t.Errorf("the first server ended with %v", err)
	}
	for _, stop := range others {
		stop()
	}
	second := serve(t, fmt.Sprintf(config, addr), nil)
	eventually(t, "live again", func() bool { return live.Load() == 2 })
	if err := publish(t, c, "a"); err != nil {
		t.Error(err)
	}
	if err := second.stop(); err != nil {
		t.Error(err)
	}
}

func TestS06_SlowHandshakeIsCut(t *testing.T) {
	t.Parallel()
	s := serve(t, "timing: {header_timeout: 300ms, drain_window: 0s}", nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	start := time.Now()
	go func() { // a byte now and then, for ever
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		request := "GET /v1/socket HTTP/1.1\r\nHost: x\r\nX-Slow: " + strings.Repeat("a", 10_000)
		for i := range request {
			if _, err := conn.Write([]byte{request[i]}); err != nil {
				return
			}
			<-tick.C
		}
	}()
	_ = conn.SetReadDeadline(start.Add(patience))
	if _, err := io.ReadAll(conn); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Fatal("the connection was not cut")
	}
	if d := time.Since(start); d < 200*time.Millisecond || d > 10*time.Second {
		t.Errorf("cut after %v", d)
	}
	// Headers without an end are cut too.
	big, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = big.Close() }()
	_, _ = big.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + strings.Repeat("a", 2*maxHeaderBytes) + "\r\n\r\n"))
	_ = big.SetReadDeadline(time.Now().Add(patience))
	if line, _ := bufio.NewReader(big).ReadString('\n'); !strings.Contains(line, "431") {
		t.Errorf("answered %q", line)
	}
}

func TestS01_TokensAndKeysAreInNoLog(t *testing.T) {
	t.Parallel()
	good, wrong := token(t, "alice", map[string]any{"aud": "x"}), "wrong-"+strings.Repeat("w", 40)
	s := serve(t, `
auth: {jwt: {secret: `+jwtSecret+`}}
backend_keys: [{name: b, key: backend-key-0123456789}]
channels: [{pattern: 'ok', guard: public}, {pattern: 'fails', guard: '1 / (2 - 2) == 1'}]
log: {level: debug}
`, nil)
	c := connect(t, s.url, good)
	_ = publish(t, c, "ok")
	_ = publish(t, c, "fails")
	_ = publish(t, c, "no")
	_ = dialError(t, s.url, wrong)
	wrongKey := "wrong-key-0123456789"
	var said string
	for _, key := range []string{"backend-key-0123456789", wrongKey} {
		_, stderr, err := tw(t, nil, "pub", "ok", "1", "--url", s.url, "--key", key)
		said += stderr + sprint(err)
	}
	_, stderr, err := tw(t, env{"TIDEWIRE_TOKEN": wrong}, "sub", "ok", "--url", s.url)
	said += stderr + sprint(err)
	wantCode(t, err, wire.CodeSocketUnauthenticated)
	for _, bad := range []string{"/v1/socket?token=" + wrong, "/nothing/" + wrong} { // nor what is put into addresses
		get(t, s.url+bad)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	signature := good[strings.LastIndexByte(good, '.')+1:]
	for _, hidden := range []string{good, signature, wrong, "backend-key-0123456789", wrongKey, jwtSecret} {
		if strings.Contains(s.stderr.String()+s.stdout.String()+said, hidden) {
			t.Errorf("a log has %q", hidden)
		}
	}
}

// TestServe_Signals needs a process: the first signal drains, the second ends at once.
func TestServe_Signals(t *testing.T) {
	t.Parallel()
	for _, second := range []bool{false, true} {
		t.Run(fmt.Sprintf("second=%v", second), func(t *testing.T) {
			t.Parallel()
			window := "0s"
			if second {
				window = "1h"
			}
			config := file(t, "tidewire.yaml", "timing: {drain_window: "+window+"}\n")
			cmd := exec.Command(os.Args[0], "serve", "--dev", "--addr", "127.0.0.1:0", "-c", config)
			cmd.Env = []string{asMain + "=1"}
			cmd.Dir = t.TempDir()
			var logs buffer
			cmd.Stderr = &logs
			stdout, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatal(err, logs.String())
			}
			url := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
			if second {
				if err := publish(t, connect(t, url, ""), "a"); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			if second {
				eventually(t, "draining", func() bool { return strings.Contains(logs.String(), "draining") })
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			err = cmd.Wait()
			if second == (err == nil) {
				t.Errorf("ended with %v: %s", err, logs.String())
			}
		})
	}
}

func TestServe_AddressInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, _, err = tw(t, nil, "serve", "--dev", "--addr", l.Addr().String())
	if err == nil || exitCode(err) != 1 || !strings.Contains(err.Error(), "listen") {
		t.Errorf("error %v, exit code %d", err, exitCode(err))
	}
}
