package hub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

type recorder struct {
	got []string
}

func (r *recorder) Message(_ *Conn, binary bool, data []byte) {
	r.got = append(r.got, fmt.Sprintf("%v %q", binary, data))
}
func (r *recorder) Closed(*Conn, Reason) {}

// feedAll feeds a stream in pieces of the given sizes, over and over, and returns the messages and the close code, if it was closed.
func feedAll(stream []byte, sizes []byte) (got []string, code uint16) {
	h := New(Options{Workers: 1, MaxMessageBytes: 1 << 20, QueueMessages: 1 << 20, QueueBytes: 1 << 30})
	var r recorder
	c, _ := simConn(h, -1, &r)
	for i := 0; len(stream) > 0; i++ {
		n := len(stream)
		if len(sizes) > 0 {
			n = min(n, 1+int(sizes[i%len(sizes)]))
		}
		c.feed(bytes.Clone(stream[:n]))
		stream = stream[n:]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing != nil {
		code = c.closing.reason.Code
	}
	return r.got, code
}

var errClose = errors.New("a close frame")

// reference reads the same stream with another implementation, up to the first error or close frame.
func reference(stream []byte) (got []string, err error) {
	r := wsutil.Reader{
		Source: bytes.NewReader(stream), State: ws.StateServerSide, CheckUTF8: true,
		OnIntermediate: func(h ws.Header, r io.Reader) error {
			n, err := io.Copy(io.Discard, r)
			switch {
			case err != nil:
				return err
			case n < h.Length:
				return io.ErrUnexpectedEOF
			case h.OpCode == ws.OpClose:
				return errClose
			}
			return nil
		},
	}
	for {
		h, err := r.NextFrame()
		if err != nil {
			return got, err
		}
		if !h.Masked {
			return got, errors.New("unmasked")
		}
		if h.OpCode.IsControl() {
			if n, err := io.Copy(io.Discard, &r); err != nil || n < h.Length {
				return got, io.ErrUnexpectedEOF
			}
			if h.OpCode == ws.OpClose {
				return got, errClose
			}
			continue
		}
		data, err := io.ReadAll(&r)
		if err != nil {
			return got, err
		}
		got = append(got, fmt.Sprintf("%v %q", h.OpCode == ws.OpBinary, data))
	}
}

// frameOf makes a masked frame that may break every rule.
func frameOf(first byte, payload string) []byte {
	f := ws.MaskFrameWith(ws.NewFrame(ws.OpCode(first&15), true, []byte(payload)), [4]byte{9, 8, 7, 6})
	b := ws.MustCompileFrame(f)
	b[0] = first
	return b
}

const (
	fin  = 0x80
	txt  = byte(ws.OpText)
	bin  = byte(ws.OpBinary)
	cont = byte(ws.OpContinuation)
	ping = fin | byte(ws.OpPing)
	pong = fin | byte(ws.OpPong)
	clos = fin | byte(ws.OpClose)
)

func join(frames ...[]byte) []byte { return slices.Concat(frames...) }

var streams = []struct {
	name   string
	stream []byte
	got    []string
	code   uint16
}{
	{"H09 one text", frameOf(fin|txt, "hello"), []string{`false "hello"`}, 0},
	{"H09 empty text", frameOf(fin|txt, ""), []string{`false ""`}, 0},
	{"H09 many in one read", join(frameOf(fin|txt, "a"), frameOf(fin|bin, "b"), frameOf(fin|txt, "c")), []string{`false "a"`, `true "b"`, `false "c"`}, 0},
	{"H09 fragments", join(frameOf(txt, "a"), frameOf(cont, "b"), frameOf(cont, ""), frameOf(fin|cont, "c")), []string{`false "abc"`}, 0},
	{"H09 binary fragments", join(frameOf(bin, "\xff"), frameOf(fin|cont, "\xfe")), []string{`true "\xff\xfe"`}, 0},
	{"H09 ping inside fragments", join(frameOf(txt, "a"), frameOf(ping, "p"), frameOf(pong, ""), frameOf(fin|cont, "b"), frameOf(fin|txt, "c")), []string{`false "ab"`, `false "c"`}, 0},
	{"H09 a rune across fragments", join(frameOf(txt, "\xc3"), frameOf(fin|cont, "\xa9")), []string{`false "é"`}, 0},
	{"H09 16-bit length", frameOf(fin|txt, strings.Repeat("x", 300)), []string{fmt.Sprintf("false %q", strings.Repeat("x", 300))}, 0},
	{"H09 64-bit length", frameOf(fin|txt, strings.Repeat("x", 70_000)), []string{fmt.Sprintf("false %q", strings.Repeat("x", 70_000))}, 0},
	{"H09 bad UTF-8", join(frameOf(fin|txt, "ok"), frameOf(fin|txt, "\xff"), frameOf(fin|txt, "late")), []string{`false "ok"`}, 1007},
	{"H09 bad UTF-8 in fragments", join(frameOf(txt, "\xc3"), frameOf(fin|cont, "x")), nil, 1007},
	{"H09 unmasked", []byte{fin | txt, 1, 'x'}, nil, 1002},
	{"H09 reserved bits", frameOf(fin|0x40|txt, "x"), nil, 1002},
	{"H09 reserved opcode 3", frameOf(fin|3, "x"), nil, 1002},
	{"H09 reserved opcode 11", frameOf(fin|11, "x"), nil, 1002},
	{"H09 fragmented ping", frameOf(byte(ws.OpPing), "x"), nil, 1002},
	{"H09 long ping", frameOf(ping, strings.Repeat("x", 126)), nil, 1002},
	{"H09 continuation of nothing", frameOf(fin|cont, "x"), nil, 1002},
	{"H09 message inside a message", join(frameOf(txt, "a"), frameOf(fin|txt, "b")), nil, 1002},
	{"H09 negative length", []byte{fin | txt, 0x80 | 127, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}, nil, 1002},
	{"H09 too big", []byte{fin | txt, 0x80 | 127, 0, 0, 0, 0, 0, 0x10, 0, 1, 1, 2, 3, 4}, nil, 1009},
	{"H09 too big in fragments", join(frameOf(txt, strings.Repeat("x", 1<<20)), frameOf(fin|cont, "y")), nil, 1009},
	{"H09 nothing after a fault counts", join(frameOf(fin|3, "x"), frameOf(fin|txt, "late"), frameOf(clos, "\x03\xe8")), nil, 1002},
	{"close", join(frameOf(clos, "\x03\xe8bye"), frameOf(fin|txt, "late")), nil, 1000},
	{"close without a code", frameOf(clos, ""), nil, 1005},
	{"close with half a code", frameOf(clos, "\x03"), nil, 1002},
	{"close 1005", frameOf(clos, "\x03\xed"), nil, 1002},
	{"close 1004", frameOf(clos, "\x03\xec"), nil, 1002},
	{"close 1015", frameOf(clos, "\x03\xf7"), nil, 1002},
	{"close 999", frameOf(clos, "\x03\xe7"), nil, 1002},
	{"close 1100", frameOf(clos, "\x04\x4c"), nil, 1002},
	{"close 2999", frameOf(clos, "\x0b\xb7"), nil, 1002},
	{"close 1012", frameOf(clos, "\x03\xf4"), nil, 1012},
	{"close 4999", frameOf(clos, "\x13\x87"), nil, 4999},
	{"close 5000", frameOf(clos, "\x13\x88"), nil, 1002},
	{"close with bad UTF-8", frameOf(clos, "\x03\xe8\xff"), nil, 1002},
}

func TestH09_Streams(t *testing.T) {
	for _, tt := range streams {
		t.Run(tt.name, func(t *testing.T) {
			for _, sizes := range [][]byte{nil, {255, 3}, {0}, {1}, {2, 0, 6}} {
				if len(tt.stream) > 100_000 && len(sizes) == 1 {
					continue
				}
				if got, code := feedAll(tt.stream, sizes); !slices.Equal(got, tt.got) || code != tt.code {
					t.Errorf("in pieces of %v: got %.200q, %d; want %.200q, %d", sizes, got, code, tt.got, tt.code)
				}
			}
		})
	}
}

// The random bytes are taken as they are, and also made into frames that are mostly valid.
func FuzzFeed(f *testing.F) {
	for _, tt := range streams {
		if len(tt.stream) < 1000 {
			f.Add(tt.stream, []byte{0})
			f.Add(tt.stream, []byte{2, 0, 6})
		}
	}
	f.Fuzz(func(t *testing.T, raw, sizes []byte) {
		for _, stream := range [][]byte{raw, framesOf(raw)} {
			got, code := feedAll(stream, nil)
			split, splitCode := feedAll(stream, sizes)
			if !slices.Equal(got, split) || code != splitCode {
				t.Errorf("whole: %q, %d; in pieces: %q, %d", got, code, split, splitCode)
			}
			want, err := reference(stream)
			if !slices.Equal(got, want) {
				t.Errorf("got %q, %d; the reference has %q, %v", got, code, want, err)
			}
			// The reference looks at the text of a message before its end.
			if code == 0 && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, wsutil.ErrInvalidUTF8) {
				t.Errorf("accepted what the reference refuses: %v", err)
			}
		}
	})
}

// framesOf makes frames of random bytes: for each, a first byte, a length and so many bytes.
func framesOf(raw []byte) (stream []byte) {
	for len(raw) > 2 {
		first, n := raw[0], min(int(raw[1]), len(raw)-2)
		if first%8 != 0 {
			first = []byte{fin | txt, txt, cont, fin | cont, ping, fin | bin, bin}[first%7]
		}
		stream = append(stream, frameOf(first, string(raw[2:2+n]))...)
		raw = raw[2+n:]
	}
	return stream
}

// What comes after a fault is not even looked at: bytes that happen to be a close frame must not end the wait for the peer.
func TestH09_NothingAfterAFaultCounts(t *testing.T) {
	h := New(Options{Workers: 1})
	c, l := simConn(h, -1, &recorder{})
	c.feed(frameOf(fin|3, "x"))
	b := newBatch()
	c.drain(&b)
	c.feed(frameOf(clos, "\x03\xe8"))
	if c.closing.answered || l.closed || !l.shut {
		t.Errorf("%+v, closed %v", c.closing, l.closed)
	}
}

func TestH09_ByteAtATimeIsLinear(t *testing.T) {
	h := New(Options{Workers: 1})
	var r recorder
	c, _ := simConn(h, -1, &r)
	stream := frameOf(fin|bin, strings.Repeat("x", 200_000))
	one := make([]byte, 1)
	for _, b := range stream {
		one[0] = b
		c.feed(one)
	}
	if len(r.got) != 1 || c.in != nil {
		t.Errorf("%d messages; kept %v", len(r.got), c.in != nil)
	}
}

func BenchmarkFeed(b *testing.B) {
	h := New(Options{Workers: 1})
	c, _ := simConn(h, -1, closedFunc(func(*Conn, Reason) {}))
	msg := mask(ws.OpText, strings.Repeat("x", 128))
	buf := make([]byte, len(msg))
	b.ReportAllocs()
	for b.Loop() {
		copy(buf, msg)
		c.feed(buf)
	}
}
