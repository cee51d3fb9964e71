import type { Active, Link } from '../link.js'

/** The live queries of a client. It takes the frames that are about no channel while any is in use. */
export function createHub(link: Link) {
  const inUse = new Set<Active>()
  const each = (call: (query: Active) => void) => {
    for (const query of [...inUse]) call(query)
  }
  const all: Active = {
    _ready: () => each((query) => query._ready()),
    _take: (frame) => each((query) => query._take(frame)),
    _beat: () => each((query) => query._beat()),
    _lost: () => each((query) => query._lost()),
  }
  return {
    _link: link,
    _known: new Map<string, WeakRef<Active>>(),

    _use(query: Active, used: boolean): void {
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
