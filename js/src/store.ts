/** A value that changes: the shape that every observable of this package has. */
export interface Observable<T> {
  /** Returns the value: the same reference until it changes. */
  getSnapshot(): T
  /** Calls listener after each change. Returns a function that stops it. */
  subscribe(listener: () => void): () => void
}

/** Options of everything that listens. */
export interface ListenOptions {
  /** Stops listening when it aborts. The returned function does the same. */
  readonly signal?: AbortSignal
}

/** Runs off once: when the returned function is called or when signal aborts, whichever is first. */
export function disposer(off: () => void, signal?: AbortSignal): () => void {
  let done = false
  const dispose = () => {
    if (done) return
    done = true
    signal?.removeEventListener('abort', dispose)
    off()
  }
  signal?.addEventListener('abort', dispose)
  if (signal?.aborted) dispose()
  return dispose
}

/** A set of listeners. One function added twice is called twice. */
export function createListeners<Args extends unknown[] = []>() {
  const entries = new Set<{ readonly call: (...args: Args) => void }>()
  return {
    _add(call: (...args: Args) => void): () => void {
      const entry = { call }
      entries.add(entry)
      return () => entries.delete(entry)
    },

    _busy: () => entries.size > 0,

    /** Calls all that are there when it starts. One that throws is reported and does not stop the others. */
    _emit(...args: Args): void {
      for (const entry of [...entries]) {
        try {
          entry.call(...args)
        } catch (error) {
          report(error)
        }
      }
    },
  }
}

/** An {@link Observable} that its owner sets. */
export interface Store<T> extends Observable<T> {
  set(value: T): void
}

export function createStore<T>(value: T): Store<T> {
  const listeners = createListeners()
  return {
    getSnapshot: () => value,
    subscribe: listeners._add,
    set(next) {
      if (next === value) return
      value = next
      listeners._emit()
    },
  }
}

/** Shows an error of a listener as uncaught, as the browser does for event listeners. */
export function report(error: unknown): void {
  const show = globalThis.reportError ?? console.error
  show(error)
}
