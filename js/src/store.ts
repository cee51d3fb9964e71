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
  if (signal?.aborted) dispose()
  else signal?.addEventListener('abort', dispose)
  return dispose
}

/** A set of listeners. One function added twice is called twice. */
export class Listeners<Args extends unknown[] = []> {
  readonly #entries = new Set<{ readonly call: (...args: Args) => void }>()

  add(call: (...args: Args) => void): () => void {
    const entry = { call }
    this.#entries.add(entry)
    return () => this.#entries.delete(entry)
  }

  /** Calls all that are there when it starts. One that throws is reported and does not stop the others. */
  emit(...args: Args): void {
    for (const entry of [...this.#entries]) {
      try {
        entry.call(...args)
      } catch (error) {
        report(error)
      }
    }
  }
}

/** An {@link Observable} that its owner sets. */
export class Store<T> implements Observable<T> {
  #value: T
  readonly #listeners = new Listeners()

  constructor(value: T) {
    this.#value = value
  }

  // Arrow functions, so that both can be handed to useSyncExternalStore as they are.
  readonly getSnapshot = (): T => this.#value
  readonly subscribe = (listener: () => void): (() => void) => this.#listeners.add(listener)

  set(value: T): void {
    if (value === this.#value) return
    this.#value = value
    this.#listeners.emit()
  }
}

/** Shows an error of a listener as uncaught, as the browser does for event listeners. */
function report(error: unknown): void {
  if (typeof reportError === 'function') reportError(error)
  else console.error(error)
}
