package ws

import (
	"encoding/json"
	"fmt"
	"time"
)

// MessageType says what a [Message] is.
type MessageType string

// The types of messages.
const (
	TypeProcessOutput MessageType = "process_output" // server to client: a line of a process
	TypeProcessStatus MessageType = "process_status" // server to client: the state of a process
	TypeEvent         MessageType = "event"          // server to client: anything of the application
	TypeError         MessageType = "error"          // server to client: a failure, for people
	TypePing          MessageType = "ping"           // client to server
	TypePong          MessageType = "pong"           // server to client: the answer to a ping
	TypeSubscribe     MessageType = "subscribe"      // client to server: the channel is in data
	TypeUnsubscribe   MessageType = "unsubscribe"    // client to server: the channel is in data
	TypeAuth          MessageType = "auth"           // client to server: the token is in data
)

// Message is what travels, as one JSON object.
type Message struct {
	Type      MessageType `json:"type"`
	Channel   string      `json:"channel,omitempty"`
	ProcessID string      `json:"processId,omitempty"`
	Data      any         `json:"data,omitempty"`
	// Timestamp is in RFC 3339. The zero value is replaced by the present when the message is sent.
	Timestamp time.Time `json:"timestamp"`
}

func (m Message) encode() ([]byte, error) {
	if m.Timestamp.IsZero() {
		m.Timestamp = time.Now().UTC()
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("ws: encode a message: %w", err)
	}
	return data, nil
}

// request is what a client sends. Members that it does not need are not looked at.
type request struct {
	Type    MessageType `json:"type"`
	Channel string      `json:"channel"`
	Data    any         `json:"data"`
}

// text returns data as a string, or "" if it is none.
func (r request) text() string {
	s, _ := r.Data.(string)
	return s
}

// channel returns the name in data, or where that is missing in channel, as some clients send it.
func (r request) channel() string {
	if r.Data == nil {
		return r.Channel
	}
	return r.text()
}
