import { mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Browser, BrowserContextOptions, Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { launch } from './browser.js'
import { Fixture } from './fixture.js'
import { DemoServer } from './server.js'
import { Window } from './window.js'

let browser: Browser
let server: DemoServer
let room = ''
let rooms = 0
// Kept after the tests, for people to look at.
const pictures = join(tmpdir(), 'tidewire-demo-pictures')

beforeAll(async () => {
  mkdirSync(pictures, { recursive: true })
  console.log(`pictures of the demo: ${pictures}`)
  ;[browser, server] = await Promise.all([launch(), DemoServer.start()])
})
afterAll(async () => {
  await browser?.close()
  await server?.stop()
})
beforeEach(() => {
  room = `looks-${++rooms}`
})
afterEach(async () => {
  for (const context of browser.contexts()) await context.close()
})

const open = async (options: BrowserContextOptions = {}) => Window.open(await browser.newContext(options), server, { room })
const picture = (page: Page, name: string, fullPage = false) => page.screenshot({ path: join(pictures, `${name}.png`), fullPage })
const poll = (read: () => unknown) => expect.poll(read, { timeout: 10_000 })

const PEOPLE = ['Ada', 'Bao', 'Chidi', 'Dana', 'Emil', 'Farah', 'Goran', 'Hana', 'Ines', 'Jun', 'Kwame', 'A name that is rather long', 'Lior']

async function crowd(count: number): Promise<void> {
  const tokens = Array.from({ length: count }, (_, i) => server.token(`guest-crowd${i}`, 600_000))
  const fixture = await Fixture.serve(server.url, 'crowd.ts', { globals: { tokens, room, names: PEOPLE } })
  onTestFinished(() => fixture.stop())
  await (await (await browser.newContext()).newPage()).goto(fixture.url)
}

describe('looks', () => {
  it('what others send is text: no element of theirs comes to be, in names, words, states or ids', async () => {
    const evil = '<img src=x onerror="window.hacked=1">'
    const reader = await open()
    const tokens = [server.token('guest-evil01', 600_000)]
    const fixture = await Fixture.serve(server.url, 'evil.ts', { globals: { tokens, room, evil } })
    onTestFinished(() => fixture.stop())
    const page = await (await browser.newContext()).newPage()
    await page.goto(fixture.url)
    await reader.sees('last')
    await poll(() => reader.page.locator('.cursor-name').allInnerTexts()).toContain(evil.slice(0, 24))
    expect(await reader.feed()).toContain(`${evil.slice(0, 24)} ${evil}`)
    expect(await reader.people()).toContainEqual(evil.slice(0, 24))
    expect(await reader.page.locator('img').count()).toBe(0)
    expect(await reader.page.evaluate(() => 'hacked' in window)).toBe(false)
    expect(reader.troubles).toEqual([])
    // Nor does one's own.
    await reader.rename(evil)
    await reader.say(evil)
    await reader.page.fill('#room', evil)
    await reader.page.press('#room', 'Enter')
    await poll(() => reader.page.url()).toMatch(/#img-src-x-onerror-window-hacke$/)
    await reader.inRoom()
    expect(await reader.page.locator('img').count()).toBe(0)
    expect(await reader.page.evaluate(() => 'hacked' in window)).toBe(false)
  })

  it('at 360 pixels nothing scrolls sideways, everything can be reached, and touch moves the cursor', async () => {
    const other = await open()
    const phone = await open({ viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true })
    const session = await phone.session
    const box = await phone.page.locator('#cursors').boundingBox()
    if (!box) throw new Error('no room')
    await phone.page.touchscreen.tap(box.x + box.width * 0.25, box.y + box.height * 0.5)
    await poll(() => other.place(session)).toMatchObject({ x: expect.closeTo(0.25, 1), y: expect.closeTo(0.5, 1) })
    expect(await phone.page.locator('#own').isVisible()).toBe(true)
    await phone.rename('A name as long as it gets')
    await phone.say('averyveryveryverylongwordthathasnoplacetobreakaveryveryveryverylongwordthathasnoplacetobreak')
    await phone.sees('averyvery')
    await picture(phone.page, 'phone', true)
    const wide = await phone.page.evaluate(() => [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('.layer, .hidden, .skip, .tide')).map((e) => e.outerHTML.slice(0, 80)))
    expect(wide).toEqual([])
    expect(await phone.page.evaluate(() => document.documentElement.scrollWidth)).toBe(360)
    for (const target of await phone.page.locator('button:visible, input:visible').all()) {
      expect((await target.boundingBox())?.height, await target.evaluate((e) => e.outerHTML)).toBeGreaterThanOrEqual(34)
    }
  })

  it('by keyboard alone: skip to the room, move the cursor, react, and go on to the feed', async () => {
    const other = await open()
    const { page, session } = await open().then(async (window) => ({ page: window.page, session: await window.session }))
    await page.keyboard.press('Tab')
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('skip')
    await page.keyboard.press('Enter')
    expect(await page.evaluate(() => document.activeElement?.id)).toBe('stage')
    expect(page.url()).toMatch(new RegExp(`#${room}$`))
    for (let i = 0; i < 5; i++) await page.keyboard.press('ArrowRight')
    await page.keyboard.press('Shift+ArrowUp')
    await poll(() => other.place(session)).toMatchObject({ x: expect.closeTo(0.6, 2), y: expect.closeTo(0.4, 2) })
    expect(await page.locator('#own').isVisible()).toBe(true)
    await page.keyboard.press('1')
    await other.sees(/reacted$/)
    // A digit in a field is a digit.
    await page.locator('#say').focus()
    await page.keyboard.type('1 2 3')
    expect(await page.locator('#say').inputValue()).toBe('1 2 3')

    // Every stop of the Tab key can be seen.
    await page.evaluate(() => (document.activeElement as HTMLElement).blur())
    const stops: string[] = []
    for (let i = 0; i < 60; i++) {
      await page.keyboard.press('Tab')
      const stop = await page.evaluate(() => {
        const e = document.activeElement as HTMLElement
        return { id: e.id || e.className || e.tagName, ring: e === document.body || getComputedStyle(e).outlineStyle !== 'none' }
      })
      if (stops.includes(stop.id) && stop.id !== 'reaction') break
      if (stop.id === 'BODY') continue
      expect(stop.ring, stop.id).toBe(true)
      stops.push(stop.id)
    }
    expect(stops).toEqual(expect.arrayContaining(['skip', 'room', 'copy', 'theme', 'stage', 'reaction', 'card-1', 'card-1-right', 'card-1-remove', 'add-todo', 'name', 'feed', 'say']))
  })

  it('all controls have names, the document has its landmarks, and live regions are polite', async () => {
    const { page } = await open()
    const nameless = await page.evaluate(() =>
      [...document.querySelectorAll<HTMLElement>('button, input, a, [tabindex], section, svg[role]')]
        .filter((e) => !(e.getAttribute('aria-label') || (e.getAttribute('aria-labelledby') && document.getElementById(e.getAttribute('aria-labelledby') ?? '')?.textContent) || (e as HTMLInputElement).labels?.length || e.innerText?.trim()))
        .map((e) => e.outerHTML.slice(0, 100)),
    )
    expect(nameless).toEqual([])
    expect(await page.evaluate(() => [document.documentElement.lang, document.title, document.querySelectorAll('h1').length, document.querySelectorAll('main').length])).toEqual(['en', `${room} · Tidewire demo`, 1, 1])
    expect(await page.evaluate(() => [...document.querySelectorAll('[aria-live], [role=log], [role=status]')].filter((e) => e.getAttribute('aria-live') === 'assertive').length)).toBe(0)
    const ids = await page.evaluate(() => [...document.querySelectorAll('[id]')].map(({ id }) => id))
    expect(new Set(ids).size).toBe(ids.length)
  })

  for (const colorScheme of ['light', 'dark'] as const) {
    it(`${colorScheme}: text has a contrast of 4.5 in every colour that a person can have`, async () => {
      const { page } = await open({ colorScheme })
      const poor = await page.evaluate(() => {
        const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true }) as CanvasRenderingContext2D
        const luminance = (color: string) => {
          canvas.fillStyle = color
          canvas.fillRect(0, 0, 1, 1)
          const [r = 0, g = 0, b = 0] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4))
          return 0.2126 * r + 0.7152 * g + 0.0722 * b
        }
        const contrast = (a: string, b: string) => {
          const [x, y] = [luminance(a), luminance(b)]
          return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05)
        }
        const poor: string[] = []
        const check = (what: string, text: string, ground: string) => {
          const ratio = contrast(text, ground)
          if (ratio < 4.5) poor.push(`${what}: ${ratio.toFixed(2)}`)
        }
        const color = (selector: string, property: 'color' | 'backgroundColor') => getComputedStyle(document.querySelector(selector) as Element)[property]
        const card = color('.card', 'backgroundColor')
        for (const selector of ['.card h2', '.name', '.note', '.feed .event', '.facts dt', '.facts dd', '.feed .when']) check(selector, color(selector, 'color'), card)
        check('hint', color('.hint', 'color'), color('body', 'backgroundColor'))
        check('primary', color('.say .primary', 'color'), color('.say .primary', 'backgroundColor'))
        const row = document.querySelector('.person') as HTMLElement
        const avatar = row.querySelector('.avatar') as HTMLElement
        for (let hue = 0; hue < 360; hue += 10) {
          row.style.setProperty('--hue', String(hue))
          const { color: text, backgroundColor } = getComputedStyle(avatar)
          check(`avatar ${hue}`, text, backgroundColor)
          check(`author ${hue}`, backgroundColor, card)
        }
        return poor
      })
      expect(poor).toEqual([])
    })

    it(`${colorScheme}: twelve others are shown, move, and the picture is taken`, async () => {
      const window = await open({ colorScheme, viewport: { width: 1280, height: 800 } })
      await crowd(12)
      await poll(() => window.page.locator('#people-count').innerText()).toBe('13')
      await poll(() => window.page.locator('#cursors .cursor').count()).toBe(12)
      await window.sees('Hello from Ines')
      await window.point(0.5, 0.4)
      await window.page.keyboard.press('1')
      await window.page.locator('.burst').waitFor({ state: 'attached' })
      await picture(window.page, colorScheme)
      expect(window.troubles).toEqual([])
    })
  }

  it('the theme button goes through the themes and is remembered; alone and waiting have pictures too', async () => {
    const window = await open({ viewport: { width: 1280, height: 800 } })
    const { page } = window
    await page.locator('#alone').waitFor()
    await picture(page, 'alone')
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
    const light = await ground()
    await page.click('#theme')
    expect(await ground()).toBe(light)
    await page.click('#theme')
    expect(await ground()).not.toBe(light)
    await page.reload()
    await window.inRoom()
    expect(await page.locator('#theme').getAttribute('aria-label')).toBe('Theme: dark')
    await page.click('#theme')
    const other = await open()
    await other.point(0.3, 0.3)
    await window.cursor(await other.session).waitFor()
    await server.stop()
    await window.connection('waiting')
    await poll(() => page.locator('#countdown').innerText()).toMatch(/^again in \d\.\d s$/)
    await picture(page, 'waiting')
    await server.start()
    await window.inRoom()
    expect(await page.locator('#alone').isVisible()).toBe(false)
  })

  it('reduced motion: cursors jump to their place and a reaction does not fly', async () => {
    const mover = await open()
    const calm = await open({ reducedMotion: 'reduce' })
    await mover.point(0.1, 0.5)
    const session = await mover.session
    await calm.cursor(session).waitFor()
    await calm.page.evaluate((session) => {
      const places = new Set<string>()
      Object.assign(window, { places })
      const cursor = document.querySelector<HTMLElement>(`.cursor[data-session="${session}"]`)
      new MutationObserver(() => places.add(cursor?.style.transform ?? '')).observe(cursor as Element, { attributeFilter: ['style'] })
    }, session)
    await mover.point(0.9, 0.5)
    await poll(() => calm.place(session)).toMatchObject({ x: expect.closeTo(0.9, 2) })
    expect(await calm.page.evaluate(() => (window as unknown as { places: Set<string> }).places.size)).toBe(1)
    await mover.page.keyboard.press('3')
    await calm.page.locator('.piece').waitFor()
    expect(await calm.page.locator('.piece').count()).toBe(1)
  })
})
