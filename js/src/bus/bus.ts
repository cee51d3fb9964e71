import { type BusChannel, decodeHeader, type FrameMessage, listen } from './channel.js'
import { decodeNativeEnvelope } from './envelope.js'
import { checkId, checkOptions, fail } from './fail.js'

export interface BroadcastBusOptions {
  /** Where frames are posted and acknowledgements come from, for this bus alone. It stays the caller's, who closes it. */
  readonly channel: BusChannel
  /** How long a receiver has to acknowledge a frame, less than 2 ** 31. Default 5000. */
  readonly ackTimeoutMs?: number
  /** Called once when a receiver becomes slow. It may call the bus. */
  readonly onSlowConsumer?: (receiverId: string) => void
}

/** Who is to get a frame; any record with an id. */
export interface AckedSubscriber {
  readonly id: string
}

/**
 * # What is counted
 * A frame is pending for a receiver from when it is sent until the receiver has acknowledged it, or `ackTimeoutMs` has passed.
 *
 * # Slow receivers
 * A receiver becomes slow when more than 2 frames are pending for it, or when one times out. It stops being slow when nothing is pending for it and
 * it has acknowledged the newest frame that was, be it late; then a later slowness is reported again. An acknowledgement after the time-out brings
 * back neither the frame nor the count, and one that is unknown, repeated or malformed changes nothing.
 *
 * # Bounds
 * A frame is posted once and never again. The bus has one timer, which runs only while something is pending, and remembers 1,048,576 of what is pending:
 * past them the older half counts as timed out.
 */
export interface BroadcastBus<Frame = unknown> {
  /** Posts frame for sub. True while the bus is open. Throws a TypeError if `sub.id` is not a non-empty string, and what the channel throws, with nothing expected; what `onSlowConsumer` throws comes after the post. */
  send(sub: AckedSubscriber, frame: Frame): boolean
  /** Posts one message for everyone on the channel, and expects an acknowledgement from each of subs. Otherwise as `send`. */
  broadcast(frame: Frame, subs: Iterable<AckedSubscriber>): boolean
  /** Forgets a receiver and what is pending for it. Does nothing without an id. */
  close(sub: Partial<AckedSubscriber>): void
  /** Whether a receiver is slow: what a {@link RealtimeHub} asks. */
  isSlow(sub: AckedSubscriber): boolean
  /** A copy of the ids of those who are slow. */
  getSlowConsumerIds(): Set<string>
  /** A copy of how many frames are pending, for each receiver that was sent one and not closed. */
  getPendingCounts(): Map<string, number>
  /** Ends the bus: it listens no longer and forgets everything. In Node it no longer keeps the process alive. Again, it does nothing. */
  dispose(): void
}

interface Receiver {
  readonly id: string
  readonly pending: Map<number, Expected>
  slow: boolean
  /** The newest frame that timed out. */
  late: number
}

/** One acknowledgement that is expected. */
interface Expected {
  readonly seq: number
  readonly receiver: Receiver
  readonly due: number
}

const SLOW_THRESHOLD = 2
const MAX_PENDING = 1 << 20
const MAX_TIMEOUT = 2 ** 31

/** Makes a bus. Throws a TypeError that names an option that is unknown or wrong. */
export function createBroadcastBus<Frame = unknown>(options: BroadcastBusOptions): BroadcastBus<Frame> {
  checkOptions(options, 'channel ackTimeoutMs onSlowConsumer')
  const { channel, ackTimeoutMs = 5000, onSlowConsumer } = options
  if (!channel) fail('channel')
  if (!(ackTimeoutMs > 0 && ackTimeoutMs < MAX_TIMEOUT)) fail('ackTimeoutMs')

  const receivers = new Map<string, Receiver>()
  // In the order in which they were sent, which is that of their deadlines.
  const queue = new Set<Expected>()
  let lastSeq = 0
  let open = true
  let timer: ReturnType<typeof setTimeout> | undefined

  /** Sets the timer for the oldest, unless it is set, or stops it when nothing is pending. */
  const arm = (): void => {
    if (!queue.size) timer = clearTimeout(timer) as undefined
    else timer ??= setTimeout(expire, (queue.values().next().value as Expected).due - performance.now())
  }

  const settle = (expected: Expected): void => {
    queue.delete(expected)
    expected.receiver.pending.delete(expected.seq)
    arm()
  }

  const markSlow = (receiver: Receiver): void => {
    if (receiver.slow || !open) return
    receiver.slow = true
    onSlowConsumer?.(receiver.id)
  }

  /** Gives up the oldest, as long as it is to go. A callback that throws leaves the others to the timer. */
  const giveUp = (goes: (expected: Expected) => boolean): void => {
    for (const expected of queue) {
      if (!goes(expected)) break
      settle(expected)
      expected.receiver.late = expected.seq
      markSlow(expected.receiver)
    }
  }

  const expire = (): void => {
    const now = performance.now()
    try {
      giveUp(({ due }) => due <= now)
    } finally {
      // It may be another one by now.
      timer = clearTimeout(timer) as undefined
      arm()
    }
  }

  const post = (receiverId: string, frame: Frame, subs: Iterable<AckedSubscriber>): boolean => {
    const ids = new Set(Array.from(subs, (sub) => checkId(sub?.id)))
    if (!open) return false
    const seq = ++lastSeq
    const due = performance.now() + ackTimeoutMs
    const all = [...ids].map((id) => {
      const receiver = receivers.get(id) ?? { id, pending: new Map(), slow: false, late: 0 }
      const expected = { seq, receiver, due }
      receivers.set(id, receiver)
      receiver.pending.set(seq, expected)
      queue.add(expected)
      return expected
    })
    // Before the post: an acknowledgement may come before it returns.
    arm()
    try {
      channel.postMessage({ _bc: true, seq, receiverId, frame } satisfies FrameMessage<Frame>)
    } catch (error) {
      all.forEach(settle)
      throw error
    }
    for (const { receiver } of all) if (receiver.pending.size > SLOW_THRESHOLD) markSlow(receiver)
    if (queue.size > MAX_PENDING) giveUp(() => queue.size > MAX_PENDING / 2)
    return true
  }

  const isSlow = ({ id }: AckedSubscriber) => !!receivers.get(id)?.slow

  const stop = listen(channel, ({ data }) => {
    try {
      const envelope = decodeNativeEnvelope(data)
      if (envelope?.type !== 'ack') return
      const { seq, receiverId } = decodeHeader(envelope.payload)
      const receiver = receivers.get(receiverId) as Receiver
      const expected = receiver.pending.get(seq)
      if (expected) settle(expected)
      if ((expected || seq === receiver.late) && !receiver.pending.size) receiver.slow = false
    } catch {
      // Malformed, or of a receiver that is not known.
    }
  })

  return {
    send: (sub, frame) => post(checkId(sub?.id), frame, [sub]),
    broadcast: (frame, subs) => post('', frame, subs),
    close: (sub) => {
      const receiver = receivers.get(sub?.id as string)
      receivers.delete(sub?.id as string)
      receiver?.pending.forEach(settle)
    },
    isSlow,
    getSlowConsumerIds: () => new Set([...receivers.keys()].filter((id) => isSlow({ id }))),
    getPendingCounts: () => new Map([...receivers].map(([id, { pending }]) => [id, pending.size])),
    dispose: () => {
      if (open) stop()
      open = false
      receivers.clear()
      queue.clear()
      arm()
    },
  }
}
