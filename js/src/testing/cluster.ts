import type { PageEvent, Platform } from '../crosstab/platform.js'
import { Agent, type Latency, type LifeState, type Range, type World } from './agent.js'
import { Channels, type Fault, type Hop } from './channel.js'
import { seeded, TestClock } from './clock.js'
import { LockManager, type Theft } from './locks.js'
import { TestServer, TestTransport } from './server.js'
import { sessionView, Storage, type StorageFault } from './storage.js'
import { type TestWorker, Workers, type WorkerScript } from './worker.js'

/** Options of {@link createTestCluster}. */
export interface TestClusterOptions {
  /** Decides everything that is left to chance: the same seed, the same run. Default 1. */
  readonly seed?: number
  /** Where every choice comes from instead of the seed: numbers from 0 up to 1. */
  readonly random?: () => number
  readonly latency?: Partial<Latency>
  /** How many publications of a topic the server keeps. Zero: it gives no positions. Default 1000. */
  readonly history?: number
  /** The characters that localStorage takes. Default 5,000,000. */
  readonly quota?: number
  /** The scripts of workers, by their URL. Others cannot be had. */
  readonly scripts?: Readonly<Record<string, WorkerScript>>
}

/** What a browser may lack. */
export type Missing = 'channel' | 'locks' | 'storage' | 'session' | 'sharedWorker' | 'dedicatedWorker'

/** Options of {@link TestCluster.tab}. */
export interface TestTabOptions {
  /** For messages of failed tests. Default `tab-1`, `tab-2` … */
  readonly name?: string
  /** What its browser lacks. Default nothing. */
  readonly without?: readonly Missing[]
  /** The server counts subscriptions for each group: tabs that share, or should. Default `tabs`. */
  readonly group?: string
  /** Default true. */
  readonly visible?: boolean
  /** How far its wall clock is from the others'. Default 0. */
  readonly skewMs?: number
}

/** One tab of the browser. What a dead one does has no effect. */
export interface TestTab {
  readonly name: string
  /** For what is tested. */
  readonly platform: Platform
  readonly state: LifeState
  readonly group: string
  /** Every event of the page so far. */
  readonly events: readonly PageEvent[]
  /** The renderer's process is gone, without a word. */
  crash(): void
  /** The user closes it, or goes elsewhere: pagehide, and that was all. */
  close(): Promise<void>
  /** pagehide into the back/forward cache. Messages on an open channel, locks that are granted, and workers' posts evict it from there; its connections are closed. */
  hide(): Promise<void>
  /** Back from the cache: pageshow. False if it was evicted, and is dead. */
  show(): Promise<boolean>
  /** Chromium freezes it: it is told, then nothing runs. Its connections are closed. With messages, its channels' handlers still run, as they may. */
  freeze(options?: { readonly messages?: boolean }): Promise<void>
  /** Ends {@link TestTab.freeze}: what was due in the meantime is done, then it is told. */
  resume(): Promise<void>
  /** It is stuck, and not told: for ms, or until {@link TestTab.unhang}. */
  hang(ms?: number): void
  unhang(): void
  /** Its timers run every timersMs while it is hidden: 1,000 in all browsers, 60,000 in Chromium after five minutes. Default 0, whenever they are due. */
  setVisible(visible: boolean, timersMs?: number): void
  /** The network is said to be back. */
  online(): void
  /** Another tab with a copy of its sessionStorage. `opened`: it knows that it was opened by another. Default true. */
  duplicate(options?: { readonly opened?: boolean }): TestTab
  /** Closes it and returns what is in its place: a new page with the same sessionStorage. */
  reload(): Promise<TestTab>
  /** What is wrong with its storage from now on. Undefined: nothing. */
  failStorage(fault: StorageFault | undefined): void
}

/** A browser with tabs of one origin, and the server that they speak to. Made by {@link createTestCluster}. */
export interface TestCluster {
  readonly clock: TestClock
  readonly server: TestServer
  readonly tabs: readonly TestTab[]
  tab(options?: TestTabOptions): TestTab
  /** A transport of a tab, or of a worker's scope, to {@link TestCluster.server}. */
  transport(of: { readonly platform: Platform }): TestTransport
  /** Loses messages between tabs. Returns what ends it. */
  lose(which: (hop: Hop) => boolean): () => void
  /** Has messages between tabs take ms. Those behind them wait. Returns what ends it. */
  delay(ms: number, which: (hop: Hop) => boolean): () => void
  /** localStorage, once everyone sees it. */
  readonly storage: ReadonlyMap<string, string>
  /** Who holds a lock, by the names of the tabs. */
  holders(lock: string): string[]
  /** Every lock that was stolen. */
  readonly thefts: readonly Theft[]
  /** SharedWorkers that run. */
  readonly workers: readonly TestWorker[]
  /**
   * What is left: locks held and waited for, timers, channels, listeners, ports, connections, keys in localStorage, and transports that were used in a way their contract forbids. Empty after every tab has stopped, if
   * nothing leaks. Dead tabs leave nothing but keys.
   */
  leaks(): string[]
}

const LATENCY: Latency = { channel: [0.3, 3], storage: [0, 25], lock: [0.1, 0.7], port: [0.05, 0.5], death: [8, 164], network: [1, 10] }

/**
 * Makes a browser without tabs, and a server. Nothing happens until a test moves the clock; everything between is decided by the seed.
 *
 * ```ts
 * const cluster = createTestCluster({ seed: 7 })
 * const [a, b] = [cluster.tab(), cluster.tab()]
 * const bus = new CrossTabDataBus({ platform: a.platform, transport: cluster.transport(a), … })
 * await cluster.clock.quiet()
 * a.crash()
 * await cluster.clock.until(() => cluster.server.subscriptions('topic').includes(b.name))
 * ```
 */
export function createTestCluster(options: TestClusterOptions = {}): TestCluster {
  const clock = new TestClock()
  const random = options.random ?? seeded(options.seed ?? 1)
  const latency = { ...LATENCY, ...options.latency }
  const between = ([least, most]: Range) => (most > least ? least + random() * (most - least) : least)
  const world: World = { clock, random, between, latency }
  const channels = new Channels(world)
  const storage = new Storage(world, options.quota ?? 5_000_000)
  const locks = new LockManager(world)
  const server = new TestServer(world, locks, options.history ?? 1000)
  const agents = new Map<Platform, { readonly agent: Agent; readonly group: string; readonly transports: TestTransport[] }>()
  const tabs: TestTab[] = []
  const workers = new Workers(world, options.scripts ?? {}, (agent) => platformOf(agent, 'tabs', {}))

  const platformOf = (agent: Agent, group: string, extra: Partial<Platform>, skewMs = 0): Platform => {
    const { random } = agent
    const platform: Platform = {
      now: () => clock.now,
      wallNow: () => clock.wallNow + skewMs,
      after: (ms, call) => agent.after(ms, call),
      soon: (call) => queueMicrotask(() => agent.alive && call()),
      task: (call) => agent.at(clock.now, 'timer', call),
      randomId: () => Array.from({ length: 4 }, () => Math.floor(random() * 0x1_0000_0000).toString(16).padStart(8, '0')).join(''),
      random,
      channel: (name) => channels.open(agent, name),
      locks: locks.view(agent),
      storage: undefined,
      session: undefined,
      sharedWorker: undefined,
      dedicatedWorker: undefined,
      page: { visible: true, opened: false, listen: () => () => {} },
      ...extra,
    }
    agents.set(platform, { agent, group, transports: [] })
    return platform
  }

  const makeTab = (options: TestTabOptions, session: Map<string, string>, opened: boolean): TestTab => {
    const { name = `tab-${tabs.length + 1}`, without = [], group = 'tabs', skewMs = 0, visible = true } = options
    const agent = new Agent(world, name)
    agent.visible = visible
    const events: PageEvent[] = []
    let fault: StorageFault | undefined
    const has = <T>(what: Missing, value: T): T | undefined => (without.includes(what) ? undefined : value)
    const platform = platformOf(
      agent,
      group,
      {
        channel: has('channel', (name) => channels.open(agent, name)),
        locks: has('locks', locks.view(agent)),
        storage: has('storage', storage.view(agent, () => fault)),
        session: has('session', sessionView(session, () => fault)),
        sharedWorker: has('sharedWorker', (url, name) => workers.shared(agent, String(url), name)),
        dedicatedWorker: has('dedicatedWorker', (url, name) => workers.dedicated(agent, String(url), name)),
        page: {
          get visible() {
            return agent.visible
          },
          opened,
          listen: (listener) => {
            // The same function may listen twice.
            const own = (event: PageEvent) => listener(event)
            if (agent.alive) agent.listeners.add(own)
            return () => void agent.listeners.delete(own)
          },
        },
      },
      skewMs,
    )
    const { transports } = agents.get(platform) as { transports: TestTransport[] }

    const emit = async (event: PageEvent) => {
      // What runs is done first.
      await clock.drain()
      events.push(event)
      agent.emit(event)
      await clock.drain()
    }
    const suspend = (state: 'frozen' | 'cached') => {
      agent.suspend(state)
      for (const transport of transports) transport.suspended()
    }

    const tab: TestTab = {
      name,
      platform,
      group,
      events,
      get state() {
        return agent.state
      },
      crash: () => agent.die(),
      async close() {
        if (agent.state === 'running') await emit('hide')
        agent.die()
      },
      async hide() {
        if (agent.state !== 'running') return
        await emit('hide')
        suspend('cached')
      },
      async show() {
        if (agent.state !== 'cached') return false
        agent.wake()
        await emit('show')
        return true
      },
      async freeze({ messages = false } = {}) {
        if (agent.state !== 'running') return
        await emit('freeze')
        agent.frozenMessages = messages
        suspend('frozen')
      },
      async resume() {
        if (agent.state !== 'frozen') return
        agent.wake()
        await emit('resume')
      },
      hang(ms) {
        if (agent.state !== 'running') return
        agent.suspend('hung')
        if (ms !== undefined) clock.add(ms, () => tab.unhang(), true)
      },
      unhang() {
        if (agent.state === 'hung') agent.wake()
      },
      setVisible(visible, timersMs = 0) {
        agent.timersMs = visible ? 0 : timersMs
        if (visible === agent.visible || !agent.alive) return
        agent.show(visible)
        const event = visible ? 'visible' : 'hidden'
        agent.at(clock.now, 'page', () => void emit(event))
      },
      online: () => agent.at(clock.now, 'page', () => void emit('online')),
      duplicate: ({ opened = true } = {}) => makeTab({ ...options, name: `${name}-copy-${tabs.length + 1}` }, new Map(session), opened),
      async reload() {
        await tab.close()
        return makeTab({ ...options, name: `${name}'` }, session, opened)
      },
      failStorage(next) {
        fault = next
      },
    }
    tabs.push(tab)
    return tab
  }

  const fault = (fault: Fault) => {
    channels.faults.add(fault)
    return () => void channels.faults.delete(fault)
  }

  return {
    clock,
    server,
    tabs,
    tab: (options = {}) => makeTab(options, new Map(), false),
    transport(of) {
      const entry = agents.get(of.platform)
      if (!entry) throw new Error('transport: a tab of another cluster')
      const transport = new TestTransport(world, server, entry.agent, entry.group)
      entry.transports.push(transport)
      return transport
    },
    lose: (which) => fault((hop) => (which(hop) ? 'lost' : undefined)),
    delay: (ms, which) => fault((hop) => (which(hop) ? ms : undefined)),
    get storage() {
      return storage.entries
    },
    holders: (lock) => locks.holders(lock),
    thefts: locks.thefts,
    get workers() {
      return workers.running
    },
    leaks: () => [
      ...locks.all,
      ...channels.all,
      ...workers.all,
      ...[...agents.values()].flatMap(({ agent, transports }) => [
        ...(agent.timers.size ? [`${agent.name}: ${agent.timers.size} timers`] : []),
        ...(agent.listeners.size ? [`${agent.name}: ${agent.listeners.size} listeners`] : []),
        ...transports.flatMap(({ misuse }) => misuse),
      ]),
      ...server.connections.map((name) => `${name}: connection`),
      ...[...storage.entries.keys()].map((key) => `key ${key}`),
    ],
  }
}
