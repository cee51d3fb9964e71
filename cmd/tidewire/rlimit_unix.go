//go:build unix

package main

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// sparedFiles are descriptors for everything but connections.
const sparedFiles = 64

// raiseFileLimit lets the process have as many descriptors as it may: each connection takes one. It returns how many connections that allows, at most as many as are configured, so that
// what is beyond is refused with a delay and not cut.
func raiseFileLimit(log *slog.Logger, connections int) int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("the limit of open files is unknown", "error", err)
		return connections
	}
	if limit.Cur < limit.Max {
		raised := limit
		raised.Cur = limit.Max
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
			log.Warn("the limit of open files could not be raised", "limit", limit.Cur, "hard", limit.Max, "error", err)
		} else {
			limit = raised
		}
	}
	log.Info("limit of open files", "limit", uint64(limit.Cur))
	if most := max(int64(limit.Cur)-sparedFiles, 16); limit.Cur < 1<<31 && most < int64(connections) {
		log.Warn("limits.connections is lowered to what the limit of open files allows: to have more, raise the hard limit (ulimit -Hn, LimitNOFILE)",
			"limit", uint64(limit.Cur), "configured", connections, "connections", most)
		return int(most)
	}
	return connections
}
