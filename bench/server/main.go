// Command server is a Tidewire node with the limits of one client lifted, so that one connection can publish as fast as it can.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	_ "net/http/pprof"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	n, err := tidewire.New(tidewire.Options{
		Backend: auth.NewAPIKeys(map[string]auth.Identity{"bench": {Subject: "bench"}}),
		Limits: tidewire.Limits{
			FramesPerSecond: 10_000_000, FrameBurst: 10_000_000, AcceptsPerSecond: 1_000_000,
			QueueMessages: 4096, QueueBytes: 16 << 20, DroppedFrames: 1 << 15,
		},
		DrainWindow: -1,
		Portable:    os.Getenv("PORTABLE") != "",
	})
	if err != nil {
		log.Fatal(err)
	}
	channels := tidewire.ChannelOptions{Guard: tidewire.Public, Presence: true}
	if os.Getenv("HISTORY") != "" {
		channels.History = &tidewire.History{Size: 1000}
	}
	if err := n.Channel("**", channels); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", n)
	mux.Handle("/debug/pprof/", http.DefaultServeMux)
	mux.HandleFunc("/free", func(w http.ResponseWriter, _ *http.Request) {
		debug.FreeOSMemory()
		fmt.Fprintln(w, "ok")
	})
	go func() { log.Print(http.Serve(l, mux)) }()
	fmt.Println("ready")
	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
