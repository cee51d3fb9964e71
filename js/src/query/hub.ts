import type { PatchFrame, ServerFrame, SnapshotFrame } from '../frames.js'
import type { Active, Link } from '../link.js'

// How long a frame waits for the others of its commit: what the server says of that may not come.
const HOLD_MS = 250
const MAX_HELD = 256

/** A live query as the hub sees it. */
export interface HubQuery extends Active {
  /** Its name in the frames of this connection, while it is subscribed. */
  _qid: string | undefined
}

type Held = (SnapshotFrame | PatchFrame) & { _whole?: boolean }

/**
 * The live queries of a client. It takes the frames that are about no channel while any is in use.
 *
 * What one commit changed in several queries is shown in all at once: frames of such a commit are held until the server says that it is whole, in the order of the commits, and later frames of a query wait behind its
 * earlier ones. A frame that is held has not come yet, as far as its query knows: with the connection it is given up, and asked for on the next.
 */
export function createHub(link: Link) {
  const inUse = new Set<HubQuery>()
  let held: Held[] = []
  let later: Set<() => void> | undefined // what is to be called when all queries have changed
  const each = (call: (query: HubQuery) => void) => {
    for (const query of [...inUse]) call(query)
  }
  const give = (frame: ServerFrame) => each((query) => query._take(frame))

  /** Shows what is held of commits up to one, whole or not, and what waits for nothing any more. Listeners are called when all of it is there. */
  function release(upTo = 0): void {
    const open = Math.min(...held.map(({ commit = 0, _whole }) => (_whole || commit <= upTo ? Infinity : commit)))
    const stay = new Set<string>()
    const go: Held[] = []
    held = held.filter((frame) => (stay.has(frame.qid) || (frame.commit as number) >= open ? stay.add(frame.qid) : !go.push(frame)))
    const calls = (later = new Set())
    try {
      go.forEach(give)
    } finally {
      later = undefined
      for (const call of calls) call()
    }
  }

  const all: Active = {
    _ready: () => each((query) => query._ready()),

    _take(frame) {
      if (frame.type === 'settled') {
        for (const other of held) if (other.commit === frame.commit) other._whole = true
        release()
      } else if ('sum' in frame && (held.some(({ qid }) => qid === frame.qid) || (frame.commit && [...inUse].filter(({ _qid }) => _qid).length > 1))) {
        held.push(frame)
        setTimeout(() => held.includes(frame) && release(frame.commit), HOLD_MS)
        if (held.length > MAX_HELD) release(Infinity)
      } else give(frame)
    },

    _beat: () => each((query) => query._beat()),

    _lost() {
      held = []
      each((query) => query._lost())
    },
  }

  return {
    _link: link,
    _known: new Map<string, WeakRef<HubQuery>>(),

    /** Calls listeners: when all queries have changed, if several do. */
    _tell(call: () => void): void {
      later ? later.add(call) : call()
    },

    _use(query: HubQuery, used: boolean): void {
      if (used) inUse.add(query)
      else inUse.delete(query)
      if (inUse.size) {
        link._active.set(undefined, all)
        link._connection._need()
      } else link._active.delete(undefined)
    },
  }
}

export type Hub = ReturnType<typeof createHub>
