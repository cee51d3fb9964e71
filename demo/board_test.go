package demo

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tidewire/tidewire/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table returns the board as lines, by lane and position.
func table(t *testing.T, b *board) string {
	t.Helper()
	var lines []string
	err := b.db.Write(context.Background(), func(tx *sqlite.Tx) error {
		lines = nil
		rows, err := tx.Query(`SELECT lane || ' ' || id || ' ' || title FROM cards ORDER BY lane, position, id`)
		for _, r := range rows {
			lines = append(lines, r[0].Text())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestBoard_RequestsBecomeSQL(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b, _, err := openBoard(t.Context(), dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	b.routes(mux)
	do := func(method, path, body string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"POST", "/demo/cards", `{"title":"  Two\n words ","lane":"done"}`, 204},
		{"POST", "/demo/cards", `{"title":" "}`, 400},
		{"POST", "/demo/cards", `{}`, 400},
		{"POST", "/demo/cards", `{"title":"` + strings.Repeat("é", 81) + `"}`, 400},
		{"POST", "/demo/cards", `{"title":"x","lane":"nowhere"}`, 400},
		{"POST", "/demo/cards", `{"title":"` + strings.Repeat(" ", 5000) + `"}`, 400},
		{"POST", "/demo/cards", `x`, 400},
		{"PATCH", "/demo/cards/1", `{"title":"'); DROP TABLE cards; --"}`, 204},
		{"PATCH", "/demo/cards/99", `{"title":"x"}`, 404},
		{"PATCH", "/demo/cards/x", `{"title":"x"}`, 404},
		{"PATCH", "/demo/cards/99", `{"lane":"done","before":4}`, 404},
		{"PATCH", "/demo/cards/2", `{"lane":"done","before":4}`, 204},
		{"PATCH", "/demo/cards/2", `{"lane":"done","before":2}`, 204}, // before itself, which is nowhere: the end
		{"PATCH", "/demo/cards/3", `{"lane":"done","before":1}`, 204}, // 1 is in another lane: the end
		{"DELETE", "/demo/cards/4", ``, 204},
		{"DELETE", "/demo/cards/4", ``, 404},
	} {
		if w := do(c.method, c.path, c.body); w.Code != c.status {
			t.Errorf("%s %s %.40s: %d %s, want %d", c.method, c.path, c.body, w.Code, w.Body, c.status)
		}
	}
	want := "done 5 Two words\ndone 2 Paint the bow\ndone 3 Chart the shoal\ntodo 1 '); DROP TABLE cards; --"
	if diff := cmp.Diff(want, table(t, b)); diff != "" {
		t.Error(diff)
	}
	if w := do("POST", "/demo/cards", `{"title":"x"}`, "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("a page of another origin: %d", w.Code)
	}
	for range maxCards - 4 {
		if w := do("POST", "/demo/cards", `{"title":"x"}`); w.Code != 204 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	}
	if w := do("POST", "/demo/cards", `{"title":"x"}`); w.Code != 409 {
		t.Errorf("a full board: %d", w.Code)
	}

	// Opened again it is as it was left, also when it was left empty.
	if w := do("DELETE", "/demo/cards/1", ``); w.Code != 204 {
		t.Error(w.Code)
	}
	before := table(t, b)
	if err := b.db.Close(); err != nil {
		t.Fatal(err)
	}
	again, _, err := openBoard(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if after := table(t, again); after != before {
		t.Error(cmp.Diff(before, after))
	}
	if err := again.db.Close(); err != nil {
		t.Fatal(err)
	}
	if w := do("DELETE", "/demo/cards/2", ``); w.Code != 503 {
		t.Errorf("a closed database: %d", w.Code)
	}
}
