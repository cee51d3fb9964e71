package ackbus

import (
	"context"
	"fmt"
)

// ReceiverOptions configures a [Receiver]. The zero value is ready to use.
type ReceiverOptions struct {
	// Queue is how many frames wait for the handler. Those past it are dropped. Zero means 1024.
	Queue int
}

// Receiver is the other half of a [Bus]: it handles the frames for one receiver, and those for everyone, and acknowledges each when the handler has returned.
type Receiver struct {
	channel Channel
	id      string
	handle  func(frame []byte)
	queue   chan queued
	stop    func()
}

type queued struct {
	seq   uint64
	frame []byte
}

// NewReceiver listens on channel for the frames of id, which wait until Run. The handler owns no frame: others may read it too. Each Receiver is run once.
func NewReceiver(channel Channel, id string, handle func(frame []byte), opts ReceiverOptions) (*Receiver, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	if channel == nil || handle == nil || opts.Queue < 0 {
		return nil, ErrOptions
	}
	if opts.Queue == 0 {
		opts.Queue = 1024
	}
	r := &Receiver{channel: channel, id: id, handle: handle, queue: make(chan queued, opts.Queue)}
	stop, err := channel.Listen(r.receive)
	if err != nil {
		return nil, err
	}
	r.stop = stop
	return r, nil
}

func (r *Receiver) receive(message []byte) {
	seq, receiver, frame, ok := decodeFrame(message)
	if !ok || len(receiver) > 0 && string(receiver) != r.id {
		return
	}
	select {
	case r.queue <- queued{seq, frame}:
	default:
	}
}

// Run calls the handler for one frame after the other until ctx ends, and returns its error; or that of the channel, when an acknowledgement cannot be
// posted. It has stopped to listen then.
func (r *Receiver) Run(ctx context.Context) error {
	defer r.stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case q := <-r.queue:
			r.handle(q.frame)
			if err := r.channel.Post(encodeAck(q.seq, r.id)); err != nil {
				return fmt.Errorf("ackbus: acknowledge: %w", err)
			}
		}
	}
}
