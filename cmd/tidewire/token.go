package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidewire/tidewire/auth"
)

type tokenCmd struct {
	Secret  string            `help:"The shared secret, at least 32 bytes. TIDEWIRE_AUTH_JWT_SECRET in the environment, as for the server, keeps it out of the list of processes."`
	Subject string            `help:"Who the token stands for." required:""`
	TTL     time.Duration     `help:"How long it is valid." default:"1h" name:"ttl"`
	Claim   map[string]string `help:"More claims, as NAME=VALUE. A value that is JSON is taken as that." placeholder:"NAME=VALUE" mapsep:"none"`
}

// Run prints an HS256 token.
func (c *tokenCmd) Run(p *program) error {
	secret := c.Secret
	if secret == "" {
		secret = p.getenv(envName("auth.jwt.secret"))
	}
	if secret == "" {
		return &usageError{errors.New("the secret is missing: use --secret or " + envName("auth.jwt.secret"))}
	}
	if c.TTL <= 0 {
		return &usageError{errors.New("--ttl must be more than zero")}
	}
	claims := map[string]any{}
	for name, text := range c.Claim {
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		claims[name] = value
	}
	token, err := auth.Sign([]byte(secret), auth.Identity{Subject: c.Subject, Claims: claims, ExpiresAt: time.Now().Add(c.TTL)})
	if err != nil {
		return &usageError{err}
	}
	_, err = fmt.Fprintln(p.stdout, token)
	return err
}
