import { setTimeout as sleep } from 'node:timers/promises'
import type { Browser, Page } from 'playwright-core'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import type { MessageOptions, Position, Published, PublishOptions } from '../src/index.js'
import { launch, record } from './browser.js'
import { Fixture } from './fixture.js'
import { Proxy } from './proxy.js'
import { DemoServer } from './server.js'

const KEY = 'e2e-key-of-the-backend'
const CONFIG = `
auth: {anonymous: true}
backend_keys: [{name: e2e, key: ${KEY}}]
channels: [{pattern: 'log.**', guard: public, history: {size: 1000, ttl: 1h}}]
`

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
  server = await DemoServer.start(CONFIG)
  proxy = await Proxy.start(server.url)
})
afterEach(async () => {
  for (const context of browser.contexts()) await context.close()
  proxy.stop()
  await server.stop()
})

interface Log {
  readonly told: unknown[]
  readonly states: string[]
  release(): void
  publish(data: unknown, options?: PublishOptions): Promise<Published>
}

async function open(listen: MessageOptions = {}): Promise<{ page: Page; log: ReturnType<typeof record> }> {
  const fixture = await Fixture.serve(proxy.url, 'log.ts', { globals: { listen } })
  onTestFinished(() => fixture.stop())
  const page = await (await browser.newContext()).newPage()
  const log = record(page)
  await page.goto(fixture.url)
  await isLive(page)
  return { page, log }
}

const told = (page: Page) => page.evaluate(() => (window as unknown as Log).told)
const isLive = (page: Page) => expect.poll(() => page.evaluate(() => (window as unknown as Log).states.at(-1)), { timeout: 20_000 }).toBe('live')
const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)

async function backend<T>(path: string, body?: unknown): Promise<T> {
  const response = await fetch(`${server.url}/v1/channels/log.e2e${path}`, {
    headers: { authorization: `Bearer ${KEY}` },
    ...(body !== undefined && { method: 'POST', body: JSON.stringify(body) }),
  })
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
  return (await response.json()) as T
}

/** Appends from to to, one after the other. */
async function append(from: number, to: number, pause = 0): Promise<void> {
  for (let n = from; n <= to; n++) {
    await backend('/messages', { data: n })
    if (pause > 0) await sleep(pause)
  }
}

/** Cuts the network until work is done; returns how often. */
async function cutting(work: Promise<unknown>): Promise<number> {
  let cuts = 0
  const done = work.then(() => true)
  while (!(await Promise.race([done, sleep(30 + Math.random() * 170, false)]))) {
    proxy.cut()
    cuts++
  }
  return cuts
}

describe('a channel with history', () => {
  it('P10 P13 a page gets 1 to N, each once and in order, over cuts at any moment', async () => {
    const { page } = await open()
    const cuts = await cutting(append(1, 600, 4))
    expect(cuts).toBeGreaterThan(10)
    await expect.poll(async () => (await told(page)).length, { timeout: 20_000 }).toBeGreaterThanOrEqual(600)
    expect(await told(page)).toEqual(numbers(1, 600))
  })

  it('P18 P50 what a page publishes over cuts is kept once and in order, and not echoed where it should not be', async () => {
    const { page } = await open()
    const published = page.evaluate(async () => {
      const { publish } = window as unknown as Log
      const all: Promise<Published>[] = []
      for (let n = 1; n <= 150; n++) {
        all.push(publish(n, { id: `p${n}`, echo: n % 2 === 0 }))
        await new Promise((resolve) => setTimeout(resolve, 15))
      }
      return (await Promise.all(all)).map(({ id, offset }) => [id, offset])
    })
    expect(await cutting(published)).toBeGreaterThan(5)
    expect(await published).toEqual(numbers(1, 150).map((n) => [`p${n}`, n]))
    const { messages } = await backend<{ messages: { data: number }[] }>('/messages?last=1000')
    expect(messages.map(({ data }) => data)).toEqual(numbers(1, 150))
    await append(1000, 1000)
    const even = numbers(1, 150).filter((n) => n % 2 === 0)
    await expect.poll(() => told(page), { timeout: 10_000 }).toEqual([...even, 1000])
  })

  it('P14 from the position of a rendered page nothing is missing and nothing comes twice; last gives the newest', async () => {
    await append(1, 5)
    const { offset, epoch } = await backend<Position>('/messages?last=1')
    await append(6, 8) // after rendering, before the page listens
    const { page } = await open({ since: { offset, epoch } })
    await append(9, 10)
    await expect.poll(() => told(page)).toEqual(numbers(6, 10))
    const { page: other } = await open({ last: 3 })
    await append(11, 11)
    await expect.poll(() => told(other)).toEqual(numbers(8, 11))
  })

  it('P12 a position of another log is lost', async () => {
    await append(1, 2)
    const { page } = await open({ since: { offset: 1, epoch: 'of-another' } })
    await append(3, 3)
    await expect.poll(() => told(page)).toEqual(['lost', 3])
  })

  it('P09 P17 what was trimmed while the page was away is lost, counted, and the rest arrives', async () => {
    const { page } = await open()
    await append(1, 2)
    await expect.poll(() => told(page)).toEqual([1, 2])
    proxy.darken()
    proxy.cut()
    for (let n = 0; n < 11; n++) await Promise.all(numbers(0, 99).map((i) => backend('/messages', { data: n * 100 + i })))
    proxy.lighten()
    proxy.cut()
    await expect.poll(async () => (await told(page)).length, { timeout: 20_000 }).toBe(3)
    await append(2000, 2000)
    await expect.poll(() => told(page)).toEqual([1, 2, 'lost 1100', 2000])
  })

  it('P12 a server that comes back without its log: lost, and live again', async () => {
    const { page } = await open()
    await append(1, 3)
    await expect.poll(() => told(page)).toEqual([1, 2, 3])
    await server.stop()
    await server.start()
    await expect.poll(() => told(page), { timeout: 20_000 }).toEqual([1, 2, 3, 'lost'])
    await append(4, 5)
    await expect.poll(() => told(page)).toEqual([1, 2, 3, 'lost', 4, 5])
  })

  it('B14 with ack the server gives no more than its window until the handler is done, then all of it', async () => {
    const { page, log } = await open({ ack: true })
    await append(1, 100)
    const acks = () => backend<{ offset: number; lowest: number; subscribers: { pending: number }[] }>('/acks')
    await expect.poll(acks).toMatchObject({ offset: 100, lowest: 0, subscribers: [{ pending: 100 }] })
    await expect.poll(() => told(page)).toEqual(numbers(1, 64))
    await page.evaluate(() => (window as unknown as Log).release())
    await expect.poll(() => told(page)).toEqual(numbers(1, 100))
    await expect.poll(acks).toMatchObject({ lowest: 100, subscribers: [{ pending: 0 }] })
    expect(log.sent.filter(({ type }) => type === 'ack').length).toBeLessThan(10)
  })
})
