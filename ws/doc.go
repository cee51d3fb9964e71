// Package ws is a WebSocket hub with a small JSON protocol: channels that clients subscribe to, authentication when a client connects, and a client that reconnects.
// It has the API and the wire format of the go-ws package, and is built on package hub.
//
// # Messages
//
// One [Message] is one WebSocket text frame, in both directions. A client sends
//
//	{"type":"subscribe","data":"process:proc-1"}
//	{"type":"unsubscribe","data":"process:proc-1"}
//	{"type":"ping"}
//
// and a ping is answered by {"type":"pong"}. Anything else is answered by a message of type "error", and the connection stays.
//
// # Slow clients
//
// Each client has a bounded queue. When it is full, [Hub.Broadcast] disconnects the client with close code 1013, and [Hub.SendToChannel] drops the message for that client
// only and counts it. Neither ever waits for a client.
//
// # Ordering
//
// All subscribers of a channel get its messages in the order of the calls. The messages of one client are handled one after the other, in the order sent.
//
// # Authentication
//
// Without [HubConfig.Authenticator] everyone is accepted. With it, the decision comes before the upgrade, and a refused request gets HTTP 401. Package [auth] says where a token is read from. A browser, which cannot set
// headers, offers its token as a subprotocol; it must offer "tidewire.ws" beside it, since a browser fails a connection of which no offered
// subprotocol was selected, and the entry with the token never is:
//
//	new WebSocket(url, ["tidewire.ws", "tidewire.token." + token])
//
// With [HubConfig.AllowFirstFrameAuth] a client may also connect without a token and send {"type":"auth","data":"TOKEN"} as its first message within 10 s. Until that is accepted nothing is
// sent to it and nothing else is handled. It is not answered if it is accepted; otherwise the connection is closed with 1008, or with 1013 if the token could not be judged. An "auth" message at any other time is ignored.
//
// A connection whose credential says when it expires is closed with 1008 at that time. Tokens are never logged.
//
// # Who may subscribe
//
// Without [HubConfig.OnSubscribe] every client may subscribe to every channel. With it, the callback decides.
//
// # Callbacks
//
// The callbacks of one client run one at a time, off the event loop: OnConnect before anything that it sends is handled, OnDisconnect last. A panic in a callback is counted
// in [HubStats] and ends that client's connection at most. Callbacks of different clients run side by side.
//
// # Limits
//
// Delivery is at most once: a client that is not connected misses what is sent. A message from a client has at most 64 KiB, a channel's name 1 to 255 bytes. What a client has sent and was not yet handled is bounded at 1 MiB; past that it is disconnected with 1008.
package ws
