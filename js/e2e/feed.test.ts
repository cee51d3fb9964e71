import type { Browser } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { launch } from './browser.js'
import { Proxy } from './proxy.js'
import { DemoServer } from './server.js'
import { Window } from './window.js'

let browser: Browser
let server: DemoServer
let proxy: Proxy

beforeAll(async () => {
  browser = await launch()
})
afterAll(async () => {
  await browser?.close()
})
beforeEach(async () => {
  server = await DemoServer.start()
  proxy = await Proxy.start(server.url)
  return async () => {
    for (const context of browser.contexts()) await context.close()
    proxy.stop()
    await server.stop()
  }
})

/** What was said, in the order of the feed. */
const said = async (window: Window) => window.page.locator('#feed .said .text').allInnerTexts()
const poll = (read: () => unknown) => expect.poll(read, { timeout: 20_000 })
const words = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => `word ${from + i}`)

describe('the feed', () => {
  it('S10 P14 a page that is opened, or loaded again, shows what was said before, once and in order', async () => {
    const a = await Window.open(await browser.newContext(), server)
    for (const word of words(1, 5)) await a.say(word)
    await poll(() => said(a)).toEqual(words(1, 5))
    const name = await a.name
    const b = await Window.open(await browser.newContext(), server)
    await poll(() => said(b)).toEqual(words(1, 5))
    await a.say('word 6')
    await poll(() => said(b)).toEqual(words(1, 6))
    for (let i = 0; i < 3; i++) {
      await a.page.reload()
      await a.inRoom()
      await poll(() => said(a)).toEqual(words(1, 6))
    }
    // Its author's name stands there after the author has gone.
    await a.page.context().close()
    await b.page.reload()
    await b.inRoom()
    await b.sees(`${name} word 6`)
    // A reaction from before is told, and not thrown again.
    await b.page.locator('#stage').focus()
    await b.page.keyboard.press('2')
    await b.sees(/reacted/)
    const c = await Window.open(await browser.newContext(), server)
    await c.sees(/reacted/)
    expect(c.troubles).toEqual([])
  })

  it('S10 P10 P18 a page whose network is cut again and again, or is gone for a while, misses nothing and shows nothing twice', async () => {
    const through = { url: proxy.url } as DemoServer
    const a = await Window.open(await browser.newContext(), server)
    const b = await Window.open(await browser.newContext(), through)
    for (let round = 0; round < 4; round++) {
      await a.say(`word ${round * 3 + 1}`)
      proxy.cut()
      await a.say(`word ${round * 3 + 2}`)
      await a.say(`word ${round * 3 + 3}`)
      await poll(() => said(b)).toEqual(words(1, round * 3 + 3))
    }
    await b.page.context().setOffline(true)
    proxy.darken()
    for (const word of words(13, 15)) await a.say(word)
    await poll(() => said(a)).toEqual(words(1, 15))
    proxy.lighten()
    await b.page.context().setOffline(false)
    await poll(() => said(b)).toEqual(words(1, 15))
    // What is said on a connection that is cut at that moment arrives once.
    for (let i = 16; i <= 19; i++) {
      await b.say(`word ${i}`)
      proxy.cut()
      await poll(() => said(a)).toEqual(words(1, i))
      await poll(() => said(b)).toEqual(words(1, i))
    }
    expect(await b.page.locator('[data-fate="unknown"], [data-fate="failed"]').count()).toBe(0)
  })

  it('S10 a server that is killed has kept what was said', async () => {
    const a = await Window.open(await browser.newContext(), server)
    for (const word of words(1, 3)) await a.say(word)
    await poll(() => a.page.locator('[data-fate="pending"]').count()).toBe(0)
    await server.stop('SIGKILL')
    await server.start()
    await a.say('word 4')
    await poll(() => said(a)).toEqual(words(1, 4))
    const b = await Window.open(await browser.newContext(), server)
    await poll(() => said(b)).toEqual(words(1, 4))
  })
})
