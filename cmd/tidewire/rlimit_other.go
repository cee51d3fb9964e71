//go:build !unix

package main

import "log/slog"

// raiseFileLimit has nothing to raise here.
func raiseFileLimit(_ *slog.Logger, connections int) int { return connections }
