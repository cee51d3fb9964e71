import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, inject, it, onTestFinished } from 'vitest'
import type * as Bus from '../src/bus/index.js'
import { launch, troubles } from './browser.js'
import { Fixture } from './fixture.js'

/** What the page's window has. */
interface Probe {
  readonly bus: typeof Bus
  startWorker(): Promise<unknown>
  sender: Bus.BroadcastBus
  readonly seen: unknown[]
  readonly told: string[]
  settle: (() => void)[]
}
declare const window: Probe

let browser: Browser
let peer: ChildProcess
let address: string

beforeAll(async () => {
  const binary = join(inject('folder'), 'ackbus')
  execFileSync('go', ['build', '-o', binary, './e2e/ackbus'], { cwd: fileURLToPath(new URL('../..', import.meta.url)), stdio: 'inherit' })
  peer = spawn(binary, { stdio: ['pipe', 'pipe', 'inherit'] })
  const [[line]] = await Promise.all([once(peer.stdout as NodeJS.ReadableStream, 'data'), launch().then((launched) => (browser = launched))])
  address = String(line).trim()
})
afterAll(async () => {
  await browser?.close()
  peer?.stdin?.end()
})

/** Pages of one origin. */
async function pages(count: number): Promise<Page[]> {
  const fixture = await Fixture.serve(address, 'bus.ts')
  const context = await browser.newContext()
  onTestFinished(async () => {
    await context.close()
    fixture.stop()
  })
  return Promise.all(
    Array.from({ length: count }, async () => {
      const page = await context.newPage()
      const wrong = troubles(page)
      onTestFinished(() => expect(wrong).toEqual([]))
      await page.goto(fixture.url)
      await page.waitForFunction(() => 'bus' in window)
      return page
    }),
  )
}

const pending = (page: Page) => page.evaluate(() => Object.fromEntries(window.sender.getPendingCounts()))
const poll = (check: () => unknown) => expect.poll(check, { timeout: 10_000, interval: 20 })

describe('BroadcastChannel', () => {
  it('B02 B03 B05 B06 B11 two pages and a worker: frames are acknowledged, and who does not is slow until caught up', async () => {
    const [near, far] = (await pages(2)) as [Page, Page]
    await near.evaluate(async () => {
      const channel = new BroadcastChannel('room')
      const told: string[] = []
      const sender = window.bus.createBroadcastBus({ channel, ackTimeoutMs: 3000, onSlowConsumer: (id) => told.push(id) })
      Object.assign(window, { sender, told })
      await window.startWorker()
    })
    await far.evaluate(() => {
      const [seen, settle]: [unknown[], (() => void)[]] = [[], []]
      Object.assign(window, { seen, settle })
      window.bus.receiveAcked(new BroadcastChannel('room'), 'page', (frame) => {
        seen.push(frame)
        return frame === 'wait' ? new Promise<void>((resolve) => settle.push(resolve)) : undefined
      })
    })
    await near.evaluate(() => window.sender.broadcast({ text: 'hello', bytes: new Uint8Array([1]) }, [{ id: 'page' }, { id: 'worker' }, { id: 'nobody' }]))
    await poll(() => pending(near)).toEqual({ page: 0, worker: 0, nobody: 1 })
    await poll(() => near.evaluate(() => window.told)).toEqual(['nobody'])
    expect(await far.evaluate(() => window.seen.length)).toBe(1)

    await near.evaluate(() => {
      for (let i = 0; i < 3; i++) window.sender.send({ id: 'page' }, 'wait')
    })
    expect(await near.evaluate(() => [...window.sender.getSlowConsumerIds()])).toEqual(['page', 'nobody'])
    await poll(() => far.evaluate(() => window.settle.length)).toBe(3)
    await poll(() => pending(near)).toEqual({ page: 0, worker: 0, nobody: 0 }) // all of them late
    await far.evaluate(() => window.settle.forEach((settle) => settle()))
    await poll(() => near.evaluate(() => [...window.sender.getSlowConsumerIds()])).toEqual(['nobody'])
    expect(await near.evaluate(() => window.told)).toEqual(['nobody', 'page'])

    await near.evaluate(() => {
      window.sender.close({ id: 'nobody' })
      window.sender.dispose()
    })
    expect(await near.evaluate(() => window.sender.send({ id: 'page' }, 'after'))).toBe(false)
    expect(await far.evaluate(() => window.seen.length)).toBe(4)
  })

  it('B13 a hub on a bus: a page that stands still gets the newest when it is back', async () => {
    const [near, far] = (await pages(2)) as [Page, Page]
    await far.evaluate(() => {
      const [seen, settle]: [unknown[], (() => void)[]] = [[], []]
      Object.assign(window, { seen, settle, still: true })
      window.bus.receiveAcked(new BroadcastChannel('hub'), 'page', (frame) => {
        seen.push(frame)
        return (window as unknown as { still: boolean }).still ? new Promise<void>((resolve) => settle.push(resolve)) : undefined
      })
    })
    await near.evaluate(() => {
      const sender = window.bus.createBroadcastBus({ channel: new BroadcastChannel('hub') })
      const hub = new window.bus.RealtimeHub({ send: sender.send, close: sender.close, isSlow: sender.isSlow })
      Object.assign(window, { sender, hub })
      hub.subscribe('chat', () => {}, { id: 'page', maxQueue: 2, slowConsumer: 'drop-oldest' })
      for (let i = 1; i <= 8; i++) hub.publish('chat', i)
    })
    await poll(() => far.evaluate(() => window.seen)).toEqual([1, 2, 3])
    await far.evaluate(() => {
      Object.assign(window, { still: false })
      window.settle.forEach((settle) => settle())
    })
    await poll(() => pending(near)).toEqual({ page: 0 })
    await near.evaluate(() => (window as unknown as { hub: Bus.RealtimeHub }).hub.flush())
    await poll(() => far.evaluate(() => window.seen)).toEqual([1, 2, 3, 7, 8])
  })
})

describe('Go and TypeScript over WebSockets', () => {
  interface State {
    readonly pending: Readonly<Record<string, number>>
    readonly slow: readonly string[] | null
    readonly told: readonly string[] | null
    readonly got: readonly string[] | null
  }
  const state = async () => (await (await fetch(`${address}/state`)).json()) as State
  const send = async (frame: string, ...to: string[]) => {
    const response = await fetch(`${address}/send?${new URLSearchParams(to.map((id) => ['to', id]))}`, { method: 'POST', body: frame })
    expect(response.status).toBe(200)
  }

  /** Gives a page a socket to a room. */
  const join = (page: Page, room: string, as: string) =>
    page.evaluate(
      async ([room, as]) => {
        const socket = new WebSocket(`/${room}`)
        socket.binaryType = 'arraybuffer'
        const channel = window.bus.byteChannel((bytes) => socket.send(bytes))
        socket.onmessage = ({ data }) => channel.receive(data as ArrayBuffer)
        await new Promise((resolve) => (socket.onopen = resolve))
        const [seen, settle]: [unknown[], (() => void)[]] = [[], []]
        if (!('seen' in window)) Object.assign(window, { seen, settle })
        if (as === 'bus') Object.assign(window, { sender: window.bus.createBroadcastBus({ channel }) })
        else
          window.bus.receiveAcked<Uint8Array>(channel, as, (frame) => {
            const text = new TextDecoder().decode(frame)
            window.seen.push(text)
            return text === 'wait' ? new Promise<void>((resolve) => window.settle.push(resolve)) : undefined
          })
      },
      [room, as] as const,
    )

  it('B03 B04 B05 B06 B11 a bus in Go and one in TypeScript: each acknowledges the other', async () => {
    const [one, two] = (await pages(2)) as [Page, Page]
    await join(one, 'ts', 'bus')
    await join(two, 'ts', 'page-ü')
    await join(one, 'go', 'one')
    await join(two, 'go', 'two')

    // TypeScript sends, Go and TypeScript acknowledge.
    await one.evaluate(() => {
      const bytes = (text: string) => new TextEncoder().encode(text)
      window.sender.send({ id: 'go' }, bytes('to go'))
      window.sender.broadcast(bytes('to all'), [{ id: 'go' }, { id: 'page-ü' }])
    })
    await poll(() => pending(one)).toEqual({ go: 0, 'page-ü': 0 })
    expect((await state()).got).toEqual(['to go', 'to all'])

    // Go sends.
    await send('from go', 'one')
    await send('from go to all', 'one', 'two', 'go')
    await poll(async () => (await state()).pending).toEqual({ one: 0, two: 0, go: 0 })
    expect(await one.evaluate(() => window.seen)).toEqual(['from go', 'from go to all'])
    expect(await two.evaluate(() => window.seen)).toEqual(['to all', 'from go to all'])
    expect((await state()).told).toBeNull()

    // One that does not answer is slow to the bus in Go, and no longer when it has.
    await send('wait', 'two')
    await poll(async () => (await state()).slow).toEqual(['two'])
    expect((await state()).told).toEqual(['two'])
    await two.evaluate(() => window.settle.forEach((settle) => settle()))
    await poll(async () => (await state()).slow).toBeNull()
  })
})
