/**
 * What coordination between tabs needs of a browser, as one port: `browserPlatform` is the real one, `tidewire/testing` has one that a test drives. Nothing else in this folder
 * touches a global of the browser, a timer or a clock, so that a test decides every delay, loss and death.
 */

/** One tab's, or one worker's, view of its browser. Members that are undefined are what the browser lacks or refuses; each absence is a rung of the ladder. */
export interface Platform {
  /** Milliseconds on a clock that only grows. It may stand still while the machine sleeps. */
  now(): number
  /** Milliseconds since 1970. For records that people read; nothing is decided by it. */
  wallNow(): number
  /** Calls once after ms. Hidden pages are throttled: up to a minute late. Returns what cancels it. */
  after(ms: number, call: () => void): () => void
  /** Calls in a microtask. */
  soon(call: () => void): void
  /** Calls in a task of its own, behind those that wait already. Hidden pages are not throttled here. */
  task(call: () => void): void
  /** 128 random bits as text, unlike any other. */
  randomId(): string
  /** A number from 0 up to 1. */
  random(): number
  /** A BroadcastChannel. Undefined: there is none. Throws where the browser does. */
  readonly channel: ((name: string) => ChannelPort) | undefined
  /** Web Locks. Undefined: an insecure context, or an old browser. */
  readonly locks: Locks | undefined
  /** localStorage, if a value can be written. */
  readonly storage: KeyValue | undefined
  /** sessionStorage, if a value can be written. */
  readonly session: KeyValue | undefined
  /** Opens the port of a SharedWorker, or throws. Undefined: there is none. */
  readonly sharedWorker: ((url: string | URL, name: string) => WorkerPort) | undefined
  /** Starts a Dedicated Worker, or throws. Undefined: there is none. */
  readonly dedicatedWorker: ((url: string | URL, name: string) => WorkerPort) | undefined
  /** The page's life. */
  readonly page: PageLife
}

/** The part of a BroadcastChannel that is used. A message never comes back to its sender. */
export interface ChannelPort {
  /** Throws a DataCloneError for what cannot be cloned, and InvalidStateError after close. */
  postMessage(message: unknown): void
  onmessage: ((event: { readonly data: unknown }) => void) | null
  close(): void
}

/** The part of Web Locks that is used. */
export interface Locks {
  /**
   * Holds the lock from the call of held until what it returns has settled. `signal` ends the wait, not the holding. With `ifAvailable`, held gets null when another has it. With `steal`
   * the present holder's request rejects with AbortError.
   */
  request<T>(name: string, options: LockOptions, held: (lock: object | null) => Promise<T> | T): Promise<T>
}

/** Options of {@link Locks.request}. */
export interface LockOptions {
  readonly mode?: 'exclusive' | 'shared'
  readonly ifAvailable?: boolean
  readonly steal?: boolean
  readonly signal?: AbortSignal
}

/** The part of Storage that is used. Every method may throw. */
export interface KeyValue {
  getItem(key: string): string | null
  setItem(key: string, value: string): void
  removeItem(key: string): void
  key(index: number): string | null
  readonly length: number
}

/** The port of a worker, as a page has it. */
export interface WorkerPort {
  postMessage(message: unknown, transfer?: Transferable[]): void
  onmessage: ((event: { readonly data: unknown }) => void) | null
  /** The script could not be had or does not run, as far as the browser says so. */
  onerror: ((cause: string) => void) | null
  /** Ends this page's use of it: terminates a Dedicated Worker, closes the port of a shared one. */
  close(): void
}

/**
 * What the browser says about the page. `hide` is pagehide (persisted: it may come back from the back/forward cache), `show` is pageshow of a page that was hidden so; `freeze` and `resume` are Chromium's; `visible`
 * and `hidden` are visibilitychange; `online` is the network said to be back.
 */
export type PageEvent = 'hide' | 'show' | 'freeze' | 'resume' | 'visible' | 'hidden' | 'online'

/** A page's life. In a worker nothing ever happens and it is visible. */
export interface PageLife {
  readonly visible: boolean
  /** Whether another page opened this one, and its sessionStorage may be a copy. */
  readonly opened: boolean
  /** Returns a function that stops it. */
  listen(listener: (event: PageEvent) => void): () => void
}
