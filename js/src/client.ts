import type { BackoffOptions } from './backoff.js'
import { type Channel, SharedChannel } from './channel.js'
import { Connection, type ConnectionHandler, type WebSocketLike } from './connection.js'
import type { ServerFrame } from './frames.js'
import type { Link } from './link.js'
import { type ChannelDefinition, channelName, type ChannelTypes, type ParamNames, type Params } from './names.js'
import { Publisher } from './publisher.js'
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
  return new TidewireClient(options)
}

class TidewireClient implements Client, ConnectionHandler {
  readonly connection: Observable<ConnectionState>
  readonly #link: Link
  // Weakly, so that a page that visits many channels does not keep them all; #active holds those in use.
  readonly #channels = new Map<string, WeakRef<SharedChannel>>()
  readonly #collected = new FinalizationRegistry<string>((name) => {
    if (!this.#channels.get(name)?.deref()) this.#channels.delete(name)
  })
  readonly #active = new Map<string, SharedChannel>()

  constructor(options: ClientOptions) {
    const connection = new Connection({ random: Math.random, queueSize: 256, ...options }, this)
    let lastSid = 0
    this.connection = connection.state
    this.#link = {
      connection,
      publisher: new Publisher(connection),
      stateIntervalMs: options.stateIntervalMs ?? 33,
      nextSid: () => String(++lastSid),
    }
  }

  channel(channel: ChannelDefinition | string, params?: Readonly<Record<string, string | number>>) {
    const name = channelName(typeof channel === 'string' ? channel : channel.pattern, params)
    let shared = this.#channels.get(name)?.deref()
    if (!shared) {
      shared = new SharedChannel(name, this.#link, (channel, active) => this.#setActive(channel, active))
      this.#channels.set(name, new WeakRef(shared))
      this.#collected.register(shared, name)
    }
    // The types of what a channel carries are the caller's word.
    return shared as never
  }

  connect(): void {
    this.#link.connection.connect()
  }

  close(): void {
    this.#link.connection.close()
  }

  #setActive(channel: SharedChannel, active: boolean): void {
    if (active) {
      this.#active.set(channel.name, channel)
      this.#link.connection.need()
    } else this.#active.delete(channel.name)
  }

  // What the connection tells.

  ready(): void {
    for (const channel of [...this.#active.values()]) channel.ready()
  }

  frame(frame: ServerFrame): void {
    const { publisher } = this.#link
    if (frame.type === 'published') publisher.published(frame.id)
    else if (frame.type === 'refused' && frame.re === 'publish') publisher.refused(frame)
    else if ('channel' in frame && frame.channel !== undefined) this.#active.get(frame.channel)?.take(frame)
  }

  beat(): void {
    for (const channel of this.#active.values()) channel.beat()
  }

  lost(): void {
    this.#link.publisher.lost()
    for (const channel of [...this.#active.values()]) channel.lost()
  }

  needed(): boolean {
    return this.#active.size > 0 || this.#link.publisher.busy
  }
}
