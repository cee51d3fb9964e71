package tidewire

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/tidewire/tidewire/hub"
	"github.com/tidewire/tidewire/stream"
	"github.com/tidewire/tidewire/wire"
)

// History is what a channel keeps of its messages, so that a client that was away, or too slow, gets what it missed.
type History struct {
	// Size is the number of messages kept. Zero means 100.
	Size int
	// TTL is how long a message is kept. Zero means an hour.
	TTL time.Duration
	// Bytes bounds the messages kept together. Zero means 4 MiB.
	Bytes int64
	// AckWindow is how many messages a client that acknowledges may leave unacknowledged before it counts as slow. Zero means 64.
	AckWindow int
}

func (h History) withDefaults() History {
	if h.Size <= 0 {
		h.Size = 100
	}
	if h.TTL <= 0 {
		h.TTL = time.Hour
	}
	if h.Bytes <= 0 {
		h.Bytes = 4 << 20
	}
	if h.AckWindow <= 0 {
		h.AckWindow = 64
	}
	return h
}

func (h *History) retention() stream.Retention {
	return stream.Retention{Count: h.Size, Age: h.TTL, Bytes: h.Bytes}
}

// histories are the logs to which somebody on this node listens.
type histories struct {
	node *Node

	mu sync.Mutex // guards below
	m  map[string]*history
}

// history follows the log of one channel while it has subscribers here, and publishes each entry to them, whoever appended it.
type history struct {
	node    *Node
	channel string
	policy  hub.Policy
	refs    int // guarded by histories.mu
	stop    func()

	ready chan struct{} // closed when err and stop are set
	err   error

	mu    sync.Mutex // guards epoch
	epoch string
}

func logName(channel string) string { return "channel/" + channel }

// acquire begins to follow a channel's log, if nobody does. From its return on every append reaches the hub.
func (hs *histories) acquire(ctx context.Context, channel string, policy Policy) (*history, error) {
	hs.mu.Lock()
	h := hs.m[channel]
	first := h == nil
	if first {
		h = &history{node: hs.node, channel: channel, policy: policy.hub(), ready: make(chan struct{})}
		if hs.m == nil {
			hs.m = map[string]*history{}
		}
		hs.m[channel] = h
	}
	h.refs++
	hs.mu.Unlock()
	if first {
		h.err = h.open(ctx)
		close(h.ready)
	}
	<-h.ready
	if h.err != nil {
		hs.release(h)
		return nil, h.err
	}
	return h, nil
}

func (h *history) open(ctx context.Context) error {
	store := h.node.opts.Streams
	stop, err := store.Watch(logName(h.channel), h.entry)
	if err != nil {
		return err
	}
	head, err := store.Head(ctx, logName(h.channel))
	if err != nil {
		stop()
		return err
	}
	h.stop = stop
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.epoch == "" { // no entry has come meanwhile
		h.epoch = head.Epoch
	}
	return nil
}

func (hs *histories) release(h *history) {
	if h == nil {
		return
	}
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h.refs--; h.refs > 0 {
		return
	}
	delete(hs.m, h.channel)
	if h.stop != nil {
		h.stop() // under the lock, so that no two follow one log
	}
}

// entry publishes one entry of the log. It is called in the order of the offsets.
func (h *history) entry(epoch string, e stream.Entry) {
	h.mu.Lock()
	lost := h.epoch != epoch && h.epoch != ""
	h.epoch = epoch
	h.mu.Unlock()
	if lost {
		h.node.hub.Rewind(h.channel)
	}
	record := wire.Record(e.Data)
	m := hub.Message{
		Policy: h.policy,
		Mask:   maskMessages,
		Offset: e.Offset,
		Encode: func(d hub.Dialect) []byte {
			if d == dialectNative {
				return record.Message(h.channel, e.Offset)
			}
			p, err := record.Publication(h.channel)
			if err != nil {
				return nil
			}
			return encodeWS(p)
		},
	}
	if record.Quiet() {
		m.Instead = h.node.quietly(h.channel, e.Offset, record)
	}
	if _, err := h.node.hub.Publish(h.channel, m); err != nil { // the sizes were checked before it was appended
		h.node.log.Error("message not delivered", "channel", h.channel, "offset", e.Offset, "error", err)
	}
}

// quietly gives the session that published a message the note that it was published, in the place of the message, so that it too sees every offset.
func (n *Node) quietly(channel string, offset uint64, record wire.Record) func(*hub.Conn) []byte {
	p, err := record.Publication(channel)
	if err != nil || p.From == nil {
		return nil
	}
	note := wire.Reply{Type: wire.TypePublished, ID: p.ID, Channel: channel, Offset: &offset}.Encode()
	return func(c *hub.Conn) []byte {
		if s, ok := c.Handler().(*session); ok {
			if id, _ := s.identity(); id == p.From.Session {
				return note
			}
		}
		return nil
	}
}

// readLog replays to a native connection what follows an offset. It runs in the channel's lane.
func (n *Node) readLog(c *hub.Conn, channel string, after hub.Position, limit int) (next []hub.Replayed, end bool, err error) {
	s, ok := c.Handler().(*session)
	if !ok {
		return nil, true, nil
	}
	if strings.HasPrefix(channel, queryPrefix) {
		return n.readQuery(s, channel, after.Offset, limit)
	}
	sub := s.find(channel)
	if sub == nil || sub.log == nil { // it ends
		return nil, true, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.opts.CommandTimeout)
	defer cancel()
	page, err := n.opts.Streams.Read(ctx, logName(channel), stream.Position{Offset: after.Offset, Epoch: after.Tag}, limit)
	switch {
	case errors.Is(err, stream.ErrGap):
		// What was missing is gone: the client is told where it is live from.
		n.stats.unrecovered.Add(1)
		at := page.Head.Position
		return []hub.Replayed{{Offset: at.Offset, Payload: s.subscribed(sub, at, new(false)), Moved: true, Tag: at.Epoch}}, true, nil
	case err != nil:
		n.log.Error("history could not be read; it is tried again", "channel", channel, "error", err)
		return nil, false, err
	}
	id, _ := s.identity()
	out := make([]hub.Replayed, len(page.Entries))
	for i, e := range page.Entries {
		record := wire.Record(e.Data)
		out[i] = hub.Replayed{Offset: e.Offset, Payload: record.Message(channel, e.Offset)}
		if record.Quiet() {
			if p, err := record.Publication(channel); err == nil && p.From != nil && p.From.Session == id {
				out[i].Payload = wire.Reply{Type: wire.TypePublished, ID: p.ID, Channel: channel, Offset: &e.Offset}.Encode()
			}
		}
	}
	return out, page.Ends(after.Offset), nil
}

// subscribed is the message that says from where a subscription is live.
func (s *session) subscribed(sub *subscription, at stream.Position, recovered *bool) []byte {
	r := wire.Reply{Type: wire.TypeSubscribed, SID: sub.sid, Channel: sub.channel, Recovered: recovered}
	if sub.log != nil {
		r = r.At(at.Offset, at.Epoch)
	}
	return r.Encode()
}

// locate finds where a subscription begins. recovered is nil if the client did not name a position.
func (n *Node) locate(ctx context.Context, channel string, since *wire.Since) (at stream.Position, recovered *bool, err error) {
	head, err := n.opts.Streams.Head(ctx, logName(channel))
	if err != nil {
		return at, nil, err
	}
	at = head.Position
	switch {
	case since == nil:
	case since.Last > 0:
		at.Offset = max(head.First-1, head.Offset-min(head.Offset, uint64(since.Last)))
	default:
		ok := head.Continues(stream.Position{Offset: since.Offset, Epoch: since.Epoch})
		if recovered = &ok; ok {
			at.Offset = since.Offset
		} else {
			n.stats.unrecovered.Add(1)
		}
	}
	return at, recovered, nil
}

// record appends a publication to its channel's log. The node's own follower of the log delivers it.
func (n *Node) record(ctx context.Context, p wire.Publication, h *History, key string, quietly bool) (stream.Appended, error) {
	ctx, cancel := context.WithTimeout(ctx, n.opts.CommandTimeout)
	defer cancel()
	a, err := n.opts.Streams.Append(ctx, logName(p.Channel), p.Record(quietly), stream.AppendOptions{Key: key, Retain: h.retention()})
	switch {
	case err == nil:
		return a, nil
	case errors.Is(err, stream.ErrInvalid):
		return a, wire.Errorf(wire.CodeMessageTooLarge, "the message has %d bytes", len(p.Data))
	}
	return a, n.historyError(p.Channel, err)
}

func (n *Node) historyError(channel string, err error) error {
	n.stats.historyFailures.Add(1)
	n.log.Error("the history's store failed", "channel", channel, "error", err)
	return &wire.Error{Code: wire.CodeHistoryUnavailable, Message: "the store of the history did not answer", Retry: retryLater, Err: err}
}

// Message is one message of a channel's history.
type Message struct {
	Offset uint64    `json:"offset"`
	Time   time.Time `json:"time"`
	wire.Publication
}

// HistoryPage is a run of messages.
type HistoryPage struct {
	// Messages follow the position that was asked for, without a gap.
	Messages []Message
	// Offset and Epoch are the position of the newest message of the channel, First is the offset of the oldest that is kept.
	Offset uint64
	Epoch  string
	First  uint64
}

// HistorySince says what to read of a history.
type HistorySince struct {
	// Last is the number of newest messages to read. Zero means that Offset and Epoch say what to read: what follows them.
	Last   int
	Offset uint64
	Epoch  string
}

// MaxHistoryPage is how many messages one page has at most.
const MaxHistoryPage = 1000

// History reads the history of a channel, on behalf of the application. The error is HISTORY_GAP if it does not continue the position: the page then has the position of the newest message.
func (n *Node) History(ctx context.Context, channel string, since HistorySince, limit int) (HistoryPage, error) {
	if !wire.ValidChannel(channel) {
		return HistoryPage{}, wire.Errorf(wire.CodeChannelInvalid, "malformed channel name")
	}
	if rule, _ := n.rules.match(channel); rule == nil || rule.opts.History == nil {
		return HistoryPage{}, wire.Errorf(wire.CodeHistoryDisabled, "the channel keeps no history")
	}
	if limit <= 0 || limit > MaxHistoryPage {
		limit = MaxHistoryPage
	}
	var page stream.Page
	var err error
	if since.Last > 0 {
		page, err = stream.Last(ctx, n.opts.Streams, logName(channel), min(since.Last, limit))
	} else {
		page, err = n.opts.Streams.Read(ctx, logName(channel), stream.Position{Offset: since.Offset, Epoch: since.Epoch}, limit)
	}
	out := HistoryPage{Offset: page.Head.Offset, Epoch: page.Head.Epoch, First: page.Head.First}
	switch {
	case errors.Is(err, stream.ErrGap):
		return out, wire.Errorf(wire.CodeHistoryGap, "the history holds %d to %d", out.First, out.Offset)
	case err != nil:
		return out, n.historyError(channel, err)
	}
	for _, e := range page.Entries {
		p, err := wire.Record(e.Data).Publication(channel)
		if err != nil {
			return out, n.historyError(channel, err)
		}
		out.Messages = append(out.Messages, Message{e.Offset, e.Time, p})
	}
	return out, nil
}

// Acks is how far the subscribers of a channel that acknowledge have come, on this node.
type Acks struct {
	// Offset is the channel's newest message, Lowest the lowest offset that all have acknowledged; it is Offset if nobody acknowledges.
	Offset uint64 `json:"offset"`
	Lowest uint64 `json:"lowest"`
	// Subscribers are those that acknowledge.
	Subscribers []AckState `json:"subscribers"`
}

// AckState is how far one subscriber has come.
type AckState struct {
	Session string `json:"session"`
	Actor   string `json:"actor,omitempty"`
	Acked   uint64 `json:"acked"`
	// Pending is the number of messages up to the newest that it has not acknowledged.
	Pending uint64 `json:"pending"`
	// Slow means that an acknowledgement is late or that it has as many outstanding as it may; Behind that it gets what it missed from the history.
	Slow   bool `json:"slow"`
	Behind bool `json:"behind"`
}

// Acks returns how far the subscribers of a channel have come that asked to acknowledge.
func (n *Node) Acks(ctx context.Context, channel string) (Acks, error) {
	page, err := n.History(ctx, channel, HistorySince{Offset: math.MaxUint64}, 1)
	if err != nil && !errors.Is(err, &wire.Error{Code: wire.CodeHistoryGap}) {
		return Acks{}, err
	}
	a := Acks{Offset: page.Offset, Lowest: page.Offset, Subscribers: []AckState{}}
	n.hub.Positions(channel, func(c *hub.Conn, p hub.Position) {
		s, ok := c.Handler().(*session)
		if !ok || p.Window == 0 {
			return
		}
		st := AckState{Actor: s.actor().ID, Acked: p.Acked, Slow: p.Slow || p.Outstanding >= uint64(p.Window), Behind: p.Behind}
		st.Session, _ = s.identity()
		if a.Offset > p.Acked {
			st.Pending = a.Offset - p.Acked
		}
		a.Lowest = min(a.Lowest, p.Acked)
		a.Subscribers = append(a.Subscribers, st)
	})
	return a, nil
}

// ack is the command of a subscriber that acknowledges. It is done on the event loop, since it waits for nothing. One that comes late, or names a channel that is not acknowledged, changes nothing.
func (s *session) ack(c wire.Command) { s.conn.Ack(c.Channel, c.Offset) }
