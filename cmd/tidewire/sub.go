package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

type subCmd struct {
	remote

	Channel  string  `arg:"" help:"The channel."`
	Presence bool    `help:"Print the roster after each change, and states."`
	Join     string  `help:"Be in the roster, with this JSON as data." placeholder:"JSON"`
	Count    int     `short:"n" help:"End after so many messages." placeholder:"N"`
	Last     int     `help:"Print the newest messages of the channel's history first, at most so many." placeholder:"N"`
	Since    *uint64 `help:"Print what follows this offset in the channel's history first." placeholder:"OFFSET"`
	Epoch    string  `help:"The epoch of --since: without it, any." placeholder:"EPOCH"`
}

// subLine is what sub prints of anything but a roster.
type subLine struct {
	Type    string          `json:"type"`
	Channel string          `json:"channel"`
	ID      string          `json:"id,omitempty"`
	Key     string          `json:"key,omitempty"`
	From    *wire.From      `json:"from,omitempty"`
	Count   uint64          `json:"count,omitempty"`
	Offset  uint64          `json:"offset,omitempty"`
	Epoch   string          `json:"epoch,omitempty"`
	Member  string          `json:"member,omitempty"`
	Session string          `json:"session,omitempty"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// lostLine is what sub prints where messages of a channel with history may be missing: the count is zero if it is not known.
type lostLine struct {
	Type    string   `json:"type"`
	Channel string   `json:"channel"`
	Lost    lostPart `json:"lost"`
}

type lostPart struct {
	Count uint64          `json:"count"`
	From  client.Position `json:"from"`
	To    client.Position `json:"to"`
}

// rosterLine is what sub prints of a roster.
type rosterLine struct {
	Type    string        `json:"type"`
	Channel string        `json:"channel"`
	Version uint64        `json:"version"`
	Total   int           `json:"total"`
	Members []wire.Member `json:"members"`
}

// Run prints what comes until ctx ends, the count is reached, or the server refuses for good.
func (c *subCmd) Run(ctx context.Context, p *program) error {
	c.resolve(p)
	conn, err := c.connect(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	opts, err := c.options(p, cancel)
	if err != nil {
		return err
	}
	if _, err := conn.Subscribe(c.Channel, opts); err != nil {
		return &usageError{err}
	}
	if err := conn.Run(ctx); err != nil {
		return err
	}
	if stop, ok := context.Cause(ctx).(*stopped); ok {
		return stop.err
	}
	return nil
}

// stopped is why sub ends by itself.
type stopped struct{ err error }

func (s *stopped) Error() string { return "stopped" }

func (c *subCmd) options(p *program, cancel context.CancelCauseFunc) (client.SubscribeOptions, error) {
	seen := 0
	over := func() bool { return c.Count > 0 && seen >= c.Count } // the connection closes, and more may come
	print := func(line any) {
		if err := printLine(p, line); err != nil {
			cancel(&stopped{err})
		}
	}
	opts := client.SubscribeOptions{
		Last: c.Last,
		OnMessage: func(m client.Message) {
			if over() {
				return
			}
			print(subLine{Type: wire.TypeMessage, Channel: m.Channel, ID: m.ID, Key: m.Key, From: m.From, Offset: m.Offset, Epoch: m.Epoch, Data: m.Data})
			if seen++; over() {
				cancel(&stopped{})
			}
		},
		OnLost: func(l client.Lost) {
			print(lostLine{Type: "lost", Channel: c.Channel, Lost: lostPart(l)})
		},
		OnSkipped: func(n uint64) { print(subLine{Type: wire.TypeSkipped, Channel: c.Channel, Count: n}) },
		OnRefused: func(e *wire.Error) {
			if e.Retry == 0 {
				cancel(&stopped{e})
			}
		},
	}
	switch {
	case c.Last < 0:
		return opts, &usageError{errors.New("--last must not be negative")}
	case c.Last > 0 && c.Since != nil:
		return opts, &usageError{errors.New("--last and --since: want one of them")}
	case c.Epoch != "" && c.Since == nil:
		return opts, &usageError{errors.New("--epoch is of --since")}
	case c.Since != nil:
		opts.Since = &client.Position{Offset: *c.Since, Epoch: c.Epoch}
	}
	if c.Join != "" {
		if !json.Valid([]byte(c.Join)) {
			return opts, &usageError{fmt.Errorf("--join is not JSON; a text is written as '\"text\"'")}
		}
		opts.Presence = &client.Presence{Data: json.RawMessage(c.Join)}
	}
	if c.Presence {
		if opts.Presence == nil {
			opts.Presence = &client.Presence{Observe: true}
		}
		opts.OnPresence = func(r client.Roster) {
			members := r.Members
			if members == nil {
				members = []wire.Member{}
			}
			print(rosterLine{Type: wire.TypePresence, Channel: c.Channel, Version: r.Version, Total: r.Total, Members: members})
		}
		opts.OnState = func(s client.MemberState) {
			print(subLine{Type: wire.TypeState, Channel: c.Channel, Member: s.Member, Session: s.Session, Data: s.Data})
		}
	}
	return opts, nil
}

// printLine prints JSON on one line.
func printLine(p *program, line any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(line); err != nil {
		return err
	}
	_, err := p.stdout.Write(b.Bytes())
	return err
}
