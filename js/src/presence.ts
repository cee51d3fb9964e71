import type { TidewireError } from './error.js'
import type { PresenceFrame, PresenceRequest, StateFrame } from './frames.js'
import { checkSize, encodeJSON } from './json.js'
import type { Link } from './link.js'
import { type Member, createRoster } from './roster.js'
import { disposer, type ListenOptions, type Observable, createStore } from './store.js'
import { createTimer } from './timer.js'

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

/** What a subscription has of its channel: each has what those before it have. */
export type Mode = typeof OFF | typeof MESSAGES | typeof OBSERVE | typeof JOIN
export const OFF = 0
export const MESSAGES = 1
export const OBSERVE = 2
export const JOIN = 3

/** The presence of one channel: its roster, and what this session says about itself. Handles share it. */
export function createPresence(channel: string, link: Link, held: () => void, askAgain: () => void) {
  const { getSnapshot, subscribe, set } = createStore(EMPTY)
  let roster = createRoster()
  let known = false // a snapshot has arrived
  let error: TidewireError | undefined

  let joining = 0
  let observing = 0
  let joinedLive = false
  let data: string | undefined // JSON; what this session wants to say
  let sentData: string | undefined
  let state: string | undefined
  let stateSentAt = -Infinity
  const stateTimer = createTimer()

  /** The last handle that joined is closed: the next one starts with nothing data. */
  function forget(): void {
    data = sentData = state = error = undefined
    stateTimer._clear()
  }

  function sendData(): void {
    if (!joinedLive || data === undefined || data === sentData) return
    sentData = data
    send('presence', data)
  }

  /** Sends the newest state now, or when the interval since the last has passed. */
  function stateSoon(): void {
    if (!joinedLive || stateTimer._on) return
    const wait = stateSentAt + link._stateIntervalMs - performance.now()
    if (wait > 0) {
      stateTimer._set(wait, stateSoon)
      return
    }
    stateSentAt = performance.now()
    if (state !== undefined) send('state', state)
  }

  function send(type: 'presence' | 'state', json: string): void {
    if (error) {
      error = undefined
      changed()
    }
    link._connection._queue._newest({ type, channel, data: JSON.parse(json) as unknown })
  }

  function encode(value: unknown, bytesOf: 'presenceBytes' | 'stateBytes'): string {
    const json = encodeJSON(value)
    checkSize(json, link._connection._queue._limits[bytesOf], 'PRESENCE_TOO_BIG')
    return json
  }

  function changed(): void {
    const { version, total } = roster
    set({
      kind: roster._synced ? 'live' : known ? 'stale' : 'unknown',
      members: roster.members(),
      total,
      version,
      ...(error && { error }),
    })
  }

  const self = {
    getSnapshot,
    subscribe,

    get _mode(): Mode {
      return joining > 0 ? JOIN : observing > 0 ? OBSERVE : OFF
    },

    /** Whether a snapshot is outstanding. */
    get _waiting(): boolean {
      return self._mode !== OFF && !roster._synced
    },

    /** Opens a handle. One that observes can do what one that joins can, without effect. */
    _open(options: ObserveOptions | PresenceOptions = {}): Presence {
      const observes = 'observe' in options
      let open = !observes
      if (!observes && options.data !== undefined) data = encode(options.data, 'presenceBytes')
      if (observes) observing++
      else joining++
      const close = disposer(() => {
        open = false
        if (observes) observing--
        else if (--joining === 0) forget()
        held()
      }, options.signal)
      held()
      sendData()
      return {
        getSnapshot,
        subscribe,
        update: (value) => {
          if (!open) return
          data = encode(value, 'presenceBytes')
          sendData()
        },
        setState: (value) => {
          if (!open) return
          state = encode(value, 'stateBytes')
          stateSoon()
        },
        close,
      }
    },

    /** The `presence` member of a subscribe frame in mode, which asks for a snapshot again or not; what it says counts as sent. */
    _request(mode: Mode, again: boolean): PresenceRequest | undefined {
      const resync = again || undefined
      if (mode === OBSERVE) return { observe: true, resync }
      if (mode !== JOIN) return
      sentData = data
      return { data: data && (JSON.parse(data) as unknown), resync }
    },

    /** A subscription begins or ended: the roster will come anew. */
    _reset(): void {
      joinedLive = false
      roster._desync()
      stateTimer._clear()
      if (self._mode === OFF) {
        roster = createRoster()
        known = false
      }
      changed()
    },

    /** The subscription is live, and with joined this session is in the roster: what changed while it was on its way is sent now. */
    _live(joined: boolean): void {
      if (joined === joinedLive) return
      joinedLive = joined
      if (!joined) return
      sendData()
      if (state !== undefined && state !== 'null') stateSoon()
    },

    _take(frame: PresenceFrame | StateFrame): void {
      if (frame.type === 'state') {
        if (roster._applyState(frame)) changed()
        return
      }
      if (frame.snapshot) error = undefined
      const outcome = roster._take(frame)
      if (roster._synced) known = true
      if (outcome === 'gap') askAgain()
      if (outcome !== 'same') changed()
    },

    _refused(refusal: TidewireError): void {
      if (joinedLive && refusal.retryAfterMs !== undefined) {
        // For its rate: the newest goes again, when the queue sends again.
        sentData = undefined
        sendData()
        stateSoon()
        return
      }
      error = refusal
      changed()
    },
  }
  return self
}

export type ChannelPresence = ReturnType<typeof createPresence>
