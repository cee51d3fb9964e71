//go:build !unix

package main

import "log/slog"

// raiseFileLimit has nothing to raise here.
func raiseFileLimit(*slog.Logger, int) {}
