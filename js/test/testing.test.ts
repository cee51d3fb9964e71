import { describe, expect, it } from 'vitest'
import type { ChannelPort, Platform } from '../src/crosstab/platform.js'
import type { Publication, TransportEvents } from '../src/crosstab/transport.js'
import { createTestCluster, type TestTab } from '../src/testing/index.js'

const listen = (platform: Platform, name = 'c') => {
  const port = platform.channel?.(name) as ChannelPort
  const heard: unknown[] = []
  port.onmessage = ({ data }) => heard.push(data)
  return { port, heard }
}

/** Holds a lock until let go. */
const hold = (tab: TestTab, name = 'l', options = {}) => {
  const state = { held: 0, lost: undefined as unknown, letGo: () => {} }
  tab.platform.locks
    ?.request(name, options, (lock) => {
      if (!lock) return
      state.held++
      return new Promise<void>((resolve) => (state.letGo = resolve))
    })
    .catch((error: unknown) => (state.lost = error))
  return state
}

const events = () => {
  const log: string[] = []
  const on: TransportEvents = {
    status: (status) => log.push(status),
    publication: (topic, { data, position }: Publication) => log.push(`${topic} ${String(data)}@${position?.offset}`),
    subscribed: (topic, position, lost) => log.push(`${topic} from ${position?.offset}${lost ? ' lost' : ''}`),
    refused: (topic, _, retry) => log.push(`${topic} refused${retry ? ' for now' : ''}`),
  }
  return { log, on }
}

describe('clock', () => {
  it('runs what is due in order, and microtasks after each', async () => {
    const { clock, tab } = createTestCluster()
    const { platform } = tab()
    const seen: string[] = []
    platform.after(20, () => seen.push(`second ${platform.now()}`))
    platform.after(10, () => void Promise.resolve().then(() => seen.push(`first ${platform.now()}`)))
    platform.after(15, () => seen.push('never'))()
    await clock.advance(100)
    expect(seen).toEqual(['first 10', 'second 20'])
    expect(clock.now).toBe(100)
  })

  it('is quiet when only timers are left', async () => {
    const { clock, tab } = createTestCluster()
    const [a, b] = [tab(), tab()]
    const { port } = listen(a.platform)
    const { heard } = listen(b.platform)
    a.platform.after(1000, () => {})
    port.postMessage(1)
    await clock.quiet()
    expect(heard).toEqual([1])
    expect(clock.now).toBeLessThan(10)
  })

  it('one seed is one order', async () => {
    const run = async (seed: number) => {
      const { clock, tab } = createTestCluster({ seed })
      const tabs = Array.from({ length: 4 }, () => tab())
      const ports = tabs.map(({ platform }) => listen(platform))
      const last = ports[3] as { heard: unknown[] }
      for (let i = 0; i < 10; i++) for (const [n, { port }] of ports.entries()) port.postMessage(`${n}.${i}`)
      await clock.quiet()
      return [last.heard.join(' '), tabs[0]?.platform.randomId()]
    }
    expect(await run(7)).toEqual(await run(7))
    expect(await run(7)).not.toEqual(await run(8))
  })

  it('a leap makes everything late at once, a jump nothing', async () => {
    const { clock, tab } = createTestCluster()
    const { platform } = tab()
    let at = 0
    platform.after(1000, () => (at = platform.now()))
    const wall = platform.wallNow()
    clock.jump(-3_600_000)
    expect(platform.wallNow()).toBe(wall - 3_600_000)
    clock.leap(60_000)
    await clock.advance(0)
    expect(at).toBe(60_000)
  })
})

describe('BroadcastChannel', () => {
  it('delivers copies in the order of each sender, to others only, and refuses what cannot be cloned', async () => {
    const { clock, tab } = createTestCluster({ latency: { channel: [0, 50] } })
    const [a, b] = [listen(tab().platform), listen(tab().platform)]
    const message = { n: 0 }
    for (; message.n < 20; message.n++) a.port.postMessage(message)
    expect(() => a.port.postMessage(() => {})).toThrow(expect.objectContaining({ name: 'DataCloneError' }))
    a.port.close()
    expect(() => a.port.postMessage(1)).toThrow(expect.objectContaining({ name: 'InvalidStateError' }))
    await clock.quiet()
    expect(b.heard).toEqual(Array.from({ length: 20 }, (_, n) => ({ n })))
    expect(a.heard).toEqual([])
  })

  it('loses and delays what a test says', async () => {
    const { clock, tab, lose, delay } = createTestCluster()
    const [a, b] = [listen(tab().platform), listen(tab().platform)]
    const heal = lose(({ message, to }) => message === 'lost' && to === 'tab-2')
    delay(500, ({ message }) => message === 'slow')
    for (const message of ['lost', 'slow', 'behind']) a.port.postMessage(message)
    await clock.advance(499)
    expect(b.heard).toEqual([])
    heal()
    a.port.postMessage('lost')
    await clock.quiet()
    expect(b.heard).toEqual(['slow', 'behind', 'lost'])
  })
})

describe('storage', () => {
  it('X05: a message arrives before what was written before it is seen; the last write wins for all', async () => {
    const { clock, tab, storage } = createTestCluster({ latency: { storage: [50, 50] } })
    const [a, b] = [tab(), tab()]
    const { port } = listen(a.platform)
    let seen: string | null | undefined
    listen(b.platform).port.onmessage = () => (seen = b.platform.storage?.getItem('k'))
    a.platform.storage?.setItem('k', 'a')
    expect(a.platform.storage?.getItem('k')).toBe('a')
    port.postMessage('look')
    await clock.advance(20)
    expect(seen).toBeNull()
    b.platform.storage?.setItem('k', 'b')
    await clock.advance(40)
    expect(b.platform.storage?.getItem('k')).toBe('b')
    expect(a.platform.storage?.getItem('k')).toBe('a')
    await clock.advance(40)
    expect([a, b].map(({ platform }) => platform.storage?.getItem('k'))).toEqual(['b', 'b'])
    expect([...storage]).toEqual([['k', 'b']])
  })

  it('throws when it is full or forbidden; a copy of a tab has a copy of its session', async () => {
    const { tab } = createTestCluster({ quota: 10 })
    const a = tab()
    expect(() => a.platform.storage?.setItem('key', '12345678')).toThrow(expect.objectContaining({ name: 'QuotaExceededError' }))
    a.platform.storage?.setItem('key', '1234567')
    a.platform.storage?.setItem('key', '')
    a.platform.session?.setItem('id', '1')
    const copy = a.duplicate()
    copy.platform.session?.setItem('id', '2')
    expect((await a.reload()).platform.session?.getItem('id')).toBe('1')
    expect(copy.platform.page.opened).toBe(true)
    copy.failStorage('all')
    expect(() => copy.platform.storage?.length).toThrow(expect.objectContaining({ name: 'SecurityError' }))
  })
})

describe('locks', () => {
  it('go to one, in order; shared ones to many; a wait can be aborted', async () => {
    const { clock, tab, leaks } = createTestCluster()
    const [a, b, c] = [tab(), tab(), tab()]
    const first = hold(a)
    await clock.quiet()
    const abort = new AbortController()
    const [second, third, aborted] = [hold(b, 'l', { mode: 'shared' }), hold(c, 'l', { mode: 'shared' }), hold(a, 'l', { signal: abort.signal })]
    const busy = hold(b, 'l', { ifAvailable: true })
    await clock.quiet()
    expect([first.held, second.held, third.held, busy.held]).toEqual([1, 0, 0, 0])
    first.letGo()
    abort.abort()
    await clock.quiet()
    expect([second.held, third.held, aborted.held]).toEqual([1, 1, 0])
    expect(aborted.lost).toMatchObject({ name: 'AbortError' })
    second.letGo()
    third.letGo()
    await clock.quiet()
    expect(leaks()).toEqual([])
  })

  it('X23: are freed a short while after a crash, and survive freezing and hanging', async () => {
    const { clock, tab } = createTestCluster()
    const [a, b, c] = [tab(), tab(), tab()]
    hold(a)
    await clock.quiet()
    const second = hold(b)
    a.crash()
    await clock.advance(7)
    expect(second.held).toBe(0)
    await clock.advance(160)
    expect(second.held).toBe(1)
    const third = hold(c)
    b.hang()
    await clock.advance(3_600_000)
    b.unhang()
    await b.freeze()
    await clock.advance(3_600_000)
    expect(third.held).toBe(0)
  })

  it('are stolen, also from one that does not know yet that it has it', async () => {
    const { clock, tab, thefts } = createTestCluster()
    const [a, b, c] = [tab(), tab(), tab()]
    const first = hold(a)
    await clock.quiet()
    const second = hold(b)
    await clock.quiet()
    b.hang()
    first.letGo()
    await clock.quiet()
    const thief = hold(c, 'l', { steal: true })
    await clock.quiet()
    expect([second.held, thief.held]).toEqual([0, 1])
    expect(thefts).toMatchObject([{ name: 'l', by: 'tab-3', hung: true }])
    b.unhang()
    await clock.quiet()
    expect(second).toMatchObject({ held: 1, lost: { name: 'AbortError' } })
    second.letGo()
    await clock.quiet()
    expect(thief.lost).toBeUndefined()
  })
})

describe('page life', () => {
  it('X28: nothing runs in a frozen page but, if it is so, messages; all of it after', async () => {
    const { clock, tab } = createTestCluster()
    const [a, b] = [tab(), tab()]
    const seen: unknown[] = []
    a.platform.page.listen((event) => seen.push(event))
    listen(a.platform).port.onmessage = ({ data }) => seen.push(data)
    a.platform.after(1000, () => seen.push('timer'))
    const { port } = listen(b.platform)
    await a.freeze()
    port.postMessage(1)
    await clock.advance(5000)
    expect(seen).toEqual(['freeze'])
    await a.resume()
    await clock.quiet()
    expect(seen.slice(0, 2)).toEqual(['freeze', 'resume'])
    expect(seen.slice(2).sort()).toEqual([1, 'timer'])
    await a.freeze({ messages: true })
    port.postMessage(2)
    await clock.quiet()
    expect(seen.at(-1)).toBe(2)
  })

  it('X03: a cached page is evicted by a message on an open channel, and comes back if it has closed it', async () => {
    const { clock, tab, leaks } = createTestCluster()
    const [a, b, c] = [tab(), tab(), tab()]
    listen(a.platform)
    const { port } = listen(b.platform)
    b.platform.page.listen((event) => event === 'hide' && port.close())
    await Promise.all([a.hide(), b.hide()])
    listen(c.platform).port.postMessage('x')
    await clock.quiet()
    expect([await a.show(), await b.show()]).toEqual([false, true])
    expect(b.events).toEqual(['hide', 'show'])
    await Promise.all([b.close(), c.close()])
    await clock.advance(200)
    expect(leaks()).toEqual([])
  })

  it('X23: timers of hidden pages are throttled', async () => {
    const { clock, tab } = createTestCluster()
    const { platform, setVisible } = tab()
    const at: number[] = []
    const tick = () => {
      at.push(platform.now())
      platform.after(100, tick)
    }
    setVisible(false, 1000)
    platform.after(100, tick)
    await clock.advance(3000)
    expect(at).toEqual([1000, 2000, 3000])
    setVisible(false, 60_000)
    await clock.advance(10_000)
    expect(at.length).toBe(3)
    setVisible(true)
    await clock.advance(0)
    expect(at.at(-1)).toBe(13_000)
  })
})

describe('workers', () => {
  const echo = (scope: { onconnect: unknown; close(): void }) => {
    let n = 0
    scope.onconnect = (port: ReturnType<NonNullable<Platform['sharedWorker']>>) => {
      port.onmessage = ({ data }) => (data === 'die' ? scope.close() : port.postMessage([data, ++n]))
    }
  }

  it('X19: a SharedWorker is one for all, dies without a word, and is fresh then; it ends with its last page', async () => {
    const cluster = createTestCluster({ scripts: { 'w.js': echo } })
    const { clock, tab } = cluster
    const [a, b] = [tab(), tab()]
    const open = ({ platform }: TestTab) => {
      const port = platform.sharedWorker?.('w.js', 'n') as NonNullable<ReturnType<NonNullable<Platform['sharedWorker']>>>
      const heard: unknown[] = []
      port.onmessage = ({ data }) => heard.push(data)
      return { port, heard }
    }
    const [x, y] = [open(a), open(b)]
    x.port.postMessage('x')
    await clock.quiet()
    y.port.postMessage('y')
    await clock.quiet()
    expect([x.heard, y.heard]).toEqual([[['x', 1]], [['y', 2]]])
    x.port.postMessage('die')
    await clock.quiet()
    y.port.postMessage('lost')
    const z = open(b)
    z.port.postMessage('z')
    await clock.quiet()
    expect([y.heard.length, z.heard]).toEqual([1, [['z', 1]]])
    b.crash()
    expect(cluster.workers).toEqual([])
  })

  it('X21: a port moves what is transferred; a script that is not there is said so', async () => {
    const { clock, tab } = createTestCluster({ scripts: { 'w.js': echo } })
    const { platform } = tab()
    const port = platform.dedicatedWorker?.('w.js', 'n') as NonNullable<ReturnType<NonNullable<Platform['sharedWorker']>>>
    const buffer = new ArrayBuffer(8)
    port.postMessage(buffer, [buffer])
    expect(buffer.byteLength).toBe(0)
    const missing = platform.dedicatedWorker?.('404.js', 'n') as typeof port
    let cause = ''
    missing.onerror = (text) => (cause = text)
    await clock.quiet()
    expect(cause).toMatch('404.js')
  })
})

describe('server', () => {
  it('X27: hands over what came after a position, or says that it is lost', async () => {
    const cluster = createTestCluster({ history: 3 })
    const { clock, server } = cluster
    const transport = cluster.transport(cluster.tab())
    const { log, on } = events()
    await Promise.all([transport.start({}, on), clock.quiet()])
    const { position } = server.publish('t', 1)
    server.publish('t', 2)
    transport.subscribe('t', position)
    await clock.quiet()
    server.publish('t', 3)
    await clock.quiet()
    expect(log).toEqual(['connecting', 'connected', 't 2@2', 't from 2', 't 3@3'])
    await Promise.all([transport.unsubscribe('t'), clock.quiet()])
    for (let i = 4; i < 9; i++) server.publish('t', i)
    transport.subscribe('t', position)
    await clock.quiet()
    expect(log.slice(5)).toEqual(['t from 8 lost'])
  })

  it('X04: a transport connects again, and is told anew what to subscribe', async () => {
    const cluster = createTestCluster()
    const { clock, server } = cluster
    const transport = cluster.transport(cluster.tab())
    const { log, on } = events()
    await Promise.all([transport.start({}, on), clock.quiet()])
    transport.subscribe('t')
    await clock.quiet()
    expect(server.subscriptions('t')).toEqual(['tab-1'])
    server.stop()
    await clock.advance(1000)
    server.start()
    await clock.advance(1000)
    expect(log.at(-1)).toBe('connected')
    expect(server.subscriptions('t')).toEqual([])
    server.refuse('t')
    transport.subscribe('t')
    await clock.quiet()
    expect(log.at(-1)).toBe('t refused')
    await Promise.all([transport.stop(), clock.quiet()])
    expect(cluster.leaks()).toEqual([])
  })

  it('X10: witnesses two of one group, and what is excused', async () => {
    const cluster = createTestCluster()
    const { clock, server } = cluster
    const tabs = [cluster.tab(), cluster.tab(), cluster.tab({ group: 'other' })] as const
    const transports = tabs.map((tab) => cluster.transport(tab))
    await Promise.all([...transports.map((transport) => transport.start({}, events().on)), clock.quiet()])
    for (const transport of transports) transport.subscribe('t')
    await clock.quiet()
    expect(server.doubles).toMatchObject([{ topic: 't', group: 'tabs', by: ['tab-1', 'tab-2'] }])
    hold(tabs[0])
    await clock.quiet()
    tabs[0].hang()
    hold(tabs[1], 'l', { steal: true })
    transports[1]?.unsubscribe('t')
    await clock.quiet()
    transports[1]?.subscribe('t')
    await clock.quiet()
    expect(server.doubles[1]).toMatchObject({ stolen: 'hung' })
    expect(server.doubles[0]?.stolen).toBeUndefined()
  })

  it('X23: a crashed tab is gone from the server before its locks are free', async () => {
    for (let seed = 0; seed < 50; seed++) {
      const cluster = createTestCluster({ seed })
      const [a, b] = [cluster.tab(), cluster.tab()]
      const transport = cluster.transport(a)
      await Promise.all([transport.start({}, events().on), cluster.clock.quiet()])
      transport.subscribe('t')
      hold(a)
      await cluster.clock.quiet()
      const second = hold(b)
      a.crash()
      await cluster.clock.until(() => second.held > 0)
      const next = cluster.transport(b)
      await Promise.all([next.start({}, events().on), cluster.clock.quiet()])
      next.subscribe('t')
      await cluster.clock.quiet()
      expect(cluster.server.doubles).toEqual([])
      expect(cluster.server.subscriptions('t')).toEqual([b.name])
    }
  })
})
