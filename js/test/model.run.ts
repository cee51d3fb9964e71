import { createTestCluster, type TestCluster, type TestTab, type TestTransport } from '../src/testing/index.js'
import type { ClusterSnapshot } from '../src/crosstab/coordinator.js'

/** What the model drives in each tab. */
export interface Subject {
  stop(): Promise<void>
  start(): void
  /** Returns what ends it. */
  subscribe(topic: string, on: Heard): () => void
  publish(topic: string, data: unknown): Promise<void>
  /** Whether it takes part. */
  running(): boolean
  snapshot(): ClusterSnapshot
}

/** What a handler is told. */
export interface Heard {
  data(data: unknown): void
  lost(): void
}

export type MakeSubject = (tab: TestTab, transport: TestTransport) => Subject

/** How one run is set up. */
export interface Run {
  readonly seed: number
  /** `crash 1`, `subscribe 2 a`, `wait 50` …: what cannot be done in a tab's state is left out. */
  readonly steps: readonly string[]
  /** Whether the server keeps a history, and so gives positions. */
  readonly history?: boolean
  readonly locks?: boolean
  /** Bits that decide the first delays after the step `arm`: short, or long. */
  readonly delays?: readonly number[]
  /** Two subscribed at once are expected: no locks, and more than the graceful steps. */
  readonly overlap?: boolean
  /** Told what happens, to find out why. */
  readonly log?: (line: string) => void
}

/** One handler, from when it subscribed to its end. */
interface Handler {
  readonly topic: string
  readonly name: string
  readonly tab: number
  readonly heard: number[]
  /** After how many publications it was told that some are lost. */
  readonly lost: number[]
  active: boolean
  off: () => void
  readonly since: number
  /** From when on it must be told everything. */
  settledAt: number | undefined
}

interface Slot {
  readonly tab: TestTab
  readonly subject: Subject
  readonly transport: TestTransport
  readonly handlers: Map<string, Handler>
  started: boolean
  /** It must come back from the back/forward cache. */
  cached: boolean
  /** When it last began to take part: a lock that was asked for then is still on its way for a moment. */
  began: number
}

/** A run that broke a promise. */
export class Broken extends Error {}

const TOPICS = ['a', 'b']
/** How long everything may take to be well again after the last fault: the stall budget, and what it waits for. */
const HEAL_MS = 120_000

const FAULTS = /^(mute|deafen|lose|slow|leap)/

class Model {
  readonly #run: Run
  readonly #make: MakeSubject
  readonly #cluster: TestCluster
  /** Messages between tabs may be lost, or late. */
  readonly #faulty: boolean
  readonly #slots: (Slot | undefined)[] = []
  readonly #handlers: Handler[] = []
  readonly #broken: string[] = []
  #n = 0
  #armed: number[] | undefined
  #faults: (() => void)[] = []
  #forgetful = false
  #died = false
  #published: { n: number; tab: TestTab; settled: string | undefined }[] = []

  constructor(run: Run, make: MakeSubject) {
    this.#run = run
    this.#faulty = run.steps.some((step) => FAULTS.test(step))
    this.#make = make
    let state = run.seed | 0
    const chance = () => {
      state = (state + 0x6d2b79f5) | 0
      let t = Math.imul(state ^ (state >>> 15), 1 | state)
      t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296
    }
    // The bits replace chance while there are some.
    const random = () => (this.#armed?.length ? (this.#armed.shift() ? 0.999 : 0) : chance())
    this.#cluster = createTestCluster({ random, history: run.history === false ? 0 : 1000 })
    const { log } = run
    if (log) this.#cluster.delay(0, ({ from, to, message }) => (log(`${this.#cluster.clock.now.toFixed(1)} ${from} → ${to}: ${JSON.stringify((message as { messages?: unknown }).messages ?? message)}`), false))
  }

  async play(): Promise<void> {
    try {
      for (const step of this.#run.steps) {
        this.#run.log?.(`${this.#cluster.clock.now.toFixed(1)} ${step}; ${this.#unsettled() ?? 'settled'}`)
        await this.#step(step)
        this.#check()
      }
      await this.#end()
    } catch (error) {
      if (error instanceof Broken) throw error
      throw new Broken(`${error instanceof Error ? error.stack : String(error)}`)
    }
  }

  async #step(step: string): Promise<void> {
    const { clock, server } = this.#cluster
    const [verb, ...args] = step.split(' ')
    const number = Number(args[0])
    const slot = this.#slots[number]
    const topic = args[1] ?? 'a'
    const runs = slot?.tab.state === 'running'
    const name = slot?.tab.name
    switch (verb) {
      case 'open':
        if (!slot || slot.tab.state === 'dead') this.#open(number)
        break
      case 'subscribe':
        if (slot && runs) this.#subscribe(slot, number, topic, `${topic} ${args[2] ?? ''}`)
        break
      case 'unsubscribe':
        if (slot && runs) this.#unsubscribe(slot, `${topic} ${args[2] ?? ''}`)
        break
      case 'publish':
        server.publish(args[0] as string, ++this.#n)
        break
      case 'send':
        if (slot && runs && slot.started) this.#send(slot, topic)
        break
      case 'crash':
        if (!slot || slot.tab.state === 'dead') break
        this.#died = true
        slot.cached = false
        slot.tab.crash()
        break
      case 'close':
        if (slot && runs) await slot.tab.close()
        break
      case 'reload':
        if (slot && runs) {
          const next = await slot.tab.reload()
          this.#settle()
          this.#use(number, next)
        }
        break
      case 'freeze':
        await slot?.tab.freeze({ messages: args[1] === 'messages' })
        break
      case 'resume':
        await slot?.tab.resume()
        if (slot) slot.began = clock.now
        break
      case 'hide':
        if (slot && runs) {
          await slot.tab.hide()
          slot.cached = clock.now - slot.began > 50
        }
        break
      case 'show':
        if (slot && (await slot.tab.show())) Object.assign(slot, { cached: false, began: clock.now })
        break
      case 'duplicate': {
        const other = this.#slots[Number(args[1])]
        if (slot && slot.tab.state !== 'dead' && (!other || other.tab.state === 'dead')) this.#use(Number(args[1]), slot.tab.duplicate())
        break
      }
      case 'hang':
        slot?.tab.hang()
        break
      case 'unhang':
        slot?.tab.unhang()
        if (slot) slot.began = clock.now
        break
      case 'hidden':
        slot?.tab.setVisible(false, Number(args[1] ?? 0))
        break
      case 'visible':
        slot?.tab.setVisible(true)
        break
      case 'stop':
        if (slot && runs && slot.started) {
          slot.started = false
          void slot.subject.stop()
        }
        break
      case 'start':
        if (slot && runs && !slot.started) {
          slot.started = true
          slot.began = clock.now
          slot.subject.start()
        }
        break
      case 'fail':
        slot?.transport.fail(new Error('gave up'))
        break
      case 'drop':
        server.drop(name)
        break
      case 'down':
        server.stop()
        break
      case 'up':
        server.start()
        break
      case 'trim':
        this.#forgetful = true
        for (const each of TOPICS) server.trim(each)
        break
      case 'renew':
        this.#forgetful = true
        for (const each of TOPICS) server.renew(each)
        break
      case 'mute':
        // Nothing that it says is heard.
        this.#faults.push(this.#cluster.lose(({ from }) => from === name))
        break
      case 'deafen':
        this.#faults.push(this.#cluster.lose(({ to }) => to === name))
        break
      case 'lose': {
        let left = number
        this.#faults.push(this.#cluster.lose(() => left-- > 0))
        break
      }
      case 'slow':
        this.#faults.push(this.#cluster.delay(number, () => true))
        break
      case 'heal':
        this.#heal()
        break
      case 'quota':
        slot?.tab.failStorage('quota')
        break
      case 'jump':
        clock.jump(number)
        break
      case 'leap':
        clock.leap(number)
        for (const each of this.#slots) if (each) each.began += number
        break
      case 'arm':
        this.#armed = [...(this.#run.delays ?? [])]
        break
      case 'wait':
        await clock.advance(number)
        break
      case 'quiet':
        await clock.quiet(2000)
        break
      case 'settle':
        await this.#settled(5000).catch(() => {})
        break
      default:
        throw new Error(`no step ${step}`)
    }
    this.#settle()
  }

  #open(number: number): void {
    this.#use(number, this.#cluster.tab({ name: `tab-${number}`, ...(this.#run.locks === false && { without: ['locks'] }) }))
  }

  #use(number: number, tab: TestTab): void {
    const transport = this.#cluster.transport(tab)
    this.#slots[number] = { tab, transport, subject: this.#make(tab, transport), handlers: new Map(), started: true, cached: false, began: this.#cluster.clock.now }
  }

  #subscribe(slot: Slot, number: number, topic: string, key: string): void {
    if (slot.handlers.has(key)) return
    const handler: Handler = {
      topic,
      tab: number,
      name: `${slot.tab.name} ${topic} #${this.#handlers.length}`,
      heard: [],
      lost: [],
      active: true,
      off: () => {},
      since: this.#cluster.clock.now,
      settledAt: undefined,
    }
    slot.handlers.set(key, handler)
    this.#handlers.push(handler)
    handler.off = slot.subject.subscribe(topic, {
      data: (data) => {
        const n = data as number
        if (!handler.active) this.#broken.push(`${handler.name} was called with ${n} after it had left`)
        if (handler.heard.includes(n)) this.#broken.push(`${handler.name} got ${n} twice: X12`)
        else if (n < (handler.heard.at(-1) ?? 0) && !this.#published.some((sent) => sent.n === n)) this.#broken.push(`${handler.name} got ${n} after ${handler.heard.at(-1)}`)
        handler.heard.push(n)
      },
      lost: () => {
        handler.lost.push(handler.heard.length)
        if (this.#run.history !== false && !this.#forgetful) this.#broken.push(`${handler.name} was told that something is lost, and the server has it: X27`)
      },
    })
  }

  #unsubscribe(slot: Slot, key: string): void {
    const handler = slot.handlers.get(key)
    if (!handler) return
    slot.handlers.delete(key)
    handler.off()
    handler.active = false
  }

  #send(slot: Slot, topic: string): void {
    const entry = { n: ++this.#n, tab: slot.tab, settled: undefined as string | undefined }
    this.#published.push(entry)
    slot.subject.publish(topic, entry.n).then(
      () => (entry.settled = 'done'),
      (error: unknown) => (entry.settled = String(error)),
    )
  }

  /** Handlers of dead tabs end. */
  #settle(): void {
    for (const slot of this.#slots) {
      if (slot?.tab.state !== 'dead') continue
      this.#died = true
      if (slot.cached) this.#broken.push(`${slot.tab.name} was evicted from the back/forward cache: X03`)
      for (const handler of slot.handlers.values()) handler.active = false
      slot.handlers.clear()
    }
  }

  #heal(): void {
    for (const heal of this.#faults) heal()
    this.#faults = []
  }

  /** What must hold at any time. */
  #check(): void {
    for (const double of this.#cluster.server.doubles) {
      const excused = double.stolen === 'hung' || (double.stolen === 'false alarm' && this.#faulty)
      if (!excused && !this.#run.overlap) this.#broken.push(`two were subscribed to ${double.topic} at ${double.at}: ${double.by.join(', ')}${double.stolen ? ` (${double.stolen})` : ''}: X10`)
    }
    for (const slot of this.#slots) for (const misuse of slot?.transport.misuse ?? []) this.#broken.push(misuse)
    if (this.#broken.length) throw new Broken([...new Set(this.#broken)].join('\n'))
  }

  get #living(): Slot[] {
    return this.#slots.filter((slot): slot is Slot => slot?.tab.state === 'running' && slot.started)
  }

  /** What keeps ownership from being settled. */
  #unsettled(): string | undefined {
    const { server } = this.#cluster
    const living = this.#living
    const views = new Map(living.map((slot) => [slot, slot.subject.snapshot()]))
    const idle = living.find(({ subject }) => !subject.running())
    if (idle) return `${idle.tab.name} does not take part`
    const ids = [...views.values()].map(({ tabId }) => tabId).filter(Boolean)
    if (new Set(ids).size < ids.length) return `two tabs have one id: ${ids.join(', ')}`
    for (const topic of TOPICS) {
      const wanted = living.filter(({ handlers }) => [...handlers.values()].some((handler) => handler.topic === topic))
      const owners = server.subscriptions(topic)
      if (!wanted.length) {
        if (owners.length) return `${topic} is unwanted, and subscribed by ${owners.join(', ')}`
        continue
      }
      if (owners.length !== 1) return `${topic} is subscribed by ${owners.join(', ') || 'nobody'}`
      const owner = living.find(({ tab }) => tab.name === owners[0])
      const view = owner && views.get(owner)
      if (!view?.assignedTopics.includes(topic)) return `${owners[0]} is subscribed to ${topic} and does not say so`
      for (const slot of wanted) {
        const route = views.get(slot)?.routes.find((each) => each.topic === topic)
        if (route?.workerId !== view.workerId) return `${slot.tab.name} says ${topic} is with ${route?.workerId ?? 'nobody'}, it is with ${view.workerId} of ${owner?.tab.name}`
        if (route.confirmedAt === undefined) return `${slot.tab.name} has no confirmation of ${topic}`
        if (!views.get(slot)?.subscribedTopics.includes(topic)) return `${slot.tab.name} does not say that it wants ${topic}`
      }
    }
    for (const slot of living) {
      const extra = views.get(slot)?.assignedTopics.filter((topic) => !server.subscriptions(topic).includes(slot.tab.name))
      if (extra?.length) return `${slot.tab.name} says that it owns ${extra.join(', ')}`
    }
    return undefined
  }

  async #settled(limitMs: number): Promise<void> {
    const { clock } = this.#cluster
    const end = clock.now + limitMs
    let cause: string | undefined
    for (let ms = 1; ; ms = Math.min(ms * 2, 1000)) {
      await clock.quiet(2000)
      this.#check()
      cause = this.#unsettled()
      if (!cause) break
      if (clock.now > end) throw new Broken(`not settled after ${limitMs} ms: ${cause}`)
      await clock.advance(ms)
    }
    // Where a message was lost it may take a beat until it is known where a topic begins.
    if (this.#faults.length) return
    for (const slot of this.#living) for (const handler of slot.handlers.values()) if (!this.#faulty || clock.now - handler.since > 10_000) handler.settledAt ??= clock.now
  }

  /** All faults end. Everything must become well, and leave nothing. */
  async #end(): Promise<void> {
    const { clock, server, tabs } = this.#cluster
    this.#armed = undefined
    this.#heal()
    server.start()
    for (const tab of tabs) {
      tab.failStorage(undefined)
      tab.unhang()
      tab.setVisible(true)
      await tab.resume()
      await tab.show()
    }
    for (const slot of this.#living) slot.cached = false
    this.#settle()
    // Without locks the dead are noticed by their silence.
    if (this.#run.locks === false && this.#died) await clock.advance(20_000)
    await this.#settled(HEAL_MS)

    // What was published before the owner knew who wants it is not theirs; it knows by the next beat, whatever was lost.
    if (this.#faulty || this.#run.history === false) await clock.advance(4000)
    // The last that was published is missed too, though nothing follows it.
    await clock.until(() => !this.#missed().length, 10_000).catch(() => {})
    this.#broken.push(...this.#missed())
    this.#check()
    const markers = new Map(TOPICS.map((topic) => [topic, server.publish(topic, ++this.#n).data as number]))
    const waits = ({ topic, heard, lost }: Handler) => !heard.includes(markers.get(topic) as number) && !(this.#forgetful && lost.includes(heard.length))
    const waiting = () => this.#living.flatMap(({ handlers }) => [...handlers.values()].filter(waits))
    await clock.quiet()
    await clock.until(() => !waiting().length, 10_000).catch(() => {
      this.#broken.push(`${waiting().map(({ name }) => name).join(', ')} did not get the last publication: X12`)
    })
    this.#check()
    this.#broken.push(...this.#missed())
    // Nobody changes their mind.
    await clock.advance(4000)
    const cause = this.#unsettled()
    if (cause) this.#broken.push(`not settled any more: ${cause}`)
    // A publication is answered, or times out.
    if (this.#published.some(({ settled, tab }) => !settled && tab.state === 'running')) await clock.advance(10_000)
    for (const { n, tab, settled } of this.#published) if (!settled && tab.state === 'running') this.#broken.push(`publish of ${n} by ${tab.name} never settles: X13`)
    for (const topic of TOPICS) {
      const all = server.published(topic).map(({ data }) => data)
      if (new Set(all).size < all.length) this.#broken.push(`something was published twice on ${topic}: X13`)
    }
    this.#check()

    if (this.#died) {
      if (!this.#living.length) this.#open(9)
      for (let left = 20; left > 0 && this.#stale().length; left--) await clock.advance(1000)
      for (const key of this.#stale()) this.#broken.push(`nobody removes ${key}: X09`)
    }
    // One after the other: of two that leave at once, neither could clean up for both.
    for (const { subject, tab } of this.#living) {
      let stopped = false
      const { workerId, tabId } = subject.snapshot()
      void subject.stop().then(() => (stopped = true))
      await clock.quiet()
      await clock.advance(1000)
      ;(this.#slots.find((slot) => slot?.tab === tab) as Slot).started = false
      const own = [...this.#cluster.storage.keys()].filter((key) => key.endsWith(`:worker:${workerId}`) || key.endsWith(`:${tabId}`))
      if (own.length) this.#broken.push(`${tab.name} leaves ${own.join(', ')}: X03`)
      if (!stopped) this.#broken.push(`stop of ${tab.name} does not resolve`)
    }
    // What is left of the dead in storage goes when somebody comes.
    if (this.#cluster.storage.size) {
      this.#open(9)
      const { subject } = this.#slots[9] as Slot
      for (let left = 20; left > 0 && this.#stale().length; left--) await clock.advance(1000)
      void subject.stop()
      await clock.advance(1000)
    }
    const leaks = this.#cluster.leaks()
    if (leaks.length) this.#broken.push(`left: ${leaks.join('; ')}`)
    this.#check()
  }

  /** Records of who is not there. */
  #stale(): string[] {
    const views = this.#living.map(({ subject }) => subject.snapshot())
    const there = new Set(views.flatMap(({ workerId, tabId }) => [workerId, tabId]))
    return [...this.#cluster.storage].filter(([key, value]) => {
      const id = key.includes(':route:') ? (JSON.parse(value) as { workerId: string }).workerId : key.slice(key.lastIndexOf(':') + 1)
      return /:(worker|route|subscriber):/.test(key) && !there.has(id)
    }).map(([key]) => key)
  }

  /** What handlers missed and were not told of. */
  #missed(): string[] {
    if (this.#run.history === false) return []
    const staying = new Set(this.#living.flatMap(({ handlers }) => [...handlers.values()]))
    return this.#handlers.flatMap((handler) => {
      const { heard, lost, settledAt, name } = handler
      const all = this.#cluster.server.published(handler.topic)
      const stays = staying.has(handler)
      const last = stays ? all.length : all.findIndex(({ data }) => data === heard.at(-1)) + 1
      const first = all.findIndex(({ data, at }) => data === heard[0] || (stays && settledAt !== undefined && at > settledAt))
      const missed: unknown[] = []
      let next = 0
      for (const { data } of first < 0 ? [] : all.slice(first, last)) {
        const at = heard.indexOf(data as number)
        if (at >= 0) next = Math.max(next, at + 1)
        else if (!lost.includes(next)) missed.push(data)
      }
      return missed.length ? [`${name} missed ${missed.join(', ')} of ${all.map(({ data }) => data).join(', ')}, and was not told: X27`] : []
    })
  }
}

/** Plays a run. Returns what it broke, if anything. */
export async function play(run: Run, make: MakeSubject): Promise<string | undefined> {
  try {
    await new Model(run, make).play()
    return undefined
  } catch (error) {
    return (error as Error).message
  }
}

/** What a failure is about, whoever it happened to. */
const kind = (broken: string | undefined) => broken?.split('\n')[0]?.replace(/[0-9a-f]{8,}|[0-9]+/g, '')

/** The fewest steps that still break the same: takes away what is not needed, one after the other. */
export async function shrink(run: Run, make: MakeSubject): Promise<Run> {
  let best = run
  const wanted = kind(await play(run, make))
  for (let size = Math.ceil(run.steps.length / 2); size >= 1; size = size > 1 ? Math.ceil(size / 2) : 0) {
    for (let i = 0; i < best.steps.length; ) {
      const steps = [...best.steps.slice(0, i), ...best.steps.slice(i + size)]
      if (kind(await play({ ...best, steps }, make)) === wanted) best = { ...best, steps }
      else i += size
    }
  }
  return best
}

/** A failure, as it can be played again. */
export const report = (run: Run, broken: string): string => `${broken}\nTIDEWIRE_TEST_RUN='${JSON.stringify(run)}'`
