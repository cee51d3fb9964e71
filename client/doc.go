// Package client is a Tidewire client for programs: one connection that comes back by itself, channels with rosters, live queries, and publications with an answer.
//
//	c, err := client.New(client.Options{URL: "wss://example.com", Token: token})
//	sub, err := c.Subscribe("room.1", client.SubscribeOptions{OnMessage: func(m client.Message) { … }})
//	err = c.Run(ctx)
//
// # Life
//
// [New] starts nothing. [Client.Run] connects and reconnects until its context ends, or until the server says that coming back cannot help; it has stopped
// every goroutine when it returns. Subscribe and Publish may be called before, during and between connections.
//
// # Callbacks
//
// All callbacks run one after the other, in the order of the events, on the goroutine that called Run; those of live queries that have waited too long for others (see below) on one of their own, while Run's waits. While one runs nothing is read: a slow one slows down
// the connection, nothing is held for it in this package, and a server that runs out of room for it drops messages and says how many (OnSkipped), or, on channels with history, gives them later from there. Beats go on meanwhile, but
// a server gives up a connection that takes nothing for 10 s while there is something to take, or that answers no ping for a minute. A callback may call every method but
// [Client.Publish], which would wait for what only that goroutine can read (with NoWait it may be called). After [Subscription.Close] at most the callback runs that was about to.
//
// # Delivery
//
// On a channel without history, at most once: what is published while a client is away, or too slow, is not delivered later. [SubscribeOptions].OnSubscribed marks each point from which on everything comes.
//
// On a channel with history each message reaches OnMessage once and in the order of the channel's log, also what was published while the client was away: a subscription keeps its
// [Position], goes on from there on each later connection, ignores repetitions, and asks again when messages are missing. Where the server cannot give them any more (they were trimmed, have expired, or
// the log was lost) OnLost is told, and nothing is left out without it but what OnSkipped tells, which the channel's policy must allow. What was skipped may come all the same,
// if the connection is lost before the next message.
//
// A program that stores [Subscription.Position], or, in the same transaction as what it does with a message, [Message].Offset and [Message].Epoch, goes on from there after a restart with
// [SubscribeOptions].Since.
//
// # What runs on a resume
//
// On each connection, whether recovery succeeded or not: OnLost, if it did not; then OnSubscribed, which is told whether it did; then OnMessage for what was missed, and for what is live; with
// a roster, OnPresence for the snapshot. While a subscription is live, a repair that succeeds runs no callback but OnMessage, and one that does not runs OnLost, without OnSubscribed.
//
// # Acknowledging
//
// With [SubscribeOptions].Ack the client acknowledges what OnMessage has returned from, all messages up to one at once: about every 100 ms, or as soon as 32 wait for it, and on Close. A
// handler that takes long is seen by the server, which treats this client as slow then. The server forgets acknowledgements with the connection.
//
// # Live queries
//
// A [LiveQuery] holds the rows of a query that the server declares, in its order, as JSON. OnChange sees each version once they have come: one commit of the database each, whole, and never
// the half of one. What one commit changed in several live queries of a client is shown in all of them before OnChange is called for the first: they wait for each other, up to a quarter of a second, but not for what was missed while
// there was no connection, or for a query that the server reads again. While there is no connection the rows stay as they were; on the next one the client gets the commits that it missed, or, where the server has not kept them, all rows anew, of which
// OnChange sees the newest alone. After each change the rows are held against the server's checksum. Rows that have drifted are never shown: they are read anew, and counted ([LiveQuery.Drifts]).
//
// # Publishing
//
// A publication whose connection is lost before its answer has an unknown effect: [ErrUncertain]. On a channel of which the client knows that it has history (the server answered an earlier
// publication with an offset, or a subscription of it with a position) it is sent again with the same id on the next connection instead, within the caller's context and 90 s after it
// was first sent, as long as the session is the same; and the server, which knows the ids of two minutes, appends it once. A log that was lost meanwhile has forgotten them: then OnLost tells subscribers
// that the log is another. The client remembers 1024 channels to have history.
//
// A publication that Publish has given up is not sent afterwards.
//
// # Reconnecting
//
// The delay is the one that the server asks for, or a random one below a bound that grows from 0.5 s to 30 s. A new connection gets all subscriptions again, with
// the newest presence data and states, within the frame rate that the server announces. The session keeps its identity.
//
// # Credentials
//
// [Options].Token is asked before each dial, and in time before a grant that expires ends; never twice at once. A client with a Token never connects without one. A
// refused credential is replaced once; when the fresh one is refused too, or is the same, Run returns the server's error.
package client
