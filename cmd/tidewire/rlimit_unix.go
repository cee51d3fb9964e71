//go:build unix

package main

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// raiseFileLimit lets the process have as many descriptors as it may: each connection takes one.
func raiseFileLimit(log *slog.Logger, connections int) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		log.Warn("the limit of open files is unknown", "error", err)
		return
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
	if uint64(limit.Cur) < uint64(connections) {
		log.Warn("fewer open files than connections are allowed: raise the hard limit (ulimit -Hn, LimitNOFILE), or lower limits.connections",
			"limit", uint64(limit.Cur), "connections", connections)
	}
}
