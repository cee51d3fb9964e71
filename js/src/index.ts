/**
 * The browser client of the Tidewire realtime server.
 *
 * # Delivery
 * Messages of a channel arrive in one order, the same for all, and none twice. On a channel with history, what was published while the connection
 * was gone arrives when it is back. What this connection was too slow for is counted (`skipped`), and what cannot be had any more is told (`lost`).
 *
 * # Concurrency
 * One client is for one page. Nothing here waits on another tab.
 */
export type { BackoffOptions } from './backoff.js'
export type { Channel, ChannelEvents, ChannelStatus, Lost, Message, MessageOptions, Skipped } from './channel.js'
export { type Client, type ClientOptions, createClient } from './client.js'
// The table itself stays out of the bundle: an application switches on the type.
export type { Code } from './codes.js'
export type { WebSocketLike } from './connection.js'
export { type ErrorDetails, TidewireError } from './error.js'
export type { Limits, Position } from './frames.js'
export { type ChannelDefinition, type ChannelTypes, defineChannel, type ParamNames, type Params, type TypeOf } from './names.js'
export type { ObserveOptions, Presence, PresenceOptions, RosterHandle, RosterState } from './presence.js'
export type { Published, PublishOptions } from './publisher.js'
export type { Member } from './roster.js'
export type { ConnectionState } from './state.js'
export type { ListenOptions, Observable } from './store.js'
export type { Token } from './token.js'
