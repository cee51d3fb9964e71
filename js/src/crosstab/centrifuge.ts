import { Centrifuge, type Options, type PublicationContext, type SubscribedContext, type Subscription, UnauthorizedError } from 'centrifuge'
import type { WebSocketLike } from '../connection.js'
import { TidewireError } from '../error.js'
import { watchSockets } from './sockets.js'
import type { DataBusTransport, Position, PublishOptions, TransportEvents } from './transport.js'

/** Configuration of a {@link CentrifugeTransport}: what structured cloning takes. */
export interface CentrifugeConfig {
  /** The server's WebSocket, as `wss://example.com/connection/websocket`. */
  readonly url: string
  /** The connection token. `bridge`: the page is asked for one, when connecting and when it has expired. Absent: an anonymous connection. */
  readonly token?: string | undefined
  /** Asks the server to keep what is needed for recovery, where its configuration leaves that to clients. */
  readonly recoverable?: boolean | undefined
  /** More for the `centrifuge` package. */
  readonly options?: Partial<Pick<Options, 'data' | 'headers' | 'maxReconnectDelay' | 'maxServerPingDelay' | 'minReconnectDelay' | 'name' | 'timeout' | 'version'>> | undefined
}

/** Options of {@link CentrifugeTransport}. */
export interface CentrifugeTransportOptions {
  /** Another class than that of the package `centrifuge`: that of `centrifuge/build/protobuf`, for example. */
  readonly Centrifuge?: typeof Centrifuge
  /** The id of a publication, from its data: Centrifuge has none. */
  readonly idOf?: (data: unknown) => string | undefined
  /** Default: the global WebSocket. */
  readonly WebSocket?: WebSocketLike
}

interface Entry {
  readonly subscription: Subscription
  /** Of the subscription, where the server keeps a history. */
  position: Position | undefined
  /** To be told before the next publication, or at the end of this task. */
  due: { readonly position: Position | undefined; readonly lost: boolean } | undefined
  lived: boolean
}

/**
 * The connection to a Centrifuge or Centrifugo server as a transport, over the official package `centrifuge` (a peer dependency). Topics that the server recovers carry positions, and are recovered across
 * connections; what the server does not have any more is `lost`. For others `lost` is told after each reconnect.
 */
export class CentrifugeTransport implements DataBusTransport<CentrifugeConfig> {
  readonly #options: CentrifugeTransportOptions
  readonly #entries = new Map<string, Entry>()
  #client: Centrifuge | undefined
  #events: TransportEvents | undefined
  #closed = (): Promise<void> => Promise.resolve()
  #recoverable = false

  constructor(options: CentrifugeTransportOptions = {}) {
    this.#options = options
  }

  async start({ url, token, recoverable = false, options }: CentrifugeConfig, events: TransportEvents): Promise<void> {
    const { Centrifuge: Client = Centrifuge } = this.#options
    const { WebSocket, closed } = watchSockets(this.#options.WebSocket)
    let reason: 'connect' | 'expired' = 'connect'
    const getToken = async () => {
      const now = reason
      reason = 'expired'
      try {
        if (events.credential) return await events.credential(now)
      } catch (error) {
        if ((error as Partial<TidewireError> | undefined)?.code !== 'SOCKET_UNAUTHENTICATED') throw error
      }
      throw new UnauthorizedError('no credential')
    }
    const client = new Client(url, {
      ...options,
      ...(token === 'bridge' ? { getToken } : token !== undefined && { token }),
      websocket: WebSocket,
      // The page's life is the bus's concern: it stops the transport.
      pageEventTarget: new EventTarget(),
    })
    this.#client = client
    this.#events = events
    this.#closed = closed
    this.#recoverable = recoverable
    client.on('connecting', ({ code, reason }) =>
      this.#soon(() => {
        if (code) events.status('disconnected', new TidewireError('CONNECTION_LOST', { cause: reason }))
        events.status('connecting')
      }),
    )
    client.on('connected', () => this.#soon(() => events.status('connected')))
    client.on('disconnected', ({ code, reason }) => this.#soon(() => events.status('error', code === 1 ? new TidewireError('SOCKET_UNAUTHENTICATED', { cause: reason }) : errorOf(code, reason))))
    this.#soon(() => client.connect())
  }

  async stop(): Promise<void> {
    const client = this.#client
    this.#client = this.#events = undefined
    this.#entries.clear()
    client?.disconnect()
    client?.removeAllListeners()
    await this.#closed()
  }

  subscribe(topic: string, from?: Position): void {
    const client = this.#client
    if (!client || this.#entries.has(topic)) return
    try {
      const subscription = client.newSubscription(topic, { ...(from && { since: from }), ...(this.#recoverable && { recoverable: true, positioned: true }) })
      const entry: Entry = { subscription, position: from, due: undefined, lived: !!from }
      this.#entries.set(topic, entry)
      const ours = <T>(call: (value: T) => void) => (value: T) => {
        if (this.#entries.get(topic) === entry) call(value)
      }
      subscription.on('subscribed', ours((context) => this.#subscribed(topic, entry, context)))
      subscription.on('publication', ours((context) => this.#publication(topic, entry, context)))
      subscription.on('unsubscribed', ours(({ code, reason }) => this.#refused(topic, entry, code === 1 ? new TidewireError('TOPIC_FORBIDDEN', { cause: reason }) : errorOf(code, reason))))
      subscription.on('error', ours(({ error, type }) => type === 'subscribe' && this.#soon((events) => events.refused(topic, errorOf(error.code, error.message), true))))
      subscription.subscribe()
    } catch (error) {
      this.#soon((events) => events.refused(topic, error, false))
    }
  }

  async unsubscribe(topic: string): Promise<void> {
    const client = this.#client
    const entry = this.#entries.get(topic)
    if (!client || !entry) return
    this.#entries.delete(topic)
    client.removeSubscription(entry.subscription)
    // The package does not tell when the server has done it. It does what it is told in order: its next answer, whatever that is, comes after.
    if (client.state === 'connected') await client.presenceStats(topic).catch(() => {})
  }

  /** The id, if there is one, is in the data: see `idOf`. */
  async publish(topic: string, data: unknown, _options?: PublishOptions): Promise<void> {
    if (!this.#client) throw new TidewireError('CLOSED')
    try {
      await this.#client.publish(topic, data)
    } catch (error) {
      const { code, message } = error as { readonly code?: number; readonly message?: string }
      throw code === undefined ? error : errorOf(code, message)
    }
  }

  #subscribed(topic: string, entry: Entry, { streamPosition, wasRecovering, recovered }: SubscribedContext): void {
    const before = entry.position
    entry.position = streamPosition && { offset: streamPosition.offset, epoch: streamPosition.epoch }
    // What was missed comes next, behind what was had.
    if (wasRecovering && recovered && before && before.epoch === entry.position?.epoch) entry.position = before
    const lost = entry.position ? wasRecovering && !recovered : entry.lived
    entry.lived = true
    const due = (entry.due = { position: entry.position, lost })
    this.#soon(() => entry.due === due && this.#entries.get(topic) === entry && this.#tell(topic, entry))
  }

  #tell(topic: string, entry: Entry, position = entry.due?.position): void {
    const lost = entry.due?.lost
    entry.due = undefined
    this.#events?.subscribed(topic, position, lost)
  }

  #publication(topic: string, entry: Entry, { data, offset }: PublicationContext): void {
    const { position } = entry
    const id = this.#options.idOf?.(data)
    if (position && offset !== undefined) {
      // What is given of a history that has a hole begins behind the hole.
      const from = entry.due?.lost ? { epoch: position.epoch, offset: offset - 1 } : position
      if (offset <= from.offset) return
      if (entry.due) this.#tell(topic, entry, from)
      entry.position = { offset, epoch: position.epoch }
    } else if (entry.due) this.#tell(topic, entry)
    this.#events?.publication(topic, { data, ...(id !== undefined && { id }), ...(entry.position && { position: entry.position }) })
  }

  #refused(topic: string, entry: Entry, error: TidewireError): void {
    this.#entries.delete(topic)
    this.#client?.removeSubscription(entry.subscription)
    this.#soon((events) => events.refused(topic, error, false))
  }

  /** Nothing is told inside a call. */
  #soon(tell: (events: TransportEvents) => void): void {
    const client = this.#client
    queueMicrotask(() => {
      if (this.#events && client === this.#client) tell(this.#events)
    })
  }
}

const CODES: Readonly<Record<number, string>> = {
  1: 'ANSWER_TIMEOUT',
  2: 'CONNECTION_LOST',
  3: 'CLOSED',
  11: 'CONNECTION_LOST',
  101: 'SOCKET_UNAUTHENTICATED',
  103: 'TOPIC_FORBIDDEN',
  3500: 'SOCKET_UNAUTHENTICATED',
}

/** Centrifuge's code, as far as this package has a name for it. */
function errorOf(code: number, cause = ''): TidewireError {
  return new TidewireError(CODES[code] ?? `CENTRIFUGE_${code}`, { cause })
}
