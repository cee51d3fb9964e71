import type { Browser, BrowserContext } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { launch, record } from './browser.js'
import { DemoServer } from './server.js'
import { Window } from './window.js'

let browser: Browser
let server: DemoServer
const contexts: BrowserContext[] = []
const windows: Window[] = []
let room = ''
let rooms = 0

beforeAll(async () => {
  ;[browser, server] = await Promise.all([launch(), DemoServer.start()])
})
afterAll(async () => {
  await browser?.close()
  await server?.stop()
})
beforeEach(() => {
  room = `demo-${++rooms}`
})
afterEach(async () => {
  for (const { troubles } of windows.splice(0)) expect(troubles).toEqual([])
  for (const context of contexts.splice(0)) await context.close()
})

/** Another browser: another person. */
async function person(): Promise<BrowserContext> {
  const context = await browser.newContext()
  contexts.push(context)
  return context
}

async function open(context: BrowserContext, before?: (page: Window['page']) => unknown): Promise<Window> {
  const window = await Window.open(context, server, { room, ...(before && { before }) })
  windows.push(window)
  return window
}

const poll = (read: () => unknown) => expect.poll(read, { timeout: 10_000 })

describe('the demo', () => {
  it('S11 the cursor of one window moves in the other, smoothly, and is where the pointer is', async () => {
    const [a, b] = [await open(await person()), await open(await person())]
    const session = await a.session
    await a.point(0.2, 0.3)
    await b.cursor(session).waitFor({ state: 'attached' })
    await poll(() => b.place(session)).toMatchObject({ x: expect.closeTo(0.2, 2), y: expect.closeTo(0.3, 2) })
    expect(await b.cursor(session).innerText()).toBe(await a.name)
    // One jump of the pointer is a way in the other window.
    await b.page.evaluate((session) => {
      const places = new Set<number>()
      Object.assign(window, { places })
      const look = () => {
        places.add(Math.round(document.querySelector(`.cursor[data-session="${session}"]`)?.getBoundingClientRect().x ?? -1))
        requestAnimationFrame(look)
      }
      look()
    }, session)
    await a.point(0.8, 0.6)
    await poll(() => b.place(session)).toMatchObject({ x: expect.closeTo(0.8, 2), y: expect.closeTo(0.6, 2) })
    expect(await b.page.evaluate(() => (window as unknown as { places: Set<number> }).places.size)).toBeGreaterThan(5)
    // The mouse has a cursor of its own here.
    expect(await a.cursor(session).count()).toBe(0)
    expect(await a.page.locator('#own').isVisible()).toBe(false)
  })

  it('S11 P24 two windows of a browser are one person: joins once, counted, both cursors, and leaves with the last', async () => {
    const other = await open(await person())
    const context = await person()
    const first = await open(context)
    const second = await open(context)
    const name = await first.name
    expect(await second.name).toBe(name)
    await poll(() => other.people()).toEqual([expect.stringMatching(/\| you$/), `${name} | 2 windows`])
    await poll(() => first.people()).toEqual([`${name} | you | 2 windows`, await other.name])
    await first.point(0.3, 0.5)
    await second.point(0.6, 0.5)
    await other.cursor(await first.session).waitFor({ state: 'attached' })
    await other.cursor(await second.session).waitFor({ state: 'attached' })
    await second.cursor(await first.session).waitFor({ state: 'attached' })

    const secondSession = await second.session
    await second.page.close()
    await poll(() => other.people()).toEqual([expect.stringMatching(/\| you$/), name])
    await poll(() => other.cursor(secondSession).count()).toBe(0)
    await first.page.close()
    await poll(() => other.people()).toEqual([expect.stringMatching(/\| you$/)])
    await other.sees(`${name} left`)
    expect(await other.feed()).toEqual(['You are the first one here.', `${name} joined`, `${name} left`])
  })

  it('typing, words and reactions are seen by the other', async () => {
    const [a, b] = [await open(await person()), await open(await person())]
    const name = await a.name
    await a.page.locator('#say').pressSequentially('Hel')
    await poll(() => b.page.locator('#typing').innerText()).toBe(`${name} is typing`)
    expect(await b.people()).toContainEqual(`${name} | typing`)
    await a.say('Hello & welcome')
    await b.sees(`${name} Hello & welcome`)
    await a.sees(`${name} Hello & welcome`)
    await poll(() => b.page.locator('#typing').innerText()).toBe('')
    expect(await a.page.locator('[data-fate="pending"]').count()).toBe(0)

    await a.point(0.5, 0.4)
    await b.page.evaluate(() => {
      const seen: string[] = []
      Object.assign(window, { seen })
      new MutationObserver((changes) => {
        for (const { addedNodes } of changes) for (const node of addedNodes) seen.push((node as HTMLElement).style.left)
      }).observe(document.querySelector('#bursts') as Element, { childList: true })
    })
    await a.page.locator('#stage').focus()
    await a.page.keyboard.press('2')
    await b.sees(`${name} reacted`)
    expect(await b.page.evaluate(() => (window as unknown as { seen: string[] }).seen)).toEqual([expect.stringMatching(/^(49\.9|50)/)])
    await a.page.keyboard.press('2')
    await b.sees(`${name} reacted × 2`)
  })

  it('P22 a new name is an update: the same row, and nobody leaves or joins', async () => {
    const [a, b] = [await open(await person()), await open(await person())]
    const before = await a.name
    await a.point(0.5, 0.5)
    await b.cursor(await a.session).waitFor({ state: 'attached' })
    await b.page.evaluate(() => {
      for (const row of document.querySelectorAll('.person')) Object.assign(row, { mark: true })
    })
    await a.rename('Grace H.')
    await b.sees(`${before} is now called Grace H.`)
    await poll(() => b.page.locator('#cursors .cursor-name').innerText()).toBe('Grace H.')
    expect(await b.page.evaluate(() => [...document.querySelectorAll('.person')].every((row) => (row as { mark?: boolean }).mark))).toBe(true)
    expect((await b.feed()).filter((entry) => /left|joined$/.test(entry))).toEqual([])
    // It is remembered, and another window of the browser has it at once.
    const second = await open(a.page.context())
    expect(await second.name).toBe('Grace H.')
    await second.rename('Grace')
    await poll(() => a.name).toBe('Grace')
    await a.page.reload()
    await a.inRoom()
    expect(await a.name).toBe('Grace')
    await poll(() => b.people()).toContainEqual('Grace | 2 windows')
  })

  it('S33 the page says that the server runs another build', async () => {
    const context = await person()
    const window = await open(context, (page) =>
      page.route('**/demo/session?*', async (route) => {
        const response = await route.fetch()
        await route.fulfill({ json: { ...((await response.json()) as object), build: 'an-older-one' } })
      }),
    )
    await window.page.locator('#update').waitFor({ state: 'visible' })
    const plain = await open(context)
    expect(await plain.page.locator('#update').isVisible()).toBe(false)
  })

  it('rooms are apart; the address names the room, and changing it moves without a reload', async () => {
    const b = await open(await person())
    const a = await open(await person())
    const log = record(a.page)
    const name = await a.name
    await b.sees(`${name} joined`)
    await a.page.fill('#room', 'Über There!')
    await a.page.press('#room', 'Enter')
    await poll(() => a.page.url()).toMatch(/#u-ber-there$/)
    await b.sees(`${name} left`)
    await poll(() => a.people()).toEqual([`${name} | you`])
    expect(await a.feed()).toEqual(['You are the first one here.'])
    await a.page.goBack()
    await poll(() => b.people()).toContainEqual(name)
    expect(log.sockets).toEqual([])
  })

  it('shows the round trip, what arrives, and the way to copy the address', async () => {
    const context = await person()
    await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: server.url })
    const a = await open(context)
    await poll(() => a.page.locator('#latency').innerText()).toMatch(/^\d+(\.\d)? ms$/)
    expect(await a.page.locator('#skipped').innerText()).toBe('0')
    const b = await open(await person())
    await b.point(0.2, 0.2)
    await b.point(0.7, 0.7, 40)
    await poll(() => a.page.locator('#received').innerText()).toMatch(/^[1-9]/)
    await a.page.click('#copy')
    await poll(() => a.page.locator('#copy').innerText()).toBe('Copied')
    expect(await a.page.evaluate(() => navigator.clipboard.readText())).toBe(`${server.url}/#${room}`)
    const [popup] = await Promise.all([context.waitForEvent('page'), a.page.click('.actions .open-window')])
    await popup.waitForSelector('html[data-connection="connected"]')
    await poll(() => a.people()).toContainEqual(`${await a.name} | you | 2 windows`)
  })

  it('works where storage is blocked', async () => {
    const window = await open(await person(), (page) =>
      page.addInitScript(() => Object.defineProperty(window, 'localStorage', { get: () => { throw new DOMException('blocked', 'SecurityError') } })),
    )
    await window.rename('No Memory')
    await poll(() => window.people()).toEqual(['No Memory | you'])
    await window.page.click('#theme')
  })
})
