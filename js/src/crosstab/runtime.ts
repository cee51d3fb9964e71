import { TidewireError } from '../error.js'
import { browserPlatform } from './browser.js'
import { createCalls } from './calls.js'
import { type Context, createQueries, type Worker } from './context.js'
import type { ClusterSnapshot, Coordinator, CoordinatorEvents, Mode, WorkerRecord } from './coordinator.js'
import { createOpaqueKey } from './hash.js'
import { claimTab, type Identity, newTabId } from './identity.js'
import { createMembers, older } from './members.js'
import { type Control, decode, fromWire, type Message, type Owned, readRoute, toWire } from './messages.js'
import { type ClusterOptions, clusterPrefix } from './names.js'
import { createOutbox } from './outbox.js'
import { createLease, createLocks } from './ownership.js'
import { createOwning } from './owning.js'
import { createPlacing, endClaim } from './placing.js'
import type { Platform } from './platform.js'
import { createReading } from './reading.js'
import { createRecords } from './records.js'
import { createTopic, lose, type Topic } from './topic.js'
import { createTrace, type Trace } from './trace.js'
import type { DataBusTransport, Position, PublishOptions, TransportEvents, TransportStatus } from './transport.js'
import { createUplink, type Uplink } from './uplink.js'

/** What a cluster may be tuned with. */
export interface ClusterTuning {
  /** How many workers take new topics, and keep a connection: at least 1. Default 3. */
  readonly maxActiveWorkers?: number | undefined
  /** How often a worker says that it is there, in milliseconds. Default 3000. */
  readonly heartbeatIntervalMs?: number | undefined
  /** Without locks: a worker that was silent for so long, and does not answer, is dead: within workerTtlMs and 3 s. Default 10,000. */
  readonly workerTtlMs?: number | undefined
  /** With locks: an owner that was silent for so long, and does not answer, is robbed: within stallMs and 6 s. Default 10,000. */
  readonly stallMs?: number | undefined
}

/** Options of {@link WorkerClusterRuntime}. */
export interface WorkerClusterOptions<Config = unknown> extends ClusterOptions, ClusterTuning {
  readonly transport: DataBusTransport<Config>
  readonly config: Config
  readonly events: CoordinatorEvents
  /** Default `coordinated`. */
  readonly mode?: Exclude<Mode, 'shared'> | undefined
  /** Default {@link browserPlatform}. */
  readonly platform?: Platform | undefined
  /** What the transport asks for a credential. */
  readonly credential?: TransportEvents['credential'] | undefined
  readonly trace?: Trace | undefined
}

const SETTLE_LOCKS_MS = 30
const SETTLE_LEASE_MS = 50
const RETRY_MS = 500
const CLOSE_MS = 2000
// A worker whose ticks are later than this may have been stuck, and its messages old.
const LATE_MS = 2000
const GRACE_MS = 100
const HALF_LIFE_S = 10
const IDLE_TICKS = 2
const MAX_KNOWN = 500

const nothing = () => {}

/** One worker's life in its cluster. It starts once and stops once. */
export function createRuntime<Config>(options: WorkerClusterOptions<Config>) {
  const { transport, events, mode = 'coordinated', platform = browserPlatform(), maxActiveWorkers = 3, heartbeatIntervalMs = 3000, workerTtlMs = 10_000, stallMs = 10_000 } = options
  const { page, soon, now, wallNow, locks } = platform
  const { trace = createTrace(platform), credential } = options
  const prefix = clusterPrefix(options, mode)
  const me = platform.randomId()
  const registeredAt = wallNow()
  const alone = mode === 'local'
  const byLocks = mode === 'coordinated'
  const topics = new Map<string, Topic>()
  const byName = new Map<string, Topic>()
  const workers = new Map<string, Worker>()
  const timers = new Set<() => void>()
  const records = createRecords({ soon, after, storage: alone ? undefined : platform.storage }, prefix, () => trace._count('storageFailures'))
  const outbox = createOutbox(platform, after, prefix, record, (say) => owning._sayConfirmed(say), () => trace._count('unclonable'), () => workers)
  const post = outbox._post
  const context: Context = {
    _platform: platform,
    _trace: trace,
    _records: records,
    _me: me,
    _byLocks: byLocks,
    _topics: topics,
    _workers: workers,
    _after: after,
    _record: record,
    _post: post,
    _reconcileSoon: reconcileSoon,
    _tell: tell,
    _forget: forget,
  }
  const queries = createQueries(context)
  const { _wantedByAny: wantedByAny, _alive: alive, _ownerOf: ownerOf, _names: names } = queries
  const ownership = byLocks && locks ? createLocks(locks, prefix) : createLease(after, alone ? 0 : SETTLE_LEASE_MS)
  const calls = createCalls(context, queries, (name) => byName.get(name), publishHere)
  const members = createMembers(context, queries, ownership, { _ended: calls._gone, _copied: takeNewId }, maxActiveWorkers, byLocks ? stallMs : workerTtlMs)
  const reading = createReading(context, queries, events, (t, from) => owning._repair(t, from))
  const owning = createOwning(context, queries, transport, () => uplink, outbox, reading, events, (name) => byName.get(name))
  const { _confirm: confirm, _ownedOf: ownedOf, _issue: issue, _subscribe: subscribe, _letGo: letGo } = owning
  const placing = createPlacing(context, queries, members, ownership, owning, reading, () => phase === 'open')
  const uplink: Uplink = createUplink(transport, options.config, {
    status: said,
    publication: owning._publication,
    subscribed: owning._subscribed,
    refused: owning._refused,
    ...(credential && { credential }),
  })

  let phase: 'new' | 'joining' | 'open' | 'stopping' | 'over' = 'new'
  let identity: Identity | undefined
  let tabId = ''
  let active = false
  let told: TransportStatus | undefined
  /** For how many ticks the connection was of no use. */
  let idle = 0
  /** Since when there is none. */
  let down: number | undefined
  let lastTick = 0
  /** When it last ran again after it could not. */
  let awake = -Infinity
  let reconciling = false
  let retrying = false
  let settled = nothing
  let unlisten = nothing
  let finish: (() => void) | undefined
  let over: Promise<unknown> | undefined

  function after(ms: number, call: () => void): () => void {
    const cancel = () => {
      timers.delete(cancel)
      off()
    }
    const off = platform.after(ms, () => {
      timers.delete(cancel)
      call()
    })
    timers.add(cancel)
    return cancel
  }

  // What this worker says of itself.

  function record(): WorkerRecord {
    return {
      workerId: me,
      tabId,
      load: load(),
      role: active ? 'active' : 'standby',
      status: uplink._status,
      visibilityState: page.visible ? 'visible' : 'hidden',
      heartbeatAt: wallNow(),
      registeredAt,
    }
  }

  /** A topic weighs one, and one more for each 100 publications or 64 KiB in a second. */
  function load(): number {
    let sum = 0
    for (const t of topics.values()) if (t._owned || t._called || (t._end && t._target === me)) sum += 1 + t._rate / 100 + t._byteRate / 65_536
    return Math.round(sum * 100) / 100
  }

  function registry(hello?: boolean): void {
    post({ type: 'REGISTRY', wants: names((t) => t._wanted), owns: [...topics.values()].filter((t) => t._owned).map(ownedOf), ...(hello && { hello }) })
  }

  /** The record has changed. */
  function announce(): void {
    if (phase !== 'open') return
    records._put(`worker:${me}`, record())
    post({ type: 'REGISTRY' })
  }

  /** How the connections are that this tab's topics come through: the worst of them. */
  function tell(error?: unknown, failed = false): void {
    const ways = new Set<TransportStatus>()
    for (const t of topics.values()) if (t._wanted) ways.add(t._owned ? uplink._status : (ownerOf(t)?._record.status ?? 'connecting'))
    if (!ways.size) ways.add(active ? uplink._status : ([...workers.values()].find((w) => w._record.status === 'connected')?._record.status ?? 'connecting'))
    const worst = (['error', 'disconnected', 'connecting', 'connected'] as const).find((status) => ways.has(status)) as TransportStatus
    if (worst === told && !error) return
    told = worst
    // What is wrong here is nothing to a tab whose topics come through others, unless it is to come back.
    events.status(failed ? 'error' : worst, failed || worst !== 'connected' ? error : undefined)
  }

  // What it knows.

  function remember(name: string): Topic {
    const found = byName.get(name)
    if (found) return found
    const t = createTopic(name, createOpaqueKey(name), now())
    const stored = readRoute(records._get(`route:${t._key}`))
    if (stored) {
      t._generation = stored.generation
      // One that was handed on in storage alone may not be free yet.
      if (alive(stored.workerId) && stored.confirmedAt) t._route = stored
    }
    topics.set(t._key, t)
    byName.set(name, t)
    for (const old of topics.values()) {
      if (topics.size <= MAX_KNOWN) break
      if (old !== t && !old._wanted && !old._owned) forget(old)
    }
    return t
  }

  function forget(t: Topic): void {
    endClaim(t)
    topics.delete(t._key)
    byName.delete(t._name)
  }

  /** This tab is a copy of an older one. */
  function takeNewId(): void {
    tabId = newTabId(platform.session, platform.randomId())
    for (const t of topics.values()) if (t._wanted) putSubscriber(t)
    announce()
  }

  // Who owns what.

  function reconcileSoon(): void {
    if (reconciling || phase !== 'open') return
    reconciling = true
    soon(() => {
      reconciling = false
      reconcile()
    })
  }

  function reconcile(): void {
    if (phase !== 'open') return
    const first = members._candidates()
    const was = active
    active = first.some((worker) => worker.workerId === me)
    if (active) uplink._open().catch(nothing)
    if (active !== was) announce()
    members._watch(active)
    let again = false
    for (const t of [...topics.values()]) if (!t._releasing && placing._place(t, first, active)) again = true
    if (again && !retrying) {
      retrying = true
      after(RETRY_MS, () => {
        retrying = false
        reconcile()
      })
    }
    tell()
  }

  // What the transport says.

  function said(status: TransportStatus, error?: unknown): void {
    for (const t of topics.values()) {
      if (status === 'connected') subscribe(t)
      else if (t._owned) t._sub = t._live = false
    }
    down = status === 'connected' ? undefined : (down ?? now())
    announce()
    const failed = status === 'error' && phase === 'open'
    tell(error ?? (failed ? new TidewireError('CONNECTION_FAILED') : undefined), failed)
  }

  // What other workers say.

  function learn(owned: Owned, from: string): void {
    if (owned.route.workerId === from) placing._learn(remember(owned.topic), owned, from)
  }

  function heard(data: unknown): void {
    const envelope = decode(data)
    if (!envelope || phase === 'over') return
    const news = !workers.has(envelope.record.workerId)
    const w = members._heard(envelope.record)
    if (!w) return
    const from = envelope.record.workerId
    outbox._read(w, from, envelope.sent)
    for (const message of envelope.messages) handle(message, from, w)
    // It was here before this worker, whose hello it has missed.
    if (news && !envelope.messages.some(({ type }) => type === 'REGISTRY')) post({ type: 'PROBE', to: from })
  }

  function handle(message: Message, from: string, w: Worker): void {
    switch (message.type) {
      case 'REGISTRY':
        if (message.gone) return members._gone(from, true)
        if (message.hello) registry()
        if (message.wants) {
          w._wants = new Set(message.wants.map((topic) => remember(topic)._key))
          reconcileSoon()
        }
        if (message.owns) {
          for (const owned of message.owns) learn(owned, from)
          const owns = new Set(message.owns.map(({ topic }) => topic))
          for (const t of topics.values()) if (t._route?.workerId === from && t._route.confirmedAt && !owns.has(t._name)) lose(t, now())
        }
        return
      case 'CONTROL':
        return control(message, from, w)
      case 'RESULT':
        return message.to === me ? calls._answered(message) : undefined
      case 'EVENT': {
        const t = topics.get(message.topicKey)
        const { generation, publications, seq, replay = false, at } = message
        if (!t || generation < t._fence || (message.to ?? me) !== me) return
        for (const [i, publication] of publications.entries()) reading._take(t, publication, generation, seq + i, replay, at)
        return
      }
      case 'CONFIRM':
        return (message.to ?? me) === me ? learn(message.owned, from) : undefined
      case 'CLAIM': {
        const t = remember(message.topic)
        const { generation } = message
        if (t._owned) return generation > t._generation ? issue(t, generation + 1) : confirm(t)
        t._generation = Math.max(t._generation, generation)
        if (byLocks || !t._end) return
        // The older one of two has it. The other may not have heard.
        if (older(w._record, record()) < 0) {
          endClaim(t)
          Object.assign(t, { _target: from, _asked: now(), _called: false })
        } else post({ type: 'CLAIM', topic: t._name, generation: t._generation })
        return
      }
      case 'ROUTE_RELEASED': {
        const { generation, head, route, topic } = message
        const t = remember(topic)
        // An old owner's late word.
        if (generation < t._generation || t._owned || (t._route && t._route.workerId !== from)) return
        t._generation = generation
        if (head) reading._advance(t, head, generation)
        lose(t, now(), route)
        t._handoff = from
        if (route) placing._inherit(t, route)
        return reconcileSoon()
      }
      case 'PROBE':
        return message.to === me ? registry() : undefined
      case 'REPAIR': {
        const t = topics.get(message.topicKey)
        return t?._owned ? owning._repair(t, message.from, from) : undefined
      }
      case 'REFUSED': {
        const t = topics.get(message.topicKey)
        return t?._wanted ? events.refused(t._name, fromWire(message.error)) : undefined
      }
      case 'ACK':
        // Who was slow begins anew where the others are.
        if (message.to === me && outbox._acked(w, message.got)) {
          w._slowAt = now()
          registry()
        }
        return
      case 'GONE':
        return message.workerId === me ? undefined : members._gone(message.workerId)
      default:
        message satisfies never
    }
  }

  function control({ action, topic, targetWorkerId, generation = 0, from: begin, route, ...message }: Control, from: string, w: Worker): void {
    if (action === 'PUBLISH') {
      if (targetWorkerId !== me || !message.requestId) return
      const answer = (more: { error?: ReturnType<typeof toWire>; again?: boolean }) => post({ type: 'RESULT', to: from, requestId: message.requestId as string, ...more })
      // Who was stuck does not do late what nobody waits for any more.
      const late = now() < awake + GRACE_MS || now() - lastTick > heartbeatIntervalMs + LATE_MS
      if (phase !== 'open' || !byName.get(topic)?._owned || (late && !message.sure)) return answer({ again: true })
      publishHere(topic, message.data, message.id === undefined ? {} : { id: message.id }).then(
        () => answer({}),
        (error) => answer({ error: toWire(error) }),
      )
      return
    }
    const t = remember(topic)
    if (action === 'UNSUBSCRIBE') {
      w._wants.delete(t._key)
      return reconcileSoon()
    }
    const news = !w._wants.has(t._key)
    w._wants.add(t._key)
    t._from ??= begin
    if (t._owned) {
      if (generation > t._generation) {
        issue(t, generation + 1)
      } else confirm(t)
      // What the server refused once it may allow now.
      if (news) subscribe(t)
    } else {
      t._generation = Math.max(t._generation, generation)
      if (targetWorkerId === me) {
        if (route && !byLocks) placing._inherit(t, route)
        t._called = true
      } else if (!t._target && alive(targetWorkerId)) {
        // One choice is enough.
        t._target = targetWorkerId as string
        t._asked = now()
      }
    }
    reconcileSoon()
  }

  // Publishing.

  async function publishHere(topic: string, data: unknown, options: PublishOptions): Promise<void> {
    if (phase !== 'open') throw new TidewireError('CLOSED')
    trace._count('published')
    await uplink._open()
    idle = 0
    await transport.publish(topic, data, options)
  }

  // Time.

  function tick(): void {
    if (phase !== 'open') return
    const seconds = (now() - lastTick) / 1000
    lastTick = now()
    if (seconds * 1000 > heartbeatIntervalMs + LATE_MS) awake = lastTick
    const weight = 0.5 ** (seconds / HALF_LIFE_S)
    for (const t of topics.values()) {
      t._rate = t._rate * weight + (t._count / seconds) * (1 - weight)
      t._byteRate = t._byteRate * weight + (t._bytes / seconds) * (1 - weight)
      t._count = t._bytes = 0
      if (t._wanted && !records._get(subscriberKey(t))) putSubscriber(t)
      // A claim that did not hold may have been written last.
      if (t._owned && readRoute(records._get(`route:${t._key}`))?.workerId !== me) records._put(`route:${t._key}`, t._route)
    }
    records._put(`worker:${me}`, record())
    members._adopt()
    prune()
    registry()
    members._check()
    if (down !== undefined && now() - down > stallMs) placing._yieldAll()
    // A connection that only published, or whose topics went to others.
    const used = active || alone || [...topics.values()].some((t) => t._owned || t._end)
    idle = used ? 0 : idle + 1
    if (idle > IDLE_TICKS && uplink._used) {
      void uplink._close()
      announce()
    }
    reconcile()
    after(heartbeatIntervalMs, tick)
  }

  const subscriberKey = (t: Topic) => `subscriber:${t._key}:${tabId}`
  const putSubscriber = (t: Topic) => records._put(subscriberKey(t), { topicKey: t._key, tabId, updatedAt: wallNow() })

  /** Records of the dead: whoever is alive writes its own again. */
  function prune(): void {
    const tabs = new Set([tabId])
    for (const w of workers.values()) tabs.add(w._record.tabId)
    for (const [key] of records._scan('subscriber:')) {
      const [topicKey = '', tab = ''] = key.split(':')
      // Of this tab too, from an earlier life.
      if (!tabs.has(tab) || (tab === tabId && !topics.get(topicKey)?._wanted)) records._put(`subscriber:${key}`, undefined)
    }
    for (const [key, value] of records._scan('route:')) {
      const owner = readRoute(value)?.workerId
      const t = topics.get(key)
      if (owner !== me && !workers.has(owner ?? '') && !(t && wantedByAny(t))) records._put(`route:${key}`, undefined)
    }
  }

  // Its life.

  async function start(): Promise<void> {
    phase = 'joining'
    const open = () => {
      if (phase !== 'joining') throw new TidewireError('CLOSED')
    }
    identity = await claimTab(byLocks ? platform : { ...platform, page, locks: undefined }, prefix)
    tabId = identity.tabId
    try {
      open()
      await ownership._join(me)
      open()
      if (!alone) {
        if (!platform.channel) throw new TidewireError('CONNECTION_FAILED', { cause: 'there is no BroadcastChannel' })
        outbox._open(me, heard)
      }
    } catch (error) {
      // It was stopped meanwhile, or cannot take part.
      void stop(true)
      identity.release()
      ownership._leave()
      throw error
    }
    members._adopt()
    records._put(`worker:${me}`, record())
    for (const t of topics.values()) if (t._wanted) putSubscriber(t)
    registry(true)
    unlisten = page.listen((event) => {
      if (event === 'visible' || event === 'hidden') announce()
      if (event === 'visible' || event === 'online') members._check()
    })
    lastTick = now()
    if (!alone) {
      await new Promise<void>((resolve) => {
        settled = resolve
        after(byLocks ? SETTLE_LOCKS_MS : SETTLE_LEASE_MS, resolve)
      })
    }
    open()
    phase = 'open'
    after(heartbeatIntervalMs, tick)
    reconcile()
    if (active) await uplink._open()
  }

  function stop(hurry = false): Promise<void> {
    if (hurry && finish) {
      void uplink._close(true)
      finish()
      settled()
    }
    if (phase === 'stopping' || phase === 'over') return Promise.resolve(over).then(nothing)
    phase = 'stopping'
    settled()
    unlisten()
    for (const t of topics.values()) if (!t._owned) endClaim(t)
    const heirs = members._candidates().filter(({ workerId }) => workerId !== me)
    records._put(`worker:${me}`, undefined)
    for (const t of topics.values()) if (t._wanted) records._put(subscriberKey(t), undefined)
    const handed = new Map([...topics.values()].filter((t) => t._owned).map((t) => [t, placing._bequeath(t, heirs)]))
    finish = () => {
      finish = undefined
      phase = 'over'
      for (const t of topics.values()) if (t._owned) letGo(t, handed.get(t))
      // The last one leaves nothing.
      if (!workers.size) for (const [key] of records._scan('')) records._put(key, undefined)
      records._end()
      post({ type: 'REGISTRY', gone: true })
      outbox._flush()
      outbox._close()
      for (const t of topics.values()) endClaim(t)
      ownership._leave()
      identity?.release()
      members._end()
      calls._gone()
      for (const cancel of [...timers]) cancel()
    }
    outbox._flush()
    records._flush()
    const close = () => {
      const closed = uplink._close(phase === 'over')
      return closed.then(() => finish?.())
    }
    if (hurry) {
      const closed = uplink._close(true)
      finish()
      return (over = closed).then(nothing)
    }
    // Each topic as soon as it can be: what is under way from the server is still handed on. A server that does not answer is not waited for.
    const released = [...handed].map(async ([t, route]) => {
      t._releasing = true
      await owning._unsubscribe(t)
      if (t._owned) letGo(t, route)
    })
    const patience = new Promise<void>((resolve) => {
      settled = resolve
      after(CLOSE_MS, resolve)
    })
    return (over = Promise.race([Promise.all(released), patience]).then(close)).then(nothing)
  }

  return {
    mode,
    start,
    stop,
    isAssigned: (topic: string) => !!byName.get(topic)?._owned,

    subscribe(topic: string, from?: Position): void {
      const t = remember(topic)
      if (from) t._cursor = from
      if (t._wanted) {
        if (from) reading._behind(t, 0)
        return
      }
      t._wanted = true
      t._told = false
      t._known = t._owned
      if (!from) t._cursor = undefined
      if (phase === 'open') {
        putSubscriber(t)
        if (t._owned) {
          subscribe(t)
          reading._settle(t, ownedOf(t))
        }
      }
      reconcileSoon()
    },

    unsubscribe(topic: string): void {
      const t = byName.get(topic)
      if (!t?._wanted) return
      t._wanted = t._told = false
      t._cursor = undefined
      t._behind?.()
      t._behind = undefined
      records._put(subscriberKey(t), undefined)
      post({ type: 'CONTROL', action: 'UNSUBSCRIBE', topic })
      reconcileSoon()
      tell()
    },

    publish(topic: string, data: unknown, options: PublishOptions = {}): Promise<void> {
      if (phase !== 'open') return Promise.reject(new TidewireError('CLOSED'))
      return calls._make(topic, data, options)
    },

    snapshot(): ClusterSnapshot {
      return {
        mode,
        tabId,
        workerId: me,
        subscribedTopics: names((t) => t._wanted),
        assignedTopics: names((t) => t._owned),
        knownTopics: Object.fromEntries([...topics].map(([key, t]) => [key, t._name])),
        routes: [...topics.values()].flatMap((t) => (t._route ? [{ ...t._route, topic: t._name }] : [])),
        workers: [record(), ...[...workers.values()].map((w) => w._record)],
      }
    },
  } satisfies Coordinator & Record<string, unknown>
}

export interface WorkerClusterRuntime extends ReturnType<typeof createRuntime> {}

/** The tabs of a cluster among themselves, as one tab takes part in it: membership, who owns which topic, and what the owners hand on. {@link CrossTabDataBus} is built on it. It starts once and stops once. */
export class WorkerClusterRuntime<Config = unknown> implements Coordinator {
  constructor(options: WorkerClusterOptions<Config>) {
    Object.assign(this, createRuntime(options))
  }
}
