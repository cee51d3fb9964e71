package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewire/tidewire/sqlite"
)

func TestQuery_PrintsTheRowsAndEachChange(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "app.db")
	db, err := sqlite.OpenDatabase(file, sqlite.DatabaseOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	sql := func(text string) {
		t.Helper()
		err := db.Write(t.Context(), func(tx *sqlite.Tx) error {
			_, err := tx.Exec(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	sql(`CREATE TABLE cards (id INTEGER PRIMARY KEY, lane TEXT NOT NULL, title TEXT NOT NULL);
		INSERT INTO cards VALUES (1, 'a', 'one'), (2, 'b', 'two'), (3, 'a', 'three')`)
	s := serve(t, openConfig+`
database: sqlite:`+file+`
queries:
  - {name: cards, from: cards, where: lane = $lane, order: title, columns: [title], guard: public}
  - {name: closed, from: cards, guard: 'false'}
`, nil)

	const rows = `{"id":1,"title":"one"}` + "\n" + `{"id":3,"title":"three"}` + "\n"
	for _, how := range [][]string{{"--key", "backend-key-0123456789"}, {"--token", token(t, "alice", nil)}, nil} {
		out, stderr, err := tw(t, nil, append([]string{"query", "cards", "--input", `{"lane":"a"}`, "--once", "--url", s.url}, how...)...)
		if err != nil || out != rows {
			t.Errorf("%v: printed %s: %v %s", how, out, err, stderr)
		}
	}

	q := start(t, nil, "query", "cards", "--input", `{"lane":"a"}`, "--url", s.url)
	if line, want := q.wait(`"type":"rows"`), `{"type":"rows","query":"cards","version":`; !strings.HasPrefix(line, want) || !strings.HasSuffix(line, `"rows":[{"id":1,"title":"one"},{"id":3,"title":"three"}]}`) {
		t.Errorf("printed %s", line)
	}
	sql(`UPDATE cards SET title = '<four>' WHERE id = 3; UPDATE cards SET lane = 'b' WHERE id = 1`)
	line := q.wait(`"type":"change"`)
	for _, want := range []string{`{"del":1}`, `{"put":{"id":3,"title":"<four>"},"at":0}`, `"rows":1}`} {
		if !strings.Contains(line, want) {
			t.Errorf("printed %s, want %s in it", line, want)
		}
	}
	if err := q.stop(); err != nil {
		t.Error(err)
	}

	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{[]string{"nothing"}, "LIVE_QUERY_UNKNOWN", 1},
		{[]string{"nothing", "--once", "--key", "backend-key-0123456789"}, "LIVE_QUERY_UNKNOWN", 1},
		{[]string{"cards", "--once", "--key", "wrong-key-0123456789"}, "API_KEY_REQUIRED", 1},
		{[]string{"cards"}, "INPUT_INVALID", 1},
		{[]string{"closed"}, "TOPIC_FORBIDDEN", 1},
		{[]string{"cards", "--input", "7"}, "--input", 2},
		{[]string{"cards", "--key", "k"}, "--once", 2},
		{[]string{"cards", "--key", "k", "--once", "--token", "t"}, "one of them", 2},
	} {
		_, _, err := tw(t, nil, append([]string{"query", "--url", s.url}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != c.code {
			t.Errorf("%v: %v, want %s and the exit code %d", c.args, err, c.want, c.code)
		}
	}
}
