package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/sqlite"
)

// The board is a table in a SQLite file and a live query over it. Whoever writes to the table changes all pages: these handlers, or another program that has the file open.
const (
	boardSchema = `CREATE TABLE cards (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  title TEXT NOT NULL,
  lane TEXT NOT NULL DEFAULT 'todo' CHECK (lane IN ('todo', 'doing', 'done')),
  position INTEGER NOT NULL DEFAULT 0,
  updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
);
INSERT INTO cards (title, lane, position) VALUES
  ('Mend the nets', 'todo', 1), ('Paint the bow', 'todo', 2),
  ('Chart the shoal', 'doing', 1),
  ('Buy rope', 'done', 1);`

	now = `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')`

	maxCards      = 200
	maxTitle      = 80 // characters
	maxBoardBytes = 4 << 10
)

var boardQuery = query.Definition{Name: "board", From: "cards", Order: "position", Columns: []string{"id", "title", "lane", "position"}}

var (
	errNoCard   = errors.New("there is no such card")
	errFull     = fmt.Errorf("the board has %d cards: delete some", maxCards)
	errBadTitle = fmt.Errorf("a title has 1 to %d characters", maxTitle)
	errBadLane  = errors.New("a lane is todo, doing or done")
)

// board writes to the table. What it has written reaches the pages through the live query alone.
type board struct {
	db  *sqlite.Database
	log *slog.Logger
}

// openBoard opens the file in a folder. A new one gets the table, and cards to play with.
func openBoard(ctx context.Context, dir string, log *slog.Logger) (b *board, path string, err error) {
	path = filepath.Join(dir, "board.db")
	db, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{Logger: log})
	if err != nil {
		return nil, "", fmt.Errorf("demo: %w", err)
	}
	err = db.Write(ctx, func(tx *sqlite.Tx) error {
		found, err := tx.Query(`SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'cards'`)
		if err == nil && len(found) == 0 {
			_, err = tx.Exec(boardSchema)
		}
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("demo: %w", errors.Join(err, db.Close()))
	}
	if log == nil {
		log = slog.Default()
	}
	return &board{db, log}, path, nil
}

// declare makes the table a live query that everybody may follow.
func (b *board) declare(node *tidewire.Node) error {
	return node.Query(tidewire.Query{Definition: boardQuery, Guard: tidewire.Public})
}

// change is the body of a request. What is absent stays.
type change struct {
	Title  *string `json:"title"`
	Lane   *string `json:"lane"`
	Before *int64  `json:"before"` // the card that the moved one stands before; absent: the end of the lane
}

func (b *board) routes(mux *http.ServeMux) {
	// A page of another origin must not write.
	own := http.NewCrossOriginProtection()
	handle := func(pattern string, f func(tx *sqlite.Tx, id int64, c change) error) {
		mux.Handle(pattern, own.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.serve(w, r, f) })))
	}
	handle("POST /demo/cards", func(tx *sqlite.Tx, _ int64, c change) error { return addCard(tx, c) })
	handle("PATCH /demo/cards/{id}", changeCard)
	handle("DELETE /demo/cards/{id}", func(tx *sqlite.Tx, id int64, _ change) error {
		return one(tx.Exec(`DELETE FROM cards WHERE id = ?`, id))
	})
}

// serve does one change in one transaction. It answers 204: what came of it is on the board.
func (b *board) serve(w http.ResponseWriter, r *http.Request, f func(tx *sqlite.Tx, id int64, c change) error) {
	var id int64
	if text := r.PathValue("id"); text != "" {
		var err error
		if id, err = strconv.ParseInt(text, 10, 64); err != nil {
			http.Error(w, errNoCard.Error(), http.StatusNotFound)
			return
		}
	}
	var c change
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBoardBytes))
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &c)
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	err = b.db.Write(r.Context(), func(tx *sqlite.Tx) error { return f(tx, id, c) })
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, errNoCard):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errFull):
		http.Error(w, err.Error(), http.StatusConflict)
	case errors.Is(err, errBadTitle):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		b.log.Error("the board could not be written", "error", err)
		http.Error(w, "the board could not be written", http.StatusServiceUnavailable)
	}
}

func (c *change) check() error {
	if c.Title != nil {
		title := strings.Join(strings.Fields(*c.Title), " ")
		if title == "" || utf8.RuneCountInString(title) > maxTitle {
			return errBadTitle
		}
		c.Title = &title
	}
	if c.Lane != nil && *c.Lane != "todo" && *c.Lane != "doing" && *c.Lane != "done" {
		return errBadLane
	}
	return nil
}

func addCard(tx *sqlite.Tx, c change) error {
	if c.Title == nil {
		return errBadTitle
	}
	lane := "todo"
	if c.Lane != nil {
		lane = *c.Lane
	}
	changed, err := tx.Exec(`INSERT INTO cards (title, lane, position)
		SELECT ?1, ?2, (SELECT coalesce(max(position), 0) + 1 FROM cards WHERE lane = ?2) WHERE (SELECT count(*) FROM cards) < ?3`, *c.Title, lane, maxCards)
	if err == nil && changed == 0 {
		return errFull
	}
	return err
}

func changeCard(tx *sqlite.Tx, id int64, c change) error {
	if c.Title != nil {
		if err := one(tx.Exec(`UPDATE cards SET title = ?, updated_at = `+now+` WHERE id = ?`, *c.Title, id)); err != nil {
			return err
		}
	}
	if c.Lane == nil {
		return nil
	}
	if c.Before != nil && *c.Before != id {
		at, err := tx.Query(`SELECT position FROM cards WHERE id = ? AND lane = ?`, *c.Before, *c.Lane)
		if err != nil {
			return err
		}
		if len(at) == 1 {
			return moveCard(tx, id, *c.Lane, at[0][0].Int())
		}
	}
	return one(tx.Exec(`UPDATE cards SET lane = ?1, position = (SELECT coalesce(max(position), 0) + 1 FROM cards WHERE lane = ?1 AND id <> ?2), updated_at = `+now+` WHERE id = ?2`, *c.Lane, id))
}

// moveCard makes room at a position of a lane, and puts the card there: several rows in one transaction, which the pages see as one.
func moveCard(tx *sqlite.Tx, id int64, lane string, position int64) error {
	if _, err := tx.Exec(`UPDATE cards SET position = position + 1 WHERE lane = ? AND position >= ?`, lane, position); err != nil {
		return err
	}
	return one(tx.Exec(`UPDATE cards SET lane = ?, position = ?, updated_at = `+now+` WHERE id = ?`, lane, position, id))
}

func one(changed int64, err error) error {
	if err == nil && changed == 0 {
		return errNoCard
	}
	return err
}
