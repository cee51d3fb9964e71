// Command rooms is a whole server: members of an organisation, known by their tokens, may enter its rooms, and a backend may publish.
//
//	JWT_SECRET=at-least-32-bytes-of-secret-text BACKEND_KEY=a-long-random-key go run ./examples/rooms
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	jwt, err := auth.NewJWT(auth.JWTOptions{Secret: []byte(os.Getenv("JWT_SECRET"))})
	if err != nil {
		return err
	}
	key := os.Getenv("BACKEND_KEY")
	if key == "" {
		return errors.New("BACKEND_KEY is not set")
	}
	tw, err := tidewire.New(tidewire.Options{
		Authenticate:   tidewire.AuthenticateWith(jwt),
		Reauthenticate: tidewire.ReauthenticateWith(jwt),
		Backend:        auth.NewAPIKeys(map[string]auth.Identity{key: {Subject: "backend"}}),
	})
	if err != nil {
		return err
	}
	err = tw.Channel("org.{org}.room.{room}", tidewire.ChannelOptions{
		Presence: true,
		History:  &tidewire.History{Size: 1000, TTL: 24 * time.Hour},
		Guard: func(_ context.Context, a tidewire.Access) error {
			if a.Actor.Claims["org"] != a.Params["org"] {
				return tidewire.ErrDenied
			}
			return nil
		},
	})
	if err != nil {
		return err
	}

	srv := &http.Server{Addr: ":8080", Handler: tw, ReadHeaderTimeout: 10 * time.Second} // cuts handshakes that drip
	served := make(chan error, 1)
	go func() { served <- srv.ListenAndServe() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			log.Print(err)
			cancel()
		}
	}()
	err = tw.Run(ctx) // until it is told to stop; then it drains
	return errors.Join(err, srv.Close())
}
