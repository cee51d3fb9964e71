import type { BackoffOptions } from '../backoff.js'
import type { Message, SharedChannel } from '../channel.js'
import { createClient } from '../client.js'
import type { WebSocketLike } from '../connection.js'
import { TidewireError } from '../error.js'
import type { LinkedClient } from '../link.js'
import type { Wake } from '../wake.js'
import { fromFailure, toFailure } from '../worker/failure.js'
import { watchSockets } from './sockets.js'
import type { DataBusTransport, Position, PublishOptions, TransportEvents } from './transport.js'

/** Configuration of a {@link TidewireTransport}: what structured cloning takes. */
export interface TidewireConfig {
  /** The server's socket, as of `createClient`. In a worker it is relative to the worker's script. */
  readonly url: string
  /** The credential. `bridge`: the page is asked for one, when connecting and when it is refused or about to expire. Absent: an anonymous client. */
  readonly token?: string | undefined
  /** This page's build: see `createClient`. */
  readonly build?: string
  readonly backoff?: BackoffOptions
  readonly heartbeatMs?: number
  readonly queueSize?: number
}

interface Subscription {
  readonly channel: SharedChannel
  /** Ends it at once, and not after a while as a page does. */
  end(): void
}

/**
 * The connection to a Tidewire server as a transport; a topic is a channel. Where the channel has a history publications carry their positions, and none is missed or handed over twice, also across connections; what
 * the server does not have any more is `lost`. Where it has none, `lost` is told after each reconnect.
 *
 * Calls while it is not started do nothing or reject with CLOSED.
 */
export class TidewireTransport implements DataBusTransport<TidewireConfig> {
  readonly #WebSocket: WebSocketLike | undefined
  readonly #subscriptions = new Map<string, Subscription>()
  /** Unsubscribed, and the server has not said so yet. */
  readonly #ending = new Map<string, () => void>()
  #client: LinkedClient | undefined
  #events: TransportEvents | undefined
  #closed = (): Promise<void> => Promise.resolve()

  /** WebSocket: default the global one. */
  constructor({ WebSocket }: { readonly WebSocket?: WebSocketLike } = {}) {
    this.#WebSocket = WebSocket
  }

  async start({ token, ...config }: TidewireConfig, events: TransportEvents): Promise<void> {
    const { WebSocket, closed } = watchSockets(this.#WebSocket)
    let reason: 'connect' | 'expired' = 'connect'
    const ask = async () => {
      if (!events.credential) throw new TidewireError('SOCKET_UNAUTHENTICATED', { cause: 'no page gives a credential' })
      const now = reason
      reason = 'expired'
      // The page may have said no with an error of another making.
      return events.credential(now).catch((error) => Promise.reject(fromFailure(toFailure(error))))
    }
    const client = createClient({ ...config, WebSocket, ...(token !== undefined && { token: token === 'bridge' ? ask : token }) }) as LinkedClient
    this.#client = client
    this.#events = events
    this.#closed = closed
    let last = ''
    client.connection.subscribe(() => {
      const state = client.connection.getSnapshot()
      // It was a detail that changed.
      if (state.kind === last || client !== this.#client) return
      last = state.kind
      this.#soon(() => {
        if (state.kind === 'connected' || state.kind === 'connecting') events.status(state.kind)
        else if (state.kind === 'stopped') events.status('error', state.error)
        else events.status('disconnected', ...(state.kind === 'waiting' ? [state.error] : []))
      })
    })
    this.#soon(client.connect)
  }

  async stop(): Promise<void> {
    const client = this.#client
    this.#client = this.#events = undefined
    this.#subscriptions.clear()
    for (const ended of this.#ending.values()) ended()
    client?.close()
    await this.#closed()
  }

  subscribe(topic: string, from?: Position): void {
    if (!this.#client || this.#subscriptions.has(topic)) return
    this.#ending.get(topic)?.()
    try {
      this.#subscriptions.set(topic, this.#listen(this.#client.channel(topic) as unknown as SharedChannel, topic, from))
    } catch (error) {
      this.#soon((events) => events.refused(topic, error, false))
    }
  }

  async unsubscribe(topic: string): Promise<void> {
    const subscription = this.#subscriptions.get(topic)
    const client = this.#client
    if (!client || !subscription) return
    this.#subscriptions.delete(topic)
    const asked = client._link._connection._connected && subscription.channel.status.getSnapshot().kind !== 'refused'
    subscription.end()
    if (!asked) return
    const { _active: active } = client._link
    await new Promise<void>((resolve) => {
      const ended = () => {
        this.#ending.delete(topic)
        if (active.get(topic) === waiter) active.delete(topic)
        resolve()
      }
      const waiter = { _take: ({ type }: { readonly type: string }) => type === 'unsubscribed' && ended(), _lost: ended, _ready() {}, _beat() {} }
      this.#ending.set(topic, ended)
      active.set(topic, waiter)
    })
  }

  async publish(topic: string, data: unknown, options: PublishOptions = {}): Promise<void> {
    if (!this.#client) throw new TidewireError('CLOSED')
    await this.#client.channel(topic).publish(data, options)
  }

  /** What the page heard, when this is in a worker. */
  wake(wake: Wake): void {
    this.#client?._link._connection._woken(wake)
  }

  #listen(channel: SharedChannel, topic: string, from: Position | undefined): Subscription {
    const client = this.#client
    // What is to be told before the next publication, or at the end of this task.
    let due: { lost: boolean } | undefined
    let skipped = false
    const tell = (position: Position | undefined) => {
      const { lost } = due as { lost: boolean }
      due = undefined
      this.#events?.subscribed(topic, position, lost)
    }
    const later = (lost: boolean) => {
      if (due) due.lost ||= lost
      else {
        due = { lost }
        this.#soon(() => due && client === this.#client && this.#subscriptions.get(topic) === subscription && tell(channel._position))
      }
    }
    const take = ({ data, id, offset }: Message) => {
      const position = channel._position
      if (skipped) {
        skipped = false
        due = { lost: true }
      }
      if (due) tell(position && offset !== undefined ? { epoch: position.epoch, offset: offset - 1 } : undefined)
      this.#events?.publication(topic, { data, id, ...(position && { position }) })
    }
    const heard = () => {
      const status = channel.status.getSnapshot()
      if (status.kind === 'live') later(false)
      if (status.kind !== 'refused') return
      const retry = status.retryAt !== undefined
      if (!retry) {
        this.#subscriptions.delete(topic)
        subscription.end()
      }
      this.#events?.refused(topic, status.error, retry)
    }
    const offs = [
      channel.on('message', take as never, from && { since: from }),
      channel.on('lost', () => later(true)),
      // What is missing stands before the next publication, wherever that is.
      channel.on('skipped', () => (channel._position ? (skipped = true) : later(true))),
      channel.status.subscribe(heard),
    ]
    const subscription: Subscription = {
      channel,
      end() {
        for (const off of offs) off()
        channel._ready()
      },
    }
    return subscription
  }

  /** Nothing is told inside a call. */
  #soon(tell: (events: TransportEvents) => void): void {
    const client = this.#client
    queueMicrotask(() => {
      if (this.#events && client === this.#client) tell(this.#events)
    })
  }
}
