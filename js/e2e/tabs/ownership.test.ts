import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Tabs } from '../fixtures/tabs.js'
import { type DemoServer, until } from '../server.js'
import { Chromium, Tab } from './chromium.js'
import { type Rung, seen, snapshot, startServer, World } from './world.js'

declare const window: { readonly tabs: Tabs; failing: boolean } & Window

let browser: Chromium
let server: DemoServer
beforeAll(async () => {
  ;[browser, server] = await Promise.all([Chromium.launch(), startServer()])
})
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
})

const rungs: readonly Rung[] = ['shared', 'coordinated', 'coordinated-ttl', 'local']
const TOPIC = 'log.own'
const topics = (count: number) => Array.from({ length: count }, (_, i) => `log.t${i}`)

describe('one owner', () => {
  it('X07 X12 X29 P24: five tabs that take twenty topics at one moment, again and again, never subscribe one twice', async () => {
    const world = await World.open(browser, server, 'coordinated')
    for (let i = 0; i < 5; i++) await world.tab()
    for (let round = 0; round < 3; round++) {
      const names = topics(20).map((name) => `${name}.${round}`)
      // The same message wakes all of them.
      const ready = Promise.all(
        [...world.tabs].map((tab) =>
          tab.eval((names) => {
            const channel = new BroadcastChannel('go')
            return new Promise<void>((resolve) => {
              channel.onmessage = () => {
                channel.close()
                for (const name of names) window.tabs.take(name)
                resolve()
              }
              Object.assign(window, { listens: true })
            })
          }, names),
        ),
      )
      const starter = await browser.tab(`${world.site.url}/away`)
      for (const tab of world.tabs) await until('the tab to listen', () => tab.eval(() => 'listens' in window))
      await starter.eval(() => new BroadcastChannel('go').postMessage(null))
      await ready
      starter.close()
      for (const tab of world.tabs) await world.ready(tab)
      for (const name of names) expect(world.witness.live(name)).toBe(1)
      await world.publish(names.flatMap((channel) => [1, 2, 3].map((data) => ({ channel, data }))))
      for (const tab of world.tabs) for (const name of names) await world.complete(tab, name, 3)
      for (const tab of world.tabs) {
        await tab.eval((names) => {
          delete (window as unknown as Record<string, unknown>)['listens']
          for (const name of names) window.tabs.drop(name)
        }, names)
      }
      await world.witness.until('the end of all', () => names.every((name) => world.witness.live(name) === 0))
    }
    expect(world.witness.doubles()).toEqual([])
  }, 90_000)

  it.each(['coordinated', 'coordinated-ttl', 'shared'] as const)('X02 X29 P13: %s: who stops holds no lock and gives way, and may start again', async (rung) => {
    const world = await World.open(browser, server, rung)
    const a = await world.tab({ topics: [TOPIC] })
    const b = await world.tab({ topics: [TOPIC] })
    const held = () => a.eval(async () => (navigator.locks ? ((await navigator.locks.query()).held ?? []).map(({ clientId, name }) => `${clientId} ${name}`) : []))
    const before = await held()
    await a.eval(() => window.tabs.stop())
    await world.witness.until('the topic with the other', () => world.witness.live(TOPIC) === 1)
    const clients = new Set((await held()).map((entry) => entry.split(' ')[0]))
    if (rung !== 'coordinated-ttl') expect(new Set(before.map((entry) => entry.split(' ')[0])).size).toBeGreaterThan(clients.size)
    // Starting and stopping at every moment leaves what was said last.
    await a.show()
    await a.eval(async () => {
      for (let i = 0; i < 20; i++) {
        void window.tabs.start().catch(() => {})
        await new Promise((resolve) => setTimeout(resolve, i % 4))
        void window.tabs.stop()
      }
      await window.tabs.stop()
    })
    expect((await held()).filter((entry) => !clients.has(entry.split(' ')[0] ?? ''))).toEqual([])
    await a.eval(() => window.tabs.start())
    await world.ready(a)
    const stream = world.stream(TOPIC, 50)
    await stream.more(20)
    const last = await stream.stop()
    await world.complete(b, TOPIC, last)
    await until('the handler to go on', async () => (await seen(a, TOPIC)).last === last)
    expect(world.witness.live(TOPIC)).toBe(1)
  })

  it.each(['coordinated', 'coordinated-ttl'] as const)('X28 X29 P25: %s: clocks that are an hour off, and jump, change no owner', async (rung) => {
    const world = await World.open(browser, server, rung, { double: false })
    const skew = (hours: number) => `window.skew = ${hours} * 3600000; const now = Date.now.bind(Date); Date.now = () => now() + window.skew`
    const a = await world.tab({ topics: [TOPIC], cluster: { heartbeatIntervalMs: 300, workerTtlMs: 1000 } })
    await world.tab({ topics: [TOPIC], cluster: { heartbeatIntervalMs: 300, workerTtlMs: 1000 } }, { prepare: skew(1) })
    const c = await world.tab({ topics: [TOPIC], cluster: { heartbeatIntervalMs: 300, workerTtlMs: 1000 } }, { prepare: skew(-1) })
    await a.show() // not throttled
    const stream = world.stream(TOPIC, 25)
    await stream.more(38)
    await c.eval(() => void Object.assign(window, { skew: 10 * 3600000 }))
    await stream.more(38)
    const last = await stream.stop()
    for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
    expect(world.witness.of(TOPIC)).toHaveLength(1)
  })

  it.each(rungs)('X16 X29 P21: %s: a tab that another opened has an id of its own, and both keep theirs when they are loaded again', async (rung) => {
    const world = await World.open(browser, server, rung)
    const a = await world.tab({ topics: [TOPIC] })
    const known = new Set((await browser.targets('page')).map(({ targetId }) => targetId))
    await a.eval(() => void window.open(location.href))
    let child: Tab | undefined
    await until('the child', async () => {
      const target = (await browser.targets('page')).find(({ targetId, url }) => !known.has(targetId) && url.startsWith(world.site.url))
      if (target) child = await Tab.attach(browser, target.targetId)
      return child !== undefined
    })
    const b = child as Tab
    world.tabs.add(b)
    await until('the child to have the topic', () => b.eval(() => window.tabs?.live() === true))
    expect(await b.eval(() => sessionStorage.length)).toBeGreaterThan(0)
    const ids = [(await snapshot(a)).tabId, (await snapshot(b)).tabId]
    expect(ids[0]).not.toBe(ids[1])
    for (const tab of [a, b]) {
      await tab.reload()
      await world.ready(tab)
    }
    expect((await snapshot(a)).tabId).toBe(ids[0])
    // Without locks a tab that another opened cannot know whether its id is a copy: it takes a new one each time.
    if (rung === 'shared' || rung === 'coordinated') expect((await snapshot(b)).tabId).toBe(ids[1])
    else expect((await snapshot(b)).tabId).not.toBe(ids[0])
  })

  const storages: Record<string, string> = {
    'the getter throws': 'for (const name of ["localStorage", "sessionStorage"]) Object.defineProperty(window, name, { get() { throw new DOMException("no", "SecurityError") } })',
    'every write throws': 'Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError") }',
    'writes throw after the fifth': 'let left = 5; const set = Storage.prototype.setItem; Storage.prototype.setItem = function (...args) { if (--left < 0) throw new DOMException("full", "QuotaExceededError"); set.apply(this, args) }',
    'it is full': 'try { for (let i = 0, text = "x".repeat(1 << 20); ; i++) try { localStorage.setItem("f" + i, text) } catch { if (!(text = text.slice(text.length / 2 + 1))) break } } catch {}',
  }
  for (const [name, prepare] of Object.entries(storages)) {
    it(`X15 X18 X29 P22: ${name}: tabs share all the same`, async () => {
      const world = await World.open(browser, server, 'coordinated', { prepare })
      for (let i = 0; i < 3; i++) await world.tab({ topics: [TOPIC] })
      const stream = world.stream(TOPIC, 100)
      await stream.more(20)
      const owner = await world.owner(TOPIC)
      world.forget(owner)
      owner.close()
      await world.witness.until('a successor', () => world.witness.of(TOPIC).length === 2, 2000)
      await stream.more(20)
      const last = await stream.stop()
      for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
      expect(world.witness.live(TOPIC)).toBe(1)
    })
  }

  it('X29 P23: a page in a frame of another site is a cluster of its own', async () => {
    const world = await World.open(browser, server, 'coordinated', { double: true })
    const top = await world.tab({ topics: [TOPIC] })
    const port = new URL(world.site.url).port
    const setup = encodeURIComponent(JSON.stringify({ topics: [TOPIC] }))
    world.site.files.set('/frame', `<!doctype html><iframe src="${world.site.url}/?${setup}"></iframe>`)
    const host = await browser.tab(`http://localhost:${port}/frame`)
    let frame: Tab | undefined
    await until('the frame', async () => {
      const target = (await browser.targets('iframe')).find(({ url }) => url.startsWith(world.site.url))
      if (target) frame = await Tab.attach(browser, target.targetId)
      return frame !== undefined
    })
    await world.ready(frame as Tab)
    const stream = world.stream(TOPIC, 50)
    await stream.more(20)
    const last = await stream.stop()
    for (const tab of [top, frame as Tab]) await world.complete(tab, TOPIC, last)
    expect(world.witness.live(TOPIC)).toBe(2)
    expect((frame as Tab).troubles).toEqual([])
    host.close()
  })

  it.each(['shared', 'coordinated'] as const)('X04 X27 X29 P33: %s: the network is cut again and again under 200 publications a second: nothing is missed or given twice', async (rung) => {
    const world = await World.open(browser, server, rung, { double: true }) // the server may learn of a cut after the reconnect
    for (let i = 0; i < 3; i++) await world.tab({ topics: [TOPIC] })
    const stream = world.stream(TOPIC, 200)
    for (let round = 0; round < 8; round++) {
      await stream.more(60)
      // Every other time in the middle of a change of owner.
      if (round % 2 === 1 && rung === 'coordinated') {
        const owner = await world.owner(TOPIC)
        world.forget(owner)
        owner.close()
      }
      world.site.cut()
      if (world.tabs.size < 3) await world.tab({ topics: [TOPIC] })
    }
    await stream.more(60)
    const last = await stream.stop()
    for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
  }, 60_000)

  it.each(['coordinated-ttl', 'local'] as const)('X18 X30 X29 P34: %s: three tabs: each handler once', async (rung) => {
    const world = await World.open(browser, server, rung)
    for (let i = 0; i < 3; i++) await world.tab({ topics: [TOPIC] })
    for (const tab of world.tabs) expect((await tab.eval(() => window.tabs.mode())).mode).toBe(rung)
    const stream = world.stream(TOPIC, 100)
    await stream.more(100)
    if (rung === 'coordinated-ttl') {
      const owner = await world.owner(TOPIC)
      world.forget(owner)
      owner.close()
      await world.witness.until('a successor', () => world.witness.of(TOPIC).length >= 2)
    }
    await stream.more(100)
    const last = await stream.stop()
    for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
    expect(world.witness.live(TOPIC)).toBe(rung === 'local' ? 3 : 1)
    // The witness sees it where each tab subscribes for itself.
    if (rung === 'local') expect(world.witness.doubles()).toHaveLength(3)
  })

  it('X29 P35: what cannot be cloned, or sent, is refused in the same words on every rung, and nothing of it is sent', async () => {
    const said: unknown[] = []
    for (const rung of rungs) {
      const world = await World.open(browser, server, rung)
      await world.tab({ topics: [TOPIC] })
      const tab = await world.tab({ topics: [TOPIC] })
      said.push(
        await tab.eval(async (topic) => {
          const circle: Record<string, unknown> = {}
          circle['self'] = { circle }
          const values = [() => {}, { a: [1, { b: () => {} }] }, Symbol('x'), { at: document.body }, circle, { big: 1n }]
          const answers: unknown[] = []
          for (const value of values) {
            answers.push(
              await Promise.resolve()
                .then(() => window.tabs.publish(topic, value))
                .then(
                  () => 'taken',
                  (error: { code?: string; cause?: unknown }) => `${error.code}: ${String(error.cause)}`,
                ),
            )
          }
          return answers
        }, TOPIC),
      )
      // What follows arrives: nothing was half-sent.
      await tab.eval((topic) => window.tabs.publish(topic, 1), TOPIC)
      for (const each of world.tabs) await world.complete(each, TOPIC, 1)
    }
    for (const other of said) expect(other).toEqual(said[0])
    expect(said[0]).toEqual([
      'DATA_INVALID: data cannot be copied to another tab',
      'DATA_INVALID: data.a[1].b cannot be copied to another tab',
      'DATA_INVALID: data cannot be copied to another tab',
      'DATA_INVALID: data.at cannot be copied to another tab',
      expect.stringMatching(/^DATA_INVALID: TypeError: .*circular/),
      expect.stringMatching(/^DATA_INVALID: TypeError: .*BigInt/),
    ])
  })
})
