package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/tidewire/tidewire/client"
	"github.com/tidewire/tidewire/wire"
)

// maxResultBytes bounds the answer to a query over HTTP.
const maxResultBytes = 256 << 20

type queryCmd struct {
	remote

	Name  string `arg:"" help:"The live query."`
	Input string `help:"Its parameters, as a JSON object." placeholder:"JSON"`
	Once  bool   `help:"Print the rows as they are now, one JSON line each, and end."`
	Key   string `help:"With --once: read over HTTP with this API key; without, over the socket. TIDEWIRE_KEY in the environment keeps it out of the list of processes." placeholder:"KEY"`
}

// rowsLine is what query prints when all rows are there: at first, and where the server could not say what had changed meanwhile.
type rowsLine struct {
	Type    string            `json:"type"`
	Query   string            `json:"query"`
	Version uint64            `json:"version"`
	Rows    []json.RawMessage `json:"rows"`
}

// changeLine is what query prints of a commit, with how many rows there are after it.
type changeLine struct {
	Type    string    `json:"type"`
	Query   string    `json:"query"`
	Version uint64    `json:"version"`
	Ops     []queryOp `json:"ops"`
	Rows    int       `json:"rows"`
}

// queryOp is an op as the protocol has it.
type queryOp struct {
	Del json.RawMessage `json:"del,omitempty"`
	Put json.RawMessage `json:"put,omitempty"`
	At  *int            `json:"at,omitempty"`
}

// Run prints the rows and then each change, until ctx ends or the server refuses for good.
func (c *queryCmd) Run(ctx context.Context, p *program) error {
	c.resolve(p)
	if c.Once && c.Key == "" && c.Token == "" {
		c.Key = p.getenv("TIDEWIRE_KEY")
	}
	switch {
	case c.Key != "" && c.Token != "":
		return &usageError{errors.New("--key reads over HTTP and --token over the socket: want one of them")}
	case c.Key != "" && !c.Once:
		return &usageError{errors.New("--key is of --once: a query is followed over the socket")}
	}
	var input any
	if c.Input != "" {
		if !strings.HasPrefix(strings.TrimSpace(c.Input), "{") || !json.Valid([]byte(c.Input)) {
			return &usageError{errors.New("--input is not a JSON object")}
		}
		input = json.RawMessage(c.Input)
	}
	if c.Key != "" {
		return c.overHTTP(ctx, p)
	}
	return c.follow(ctx, p, input)
}

func (c *queryCmd) follow(ctx context.Context, p *program, input any) error {
	conn, err := c.connect(p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var last uint64 // the version that was printed
	_, err = conn.Query(c.Name, input, client.QueryOptions{
		OnChange: func(r client.Result) {
			var err error
			switch {
			case ctx.Err() != nil: // the connection closes, and more may come
				return
			case c.Once:
				if err = printRows(p, r.Rows); err == nil {
					cancel(&stopped{})
				}
			case r.Ops != nil:
				err = printLine(p, c.change(r))
			case r.Version != last: // else it is the same, live again
				err = printLine(p, rowsLine{Type: "rows", Query: c.Name, Version: r.Version, Rows: append([]json.RawMessage{}, r.Rows...)})
			}
			if last = r.Version; err != nil {
				cancel(&stopped{err})
			}
		},
		OnRefused: func(e *wire.Error) {
			if e.Retry == 0 {
				cancel(&stopped{e})
			}
		},
	})
	if err != nil {
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

func (c *queryCmd) change(r client.Result) changeLine {
	line := changeLine{Type: "change", Query: c.Name, Version: r.Version, Ops: make([]queryOp, len(r.Ops)), Rows: len(r.Rows)}
	for i, o := range r.Ops {
		if o.Row == nil {
			line.Ops[i] = queryOp{Del: o.Key}
		} else {
			line.Ops[i] = queryOp{Put: o.Row, At: &o.At}
		}
	}
	return line
}

func printRows(p *program, rows []json.RawMessage) error {
	for _, r := range rows {
		if err := printLine(p, r); err != nil {
			return err
		}
	}
	return nil
}

// overHTTP reads GET /v1/queries/NAME.
func (c *queryCmd) overHTTP(ctx context.Context, p *program) error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" {
		return &usageError{errors.New("--url is not an address such as http://localhost:8080")}
	}
	switch u.Scheme {
	case "ws", "wss":
		u.Scheme = "http" + strings.TrimPrefix(u.Scheme, "ws")
	case "http", "https":
	default:
		return &usageError{fmt.Errorf("--url has the scheme %q, want http or https", u.Scheme)}
	}
	u = (&url.URL{Scheme: u.Scheme, Host: u.Host}).JoinPath("v1", "queries", url.PathEscape(c.Name))
	if c.Input != "" {
		u.RawQuery = url.Values{"input": {c.Input}}.Encode()
	}
	httpClient, err := c.httpClient()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return &usageError{err}
	}
	r.Header.Set("Authorization", "Bearer "+c.Key)
	resp, err := httpClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResultBytes))
	if err != nil {
		return err
	}
	var answer struct {
		Rows   []json.RawMessage `json:"rows"`
		Code   wire.Code         `json:"code"`
		Title  string            `json:"title"`
		Detail string            `json:"detail"`
		Fix    string            `json:"fix"`
	}
	switch err := json.Unmarshal(raw, &answer); {
	case err == nil && resp.StatusCode == http.StatusOK:
		return printRows(p, answer.Rows)
	case err == nil && answer.Code != "":
		return wire.Errorf(answer.Code, "%s", strings.TrimSpace(cmp.Or(answer.Detail, answer.Title)+". "+answer.Fix))
	}
	return fmt.Errorf("the server answered %s", resp.Status)
}
