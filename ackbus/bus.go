package ackbus

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// SlowThreshold is how many frames may be pending for a receiver that is not slow.
const SlowThreshold = 2

// MaxReceiverBytes bounds the id of a receiver.
const MaxReceiverBytes = 4096

var (
	// ErrReceiver is the answer to a receiver id that is empty, longer than MaxReceiverBytes, or not UTF-8.
	ErrReceiver = errors.New("ackbus: a receiver id is 1 to 4096 bytes of UTF-8")
	// ErrDisposed is the answer of a bus after Dispose.
	ErrDisposed = errors.New("ackbus: the bus is disposed")
	// ErrOptions is the answer to options that are out of bounds, and to a missing channel.
	ErrOptions = errors.New("ackbus: the channel is missing, or an option is negative")
)

// Options configures a [Bus]. The zero value is ready to use.
type Options struct {
	// AckTimeout is how long a receiver has to acknowledge a frame. Zero means 5 s.
	AckTimeout time.Duration
	// OnSlowConsumer is called when a receiver becomes slow. It may call the bus. Nil means that nobody is told.
	OnSlowConsumer func(receiver string)
	// MaxPending is how many frames the bus remembers. Past it the oldest counts as timed out. Zero means 1,048,576.
	MaxPending int
}

// Bus posts frames and follows their acknowledgements. It is safe for concurrent use.
type Bus struct {
	// Set by New, then read-only.
	channel Channel
	opts    Options
	start   time.Time
	stop    func()

	// sending is held while a frame is posted, so that frames are posted in the order of their numbers. It is taken before mu.
	sending sync.Mutex

	mu        sync.Mutex // guards below
	disposed  bool
	receivers map[string]*receiver
	slots     []*receiver // by receiver.slot; nil where one is free
	free      []int
	frames    queue
	crowds    map[uint64]*crowd // the broadcasts among frames
	open      int               // frames that are pending for somebody
	timer     *time.Timer       // nil until the first frame
	armed     bool
}

type receiver struct {
	id      string
	slot    int
	pending int
	late    uint64 // the newest frame that timed out
	slow    bool
	closed  bool
}

// crowd is the receivers that a broadcast is pending for.
type crowd struct {
	waiting []uint64 // one bit for each slot
	left    int
}

// everyone stands in the queue for a crowd.
var everyone = &receiver{}

// New returns a bus that posts to channel and listens there for acknowledgements, until Dispose.
func New(channel Channel, opts Options) (*Bus, error) {
	if channel == nil || opts.AckTimeout < 0 || opts.MaxPending < 0 {
		return nil, ErrOptions
	}
	if opts.AckTimeout == 0 {
		opts.AckTimeout = 5 * time.Second
	}
	if opts.MaxPending == 0 {
		opts.MaxPending = 1 << 20
	}
	opts.AckTimeout = min(opts.AckTimeout, 1<<62) // deadlines do not overflow
	b := &Bus{channel: channel, opts: opts, start: time.Now(), receivers: map[string]*receiver{}, crowds: map[uint64]*crowd{}, frames: queue{first: 1, next: 1}}
	stop, err := channel.Listen(b.receive)
	if err != nil {
		return nil, err
	}
	b.stop = stop
	return b, nil
}

// Send posts frame for one receiver and expects its acknowledgement. It returns ErrReceiver for a malformed id, ErrDisposed after Dispose, or the error of the channel, with nothing expected.
func (b *Bus) Send(receiver string, frame []byte) error {
	return b.post(receiver, frame, receiver)
}

// Broadcast posts one message for everyone on the channel and expects an acknowledgement from each of receivers. Its errors are those of Send.
func (b *Bus) Broadcast(frame []byte, receivers ...string) error {
	return b.post("", frame, receivers...)
}

func (b *Bus) post(name string, frame []byte, to ...string) error {
	for _, id := range to {
		if err := checkID(id); err != nil {
			return err
		}
	}
	slow, err := b.postInOrder(name, frame, to)
	b.tell(slow)
	return err
}

func (b *Bus) postInOrder(name string, frame []byte, to []string) (slow []*receiver, err error) {
	b.sending.Lock()
	defer b.sending.Unlock()
	seq := b.frames.next // changes under both locks
	message, err := encodeFrame(seq, name, frame)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	if b.disposed {
		b.mu.Unlock()
		return nil, ErrDisposed
	}
	// Before the post: an acknowledgement may come before it returns.
	over, late := b.expectLocked(to)
	b.mu.Unlock()

	err = b.channel.Post(message)

	if err == nil && over == nil {
		return late, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.forgetLocked(seq)
		return late, err
	}
	for _, r := range over {
		if r.pending > SlowThreshold {
			r.slow = true
			late = append(late, r)
		}
	}
	return late, nil
}

// expectLocked takes the next number for a frame that is pending for each of to. It returns whose pending frames are too many now, and who is slow because there is no
// room for an older frame.
func (b *Bus) expectLocked(to []string) (over, late []*receiver) {
	if b.frames.len() >= b.opts.MaxPending {
		late = b.giveUpLocked(nil)
	}
	f := frame{due: int64(time.Since(b.start) + b.opts.AckTimeout)}
	if len(to) == 1 {
		f.to = b.openLocked(to[0])
		over = f.to.expect(nil)
	} else if len(to) > 1 {
		c := &crowd{}
		for _, id := range to {
			r := b.openLocked(id)
			if c.add(r.slot, len(b.slots)) {
				over = r.expect(over)
			}
		}
		f.to = everyone
		b.crowds[b.frames.next] = c
	}
	b.frames.push(f)
	if f.to == nil {
		b.frames.trim()
		return over, late
	}
	b.open++
	if !b.armed {
		b.armLocked(b.opts.AckTimeout)
	}
	return over, late
}

func (r *receiver) expect(over []*receiver) []*receiver {
	if r.pending++; r.pending > SlowThreshold && !r.slow {
		over = append(over, r)
	}
	return over
}

func (b *Bus) openLocked(id string) *receiver {
	r := b.receivers[id]
	if r != nil {
		return r
	}
	r = &receiver{id: id, slot: len(b.slots)}
	if n := len(b.free); n > 0 {
		r.slot, b.free = b.free[n-1], b.free[:n-1]
		b.slots[r.slot] = r
	} else {
		b.slots = append(b.slots, r)
	}
	b.receivers[id] = r
	return r
}

// add reports whether slot was not there yet.
func (c *crowd) add(slot, slots int) bool {
	if words := (slots + 63) / 64; len(c.waiting) < words {
		c.waiting = append(c.waiting, make([]uint64, words-len(c.waiting))...)
	}
	word, bit := &c.waiting[slot/64], uint64(1)<<(slot%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	c.left++
	return true
}

// take reports whether slot was there.
func (c *crowd) take(slot int) bool {
	if slot/64 >= len(c.waiting) {
		return false
	}
	word, bit := &c.waiting[slot/64], uint64(1)<<(slot%64)
	if *word&bit == 0 {
		return false
	}
	*word &^= bit
	c.left--
	return true
}

// receive takes what others post: acknowledgements, and what is none of the bus's.
func (b *Bus) receive(message []byte) {
	seq, id, ok := decodeAck(message)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.receivers[string(id)]
	switch {
	case r == nil:
	case b.settleLocked(seq, r):
		if r.pending--; r.pending == 0 {
			r.slow = false
		}
		b.restLocked()
	case r.pending == 0 && seq == r.late:
		r.slow = false
	}
}

// settleLocked reports whether frame seq was pending for r. It no longer is.
func (b *Bus) settleLocked(seq uint64, r *receiver) bool {
	f := b.frames.at(seq)
	if f == nil || f.to == nil {
		return false
	}
	if f.to == everyone {
		c := b.crowds[seq]
		if !c.take(r.slot) {
			return false
		}
		if c.left > 0 {
			return true
		}
		delete(b.crowds, seq)
	} else if f.to != r {
		return false
	}
	f.to = nil
	b.open--
	return true
}

// giveUpLocked takes the oldest frame off the queue. It appends to late whom that made slow.
func (b *Bus) giveUpLocked(late []*receiver) []*receiver {
	seq := b.frames.first
	miss := func(r *receiver) {
		r.pending--
		r.late = seq
		if !r.slow {
			r.slow = true
			late = append(late, r)
		}
	}
	b.dropLocked(seq, miss)
	b.frames.trim()
	return late
}

// forgetLocked takes back a frame that was not posted.
func (b *Bus) forgetLocked(seq uint64) {
	b.dropLocked(seq, func(r *receiver) { r.pending-- })
	b.restLocked()
}

// dropLocked ends frame seq and calls each for whom it was pending.
func (b *Bus) dropLocked(seq uint64, each func(*receiver)) {
	f := b.frames.at(seq)
	if f == nil || f.settled() {
		return
	}
	if f.to == everyone {
		for i, word := range b.crowds[seq].waiting {
			for ; word != 0; word &= word - 1 {
				each(b.slots[i*64+bits.TrailingZeros64(word)])
			}
		}
		delete(b.crowds, seq)
	} else {
		each(f.to)
	}
	f.to = nil
	b.open--
}

// restLocked forgets what is settled, and stops the timer when nothing is pending.
func (b *Bus) restLocked() {
	b.frames.trim()
	if b.open == 0 && b.armed {
		b.timer.Stop()
		b.armed = false
	}
}

func (b *Bus) armLocked(d time.Duration) {
	b.armed = true
	if b.timer == nil {
		b.timer = time.AfterFunc(d, b.expire)
	} else {
		b.timer.Reset(d)
	}
}

// expire runs when the timer fires: for the oldest frame, or for one that was settled since.
func (b *Bus) expire() {
	b.mu.Lock()
	now := int64(time.Since(b.start))
	var late []*receiver
	for f := b.frames.at(b.frames.first); f != nil && f.due <= now; f = b.frames.at(b.frames.first) {
		late = b.giveUpLocked(late)
	}
	b.armed = false
	if b.open > 0 {
		b.armLocked(time.Duration(b.frames.at(b.frames.first).due - now))
	}
	b.mu.Unlock()
	b.tell(late)
}

// tell reports receivers that became slow, except those that were closed since.
func (b *Bus) tell(slow []*receiver) {
	if b.opts.OnSlowConsumer == nil {
		return
	}
	for _, r := range slow {
		b.mu.Lock()
		id, closed := r.id, r.closed
		b.mu.Unlock()
		if !closed {
			b.opts.OnSlowConsumer(id)
		}
	}
}

// Close forgets a receiver: what is pending for it, and whether it is slow. Frames sent to it later count anew. It does nothing for a receiver that is not known.
func (b *Bus) Close(receiver string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.receivers[receiver]
	if r == nil {
		return
	}
	delete(b.receivers, receiver)
	for seq, c := range b.crowds {
		if r.pending == 0 {
			break
		}
		if c.take(r.slot) {
			r.pending--
			if c.left == 0 {
				delete(b.crowds, seq)
				b.frames.at(seq).to = nil
				b.open--
			}
		}
	}
	// What is left was sent to it alone. The queue holds the nameless rest until it comes to it.
	b.open -= r.pending
	b.slots[r.slot] = nil
	b.free = append(b.free, r.slot)
	*r = receiverClosed
	b.restLocked()
}

var receiverClosed = receiver{closed: true}

// Slow reports whether a receiver is slow.
func (b *Bus) Slow(receiver string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.receivers[receiver]
	return r != nil && r.slow
}

// SlowConsumers returns the receivers that are slow, sorted.
func (b *Bus) SlowConsumers() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var ids []string
	for id, r := range b.receivers {
		if r.slow {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Pending returns how many frames are pending for each receiver.
func (b *Bus) Pending() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := make(map[string]int, len(b.receivers))
	for id, r := range b.receivers {
		counts[id] = r.pending
	}
	return counts
}

// Dispose ends the bus: it stops to listen, stops the timer and forgets everything. A callback that runs meanwhile may end after it. Calls after the first do nothing.
func (b *Bus) Dispose() {
	b.mu.Lock()
	if b.disposed {
		b.mu.Unlock()
		return
	}
	b.disposed = true
	for _, r := range b.receivers {
		*r = receiverClosed
	}
	b.receivers, b.slots, b.free, b.crowds, b.open = nil, nil, nil, nil, 0
	b.frames = queue{first: b.frames.next, next: b.frames.next}
	b.restLocked()
	b.mu.Unlock()
	b.stop()
}
