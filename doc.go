// Package tidewire is a realtime data server to embed: channels with presence on one connection and one protocol, for browsers and programs.
//
//	tw, err := tidewire.New(tidewire.Options{Authenticate: authenticate})
//	err = tw.Channel("room.{id}", tidewire.ChannelOptions{Guard: guard, Presence: true})
//	go tw.Run(ctx)
//	http.ListenAndServe(":8080", tw)
//
// # Who may what
//
// [Options.Authenticate] decides before the upgrade who a connection is. Channels deny by default: a channel that no declaration names, or
// whose guard does not allow it, is TOPIC_FORBIDDEN. A guard decides for one actor, channel and action, and is asked again when a grant is
// renewed.
//
// # Ordering and delivery
//
// All subscribers of a channel see its messages in one order. The subscribed reply comes before any of them and means "live from here". Delivery is at
// most once: a subscriber that is too slow misses messages as the channel's [Policy] says, and is told how many. Commands of one connection about one channel are
// handled in the order sent.
//
// # Presence
//
// A roster has a version; a snapshot at v and the differences after it always give the server's roster. A lost connection keeps its member for [Options.PresenceGrace], a
// clean close does not. A member that does not repeat its subscribe within [Options.PresenceTTL] is taken out.
//
// # Limits
//
// Every limit of [Limits] is taken as a reservation before anything is waited for, so that many requests at once cannot pass it. No
// client can raise one.
//
// # Life
//
// [New] starts nothing. [Node.Run] blocks; when its context ends it drains: it stops accepting, gives each client its own slot to come back, and returns when every
// connection, goroutine and presence entry is gone.
package tidewire
