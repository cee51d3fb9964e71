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

// database looks at the database, and declares what a server declares.
func (d *doctor) database(ctx context.Context, cfg config, log *slog.Logger) {
	if cfg.Database == "" {
		d.say("ok", "database: none, so there are no live queries")
		return
	}
	db, closeDB, err := openDatabase(ctx, cfg.Database, log)
	if err != nil {
		d.failDatabase(err)
		return
	}
	defer closeDB()
	unfit := d.unwell
	bare := cfg
	bare.Entities, bare.Queries = nil, nil // declared below, to see each that is refused
	s, err := newServer(ctx, bare, false, &streams{}, db, log)
	if err != nil {
		d.fail("", "%v", err)
		return
	}
	declared, refused := declareQueries(ctx, s.node, db, cfg)
	for _, err := range refused {
		d.failDatabase(err)
	}
	for _, q := range declared {
		if q.Class == query.Rerun {
			d.say("warn", "query %q is re-read on changes, not followed in memory: %s", q.Definition.Name, q.Reason)
			continue
		}
		d.say("ok", "query %q: %s, table %s", q.Definition.Name, q.Class, q.Table.Name)
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

// failDatabase says what the database, or a declaration over it, lacks.
func (d *doctor) failDatabase(err error) {
	fix := ""
	if errors.Is(err, errUnreachable) {
		fix = "start the server, or correct database"
	}
	d.fail(fix, "%s", strings.Join(strings.Fields(err.Error()), " "))
}
