import type { Context, Queries, Worker } from './context.js'
import type { WorkerRecord } from './coordinator.js'
import { readWorker } from './messages.js'
import type { Ownership } from './ownership.js'
import { lose } from './topic.js'

const PROBE_MS = 1000
const PROBES = 2
const MAX_ENDED = 256
const MAX_WATCHED_BY_ALL = 12

const fit = ({ status }: WorkerRecord) => status === 'connected' || status === 'connecting'
export const older = (a: WorkerRecord, b: WorkerRecord) => a.registeredAt - b.registeredAt || (a.workerId < b.workerId ? -1 : 1)

/** What it is told. */
export interface MemberEvents {
  /** A worker ended: what it was to do for this tab is not done any more. */
  readonly _ended: (id: string) => void
  /** Another tab has this one's id, and had it first. */
  readonly _copied: () => void
}

/**
 * Who else takes part. A worker is dead when its lock is free, or, without locks, when it was silent for `workerTtlMs` and does not answer. With locks, one that is silent for `stallMs` and does not answer is mute: it may
 * live, but counts for nothing. Silence is what this tab observed on its own clock. There is a second after each probe: who could not
 * run itself reads the answer to the first before it has asked twice.
 */
export function createMembers(context: Context, { _wantedByAny }: Queries, ownership: Ownership, events: MemberEvents, maxActive: number, silenceMs: number) {
  const { _workers: workers, _topics: topics, _records: records, _byLocks: byLocks, _me: me, _after: after, _post: post, _trace: trace, _platform: platform } = context
  const { now } = platform
  /** Workers that are dead for certain. What was still under way from them is not heard. */
  const ended = new Set<string>()
  let checking = false
  let active = false

  function add(r: WorkerRecord, heard: boolean): Worker | undefined {
    const id = r.workerId
    if (id === me || ended.has(id)) return undefined
    let w = workers.get(id)
    if (!w) {
      // Without locks, who was never heard may be long dead.
      const _mute = !heard && !byLocks
      w = { _record: r, _wants: new Set(), _seen: now(), _probes: 0, _mute, _given: 0, _unwatch: undefined, _slowAt: -Infinity, _got: undefined, _acked: undefined, _slow: undefined }
      workers.set(id, w)
      context._reconcileSoon()
    }
    if (!heard) return w
    const { _record: before, _mute } = w
    Object.assign(w, { _record: r, _seen: now(), _probes: 0, _mute: false, _given: 0 })
    if (_mute || before.status !== r.status || before.role !== r.role) {
      context._tell()
      context._reconcileSoon()
    }
    const own = context._record()
    if (!byLocks && r.tabId === own.tabId && older(r, own) < 0) events._copied()
    return w
  }

  function gone(id: string, graceful?: boolean): void {
    const w = workers.get(id)
    if (!w) return
    workers.delete(id)
    w._unwatch?.()
    const certain = graceful || byLocks
    if (certain) {
      ended.add(id)
      for (const old of ended) if (ended.size > MAX_ENDED) ended.delete(old)
    }
    records._put(`worker:${id}`, undefined)
    for (const t of topics.values()) {
      if (t._route?.workerId !== id) continue
      t._stray = !certain
      lose(t, now())
    }
    events._ended(id)
    if (!graceful) trace._say('worker gone', id)
    context._tell()
    context._reconcileSoon()
  }

  function check(): void {
    const owners = new Set([...topics.values()].filter(_wantedByAny).map((t) => t._route?.workerId))
    for (const [id, w] of workers) {
      const silent = now() - w._seen
      if (silent < silenceMs - PROBES * PROBE_MS || (byLocks && (w._mute || !owners.has(id)))) continue
      if (w._probes < PROBES) {
        w._probes++
        post({ type: 'PROBE', to: id })
        checkSoon()
      } else if (silent < silenceMs) checkSoon()
      else silenced(id, w)
    }
  }

  function checkSoon(): void {
    if (checking) return
    checking = true
    after(PROBE_MS, () => {
      checking = false
      check()
    })
  }

  function silenced(id: string, w: Worker): void {
    trace._say('worker silent', id)
    if (!byLocks) return gone(id)
    w._mute = true
    for (const t of topics.values()) if (t._route?.workerId === id) lose(t, now(), t._route)
    context._tell()
    context._reconcileSoon()
  }

  return {
    _heard: (r: WorkerRecord) => add(r, true),
    _gone: gone,
    /** Asks those who were silent for too long whether they are there. */
    _check: check,

    /** Takes note of workers that are in storage alone. */
    _adopt(): void {
      for (const [, value] of records._scan('worker:')) {
        const r = readWorker(value)
        if (r && !workers.has(r.workerId)) add(r, false)
      }
    },

    /** Who takes new topics, and keeps a connection: those that have one first, then the oldest. */
    _candidates(): WorkerRecord[] {
      const others = [...workers.values()].filter((w) => !w._mute).map((w) => ({ ...w._record, load: w._record.load + w._given }))
      return [context._record(), ...others].sort((a, b) => +fit(b) - +fit(a) || older(a, b)).slice(0, maxActive)
    },

    /** The least loaded one: of those with a connection, and of the visible ones, if there are any. */
    _choose(from: WorkerRecord[]): string {
      for (const good of [fit, (worker: WorkerRecord) => worker.visibilityState === 'visible']) if (from.some(good)) from = from.filter(good)
      const least = from.reduce((least, worker) => (worker.load < least.load ? worker : least)) as { workerId: string; load: number }
      least.load++
      const other = workers.get(least.workerId)
      if (other) other._given++
      return least.workerId
    },

    /** Waits for the others' ends. In a big cluster the active ones watch all, and all watch them. */
    _watch(nowActive: boolean): void {
      active = nowActive
      for (const [id, w] of workers) {
        const watch = workers.size < MAX_WATCHED_BY_ALL || active || w._record.role === 'active'
        if (!watch) w._unwatch?.()
        w._unwatch = watch
          ? (w._unwatch ??
            ownership._watch(id, () => {
              if (workers.get(id) !== w) return
              gone(id)
              if (active) post({ type: 'GONE', workerId: id })
            }))
          : undefined
      }
    },

    _end(): void {
      for (const w of workers.values()) w._unwatch?.()
    },
  }
}

export type Members = ReturnType<typeof createMembers>
