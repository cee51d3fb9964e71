package hub_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/klauspost/compress/flate"

	"github.com/tidewire/tidewire/hub"
)

// compressing serves a hub with compression; a message from a client names a channel to join, or is published on "all".
func compressing(t *testing.T, opts hub.Options) (*hub.Hub, string) {
	t.Helper()
	opts.Compression = true
	h := hub.New(opts)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := h.Upgrade(w, r, hub.UpgradeOptions{})
		if err != nil {
			t.Error(err)
			return
		}
		c.Start(echoAll{h})
		if err := c.Join("all", hub.Everyone, []byte("joined")); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return h, "ws" + strings.TrimPrefix(srv.URL, "http")
}

type echoAll struct{ h *hub.Hub }

func (e echoAll) Message(_ *hub.Conn, _ bool, data []byte) {
	payload := bytes.Clone(data)
	_, _ = e.h.Publish("all", hub.Message{Encode: func(hub.Dialect) []byte { return payload }})
}

func (echoAll) Closed(*hub.Conn, hub.Reason) {}

func dialGorilla(t *testing.T, url string, compress bool) *websocket.Conn {
	t.Helper()
	d := websocket.Dialer{EnableCompression: compress, HandshakeTimeout: 10 * time.Second}
	conn, resp, err := d.Dial(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Contains(resp.Header.Get("Sec-WebSocket-Extensions"), "permessage-deflate"); got != compress {
		t.Fatalf("extensions %q", resp.Header.Get("Sec-WebSocket-Extensions"))
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, p, err := conn.ReadMessage(); err != nil || string(p) != "joined" {
		t.Fatalf("first message %q, %v", p, err)
	}
	return conn
}

// H13, P42: what is published is compressed once, whoever offered it; clients with and without it read the same.
func TestH13_Compression(t *testing.T) {
	t.Parallel()
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprint("portable=", portable), func(t *testing.T) {
			t.Parallel()
			h, url := compressing(t, hub.Options{Portable: portable})
			with, without := dialGorilla(t, url, true), dialGorilla(t, url, false)
			texts := []string{"", "short", strings.Repeat("compressible ", 1000), noise(20_000), strings.Repeat("x", 200_000), "end"}
			for _, text := range texts {
				before := h.Stats()
				if err := with.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
					t.Fatal(err)
				}
				for _, conn := range []*websocket.Conn{with, without} {
					if _, p, err := conn.ReadMessage(); err != nil || string(p) != text {
						t.Fatalf("%d bytes came as %d bytes, %v", len(text), len(p), err)
					}
				}
				if n := h.Stats().Encoded - before.Encoded; n != 1 {
					t.Errorf("encoded %d times", n)
				}
			}
			// 1,000 × 13 bytes go out once as they are and once as next to nothing.
			before := h.Stats().WrittenBytes
			payload := []byte(strings.Repeat("compressible ", 1000))
			if _, err := h.Publish("all", hub.Message{Encode: func(hub.Dialect) []byte { return payload }}); err != nil {
				t.Fatal(err)
			}
			for _, conn := range []*websocket.Conn{with, without} {
				if _, p, err := conn.ReadMessage(); err != nil || !bytes.Equal(p, payload) {
					t.Fatal(err)
				}
			}
			eventuallyTrue(t, func() bool { return h.Stats().WrittenBytes-before >= 13_000 })
			if n := h.Stats().WrittenBytes - before; n > 14_000 {
				t.Errorf("%d bytes were written", n)
			}
		})
	}
}

func eventuallyTrue(t *testing.T, f func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatal("not within 10 s")
		case <-tick.C:
		}
	}
}

func noise(n int) string {
	rnd := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = ' ' + byte(rnd.IntN(90))
	}
	return string(b)
}

// frame is a masked client frame with a zero mask.
func clientFrame(first byte, payload []byte) []byte {
	b := []byte{first, 0x80 | 127}
	b = binary.BigEndian.AppendUint64(b, uint64(len(payload)))
	return append(append(b, 0, 0, 0, 0), payload...)
}

func squeeze(t *testing.T, payload []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, 9)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(payload)
	_ = w.Flush()
	return bytes.TrimSuffix(out.Bytes(), []byte{0, 0, 0xff, 0xff})
}

// H09: a compressed message may not grow past the limit, and a broken one costs that connection alone.
func TestH09_CompressedFaults(t *testing.T) {
	t.Parallel()
	h, url := compressing(t, hub.Options{MaxMessageBytes: 64 << 10})
	witness := dialGorilla(t, url, true)
	bomb := squeeze(t, bytes.Repeat([]byte("a"), 50<<20))
	small := squeeze(t, []byte("small"))
	for name, tc := range map[string]struct {
		frames []byte
		code   int // zero: the message is delivered
	}{
		"a bomb":                      {clientFrame(0xc1, bomb[:min(len(bomb), 60<<10)]), 1009},
		"garbage":                     {clientFrame(0xc1, []byte("\xff\xff\xff\xff")), 1007},
		"bad UTF-8 inside":            {clientFrame(0xc1, squeeze(t, []byte("a\xff"))), 1007},
		"a compressed control frame":  {clientFrame(0xc9, nil), 1002},
		"another reserved bit":        {clientFrame(0xa1, small), 1002},
		"the bit on a continuation":   {append(clientFrame(0x41, small[:2]), clientFrame(0xc0, small[2:])...), 1002},
		"fragments of one compressed": {append(clientFrame(0x41, small[:2]), clientFrame(0x80, small[2:])...), 0},
	} {
		conn := dialGorilla(t, url, true)
		if _, err := conn.NetConn().Write(tc.frames); err != nil {
			t.Fatal(err)
		}
		_, p, err := conn.ReadMessage()
		switch {
		case tc.code == 0:
			if err != nil || string(p) != "small" {
				t.Errorf("%s: %q, %v", name, p, err)
			}
			if _, p, err := witness.ReadMessage(); err != nil || string(p) != "small" {
				t.Errorf("%s: witness %q, %v", name, p, err)
			}
		case !websocket.IsCloseError(err, tc.code):
			t.Errorf("%s: %v, want %d", name, err, tc.code)
		}
	}
	// Without an agreement the bit is a fault.
	plain := dialGorilla(t, url, false)
	if _, err := plain.NetConn().Write(clientFrame(0xc1, small)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := plain.ReadMessage(); !websocket.IsCloseError(err, 1002) {
		t.Errorf("not agreed: %v", err)
	}
	if err := witness.WriteMessage(websocket.TextMessage, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	if _, p, err := witness.ReadMessage(); err != nil || string(p) != "still here" {
		t.Fatalf("witness: %q, %v", p, err)
	}
	_ = h
}

// P42: an idle connection holds no compressor.
func TestP42_CompressionCostsAnIdleConnectionNothing(t *testing.T) {
	const conns = 300
	h, url := compressing(t, hub.Options{})
	text := []byte(strings.Repeat("compressible ", 100))
	var open []*websocket.Conn
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	dial := func(compress bool) uint64 {
		base := heap()
		var got atomic.Int64
		for range conns {
			c := dialGorilla(t, url, compress)
			open = append(open, c)
			_ = c.NetConn().SetReadDeadline(time.Now().Add(time.Minute))
		}
		if _, err := h.Publish("all", hub.Message{Encode: func(hub.Dialect) []byte { return text }}); err != nil {
			t.Fatal(err)
		}
		for _, c := range open[len(open)-conns:] {
			// Read without the library's decompressor, whose memory would count.
			if _, err := io.ReadFull(c.NetConn(), make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
			got.Add(1)
		}
		return (heap() - base) / conns
	}
	plain := dial(false)
	compressed := dial(true)
	if compressed > plain+2048 {
		t.Fatalf("%d bytes a connection with compression, %d without", compressed, plain)
	}
	t.Logf("%d bytes a connection with compression, %d without, both ends", compressed, plain)
}
