import { describe, expect, it } from 'vitest'
import { CrossTabDataBus } from '../src/crosstab/index.js'
import type { DataBusTransport, Position, Publication, TransportEvents } from '../src/crosstab/transport.js'
import { createTestCluster, type TestCluster } from '../src/testing/index.js'
import { Engine, type Session } from '../src/worker/engine.js'
import { BUILD } from '../src/worker/messages.js'
import { Log, SCRIPT, SharedPage, upTo, workerCluster } from './worker.fixture.js'

async function done<T>(cluster: TestCluster, call: Promise<T>): Promise<T> {
  let settled = false
  const over = () => (settled = true)
  call.then(over, over)
  await cluster.clock.until(() => settled)
  return call
}

async function started(cluster: TestCluster, page: SharedPage, ...topics: string[]): Promise<SharedPage> {
  await done(cluster, page.coordinator.start())
  for (const topic of topics) page.coordinator.subscribe(topic)
  await cluster.clock.until(() => topics.every((topic) => page.count(`subscribed ${topic}`) > 0))
  return page
}

const pages = (cluster: TestCluster, count: number) => Array.from({ length: count }, () => new SharedPage(cluster))

describe('one connection for all tabs', () => {
  it('X30 rung A: one worker, one connection, one subscription of a topic; each publication once to each tab that wants it', async () => {
    const cluster = workerCluster()
    const all = pages(cluster, 5)
    for (const [i, page] of all.entries()) await started(cluster, page, 'all', `own-${i}`, ...(i < 2 ? ['two'] : []))
    expect(cluster.workers).toHaveLength(1)
    expect(cluster.server.connections).toHaveLength(1)
    expect(cluster.server.subscriptions('all')).toHaveLength(1)
    for (let n = 1; n <= 100; n++) for (const topic of ['all', 'two', 'own-0', 'nobody']) cluster.server.publish(topic, n)
    await cluster.clock.quiet()
    for (const [i, page] of all.entries()) {
      expect(page.data).toEqual({ all: upTo(100), ...(i < 2 && { two: upTo(100) }), ...(i === 0 && { 'own-0': upTo(100) }) })
    }
    expect(cluster.server.doubles).toEqual([])

    // The last that wants a topic lets go of it; the last page, of the connection.
    await done(cluster, all[0]?.coordinator.stop() as Promise<void>)
    await cluster.clock.quiet()
    expect(cluster.server.topics).not.toContain('own-0')
    expect(cluster.server.topics).toContain('two')
    for (const page of all.slice(1)) await done(cluster, page.coordinator.stop())
    await cluster.clock.advance(1000)
    expect(cluster.leaks()).toEqual([])
  })

  it('X17 the snapshot says what the worker subscribes, for whoever', async () => {
    const cluster = workerCluster()
    const [a, b] = pages(cluster, 2) as [SharedPage, SharedPage]
    await started(cluster, a, 'one', 'two')
    await started(cluster, b, 'two', 'three')
    await cluster.clock.quiet()
    const snapshot = a.coordinator.snapshot()
    expect(snapshot).toMatchObject({ mode: 'shared', tabId: 'tab-1', subscribedTopics: ['one', 'two'], assignedTopics: ['one', 'two', 'three'] })
    expect(snapshot.workerId).toBe(b.coordinator.snapshot().workerId)
    expect(snapshot.routes.map(({ topic, workerId }) => [topic, workerId])).toEqual(['one', 'two', 'three'].map((topic) => [topic, snapshot.workerId]))
    expect(snapshot.workers).toMatchObject([{ workerId: snapshot.workerId, load: 3, status: 'connected' }])
    expect(Object.values(snapshot.knownTopics)).toEqual(['one', 'two', 'three'])
  })

  it('X13 publishing goes through the worker; what is refused rejects', async () => {
    const cluster = workerCluster()
    const [a, b] = pages(cluster, 2) as [SharedPage, SharedPage]
    await started(cluster, a, 'news')
    await started(cluster, b)
    await done(cluster, b.coordinator.publish('news', 'hello', { id: '1' }))
    await cluster.clock.quiet()
    expect([a.data, b.data]).toEqual([{ news: ['hello'] }, {}])
    cluster.server.refuse('secret')
    await expect(done(cluster, b.coordinator.publish('secret', 1))).rejects.toMatchObject({ code: 'INTERNAL' })
    b.coordinator.subscribe('secret')
    await cluster.clock.quiet()
    expect(b.told.at(-1)).toBe('refused secret INTERNAL')
    cluster.server.allow('secret')
    b.coordinator.subscribe('secret')
    await cluster.clock.quiet()
    expect(b.told.at(-1)).toBe('subscribed secret')
  })

  it('X20 a tab that crashes is noticed within 1 s, and its topics are let go', async () => {
    const cluster = workerCluster()
    const [a, b] = pages(cluster, 2) as [SharedPage, SharedPage]
    await started(cluster, a, 'mine', 'ours')
    await started(cluster, b, 'ours')
    a.tab.crash()
    await cluster.clock.advance(1000)
    expect(cluster.server.topics).toEqual(['ours'])
  })

  it('a hidden tab is told nothing: it stays in the back/forward cache, and comes back from where it was', async () => {
    const cluster = workerCluster()
    const [a, b] = pages(cluster, 2) as [SharedPage, SharedPage]
    await started(cluster, a, 'news')
    await started(cluster, b, 'news')
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    const from = a.positions['news']
    // As the bus does on pagehide.
    a.tab.platform.page.listen((event) => event === 'hide' && void a.coordinator.stop())
    a.tab.setVisible(false)
    await cluster.clock.quiet()
    await a.tab.hide()
    for (let n = 2; n <= 9; n++) cluster.server.publish('news', n)
    await cluster.clock.advance(60_000)
    expect(a.tab.state).toBe('cached')
    expect(await a.tab.show()).toBe(true)
    await done(cluster, a.coordinator.start())
    a.coordinator.subscribe('news', from)
    await cluster.clock.quiet()
    expect([a.data, b.data]).toEqual([{ news: upTo(9) }, { news: upTo(9) }])
  })

  it('X30 a worker that cannot be had rejects start, with the reason', async () => {
    const cluster = workerCluster()
    const gone = new SharedPage(cluster, { workerUrl: '/gone.js' })
    await expect(done(cluster, gone.coordinator.start())).rejects.toMatchObject({ code: 'WORKER_UNAVAILABLE', cause: 'no script at /gone.js' })
    const without = new SharedPage(cluster, { tab: { without: ['sharedWorker'] } })
    await expect(done(cluster, without.coordinator.start())).rejects.toMatchObject({ code: 'WORKER_UNAVAILABLE', cause: 'this browser has no shared workers' })
    await cluster.clock.quiet()
    expect(cluster.leaks()).toEqual([])
  })

  it('two builds, two protocols and two clusters have two workers: the name says which', async () => {
    const cluster = workerCluster()
    const [a, b] = [new SharedPage(cluster), new SharedPage(cluster, { prefix: 'tidewire:other:' })]
    await started(cluster, a, 'news')
    await started(cluster, b, 'news')
    expect(cluster.workers.map(({ name }) => name)).toEqual([`tidewire:cluster:${BUILD}`, `tidewire:other:${BUILD}`])
    const old = workerCluster({ build: 'old' })
    await expect(done(old, new SharedPage(old).coordinator.start())).rejects.toMatchObject({ code: 'WORKER_INCOMPATIBLE' })
  })

  it('X25 one credential for all tabs: the newest is asked, and then the others; who is logged out ends it', async () => {
    let ask: TransportEvents['credential']
    const cluster = workerCluster({
      transport: () => ({
        start: (_, { credential }) => Promise.resolve(void (ask = credential)),
        stop: () => Promise.resolve(),
        subscribe() {},
        unsubscribe() {},
        publish: () => Promise.resolve(),
      }),
    })
    const all = pages(cluster, 3)
    const asked: string[] = []
    for (const [i, page] of all.entries()) {
      page.token = (reason) => Promise.resolve(`${asked.push(`${i} ${reason}`)}`)
      await started(cluster, page)
    }
    const credential = () => done(cluster, ask?.('expired') as Promise<string>)
    expect([await credential(), asked]).toEqual(['1', ['2 expired']])
    ;(all[2] as SharedPage).token = () => Promise.reject(new Error('offline'))
    all[1]?.tab.crash()
    expect([await credential(), asked]).toEqual(['2', ['2 expired', '0 expired']])
    ;(all[2] as SharedPage).token = () => Promise.reject(Object.assign(new Error(''), { code: 'SOCKET_UNAUTHENTICATED' }))
    await expect(credential()).rejects.toMatchObject({ code: 'SOCKET_UNAUTHENTICATED' })
    expect(asked).toHaveLength(2)
  })

  it('X25 a page that hangs holds nobody up: after 1 s the next one is asked too, and the first answer counts', async () => {
    let ask: TransportEvents['credential']
    const cluster = workerCluster({
      transport: () => ({
        start: (_, { credential }) => Promise.resolve(void (ask = credential)),
        stop: () => Promise.resolve(),
        subscribe() {},
        unsubscribe() {},
        publish: () => Promise.resolve(),
      }),
    })
    const all = pages(cluster, 3)
    for (const page of all) await started(cluster, page)
    const [, b, c] = all as [SharedPage, SharedPage, SharedPage]
    b.token = c.token = () => new Promise(() => {})
    const before = cluster.clock.now
    expect(await done(cluster, ask?.('connect') as Promise<string>)).toBe('token')
    expect(cluster.clock.now - before).toBeLessThan(2500)
    let answer = (_: string) => {}
    c.token = () => new Promise((resolve) => (answer = resolve))
    const second = ask?.('connect') as Promise<string>
    await cluster.clock.advance(1500)
    answer('late')
    expect(await done(cluster, second)).toBe('late')
  })

  const open = (cluster: TestCluster) => {
    const tab = cluster.tab()
    return new CrossTabDataBus({ transport: cluster.transport(tab), platform: tab.platform, clusterKey: 'k', workerUrl: SCRIPT, mode: 'shared' })
  }

  it.each([
    [20, 'what the worker keeps'],
    [600, 'what the server keeps'],
  ])('X27 a handler that begins further back, on a topic that the tab has, gets what lies between, and no other anything twice (%i: %s)', async (count) => {
    const cluster = workerCluster()
    const bus = open(cluster)
    const first: number[] = []
    const off = bus.subscribe<number>('t', (n) => first.push(n))
    await cluster.clock.advance(1000)
    expect(bus.mode).toBe('shared')
    const sent = upTo(count).map((n) => cluster.server.publish('t', n))
    await cluster.clock.advance(1000)
    const late: number[] = []
    // More is under way when it comes.
    for (const n of [1, 2, 3]) cluster.server.publish('t', count + n)
    bus.subscribe<number>('t', (n) => late.push(n), { from: sent[4]?.position })
    await cluster.clock.advance(1000)
    cluster.server.publish('t', count + 4)
    await cluster.clock.advance(1000)
    expect(late).toEqual(upTo(count + 4, 6))
    expect(first).toEqual(upTo(count + 4))
    // Within the linger.
    off()
    bus.unsubscribe('t')
    cluster.server.publish('t', count + 5)
    await cluster.clock.advance(50)
    const again: number[] = []
    bus.subscribe<number>('t', (n) => again.push(n), { from: sent.at(-1)?.position && { ...(sent.at(-1)?.position as Position), offset: (sent.at(-1)?.position?.offset ?? 0) + 4 } })
    await cluster.clock.advance(1000)
    expect(again).toEqual([count + 5])
    expect(cluster.server.doubles).toEqual([])
  })

  it('X27 it does so whatever is under way when it comes', async () => {
    for (let pace = 0; pace < 60; pace++) {
      const cluster = workerCluster({ seed: pace + 1 })
      const bus = open(cluster)
      const first: number[] = []
      bus.subscribe<number>('t', (n) => first.push(n))
      await cluster.clock.advance(1000)
      const sent = upTo(9).map((n) => cluster.server.publish('t', n))
      await cluster.clock.advance(1000)
      const late: number[] = []
      for (let n = 10; n < 30; n++) {
        cluster.server.publish('t', n)
        await cluster.clock.advance(pace % 3)
        if (n === 10 + (pace % 20)) bus.subscribe<number>('t', (n) => late.push(n), { from: sent[4]?.position })
      }
      await cluster.clock.advance(1000)
      expect([pace, first, late]).toEqual([pace, upTo(29), upTo(29, 6)])
    }
  })

  it('X27 it does so before the tab was told where its topic is', async () => {
    for (let pace = 0; pace < 60; pace++) {
      const cluster = workerCluster({ seed: pace + 1 })
      const [a, b] = [open(cluster), open(cluster)]
      a.subscribe('t', () => {})
      await cluster.clock.advance(1000)
      const sent = upTo(9).map((n) => cluster.server.publish('t', n))
      await cluster.clock.advance(1000)
      for (let n = 10; n < 20; n++) cluster.server.publish('t', n)
      await cluster.clock.advance((pace % 5) / 2)
      b.subscribe('t', () => {})
      const late: number[] = []
      await cluster.clock.advance(pace / 10)
      b.subscribe<number>('t', (n) => late.push(n), { from: sent[4]?.position })
      await cluster.clock.advance(1000)
      expect([pace, late]).toEqual([pace, upTo(19, 6)])
    }
  })

  it('X02 what was wrong is gone from the state when the worker is back', async () => {
    const cluster = workerCluster()
    const bus = open(cluster)
    await cluster.clock.advance(1000)
    cluster.workers[0]?.kill()
    let seen: unknown
    bus.onStatus((_, error) => (seen ??= error))
    await cluster.clock.advance(10_000)
    expect(seen).toMatchObject({ code: 'WORKER_LOST' })
    expect(bus.state.getSnapshot()).toMatchObject({ status: 'connected' })
    expect(bus.state.getSnapshot()).not.toHaveProperty('error')
  })
})

describe('X27 death of the worker', () => {
  it('three tabs have a fresh one within 3 s: no gap, no duplicate', async () => {
    for (let seed = 1; seed <= 30; seed++) {
      const cluster = workerCluster({ seed })
      const all = pages(cluster, 3)
      for (const page of all) await started(cluster, page, 'news')
      let n = 0
      const publish = async (count: number) => {
        for (let i = 0; i < count; i++) {
          cluster.server.publish('news', ++n)
          await cluster.clock.advance(seed)
        }
      }
      await publish(20)
      cluster.workers[0]?.kill()
      const died = cluster.clock.now
      await publish(20)
      await cluster.clock.until(() => cluster.server.subscriptions('news').length === 1)
      await cluster.clock.until(() => all.every((page) => page.data['news']?.length === n))
      expect(cluster.clock.now - died).toBeLessThan(3000)
      await publish(5)
      await cluster.clock.quiet()
      for (const page of all) {
        expect(page.data).toEqual({ news: upTo(n) })
        expect(page.count('lost news')).toBe(0)
      }
      expect(cluster.workers).toHaveLength(1)
      expect(cluster.server.connections).toHaveLength(1)
    }
  })

  it('a transport that gives up is started again by who comes back', async () => {
    const cluster = workerCluster()
    const [a, b] = pages(cluster, 2) as [SharedPage, SharedPage]
    await started(cluster, a, 'news')
    await started(cluster, b, 'news')
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    const transport = cluster.transports.at(-1)
    transport?.fail(new Error('no more'))
    await cluster.clock.until(() => a.statuses.at(-1) === 'error' && b.statuses.at(-1) === 'error')
    cluster.server.publish('news', 2)
    // As the bus does after its pause.
    await done(cluster, a.coordinator.stop())
    await done(cluster, a.coordinator.start())
    a.coordinator.subscribe('news', a.positions['news'])
    cluster.server.publish('news', 3)
    await cluster.clock.quiet()
    expect([a.data, b.data]).toEqual([{ news: upTo(3) }, { news: upTo(3) }])
    expect(transport?.misuse).toEqual([])
  })
})

describe('the engine', () => {
  /** A transport that says first from where it goes on, and then hands over what was missed; the other way round is as right. */
  function fromFirst(transport: DataBusTransport): DataBusTransport {
    const froms = new Map<string, Position | undefined>()
    const held = new Map<string, Publication[]>()
    return {
      start: (config, events) =>
        transport.start(config, {
          ...events,
          publication: (topic, publication) => void (held.get(topic)?.push(publication) ?? events.publication(topic, publication)),
          subscribed: (topic, position, lost) => {
            const list = held.get(topic) ?? []
            const from = froms.get(topic)
            held.delete(topic)
            events.subscribed(topic, lost ? position : (from ?? position), lost)
            for (const publication of list) events.publication(topic, publication)
          },
          status: (status, error) => {
            if (status === 'disconnected') held.clear()
            events.status(status, error)
          },
        }),
      stop: () => transport.stop(),
      subscribe(topic, from) {
        froms.set(topic, from)
        held.set(topic, [])
        return transport.subscribe(topic, from)
      },
      unsubscribe: (topic) => transport.unsubscribe(topic),
      publish: (...args) => transport.publish(...args),
    }
  }

  /** An engine without ports. */
  function engine({ first = false, ...options }: Parameters<typeof createTestCluster>[0] & { readonly first?: boolean } = {}) {
    const cluster = createTestCluster(options)
    const { platform } = cluster.tab()
    const transport = cluster.transport({ platform })
    const made = new Engine({ platform, transport: first ? fromFirst(transport) : transport, config: {} })
    const session = (log: Log): Session => made.join({ ...log.events, credential: log.token })
    const join = (): Log & { session: Session } => {
      const log = new Log()
      return Object.assign(log, { session: session(log) })
    }
    return { cluster, transport, join, session }
  }
  const data = (log: Log) => log.data['news'] ?? []

  it('who comes later is served from what came lately, then from the server, then told of the loss', async () => {
    const { cluster, join } = engine({ history: 500 })
    const first = join()
    first.session.subscribe('news')
    await cluster.clock.quiet()
    for (let n = 1; n <= 300; n++) cluster.server.publish('news', n)
    await cluster.clock.quiet()
    const epoch = first.positions['news']?.epoch as string
    const late = join()
    late.session.subscribe('news', { offset: 280, epoch })
    // From the ring: at once.
    expect(data(late)).toEqual(upTo(300, 281))
    const later = join()
    later.session.subscribe('news', { offset: 10, epoch })
    expect(data(later)).toEqual([])
    cluster.server.publish('news', 301)
    await cluster.clock.quiet()
    expect(data(later)).toEqual(upTo(301, 11))
    expect([data(first), data(late)]).toEqual([upTo(301), upTo(301, 281)])
    cluster.server.trim('news')
    const last = join()
    last.session.subscribe('news', { offset: 1, epoch })
    await cluster.clock.quiet()
    expect(last.told).toContain('subscribed news lost')
    expect([first, late, later].map((log) => log.count('subscribed news lost'))).toEqual([0, 0, 0])
    cluster.server.publish('news', 302)
    await cluster.clock.quiet()
    expect([data(first).at(-1), data(last)]).toEqual([302, [302]])
    const other = join()
    other.session.subscribe('news', { offset: 1, epoch: 'another' })
    expect(other.told).toContain('subscribed news lost')
    expect(cluster.server.doubles).toEqual([])
  })

  it('a server that loses its history is a loss for everyone, once', async () => {
    const { cluster, join } = engine()
    const [a, b] = [join(), join()]
    for (const { session } of [a, b]) session.subscribe('news')
    await cluster.clock.quiet()
    cluster.server.publish('news', 1)
    await cluster.clock.quiet()
    cluster.server.renew('news')
    cluster.server.drop()
    await cluster.clock.advance(1000)
    cluster.server.publish('news', 2)
    await cluster.clock.quiet()
    for (const log of [a, b]) {
      expect(data(log)).toEqual([1, 2])
      expect(log.count('subscribed news lost')).toBe(1)
    }
  })

  it('a transport that ignores positions is not asked for ever: what it has not is lost', async () => {
    const { cluster, transport, join } = engine()
    let asked = 0
    const subscribe = transport.subscribe.bind(transport)
    transport.subscribe = (topic) => {
      asked++
      subscribe(topic)
    }
    const a = join()
    a.session.subscribe('news')
    await cluster.clock.quiet()
    for (let n = 1; n <= 400; n++) cluster.server.publish('news', n)
    await cluster.clock.quiet()
    const b = join()
    b.session.subscribe('news', { offset: 2, epoch: a.positions['news']?.epoch as string })
    await cluster.clock.quiet()
    expect(b.told).toContain('subscribed news lost')
    expect(asked).toBe(2)
  })

  it('its rings are bounded', async () => {
    const { cluster, join } = engine({ history: 0 })
    const log = join()
    log.session.subscribe('news')
    await cluster.clock.quiet()
    // Without positions there is none at all.
    for (let n = 1; n <= 10; n++) cluster.server.publish('news', n)
    await cluster.clock.quiet()
    expect(data(log)).toEqual(upTo(10))
  })

  it.each([false, true])('X27 many who come at once, each from somewhere else: nobody is told of a loss that is none (from first: %s)', async (first) => {
    for (let lag = 0; lag < 20; lag++) {
      const { cluster, join } = engine({ seed: lag + 1, first })
      for (let n = 1; n <= 30; n++) cluster.server.publish('news', n)
      const epoch = cluster.server.publish('news', 31).position?.epoch as string
      const logs: Log[] = []
      for (const offset of [30, 29, 28, 5, 31, 17]) {
        const log = join()
        logs.push(log)
        log.session.subscribe('news', { offset, epoch })
        await cluster.clock.advance(lag)
      }
      await cluster.clock.quiet()
      cluster.server.publish('news', 32)
      await cluster.clock.quiet()
      expect(logs.map((log) => log.count('subscribed news lost'))).toEqual([0, 0, 0, 0, 0, 0])
      expect(logs.map((log) => data(log))).toEqual([31, 30, 29, 6, 32, 18].map((from) => upTo(32, from)))
    }
  })

  it.each([false, true])('X04 whatever is done in whatever order, each session has every publication since it came, once and in order (from first: %s)', async (first) => {
    for (let seed = 1; seed <= 60; seed++) {
      const { cluster, transport, join, session } = engine({ seed, history: seed % 2 ? 40 : 1_000_000, first })
      let state = seed
      const chance = (count: number) => (state = (state * 48_271) % 2_147_483_647) % count
      const topics = ['news', 'sport']
      const published: Record<string, number> = { news: 0, sport: 0 }
      interface Reader {
        readonly log: Log & { session: Session }
        readonly wants: Set<string>
      }
      let readers: Reader[] = []
      const check = ({ log }: Reader) => {
        for (const topic of topics) {
          const seen = log.data[topic] ?? []
          const holes = log.count(`subscribed ${topic} lost`)
          if (seed % 2 === 0) expect({ seed, holes }).toEqual({ seed, holes: 0 })
          const sorted = (seen as number[]).every((n, i) => i === 0 || n > (seen[i - 1] as number))
          expect({ seed, topic, sorted }).toEqual({ seed, topic, sorted: true })
          if (!holes) expect({ seed, seen }).toEqual({ seed, seen: seen.length ? upTo(seen.at(-1) as number, seen[0] as number) : [] })
        }
      }
      for (let step = 0; step < 150; step++) {
        const topic = topics[chance(2)] as string
        const reader = readers[chance(Math.max(1, readers.length))]
        switch (chance(9)) {
          case 0:
            if (readers.length < 4) readers.push({ log: join(), wants: new Set() })
            break
          case 1:
            if (!reader) break
            void reader.log.session.leave()
            readers = readers.filter((other) => other !== reader)
            check(reader)
            break
          case 2:
          case 3:
            if (!reader || reader.wants.has(topic)) break
            reader.wants.add(topic)
            // Back from where it was, as a page does.
            reader.log.session.subscribe(topic, reader.log.positions[topic])
            break
          case 4:
            if (reader?.wants.delete(topic)) void reader.log.session.unsubscribe(topic)
            break
          case 5:
            if (chance(4) === 0) cluster.server.drop()
            // The worker died: everyone comes back, each from what it had.
            else if (chance(4) === 0) {
              for (const { log } of readers) void log.session.leave()
              for (const { log, wants } of readers) {
                log.session = session(log)
                for (const topic of wants) {
                  const { [topic]: at } = log.positions
                  const from = at && { ...at, offset: Math.max(0, at.offset - chance(4)) }
                  log.data[topic] = (log.data[topic] ?? []).filter((n) => (n as number) <= (from?.offset ?? 0))
                  log.positions[topic] = from
                  log.session.subscribe(topic, from)
                }
              }
            }
            break
          default:
            for (let i = chance(12); i > 0; i--) cluster.server.publish(topic, ++(published[topic] as number))
        }
        await cluster.clock.advance(chance(60))
      }
      await cluster.clock.advance(2000)
      for (const topic of topics) cluster.server.publish(topic, ++(published[topic] as number))
      await cluster.clock.advance(100)
      for (const reader of readers) {
        check(reader)
        for (const topic of reader.wants) expect({ seed, last: reader.log.data[topic]?.at(-1) }).toEqual({ seed, last: published[topic] })
      }
      for (const reader of readers) void reader.log.session.leave()
      await cluster.clock.advance(1000)
      expect({ seed, misuse: transport.misuse, doubles: cluster.server.doubles, leaks: cluster.leaks() }).toEqual({ seed, misuse: [], doubles: [], leaks: [] })
    }
  })
})
