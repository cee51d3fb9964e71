package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/sqlite"
	"github.com/tidewire/tidewire/wire"
)

// openDatabase opens the database of a configuration; nil if it names none.
func openDatabase(ctx context.Context, at secret, log *slog.Logger) (db feed.Database, closeDB func(), err error) {
	if at == "" {
		return nil, func() {}, nil
	}
	if path, ok := strings.CutPrefix(string(at), "sqlite:"); ok {
		db, err := sqlite.OpenDatabase(path, sqlite.DatabaseOptions{Logger: log})
		if err != nil {
			return nil, nil, configError("database: %v", err)
		}
		return db, func() { _ = db.Close() }, nil
	}
	pg, err := postgres.Open(ctx, postgres.Options{URL: string(at), Logger: log})
	if err != nil {
		return nil, nil, configError("database: %v", err)
	}
	return pg, pg.Close, nil
}

// declareQueries declares the live queries.
func declareQueries(node *tidewire.Node, queries []queryConfig) error {
	if len(queries) == 0 {
		return nil
	}
	env, err := guardEnv()
	if err != nil {
		return err
	}
	for i, q := range queries {
		guard, err := newGuard(env, q.Name, q.Guard)
		if err != nil {
			return configError("queries[%d] %q: guard: %v", i, q.Name, err)
		}
		if err := node.Query(tidewire.Query{Definition: q.definition(), Guard: guard}); err != nil {
			return configError("queries[%d]: %s", i, wire.AsError(err).Message)
		}
	}
	return nil
}
