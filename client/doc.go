// Package client is a Tidewire client for programs: one connection that comes back by itself, channels with rosters, and publications with an answer.
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
// All callbacks run one after the other, in the order of the events, on the goroutine that called Run. While one runs nothing is read: a slow one slows down
// the connection, nothing is held for it in this package, and a server that runs out of room for it drops messages and says how many (OnSkipped). Beats go on meanwhile, but
// a server gives up a connection that takes nothing for 10 s while there is something to take, or that answers no ping for a minute. A callback may call every method but
// [Client.Publish], which would wait for what only that goroutine can read (with NoWait it may be called). After [Subscription.Close] at most the callback runs that was about to.
//
// # Delivery
//
// At most once: what is published while a client is away, or too slow, is not delivered later. [SubscribeOptions].OnSubscribed marks each point from which on everything comes.
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
