import type { Context, Queries, Worker } from './context.js'
import type { WorkerRecord, WorkerRoute } from './coordinator.js'
import { type Members, older } from './members.js'
import type { Owned } from './messages.js'
import type { Owning } from './owning.js'
import type { Ownership } from './ownership.js'
import type { Reading } from './reading.js'
import { lose, type Topic } from './topic.js'

const RETRY_MS = 500

export function endClaim(t: Topic): void {
  const end = t._end
  t._end = undefined
  end?.()
}

/**
 * Who is to own a topic. One of the candidates is chosen for a topic that has no owner, and asked until somebody confirms; who is asked claims it. A route stays as long as its owner is alive. With locks the other
 * candidates wait for the owner's, and take over without being told; a mute owner is robbed by the first of them. Without, the owner of a higher generation is right, and of two of the same the older worker; who leaves
 * gives its routes away.
 */
export function createPlacing(context: Context, queries: Queries, members: Members, ownership: Ownership, owning: Owning, reading: Reading, isOpen: () => boolean) {
  const { _me: me, _byLocks: byLocks, _topics: topics, _workers: workers, _records: records, _trace: trace, _post: post, _record: record, _reconcileSoon: reconcileSoon } = context
  const { now, wallNow } = context._platform
  const { _wantedByAny: wantedByAny, _wantedByOthers: wantedByOthers, _ownerOf: ownerOf, _alive: alive } = queries

  /** Does what is to be done for a topic. True: it is to be looked at again. */
  function place(t: Topic, first: WorkerRecord[], active: boolean): boolean {
    const owner = ownerOf(t)
    if (!wantedByAny(t)) {
      t._called = false
      if (t._owned) void release(t)
      else if (owner) endClaim(t)
      else context._forget(t)
      return false
    }
    if (t._owned) return false
    if (owner) {
      // Who waits for the lock will own it without being told.
      if (byLocks && active && t._route?.confirmedAt) claim(t)
      else if (byLocks && !active) endClaim(t)
      return t._wanted && !t._known && ask(t, owner._record.workerId)
    }
    const robbery = byLocks && !!t._route && !!workers.get(t._route.workerId)?._mute
    const waited = now() - t._since
    if (t._target !== me && !alive(t._target)) {
      t._target = robbery ? (first[0] as WorkerRecord).workerId : members._choose(first)
      t._asked = -Infinity
    }
    // Whoever was asked may not be able to. With locks it does no harm that several try, unless it is to steal.
    const late = byLocks && active && waited > (robbery ? 4 : 1) * RETRY_MS
    if (t._target === me || late || (t._called && !robbery)) claim(t, robbery)
    else if (t._wanted) ask(t, t._target)
    return true
  }

  /** Asks a worker to own the topic, or to note that this tab wants it, until it confirms. */
  function ask(t: Topic, target: string): true {
    const first = t._target !== target || t._asked === -Infinity
    t._target = target
    if (first || now() - t._asked >= RETRY_MS) {
      if (!first) trace._count('retries')
      t._asked = now()
      const { _route: route } = t
      post({
        type: 'CONTROL',
        action: 'SUBSCRIBE',
        topic: t._name,
        targetWorkerId: target,
        generation: t._generation,
        from: t._cursor,
        ...(route?.workerId === target && !route.confirmedAt && { route }),
      })
    }
    return true
  }

  function claim(t: Topic, steal = false): void {
    if (t._end && (t._stealing || !steal)) return
    endClaim(t)
    t._stealing = steal
    let over = false
    const end = ownership._claim(
      t._key,
      steal,
      () => {
        if (!over) own(t, steal)
      },
      () => {
        if (over) return
        t._end = undefined
        drop(t)
      },
    )
    t._end = () => {
      over = true
      end()
    }
    if (!byLocks) post({ type: 'CLAIM', topic: t._name, generation: t._generation })
  }

  /** The lock, or the lease, is this worker's. */
  function own(t: Topic, fence: boolean, given?: WorkerRoute): void {
    if (isOpen() && wantedByAny(t)) owning._take(t, fence, given)
    else endClaim(t)
  }

  async function release(t: Topic): Promise<void> {
    if (await owning._release(t, isOpen)) reconcileSoon()
  }

  /** Without locks: a route for one of heirs, stored before anyone is told. With locks whoever gets the lock makes it. */
  function bequeath(t: Topic, heirs: WorkerRecord[]): WorkerRoute | undefined {
    const heir = !byLocks && wantedByOthers(t) && heirs.length ? workers.get(members._choose(heirs))?._record : undefined
    if (!heir) return undefined
    const { workerId, tabId } = heir
    const route = { topicKey: t._key, workerId, tabId, updatedAt: wallNow(), generation: t._generation + 1, handoffFromWorkerId: me }
    records._put(`route:${t._key}`, route)
    return route
  }

  /** This worker has had no connection for long, and others have one. */
  function yieldAll(): void {
    const others = members._candidates().filter((worker) => worker.workerId !== me && worker.status === 'connected')
    if (!others.length) return
    for (const t of topics.values()) if (t._owned && !t._releasing && wantedByOthers(t)) owning._letGo(t, bequeath(t, others))
    reconcileSoon()
  }

  /** It is no longer this worker's, which did not give it. */
  function drop(t: Topic, route?: WorkerRoute): void {
    if (t._owned) {
      trace._say('robbed', t._name)
      t._owned = t._live = false
      void owning._unsubscribe(t)
      lose(t, now(), route)
      reconcileSoon()
    }
  }

  /** A route that its old owner, who has unsubscribed, gave to someone. */
  function inherit(t: Topic, route: WorkerRoute): void {
    t._generation = Math.max(t._generation, route.generation)
    if (route.workerId !== me || t._owned || route.generation < t._generation) return
    endClaim(t)
    own(t, false, route)
  }

  /** What another worker says of a topic that it owns. */
  function learn(t: Topic, owned: Owned, from: string): void {
    const { route } = owned
    if (t._owned) {
      if (route.generation < t._generation) return owning._confirm(t)
      if (byLocks) {
        // Who has the lock is right: it had not heard of a generation.
        return owning._issue(t, route.generation + 1)
      }
      const w = workers.get(from) as Worker
      if (route.generation === t._generation && older(record(), w._record) < 0) return owning._confirm(t)
      endClaim(t)
      drop(t, route)
    } else if (route.generation < t._generation) {
      // A former owner, or one that has not heard of a generation.
      if (!ownerOf(t)) post({ type: 'CLAIM', topic: t._name, generation: t._generation })
      return
    }
    if (!byLocks) endClaim(t)
    if (t._route?.workerId !== from || t._route.generation !== route.generation) {
      lose(t, now(), route)
      t._handoff = undefined
    }
    t._stray = t._called = false
    t._generation = route.generation
    t._route = route
    if (owned.fence) t._fence = route.generation
    const known = owned.knows.includes(me)
    if (known && !t._known && t._asked > -Infinity) trace._sample('ack', now() - t._asked)
    t._known = known
    reading._settle(t, owned)
    reconcileSoon()
  }

  return { _place: place, _bequeath: bequeath, _yieldAll: yieldAll, _inherit: inherit, _learn: learn }
}
