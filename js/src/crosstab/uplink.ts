import type { DataBusTransport, TransportEvents, TransportStatus } from './transport.js'

/** A transport that is opened when it is needed and closed when it is not, never twice at once; what an earlier use of it says is not heard. */
export function createUplink<Config>(transport: DataBusTransport<Config>, config: Config, events: TransportEvents) {
  let turn = 0
  let begun = false
  let opening: Promise<void> | undefined
  let closing: Promise<unknown> | undefined

  const say = (status: TransportStatus, error?: unknown) => {
    if (status === self._status && error === undefined) return
    self._status = status
    events.status(status, error)
  }

  async function begin(mine: number): Promise<void> {
    if (closing) await closing
    const ours = <A extends unknown[]>(call: (...args: A) => void) => (...args: A) => {
      if (mine === turn) call(...args)
    }
    if (mine !== turn) return
    begun = true
    say('connecting')
    try {
      const { credential } = events
      await transport.start(config, {
        status: ours(say),
        publication: ours(events.publication),
        subscribed: ours(events.subscribed),
        refused: ours(events.refused),
        ...(credential && { credential }),
      })
    } catch (error) {
      if (mine === turn) {
        begun = false
        opening = undefined
        say('error', error)
      }
      throw error
    }
  }

  const self = {
    _status: 'disconnected' as TransportStatus,
    /** It is open, or on its way. */
    get _used(): boolean {
      return !!opening
    },

    _open(): Promise<void> {
      return (opening ??= begin(++turn))
    },

    /** Resolves when it is closed. What is still under way is heard until then, unless it is closed in a hurry. */
    _close(hurry = false): Promise<unknown> {
      const mine = hurry ? ++turn : turn
      if (opening) {
        const settled = opening
        opening = undefined
        if (!begun) turn++
        else closing = Promise.allSettled([settled, (async () => transport.stop())()])
        begun = false
      }
      self._status = 'disconnected'
      return Promise.resolve(closing).then(() => {
        if (mine === turn) turn++
      })
    },
  }
  return self
}

export type Uplink = ReturnType<typeof createUplink>
