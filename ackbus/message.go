package ackbus

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf8"

	"github.com/tidewire/tidewire/wire"
)

// The types of envelope that the bus speaks.
const (
	typeFrame = "frame"
	typeAck   = "ack"
)

// appendHeader appends what frames and acknowledgements have in common, as JSON.
func appendHeader(dst []byte, seq uint64, receiver string) []byte {
	dst = append(dst, `{"seq":`...)
	dst = strconv.AppendUint(dst, seq, 10)
	dst = append(dst, `,"receiverId":`...)
	if plain(receiver) {
		dst = append(dst, '"')
		dst = append(dst, receiver...)
		dst = append(dst, '"')
	} else {
		quoted, _ := json.Marshal(receiver) // a string can always be marshaled
		dst = append(dst, quoted...)
	}
	return append(dst, '}')
}

// plain reports whether s is its own JSON encoding, but for the quotes.
func plain[S string | []byte](s S) bool {
	for i := range len(s) {
		if b := s[i]; b < ' ' || b > '~' || b == '"' || b == '\\' {
			return false
		}
	}
	return true
}

// parseHeader reads what appendHeader, or JSON.stringify, writes. It allocates nothing but for unusual receivers.
func parseHeader(data []byte) (seq uint64, receiver []byte, ok bool) {
	if rest, found := bytes.CutPrefix(data, []byte(`{"seq":`)); found && len(rest) > 0 && rest[0] != '0' {
		for len(rest) > 0 && '0' <= rest[0] && rest[0] <= '9' && seq < 1<<53/10 {
			seq = seq*10 + uint64(rest[0]-'0')
			rest = rest[1:]
		}
		rest, found = bytes.CutPrefix(rest, []byte(`,"receiverId":"`))
		if id, whole := bytes.CutSuffix(rest, []byte(`"}`)); found && whole && seq > 0 && plain(id) {
			return seq, id, true
		}
	}
	var members map[string]json.RawMessage // a struct would take members in upper case too
	var number float64
	var text *string
	if json.Unmarshal(data, &members) != nil || json.Unmarshal(members["seq"], &number) != nil || json.Unmarshal(members["receiverId"], &text) != nil || text == nil {
		return 0, nil, false
	}
	seq = uint64(min(max(number, 0), 1<<53))
	return seq, []byte(*text), float64(seq) == number && seq > 0
}

// encodeFrame makes the message of a frame. A receiver that is empty stands for everyone.
func encodeFrame(seq uint64, receiver string, frame []byte) ([]byte, error) {
	payload := make([]byte, 0, len(`{"seq":,"receiverId":""}`)+20+len(receiver)+1+len(frame))
	payload = appendHeader(payload, seq, receiver)
	// A zero byte ends the header: JSON has none.
	payload = append(append(payload, 0), frame...)
	return wire.Envelope{Type: typeFrame, Payload: payload}.Append(make([]byte, 0, len(payload)+16))
}

func decodeFrame(message []byte) (seq uint64, receiver, frame []byte, ok bool) {
	e, ok := wire.DecodeEnvelope(message)
	if !ok || e.Type != typeFrame {
		return 0, nil, nil, false
	}
	header, frame, ok := bytes.Cut(e.Payload, []byte{0})
	if !ok {
		return 0, nil, nil, false
	}
	seq, receiver, ok = parseHeader(header)
	return seq, receiver, frame, ok
}

func encodeAck(seq uint64, receiver string) []byte {
	ack, _ := wire.Envelope{Type: typeAck, Payload: appendHeader(nil, seq, receiver)}.Append(nil) // fails for no receiver that checkID takes
	return ack
}

func decodeAck(message []byte) (seq uint64, receiver []byte, ok bool) {
	e, ok := wire.DecodeEnvelope(message)
	if !ok || e.Type != typeAck {
		return 0, nil, false
	}
	return parseHeader(e.Payload)
}

func checkID(id string) error {
	if id == "" || len(id) > MaxReceiverBytes || !utf8.ValidString(id) {
		return ErrReceiver
	}
	return nil
}
