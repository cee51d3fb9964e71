package tidewire_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
)

// A server with rooms that members of an organisation may enter.
func Example() {
	jwt, err := auth.NewJWT(auth.JWTOptions{Secret: []byte(os.Getenv("JWT_SECRET"))})
	if err != nil {
		log.Fatal(err)
	}
	tw, err := tidewire.New(tidewire.Options{
		Authenticate:   tidewire.AuthenticateWith(jwt),
		Reauthenticate: tidewire.ReauthenticateWith(jwt),
	})
	if err != nil {
		log.Fatal(err)
	}
	err = tw.Channel("org.{org}.room.{room}", tidewire.ChannelOptions{
		Presence: true,
		Guard: func(_ context.Context, a tidewire.Access) error {
			if a.Actor.Claims["org"] != a.Params["org"] {
				return tidewire.ErrDenied
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() { log.Fatal(http.ListenAndServe(":8080", tw)) }()
	if err := tw.Run(ctx); err != nil { // until Ctrl-C; then it drains
		log.Fatal(err)
	}
}

// The application publishes from where it changes its data.
func ExampleNode_Publish() {
	tw, err := tidewire.New(tidewire.Options{})
	if err != nil {
		log.Fatal(err)
	}
	p, err := tw.Publish(context.Background(), "org.7.room.1", map[string]string{"text": "hello"}, tidewire.PublishOptions{ID: "order-42"})
	fmt.Println(p.ID, err)
	// Output: order-42 <nil>
}
