package wire_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/tidewire/tidewire/internal/testenv"
	"github.com/tidewire/tidewire/wire"
)

// envelopeVector is an envelope with its bytes, or bytes that are none. Bytes are in hexadecimal digits.
type envelopeVector struct {
	Name    string `json:"name"`
	Valid   bool   `json:"valid"`
	Type    string `json:"type,omitempty"`
	Payload string `json:"payload,omitempty"`
	Bytes   string `json:"bytes"`
}

func envelope(t testing.TB, kind, payload string) []byte {
	t.Helper()
	data, err := wire.Envelope{Type: kind, Payload: []byte(payload)}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func envelopeVectors(t testing.TB) []envelopeVector {
	t.Helper()
	ack := `{"seq":1,"receiverId":"client-42"}`
	var vectors []envelopeVector
	for _, v := range []struct{ name, kind, payload string }{
		{"ack", "ack", ack},
		{"frame", "frame", ack + "\x00\x01\x02\xff"},
		{"empty payload", "a", ""},
		{"longest type", strings.Repeat("z", wire.MaxEnvelopeType), "x"},
		{"a type of all kinds of characters", "chat-2", "\x00\xf5TW\x01"},
		{"payload of 256 bytes", "blob", strings.Repeat("\xab", 256)},
	} {
		vectors = append(vectors, envelopeVector{v.name, true, v.kind, hex.EncodeToString([]byte(v.payload)), hex.EncodeToString(envelope(t, v.kind, v.payload))})
	}
	good := envelope(t, "ack", ack)
	with := func(at int, b byte) []byte {
		data := bytes.Clone(good)
		data[at] = b
		return data
	}
	for _, v := range []struct {
		name string
		data []byte
	}{
		{"nothing", nil},
		{"only the magic", good[:3]},
		{"no type", good[:4]},
		{"type cut short", good[:6]},
		{"no length", good[:8]},
		{"length cut short", good[:11]},
		{"payload cut short", good[:len(good)-1]},
		{"a byte too many", append(bytes.Clone(good), 0)},
		{"two envelopes", append(bytes.Clone(good), good...)},
		{"another magic", with(0, 'T')},
		{"another version", with(3, 2)},
		{"empty type", append([]byte("\xf5TW\x01\x00"), 0, 0, 0, 0)},
		{"type too long", append([]byte("\xf5TW\x01\x21"+strings.Repeat("z", 33)), 0, 0, 0, 0)},
		{"type with an upper case letter", with(5, 'A')},
		{"type with a zero byte", with(5, 0)},
		{"type that is not ASCII", with(5, 0xe4)},
		{"a length of 4 GiB", []byte("\xf5TW\x01\x01a\xff\xff\xff\xff")},
		{"a length that is negative as 32 bits", []byte("\xf5TW\x01\x01a\x80\x00\x00\x00")},
		{"JSON", []byte(ack)},
	} {
		vectors = append(vectors, envelopeVector{Name: v.name, Bytes: hex.EncodeToString(v.data)})
	}
	return vectors
}

// B04: one format in Go and TypeScript, by the same vectors.
func TestB04_EnvelopeVectors(t *testing.T) {
	t.Parallel()
	vectors := envelopeVectors(t)
	testenv.Written(t, "../spec/vectors/envelope.json", vectors, *update)
	for _, v := range vectors {
		data, err := hex.DecodeString(v.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		e, ok := wire.DecodeEnvelope(data)
		if ok != v.Valid || e.Type != v.Type || hex.EncodeToString(e.Payload) != v.Payload {
			t.Errorf("%s: DecodeEnvelope = %+v, %v", v.Name, e, ok)
		}
	}
}

func TestB04_EnvelopeBounds(t *testing.T) {
	t.Parallel()
	largest := make([]byte, wire.MaxEnvelopePayload)
	data, err := wire.Envelope{Type: "a", Payload: largest}.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := wire.DecodeEnvelope(data); !ok || len(e.Payload) != len(largest) {
		t.Error("the largest payload is not read")
	}
	larger := append(data, 0)
	copy(larger[6:], []byte{1, 0, 0, 1})
	if _, ok := wire.DecodeEnvelope(larger); ok {
		t.Error("a payload over the bound is read")
	}
	for _, e := range []wire.Envelope{{Type: "a", Payload: append(largest, 0)}, {}, {Type: "A"}, {Type: "a b"}, {Type: strings.Repeat("a", 33)}} {
		if out, err := e.Append([]byte("x")); err == nil || string(out) != "x" {
			t.Errorf("Append of type %q and %d bytes = %d bytes, %v", e.Type, len(e.Payload), len(out), err)
		}
	}
}

// B04: whatever bytes come, decoding answers; and what it takes is exactly what encoding gives.
func FuzzEnvelope(f *testing.F) {
	for _, v := range envelopeVectors(f) {
		data, err := hex.DecodeString(v.Bytes)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, ok := wire.DecodeEnvelope(data)
		if !ok {
			return
		}
		again, err := e.Append(nil)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%x is read as %+v, written as %x, %v", data, e, again, err)
		}
	})
}
