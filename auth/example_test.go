package auth_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/tidewire/tidewire/auth"
)

func Example() {
	secret := []byte("a secret of at least thirty-two bytes")
	tokens, err := auth.NewJWT(auth.JWTOptions{Secret: secret, Leeway: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	keys := auth.NewAPIKeys(map[string]auth.Identity{"key-of-the-backend": {Subject: "backend"}})
	verifier := auth.Any(keys, tokens)

	token, err := auth.Sign(secret, auth.Identity{Subject: "alice", ExpiresAt: time.Now().Add(time.Hour)})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range []string{"key-of-the-backend", token, "wrong"} {
		id, err := verifier.Verify(context.Background(), t)
		fmt.Printf("%q %v\n", id.Subject, err)
	}
	// Output:
	// "backend" <nil>
	// "alice" <nil>
	// "" auth: denied: by every verifier
}
