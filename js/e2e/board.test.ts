import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { launch, record } from './browser.js'
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

type Lanes = Record<string, string[]>

/** The titles of each lane, as the reader sees them. */
const lanes = ({ page }: Window): Promise<Lanes> =>
  page.locator('.lane').evaluateAll((all) =>
    Object.fromEntries(all.map((lane) => [(lane as HTMLElement).dataset['lane'], [...lane.querySelectorAll<HTMLInputElement>('.item input')].map(({ value }) => value)])),
  )

const live = ({ page }: Window) => page.locator('#board[data-kind="live"]').waitFor()
const shows = (window: Window, want: Lanes, timeout = 20_000) => expect.poll(() => lanes(window), { timeout, interval: 10 }).toEqual(want)

const FIRST: Lanes = { todo: ['Mend the nets', 'Paint the bow'], doing: ['Chart the shoal'], done: ['Buy rope'] }

async function add(page: Page, lane: string, title: string): Promise<void> {
  const field = page.locator(`.lane[data-lane="${lane}"] form input`)
  await field.fill(title)
  await field.press('Enter')
}

const card = (page: Page, id: number) => page.locator(`[data-card="${id}"]`)

/** Another program changes the file. */
const run = promisify(execFile)
const sql = (statement: string) => run('sqlite3', ['-cmd', '.timeout 5000', server.file('board.db'), statement])

/** The table as another program reads it. */
async function table(): Promise<Lanes> {
  const { stdout } = await run('sqlite3', ['-json', server.file('board.db'), 'SELECT lane, title FROM cards ORDER BY position, id'])
  const rows = JSON.parse(stdout) as { lane: string; title: string }[]
  return Object.fromEntries(['todo', 'doing', 'done'].map((lane) => [lane, rows.filter((row) => row.lane === lane).map(({ title }) => title)]))
}

describe('the board', () => {
  it('S47 what one window adds, renames, moves and deletes is seen in the other, and stands in the table', async () => {
    const a = await Window.open(await browser.newContext(), server)
    const b = await Window.open(await browser.newContext(), server, { room: 'elsewhere' })
    for (const window of [a, b]) await shows(window, FIRST)
    await add(a.page, 'doing', '<b>Splice</b> the rope')
    for (const window of [a, b]) await shows(window, { ...FIRST, doing: ['Chart the shoal', '<b>Splice</b> the rope'] })
    await card(b.page, 1).locator('input').fill('Mend all nets')
    await card(b.page, 1).locator('input').press('Enter')
    await card(a.page, 2).hover()
    await card(a.page, 2).getByLabel('Move Paint the bow right').click()
    await card(b.page, 4).hover()
    await card(b.page, 4).getByLabel('Delete Buy rope').click()
    const want: Lanes = { todo: ['Mend all nets'], doing: ['Chart the shoal', '<b>Splice</b> the rope', 'Paint the bow'], done: [] }
    for (const window of [a, b]) await shows(window, want)
    // Dragged before another: several rows in one transaction.
    await a.page.dragAndDrop('[data-card="2"] .grip', '[data-card="3"]', { targetPosition: { x: 40, y: 3 } })
    want['doing'] = ['Paint the bow', 'Chart the shoal', '<b>Splice</b> the rope']
    for (const window of [a, b]) await shows(window, want)
    expect(await table()).toEqual(want)
    expect([a.troubles, b.troubles]).toEqual([[], []])
  })

  it('S22 what another program writes to the file is seen within a second', async () => {
    const a = await Window.open(await browser.newContext(), server)
    await shows(a, FIRST)
    const took: number[] = []
    for (let i = 0; i < 10; i++) {
      const title = `Changed ${i}`
      await sql(`UPDATE cards SET title = '${title}' WHERE id = 1`)
      const done = performance.now()
      await shows(a, { ...FIRST, todo: [title, 'Paint the bow'] }, 1000)
      took.push(performance.now() - done)
    }
    console.log(`from the end of sqlite3 to the page: ${Math.round(Math.max(...took))} ms at most in ${took.length}`)
    // A transaction is seen whole: the page never shows the one without the other.
    await a.page.evaluate(() => {
      const seen: number[] = []
      new MutationObserver(() => queueMicrotask(() => seen.push(document.querySelectorAll('.item').length))).observe(document.querySelector('#lanes') as Element, { childList: true, subtree: true })
      Object.assign(window, { seen })
    })
    await sql(`BEGIN; DELETE FROM cards; INSERT INTO cards (title, lane, position) VALUES ('One', 'done', 1), ('Two', 'todo', 1); COMMIT`)
    await shows(a, { todo: ['Two'], doing: [], done: ['One'] }, 1000)
    expect(new Set(await a.page.evaluate(() => (window as unknown as { seen: number[] }).seen))).toEqual(new Set([2]))
  })

  it('S28 a page that is loaded again, or whose network is cut, has the table, and gets only what it missed', async () => {
    const a = await Window.open(await browser.newContext(), server)
    const through = { url: proxy.url } as DemoServer
    let log: ReturnType<typeof record> | undefined
    const b = await Window.open(await browser.newContext(), through, { before: (page) => (log = record(page)) })
    await shows(b, FIRST)
    for (let i = 0; i < 3; i++) {
      proxy.cut()
      await add(a.page, 'done', `Card ${i}`)
      await shows(b, await tableWith(a, `Card ${i}`))
    }
    // Gone for a while: the rows stay, and say that they are old.
    await b.page.context().setOffline(true)
    proxy.cut()
    proxy.darken()
    await b.page.locator('#board[data-kind="stale"]').waitFor()
    expect(await lanes(b)).toEqual(await table())
    await sql(`UPDATE cards SET lane = 'doing' WHERE id = 2`)
    await sql(`DELETE FROM cards WHERE id = 1`)
    proxy.lighten()
    await b.page.context().setOffline(false)
    await live(b)
    await shows(b, await table())
    const got = log?.received.filter(({ type }) => type === 'snapshot') ?? []
    expect(got).toHaveLength(1)
    await b.page.reload()
    await shows(b, await table())
    expect(b.troubles).toEqual([])
  })

  it('S28 a server that is killed and comes back has the table', async () => {
    const a = await Window.open(await browser.newContext(), server)
    await shows(a, FIRST)
    await server.stop()
    await a.page.locator('#board[data-kind="stale"]').waitFor()
    await sql(`UPDATE cards SET title = 'While it was away' WHERE id = 3`)
    await server.start()
    await live(a)
    await shows(a, { ...FIRST, doing: ['While it was away'] })
  })

  it('works in a narrow window, and by keyboard; a refused change is told', async () => {
    const context = await browser.newContext({ viewport: { width: 360, height: 780 } })
    const a = await Window.open(context, server)
    await shows(a, FIRST)
    expect(await a.page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(360)
    await card(a.page, 3).locator('input').focus()
    await a.page.keyboard.press('Tab')
    await a.page.keyboard.press('Tab')
    await a.page.keyboard.press('Enter')
    await shows(a, { ...FIRST, doing: [], done: ['Buy rope', 'Chart the shoal'] })
    const response = await a.page.request.post(`${server.url}/demo/cards`, { data: { title: 'far', lane: 'nowhere' } })
    expect([response.status(), await response.text()]).toEqual([400, 'a lane is todo, doing or done\n'])
    const foreign = await a.page.request.post(`${server.url}/demo/cards`, { data: { title: 'far' }, headers: { origin: 'https://elsewhere.example', 'sec-fetch-site': 'cross-site' } })
    expect(foreign.status()).toBe(403)
    await server.stop()
    await add(a.page, 'todo', 'Lost')
    await a.page.locator('#board-state', { hasText: 'Not saved' }).waitFor()
  })
})

/** Waits until a window shows a card, and returns the table. */
async function tableWith(window: Window, title: string): Promise<Lanes> {
  await expect.poll(async () => Object.values(await lanes(window)).flat(), { timeout: 20_000 }).toContain(title)
  return table()
}
