import type { Platform, WorkerPort } from '../crosstab/platform.js'
import { sizeOf } from '../crosstab/size.js'
import type { DataBusTransport } from '../crosstab/transport.js'
import { TidewireError } from '../error.js'
import { buffersOf } from './buffers.js'
import { Engine, type Session } from './engine.js'
import { fromFailure, toFailure } from './failure.js'
import { BUILD, type FromWorker, type Hello, type Item, type ToWorker, WORKER_PROTOCOL } from './messages.js'

/**
 * The worker's side of its ports. A port that asks for it has a connection of its own; ports that name the same share have one together ({@link Engine}).
 *
 * # Death
 * A page that names a lock which it holds is gone when the worker gets that lock: it only ever waits for it and lets go at once, since a lock that is held costs pages the back/forward cache. Without a
 * lock the port is asked after 10 s of silence, and over after 30 s. A port that is over, and whatever it subscribed, is forgotten. The worker itself dies without a word: each message names its life.
 *
 * # Slow pages
 * What happened goes to a page as one message, and the next one when that has been handled. With more than 1 MiB waiting the worker forgets what waits, and what the page is subscribed to; when the page
 * is back it says hello again, from where it is.
 *
 * # Bad input
 * What is no message of this protocol is ignored; a page of another version or build is refused with WORKER_INCOMPATIBLE.
 */
export interface HostOptions {
  readonly platform: Pick<Platform, 'now' | 'after' | 'soon' | 'randomId' | 'locks'>
  /** Makes a transport for a configuration. */
  readonly transport: (config: unknown) => DataBusTransport
  /** Default: that of this package. */
  readonly build?: string
}

export interface Host {
  /** Takes a port. */
  connect(port: WorkerPort): void
}

const ASK_MS = 10_000
const SILENT_MS = 30_000
const TOKEN_MS = 20_000
const WAITING_BYTES = 1 << 20
const ITEM_BYTES = 64

export function createHost(options: HostOptions): Host {
  const { platform } = options
  const boot = platform.randomId()
  const engines = new Map<string, Engine>()
  const ports = new Set<Port>()
  return {
    connect(port) {
      ports.add(new Port(port, options, boot, engines, ports))
    },
  }
}

class Port {
  readonly #port: WorkerPort
  readonly #options: HostOptions
  readonly #boot: string
  readonly #engines: Map<string, Engine>
  readonly #ports: Set<Port>
  readonly #over = new AbortController()
  #page: string | undefined
  #share: string | undefined
  #engine: Engine | undefined
  #session: Session | undefined
  #transfers = false
  #heardAt: number
  /** Stops listening for silence. */
  #deaf = () => {}
  #watched = false
  #queue: Item[] = []
  #bytes = 0
  #scheduled = false
  /** What was sent has not been handled yet. */
  #unhandled = false
  /** More waited than may. */
  #behind = false
  #lastAsk = 0
  readonly #asks = new Map<number, { resolve(token: string): void; reject(error: unknown): void }>()

  constructor(port: WorkerPort, options: HostOptions, boot: string, engines: Map<string, Engine>, ports: Set<Port>) {
    this.#port = port
    this.#options = options
    this.#boot = boot
    this.#engines = engines
    this.#ports = ports
    this.#heardAt = options.platform.now()
    port.onmessage = ({ data }) => this.#take(data as ToWorker | null)
    this.#listen()
  }

  #take(message: ToWorker | null): void {
    this.#heardAt = this.#options.platform.now()
    switch (message?.call) {
      case 'hello':
        void this.#answer(message.id, this.#hello(message))
        return
      case 'subscribe':
        this.#session?.subscribe(message.topic, message.from)
        return
      case 'unsubscribe':
        void this.#answer(message.id, this.#session?.unsubscribe(message.topic))
        return
      case 'publish': {
        const { id, topic, data, options } = message
        const lost = () => Promise.reject(new TidewireError('WORKER_LOST', { cause: 'no session' }))
        void this.#answer(id, this.#session?.publish(topic, data, options) ?? lost())
        return
      }
      case 'ping':
        void this.#answer(message.id)
        return
      case 'wake':
        this.#engine?.wake(message.wake)
        return
      case 'token': {
        const asked = this.#asks.get(message.ask)
        this.#asks.delete(message.ask)
        if (message.error) asked?.reject(fromFailure(message.error))
        else asked?.resolve(message.token ?? '')
        return
      }
      case 'ack':
        this.#unhandled = false
        if (this.#behind) {
          this.#behind = false
          this.#post({ again: true })
        } else this.#flush()
        return
      case 'bye':
        void this.#answer(message.id, this.#leave()).then(() => this.end())
    }
  }

  async #hello({ protocol, build, page, share, lock, transfer, config, topics }: Hello): Promise<void> {
    const { platform, transport, build: mine = BUILD } = this.#options
    if (protocol !== WORKER_PROTOCOL || build !== mine) {
      throw new TidewireError('WORKER_INCOMPATIBLE', { cause: `the worker is ${WORKER_PROTOCOL}/${mine}, the page ${protocol}/${build}` })
    }
    // The page has given up its other ports: it took the worker for dead.
    for (const other of [...this.#ports]) if (other !== this && other.#page === page) other.end()
    this.#page = page
    this.#transfers = !!transfer && share === undefined
    if (lock !== undefined && !this.#watched) this.#watch(lock)
    if (this.#session) this.#session.clear()
    else {
      this.#share = share
      this.#engine = share === undefined ? undefined : this.#engines.get(share)
      this.#engine ??= new Engine({ platform, transport: transport(config), config, ring: !this.#transfers })
      if (share !== undefined) this.#engines.set(share, this.#engine)
      this.#session = this.#join(this.#engine)
    }
    for (const { topic, from } of topics) this.#session.subscribe(topic, from)
    try {
      await this.#session.ready
    } catch (error) {
      void this.#leave()
      throw error
    }
  }

  #join(engine: Engine): Session {
    return engine.join({
      status: (status, error) => this.#push({ on: 'status', status, error: error === undefined ? undefined : toFailure(error) }),
      publication: (topic, publication) => {
        const last = this.#queue.at(-1)
        const size = ITEM_BYTES + sizeOf(publication.data)
        if (last?.on === 'publications' && last.topic === topic && this.#bytes + size <= WAITING_BYTES) {
          last.list.push(publication)
          this.#bytes += size
        } else this.#push({ on: 'publications', topic, list: [publication] }, size)
      },
      subscribed: (topic, position, lost) => this.#push({ on: 'subscribed', topic, position, lost }),
      refused: (topic, error, retry) => this.#push({ on: 'refused', topic, error: toFailure(error), retry }),
      credential: (reason) => this.#ask(reason),
      topics: (topics) => {
        if (this.#share === undefined) return
        this.#queue = this.#queue.filter(({ on }) => on !== 'topics')
        this.#push({ on: 'topics', topics })
      },
    })
  }

  #ask(reason: 'connect' | 'expired'): Promise<string> {
    const { platform } = this.#options
    const ask = ++this.#lastAsk
    return new Promise<string>((resolve, reject) => {
      const late = platform.after(TOKEN_MS, () => settled(() => reject(new TidewireError('TOKEN_UNAVAILABLE', { cause: 'the page gave none in time' }))))
      const settled = (settle: () => void) => {
        late()
        this.#asks.delete(ask)
        settle()
      }
      this.#asks.set(ask, { resolve: (token) => settled(() => resolve(token)), reject: (error) => settled(() => reject(error)) })
      this.#post({ ask, reason })
    })
  }

  #push(item: Item, bytes = ITEM_BYTES): void {
    if (this.#behind) return
    this.#bytes += bytes
    // What the page has not even asked for yet is no sign that it is slow.
    if (this.#bytes > WAITING_BYTES && this.#unhandled) {
      this.#behind = true
      this.#queue = []
      this.#bytes = 0
      this.#session?.clear()
      return
    }
    this.#queue.push(item)
    if (this.#unhandled || this.#scheduled) return
    this.#scheduled = true
    this.#options.platform.soon(() => {
      this.#scheduled = false
      this.#flush()
    })
  }

  #flush(): void {
    if (this.#unhandled || !this.#queue.length) return
    const items = this.#queue
    this.#queue = []
    this.#bytes = 0
    this.#post({ items }, this.#transfers ? buffersOf(items.map((item) => item.on === 'publications' && item.list.map(({ data }) => data))) : [])
    this.#unhandled = true
  }

  #post(message: object, transfer: Transferable[] = []): void {
    if (this.#over.signal.aborted) return
    this.#port.postMessage({ boot: this.#boot, ...message } as FromWorker, transfer)
  }

  async #answer(re: number, done?: Promise<void>): Promise<void> {
    try {
      await done
      this.#post({ re })
    } catch (error) {
      this.#post({ re, error: toFailure(error) })
    }
  }

  /** The page is gone as soon as its lock can be had. */
  #watch(lock: string): void {
    const { locks } = this.#options.platform
    if (!locks) return
    this.#watched = true
    locks
      .request(lock, { mode: 'shared', signal: this.#over.signal }, () => this.end())
      .catch(() => {
        this.#watched = false
      })
  }

  /** Without a lock to watch, silence is death. */
  #listen(): void {
    const { platform } = this.#options
    this.#deaf = platform.after(ASK_MS, () => {
      const silent = this.#watched ? 0 : platform.now() - this.#heardAt
      if (silent >= SILENT_MS) this.end()
      else {
        if (silent >= ASK_MS) this.#post({ ping: true })
        this.#listen()
      }
    })
  }

  async #leave(): Promise<void> {
    const session = this.#session
    const engine = this.#engine
    const share = this.#share
    this.#session = undefined
    await session?.leave()
    // Whoever came meanwhile shares it: it has been started again.
    if (share !== undefined && !engine?.busy && this.#engines.get(share) === engine) this.#engines.delete(share)
  }

  end(): void {
    if (this.#over.signal.aborted) return
    this.#over.abort()
    this.#deaf()
    this.#ports.delete(this)
    void this.#leave()
    for (const { reject } of [...this.#asks.values()]) reject(new TidewireError('TOKEN_UNAVAILABLE', { cause: 'the page is gone' }))
    this.#port.onmessage = null
    this.#port.close()
  }
}
