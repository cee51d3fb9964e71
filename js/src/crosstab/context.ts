import type { WorkerRecord } from './coordinator.js'
import type { Message } from './messages.js'
import type { Reader } from './outbox.js'
import type { Platform } from './platform.js'
import type { Records } from './records.js'
import type { Topic } from './topic.js'
import type { Trace } from './trace.js'

/** Another worker, as this one knows it. */
export interface Worker extends Reader {
  _record: WorkerRecord
  /** The keys of the topics that it wants. */
  _wants: Set<string>
  /** When something was last heard of it, on this tab's clock. */
  _seen: number
  _probes: number
  /** It does not answer, or was never heard. */
  _mute: boolean
  /** Topics given to it since its record was made. */
  _given: number
  _unwatch: (() => void) | undefined
  /** When it last did not keep up: what it missed then is not fetched again for it. */
  _slowAt: number
}

/** What the parts of a runtime share. */
export interface Context {
  readonly _platform: Platform
  readonly _trace: Trace
  readonly _records: Records
  readonly _me: string
  /** Whether locks decide. */
  readonly _byLocks: boolean
  readonly _topics: Map<string, Topic>
  readonly _workers: Map<string, Worker>
  /** A timer of this life: at its end none is left. */
  readonly _after: Platform['after']
  readonly _record: () => WorkerRecord
  readonly _post: (message: Message) => void
  /** Looks in a microtask who is to own what. */
  readonly _reconcileSoon: () => void
  /** Says how the connections are, if that has changed. */
  readonly _tell: () => void
  /** Nobody wants the topic, and nobody owns it. */
  readonly _forget: (t: Topic) => void
}

// Who was given a route may not want it: without its word it counts for a moment only.
const GIVEN_MS = 2000

/** Questions about topics and workers. */
export function createQueries({ _topics, _workers, _platform }: Pick<Context, '_topics' | '_workers' | '_platform'>) {
  const self = {
    _wantedByOthers(t: Topic): boolean {
      for (const w of _workers.values()) if (w._wants.has(t._key)) return true
      return false
    },
    _wantedByAny: (t: Topic): boolean => t._wanted || self._wantedByOthers(t),
    _alive(id: string | undefined): Worker | undefined {
      const w = id === undefined ? undefined : _workers.get(id)
      return w?._mute ? undefined : w
    },
    _ownerOf: (t: Topic): Worker | undefined =>
      t._route && (t._route.confirmedAt || _platform.now() - t._since < GIVEN_MS) ? self._alive(t._route.workerId) : undefined,
    _names: (which: (t: Topic) => boolean): string[] => [..._topics.values()].filter(which).map((t) => t._name),
  }
  return self
}

export type Queries = ReturnType<typeof createQueries>
