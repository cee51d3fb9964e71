package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/tidewire/tidewire/demo"
	"github.com/tidewire/tidewire/sqlite"
)

// demoCmd is `tidewire demo`.
type demoCmd struct {
	Addr string `help:"Address to listen on. By default localhost:8080, or the next free port."`
	Dir  string `help:"Folder for the signing key and the rooms' histories. By default one for temporary files." type:"path"`
}

// Run serves the demo until the context ends.
func (d *demoCmd) Run(ctx context.Context, p *program) error {
	o := demo.Options{
		Addr: d.Addr, Dir: cmp.Or(d.Dir, demo.DefaultDir()), Stdout: p.stdout,
		Logger: slog.New(slog.NewTextHandler(p.stderr, nil)),
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	db, err := sqlite.OpenStream(filepath.Join(o.Dir, "rooms.db"), sqlite.StreamOptions{Logger: o.Logger})
	switch {
	case errors.Is(err, sqlite.ErrInUse): // another demo runs: this one has rooms of its own
		o.Logger.Warn("another demo uses the folder: histories are kept in memory", "dir", o.Dir)
	case err != nil:
		return fmt.Errorf("demo: %w", err)
	default:
		o.Streams = db
		defer func() { _ = db.Close() }()
	}
	return demo.Run(ctx, o)
}
