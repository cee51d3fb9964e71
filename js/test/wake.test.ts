// @vitest-environment happy-dom
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { settle, World } from './fake.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

let visibility: DocumentVisibilityState = 'visible'
Object.defineProperty(document, 'visibilityState', { get: () => visibility })

function show(state: DocumentVisibilityState): void {
  visibility = state
  document.dispatchEvent(new Event('visibilitychange'))
}

function pageshow(persisted: boolean): void {
  window.dispatchEvent(Object.assign(new Event('pageshow'), { persisted }))
}

const wakes = {
  online: () => window.dispatchEvent(new Event('online')),
  restored: () => pageshow(true),
  visible: () => show('visible'),
}

describe('waking', () => {
  for (const [name, wake] of Object.entries(wakes)) {
    it(`P31 P32 ${name}: a dead connection is replaced within 2 s`, async () => {
      const world = new World()
      const socket = await world.connect()
      vi.setSystemTime(Date.now() + 16_000)
      wake()
      wake()
      expect(socket.of('hello')).toHaveLength(2)
      await vi.advanceTimersByTimeAsync(2000)
      expect(socket.closedWith?.code).toBe(4000)
      await vi.advanceTimersByTimeAsync(125)
      expect(world.sockets).toHaveLength(2)
      world.client.close()
    })

    it(`P31 ${name}: a waiting client dials at once`, async () => {
      const world = new World({ random: () => 0.999 })
      world.client.connect()
      await settle()
      for (let i = 0; i < 5; i++) {
        world.socket.end(1006)
        if (i < 4) await vi.advanceTimersByTimeAsync(4000)
      }
      const before = world.sockets.length
      wake()
      wake()
      await settle()
      expect(world.sockets).toHaveLength(before + 1)
      world.client.close()
    })

    it(`${name}: a closed client stays closed`, async () => {
      const world = new World()
      await world.connect()
      world.client.close()
      wake()
      await vi.advanceTimersByTimeAsync(60_000)
      expect(world.sockets).toHaveLength(1)
    })
  }

  it('P32 visible soon after a frame, or hidden, or a fresh pageshow, asks nothing', async () => {
    const world = new World()
    const socket = await world.connect()
    show('hidden')
    await vi.advanceTimersByTimeAsync(10_000)
    show('visible')
    pageshow(false)
    expect(socket.of('hello')).toHaveLength(1)
    world.client.close()
  })

  it("resolves a relative url against the page", async () => {
    window.location.href = 'https://app.test/some/page'
    const world = new World({ url: '/v1/socket?x=1' })
    world.client.connect()
    await settle()
    expect(world.socket.url).toBe('wss://app.test/v1/socket?x=1')
    world.client.close()
  })

  it('P31 offline closes nothing', async () => {
    const world = new World()
    const socket = await world.connect()
    window.dispatchEvent(new Event('offline'))
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.closedWith).toBeUndefined()
    expect(world.state.kind).toBe('connected')
    world.client.close()
  })

  it("P27 the server's slot stands, whatever wakes", async () => {
    const world = new World()
    const socket = await world.connect()
    socket.reply({ type: 'reconnect', afterMs: 10_000 })
    socket.end(1012)
    for (const wake of Object.values(wakes)) wake()
    await vi.advanceTimersByTimeAsync(9999)
    expect(world.sockets).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(1)
    expect(world.sockets).toHaveLength(2)
    world.client.close()
  })

  it('P31 online replaces a dial that began on the old network', async () => {
    const world = new World()
    world.client.connect()
    await settle()
    wakes.online()
    await settle()
    expect(world.sockets).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(2001)
    const old = world.socket
    wakes.online()
    await settle()
    expect(world.sockets).toHaveLength(2)
    expect(old.closedWith).toBeDefined()
    old.open()
    expect(old.sent).toEqual([])
    world.client.close()
  })
})
