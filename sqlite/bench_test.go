package sqlite_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire/sqlite"
	"github.com/tidewire/tidewire/stream"
)

var history = stream.AppendOptions{Retain: stream.Retention{Count: 100, Age: time.Hour}}

func perSecond(b *testing.B, what string, n int) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), what+"/s")
}

// BenchmarkFsync is the disk: what is written one at a time cannot be faster.
func BenchmarkFsync(b *testing.B) {
	f, err := os.Create(filepath.Join(b.TempDir(), "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 4096)
	i := 0
	for b.Loop() {
		if _, err := f.WriteAt(block, int64(i%1024)*4096); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		i++
	}
	perSecond(b, "syncs", b.N)
}

func BenchmarkAppend(b *testing.B) {
	data := make([]byte, 128)
	for _, bc := range []struct {
		appenders, logs int
		keyed           bool
	}{{1, 1, false}, {64, 64, false}, {256, 256, false}, {1024, 1024, false}, {256, 8, false}, {256, 256, true}} {
		b.Run(fmt.Sprintf("appenders=%d/logs=%d/keyed=%v", bc.appenders, bc.logs, bc.keyed), func(b *testing.B) {
			s := newStream(b, sqlite.StreamOptions{})
			b.ReportAllocs()
			b.ResetTimer()
			var next atomic.Int64
			var wg sync.WaitGroup
			for a := range bc.appenders {
				wg.Go(func() {
					name := fmt.Sprint("room:", a%bc.logs)
					opts := history
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						if bc.keyed {
							opts.Key = fmt.Sprint(i)
						}
						if _, err := s.Append(b.Context(), name, data, opts); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			perSecond(b, "appends", b.N)
		})
	}
}

func BenchmarkRead(b *testing.B) {
	const logs, each, page = 16, 4096, 256
	s := newStream(b, sqlite.StreamOptions{})
	var wg sync.WaitGroup
	for i := range logs * 16 {
		wg.Go(func() {
			for range each / 16 {
				if _, err := s.Append(b.Context(), fmt.Sprint("room:", i%logs), make([]byte, 128), stream.AppendOptions{}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	read := func(b *testing.B, i int) {
		p, err := s.Read(b.Context(), fmt.Sprint("room:", i%logs), stream.Position{Offset: uint64(i * page % each)}, page)
		if err != nil || len(p.Entries) != page {
			b.Error(len(p.Entries), err)
		}
	}
	b.Run("page=256", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			read(b, i)
			i++
		}
		perSecond(b, "entries", b.N*page)
	})
	b.Run("page=256/readers=8", func(b *testing.B) {
		var next atomic.Int64
		b.SetParallelism(4)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				read(b, int(next.Add(1)))
			}
		})
		perSecond(b, "entries", b.N*page)
	})
	b.Run("head", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Head(b.Context(), "room:1"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
