import { TidewireError } from './error.js'
import { type ClientFrame, DEFAULT_LIMITS, type Limits } from './frames.js'
import { checkSize } from './json.js'
import { createTimer } from './timer.js'

/** The part of a WebSocket that the queue needs. */
export interface Sink {
  readonly bufferedAmount: number
  send(text: string): void
}

/** A frame that waits. */
export interface Entry {
  readonly _text: string
  // Of a frame of which only the newest counts.
  readonly type?: string
  readonly channel?: string
  _sent?(): void
  _failed?(error: TidewireError): void
}

// Above this many bytes not yet taken by the network, waiting in the bounded queue is better than in the socket's.
const HIGH_WATER = 1 << 20
const HIGH_WATER_PAUSE_MS = 50

// The network squeezes frames together, so that the server may see a little more than was sent in the same time.
const MARGIN = 0.9

/**
 * Sends frames at the rate that the server takes: a token bucket. Control frames (hello, subscriptions) go
 * first and are dropped with the connection, because the next one makes its own. Messages wait for a
 * connection in a queue of bounded length; when it is full they fail with QUEUE_FULL.
 */
export function createQueue(capacity: number) {
  let current: Sink | undefined
  let filling = false
  let tokens = 0
  let refilledAt = 0
  let control: Entry[] = []
  let messages: Entry[] = []
  const timer = createTimer()

  function flush(): void {
    while (current && !filling && !timer._on) {
      const lane = control.length > 0 ? control : messages
      const entry = lane[0]
      if (!entry) return
      const wait = delay(current)
      if (wait > 0) {
        timer._set(wait, flush)
        return
      }
      lane.shift()
      send(current, entry)
    }
  }

  function send(sink: Sink, entry: Entry): void {
    try {
      checkSize(entry._text, self._limits.frameBytes, 'FRAME_TOO_BIG')
    } catch (error) {
      entry._failed?.(error as TidewireError)
      return
    }
    tokens -= 1
    sink.send(entry._text)
    entry._sent?.()
  }

  /** Milliseconds until the next frame may go. */
  function delay(sink: Sink): number {
    if (sink.bufferedAmount > HIGH_WATER) return HIGH_WATER_PAUSE_MS
    const rate = (self._limits.framesPerSecond * MARGIN) / 1000
    const now = performance.now()
    if (now > refilledAt) {
      tokens = Math.min(full(), tokens + (now - refilledAt) * rate)
      refilledAt = now
    }
    return tokens >= 1 ? 0 : Math.ceil((1 - tokens) / rate)
  }

  function full(): number {
    return Math.max(1, self._limits.frameBurst * MARGIN)
  }

  const self = {
    /** What the server takes. */
    _limits: DEFAULT_LIMITS,

    /** Starts to send: first the control frames that fill queues, then the messages that waited. */
    _open(sink: Sink, limits: Limits, fill: () => void): void {
      current = sink
      self._limits = limits
      tokens = full() - 1 // the first hello
      refilledAt = performance.now()
      filling = true
      fill()
      filling = false
      flush()
    },

    /** The connection is gone: what the next one makes anew is dropped, messages stay. */
    _lost(): void {
      current = undefined
      control = []
      messages = messages.filter((entry) => entry.channel === undefined)
      timer._clear()
    },

    /** Fails all messages. */
    _failed(error: TidewireError): void {
      for (const entry of messages.splice(0)) entry._failed?.(error)
    },

    /** Queues a control frame. Without a connection it is dropped. */
    _control(frame: ClientFrame): void {
      if (!current) return
      control.push({ _text: JSON.stringify(frame) })
      flush()
    },

    /** Queues a frame of which only the newest of its type and channel counts: it replaces a waiting one. Only while there is a connection. */
    _newest(frame: Extract<ClientFrame, { type: 'presence' | 'state' }>): void {
      const { type, channel } = frame
      const index = messages.findIndex((other) => other.type === type && other.channel === channel)
      messages.splice(index < 0 ? messages.length : index, 1, { _text: JSON.stringify(frame), type, channel })
      flush()
    },

    /** Forgets the waiting newest frames of channel. */
    _forget(channel: string): void {
      messages = messages.filter((entry) => entry.channel !== channel)
    },

    /** Queues a message. Exactly one of sent and failed is called, unless it is taken back before. */
    _message(entry: Entry): void {
      if (messages.length >= capacity) entry._failed?.(new TidewireError('QUEUE_FULL', { retryAfterMs: 1000 }))
      else {
        messages.push(entry)
        flush()
      }
    },

    /** Queues messages again that were sent, before all that wait. There is always room for them. */
    _again(entries: readonly Entry[]): void {
      messages = [...new Set([...entries, ...messages])]
    },

    _takeBack(entry: Entry): void {
      messages = messages.filter((other) => other !== entry)
    },

    /** Sends nothing for so many milliseconds: the server said that it gets too much. */
    _pause(ms: number): void {
      tokens = 0
      refilledAt = performance.now() + ms
      timer._set(ms, flush)
    },
  }
  return self
}

export type SendQueue = ReturnType<typeof createQueue>
