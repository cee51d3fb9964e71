import type { Connection } from './connection.js'
import { TidewireError } from './error.js'
import type { RefusedFrame } from './frames.js'
import { randomId } from './id.js'
import { encodeJSON } from './json.js'

export interface PublishOptions {
  /** Identifies the message to its receivers, 1 to 64 bytes. Default: one never used before. */
  readonly id?: string
  /** What the message replaces, on channels that keep the latest of each key. */
  readonly key?: string
  /** False: this connection does not get the message. Default true. */
  readonly echo?: boolean
  /** Stops waiting: a message not yet sent is taken back, for one that was sent the effect is unknown. */
  readonly signal?: AbortSignal
}

const ANSWER_TIMEOUT_MS = 10_000

interface Pending {
  sent: boolean
  settle(error?: unknown): void
}

/** Messages published and not yet confirmed. */
export class Publisher {
  readonly #connection: Connection
  readonly #pending = new Map<string, Pending>()
  // Receivers may tell messages apart by id, so two pages must not use the same.
  readonly #prefix = randomId()
  #count = 0

  constructor(connection: Connection) {
    this.#connection = connection
  }

  async publish(channel: string, data: unknown, options: PublishOptions): Promise<void> {
    const { key, echo, signal, id = `${this.#prefix}-${++this.#count}` } = options
    const { queue, stopped } = this.#connection
    if (stopped) throw stopped
    signal?.throwIfAborted()
    encodeJSON(data) // JSON.stringify below would leave out what has no JSON form
    const text = JSON.stringify({
      type: 'publish',
      channel,
      data,
      id,
      ...(key !== undefined && { key }),
      ...(echo !== undefined && { echo }),
    })
    if (this.#pending.has(id)) throw new TidewireError('DATA_INVALID', { cause: `id ${id} is in use` })
    this.#connection.need()
    return new Promise((resolve, reject) => {
      let timer: ReturnType<typeof setTimeout> | undefined
      let takeBack = () => {}
      const aborted = () => {
        takeBack()
        pending.settle(signal?.reason)
      }
      const pending: Pending = {
        sent: false,
        settle: (error) => {
          this.#pending.delete(id)
          clearTimeout(timer)
          signal?.removeEventListener('abort', aborted)
          if (error === undefined) resolve()
          else reject(error)
        },
      }
      this.#pending.set(id, pending)
      signal?.addEventListener('abort', aborted)
      const sent = () => {
        pending.sent = true
        timer = setTimeout(() => pending.settle(new TidewireError('ANSWER_TIMEOUT')), ANSWER_TIMEOUT_MS)
      }
      takeBack = queue.message(text, sent, pending.settle)
    })
  }

  /** Whether anything waits to be sent or for an answer. */
  get busy(): boolean {
    return this.#pending.size > 0
  }

  published(id: string): void {
    this.#pending.get(id)?.settle()
  }

  refused(frame: RefusedFrame): void {
    if (frame.id !== undefined) this.#pending.get(frame.id)?.settle(new TidewireError(frame.code, frame))
  }

  /** The connection is gone. What was sent may have arrived or not; what was not sent still waits. */
  lost(): void {
    for (const pending of [...this.#pending.values()]) {
      if (pending.sent) pending.settle(new TidewireError('CONNECTION_LOST'))
    }
  }
}
