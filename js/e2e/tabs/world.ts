import { fileURLToPath } from 'node:url'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, onTestFinished } from 'vitest'
import { DemoServer, until } from '../server.js'
import type { Chromium, Tab } from './chromium.js'
import type { Seen, Setup, Tabs } from '../fixtures/tabs.js'
import { bundle, page, Site } from './site.js'
import type { Witness } from './witness.js'

/** Whether the tests that take minutes run. */
export const LONG = process.env['TIDEWIRE_TEST_LONG'] === '1'

declare const window: { readonly tabs: Tabs }

const KEY = 'e2e-key-of-the-backend'
const CONFIG = `
backend_keys: [{name: e2e, key: ${KEY}}]
channels:
  - {pattern: 'log.**', guard: public, history: {size: 100000, ttl: 1h}}
  - {pattern: 'plain.**', guard: public}
streams: {objects: memory}
limits: {channels_per_connection: 256, accepts_per_second: 100000, accept_burst: 65000}
`

/** A server whose topics log.** have a history, and plain.** none. */
export function startServer(auth = '{anonymous: true}'): Promise<DemoServer> {
  return DemoServer.start(`auth: ${auth}${CONFIG}`)
}

/** Publishes as a backend does, in order. */
export async function publish(server: DemoServer, messages: readonly { readonly channel: string; readonly data: unknown; readonly id?: string }[]): Promise<void> {
  const response = await fetch(`${server.url}/v1/messages`, { method: 'POST', headers: { authorization: `Bearer ${KEY}` }, body: JSON.stringify({ messages }) })
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
}

/** What a tab lacks, for a rung further down the ladder. */
export const WITHOUT = {
  shared: '',
  coordinated: 'delete window.SharedWorker',
  'coordinated-ttl': 'delete window.SharedWorker; delete Navigator.prototype.locks',
  local: 'delete window.SharedWorker; delete Navigator.prototype.locks; delete window.BroadcastChannel',
} as const

export type Rung = keyof typeof WITHOUT

const file = (path: string) => fileURLToPath(new URL(path, import.meta.url))
const bundles = new Map<string, Promise<string>>()

/** Bundles a program once for all tests of a file. */
export function bundled(path: string, format: 'esm' | 'iife' = 'esm', define: Readonly<Record<string, string>> = {}): Promise<string> {
  const key = JSON.stringify([path, format, define])
  const kept = bundles.get(key) ?? bundle(file(path), { format, define })
  bundles.set(key, kept)
  return kept
}

/** Tabs of one browser on one origin, and the server behind it. At the end of a test, nothing of it may be wrong. */
export class World {
  readonly browser: Chromium
  readonly server: DemoServer
  readonly site: Site
  readonly rung: Rung
  readonly tabs = new Set<Tab>()
  private constructor(browser: Chromium, server: DemoServer, site: Site, rung: Rung) {
    this.browser = browser
    this.server = server
    this.site = site
    this.rung = rung
  }

  /** `double`: the test means to have one topic subscribed twice. */
  static async open(browser: Chromium, server: DemoServer, rung: Rung = 'shared', { prepare = '', double = rung === 'coordinated-ttl' || rung === 'local' } = {}): Promise<World> {
    const files: [string, string][] = [
      ['/', page('/tabs.js', `${WITHOUT[rung]};${prepare}`)],
      ['/tabs.js', await bundled('../fixtures/tabs.ts')],
      ['/worker.js', await bundled('../../src/worker/index.ts', 'iife')],
    ]
    const world = new World(browser, server, await Site.serve(server.url, files), rung)
    onTestFinished(async () => {
      const troubles = [...world.tabs].flatMap((tab) => tab.troubles)
      for (const tab of world.tabs) tab.close()
      world.site.stop()
      expect(troubles).toEqual([])
      if (!double) expect(world.witness.doubles()).toEqual([])
    })
    return world
  }

  get witness(): Witness {
    return this.site.witness
  }

  /** Opens a tab that takes topics, and waits until it has them. */
  async tab(setup: Setup = {}, { user = undefined as string | undefined, prepare = '' } = {}): Promise<Tab> {
    const tab = await this.browser.tab(`${this.site.url}/?${encodeURIComponent(JSON.stringify(setup))}`, {
      prepare,
      ...(user !== undefined && { user }),
    })
    this.tabs.add(tab)
    await this.ready(tab)
    return tab
  }

  /** Waits until a tab has all that it takes. */
  async ready(tab: Tab): Promise<void> {
    await until('the tab to have its topics', () => tab.eval(() => window.tabs?.live() === true))
    for (const topic of await tab.eval(() => window.tabs.topics())) await this.witness.until(`the server to have ${topic}`, () => this.witness.live(topic) > 0)
  }

  /** Kills, or closes, a tab: nothing is asked of it any more. */
  forget(tab: Tab): void {
    this.tabs.delete(tab)
  }

  /** The tab that owns a topic: exactly one says so. */
  async owner(topic: string): Promise<Tab> {
    let owner: Tab | undefined
    await until(`an owner of ${topic}`, async () => {
      const all = [...this.tabs]
      const owns = await Promise.all(all.map((tab) => tab.eval((topic) => window.tabs.snapshot().assignedTopics.includes(topic), topic)))
      const owners = all.filter((_, i) => owns[i])
      owner = owners[0]
      return owners.length === 1
    })
    return owner as Tab
  }

  /** Every tab but this one. */
  others(tab: Tab): Tab[] {
    return [...this.tabs].filter((other) => other !== tab)
  }

  publish(messages: Parameters<typeof publish>[1]): Promise<void> {
    return publish(this.server, messages)
  }

  /** Begins to publish numbers on a topic. */
  stream(topic: string, perSecond: number): Stream {
    return new Stream(this, topic, perSecond)
  }

  /** Waits until a tab's handler of a topic has had number n. */
  async reached(tab: Tab, topic: string, n: number, ms = 20_000): Promise<void> {
    await until(`number ${n} of ${topic}`, async () => (await seen(tab, topic)).last >= n, ms).catch(async (error: Error) => {
      const state = await tab.eval((topic) => ({ seen: window.tabs.seen(topic), notes: window.tabs.notes, state: window.tabs.state(), snapshot: window.tabs.snapshot() }), topic)
      throw new Error(`${error.message}: ${JSON.stringify(state)}; ${this.witness.tell()}`)
    })
  }

  /** Waits until a tab's handler of a topic has had everything up to n: each once and in order, from where it began. */
  async complete(tab: Tab, topic: string, n: number, ms?: number): Promise<void> {
    await this.reached(tab, topic, n, ms)
    expect(await seen(tab, topic)).toMatchObject({ last: n, wrong: [] })
  }
}

/** What a tab's handler of a topic has had. */
export const seen = (tab: Tab, topic: string): Promise<Seen> => tab.eval((topic) => window.tabs?.seen(topic) ?? { first: 0, last: 0, count: 0, wrong: [] }, topic)

export const snapshot = (tab: Tab) => tab.eval(() => window.tabs.snapshot())

/** Numbers on a topic at a rate, one after the other. */
export class Stream {
  last = 0
  #running = true
  readonly #done: Promise<void>

  constructor(world: World, topic: string, perSecond: number) {
    const start = performance.now()
    this.#done = (async () => {
      while (this.#running) {
        const due = Math.floor(((performance.now() - start) / 1000) * perSecond)
        const messages = Array.from({ length: Math.min(due - this.last, 500) }, (_, i) => ({ channel: topic, data: this.last + i + 1 }))
        if (messages.length > 0) {
          await world.publish(messages)
          this.last += messages.length
        } else await sleep(1)
      }
    })()
    // It is told by stop; a test that has failed asks no more.
    this.#done.catch(() => {})
    onTestFinished(() => void (this.#running = false))
  }

  /** Waits until n more have been published. */
  async more(n: number): Promise<void> {
    const goal = this.last + n
    await until('publications', () => this.last >= goal)
  }

  /** Returns the last number. */
  async stop(): Promise<number> {
    this.#running = false
    await this.#done
    return this.last
  }
}

/** The value below which a share of the values lies. */
export function quantile(values: readonly number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * share) - 1)] ?? NaN
}

export const figure = (name: string, values: readonly number[]) =>
  console.log(`${name}: n ${values.length}, p50 ${quantile(values, 0.5).toFixed(1)} ms, p99 ${quantile(values, 0.99).toFixed(1)} ms, max ${Math.max(...values).toFixed(1)} ms`)
