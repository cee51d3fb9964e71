package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

const (
	pubTimeout = 30 * time.Second
	// maxLineBytes bounds a line of standard input.
	maxLineBytes = 16 << 20
)

type pubCmd struct {
	remote

	Channel string `arg:"" help:"The channel."`
	Data    string `arg:"" help:"JSON, or - to read one JSON value from each line of standard input."`
	Key     string `help:"Publish over HTTP with this API key; without, over the socket. TIDEWIRE_KEY in the environment keeps it out of the list of processes." placeholder:"KEY"`
	ID      string `help:"The message's id." placeholder:"ID" name:"id"`
	Replace string `help:"The key that the message replaces, on channels with the policy latest." placeholder:"KEY"`
}

// pubLine is what pub prints of a message: its position is there on a channel with history.
type pubLine struct {
	ID     string `json:"id"`
	Offset uint64 `json:"offset,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
}

// publisher publishes one message.
type publisher func(ctx context.Context, data json.RawMessage) (pubLine, error)

// Run publishes and prints the id of each message, and where it is kept.
func (c *pubCmd) Run(ctx context.Context, p *program) error {
	c.resolve(p)
	if c.Key == "" {
		c.Key = p.getenv("TIDEWIRE_KEY")
	}
	if c.Key != "" && c.Token != "" {
		return &usageError{errors.New("--key publishes over HTTP and --token over the socket: want one of them")}
	}
	if c.Data == "-" && c.ID != "" {
		return &usageError{errors.New("--id is for one message")}
	}
	if c.Data != "-" && !json.Valid([]byte(c.Data)) {
		return &usageError{errors.New("DATA is not JSON; a text is written as '\"text\"'")}
	}
	if !wire.ValidChannel(c.Channel) {
		return wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	if c.Key != "" {
		publish, err := c.overHTTP()
		if err != nil {
			return err
		}
		return c.all(ctx, p, publish)
	}
	return c.overSocket(ctx, p)
}

// all publishes the data, or each line of standard input.
func (c *pubCmd) all(ctx context.Context, p *program, publish publisher) error {
	one := func(data []byte) error {
		ctx, cancel := context.WithTimeout(ctx, pubTimeout)
		defer cancel()
		line, err := publish(ctx, data)
		if err != nil {
			return err
		}
		return printLine(p, line)
	}
	if c.Data != "-" {
		return one([]byte(c.Data))
	}
	lines := bufio.NewScanner(p.stdin)
	lines.Buffer(nil, maxLineBytes)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			return &usageError{fmt.Errorf("line %d is not JSON", n)}
		}
		if err := one(bytes.Clone(line)); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	return lines.Err()
}

func (c *pubCmd) overSocket(ctx context.Context, p *program) error {
	conn, err := c.connect(p)
	if err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- conn.Run(running) }()
	err = c.all(ctx, p, func(ctx context.Context, data json.RawMessage) (pubLine, error) {
		done, err := conn.Publish(ctx, c.Channel, data, client.PublishOptions{ID: c.ID, Key: c.Replace})
		return pubLine{done.ID, done.Offset, done.Epoch}, err
	})
	stop()
	if ran := <-ended; ran != nil {
		return ran // why publishing failed
	}
	return err
}

// overHTTP returns a publisher for POST /v1/channels/CHANNEL/messages.
func (c *pubCmd) overHTTP() (publisher, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" {
		return nil, &usageError{errors.New("--url is not an address such as http://localhost:8080")}
	}
	switch u.Scheme {
	case "ws", "wss":
		u.Scheme = "http" + strings.TrimPrefix(u.Scheme, "ws")
	case "http", "https":
	default:
		return nil, &usageError{fmt.Errorf("--url has the scheme %q, want http or https", u.Scheme)}
	}
	u = (&url.URL{Scheme: u.Scheme, Host: u.Host}).JoinPath("v1", "channels", c.Channel, "messages")
	httpClient, err := c.httpClient()
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, data json.RawMessage) (pubLine, error) {
		var body bytes.Buffer
		e := json.NewEncoder(&body)
		e.SetEscapeHTML(false)
		if err := e.Encode(struct {
			Data json.RawMessage `json:"data"`
			ID   string          `json:"id,omitempty"`
			Key  string          `json:"key,omitempty"`
		}{data, c.ID, c.Replace}); err != nil {
			return pubLine{}, err
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), &body)
		if err != nil {
			return pubLine{}, err
		}
		r.Header.Set("Authorization", "Bearer "+c.Key)
		r.Header.Set("Content-Type", "application/json")
		resp, err := httpClient.Do(r)
		if err != nil {
			return pubLine{}, err
		}
		defer func() { _ = resp.Body.Close() }()
		return published(resp)
	}, nil
}

// published reads the answer to a publication.
func published(resp *http.Response) (pubLine, error) {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return pubLine{}, err
	}
	var answer struct {
		pubLine
		Code   wire.Code `json:"code"`
		Detail string    `json:"detail"`
		Fix    string    `json:"fix"`
	}
	switch err := json.Unmarshal(raw, &answer); {
	case err == nil && resp.StatusCode == http.StatusOK:
		return answer.pubLine, nil
	case err == nil && answer.Code != "":
		return pubLine{}, wire.Errorf(answer.Code, "%s", strings.TrimSpace(answer.Detail+". "+answer.Fix))
	}
	return pubLine{}, fmt.Errorf("the server answered %s", resp.Status)
}
