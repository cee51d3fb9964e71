package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Types of the messages that a client sends.
const (
	TypeHello       = "hello"
	TypeSubscribe   = "subscribe"
	TypeUnsubscribe = "unsubscribe"
	TypePublish     = "publish"
	TypePresence    = "presence"
	TypeState       = "state"
	TypeAuth        = "auth"
	TypeAck         = "ack"
)

// Command is one message from a client. Which members are set depends on Type.
type Command struct {
	Type     string          `json:"type"`
	Protocol int             `json:"protocol"`
	Client   string          `json:"client"`
	Build    string          `json:"build"`
	SID      string          `json:"sid"`
	Channel  string          `json:"channel"`
	Presence *PresenceWish   `json:"presence"`
	ID       string          `json:"id"`
	Data     json.RawMessage `json:"data"`
	Key      string          `json:"key"`
	Echo     *bool           `json:"echo"`
	Token    string          `json:"token"`
	Query    string          `json:"query"`
	Input    json.RawMessage `json:"input"`
	Since    *Since          `json:"since"`
	Ack      bool            `json:"ack"`
	Offset   uint64          `json:"offset"`
}

// Since says what a subscriber of a channel with history has, or how much it wants to have. With Last it is the newest messages, else what follows the position.
type Since struct {
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
	Last   int    `json:"last"`
	// Sum is the checksum of the rows that a client has of a live query.
	Sum string `json:"sum"`
}

// PresenceWish says what a subscriber wants of a channel's roster.
type PresenceWish struct {
	// Data is shown to others beside the member's id.
	Data json.RawMessage `json:"data"`
	// Observe takes the roster without joining it.
	Observe bool `json:"observe"`
	// Resync asks for a snapshot again.
	Resync bool `json:"resync"`
}

// Limits bound what Decode accepts of one command beyond the fixed bounds.
type Limits struct {
	PresenceBytes int
	StateBytes    int
}

// Decode reads one command. The error is an [*Error]. What could be read of the command is returned beside the error, so that the refusal can name it.
// The command shares no memory with data.
func Decode(data []byte, limits Limits) (Command, error) {
	var c Command
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(data, &c); errors.As(err, &wrong) && c.Type != "" {
		return c.Named(), Errorf(CodeDataInvalid, "%s has the wrong type", wrong.Field)
	} else if err != nil {
		return Command{}, Errorf(CodeProtocolVersion, "the message is not a JSON object of the protocol")
	}
	if err := c.check(limits); err != nil {
		return c.Named(), err
	}
	return c, nil
}

// Named keeps only what a refusal may repeat.
func (c Command) Named() Command {
	id := func(s string) string {
		if validID(s) {
			return s
		}
		return ""
	}
	n := Command{Type: id(c.Type), SID: id(c.SID), ID: id(c.ID)}
	if ValidChannel(c.Channel) {
		n.Channel = c.Channel
	}
	return n
}

func validID(s string) bool { return len(s) >= 1 && len(s) <= MaxIDBytes && utf8.ValidString(s) }

func (c *Command) check(limits Limits) error {
	switch c.Type {
	case TypeHello:
		return c.checkHello()
	case TypeSubscribe:
		if c.Query != "" {
			return first(c.needSID(), c.checkQuery(), c.checkSince())
		}
		return first(c.needSID(), c.needChannel(), c.checkWish(limits), c.checkSince())
	case TypeUnsubscribe:
		return c.needSID()
	case TypePublish:
		return first(c.needChannel(), c.needData("data", c.Data, 0), c.checkPublish())
	case TypePresence:
		return first(c.needChannel(), c.needData("data", c.Data, limits.PresenceBytes))
	case TypeState:
		return first(c.needChannel(), c.needData("data", c.Data, limits.StateBytes))
	case TypeAck:
		return c.needChannel()
	case TypeAuth:
		if c.Token == "" || len(c.Token) > MaxTokenBytes {
			return Errorf(CodeDataInvalid, "token must have 1 to %d bytes", MaxTokenBytes)
		}
		return nil
	case "":
		return Errorf(CodeProtocolVersion, "the message has no type")
	}
	return Errorf(CodeProtocolVersion, "unknown message type")
}

func (c *Command) checkHello() error {
	if c.Protocol != Version {
		return Errorf(CodeProtocolVersion, "this server speaks protocol %d, the client %d", Version, c.Protocol)
	}
	if n := len(c.Client); n != 0 && (n < MinClientBytes || n > MaxClientBytes) {
		return Errorf(CodeDataInvalid, "client must have %d to %d bytes", MinClientBytes, MaxClientBytes)
	}
	if len(c.Build) > MaxBuildBytes {
		return Errorf(CodeDataInvalid, "build must have at most %d bytes", MaxBuildBytes)
	}
	return nil
}

func (c *Command) checkWish(limits Limits) error {
	if c.Presence == nil || c.Presence.Data == nil {
		return nil
	}
	return c.needData("presence.data", c.Presence.Data, limits.PresenceBytes)
}

func (c *Command) checkQuery() error {
	switch {
	case !validID(c.Query):
		return Errorf(CodeDataInvalid, "query must have 1 to %d bytes", MaxIDBytes)
	case c.Channel != "" || c.Presence != nil || c.Ack || c.Since != nil && c.Since.Last > 0:
		return Errorf(CodeDataInvalid, "a live query has no channel, presence, ack or last")
	}
	if len(c.Input) == 0 {
		return nil
	}
	return c.needData("input", c.Input, 0)
}

func (c *Command) checkSince() error {
	switch s := c.Since; {
	case s == nil:
	case s.Last < 0:
		return Errorf(CodeDataInvalid, "since.last must not be negative")
	case s.Last > 0 && (s.Offset > 0 || s.Epoch != ""):
		return Errorf(CodeDataInvalid, "since has either last or a position")
	case len(s.Epoch) > MaxIDBytes:
		return Errorf(CodeDataInvalid, "since.epoch has at most %d bytes", MaxIDBytes)
	}
	return nil
}

func (c *Command) checkPublish() error {
	if c.ID != "" && !validID(c.ID) {
		return Errorf(CodeDataInvalid, "id must have 1 to %d bytes", MaxIDBytes)
	}
	if len(c.Key) > MaxIDBytes {
		return Errorf(CodeDataInvalid, "key must have at most %d bytes", MaxIDBytes)
	}
	return nil
}

func (c *Command) needSID() error {
	if !validID(c.SID) {
		return Errorf(CodeDataInvalid, "sid must have 1 to %d bytes", MaxIDBytes)
	}
	return nil
}

func (c *Command) needChannel() error {
	if !ValidChannel(c.Channel) {
		return Errorf(CodeChannelInvalid, "a channel name is segments of A-Z a-z 0-9 _ - : @ ~ = joined by dots, at most %d bytes", MaxChannelBytes)
	}
	return nil
}

func (c *Command) needData(name string, data json.RawMessage, limit int) error {
	if len(data) == 0 {
		return Errorf(CodeDataInvalid, "%s is missing", name)
	}
	if limit > 0 && len(data) > limit {
		return Errorf(CodeDataInvalid, "%s has %d bytes, more than %d", name, len(data), limit)
	}
	if err := CheckShape(data); err != nil {
		return Errorf(CodeDataInvalid, "%s %v", name, err)
	}
	return nil
}

// CheckShape holds valid JSON against MaxDepth and MaxNodes, without recursion, and against UTF-8, which encoding/json does not ask of raw values.
func CheckShape(data []byte) error {
	if !utf8.Valid(data) {
		return errors.New("is not UTF-8")
	}
	depth, nodes, inString := 0, 0, false
	value := true // a value may begin here
	for i := 0; i < len(data); i++ {
		b := data[i]
		if inString {
			switch b {
			case '\\':
				i++
			case '"':
				inString = false
			}
			continue
		}
		switch b {
		case ' ', '\t', '\n', '\r':
			continue
		case ',', ':':
			value = true
			continue
		case ']', '}':
			depth--
			value = false
			continue
		}
		if value {
			nodes++
			if nodes > MaxNodes {
				return fmt.Errorf("has more than %d values", MaxNodes)
			}
		}
		value = false
		switch b {
		case '"':
			inString = true
		case '[', '{':
			depth++
			if depth > MaxDepth {
				return fmt.Errorf("is deeper than %d levels", MaxDepth)
			}
			value = true
		}
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
