import type { BackoffOptions } from './backoff.js'
import { type Channel, createSharedChannel, type SharedChannel } from './channel.js'
import { createConnection, type WebSocketLike } from './connection.js'
import type { Link, LinkedClient } from './link.js'
import { type ChannelDefinition, channelName, type ChannelTypes, type ParamNames, type Params } from './names.js'
import { createPublisher } from './publisher.js'
import type { ConnectionState } from './state.js'
import type { Observable } from './store.js'
import type { Token } from './token.js'

/** Options of {@link createClient}. Only `url` is needed. */
export interface ClientOptions {
  /** The server's socket: `wss://example.com/v1/socket`, or `/v1/socket` for the page's own host. http becomes ws. One that the browser does not take stops the client with CONNECTION_FAILED. */
  readonly url: string | URL
  /** The credential. Absent: an anonymous client. See {@link Token}. */
  readonly token?: Token
  /** This page's build, 1 to 64 bytes. When the server's differs, the connection state has `updateAvailable`. */
  readonly build?: string
  /** Bounds of the delay between two dials: full jitter from 250 ms to 4000 ms. The server's own slot comes first. */
  readonly backoff?: BackoffOptions
  /** Milliseconds between heartbeats. Default: what the server announces, 15,000. */
  readonly heartbeatMs?: number
  /** How many messages wait for a connection or for the server's rate before publish fails with QUEUE_FULL. Default 256. */
  readonly queueSize?: number
  /** Milliseconds between two states of a channel that are sent. Default 33. */
  readonly stateIntervalMs?: number
  /** Default: the global WebSocket. */
  readonly WebSocket?: WebSocketLike
  /** Numbers from 0 up to 1, for jitter. Default Math.random. */
  readonly random?: () => number
}

type ParamsArgument<Pattern extends string> = [ParamNames<Pattern>] extends [never] ? [] : [params: Params<Pattern>]

/** A connection to a Tidewire server and the channels on it. */
export interface Client {
  /** Where the connection is. */
  readonly connection: Observable<ConnectionState>
  /** The channel of a definition, with its parameters. Throws CHANNEL_INVALID. */
  channel<Pattern extends string, T extends ChannelTypes>(definition: ChannelDefinition<Pattern, T>, ...params: ParamsArgument<Pattern>): Channel<T>
  /** The channel with a name. Throws CHANNEL_INVALID. */
  channel<T extends ChannelTypes = ChannelTypes>(name: string): Channel<T>
  /** Dials now. Subscribing and publishing do so by themselves; after {@link close} or a stop only this does. */
  connect(): void
  /** Closes and stays closed: messages not yet answered fail, channels become idle and come back with the next connect. */
  close(): void
}

/** Makes a client. It opens nothing until it is used, so that it may be made where there is no WebSocket, as when rendering on a server. */
export function createClient(options: ClientOptions): Client {
  // Weakly, so that a page that visits many channels does not keep them all; `active` holds those in use.
  const channels = new Map<string, WeakRef<SharedChannel>>()
  const active: Link['_active'] = new Map()
  let lastSid = 0

  const connection = createConnection(
    { random: Math.random, queueSize: 256, ...options },
    {
      _ready(session) {
        publisher._ready(session)
        for (const channel of [...active.values()]) channel._ready()
      },
      _take(frame) {
        if (frame.type === 'published' && (frame.epoch || !frame.offset)) publisher._done(frame)
        else if (frame.type === 'refused' && frame.re === 'publish') publisher._refused(frame)
        else active.get((frame as { readonly channel?: string }).channel)?._take(frame)
      },
      _beat() {
        for (const channel of active.values()) channel._beat()
      },
      _lost() {
        publisher._lost()
        for (const channel of [...active.values()]) channel._lost()
      },
      _busy: () => active.size > 0 || publisher._busy(),
    },
  )
  const publisher = createPublisher(connection)
  const link: Link = {
    _connection: connection,
    _publisher: publisher,
    _stateIntervalMs: options.stateIntervalMs ?? 33,
    _active: active,
    _nextSid: () => String(++lastSid),
  }

  function open(name: string): SharedChannel {
    const channel = createSharedChannel(name, link, (inUse) => {
      if (inUse) {
        active.set(name, channel)
        connection._need()
      } else active.delete(name)
    })
    // Those that nobody has any more.
    for (const [other, reference] of channels) if (!reference.deref()) channels.delete(other)
    channels.set(name, new WeakRef(channel))
    return channel
  }

  const self: LinkedClient = {
    _link: link,
    connection: connection._state,
    channel(channel: ChannelDefinition | string, params?: Readonly<Record<string, string | number>>) {
      const name = channelName(typeof channel === 'string' ? channel : channel.pattern, params)
      // The types of what a channel carries are the caller's word.
      return (channels.get(name)?.deref() ?? open(name)) as never
    },
    connect: connection._connect,
    close: connection._close,
  }
  return self
}
