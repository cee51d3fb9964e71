package wire

import (
	"encoding/json"
	"strconv"
	"time"
)

// Types of the messages that only a server sends.
const (
	TypeWelcome         = "welcome"
	TypeAuthenticated   = "authenticated"
	TypeSubscribed      = "subscribed"
	TypeUnsubscribed    = "unsubscribed"
	TypePublished       = "published"
	TypeMessage         = "message"
	TypeSnapshot        = "snapshot" // of a live query, written by package live
	TypePatch           = "patch"
	TypeSettled         = "settled"
	TypeSkipped         = "skipped"
	TypeRefused         = "refused"
	TypeReconnect       = "reconnect"
	TypeUpdateAvailable = "update-available"
)

// Close codes of the protocol beyond RFC 6455.
const (
	CloseServerSilent uint16 = 4000 // by a client
	CloseIdle         uint16 = 4001
	CloseNoHello      uint16 = 4002
	CloseFrameRate    uint16 = 4003
	CloseMoving       uint16 = 4004 // by a client, in its slot
)

// Announced are the limits that a client must respect.
type Announced struct {
	FrameBytes      int `json:"frameBytes"`
	FramesPerSecond int `json:"framesPerSecond"`
	FrameBurst      int `json:"frameBurst"`
	Channels        int `json:"channels"`
	PresenceBytes   int `json:"presenceBytes"`
	StateBytes      int `json:"stateBytes"`
}

// Welcome answers hello.
type Welcome struct {
	Type        string    `json:"type"`
	Protocol    int       `json:"protocol"`
	Connection  string    `json:"connection"`
	Session     string    `json:"session"`
	Actor       string    `json:"actor,omitempty"`
	Node        string    `json:"node"`
	Build       string    `json:"build,omitempty"`
	ExpiresInMs int64     `json:"expiresInMs,omitempty"`
	HeartbeatMs int64     `json:"heartbeatMs"`
	Limits      Announced `json:"limits"`
}

// Reply is a short answer about a subscription, a publication, a channel or the connection. Which members are set depends on Type.
type Reply struct {
	Type         string `json:"type"`
	Re           string `json:"re,omitempty"`
	SID          string `json:"sid,omitempty"`
	ID           string `json:"id,omitempty"`
	QID          string `json:"qid,omitempty"`
	Channel      string `json:"channel,omitempty"`
	Code         Code   `json:"code,omitempty"`
	Cause        string `json:"cause,omitempty"`
	Fix          string `json:"fix,omitempty"`
	RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
	AfterMs      *int64 `json:"afterMs,omitempty"`
	Build        string `json:"build,omitempty"`
	ExpiresInMs  int64  `json:"expiresInMs,omitempty"`
	Count        uint64 `json:"count,omitempty"`
	// Offset and Epoch are a position in a channel's log: see [Reply.At].
	Offset    *uint64 `json:"offset,omitempty"`
	Epoch     string  `json:"epoch,omitempty"`
	Recovered *bool   `json:"recovered,omitempty"`
}

// At returns the reply with a position.
func (r Reply) At(offset uint64, epoch string) Reply {
	r.Offset, r.Epoch = &offset, epoch
	return r
}

// Encode returns the message as JSON.
func (r Reply) Encode() []byte { return mustJSON(r) }

// Encode returns the message as JSON.
func (w Welcome) Encode() []byte {
	w.Type, w.Protocol = TypeWelcome, Version
	return mustJSON(w)
}

// Refused is the answer to a command that failed.
func Refused(c Command, e *Error) Reply {
	return Reply{
		Type: TypeRefused, Re: c.Type, SID: c.SID, ID: c.ID, Channel: c.Channel,
		Code: e.Code, Cause: e.Message, Fix: e.Code.Info().Fix, RetryAfterMs: e.Retry.Milliseconds(),
	}
}

// Reconnect tells a client its slot.
func Reconnect(after time.Duration) Reply {
	ms := after.Milliseconds()
	return Reply{Type: TypeReconnect, AfterMs: &ms}
}

// From names the publisher of a message.
type From struct {
	Actor   string `json:"actor,omitempty"`
	Session string `json:"session"`
}

// Publication is a message on a channel.
type Publication struct {
	Channel string
	ID      string
	Key     string
	From    *From // nil for a backend
	Data    json.RawMessage
}

// Encode returns the message as JSON. It is on the hot path and does not use reflection. The channel needs no escaping.
func (p Publication) Encode() []byte {
	b := make([]byte, 0, len(p.Data)+len(p.Channel)+len(p.ID)+len(p.Key)+160)
	b = append(b, `{"type":"message","channel":"`...)
	b = append(b, p.Channel...)
	b = append(b, `",`...)
	return p.appendRest(b)
}

// appendRest appends what follows the channel.
func (p Publication) appendRest(b []byte) []byte {
	b = append(b, `"id":`...)
	b = appendString(b, p.ID)
	if p.Key != "" {
		b = append(b, `,"key":`...)
		b = appendString(b, p.Key)
	}
	if p.From != nil {
		b = append(b, `,"from":{`...)
		if p.From.Actor != "" {
			b = append(b, `"actor":`...)
			b = appendString(b, p.From.Actor)
			b = append(b, ',')
		}
		b = append(b, `"session":"`...)
		b = append(b, p.From.Session...)
		b = append(b, `"}`...)
	}
	b = append(b, `,"data":`...)
	b = append(b, p.Data...)
	return append(b, '}')
}

// Record is a publication as it stands in a channel's log: all of the message that does not depend on its place there.
type Record []byte

// quiet begins the record of a publication that its own session does not get. Others begin with the brace of a JSON object.
const quiet = '-'

// Record returns the publication's record. A quiet one is not for the session in From.
func (p Publication) Record(quietly bool) Record {
	b := make([]byte, 0, len(p.Data)+len(p.ID)+len(p.Key)+128)
	if quietly && p.From != nil {
		b = append(b, quiet)
	}
	return p.appendRest(append(b, '{'))
}

// Message returns the message of a record at an offset of a channel's log.
func (r Record) Message(channel string, offset uint64) []byte {
	r = r.object()
	b := make([]byte, 0, len(r)+len(channel)+64)
	b = append(b, `{"type":"message","channel":"`...)
	b = append(b, channel...)
	b = append(b, `","offset":`...)
	b = strconv.AppendUint(b, offset, 10)
	b = append(b, ',')
	return append(b, r[min(1, len(r)):]...)
}

func (r Record) object() Record {
	if len(r) > 0 && r[0] == quiet {
		return r[1:]
	}
	return r
}

// Quiet reports whether the publication is not for its own session.
func (r Record) Quiet() bool { return len(r) > 0 && r[0] == quiet }

// Publication reads a record.
func (r Record) Publication(channel string) (Publication, error) {
	var p struct {
		ID   string          `json:"id"`
		Key  string          `json:"key"`
		From *From           `json:"from"`
		Data json.RawMessage `json:"data"`
	}
	err := json.Unmarshal(r.object(), &p)
	return Publication{Channel: channel, ID: p.ID, Key: p.Key, From: p.From, Data: p.Data}, err
}

// Skipped tells a connection how many messages of a channel it missed.
func Skipped(channel string, count uint64) []byte {
	b := append(make([]byte, 0, 64+len(channel)), `{"type":"skipped","channel":"`...)
	b = append(b, channel...)
	b = append(b, `","count":`...)
	b = strconv.AppendUint(b, count, 10)
	return append(b, '}')
}

// Settled tells a connection that it has all frames of its live queries that a commit made.
func Settled(commit uint64) []byte {
	b := append(make([]byte, 0, 64), `{"type":"settled","commit":`...)
	b = strconv.AppendUint(b, commit, 10)
	return append(b, '}')
}

// Member is one member of a channel's roster.
type Member struct {
	ID           string                     `json:"id"`
	Data         json.RawMessage            `json:"data,omitempty"`
	Sessions     []string                   `json:"sessions"`
	SessionCount int                        `json:"sessionCount,omitempty"`
	State        map[string]json.RawMessage `json:"state,omitempty"`
}

// Roster is a snapshot of a channel's roster or the difference to the version before.
type Roster struct {
	Type     string    `json:"type"`
	Channel  string    `json:"channel"`
	Version  uint64    `json:"version"`
	Total    int       `json:"total"`
	Snapshot *[]Member `json:"snapshot,omitempty"`
	Leaves   []string  `json:"leaves,omitempty"`
	Joins    []Member  `json:"joins,omitempty"`
	Updates  []Member  `json:"updates,omitempty"`
}

// Encode returns the message as JSON.
func (r Roster) Encode() []byte {
	r.Type = TypePresence
	return mustJSON(r)
}

// State is the newest state of one session, or null.
type State struct {
	Type    string          `json:"type"`
	Channel string          `json:"channel"`
	Member  string          `json:"member"`
	Session string          `json:"session"`
	Data    json.RawMessage `json:"data"`
}

// Encode returns the message as JSON.
func (s State) Encode() []byte {
	s.Type = TypeState
	return mustJSON(s)
}

// mustJSON encodes values that cannot fail: their raw members were decoded from JSON.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("wire: " + err.Error())
	}
	return b
}

// appendString appends s as a JSON string. Most have nothing to escape.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return append(b, mustJSON(s)...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
