import { createHmac } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Tabs } from '../fixtures/tabs.js'
import { type DemoServer, until } from '../server.js'
import { Chromium } from './chromium.js'
import { type Rung, seen, startServer, World } from './world.js'

declare const window: { readonly tabs: Tabs } & Window

const SECRET = 'a-secret-of-at-least-thirty-two-bytes'

let browser: Chromium
let server: DemoServer
let closed: DemoServer
beforeAll(async () => {
  ;[browser, server, closed] = await Promise.all([Chromium.launch(), startServer(), startServer(`{jwt: {secret: ${SECRET}}}`)])
})
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
  await closed?.stop()
})

const TOPIC = 'log.account'

function token(subject: string, lifeMs: number): string {
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
  const signed = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ sub: subject, exp: Math.floor((Date.now() + lifeMs) / 1000), jti: Math.random() })}`
  return `${signed}.${createHmac('sha256', SECRET).update(signed).digest('base64url')}`
}

describe('what is kept, and for whom', () => {
  it.each<Rung>(['shared', 'coordinated', 'coordinated-ttl'])('X05: %s: storage, read whole, has no topic, address, credential or payload', async (rung) => {
    const world = await World.open(browser, closed, rung)
    const credential = token('alice', 600_000)
    world.site.answers.set('/token', () => credential)
    const topics = ['log.orchid', 'plain.orchid']
    const setup = { topics, principal: 'alice@orchid.example', client: { token: 'bridge' }, cluster: { heartbeatIntervalMs: 200 } }
    for (let i = 0; i < 3; i++) await world.tab(setup)
    const [first, ...others] = [...world.tabs]
    for (const topic of topics) await first?.eval((topic) => window.tabs.publish(topic, { text: 'payload-of-orchid' }), topic)
    if (rung !== 'shared') await (await world.owner('log.orchid')).leave()
    const kept: Record<string, string> = {}
    const keys = new Set<string>()
    // Also while ownership moves, and after some heartbeats.
    for (const end = performance.now() + 1000; performance.now() < end; ) {
      for (const tab of others) {
        Object.assign(
          kept,
          await tab.eval(() => ({ ...localStorage, ...Object.fromEntries(Object.entries({ ...sessionStorage }).map(([key, value]) => [`session ${key}`, value])) })),
        )
      }
    }
    for (const key of Object.keys(kept)) keys.add(key.replace(/[0-9a-f]{32}/g, 'H').replace(/[\d-]{20,}/g, 'ID'))
    const text = JSON.stringify(kept)
    for (const word of ['orchid', 'alice', 'payload', 'socket', '127.0.0.1', new URL(world.site.url).port, ...credential.split('.')]) expect(text).not.toContain(word)
    if (rung !== 'shared') for (const kind of ['worker', 'route', 'subscriber']) expect([...keys].filter((key) => key.includes(`:${kind}:`)), kind).not.toEqual([])
  })

  it.each<Rung>(['shared', 'coordinated'])('X29 P38: %s: who logs out in one tab is logged out in all, also in one that was cached meanwhile', async (rung) => {
    const world = await World.open(browser, server, rung)
    const a = await world.tab({ topics: [TOPIC], principal: 'alice' })
    const b = await world.tab({ topics: [TOPIC], principal: 'alice' })
    const c = await world.tab({ topics: [TOPIC], principal: 'alice' })
    const stream = world.stream(TOPIC, 50)
    await stream.more(10)
    await c.mark()
    await c.leave()
    await a.eval(() => window.tabs.bus.setPrincipal('bob'))
    await until('b to be told', () => b.eval(() => window.tabs.notes.includes('principal')))
    await until('a to go on as bob', async () => (await seen(a, TOPIC)).last >= stream.last - 2)
    expect([await c.back(), ...c.evictions]).toEqual([true])
    await until('c to be told', () => c.eval(() => window.tabs.notes.includes('principal')))
    const before = [await seen(b, TOPIC), await seen(c, TOPIC)]
    await stream.more(25)
    await stream.stop()
    expect([await seen(b, TOPIC), await seen(c, TOPIC)]).toEqual(before)
    for (const tab of [b, c]) expect((await tab.eval(() => window.tabs.state())).lifecycle).toBe('stopped')
    expect(world.witness.live(TOPIC)).toBe(1)
    // Nothing of alice is left for who reads the disk but that she has gone, and perhaps the opaque key of a route, when tabs end in the same instant: the next of hers removes it.
    await until('her records to be gone', async () => {
      const kept = await b.eval(() => Object.keys({ ...localStorage }))
      return kept.filter((key) => /:(worker|subscriber):/.test(key)).length === (rung === 'shared' ? 0 : 2)
    })
  })

  it.each<readonly [Rung, number]>([
    ['shared', 1],
    ['coordinated', 3],
  ])('X25 X29 P39: %s: a token that has expired while all tabs are hidden is asked for once for each connection, and no publication is missed', async (rung, connections) => {
    const world = await World.open(browser, closed, rung)
    const asked: number[] = []
    world.site.answers.set('/token', () => {
      asked.push(performance.now())
      return token('alice', 3000)
    })
    for (let i = 0; i < 3; i++) await world.tab({ topics: [TOPIC], client: { token: 'bridge' } })
    const cover = await browser.tab(`${world.site.url}/away`)
    expect(asked.length).toBeLessThanOrEqual(connections)
    const [first, start] = [asked.length, performance.now()]
    const stream = world.stream(TOPIC, 20)
    await stream.more(90) // 4.5 s: one life and a half
    cover.close()
    const last = await stream.stop()
    for (const tab of world.tabs) await world.complete(tab, TOPIC, last)
    expect(asked.length).toBeGreaterThan(first)
    // One before the end of each life, which the server's seconds cut by up to one.
    expect(asked.length).toBeLessThanOrEqual(connections * (2 + (performance.now() - start) / 1500))
  })

  it.each<Rung>(['shared', 'coordinated'])('X25 X29 P39: %s: a page that has no token any more: the bus says so, and does not ask in a loop', async (rung) => {
    const world = await World.open(browser, closed, rung)
    let calls = 0
    world.site.answers.set('/token', () => {
      calls++
      return token('alice', -1000)
    })
    const tab = await browser.tab(`${world.site.url}/?${encodeURIComponent(JSON.stringify({ topics: [TOPIC], client: { token: 'bridge' } }))}`)
    await until('some calls', () => calls > 0)
    await new Promise((resolve) => setTimeout(resolve, 2000))
    expect(calls).toBeLessThan(20)
    expect(await tab.eval(() => window.tabs.notes)).toContain('disconnected')
    tab.close()
  })
})
