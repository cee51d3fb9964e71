import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Tabs } from '../fixtures/tabs.js'
import { type DemoServer, until } from '../server.js'
import { Chromium, type Tab } from './chromium.js'
import { LONG, type Rung, seen, startServer, World } from './world.js'

declare const window: { readonly tabs: Tabs; readonly listened: string[] } & Window

let browser: Chromium
let server: DemoServer
beforeAll(async () => {
  // Hidden tabs are throttled to one wake-up a minute after a second, not after five minutes.
  ;[browser, server] = await Promise.all([Chromium.launch('--enable-features=IntensiveWakeUpThrottling:grace_period_seconds/1'), startServer()])
})
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
})

const TOPIC = 'log.life'
const sharing = ['shared', 'coordinated'] as const

/** The page is in the back/forward cache, or its successor has loaded: a topic of its own is no longer subscribed. */
const gone = (world: World, topic: string) => world.witness.until(`the end of ${topic}`, () => world.witness.live(topic) === 0)

describe('a page that is hidden, frozen, cached, or hangs', () => {
  it.each(sharing)(
    'X23 X28 X29 P1 P2: %s: a hidden owner with throttled timers keeps its topics and its connection, also when nothing is published',
    async (rung) => {
      const world = await World.open(browser, server, rung)
      // So impatient that an owner which answers by its timers alone were robbed.
      const setup = { topics: [TOPIC], cluster: LONG ? {} : { stallMs: 1000, heartbeatIntervalMs: 300 } }
      const owner = await world.tab(setup)
      await world.tab(setup)
      await until('the owner to be hidden', () => owner.eval(() => document.visibilityState === 'hidden'))
      const connections = world.witness.connections.length
      await sleep(LONG ? 90_000 : 6000)
      const stream = world.stream(TOPIC, 50)
      await stream.more(10)
      const last = await stream.stop()
      for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
      expect(world.witness.of(TOPIC)).toHaveLength(1)
      expect(world.witness.connections).toHaveLength(connections)
    },
    LONG ? 150_000 : 60_000,
  )

  it.each(sharing)('X29 P3: %s: a heartbeat that is late because the page was busy closes nothing', async (rung) => {
    const world = await World.open(browser, server, rung)
    const tab = await world.tab({ topics: [TOPIC], client: { heartbeatMs: 500 } })
    const stream = world.stream(TOPIC, 20)
    await stream.more(5)
    const connections = world.witness.connections.length
    tab.hang(2500)
    await stream.more(60)
    await world.complete(tab, TOPIC, await stream.stop())
    expect(world.witness.connections).toHaveLength(connections)
  })

  // A page that is shown asks the server only if it has heard nothing for a heartbeat's interval, 15 s.
  for (const [rung, sign] of sharing.flatMap((rung) => [[rung, 'online'], [rung, 'visible']] as const)) {
    it.runIf(LONG || sign === 'online')(
      `X29 P4 P5: ${rung}: a socket that is open and silent is replaced when the page is ${sign}, and its late end changes nothing`,
      async () => {
        const world = await World.open(browser, server, rung, { double: true }) // the server does not know of the end
        const tab = await world.tab({ topics: [TOPIC] })
        const cover = await browser.tab(`${world.site.url}/away`)
        await until('the tab to be hidden', () => tab.eval(() => document.visibilityState === 'hidden'))
        const stream = world.stream(TOPIC, 20)
        await stream.more(5)
        world.site.darken()
        world.site.lighten()
        await stream.more(sign === 'online' ? 10 : 320)
        const at = world.witness.now()
        cover.close()
        if (sign === 'visible') await tab.show()
        else await tab.offline(true).then(() => tab.offline(false))
        await world.witness.until('another subscription', () => world.witness.of(TOPIC).length === 2)
        expect((world.witness.of(TOPIC)[1]?.from ?? NaN) - at).toBeLessThan(4000)
        await stream.more(10)
        const connections = world.witness.connections.length
        world.site.endDark()
        await stream.more(10)
        await world.complete(tab, TOPIC, await stream.stop())
        expect(world.witness.connections).toHaveLength(connections)
      },
      60_000,
    )
  }

  const wakes: Record<string, (tab: Tab) => Promise<unknown>> = {
    online: (tab) => tab.offline(true).then(() => tab.offline(false)),
    resume: (tab) => tab.freeze().then(() => tab.resume()),
    pageshow: async (tab) => {
      await tab.leave()
      await tab.back()
    },
    visible: async (tab) => {
      const cover = await browser.tab('about:blank')
      await until('the tab to be hidden', () => tab.eval(() => document.visibilityState === 'hidden'))
      cover.close()
      await tab.show()
    },
  }
  for (const rung of sharing) {
    it(`X29 P5: ${rung}: any one sign of waking brings a page back, and none a bus that was stopped`, async () => {
      const world = await World.open(browser, server, rung)
      const tab = await world.tab({ topics: [TOPIC] })
      const stream = world.stream(TOPIC, 20)
      for (const [name, wake] of Object.entries(wakes)) {
        await wake(tab)
        await until(`publications after ${name}`, async () => (await seen(tab, TOPIC)).last >= stream.last)
      }
      await world.complete(tab, TOPIC, await stream.stop())
      await tab.eval(() => window.tabs.stop())
      await gone(world, TOPIC)
      const connections = world.witness.connections.length
      for (const wake of Object.values(wakes)) await wake(tab)
      expect(world.witness.connections).toHaveLength(connections)
      expect(world.witness.open()).toBe(0)
    }, 60_000)
  }

  it.each(sharing)('X28 X29 P7 P11: %s: a frozen owner gives way, and takes up what it missed when it is resumed', async (rung) => {
    const world = await World.open(browser, server, rung)
    const owner = await world.tab({ topics: [TOPIC] })
    const other = await world.tab({ topics: [TOPIC] })
    const stream = world.stream(TOPIC, 100)
    await stream.more(20)
    await owner.freeze()
    if (rung === 'coordinated') await world.witness.until('a successor', () => world.witness.of(TOPIC).length === 2, 1000)
    const { last } = stream
    await until('publications while the owner is frozen', async () => (await seen(other, TOPIC)).last > last + 100)
    await owner.resume()
    const end = await stream.stop()
    await world.complete(owner, TOPIC, end)
    await world.complete(other, TOPIC, end)
    expect(world.witness.of(TOPIC)).toHaveLength(rung === 'coordinated' ? 2 : 1)
  })

  for (const rung of sharing) {
    it(`X03 X29 P8 P10 P11: ${rung}: a page in the back/forward cache is out of the way, is kept while others publish, and resumes at once, with one connection`, async () => {
      const world = await World.open(browser, server, rung)
      const tab = await world.tab({ topics: [TOPIC, 'log.own'] })
      const other = await world.tab({ topics: [TOPIC] })
      await tab.mark()
      const stream = world.stream(TOPIC, 50)
      await stream.more(10)
      await tab.show()
      await tab.leave()
      await gone(world, 'log.own')
      if (rung === 'coordinated') await world.witness.until('a successor', () => world.witness.of(TOPIC).length === 2, 1000)
      // Both ways of reaching it: a message on the channel, and what the worker posts.
      await stream.more(50)
      await other.eval((topic) => window.tabs.publish(topic, null).catch(() => {}), 'plain.noise')
      const connections = world.witness.connections.length
      expect([await tab.back(), ...tab.evictions]).toEqual([true])
      const at = world.witness.now()
      await until('publications again', async () => (await seen(tab, TOPIC)).last >= stream.last - 5)
      expect(world.witness.now() - at).toBeLessThan(1000)
      await world.witness.until('the own topic again', () => world.witness.live('log.own') === 1)
      await stream.more(50)
      const last = await stream.stop()
      await world.complete(tab, TOPIC, last)
      await world.complete(other, TOPIC, last)
      expect(world.witness.connections.length - connections).toBeLessThanOrEqual(rung === 'shared' ? 0 : 1)
    })
  }

  it('X29 P8: a page that was not kept starts clean', async () => {
    const world = await World.open(browser, server, 'coordinated', { prepare: 'addEventListener("unload", () => {}); addEventListener("beforeunload", () => {})' })
    const tab = await world.tab({ topics: [TOPIC] })
    await tab.mark()
    await tab.eval(() => void navigator.locks.request('in the way', () => new Promise(() => {})))
    await tab.leave()
    await gone(world, TOPIC)
    expect(await tab.back()).toBe(false)
    await world.ready(tab)
    const stream = world.stream(TOPIC, 50)
    await stream.more(10)
    await world.complete(tab, TOPIC, await stream.stop())
  })

  it.each<Rung>(['shared', 'coordinated', 'coordinated-ttl', 'local'])('X29 P9: %s: nothing listens to beforeunload or unload, and a user who stays is still connected', async (rung) => {
    const world = await World.open(browser, server, rung, {
      prepare: 'window.listened = []; const add = EventTarget.prototype.addEventListener; EventTarget.prototype.addEventListener = function (type, ...rest) { listened.push(type); return add.call(this, type, ...rest) }',
    })
    const tab = await world.tab({ topics: [TOPIC] })
    const types = await tab.eval(() => [...window.listened, ...['onunload', 'onbeforeunload'].filter((name) => (window as unknown as Record<string, unknown>)[name])])
    expect(types).toContain('pagehide')
    expect(types.filter((type) => type.includes('unload'))).toEqual([])
    await tab.eval(() => addEventListener('beforeunload', (event) => event.preventDefault()))
    const asked = new Promise((resolve) => tab.on('Page.javascriptDialogOpening', resolve))
    await tab.eval(() => void setTimeout(() => (location.href = '/away')))
    await asked
    await tab.send('Page.handleJavaScriptDialog', { accept: false })
    const stream = world.stream(TOPIC, 50)
    await stream.more(10)
    await world.complete(tab, TOPIC, await stream.stop())
    expect(world.witness.of(TOPIC)).toHaveLength(1)
  })
})
