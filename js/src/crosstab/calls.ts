import { TidewireError } from '../error.js'
import type { Context, Queries } from './context.js'
import { fromWire, type Message } from './messages.js'
import type { Topic } from './topic.js'
import type { PublishOptions } from './transport.js'

const ANSWER_MS = 10_000
const MAX_CALLS = 1000
const TRIES = 2

interface Call {
  readonly _id: string
  readonly _topic: string
  readonly _data: unknown
  readonly _options: PublishOptions
  /** Who is to send it. */
  _to: string
  /** How often it came back. */
  _tries: number
  readonly _settle: (outcome?: Promise<void>) => void
}

/**
 * Publications of this tab. The topic's owner sends them, if there is one, and answers; the tab itself sends what has no owner, or came back twice. Each is answered, or rejects after 10 s; at most 1,000 wait. One whose
 * owner dies rejects too: nobody knows whether it was sent.
 */
export function createCalls({ _after, _post }: Context, { _ownerOf }: Queries, named: (name: string) => Topic | undefined, here: (topic: string, data: unknown, options: PublishOptions) => Promise<void>) {
  const waiting = new Map<string, Call>()
  let last = 0

  function send(call: Call): void {
    const t = named(call._topic)
    const owner = t && !t._owned && call._tries < TRIES && _ownerOf(t)
    if (!owner) return call._settle(here(call._topic, call._data, call._options))
    call._to = owner._record.workerId
    _post({
      type: 'CONTROL',
      action: 'PUBLISH',
      topic: call._topic,
      targetWorkerId: call._to,
      requestId: call._id,
      data: call._data,
      id: call._options.id,
      sure: call._tries > 0,
    })
  }

  return {
    _make(topic: string, data: unknown, options: PublishOptions): Promise<void> {
      if (waiting.size >= MAX_CALLS) return Promise.reject(new TidewireError('QUEUE_FULL'))
      return new Promise((resolve, reject) => {
        const id = String(++last)
        const cancel = _after(ANSWER_MS, () => call._settle(Promise.reject(new TidewireError('ANSWER_TIMEOUT'))))
        const call: Call = {
          _id: id,
          _topic: topic,
          _data: data,
          _options: options,
          _to: '',
          _tries: 0,
          _settle(outcome) {
            waiting.delete(id)
            cancel()
            if (outcome) outcome.then(resolve, reject)
            else resolve()
          },
        }
        waiting.set(id, call)
        send(call)
      })
    },

    _answered({ requestId, error, again }: Extract<Message, { type: 'RESULT' }>): void {
      const call = waiting.get(requestId)
      if (!call) return
      if (again) {
        call._tries++
        send(call)
      } else call._settle(error && Promise.reject(fromWire(error)))
    },

    /** Whoever was to send is gone; or, without an id, this worker is. */
    _gone(id?: string): void {
      for (const call of [...waiting.values()]) {
        if (id === undefined || call._to === id) call._settle(Promise.reject(new TidewireError('CONNECTION_LOST', { cause: 'the tab that was to publish is gone' })))
      }
    },
  }
}
