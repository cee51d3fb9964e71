import type { Platform } from './platform.js'

/**
 * Who may subscribe a topic at the server, and who is alive: the browser's locks, or time.
 *
 * With locks exclusion and death are the browser's. Without, a claim that nobody objects to within the settle time holds, the runtime's messages being the objections, and nothing here tells of a death.
 */
export interface Ownership {
  /** Whether locks decide. */
  readonly _locks: boolean
  /** Takes part under this id. Rejects where locks are refused. */
  _join(workerId: string): Promise<void>
  /** Calls gone when the worker is dead. Returns what ends the watch. */
  _watch(workerId: string, gone: () => void): () => void
  /**
   * Waits to own, and calls granted then, unless what it returns was called before: that ends the wait, and the owning. With steal it does not wait; the one who owned is robbed.
   */
  _claim(topicKey: string, steal: boolean, granted: () => void, robbed: () => void): () => void
  /** Ends everything. */
  _leave(): void
}

export function createLocks(locks: NonNullable<Platform['locks']>, prefix: string): Ownership {
  const life = new AbortController()
  // A request that was given up rejects: that is no news.
  const hold = (name: string, granted: (end: () => void) => void, failed: (error: unknown) => void) =>
    locks.request(prefix + name, { signal: life.signal }, () => new Promise<void>(granted)).catch(failed)
  let left = () => {}

  return {
    _locks: true,
    _join: (workerId) =>
      new Promise((resolve, reject) => {
        void hold(`live:${workerId}`, (end) => ((left = end), resolve()), reject)
      }),

    _watch(workerId, gone) {
      const watch = new AbortController()
      const off = () => watch.abort()
      life.signal.addEventListener('abort', off)
      locks
        .request(`${prefix}live:${workerId}`, { mode: 'shared', signal: watch.signal }, () => {
          if (!watch.signal.aborted) gone()
        })
        .catch(() => {})
        .finally(() => life.signal.removeEventListener('abort', off))
      return off
    },

    _claim(topicKey, steal, granted, robbed) {
      const wait = new AbortController()
      let end: (() => void) | undefined
      const off = () => {
        if (end) end()
        wait.abort()
      }
      locks
        .request(`${prefix}own:${topicKey}`, steal ? { steal } : { signal: wait.signal }, () => {
          // The wish may have ended while the grant was under way.
          if (wait.signal.aborted) return
          return new Promise<void>((resolve) => {
            end = resolve
            granted()
          })
        })
        .catch(() => wait.signal.aborted || robbed())
      return off
    },

    _leave() {
      life.abort()
      left()
    },
  }
}

/** Without locks: after settleMs without an objection it is granted. */
export function createLease(after: Platform['after'], settleMs: number): Ownership {
  return {
    _locks: false,
    _join: async () => {},
    _watch: () => () => {},
    _claim: (_key, _steal, granted) => after(settleMs, granted),
    _leave() {},
  }
}
