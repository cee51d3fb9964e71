// Package hub carries messages to many WebSocket connections: it accepts them, keeps named channels of them, and fans
// a message out to a channel with one encoding, few system calls and no goroutine for each connection.
//
// # Where a message goes
//
// [Hub.Publish] walks the members of a channel. For each it appends a reference to the already framed bytes to the connection's
// queue and puts the connection on the list of its flush worker, once. A worker takes everything that waits for a connection and writes it with
// one system call, without holding the queue's lock; what the kernel does not take stays, and the worker comes back when
// the socket can be written again. There is no batching timer: a message to an idle connection leaves at once.
//
// # Ordering
//
// All members of a channel see its publications in the same order: that of the calls to [Hub.Publish], which are serialized for each
// channel. One publisher's publications to different channels reach one connection in the order of the calls. [Conn.Go] runs
// tasks of one lane in order, and tasks of different lanes side by side.
//
// # Slow consumers
//
// A queue is bounded in messages and bytes ([Options.QueueMessages], [Options.QueueBytes]). What happens when a publication finds no
// room is the publication's [Policy]. Dropped publications are counted in [Stats], and the connection is told how many of a channel it missed, at the place
// where they are missing, by a message that [Options.Skipped] encodes. A connection that takes no byte for
// [Options.WriteTimeout] is closed, whatever the policy. Neither the publisher nor another connection ever waits for a socket.
//
// # Who owns what
//
// A connection belongs to one worker for its life: only that worker writes to its socket, and only its event loop reads from it. The membership of a
// channel may change from any goroutine. [Handler.Message] runs on the event loop and must not block: work that may wait goes through
// [Conn.Go], which runs it on a bounded pool. A panic in a handler or a task closes that connection with 1011 and touches no other.
//
// # Limits
//
// The hub refuses connections past [Options.MaxConns] and channels past [Options.MaxChannels], and holds at most [Options.MaxChannelsPerConn]
// memberships and [Options.MaxTasksPerConn] waiting tasks for a connection. It gives no durability: a message is in memory only.
//
// # Transports
//
// On Linux a plain TCP connection is read through epoll and holds neither a goroutine nor a buffer while idle. TLS, other systems and
// anything without a descriptor take the portable path: a goroutine that reads, and one that writes while there is something to
// write. Both pass the same tests.
package hub
