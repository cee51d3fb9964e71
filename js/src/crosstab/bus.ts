import { createListeners, createStore, disposer, type ListenOptions, type Observable, report } from '../store.js'
import { TidewireError } from '../error.js'
import { browserPlatform } from './browser.js'
import { checkData } from './clone.js'
import type { ClusterSnapshot, Coordinator, CoordinatorEvents, Mode } from './coordinator.js'
import { createOpaqueKey } from './hash.js'
import { attempt, claimTab, type Identity } from './identity.js'
import { type ClusterOptions, clusterPrefix, sharedPrefix } from './names.js'
import type { ChannelPort, Platform } from './platform.js'
import { loadRuntime, loadShared } from './rungs.js'
import type { ClusterTuning } from './runtime.js'
import { reached } from './topic.js'
import { createTrace, type TraceEvent } from './trace.js'
import type { DataBusTransport, Position, Publication, PublishOptions, TransportEvents, TransportStatus } from './transport.js'
import type { WorkerSource } from './worker-transport.js'

/** Options of {@link CrossTabDataBus}. */
export interface DataBusOptions<Config = unknown> extends ClusterOptions, ClusterTuning, WorkerSource {
  /** One connection to a server. In mode `shared` the worker has its own, and this one is not used. */
  readonly transport: DataBusTransport<Config>
  /** What the transport is started with. */
  readonly config?: Config | undefined
  /** The best rung of the ladder that is tried. Default `auto`: `shared` if a worker is given, else `coordinated`. Another word throws DATA_INVALID. */
  readonly mode?: Mode | 'auto' | undefined
  /** `ttl`: heartbeats although there are locks. Firefox keeps no page that uses locks in its back/forward cache. Default `auto`. */
  readonly liveness?: 'auto' | 'locks' | 'ttl' | undefined
  /** Starts by itself, in a microtask, or with a publication before that. Default true. */
  readonly autoStart?: boolean | undefined
  /** How many message ids of a topic are remembered: one that comes again is not handed on. Zero: none. Default 1024. */
  readonly dedupeWindow?: number | undefined
  /** How long a topic without handlers stays subscribed, in milliseconds. Default 100. */
  readonly lingerMs?: number | undefined
  /** Default {@link browserPlatform}. */
  readonly platform?: Platform | undefined
  /** What the transport asks for a credential. */
  readonly credential?: TransportEvents['credential'] | undefined
  /** Is told of lifecycle, throughput and latency. Default: nobody. */
  readonly trace?: ((event: TraceEvent) => void) | undefined
  /** How often of the latter, in milliseconds. Default 5000. */
  readonly traceIntervalMs?: number | undefined
}

/** What a handler is told beside the data. */
export interface MessageMeta {
  readonly topic: string
  readonly id?: string
  readonly position?: Position
  /** Of the topic's owner: it grows when another tab takes over. Zero in mode `shared`. */
  readonly generation: number
  /** It came late, among what this tab had missed. */
  readonly replayed: boolean
}

export type MessageHandler<Data = unknown> = (data: Data, meta: MessageMeta) => void

/** Options of {@link CrossTabDataBus.subscribe}. */
export interface TopicOptions extends ListenOptions {
  /** Begins behind this position, with what the server still has. */
  readonly from?: Position | undefined
}

export type Lifecycle = 'idle' | 'starting' | 'running' | 'suspended' | 'failed' | 'stopped'

/** How a bus is. */
export interface BusState {
  readonly lifecycle: Lifecycle
  /** How the connections are that this tab's topics come through: the worst of them. */
  readonly status: TransportStatus
  /** The rung that the tab is on. Undefined until it has started. */
  readonly mode: Mode | undefined
  /** Why it is on no higher one. Empty: it is on the highest. */
  readonly modeReason: string
  /** What is wrong with the connection. Absent when it is connected. */
  readonly error?: unknown
}

/** What a bus tells beside publications. */
export interface BusEvents {
  /** Publications of the topic may be missing before the next one, and will not come. */
  lost: { readonly topic: string }
  /** The server does not give the topic. */
  refused: { readonly topic: string; readonly error: unknown }
  /** Another tab has left this tab's principal: this one has stopped, and holds nothing of it. `setPrincipal` goes on. */
  principal: Record<string, never>
}

interface Handler {
  readonly _call: MessageHandler
  _at: Position | undefined
}

interface Subscription {
  readonly _handlers: Set<Handler>
  /** Message ids, with the offsets at which they came. */
  readonly _ids: Map<string, number | undefined>
  _at: Position | undefined
  _linger: (() => void) | undefined
}

const COOLDOWN_MS = 1000
const MAX_COOLDOWN_MS = 30_000
const LADDER: readonly Mode[] = ['shared', 'coordinated', 'coordinated-ttl', 'local']

function createBus<Config>(options: DataBusOptions<Config>) {
  const { platform = browserPlatform(), mode = 'auto', dedupeWindow = 1024, lingerMs = 100, autoStart = true, maxActiveWorkers = 1 } = options
  const first = mode === 'auto' ? 0 : LADDER.indexOf(mode)
  if (first < 0) throw new TidewireError('DATA_INVALID', { cause: `mode: ${mode}` })
  if (!(maxActiveWorkers >= 1)) throw new TidewireError('DATA_INVALID', { cause: `maxActiveWorkers: ${maxActiveWorkers}` })
  let { config, principal } = options
  const subscriptions = new Map<string, Subscription>()
  const listeners = createListeners<[TransportStatus, unknown?]>()
  const emitters = { lost: createListeners<[BusEvents['lost']]>(), refused: createListeners<[BusEvents['refused']]>(), principal: createListeners<[BusEvents['principal']]>() }
  const store = createStore<BusState>({ lifecycle: 'idle', status: 'disconnected', mode: undefined, modeReason: '' })
  const trace = createTrace(platform, options.trace, options.traceIntervalMs)
  const state = () => store.getSnapshot()
  /** Grows with every start and end: what belongs to an earlier one is over. */
  let turn = 0
  let coordinator: Coordinator | undefined
  /** Of a tab whose coordinator is in a worker. */
  let identity: Identity | undefined
  let starting: Promise<void> | undefined
  /** What an earlier life still has to do. */
  let ending: Promise<unknown> = Promise.resolve()
  const leaving = new Set<Coordinator>()
  let cooling: (() => void) | undefined
  let cooldown = COOLDOWN_MS
  let news: ChannelPort | undefined
  let unlisten: (() => void) | undefined
  let waiting: { resolve(): void; reject(error: unknown): void }[] = []

  function set(change: Partial<BusState>): void {
    const before = state()
    const { error, ...rest } = { ...before, ...change }
    // What was wrong is over with the next connection.
    const after: BusState = error === undefined || rest.status === 'connected' ? rest : { ...rest, error }
    store.set(after)
    if (after.lifecycle !== before.lifecycle) trace._say(after.lifecycle, after.error)
    if (after.status !== before.status || change.error !== undefined) listeners._emit(after.status, change.error)
    if (after.lifecycle === 'running' && after.status === 'connected') {
      cooldown = COOLDOWN_MS
      settle((each) => each.resolve())
    }
  }

  function settle(how: (each: (typeof waiting)[number]) => void): void {
    const all = waiting
    waiting = []
    all.forEach(how)
  }

  // The ladder.

  function missing(rung: Mode): string | false | undefined {
    if (rung === 'shared') return !platform.sharedWorker ? 'no SharedWorker' : !options.workerUrl && !options.createWorker && 'no worker is given'
    if (rung === 'local') return false
    if (!platform.channel) return 'no BroadcastChannel'
    if (rung === 'coordinated') return options.liveness === 'ttl' ? 'heartbeats were asked for' : !platform.locks && 'no Web Locks'
    return !platform.storage && 'no localStorage'
  }

  /** A coordinator of a rung that has started. Rejects if it cannot. */
  async function climb(rung: Mode, mine: number, reasons: string[]): Promise<void> {
    const cluster = { ...options, principal }
    const events = eventsOf(mine)
    const common = { platform, events, config: config as Config, credential: options.credential, trace }
    let made: Coordinator
    if (rung === 'shared') {
      const loading = loadShared()
      const { SharedCoordinator } = loading instanceof Promise ? await loading : loading
      const prefix = clusterPrefix(cluster, rung)
      const claimed = await claimTab(platform, prefix)
      if (mine !== turn) return claimed.release()
      identity = claimed
      made = new SharedCoordinator({ ...options, ...common, prefix, tabId: identity.tabId })
    } else {
      const loading = loadRuntime()
      const { createRuntime } = loading instanceof Promise ? await loading : loading
      if (mine !== turn) return
      made = createRuntime({ ...cluster, ...common, mode: rung })
    }
    coordinator = made
    set({ mode: rung, modeReason: reasons.join('; ') })
    for (const [topic, each] of subscriptions) made.subscribe(topic, resume(each))
    await made.start()
  }

  function eventsOf(mine: number): CoordinatorEvents {
    const ours = <A extends unknown[]>(call: (...args: A) => void) => (...args: A) => {
      if (mine === turn) call(...args)
    }
    return {
      publication: ours(dispatch),
      subscribed: ours((topic, position) => {
        const each = subscriptions.get(topic)
        if (each && position) advance(each, position)
      }),
      lost: ours((topic) => emitters.lost._emit({ topic })),
      refused: ours((topic, error) => emitters.refused._emit({ topic, error })),
      status: ours((status, error) => {
        set({ status, ...(error !== undefined && { error }) })
        if (status === 'error' && state().lifecycle === 'running') recover()
      }),
    }
  }

  // Its life.

  function start(next?: Config): Promise<void> {
    if (next !== undefined) config = next
    const { lifecycle } = state()
    if (starting) return starting
    if (lifecycle === 'running' || lifecycle === 'suspended') return Promise.resolve()
    listen()
    trace._start()
    // Whoever starts is logged in, be it again.
    attempt(() => platform.storage?.removeItem(movedKey()))
    return open(true)
  }

  /** Starts. What starts by itself does not fail: it tries again. */
  function open(asked = false): Promise<void> {
    const mine = ++turn
    set({ lifecycle: 'starting', status: 'connecting', error: undefined })
    const running = run(mine, asked).finally(() => {
      if (starting === running) starting = undefined
    })
    return (starting = running)
  }

  async function run(mine: number, asked: boolean): Promise<void> {
    await ending
    const reasons: string[] = []
    for (const rung of LADDER.slice(first)) {
      if (mine !== turn) return
      const lacks = missing(rung)
      if (lacks) {
        reasons.push(`${rung}: ${lacks}`)
        continue
      }
      try {
        await climb(rung, mine, reasons)
        if (mine !== turn) return
        set({ lifecycle: 'running' })
        // It has given up meanwhile.
        if (state().status === 'error') recover()
        return
      } catch (error) {
        if (mine !== turn) return
        end(false)
        // The rung is there, and the server is not: a lower one does not help.
        if (rung === 'local' || state().status === 'error') {
          if (!asked) {
            set({ lifecycle: 'running', status: 'error', error })
            return recover()
          }
          set({ lifecycle: 'failed', status: 'error', error })
          settle((each) => each.reject(error))
          throw error
        }
        reasons.push(`${rung}: ${(error as Error).message ?? error}`)
      }
    }
  }

  /** Ends the coordinator's life. */
  function end(hurry: boolean): void {
    const old = coordinator
    coordinator = undefined
    identity?.release()
    identity = undefined
    if (!old) return
    const ended = old.stop(hurry).catch(() => {})
    leaving.add(old)
    ending = Promise.all([ending, ended]).then(() => leaving.delete(old))
  }

  /** The transport has given up: others take over what this tab has, and it comes back. */
  function recover(): void {
    if (cooling) return
    end(false)
    cooling = platform.after(cooldown, () => {
      cooling = undefined
      if (state().lifecycle === 'running') void open()
    })
    cooldown = Math.min(cooldown * 2, MAX_COOLDOWN_MS)
  }

  function leave(lifecycle: Lifecycle, hurry: boolean): void {
    turn++
    starting = undefined
    cooling?.()
    cooling = undefined
    end(hurry)
    set({ lifecycle, status: 'disconnected' })
  }

  async function stop(): Promise<void> {
    const { lifecycle } = state()
    if (lifecycle !== 'stopped') leave('stopped', false)
    for (const [topic, each] of subscriptions) if (!each._handlers.size) drop(topic, each)
    settle((each) => each.reject(new TidewireError('CLOSED')))
    trace._stop()
    const mine = turn
    await ending
    if (mine !== turn) return
    unlisten?.()
    unlisten = undefined
  }

  function listen(): void {
    if (unlisten) return
    const off = platform.page.listen((event) => {
      const { lifecycle } = state()
      if (event === 'hide' || event === 'freeze') {
        if (lifecycle === 'running' || lifecycle === 'starting') leave('suspended', true)
        for (const each of leaving) void each.stop(true)
        news?.close()
        news = undefined
      } else if (lifecycle === 'suspended' && (event === 'show' || event === 'resume' || event === 'visible')) {
        hear()
        if (moved()) evict()
        else void open()
      }
    })
    hear()
    unlisten = () => {
      off()
      news?.close()
      news = undefined
    }
  }

  // Who is logged in.

  const movedKey = () => `${sharedPrefix(options)}moved:${createOpaqueKey(principal ?? '')}`
  const moved = () => attempt(() => platform.storage?.getItem(movedKey()))

  function hear(): void {
    news ??= attempt(() => platform.channel?.(`${sharedPrefix(options)}principal`))
    if (news) {
      news.onmessage = ({ data }) => {
        if ((data as { left?: unknown })?.left === createOpaqueKey(principal ?? '')) evict()
      }
    }
  }

  /** Nothing of what came for a principal is left. */
  function wipe(): void {
    for (const each of subscriptions.values()) {
      each._ids.clear()
      each._at = undefined
      for (const handler of each._handlers) handler._at = undefined
    }
  }

  function evict(): void {
    wipe()
    leave('stopped', false)
    emitters.principal._emit({})
  }

  function setPrincipal(next: string | undefined, config?: Config): Promise<void> {
    const { lifecycle } = state()
    if (next !== principal) {
      wipe()
      leave('stopped', false)
      const left = createOpaqueKey(principal ?? '')
      attempt(() => platform.storage?.setItem(movedKey(), '1'))
      listen()
      attempt(() => news?.postMessage({ left }))
      principal = next
    } else if (lifecycle === 'running' && config === undefined) return Promise.resolve()
    return start(config)
  }

  // Topics.

  const further = (at: Position | undefined, position: Position) => !(at && reached(position, at))

  /** The furthest that all handlers of a topic have come. */
  function resume(each: Subscription): Position | undefined {
    let least = each._at
    for (const { _at } of each._handlers) if (_at && !(least && !reached(_at, least))) least = _at
    return least
  }

  function advance(each: Subscription, position: Position): void {
    if (further(each._at, position)) each._at = position
    for (const handler of each._handlers) if (further(handler._at, position) && !handler._at) handler._at = position
  }

  function dispatch(topic: string, publication: Publication, { generation = 0, replayed = false } = {}): void {
    const each = subscriptions.get(topic)
    if (!each) return
    const { id, position, data } = publication
    // Without handlers too: the next one may want it.
    if (position && further(each._at, position)) each._at = position
    if (!each._handlers.size) return
    if (id !== undefined && dedupeWindow && again(each._ids, id, position)) return trace._count('duplicates')
    const meta: MessageMeta = { topic, ...(id !== undefined && { id }), ...(position && { position }), generation, replayed }
    const mine = turn
    for (const handler of [...each._handlers]) {
      // A handler may have stopped others, or the bus.
      if (mine !== turn) return
      if (!each._handlers.has(handler)) continue
      if (position) {
        if (!further(handler._at, position)) continue
        handler._at = position
      }
      trace._count('dispatched')
      try {
        handler._call(data, meta)
      } catch (error) {
        report(error)
      }
    }
  }

  /** Whether a message id has come before, at another place: the same place is the same publication, for a handler that came later. */
  function again(ids: Subscription['_ids'], id: string, position: Position | undefined): boolean {
    if (ids.has(id)) return !position || ids.get(id) !== position.offset
    ids.set(id, position?.offset)
    if (ids.size > dedupeWindow) ids.delete(ids.keys().next().value as string)
    return false
  }

  function drop(topic: string, each: Subscription): void {
    each._linger?.()
    if (subscriptions.get(topic) !== each) return
    subscriptions.delete(topic)
    coordinator?.unsubscribe(topic)
  }

  function subscribe<Data>(topic: string, handler: MessageHandler<Data>, { from, signal }: TopicOptions = {}): () => void {
    if (signal?.aborted) return () => {}
    let each = subscriptions.get(topic)
    const least = each && resume(each)
    const handlerOf: Handler = { _call: handler as MessageHandler, _at: from ?? each?._at }
    if (!each) {
      each = { _handlers: new Set(), _ids: new Map(), _at: from, _linger: undefined }
      subscriptions.set(topic, each)
      coordinator?.subscribe(topic, from)
    } else if (from && !(least && reached(least, from))) coordinator?.subscribe(topic, from)
    each._linger?.()
    each._linger = undefined
    each._handlers.add(handlerOf)
    const subscription = each
    return disposer(() => remove(topic, subscription, handlerOf), signal)
  }

  function remove(topic: string, each: Subscription, handler: Handler): void {
    if (!each._handlers.delete(handler) || each._handlers.size) return
    // A view that is replaced by another lets go and takes hold again.
    each._linger = platform.after(lingerMs, () => drop(topic, each))
  }

  const begin = () => {
    if (autoStart && state().lifecycle === 'idle') start().catch(() => {})
  }
  platform.soon(begin)

  return {
    state: store as Observable<BusState>,
    start,
    stop,
    subscribe,
    setPrincipal,

    /** Resolves with the connection. Without autoStart it waits for start. */
    ready(): Promise<void> {
      const { lifecycle, status, error } = state()
      if (lifecycle === 'running' && status === 'connected') return Promise.resolve()
      if (lifecycle === 'failed' || lifecycle === 'stopped') return Promise.reject(error ?? new TidewireError('CLOSED'))
      return new Promise((resolve, reject) => waiting.push({ resolve, reject }))
    },

    unsubscribe(topic: string, handler?: MessageHandler<never>): void {
      const each = subscriptions.get(topic)
      for (const one of [...(each?._handlers ?? [])]) if (!handler || one._call === handler) remove(topic, each as Subscription, one)
    },

    async publish(topic: string, data: unknown, publishOptions?: PublishOptions): Promise<void> {
      checkData(data)
      // It may be about to start by itself.
      begin()
      await starting
      if (!coordinator) throw new TidewireError('CLOSED')
      return coordinator.publish(topic, data, publishOptions)
    },

    onStatus: listeners._add,

    on<Name extends keyof BusEvents>(name: Name, listener: (event: BusEvents[Name]) => void): () => void {
      return (emitters[name] as ReturnType<typeof createListeners<[BusEvents[Name]]>>)._add(listener)
    },

    getClusterSnapshot(): ClusterSnapshot {
      return (
        coordinator?.snapshot() ?? {
          mode: state().mode ?? 'local',
          tabId: '',
          workerId: '',
          subscribedTopics: [...subscriptions.keys()],
          assignedTopics: [],
          knownTopics: {},
          routes: [],
          workers: [],
        }
      )
    },
  }
}

type Bus<Config> = ReturnType<typeof createBus<Config>>

export interface CrossTabDataBus<Config = unknown> extends Bus<Config> {}

export class CrossTabDataBus<Config = unknown> {
  constructor(options: DataBusOptions<Config>) {
    Object.assign(this, createBus(options))
  }

  get mode(): Mode | undefined {
    return this.state.getSnapshot().mode
  }

  get modeReason(): string {
    return this.state.getSnapshot().modeReason
  }
}
