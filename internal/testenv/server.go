package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// Server is a PostgreSQL server of one test, which may kill it and start it again.
type Server struct {
	// URL is its database.
	URL string

	t        testing.TB
	bin, dir string
	port     int
	settings []string
	server   *exec.Cmd
	stdin    io.WriteCloser
}

const runScript = `"$BIN/postgres" -D "$DIR/data" -p "$PORT" -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off -c wal_level=logical "$@" >>"$DIR/log" 2>&1 &
pid=$!
trap '' INT TERM
read -r how
kill -${how:-QUIT} $pid
wait $pid`

// NewServer starts a server with settings such as max_prepared_transactions=10. It stops with the test.
func NewServer(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := &Server{t: t}
	for _, setting := range settings {
		s.settings = append(s.settings, "-c", setting)
	}
	err := s.init()
	switch {
	case errors.Is(err, errNoBin) && os.Getenv("CI") != "true":
		t.Skip("testenv: ", err)
	case err != nil:
		t.Fatal("testenv: ", err)
	}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(s.dir)
	})
	s.Start()
	return s
}

func (s *Server) init() (err error) {
	if s.bin, err = postgresBin(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "tidewire-postgres-"); err != nil {
		return err
	}
	if s.port, err = freePort(); err != nil {
		return err
	}
	s.URL = fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
	cmd := exec.Command(filepath.Join(s.bin, "initdb"), "-D", filepath.Join(s.dir, "data"), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", "-N")
	cmd.Dir = s.dir
	if err := unprivileged(cmd, s.dir); err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

// Start starts the server after a Kill.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
		s.t.Fatalf("testenv: PostgreSQL did not start: %v\n%s", err, log)
	}
}

func (s *Server) start() (err error) {
	s.server = exec.Command("sh", append([]string{"-c", runScript, "postgres"}, s.settings...)...)
	s.server.Dir = s.dir
	s.server.Env = append(os.Environ(), "BIN="+s.bin, "DIR="+s.dir, "PORT="+strconv.Itoa(s.port))
	if err := unprivileged(s.server, s.dir); err != nil {
		return err
	}
	if s.stdin, err = s.server.StdinPipe(); err != nil {
		return err
	}
	if err := s.server.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		out, err := exec.Command(filepath.Join(s.bin, "psql"), "-X", s.URL, "-c", "SELECT 1").CombinedOutput()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
}

// Exec runs a program of PostgreSQL, or another one, as the server's user in the folder that has the folder data.
func (s *Server) Exec(name string, args ...string) {
	s.t.Helper()
	path := filepath.Join(s.bin, name)
	if _, err := os.Stat(path); err != nil {
		path = name
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = s.dir
	if err := unprivileged(cmd, s.dir); err != nil {
		s.t.Fatal("testenv: ", err)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Fatalf("testenv: %s: %v\n%s", cmd, err, out)
	}
}

// Kill ends the server at once, as a crash of it does: what was not flushed is lost.
func (s *Server) Kill() { s.end("QUIT") }

// Stop shuts the server down in order, with its connections.
func (s *Server) Stop() { s.end("INT") }

func (s *Server) end(how string) {
	if s.server == nil {
		return
	}
	_, _ = io.WriteString(s.stdin, how+"\n")
	_ = s.stdin.Close()
	_ = s.server.Wait() // its status is that of a server that was interrupted
	s.server = nil
}
