import type { PageEvent, Platform, WorkerPort } from '../crosstab/platform.js'
import type { Position, PublishOptions, TransportEvents } from '../crosstab/transport.js'
import { TidewireError } from '../error.js'
import type { Wake } from '../wake.js'
import { buffersOf } from './buffers.js'
import { fromFailure, toFailure } from './failure.js'
import { BUILD, type FromWorker, type Item, type ToWorker, WORKER_PROTOCOL } from './messages.js'

/**
 * A page's side of a worker.
 *
 * # Death
 * A worker ends without a word: of what reclaims it, nothing is told to the page. The page looks every 400 ms, and asks when nothing has come since; after three times of silence, or with the first word of
 * another life, the worker is given up, what it was asked for is rejected with WORKER_LOST, and a fresh one is told everything that the page has and wants. Publications with a position are neither missed nor handed over
 * twice; of topics without, `lost` is told. After four workers that could not be had the status is `error`.
 *
 * # Bounds
 * At most 1,024 calls wait for an answer; the next is rejected with QUEUE_FULL.
 */
export interface LinkOptions {
  readonly platform: Platform
  /** Opens a port to a worker, or throws. */
  readonly open: () => WorkerPort
  /** Pages with the same key share one connection. Absent: this one has its own. */
  readonly share?: string
  /** Whether other pages use the worker: it is told of this page's end by a lock, where there are locks. */
  readonly shared: boolean
  /** Moves bytes instead of copying them. */
  readonly transfer?: boolean
}

export interface LinkEvents extends TransportEvents {
  /** What a shared connection subscribes has changed. */
  topics?(topics: readonly string[]): void
}

interface Want {
  /** The page has everything up to here. */
  at: Position | undefined
  /** It was live, and something may have been missed since. */
  missed: boolean
  live: boolean
}

interface Call {
  resolve(): void
  reject(error: TidewireError): void
}

const CHECK_MS = 400
const CHECKS = 3
const HELLO_MS = 3000
// Of one that takes another's place: a port may have been opened to the one that is about to be gone.
const AGAIN_MS = 500
const BYE_MS = 1000
const RETRY_MS = 250
const RETRIES = 3
const CALLS = 1024

const WAKES: Partial<Record<PageEvent, Wake>> = { online: 'online', visible: 'visible', show: 'restored', resume: 'restored' }

export class WorkerLink {
  readonly #options: LinkOptions
  readonly #page: string
  readonly #wants = new Map<string, Want>()
  readonly #calls = new Map<number, Call>()
  #config: unknown
  #events: LinkEvents | undefined
  #port: WorkerPort | undefined
  /** The worker was told hello: it takes calls. */
  #greeted = false
  #boot: string | undefined
  #lastId = 0
  #heard = false
  #checks = 0
  #timer = () => {}
  #unlisten = () => {}
  #lock: string | undefined
  #unlock = () => {}
  /** Grows with every start and end: what belongs to an earlier one is over. */
  #turn = 0

  constructor(options: LinkOptions) {
    this.#options = options
    this.#page = options.platform.randomId()
  }

  /** The life of the worker. */
  get boot(): string | undefined {
    return this.#boot
  }

  /** Rejects with WORKER_UNAVAILABLE where there is no worker, or with why it does not start. */
  async start(config: unknown, events: LinkEvents): Promise<void> {
    const turn = ++this.#turn
    this.#config = config
    this.#events = events
    try {
      if (this.#options.shared) await this.#hold(turn)
      await this.#connect(turn)
    } catch (error) {
      if (turn === this.#turn) this.#end()
      throw error
    }
    this.#unlisten = this.#options.platform.page.listen((event) => {
      const wake = WAKES[event]
      if (!wake) return
      this.#post({ call: 'wake', wake })
      // Hidden pages look late: now they can.
      this.#post({ call: 'ping', id: ++this.#lastId })
    })
  }

  /** Lets go. A page that is being hidden is in a hurry and does not wait: what it does afterwards may never run, and what still reaches its port costs it the back/forward cache. */
  async stop(hurry = false): Promise<void> {
    const turn = ++this.#turn
    this.#events = undefined
    if (!this.#greeted) return this.#end()
    const bye = this.#call({ call: 'bye' })
    if (hurry || !this.#options.platform.page.visible) bye.catch(() => {})
    else await this.#within(BYE_MS, bye).catch(() => {})
    if (turn === this.#turn) this.#end()
  }

  subscribe(topic: string, from?: Position): void {
    const want = this.#wants.get(topic)
    if (want && !from) return
    // What is wanted already begins anew there.
    this.#wants.set(topic, { at: from, missed: !!want?.missed, live: false })
    this.#post({ call: 'subscribe', topic, ...(from && { from }) })
  }

  async unsubscribe(topic: string): Promise<void> {
    if (!this.#wants.delete(topic) || !this.#greeted) return
    // A worker that is gone has unsubscribed too.
    await this.#call({ call: 'unsubscribe', topic }).catch(() => {})
  }

  publish(topic: string, data: unknown, options?: PublishOptions): Promise<void> {
    return this.#call({ call: 'publish', topic, data, options }, this.#options.transfer ? buffersOf(data) : [])
  }

  /** Takes the lock that tells the worker of this page's end. */
  async #hold(turn: number): Promise<void> {
    const name = `tidewire:page:${this.#page}`
    await new Promise<void>((resolve) => {
      const { locks } = this.#options.platform
      if (!locks) return resolve()
      const held = locks.request(name, {}, () => {
        resolve()
        if (turn !== this.#turn) return
        this.#lock = name
        return new Promise<void>((unlock) => (this.#unlock = unlock))
      })
      // Where locks are refused the worker listens for silence.
      held.catch(() => resolve())
    })
  }

  /** Opens a port and says hello. */
  async #connect(turn: number, ms = HELLO_MS): Promise<void> {
    const { open, share, transfer } = this.#options
    if (turn !== this.#turn) throw new TidewireError('CLOSED')
    let port: WorkerPort
    try {
      port = open()
    } catch (error) {
      throw error instanceof TidewireError ? error : unavailable(String(error))
    }
    this.#port = port
    this.#greeted = true
    this.#boot = undefined
    this.#checks = 0
    port.onmessage = ({ data }) => {
      if (port === this.#port) this.#take(data as FromWorker)
    }
    const hello = this.#call({
      call: 'hello',
      protocol: WORKER_PROTOCOL,
      build: BUILD,
      page: this.#page,
      share,
      lock: this.#lock,
      transfer,
      config: this.#config,
      topics: this.#topics(),
    })
    const broken = new Promise<never>((_, reject) => (port.onerror = (cause) => reject(unavailable(cause))))
    try {
      await this.#within(ms, Promise.race([hello, broken]))
    } catch (error) {
      // It was closed, or another one is tried already.
      if (port === this.#port) this.#drop(error as TidewireError)
      throw error
    }
    this.#check()
  }

  #topics() {
    return [...this.#wants].map(([topic, { at }]) => ({ topic, from: at }))
  }

  #post(message: ToWorker, transfer?: Transferable[]): void {
    if (this.#greeted) this.#port?.postMessage(message, transfer)
  }

  #call(message: DistributiveOmit<Extract<ToWorker, { readonly id: number }>, 'id'>, transfer?: Transferable[]): Promise<void> {
    return new Promise((resolve, reject) => {
      if (!this.#greeted) return reject(new TidewireError('WORKER_LOST', { cause: 'there is no worker now', retryAfterMs: RETRY_MS }))
      if (this.#calls.size >= CALLS) return reject(new TidewireError('QUEUE_FULL', { retryAfterMs: 1000 }))
      const id = ++this.#lastId
      this.#calls.set(id, { resolve, reject })
      try {
        this.#post({ ...message, id } as ToWorker, transfer)
      } catch (error) {
        this.#calls.delete(id)
        reject(new TidewireError('DATA_INVALID', { cause: String(error) }))
      }
    })
  }

  #within<T>(ms: number, done: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const late = this.#options.platform.after(ms, () => reject(unavailable(`no answer in ${ms} ms`)))
      done.then(resolve, reject).finally(late)
    })
  }

  #take(message: FromWorker): void {
    this.#heard = true
    this.#boot ??= message.boot
    if (message.boot !== this.#boot) this.#lost('it began anew')
    else if ('re' in message) {
      const call = this.#calls.get(message.re)
      this.#calls.delete(message.re)
      if (message.error) call?.reject(fromFailure(message.error))
      else call?.resolve()
    } else if ('items' in message) {
      const port = this.#port
      try {
        for (const item of message.items) if (port === this.#port) this.#happened(item)
      } finally {
        if (port === this.#port) this.#post({ call: 'ack' })
      }
    } else if ('ask' in message) void this.#credential(message.ask, message.reason)
    else if ('again' in message) this.#again()
    else this.#post({ call: 'ping', id: ++this.#lastId })
  }

  #happened(item: Item): void {
    const events = this.#events
    if (!events) return
    if (item.on === 'topics') return events.topics?.(item.topics)
    if (item.on === 'status') return events.status(item.status, item.error && fromFailure(item.error))
    const { topic } = item
    const want = this.#wants.get(topic)
    if (!want) return
    if (item.on === 'subscribed') {
      // Said before the topic was wanted from further back.
      if (!item.lost && ahead(item.position, want.at, 0)) return
      const lost = item.lost || want.missed
      Object.assign(want, { at: item.position, live: true, missed: false })
      events.subscribed(topic, item.position, lost)
    } else if (item.on === 'refused') {
      if (!item.retry) this.#wants.delete(topic)
      events.refused(topic, fromFailure(item.error), item.retry)
    } else {
      for (const publication of item.list) {
        // A handler may have let go of it.
        if (this.#wants.get(topic) !== want) return
        // The worker leaves nothing out: this was under way when the topic was wanted from further back, and comes again.
        if (ahead(publication.position, want.at, 1)) continue
        want.at = publication.position
        events.publication(topic, publication)
      }
    }
  }

  async #credential(ask: number, reason: 'connect' | 'expired'): Promise<void> {
    const port = this.#port
    const answer = (answer: object) => port === this.#port && this.#post({ call: 'token', ask, ...answer })
    try {
      const token = await this.#events?.credential?.(reason)
      if (token === undefined) throw new TidewireError('TOKEN_UNAVAILABLE', { cause: 'this page gives none' })
      answer({ token })
    } catch (error) {
      answer({ error: toFailure(error) })
    }
  }

  /** Nothing is known any more of what came after the last positions. */
  #miss(): void {
    for (const want of this.#wants.values()) {
      want.missed ||= want.live && !want.at
      want.live = false
    }
  }

  /** This page was too slow, and the worker has forgotten what it wants. */
  #again(): void {
    this.#miss()
    for (const { topic, from } of this.#topics()) this.#post({ call: 'subscribe', topic, from })
  }

  #check(): void {
    this.#timer = this.#options.platform.after(CHECK_MS, () => {
      this.#checks = this.#heard ? 0 : this.#checks + 1
      this.#heard = false
      if (this.#checks >= CHECKS) return this.#lost('it does not answer')
      if (this.#checks) this.#post({ call: 'ping', id: ++this.#lastId })
      this.#check()
    })
  }

  /** The worker is gone: another takes its place. */
  #lost(cause: string): void {
    const error = new TidewireError('WORKER_LOST', { cause })
    this.#drop(error)
    this.#miss()
    this.#events?.status('disconnected', error)
    void this.#heal(this.#turn, 0)
  }

  async #heal(turn: number, attempt: number): Promise<void> {
    try {
      await this.#connect(turn, Math.min(AGAIN_MS << attempt, HELLO_MS))
    } catch (error) {
      if (turn !== this.#turn) return
      if (attempt >= RETRIES) this.#events?.status('error', error)
      else this.#timer = this.#options.platform.after(RETRY_MS * attempt, () => void this.#heal(turn, attempt + 1))
    }
  }

  /** Gives up the port. */
  #drop(error: TidewireError): void {
    const port = this.#port
    this.#timer()
    this.#port = undefined
    this.#greeted = false
    if (port) port.onmessage = port.onerror = null
    port?.close()
    for (const { reject } of this.#calls.values()) reject(error)
    this.#calls.clear()
  }

  #end(): void {
    this.#turn++
    this.#events = undefined
    this.#unlisten()
    this.#wants.clear()
    this.#drop(new TidewireError('CLOSED'))
    this.#unlock()
    this.#lock = undefined
  }
}

/** Whether a position is more than so many behind another one, on the same way. */
const ahead = (position: Position | undefined, at: Position | undefined, by: number) => !!position && position.epoch === at?.epoch && position.offset > at.offset + by

type DistributiveOmit<T, K extends PropertyKey> = T extends unknown ? Omit<T, K> : never

function unavailable(cause: string): TidewireError {
  return new TidewireError('WORKER_UNAVAILABLE', { cause })
}
