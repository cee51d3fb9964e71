import type { Platform } from './platform.js'

/** The distribution of what was measured in an interval, in milliseconds. */
export interface Latency {
  readonly count: number
  readonly mean: number
  readonly p50: number
  readonly p95: number
  readonly max: number
}

/** What happened to the bus, or what happened in an interval. */
export type TraceEvent =
  | { readonly kind: 'lifecycle'; readonly at: number; readonly what: string; readonly detail?: unknown }
  | {
      readonly kind: 'metrics'
      readonly at: number
      /** How often each thing happened: published, received, dispatched, duplicates, retries … */
      readonly counts: Readonly<Record<string, number>>
      /** delivery: from the owner to this tab's handlers; ack: from SUBSCRIBE to the owner's answer; migration: from an owner's end to the next one's first word from the server, in the tab that takes over. */
      readonly latency: Readonly<Record<string, Latency>>
    }

/** Collects what is to be told. */
export interface Trace {
  _say(what: string, detail?: unknown): void
  _count(what: string, by?: number): void
  _sample(what: string, ms: number): void
  /** Reports from now on, until it stops. */
  _start(): void
  _stop(): void
}

const MAX_SAMPLES = 1000

/** Tells sink of each lifecycle event at once and of the rest every intervalMs. Without a sink it does nothing. */
export function createTrace({ after, wallNow, random }: Pick<Platform, 'after' | 'wallNow' | 'random'>, sink?: (event: TraceEvent) => void, intervalMs = 5000): Trace {
  const nothing = () => {}
  if (!sink) return { _say: nothing, _count: nothing, _sample: nothing, _start: nothing, _stop: nothing }
  let counts: Record<string, number> = {}
  let samples: Record<string, { _n: number; _sum: number; _max: number; readonly _kept: number[] }> = {}
  const report = () => {
    const latency = Object.fromEntries(
      Object.entries(samples).map(([what, { _n, _sum, _max, _kept }]) => {
        _kept.sort((a, b) => a - b)
        const at = (share: number) => _kept[Math.ceil(_kept.length * share) - 1] as number
        return [what, { count: _n, mean: _sum / _n, p50: at(0.5), p95: at(0.95), max: _max }]
      }),
    )
    sink({ kind: 'metrics', at: wallNow(), counts, latency })
    counts = {}
    samples = {}
    stop = after(intervalMs, report)
  }
  let stop: (() => void) | undefined
  return {
    _say: (what, detail) => sink({ kind: 'lifecycle', at: wallNow(), what, ...(detail !== undefined && { detail }) }),
    _count(what, by = 1) {
      counts[what] = (counts[what] ?? 0) + by
    },
    _sample(what, ms) {
      const all = (samples[what] ??= { _n: 0, _sum: 0, _max: 0, _kept: [] })
      all._n++
      all._sum += ms
      all._max = Math.max(all._max, ms)
      // An even choice of all, once there are more than are kept.
      if (all._kept.length < MAX_SAMPLES) all._kept.push(ms)
      else {
        const at = Math.floor(random() * all._n)
        if (at < MAX_SAMPLES) all._kept[at] = ms
      }
    },
    _start() {
      stop ??= after(intervalMs, report)
    },
    _stop() {
      stop?.()
      stop = undefined
    },
  }
}
