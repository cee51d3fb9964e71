import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import type { Browser, BrowserContext, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, inject, it, onTestFinished } from 'vitest'
import type { CentrifugeConfig } from '../src/crosstab/centrifuge.js'
import type { Coordinator } from '../src/crosstab/coordinator.js'
import type { DataBusTransport, Position } from '../src/crosstab/transport.js'
import { launch, troubles } from './browser.js'

/** What the page's window has. */
interface Probe {
  readonly at: (place: 'page' | 'dedicated' | 'shared' | 'engine') => void
  readonly line: DataBusTransport<CentrifugeConfig> & Coordinator
  readonly told: string[]
  readonly data: Record<string, { readonly n: number }[]>
  readonly positions: Record<string, Position | undefined>
  readonly statuses: string[]
  readonly asked: string[]
  tokens: string[]
  begin(config?: Partial<CentrifugeConfig>): Promise<void>
}
declare const window: Probe

const PAGE = `
import { CentrifugeTransport } from './src/crosstab/centrifuge.ts'
import { SharedCoordinator } from './src/crosstab/shared.ts'
import { workerTransport } from './src/crosstab/worker-transport.ts'
import { browserPlatform } from './src/crosstab/browser.ts'

const [told, data, positions, statuses, asked] = [[], {}, {}, [], []]
const events = {
  status: (status, error) => { statuses.push(status); if (error) told.push(status + ' ' + error.code) },
  publication: (topic, { data: value, position }) => { (data[topic] ??= []).push(value); positions[topic] = position },
  subscribed: (topic, position, lost) => { positions[topic] = position; told.push('subscribed ' + topic + (lost ? ' lost' : '')) },
  lost: (topic) => told.push('lost ' + topic),
  refused: (topic, error, retry) => told.push('refused ' + topic + ' ' + error.code + (retry ? ' retry' : '')),
  credential: async (reason) => { asked.push(reason); const token = tw.tokens.shift(); if (!token) throw new Error('no more'); return token },
}
const tw = Object.assign(window, {
  told, data, positions, statuses, asked, tokens: [], events,
  at(place) {
    const platform = browserPlatform()
    if (place === 'page') tw.line = new CentrifugeTransport()
    else if (place !== 'engine') tw.line = workerTransport({ mode: place, workerUrl: '/worker.js' })
    tw.begin = (config) => {
      config = { url: SERVER, ...config }
      if (place !== 'engine') return tw.line.start(config, events)
      tw.line = new SharedCoordinator({ platform, events, prefix: 'e2e:', tabId: platform.randomId(), config, workerUrl: '/worker.js', credential: events.credential })
      return tw.line.start()
    }
  },
})
`

// The whole of a worker with a transport of one's own; and its death, which nobody is told of.
const WORKER = `
import { CentrifugeTransport } from './src/crosstab/centrifuge.ts'
import { hostWorker } from './src/worker/serve.ts'

hostWorker(() => new CentrifugeTransport())
new BroadcastChannel('die').onmessage = () => self.close()
`

let browser: Browser
let peer: ChildProcess
let address: string
let site: Server
let origin: string

beforeAll(async () => {
  const root = fileURLToPath(new URL('../..', import.meta.url))
  const binary = join(inject('folder'), 'centrifuge')
  execFileSync('go', ['build', '-o', binary, '.'], { cwd: `${root}e2e/centrifuge`, stdio: 'inherit' })
  peer = spawn(binary, { stdio: ['pipe', 'pipe', 'inherit'] })
  const [[line]] = await Promise.all([once(peer.stdout as NodeJS.ReadableStream, 'data'), launch().then((launched) => (browser = launched))])
  address = String(line).trim()
  const bundle = async (contents: string) => {
    const define = { SERVER: JSON.stringify(`${address.replace('http', 'ws')}/connection/websocket`) }
    const { outputFiles } = await build({ stdin: { contents, resolveDir: `${root}js` }, bundle: true, format: 'esm', target: 'es2022', write: false, define, tsconfigRaw: {}, logLevel: 'warning' })
    return outputFiles[0]?.text ?? ''
  }
  const files: Readonly<Record<string, string>> = {
    '/': '<!doctype html><meta charset="utf-8"><title>fixture</title><script type="module" src="/page.js"></script>',
    '/page.js': await bundle(PAGE),
    '/worker.js': await bundle(WORKER),
  }
  site = createServer(({ url = '' }, response) => {
    response.writeHead(url in files ? 200 : 404, { 'content-type': url.endsWith('.js') ? 'text/javascript' : 'text/html' }).end(files[url])
  })
  await new Promise<void>((resolve) => site.listen(0, '127.0.0.1', resolve))
  origin = `http://127.0.0.1:${(site.address() as AddressInfo).port}`
}, 180_000)
afterAll(async () => {
  await browser?.close()
  site?.close()
  peer?.stdin?.end()
})

/** Asks the server. */
async function server<T = unknown>(method: 'GET' | 'POST', path: string, params: Readonly<Record<string, string>> = {}, body?: unknown): Promise<T> {
  const response = await fetch(`${address}${path}?${new URLSearchParams(params)}`, { method, ...(body !== undefined && { body: JSON.stringify(body) }) })
  if (!response.ok) throw new Error(`${response.status} ${await response.text()}`)
  const text = await response.text()
  return (text && JSON.parse(text)) as T
}

const live = (channel: string) => server<{ live: number; peak: number; sockets: number }>('GET', '/live', { channel })
const publish = (channel: string, from: number, to: number) => (async () => { for (let n = from; n <= to; n++) await server('POST', '/publish', { channel }, { n }) })()
const poll = (check: () => unknown) => expect.poll(check, { timeout: 10_000, interval: 20 })
const numbers = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
const got = (page: Page, topic: string) => page.evaluate((topic) => (window.data[topic] ?? []).map(({ n }) => n), topic)
const told = (page: Page) => page.evaluate(() => window.told)

let channels = 0
const fresh = (prefix = 'h:') => `${prefix}${++channels}`

async function context(): Promise<BrowserContext> {
  const made = await browser.newContext()
  onTestFinished(() => made.close())
  return made
}

async function open(place: Parameters<Probe['at']>[0], config: Partial<CentrifugeConfig> = {}, within?: BrowserContext, tokens: string[] = []): Promise<Page> {
  const page = await (within ?? (await context())).newPage()
  const wrong = troubles(page)
  onTestFinished(() => expect(wrong).toEqual([]))
  await page.goto(origin)
  await page.waitForFunction(() => 'told' in window)
  await page.evaluate(([place, config, tokens]) => {
    window.at(place)
    window.tokens = tokens
    return window.begin(config)
  }, [place, config, tokens] as const)
  return page
}

async function subscribe(page: Page, topic: string, from?: Position): Promise<void> {
  const before = (await told(page)).length
  await page.evaluate(([topic, from]) => void window.line.subscribe(topic, from), [topic, from] as const)
  await poll(async () => (await told(page)).slice(before).some((what) => what.startsWith(`subscribed ${topic}`))).toBe(true)
}

describe.each(['page', 'dedicated', 'shared'] as const)('CentrifugeTransport, %s', (place) => {
  it('X19 X22 subscribes, publishes, and ends: the server says so', async () => {
    const page = await open(place)
    await poll(() => page.evaluate(() => window.statuses)).toEqual(['connecting', 'connected'])
    const [topic, plain] = [fresh(), fresh('plain:')]
    await subscribe(page, topic)
    await subscribe(page, plain)
    expect(await live(topic)).toMatchObject({ live: 1, peak: 1 })
    await page.evaluate(([topic, plain]) => Promise.all([window.line.publish(topic, { n: 1 }), window.line.publish(plain, { n: 2 })]), [topic, plain] as const)
    await poll(() => page.evaluate(() => window.data)).toEqual({ [topic]: [{ n: 1 }], [plain]: [{ n: 2 }] })
    expect(await page.evaluate((topic) => window.positions[topic], topic)).toEqual({ offset: 1, epoch: expect.any(String) })

    const refused = fresh('no:')
    await page.evaluate((topic) => void window.line.subscribe(topic), refused)
    await poll(async () => (await told(page)).at(-1)).toBe(`refused ${refused} TOPIC_FORBIDDEN`)
    expect(await page.evaluate((topic) => window.line.publish(topic, 1).catch(({ code }) => code), refused)).toBe('TOPIC_FORBIDDEN')

    // When it resolves the server has done it: nobody has to wait.
    await page.evaluate((topic) => window.line.unsubscribe(topic), topic)
    expect(await live(topic)).toMatchObject({ live: 0 })
    await page.evaluate(() => window.line.stop())
    await poll(() => live(plain)).toMatchObject({ live: 0, sockets: 0 })
  })

  it('X22 X27 from a position: what came after it, then what comes; what is gone is lost', async () => {
    const topic = fresh()
    const page = await open(place)
    await subscribe(page, topic)
    await publish(topic, 1, 5)
    await poll(() => got(page, topic)).toEqual(numbers(1, 5))
    const epoch = await page.evaluate((topic) => window.positions[topic]?.epoch as string, topic)
    await page.evaluate((topic) => window.line.unsubscribe(topic), topic)
    await publish(topic, 6, 9)
    await subscribe(page, topic, { offset: 5, epoch })
    await publish(topic, 10, 12)
    await poll(() => got(page, topic)).toEqual(numbers(1, 12))
    expect(await told(page)).toEqual([`subscribed ${topic}`, `subscribed ${topic}`])

    await page.evaluate((topic) => window.line.unsubscribe(topic), topic)
    await publish(topic, 13, 15)
    await server('POST', '/forget', { channel: topic })
    await subscribe(page, topic, { offset: 12, epoch })
    expect((await told(page)).at(-1)).toBe(`subscribed ${topic} lost`)
    await publish(topic, 16, 16)
    await poll(async () => (await got(page, topic)).at(-1)).toBe(16)
  })

  it('X04 X22 X27 the network fails, and the server moves the subscription, again and again: every publication once, in order', async () => {
    const topic = fresh()
    const page = await open(place, { options: { minReconnectDelay: 20, maxReconnectDelay: 200 } })
    await subscribe(page, topic)
    let n = 0
    for (let round = 0; round < 8; round++) {
      await publish(topic, n + 1, (n += 5))
      await server('POST', round % 4 === 3 ? '/unsubscribe' : '/kill', { channel: topic, resubscribe: '1' })
      await publish(topic, n + 1, (n += 5))
      if (round % 2) await sleep(100)
    }
    await poll(() => got(page, topic)).toEqual(numbers(1, n))
    expect((await told(page)).filter((what) => what.endsWith('lost'))).toEqual([])
    expect(await live(topic)).toMatchObject({ live: 1 })
    // For good.
    await server('POST', '/unsubscribe', { channel: topic })
    await poll(async () => (await told(page)).at(-1)).toBe(`refused ${topic} CENTRIFUGE_2000`)
  })

  it('X25 the token comes from the page: for the first time, when refused, and when it expires', async () => {
    const before = (await server<string[] | null>('GET', '/tokens'))?.length ?? 0
    const page = await open(place, { token: 'bridge' }, undefined, ['expired', 'brief-1', 'brief-2'])
    await poll(async () => (await server<string[]>('GET', '/tokens')).slice(before)).toEqual(['expired', 'brief-1', 'brief-2'])
    expect(await page.evaluate(() => window.asked)).toEqual(['connect', 'expired', 'expired'])
    const refused = await open(place, { token: 'wrong' })
    await poll(() => told(refused)).toEqual(['error SOCKET_UNAUTHENTICATED'])
  })
})

describe('CentrifugeTransport in the engine of a SharedWorker', () => {
  it('X22 X27 X30 five tabs: one connection, one subscription; the worker dies, twice: every tab has every publication once', async () => {
    const within = await context()
    const topic = fresh()
    const pages = await Promise.all(Array.from({ length: 5 }, () => open('engine', {}, within)))
    for (const page of pages) await subscribe(page, topic)
    expect(await live(topic)).toEqual({ live: 1, peak: 1, sockets: 1 })
    let n = 0
    const times: number[] = []
    for (let round = 0; round < 2; round++) {
      await publish(topic, n + 1, (n += 10))
      await pages[0]?.evaluate(() => new BroadcastChannel('die').postMessage(1))
      const died = performance.now()
      await publish(topic, n + 1, (n += 10))
      const life = () => Promise.all(pages.map((page) => page.evaluate(() => window.line.snapshot().workerId)))
      await poll(async () => (await live(topic)).live).toBe(0)
      await poll(async () => (await live(topic)).live).toBe(1)
      for (const page of pages) await poll(() => got(page, topic)).toEqual(numbers(1, n))
      times.push(Math.round(performance.now() - died))
      expect(new Set(await life()).size).toBe(1)
    }
    console.log(`the worker died: all five tabs had everything after ${times.join(' and ')} ms`)
    // A machine with more to do than it can takes longer, but not each time.
    expect(Math.min(...times)).toBeLessThan(3000)
    for (const page of pages) expect((await told(page)).filter((what) => what.startsWith('lost'))).toEqual([])
    expect(await live(topic)).toEqual({ live: 1, peak: 1, sockets: 1 })
    await pages[0]?.close()
    await publish(topic, n + 1, (n += 1))
    for (const page of pages.slice(1)) await poll(() => got(page, topic)).toEqual(numbers(1, n))
    for (const page of pages.slice(1)) await page.close()
    await poll(() => live(topic)).toMatchObject({ live: 0, sockets: 0 })
  })
})
