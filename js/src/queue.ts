import { TidewireError } from './error.js'
import { type ClientFrame, DEFAULT_LIMITS, type Limits } from './frames.js'
import { byteLength } from './json.js'

/** The part of a WebSocket that the queue needs. */
export interface Sink {
  readonly bufferedAmount: number
  send(text: string): void
}

interface Entry {
  readonly text: string
  // Of a frame of which only the newest counts.
  readonly type?: string
  readonly channel?: string
  readonly sent?: () => void
  readonly failed?: (error: TidewireError) => void
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
export class SendQueue {
  readonly #capacity: number
  #sink: Sink | undefined
  #limits = DEFAULT_LIMITS
  #filling = false
  #tokens = 0
  #refilledAt = 0
  #control: Entry[] = []
  #messages: Entry[] = []
  #timer: ReturnType<typeof setTimeout> | undefined

  constructor(capacity: number) {
    this.#capacity = capacity
  }

  /** Starts to send: first the control frames that fill queues, then the messages that waited. */
  open(sink: Sink, limits: Limits, fill: () => void): void {
    this.#sink = sink
    this.#limits = limits
    this.#tokens = this.#full() - 1 // the first hello
    this.#refilledAt = performance.now()
    this.#filling = true
    fill()
    this.#filling = false
    this.#flush()
  }

  /** The connection is gone: what the next one makes anew is dropped, messages stay. */
  lost(): void {
    this.#sink = undefined
    this.#control = []
    this.#messages = this.#messages.filter((entry) => entry.channel === undefined)
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  /** Fails all messages. */
  fail(error: TidewireError): void {
    for (const entry of this.#messages.splice(0)) entry.failed?.(error)
  }

  /** Queues a control frame. Without a connection it is dropped. */
  control(frame: ClientFrame): void {
    if (!this.#sink) return
    this.#control.push({ text: JSON.stringify(frame) })
    this.#flush()
  }

  /** Queues a frame of which only the newest of its type and channel counts: it replaces a waiting one. Without a connection it is dropped. */
  newest(frame: Extract<ClientFrame, { type: 'presence' | 'state' }>): void {
    if (!this.#sink) return
    const { type, channel } = frame
    const entry = { text: JSON.stringify(frame), type, channel }
    const index = this.#messages.findIndex((other) => other.type === type && other.channel === channel)
    if (index >= 0) this.#messages[index] = entry
    else this.#messages.push(entry)
    this.#flush()
  }

  /** Forgets the waiting newest frames of channel. */
  forget(channel: string): void {
    this.#messages = this.#messages.filter((entry) => entry.channel !== channel)
  }

  /** Queues a message. Exactly one of sent and failed is called, unless the returned function takes the message back before. */
  message(text: string, sent: () => void, failed: (error: TidewireError) => void): () => void {
    const entry = { text, sent, failed }
    if (this.#messages.length >= this.#capacity) {
      failed(new TidewireError('QUEUE_FULL', { retryAfterMs: 1000 }))
    } else {
      this.#messages.push(entry)
      this.#flush()
    }
    return () => {
      this.#messages = this.#messages.filter((other) => other !== entry)
    }
  }

  /** Sends nothing for so many milliseconds: the server said that it gets too much. */
  pause(ms: number): void {
    if (!this.#sink) return
    this.#tokens = 0
    this.#refilledAt = performance.now() + ms
    this.#later(ms)
  }

  #flush(): void {
    while (this.#sink && !this.#filling && this.#timer === undefined) {
      const lane = this.#control.length > 0 ? this.#control : this.#messages
      const entry = lane[0]
      if (!entry) return
      const wait = this.#delay(this.#sink)
      if (wait > 0) {
        this.#later(wait)
        return
      }
      lane.shift()
      this.#send(this.#sink, entry)
    }
  }

  #send(sink: Sink, entry: Entry): void {
    const limit = this.#limits.frameBytes
    // A UTF-16 unit is at most three bytes of UTF-8: most frames need no counting.
    if (entry.text.length * 3 > limit && byteLength(entry.text) > limit) {
      entry.failed?.(new TidewireError('FRAME_TOO_BIG', { cause: `a frame has at most ${limit} bytes` }))
      return
    }
    this.#tokens -= 1
    sink.send(entry.text)
    entry.sent?.()
  }

  /** Milliseconds until the next frame may go. */
  #delay(sink: Sink): number {
    if (sink.bufferedAmount > HIGH_WATER) return HIGH_WATER_PAUSE_MS
    const rate = (this.#limits.framesPerSecond * MARGIN) / 1000
    const now = performance.now()
    if (now > this.#refilledAt) {
      this.#tokens = Math.min(this.#full(), this.#tokens + (now - this.#refilledAt) * rate)
      this.#refilledAt = now
    }
    return this.#tokens >= 1 ? 0 : Math.ceil((1 - this.#tokens) / rate)
  }

  #full(): number {
    return Math.max(1, this.#limits.frameBurst * MARGIN)
  }

  #later(ms: number): void {
    clearTimeout(this.#timer)
    this.#timer = setTimeout(() => {
      this.#timer = undefined
      this.#flush()
    }, ms)
  }
}
