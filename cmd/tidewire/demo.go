package main

import (
	"context"
	"log/slog"

	"github.com/tidewire/tidewire/demo"
)

// demoCmd is `tidewire demo`.
type demoCmd struct {
	Addr string `help:"Address to listen on. By default localhost:8080, or the next free port."`
	Dir  string `help:"Folder for the signing key. By default one for temporary files." type:"path"`
}

// Run serves the demo until the context ends.
func (d *demoCmd) Run(ctx context.Context, p *program) error {
	return demo.Run(ctx, demo.Options{
		Addr: d.Addr, Dir: d.Dir, Stdout: p.stdout,
		Logger: slog.New(slog.NewTextHandler(p.stderr, nil)),
	})
}
