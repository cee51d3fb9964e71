// Command tidewire is the Tidewire realtime server, and what one needs beside it at a terminal.
//
//	tidewire serve --dev
//	tidewire sub room.1
//	tidewire pub room.1 '{"text":"hi"}'
//
// docs/configuration.md describes the configuration. The exit code is 0 after a stop by signal, 2 for a wrong configuration or command line, 1 for other failures; a second
// signal ends the program at once, with 1.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/tidewire/tidewire/wire"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		fmt.Fprintln(os.Stderr, "tidewire: a second signal: ended at once")
		os.Exit(1)
	}()
	err := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tidewire:", err)
	}
	os.Exit(exitCode(err))
}

// cli is the command line. A command is a struct with a method Run(context.Context, *program) error.
type cli struct {
	Demo    demoCmd    `cmd:"" help:"Run the demo: a shared room in the browser."`
	Serve   serveCmd   `cmd:"" help:"Run the server."`
	Sub     subCmd     `cmd:"" help:"Print what comes on a channel, one JSON line each."`
	Pub     pubCmd     `cmd:"" help:"Publish to a channel."`
	Query   queryCmd   `cmd:"" help:"Print the rows of a live query, and follow it: one JSON line for each change."`
	Object  objectCmd  `cmd:"" help:"Use a durable object: its channels and its log."`
	Doctor  doctorCmd  `cmd:"" help:"Check the configuration, the limits, the stores and the database, and say how to mend what is wrong."`
	Bench   benchCmd   `cmd:"" help:"Measure a server under load."`
	Token   tokenCmd   `cmd:"" help:"Make a token for development."`
	Version versionCmd `cmd:"" help:"Print the version, the commit and the protocol."`
}

// program is what a command has of its surroundings.
type program struct {
	getenv         func(string) string
	environ        func() []string // NAME=VALUE, to find mistyped names; nil looks at none
	stdin          io.Reader
	stdout, stderr io.Writer
}

// run does what args say. It is all of the program but signals and the exit code.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	p := &program{getenv: getenv, environ: os.Environ, stdin: os.Stdin, stdout: stdout, stderr: stderr}
	return p.run(ctx, args)
}

// usageError is a wrong command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// helped is what kong's exit after --help panics with.
type helped struct{}

func (p *program) run(ctx context.Context, args []string) (err error) {
	parser, err := kong.New(&cli{},
		kong.Name("tidewire"),
		kong.Description("A realtime server: channels with presence on one connection."),
		kong.Writers(p.stdout, p.stderr),
		kong.Exit(func(int) { panic(helped{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(p),
	)
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helped); !ok {
				panic(r)
			}
			err = nil
		}
	}()
	command, err := parser.Parse(args)
	if err != nil {
		return &usageError{err}
	}
	return command.Run()
}

// exitCode is the program's exit code for what run returned.
func exitCode(err error) int {
	var usage *usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.Is(err, &wire.Error{Code: wire.CodeConfigInvalid}):
		return 2
	}
	return 1
}
