//go:build unix

package sqlite_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidewire/tidewire/sqlite"
	"github.com/tidewire/tidewire/stream"
)

const killedFile = "TIDEWIRE_TEST_KILLED"

// killedLogs are written in the test of kill -9; the last one keeps few entries.
var killedLogs = []string{"a", "b", "c", "few"}

const killedFew = 20

func killedOptions(name, key string) stream.AppendOptions {
	opts := stream.AppendOptions{Key: key}
	if name == "few" {
		opts.Retain.Count = killedFew
	}
	return opts
}

func hash(data []byte) uint64 {
	h := fnv.New64a()
	h.Write(data)
	return h.Sum64()
}

// killed is the process that is killed: it appends and says what was acknowledged. It reports false in any other process.
func killed() bool {
	path := os.Getenv(killedFile)
	if path == "" {
		return false
	}
	s, err := sqlite.OpenStream(path, sqlite.StreamOptions{Readers: 1})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for g := range 16 {
		go func() {
			name := killedLogs[g%len(killedLogs)]
			for {
				id := rand.Uint64()
				data := bytes.Repeat(fmt.Appendf(nil, "%d ", id), 1+rand.IntN(100))
				key := ""
				if g < 8 {
					key = fmt.Sprint(id)
				}
				a, err := s.Append(context.Background(), name, data, killedOptions(name, key))
				if err != nil || a.Duplicate {
					fmt.Fprintln(os.Stderr, a, err)
					os.Exit(1)
				}
				fmt.Printf("%s %d %s %d key%s\n", name, a.Offset, a.Epoch, hash(data), key) // one write, shorter than PIPE_BUF
			}
		}()
	}
	time.Sleep(time.Minute) // it is killed long before
	return true
}

type acknowledged struct {
	name   string
	offset uint64
	epoch  string
	hash   uint64
	key    string
}

// S10: what was acknowledged outlives kill -9, in place and unchanged.
func TestS10_KillNine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tidewire.db")
	seen := map[string]map[uint64]uint64{} // log → offset → hash
	epochs := map[string]string{}
	for _, name := range killedLogs {
		seen[name] = map[uint64]uint64{}
	}
	total := 0
	for round := range 50 {
		acks := runKilled(t, path, round)
		total += len(acks)
		s := openStream(t, path, sqlite.StreamOptions{Readers: 1})
		heads := checkKilled(t, s, acks, seen, epochs)
		// Their keys are remembered. Those of this test run must stay within the newest of a log, and within the window.
		for _, a := range acks[max(0, len(acks)-20):] {
			if a.key == "" {
				continue
			}
			again, err := s.Append(t.Context(), a.name, []byte("again"), killedOptions(a.name, a.key))
			if want := (stream.Appended{Position: stream.Position{Offset: a.offset, Epoch: a.epoch}, Duplicate: true}); err != nil || again != want {
				t.Fatalf("round %d: repeated %+v: %+v, %v", round, a, again, err)
			}
		}
		for name, head := range heads {
			if h, err := s.Head(t.Context(), name); err != nil || h != head {
				t.Fatalf("round %d: the head of %s moved from %+v to %+v, %v", round, name, head, h, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d acknowledged", total)
}

// runKilled runs the process that appends, kills it at some moment, while it opens the file or while it appends, and returns what it said.
func runKilled(t *testing.T, path string, round int) (acks []acknowledged) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), killedFile+"="+path)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	after := rand.IntN(400)
	if round%4 == 3 {
		after = -1
		defer time.AfterFunc(rand.N(150*time.Millisecond), func() { _ = cmd.Process.Kill() }).Stop()
	}
	for {
		line, err := lines.ReadString('\n')
		if err != nil { // a part of a line was never said
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
		var a acknowledged
		if _, err := fmt.Sscanf(line, "%s %d %s %d key%s", &a.name, &a.offset, &a.epoch, &a.hash, &a.key); err != nil && a.hash == 0 {
			t.Fatalf("%q: %v", line, err)
		}
		acks = append(acks, a)
		if len(acks) == 1 && round == 0 {
			if s, err := sqlite.OpenStream(path, sqlite.StreamOptions{Readers: 1}); !errors.Is(err, sqlite.ErrInUse) {
				t.Errorf("opened a file that another process has: %v, %v", s, err)
			}
		}
		if after >= 0 && len(acks) == after+1 {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.Exited() || failure.Len() > 0 {
		t.Fatalf("it was not killed: %v: %s", err, &failure)
	}
	return acks
}

// checkKilled holds the logs against what was acknowledged and what was there before, and remembers what is there.
func checkKilled(t *testing.T, s *sqlite.Stream, acks []acknowledged, seen map[string]map[uint64]uint64, epochs map[string]string) map[string]stream.Head {
	heads := map[string]stream.Head{}
	for _, name := range killedLogs {
		h, err := s.Head(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		heads[name] = h
		if epochs[name] == "" {
			epochs[name] = h.Epoch
		}
		if h.Epoch != epochs[name] || name != "few" && h.First != 1 || name == "few" && h.Offset >= killedFew && h.Offset-h.First != killedFew-1 {
			t.Fatalf("%s is at %+v, its epoch was %s", name, h, epochs[name])
		}
		page, err := stream.Last(t.Context(), s, name, int(h.Offset))
		if err != nil || len(page.Entries) != int(h.Offset+1-h.First) {
			t.Fatalf("%s: %d entries of %+v, %v", name, len(page.Entries), h, err)
		}
		for i, e := range page.Entries {
			if e.Offset != h.First+uint64(i) {
				t.Fatalf("%s: entry %d has the offset %d", name, i, e.Offset)
			}
			if old, known := seen[name][e.Offset]; known && old != hash(e.Data) {
				t.Fatalf("%s: entry %d was changed", name, e.Offset)
			}
			seen[name][e.Offset] = hash(e.Data)
		}
		for offset := range seen[name] {
			if offset > h.Offset {
				t.Fatalf("%s: the log ends at %d, entry %d was there", name, h.Offset, offset)
			}
		}
	}
	for _, a := range acks {
		h := heads[a.name]
		got, there := seen[a.name][a.offset]
		if a.epoch != h.Epoch || a.offset > h.Offset || a.offset >= h.First && !there || there && got != a.hash {
			t.Fatalf("acknowledged %+v, the log is at %+v, and has %t %d", a, h, there, got)
		}
	}
	return heads
}

func TestStream_FileMode(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	s := openStream(t, path, sqlite.StreamOptions{})
	add(t, s, "a", "", stream.AppendOptions{})
	seen := 0
	err := filepath.WalkDir(filepath.Dir(path), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		seen++
		info, err := d.Info()
		if err == nil && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v", file, info.Mode())
		}
		return err
	})
	if err != nil || seen != 4 {
		t.Errorf("%d files, %v", seen, err)
	}
	if mode := number(t, s, "PRAGMA synchronous"); mode != 2 {
		t.Errorf("synchronous = %d, want 2, which is FULL", mode)
	}
}
