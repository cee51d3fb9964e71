package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/tidewire/tidewire/internal/backoff"
	"github.com/tidewire/tidewire/wire"
)

const (
	objectTimeout = 30 * time.Second
	// objectPoll is how long one poll waits: less than a proxy cuts at.
	objectPoll = 25 * time.Second
	// objectSilence is after how long without a heartbeat a stream is given up.
	objectSilence = time.Minute
	// maxEventBytes bounds a line of a stream: a text of 64 KiB, of which each byte may be written as six.
	maxEventBytes = 1 << 20
)

type objectCmd struct {
	Publish objectPublishCmd `cmd:"" help:"Publish a text to a channel of an object."`
	Wait    objectWaitCmd    `cmd:"" help:"Wait for texts on a channel of an object, one JSON line each."`
	Count   objectCountCmd   `cmd:"" help:"Print how many subscriptions a channel of an object has."`
	Close   objectCloseCmd   `cmd:"" help:"Close a channel of an object."`
	Append  objectAppendCmd  `cmd:"" help:"Append a text to the log of an object."`
	Follow  objectFollowCmd  `cmd:"" help:"Print the log of an object and what is appended, one JSON line each."`
	Trim    objectTrimCmd    `cmd:"" help:"Remove the oldest entries of the log of an object."`
}

// objectRemote is how these commands reach an object.
type objectRemote struct {
	remote

	Key    string `help:"Use this API key; without, the token. TIDEWIRE_KEY in the environment keeps it out of the list of processes." placeholder:"KEY"`
	Object string `arg:"" help:"The object's id."`

	http *http.Client
	base *url.URL
	log  *slog.Logger
}

func (o *objectRemote) open(p *program) error {
	o.resolve(p)
	if o.Key == "" && o.Token == "" {
		o.Key = p.getenv("TIDEWIRE_KEY")
	}
	if o.Key != "" && o.Token != "" {
		return &usageError{errors.New("--key and --token: want one of them")}
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return &usageError{errors.New("--url is not an address such as http://localhost:8080")}
	}
	o.base = (&url.URL{Scheme: u.Scheme, Host: u.Host}).JoinPath("v1", "objects", url.PathEscape(o.Object))
	level := slog.LevelInfo
	if o.Quiet {
		level = slog.LevelError
	}
	o.log = slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level}))
	o.http, err = o.httpClient()
	return err
}

// send sends a request. An answer that is no success is an error, a [wire.Error] if the server gave a problem document.
func (o *objectRemote) send(ctx context.Context, method, path string, query url.Values, header http.Header, body any) (*http.Response, error) {
	u := *o.base.JoinPath(path)
	u.RawQuery = query.Encode()
	var data bytes.Buffer
	if body != nil {
		e := json.NewEncoder(&data)
		e.SetEscapeHTML(false)
		if err := e.Encode(body); err != nil {
			return nil, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), &data)
	if err != nil {
		return nil, &usageError{err}
	}
	for name, values := range header {
		r.Header[name] = values
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if credential := o.Key + o.Token; credential != "" {
		r.Header.Set("Authorization", "Bearer "+credential)
	}
	resp, err := o.http.Do(r)
	if err != nil {
		return nil, &lostError{err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, &lostError{err}
	}
	var problem struct {
		Code         wire.Code `json:"code"`
		Detail       string    `json:"detail"`
		Fix          string    `json:"fix"`
		RetryAfterMs int64     `json:"retryAfterMs"`
	}
	if err := json.Unmarshal(raw, &problem); err != nil || problem.Code == "" {
		err := fmt.Errorf("the server answered %s", resp.Status)
		if resp.StatusCode >= 500 {
			return nil, &lostError{err}
		}
		return nil, err
	}
	e := wire.Errorf(problem.Code, "%s", strings.TrimSpace(problem.Detail+". "+problem.Fix))
	e.Retry = time.Duration(problem.RetryAfterMs) * time.Millisecond
	return nil, e
}

// call sends a request and decodes the answer; without one (204) v stays as it is.
func (o *objectRemote) call(ctx context.Context, method, path string, query url.Values, header http.Header, body, v any) error {
	resp, err := o.send(ctx, method, path, query, header, body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode == http.StatusNoContent {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return &lostError{fmt.Errorf("the answer: %w", err)}
	}
	return nil
}

// print makes one request and prints its answer.
func (o *objectRemote) print(ctx context.Context, p *program, method, path string, query url.Values, header http.Header, body any) error {
	if err := o.open(p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	var answer json.RawMessage
	if err := o.call(ctx, method, path, query, header, body, &answer); err != nil {
		return err
	}
	return printLine(p, answer)
}

// lostError is a failure that may pass: the connection, or a server that is not well.
type lostError struct{ err error }

func (e *lostError) Error() string { return e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

// again waits before another attempt, or returns err if that would not help.
func (o *objectRemote) again(ctx context.Context, failures int, err error) error {
	var lost *lostError
	var refused *wire.Error
	wait := (backoff.Backoff{Jitter: true}).Delay(failures)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &refused) && refused.Retry > 0:
		wait = refused.Retry
	case !errors.As(err, &lost):
		return err
	}
	o.log.Warn("not connected", "error", err, "retry", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// channelPath is the path of a channel in the object.
func channelPath(channel, rest string) string { return "channels/" + url.PathEscape(channel) + rest }

type textBody struct {
	Text string `json:"text"`
}

type objectPublishCmd struct {
	objectRemote

	Channel string `arg:"" help:"The channel."`
	Text    string `arg:"" help:"The text."`
}

// Run publishes and prints to how many subscriptions.
func (c *objectPublishCmd) Run(ctx context.Context, p *program) error {
	return c.print(ctx, p, http.MethodPost, channelPath(c.Channel, "/messages"), nil, nil, textBody{c.Text})
}

type objectCountCmd struct {
	objectRemote

	Channel string `arg:"" help:"The channel."`
}

// Run prints how many subscriptions there are.
func (c *objectCountCmd) Run(ctx context.Context, p *program) error {
	return c.print(ctx, p, http.MethodGet, channelPath(c.Channel, ""), nil, nil, nil)
}

type objectCloseCmd struct {
	objectRemote

	Channel string `arg:"" help:"The channel."`
	Reason  string `help:"What its subscribers are told." placeholder:"TEXT"`
}

// Run closes and prints how many subscriptions there were.
func (c *objectCloseCmd) Run(ctx context.Context, p *program) error {
	query := url.Values{}
	if c.Reason != "" {
		query.Set("reason", c.Reason)
	}
	return c.print(ctx, p, http.MethodDelete, channelPath(c.Channel, ""), query, nil, nil)
}

type objectAppendCmd struct {
	objectRemote

	Text           string `arg:"" help:"The text."`
	IdempotencyKey string `help:"Append once, however often this is repeated within two minutes." placeholder:"TEXT"`
}

// Run appends and prints the seq.
func (c *objectAppendCmd) Run(ctx context.Context, p *program) error {
	header := http.Header{}
	if c.IdempotencyKey != "" {
		header.Set("Idempotency-Key", c.IdempotencyKey)
	}
	return c.print(ctx, p, http.MethodPost, "log", nil, header, textBody{c.Text})
}

type objectTrimCmd struct {
	objectRemote

	Keep *int `required:"" help:"How many entries stay. Zero begins the log anew, with another epoch." placeholder:"N"`
}

// Run trims and prints where the log is then.
func (c *objectTrimCmd) Run(ctx context.Context, p *program) error {
	if *c.Keep < 0 {
		return &usageError{errors.New("--keep is at least 0")}
	}
	return c.print(ctx, p, http.MethodDelete, "log", url.Values{"keep": {strconv.Itoa(*c.Keep)}}, nil, nil)
}

type objectWaitCmd struct {
	objectRemote

	Channel string        `arg:"" help:"The channel."`
	Timeout time.Duration `help:"End when nothing has come for so long; at most 15m." default:"30s"`
	Count   int           `short:"n" help:"End after so many texts." default:"1" placeholder:"N"`
}

// waitLine is what wait prints.
type waitLine struct {
	Status string  `json:"status"` // message, timeout, resubscribed or ended
	Text   *string `json:"text,omitempty"`
	Reason *string `json:"reason,omitempty"`
}

// subscriptionOver is the reason of a subscription whose time at the server was over; the channel was not closed.
const subscriptionOver = "subscription cancelled"

// Run subscribes, and prints what comes until the count, the time-out or the end of the channel. A poll that fails is repeated: nothing is lost. Where the server does not know the
// subscription any more, because it has started anew, it subscribes again and prints that.
func (c *objectWaitCmd) Run(ctx context.Context, p *program) error {
	if c.Timeout < 0 || c.Timeout > 15*time.Minute || c.Count < 1 {
		return &usageError{errors.New("--timeout is 0 to 15m, and --count at least 1")}
	}
	if err := c.open(p); err != nil {
		return err
	}
	path, err := c.subscribe(ctx)
	if err != nil {
		return stoppedOr(ctx, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), objectTimeout)
		defer cancel()
		_ = c.call(ctx, http.MethodDelete, path, nil, nil, nil, nil) // it ends by itself too
	}()
	seen, after, failures := 0, 0, 0
	for deadline := time.Now().Add(c.Timeout); ; {
		wait := max(0, min(time.Until(deadline), objectPoll))
		query := url.Values{"after": {strconv.Itoa(after)}, "wait": {strconv.FormatInt(wait.Milliseconds(), 10)}}
		var a struct {
			Status   string     `json:"status"`
			Messages []textBody `json:"messages"`
			Reason   *string    `json:"reason"`
		}
		err := c.poll(ctx, path, query, &a)
		if errors.Is(err, &wire.Error{Code: wire.CodeHandleUnknown}) || a.Reason != nil && *a.Reason == subscriptionOver {
			var again string
			if again, err = c.subscribe(ctx); err == nil {
				path, after, a.Status = again, 0, "resubscribed"
				missing := "the server had ended the subscription; messages may be missing"
				a.Reason = &missing
			}
		}
		if err != nil {
			failures++
			if err := c.again(ctx, failures, err); err != nil {
				return stoppedOr(ctx, err)
			}
			continue
		}
		failures = 0
		for _, m := range a.Messages {
			if err := printLine(p, waitLine{Status: "message", Text: &m.Text}); err != nil {
				return err
			}
			after++
			if seen++; seen == c.Count {
				return nil
			}
			deadline = time.Now().Add(c.Timeout)
		}
		switch {
		case a.Status == "ended":
			return printLine(p, waitLine{Status: "ended", Reason: a.Reason})
		case a.Status == "resubscribed":
			if err := printLine(p, waitLine{Status: a.Status, Reason: a.Reason}); err != nil {
				return err
			}
		case a.Status == "" && wait == 0:
			return printLine(p, waitLine{Status: "timeout"})
		}
	}
}

// subscribe subscribes and returns the path of the subscription.
func (c *objectWaitCmd) subscribe(ctx context.Context) (path string, err error) {
	ctx, cancel := context.WithTimeout(ctx, objectTimeout)
	defer cancel()
	var sub struct {
		Subscription string `json:"subscription"`
	}
	err = c.call(ctx, http.MethodPost, channelPath(c.Channel, "/subscriptions"), nil, nil, nil, &sub)
	return "subscriptions/" + url.PathEscape(sub.Subscription), err
}

func (c *objectWaitCmd) poll(ctx context.Context, path string, query url.Values, v any) error {
	ctx, cancel := context.WithTimeout(ctx, objectPoll+objectTimeout)
	defer cancel()
	return c.call(ctx, http.MethodGet, path, query, nil, nil, v)
}

// stoppedOr returns err, unless the program was told to stop.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

type objectFollowCmd struct {
	objectRemote

	After uint64 `help:"Begin behind the entry with this seq." placeholder:"SEQ"`
	Epoch string `help:"The epoch of that seq." placeholder:"EPOCH"`
	Count int    `short:"n" help:"End after so many entries." placeholder:"N"`
}

// follower is what follow knows while it goes from one stream to the next.
type follower struct {
	last string // the id of the last event
	seen int
	more bool // something came since the last attempt
}

var errFollowed = errors.New("followed as many as asked for")

// Run prints entries until ctx ends or the count is reached, and comes back behind the last one when the stream ends.
func (c *objectFollowCmd) Run(ctx context.Context, p *program) error {
	if err := c.open(p); err != nil {
		return err
	}
	f := &follower{}
	if c.After > 0 {
		f.last = strconv.FormatUint(c.After, 10)
		if c.Epoch != "" {
			f.last += "-" + c.Epoch
		}
	}
	for failures := 0; ; {
		began := time.Now()
		err := c.follow(ctx, p, f)
		if err == nil && time.Since(began) < time.Second && !f.more {
			err = &lostError{errors.New("the stream ended at once")}
		}
		switch {
		case errors.Is(err, errFollowed), ctx.Err() != nil:
			return nil
		case f.more || err == nil: // the event's time was over
			failures, f.more = 0, false
		}
		if err != nil {
			failures++
			if err := c.again(ctx, failures, err); err != nil {
				return stoppedOr(ctx, err)
			}
		}
	}
}

// follow prints one stream. Nil means that the server has ended it.
func (c *objectFollowCmd) follow(ctx context.Context, p *program, f *follower) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(objectSilence, cancel)
	defer silence.Stop()
	header := http.Header{"Accept": {"text/event-stream"}}
	if f.last != "" {
		header.Set("Last-Event-ID", f.last)
	}
	resp, err := c.send(ctx, http.MethodGet, "log", nil, header, nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEventBytes)
	var id, event, data string
	for lines.Scan() {
		silence.Reset(objectSilence)
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			id = value
		case "event":
			event = value
		case "data":
			data = value
		}
		if lines.Text() != "" || data == "" {
			continue
		}
		if err := c.printEvent(p, event, data); err != nil {
			return err
		}
		f.last, f.more = id, true
		if event == "" {
			f.seen++
		}
		if c.Count > 0 && f.seen >= c.Count {
			return errFollowed
		}
		event, data = "", ""
	}
	if err := lines.Err(); err != nil {
		return &lostError{err}
	}
	return nil
}

// printEvent prints an entry, or a gap, on one line.
func (c *objectFollowCmd) printEvent(p *program, event, data string) error {
	if event == "" {
		event = "entry"
	}
	line := map[string]json.RawMessage{}
	if err := json.Unmarshal([]byte(data), &line); err != nil {
		return fmt.Errorf("the stream has %.80q: %w", data, err)
	}
	line["type"] = json.RawMessage(strconv.Quote(event))
	return printLine(p, line)
}
