// Package object hosts durable objects: named instances on which isolated events run, wait for each other through text channels, and share an append-only log.
//
// # Objects and events
//
// An object is an id. An event is one piece of work on it: a request, an alarm, a client that comes back to poll. [Host.Do] runs a function as an event, [Host.Begin] and
// [Event.End] bracket one, and [Host.Hold] keeps one between the requests of a client. Events share nothing but what they say to each other here. However an event ends,
// by return, panic, its time limit or the end of its context, its subscriptions are cancelled; a call on an ended event is [ErrEnded].
//
// # Lifetime
//
// An instance is in memory from its first event to the end of its last one. Since a channel lives by its subscriptions and these by their events, nothing is left then, and an idle
// object costs nothing: no entry, goroutine or timer. What is to last belongs into the log. A held event ends when nothing was called on it for [Options.IdleTimeout], and with
// the last one its instance is evicted. Beginning and ending are one step each for an instance, so an event is either on the old one, which then stays, or on a new one.
//
// # Channels
//
// A channel exists from its first subscription to the end of its last. After [Event.CloseChannel] the name is free at once, for a new channel that has nothing to do
// with the old. A channel is of one process and is not durable.
//
// # Ordering
//
// Once [Event.Subscribe] has returned, every later message of the channel is queued for the subscription, and none that is earlier. All subscriptions of a channel get
// the same messages in the same order: that in which they were published.
//
// # Slow subscribers
//
// A subscription's backlog is the bytes of the texts that it has not read, or, with [Event.Peek], not confirmed. Past 1 MiB (1,048,576), or past 65,536 messages, the subscription is cut off: its unread messages are
// dropped, it does not count as delivered, and Wait says so. Publishing never waits.
//
// A message is held once for all subscriptions of its channel, until the last of them has read it. All that is held by a host counts its texts and 64 bytes for each message
// ([Options.MaxBacklogBytes]): while that is past its bound, a subscription that has unread messages is cut off in the same way when another is published to it. One that has
// read everything gets the message, so what waits of one channel never cuts off the readers of another.
//
// # Violations and statuses
//
// Wrong arguments, foreign handles, full channels and ended events are errors, each of which [errors.Is] [ErrViolation]; they change nothing. Timing out, a closed channel, a cut
// off or cancelled subscription are statuses of [Event.Wait].
//
// # The log
//
// [Event.Append] makes a text durable in the [stream.Store], then wakes the followers. [Event.Follow] yields every entry once and in order, from any place on; it is what to use
// where nothing may be lost. A store that keeps logs in memory loses them with the process, and the epoch tells.
package object
