import type { WorkerRoute } from './coordinator.js'
import type { Position, Publication } from './transport.js'

/** What a worker knows of a topic, and does for it. */
export interface Topic {
  readonly _name: string
  readonly _key: string
  /** This tab has handlers. */
  _wanted: boolean
  /** How far this tab has come, or where it wants to begin. */
  _cursor: Position | undefined
  /** It was told that the topic is live. */
  _told: boolean

  /** The furthest that is known; of an owner, what it has handed on. */
  _head: Position | undefined
  /** Where who asked first wants to begin, of a topic that nobody owns yet. */
  _from: Position | undefined
  /** The highest generation that was seen. */
  _generation: number
  /** The lowest that still counts: the owners before were robbed, and may not know. */
  _fence: number
  /** How many publications of a generation were seen. */
  readonly _seqs: Map<number, number>

  _route: WorkerRoute | undefined
  /** The owner knows that this tab wants it. */
  _known: boolean
  /** Since when it has no owner. */
  _since: number
  /** Since when it is on its way to another owner, until that one has it. */
  _moving: number | undefined
  /** The last owner left in order: its id. Or it is taken for dead, and may not be. */
  _handoff: string | undefined
  _stray: boolean
  /** Who was asked to own it, or to note that this tab wants it, and when. */
  _target: string
  _asked: number
  /** Another worker asks this one to own it. */
  _called: boolean

  /** Ends this worker's claim, or its owning. */
  _end: (() => void) | undefined
  _stealing: boolean
  _owned: boolean
  /** It is being unsubscribed. What still comes is handed on. */
  _releasing: boolean
  /** The transport was told to subscribe it, and the server has done so. */
  _sub: boolean
  _live: boolean
  /** It is being subscribed anew from here, for who has missed something. */
  _redo: Position | undefined
  /** What was lately handed on: without holes, up to the head. */
  _ring: { readonly _publication: Publication; readonly _size: number }[]
  _ringSize: number

  /** Publications and bytes since the last tick, and in a second, the older ones counting less. */
  _count: number
  _bytes: number
  _rate: number
  _byteRate: number
  /** Ends the wait for what is missing. */
  _behind: (() => void) | undefined
}

export const createTopic = (name: string, key: string, now: number): Topic => ({
  _name: name,
  _key: key,
  _wanted: false,
  _cursor: undefined,
  _told: false,
  _head: undefined,
  _from: undefined,
  _generation: 0,
  _fence: 0,
  _seqs: new Map(),
  _route: undefined,
  _known: false,
  _since: now,
  _moving: undefined,
  _handoff: undefined,
  _stray: false,
  _target: '',
  _asked: -Infinity,
  _called: false,
  _end: undefined,
  _stealing: false,
  _owned: false,
  _releasing: false,
  _sub: false,
  _live: false,
  _redo: undefined,
  _ring: [],
  _ringSize: 0,
  _count: 0,
  _bytes: 0,
  _rate: 0,
  _byteRate: 0,
  _behind: undefined,
})

export const sameEpoch = (a: Position | undefined, b: Position | undefined) => a?.epoch === b?.epoch

/** Whether a is at or before b, on the same way. */
export const reached = (a: Position, b: Position | undefined) => !!b && sameEpoch(a, b) && a.offset <= b.offset

/** Notes how many publications of a generation were seen: of this one, and of the one before it. */
export function count(t: Topic, generation: number, seq: number): void {
  t._seqs.set(generation, Math.max(seq, t._seqs.get(generation) ?? 0))
  for (const old of t._seqs.keys()) if (t._seqs.size > 2 && old !== generation) t._seqs.delete(old)
}

const RING = 256
const RING_BYTES = 262_144

/** Keeps a publication for who misses it. */
export function keep(t: Topic, publication: Publication, size: number): void {
  const last = t._ring.at(-1)?._publication.position
  const { position } = publication
  if (!position) return
  if (last && !(sameEpoch(last, position) && last.offset + 1 === position.offset)) clear(t)
  t._ring.push({ _publication: publication, _size: size })
  t._ringSize += size
  while (t._ring.length > RING || t._ringSize > RING_BYTES) t._ringSize -= t._ring.shift()?._size ?? 0
}

export function clear(t: Topic): void {
  t._ring = []
  t._ringSize = 0
}

/** What came after a position, if all of that is kept. */
export function kept(t: Topic, from: Position): Publication[] | undefined {
  const first = t._ring[0]?._publication.position
  if (!first || !sameEpoch(first, from) || from.offset + 1 < first.offset) return undefined
  return t._ring.slice(from.offset + 1 - first.offset).map(({ _publication }) => _publication)
}

/** Nobody owns it any more, or whom the route names will. */
export function lose(t: Topic, now: number, route?: WorkerRoute): void {
  t._route = route
  t._known = false
  t._since = t._moving = now
  t._target = ''
  t._asked = -Infinity
}
