package sqlite_test

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"

	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/sqlite"
)

const writerFile = "TIDEWIRE_TEST_WRITER"

// TestOtherProcess is the process that writes to a file and is killed: it inserts ten rows in each transaction, and says when one is open and when it is
// committed. It does nothing in any other process.
func TestOtherProcess(t *testing.T) {
	path := os.Getenv(writerFile)
	if path == "" {
		return
	}
	c, err := sqlite3.Open(path)
	if err == nil {
		err = c.BusyTimeout(10 * time.Second)
	}
	for err == nil {
		tx := rand.Uint64() >> 12
		if err = c.Exec("BEGIN IMMEDIATE"); err == nil {
			err = c.Exec(fmt.Sprintf(`INSERT INTO t SELECT NULL, %d FROM generate_series(1, 5); SAVEPOINT s; DELETE FROM t; ROLLBACK TO s; UPDATE t SET n = n WHERE id < 3`, tx))
		}
		fmt.Println("open", tx)
		if err == nil {
			err = c.Exec(fmt.Sprintf(`INSERT INTO t SELECT NULL, %d FROM generate_series(1, 5); COMMIT`, tx))
		}
		fmt.Println("committed", tx)
	}
	t.Fatal(err)
}

// TestS22_KilledProcess kills another process that writes, in a transaction or anywhere: what it committed comes, whole, and nothing else.
func TestS22_KilledProcess(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	db := openDatabase(t, path, sqlite.DatabaseOptions{})
	write(t, db, `CREATE TABLE t (id INTEGER PRIMARY KEY, n)`)
	rep := newReplica(t, db, "t")
	table := tableOf(t, db, "t")
	r, _ := start(t, db)
	for round := range 6 {
		committed, err := runAndKill(path, 1+rand.IntN(20), round%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		mustFollow(t, rep)
		rows := map[int64]int{}
		for _, r := range rep.rows[table] {
			rows[r[1].Int()]++
		}
		for _, tx := range committed {
			if rows[tx] != 10 {
				t.Errorf("%d rows of a transaction that was committed", rows[tx])
			}
		}
		for tx, n := range rows {
			if n != 10 {
				t.Errorf("transaction %d has %d rows", tx, n)
			}
		}
		// The feed has them, and goes on.
		total := len(rep.rows[table])
		r.Until(t, "all rows", func(_ []string, txs []*feed.Tx) bool {
			n := 0
			for _, tx := range txs {
				if len(tx.Changes)%10 != 0 {
					t.Errorf("a transaction with %d changes", len(tx.Changes))
				}
				n += len(tx.Changes)
			}
			return n == total
		})
	}
}

// runAndKill runs the other process until it has said that so many transactions are open, or committed, and kills it.
func runAndKill(path string, transactions int, open bool) (committed []int64, err error) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestOtherProcess$")
	cmd.Env = append(os.Environ(), writerFile+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ignoreExit(cmd.Wait())) }()
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var tx int64
		what, number, _ := strings.Cut(lines.Text(), " ")
		if _, err := fmt.Sscan(number, &tx); err != nil {
			return committed, errors.Join(fmt.Errorf("%q: %w", lines.Text(), err), cmd.Process.Kill())
		}
		if what == "committed" {
			committed = append(committed, tx)
		}
		if (what == "open") == open {
			if transactions--; transactions == 0 {
				if err := cmd.Process.Kill(); err != nil {
					return nil, err
				}
			}
		}
	}
	return committed, lines.Err()
}

func ignoreExit(err error) error {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return fmt.Errorf("it was not killed: %w", err)
}
