import type { PageEvent } from '../crosstab/platform.js'
import { seeded, type Task, type TestClock } from './clock.js'

/** From how long to how long something takes, in milliseconds. */
export type Range = readonly [least: number, most: number]

/** What a cluster's parts share. */
export interface World {
  readonly clock: TestClock
  /** Where every choice comes from. */
  readonly random: () => number
  readonly between: (range: Range) => number
  readonly latency: Latency
}

/** How long things take in a browser and to its server. The defaults are what was measured in Chromium. */
export interface Latency {
  /** A BroadcastChannel, from tab to tab. Default 0.3 to 3. */
  readonly channel: Range
  /** Until another tab sees what one wrote to localStorage, be it woken by a message sent afterwards. Default 0 to 25. */
  readonly storage: Range
  /** A lock, from the request to the browser and from there to the tab, each. Default 0.1 to 0.7. */
  readonly lock: Range
  /** A worker's port. Default 0.05 to 0.5. */
  readonly port: Range
  /** From a tab's end, however it comes, until the browser has freed its locks. Its connections are closed before. Default 8 to 164. */
  readonly death: Range
  /** The way to the server, and back, each. Default 1 to 10. */
  readonly network: Range
}

/** Where tasks come from. */
export type Source = 'timer' | 'channel' | 'port' | 'lock' | 'network' | 'page'

/**
 * Running: what is due is done. Hung: what is due waits. Frozen: the same, and the page was told; messages may be handled all the same. Cached: in the back/forward cache, from which much evicts it.
 */
export type LifeState = 'running' | 'hung' | 'frozen' | 'cached' | 'dead'

/** One way on which nothing overtakes anything. */
export class Pipe {
  #last = 0

  /** When something arrives that is sent now and takes ms. */
  arrival(clock: TestClock, ms: number): number {
    return (this.#last = Math.max(this.#last, clock.now + ms))
  }
}

/** What runs code: a tab, or a worker. */
export class Agent {
  readonly world: World
  readonly name: string
  readonly random: () => number
  state: LifeState = 'running'
  visible = true
  /** While it is hidden, its timers run at multiples of this only. Zero: it is not throttled. */
  timersMs = 0
  /** Whether a frozen page handles messages. */
  frozenMessages = false
  /** When it last began to run. */
  awakeAt = 0
  readonly listeners = new Set<(event: PageEvent) => void>()
  /** What ends with it, in this order, as soon as it is dead. */
  readonly endings: (() => void)[] = []
  /** What its browser frees some time after its death. */
  readonly freed: (() => void)[] = []
  /** What it is suspended and resumed with. */
  readonly dependants = new Set<Agent>()
  readonly timers = new Set<Task>()
  /** What came due while it could not run. */
  #late: { source: Source; run: () => void }[] = []
  /** Timers that wait for the next time that a hidden page's timers run. */
  readonly #throttled = new Set<Task>()

  constructor(world: World, name: string) {
    this.world = world
    this.name = name
    this.random = seeded(Math.floor(world.random() * 0x1_0000_0000))
  }

  get alive(): boolean {
    return this.state !== 'dead'
  }

  /** Has this agent do something at a time, if it is alive and that is still wanted then. */
  at(at: number, source: Source, run: () => void, wanted = () => true): void {
    this.world.clock.put(at, { run: () => wanted() && this.#do(source, run), timer: false, done: false })
  }

  #do(source: Source, run: () => void): void {
    if (this.state === 'running' || (this.state === 'frozen' && source === 'channel' && this.frozenMessages)) run()
    else if (this.state === 'cached' && (source === 'channel' || source === 'port' || source === 'lock')) this.die()
    else if (this.state !== 'dead') this.#late.push({ source, run })
  }

  /** A timer of its code. */
  after(ms: number, call: () => void): () => void {
    if (!this.alive) return () => {}
    const { clock } = this.world
    const task: Task = {
      timer: true,
      done: false,
      run: () => {
        const next = this.visible || !this.timersMs ? 0 : Math.ceil(clock.now / this.timersMs) * this.timersMs
        if (next > clock.now) {
          task.done = false
          this.#throttled.add(task)
          clock.put(next, task)
          return
        }
        this.#throttled.delete(task)
        this.#do('timer', () => {
          // It may have been cancelled while the page could not run.
          if (this.timers.delete(task)) call()
        })
      },
    }
    this.timers.add(task)
    clock.put(clock.now + Math.max(0, ms), task)
    return () => {
      task.done = true
      this.#throttled.delete(task)
      this.timers.delete(task)
    }
  }

  emit(event: PageEvent): void {
    for (const listener of [...this.listeners]) listener(event)
  }

  show(visible: boolean): void {
    this.visible = visible
    if (!visible) return
    const late = [...this.#throttled]
    this.#throttled.clear()
    for (const task of late) this.world.clock.put(this.world.clock.now, task)
  }

  suspend(state: 'hung' | 'frozen' | 'cached'): void {
    if (!this.alive) return
    this.state = state
    for (const other of this.dependants) other.suspend(state === 'cached' ? 'frozen' : state)
  }

  /** What came due is done now: in the order in which it did, or timers first. Browsers promise neither. */
  wake(): void {
    if (!this.alive || this.state === 'running') return
    this.state = 'running'
    const { clock, random } = this.world
    this.awakeAt = clock.now
    const late = this.#late
    this.#late = []
    const early = late.length > 1 && random() < 0.5 ? late.filter(({ source }) => source === 'timer') : []
    for (const { source, run } of [...early, ...late.filter((task) => !early.includes(task))]) this.at(clock.now, source, run)
    for (const other of this.dependants) other.wake()
  }

  die(): void {
    if (!this.alive) return
    this.state = 'dead'
    this.#late = []
    this.listeners.clear()
    for (const task of this.timers) task.done = true
    this.timers.clear()
    for (const other of this.dependants) other.die()
    for (const end of this.endings) end()
    const { clock, between, latency } = this.world
    clock.add(between(latency.death), () => {
      for (const free of this.freed) free()
    })
  }
}
