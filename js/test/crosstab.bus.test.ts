import { describe, expect, test } from 'vitest'
import { CrossTabDataBus, type TraceEvent } from '../src/crosstab/index.js'
import { createTestCluster } from '../src/testing/index.js'
import { fixture, range } from './crosstab.fixture.js'

const lifecycle = (bus: CrossTabDataBus) => bus.state.getSnapshot().lifecycle
const config = { clusterKey: 'k' }

describe('facade', () => {
  test('X01: it starts by itself, topics wait for the connection, and ready resolves with it', async () => {
    const { clock, server, open, settle } = fixture()
    const a = open()
    expect(lifecycle(a.bus)).toBe('idle')
    a.want('t')
    const ready = a.bus.ready()
    let done = false
    void ready.then(() => (done = true))
    await clock.drain()
    expect([lifecycle(a.bus), done]).toEqual(['starting', false])
    await settle()
    await ready
    expect([lifecycle(a.bus), a.bus.state.getSnapshot().status]).toEqual(['running', 'connected'])
    server.publish('t', 1)
    await settle()
    expect(a.data('t')).toEqual([1])
  })

  test('X01: without autoStart it waits for start, whose configuration the transport gets', async () => {
    const cluster = createTestCluster()
    const tab = cluster.tab()
    const transport = cluster.transport(tab)
    const configs: unknown[] = []
    const start = transport.start.bind(transport)
    transport.start = (config, events) => (configs.push(config), start(config, events))
    const bus = new CrossTabDataBus<{ url: string }>({ transport, platform: tab.platform, autoStart: false })
    await cluster.clock.advance(1000)
    expect([lifecycle(bus as CrossTabDataBus), transport.starts]).toEqual(['idle', 0])
    void bus.start({ url: 'u' })
    await cluster.clock.advance(1000)
    expect(configs).toEqual([{ url: 'u' }])
  })

  test('X01: handlers of a topic are counted, and the last one to leave releases it', async () => {
    const { server, open, settle, owner } = fixture()
    const a = open()
    const off1 = a.want('t')
    const off2 = a.want('t')
    await settle()
    server.publish('t', 1)
    await settle()
    expect(a.data('t')).toEqual([1, 1])
    off1()
    off1()
    await settle()
    expect(owner('t')).toEqual([a.tab.name])
    server.publish('t', 2)
    await settle()
    expect(a.data('t')).toEqual([1, 1, 2])
    off2()
    await settle()
    expect(owner('t')).toEqual([])
  })

  test('X01: unsubscribe takes a handler, or all of a topic', async () => {
    const { server, open, settle, owner } = fixture()
    const a = open()
    const seen: string[] = []
    const one = () => seen.push('one')
    a.bus.subscribe('t', one)
    a.bus.subscribe('t', () => seen.push('two'))
    await settle()
    a.bus.unsubscribe('t', one)
    server.publish('t', 1)
    await settle()
    expect(seen).toEqual(['two'])
    a.bus.unsubscribe('t')
    await settle()
    expect(owner('t')).toEqual([])
  })

  test('X01: a signal ends a subscription, and an aborted one begins none', async () => {
    const { open, settle, owner } = fixture()
    const a = open()
    const life = new AbortController()
    a.bus.subscribe('t', () => {}, { signal: life.signal })
    a.bus.subscribe('u', () => {}, { signal: AbortSignal.abort() })
    await settle()
    expect([owner('t'), owner('u')]).toEqual([[a.tab.name], []])
    life.abort()
    await settle()
    expect(owner('t')).toEqual([])
  })

  test('X01: leaving and coming back in one tick does not touch the wire', async () => {
    const { open, settle, cluster } = fixture()
    const [a, b] = [open(), open()]
    let calls = 0
    a.want('t')()
    a.want('t')
    b.want('t')
    await settle()
    for (const { transport } of [a, b]) {
      for (const name of ['subscribe', 'unsubscribe'] as const) {
        const call = transport[name].bind(transport)
        transport[name] = (topic: string) => (calls++, call(topic))
      }
    }
    const messages: unknown[] = []
    cluster.lose(({ message }) => (messages.push(...(message as { messages: { type: string }[] }).messages.filter(({ type }) => type === 'CONTROL')), false))
    for (const each of [a, b]) {
      const off = each.want('v')
      off()
      off()
    }
    a.bus.unsubscribe('t')
    a.want('t')
    await settle()
    expect([calls, messages.filter((m) => (m as { topic: string }).topic === 't')]).toEqual([2, []])
  })

  test('X01: a handler that throws stops no other, and is reported', async () => {
    const { server, open, settle } = fixture()
    const a = open()
    const reported: unknown[] = []
    globalThis.reportError = (error) => void reported.push(error)
    a.bus.subscribe('t', () => {
      throw new Error('mine')
    })
    a.want('t')
    await settle()
    server.publish('t', 1)
    await settle()
    expect([a.data('t'), reported.map(String)]).toEqual([[1], ['Error: mine']])
  })

  test('X01: onStatus tells how the connection is', async () => {
    const { server, open, settle } = fixture()
    const a = open()
    const seen: string[] = []
    a.bus.onStatus((status) => seen.push(status))
    await settle()
    server.drop()
    await settle()
    expect(seen).toEqual(['connecting', 'connected', 'disconnected', 'connecting', 'connected'])
  })

  test('X12, pain 35: what cannot be copied is refused with its path, the same in every mode, and nothing of it is sent', async () => {
    for (const without of [[], ['locks'], ['channel']] as const) {
      const { server, open, settle, clock } = fixture()
      const [a, b] = [open({ without }), open({ without })]
      a.want('t')
      b.want('t')
      await settle()
      for (const each of [a, b]) {
        const bad = [{ list: [1, { call() {} }] }, new Proxy({}, {}), { s: Symbol('s') }]
        const errors = bad.map((data) => each.bus.publish('t', data).catch((error) => [error.code, error.cause]))
        await clock.advance(100)
        expect(await Promise.all(errors)).toEqual([
          ['DATA_INVALID', 'data.list[1].call cannot be copied to another tab'],
          ['DATA_INVALID', 'data cannot be copied to another tab'],
          ['DATA_INVALID', 'data.s cannot be copied to another tab'],
        ])
      }
      expect([a.data('t'), server.topics]).toEqual([[], ['t']])
    }
  })
})

describe('lifecycle', () => {
  test('X13: publish in the task that made the bus waits for the start that is due', async () => {
    const { clock, server, open } = fixture()
    const a = open()
    a.want('t')
    const sent = a.bus.publish('t', 1)
    expect(lifecycle(a.bus)).toBe('starting')
    await clock.advance(1000)
    await sent
    expect(a.data('t')).toEqual([1])
    expect(server.doubles).toEqual([])
    const idle = open({}, { autoStart: false })
    await expect(idle.bus.publish('t', 1)).rejects.toMatchObject({ code: 'CLOSED' })
    await clock.drain()
    expect(lifecycle(idle.bus)).toBe('idle')
  })

  test('X01: a handler that an earlier one stopped is not called, nor any after the end', async () => {
    for (const end of ['handler', 'bus', 'principal'] as const) {
      const { server, open, settle } = fixture()
      const a = open()
      let off = () => {}
      a.bus.subscribe('t', () => {
        if (end === 'handler') off()
        else if (end === 'bus') void a.bus.stop()
        else void a.bus.setPrincipal('another')
      })
      off = a.want('t')
      await settle()
      server.publish('t', 1)
      await settle()
      expect([end, a.data('t')]).toEqual([end, []])
    }
  })

  test('X30: a mode that there is not, and no active worker at all, are refused', () => {
    const { open } = fixture()
    expect(() => open({}, { mode: 'nonsense' as never })).toThrow(/DATA_INVALID.*nonsense/)
    for (const maxActiveWorkers of [0, -1, Number.NaN]) expect(() => open({}, { maxActiveWorkers })).toThrow(`DATA_INVALID: maxActiveWorkers: ${maxActiveWorkers}`)
  })

  test('X02: the error of a connection is there while it is down, and gone when it is back', async () => {
    const { open, settle } = fixture()
    const a = open()
    a.want('t')
    let events: { status(status: 'disconnected' | 'connected', error?: unknown): void } | undefined
    const start = a.transport.start.bind(a.transport)
    a.transport.start = (config, its) => start(config, (events = its))
    await settle()
    const told: unknown[] = []
    a.bus.onStatus((status, error) => told.push([status, (error as Error | undefined)?.message]))
    events?.status('disconnected', new Error('the line is cut'))
    await settle()
    expect(a.bus.state.getSnapshot()).toMatchObject({ status: 'disconnected', error: { message: 'the line is cut' } })
    events?.status('connected')
    await settle()
    expect(a.bus.state.getSnapshot()).not.toHaveProperty('error')
    expect(told).toEqual([['disconnected', 'the line is cut'], ['connected', undefined]])
  })

  test('X02: starts at the same time are one', async () => {
    const { open, settle } = fixture()
    const a = open({}, { autoStart: false })
    const first = a.bus.start()
    expect(a.bus.start()).toBe(first)
    await settle()
    expect(a.transport.starts).toBe(1)
    await a.bus.start()
    expect(a.transport.starts).toBe(1)
  })

  test('X02: a start that fails is failed, ready rejects, and start tries again', async () => {
    const { open, settle } = fixture()
    const a = open({}, { autoStart: false })
    a.want('t')
    a.transport.refuseStart(new Error('no'))
    const started = a.bus.start().catch(String)
    const ready = a.bus.ready().catch(String)
    await settle()
    expect([await started, await ready, lifecycle(a.bus)]).toEqual(['Error: no', 'Error: no', 'failed'])
    void a.bus.start()
    await settle()
    expect([lifecycle(a.bus), a.bus.getClusterSnapshot().assignedTopics]).toEqual(['running', ['t']])
  })

  test('X02: hidden while it starts is no failure, and shown it starts', async () => {
    for (const wait of range(0, 40)) {
      const { clock, open, settle, server } = fixture({ seed: wait })
      const a = open()
      a.want('t')
      const states: string[] = []
      a.bus.state.subscribe(() => states.push(lifecycle(a.bus)))
      await clock.advance(wait)
      await a.tab.hide()
      await settle()
      expect([lifecycle(a.bus), server.connections]).toEqual(['suspended', []])
      // A lock that was under way to it evicts it.
      if (!(await a.tab.show())) continue
      await settle()
      expect([lifecycle(a.bus), server.subscriptions('t'), states.includes('failed'), a.transport.misuse]).toEqual(['running', [a.tab.name], false, []])
    }
  })

  test('X02: an error opens again after 1,000 ms, and a second one meanwhile changes nothing', async () => {
    const { clock, server, open, settle } = fixture()
    const a = open()
    a.want('t')
    await settle()
    a.transport.fail(new Error('broken'))
    await clock.advance(500)
    expect([a.transport.starts, a.bus.state.getSnapshot().status]).toEqual([1, 'error'])
    a.transport.fail(new Error('again'))
    await clock.advance(499)
    expect(a.transport.starts).toBe(1)
    await clock.advance(200)
    expect(a.transport.starts).toBe(2)
    server.publish('t', 1)
    await settle()
    expect([a.data('t'), a.bus.state.getSnapshot().status]).toEqual([[1], 'connected'])
  })

  test('X02: what an automatic start cannot do is tried again, without an end', async () => {
    const { clock, open, settle } = fixture()
    const a = open()
    await settle()
    a.transport.fail(new Error('broken'))
    for (let i = 0; i < 5; i++) {
      a.transport.refuseStart(new Error(`no ${i}`))
      await clock.advance(31_000)
    }
    await clock.advance(31_000)
    expect([lifecycle(a.bus), a.bus.state.getSnapshot().status]).toEqual(['running', 'connected'])
  })

  test('X02: stop waits for what is under way, and start goes on after it', async () => {
    const { cluster, clock, open, settle, server } = fixture()
    const a = open()
    a.want('t')
    await clock.advance(32)
    let stopped = false
    const stop = a.bus.stop().then(() => (stopped = true))
    await clock.drain()
    expect([lifecycle(a.bus), stopped]).toEqual(['stopped', false])
    void a.bus.start()
    await settle()
    await stop
    expect([lifecycle(a.bus), server.subscriptions('t'), a.transport.misuse]).toEqual(['running', [a.tab.name], []])
    const end = a.bus.stop()
    await settle()
    await end
    expect(cluster.leaks()).toEqual([])
    await expect(a.bus.publish('t', 1)).rejects.toThrow('CLOSED')
    await expect(a.bus.ready()).rejects.toThrow('CLOSED')
  })

  test('X03: hidden, it gives all up at once and keeps what it wants; shown, it has it again', async () => {
    const { cluster, clock, server, open, settle, owner } = fixture()
    const a = open()
    a.want('t')
    await settle()
    server.publish('t', 1)
    await settle()
    const hidden = a.tab.hide()
    expect(a.bus.getClusterSnapshot().subscribedTopics).toEqual(['t'])
    await hidden
    await clock.advance(20)
    expect([lifecycle(a.bus), owner('t'), cluster.leaks().filter((leak) => !leak.includes('listener'))]).toEqual(['suspended', [], []])
    server.publish('t', 2)
    await settle()
    expect(await a.tab.show()).toBe(true)
    await settle()
    server.publish('t', 3)
    await settle()
    expect([a.data('t'), a.lost]).toEqual([[1, 2, 3], []])
  })

  test('X03, pains 5, 9: a stopped bus is woken by nothing, and a suspended one by any sign of life', async () => {
    const { open, settle } = fixture()
    const [a, b] = [open(), open()]
    await settle()
    const stopped = a.bus.stop()
    await settle()
    await stopped
    await a.tab.hide()
    await a.tab.show()
    a.tab.setVisible(false)
    a.tab.setVisible(true)
    await settle()
    expect(lifecycle(a.bus)).toBe('stopped')
    await b.tab.freeze()
    await settle()
    expect(lifecycle(b.bus)).toBe('suspended')
    await b.tab.resume()
    b.tab.setVisible(false)
    b.tab.setVisible(true)
    await settle()
    expect([lifecycle(b.bus), b.transport.starts]).toEqual(['running', 2])
  })

  test('X03: hidden while it stops, it hurries', async () => {
    for (const wait of [0, 1, 3, 8]) {
      const { cluster, clock, open, settle } = fixture()
      const a = open()
      a.want('t')
      await settle()
      const stopped = a.bus.stop()
      await clock.advance(wait)
      await a.tab.hide()
      await clock.advance(1)
      expect(cluster.leaks().filter((leak) => /holds|channel/.test(leak))).toEqual([])
      await settle()
      expect(await a.tab.show()).toBe(true)
      await settle()
      await stopped
      expect([lifecycle(a.bus), cluster.leaks()]).toEqual(['stopped', []])
    }
  })

  test('X04: disconnected, only what the transport had is gone; connected, every assigned topic is subscribed again', async () => {
    const { server, open, settle, owner } = fixture()
    const [a, b] = [open(), open()]
    for (const topic of ['t', 'u', 'v']) {
      a.want(topic)
      b.want(topic)
    }
    await settle()
    const before = ['t', 'u', 'v'].map(owner)
    server.publish('t', 1)
    await settle()
    server.drop()
    server.publish('t', 2)
    expect(['t', 'u', 'v'].map(owner)).toEqual([[], [], []])
    await settle()
    expect(['t', 'u', 'v'].map(owner)).toEqual(before)
    server.publish('t', 3)
    await settle()
    for (const each of [a, b]) expect([each.data('t'), each.lost]).toEqual([[1, 2, 3], []])
  })
})

describe('publications', () => {
  for (const without of [[], ['locks']] as const) {
    for (const history of [1000, 0]) {
      test(`X12: each is dispatched once in each tab, while ownership moves (${without[0] ?? 'all'} ${history})`, async () => {
        const { clock, server, open, settle, owner } = fixture({ history, seed: 3 })
        const tabs = range(1, 4).map(() => open({ without }))
        for (const each of tabs) each.want('t')
        await settle()
        let n = 0
        for (let round = 0; round < 3; round++) {
          const leaver = tabs.find(({ tab }) => tab.name === owner('t')[0])
          for (let i = 0; i < 20; i++) {
            server.publish('t', ++n)
            await clock.advance(1)
          }
          const stopped = leaver?.bus.stop()
          for (let i = 0; i < 20; i++) {
            server.publish('t', ++n)
            await clock.advance(1)
          }
          await settle()
          await stopped
          for (const each of tabs.filter(({ bus }) => lifecycle(bus) === 'running')) {
            const data = each.data('t')
            expect(new Set(data).size).toBe(data.length)
            if (history) expect(data).toEqual(range(1, n))
            // Without a history only what was published while nobody was subscribed is missing, and that is told.
            else expect(data.length + each.lost.length).toBeGreaterThan(0)
          }
        }
        expect(server.doubles).toEqual([])
      })
    }
  }

  test('X12: without a history nothing comes twice, and what an owner that leaves has got reaches all', async () => {
    for (const seed of range(1, 30)) {
      const { clock, server, open, settle, owner } = fixture({ history: 0, seed })
      const tabs = range(1, 3).map(() => open())
      for (const each of tabs) each.want('t')
      await settle()
      const leaver = tabs.find(({ tab }) => tab.name === owner('t')[0])
      let stopped: Promise<void> | undefined
      for (const n of range(1, 100)) {
        if (n === 20) stopped = leaver?.bus.stop()
        server.publish('t', n)
        await clock.advance(0.5)
      }
      await settle()
      await stopped
      for (const each of tabs) {
        if (each === leaver) continue
        const data = each.data('t')
        expect([new Set(data).size, each.lost, data.includes(100)]).toEqual([data.length, ['t'], true])
        expect(data).toEqual(expect.arrayContaining(leaver?.data('t') ?? []))
      }
    }
  })

  test('X12, pain 34: a tab without handlers gets nothing, and in local mode no tab hands on', async () => {
    const { server, open, settle } = fixture()
    const tabs = range(1, 3).map(() => open({ without: ['channel'] }))
    for (const each of tabs) each.want('t')
    await settle()
    server.publish('t', 1)
    await settle()
    expect(tabs.map((each) => [each.bus.mode, each.data('t')])).toEqual(tabs.map(() => ['local', [1]]))
  })

  test('X13: publish goes to the owner, and without a route through the tab itself', async () => {
    const { clock, server, settle, owner, pair } = fixture()
    const [a, b] = await pair()
    expect(owner('t')).toEqual([a.tab.name])
    const by: string[] = []
    for (const each of [a, b]) {
      const publish = each.transport.publish.bind(each.transport)
      each.transport.publish = (topic, data, options) => (by.push(`${each.tab.name} ${topic}`), publish(topic, data, options))
    }
    const sent = [b.bus.publish('t', 1, { id: 'x' }), b.bus.publish('u', 2), a.bus.publish('t', 3)]
    await settle()
    await Promise.all(sent)
    expect(by.sort()).toEqual([`${a.tab.name} t`, `${a.tab.name} t`, `${b.tab.name} u`])
    expect(b.got.get('t')?.map(({ data, meta }) => [data, meta.id]).sort()).toEqual([[1, 'x'], [3, undefined]])
    server.refuse('t')
    const refused = b.bus.publish('t', 4).catch((error) => error.message)
    await clock.advance(1000)
    expect(await refused).toContain('refused: t')
  })

  test('X13: a tab without a connection opens one to publish, and closes it when it is not used', async () => {
    const { clock, server, open, settle } = fixture({}, { maxActiveWorkers: 1 })
    const [, b] = [open(), open()]
    await settle()
    expect(server.connections).toHaveLength(1)
    const sent = b.bus.publish('u', 1)
    await settle()
    await sent
    expect(server.connections).toHaveLength(2)
    await clock.advance(15_000)
    expect(server.connections).toHaveLength(1)
  })

  test('X13: a call whose owner dies is rejected, because nobody knows whether it was done', async () => {
    const { clock, pair } = fixture()
    const [a, b] = await pair()
    const sent = b.bus.publish('t', 1).catch((error) => error.code)
    a.tab.crash()
    await clock.advance(1000)
    expect(await sent).toBe('CONNECTION_LOST')
  })

  test('X13, pain 14: what was given up is never done late by an owner that was stuck', async () => {
    const { clock, pair } = fixture({}, { stallMs: 60_000 })
    const [a, b] = await pair()
    a.tab.hang(12_000)
    const sent = b.bus.publish('t', 1).catch((error) => error.code)
    await clock.advance(11_000)
    expect(await sent).toBe('ANSWER_TIMEOUT')
    await clock.advance(5000)
    expect(b.data('t')).toEqual([])
  })

  test('X13: an owner that was stuck for a moment does what is still wanted', async () => {
    const { clock, pair } = fixture({}, { stallMs: 60_000 })
    const [a, b] = await pair()
    a.tab.hang(6000)
    const sent = b.bus.publish('t', 1)
    await clock.advance(8000)
    await sent
    expect([a.data('t'), b.data('t')]).toEqual([[1], [1]])
  })

  test('X24: a message id that comes again is handed on once, within the window', async () => {
    for (const history of [1000, 0]) {
      const { server, open, settle } = fixture({ history }, { dedupeWindow: 3 })
      const [a, b] = [open(), open()]
      a.want('t')
      b.want('t')
      await settle()
      for (const id of ['a', 'b', 'a', 'c', 'd', 'b', 'a']) server.publish('t', id, { id })
      await settle()
      for (const each of [a, b]) expect(each.data('t')).toEqual(['a', 'b', 'c', 'd', 'a'])
    }
  })

  test('X24: without a window every one is handed on', async () => {
    const { server, open, settle } = fixture({}, { dedupeWindow: 0 })
    const a = open()
    a.want('t')
    await settle()
    for (const id of ['a', 'a']) server.publish('t', id, { id })
    await settle()
    expect(a.data('t')).toEqual(['a', 'a'])
  })

  test('X27: a handler begins where it says, and the others of the topic see nothing twice', async () => {
    const { server, open, settle, cluster } = fixture()
    const [a, b] = [open(), open()]
    a.want('t')
    await settle()
    const first = range(1, 400).map((n) => server.publish('t', n, { id: `i${n}` }))
    await settle()
    b.want('t')
    await settle()
    const late: unknown[] = []
    b.bus.subscribe('t', (data, { replayed }) => late.push([data, replayed]), { from: first[9]?.position })
    await settle()
    server.publish('t', 401)
    await settle()
    // More than the owner keeps: it asked the server.
    expect(late).toEqual([...range(11, 400).map((n) => [n, true]), [401, false]])
    expect([a.data('t'), b.data('t'), a.lost, b.lost]).toEqual([range(1, 401), [401], [], []])
    expect(cluster.server.doubles).toEqual([])
  })

  test('X27: of several that begin further back before the topic is live, each gets all of its own', async () => {
    const { server, open, settle } = fixture()
    const a = open()
    a.want('t')
    await settle()
    const first = range(1, 9).map((n) => server.publish('t', n))
    await settle()
    const b = open()
    const seen: number[][] = [[], [], []]
    for (const [i, from] of [undefined, first[1]?.position, first[5]?.position].entries()) b.bus.subscribe('t', (n) => seen[i]?.push(n as number), { from })
    await settle()
    expect(seen.slice(1)).toEqual([range(3, 9), range(7, 9)])
  })

  test('X27: a position that the server does not know any more is lost, and the topic goes on', async () => {
    const { server, open, settle } = fixture({ history: 5 })
    const [a, b] = [open(), open()]
    a.want('t')
    await settle()
    for (const n of range(1, 300)) server.publish('t', n)
    await settle()
    const late: unknown[] = []
    b.bus.subscribe('t', (data) => late.push(data), { from: { offset: 2, epoch: a.got.get('t')?.[0]?.meta.position?.epoch as string } })
    await settle()
    server.publish('t', 301)
    await settle()
    expect([late, b.lost, a.data('t'), a.lost]).toEqual([[301], ['t'], range(1, 301), []])
  })

  test('X12: what the server refuses is told in every tab that wants it', async () => {
    const { server, open, settle } = fixture()
    const [a, b, c] = [open(), open(), open()]
    server.refuse('t')
    a.want('t')
    await settle()
    b.want('t')
    await settle()
    expect([a.refused.length > 0, b.refused.length > 0, c.refused]).toEqual([true, true, []])
    server.allow('t')
    c.want('t')
    await settle()
    server.publish('t', 1)
    await settle()
    expect([a.data('t'), b.data('t'), c.data('t')]).toEqual([[1], [1], [1]])
  })
})

describe('the ladder', () => {
  test('X18, X30: each lack is a rung down, with the reason', async () => {
    const { open, settle } = fixture()
    const cases = [open(), open({ without: ['locks'] }), open({}, { liveness: 'ttl' }), open({ without: ['locks', 'storage'] }), open({ without: ['channel'] }), open({ without: ['storage'] })]
    for (const each of cases) each.want('t')
    await settle()
    expect(cases.map(({ bus }) => [bus.mode, bus.modeReason])).toEqual([
      ['coordinated', 'shared: no worker is given'],
      ['coordinated-ttl', 'shared: no worker is given; coordinated: no Web Locks'],
      ['coordinated-ttl', 'shared: no worker is given; coordinated: heartbeats were asked for'],
      ['local', 'shared: no worker is given; coordinated: no Web Locks; coordinated-ttl: no localStorage'],
      ['local', 'shared: no worker is given; coordinated: no BroadcastChannel; coordinated-ttl: no BroadcastChannel'],
      ['coordinated', 'shared: no worker is given'],
    ])
  })

  test('X30: tabs on other rungs are other clusters', async () => {
    const { server, open, settle, owner } = fixture()
    const tabs = [open(), open(), open({ without: ['locks'] }), open({ without: ['locks'] }), open({ without: ['channel'] })]
    for (const each of tabs) each.want('t')
    await settle()
    expect(owner('t')).toHaveLength(3)
    server.publish('t', 1)
    await settle()
    expect(tabs.map((each) => each.data('t'))).toEqual(tabs.map(() => [1]))
  })

  test('X30: a mode that was asked for is the highest that is tried', async () => {
    const { open, settle } = fixture()
    const a = open({}, { mode: 'local' })
    const b = open({}, { mode: 'coordinated-ttl' })
    await settle()
    expect([a, b].map(({ bus }) => [bus.mode, bus.modeReason])).toEqual([
      ['local', ''],
      ['coordinated-ttl', ''],
    ])
  })

  test('X30: a channel or a lock that the browser refuses is a rung down', async () => {
    const { cluster, settle } = fixture()
    const tab = cluster.tab()
    const refuse = () => {
      throw new DOMException('no', 'SecurityError')
    }
    const noLocks = new CrossTabDataBus({ ...config, transport: cluster.transport(tab), platform: { ...tab.platform, locks: { request: async () => refuse() } } })
    const other = cluster.tab()
    const noChannel = new CrossTabDataBus({ ...config, transport: cluster.transport(other), platform: { ...other.platform, channel: refuse } })
    await settle()
    expect([noLocks.mode, noChannel.mode]).toEqual(['coordinated-ttl', 'local'])
    expect(noLocks.modeReason).toContain('coordinated: no')
    expect(noChannel.modeReason).toContain('coordinated-ttl: no')
  })

  test('X18: outside a browser it is local', async () => {
    const cluster = createTestCluster()
    const { platform: all } = cluster.tab()
    const transport = cluster.transport({ platform: all })
    const { browserPlatform } = await import('../src/crosstab/index.js')
    const { channel, locks, storage, session, sharedWorker, dedicatedWorker, page } = browserPlatform()
    expect([channel, locks, storage, session, sharedWorker, dedicatedWorker, page.visible]).toEqual([undefined, undefined, undefined, undefined, undefined, undefined, true])
    const bus = new CrossTabDataBus({ ...config, transport, platform: { ...all, channel, locks, storage, session } })
    await cluster.clock.advance(1000)
    expect([bus.mode, cluster.server.connections]).toEqual(['local', ['tab-1']])
  })
})

describe('who is logged in', () => {
  test('X30, pain 38: one tab logs out, and no tab has anything of that principal', async () => {
    const { cluster, server, open, settle } = fixture()
    const [a, b, c, other] = [open({}, { principal: 'ann' }), open({}, { principal: 'ann' }), open({}, { principal: 'ann' }), open({}, { principal: 'eve' })]
    for (const each of [a, b, c, other]) each.want('t')
    await settle()
    await c.tab.hide()
    server.publish('t', 1)
    await settle()
    const told: string[] = []
    for (const each of [a, b, c, other]) each.bus.on('principal', () => told.push(each.tab.name))
    void a.bus.setPrincipal('bob')
    await settle()
    // What is published for ann now reaches nobody.
    expect([lifecycle(a.bus), lifecycle(b.bus), lifecycle(other.bus), told]).toEqual(['running', 'stopped', 'running', [b.tab.name]])
    expect(server.subscriptions('t').sort()).toEqual([a.tab.name, other.tab.name].sort())
    // The tab from the cache looks, and does not come back as ann.
    expect(await c.tab.show()).toBe(true)
    await settle()
    expect([lifecycle(c.bus), told]).toEqual(['stopped', [b.tab.name, c.tab.name]])
    for (const each of [b, c]) void each.bus.setPrincipal('bob')
    await settle()
    server.publish('t', 2)
    await settle()
    expect([a, b, c].map((each) => each.data('t'))).toEqual([[1, 2], [1, 2], [2]])
    expect([...cluster.storage].flat().join(' ')).not.toMatch(/ann|bob|eve/)
  })

  test('X30: tabs of two principals share nothing', async () => {
    const { open, settle, owner } = fixture()
    const tabs = [open({}, { principal: 'ann' }), open({}, { principal: 'bob' })]
    for (const each of tabs) each.want('t')
    await settle()
    expect(owner('t')).toHaveLength(2)
    expect(tabs.map(({ bus }) => bus.getClusterSnapshot().workers.length)).toEqual([1, 1])
  })
})

describe('what is told', () => {
  test('X17: the snapshot names topics, and the routes with their topic', async () => {
    const { open, settle, owner } = fixture()
    const [a, b] = [open(), open()]
    expect(a.bus.getClusterSnapshot()).toMatchObject({ subscribedTopics: [], routes: [] })
    a.want('t')
    await settle()
    b.want('t')
    b.want('u')
    await settle()
    const [sa, sb] = [a.bus.getClusterSnapshot(), b.bus.getClusterSnapshot()]
    expect([sa.subscribedTopics, sb.subscribedTopics]).toEqual([['t'], ['t', 'u']])
    expect([sa.assignedTopics, sb.assignedTopics].flat().sort()).toEqual(['t', 'u'])
    expect(Object.values(sa.knownTopics).sort()).toEqual(['t', 'u'])
    for (const each of [sa, sb]) {
      expect(each.routes.find(({ topic }) => topic === 't')).toMatchObject({ workerId: sa.workerId, tabId: sa.tabId, generation: 1 })
      expect(each.workers.map(({ workerId }) => workerId).sort()).toEqual([sa.workerId, sb.workerId].sort())
      expect(Object.keys(each.knownTopics)).toContain(each.routes[0]?.topicKey)
    }
    expect(owner('t')).toEqual([a.tab.name])
  })

  test('X17, X26: a trace has lifecycle at once, and counts and latencies every 5 s', async () => {
    const { clock, server, open, settle } = fixture()
    const events: TraceEvent[] = []
    const a = open()
    const b = open({}, { trace: (event) => events.push(event) })
    a.want('t')
    await clock.advance(100)
    b.want('t')
    await settle()
    for (const n of range(1, 100)) server.publish('t', n)
    await clock.advance(4000)
    expect(events.filter(({ kind }) => kind === 'lifecycle').map((event) => 'what' in event && event.what)).toEqual(['starting', 'running'])
    const metrics = events.find((event) => event.kind === 'metrics') as Extract<TraceEvent, { kind: 'metrics' }>
    expect(metrics.counts).toMatchObject({ dispatched: 100 })
    expect(metrics.latency.delivery).toMatchObject({ count: 100 })
    const { mean, p50, p95, max } = metrics.latency.delivery as NonNullable<(typeof metrics.latency)[string]>
    expect([mean > 0, p50 <= p95, p95 <= max, max < 10]).toEqual([true, true, true, true])
    expect(metrics.latency.ack).toMatchObject({ count: 1 })
    events.length = 0
    a.tab.crash()
    await clock.advance(6000)
    const after = events.find((event) => event.kind === 'metrics') as typeof metrics
    expect(after.latency.migration?.count).toBe(1)
    expect(after.latency.migration?.max).toBeLessThan(1000)
  })

  test('X17: only a takeover is a migration: no first owner, and no new connection of the same one', async () => {
    const { clock, server, open, settle } = fixture()
    const events: TraceEvent[] = []
    const a = open({}, { trace: (event) => events.push(event) })
    a.want('t')
    await settle()
    for (let i = 0; i < 2; i++) {
      server.drop()
      await clock.advance(3000)
    }
    await clock.advance(6000)
    const metrics = events.filter((event) => event.kind === 'metrics')
    expect([metrics.length > 0, metrics.filter(({ latency }) => latency.migration)]).toEqual([true, []])
  })

  test('X16: the tab keeps its id over a refresh, a copy takes another', async () => {
    for (const without of [[], ['locks']] as const) {
      for (const opened of without.length ? [true] : [true, false]) {
        const { cluster, open, settle } = fixture()
        const a = open({ without })
        await settle()
        const id = (each: { bus: CrossTabDataBus }) => each.bus.getClusterSnapshot().tabId
        const first = id(a)
        const copy = a.tab.duplicate({ opened })
        const { member } = await import('./crosstab.fixture.js')
        const b = member(cluster, copy)
        await settle()
        expect([id(a), id(b) === first, id(b).length > 20]).toEqual([first, false, true])
        const second = id(b)
        const [a2, b2] = [member(cluster, await a.tab.reload()), member(cluster, await copy.reload())]
        await settle()
        expect([id(a2)]).toEqual([first])
        // Without locks a page that was opened by another never trusts what it finds.
        if (!without.length) expect(id(b2)).toBe(second)
      }
    }
  })

  test('X16: without locks a copy that does not know it takes another id when it meets the first', async () => {
    const { cluster, open, settle } = fixture()
    const a = open({ without: ['locks'] })
    a.want('t')
    await settle()
    const { member } = await import('./crosstab.fixture.js')
    const b = member(cluster, a.tab.duplicate({ opened: false }))
    b.want('t')
    await settle()
    const [sa, sb] = [a.bus.getClusterSnapshot(), b.bus.getClusterSnapshot()]
    expect(sa.tabId).not.toBe(sb.tabId)
    expect(new Set(sa.workers.map(({ tabId }) => tabId))).toEqual(new Set([sa.tabId, sb.tabId]))
    const keys = [...cluster.storage.keys()].filter((key) => key.includes(':subscriber:'))
    expect(keys.map((key) => key.split(':').at(-1)).sort()).toEqual([sa.tabId, sb.tabId].sort())
  })
})
