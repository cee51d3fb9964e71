import type { Connection } from './connection.js'
import { TidewireError } from './error.js'
import type { PublishedFrame, RefusedFrame } from './frames.js'
import { randomId } from './id.js'
import { encodeJSON } from './json.js'
import type { Entry } from './queue.js'
import { disposer } from './store.js'
import { createTimer, type Timer } from './timer.js'

export interface PublishOptions {
  /** Identifies the message to its receivers, 1 to 64 bytes. Default: one never used before. */
  readonly id?: string
  /** What the message replaces, on channels that keep the latest of each key. */
  readonly key?: string
  /** False: this connection does not get the message. Default true. */
  readonly echo?: boolean
  /** Stops waiting: a message not yet sent is taken back, for one that was sent the effect is unknown. From here on it is not sent. */
  readonly signal?: AbortSignal
}

/** What the server says of a message that it took. */
export interface Published {
  readonly id: string
  /** With `epoch`, its place in the channel's history. Absent where there is none. */
  readonly offset?: number
  readonly epoch?: string
}

const ANSWER_TIMEOUT_MS = 10_000
// The server knows a message again for two minutes. Later than this it is not sent again.
const REPEAT_MS = 90_000

interface Pending extends Entry {
  readonly _repeats: () => boolean
  _sentAt: number | undefined // for the first time
  readonly _timer: Timer
  _done(published: Published): void
  _failed(error: TidewireError): void
}

/** Messages published and not yet confirmed. */
export function createPublisher(connection: Connection) {
  const all = new Map<string, Pending>()
  // Receivers may tell messages apart by id, so two pages must not use the same.
  const prefix = randomId()
  let count = 0
  let lastSession: string | undefined

  const self = {
    /** repeats tells whether the server keeps a message once that is sent twice. */
    async _publish(channel: string, data: unknown, options: PublishOptions, repeats: () => boolean): Promise<Published> {
      const { key, echo, signal, id = `${prefix}-${++count}` } = options
      const { _queue: queue, _stopped: stopped } = connection
      if (stopped) throw stopped
      signal?.throwIfAborted()
      encodeJSON(data) // JSON.stringify below would leave out what has no JSON form
      const text = JSON.stringify({ type: 'publish', channel, data, id, key, echo })
      if (all.has(id)) throw new TidewireError('DATA_INVALID', { cause: `id ${id} is in use` })
      connection._need()
      return new Promise((resolve, reject) => {
        const done = disposer(() => {
          all.delete(id)
          queue._takeBack(pending)
          pending._timer._clear()
          reject(signal?.reason) // if it is not settled
        }, signal)
        const pending: Pending = {
          _text: text,
          _repeats: repeats,
          _sentAt: undefined,
          _timer: createTimer(),
          _done(published) {
            resolve(published)
            done()
          },
          _failed(error) {
            reject(error)
            done()
          },
          _sent() {
            pending._sentAt ??= Date.now()
            pending._timer._set(ANSWER_TIMEOUT_MS, () => pending._failed(new TidewireError('ANSWER_TIMEOUT')))
          },
        }
        all.set(id, pending)
        queue._message(pending)
      })
    },

    /** Whether anything waits to be sent or for an answer. */
    _busy: () => all.size > 0,

    _done({ type: _, channel: _in, ...published }: PublishedFrame): void {
      all.get(published.id)?._done(published)
    },

    _refused(frame: RefusedFrame): void {
      all.get(frame.id as string)?._failed(new TidewireError(frame.code, frame))
    },

    /** The connection is there: what was sent and not answered is sent again, before what waits. To another session it would be another message. */
    _ready(session: string): void {
      const known = session === lastSession
      lastSession = session
      const again: Pending[] = []
      for (const pending of [...all.values()]) {
        if (!pending._sentAt) continue
        if (known && Date.now() - pending._sentAt < REPEAT_MS) again.push(pending)
        else pending._failed(new TidewireError('CONNECTION_LOST'))
      }
      connection._queue._again(again)
    },

    /** The connection is gone. What was sent may have arrived or not; what was not sent still waits. */
    _lost(): void {
      for (const pending of [...all.values()]) {
        pending._timer._clear()
        if (pending._sentAt && (connection._stopped || !pending._repeats())) pending._failed(new TidewireError('CONNECTION_LOST'))
      }
    },
  }
  return self
}

export type Publisher = ReturnType<typeof createPublisher>
