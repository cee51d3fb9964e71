// Command server is a Tidewire node with the limits of one client lifted, so that one connection can publish as fast as it can. What it serves is in its environment.
//
//	PORTABLE   every connection takes the portable path
//	HISTORY    channels have a history of 1,000 messages
//	DATABASE   the URL of a PostgreSQL database, or sqlite:path; POST /sql runs a statement in it and answers with the time of the commit
//	QUERIES    the live queries, as a JSON array of definitions
//	ACCEPTS    connections accepted a second
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/sqlite"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	db, sql, err := openDatabase(ctx, os.Getenv("DATABASE"))
	if err != nil {
		log.Fatal(err)
	}
	accepts, _ := strconv.Atoi(os.Getenv("ACCEPTS"))
	if accepts == 0 {
		accepts = 1_000_000
	}
	n, err := tidewire.New(tidewire.Options{
		Backend: auth.NewAPIKeys(map[string]auth.Identity{"bench": {Subject: "bench"}}),
		Limits: tidewire.Limits{
			FramesPerSecond: 10_000_000, FrameBurst: 10_000_000, AcceptsPerSecond: accepts,
			QueueMessages: 4096, QueueBytes: 16 << 20, DroppedFrames: 1 << 15,
		},
		Database:    db,
		DrainWindow: -1,
		Portable:    os.Getenv("PORTABLE") != "",
	})
	if err != nil {
		log.Fatal(err)
	}
	channels := tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true}
	if os.Getenv("HISTORY") != "" {
		channels.History = &tidewire.History{Size: 1000}
	}
	if err := n.Channel("**", channels); err != nil {
		log.Fatal(err)
	}
	var queries []query.Definition
	if err := json.Unmarshal([]byte(cmp.Or(os.Getenv("QUERIES"), "[]")), &queries); err != nil {
		log.Fatal(err)
	}
	for _, q := range queries {
		if err := n.Query(tidewire.Query{Definition: q, Guard: tidewire.Public}); err != nil {
			log.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", n)
	mux.Handle("/debug/pprof/", http.DefaultServeMux)
	mux.HandleFunc("POST /sql", sql)
	mux.HandleFunc("/free", func(w http.ResponseWriter, _ *http.Request) {
		debug.FreeOSMemory()
		fmt.Fprintln(w, "ok")
	})
	go func() { log.Print(http.Serve(l, mux)) }()
	fmt.Println("ready")
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// openDatabase opens a database, and makes the handler that writes to it in this process.
func openDatabase(ctx context.Context, at string) (feed.Database, http.HandlerFunc, error) {
	path, ok := strings.CutPrefix(at, "sqlite:")
	switch {
	case at == "":
		return nil, http.NotFound, nil
	case !ok:
		db, err := postgres.Open(ctx, postgres.Options{URL: at})
		return db, http.NotFound, err
	}
	db, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{})
	return db, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		err := db.Write(r.Context(), func(tx *sqlite.Tx) error {
			_, err := tx.Exec(string(text))
			return err
		})
		committed := time.Now().UnixNano()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, committed)
	}, err
}
