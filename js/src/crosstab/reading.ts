import type { Context, Queries } from './context.js'
import type { CoordinatorEvents } from './coordinator.js'
import type { Owned } from './messages.js'
import { count, reached, sameEpoch, type Topic } from './topic.js'
import type { Position, Publication } from './transport.js'

const REPAIR_MS = 20
const REPAIR_AGAIN_MS = 500

/**
 * What a tab takes of what owners hand on, itself among them: with a position exactly the next one, otherwise what is newer than the last of its generation. Who misses something waits a moment, because it may be under
 * way, and then asks the owner until it has come or is lost.
 */
export function createReading({ _platform: { wallNow }, _after: after, _post: post, _trace: trace }: Context, { _ownerOf }: Queries, events: CoordinatorEvents, repairHere: (t: Topic, from: Position) => void) {
  function lost(t: Topic): void {
    trace._count('lost')
    events.lost(t._name)
  }

  /** The furthest that is known. What a former owner says does not bring back an epoch. */
  function advance(t: Topic, position: Position, generation: number): void {
    if (!t._head || (sameEpoch(position, t._head) ? position.offset > t._head.offset : generation >= t._generation)) t._head = position
  }

  function behind(t: Topic, wait = REPAIR_MS): void {
    t._behind ??= after(wait, () => {
      t._behind = undefined
      const { _cursor: cursor, _head: head } = t
      if (!t._wanted || !cursor || !head || reached(head, cursor)) return
      if (t._owned) repairHere(t, cursor)
      else if (_ownerOf(t)) post({ type: 'REPAIR', topicKey: t._key, from: cursor })
      behind(t, REPAIR_AGAIN_MS)
    })
  }

  /** Whether a publication is the next one; if so, this tab has come so far. */
  function isNext(t: Topic, { position }: Publication, generation: number, seq: number, replay: boolean): boolean {
    if (!position) {
      const last = t._seqs.get(generation)
      if (last !== undefined && seq <= last) return false
      count(t, generation, seq)
      if (t._wanted && last !== undefined && seq > last + 1) lost(t)
      return t._wanted
    }
    if (!replay) advance(t, position, generation)
    const cursor = t._cursor
    // Who has just come begins with what is new.
    if (!t._wanted || (!cursor && replay)) return false
    if (cursor) {
      if (reached(position, cursor)) return false
      if (!sameEpoch(position, cursor)) {
        if (generation < t._generation) return false
        lost(t)
      } else if (position.offset > cursor.offset + 1) {
        behind(t)
        return false
      }
    }
    t._cursor = position
    return true
  }

  return {
    _advance: advance,
    _behind: behind,

    _take(t: Topic, publication: Publication, generation: number, seq: number, replayed: boolean, at?: number): void {
      if (!isNext(t, publication, generation, seq, replayed)) return
      if (at !== undefined) trace._sample('delivery', wallNow() - at)
      events.publication(t._name, publication, { generation, replayed })
    },

    /** The owner's word on where the topic is. */
    _settle(t: Topic, { route: { generation }, live, head, seq, lost: missing }: Owned): void {
      if (!live) return
      const cursor = t._cursor
      if (head) {
        advance(t, head, generation)
        if (!t._wanted) return
        if (!cursor) t._cursor = head
        else if (missing ? !sameEpoch(head, cursor) || cursor.offset !== head.offset : !reached(head, cursor)) {
          if (missing || !sameEpoch(head, cursor)) {
            t._cursor = head
            lost(t)
          } else behind(t)
        }
      } else {
        const last = t._seqs.get(generation)
        if (t._told && t._wanted && (missing || (last !== undefined && seq > last))) lost(t)
        count(t, generation, seq)
      }
      if (!t._wanted || t._told) return
      t._told = true
      events.subscribed(t._name, t._cursor)
    },
  }
}

export type Reading = ReturnType<typeof createReading>
