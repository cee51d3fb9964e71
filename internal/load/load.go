// Package load drives many WebSocket connections against a server and counts what arrives. It serves `tidewire bench` and the comparison in bench/.
//
// A [Fleet] reads with one goroutine for each connection and a buffer only while there is something to read, looks at frames just enough to count
// the marker of a delivery, and answers pings. On one connection in fifty it also reads the sequence number and the time of sending out of each delivery, to
// find loss, repetition, disorder and latency. It keeps nothing of what it reads, so its own cost stays far below that of the server.
package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Options describes a fleet.
type Options struct {
	// URL is the address of the socket, ws://host:port/path.
	URL string
	// Subprotocols are offered.
	Subprotocols []string
	// Header is added to the handshake.
	Header http.Header
	// Conns is the number of connections, DialsAtOnce the handshakes in flight. Zero means 64.
	Conns       int
	DialsAtOnce int
	// Say returns the text messages that connection i sends after the handshake.
	Say func(i int) []string
	// SayBinary sends them as binary frames.
	SayBinary bool
	// Ready and ReadyCount: a connection is ready when so many frames that hold Ready have come. Zero ReadyCount means at once.
	Ready      []byte
	ReadyCount int
	// Marker is what every delivery holds, once.
	Marker []byte
	// OnFrame, if set, may answer a frame with a text message. It is called for frames without a marker only.
	OnFrame func(payload []byte) string
	// Retry dials again after a refusal with 503.
	Retry bool
	// Sample is the share of connections whose deliveries are read in detail: one in so many. Zero means SampleEvery.
	Sample int
}

// SampleEvery is the usual share of connections whose deliveries are read in detail.
const SampleEvery = 50

// Fleet is many connections.
type Fleet struct {
	opts  Options
	conns []*conn
	wg    sync.WaitGroup

	delivered atomic.Uint64
	bytes     atomic.Uint64
	reads     atomic.Uint64
	frames    atomic.Uint64
	closed    atomic.Int64

	// Latency is that of the sampled deliveries.
	Latency Histogram
	lost    atomic.Uint64
	doubled atomic.Uint64
}

type conn struct {
	fleet   *Fleet
	net     net.Conn
	sampled bool
	ready   chan struct{}
	seen    int
	count   atomic.Uint64
	next    map[string]uint64 // by publisher, of a sampled connection
	partial []byte
}

// Dial opens all connections and returns when they are ready.
func Dial(ctx context.Context, o Options) (*Fleet, error) {
	if o.DialsAtOnce <= 0 {
		o.DialsAtOnce = 64
	}
	if o.Sample <= 0 {
		o.Sample = SampleEvery
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	f := &Fleet{opts: o, conns: make([]*conn, o.Conns)}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slots := make(chan struct{}, o.DialsAtOnce)
	var wg sync.WaitGroup
	for i := range o.Conns {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-slots }()
			c, err := f.dial(ctx, u, i)
			if err != nil {
				cancel(fmt.Errorf("load: connection %d: %w", i, err))
				return
			}
			f.conns[i] = c
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

var dialer = net.Dialer{Timeout: 10 * time.Second, KeepAlive: -1}

func (f *Fleet) dial(ctx context.Context, u *url.URL, i int) (*conn, error) {
	for {
		c, wait, err := f.try(ctx, u, i)
		if err == nil || !f.opts.Retry || wait == 0 {
			return c, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *Fleet) try(ctx context.Context, u *url.URL, i int) (c *conn, wait time.Duration, err error) {
	nc, err := dialer.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, 0, err
	}
	early, wait, err := handshake(nc, u, f.opts)
	if err != nil {
		_ = nc.Close()
		return nil, wait, err
	}
	c = &conn{fleet: f, net: nc, sampled: i%f.opts.Sample == 0, ready: make(chan struct{})}
	if c.sampled {
		c.next = map[string]uint64{}
	}
	if f.opts.ReadyCount == 0 {
		close(c.ready)
	}
	reading := c // c is a result, and an error return clears it
	f.wg.Go(func() { reading.read(early) })
	defer func() {
		if err != nil {
			_ = nc.Close() // ends the reader
		}
	}()
	if f.opts.Say != nil {
		op := byte(0x81)
		if f.opts.SayBinary {
			op = 0x82
		}
		var out []byte
		for _, m := range f.opts.Say(i) {
			out = AppendFrame(out, op, []byte(m))
		}
		if _, err = nc.Write(out); err != nil {
			return nil, 0, err
		}
	}
	select {
	case <-c.ready:
		return c, 0, nil
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	case <-time.After(30 * time.Second):
		return nil, 0, errors.New("not ready within 30 s")
	}
}

// handshake returns what came after the response.
func handshake(nc net.Conn, u *url.URL, o Options) (early []byte, wait time.Duration, err error) {
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	defer func() { _ = nc.SetDeadline(time.Time{}) }()
	key := make([]byte, 16)
	_, _ = rand.Read(key)
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n",
		u.RequestURI(), u.Host, base64.StdEncoding.EncodeToString(key))
	if len(o.Subprotocols) > 0 {
		fmt.Fprintf(&b, "Sec-WebSocket-Protocol: %s\r\n", strings.Join(o.Subprotocols, ", "))
	}
	_ = o.Header.Write(&b)
	b.WriteString("\r\n")
	if _, err := nc.Write([]byte(b.String())); err != nil {
		return nil, 0, err
	}
	br := bufio.NewReaderSize(nc, 1024)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return nil, 0, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusSwitchingProtocols {
		if resp.StatusCode == http.StatusServiceUnavailable {
			wait = time.Second
			if ms, err := strconv.Atoi(resp.Header.Get("retry-after-ms")); err == nil {
				wait = time.Duration(ms) * time.Millisecond
			}
		}
		return nil, wait, fmt.Errorf("handshake answered %s", resp.Status)
	}
	early, _ = br.Peek(br.Buffered())
	return bytes.Clone(early), 0, nil
}

// AppendFrame appends a masked client frame. The mask is zero: it costs nothing to apply, and loopback needs no protection from caches.
func AppendFrame(dst []byte, op byte, payload []byte) []byte {
	dst = append(dst, op)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, 0x80|byte(n))
	case n < 1<<16:
		dst = append(dst, 0x80|126, byte(n>>8), byte(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 0x80|127), uint64(n))
	}
	return append(append(dst, 0, 0, 0, 0), payload...)
}

var readBuffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

func (c *conn) read(early []byte) {
	defer c.fleet.closed.Add(1)
	if len(early) > 0 && !c.take(early) {
		return
	}
	raw, err := c.net.(syscall.Conn).SyscallConn()
	if err != nil {
		return
	}
	for {
		var n int
		var rerr error
		var buf *[64 << 10]byte
		err := raw.Read(func(fd uintptr) bool {
			b := readBuffers.Get().(*[64 << 10]byte)
			n, rerr = readFD(fd, b[:])
			if rerr == syscall.EAGAIN || rerr == syscall.EINTR {
				readBuffers.Put(b)
				return false
			}
			buf = b
			return true
		})
		ok := err == nil && rerr == nil && n > 0 && c.take(buf[:n])
		if buf != nil {
			readBuffers.Put(buf)
		}
		if !ok {
			return
		}
	}
}

// take handles the frames in data, and keeps an incomplete one.
func (c *conn) take(data []byte) bool {
	f := c.fleet
	f.reads.Add(1)
	f.bytes.Add(uint64(len(data)))
	if len(c.partial) > 0 {
		c.partial = append(c.partial, data...)
		data = c.partial
	}
	var delivered uint64
	for {
		op, payload, size := parseFrame(data)
		if size == 0 {
			break
		}
		data = data[size:]
		switch op {
		case 8:
			return false
		case 9:
			_, _ = c.net.Write(AppendFrame(nil, 0x8a, payload))
			continue
		case 10:
			continue
		}
		f.frames.Add(1)
		n := uint64(0)
		if f.opts.Marker != nil {
			n = uint64(bytes.Count(payload, f.opts.Marker))
		}
		if n > 0 {
			delivered += n
			if c.sampled {
				c.sample(payload)
			}
			continue
		}
		if c.seen < f.opts.ReadyCount && bytes.Contains(payload, f.opts.Ready) {
			if c.seen++; c.seen == f.opts.ReadyCount {
				close(c.ready)
			}
		}
		if f.opts.OnFrame != nil {
			if answer := f.opts.OnFrame(payload); answer != "" {
				_, _ = c.net.Write(AppendFrame(nil, 0x81, []byte(answer)))
			}
		}
	}
	if delivered > 0 {
		c.count.Add(delivered)
		f.delivered.Add(delivered)
	}
	if len(data) == 0 {
		c.partial = nil
	} else {
		c.partial = append(c.partial[:0], data...)
	}
	return true
}

// parseFrame returns the first frame of data, and zero if it is incomplete.
func parseFrame(data []byte) (op byte, payload []byte, size int) {
	if len(data) < 2 {
		return 0, nil, 0
	}
	head, n := 2, int(data[1]&0x7f)
	switch n {
	case 126:
		if len(data) < 4 {
			return 0, nil, 0
		}
		head, n = 4, int(binary.BigEndian.Uint16(data[2:]))
	case 127:
		if len(data) < 10 {
			return 0, nil, 0
		}
		head, n = 10, int(binary.BigEndian.Uint64(data[2:]))
	}
	if len(data) < head+n {
		return 0, nil, 0
	}
	return data[0] & 15, data[head : head+n], head + n
}

// Payload is the data of a delivery as JSON: the marker, the publisher, its sequence number, the time, and padding up to size.
func Payload(marker, publisher string, seq uint64, size int) string {
	s := fmt.Sprintf(`{"m":"%s","p":"%s","n":%d,"t":%d,"x":"`, marker, publisher, seq, time.Now().UnixNano())
	if pad := size - len(s) - 2; pad > 0 {
		s += strings.Repeat("x", pad)
	}
	return s + `"}`
}

var (
	tagPublisher = []byte(`"p":"`)
	tagSeq       = []byte(`"n":`)
	tagTime      = []byte(`"t":`)
)

// sample reads every delivery of a payload.
func (c *conn) sample(payload []byte) {
	f := c.fleet
	for {
		_, rest, ok := bytes.Cut(payload, f.opts.Marker)
		if !ok {
			return
		}
		payload = rest
		publisher := string(until(after(rest, tagPublisher), '"'))
		seq, _ := strconv.ParseUint(string(until(after(rest, tagSeq), ',')), 10, 64)
		sent, _ := strconv.ParseInt(string(until(after(rest, tagTime), ',')), 10, 64)
		if sent == 0 {
			continue
		}
		f.Latency.Add(time.Duration(time.Now().UnixNano() - sent))
		want, known := c.next[publisher]
		switch {
		case known && seq > want:
			f.lost.Add(seq - want)
		case known && seq < want:
			f.doubled.Add(1)
			continue
		}
		c.next[publisher] = seq + 1
	}
}

func after(b, tag []byte) []byte {
	_, rest, _ := bytes.Cut(b, tag)
	return rest
}

func until(b []byte, end byte) []byte {
	if i := bytes.IndexByte(b, end); i >= 0 {
		return b[:i]
	}
	return nil
}

// Delivered is the number of deliveries so far, on all connections.
func (f *Fleet) Delivered() uint64 { return f.delivered.Load() }

// Bytes is the number of bytes read, Reads that of system calls it took.
func (f *Fleet) Bytes() uint64 { return f.bytes.Load() }

// Reads is the number of reads that found something.
func (f *Fleet) Reads() uint64 { return f.reads.Load() }

// Frames is the number of frames read, without pings.
func (f *Fleet) Frames() uint64 { return f.frames.Load() }

// Lost is the number of deliveries missing in the sequences of the sampled connections, Disordered those that came late or again.
func (f *Fleet) Lost() uint64 { return f.lost.Load() }

// Disordered is the number of sampled deliveries that came late or twice.
func (f *Fleet) Disordered() uint64 { return f.doubled.Load() }

// Closed is the number of connections that have ended.
func (f *Fleet) Closed() int { return int(f.closed.Load()) }

// Counts returns the least and the greatest number of deliveries of one connection.
func (f *Fleet) Counts() (least, greatest uint64) {
	for i, c := range f.conns {
		n := c.count.Load()
		if i == 0 || n < least {
			least = n
		}
		greatest = max(greatest, n)
	}
	return least, greatest
}

// Close ends all connections and waits for their goroutines.
func (f *Fleet) Close() {
	for _, c := range f.conns {
		if c != nil {
			_ = c.net.Close()
		}
	}
	f.wg.Wait()
}

// Send writes a text message on one connection.
func (f *Fleet) Send(i int, text string) error {
	_, err := f.conns[i].net.Write(AppendFrame(nil, 0x81, []byte(text)))
	return err
}

// Write writes frames made with AppendFrame on one connection.
func (f *Fleet) Write(i int, frames []byte) error {
	_, err := f.conns[i].net.Write(frames)
	return err
}
