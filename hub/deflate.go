package hub

import (
	"bytes"
	"io"
	"sync"

	"github.com/gobwas/httphead"
	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsflate"
	"github.com/klauspost/compress/flate"
)

// permessage-deflate (RFC 7692) without context takeover on either side: no connection holds a compressor or a window. A publication is compressed once, and the frame is shared like any other.
// Compressors come from a pool and are held while they work.

// deflateMin is the payload below which compressing costs more than it saves.
const deflateMin = 256

// negotiation agrees on compression during one handshake.
type negotiation struct{ ext wsflate.Extension }

func newNegotiation() *negotiation {
	return &negotiation{wsflate.Extension{Parameters: wsflate.Parameters{ServerNoContextTakeover: true, ClientNoContextTakeover: true}}}
}

func (n *negotiation) negotiate(offer httphead.Option) (httphead.Option, error) {
	return n.ext.Negotiate(offer)
}

func (n *negotiation) agreed() bool {
	_, ok := n.ext.Accepted()
	return ok
}

type deflater struct {
	w   *flate.Writer
	out bytes.Buffer
}

var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.BestSpeed)
	if err != nil {
		panic(err) // the level is valid
	}
	return &deflater{w: w}
}}

// deflated returns the compressed form of a text frame, or the frame itself if that is no smaller.
func deflated(f *frame) *frame {
	h, _ := parseHeader(f.data)
	if h.length < deflateMin {
		return f
	}
	d := deflaters.Get().(*deflater)
	defer deflaters.Put(d)
	d.out.Reset()
	d.w.Reset(&d.out)
	_, err := d.w.Write(f.data[h.size:])
	if err == nil {
		err = d.w.Flush()
	}
	// A flush ends with an empty block whose last four bytes are left out: RFC 7692, 7.2.1.
	out, ok := bytes.CutSuffix(d.out.Bytes(), emptyBlock[1:])
	if err != nil || !ok || len(out) >= int(h.length) {
		return f
	}
	g := *f
	g.data = appendFrame(make([]byte, 0, len(out)+maxHeader), ws.OpText, out)
	g.data[0] |= deflateBit << 4
	return &g
}

// deflateBit is RSV1 among the reserved bits: it says that a message is compressed.
const deflateBit = 4

// emptyBlock is a stored block of no bytes; the first three bits say so.
var emptyBlock = []byte{0, 0, 0, 0xff, 0xff}

// tail follows compressed data, so that it ends like a whole stream.
var tail = []byte{0, 0, 0xff, 0xff, 1, 0, 0, 0xff, 0xff}

type inflater struct {
	r   io.ReadCloser
	out bytes.Buffer
}

var inflaters = sync.Pool{New: func() any { return &inflater{r: flate.NewReader(bytes.NewReader(nil))} }}

// inflate calls use with the expanded payload, which is valid until it returns. It never expands to more than limit bytes.
func inflate(payload []byte, limit int, use func([]byte)) fault {
	d := inflaters.Get().(*inflater)
	defer inflaters.Put(d)
	d.out.Reset()
	src := io.MultiReader(bytes.NewReader(payload), bytes.NewReader(tail))
	if err := d.r.(flate.Resetter).Reset(src, nil); err != nil {
		return fault{1007, "bad compressed data"}
	}
	n, err := d.out.ReadFrom(io.LimitReader(d.r, int64(limit)+1))
	switch {
	case err != nil:
		return fault{1007, "bad compressed data"}
	case n > int64(limit):
		return fault{1009, "message too big"}
	}
	use(d.out.Bytes())
	return noFault
}
