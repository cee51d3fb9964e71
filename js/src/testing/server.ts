import type { DataBusTransport, Position, Publication, PublishOptions, TransportEvents, TransportStatus } from '../crosstab/transport.js'
import { type Agent, Pipe, type World } from './agent.js'
import { clone } from './channel.js'
import type { LockManager } from './locks.js'

/** Two of one client group were subscribed to one topic at once. */
export interface Double {
  readonly topic: string
  readonly group: string
  readonly at: number
  /** Who was subscribed, the last to come last. */
  readonly by: readonly string[]
  /** `hung`: one of them had been robbed of a lock while it could not run, and has had no time to notice. `false alarm`: one of them had been robbed just before, but ran all the time. */
  readonly stolen?: 'hung' | 'false alarm'
}

/** How long who was robbed may take until it has unsubscribed, from when it can. */
const NOTICE_MS = 500

interface Connection {
  readonly agent: Agent
  readonly group: string
  readonly topics: Set<string>
  /** From the server. */
  readonly down: Pipe
  /** Until the server, or the browser, has closed it. */
  open: boolean
  /** Ends it, as its transport sees it. */
  readonly lost: () => void
  readonly deliver: (topic: string, publication: Publication) => void
  readonly refused: (topic: string, retry: boolean) => void
}

/** A publication, and when it was. */
export interface Published extends Publication {
  readonly at: number
}

interface Topic {
  readonly all: Published[]
  epoch: string
  /** The offset of the last publication. */
  head: number
  /** The last ones, as many as the history keeps. */
  kept: Publication[]
}

/** A server with topics, which witnesses who is subscribed. */
export class TestServer {
  readonly #world: World
  readonly #locks: LockManager
  readonly #topics = new Map<string, Topic>()
  readonly #connections = new Set<Connection>()
  readonly #refused = new Map<string, boolean>()
  #epochs = 0

  /** How many publications of a topic are kept, for those who subscribe from a position. Zero: there are no positions. */
  history: number
  /** Down: it closes every connection, and takes none. */
  #running = true
  /** Every time that two of one group were subscribed to one topic. Under locks there must be none that is not `stolen`. */
  readonly doubles: Double[] = []

  constructor(world: World, locks: LockManager, history: number) {
    this.#world = world
    this.#locks = locks
    this.history = history
  }

  /** Publishes, as somebody else. It leaves at once. */
  publish(topic: string, data: unknown, options: PublishOptions = {}): Publication {
    const state = this.#topic(topic)
    const publication: Publication = {
      data,
      ...(options.id !== undefined && { id: options.id }),
      ...(this.history && { position: { offset: ++state.head, epoch: state.epoch } }),
    }
    state.all.push({ ...publication, at: this.#world.clock.now })
    if (this.history) state.kept = [...state.kept, publication].slice(-this.history)
    for (const connection of this.#connections) if (connection.topics.has(topic)) connection.deliver(topic, publication)
    return publication
  }

  /** Everything that was published on a topic, oldest first, kept or not. */
  published(topic: string): readonly Published[] {
    return this.#topic(topic).all
  }

  /** Who is subscribed to a topic, by the names of the tabs. */
  subscriptions(topic: string, group?: string): string[] {
    return [...this.#connections].filter((each) => each.topics.has(topic) && (group === undefined || each.group === group)).map(({ agent }) => agent.name)
  }

  /** Who is connected, by the names of the tabs. */
  get connections(): string[] {
    return [...this.#connections].map(({ agent }) => agent.name)
  }

  /** Every topic that somebody is subscribed to. */
  get topics(): string[] {
    return [...new Set([...this.#connections].flatMap(({ topics }) => [...topics]))]
  }

  /** Forgets the kept publications of a topic. */
  trim(topic: string): void {
    this.#topic(topic).kept = []
  }

  /** The topic begins anew, as when its history was lost. Who is subscribed is not told. */
  renew(topic: string): void {
    Object.assign(this.#topic(topic), { epoch: `e${++this.#epochs}`, head: 0, kept: [] })
  }

  /** Loses connections, with what is under way on them: all, or those of one tab. Their transports notice and connect again. */
  drop(tab?: string): void {
    for (const connection of [...this.#connections]) {
      if (tab !== undefined && connection.agent.name !== tab) continue
      this.cut(connection)
      connection.lost()
    }
  }

  /** Refuses a topic from now on, and ends its subscriptions. With retry, transports try again. */
  refuse(topic: string, retry = false): void {
    this.#refused.set(topic, retry)
    for (const connection of this.#connections) if (connection.topics.delete(topic)) connection.refused(topic, retry)
  }

  /** Takes the topic again. */
  allow(topic: string): void {
    this.#refused.delete(topic)
  }

  stop(): void {
    this.#running = false
    this.drop()
  }

  start(): void {
    this.#running = true
  }

  // For transports.

  get running(): boolean {
    return this.#running
  }

  refusal(topic: string): boolean | undefined {
    return this.#refused.get(topic)
  }

  add(connection: Connection): void {
    this.#connections.add(connection)
  }

  cut(connection: Connection): void {
    connection.open = false
    this.#connections.delete(connection)
  }

  /** Subscribes, and returns what came after from; `lost` if that is not known any more. */
  take(connection: Connection, topic: string, from?: Position): { missed: Publication[]; position?: Position; lost: boolean } {
    const others = [...this.#connections].filter((other) => other !== connection && other.group === connection.group && other.topics.has(topic))
    if (others.length) this.#witness(topic, [...others, connection])
    connection.topics.add(topic)
    if (!this.history) return { missed: [], lost: false }
    const { epoch, head, kept } = this.#topic(topic)
    const position = { offset: head, epoch }
    if (!from) return { missed: [], position, lost: false }
    const missed = kept.filter((publication) => (publication.position as Position).offset > from.offset)
    const lost = from.epoch !== epoch || from.offset > head || missed.length < head - from.offset
    return { missed: lost ? [] : missed, position, lost }
  }

  #witness(topic: string, connections: Connection[]): void {
    const { now } = this.#world.clock
    let stolen: Double['stolen']
    for (const { agent } of connections) {
      for (const theft of this.#locks.thefts) {
        const noticed = agent.state === 'running' && now - Math.max(theft.at, agent.awakeAt) > NOTICE_MS
        if (theft.from !== agent || noticed) continue
        if (theft.hung) stolen = 'hung'
        else stolen ??= 'false alarm'
      }
    }
    this.doubles.push({ topic, group: (connections[0] as Connection).group, at: now, by: connections.map(({ agent }) => agent.name), ...(stolen && { stolen }) })
  }

  #topic(name: string): Topic {
    let topic = this.#topics.get(name)
    if (!topic) this.#topics.set(name, (topic = { epoch: `e${++this.#epochs}`, head: 0, kept: [], all: [] }))
    return topic
  }
}

/** How long a transport waits before it connects again. */
const RECONNECT_MS = 200

/** A transport of one tab, or worker, to the {@link TestServer}. It throws when it is used otherwise than {@link DataBusTransport} allows. */
export class TestTransport implements DataBusTransport {
  readonly #world: World
  readonly #server: TestServer
  readonly #agent: Agent
  readonly #group: string
  /** What the tab wants, in the order in which it is sent: subscribed, or to be when there is a connection. */
  readonly #wanted = new Map<string, Position | undefined>()
  /** Topics that the server has not yet unsubscribed: what it sends still comes. */
  readonly #leaving = new Set<string>()
  /** What is done when there is a connection. */
  #queue: (() => void)[] = []
  /** What rejects when the connection is lost. */
  readonly #open = new Set<(error: Error) => void>()
  #events: TransportEvents | undefined
  #connection: Connection | undefined
  /** The server's side of it, which it has before and after the tab does. */
  #accepted: Connection | undefined
  /** The one that is being stopped: what is under way on it still comes. */
  #closing: Connection | undefined
  /** Grows with every start and stop: what belongs to an earlier one is over. */
  #turn = 0
  readonly #up = new Pipe()
  #stopping: Promise<void> | undefined
  readonly #timers = new Set<() => void>()
  #refuseStart: unknown

  /** What it was told to do that the contract forbids. */
  readonly misuse: string[] = []
  /** How often it was started. */
  starts = 0

  constructor(world: World, server: TestServer, agent: Agent, group: string) {
    this.#world = world
    this.#server = server
    this.#agent = agent
    this.#group = group
    agent.endings.push(() => this.#hangUp())
  }

  /** The next start rejects. */
  refuseStart(error: unknown): void {
    this.#refuseStart = error
  }

  /** The transport gives up: its status is `error`. */
  fail(error: unknown): void {
    if (!this.#events || this.#stopping) return
    this.#hangUp()
    this.#turn++
    this.#down('error', error)
  }

  start(_config: unknown, events: TransportEvents): Promise<void> {
    if (this.#events || this.#stopping) return this.#misused('started while it is')
    const turn = ++this.#turn
    this.starts++
    this.#events = events
    return new Promise((resolve, reject) => {
      const error = this.#refuseStart
      this.#refuseStart = undefined
      this.#reply(() => {
        if (error !== undefined) {
          if (turn === this.#turn) this.#events = undefined
          return reject(error)
        }
        resolve()
        if (turn === this.#turn) this.#connect()
      })
    })
  }

  stop(): Promise<void> {
    if (this.#stopping) return this.#stopping
    this.#turn++
    for (const cancel of this.#timers) cancel()
    this.#timers.clear()
    this.#queue = []
    this.#closing = this.#connection
    this.#connection = undefined
    for (const reject of this.#open) reject(new Error('stopped'))
    this.#open.clear()
    if (!this.#events) return Promise.resolve()
    return (this.#stopping = new Promise((resolve) => {
      this.#hangUp(() =>
        this.#reply(() => {
          this.#events = this.#stopping = this.#closing = undefined
          this.#wanted.clear()
          resolve()
        }),
      )
    }))
  }

  subscribe(topic: string, from?: Position): void {
    if (!this.#events || this.#stopping) return void this.#misused(`subscribe ${topic} while stopped`).catch(() => {})
    if (this.#wanted.has(topic)) return
    this.#wanted.set(topic, from)
    if (this.#connection) this.#subscribe(this.#connection, topic)
  }

  unsubscribe(topic: string): Promise<void> | void {
    if (!this.#wanted.delete(topic) || !this.#connection) return
    const connection = this.#connection
    return new Promise((resolve) => {
      const settle = () => {
        this.#open.delete(settle)
        this.#leaving.delete(topic)
        resolve()
      }
      this.#leaving.add(topic)
      // Without the connection it is unsubscribed too.
      this.#open.add(settle)
      this.#ask(() => connection.topics.delete(topic), settle, connection)
    })
  }

  publish(topic: string, data: unknown, options?: PublishOptions): Promise<void> {
    if (!this.#events || this.#stopping) return Promise.reject(new Error('not started'))
    const copy = clone(data)
    return new Promise((resolve, reject) => {
      this.#open.add(reject)
      const send = () => {
        const connection = this.#connection as Connection
        let refused = false
        this.#ask(
          () => {
            refused = this.#server.refusal(topic) !== undefined
            if (!refused) this.#server.publish(topic, copy, options)
          },
          () => {
            this.#open.delete(reject)
            if (refused) reject(new Error(`refused: ${topic}`))
            else resolve()
          },
          connection,
        )
      }
      if (this.#connection) send()
      else this.#queue.push(send)
    })
  }

  #connect(): void {
    const turn = this.#turn
    this.#status('connecting')
    let connection: Connection | undefined
    this.#send(() => {
      const agent = this.#agent
      if (!agent.alive || turn !== this.#turn) return
      if (this.#server.running && (agent.state === 'running' || agent.state === 'hung')) {
        const down = new Pipe()
        connection = {
          agent,
          group: this.#group,
          topics: new Set(),
          down,
          open: true,
          lost: () => this.#reply(() => this.#connection === connection && this.#lost()),
          deliver: (topic, publication) => this.#hear(connection as Connection, () => this.#publication(topic, publication)),
          refused: (topic, retry) => this.#hear(connection as Connection, () => this.#refused(connection as Connection, topic, retry)),
        }
        this.#accepted = connection
        this.#server.add(connection)
      }
      this.#reply(() => {
        if (turn !== this.#turn) return
        if (!connection?.open) return this.#lost()
        this.#connection = connection
        const wanted = [...this.#wanted.keys()]
        this.#status('connected')
        for (const topic of wanted) if (this.#connection === connection && this.#wanted.has(topic)) this.#subscribe(connection, topic)
        const queue = this.#queue
        this.#queue = []
        for (const send of queue) send()
      })
    })
  }

  #subscribe(connection: Connection, topic: string): void {
    const from = this.#wanted.get(topic)
    this.#send(() => {
      if (!connection.open) return
      const retry = this.#server.refusal(topic)
      if (retry !== undefined) return connection.refused(topic, retry)
      const { missed, position, lost } = this.#server.take(connection, topic, from)
      for (const publication of missed) connection.deliver(topic, publication)
      this.#hear(connection, () => this.#wanted.has(topic) && this.#events?.subscribed(topic, position, lost))
    })
  }

  #publication(topic: string, publication: Publication): void {
    if (this.#wanted.has(topic) || this.#leaving.has(topic)) this.#events?.publication(topic, clone(publication))
  }

  #refused(connection: Connection, topic: string, retry: boolean): void {
    if (!this.#wanted.has(topic)) return
    if (!retry) this.#wanted.delete(topic)
    else if (this.#connection === connection) this.#later(() => this.#connection === connection && this.#wanted.has(topic) && this.#subscribe(connection, topic))
    this.#events?.refused(topic, new Error(`refused: ${topic}`), retry)
  }

  /** The connection is lost: what is told to the tab, and a new one after a while. */
  #lost(): void {
    this.#down('disconnected')
    this.#later(() => this.#connect())
  }

  #down(status: TransportStatus, error?: unknown): void {
    this.#connection = undefined
    this.#wanted.clear()
    this.#queue = []
    const open = [...this.#open]
    this.#open.clear()
    for (const reject of open) reject(new Error('the connection was lost'))
    this.#status(status, error)
  }

  #later(run: () => void): void {
    const cancel = this.#agent.after(RECONNECT_MS, () => {
      this.#timers.delete(cancel)
      run()
    })
    this.#timers.add(cancel)
  }

  /** In the order in which it is sent. */
  #send(run: () => void): void {
    const { clock, between, latency } = this.#world
    clock.put(this.#up.arrival(clock, between(latency.network)), { timer: false, done: false, run })
  }

  /** The connection ends, with what is under way on it: as fast as anything can be, so before what others send from now on. */
  #hangUp(done = () => {}): void {
    const { clock, latency } = this.#world
    clock.add(latency.network[0], () => {
      if (this.#accepted) this.#server.cut(this.#accepted)
      done()
    })
  }

  #status(status: TransportStatus, error?: unknown): void {
    this.#events?.status(status, ...(error === undefined ? [] : [error]))
  }

  /** Sends something on a connection, and hears that it was done; not at all if the connection is lost before. */
  #ask(run: () => void, done: () => void, connection: Connection): void {
    this.#send(() => {
      if (!connection.open) return
      run()
      this.#hear(connection, done)
    })
  }

  /** In the order in which the server sends it on a connection. */
  #hear(connection: Connection, run: () => void): void {
    const { clock, between, latency } = this.#world
    this.#agent.at(
      connection.down.arrival(clock, between(latency.network)),
      'network',
      () => (this.#connection === connection || this.#closing === connection) && run(),
      () => connection.open,
    )
  }

  #reply(run: () => void): void {
    const { clock, between, latency } = this.#world
    this.#agent.at(clock.now + between(latency.network), 'network', run)
  }

  /** The browser closes the connection of a page that it freezes or caches; the page hears of it when it runs again. */
  suspended(): void {
    this.#hangUp()
    this.#connection?.lost()
  }

  #misused(what: string): Promise<never> {
    this.misuse.push(`${this.#agent.name}: ${what}`)
    return Promise.reject(new Error(`transport ${what}`))
  }
}
