import { describe, expect, test, vi } from 'vitest'
import { createOpaqueKey } from '../src/crosstab/index.js'
import { decode } from '../src/crosstab/messages.js'
import { createOutbox, type Reader } from '../src/crosstab/outbox.js'
import { createRecords } from '../src/crosstab/records.js'
import { createLocks } from '../src/crosstab/ownership.js'
import type { Locks } from '../src/crosstab/platform.js'
import { createTopic } from '../src/crosstab/topic.js'
import type { DataBusTransport, TransportEvents } from '../src/crosstab/transport.js'
import { createUplink } from '../src/crosstab/uplink.js'
import { createTestCluster } from '../src/testing/index.js'
import { range } from './crosstab.fixture.js'

describe('records', () => {
  const setup = () => {
    const cluster = createTestCluster({ latency: { storage: [0, 0] } })
    const tab = cluster.tab()
    const failed = vi.fn()
    const { platform } = tab
    return { cluster, tab, failed, clock: cluster.clock, platform, records: createRecords({ storage: platform.storage, soon: platform.soon, after: platform.after }, 'p:', failed) }
  }

  test('X15: writes of a task are merged by key, in order, and seen before they are there', async () => {
    const { cluster, clock, platform, records } = setup()
    const writes: string[] = []
    const set = vi.spyOn(platform.storage as NonNullable<typeof platform.storage>, 'setItem')
    set.mockImplementation((key, value) => void writes.push(`${key}=${value}`))
    records._put('b', { n: 1 })
    records._put('a', { n: 1 })
    records._put('b', { n: 2 })
    records._put('c', { n: 1 })
    records._put('c', undefined)
    expect([records._get('b'), records._get('c'), records._scan('').length]).toEqual([{ n: 2 }, undefined, 3])
    expect(writes).toEqual([])
    await clock.drain()
    expect(writes).toEqual(['p:b={"n":2}', 'p:a={"n":1}'])
    expect(cluster.storage.size).toBe(0)
  })

  test('X15: a flush is at once', () => {
    const { cluster, records } = setup()
    records._put('a', { n: 1 })
    records._flush()
    expect([...cluster.storage]).toEqual([['p:a', '{"n":1}']])
  })

  test('X15, pain 22: failures back off from 50 to 1,600 ms, throw nothing, and the last value is written', async () => {
    const { cluster, tab, failed, clock, records } = setup()
    tab.failStorage('quota')
    const at: number[] = []
    failed.mockImplementation(() => at.push(clock.now))
    records._put('a', { n: 1 })
    await clock.advance(10_000)
    const waits = at.slice(1).map((time, i) => time - (at[i] as number))
    expect(waits.slice(0, 8)).toEqual([50, 100, 200, 400, 800, 1600, 1600, 1600])
    records._put('a', { n: 2 })
    expect(records._get('a')).toEqual({ n: 2 })
    tab.failStorage(undefined)
    await clock.advance(1600)
    expect([...cluster.storage]).toEqual([['p:a', '{"n":2}']])
    tab.failStorage('all')
    records._put('a', { n: 3 })
    expect(() => [records._get('x'), records._scan(''), records._flush(), records._end()]).not.toThrow()
  })

  test('X15: removals are not stopped by a write that fails', () => {
    const { cluster, tab, records } = setup()
    records._put('old', { n: 1 })
    records._flush()
    tab.failStorage('quota')
    records._put('new', { n: 1 })
    records._put('old', undefined)
    records._flush()
    expect([...cluster.storage.keys()]).toEqual([])
  })

  test('X15: what is stored and is no JSON is as if it were not there, and no more than 1,000 are read', () => {
    const { platform, records } = setup()
    platform.storage?.setItem('p:bad', '{')
    for (const n of range(1, 1100)) platform.storage?.setItem(`p:k:${n}`, '{}')
    expect([records._get('bad'), records._scan('k:').length]).toEqual([undefined, 1000])
  })
})

describe('keys', () => {
  test('X05: opaque keys have 128 bits, are the same everywhere, and differ for texts that differ little', () => {
    const texts = range(0, 5000).flatMap((n) => [`t${n}`, `${n}t`, `a.b.${n}`])
    const keys = texts.map(createOpaqueKey)
    expect(new Set(keys).size).toBe(texts.length)
    expect(keys.every((key) => /^[0-9a-f]{32}$/.test(key))).toBe(true)
    // Each bit is set about half of the time, and so is each of any 32 of them.
    const bits = new Array<number>(128).fill(0)
    for (const key of keys) for (let i = 0; i < 128; i++) bits[i] = (bits[i] as number) + ((Number.parseInt(key[i >> 2] as string, 16) >> (i & 3)) & 1)
    for (const count of bits) expect(Math.abs(count / keys.length - 0.5)).toBeLessThan(0.03)
    for (const part of [0, 8, 16, 24]) expect(new Set(keys.map((key) => key.slice(part, part + 8))).size).toBeGreaterThan(texts.length - 10)
  })
})

describe('messages', () => {
  test('X11: whatever is posted, reading it throws nothing', () => {
    const record = { workerId: 'w', tabId: 't', load: 0, role: 'active', status: 'connected', visibilityState: 'visible', heartbeatAt: 0, registeredAt: 0 }
    let state = 1
    const next = (n: number) => (state = (state * 48_271) % 0x7fff_ffff) % n
    const types = ['REGISTRY', 'CONTROL', 'RESULT', 'EVENT', 'CONFIRM', 'CLAIM', 'ROUTE_RELEASED', 'PROBE', 'REPAIR', 'REFUSED', 'GONE', 'ACK', '__proto__', 'x']
    const names = ['type', 'topic', 'topicKey', 'generation', 'seq', 'publications', 'owned', 'owns', 'wants', 'route', 'from', 'to', 'error', 'head', 'workerId', 'action', 'requestId', 'knows', 'got']
    const value = (depth: number): unknown => {
      const kinds = [null, undefined, 0, -1, Number.NaN, '', 'x', true, [], {}, types[next(types.length)]]
      const kind = next(kinds.length + 2)
      if (kind < kinds.length || !depth) return kinds[kind % kinds.length]
      if (kind === kinds.length) return range(0, next(3)).map(() => value(depth - 1))
      return Object.fromEntries(range(0, next(8)).map(() => [names[next(names.length)], value(depth - 1)]))
    }
    for (let i = 0; i < 5000; i++) {
      const messages = next(10) ? range(0, next(3)).map(() => ({ ...(value(3) as object), type: types[next(types.length)] })) : value(2)
      const envelope = next(10) ? { tidewire: next(20) ? 1 : 2, record: next(20) ? record : value(2), sent: next(20) ? 0 : value(1), messages } : value(3)
      expect(() => decode(envelope)).not.toThrow()
    }
  })
})

describe('outbox', () => {
  const setup = () => {
    const cluster = createTestCluster({ latency: { channel: [1, 1] } })
    const [tab, other] = [cluster.tab(), cluster.tab()]
    const posts: { sent: number; messages: { type: string; publications?: unknown[]; topic?: string }[] }[] = []
    const port = other.platform.channel?.('p:bus') as NonNullable<ReturnType<NonNullable<typeof other.platform.channel>>>
    port.onmessage = ({ data }) => posts.push(data as (typeof posts)[number])
    const lane: unknown[] = []
    const own = other.platform.channel?.('p:other') as typeof port
    own.onmessage = ({ data }) => lane.push(data)
    const readers = new Map<string, Reader>()
    const failed = vi.fn()
    const outbox = createOutbox(tab.platform, tab.platform.after, 'p:', () => ({}) as never, () => {}, failed, () => readers)
    return { cluster, clock: cluster.clock, tab, posts, lane, readers, failed, outbox, topic: createTopic('t', 'k', 0) }
  }

  test('X12, pain 42: what is said in one task is one post, and publications that follow each other one message', async () => {
    const { clock, posts, outbox, topic } = setup()
    outbox._open('me', () => {})
    const other = createTopic('u', 'l', 0)
    outbox._event(topic, { data: 1 }, 1, 10, false)
    outbox._event(other, { data: 'x' }, 1, 10, false)
    outbox._post({ type: 'PROBE', to: 'w' })
    outbox._event(topic, { data: 2 }, 2, 10, false)
    await clock.advance(1)
    expect(posts.map(({ sent, messages }) => [sent, messages.map(({ type, publications }) => [type, publications])])).toEqual([
      [
        30,
        [
          ['EVENT', [{ data: 1 }, { data: 2 }]],
          ['EVENT', [{ data: 'x' }]],
          ['PROBE', undefined],
        ],
      ],
    ])
    // After a post, publications wait up to 4 ms; at 64 KiB they do not.
    for (const n of [3, 4, 5]) {
      outbox._event(topic, { data: n }, n, 10, false)
      await clock.advance(1)
    }
    expect(posts).toHaveLength(1)
    await clock.advance(3)
    expect(posts.map(({ messages }) => messages[0]?.publications?.length)).toEqual([2, 3])
    outbox._event(topic, { data: 6 }, 6, 70_000, false)
    await clock.advance(1)
    expect(posts).toHaveLength(3)
  })

  test('X12: a hidden page, whose timers are late, waits for none', async () => {
    const { clock, tab, posts, outbox, topic } = setup()
    tab.setVisible(false, 60_000)
    await clock.advance(10)
    outbox._open('me', () => {})
    for (const n of [1, 2]) {
      outbox._event(topic, { data: n }, n, 10, false)
      await clock.drain()
    }
    await clock.advance(1)
    expect(posts).toHaveLength(2)
  })

  test('X18: alone nothing is kept to be said', async () => {
    const { posts, clock, outbox } = setup()
    for (let i = 0; i < 100; i++) outbox._post({ type: 'PROBE', to: 'w' })
    outbox._open('me', () => {})
    outbox._post({ type: 'PROBE', to: 'x' })
    await clock.advance(1)
    expect(posts.map(({ messages }) => messages.length)).toEqual([1])
  })

  test('X12: what cannot be cloned is lost alone', async () => {
    const { posts, clock, failed, outbox, topic } = setup()
    outbox._open('me', () => {})
    outbox._post({ type: 'PROBE', to: 'a' })
    outbox._event(topic, { data: () => {} }, 1, 10, false)
    outbox._post({ type: 'PROBE', to: 'b' })
    await clock.advance(5)
    expect([posts.flatMap(({ messages }) => messages.map(({ type }) => type)), failed.mock.calls.length]).toEqual([['PROBE', 'PROBE'], 1])
  })

  test('X12, pain 42: who has 1 MiB unread is sent nothing until it has read, and the others have ways of their own', async () => {
    const { posts, lane, clock, readers, outbox, topic } = setup()
    outbox._open('me', () => {})
    const [slow, other]: Reader[] = [
      { _got: undefined, _acked: undefined, _slow: undefined },
      { _got: undefined, _acked: undefined, _slow: undefined },
    ]
    readers.set('slow', slow as Reader)
    readers.set('other', other as Reader)
    let seq = 0
    const publish = async (count: number) => {
      for (let i = 0; i < count; i++) {
        outbox._event(topic, { data: 1 }, ++seq, 65_536, false)
        await clock.advance(5)
        // The other one reads.
        outbox._acked(other as Reader, outbox._sent)
      }
    }
    await publish(16)
    expect([posts.length, lane.length]).toEqual([16, 0])
    await publish(10)
    expect([posts.length, lane.length, slow?._slow]).toEqual([16, 10, 16 * 65_536])
    expect(outbox._acked(slow as Reader, 10 * 65_536)).toBe(false)
    await publish(1)
    expect(posts.length).toBe(16)
    expect(outbox._acked(slow as Reader, 16 * 65_536)).toBe(true)
    await publish(1)
    expect([posts.length, lane.length]).toEqual([17, 11])
    outbox._close()
  })
})

describe('locks', () => {
  test('X23, pain 13: a lock that is granted after it was given up is let go, and one that was stolen is told', async () => {
    const grants: ((lock: object) => unknown)[] = []
    let reject: (error: unknown) => void = () => {}
    const request = (_name: string, _options: unknown, held: (lock: object | null) => unknown) => {
      grants.push(held)
      return new Promise<never>((_, no) => (reject = no))
    }
    const locks = createLocks({ request: request as Locks['request'] }, 'p:')
    const [granted, robbed] = [vi.fn(), vi.fn()]
    const off = locks._claim('k', false, granted, robbed)
    off()
    expect([grants[0]?.({}), granted.mock.calls.length]).toEqual([undefined, 0])
    reject(new DOMException('', 'AbortError'))
    const end = locks._claim('k', true, granted, robbed)
    let released = false
    void Promise.resolve(grants[1]?.({})).then(() => (released = true))
    expect(granted).toHaveBeenCalledTimes(1)
    reject(new DOMException('', 'AbortError'))
    await Promise.resolve().then(() => {})
    expect([robbed.mock.calls.length, released]).toEqual([1, false])
    end()
    await Promise.resolve().then(() => {})
    expect(released).toBe(true)
  })
})

describe('uplink', () => {
  test('X04: what an earlier use of the transport says is not heard, and it is never started twice at once', async () => {
    const said: string[] = []
    const events: TransportEvents[] = []
    const calls: string[] = []
    let stopped: () => void = () => {}
    const transport: DataBusTransport = {
      start: async (_config, given) => void (calls.push('start'), events.push(given)),
      stop: () => (calls.push('stop'), new Promise((resolve) => (stopped = resolve))),
      subscribe() {},
      unsubscribe() {},
      publish: async () => {},
    }
    const uplink = createUplink(transport, undefined, {
      status: (status) => said.push(status),
      publication: (topic) => said.push(topic),
      subscribed() {},
      refused() {},
    })
    void uplink._open()
    expect(uplink._open()).toBe(uplink._open())
    await Promise.resolve()
    events[0]?.status('connected')
    const closed = uplink._close()
    // What is under way is still heard, until it is closed.
    events[0]?.publication('late', { data: 1 })
    const opened = uplink._open()
    await Promise.resolve()
    expect([calls, said, uplink._status]).toEqual([['start', 'stop'], ['connecting', 'connected', 'late'], 'disconnected'])
    stopped()
    await closed
    await opened
    events[0]?.status('error')
    events[0]?.publication('old', { data: 1 })
    events[1]?.publication('new', { data: 1 })
    expect([calls, said]).toEqual([
      ['start', 'stop', 'start'],
      ['connecting', 'connected', 'late', 'connecting', 'new'],
    ])
    void uplink._close(true)
    events[1]?.publication('hurried', { data: 1 })
    expect(said).toHaveLength(5)
    stopped()
  })
})
