import type { Context, Queries } from './context.js'
import type { CoordinatorEvents, WorkerRoute } from './coordinator.js'
import { type Message, type Owned, readRoute, toWire } from './messages.js'
import type { Outbox } from './outbox.js'
import type { Reading } from './reading.js'
import { sizeOf } from './size.js'
import { clear, count, keep, kept, lose, reached, sameEpoch, type Topic } from './topic.js'
import type { DataBusTransport, Position, Publication } from './transport.js'
import type { Uplink } from './uplink.js'

const SLOW_MS = 10_000
const RINGS_BYTES = 4_194_304
// Of a publication beside its data.
const OVERHEAD = 64

/**
 * What an owner does for a topic: it subscribes it at the server, hands on what comes, keeps the last of it for who misses something, and says how it is with the topic. Only while `_owned` is set; what its transport
 * says of a topic that another owns is not heard.
 */
export function createOwning<Config>(
  { _topics: topics, _workers: workers, _records: records, _me: me, _post: post, _trace: trace, _tell: tell, _record: record, _platform: { now, wallNow } }: Context,
  { _wantedByOthers, _wantedByAny }: Queries,
  transport: DataBusTransport<Config>,
  uplink: () => Uplink,
  outbox: Outbox,
  reading: Reading,
  events: CoordinatorEvents,
  named: (name: string) => Topic | undefined,
) {
  const confirming = new Map<Topic, Partial<Owned>>()
  // A transport may throw where it should reject.
  const guard = async <T>(call: () => T) => call()

  /** Says how it is with a topic: once for all who ask in one task. */
  function confirm(t: Topic, more?: Partial<Owned>): void {
    confirming.set(t, { ...confirming.get(t), ...more })
    outbox._soon()
  }

  const ownedOf = (t: Topic): Owned => ({
    topic: t._name,
    route: t._route as WorkerRoute,
    live: t._live,
    head: t._head,
    seq: t._seqs.get(t._generation) ?? 0,
    knows: [...workers].filter(([, w]) => w._wants.has(t._key)).map(([id]) => id),
  })

  /** A new generation of a route, which is this worker's. */
  function issue(t: Topic, generation = Math.max(t._generation, readRoute(records._get(`route:${t._key}`))?.generation ?? 0) + 1, handoffFromWorkerId?: string): void {
    outbox._flush()
    const at = wallNow()
    t._generation = generation
    t._route = { topicKey: t._key, workerId: me, tabId: record().tabId, updatedAt: at, generation, ...(handoffFromWorkerId && { handoffFromWorkerId }), confirmedAt: at }
    count(t, generation, 0)
    records._put(`route:${t._key}`, t._route)
    confirm(t, t._fence === generation ? { fence: true } : undefined)
  }

  /** Has the transport subscribe, as soon as there is a connection. */
  function subscribe(t: Topic, from = t._head): void {
    if (t._sub || !t._owned || t._releasing || uplink()._status !== 'connected') return
    t._sub = true
    guard(() => transport.subscribe(t._name, from)).catch((error) => {
      t._sub = false
      if (t._owned) refused(t._name, error, false)
    })
  }

  async function unsubscribe(t: Topic): Promise<void> {
    if (!t._sub) return
    t._sub = false
    await guard(() => transport.unsubscribe(t._name)).catch(() => {})
  }

  /** It is unsubscribed: whoever has the lock next, or is given the route, owns it. */
  function letGo(t: Topic, route?: WorkerRoute): void {
    t._owned = t._live = t._sub = false
    if (!_wantedByOthers(t)) records._put(`route:${t._key}`, undefined)
    post({ type: 'ROUTE_RELEASED', topic: t._name, generation: t._generation, head: t._head, route })
    outbox._flush()
    t._end?.()
    t._end = undefined
    lose(t, now(), route)
  }

  function refused(name: string, error: unknown, retry: boolean): void {
    const t = named(name)
    if (!t?._owned) return
    t._live = false
    t._sub = retry
    post({ type: 'REFUSED', topicKey: t._key, error: toWire(error) })
    if (t._wanted) events.refused(name, error)
  }

  /** Subscribes anew, from behind a position that the ring does not reach. */
  async function replay(t: Topic, from: Position): Promise<void> {
    t._redo = from
    await unsubscribe(t)
    subscribe(t, from)
  }

  function limitRings(but: Topic): void {
    let sum = 0
    for (const t of topics.values()) sum += t._ringSize
    for (const t of topics.values()) {
      if (sum <= RINGS_BYTES) break
      if (t === but) continue
      sum -= t._ringSize
      clear(t)
    }
  }

  return {
    _confirm: confirm,
    _ownedOf: ownedOf,
    _issue: issue,
    _subscribe: subscribe,
    _unsubscribe: unsubscribe,
    _letGo: letGo,
    _refused: refused,

    _sayConfirmed(say: (message: Message) => void): void {
      for (const [t, more] of confirming) if (t._owned) say({ type: 'CONFIRM', owned: { ...ownedOf(t), ...more } })
      confirming.clear()
    },

    /** The lock, or the lease, is this worker's. */
    _take(t: Topic, fence: boolean, given?: WorkerRoute): void {
      trace._say('own', t._name)
      // The lock may be there before the word of the owner's end.
      if (t._route?.confirmedAt) t._moving = now()
      issue(t, given?.generation, given?.handoffFromWorkerId ?? t._handoff)
      if (fence || t._stray) {
        t._fence = t._generation
        confirm(t, { fence: true })
      }
      t._owned = t._known = true
      t._called = t._stray = t._live = t._sub = false
      t._handoff = t._redo = undefined
      t._target = me
      clear(t)
      // This tab takes what it has missed itself; who has missed more asks for it.
      t._head = (t._wanted ? t._cursor : undefined) ?? t._head ?? t._from
      uplink()
        ._open()
        .catch(() => {})
      subscribe(t)
      tell()
    },

    /** Nobody wants it: the server first, then the lock. True: it is free. */
    async _release(t: Topic, open: () => boolean): Promise<boolean> {
      t._releasing = true
      t._live = false
      await unsubscribe(t)
      t._releasing = false
      if (!open() || !t._owned) return false
      if (_wantedByAny(t)) {
        issue(t)
        subscribe(t)
        return false
      }
      letGo(t)
      return true
    },

    _publication(name: string, publication: Publication): void {
      const t = named(name)
      if (!t?._owned) return
      const { position } = publication
      const again = !!position && reached(position, t._head)
      const size = sizeOf(publication.data) + OVERHEAD
      trace._count('received')
      if (!again) {
        t._count++
        t._bytes += size
        keep(t, publication, size)
        limitRings(t)
        if (position) t._head = position
      }
      const seq = (t._seqs.get(t._generation) ?? 0) + 1
      if (_wantedByOthers(t)) outbox._event(t, publication, seq, size, again)
      // One without a position is counted when it is taken.
      if (position || !t._wanted) count(t, t._generation, seq)
      reading._take(t, publication, t._generation, seq, again)
    },

    _subscribed(name: string, position?: Position, lost = false): void {
      const t = named(name)
      if (!t?._owned || !t._sub) return
      const head = t._head
      // What was to be recovered has been handed over: a hole is one.
      const hole = !!head && !!position && !reached(position, head)
      const redo = t._redo
      t._redo = undefined
      if (position && (hole || !head || lost)) {
        if (hole && redo && head && sameEpoch(position, head) && !reached(head, redo)) {
          // Only who asked has lost something: the others go on from the head.
          confirm(t, { live: true, lost: true })
          reading._settle(t, { ...ownedOf(t), live: true, lost: true })
          return void replay(t, head)
        }
        t._head = position
        clear(t)
      }
      t._live = true
      const missing = lost || hole || (!position && t._generation + +t._told > 1)
      if (t._moving !== undefined) trace._sample('migration', now() - t._moving)
      t._moving = undefined
      confirm(t, { lost: missing })
      reading._settle(t, { ...ownedOf(t), lost: missing })
      tell()
    },

    /** Gives someone, or this tab, what came after from. */
    _repair(t: Topic, from: Position, to?: string): void {
      if (!t._live || !t._head || t._redo) return
      trace._count('repairs')
      const missed = kept(t, from)
      if (!missed) {
        // That would hold up those who kept up.
        const slowAt = (to && workers.get(to)?._slowAt) || -Infinity
        if (now() - slowAt > SLOW_MS) void replay(t, from)
        else post({ type: 'CONFIRM', to: to as string, owned: { ...ownedOf(t), lost: true } })
      } else if (!to) for (const publication of missed) reading._take(t, publication, t._generation, 0, true)
      else if (!missed.length) confirm(t)
      else post({ type: 'EVENT', to, topicKey: t._key, generation: t._generation, seq: 0, replay: true, at: wallNow(), publications: missed })
    },
  }
}

export type Owning = ReturnType<typeof createOwning>
