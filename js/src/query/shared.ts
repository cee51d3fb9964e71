import { TidewireError } from '../error.js'
import type { PatchFrame, RefusedFrame, ServerFrame, SnapshotFrame, UnsubscribedFrame, WireRow } from '../frames.js'
import { createListeners, disposer } from '../store.js'
import { createTimer } from '../timer.js'
import type { Hub } from './hub.js'
import { agrees, digest, fromSnapshot, type List, patched } from './list.js'
import type { QueryState } from './state.js'

// A view that is replaced by another, or mounted twice, lets go and takes hold again within this time.
const LINGER_MS = 100

/** The one implementation of a live query. The hub hands it frames while it is in use. */
export function createSharedQuery(hub: Hub, name: string, input: unknown) {
  const { _connection: connection, _nextSid } = hub._link
  const { _queue: queue } = connection
  // Always the same: so the server handles an unsubscribe and what follows it in order.
  const sid = _nextSid()
  const listeners = createListeners()
  let state: QueryState<WireRow> = { kind: 'idle', rows: [] }
  const lingerTimer = createTimer()
  const retryTimer = createTimer()
  let listening = 0
  let used = false
  let list: List | undefined
  let waiting = true // patches are ignored until an answer or a snapshot
  let afresh = false // the next subscribe asks for a snapshot
  let distrusted = false // the snapshot already had another sum: asking again would not help

  function set(next: typeof state): void {
    state = next
    hub._tell(listeners._emit)
  }

  function show(): void {
    const rows = list?._rows ?? []
    const kind = !used || connection._stopped ? 'idle' : !list ? 'loading' : waiting ? 'stale' : 'live'
    if (state.kind !== kind || (list && state.rows !== rows)) set({ kind, rows })
  }

  /** Subscribes, or asks for what is missing. */
  function ask(): void {
    retryTimer._clear()
    waiting = true
    queue._control({
      type: 'subscribe',
      sid,
      query: name,
      input,
      since: afresh ? { offset: 0, epoch: '' } : list && { offset: list._version, epoch: list._epoch, sum: digest(list) },
    })
    show()
  }

  function held(): void {
    lingerTimer._clear()
    if (!listening) lingerTimer._set(LINGER_MS, release)
    else if (!used) {
      used = true
      hub._use(self, true)
      if (connection._connected) ask()
      show()
    }
  }

  function release(): void {
    used = false
    hub._use(self, false)
    // Without a connection it is dropped.
    queue._control({ type: 'unsubscribe', sid })
    self._lost()
  }

  function take(frame: SnapshotFrame | PatchFrame): void {
    const { type, version, sum } = frame
    if (type === 'snapshot') {
      list = fromSnapshot(frame, list)
      waiting = afresh = false
      distrusted = !agrees(list, sum)
      if (distrusted) self.drifts++
    } else {
      if (waiting || !list || version <= list._version) return
      const next = version === list._version + 1 ? patched(list, frame) : undefined
      if (next && (distrusted || agrees(next, sum))) list = next
      else {
        if (version === list._version + 1) {
          afresh = true
          self.drifts++
        }
        ask()
      }
    }
    show()
  }

  function refused(frame: RefusedFrame | UnsubscribedFrame): void {
    const error = new TidewireError(frame.code ?? 'UNSUBSCRIBED', frame)
    const { retryAfterMs } = error
    const { rows } = state
    waiting = true
    if (retryAfterMs === undefined) set({ kind: 'refused', rows, error })
    else {
      retryTimer._set(retryAfterMs, ask)
      set({ kind: 'refused', rows, error, retryAt: Date.now() + retryAfterMs })
    }
  }

  const self = {
    name,
    drifts: 0,
    _qid: undefined as string | undefined,
    getSnapshot: () => state,

    subscribe(listener: () => void): () => void {
      const off = listeners._add(listener)
      listening++
      held()
      return disposer(() => {
        off()
        listening--
        held()
      })
    },

    _ready: ask,

    // An answer may have been lost.
    _beat(): void {
      if (waiting && state.kind !== 'refused') ask()
    },

    _lost(): void {
      self._qid = undefined
      waiting = true
      retryTimer._clear()
      show()
    },

    _take(frame: ServerFrame): void {
      switch (frame.type) {
        case 'snapshot':
        case 'patch':
          if (frame.qid === self._qid) take(frame)
          return
        case 'subscribed':
          if (frame.sid !== sid) return
          self._qid = frame.qid
          waiting = !list || !frame.recovered // then a snapshot follows
          // Another node may count otherwise.
          if (list && !waiting && frame.epoch !== list._epoch) list = { ...list, _version: frame.offset as number, _epoch: frame.epoch as string }
          show()
          return
        case 'unsubscribed':
          // Without a code it is the answer to one that was followed by another subscribe.
          if (frame.sid === sid && frame.code) {
            self._qid = undefined
            refused(frame)
          }
          return
        case 'refused':
          if (frame.sid === sid && frame.re === 'subscribe') refused(frame)
      }
    },
  }
  return self
}
