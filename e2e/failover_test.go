package e2e

import (
	"database/sql"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/tidewire/tidewire/internal/testenv"
)

// P9, S27: the database fails over to a standby that lacks the newest commits, which clients have seen.
func TestP9_S27_Failover(t *testing.T) {
	w, primary := postgresWorld(t)
	standby := testenv.NewServer(t, "timezone=UTC", "deadlock_timeout=20ms")
	standby.Stop()
	standby.Exec("rm", "-rf", "data")
	standby.Exec("pg_basebackup", "-d", primary.URL, "-D", "data", "-R", "-X", "stream", "-c", "fast")
	standby.Start()
	promoted, err := sql.Open("pgx", standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = promoted.Close() })
	u, err := url.Parse(standby.URL)
	if err != nil {
		t.Fatal(err)
	}
	w.run(1, 10, func() {
		if w.db == promoted { // once, in a long run
			return
		}
		for _, stmt := range []string{"ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()"} {
			if _, err := promoted.Exec(stmt); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, 10*time.Second, "the standby receives no more", func() bool {
			var n int
			return promoted.QueryRow("SELECT count(*) FROM pg_stat_wal_receiver").Scan(&n) == nil && n == 0
		})
		before := w.commits.Load()
		w.pass(300*time.Millisecond, 500*time.Millisecond)
		primary.Kill()
		lost := w.commits.Load() - before
		standby.Exec("pg_ctl", "promote", "-w", "-D", "data")
		w.gate.Lock()
		w.db = promoted
		w.gate.Unlock()
		w.back.lead(u.Host)
		if lost == 0 {
			t.Error("no commit was lost, so the test shows little")
		}
		t.Logf("some %d commits were lost", lost)
	})
	w.server.signal(syscall.SIGTERM)
	w.noSlots()
}
