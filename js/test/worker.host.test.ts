import { describe, expect, it } from 'vitest'
import type { WorkerPort } from '../src/crosstab/platform.js'
import type { DataBusTransport, TransportEvents } from '../src/crosstab/transport.js'
import type { TestCluster, TestTabOptions } from '../src/testing/index.js'
import { buffersOf } from '../src/worker/buffers.js'
import { createHost } from '../src/worker/host.js'
import { Log, Page, SCRIPT, upTo, workerCluster } from './worker.fixture.js'

/** Runs a call that takes time. */
async function done<T>(cluster: TestCluster, call: Promise<T>): Promise<T> {
  let settled = false
  const over = () => (settled = true)
  call.then(over, over)
  await cluster.clock.until(() => settled)
  return call
}

async function started(cluster: TestCluster, page: Page, topic?: string): Promise<Page> {
  await done(cluster, page.start())
  await cluster.clock.until(() => page.statuses.at(-1) === 'connected')
  if (topic === undefined) return page
  page.transport.subscribe(topic)
  await cluster.clock.until(() => page.count(`subscribed ${topic}`) > 0)
  return page
}

/** A transport that does nothing, except what a test adds. */
class Stub implements DataBusTransport {
  events: TransportEvents | undefined
  readonly published: unknown[] = []
  start(_config: unknown, events: TransportEvents): Promise<void> {
    this.events = events
    return Promise.resolve()
  }
  stop(): Promise<void> {
    return Promise.resolve()
  }
  subscribe(topic: string): void {
    queueMicrotask(() => this.events?.subscribed(topic))
  }
  unsubscribe(): void {}
  publish(_topic: string, data: unknown): Promise<void> {
    this.published.push(data)
    return Promise.resolve()
  }
}

describe('where the connection lives', () => {
  const places: [string, TestTabOptions, string | undefined, 'dedicated' | 'auto' | 'shared'][] = [
    ['dedicated: a Dedicated Worker', {}, 'dedicated', 'dedicated'],
    ['dedicated: then a SharedWorker', { without: ['dedicatedWorker'] }, 'shared', 'dedicated'],
    ['dedicated: then the page', { without: ['dedicatedWorker', 'sharedWorker'] }, 'page', 'dedicated'],
    ['auto: a SharedWorker', {}, 'shared', 'auto'],
    ['auto: then a Dedicated Worker', { without: ['sharedWorker'] }, 'dedicated', 'auto'],
    ['auto: then the page', { without: ['dedicatedWorker', 'sharedWorker'] }, 'page', 'auto'],
    ['shared: a SharedWorker', {}, 'shared', 'shared'],
    ['shared: or nothing', { without: ['sharedWorker'] }, undefined, 'shared'],
  ]
  it.each(places)('X19 %s', async (_, tab, place, mode) => {
    const cluster = workerCluster()
    const page: Page = new Page(cluster, { tab, mode, page: () => cluster.transport(page.tab) })
    if (place === undefined) {
      await expect(done(cluster, page.start())).rejects.toMatchObject({ code: 'WORKER_UNAVAILABLE', cause: expect.stringContaining('no shared workers') })
      return
    }
    await started(cluster, page, 'news')
    expect(page.transport.place).toBe(place)
    expect(page.transport.placeReason).toContain(tab.without ? 'this browser has no' : '')
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    expect(page.data).toEqual({ news: [1] })
    await done(cluster, page.transport.stop())
    await cluster.clock.quiet()
    expect(page.transport.place).toBeUndefined()
    expect(cluster.leaks()).toEqual([])
  })

  it('X19 a script that cannot be had, or that does not answer, is the next place', async () => {
    const cluster = workerCluster({ scripts: { '/silent.js': () => {} } })
    const lost: Page = new Page(cluster, { workerUrl: '/gone.js', mode: 'auto', page: () => cluster.transport(lost.tab) })
    await started(cluster, lost)
    expect(lost.transport.place).toBe('page')
    expect(lost.transport.placeReason).toMatch(/shared: .*no script at.*dedicated: .*no script at/)
    const silent: Page = new Page(cluster, { workerUrl: '/silent.js', mode: 'shared' })
    await expect(done(cluster, silent.start())).rejects.toMatchObject({ code: 'WORKER_UNAVAILABLE', cause: expect.stringContaining('no answer in 3000 ms') })
    const refused: Page = new Page(cluster, {
      mode: 'shared',
      createWorker: () => {
        throw new DOMException('refused by the policy', 'SecurityError')
      },
    })
    await expect(done(cluster, refused.start())).rejects.toMatchObject({ code: 'WORKER_UNAVAILABLE', cause: expect.stringContaining('refused by the policy') })
  })

  it('X19 in a SharedWorker each port has a session of its own', async () => {
    const cluster = workerCluster()
    const [a, b] = [new Page(cluster, { mode: 'shared' }), new Page(cluster, { mode: 'shared' })]
    await started(cluster, a, 'news')
    await started(cluster, b, 'news')
    expect(cluster.workers).toHaveLength(1)
    expect(cluster.server.connections).toHaveLength(2)
    await done(cluster, a.transport.stop())
    await cluster.clock.quiet()
    expect(cluster.server.connections).toHaveLength(1)
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    expect([a.data, b.data]).toEqual([{}, { news: [1] }])
  })

  it('subscribing, unsubscribing and publishing do what they do in the page', async () => {
    const cluster = workerCluster()
    const page = await started(cluster, new Page(cluster), 'news')
    await done(cluster, page.transport.publish('news', { n: 1 }))
    await cluster.clock.quiet()
    expect(page.data).toEqual({ news: [{ n: 1 }] })
    await expect(done(cluster, page.transport.publish('news', () => {}))).rejects.toMatchObject({ code: 'DATA_INVALID' })
    await done(cluster, page.transport.unsubscribe('news') as Promise<void>)
    expect(cluster.server.topics).toEqual([])
    cluster.server.refuse('secret')
    page.transport.subscribe('secret')
    await cluster.clock.quiet()
    expect(page.told.at(-1)).toBe('refused secret INTERNAL')
    await expect(done(cluster, page.transport.publish('secret', 1))).rejects.toMatchObject({ code: 'INTERNAL', cause: 'Error: refused: secret' })
    // From a position.
    for (const n of [2, 3]) cluster.server.publish('news', { n })
    page.transport.subscribe('news', { offset: 2, epoch: page.positions['news']?.epoch as string })
    await cluster.clock.quiet()
    expect(page.data['news']).toEqual([{ n: 1 }, { n: 3 }])
  })
})

describe('death of a page', () => {
  it('X20 without locks a silent port is reaped after 30 s, with its session and subscriptions', async () => {
    const cluster = workerCluster()
    const without: TestTabOptions = { without: ['locks'] }
    const [a, b] = [new Page(cluster, { mode: 'shared', tab: without }), new Page(cluster, { mode: 'shared', tab: without })]
    await started(cluster, a, 'news')
    await started(cluster, b, 'news')
    a.tab.crash()
    await cluster.clock.advance(29_000)
    expect(cluster.server.connections).toHaveLength(2)
    await cluster.clock.advance(11_000)
    expect(cluster.server.connections).toHaveLength(1)
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    expect(b.data).toEqual({ news: [1] })
  })

  it('X20 a port pings: one of a hidden page, whose timers run once a minute, is not reaped', async () => {
    const cluster = workerCluster()
    const page = await started(cluster, new Page(cluster, { mode: 'shared', tab: { without: ['locks'] } }), 'news')
    await cluster.clock.advance(120_000)
    page.tab.setVisible(false, 60_000)
    await cluster.clock.advance(300_000)
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    expect(page.data).toEqual({ news: [1] })
    expect(page.statuses).toEqual(['connecting', 'connected'])
  })

  it('X20 with locks a dead page is noticed within 1 s, and the worker holds none itself', async () => {
    const cluster = workerCluster()
    const [a, b] = [new Page(cluster, { mode: 'shared' }), new Page(cluster, { mode: 'shared' })]
    await started(cluster, a, 'news')
    await started(cluster, b, 'news')
    expect(cluster.leaks().filter((leak) => /^worker.*holds/.test(leak))).toEqual([])
    expect(cluster.leaks().filter((leak) => /^worker.*waits/.test(leak))).toHaveLength(2)
    a.tab.crash()
    await cluster.clock.advance(1000)
    expect(cluster.server.connections).toHaveLength(1)
    expect(cluster.leaks().filter((leak) => /^worker.*holds/.test(leak))).toEqual([])
    await done(cluster, b.transport.stop())
    expect(cluster.server.connections).toHaveLength(0)
  })

  it('a page that took the worker for dead, wrongly, has one session there: its other port is over', async () => {
    const cluster = workerCluster()
    const { platform } = cluster.tab()
    const host = createHost({ platform, transport: () => cluster.transport({ platform }) })
    const ports = [1, 2, 3].map((n) => {
      const port: WorkerPort & { closed: boolean } = { postMessage: () => {}, onmessage: null, onerror: null, closed: false, close: () => (port.closed = true) }
      host.connect(port)
      port.onmessage?.({ data: { call: 'hello', id: 1, protocol: 1, build: 'source', page: n < 3 ? 'one' : 'other', config: {}, topics: [{ topic: 'news' }] } })
      return port
    })
    await cluster.clock.quiet()
    expect(ports.map(({ closed }) => closed)).toEqual([true, false, false])
    expect(cluster.server.connections).toHaveLength(2)
    expect(cluster.server.subscriptions('news')).toHaveLength(2)
  })
})

describe('X21 bytes', () => {
  it('X21 with transferable they are moved, to the worker and from it; without, copied', async () => {
    for (const transferable of [true, false]) {
      const stubs: Stub[] = []
      const cluster = workerCluster({ transport: () => stubs[stubs.push(new Stub()) - 1] as Stub })
      const page = new Page(cluster, { transferable })
      await done(cluster, page.start())
      page.transport.subscribe('bytes')
      await cluster.clock.quiet()
      const mine = new Uint8Array([1, 2, 3])
      const inside = { list: [new Uint8Array([4]).buffer] }
      await done(cluster, page.transport.publish('bytes', mine))
      await done(cluster, page.transport.publish('bytes', inside))
      expect([mine.byteLength, inside.list[0]?.byteLength]).toEqual(transferable ? [0, 0] : [3, 1])
      expect(stubs[0]?.published).toEqual([new Uint8Array([1, 2, 3]), { list: [new Uint8Array([4]).buffer] }])
      const theirs = new Uint8Array([5, 6])
      stubs[0]?.events?.publication('bytes', { data: theirs, position: { offset: 1, epoch: 'e' } })
      await cluster.clock.quiet()
      expect(page.data['bytes']).toEqual([new Uint8Array([5, 6])])
      expect(theirs.byteLength).toBe(transferable ? 0 : 2)
    }
  })

  it('X21 a view of a part of a buffer is copied: others may look at the rest', () => {
    const whole = new Uint8Array(8)
    expect(buffersOf([whole.subarray(2, 4), new Map([[1, whole]]), null, 'text'])).toEqual([])
    expect(buffersOf({ a: whole, b: { c: whole.buffer } })).toEqual([whole.buffer])
  })
})

describe('X25 credentials', () => {
  /** Asks for a credential and says what it got. */
  class Asking extends Stub {
    override publish(_topic: string, data: unknown): Promise<void> {
      return Promise.resolve(this.events?.credential?.(data as 'connect')).then((token) => void this.published.push(token))
    }
  }
  const asking = () => {
    const stubs: Asking[] = []
    return { stubs, cluster: workerCluster({ transport: () => stubs[stubs.push(new Asking()) - 1] as Asking }) }
  }

  it('X25 the transport in the worker asks its page, for its reason', async () => {
    const { stubs, cluster } = asking()
    const page = new Page(cluster)
    page.token = (reason) => Promise.resolve(`for ${reason}`)
    await done(cluster, page.start())
    await done(cluster, page.transport.publish('', 'connect'))
    await done(cluster, page.transport.publish('', 'expired'))
    expect(stubs[0]?.published).toEqual(['for connect', 'for expired'])
  })

  it('X25 what the page says no with arrives, typed; a page that does not answer is not waited for', async () => {
    const { cluster } = asking()
    const page = new Page(cluster)
    page.token = () => Promise.reject(Object.assign(new Error('logged out'), { code: 'SOCKET_UNAUTHENTICATED' }))
    await done(cluster, page.start())
    await expect(done(cluster, page.transport.publish('', 'connect'))).rejects.toMatchObject({ code: 'SOCKET_UNAUTHENTICATED' })
    page.token = () => new Promise(() => {})
    await expect(done(cluster, page.transport.publish('', 'connect'))).rejects.toMatchObject({ code: 'TOKEN_UNAVAILABLE' })
  })
})

describe('death of a worker', () => {
  it.each(['shared', 'dedicated'] as const)('X19 a %s worker that dies without a word is replaced within 3 s, nothing is lost or doubled, and calls are rejected', async (mode) => {
    for (let seed = 1; seed <= 20; seed++) {
      const cluster = workerCluster({ seed })
      const page = await started(cluster, new Page(cluster, { mode }), 'news')
      page.transport.subscribe('quiet')
      for (let n = 1; n <= 5; n++) cluster.server.publish('news', n)
      await cluster.clock.advance(seed * 97)
      for (let n = 6; n <= 10; n++) cluster.server.publish('news', n)
      cluster.scopes.at(-1)?.scope.close()
      const died = cluster.clock.now
      const call = page.transport.publish('news', 'lost?')
      for (let n = 11; n <= 15; n++) cluster.server.publish('news', n)
      await expect(done(cluster, call)).rejects.toMatchObject({ code: 'WORKER_LOST' })
      await cluster.clock.until(() => cluster.server.subscriptions('news').length === 1)
      expect(cluster.clock.now - died).toBeLessThan(3000)
      cluster.server.publish('news', 16)
      await cluster.clock.quiet()
      expect(page.data['news']?.filter((n) => typeof n === 'number')).toEqual(upTo(16))
      expect(page.statuses.slice(2)).toEqual(['disconnected', 'connecting', 'connected'])
      await done(cluster, page.transport.stop())
    }
  })

  it('a worker that began anew under a live port is another one', async () => {
    const cluster = workerCluster()
    const page = await started(cluster, new Page(cluster, { mode: 'shared' }), 'news')
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    cluster.scopes[0]?.restart()
    const then = cluster.clock.now
    await cluster.clock.until(() => page.statuses.filter((status) => status === 'connected').length === 2)
    expect(cluster.clock.now - then).toBeLessThan(3000)
    cluster.server.publish('news', 2)
    await cluster.clock.quiet()
    expect(page.data).toEqual({ news: [1, 2] })
  })

  it('of topics without a history the loss is told', async () => {
    const cluster = workerCluster({ history: 0 })
    const page = await started(cluster, new Page(cluster, { mode: 'shared' }), 'news')
    cluster.workers[0]?.kill()
    await cluster.clock.until(() => page.count('subscribed news lost') === 1)
    expect(page.told.filter((told) => told.includes('news'))).toEqual(['subscribed news', 'subscribed news lost'])
  })

  it('without any worker to be had it gives up, and says so', async () => {
    let broken = false
    const cluster = workerCluster()
    const page: Page = new Page(cluster, {
      mode: 'shared',
      createWorker: (_, name) => {
        if (broken) throw new Error('no more')
        const port = page.tab.platform.sharedWorker?.(SCRIPT, name)
        return { port } as unknown as SharedWorker
      },
    })
    await started(cluster, page)
    broken = true
    cluster.workers[0]?.kill()
    await cluster.clock.until(() => page.statuses.at(-1) === 'error')
    expect(page.told.slice(-2)).toEqual(['disconnected WORKER_LOST', 'error WORKER_UNAVAILABLE'])
    await expect(page.transport.publish('news', 1)).rejects.toMatchObject({ code: 'WORKER_LOST' })
    await done(cluster, page.transport.stop())
  })

  it('a page and a worker of two builds have nothing to do with each other', async () => {
    const cluster = workerCluster({ build: 'another' })
    const page = new Page(cluster, { mode: 'shared' })
    await expect(done(cluster, page.start())).rejects.toMatchObject({ code: 'WORKER_UNAVAILABLE', cause: expect.stringContaining('WORKER_INCOMPATIBLE: the worker is 1/another, the page 1/source') })
  })

  it('what is no message of the protocol is ignored', async () => {
    const cluster = workerCluster()
    const page = await started(cluster, new Page(cluster, { mode: 'shared' }), 'news')
    const port = page.tab.platform.sharedWorker?.(SCRIPT, cluster.workers[0]?.name as string)
    for (const junk of [undefined, null, 7, 'text', {}, { call: 'nothing' }, { call: 'token', ask: 99 }, { call: 'publish' }, { call: 'unsubscribe', id: 1 }]) port?.postMessage(junk)
    await cluster.clock.quiet()
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    expect(page.data).toEqual({ news: [1] })
  })
})

describe('a slow page', () => {
  it.each([['with a history', 1000], ['without', 0]] as const)('%s: it is told to begin anew where it is, and the worker keeps nothing for it', async (_, history) => {
    const cluster = workerCluster({ history })
    const [slow, quick] = [new Page(cluster, { mode: 'shared' }), new Page(cluster, { mode: 'shared' })]
    await started(cluster, slow, 'news')
    await started(cluster, quick, 'news')
    const data = (n: number) => ({ n, text: 'x'.repeat(50_000) })
    cluster.server.publish('news', data(1))
    await cluster.clock.quiet()
    slow.tab.hang()
    for (let n = 2; n <= 60; n++) {
      cluster.server.publish('news', data(n))
      await cluster.clock.quiet(50)
    }
    // Its topics are forgotten: what comes now is kept by nobody.
    expect(cluster.server.subscriptions('news')).toHaveLength(1)
    slow.tab.unhang()
    await cluster.clock.advance(5000)
    cluster.server.publish('news', data(61))
    await cluster.clock.quiet()
    const numbers = (page: Log) => page.data['news']?.map((item) => (item as { n: number }).n)
    expect(numbers(quick)).toEqual(upTo(61))
    if (history) {
      expect(numbers(slow)).toEqual(upTo(61))
      expect(slow.count('subscribed news lost')).toBe(0)
    } else {
      expect(numbers(slow)).toEqual([...new Set(numbers(slow))])
      expect(numbers(slow)?.at(-1)).toBe(61)
      expect(slow.count('subscribed news lost')).toBe(1)
    }
  })
})
