package hub

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gobwas/ws"
)

// errBlocked is a link's word for "the kernel takes no more now".
var errBlocked = errors.New("hub: would block")

// link is a connection's socket, as the worker and the reader see it. There is one for epoll and a portable one.
type link interface {
	// start begins to read.
	start()
	// write sends what it can. A link that does not block returns errBlocked with what was taken; the worker then calls arm.
	write(p []byte) (int, error)
	// arm asks for one call of worker.writable when the socket takes bytes again.
	arm()
	// blocks reports whether write may wait, so that the worker must not call it itself.
	blocks() bool
	// closeWrite shuts our half: the peer sees the end after all that was written.
	closeWrite()
	// close ends the socket. It may be called from anywhere, more than once.
	close()
}

const (
	flushFrames = 256      // frames taken for one write
	flushBytes  = 64 << 10 // bytes joined for one write
	flushWrites = 16       // writes to one connection in a turn
)

// worker writes to its connections' sockets, and nobody else does.
type worker struct {
	hub   *Hub
	index int // in hub.workers

	mu    sync.Mutex // guards below
	list  []*Conn    // connections with something to do
	asked bool       // wake was sent and not yet taken
	stop  bool
	wake  chan struct{}

	// Owned by run.
	spare []*Conn
	batch batch

	written  atomic.Uint64 // frames given to the kernel
	bytes    atomic.Uint64
	syscalls atomic.Uint64

	sweepMu sync.Mutex // guards slots
	slots   [sweepSlots][]*Conn

	reader reader // of the platform
}

// batch is the working memory of one flush.
type batch struct {
	frames  []*frame
	scratch []byte
}

func newWorker(h *Hub, index int) *worker {
	return &worker{hub: h, index: index, wake: make(chan struct{}, 1), batch: newBatch()}
}

func newBatch() batch {
	return batch{frames: make([]*frame, 0, flushFrames)} // scratch grows with need: a blocked writer goroutine holds it
}

// add puts connections whose dirty flag the caller has just set on the list.
func (w *worker) add(cs ...*Conn) {
	w.mu.Lock()
	w.list = append(w.list, cs...)
	ask := !w.asked
	w.asked = true
	w.mu.Unlock()
	if ask {
		w.wake <- struct{}{} // never waits: asked says that the slot is free
	}
}

// run flushes until stopped.
func (w *worker) run() {
	for range w.wake {
		w.mu.Lock()
		list := w.list
		w.list, w.asked = w.spare[:0], false
		stop := w.stop
		w.mu.Unlock()
		for i, c := range list {
			w.flush(c)
			list[i] = nil
		}
		w.spare = list
		if stop {
			return
		}
	}
}

func (w *worker) finish() {
	w.mu.Lock()
	w.stop = true
	ask := !w.asked
	w.asked = true
	w.mu.Unlock()
	if ask {
		w.wake <- struct{}{}
	}
}

// writable is called by the reader when an armed socket takes bytes again.
func (w *worker) writable(c *Conn) {
	c.mu.Lock()
	c.blocked = false
	wake := c.wantsFlushLocked()
	c.mu.Unlock()
	if wake {
		w.add(c)
	}
}

// flush writes what waits for c.
func (w *worker) flush(c *Conn) {
	if !c.link.blocks() {
		if c.drain(&w.batch) {
			w.add(c) // the others come first
		}
		return
	}
	c.hub.wg.Go(func() {
		b := batches.Get().(*batch)
		defer batches.Put(b)
		for c.drain(b) {
		}
	})
}

// batches serves the writer goroutines of the portable path.
var batches = sync.Pool{New: func() any { return new(newBatch()) }}

// drain writes until the queue is empty, or the kernel takes no more, or it has written enough for one turn: then it reports true. The
// connection is dirty until then, so that nobody else begins.
func (c *Conn) drain(b *batch) (more bool) {
	for range flushWrites {
		c.mu.Lock()
		if c.closing != nil && c.state == stateOpen {
			// Overflow: the publisher could not do this under its locks.
			c.mu.Unlock()
			c.shut(Reason{}, true)
			continue
		}
		if c.state == stateClosed {
			c.mu.Unlock()
			return false
		}
		rest := c.rest
		c.rest = nil
		if rest == nil {
			b.frames = c.queue.take(b.frames, flushBytes)
			if len(b.frames) == 0 {
				c.inflight, c.inflightN = 0, 0
				c.emptied()
				return false
			}
			n := 0
			for _, f := range b.frames {
				if f.skip != nil {
					c.skipMark(f)
				}
				n += len(f.data)
			}
			c.inflight, c.inflightN = int32(n), int32(len(b.frames))
		}
		c.mu.Unlock()

		if !c.writeOut(b, rest) {
			return false
		}
	}
	return true
}

// emptied notes that everything is written, and shuts our half if that was all. It is called with c.mu held and returns without it, since a
// link may wait to shut.
func (c *Conn) emptied() {
	c.dirty = false
	c.dropRun = 0
	closing, behind := c.closing, c.behind > 0
	if closing == nil || closing.flushed {
		c.mu.Unlock()
		if behind && closing == nil {
			c.replayBehind()
		}
		return
	}
	closing.flushed = true
	c.mu.Unlock()
	c.link.closeWrite()
	c.mu.Lock()
	if closing.answered {
		c.closeLocked()
	}
	c.mu.Unlock()
}

// writeOut writes rest, or b's frames, with one call. It reports whether to go on.
func (c *Conn) writeOut(b *batch, rest *remainder) bool {
	frames, off := b.frames, 0
	if rest != nil {
		frames, off = rest.frames, rest.off
	}
	p := frames[0].data[off:]
	if len(frames) > 1 {
		b.scratch = append(b.scratch[:0], p...)
		for _, f := range frames[1:] {
			if len(b.scratch)+len(f.data) > flushBytes {
				break
			}
			b.scratch = append(b.scratch, f.data...)
		}
		p = b.scratch
	}
	n, err := c.link.write(p)
	w := c.worker
	w.syscalls.Add(1)
	w.bytes.Add(uint64(n))

	// Count whole frames, and keep the others.
	done := 0
	off += n
	for done < len(frames) && off >= len(frames[done].data) {
		off -= len(frames[done].data)
		done++
	}
	w.written.Add(uint64(done))
	if err == nil && done == len(frames) {
		clear(b.frames)
		return true
	}
	if err != nil && !errors.Is(err, errBlocked) {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.hub.stats.writeTimeouts.Add(1)
		}
		clear(b.frames)
		c.lost(err)
		return false
	}

	kept := make([]*frame, len(frames)-done)
	copy(kept, frames[done:])
	clear(b.frames)
	left := -off
	for _, f := range kept {
		left += len(f.data)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = &remainder{frames: kept, off: off}
	c.inflight, c.inflightN = int32(left), int32(len(kept))
	if err == nil {
		return true
	}
	if c.state == stateOpen && (rest == nil || n > 0) { // closing ends in time even if it moves
		c.waitSince = c.hub.now()
	}
	c.dirty, c.blocked = false, true
	c.link.arm()
	return false
}

// skipMark makes the bytes of a mark, now that the count is final. c.mu is held.
func (c *Conn) skipMark(f *frame) {
	s := f.skip
	if s.marker == f {
		s.marker = nil
	}
	if payload := c.hub.opts.Skipped(c.dialect, s.ch.name, uint64(f.missed)); payload != nil {
		f.data = appendFrame(nil, ws.OpText, payload)
	}
}

// lost ends a connection whose socket failed.
func (c *Conn) lost(error) {
	c.shut(Reason{Code: 1006, Text: "connection lost"}, false)
	c.mu.Lock()
	c.closeLocked()
	c.mu.Unlock()
}

// closeLocked closes the socket.
func (c *Conn) closeLocked() {
	if c.state == stateClosed {
		return
	}
	c.state = stateClosed
	c.queue.clear()
	c.rest = nil
	c.inflight, c.inflightN = 0, 0
	c.link.close()
	c.hub.forget(c)
}

// The sweep looks at every connection once in a round, a slot at a time, so that its work is even. There is no timer for a connection.
const sweepSlots = 64

func (w *worker) sweepAdd(c *Conn) {
	w.sweepMu.Lock()
	defer w.sweepMu.Unlock()
	s := &w.slots[c.id%sweepSlots]
	c.slot = int32(len(*s))
	*s = append(*s, c)
}

func (w *worker) sweepRemove(c *Conn) {
	w.sweepMu.Lock()
	defer w.sweepMu.Unlock()
	s := &w.slots[c.id%sweepSlots]
	last := len(*s) - 1
	if c.slot < 0 || last < 0 || int(c.slot) > last || (*s)[c.slot] != c {
		return
	}
	moved := (*s)[last]
	(*s)[c.slot] = moved
	moved.slot = c.slot
	(*s)[last] = nil
	*s = (*s)[:last]
	c.slot = -1
}

// sweep looks after the connections of one slot.
func (w *worker) sweep(slot int, buf []*Conn) []*Conn {
	w.sweepMu.Lock()
	buf = append(buf[:0], w.slots[slot]...)
	w.sweepMu.Unlock()
	now := w.hub.now()
	for i, c := range buf {
		c.check(now)
		buf[i] = nil
	}
	return buf
}

// check is one look of the sweep: it pings, and ends what is dead, stuck or idle.
func (c *Conn) check(now int64) {
	o := &c.hub.opts
	c.mu.Lock()
	state, overflown := c.state, c.closing != nil
	stuck := c.blocked && now-c.waitSince > int64(o.WriteTimeout)
	c.lateAcksLocked(now)
	behind := c.behind > 0 && c.queue.n+c.inflightN == 0
	lingered := state == stateClosing && now-c.waitSince > int64(lingerTime)
	if lingered {
		c.closeLocked()
	}
	c.mu.Unlock()
	if state != stateOpen {
		return
	}
	if behind {
		c.replayBehind()
	}
	if overflown { // and its writer waits for the socket
		c.shut(Reason{}, true)
		return
	}
	if stuck {
		c.hub.stats.writeTimeouts.Add(1)
		c.lost(nil)
		return
	}
	if now-c.lastRead.Load() > int64(o.PongTimeout) {
		c.hub.stats.pongTimeouts.Add(1)
		c.lost(nil)
		return
	}
	if l := c.idle.Load(); l != nil && now-c.lastMsg.Load() > int64(l.after) {
		c.Close(l.code, l.text)
		return
	}
	if now-c.lastPing >= int64(o.HeartbeatInterval) {
		c.lastPing = now
		c.ping()
	}
}

var pingFrame = &frame{data: appendFrame(nil, ws.OpPing, nil)}

// lingerTime is how long a closing connection waits for the peer's close.
const lingerTime = time.Second
