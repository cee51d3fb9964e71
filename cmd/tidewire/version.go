package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/tidewire/tidewire/wire"
)

type versionCmd struct{}

func (versionCmd) Run(p *program) error {
	version, commit := buildVersion()
	_, err := fmt.Fprintf(p.stdout, "tidewire %s\ncommit %s\nprotocol %d\n%s %s/%s\n", version, commit, wire.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// buildVersion is what the build recorded: the module's version, and the commit with a plus sign if there were changes.
func buildVersion() (version, commit string) {
	version, commit = "unknown", "unknown"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version, commit
	}
	if info.Main.Version != "" {
		version = info.Main.Version
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		commit += "+"
	}
	return version, commit
}
