import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Tabs } from '../fixtures/tabs.js'
import { type DemoServer, until } from '../server.js'
import { Chromium } from './chromium.js'
import { bundled, snapshot, startServer, World } from './world.js'

declare const window: { readonly tabs: Tabs } & Window

let browser: Chromium
let server: DemoServer
beforeAll(async () => {
  ;[browser, server] = await Promise.all([Chromium.launch(), startServer()])
})
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
})

const TOPIC = 'log.worker'

/** The SharedWorkers of an origin. */
const workers = async (world: World) => (await browser.targets('shared_worker')).filter(({ url }) => url.startsWith(world.site.url))

describe('one connection in a SharedWorker', () => {
  it('X19 X30: ten tabs and a hundred topics: one worker, one connection, each topic subscribed once', async () => {
    const world = await World.open(browser, server)
    const topics = Array.from({ length: 100 }, (_, i) => `log.many.${i}`)
    for (let i = 0; i < 10; i++) await world.tab({ topics: topics.filter((_, n) => n % 10 === i || n % 7 === 0) })
    for (const tab of world.tabs) expect(await tab.eval(() => window.tabs.mode())).toEqual({ mode: 'shared', reason: expect.any(String) })
    expect(await workers(world)).toHaveLength(1)
    expect(world.witness.connections).toHaveLength(1)
    for (const topic of topics) expect(world.witness.of(topic)).toHaveLength(1)
    await world.publish(topics.flatMap((channel) => [1, 2, 3].map((data) => ({ channel, data }))))
    for (const [i, tab] of [...world.tabs].entries()) for (const n of [i, 70]) await world.complete(tab, `log.many.${n}`, 3)
    expect((await snapshot([...world.tabs][0]!)).assignedTopics).toHaveLength(100)
  }, 60_000)

  it('X20 X23 X29 P18: a tab that crashes: the worker drops its topics within a second, and serves the others', async () => {
    const world = await World.open(browser, server)
    const first = await world.tab({ topics: [TOPIC] })
    const victim = await world.tab({ topics: [TOPIC, 'log.of-the-dead'] })
    await world.tab({ topics: [TOPIC] })
    const stream = world.stream(TOPIC, 100)
    await stream.more(20)
    world.forget(victim)
    const at = world.witness.now()
    victim.crash()
    await world.witness.until('the end of its topic', () => world.witness.live('log.of-the-dead') === 0)
    expect((world.witness.of('log.of-the-dead')[0]?.to ?? NaN) - at).toBeLessThan(1000)
    await stream.more(20)
    const last = await stream.stop()
    for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
    expect(world.witness.of(TOPIC)).toHaveLength(1)
    expect(world.tabs).toContain(first)
  })

  it.each(['ends itself', 'crashes with the tab that made it'] as const)('X23 X29 P16 P17: a worker that %s: another within three seconds, calls settle, nothing is missed or given twice', async (how) => {
    const world = await World.open(browser, server)
    const maker = await world.tab({ topics: [TOPIC] })
    for (let i = 0; i < 2; i++) await world.tab({ topics: [TOPIC] })
    const stream = world.stream(TOPIC, 100)
    await stream.more(20)
    const [asker] = world.others(maker)
    if (!asker) throw new Error('no tab')
    // In the middle of calls.
    await asker.eval(() => {
      const answers: string[] = []
      const said = () => answers.push('settled')
      for (let i = 0; i < 5; i++) void window.tabs.publish('plain.calls', i).then(said, said)
      Object.assign(window, { answers })
    })
    const before = world.witness.of(TOPIC).length
    const at = world.witness.now()
    if (how === 'ends itself') {
      const [target] = await workers(world)
      const { sessionId } = await browser.send<{ sessionId: string }>('Target.attachToTarget', { targetId: target?.targetId, flatten: true })
      browser.post('Runtime.evaluate', { expression: 'self.close()' }, sessionId)
      await world.witness.until('the end of its connection', () => world.witness.open() === 0)
      // Who looks at it would keep it.
      await browser.send('Target.detachFromTarget', { sessionId })
    } else {
      world.forget(maker)
      maker.crash()
    }
    await world.witness.until('a subscription of another worker', () => world.witness.of(TOPIC).length > before, 10_000)
    const took = (world.witness.of(TOPIC).at(-1)?.from ?? NaN) - at
    console.log(`a worker that ${how}: subscribed again after ${took.toFixed(0)} ms`)
    expect(took).toBeLessThan(3000)
    await stream.more(50)
    const last = await stream.stop()
    for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
    await until('the calls to settle', () => asker.eval(() => (window as unknown as { answers: string[] }).answers.length === 5))
    expect(await workers(world)).toHaveLength(1)
  })

  it('X29 P17: a tab that was frozen for long takes part again when it is resumed', async () => {
    const world = await World.open(browser, server)
    const tab = await world.tab({ topics: [TOPIC, 'log.frozen'] })
    await world.tab({ topics: [TOPIC] })
    const stream = world.stream(TOPIC, 50)
    await tab.freeze()
    await world.witness.until('the end of what only it had', () => world.witness.live('log.frozen') === 0, 5000)
    await stream.more(50)
    await tab.resume()
    await world.witness.until('its topic again', () => world.witness.live('log.frozen') === 1, 5000)
    const last = await stream.stop()
    for (const each of world.tabs) await world.complete(each, TOPIC, last)
  })

  const without: Record<string, { readonly prepare?: string; readonly headers?: Record<string, string>; readonly workerUrl?: string }> = {
    'there is no SharedWorker': { prepare: 'delete window.SharedWorker' },
    'its constructor throws': { prepare: 'window.SharedWorker = class { constructor() { throw new DOMException("no", "SecurityError") } }' },
    'its script is not there': { workerUrl: '/missing.js' },
    'the policy refuses it': { headers: { 'content-security-policy': "worker-src 'none'" } },
  }
  for (const [name, { prepare = '', headers = {}, workerUrl }] of Object.entries(without)) {
    it(`X18 X30 X29 P15: ${name}: one rung down, and it is said why`, async () => {
      const world = await World.open(browser, server, 'shared', { prepare })
      world.site.headers = headers
      for (let i = 0; i < 3; i++) await world.tab({ topics: [TOPIC], ...(workerUrl && { workerUrl }) })
      for (const tab of world.tabs) {
        const { mode, reason } = await tab.eval(() => window.tabs.mode())
        expect(mode).toBe('coordinated')
        expect(reason).not.toBe('')
      }
      const stream = world.stream(TOPIC, 50)
      await stream.more(20)
      const last = await stream.stop()
      for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
      expect(world.witness.of(TOPIC)).toHaveLength(1)
    })
  }

  it('X29 P19: tabs of another build beside it: clusters of their own, that share nothing', async () => {
    const world = await World.open(browser, server, 'shared', { double: true })
    const old = await world.tab({ topics: [TOPIC] })
    const define = { TIDEWIRE_BUILD: '"another"' }
    world.site.files.set('/tabs.js', await bundled('../fixtures/tabs.ts', 'esm', define))
    world.site.files.set('/worker.js', await bundled('../../src/worker/index.ts', 'iife', define))
    const young = await world.tab({ topics: [TOPIC] })
    expect(await workers(world)).toHaveLength(2)
    const stream = world.stream(TOPIC, 50)
    await stream.more(20)
    const last = await stream.stop()
    for (const tab of [old, young]) await world.complete(tab, TOPIC, last)
    expect(world.witness.live(TOPIC)).toBe(2)
  })
})
