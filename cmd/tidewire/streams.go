package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/tidewire/tidewire/sqlite"
	"github.com/tidewire/tidewire/stream"
)

// sweepInterval is how often what has expired is deleted from files.
const sweepInterval = time.Minute

// streams are the open stores of a configuration.
type streams struct {
	channels, objects stream.Store
	files             map[string]*sqlite.Stream
}

// openStreams opens the stores. Two settings that name one file share it.
func openStreams(c streamsConfig, log *slog.Logger) (*streams, error) {
	s := &streams{files: map[string]*sqlite.Stream{}}
	open := func(key, at string) (stream.Store, error) {
		path, file := strings.CutPrefix(at, "sqlite:")
		if !file {
			return stream.NewMemory(stream.MemoryOptions{}), nil
		}
		if s.files[path] == nil {
			db, err := sqlite.OpenStream(path, sqlite.StreamOptions{Logger: log})
			if err != nil {
				return nil, configError("%s: %v", key, err)
			}
			s.files[path] = db
		}
		return s.files[path], nil
	}
	var err error
	if s.channels, err = open("streams.channels", c.Channels); err == nil {
		s.objects, err = open("streams.objects", c.Objects)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *streams) close() error {
	var errs []error
	for _, db := range s.files {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// sweep deletes what has expired until ctx ends.
func (s *streams) sweep(ctx context.Context, log *slog.Logger) {
	if len(s.files) == 0 {
		return
	}
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	for {
		for path, db := range s.files {
			more, err := true, error(nil)
			for more && err == nil {
				more, err = db.Sweep(ctx)
			}
			if err != nil && ctx.Err() == nil {
				log.Error("the store could not be swept", "file", path, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
