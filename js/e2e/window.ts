import type { BrowserContext, Locator, Page } from 'playwright-core'
import { expect } from 'vitest'
import { troubles } from './browser.js'
import type { DemoServer } from './server.js'

/** A window of the demo, as its reader sees it. */
export class Window {
  readonly page: Page
  readonly troubles: string[]

  private constructor(page: Page) {
    this.page = page
    this.troubles = troubles(page)
  }

  /** Opens the demo and waits until the room is there. */
  static async open(context: BrowserContext, server: DemoServer, { room = 'lobby', before }: { room?: string; before?: (page: Page) => unknown } = {}): Promise<Window> {
    const window = new Window(await context.newPage())
    await before?.(window.page)
    await window.page.goto(`${server.url}/#${room}`)
    await window.inRoom()
    return window
  }

  async inRoom(): Promise<void> {
    await this.connection('connected')
    await this.page.locator('.person').first().waitFor()
  }

  connection(kind: string, timeout = 20_000): Promise<unknown> {
    return this.page.waitForSelector(`html[data-connection="${kind}"]`, { timeout, state: 'attached' })
  }

  get session(): Promise<string> {
    return this.page.locator('#session').innerText()
  }

  get name(): Promise<string> {
    return this.page.locator('#name').inputValue()
  }

  cursor(session: string): Locator {
    return this.page.locator(`.cursor[data-session="${session}"]`)
  }

  /** The place of a cursor, in parts of the room. */
  async place(session: string): Promise<{ x: number; y: number } | undefined> {
    return this.page.evaluate((session) => {
      const cursor = document.querySelector(`.cursor[data-session="${session}"]`)?.getBoundingClientRect()
      const room = document.querySelector('#cursors')?.getBoundingClientRect()
      return cursor && room && { x: (cursor.x - room.x) / room.width, y: (cursor.y - room.y) / room.height }
    }, session)
  }

  /** Moves the mouse to a place in parts of the room. */
  async point(x: number, y: number, steps = 1): Promise<void> {
    const box = await this.page.locator('#cursors').boundingBox()
    if (!box) throw new Error('no room')
    await this.page.mouse.move(box.x + x * box.width, box.y + y * box.height, { steps })
  }

  /** The rows of the roster, one line each. */
  people(): Promise<string[]> {
    return this.page.locator('.person').evaluateAll((rows) =>
      rows.map((row) => [...row.children].slice(1).map((part) => part.textContent).filter(Boolean).join(' | ')),
    )
  }

  /** The entries of the feed, without their time. */
  feed(): Promise<string[]> {
    return this.page.locator('#feed p').evaluateAll((entries) => entries.map((entry) => (entry.textContent ?? '').replace(/\s+/g, ' ').trim()))
  }

  async sees(entry: string | RegExp): Promise<void> {
    await expect.poll(() => this.feed(), { timeout: 10_000 }).toContainEqual(expect.stringMatching(entry))
  }

  async say(text: string): Promise<void> {
    await this.page.fill('#say', text)
    await this.page.press('#say', 'Enter')
  }

  async rename(name: string): Promise<void> {
    await this.page.fill('#name', name)
    await this.page.press('#name', 'Enter')
  }
}
