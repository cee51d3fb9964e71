import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { launch, record } from './browser.js'
import { DemoServer } from './server.js'
import { Window } from './window.js'

let browser: Browser
let server: DemoServer

beforeAll(async () => {
  browser = await launch()
})
afterAll(async () => {
  await browser?.close()
})
beforeEach(async () => {
  server = await DemoServer.start()
  return async () => {
    for (const context of browser.contexts()) await context.close()
    await server.stop()
  }
})

/** Notes every state of the connection that the page shows. */
async function watch(window: Window): Promise<() => Promise<string[]>> {
  await window.page.evaluate(() => {
    const states: string[] = []
    Object.assign(globalThis, { states })
    new MutationObserver(() => states.push(document.documentElement.dataset['connection'] ?? '')).observe(document.documentElement, { attributeFilter: ['data-connection'] })
  })
  return () => window.page.evaluate(() => (globalThis as unknown as { states: string[] }).states)
}

describe('a restart of the server, without a reload', () => {
  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    it(`S31 P23 ${signal}: both windows wait, come back, and the room is as it was`, async () => {
      const a = await Window.open(await browser.newContext(), server)
      const b = await Window.open(await browser.newContext(), server, { before: (page) => Object.assign(page, { log: record(page) }) })
      const { log } = b.page as unknown as { log: ReturnType<typeof record> }
      const [nameA, nameB, sessionA] = [await a.name, await b.name, await a.session]
      await a.rename('Ann')
      await a.point(0.3, 0.4)
      await b.cursor(sessionA).waitFor({ state: 'attached' })
      await a.say('before')
      await b.sees('Ann before')
      const before = [await a.feed(), await b.feed()]
      const [statesOfA, statesOfB] = [await watch(a), await watch(b)]
      const dials = log.sockets.length
      expect(dials).toBe(1)

      await server.stop(signal)
      await Promise.all([a.connection('waiting'), b.connection('waiting')])
      await server.start()
      await Promise.all([a.inRoom(), b.inRoom()])
      await expect.poll(() => b.people(), { timeout: 15_000 }).toEqual([`${nameB} | you`, 'Ann'])
      await expect.poll(() => a.people(), { timeout: 15_000 }).toEqual(['Ann | you', nameB])
      // The last state came back too, and it lives.
      await b.cursor(await a.session).waitFor({ state: 'attached' })
      await a.point(0.7, 0.4)
      await expect.poll(async () => b.place(await a.session)).toMatchObject({ x: expect.closeTo(0.7, 2) })
      await a.say('after')
      await b.sees('Ann after')
      await a.sees('Ann after')
      expect([await a.feed(), await b.feed()]).toEqual(before.map((entries) => [...entries, 'Ann after']))
      for (const states of [await statesOfA(), await statesOfB()]) {
        expect(states).toContain('waiting')
        expect(states.at(-1)).toBe('connected')
        expect(states).not.toContain('stopped')
      }
      if (signal === 'SIGTERM') expect(log.received).toContainEqual({ type: 'reconnect', afterMs: expect.any(Number) })
      expect(nameA).not.toBe('Ann')
    })
  }

  it('P29 the page opened while the server is away comes up with it', async () => {
    const context = await browser.newContext()
    const window = await Window.open(context, server)
    // Only the page's own token request fails: the files are there.
    await context.route('**/demo/session?*', (route) => route.abort())
    await window.page.reload()
    await window.connection('waiting')
    expect(await window.page.locator('#reason').innerText()).toBe('The server does not answer.')
    await context.unroute('**/demo/session?*')
    await window.inRoom()
  })
})
