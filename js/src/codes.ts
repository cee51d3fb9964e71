/**
 * Every stable error code that a client can meet. The first group is the server's (`docs/errors.md`); the second
 * is made by this package and never travels.
 */
export const codes = [
  // The server's.
  'PROTOCOL_VERSION', // it does not speak this protocol version or message type
  'SOCKET_UNAUTHENTICATED', // the credential is wrong, missing, expired or withdrawn
  'SOCKET_AUTH_UNAVAILABLE', // it could not check the credential now
  'ORIGIN_FORBIDDEN', // the page's origin is not allowed
  'CONNECTION_LIMIT', // it has as many connections as it takes
  'ACCEPT_BUDGET', // it accepts no more connections this second
  'DRAINING', // it is going away
  'TOPIC_FORBIDDEN', // no guard allows this on this channel
  'GUARD_FAILED', // the guard could not decide now
  'SUBSCRIPTION_LIMIT', // there are as many subscriptions or channels as it takes
  'SUBSCRIPTION_ID_TAKEN', // the sid, or the channel, already has a subscription on this connection
  'SUBSCRIPTION_UNKNOWN', // no subscription has this sid
  'PRESENCE_DISABLED', // the channel keeps no roster
  'PRESENCE_NOT_JOINED', // this session is not in the roster
  'AUTH_REFRESH_REFUSED', // it does not take this token on an open connection
  'MESSAGE_TOO_LARGE', // the message is larger than a connection may queue
  'TIMEOUT', // its answer was not ready in time
  'INTERNAL', // a fault of its own
  'FRAME_RATE_LIMIT', // more frames were sent than it takes
  'HANDSHAKE_INVALID', // the request is not an upgrade that it takes
  'HISTORY_DISABLED', // the channel keeps no history
  'HISTORY_UNAVAILABLE', // the history could not be read or written now
  'LIVE_QUERY_UNKNOWN', // no live query has this name
  'INPUT_INVALID', // the input is not what the live query takes
  'RESULT_TOO_LARGE', // the live query has more rows or bytes than one may
  'DATABASE_UNAVAILABLE', // the database could not be read now
  // The server's over HTTP alone.
  'HISTORY_GAP', // the history does not hold what was asked for
  'QUERY_INVALID', // a parameter of the address is not what the path takes
  'API_KEY_REQUIRED', // the API key is missing or wrong
  'NOT_FOUND', // there is nothing at this path
  'METHOD_NOT_ALLOWED', // the path does not take this method
  'BODY_INVALID', // the body is not what the path takes
  'BODY_TOO_LARGE', // the body is too large
  'CONFIG_INVALID', // the configuration is wrong: it does not start
  'HANDLE_UNKNOWN', // the object has no such subscription, or no longer
  // The server's, and made by this package too.
  'CHANNEL_INVALID', // the channel name, or a parameter of it, is not allowed
  'DATA_INVALID', // the data is missing, malformed or too deep; made here: it has no JSON form, or the message id is in use
  // Made by this package.
  'ANSWER_TIMEOUT', // no answer in 10 s: whether the message took effect is unknown
  'CLOSED', // the client was closed
  'CONNECTION_FAILED', // the connection could not be made
  'CONNECTION_LOST', // the connection ended; for a message that was sent, whether it took effect is unknown
  'FRAME_TOO_BIG', // the message is larger than the server takes
  'PRESENCE_TOO_BIG', // the presence data or state is larger than the server takes
  'QUEUE_FULL', // too many messages wait to be sent
  'SERVER_SILENT', // nothing has arrived from the server for too long
  'TOKEN_UNAVAILABLE', // the token provider failed, or gave a refused token again
  'UNSUBSCRIBED', // the server ended the subscription and gave no code
  'WORKER_INCOMPATIBLE', // the page and the worker are of two builds
  'WORKER_LOST', // the worker died; whether the call took effect is unknown
  'WORKER_UNAVAILABLE', // no worker can be had here
] as const

/** A code in the table {@link codes}. A newer server may send others: treat `code` as an open set. */
export type Code = (typeof codes)[number]
