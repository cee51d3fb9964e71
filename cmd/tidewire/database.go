package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"cel.dev/cel-go/cel"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/feed"
	"github.com/tidewire/tidewire/internal/backoff"
	"github.com/tidewire/tidewire/live"
	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
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
	switch {
	case err == nil:
		return pg, pg.Close, nil
	case away(err):
		return nil, nil, fmt.Errorf("%w: database: %w", errUnreachable, err)
	}
	return nil, nil, configError("database: %v", err)
}

// errUnreachable means that PostgreSQL is away: no mistake of the configuration, as far as one can tell.
var errUnreachable = errors.New(string(postgres.CodeUnreachable))

// away tells a server that does not answer, or not yet, from one that refuses: a password, a database, a setting.
func away(err error) bool {
	for _, other := range []error{postgres.ErrConfig, feed.ErrNoTable, feed.ErrTableUnfit} {
		if errors.Is(err, other) {
			return false
		}
	}
	var refused interface{ SQLState() string }
	if !errors.As(err, &refused) {
		return true
	}
	switch class := refused.SQLState(); {
	case strings.HasPrefix(class, "08"), strings.HasPrefix(class, "53"), strings.HasPrefix(class, "57"), strings.HasPrefix(class, "58"): // connection, resources, starting or stopping, its system
		return true
	}
	return false
}

// awaitDatabase is openDatabase for a server: it waits for PostgreSQL, which may start later than we do, until ctx ends.
func awaitDatabase(ctx context.Context, at secret, log *slog.Logger) (feed.Database, func(), error) {
	delay := backoff.Backoff{Max: 10 * time.Second}
	for attempt := 1; ; attempt++ {
		db, closeDB, err := openDatabase(ctx, at, log)
		if !errors.Is(err, errUnreachable) {
			return db, closeDB, err
		}
		wait := delay.Delay(attempt)
		if ctx.Err() == nil {
			log.Warn("the database cannot be reached; trying again", "attempt", attempt, "in", wait, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// declareQueries declares the entities and the live queries, and compiles them against their tables. It returns what the queries were compiled to, and an error for each declaration that is
// refused. Without a database it declares nothing, and checks what it can.
func declareQueries(ctx context.Context, node *tidewire.Node, db feed.Database, cfg config) (declared []*query.Query, refused []error) {
	env, err := guardEnv()
	if err != nil {
		return nil, []error{err}
	}
	refuse := func(err error, place, name string) {
		if errors.Is(err, errUnreachable) {
			refused = append(refused, fmt.Errorf("%s: %w", place, err))
			return
		}
		refused = append(refused, configError("%s: %s", place, reason(err, name)))
	}
	entities := map[string]*query.Query{} // all of each; none for those that were refused
	for i, e := range cfg.Entities {
		whole, err := declareEntity(ctx, node, db, e)
		if err != nil {
			refuse(err, fmt.Sprintf("entities[%d] %q", i, e.Name), e.Name)
			continue
		}
		entities[e.Name] = whole
	}
	for i, q := range cfg.Queries {
		whole, known := entities[q.Entity]
		if q.Entity != "" && !known {
			continue // its entity is what is wrong
		}
		compiled, err := declareQuery(ctx, env, node, db, q, whole)
		if err != nil {
			refuse(err, fmt.Sprintf("queries[%d] %q", i, q.Name), q.Name)
		} else if compiled != nil {
			declared = append(declared, compiled)
		}
	}
	return declared, refused
}

// reason is what is wrong, without what the place says.
func reason(err error, name string) string {
	text := err.Error()
	if e := (*wire.Error)(nil); errors.As(err, &e) {
		text = e.Message
	}
	if _, rest, ok := strings.Cut(text, fmt.Sprintf("query %q: ", name)); ok {
		text = rest
	}
	return strings.TrimPrefix(strings.TrimPrefix(text, fmt.Sprintf("entity %q: ", name)), "query: ")
}

func declareEntity(ctx context.Context, node *tidewire.Node, db feed.Database, e entityConfig) (*query.Query, error) {
	table, err := tableOf(ctx, db, e.From)
	if err != nil {
		return nil, err
	}
	columns, err := e.shown(table)
	if err != nil {
		return nil, err
	}
	whole, policy, err := compile(query.Definition{Name: e.Name, Visible: e.Visible, Columns: columns}, e.Policy, table)
	if err == nil && db != nil {
		err = node.Entity(tidewire.Entity{Name: e.Name, From: e.From, Visible: e.Visible, Policy: policy, Columns: columns})
	}
	return whole, err
}

// declareQuery declares a query over whole, which is its entity's, or nil.
func declareQuery(ctx context.Context, env *cel.Env, node *tidewire.Node, db feed.Database, q queryConfig, whole *query.Query) (*query.Query, error) {
	guard, err := newGuard(env, q.Name, q.Guard)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	var table *row.Table
	if whole != nil {
		table = whole.Table
	} else if q.Entity == "" {
		if table, err = tableOf(ctx, db, q.From); err != nil {
			return nil, err
		}
	}
	compiled, policy, err := compile(q.definition(), q.Policy, table)
	if err == nil && db != nil {
		err = node.Query(tidewire.Query{Definition: q.definition(), Entity: q.Entity, Guard: guard, Policy: policy})
	}
	if err == nil && whole != nil && whole.Class == query.Rerun { // the entity's condition is part of the query's
		compiled.Class, compiled.Reason = whole.Class, whole.Reason
	}
	return compiled, err
}

// compile checks a definition against its table, nil if there is no database, and makes its policy, nil if it has none.
func compile(d query.Definition, policy string, table *row.Table) (compiled *query.Query, p live.Policy, err error) {
	if table != nil {
		if compiled, err = query.Compile(d, table); err != nil {
			return nil, nil, err
		}
	}
	if policy == "" {
		return compiled, nil, nil
	}
	if p, err = newPolicy(table, policy); err != nil {
		return nil, nil, fmt.Errorf("policy: %w", err)
	}
	return compiled, p, nil
}

// tableOf describes the table that a declaration names, as the engine of live queries reads the name.
func tableOf(ctx context.Context, db feed.Database, from string) (*row.Table, error) {
	if db == nil {
		return nil, nil
	}
	schema, name, dotted := strings.Cut(from, ".")
	if !dotted {
		schema, name = "public", from
		if db.Engine() == row.SQLite {
			schema = "main"
		}
	}
	table, err := db.Table(ctx, row.Name{Schema: schema, Table: name})
	if err != nil {
		if db.Engine() == row.PostgreSQL && away(err) {
			return nil, fmt.Errorf("%w: %w", errUnreachable, err)
		}
		return nil, fmt.Errorf("from: %w", err)
	}
	return table, nil
}

// shown are the columns that the entity's queries may show; nil means all.
func (e entityConfig) shown(table *row.Table) ([]string, error) {
	if len(e.Hide) == 0 {
		return noneIsNil(e.Columns), nil
	}
	if table == nil {
		return nil, nil
	}
	for _, name := range e.Hide {
		switch i := table.Column(name); {
		case i < 0:
			return nil, fmt.Errorf("hide: table %s has no column %q", table.Name, name)
		case slices.Contains(table.Key, i):
			return nil, fmt.Errorf("hide: column %q is of the primary key, which clients always get", name)
		}
	}
	columns := []string{}
	for _, c := range table.Columns {
		if !slices.Contains(e.Hide, c.Name) {
			columns = append(columns, c.Name)
		}
	}
	return columns, nil
}

// noneIsNil is a list that a configuration printed without one means.
func noneIsNil(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return list
}
