import type { Browser, Page } from 'puppeteer-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import type { Setup, Tabs } from '../fixtures/tabs.js'
import { type DemoServer, until } from '../server.js'
import { page, Site } from '../tabs/site.js'
import { bundled, publish, quantile, type Rung, startServer, WITHOUT } from '../tabs/world.js'
import { launchFirefox } from './firefox.js'

declare const window: { readonly tabs: Tabs } & Window

let browser: Browser
let server: DemoServer
beforeAll(async () => {
  ;[browser, server] = await Promise.all([launchFirefox(), startServer()])
})
afterAll(async () => {
  await browser?.close()
  await server?.stop()
})

const TOPIC = 'log.firefox'

/** Tabs of one origin in Firefox, as far as the suites in tabs/ need them of it. */
class World {
  readonly site: Site
  readonly pages = new Set<Page>()
  #last = 0

  private constructor(site: Site) {
    this.site = site
  }

  static async open(rung: Rung, before = ''): Promise<World> {
    const world = new World(
      await Site.serve(server.url, [
        ['/', page('/tabs.js', `${WITHOUT[rung]};${before}`)],
        ['/tabs.js', await bundled('../fixtures/tabs.ts')],
        ['/worker.js', await bundled('../../src/worker/index.ts', 'iife')],
      ]),
    )
    onTestFinished(async () => {
      for (const tab of world.pages) await tab.close()
      world.site.stop()
      expect(world.site.witness.doubles()).toEqual([])
    })
    return world
  }

  async tab(setup: Setup = { topics: [TOPIC] }): Promise<Page> {
    const tab = await browser.newPage()
    this.pages.add(tab)
    await tab.goto(`${this.site.url}/?${encodeURIComponent(JSON.stringify(setup))}`)
    await this.ready(tab)
    return tab
  }

  async ready(tab: Page): Promise<void> {
    await until('the tab to have its topics', () => tab.evaluate(() => window.tabs?.live() === true).catch(() => false))
    await this.site.witness.until('the server to have the topic', () => this.site.witness.live(TOPIC) > 0)
  }

  async close(tab: Page): Promise<void> {
    this.pages.delete(tab)
    await tab.close()
  }

  async owner(): Promise<Page> {
    let owner: Page | undefined
    await until('an owner', async () => {
      const owns = await Promise.all([...this.pages].map((tab) => tab.evaluate((topic) => window.tabs.snapshot().assignedTopics.includes(topic), TOPIC)))
      owner = [...this.pages][owns.indexOf(true)]
      return owns.filter(Boolean).length === 1
    })
    return owner as Page
  }

  /** Publishes numbers behind those before, and waits until every tab has had them, once and in order. */
  async publishes(count: number): Promise<void> {
    for (let i = 0; i < count; i++) await publish(server, [{ channel: TOPIC, data: ++this.#last }])
    for (const tab of this.pages) {
      const seen = () => tab.evaluate((topic) => window.tabs.seen(topic), TOPIC)
      await until(`number ${this.#last}`, async () => (await seen()).last >= this.#last)
      expect(await seen()).toMatchObject({ last: this.#last, wrong: [] })
    }
  }
}

describe('Firefox', () => {
  it('X19 X30 X29 P15: three tabs on one connection in a SharedWorker, also when the tab that made it is closed', async () => {
    const world = await World.open('shared')
    const first = await world.tab()
    for (let i = 0; i < 2; i++) await world.tab()
    for (const tab of world.pages) expect((await tab.evaluate(() => window.tabs.mode())).mode).toBe('shared')
    await world.publishes(20)
    await world.close(first)
    await world.publishes(20)
    expect(world.site.witness.connections).toHaveLength(1)
    expect(world.site.witness.of(TOPIC)).toHaveLength(1)
  })

  it.each([
    ['there is no SharedWorker', WITHOUT.coordinated],
    ['its constructor throws', 'window.SharedWorker = class { constructor() { throw new DOMException("no", "SecurityError") } }'],
  ])('X18 X30 X29 P15: %s: one rung down, and it is said why', async (_, before) => {
    const world = await World.open('shared', before)
    for (let i = 0; i < 3; i++) await world.tab()
    for (const tab of world.pages) {
      const { mode, reason } = await tab.evaluate(() => window.tabs.mode())
      expect(mode).toBe('coordinated')
      expect(reason).toMatch(/^shared: /)
    }
    await world.publishes(20)
    expect(world.site.witness.of(TOPIC)).toHaveLength(1)
  })

  it('X23 X27: an owner that is closed is replaced at once, and nothing is missed or given twice', async () => {
    const world = await World.open('coordinated')
    for (let i = 0; i < 4; i++) await world.tab()
    const gaps: number[] = []
    for (let i = 0; i < 3; i++) {
      await world.publishes(5)
      const owner = await world.owner()
      const before = world.site.witness.of(TOPIC).length
      const closing = world.close(owner)
      await world.site.witness.until('another owner', () => world.site.witness.of(TOPIC).length > before)
      await closing
      const [old, next] = world.site.witness.of(TOPIC).slice(before - 1)
      gaps.push((next?.from ?? NaN) - (old?.to ?? NaN))
      await world.publishes(5)
    }
    console.log(`Firefox: without a subscription: ${gaps.map((gap) => gap.toFixed(0)).join(', ')} ms`)
    expect(quantile(gaps, 0.5)).toBeLessThan(500)
  })

  // Firefox keeps no page that uses locks, so this one may be a new one, or the old one.
  it.each<Rung>(['shared', 'coordinated', 'coordinated-ttl'])('X03 X29 P8 P10: %s: a page that is left gives way, and one that is returned to has its topics again, once', async (rung) => {
    const world = await World.open(rung)
    const tab = await world.tab()
    const other = await world.tab()
    await world.publishes(5)
    world.pages.delete(tab)
    await tab.evaluate(() => void setTimeout(() => (location.href = '/away')))
    await until('the next page', () => tab.evaluate(() => location.pathname === '/away').catch(() => false))
    await world.site.witness.until('the topic with the other', () => world.site.witness.live(TOPIC) === 1)
    await world.publishes(20)
    await tab.evaluate(() => void setTimeout(() => history.back()))
    await until('the page before', () => tab.evaluate(() => location.pathname === '/').catch(() => false))
    await world.ready(tab)
    world.pages.add(tab)
    await world.publishes(20)
    expect(await other.evaluate(() => window.tabs.notes.filter((note) => note.startsWith('lost')))).toEqual([])
    expect(world.site.witness.live(TOPIC)).toBe(1)
  })

  it.each<Rung>(['shared', 'coordinated'])('X16 X29 P21: %s: a tab that another opened has an id of its own, and both keep theirs when they are loaded again', async (rung) => {
    const world = await World.open(rung)
    const a = await world.tab()
    const opened = new Promise<Page>((resolve) => a.once('popup', (popup) => resolve(popup as Page)))
    await a.evaluate(() => void window.open(location.href))
    const b = await opened
    world.pages.add(b)
    await world.ready(b)
    const id = (tab: Page) => tab.evaluate(() => window.tabs.snapshot().tabId)
    const ids = [await id(a), await id(b)]
    expect(ids[0]).not.toBe(ids[1])
    for (const tab of [a, b]) {
      await tab.reload()
      await world.ready(tab)
    }
    expect([await id(a), await id(b)]).toEqual(ids)
  })
})
