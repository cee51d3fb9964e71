/** Bounds of the delay between two dials, in milliseconds. */
export interface BackoffOptions {
  /** The bound of the first delay. Default 250. */
  readonly minMs?: number
  /** The bound that no delay exceeds. Default 4000. */
  readonly maxMs?: number
}

/**
 * Full jitter: a delay drawn evenly from 0 to the bound, which doubles with each failure. When a node
 * dies its clients must not come back at once, and an even spread is the flattest load.
 */
export function createBackoff(random: () => number, { minMs = 250, maxMs = 4000 }: BackoffOptions = {}) {
  const self = {
    _maxMs: maxMs,
    /** Failures since the last reset. */
    _failures: 0,

    /** Counts one failure and returns the delay after it, in milliseconds. */
    _next(): number {
      // 2 ** 30 is far above any bound and still exact.
      const bound = Math.min(maxMs, minMs * 2 ** Math.min(self._failures++, 30))
      return Math.round(random() * bound)
    },

    _reset(): void {
      self._failures = 0
    },
  }
  return self
}

export type Backoff = ReturnType<typeof createBackoff>
