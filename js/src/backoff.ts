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
export class Backoff {
  readonly #minMs: number
  readonly maxMs: number
  readonly #random: () => number
  #failures = 0

  constructor(random: () => number, options: BackoffOptions = {}) {
    this.#minMs = options.minMs ?? 250
    this.maxMs = options.maxMs ?? 4000
    this.#random = random
  }

  /** Failures since the last reset. */
  get failures(): number {
    return this.#failures
  }

  /** Counts one failure and returns the delay after it, in milliseconds. */
  next(): number {
    // 2 ** 30 is far above any bound and still exact.
    const bound = Math.min(this.maxMs, this.#minMs * 2 ** Math.min(this.#failures++, 30))
    return Math.round(this.#random() * bound)
  }

  reset(): void {
    this.#failures = 0
  }
}
