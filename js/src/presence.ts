import { TidewireError } from './error.js'
import type { PresenceFrame, PresenceRequest, StateFrame } from './frames.js'
import { byteLength, encodeJSON } from './json.js'
import type { Link } from './link.js'
import { type Member, Roster } from './roster.js'
import { disposer, Listeners, type ListenOptions, type Observable } from './store.js'

/**
 * Who is present in a channel. `kind`:
 * - `unknown`: nobody takes the roster, or the first snapshot has not arrived.
 * - `live`: the members are the server's at `version`.
 * - `stale`: the connection is gone or a frame was missed; the members are the last known, and will be put right.
 */
export interface RosterState<P = unknown, S = unknown> {
  readonly kind: 'unknown' | 'live' | 'stale'
  /** In the order in which they joined. At most 256, those present longest. A member that has not changed is the same object. */
  readonly members: readonly Member<P, S>[]
  /** How many are present, listed or not. */
  readonly total: number
  readonly version: number
  /** The server refused the roster, or the last data or state. Absent again after the next that is sent. */
  readonly error?: TidewireError
}

/** The roster of a channel, taken without joining it. */
export interface RosterHandle<P = unknown, S = unknown> extends Observable<RosterState<P, S>> {
  /** Stops. May be called more than once. */
  close(): void
}

/** This page's place in the roster of a channel. All handles of one channel in a page are one session. */
export interface Presence<P = unknown, S = unknown> extends RosterHandle<P, S> {
  /**
   * Replaces this session's data. Others see an update, never a leave and a join. Data equal to the last is not sent.
   * Throws PRESENCE_TOO_BIG over 1,024 bytes of JSON (`limits.presenceBytes`), DATA_INVALID if it is not JSON.
   */
  update(data: P): void
  /**
   * Sets this session's state, such as a cursor; null clears it. Only the newest counts: at most one is sent each
   * `stateIntervalMs`, and the last one is always sent. Throws as update does.
   */
  setState(state: S | null): void
  /** Leaves, when it is the last handle of the channel. Afterwards update and setState do nothing. May be called more than once. */
  close(): void
}

export interface PresenceOptions<P = unknown> extends ListenOptions {
  /** What this session says about itself: any JSON of at most 1,024 bytes. Absent: nothing, or what another handle said. */
  readonly data?: P
}

export interface ObserveOptions extends ListenOptions {
  /** Takes the roster without being in it. */
  readonly observe: true
}

const EMPTY: RosterState = { kind: 'unknown', members: [], total: 0, version: 0 }

/** The presence of one channel: its roster, and what this session says about itself. Handles share it. */
export class ChannelPresence implements Observable<RosterState> {
  readonly #channel: string
  readonly #link: Link
  readonly #held: () => void // the number of handles changed
  readonly #resync: () => void
  readonly #listeners = new Listeners()

  #roster = new Roster()
  #known = false // a snapshot has arrived
  #error: TidewireError | undefined
  #snapshot: RosterState | undefined = EMPTY // undefined: to be made

  #joined = 0
  #observing = 0
  #joinedLive = false
  #data: string | undefined // JSON; what this session wants to say
  #sentData: string | undefined
  #state: string | undefined
  #stateSentAt = -Infinity
  #stateTimer: ReturnType<typeof setTimeout> | undefined

  constructor(channel: string, link: Link, held: () => void, resync: () => void) {
    this.#channel = channel
    this.#link = link
    this.#held = held
    this.#resync = resync
  }

  readonly getSnapshot = (): RosterState => (this.#snapshot ??= this.#make())
  readonly subscribe = (listener: () => void): (() => void) => this.#listeners.add(listener)

  get mode(): 'join' | 'observe' | undefined {
    return this.#joined > 0 ? 'join' : this.#observing > 0 ? 'observe' : undefined
  }

  /** Whether a snapshot is outstanding. */
  get waiting(): boolean {
    return this.mode !== undefined && !this.#roster.synced
  }

  join(options: PresenceOptions): Presence {
    if (options.data !== undefined) this.#data = this.#encode(options.data, this.#link.connection.limits.presenceBytes)
    this.#joined++
    let open = true
    const close = disposer(() => {
      open = false
      if (--this.#joined === 0) this.#forget()
      this.#held()
    }, options.signal)
    this.#held()
    this.#sendData()
    return {
      getSnapshot: this.getSnapshot,
      subscribe: this.subscribe,
      update: (data) => {
        if (!open) return
        this.#data = this.#encode(data, this.#link.connection.limits.presenceBytes)
        this.#sendData()
      },
      setState: (state) => {
        if (!open) return
        this.#state = this.#encode(state, this.#link.connection.limits.stateBytes)
        this.#stateSoon()
      },
      close,
    }
  }

  observe(options: ListenOptions): RosterHandle {
    this.#observing++
    const close = disposer(() => {
      this.#observing--
      this.#held()
    }, options.signal)
    this.#held()
    return { getSnapshot: this.getSnapshot, subscribe: this.subscribe, close }
  }

  /** The `presence` member of a subscribe frame in mode, which asks for a snapshot again or not; what it says counts as sent. */
  request(mode: string, again: boolean): PresenceRequest | undefined {
    const resync = again && ({ resync: true } as const)
    if (mode === 'observe') return { observe: true, ...resync }
    if (mode !== 'join') return undefined
    this.#sentData = this.#data
    return { ...(this.#data !== undefined && { data: JSON.parse(this.#data) as unknown }), ...resync }
  }

  /** A subscription begins or ended: the roster will come anew. */
  reset(): void {
    this.#joinedLive = false
    this.#roster.desync()
    clearTimeout(this.#stateTimer)
    this.#stateTimer = undefined
    if (this.mode === undefined) {
      this.#roster = new Roster()
      this.#known = false
    }
    this.#changed()
  }

  /** The subscription is live, and with joined this session is in the roster: what changed while it was on its way is sent now. */
  live(joined: boolean): void {
    if (joined === this.#joinedLive) return
    this.#joinedLive = joined
    if (!joined) return
    this.#sendData()
    if (this.#state !== undefined && this.#state !== 'null') this.#stateSoon()
  }

  take(frame: PresenceFrame | StateFrame): void {
    if (frame.type === 'state') {
      if (this.#roster.applyState(frame)) this.#changed()
      return
    }
    if (frame.snapshot) this.#error = undefined
    const outcome = this.#roster.apply(frame)
    if (this.#roster.synced) this.#known = true
    if (outcome === 'gap') this.#resync()
    if (outcome !== 'same') this.#changed()
  }

  refused(error: TidewireError): void {
    if (this.#joinedLive && error.retryAfterMs !== undefined) {
      // For its rate: the newest goes again, when the queue sends again.
      this.#sentData = undefined
      this.#sendData()
      this.#stateSoon()
      return
    }
    this.#error = error
    this.#changed()
  }

  /** The last handle that joined is closed: the next one starts with nothing said. */
  #forget(): void {
    this.#data = this.#sentData = this.#state = this.#error = undefined
    clearTimeout(this.#stateTimer)
    this.#stateTimer = undefined
  }

  #sendData(): void {
    if (!this.#joinedLive || this.#data === undefined || this.#data === this.#sentData) return
    this.#sentData = this.#data
    this.#send('presence', this.#data)
  }

  /** Sends the newest state now, or when the interval since the last has passed. */
  #stateSoon(): void {
    if (!this.#joinedLive || this.#stateTimer !== undefined) return
    const wait = this.#stateSentAt + this.#link.stateIntervalMs - performance.now()
    if (wait > 0) {
      this.#stateTimer = setTimeout(() => {
        this.#stateTimer = undefined
        this.#stateSoon()
      }, wait)
      return
    }
    this.#stateSentAt = performance.now()
    if (this.#state !== undefined) this.#send('state', this.#state)
  }

  #send(type: 'presence' | 'state', json: string): void {
    if (this.#error) {
      this.#error = undefined
      this.#changed()
    }
    this.#link.connection.queue.newest({ type, channel: this.#channel, data: JSON.parse(json) as unknown })
  }

  #encode(value: unknown, limit: number): string {
    const json = encodeJSON(value)
    const bytes = byteLength(json)
    if (bytes > limit) throw new TidewireError('PRESENCE_TOO_BIG', { cause: `${bytes} bytes, and ${limit} are allowed` })
    return json
  }

  #make(): RosterState {
    const roster = this.#roster
    return {
      kind: roster.synced ? 'live' : this.#known ? 'stale' : 'unknown',
      members: roster.members(),
      total: roster.total,
      version: roster.version,
      ...(this.#error && { error: this.#error }),
    }
  }

  #changed(): void {
    this.#snapshot = undefined
    this.#listeners.emit()
  }
}
