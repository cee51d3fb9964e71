import { TidewireError } from './error.js'
import type { ServerFrame } from './frames.js'
import type { Link } from './link.js'
import type { ChannelTypes, TypeOf } from './names.js'
import { ChannelPresence, type ObserveOptions, type Presence, type PresenceOptions, type RosterHandle, type RosterState } from './presence.js'
import type { PublishOptions } from './publisher.js'
import { disposer, Listeners, type ListenOptions, type Observable, Store } from './store.js'

/** A message of a channel. */
export interface Message<Data = unknown> {
  readonly channel: string
  /** The publisher's id of the message, or one made by the server. */
  readonly id: string
  readonly data: Data
  /** Who published it; absent for a backend. `actor` is absent for an anonymous session. */
  readonly from?: { readonly actor?: string; readonly session: string }
  /** What it replaces, on channels that keep the latest of each key. */
  readonly key?: string
}

/** This connection was too slow: so many messages of the channel were dropped for it, where the event stands. */
export interface Skipped {
  readonly channel: string
  readonly count: number
}

/**
 * Whether messages arrive. `kind`:
 * - `idle`: nothing in this page needs the channel, or the client is stopped.
 * - `subscribing`: asked for, or will be when the connection is there.
 * - `live`: every message published from now on arrives, unless the connection ends or `skipped` says otherwise.
 * - `refused`: the server said no, or ended it. Asked again at `retryAt` (milliseconds since 1970) if the server
 *   said when, and with every new connection.
 */
export type ChannelStatus =
  | { readonly kind: 'idle' }
  | { readonly kind: 'subscribing' }
  | { readonly kind: 'live' }
  | { readonly kind: 'refused'; readonly error: TidewireError; readonly retryAt?: number }

/** The events of a channel. */
export interface ChannelEvents<Data = unknown> {
  message: Message<Data>
  skipped: Skipped
}

/**
 * A channel of one client: the same object for the same name. Listeners and presence handles hold it subscribed;
 * all of them share one subscription, which ends shortly after the last is gone.
 */
export interface Channel<T extends ChannelTypes = ChannelTypes> {
  readonly name: string
  /** Whether messages arrive. Watching it does not subscribe. */
  readonly status: Observable<ChannelStatus>
  /** The roster: `unknown` until a presence handle is open. Watching it does not open one. */
  readonly roster: Observable<RosterState<TypeOf<T, 'presence'>, TypeOf<T, 'state'>>>
  /** Subscribes and calls listener for each event. Returns a function that stops it. */
  on<E extends keyof ChannelEvents>(event: E, listener: (event: ChannelEvents<TypeOf<T, 'message'>>[E]) => void, options?: ListenOptions): () => void
  /**
   * Publishes to everyone subscribed; needs no subscription. Resolves when the message has been handed to every
   * subscriber's queue. Without a connection it waits for one.
   *
   * Rejects with a {@link TidewireError}: the server's refusal (`retryAfterMs` says when repeating helps);
   * DATA_INVALID, FRAME_TOO_BIG, QUEUE_FULL and CLOSED (it was not sent); CONNECTION_LOST and ANSWER_TIMEOUT: it was
   * sent, and whether it took effect is unknown. Nothing is sent twice.
   */
  publish(data: TypeOf<T, 'message'>, options?: PublishOptions): Promise<void>
  /** Takes the roster without joining it. */
  presence(options: ObserveOptions): RosterHandle<TypeOf<T, 'presence'>, TypeOf<T, 'state'>>
  /** Joins the roster and takes it. Throws PRESENCE_TOO_BIG or DATA_INVALID. */
  presence(options?: PresenceOptions<TypeOf<T, 'presence'>>): Presence<TypeOf<T, 'presence'>, TypeOf<T, 'state'>>
}

type Mode = 'off' | 'messages' | 'observe' | 'join'
const rank: Readonly<Record<Mode, number>> = { off: 0, messages: 1, observe: 2, join: 3 }

const IDLE: ChannelStatus = { kind: 'idle' }
const SUBSCRIBING: ChannelStatus = { kind: 'subscribing' }
const LIVE: ChannelStatus = { kind: 'live' }

// A view that is replaced by another, or mounted twice, lets go and takes hold again within this time.
const LINGER_MS = 100

/** The one implementation of {@link Channel}. Its owner is the client, which hands it the frames of its channel. */
export class SharedChannel implements Channel {
  readonly name: string
  readonly status = new Store<ChannelStatus>(IDLE)
  readonly roster: ChannelPresence

  readonly #link: Link
  readonly #onActive: (channel: SharedChannel, active: boolean) => void
  readonly #messages = new Listeners<[Message]>()
  readonly #skipped = new Listeners<[Skipped]>()
  #listening = 0
  #mode: Mode = 'off' // what the server has, or was asked for
  #sid: string | undefined // undefined with a mode: refused
  #settling = false
  #timer: ReturnType<typeof setTimeout> | undefined // linger
  #retryTimer: ReturnType<typeof setTimeout> | undefined

  constructor(name: string, link: Link, onActive: (channel: SharedChannel, active: boolean) => void) {
    this.name = name
    this.#link = link
    this.#onActive = onActive
    this.roster = new ChannelPresence(name, link, () => this.#held(), () => this.#subscribe(true))
  }

  on<E extends keyof ChannelEvents>(event: E, listener: (event: ChannelEvents[E]) => void, options: ListenOptions = {}): () => void {
    const off =
      event === 'message' ? this.#messages.add(listener as (event: Message) => void) : this.#skipped.add(listener as (event: Skipped) => void)
    this.#listening++
    const dispose = disposer(() => {
      off()
      this.#listening--
      this.#held()
    }, options.signal)
    this.#held()
    return dispose
  }

  publish(data: unknown, options: PublishOptions = {}): Promise<void> {
    return this.#link.publisher.publish(this.name, data, options)
  }

  presence(options: ObserveOptions): RosterHandle
  presence(options?: PresenceOptions): Presence
  presence(options: ObserveOptions | PresenceOptions = {}): RosterHandle {
    return 'observe' in options ? this.roster.observe(options) : this.roster.join(options)
  }

  /** The connection is there. */
  ready(): void {
    this.#settle()
  }

  /** The connection is gone. */
  lost(): void {
    if (this.#mode === 'off' && this.#wanted() === 'off') return
    this.#mode = 'off'
    this.#sid = undefined
    clearTimeout(this.#retryTimer)
    this.roster.reset()
    this.#settle()
  }

  /** A heartbeat: repeats the subscription if the roster depends on it, or if an answer is missing. */
  beat(): void {
    const missing = this.roster.waiting && this.#mode !== 'messages'
    if (this.#mode === 'join' || missing || this.status.getSnapshot() === SUBSCRIBING) this.#subscribe(missing)
  }

  take(frame: ServerFrame): void {
    switch (frame.type) {
      case 'message': {
        const { type: _, ...message } = frame
        this.#messages.emit(message)
        return
      }
      case 'skipped':
        this.#skipped.emit({ channel: frame.channel, count: frame.count })
        return
      case 'presence':
      case 'state':
        if (rank[this.#mode] >= rank.observe) this.roster.take(frame)
        return
      case 'subscribed':
        if (frame.sid !== this.#sid) return
        this.status.set(LIVE)
        this.roster.live(this.#mode === 'join')
        return
      case 'unsubscribed':
        if (frame.sid === this.#sid) this.#refused(new TidewireError(frame.code ?? 'UNSUBSCRIBED', frame))
        return
      case 'refused':
        if (frame.re === 'presence' || frame.re === 'state') this.roster.refused(new TidewireError(frame.code, frame))
        if (frame.re === 'subscribe' && frame.sid === this.#sid) this.#refused(new TidewireError(frame.code, frame), this.status.getSnapshot() === LIVE)
    }
  }

  #wanted(): Mode {
    if (this.roster.mode) return this.roster.mode
    if (this.#listening === 0) return 'off'
    // Only an unsubscribe ends the roster, and with it the messages: while they are wanted it goes on.
    return this.#sid !== undefined && rank[this.#mode] >= rank.observe ? 'observe' : 'messages'
  }

  /** Someone took hold or let go. More is asked for at the end of this task, together; less only after a while. */
  #held(): void {
    const more = rank[this.#wanted()] - rank[this.#mode]
    if (more > 0 && !this.#settling) {
      this.#settling = true
      queueMicrotask(() => this.#settle())
    }
    clearTimeout(this.#timer)
    if (more < 0) this.#timer = setTimeout(() => this.#settle(), LINGER_MS)
  }

  /** Makes the subscription what the holders want. */
  #settle(): void {
    this.#settling = false
    clearTimeout(this.#timer)
    const mode = this.#wanted()
    if (mode !== 'off') this.#onActive(this, true)
    if (!this.#link.connection.connected) {
      this.status.set(mode === 'off' || this.#link.connection.stopped ? IDLE : SUBSCRIBING)
    } else if (mode !== this.#mode) {
      this.#change(mode)
    }
    if (mode === 'off') this.#onActive(this, false)
  }

  #change(mode: Mode): void {
    clearTimeout(this.#retryTimer)
    const { queue } = this.#link.connection
    queue.forget(this.name)
    this.#mode = mode
    if (mode !== 'off' && this.#sid !== undefined) {
      // In place: the messages, and a roster that comes already, go on.
      this.roster.live(false)
      this.#subscribe(false)
      return
    }
    if (this.#sid !== undefined) queue.control({ type: 'unsubscribe', sid: this.#sid })
    this.#sid = mode === 'off' ? undefined : this.#link.nextSid()
    this.roster.reset()
    this.#subscribe(false)
    this.status.set(mode === 'off' ? IDLE : SUBSCRIBING)
  }

  #subscribe(resync: boolean): void {
    const sid = this.#sid
    if (sid === undefined) return
    const presence = this.roster.request(this.#mode, resync)
    this.#link.connection.queue.control({ type: 'subscribe', sid, channel: this.name, ...(presence && { presence }) })
  }

  #refused(error: TidewireError, live = false): void {
    const { retryAfterMs } = error
    if (live) {
      // The messages go on. A heartbeat asks for the roster again, if that can help.
      if (!this.roster.waiting) return
      if (retryAfterMs === undefined) this.#mode = 'messages'
      this.roster.refused(error)
      return
    }
    this.#sid = undefined
    this.roster.reset()
    if (retryAfterMs === undefined) {
      this.status.set({ kind: 'refused', error })
      return
    }
    this.#retryTimer = setTimeout(() => {
      this.#mode = 'off'
      this.#settle()
    }, retryAfterMs)
    this.status.set({ kind: 'refused', error, retryAt: Date.now() + retryAfterMs })
  }
}
