package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/tidewire/tidewire/postgres"
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/row"
)

// doctorTime bounds what the doctor waits for.
const doctorTime = 30 * time.Second

// doctorCmd is `tidewire doctor`: it looks at what a server needs, and says how to mend what is missing. It changes nothing but what following a table needs.
type doctorCmd struct {
	Config string `short:"c" help:"The configuration file; without, tidewire.yaml if it is there." placeholder:"FILE"`
}

// errUnwell means that something was found that keeps the server from working.
var errUnwell = errors.New("doctor: something must be mended before the server can work")

// doctor collects what it finds.
type doctor struct {
	out    io.Writer
	unwell bool
}

func (d *doctor) say(mark, format string, args ...any) {
	fmt.Fprintf(d.out, "%-5s %s\n", mark, fmt.Sprintf(format, args...))
}

func (d *doctor) fail(fix, format string, args ...any) {
	d.unwell = true
	d.say("FAIL", format, args...)
	if fix != "" {
		d.say("", "fix: %s", fix)
	}
}

// Run checks the configuration, the limits of the system, the stores and the database.
func (c *doctorCmd) Run(ctx context.Context, p *program) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTime)
	defer cancel()
	d := &doctor{out: p.stdout}
	cfg, file, err := (&serveCmd{Config: c.Config}).load(p)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	if _, err := newServer(ctx, cfg, false, &streams{}, nil, quiet); err != nil {
		return err
	}
	d.say("ok", "configuration: %s", file)
	if want, have := cfg.Limits.Connections, raiseFileLimit(quiet, cfg.Limits.Connections); have < want {
		d.say("warn", "limits.connections is %d, and the limit of open files allows %d", want, have)
		d.say("", "fix: raise the hard limit (ulimit -Hn, LimitNOFILE)")
	} else {
		d.say("ok", "open files: enough for %d connections", have)
	}
	if kept, err := openStreams(cfg.Streams, quiet); err != nil {
		d.fail("stop the server that uses the file, or correct streams", "%v", err)
	} else {
		d.say("ok", "streams: channels in %s, objects in %s", cfg.Streams.Channels, cfg.Streams.Objects)
		if err := kept.close(); err != nil {
			d.fail("", "streams: %v", err)
		}
	}
	d.database(ctx, cfg, quiet)
	if d.unwell {
		return errUnwell
	}
	return nil
}

// database looks at the database and at the table of each live query.
func (d *doctor) database(ctx context.Context, cfg config, log *slog.Logger) {
	if cfg.Database == "" {
		d.say("ok", "database: none, so there are no live queries")
		return
	}
	db, closeDB, err := openDatabase(ctx, cfg.Database, log)
	if err != nil {
		d.fail("", "%v", err)
		return
	}
	defer closeDB()
	unfit := d.unwell
	for _, q := range cfg.Queries {
		name := tableName(q.From, db.Engine())
		table, err := db.Table(ctx, name)
		if err != nil {
			d.fail("", "query %q: %v", q.Name, err)
			continue
		}
		compiled, err := query.Compile(q.definition(), table)
		if err != nil {
			d.fail("", "%v", err)
			continue
		}
		if compiled.Class == query.Rerun {
			d.say("warn", "query %q is re-read on changes, not followed in memory: %s", q.Name, compiled.Reason)
			continue
		}
		d.say("ok", "query %q: %s, table %s", q.Name, compiled.Class, table.Name)
	}
	if pg, ok := db.(*postgres.Database); ok {
		for _, f := range pg.Check(ctx) {
			if f.Fatal {
				d.fail(f.Fix, "%s: %s", f.Code, f.Cause)
				continue
			}
			d.say("warn", "%s: %s", f.Code, f.Cause)
			d.say("", "fix: %s", f.Fix)
		}
	}
	if d.unwell == unfit {
		d.say("ok", "database: %s", db.Engine())
	}
}

// tableName is the name that a definition gives, with the engine's schema if it names none.
func tableName(from string, engine row.Engine) row.Name {
	if schema, table, ok := strings.Cut(from, "."); ok {
		return row.Name{Schema: schema, Table: table}
	}
	if engine == row.SQLite {
		return row.Name{Schema: "main", Table: from}
	}
	return row.Name{Schema: "public", Table: from}
}
