package tidewire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/wire"
)

// maxBatchBytes bounds the body of a batch.
const maxBatchBytes = 8 << 20

// route is one operation of the HTTP interface; docs/openapi.yaml describes each, and a test holds one against the other.
type route struct {
	method, path string
	handle       http.HandlerFunc
	backend      bool // needs an API key
}

func (n *Node) initRoutes() {
	n.routes = []route{
		{http.MethodGet, "/v1/socket", n.serveSocket, false},
		{http.MethodGet, "/ws", n.serveWS, false},
		{http.MethodPost, "/v1/channels/{channel}/messages", n.servePublish, true},
		{http.MethodGet, "/v1/channels/{channel}/messages", n.serveHistory, true},
		{http.MethodGet, "/v1/channels/{channel}/acks", n.serveAcks, true},
		{http.MethodGet, "/v1/queries/{name}", n.serveQuery, true},
		{http.MethodPost, "/v1/messages", n.servePublishBatch, true},
		{http.MethodGet, "/v1/channels/{channel}/presence", n.servePresence, true},
		{http.MethodGet, "/v1/channels/{channel}", n.serveChannel, true},
		{http.MethodGet, "/v1/stats", n.serveStats, true},
		{http.MethodGet, "/healthz", n.serveHealth, false},
		{http.MethodGet, "/readyz", n.serveReady, false},
		{http.MethodGet, "/metrics", n.serveMetrics, false},
	}
	n.routes = append(n.routes, n.objectRoutes()...)
	n.mux = http.NewServeMux()
	byPath := map[string][]route{}
	for _, r := range n.routes {
		byPath[r.path] = append(byPath[r.path], r)
	}
	for path, routes := range byPath {
		n.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { n.dispatch(w, r, routes) })
	}
	n.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		n.problem(w, wire.Errorf(wire.CodeNotFound, "there is nothing at this path"))
	})
}

// ServeHTTP serves all paths of the node. Others answer NOT_FOUND.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) { n.mux.ServeHTTP(w, r) }

func (n *Node) dispatch(w http.ResponseWriter, r *http.Request, routes []route) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	i := slices.IndexFunc(routes, func(rt route) bool { return rt.method == method })
	if i < 0 {
		allow := make([]string, 0, len(routes))
		for _, rt := range routes {
			allow = append(allow, rt.method)
		}
		w.Header().Set("Allow", strings.Join(allow, ", "))
		n.problem(w, wire.Errorf(wire.CodeMethodNotAllowed, "%s is not allowed here", r.Method))
		return
	}
	if routes[i].backend {
		if err := n.backend(r); err != nil {
			n.problem(w, err)
			return
		}
	}
	routes[i].handle(w, r)
}

// backend checks the API key of a request.
func (n *Node) backend(r *http.Request) error {
	token, ok := auth.Token(r)
	if !ok || n.opts.Backend == nil {
		return wire.Errorf(wire.CodeAPIKeyRequired, "an API key is needed")
	}
	ctx, cancel := contextWithTimeout(r, n.opts.CommandTimeout)
	defer cancel()
	_, err := n.opts.Backend.Verify(ctx, token)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, auth.ErrDenied):
		return wire.Errorf(wire.CodeAPIKeyRequired, "the API key is wrong")
	}
	n.log.Error("API key could not be checked", "error", err)
	return &wire.Error{Code: wire.CodeSocketAuthUnavailable, Message: "the API key could not be checked", Retry: retryLater, Err: err}
}

func contextWithTimeout(r *http.Request, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), d)
}

// Problem is the body of an error, RFC 9457, media type application/problem+json.
type Problem struct {
	Type         string    `json:"type"`
	Title        string    `json:"title"`
	Status       int       `json:"status"`
	Detail       string    `json:"detail"`
	Code         wire.Code `json:"code"`
	Fix          string    `json:"fix"`
	RetryAfterMs int64     `json:"retryAfterMs,omitempty"`
	// Position is where a log is, if the code is HISTORY_GAP.
	Position *ProblemPosition `json:"position,omitempty"`
}

// ProblemPosition is where a log is.
type ProblemPosition struct {
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
	First  uint64 `json:"first"` // the oldest entry that is kept
}

func (n *Node) problem(w http.ResponseWriter, err error) {
	status := wire.AsError(err).Code.Info().HTTP
	if status == 0 {
		status = http.StatusInternalServerError
	}
	n.problemStatus(w, status, err)
}

func (n *Node) problemStatus(w http.ResponseWriter, status int, err error) {
	n.problemAt(w, status, err, nil)
}

func (n *Node) problemAt(w http.ResponseWriter, status int, err error, at *ProblemPosition) {
	e := wire.AsError(err)
	info := e.Code.Info()
	n.stats.refuse(e.Code)
	if e.Code == wire.CodeInternal {
		n.log.Error("request failed", "error", e.Err)
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="tidewire"`)
	}
	if e.Retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(e.Retry.Seconds()))))
		w.Header().Set("retry-after-ms", strconv.FormatInt(e.Retry.Milliseconds(), 10))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(Problem{
		Type: "urn:tidewire:error:" + string(e.Code), Title: info.Cause, Status: status, Detail: e.Message,
		Code: e.Code, Fix: info.Fix, RetryAfterMs: e.Retry.Milliseconds(), Position: at,
	})
}

func (n *Node) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(v)
}

// decodeBody reads exactly one JSON value of known members.
func decodeBody(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, limit))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		err = errors.New("more than one JSON value")
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return wire.Errorf(wire.CodeBodyTooLarge, "the body has more than %d bytes", tooLarge.Limit)
	}
	return wire.Errorf(wire.CodeBodyInvalid, "%v", err)
}

// publishBody is one message to publish.
type publishBody struct {
	Channel string          `json:"channel,omitempty"` // in a batch only
	Data    json.RawMessage `json:"data"`
	ID      string          `json:"id,omitempty"`
	Key     string          `json:"key,omitempty"`
}

func (b publishBody) check(limit int) error {
	switch {
	case !wire.ValidChannel(b.Channel):
		return wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	case len(b.Data) == 0:
		return wire.Errorf(wire.CodeBodyInvalid, "data is missing")
	case len(b.Data) > limit:
		return wire.Errorf(wire.CodeMessageTooLarge, "data has %d bytes, more than %d", len(b.Data), limit)
	case len(b.ID) > wire.MaxIDBytes || len(b.Key) > wire.MaxIDBytes:
		return wire.Errorf(wire.CodeBodyInvalid, "id and key have at most %d bytes", wire.MaxIDBytes)
	}
	if err := wire.CheckShape(b.Data); err != nil {
		return wire.Errorf(wire.CodeDataInvalid, "data %v", err)
	}
	return nil
}

// servePublish is POST /v1/channels/{channel}/messages.
func (n *Node) servePublish(w http.ResponseWriter, r *http.Request) {
	var body publishBody
	if err := decodeBody(w, r, int64(n.opts.Limits.FrameBytes)+1024, &body); err != nil {
		n.problem(w, err)
		return
	}
	if body.Channel != "" {
		n.problem(w, wire.Errorf(wire.CodeBodyInvalid, "the channel stands in the path"))
		return
	}
	body.Channel = r.PathValue("channel")
	if err := body.check(n.opts.Limits.FrameBytes); err != nil {
		n.problem(w, err)
		return
	}
	p, err := n.Publish(r.Context(), body.Channel, body.Data, PublishOptions{ID: body.ID, Key: body.Key})
	if err != nil {
		n.problem(w, err)
		return
	}
	n.answer(w, p)
}

// servePublishBatch is POST /v1/messages: all messages are checked before the first is published.
func (n *Node) servePublishBatch(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Messages []publishBody `json:"messages"`
	}
	if err := decodeBody(w, r, maxBatchBytes, &body); err != nil {
		n.problem(w, err)
		return
	}
	if body.Messages == nil {
		n.problem(w, wire.Errorf(wire.CodeBodyInvalid, "messages is missing"))
		return
	}
	if len(body.Messages) > n.opts.Limits.PublishBatch {
		n.problem(w, wire.Errorf(wire.CodeBodyTooLarge, "%d messages, more than %d", len(body.Messages), n.opts.Limits.PublishBatch))
		return
	}
	for i, m := range body.Messages {
		if err := m.check(n.opts.Limits.FrameBytes); err != nil {
			e := wire.AsError(err)
			n.problem(w, wire.Errorf(e.Code, "messages[%d]: %s", i, e.Message))
			return
		}
	}
	results := make([]Published, 0, len(body.Messages))
	for i, m := range body.Messages {
		p, err := n.Publish(r.Context(), m.Channel, m.Data, PublishOptions{ID: m.ID, Key: m.Key})
		if err != nil {
			n.problem(w, fmt.Errorf("messages[%d]: %w", i, err))
			return
		}
		results = append(results, p)
	}
	n.answer(w, map[string]any{"results": results})
}

// channelOf returns the channel of the path, or answers that it is malformed.
func (n *Node) channelOf(w http.ResponseWriter, r *http.Request) (string, bool) {
	channel := r.PathValue("channel")
	if !wire.ValidChannel(channel) {
		n.problem(w, wire.Errorf(wire.CodeChannelInvalid, "malformed channel name"))
		return "", false
	}
	return channel, true
}

// serveHistory is GET /v1/channels/{channel}/messages: what follows ?offset= and ?epoch=, or the ?last= messages, at most ?limit=.
func (n *Node) serveHistory(w http.ResponseWriter, r *http.Request) {
	channel, ok := n.channelOf(w, r)
	if !ok {
		return
	}
	since, limit, err := historyQuery(r.URL.Query())
	if err != nil {
		n.problem(w, err)
		return
	}
	page, err := n.History(r.Context(), channel, since, limit)
	if errors.Is(err, &wire.Error{Code: wire.CodeHistoryGap}) {
		n.problemAt(w, http.StatusGone, err, &ProblemPosition{page.Offset, page.Epoch, page.First})
		return
	} else if err != nil {
		n.problem(w, err)
		return
	}
	type message struct {
		Offset uint64          `json:"offset"`
		Time   time.Time       `json:"time"`
		ID     string          `json:"id"`
		Key    string          `json:"key,omitempty"`
		From   *wire.From      `json:"from,omitempty"`
		Data   json.RawMessage `json:"data"`
	}
	messages := make([]message, 0, len(page.Messages))
	for _, m := range page.Messages {
		messages = append(messages, message{m.Offset, m.Time.UTC(), m.ID, m.Key, m.From, m.Data})
	}
	n.answer(w, map[string]any{"channel": channel, "offset": page.Offset, "epoch": page.Epoch, "first": page.First, "messages": messages})
}

func historyQuery(q url.Values) (since HistorySince, limit int, err error) {
	number := func(name string, most uint64) uint64 {
		text := q.Get(name)
		if text == "" {
			return 0
		}
		v, perr := strconv.ParseUint(text, 10, 64)
		if perr != nil || v > most {
			err = wire.Errorf(wire.CodeQueryInvalid, "%s must be a number from 0 to %d", name, most)
		}
		return v
	}
	since.Last = int(number("last", MaxHistoryPage))
	since.Offset = number("offset", math.MaxUint64)
	since.Epoch = q.Get("epoch")
	limit = int(number("limit", MaxHistoryPage))
	if !q.Has("offset") && since.Last == 0 {
		since.Last = 100
	}
	if q.Has("offset") && q.Has("last") {
		err = wire.Errorf(wire.CodeQueryInvalid, "either last or offset")
	}
	for name := range q {
		switch name {
		case "last", "offset", "epoch", "limit":
		default:
			err = wire.Errorf(wire.CodeQueryInvalid, "unknown parameter %q", name)
		}
	}
	return since, limit, err
}

// serveAcks is GET /v1/channels/{channel}/acks.
func (n *Node) serveAcks(w http.ResponseWriter, r *http.Request) {
	channel, ok := n.channelOf(w, r)
	if !ok {
		return
	}
	acks, err := n.Acks(r.Context(), channel)
	if err != nil {
		n.problem(w, err)
		return
	}
	n.answer(w, acks)
}

// servePresence is GET /v1/channels/{channel}/presence.
func (n *Node) servePresence(w http.ResponseWriter, r *http.Request) {
	channel, ok := n.channelOf(w, r)
	if !ok {
		return
	}
	roster := n.Roster(channel)
	n.answer(w, map[string]any{"channel": channel, "version": roster.Version, "total": roster.Total, "members": roster.Snapshot})
}

// serveChannel is GET /v1/channels/{channel}.
func (n *Node) serveChannel(w http.ResponseWriter, r *http.Request) {
	channel, ok := n.channelOf(w, r)
	if !ok {
		return
	}
	n.answer(w, map[string]any{"channel": channel, "subscribers": n.Subscribers(channel), "members": n.Roster(channel).Total})
}

// serveStats is GET /v1/stats.
func (n *Node) serveStats(w http.ResponseWriter, _ *http.Request) { n.answer(w, n.Stats()) }

// serveHealth is GET /healthz: the process answers.
func (n *Node) serveHealth(w http.ResponseWriter, _ *http.Request) {
	n.answer(w, map[string]string{"status": "ok"})
}

// prober is a database that can show that its feed works.
type prober interface {
	Probe(ctx context.Context) error
}

// serveReady is GET /readyz: the node takes clients and delivers, shown by a message that goes through the hub, and by one through the database's feed if that can do it.
func (n *Node) serveReady(w http.ResponseWriter, r *http.Request) {
	if n.draining.Load() || !n.running.Load() {
		n.problem(w, &wire.Error{Code: wire.CodeDraining, Message: "the node does not take clients", Retry: retryLater})
		return
	}
	ctx, cancel := contextWithTimeout(r, 2*time.Second)
	defer cancel()
	if err := n.hub.Probe(ctx); err != nil {
		n.log.Error("readiness probe failed", "error", err)
		n.problem(w, &wire.Error{Code: wire.CodeTimeout, Message: "a probe through the hub did not come back", Retry: retryLater})
		return
	}
	if db, ok := n.opts.Database.(prober); ok {
		if err := db.Probe(ctx); err != nil {
			n.log.Error("readiness probe of the database failed", "error", err)
			n.problem(w, &wire.Error{Code: wire.CodeDatabaseUnavailable, Message: "a probe through the database's feed did not come back", Retry: retryLater})
			return
		}
	}
	n.answer(w, map[string]string{"status": "ready"})
}
