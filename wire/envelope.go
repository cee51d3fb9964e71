package wire

import (
	"encoding/binary"
	"fmt"
)

// Bounds of an envelope.
const (
	MaxEnvelopeType    = 32
	MaxEnvelopePayload = 16 << 20
)

// The first byte is one that UTF-8 never has, so that no text, and no JSON, is an envelope. The last is the version.
const envelopeMagic = "\xf5TW\x01"

// Envelope is a typed payload in the binary format that docs/envelope.md describes: what transports of bytes carry.
type Envelope struct {
	// Type says what the payload is: 1 to MaxEnvelopeType of the characters a-z, 0-9 and -.
	Type    string
	Payload []byte
}

// Append appends the bytes of e to dst. It fails if the type is malformed or the payload is larger than MaxEnvelopePayload.
func (e Envelope) Append(dst []byte) ([]byte, error) {
	if !validEnvelopeType(e.Type) {
		return dst, fmt.Errorf("wire: envelope: type %.40q is not 1 to %d of a-z, 0-9 and -", e.Type, MaxEnvelopeType)
	}
	if len(e.Payload) > MaxEnvelopePayload {
		return dst, fmt.Errorf("wire: envelope: payload of %d bytes is larger than %d", len(e.Payload), MaxEnvelopePayload)
	}
	dst = append(dst, envelopeMagic...)
	dst = append(dst, byte(len(e.Type)))
	dst = append(dst, e.Type...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(e.Payload)))
	return append(dst, e.Payload...), nil
}

// DecodeEnvelope reads the envelope that data is, the whole of it. It returns false for everything else, and never panics. The payload is
// a part of data.
func DecodeEnvelope(data []byte) (Envelope, bool) {
	const head = len(envelopeMagic) + 1
	if len(data) < head || string(data[:len(envelopeMagic)]) != envelopeMagic {
		return Envelope{}, false
	}
	end := head + int(data[head-1])
	if len(data) < end+4 {
		return Envelope{}, false
	}
	kind, payload := string(data[head:end]), data[end+4:]
	if !validEnvelopeType(kind) || len(payload) > MaxEnvelopePayload || binary.BigEndian.Uint32(data[end:]) != uint32(len(payload)) {
		return Envelope{}, false
	}
	return Envelope{kind, payload}, true
}

func validEnvelopeType(s string) bool {
	for i := range len(s) {
		if b := s[i]; (b < 'a' || b > 'z') && (b < '0' || b > '9') && b != '-' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= MaxEnvelopeType
}
