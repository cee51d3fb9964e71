package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/feed"
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
	if err != nil {
		return nil, nil, configError("database: %v", err)
	}
	return pg, pg.Close, nil
}

// declareQueries declares the entities and the live queries, and compiles them against their tables. Without a database it declares nothing, and checks what it can.
func declareQueries(ctx context.Context, node *tidewire.Node, db feed.Database, cfg config) error {
	env, err := guardEnv()
	if err != nil {
		return err
	}
	tables := map[string]*row.Table{} // of the entities
	for i, e := range cfg.Entities {
		if tables[e.Name], err = declareEntity(ctx, node, db, e); err != nil {
			return configError("entities[%d] %q: %s", i, e.Name, reason(err, e.Name))
		}
	}
	for i, q := range cfg.Queries {
		if err := declareQuery(ctx, env, node, db, q, tables[q.Entity]); err != nil {
			return configError("queries[%d] %q: %s", i, q.Name, reason(err, q.Name))
		}
	}
	return nil
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

func declareEntity(ctx context.Context, node *tidewire.Node, db feed.Database, e entityConfig) (*row.Table, error) {
	table, err := tableOf(ctx, db, e.From)
	if err != nil {
		return nil, err
	}
	columns, err := e.shown(table)
	if err != nil {
		return nil, err
	}
	policy, err := compile(query.Definition{Name: e.Name, Visible: e.Visible, Columns: columns}, e.Policy, table)
	if err == nil && db != nil {
		err = node.Entity(tidewire.Entity{Name: e.Name, From: e.From, Visible: e.Visible, Policy: policy, Columns: columns})
	}
	return table, err
}

func declareQuery(ctx context.Context, env *cel.Env, node *tidewire.Node, db feed.Database, q queryConfig, table *row.Table) error {
	guard, err := newGuard(env, q.Name, q.Guard)
	if err != nil {
		return fmt.Errorf("guard: %w", err)
	}
	if q.Entity == "" {
		if table, err = tableOf(ctx, db, q.From); err != nil {
			return err
		}
	}
	policy, err := compile(q.definition(), q.Policy, table)
	if err == nil && db != nil {
		err = node.Query(tidewire.Query{Definition: q.definition(), Entity: q.Entity, Guard: guard, Policy: policy})
	}
	return err
}

// compile checks a definition against its table, nil if there is no database, and makes its policy, nil if it has none.
func compile(d query.Definition, policy string, table *row.Table) (live.Policy, error) {
	if table != nil {
		if _, err := query.Compile(d, table); err != nil {
			return nil, err
		}
	}
	if policy == "" {
		return nil, nil
	}
	p, err := newPolicy(table, policy)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return p, nil
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
