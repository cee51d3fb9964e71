// Package ackbus makes slow receivers of a one-to-many channel visible to the sender: every frame is acknowledged, and who does not keep up is
// reported. The channel may be a NATS or Redis subject, a WebSocket, or a [Local] one: whatever satisfies [Channel]. The package tidewire/bus in js/ is the
// same bus; docs/envelope.md has the messages. A channel has one bus: an acknowledgement does not say which one it is for.
//
// # What is counted
//
// A frame is pending for a receiver from when it is sent until the receiver has acknowledged it or [Options.AckTimeout] has passed. [Bus.Pending] has the
// number for each receiver, from the first frame for it until [Bus.Close].
//
// # Slow receivers
//
// A receiver becomes slow when more than [SlowThreshold] frames are pending for it, or when one times out. [Options.OnSlowConsumer] is called once for that.
// It stops being slow when it has acknowledged everything, that is, when
// no frame is pending for it and it has acknowledged the newest one that was; then a later slowness is reported again.
//
// An acknowledgement that comes after the time-out brings back neither the frame nor the count. It matters in one case: if it is for the newest frame that timed out, and nothing
// else is pending, the receiver has caught up and is no longer slow. So a receiver recovers though the sender, as its policy may be, sends it nothing meanwhile; and
// a frame that the channel lost does not leave its receiver slow for ever: the next one that is acknowledged in time will do. Acknowledgements that are unknown, repeated or malformed,
// and those of closed receivers, change nothing.
//
// # Delivery
//
// Frames are posted in the order of their numbers, which start at 1 and grow by one. A frame is posted once: it is never sent again, whatever
// becomes of it. [Bus.Broadcast] is one message, however many receivers there are; to note each of them is what
// its cost grows by. The number of a frame that the channel refused is not used again.
//
// # Bounds
//
// A frame in flight costs 16 bytes, a broadcast one bit more for each receiver, a receiver one entry until it is closed. The bus
// remembers at most [Options.MaxPending] frames: past it the oldest counts as timed out. All frames share one time-out, so the queue of deadlines is
// the queue of frames, and the bus has one timer, which runs only while something is pending.
//
// # Who owns what
//
// The bus starts no goroutine. Callbacks run on the goroutine that sent, or on the timer's, without locks held, and may call the bus. The channel belongs to the caller,
// who closes it after [Bus.Dispose]. A [Receiver] queues a bounded number of frames; what finds no room is dropped, so never acknowledged, which is how the sender learns of it.
//
// A hub that sends by a bus asks [Bus.Slow], and applies to a slow receiver what its policy says of a full queue; the example of that method shows it.
package ackbus
