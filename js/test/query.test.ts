import { readFileSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { canonical, checksum } from '../src/query/checksum.js'
import { liveQuery } from '../src/query/index.js'
import { settle, World } from './fake.js'
import { type Card, sumOf, Table } from './table.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

/** A client that is live on a table with one row. */
async function live(rows: readonly Card[] = [{ id: 1, n: 'a' }]) {
  const world = new World()
  const table = new Table()
  table.rows = [...rows]
  const query = liveQuery<Card>(world.client, 'board', { list: '7' })
  const listener = vi.fn()
  const off = query.subscribe(listener)
  const socket = await world.connect()
  table.answer(socket)
  const state = () => query.getSnapshot()
  /** Whether the page shows the server's rows. */
  const holds = () => expect(state()).toEqual({ kind: 'live', rows: table.rows })
  return { world, table, query, listener, off, socket, state, holds }
}

describe('live query', () => {
  it('S47 loads, then follows: each commit is one change, in the order of the query', async () => {
    const world = new World()
    const table = new Table()
    table.put(1, 'a', 0)
    const query = liveQuery<Card>(world.client, 'board', { list: '7' })
    const states: unknown[] = [query.getSnapshot()]
    query.subscribe(() => states.push(query.getSnapshot()))
    states.push(query.getSnapshot())
    const socket = await world.connect()
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', query: 'board', input: { list: '7' } }])
    table.answer(socket)
    socket.reply(table.commit(table.put(9, 'b', 0), table.put(1, 'c', 1)))
    socket.reply(table.commit(table.del(9)))
    expect(states).toEqual([
      { kind: 'idle', rows: [] },
      { kind: 'loading', rows: [] },
      { kind: 'loading', rows: [] },
      { kind: 'live', rows: [{ id: 1, n: 'a' }] },
      { kind: 'live', rows: [{ id: 9, n: 'b' }, { id: 1, n: 'c' }] },
      { kind: 'live', rows: [{ id: 1, n: 'c' }] },
    ])
  })

  it('S47 an empty result is live', async () => {
    const { holds } = await live([])
    holds()
  })

  it('a row that did not change is the same object: after a patch, a move, and a new snapshot', async () => {
    const { table, socket, state, holds } = await live([{ id: 1, n: 'a' }, { id: 2, n: 'b' }])
    const [one, two] = state().rows
    socket.reply(table.commit(table.put(2, 'b', 0)))
    holds()
    expect(state().rows[0]).toBe(two)
    socket.reply(table.commit(table.del(1), table.put(1, 'a', 0)))
    expect(state().rows[0]).toBe(one)
    table.put(3, 'c', 1)
    table.epoch = 'e.2'
    table.version = 20
    socket.reply(table.snapshot)
    holds()
    expect(state().rows[0]).toBe(one)
    expect(state().rows[2]).toBe(two)
    socket.reply(table.commit(table.put(1, 'changed', 0)))
    expect(state().rows[0]).not.toBe(one)
  })

  it('S28 keeps its rows without a connection, and gets what it missed on the next', async () => {
    const { world, table, socket, state, holds } = await live()
    const { rows } = state()
    socket.end(1006)
    expect(state()).toEqual({ kind: 'stale', rows })
    expect(state().rows).toBe(rows)
    table.commit(table.put(2, 'b', 1))
    table.commit(table.del(1))
    const next = await world.reconnect()
    table.answer(next)
    expect(table.asked).toEqual([undefined, { offset: 1, epoch: 'e.1', sum: expect.any(String) }])
    holds()
    // Nothing was missed: the same rows.
    const before = state().rows
    next.end(1006)
    table.answer(await world.reconnect())
    holds()
    expect(state().rows).toBe(before)
    // The server lost it.
    world.socket.end(1006)
    Object.assign(table, { epoch: 'e.2', version: 9, patches: [] })
    table.put(4, 'd', 0)
    table.answer(await world.reconnect())
    holds()
  })

  it('S20 asks for a missing commit, once, and ignores what comes before the answer', async () => {
    const { table, socket, state, holds, query } = await live()
    const first = table.commit(table.put(2, 'b', 0))
    socket.reply(first)
    const { rows } = state()
    table.commit(table.put(3, 'c', 0))
    socket.reply(table.commit(table.put(4, 'd', 0)))
    socket.reply(table.commit(table.put(5, 'e', 0)))
    socket.reply(first) // old
    expect(socket.of('subscribe')).toHaveLength(2)
    expect(state()).toEqual({ kind: 'stale', rows })
    table.answer(socket)
    expect(table.asked.at(-1)).toMatchObject({ offset: 2, epoch: 'e.1' })
    holds()
    expect(query.drifts).toBe(0)
  })

  it('S29 goes on from its rows on a node that counts otherwise', async () => {
    const { table, socket, state, holds, query } = await live()
    table.commit(table.put(2, 'b', 0))
    socket.reply(table.commit(table.put(3, 'c', 0)))
    const [{ sid, since }] = socket.of('subscribe').slice(-1) as unknown as [{ sid: string; since: { sum: string } }]
    expect(since.sum).toMatch(/^[0-9a-f]{16}$/)
    // Another node: its versions are lower, and one patch leads there.
    Object.assign(table, { epoch: 'other.1', version: 7 })
    socket.reply({ type: 'subscribed', sid, qid: table.qid, recovered: true, offset: 6, epoch: 'other.1' })
    socket.reply({ type: 'patch', qid: table.qid, version: 7, ops: [{ put: { id: 2, n: 'b' }, at: 0 }, { put: { id: 3, n: 'c' }, at: 0 }], sum: table.sum })
    holds()
    socket.reply(table.commit(table.put(4, 'd', 0)))
    holds()
    expect(state().kind).toBe('live')
    expect(query.drifts).toBe(0)
  })

  it('S20 asks again with a heartbeat when the answer does not come', async () => {
    const { table, socket, holds } = await live()
    table.commit(table.put(3, 'c', 0))
    socket.reply(table.commit(table.put(4, 'd', 0)))
    await vi.advanceTimersByTimeAsync(15_000)
    socket.welcome()
    expect(socket.of('subscribe')).toHaveLength(3)
    table.answer(socket)
    holds()
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(3)
  })

  const drifts: readonly (readonly [string, object])[] = [
    ['another sum', { ops: [{ put: { id: 5, n: 'e' }, at: 0 }], sum: '0000000000000000' }],
    ['a deleted row that is not there', { ops: [{ del: 77 }] }],
    ['an index beyond the end', { ops: [{ put: { id: 5, n: 'e' }, at: 3 }] }],
    ['an index below zero', { ops: [{ put: { id: 5, n: 'e' }, at: -1 }] }],
  ]
  it.each(drifts)('S48 %s: what drifted is not shown, and is read anew', async (_, members) => {
    const { table, socket, state, holds, query } = await live()
    socket.reply({ type: 'patch', qid: 'q1', version: 2, sum: table.sum, ...members })
    expect(state()).toEqual({ kind: 'stale', rows: [{ id: 1, n: 'a' }] })
    expect(query.drifts).toBe(1)
    table.commit(table.put(2, 'b', 0))
    table.answer(socket)
    expect(table.asked.at(-1)).toEqual({ offset: 0, epoch: '' })
    holds()
  })

  it('S48 a snapshot without its own sum is shown, counted, and not asked for again', async () => {
    const { socket, state, query } = await live()
    socket.reply({ type: 'snapshot', qid: 'q1', version: 4, epoch: 'e', key: ['id'], rows: [{ id: 1 }], sum: '0000000000000001' })
    socket.reply({ type: 'patch', qid: 'q1', version: 5, ops: [{ put: { id: 2 }, at: 1 }], sum: '0000000000000002' })
    expect(state()).toEqual({ kind: 'live', rows: [{ id: 1 }, { id: 2 }] })
    expect(socket.of('subscribe')).toHaveLength(1)
    expect(query.drifts).toBe(1)
  })

  it('S48 has the checksums of the shared vectors', () => {
    const file = new URL('../../spec/vectors/order.json', import.meta.url)
    const { checksums } = JSON.parse(readFileSync(file, 'utf8')) as {
      checksums: readonly { readonly row: unknown; readonly canonical: string; readonly checksum: string; readonly sum: string }[]
    }
    expect(checksums.length).toBeGreaterThan(0)
    let sum = 0n
    for (const vector of checksums) {
      expect(canonical(vector.row)).toBe(vector.canonical)
      const one = checksum(vector.canonical)
      expect(one.toString(16).padStart(16, '0')).toBe(vector.checksum)
      sum = BigInt.asUintN(64, sum + one)
      expect(sum.toString(16).padStart(16, '0')).toBe(vector.sum)
    }
  })

  it('S14 random commits, losses, cuts and lost epochs: the rows end as the server has them', async () => {
    let seed = Math.floor(Math.random() * 2 ** 31)
    const first = seed
    const random = (n: number) => {
      seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff
      return Math.floor((seed / 2 ** 31) * n)
    }
    const { world, table, query, state, holds } = await live()
    for (let i = 0; i < 500; i++) {
      const ops = Array.from({ length: 1 + random(3) }, () => {
        const row = table.rows[random(table.rows.length)]
        return row && random(3) === 0 ? table.del(row.id) : table.put(random(12), String(random(100)), random(12))
      })
      const patch = table.commit(...ops)
      const chance = random(12)
      if (chance === 0) continue // lost
      if (chance === 1) world.socket.reply(patch)
      if (chance === 2) world.socket.reply(table.snapshot)
      if (chance === 3) {
        world.socket.end(1006)
        await world.reconnect()
      }
      if (chance === 4) {
        table.epoch += 'x'
        table.patches = []
        world.socket.reply(table.snapshot)
      }
      if (chance === 5) table.patches.splice(0, table.patches.length >> 1)
      world.socket.reply(patch)
      table.answer(world.socket)
      expect(state(), `seed ${first}, step ${i}`).toEqual({ kind: 'live', rows: table.rows })
    }
    world.socket.reply(table.commit(table.put(1, 'last', 0)))
    table.answer(world.socket) // the one before may have been lost
    holds()
    expect(query.drifts).toBe(0)
  })

  it('S44 refused with a delay: asks again; without: with the next connection', async () => {
    const { world, table, socket, state, holds } = await live()
    socket.reply({ type: 'unsubscribed', sid: '1', code: 'DATABASE_UNAVAILABLE', cause: 'away', retryAfterMs: 1000 })
    expect(state()).toMatchObject({ kind: 'refused', rows: [{ id: 1 }], error: { code: 'DATABASE_UNAVAILABLE' }, retryAt: Date.now() + 1000 })
    await vi.advanceTimersByTimeAsync(1000)
    table.answer(socket)
    holds()
    socket.reply({ type: 'unsubscribed', sid: '1', code: 'TOPIC_FORBIDDEN' })
    socket.reply(table.commit(table.put(2, 'b', 0))) // of no subscription
    expect(state()).toMatchObject({ kind: 'refused', rows: [{ id: 1 }], error: { code: 'TOPIC_FORBIDDEN' } })
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(2)
    socket.end(1006)
    expect(state().kind).toBe('stale')
    table.answer(await world.reconnect())
    holds()
  })

  it('S44 refused at first: there are no rows', async () => {
    const world = new World()
    const query = liveQuery(world.client, 'nothing')
    query.subscribe(() => {})
    const socket = await world.connect()
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', code: 'LIVE_QUERY_UNKNOWN', cause: 'no such query' })
    expect(query.getSnapshot()).toMatchObject({ kind: 'refused', rows: [], error: { code: 'LIVE_QUERY_UNKNOWN' } })
  })

  it('S04 another qid of the same subscription: rows of the old one are not taken', async () => {
    const { table, socket, state, holds } = await live()
    const old = table.commit(table.put(2, 'secret', 0))
    Object.assign(table, { qid: 'q2', epoch: 'e.9', version: 3, rows: [] })
    socket.reply({ type: 'subscribed', sid: '1', qid: 'q2' })
    socket.reply(old)
    expect(state()).toEqual({ kind: 'stale', rows: [{ id: 1, n: 'a' }] })
    socket.reply(table.snapshot)
    socket.reply({ ...old, version: 4 })
    holds()
  })

  it('several columns make a key', async () => {
    const { socket, state } = await live()
    const rows = [{ a: 'x', b: 1, c: { y: [1e21, -0], x: null } }, { b: 2, a: 'x' }]
    socket.reply({ type: 'snapshot', qid: 'q1', version: 2, epoch: 'e', key: ['a', 'b'], rows, sum: sumOf(rows) })
    socket.reply({ type: 'patch', qid: 'q1', version: 3, ops: [{ del: ['x', 2] }], sum: sumOf(rows.slice(0, 1)) })
    expect(state()).toEqual({ kind: 'live', rows: JSON.parse(JSON.stringify(rows.slice(0, 1))) })
  })
})

describe('who holds a live query', () => {
  it('an equal input is the same query and one subscription', async () => {
    const { world, query, socket } = await live()
    const same = liveQuery<Card>(world.client, 'board', { list: '7', none: undefined })
    expect(same).toBe(query)
    same.subscribe(() => {})
    expect(liveQuery(world.client, 'board', { list: '8' })).not.toBe(query)
    expect(liveQuery(new World().client, 'board', { list: '7' })).not.toBe(query)
    expect(liveQuery(world.client, 'q', { a: 1, b: { c: [1], d: 2 } })).toBe(liveQuery(world.client, 'q', { b: { d: 2, c: [1] }, a: 1 }))
    await settle()
    expect(socket.of('subscribe')).toHaveLength(1)
  })

  it('an input without a JSON form throws', () => {
    expect(() => liveQuery(new World().client, 'q', { n: 1n })).toThrow('DATA_INVALID')
  })

  it('dials by itself, and ends a tenth of a second after the last listener has gone', async () => {
    const world = new World()
    const table = new Table()
    const query = liveQuery<Card>(world.client, 'board')
    await settle()
    expect(world.sockets).toHaveLength(0)
    const offs = [query.subscribe(() => {}), query.subscribe(() => {})]
    await settle()
    const socket = await world.accept()
    table.answer(socket)
    offs[0]?.()
    offs[0]?.()
    await vi.advanceTimersByTimeAsync(200)
    expect(socket.of('unsubscribe')).toEqual([])
    offs[1]?.()
    await vi.advanceTimersByTimeAsync(99)
    const off = query.subscribe(() => {})
    await vi.advanceTimersByTimeAsync(200)
    expect(socket.of('unsubscribe')).toEqual([])
    off()
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.of('unsubscribe')).toEqual([{ type: 'unsubscribe', sid: '1' }])
    expect(query.getSnapshot()).toEqual({ kind: 'idle', rows: [] })
    socket.reply({ type: 'unsubscribed', sid: '1' })
    socket.reply(table.commit(table.put(1, 'a', 0)))
    expect(query.getSnapshot()).toEqual({ kind: 'idle', rows: [] })
  })

  it('who comes back gets the last rows at once, and what was missed after', async () => {
    const { table, query, off, socket, state, holds } = await live()
    off()
    await vi.advanceTimersByTimeAsync(100)
    table.commit(table.put(2, 'b', 0))
    query.subscribe(() => {})
    expect(state()).toEqual({ kind: 'stale', rows: [{ id: 1, n: 'a' }] })
    socket.reply({ type: 'unsubscribed', sid: '1' }) // the answer to the first
    expect(state().kind).toBe('stale')
    table.answer(socket)
    expect(table.asked.at(-1)).toMatchObject({ offset: 1, epoch: 'e.1' })
    holds()
  })

  it('a closed client makes it idle, and connecting again live', async () => {
    const { world, table, state, holds } = await live()
    world.client.close()
    expect(state()).toEqual({ kind: 'idle', rows: [{ id: 1, n: 'a' }] })
    table.answer(await world.connect())
    holds()
  })

  it('channels go on beside it', async () => {
    const { world, socket } = await live()
    const got = vi.fn()
    world.client.channel('room.1').on('message', got)
    await settle()
    const sid = socket.of('subscribe').at(-1)?.['sid']
    expect(sid).toBe('2')
    socket.reply({ type: 'subscribed', sid, channel: 'room.1' })
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    expect(got).toHaveBeenCalledTimes(1)
  })

  it('a listener that leaves during a change hears no more, and others do', async () => {
    const { table, socket, query, listener } = await live()
    const once = vi.fn(() => off())
    const off = query.subscribe(once)
    const before = listener.mock.calls.length
    socket.reply(table.commit(table.put(2, 'b', 0)))
    socket.reply(table.commit(table.put(3, 'b', 0)))
    expect(once).toHaveBeenCalledTimes(1)
    expect(listener).toHaveBeenCalledTimes(before + 2)
  })
})
