package testenv_test

import (
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.M{M: m}) }

func TestPostgresGivesDatabasesOfTheirOwn(t *testing.T) {
	t.Parallel()
	a, b := testenv.Postgres(t), testenv.Postgres(t)
	if a == b {
		t.Fatal("one database twice")
	}
	for _, url := range []string{a, b} {
		out, err := exec.Command(testenv.PostgresBin(t, "psql"), url, "-XAtc", "CREATE TABLE t (); SHOW wal_level; SHOW lc_collate").CombinedOutput()
		if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "logical\nC") {
			t.Errorf("psql: %v: %s", err, out)
		}
	}
}
