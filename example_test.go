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
	"github.com/tidewire/tidewire/query"
	"github.com/tidewire/tidewire/sqlite"
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

// A list that follows the database. Whoever changes it, each client sees only the cards of its organisation.
func ExampleNode_Query() {
	db, err := sqlite.OpenDatabase("app.db", sqlite.DatabaseOptions{}) // or postgres.Open
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tw, err := tidewire.New(tidewire.Options{Database: db})
	if err != nil {
		log.Fatal(err)
	}
	// No query over the entity shows more than it does.
	err = tw.Entity(tidewire.Entity{Name: "card", From: "cards", Visible: "org = $actor.org", Columns: []string{"title", "position"}})
	if err != nil {
		log.Fatal(err)
	}
	err = tw.Query(tidewire.Query{
		Entity:     "card",
		Definition: query.Definition{Name: "board", Where: "board_id = $board AND NOT archived", Order: "position", Limit: 100},
		Guard:      tidewire.Public,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := tw.Run(context.Background()); err != nil {
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
