package tidewire

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidewire/tidewire/object"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/wire"
)

const (
	// logPage is the most entries in a page of a log.
	logPage = 100
	// streamAhead is how many entries of up to aheadBytes are read from a page before the client has taken those before; of larger ones fewer, one at least.
	streamAhead = 16
	aheadBytes  = 4 << 10
	eventStream = "text/event-stream"
)

// logEntry is an entry of a log in an answer.
type logEntry struct {
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

func newLogEntry(e stream.Entry) logEntry { return logEntry{e.Offset, e.Time.UTC(), string(e.Data)} }

// logHead says where a log is.
type logHead struct {
	Epoch string `json:"epoch"`
	First uint64 `json:"first"` // the seq of the oldest entry that is kept; Head+1 without any
	Head  uint64 `json:"head"`  // that of the newest
}

func newLogHead(h stream.Head) logHead { return logHead{h.Epoch, h.First, h.Offset} }

// appendKey is an idempotency key in the log: it is the caller's alone, whatever keys others use.
func (c caller) appendKey(key string) (string, error) {
	if key == "" {
		return "", nil
	}
	if len(key) > stream.MaxKeyBytes {
		return "", wire.Errorf(wire.CodeQueryInvalid, "Idempotency-Key has at most %d bytes", stream.MaxKeyBytes)
	}
	sum := sha256.Sum256([]byte(c.client + "\x00" + key)) // no header has a zero byte
	return "http/" + hex.EncodeToString(sum[:]), nil
}

// serveObjectAppend is POST …/log.
func (n *Node) serveObjectAppend(w http.ResponseWriter, r *http.Request, id string, c caller) error {
	key, err := c.appendKey(r.Header.Get("Idempotency-Key"))
	if err != nil {
		return err
	}
	text, err := textBody(w, r)
	if err != nil {
		return err
	}
	return n.objects.host.Do(r.Context(), id, func(ctx context.Context, e *object.Event) error {
		a, err := e.Append(ctx, text, key)
		if err == nil {
			n.answer(w, map[string]any{"seq": a.Offset, "epoch": a.Epoch, "duplicate": a.Duplicate})
		}
		return err
	})
}

// serveObjectLog is GET …/log: a page, or with Accept: text/event-stream all that follows.
func (n *Node) serveObjectLog(w http.ResponseWriter, r *http.Request, id string, c caller) error {
	q, err := parameters(r, "after", "epoch", "limit")
	if err != nil {
		return err
	}
	after, err := number(q, "after", 0, math.MaxInt64)
	if err != nil {
		return err
	}
	limit, err := number(q, "limit", logPage, logPage)
	if err != nil {
		return err
	}
	from := stream.Position{Offset: after, Epoch: q.Get("epoch")}
	if r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), eventStream) {
		if id := r.Header.Get("Last-Event-ID"); id != "" {
			if from, err = parseEventID(id); err != nil {
				return err
			}
		}
		return n.streamLog(w, r, id, c, from)
	}
	free, err := n.objectPlace(c) // while the page is in memory
	if err != nil {
		return err
	}
	defer free()
	return n.objects.host.Do(r.Context(), id, func(ctx context.Context, e *object.Event) error {
		page, err := e.Read(ctx, from, int(limit))
		if errors.Is(err, stream.ErrGap) {
			err = wire.Errorf(wire.CodeHistoryGap, "the log does not continue seq %d: it has %d to %d", from.Offset, page.Head.First, page.Head.Offset)
			n.problemAt(w, http.StatusGone, err, &ProblemPosition{page.Head.Offset, page.Head.Epoch, page.Head.First})
			return nil
		}
		if err != nil {
			return err
		}
		n.answering(w)
		_ = writePage(w, page, from) // the client has gone
		return nil
	})
}

// writePage writes the page behind a position, an entry at a time: as JSON its texts may be six times as long.
func writePage(w http.ResponseWriter, page stream.Page, from stream.Position) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	head, err := json.Marshal(struct {
		logHead
		More bool `json:"more"` // behind the page
	}{newLogHead(page.Head), !page.Ends(from.Offset)})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, `%s,"entries":[`, head[:len(head)-1]); err != nil {
		return err
	}
	for i, entry := range page.Entries {
		raw, err := json.Marshal(newLogEntry(entry))
		if err != nil {
			return err
		}
		if i > 0 {
			raw = append([]byte{','}, raw...)
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(w, "]}")
	return err
}

// serveObjectTrim is DELETE …/log.
func (n *Node) serveObjectTrim(w http.ResponseWriter, r *http.Request, id string, _ caller) error {
	q, err := parameters(r, "keep")
	if err != nil {
		return err
	}
	if q.Get("keep") == "" {
		return wire.Errorf(wire.CodeQueryInvalid, "keep is missing: the number of entries to keep, 0 to begin the log anew")
	}
	keep, err := number(q, "keep", 0, math.MaxInt32)
	if err != nil {
		return err
	}
	return n.objects.host.Do(r.Context(), id, func(ctx context.Context, e *object.Event) error {
		if keep == 0 {
			err = e.Reset(ctx)
		} else {
			err = e.Trim(ctx, stream.Retention{Count: int(keep)})
		}
		if err != nil {
			return err
		}
		page, err := e.Read(ctx, stream.Position{}, 0)
		if err != nil && !errors.Is(err, stream.ErrGap) {
			return err
		}
		n.answer(w, newLogHead(page.Head))
		return nil
	})
}

// The id of an event is the entry's seq and the epoch, "7-EPOCH", so that a log which was lost or begun anew is not taken for the one that the client knows.
func eventID(p stream.Position) string { return fmt.Sprintf("%d-%s", p.Offset, p.Epoch) }

// parseEventID reads an event's id. A seq alone is taken in any epoch.
func parseEventID(id string) (stream.Position, error) {
	seq, epoch, _ := strings.Cut(id, "-")
	offset, err := strconv.ParseUint(seq, 10, 63)
	if err != nil || len(epoch) > 64 {
		return stream.Position{}, wire.Errorf(wire.CodeQueryInvalid, "Last-Event-ID is not the id of an event of this log, such as 7-EPOCH")
	}
	return stream.Position{Offset: offset, Epoch: epoch}, nil
}

// followed is what a follower of a log has read: an entry, or, where the log did not continue, its head.
type followed struct {
	entry stream.Entry
	epoch string // of the entry
	gap   bool
	head  stream.Head
}

// streamLog sends the entries behind a position, and those to come, as server-sent events, until the client leaves, the event's time is over or the node drains. The client
// then comes back with the id of the last event.
func (n *Node) streamLog(w http.ResponseWriter, r *http.Request, id string, c caller, from stream.Position) error {
	free, err := n.objectPlace(c)
	if err != nil {
		return err
	}
	defer free()
	ctx, cancel := n.objects.within(r.Context(), c)
	defer cancel()
	e, err := n.objects.host.Begin(ctx, id)
	if err != nil {
		return err
	}
	defer e.End()
	page, err := e.Read(e.Context(), from, 0) // before the status: afterwards there is no other
	if err != nil && !errors.Is(err, stream.ErrGap) {
		return err
	}
	from.Epoch = page.Head.Epoch // of its ids
	ahead := newReadAhead()
	if err != nil {
		_ = ahead.put(e.Context(), followed{gap: true, head: page.Head})
		from.Offset = page.Head.First - 1
	}
	var following sync.WaitGroup
	defer following.Wait()
	defer e.End() // which ends the following
	following.Go(func() {
		defer close(ahead.entries)
		if err := follow(e, from, ahead); err != nil && e.Context().Err() == nil {
			n.log.Error("an object's log could not be followed", "object", id, "error", err)
		}
	})
	n.sendStream(w, e, ahead)
	return nil
}

// readAhead is what was read and not yet written. One goroutine puts, and another takes.
type readAhead struct {
	entries chan followed // closed by who puts
	room    chan struct{} // holds one for each aheadBytes that is taken
}

func newReadAhead() readAhead {
	return readAhead{make(chan followed, streamAhead), make(chan struct{}, streamAhead)}
}

// size is how much room an entry takes.
func (f followed) size() int { return min(streamAhead, 1+len(f.entry.Data)/aheadBytes) }

func (a readAhead) put(ctx context.Context, f followed) error {
	for range f.size() {
		select {
		case a.room <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.entries <- f // there is room
	return nil
}

// taken gives the room of an entry back.
func (a readAhead) taken(f followed) {
	for range f.size() {
		<-a.room
	}
}

// follow puts what follows a position into ahead until the event ends or the log fails.
func follow(e *object.Event, from stream.Position, ahead readAhead) error {
	put := func(f followed) error { return ahead.put(e.Context(), f) }
	for {
		var failed error
		for entry, err := range e.Follow(e.Context(), from) {
			if failed = err; err != nil {
				break
			}
			if err := put(followed{entry: entry, epoch: from.Epoch}); err != nil {
				return err
			}
			from.Offset = entry.Offset
		}
		if !errors.Is(failed, stream.ErrGap) {
			return failed
		}
		page, err := e.Read(e.Context(), from, 0)
		if err != nil && !errors.Is(err, stream.ErrGap) {
			return err
		}
		if err := put(followed{gap: true, head: page.Head}); err != nil {
			return err
		}
		from = stream.Position{Offset: page.Head.First - 1, Epoch: page.Head.Epoch}
	}
}

// sendStream writes what comes, and a comment where nothing does.
func (n *Node) sendStream(w http.ResponseWriter, e *object.Event, ahead readAhead) {
	rc := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", eventStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // proxies must not hold it back
	h.Set("X-Content-Type-Options", "nosniff")
	beat := time.NewTicker(n.opts.HeartbeatInterval)
	defer beat.Stop()
	n.answering(w)
	_, err := fmt.Fprintf(w, "retry: %d\n\n", spread(time.Second).Milliseconds())
	for err == nil {
		if len(ahead.entries) == 0 {
			if err = rc.Flush(); err != nil {
				return
			}
		}
		select {
		case f, open := <-ahead.entries:
			if !open {
				return
			}
			ahead.taken(f)
			n.answering(w)
			err = f.write(w)
		case <-beat.C:
			n.answering(w)
			_, err = fmt.Fprint(w, ":\n\n")
		case <-e.Context().Done():
			return
		}
	}
}

func (f followed) write(w http.ResponseWriter) error {
	id, name, data := eventID(stream.Position{Offset: f.entry.Offset, Epoch: f.epoch}), "", any(newLogEntry(f.entry))
	if f.gap {
		id, name, data = eventID(stream.Position{Offset: f.head.First - 1, Epoch: f.head.Epoch}), "event: gap\n", newLogHead(f.head)
	}
	raw, err := json.Marshal(data) // one line: JSON has no line ends
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "id: %s\n%sdata: %s\n\n", id, name, raw)
	return err
}
