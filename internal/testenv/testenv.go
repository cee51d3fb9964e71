// Package testenv starts the servers that tests need: a private PostgreSQL on a free loopback port, one for each test process.
//
// A test package that uses it stops the server in its TestMain:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.M{M: m}) }
//
// The server is started by the first call of [Postgres] and shared; each call gets a database of its own. It runs as an unprivileged user, in a
// temporary folder, without fsync, with wal_level=logical and the locale C. It ends with the test process, however that ends. Where PostgreSQL is
// not installed a test is skipped, and fails when CI=true.
package testenv

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// M is a [testing.M] that stops the servers when its tests have run.
type M struct{ *testing.M }

// Run runs the tests and stops the servers.
func (m M) Run() int {
	code := m.M.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

var (
	shared   postgres
	errNoBin = errors.New("PostgreSQL is not installed (Debian: apt-get install postgresql)")
)

// Postgres returns the URL of an empty database. The role is a superuser and may replicate.
func Postgres(t testing.TB) string {
	t.Helper()
	url, err := shared.database()
	switch {
	case errors.Is(err, errNoBin) && os.Getenv("CI") != "true":
		t.Skip("testenv: ", err)
	case err != nil:
		t.Fatal("testenv: ", err)
	}
	return url
}

// PostgresBin returns the path of a program of PostgreSQL, such as pg_recvlogical.
func PostgresBin(t testing.TB, name string) string {
	t.Helper()
	dir, err := postgresBin()
	if err != nil {
		t.Fatal("testenv: ", err)
	}
	return filepath.Join(dir, name)
}

type postgres struct {
	mu      sync.Mutex // guards below
	bin     string
	port    int
	dir     string
	started bool
	err     error // of the start
	server  *exec.Cmd
	stdin   io.Closer // the server ends when it is closed
	count   int
}

func (p *postgres) database() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.started = true
		p.err = p.startLocked()
	}
	if p.err != nil {
		return "", p.err
	}
	p.count++
	name := fmt.Sprint("test", p.count)
	if err := p.psqlLocked("CREATE DATABASE " + name); err != nil {
		return "", err
	}
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", p.port, name), nil
}

func (p *postgres) psqlLocked(sql string) error {
	cmd := exec.Command(filepath.Join(p.bin, "psql"), "-X", "-h", "127.0.0.1", "-p", strconv.Itoa(p.port), "-U", "postgres", "-d", "postgres", "-c", sql)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", sql, err, out)
	}
	return nil
}

// script runs the server until its standard input ends, which is also when the test process dies.
const script = `"$BIN/initdb" -D "$DIR/data" -U postgres --auth=trust -E UTF8 --locale=C -N >"$DIR/log" 2>&1 || exit 1
"$BIN/postgres" -D "$DIR/data" -p "$PORT" -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off -c full_page_writes=off \
	-c wal_level=logical -c max_wal_senders=20 -c max_replication_slots=20 -c max_connections=200 -c timezone=UTC >>"$DIR/log" 2>&1 &
pid=$!
trap '' INT TERM
read -r _
kill -INT $pid
wait $pid
cd / && rm -rf "$DIR"`

func (p *postgres) startLocked() (err error) {
	if p.bin, err = postgresBin(); err != nil {
		return err
	}
	if p.dir, err = os.MkdirTemp("", "tidewire-postgres-"); err != nil {
		return err
	}
	if p.port, err = freePort(); err != nil {
		return err
	}
	p.server = exec.Command("sh", "-c", script)
	p.server.Dir = p.dir
	p.server.Env = append(os.Environ(), "BIN="+p.bin, "DIR="+p.dir, "PORT="+strconv.Itoa(p.port))
	if err := unprivileged(p.server, p.dir); err != nil {
		return err
	}
	if p.stdin, err = p.server.StdinPipe(); err != nil {
		return err
	}
	if err := p.server.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = p.psqlLocked("SELECT 1"); err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(filepath.Join(p.dir, "log"))
			return fmt.Errorf("PostgreSQL did not start: %w\n%s", err, log)
		}
	}
}

func (p *postgres) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin == nil {
		return nil
	}
	_ = p.stdin.Close()
	_ = p.server.Wait() // its status is that of a server that was interrupted
	p.stdin = nil
	p.err = errors.New("the servers were stopped")
	return os.RemoveAll(p.dir)
}

// freePort returns a port below the range that systems give to outgoing connections.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errors.New("no free port")
}

// postgresBin finds the newest installed version.
func postgresBin() (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	version := func(dir string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		return n
	}
	slices.SortFunc(dirs, func(a, b string) int { return version(b) - version(a) })
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w on %s", errNoBin, runtime.GOOS)
}
