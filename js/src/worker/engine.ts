import type { Platform } from '../crosstab/platform.js'
import { sizeOf } from '../crosstab/size.js'
import type { DataBusTransport, Position, Publication, PublishOptions, TransportEvents, TransportStatus } from '../crosstab/transport.js'
import { TidewireError } from '../error.js'
import type { Wake } from '../wake.js'

/**
 * One transport for many sessions, which are ports of tabs. It subscribes a topic at the server once, for as long as a session wants it, and hands each publication once to each of these.
 *
 * # Positions
 * Each session has its own position on a topic with a history, and gets exactly what follows it. Who is behind the others is served from the ring of what came lately; where that does not reach, the topic is
 * subscribed anew from the oldest position, and the others do not see what they have. What cannot be had any more is `lost` for those that lack it.
 *
 * # Bounds
 * The ring of a topic holds 256 publications or 256 KiB, all rings 4 MiB. Nothing waits here for a slow session: its port does, and lets go of its topics when that is too much.
 *
 * # The end
 * The transport is started with the first session and stopped with the last, never twice at once. When it gave up it is started again by the next session that joins.
 */
export interface EngineOptions {
  readonly platform: Pick<Platform, 'soon' | 'after'>
  readonly transport: DataBusTransport
  readonly config: unknown
  /** False: no ring, because what is handed over is moved away. Default true. */
  readonly ring?: boolean
}

/** What a session is told. */
export interface SessionEvents extends TransportEvents {
  credential(reason: 'connect' | 'expired'): Promise<string>
  /** What the transport subscribes has changed. */
  topics?(topics: readonly string[]): void
}

/** A page that gives no credential for so long may be frozen: the next one is asked too. */
const HUNG_MS = 1000
const RING_COUNT = 256
const RING_BYTES = 1 << 18
const RINGS_BYTES = 1 << 22

interface Cursor {
  /** It has everything up to here. Undefined: it begins where the subscription is, or there is no history. */
  at: Position | undefined
  /** The transport was asked for what follows. */
  asked: boolean
}

interface Topic {
  readonly name: string
  readonly cursors: Map<Session, Cursor>
  /** Idle: the transport knows nothing of it. Asked: until it says where the subscription is. */
  state: 'idle' | 'asked' | 'live'
  /** Of the newest that was handed over. */
  head: Position | undefined
  /** It was live before. */
  lived: boolean
  /** What led to the head, without holes. */
  ring: { readonly publication: Publication; readonly size: number }[]
  bytes: number
}

/** One port's use of an {@link Engine}. */
export interface Session {
  /** Settles when the transport has started, or has not. */
  readonly ready: Promise<void>
  /** Wants a topic, from behind a position. What it wants already begins anew there. */
  subscribe(topic: string, from?: Position): void
  unsubscribe(topic: string): Promise<void>
  publish(topic: string, data: unknown, options?: PublishOptions): Promise<void>
  /** Wants no topic any more. */
  clear(): void
  /** Ends it. Resolves when the transport has stopped, if it was the last. */
  leave(): Promise<void>
}

export class Engine {
  readonly #options: EngineOptions
  readonly #sessions = new Map<Session, SessionEvents>()
  readonly #topics = new Map<string, Topic>()
  #ringBytes = 0
  #status: TransportStatus = 'disconnected'
  #error: unknown
  /** It may call, until it is stopped. */
  #started = false
  /** It takes calls. */
  #open = false
  /** It gave up: to be stopped before it is started. */
  #spent = false
  #settling: Promise<void> | undefined
  #running = false
  #telling = false

  constructor(options: EngineOptions) {
    this.#options = options
  }

  get busy(): boolean {
    return this.#sessions.size > 0
  }

  /** A page heard of its life, or its network. */
  wake(wake: Wake): void {
    const { wake: tell } = this.#options.transport as { wake?(wake: Wake): void }
    if (this.#open) tell?.call(this.#options.transport, wake)
  }

  join(events: SessionEvents): Session {
    const { transport } = this.#options
    let ready: Promise<void> | undefined
    const session: Session = {
      get ready() {
        return ready as Promise<void>
      },
      subscribe: (topic, from) => this.#subscribe(session, topic, from),
      unsubscribe: (topic) => this.#unsubscribe(session, topic),
      publish: async (topic, data, options) => transport.publish(topic, data, options),
      clear: () => {
        for (const { name } of this.#topics.values()) void this.#unsubscribe(session, name).catch(() => {})
      },
      leave: async () => {
        if (!this.#sessions.delete(session)) return
        // The end of the transport ends its subscriptions.
        if (this.busy) session.clear()
        else this.#forget()
        await this.#settle().catch(() => {})
      },
    }
    this.#sessions.set(session, events)
    this.#spent ||= this.#status === 'error'
    if (this.#started && !this.#spent) events.status(this.#status, this.#error)
    ready = this.#settle()
    events.topics?.([...this.#topics.keys()])
    return session
  }

  /** Starts or stops the transport until that is what the sessions need. */
  #settle(): Promise<void> {
    if (!this.#settling) {
      const settled = this.#run()
      if (this.#running) this.#settling = settled
      return settled
    }
    return this.#settling
  }

  async #run(): Promise<void> {
    const { transport, config } = this.#options
    this.#running = true
    try {
      for (;;) {
        if (this.#started && (this.#spent || !this.busy)) {
          this.#started = this.#open = this.#spent = false
          this.#setStatus('disconnected')
          await Promise.resolve(transport.stop()).catch(() => {})
        } else if (!this.#started && this.busy) {
          this.#started = true
          try {
            await transport.start(config, this.#events)
          } catch (error) {
            this.#started = false
            throw error
          }
          this.#open = true
          for (const topic of this.#topics.values()) this.#ask(topic)
        } else return
      }
    } finally {
      // At once: who comes in this moment must find that nothing is under way.
      this.#running = false
      this.#settling = undefined
    }
  }

  readonly #events: TransportEvents = {
    status: (status, error) => {
      if (!this.#started) return
      this.#setStatus(status, error)
      if (status === 'connected') for (const topic of this.#topics.values()) this.#ask(topic)
    },
    publication: (topic, publication) => this.#publication(topic, publication),
    subscribed: (topic, position, lost) => this.#subscribed(topic, position, lost),
    refused: (name, error, retry) => {
      const topic = this.#topics.get(name)
      if (!topic) return
      // Without another try the transport has forgotten it, and so do its sessions.
      if (!retry) this.#drop(topic)
      for (const session of topic.cursors.keys()) this.#sessions.get(session)?.refused(name, error, retry)
    },
    credential: (reason) =>
      new Promise((resolve, reject) => {
        // One page after another: the newest is the likeliest to be awake.
        const pages = [...this.#sessions.values()].reverse()
        let unanswered = pages.length
        let late = () => {}
        const end = () => {
          late()
          pages.length = 0
        }
        const next = () => {
          late()
          const page = pages.shift()
          if (!page) return
          late = this.#options.platform.after(HUNG_MS, next)
          page.credential(reason).then(
            (token) => {
              end()
              resolve(token)
            },
            (error) => {
              if (--unanswered && (error as Partial<TidewireError> | undefined)?.code !== 'SOCKET_UNAUTHENTICATED') return next()
              end()
              reject(error)
            },
          )
        }
        if (!unanswered) reject(new TidewireError('TOKEN_UNAVAILABLE', { cause: 'no page to ask' }))
        next()
      }),
  }

  #setStatus(status: TransportStatus, error?: unknown): void {
    this.#status = status
    this.#error = error
    // What it had, it is told anew.
    if (status === 'disconnected' || status === 'error') for (const topic of this.#topics.values()) topic.state = 'idle'
    for (const events of this.#sessions.values()) events.status(status, error)
  }

  #subscribe(session: Session, name: string, from: Position | undefined): void {
    let topic = this.#topics.get(name)
    if (!topic) {
      topic = { name, cursors: new Map(), state: 'idle', head: undefined, lived: false, ring: [], bytes: 0 }
      this.#topics.set(name, topic)
      this.#tell()
    }
    const cursor: Cursor = { at: from, asked: false }
    topic.cursors.set(session, cursor)
    if (topic.state === 'live') this.#catchUp(topic, session, cursor)
    else this.#ask(topic)
  }

  async #unsubscribe(session: Session, name: string): Promise<void> {
    const topic = this.#topics.get(name)
    if (!topic?.cursors.delete(session) || topic.cursors.size) return
    this.#drop(topic)
    if (this.#open && topic.state !== 'idle') await this.#options.transport.unsubscribe(name)
  }

  #drop(topic: Topic): void {
    this.#empty(topic)
    this.#topics.delete(topic.name)
    this.#tell()
  }

  #forget(): void {
    for (const topic of this.#topics.values()) this.#drop(topic)
  }

  /** Has the transport subscribe, from behind what the one has that is furthest back. */
  #ask(topic: Topic): void {
    if (topic.state !== 'idle' || !this.#open) return
    topic.state = 'asked'
    let from = topic.head
    for (const cursor of topic.cursors.values()) {
      const { at } = cursor
      if (at && (!from || (at.epoch === from.epoch && at.offset < from.offset))) from = at
      cursor.asked = true
    }
    const failed = (error: unknown) => this.#events.refused(topic.name, error, false)
    try {
      void Promise.resolve(this.#options.transport.subscribe(topic.name, from)).catch(failed)
    } catch (error) {
      failed(error)
    }
  }

  /** Gives a session what is between its position and the head. */
  #catchUp(topic: Topic, session: Session, cursor: Cursor): void {
    const events = this.#sessions.get(session)
    const { name, head, ring } = topic
    const { at } = cursor
    if (!head || !at || at.epoch !== head.epoch || at.offset >= head.offset) {
      const lost = !!at && at.epoch !== head?.epoch
      if (!at || lost) cursor.at = head
      events?.subscribed(name, cursor.at, lost)
      return
    }
    const first = ring[0]?.publication.position?.offset
    if (first === undefined || first > at.offset + 1) {
      this.#replay(topic)
      return
    }
    events?.subscribed(name, at)
    for (const { publication } of ring) this.#give(topic, session, cursor, publication)
  }

  /** Subscribes anew, from behind the one that is furthest back. */
  #replay(topic: Topic): void {
    if (topic.state !== 'live') return
    topic.state = 'idle'
    void Promise.resolve(this.#options.transport.unsubscribe(topic.name)).catch(() => {})
    this.#ask(topic)
  }

  #subscribed(name: string, position: Position | undefined, lost = false): void {
    const topic = this.#topics.get(name)
    if (!topic || !this.#started) return
    topic.state = 'live'
    const { head } = topic
    // Without positions nobody can know.
    lost ||= !position && topic.lived
    topic.lived = true
    // While something is replayed the head stays.
    const moves = position?.epoch !== head?.epoch || (position && head && position.offset > head.offset)
    if (moves) {
      this.#empty(topic)
      topic.head = position
    }
    for (const [session, cursor] of [...topic.cursors]) {
      const { at } = cursor
      const events = this.#sessions.get(session)
      if (!at || !position) {
        cursor.at = position
        events?.subscribed(name, position, lost || !!at)
      } else if (at.epoch === position.epoch && at.offset >= position.offset) events?.subscribed(name, at)
      // Another one's position has just been asked for: the answer to that decides.
      else if (topic.state !== 'live') continue
      else if (lost || at.epoch !== position.epoch || cursor.asked) {
        // It was asked for what follows, and had nothing of it.
        cursor.at = position
        events?.subscribed(name, position, true)
      } else this.#catchUp(topic, session, cursor)
    }
  }

  #publication(name: string, publication: Publication): void {
    const topic = this.#topics.get(name)
    if (!topic || !this.#started) return
    const { head } = topic
    const { position } = publication
    if (position && (position.epoch !== head?.epoch || position.offset > head.offset)) this.#advance(topic, publication, position)
    for (const [session, cursor] of [...topic.cursors]) this.#give(topic, session, cursor, publication)
  }

  /** Hands a publication to a session that lacks it, if it is the next one. */
  #give(topic: Topic, session: Session, cursor: Cursor, publication: Publication): void {
    const { position } = publication
    const { at } = cursor
    const events = this.#sessions.get(session)
    if (position && at?.epoch === position.epoch) {
      if (position.offset <= at.offset) return
      if (position.offset > at.offset + 1) {
        // It waits for what is between. If nothing is on its way, that is asked for.
        this.#replay(topic)
        return
      }
    } else if (position && at) events?.subscribed(topic.name, { epoch: position.epoch, offset: position.offset - 1 }, true)
    cursor.at = position
    events?.publication(topic.name, publication)
  }

  #advance(topic: Topic, publication: Publication, position: Position): void {
    const { head, ring } = topic
    topic.head = position
    if (this.#options.ring === false) return
    if (head && (head.epoch !== position.epoch || head.offset + 1 !== position.offset)) this.#empty(topic)
    const size = sizeOf(publication.data)
    ring.push({ publication, size })
    topic.bytes += size
    this.#ringBytes += size
    while (ring.length > RING_COUNT || topic.bytes > RING_BYTES) this.#shift(topic)
    for (const other of this.#topics.values()) {
      if (this.#ringBytes <= RINGS_BYTES) break
      this.#empty(other)
    }
  }

  #shift(topic: Topic): void {
    const size = topic.ring.shift()?.size ?? 0
    topic.bytes -= size
    this.#ringBytes -= size
  }

  #empty(topic: Topic): void {
    while (topic.ring.length) this.#shift(topic)
  }

  /** Tells what is subscribed, once for all changes of this task. */
  #tell(): void {
    if (this.#telling) return
    this.#telling = true
    this.#options.platform.soon(() => {
      this.#telling = false
      const topics = [...this.#topics.keys()]
      for (const events of this.#sessions.values()) events.topics?.(topics)
    })
  }
}
