import { TidewireError } from './error.js'
import type { Position, ServerFrame, SubscribedFrame } from './frames.js'
import type { Link } from './link.js'
import type { ChannelTypes, TypeOf } from './names.js'
import { createPresence, JOIN, MESSAGES, type Mode, type ObserveOptions, OBSERVE, OFF, type Presence, type PresenceOptions, type RosterHandle, type RosterState } from './presence.js'
import type { Published, PublishOptions } from './publisher.js'
import { createListeners, createStore, disposer, type ListenOptions, type Observable, report } from './store.js'
import { createTimer } from './timer.js'

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
  /** Its place in the channel's history: 1, 2, 3 … within one epoch. Absent on channels without history. */
  readonly offset?: number
}

/** This connection was too slow: so many messages of the channel were dropped for it, where the event stands. */
export interface Skipped {
  readonly channel: string
  readonly count: number
}

/**
 * Messages may be missing before the next one, and will not come: read anew what they add up to. It is told after each
 * reconnect on a channel without history, and on one with history when that no longer has what this page missed.
 */
export interface Lost {
  readonly channel: string
  /** How many are missing. Absent when nobody can know. */
  readonly count?: number
}

/**
 * Whether messages arrive. `kind`:
 * - `idle`: nothing in this page needs the channel, or the client is stopped.
 * - `subscribing`: asked for, or will be when the connection is there.
 * - `live`: every message published from now on arrives, unless `skipped` or `lost` says otherwise.
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
  lost: Lost
}

/**
 * Options of a listener for messages. `last` and `since` say where listening begins, on a channel with history: they count
 * for the first listener for messages. One that joins others begins where those are.
 */
export interface MessageOptions extends ListenOptions {
  /** Begins with the newest messages that the channel has kept, at most so many. */
  readonly last?: number
  /** Begins behind this position, as that of a state that a server has rendered. What is missing then is `lost`. Goes before `last`. */
  readonly since?: Position
  /**
   * Acknowledges to the server what listener has handled: when it has returned, and the promise, if it returns one, has settled. With as many
   * unacknowledged as the channel's window (64) the server counts this subscriber as slow; by default it sends the rest afterwards. Where the channel has no
   * history, a subscription that begins so is refused with HISTORY_DISABLED. It lasts as long as the subscription.
   */
  readonly ack?: boolean
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
  /** Subscribes and calls listener for each event. Returns a function that stops it. Where listening begins: {@link MessageOptions}. */
  on<E extends keyof ChannelEvents>(
    event: E,
    listener: (event: ChannelEvents<TypeOf<T, 'message'>>[E]) => void,
    options?: E extends 'message' ? MessageOptions : ListenOptions,
  ): () => void
  /**
   * Publishes to everyone subscribed; needs no subscription. Resolves when the message is kept in the channel's history, or,
   * where there is none, has been handed to every subscriber's queue. Without a connection it waits for one.
   *
   * Where the server has said that the channel keeps a history, a message whose answer was lost with the connection is sent
   * again with the next one; the server keeps it once.
   *
   * Rejects with a {@link TidewireError}: the server's refusal (`retryAfterMs` says when repeating helps);
   * DATA_INVALID, FRAME_TOO_BIG, QUEUE_FULL and CLOSED (it was not sent); CONNECTION_LOST and ANSWER_TIMEOUT: it was
   * sent, and whether it took effect is unknown.
   */
  publish(data: TypeOf<T, 'message'>, options?: PublishOptions): Promise<Published>
  /** Takes the roster without joining it. */
  presence(options: ObserveOptions): RosterHandle<TypeOf<T, 'presence'>, TypeOf<T, 'state'>>
  /** Joins the roster and takes it. Throws PRESENCE_TOO_BIG or DATA_INVALID. */
  presence(options?: PresenceOptions<TypeOf<T, 'presence'>>): Presence<TypeOf<T, 'presence'>, TypeOf<T, 'state'>>
}

const IDLE: ChannelStatus = { kind: 'idle' }
const SUBSCRIBING: ChannelStatus = { kind: 'subscribing' }
const LIVE: ChannelStatus = { kind: 'live' }

// A view that is replaced by another, or mounted twice, lets go and takes hold again within this time.
const LINGER_MS = 100

// Acknowledgements go together: at most one in this time, or for half of the server's window.
const ACK_MS = 100
const ACK_COUNT = 32

/** The one implementation of {@link Channel}. Its owner is the client, which hands it the frames of its channel while it is active. */
export function createSharedChannel(name: string, link: Link, onActive: (active: boolean) => void) {
  const { _connection: connection, _publisher: publisher } = link
  const { _queue: queue } = connection
  const status = createStore<ChannelStatus>(IDLE)
  const roster = createPresence(name, link, held, () => subscribe(true))
  const events = { message: createListeners<[Message]>(), skipped: createListeners<[Skipped]>(), lost: createListeners<[Lost]>() }
  let listening = 0
  let mode: Mode = OFF // what the server has, or was asked for
  let sid: string | undefined // undefined with a mode: refused
  let settling = false
  const lingerTimer = createTimer()
  const retryTimer = createTimer()

  // Where the listeners are: they have every message up to here, or were told that some are missing.
  let position: Position | undefined
  let last: number | undefined // to begin with, while there is no position
  let began = false // so that what is missing is a loss
  let jump = false // `skipped` came: the next offset may be any
  let locating = false // messages are ignored until the answer that says where the subscription is
  let asked: boolean[] = [] // for each subscribe not answered: whether its answer is that one
  let keeps = false // the server said that the channel has a history

  let acks = false // some listener acknowledges
  let acking = false // and the server knows
  let unhandled = new Set<{ readonly offset: number }>() // in order
  let acked = 0
  const ackTimer = createTimer()

  function live(): boolean {
    return status.getSnapshot() === LIVE
  }

  function wanted(): Mode {
    if (roster._mode || !listening) return roster._mode
    // Only an unsubscribe ends the roster, and with it the messages: while they are wanted it goes on.
    return sid && mode >= OBSERVE ? OBSERVE : MESSAGES
  }

  /** Someone took hold or let go. More is asked for at the end of this task, together; less only after a while. */
  function held(): void {
    const more = wanted() - mode
    if (more > 0 && !settling) {
      settling = true
      queueMicrotask(settle)
    }
    lingerTimer._clear()
    if (more < 0 || !wanted()) lingerTimer._set(LINGER_MS, settle)
  }

  /** Makes the subscription what the holders want. */
  function settle(): void {
    settling = false
    lingerTimer._clear()
    const next = wanted()
    if (next) onActive(true)
    if (!connection._connected) status.set(next && !connection._stopped ? SUBSCRIBING : IDLE)
    else if (next !== mode) change(next)
    if (!next) onActive(false)
    if (!listening && !sid) {
      // Who listens next begins anew.
      position = last = undefined
      began = acks = false
    }
  }

  function change(next: Mode): void {
    retryTimer._clear()
    queue._forget(name)
    mode = next
    if (next && sid) {
      // In place: the messages, and a roster that comes already, go on.
      roster._live(false)
      subscribe()
      return
    }
    if (sid) queue._control({ type: 'unsubscribe', sid })
    sid = next ? link._nextSid() : undefined
    roster._reset()
    asked = []
    locate()
    status.set(next ? SUBSCRIBING : IDLE)
  }

  function subscribe(resync = false, locates = false): void {
    if (!sid) return
    asked.push(locates)
    // The move of a live subscription says nothing about the roster: the server would not hear it.
    const frame = { type: 'subscribe', sid, channel: name, presence: locates && live() ? undefined : roster._request(mode, resync) } as const
    queue._control(locates ? { ...frame, since: position ?? (last ? { last } : undefined), ack: acks || undefined } : frame)
  }

  /** Asks for what follows the position. Messages are ignored until the answer, which says where the subscription is. */
  function locate(resync = false): void {
    if (!sid) return
    locating = true
    acking = acks
    asked.fill(false)
    subscribe(resync, true)
  }

  function located({ offset, epoch = '', recovered }: SubscribedFrame): void {
    const answers = asked.shift()
    // Not the answer to a heartbeat; but the server may give up by itself.
    if (locating ? !answers : recovered !== false) return
    const before = position
    let lost: Lost | undefined
    locating = jump = false
    keeps = offset !== undefined
    if (!recovered) {
      position = offset === undefined ? undefined : { offset, epoch }
      const same = before?.epoch === epoch
      if (!same) unhandled = new Set()
      const count = same && offset !== undefined ? offset - before.offset : -1
      if (began && count !== 0) lost = { channel: name, ...(count > 0 && { count }) }
    }
    began = true
    last = undefined
    acked = position?.offset ?? 0
    askToAck()
    if (lost) events.lost._emit(lost)
  }

  /** Whether the message with an offset is the next one. One that is further off shows a gap, which is mended. */
  function advance(offset: number | undefined): boolean {
    if (offset === undefined) return true
    const ahead = offset - (position?.offset ?? offset - 1)
    if (locating || ahead < 1) return false
    if (ahead > 1 && !jump) {
      locate()
      return false
    }
    jump = false
    position &&= { offset, epoch: position.epoch }
    return true
  }

  /** Tells the server that this subscription acknowledges, if it began without. */
  function askToAck(): void {
    if (acks && !acking && position && !locating) locate()
  }

  /** Calls a listener that acknowledges. */
  async function handle(listener: (message: Message) => unknown, message: Message): Promise<void> {
    const set = unhandled
    const entry = { offset: message.offset ?? 0 }
    set.add(entry)
    try {
      await listener(message)
    } catch (error) {
      report(error)
    }
    set.delete(entry)
    acknowledge()
  }

  /** Acknowledges everything before the oldest message that is not handled yet. */
  function acknowledge(now = false): void {
    const [oldest] = unhandled
    const offset = oldest ? oldest.offset - 1 : (position?.offset ?? 0)
    if (!acking || offset <= acked) return
    if (now || offset - acked >= ACK_COUNT) {
      acked = offset
      queue._control({ type: 'ack', channel: name, offset })
    } else if (!ackTimer._on) ackTimer._set(ACK_MS, () => acknowledge(true))
  }

  function refused(error: TidewireError, goesOn = false): void {
    const { retryAfterMs } = error
    if (goesOn) {
      // The messages go on. A heartbeat asks for the roster again, if that can help.
      if (!roster._waiting) return
      if (retryAfterMs === undefined) mode = MESSAGES
      roster._refused(error)
      return
    }
    sid = undefined
    roster._reset()
    if (retryAfterMs === undefined) {
      status.set({ kind: 'refused', error })
    } else {
      retryTimer._set(retryAfterMs, () => {
        mode = OFF
        settle()
      })
      status.set({ kind: 'refused', error, retryAt: Date.now() + retryAfterMs })
    }
  }

  return {
    name,
    status,
    roster,

    on<E extends keyof ChannelEvents>(event: E, listener: (event: ChannelEvents[E]) => void, { since, last: newest, ack, signal }: MessageOptions = {}): () => void {
      const begins = event === 'message' && !events.message._busy() && (since || newest)
      const off = events[event]._add((ack ? (message: Message) => handle(listener as (message: Message) => unknown, message) : listener) as never)
      if (ack) acks = true
      if (begins) {
        position = since
        last = newest
        began = !!since
        locate()
      } else askToAck()
      listening++
      const dispose = disposer(() => {
        off()
        listening--
        held()
      }, signal)
      held()
      return dispose
    },

    async publish(data: unknown, options: PublishOptions = {}): Promise<Published> {
      const published = await publisher._publish(name, data, options, () => keeps)
      keeps = published.offset !== undefined
      return published
    },

    presence: roster._open,

    /** Where the listeners are. */
    get _position(): Position | undefined {
      return position
    },

    /** The connection is there. */
    _ready: settle,

    /** The connection is gone. */
    _lost(): void {
      if (!mode && !wanted()) return
      mode = OFF
      sid = undefined
      retryTimer._clear()
      roster._reset()
      settle()
    },

    /** A heartbeat: repeats the subscription if the roster depends on it, or if an answer is missing. */
    _beat(): void {
      const missing = roster._waiting && mode !== MESSAGES
      if (locating) {
        asked = []
        locate(missing)
      } else if (mode === JOIN || missing) subscribe(missing)
    },

    _take(frame: ServerFrame): void {
      switch (frame.type) {
        case 'message': {
          const { type: _, ...message } = frame
          if (!advance(frame.offset)) return
          events.message._emit(message)
          acknowledge()
          return
        }
        case 'published':
          // In the place of a message that was not echoed.
          if (advance(frame.offset)) acknowledge()
          return
        case 'skipped':
          jump = true
          events.skipped._emit({ channel: name, count: frame.count })
          return
        case 'presence':
        case 'state':
          if (mode >= OBSERVE) roster._take(frame)
          return
        case 'subscribed':
          if (frame.sid !== sid) return
          status.set(LIVE)
          roster._live(mode === JOIN)
          located(frame)
          return
        case 'unsubscribed':
          if (frame.sid === sid) refused(new TidewireError(frame.code ?? 'UNSUBSCRIBED', frame))
          return
        case 'refused': {
          const error = new TidewireError(frame.code, frame)
          if (frame.re === 'presence' || frame.re === 'state') roster._refused(error)
          if (frame.re === 'subscribe' && frame.sid === sid) {
            asked.shift()
            refused(error, live())
          }
        }
      }
    },
  }
}

export type SharedChannel = ReturnType<typeof createSharedChannel>
