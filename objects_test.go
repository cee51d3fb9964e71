package tidewire_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewire/tidewire"
	"github.com/tidewire/tidewire/auth"
	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/stream"
)

// objectServer is a node whose objects have a log that the test reaches. Its objects "open.**" are open to everybody.
func objectServer(t *testing.T, o tidewire.Options, opts object.Options) (*server, *stream.Memory) {
	t.Helper()
	log := stream.NewMemory(stream.MemoryOptions{})
	if opts.Log == nil {
		opts.Log = log
	}
	host, err := object.NewHost(opts)
	if err != nil {
		t.Fatal(err)
	}
	o.Objects = host
	s := backend(t, o)
	if err := s.Object("open.**", tidewire.ObjectOptions{Guard: tidewire.Public}); err != nil {
		t.Fatal(err)
	}
	return s, log
}

// ask calls as a backend and wants the status; the answer is decoded into v unless it is nil.
func (s *server) ask(method, path, body string, status int, v any) {
	s.t.Helper()
	resp, got := s.call(method, "/v1/objects/"+path, "key-1", body)
	if resp.StatusCode != status {
		s.t.Fatalf("%s %s: %d %s, want %d", method, path, resp.StatusCode, got, status)
	}
	if v == nil {
		return
	}
	if err := json.Unmarshal([]byte(got), v); err != nil {
		s.t.Fatalf("%s %s: %s: %v", method, path, got, err)
	}
}

type polled struct {
	Status   string
	Reason   *string
	Messages []struct {
		Number uint64
		Text   string
	}
}

func (p polled) texts() string {
	var texts []string
	for _, m := range p.Messages {
		texts = append(texts, fmt.Sprint(m.Number, "=", m.Text))
	}
	return strings.Join(texts, " ")
}

// subscribeTo subscribes to channel c of an object and returns the path of the subscription.
func (s *server) subscribeTo(id string) string {
	s.t.Helper()
	var a struct {
		Subscription, Channel string
		IdleMs                int
	}
	s.ask("POST", id+"/channels/c/subscriptions", "", 200, &a)
	if len(a.Subscription) < 26 || a.Channel != "c" || a.IdleMs != 60_000 {
		s.t.Fatalf("%+v", a)
	}
	return id + "/subscriptions/" + a.Subscription
}

func TestO19_PublishWaitCountClose(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	var published struct{ Delivered int }
	s.ask("POST", "o/channels/c/messages", `{"text":"nobody"}`, 200, &published)
	if published.Delivered != 0 {
		t.Fatal("delivered to nobody")
	}
	sub := s.subscribeTo("o")
	var count struct{ Subscribers int }
	s.ask("GET", "o/channels/c", "", 200, &count)
	if count.Subscribers != 1 {
		t.Fatalf("%d subscribers", count.Subscribers)
	}
	s.ask("GET", sub+"?wait=10", "", 204, nil)
	for _, text := range []string{"a", "", "線"} {
		s.ask("POST", "o/channels/c/messages", fmt.Sprintf(`{"text":%q}`, text), 200, &published)
		if published.Delivered != 1 {
			t.Fatalf("delivered to %d", published.Delivered)
		}
	}
	var p polled
	s.ask("GET", sub+"?wait=10000", "", 200, &p)
	if p.Status != "messages" || p.texts() != "1=a 2= 3=線" {
		t.Fatalf("%+v", p)
	}
	// Until it is confirmed, the answer can be asked for again: it may have been lost.
	again := p
	s.ask("GET", sub+"?wait=10000&after=1", "", 200, &again)
	if again.texts() != "2= 3=線" {
		t.Fatalf("%+v", again)
	}
	s.ask("GET", sub+"?wait=10&after=3", "", 204, nil)
	s.ask("POST", "o/channels/c/messages", `{"text":"last"}`, 200, nil)
	var closed struct{ Closed int }
	s.ask("DELETE", "o/channels/c?reason=%E6%94%B6%E6%91%8A", "", 200, &closed)
	if closed.Closed != 1 {
		t.Fatalf("closed %d", closed.Closed)
	}
	p = polled{}
	s.ask("GET", sub+"?wait=10000&after=3", "", 200, &p)
	if p.texts() != "4=last" {
		t.Fatalf("%+v", p)
	}
	for range 2 {
		p = polled{}
		s.ask("GET", sub+"?wait=10000&after=4", "", 200, &p)
		if p.Status != "ended" || p.Reason == nil || *p.Reason != "收摊" {
			t.Fatalf("%+v", p)
		}
	}
	s.ask("DELETE", sub, "", 204, nil)
	s.ask("GET", sub, "", 404, nil)
	s.ask("DELETE", sub, "", 404, nil)
}

// A wait without a subscription subscribes for itself, and ends with its client.
func TestO19_WaitInOneRequest(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{EventTimeout: 300 * time.Millisecond})
	s.ask("GET", "o/channels/c/messages", "", 204, nil)
	s.ask("GET", "o/channels/c/messages?wait=3600000", "", 204, nil) // the event's time is shorter
	var wg sync.WaitGroup
	wg.Go(func() {
		for p := (polled{}); p.Status == ""; {
			if resp, body := s.call("GET", "/v1/objects/o/channels/c/messages?wait=10000", "key-1", ""); resp.StatusCode != 204 {
				if err := json.Unmarshal([]byte(body), &p); err != nil || p.texts() != "1=hi" {
					t.Error(body, err)
				}
				return
			}
		}
	})
	eventually(t, "delivered", func() bool {
		var published struct{ Delivered int }
		s.ask("POST", "o/channels/c/messages", `{"text":"hi"}`, 200, &published)
		return published.Delivered == 1
	})
	wg.Wait()
}

// O14: the event of a request ends when the client has gone.
func TestO14_ClientGone(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{EventTimeout: object.MaxEventTimeout})
	for _, path := range []string{"/channels/c/messages?wait=3600000", "/log"} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			resp, err := s.stream(ctx, "o"+path, "")
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			done <- err
		}()
		eventually(t, "an event", func() bool { return s.Objects().Stats().Events == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		eventually(t, "its end", func() bool { st := s.Objects().Stats(); return st.Events == 0 && st.Objects == 0 })
	}
}

// A poll whose client has gone, unnoticed, does not take what the next poll waits for.
func TestO19_APollTakesTheTurn(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	sub := s.subscribeTo("o")
	var wg sync.WaitGroup
	wg.Go(func() {
		resp, body := s.call("GET", "/v1/objects/"+sub+"?wait=60000", "key-1", "")
		if resp.StatusCode != 504 || !strings.Contains(body, "TIMEOUT") {
			t.Errorf("the first poll: %d %s", resp.StatusCode, body)
		}
	})
	eventually(t, "a wait", func() bool { return s.Objects().Stats().Waiters == 1 })
	var second sync.WaitGroup
	second.Go(func() {
		var p polled
		s.ask("GET", sub+"?wait=60000", "", 200, &p)
		if p.texts() != "1=x" {
			t.Errorf("%+v", p)
		}
	})
	wg.Wait()
	s.ask("POST", "o/channels/c/messages", `{"text":"x"}`, 200, nil)
	second.Wait()
}

// No message is lost between polls, however often answers are.
func TestO19_NothingIsLostBetweenPolls(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	sub := s.subscribeTo("o")
	const total = 300
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Objects().Do(t.Context(), "o", func(_ context.Context, e *object.Event) error {
			for i := range total {
				if _, err := e.Publish("c", strconv.Itoa(i+1)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	var got []uint64
	for lost := 0; len(got) < total; lost++ {
		var p polled
		s.ask("GET", fmt.Sprintf("%s?wait=10000&after=%d", sub, len(got)), "", 200, &p)
		if lost%3 == 0 {
			continue // as if the answer had not come
		}
		for _, m := range p.Messages[:max(1, len(p.Messages)/2)] {
			if m.Text != fmt.Sprint(m.Number) {
				t.Fatalf("message %d is %q", m.Number, m.Text)
			}
			got = append(got, m.Number)
		}
	}
	wg.Wait()
	for i, n := range got {
		if n != uint64(i+1) {
			t.Fatalf("message %d at %d", n, i)
		}
	}
}

func TestO08_BacklogOverHTTP(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	sub := s.subscribeTo("o")
	body := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", object.MaxTextBytes))
	s.ask("POST", "o/channels/c/messages", body, 200, nil)
	var p polled
	s.ask("GET", sub, "", 200, &p)
	if held := s.Objects().Stats().BacklogBytes; held < object.MaxTextBytes { // until it is confirmed
		t.Fatalf("%d bytes are held", held)
	}
	for range 16 {
		s.ask("POST", "o/channels/c/messages", body, 200, nil)
	}
	p = polled{}
	s.ask("GET", sub, "", 200, &p)
	if p.Status != "ended" || !strings.Contains(*p.Reason, "backlog") {
		t.Fatalf("%+v", p)
	}
}

func TestO19_AppendAndRead(t *testing.T) {
	t.Parallel()
	s, log := objectServer(t, tidewire.Options{}, object.Options{})
	type appended struct {
		Seq       uint64
		Epoch     string
		Duplicate bool
	}
	var a appended
	for seq := uint64(1); seq <= 3; seq++ {
		s.ask("POST", "o/log", fmt.Sprintf(`{"text":"t%d"}`, seq), 200, &a)
		if a.Seq != seq || a.Epoch == "" || a.Duplicate {
			t.Fatalf("%+v", a)
		}
	}
	keyed := func() appended {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", s.http.URL+"/v1/objects/o/log", strings.NewReader(`{"text":"once"}`))
		req.Header.Set("Authorization", "Bearer key-1")
		req.Header.Set("Idempotency-Key", "k1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var a appended
		if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	if first, again := keyed(), keyed(); first.Duplicate || !again.Duplicate || again.Seq != first.Seq {
		t.Fatalf("%+v, then %+v", first, again)
	}
	type page struct {
		Epoch       string
		First, Head uint64
		Entries     []struct {
			Seq  uint64
			Time time.Time
			Text string
		}
	}
	var p page
	s.ask("GET", "o/log?after=1&limit=2&epoch="+a.Epoch, "", 200, &p)
	if p.Epoch != a.Epoch || p.First != 1 || p.Head != 4 || len(p.Entries) != 2 || p.Entries[0].Seq != 2 || p.Entries[0].Text != "t2" || p.Entries[0].Time.IsZero() {
		t.Fatalf("%+v", p)
	}
	// What was trimmed, lost, or is of another epoch is told.
	if err := log.Trim(t.Context(), object.LogName("o"), stream.Retention{Count: 1}); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{"after=1", "after=4&epoch=another", "after=900"} {
		var gap tidewire.Problem
		s.ask("GET", "o/log?"+query, "", 410, &gap)
		if gap.Code != "HISTORY_GAP" || gap.Position == nil || gap.Position.First != 4 || gap.Position.Offset != 4 || gap.Position.Epoch != a.Epoch {
			t.Fatalf("%s: %+v", query, gap)
		}
	}
	p = page{}
	s.ask("GET", "nothing/log", "", 200, &p)
	if p.Head != 0 || p.First != 1 || p.Entries == nil {
		t.Fatalf("%+v", p)
	}
}

// An idempotency key is its caller's alone.
func TestO19_IdempotencyKeysOfCallers(t *testing.T) {
	t.Parallel()
	s := start(t, tidewire.Options{
		Authenticate: byToken,
		Backend:      auth.NewAPIKeys(map[string]auth.Identity{"key-1": {Subject: "shop"}, "key-2": {Subject: "stock"}}),
	})
	if err := s.Object("open.**", tidewire.ObjectOptions{Guard: tidewire.Public}); err != nil {
		t.Fatal(err)
	}
	post := func(token, addr, key string) (seq uint64, duplicate bool) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/objects/open.a/log", strings.NewReader(`{"text":"x"}`))
		r.RemoteAddr = addr
		r.Header.Set("Idempotency-Key", key)
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		var a struct {
			Seq       uint64
			Duplicate bool
		}
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return a.Seq, a.Duplicate
	}
	key := strings.Repeat("k", stream.MaxKeyBytes)
	callers := []struct{ token, addr string }{{"key-1", "192.0.2.1:1"}, {"key-2", "192.0.2.1:1"}, {"alice", "192.0.2.1:1"}, {"bob", "192.0.2.1:1"}, {"", "192.0.2.1:1"}, {"", "192.0.2.2:1"}}
	for i, c := range callers {
		if seq, duplicate := post(c.token, c.addr, key); duplicate || seq != uint64(i+1) {
			t.Errorf("%v: seq %d, duplicate %v", c, seq, duplicate)
		}
	}
	for i, c := range callers {
		if seq, duplicate := post(c.token, strings.Replace(c.addr, ":1", ":9", 1), key); !duplicate || seq != uint64(i+1) {
			t.Errorf("%v again: seq %d, duplicate %v", c, seq, duplicate)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/objects/open.a/log", strings.NewReader(`{"text":"x"}`))
	r.Header.Set("Idempotency-Key", key+"k")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "QUERY_INVALID") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A pair of surrogates is a character, however it is written.
func TestO04_EscapedTexts(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	s.ask("POST", "o/log", `{"text":"\ud83d\uDE00\\ud800 \u0041\ufffd"}`, 200, nil)
	var p struct{ Entries []struct{ Text string } }
	s.ask("GET", "o/log", "", 200, &p)
	if len(p.Entries) != 1 || p.Entries[0].Text != "😀\\ud800 A\ufffd" {
		t.Fatalf("%q", p)
	}
}

func TestO17_TrimOverHTTP(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	for i := range 5 {
		s.ask("POST", "o/log", fmt.Sprintf(`{"text":"t%d"}`, i+1), 200, nil)
	}
	f := s.follow(t.Context(), "o/log?after=4", "")
	last := f.want(5, "t5").id
	var head, anew struct {
		Epoch       string
		First, Head uint64
	}
	s.ask("DELETE", "o/log?keep=2", "", 200, &head)
	if head.First != 4 || head.Head != 5 || !strings.HasSuffix(last, head.Epoch) {
		t.Fatalf("%+v", head)
	}
	s.ask("DELETE", "o/log?keep=9", "", 200, &anew)
	if anew != head {
		t.Fatalf("%+v, then %+v", head, anew)
	}
	s.ask("DELETE", "o/log?keep=0", "", 200, &anew)
	if anew.First != 1 || anew.Head != 0 || anew.Epoch == head.Epoch {
		t.Fatalf("%+v, then %+v", head, anew)
	}
	s.ask("POST", "o/log", `{"text":"new"}`, 200, nil)
	if e := f.next(); e.event != "gap" { // who follows is told
		t.Fatalf("%+v", e)
	}
	f.want(1, "new")
}

// sse is a stream of server-sent events.
type sse struct {
	t     *testing.T
	body  io.ReadCloser
	lines *bufio.Reader
}

type sseEvent struct{ id, event, data, comment, retry string }

// stream asks for a log as server-sent events, or any other path.
func (s *server) stream(ctx context.Context, path, last string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", s.http.URL+"/v1/objects/"+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer key-1")
	req.Header.Set("Accept", "text/event-stream")
	if last != "" {
		req.Header.Set("Last-Event-ID", last)
	}
	return http.DefaultClient.Do(req)
}

func (s *server) follow(ctx context.Context, path, last string) *sse {
	s.t.Helper()
	resp, err := s.stream(ctx, path, last)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	if h := resp.Header; resp.StatusCode != 200 || h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-store" {
		s.t.Fatalf("%d %v", resp.StatusCode, h)
	}
	return &sse{t: s.t, body: resp.Body, lines: bufio.NewReader(resp.Body)}
}

// read returns the next block, and false at the end.
func (s *sse) read() (e sseEvent, ok bool) {
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return e, false
		}
		line = strings.TrimSuffix(line, "\n")
		if line == "" {
			return e, true
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.event = value
		case "data":
			e.data = value
		case "retry":
			e.retry = value
		case "":
			e.comment = ":" + value
		default:
			s.t.Fatalf("line %q", line)
		}
	}
}

// next returns the next event with data.
func (s *sse) next() sseEvent {
	s.t.Helper()
	for {
		e, ok := s.read()
		if !ok {
			s.t.Fatal("the stream has ended")
		}
		if e.data != "" {
			return e
		}
	}
}

func (s *sse) want(seq uint64, text string) sseEvent {
	s.t.Helper()
	e := s.next()
	var data struct {
		Seq  uint64
		Text string
	}
	if err := json.Unmarshal([]byte(e.data), &data); err != nil || e.event != "" || data.Seq != seq || data.Text != text || !strings.HasPrefix(e.id, fmt.Sprint(seq, "-")) {
		s.t.Fatalf("%+v, want %d %q", e, seq, text)
	}
	return e
}

func TestO19_StreamAndResume(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	for i := range 3 {
		s.ask("POST", "o/log", fmt.Sprintf(`{"text":"t%d\r\nline"}`, i+1), 200, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	f := s.follow(ctx, "o/log?after=1", "")
	if e, _ := f.read(); e.retry == "" {
		t.Fatalf("%+v says no retry", e)
	}
	f.want(2, "t2\r\nline")
	f.want(3, "t3\r\nline")
	s.ask("POST", "o/log", `{"text":"live"}`, 200, nil)
	last := f.want(4, "live").id
	cancel()
	s.ask("POST", "o/log", `{"text":"missed"}`, 200, nil)
	f = s.follow(t.Context(), "o/log?after=1", last) // the header counts
	f.want(5, "missed")
	f = s.follow(t.Context(), "o/log", "3") // a seq alone is good too
	f.want(4, "live")
}

// A log that does not continue what the client has is told, with the epoch in the id, also when the new log is further than the old.
func TestO19_StreamTellsGaps(t *testing.T) {
	t.Parallel()
	s, log := objectServer(t, tidewire.Options{}, object.Options{})
	name := object.LogName("o")
	s.ask("POST", "o/log", `{"text":"old"}`, 200, nil)
	f := s.follow(t.Context(), "o/log", "")
	last := f.want(1, "old").id
	wantGap := func(f *sse, first, head uint64) {
		t.Helper()
		e := f.next()
		var data struct {
			Epoch       string
			First, Head uint64
		}
		if err := json.Unmarshal([]byte(e.data), &data); err != nil || e.event != "gap" || data.First != first || data.Head != head || e.id != fmt.Sprint(first-1, "-", data.Epoch) {
			t.Fatalf("%+v, want a gap to %d", e, first)
		}
	}
	if err := log.Reset(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		s.ask("POST", "o/log", fmt.Sprintf(`{"text":"new%d"}`, i+1), 200, nil)
	}
	wantGapLive := f.next() // while it is followed; how much is there by then depends on the moment
	if wantGapLive.event != "gap" {
		t.Fatalf("%+v", wantGapLive)
	}
	f.want(1, "new1")
	f = s.follow(t.Context(), "o/log", last) // on coming back
	wantGap(f, 1, 3)
	f.want(1, "new1")
	last = f.want(2, "new2").id
	if err := log.Trim(t.Context(), name, stream.Retention{Count: 1}); err != nil {
		t.Fatal(err)
	}
	f = s.follow(t.Context(), "o/log", last) // continues: 3 is there
	f.want(3, "new3")
	s.ask("POST", "o/log", `{"text":"new4"}`, 200, nil)
	if err := log.Trim(t.Context(), name, stream.Retention{Count: 1}); err != nil {
		t.Fatal(err)
	}
	f = s.follow(t.Context(), "o/log", last)
	wantGap(f, 4, 4)
	f.want(4, "new4")
}

// O18 over HTTP: clients that lose their connection all the time see each seq once and in order, while many append. The event's time is short, so streams end by themselves too.
func TestO18_StreamEachSeqOnceInOrder(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{EventTimeout: 150 * time.Millisecond})
	const publishers, each = 4, 40
	const total = publishers * each
	var wg sync.WaitGroup
	for range publishers {
		wg.Go(func() {
			for range each {
				s.ask("POST", "o/log", `{"text":"x"}`, 200, nil)
			}
		})
	}
	for client := range 3 {
		wg.Go(func() {
			var seqs []uint64
			last := ""
			for len(seqs) < total {
				ctx, cancel := context.WithCancel(t.Context())
				f := s.follow(ctx, "o/log", last)
				for n := 0; client == 0 || n < 7*client; n++ { // the others leave early
					e, ok := f.read()
					if !ok {
						break
					}
					if e.data == "" {
						continue
					}
					seq, _, _ := strings.Cut(e.id, "-")
					v, err := strconv.ParseUint(seq, 10, 64)
					if err != nil {
						t.Error(err)
					}
					seqs, last = append(seqs, v), e.id
				}
				cancel()
			}
			for i, seq := range seqs {
				if seq != uint64(i+1) {
					t.Errorf("client %d: seq %d at %d", client, seq, i)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestO19_StreamHeartbeatAndEventTime(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{HeartbeatInterval: 20 * time.Millisecond}, object.Options{EventTimeout: 500 * time.Millisecond})
	f := s.follow(t.Context(), "o/log", "")
	comments := 0
	for {
		e, ok := f.read()
		if !ok {
			break // the event's time is over
		}
		if e.comment != "" {
			comments++
		}
	}
	if comments == 0 {
		t.Fatal("no heartbeat")
	}
}

// Waits and streams outlive the time limits that a server puts on requests.
func TestO19_ServerTimeouts(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{HeartbeatInterval: 50 * time.Millisecond, WriteTimeout: 300 * time.Millisecond}, object.Options{})
	srv := httptest.NewUnstartedServer(s.Node)
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = 200*time.Millisecond, 200*time.Millisecond
	srv.Start()
	defer srv.Close()
	s.http.Close()
	s.http = srv
	f := s.follow(t.Context(), "o/log", "")
	s.ask("GET", "o/channels/c/messages?wait=600", "", 204, nil)
	s.ask("POST", "o/log", `{"text":"late"}`, 200, nil)
	f.want(1, "late")
	_ = f.body.Close()
}

func TestO19_BadInput(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	sub := s.subscribeTo("o")
	long := strings.Repeat("n", 65)
	for _, tc := range []struct {
		method, path, body, code string
		status                   int
	}{
		{"POST", "o/channels/c/messages", ``, "BODY_INVALID", 400},
		{"POST", "o/channels/c/messages", `{}`, "BODY_INVALID", 400},
		{"POST", "o/channels/c/messages", `{"text":null}`, "BODY_INVALID", 400},
		{"POST", "o/channels/c/messages", `{"text":1}`, "BODY_INVALID", 400},
		{"POST", "o/channels/c/messages", `{"text":"a","more":1}`, "BODY_INVALID", 400},
		{"POST", "o/channels/c/messages", "{\"text\":\"a\xff\"}", "DATA_INVALID", 400},
		{"POST", "o/channels/c/messages", `{"text":"` + strings.Repeat("x", 65_537) + `"}`, "DATA_INVALID", 400},
		{"POST", "o/channels/c/messages", `{"text":"` + strings.Repeat("x", 400_000) + `"}`, "BODY_TOO_LARGE", 413},
		{"POST", "o/log", `{"text":"` + strings.Repeat("x", 65_537) + `"}`, "DATA_INVALID", 400},
		{"POST", "o/log", `{"text":"\ud800"}`, "DATA_INVALID", 400},
		{"POST", "o/log", `{"text":"a\\\uDFFFb"}`, "DATA_INVALID", 400},
		{"POST", "o/log", `{"text":"\ud83d\ud83d\ude00"}`, "DATA_INVALID", 400},
		{"POST", "o/channels/c/messages", `{"text":"\ud83d\n"}`, "DATA_INVALID", 400},
		{"DELETE", "o/log", ``, "QUERY_INVALID", 400},
		{"DELETE", "o/log?keep=", ``, "QUERY_INVALID", 400},
		{"DELETE", "o/log?keep=-1", ``, "QUERY_INVALID", 400},
		{"DELETE", "o/log?keep=1&count=1", ``, "QUERY_INVALID", 400},
		{"POST", "o/channels/" + long + "/messages", `{"text":"a"}`, "QUERY_INVALID", 400},
		{"POST", "o/channels/a%20b/subscriptions", ``, "QUERY_INVALID", 400},
		{"GET", "o/channels/a%2Fb", ``, "QUERY_INVALID", 400},
		{"GET", "o/channels/" + long + "/messages", ``, "QUERY_INVALID", 400},
		{"GET", "o/channels/c/messages?wait=-1", ``, "QUERY_INVALID", 400},
		{"GET", "o/channels/c/messages?wait=3600001", ``, "QUERY_INVALID", 400},
		{"GET", "o/channels/c/messages?wait=1s", ``, "QUERY_INVALID", 400},
		{"DELETE", "o/channels/c?reason=" + strings.Repeat("r", 1025), ``, "QUERY_INVALID", 400},
		{"DELETE", "o/channels/c?reason=%ff", ``, "QUERY_INVALID", 400},
		{"GET", sub + "?after=1", ``, "QUERY_INVALID", 400},
		{"GET", "o/subscriptions/made-up", ``, "HANDLE_UNKNOWN", 404},
		{"GET", strings.Replace(sub, "o/", "p/", 1), ``, "HANDLE_UNKNOWN", 404},
		{"DELETE", "o/subscriptions/made-up", ``, "HANDLE_UNKNOWN", 404},
		{"GET", "o/log?offset=1", ``, "QUERY_INVALID", 400},
		{"GET", "o/channels/c/messages?after=1", ``, "QUERY_INVALID", 400},
		{"DELETE", "o/channels/c?why=x", ``, "QUERY_INVALID", 400},
		{"GET", "o/log?after=x", ``, "QUERY_INVALID", 400},
		{"GET", "o/log?limit=101", ``, "QUERY_INVALID", 400},
		{"GET", "a%20b/log", ``, "QUERY_INVALID", 400},
		{"GET", strings.Repeat("o", 256) + "/log", ``, "QUERY_INVALID", 400},
		{"PUT", "o/log", ``, "METHOD_NOT_ALLOWED", 405},
		{"GET", "o", ``, "NOT_FOUND", 404},
	} {
		resp, body := s.call(tc.method, "/v1/objects/"+tc.path, "key-1", tc.body)
		var p tidewire.Problem
		if err := json.Unmarshal([]byte(body), &p); err != nil || resp.StatusCode != tc.status || string(p.Code) != tc.code || p.Detail == "" || p.Fix == "" {
			t.Errorf("%s %.60s %.40s: %d %s, want %d %s", tc.method, tc.path, tc.body, resp.StatusCode, body, tc.status, tc.code)
		}
	}
	resp, err := s.stream(t.Context(), "o/log", "seven")
	if err != nil || resp.StatusCode != 400 {
		t.Fatal(resp, err)
	}
	if p := problemOf(t, resp); p.Code != "QUERY_INVALID" {
		t.Fatal(p)
	}
	_ = resp.Body.Close()
	// The limits of an object.
	for range 255 {
		s.subscribeTo("o")
	}
	if resp, body := s.call("POST", "/v1/objects/o/channels/c/subscriptions", "key-1", ""); resp.StatusCode != 429 || !strings.Contains(body, "SUBSCRIPTION_LIMIT") || !strings.Contains(body, "256") {
		t.Fatalf("the 257th: %d %s", resp.StatusCode, body)
	}
}

func TestO19_WhoMay(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{
		Authenticate: func(r *http.Request) (*tidewire.Grant, error) {
			switch token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); token {
			case "broken":
				return nil, errors.New("down")
			case "stale":
				return &tidewire.Grant{Actor: tidewire.Actor{ID: "alice"}, ExpiresAt: time.Now().Add(-time.Second)}, nil
			case "wrong", "":
				return nil, nil
			default:
				return &tidewire.Grant{Actor: tidewire.Actor{ID: token}}, nil
			}
		},
		AllowedOrigins: []string{"https://good.example"},
	}, object.Options{})
	for pattern, guard := range map[string]tidewire.Guard{
		"user.{id}": func(_ context.Context, a tidewire.Access) error {
			if a.Channel != "user."+a.Params["id"] || a.Actor.ID != a.Params["id"] || a.Action == tidewire.ActionPublish {
				return fmt.Errorf("no: %w", tidewire.ErrDenied)
			}
			return nil
		},
		"broken": func(context.Context, tidewire.Access) error { return errors.New("down") },
		"closed": nil,
	} {
		if err := s.Object(pattern, tidewire.ObjectOptions{Guard: guard}); err != nil {
			t.Fatal(err)
		}
	}
	if s.Object("user.{id}", tidewire.ObjectOptions{}) == nil || s.Object("a..b", tidewire.ObjectOptions{}) == nil {
		t.Error("a wrong declaration is accepted")
	}
	for _, tc := range []struct {
		key, method, path, origin, code string
		status                          int
	}{
		{"key-1", "POST", "closed/log", "", "", 200}, // backends may everything
		{"key-1", "POST", "undeclared/log", "https://bad.example", "", 200},
		{"alice", "POST", "open.a/log", "", "", 200},
		{"alice", "GET", "user.alice/log", "https://good.example", "", 200},
		{"alice", "POST", "user.alice/log", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "POST", "user.alice/channels/c/messages", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "DELETE", "user.alice/channels/c", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "DELETE", "user.alice/log?keep=0", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "DELETE", "open.a/log?keep=0", "", "", 200},
		{"alice", "GET", "user.alice/channels/c", "", "", 200},
		{"alice", "GET", "user.alice/channels/c/messages", "", "", 204},
		{"alice", "POST", "user.alice/channels/c/subscriptions", "", "", 200},
		{"alice", "GET", "user.bob/log", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "GET", "undeclared/log", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "GET", "closed/log", "", "TOPIC_FORBIDDEN", 403},
		{"alice", "GET", "broken/log", "", "GUARD_FAILED", 503},
		{"alice", "GET", "open.a/log", "https://bad.example", "ORIGIN_FORBIDDEN", 403},
		{"", "GET", "open.a/log", "", "SOCKET_UNAUTHENTICATED", 401},
		{"wrong", "GET", "open.a/log", "", "SOCKET_UNAUTHENTICATED", 401},
		{"stale", "GET", "open.a/log", "", "SOCKET_UNAUTHENTICATED", 401},
		{"broken", "GET", "open.a/log", "", "SOCKET_AUTH_UNAVAILABLE", 503},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), tc.method, s.http.URL+"/v1/objects/"+tc.path, strings.NewReader(`{"text":"x"}`))
		if tc.key != "" {
			req.Header.Set("Authorization", "Bearer "+tc.key)
		}
		if tc.origin != "" {
			req.Header.Set("Origin", tc.origin)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status || tc.code != "" && !strings.Contains(string(body), `"`+tc.code+`"`) {
			t.Errorf("%s %s %s: %d %s, want %d %s", tc.key, tc.method, tc.path, resp.StatusCode, body, tc.status, tc.code)
		}
	}
	// A subscription belongs to who made it.
	var a struct{ Subscription string }
	_, body := s.call("POST", "/v1/objects/open.a/channels/c/subscriptions", "alice", "")
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatal(body)
	}
	for key, status := range map[string]int{"alice": 204, "bob": 404, "key-1": 404} {
		if resp, _ := s.call("GET", "/v1/objects/open.a/subscriptions/"+a.Subscription, key, ""); resp.StatusCode != status {
			t.Errorf("%s: %d, want %d", key, resp.StatusCode, status)
		}
	}
}

// A wrong API key is told where no client could connect with it.
func TestO19_WrongAPIKey(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{})
	if resp, body := s.call("GET", "/v1/objects/open.a/log", "wrong", ""); resp.StatusCode != 401 || !strings.Contains(body, "API_KEY_REQUIRED") {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	if resp, body := s.call("GET", "/v1/objects/open.a/log", "", ""); resp.StatusCode != 200 {
		t.Fatalf("anonymous: %d %s", resp.StatusCode, body)
	}
}

// A stream ends with the grant of its client.
func TestO19_StreamEndsWithTheGrant(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{Authenticate: func(*http.Request) (*tidewire.Grant, error) {
		return &tidewire.Grant{ExpiresAt: time.Now().Add(200 * time.Millisecond)}, nil
	}}, object.Options{EventTimeout: object.MaxEventTimeout})
	resp, err := http.DefaultClient.Do(must(t)(http.NewRequestWithContext(t.Context(), "GET", s.http.URL+"/v1/objects/open.a/channels/c/messages?wait=60000", nil)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 204 {
		t.Fatalf("%d", resp.StatusCode)
	}
}

func must(t *testing.T) func(*http.Request, error) *http.Request {
	return func(r *http.Request, err error) *http.Request {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// The places for waits, streams and held subscriptions are bounded, and given back.
func TestO20_WaitsAreBounded(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{Limits: tidewire.Limits{ObjectWaits: 3}}, object.Options{})
	a, b := s.subscribeTo("o"), s.subscribeTo("p")
	ctx, cancel := context.WithCancel(t.Context())
	f := s.follow(ctx, "o/log", "")
	for _, try := range []string{"GET o/channels/c/messages", "POST o/channels/c/subscriptions", "GET o/log"} {
		method, path, _ := strings.Cut(try, " ")
		resp, body := s.call(method, "/v1/objects/"+path, "key-1", "")
		if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, `"SUBSCRIPTION_LIMIT"`) || !strings.Contains(body, "waits") {
			t.Errorf("%s: %d %s", try, resp.StatusCode, body)
		}
	}
	s.ask("GET", a, "", 204, nil) // polls of what is held go on
	s.ask("DELETE", a, "", 204, nil)
	s.ask("DELETE", b, "", 204, nil)
	cancel()
	_ = f.body.Close()
	eventually(t, "all places free", func() bool {
		_, metrics := s.call("GET", "/metrics", "", "")
		return strings.Contains(metrics, "tidewire_object_waits 0\n") && strings.Contains(metrics, "tidewire_object_events 0\n")
	})
}

// byToken authenticates everybody with a token as the actor of that name, and others as anonymous.
func byToken(r *http.Request) (*tidewire.Grant, error) {
	return &tidewire.Grant{Actor: tidewire.Actor{ID: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")}}, nil
}

// One client cannot take all places, nor can all clients together take those of backends.
func TestO20_PlacesOfClients(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{Authenticate: byToken, Limits: tidewire.Limits{ObjectWaits: 12, ObjectWaitsPerClient: 4}}, object.Options{})
	subscribe := func(key, addr string) (*httptest.ResponseRecorder, string) {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/objects/open.a/channels/c/subscriptions", nil)
		r.RemoteAddr = addr
		if key != "" {
			r.Header.Set("Authorization", "Bearer "+key)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		var a struct{ Subscription string }
		_ = json.Unmarshal(w.Body.Bytes(), &a)
		return w, a.Subscription
	}
	refused := func(key, addr, why string) {
		t.Helper()
		w, _ := subscribe(key, addr)
		if body := w.Body.String(); w.Code != 429 || w.Header().Get("Retry-After") == "" || !strings.Contains(body, `"SUBSCRIPTION_LIMIT"`) || !strings.Contains(body, why) {
			t.Errorf("%s at %s: %d %s, want %q", key, addr, w.Code, body, why)
		}
	}
	first := ""
	for i := range 4 {
		_, first = subscribe("alice", fmt.Sprintf("192.0.2.%d:1", i))
		if _, sub := subscribe("", fmt.Sprintf("[2001:db8:0:1::%d]:7", i+1)); first == "" || sub == "" {
			t.Fatal("a client has no place")
		}
	}
	refused("alice", "192.0.2.9:1", "this client")
	refused("", "[2001:db8:0:1::99]:1", "this client")
	if _, sub := subscribe("", "[2001:db8:0:2::1]:1"); sub == "" {
		t.Fatal("another network has no place")
	}
	refused("bob", "192.0.2.1:1", "the node") // clients have nine of the twelve
	for range 3 {
		s.subscribeTo("o")
	}
	refused("key-1", "192.0.2.1:1", "the node")
	if resp, body := s.call("DELETE", "/v1/objects/open.a/subscriptions/"+first, "alice", ""); resp.StatusCode != 204 {
		t.Fatal(body)
	}
	eventually(t, "a free place", func() bool { _, sub := subscribe("alice", "192.0.2.1:1"); return sub != "" })
	refused("alice", "192.0.2.1:1", "the node")
}

// stuck is the connection of a client that does not read.
type stuck struct {
	http.ResponseWriter
	writing chan struct{} // closed at the first write
	once    sync.Once
	release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.writing) })
	<-s.release
	return len(p), nil
}

// A page has at most 256 KiB of text, says that there is more, and has a place while it is written.
func TestO20_PagesOfTheLog(t *testing.T) {
	t.Parallel()
	s, log := objectServer(t, tidewire.Options{}, object.Options{})
	text := strings.Repeat("x", object.MaxTextBytes)
	for range 10 {
		if _, err := log.Append(t.Context(), object.LogName("o"), []byte(text), stream.AppendOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var sizes []int
	for after, more := uint64(0), true; more; {
		var p struct {
			Head    uint64
			More    bool
			Entries []struct {
				Seq  uint64
				Text string
			}
		}
		s.ask("GET", fmt.Sprint("o/log?after=", after), "", 200, &p)
		for _, e := range p.Entries {
			if after++; e.Seq != after || e.Text != text {
				t.Fatalf("seq %d, want %d", e.Seq, after)
			}
		}
		if more = p.More; more != (after < p.Head) || p.Head != 10 {
			t.Fatalf("head %d, more %v at %d", p.Head, more, after)
		}
		sizes = append(sizes, len(p.Entries))
	}
	if fmt.Sprint(sizes) != "[4 4 2]" {
		t.Errorf("pages of %v entries", sizes)
	}
	var none struct{ More bool }
	s.ask("GET", "o/log?limit=0&after=9", "", 200, &none)
	if !none.More {
		t.Error("there is more behind 9")
	}
	w := &stuck{ResponseWriter: httptest.NewRecorder(), writing: make(chan struct{}), release: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/v1/objects/open.a/log", nil))
	})
	<-w.writing
	if _, metrics := s.call("GET", "/metrics", "", ""); !strings.Contains(metrics, "tidewire_object_waits 1\n") {
		t.Error("a page that is written has no place")
	}
	close(w.release)
	wg.Wait()
}

// copying is a store that reads from a file, as far as memory goes.
type copying struct {
	*stream.Memory
	reads atomic.Int64
}

func (c *copying) Read(ctx context.Context, name string, after stream.Position, limit int) (stream.Page, error) {
	c.reads.Add(1)
	p, err := c.Memory.Read(ctx, name, after, limit)
	for i := range p.Entries {
		p.Entries[i].Data = slices.Clone(p.Entries[i].Data)
	}
	return p, err
}

// A follower that does not read holds about a page in memory, of whatever size the entries are. It is alone, as it measures.
func TestO20_SlowFollowersAreCheap(t *testing.T) {
	for _, size := range []int{4000, object.MaxTextBytes} {
		log := stream.NewMemory(stream.MemoryOptions{})
		store := &copying{Memory: log}
		host, err := object.NewHost(object.Options{Log: store, EventTimeout: object.MaxEventTimeout})
		if err != nil {
			t.Fatal(err)
		}
		s := backend(t, tidewire.Options{WriteTimeout: time.Minute, Objects: host})
		for range 16 << 20 / size {
			if _, err := log.Append(t.Context(), object.LogName("o"), slices.Repeat([]byte("x"), size), stream.AppendOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		const followers = 8
		before := heapInUse()
		var conns []net.Conn
		for range followers {
			conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
			_ = conn.(*net.TCPConn).SetReadBuffer(4096)
			if _, err := io.WriteString(conn, "GET /v1/objects/o/log HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-1\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "streams", func() bool { return host.Stats().Events == followers })
		reads, since := int64(0), time.Now()
		eventually(t, "that all are stuck, and nothing is read", func() bool {
			if now := store.reads.Load(); now != reads {
				reads, since = now, time.Now()
			}
			return reads > followers && time.Since(since) > 200*time.Millisecond
		})
		each := int64(0)
		defer func() { t.Logf("entries of %d bytes: %d KiB for each follower", size, each>>10) }()
		eventually(t, "cheap followers", func() bool {
			each = (heapInUse() - before) / followers
			return each <= 600<<10
		})
		for _, conn := range conns {
			_ = conn.Close()
		}
		eventually(t, "no stream", func() bool { return host.Stats().Events == 0 })
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// O15: what a client holds and does not come back to is evicted.
func TestO15_HeldSubscriptionEnds(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{IdleTimeout: 60 * time.Millisecond})
	var a struct{ Subscription string }
	s.ask("POST", "o/channels/c/subscriptions", "", 200, &a)
	s.ask("GET", "o/subscriptions/"+a.Subscription+"?wait=200", "", 204, nil) // a poll is not idle
	eventually(t, "its end", func() bool { return s.Objects().Stats().Objects == 0 })
	s.ask("GET", "o/subscriptions/"+a.Subscription, "", 404, nil)
}

func TestO19_Drain(t *testing.T) {
	t.Parallel()
	const eventTime = 20 * time.Second
	s, _ := objectServer(t, tidewire.Options{}, object.Options{EventTimeout: eventTime})
	began := time.Now()
	held := s.subscribeTo("o")
	f := s.follow(t.Context(), "o/log", "")
	var wg sync.WaitGroup
	for _, path := range []string{held, "p/channels/c/messages"} {
		wg.Go(func() {
			resp, body := s.call("GET", "/v1/objects/"+path+"?wait=60000", "key-1", "")
			if resp.StatusCode != 503 || !strings.Contains(body, "DRAINING") || resp.Header.Get("Retry-After") == "" {
				t.Errorf("%s: %d %s", path, resp.StatusCode, body)
			}
		})
	}
	eventually(t, "two waits", func() bool { return s.Objects().Stats().Waiters == 2 })
	s.stop()
	for _, ok := f.read(); ok; _, ok = f.read() {
	}
	wg.Wait()
	if took := time.Since(began); took > eventTime/2 {
		t.Errorf("ended after %s", took)
	}
	if resp, body := s.call("GET", "/v1/objects/o/channels/c/messages?wait=1", "key-1", ""); resp.StatusCode != 503 || !strings.Contains(body, "DRAINING") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	eventually(t, "nothing left", func() bool { return s.Objects().Stats().Events == 0 })
}

// failingLog is a store that does not work.
type failingLog struct{ *stream.Memory }

func (failingLog) Append(context.Context, string, []byte, stream.AppendOptions) (stream.Appended, error) {
	return stream.Appended{}, errors.New("disk full at /secret")
}

func (failingLog) Read(context.Context, string, stream.Position, int) (stream.Page, error) {
	return stream.Page{}, errors.New("disk full at /secret")
}

func (failingLog) Trim(context.Context, string, stream.Retention) error {
	return errors.New("disk full at /secret")
}

func TestO19_LogUnavailable(t *testing.T) {
	t.Parallel()
	s, _ := objectServer(t, tidewire.Options{}, object.Options{Log: failingLog{stream.NewMemory(stream.MemoryOptions{})}})
	for _, method := range []string{"POST", "GET", "DELETE"} {
		path := "/v1/objects/o/log"
		if method == "DELETE" {
			path += "?keep=1"
		}
		resp, body := s.call(method, path, "key-1", `{"text":"x"}`)
		if resp.StatusCode != 503 || !strings.Contains(body, "HISTORY_UNAVAILABLE") || resp.Header.Get("Retry-After") == "" || strings.Contains(body, "secret") {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	}
	resp, err := s.stream(t.Context(), "o/log", "")
	if err != nil || resp.StatusCode != 503 {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	if !strings.Contains(s.logs.String(), "disk full") {
		t.Error("the reason is not logged")
	}
}

// The application's own events and requests meet on one object.
func TestO19_ApplicationAndHTTP(t *testing.T) {
	t.Parallel()
	s := backend(t, tidewire.Options{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Objects().Do(t.Context(), "o", func(ctx context.Context, e *object.Event) error {
			handle, err := e.Subscribe("c")
			if err != nil {
				return err
			}
			status, text, err := e.Wait(ctx, handle, patience)
			if status != object.Message || text != "from HTTP" {
				t.Errorf("%v %q", status, text)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	eventually(t, "delivered", func() bool {
		var published struct{ Delivered int }
		s.ask("POST", "o/channels/c/messages", `{"text":"from HTTP"}`, 200, &published)
		return published.Delivered == 1
	})
	wg.Wait()
	if !slices.Contains(s.Routes(), "GET /v1/objects/{object}/log false") {
		t.Error("no route")
	}
}
