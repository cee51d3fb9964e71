// Command ackbus is the Go side of the test js/e2e/bus.test.ts: it relays the messages of a bus between WebSockets and Go, in two rooms. /ts has a bus in a
// browser and a receiver in Go; /go has a bus here, which the test drives over HTTP. It says its address, and ends with its standard input.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/tidewire/tidewire/ackbus"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

type server struct {
	ts, golang ackbus.Local
	bus        *ackbus.Bus

	mu   sync.Mutex // guards below
	got  []string
	slow []string
}

func run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &server{}
	bus, err := ackbus.New(s.golang.Join(), ackbus.Options{AckTimeout: 3 * time.Second, OnSlowConsumer: func(id string) { s.note(&s.slow, id) }})
	if err != nil {
		return err
	}
	defer bus.Dispose()
	s.bus = bus
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, room := range []*ackbus.Local{&s.ts, &s.golang} {
		receiver, err := ackbus.NewReceiver(room.Join(), "go", func(frame []byte) { s.note(&s.got, string(frame)) }, ackbus.ReceiverOptions{})
		if err != nil {
			return err
		}
		running.Go(func() { _ = receiver.Run(ctx) })
	}

	mux := http.NewServeMux()
	mux.HandleFunc("GET /ts", func(w http.ResponseWriter, r *http.Request) { relay(ctx, w, r, &s.ts) })
	mux.HandleFunc("GET /go", func(w http.ResponseWriter, r *http.Request) { relay(ctx, w, r, &s.golang) })
	mux.HandleFunc("GET /state", s.state)
	mux.HandleFunc("POST /send", s.send)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	running.Go(func() { _ = web.Serve(l) })
	fmt.Printf("http://%s\n", l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return web.Close()
}

// relay makes a WebSocket one of the users of a room.
func relay(ctx context.Context, w http.ResponseWriter, r *http.Request, room *ackbus.Local) {
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // the page comes through the fixture's proxy
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := make(chan []byte, 1024)
	channel := room.Join()
	stop, err := channel.Listen(func(message []byte) {
		select {
		case out <- message:
		default: // too slow: its frames stay without an acknowledgement
		}
	})
	if err != nil {
		return
	}
	defer stop()
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() {
		for {
			select {
			case message := <-out:
				if conn.Write(ctx, websocket.MessageBinary, message) != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	for {
		_, message, err := conn.Read(ctx)
		if err != nil {
			return
		}
		_ = channel.Post(message)
	}
}

// send posts the body for the receivers of the query: one alone, or several at once.
func (s *server) send(w http.ResponseWriter, r *http.Request) {
	frame, err := io.ReadAll(r.Body)
	if to := r.URL.Query()["to"]; err == nil && len(to) == 1 {
		err = s.bus.Send(to[0], frame)
	} else if err == nil {
		err = s.bus.Broadcast(frame, to...)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (s *server) state(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"pending": s.bus.Pending(), "slow": s.bus.SlowConsumers(), "told": s.slow, "got": s.got})
}

func (s *server) note(list *[]string, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*list = append(*list, text)
}
