/**
 * The browser client of the Tidewire realtime server.
 *
 * # Delivery
 * Messages of a channel arrive in one order, the same for all. Delivery is at most once: what this connection
 * was too slow for is counted (`skipped`), what is published while it is gone is not delivered later.
 *
 * # Concurrency
 * One client is for one page. Nothing here waits on another tab.
 */
export type { BackoffOptions } from './backoff.js'
export type { Channel, ChannelEvents, ChannelStatus, Message, Skipped } from './channel.js'
export { type Client, type ClientOptions, createClient } from './client.js'
// The table itself stays out of the bundle: an application switches on the type.
export type { Code } from './codes.js'
export type { WebSocketLike } from './connection.js'
export { type ErrorDetails, TidewireError } from './error.js'
export type { Limits } from './frames.js'
export { type ChannelDefinition, type ChannelTypes, defineChannel, type ParamNames, type Params, type TypeOf } from './names.js'
export type { ObserveOptions, Presence, PresenceOptions, RosterHandle, RosterState } from './presence.js'
export type { PublishOptions } from './publisher.js'
export type { Member } from './roster.js'
export type { ConnectionState } from './state.js'
export type { ListenOptions, Observable } from './store.js'
export type { Token } from './token.js'
