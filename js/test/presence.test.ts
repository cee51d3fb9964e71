import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Presence } from '../src/index.js'
import { type FakeSocket, settle, snapshot, World } from './fake.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const R = 'room.1'

async function joined(data?: unknown): Promise<{ world: World; socket: FakeSocket; presence: Presence }> {
  const world = new World()
  const presence = world.client.channel(R).presence(data === undefined ? {} : { data })
  const socket = await world.connect()
  socket.answerSubscribes()
  return { world, socket, presence }
}

const ids = (presence: Pick<Presence, 'getSnapshot'>) => presence.getSnapshot().members.map(({ id }) => id)

describe('the roster', () => {
  it('S11 joins with the subscription and follows snapshot and diffs', async () => {
    const { socket, presence } = await joined({ name: 'Me' })
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: { data: { name: 'Me' } } }])
    expect(presence.getSnapshot()).toEqual({ kind: 'unknown', members: [], total: 0, version: 0 })
    socket.reply({
      type: 'presence',
      channel: R,
      version: 7,
      total: 2,
      snapshot: [
        { id: 'alice', data: { name: 'Alice' }, sessions: ['s-1', 's-2'] },
        { id: 'bob', sessions: ['s-3'], state: { 's-3': { x: 1 } } },
      ],
    })
    expect(presence.getSnapshot()).toEqual({
      kind: 'live',
      version: 7,
      total: 2,
      members: [
        { id: 'alice', data: { name: 'Alice' }, sessions: ['s-1', 's-2'], sessionCount: 2, states: {} },
        { id: 'bob', sessions: ['s-3'], sessionCount: 1, states: { 's-3': { x: 1 } } },
      ],
    })
    socket.reply({ type: 'presence', channel: R, version: 8, total: 3, joins: [{ id: 'carol', sessions: ['s-4'] }] })
    expect(ids(presence)).toEqual(['alice', 'bob', 'carol'])
    socket.reply({ type: 'presence', channel: R, version: 9, total: 2, leaves: ['alice'] })
    expect(ids(presence)).toEqual(['bob', 'carol'])
    expect(presence.getSnapshot()).toMatchObject({ version: 9, total: 2 })
  })

  it('P22 an update changes the member in place: same position, others untouched, no one leaves', async () => {
    const { socket, presence } = await joined()
    socket.reply(snapshot(R, 1, ['a', 'b', 'c']))
    const seen: string[][] = []
    presence.subscribe(() => seen.push(ids(presence)))
    const [a, , c] = presence.getSnapshot().members
    socket.reply({ type: 'presence', channel: R, version: 2, total: 3, updates: [{ id: 'b', data: 1, sessions: ['s-b'] }] })
    expect(seen).toEqual([['a', 'b', 'c']])
    expect(presence.getSnapshot().members[0]).toBe(a)
    expect(presence.getSnapshot().members[1]).toMatchObject({ id: 'b', data: 1 })
    expect(presence.getSnapshot().members[2]).toBe(c)
  })

  it('P22 an update of a member that is not listed adds no ghost', async () => {
    const { socket, presence } = await joined()
    socket.reply(snapshot(R, 1, ['a']))
    socket.reply({ type: 'presence', channel: R, version: 2, total: 1, updates: [{ id: 'ghost', sessions: ['s'] }], leaves: ['nobody'] })
    expect(ids(presence)).toEqual(['a'])
  })

  it('S11 in one diff leaves come first, then joins in order, then updates', async () => {
    const { socket, presence } = await joined()
    socket.reply(snapshot(R, 1, ['a', 'b']))
    socket.reply({
      type: 'presence', channel: R, version: 2, total: 3,
      updates: [{ id: 'c', data: 'new', sessions: ['s-c'] }],
      joins: [{ id: 'c', sessions: ['s-c'] }, { id: 'a', sessions: ['s-a'] }],
      leaves: ['a'],
    })
    expect(ids(presence)).toEqual(['b', 'c', 'a'])
    expect(presence.getSnapshot().members[1]).toMatchObject({ data: 'new' })
  })

  it('P22 diffs before the snapshot are held back, old ones ignored', async () => {
    const { socket, presence } = await joined()
    socket.reply({ type: 'presence', channel: R, version: 7, total: 4, joins: [{ id: 'd', sessions: ['s-d'] }] })
    socket.reply({ type: 'presence', channel: R, version: 6, total: 3, joins: [{ id: 'c', sessions: ['s-c'] }] })
    socket.reply({ type: 'presence', channel: R, version: 4, total: 1, leaves: ['b'] })
    expect(presence.getSnapshot().kind).toBe('unknown')
    socket.reply(snapshot(R, 5, ['a', 'b']))
    expect(ids(presence)).toEqual(['a', 'b', 'c', 'd'])
    const before = presence.getSnapshot()
    socket.reply({ type: 'presence', channel: R, version: 6, total: 3, leaves: ['a'] })
    expect(presence.getSnapshot()).toBe(before)
  })

  it('P22 a missing version asks for a snapshot, once, with the same sid', async () => {
    const { socket, presence } = await joined()
    socket.reply(snapshot(R, 1, ['a']))
    socket.sent.length = 0
    socket.reply({ type: 'presence', channel: R, version: 3, total: 3, joins: [{ id: 'c', sessions: ['s-c'] }] })
    socket.reply({ type: 'presence', channel: R, version: 5, total: 4, joins: [{ id: 'e', sessions: ['s-e'] }] })
    expect(socket.sent).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: { resync: true } }])
    expect(presence.getSnapshot()).toMatchObject({ kind: 'stale', version: 1 })
    expect(ids(presence)).toEqual(['a'])
    socket.reply({ type: 'subscribed', sid: '1', channel: R })
    socket.reply(snapshot(R, 4, ['a', 'b', 'c', 'd']))
    expect(presence.getSnapshot()).toMatchObject({ kind: 'live', version: 5 })
    expect(ids(presence)).toEqual(['a', 'b', 'c', 'd', 'e'])
  })

  it('a snapshot that does not come is asked for again with the heartbeat', async () => {
    const { socket } = await joined()
    socket.sent.length = 0
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: { resync: true } }])
  })

  it('P24 several sessions of one actor are one member, whose count follows 3, 1, and gone', async () => {
    const { socket, presence } = await joined()
    const counts: (number | undefined)[] = []
    presence.subscribe(() => counts.push(presence.getSnapshot().members.find(({ id }) => id === 'bob')?.sessionCount))
    socket.reply(snapshot(R, 1, ['alice']))
    socket.reply({ type: 'presence', channel: R, version: 2, total: 2, joins: [{ id: 'bob', sessions: ['s1', 's2', 's3'] }] })
    socket.reply({ type: 'presence', channel: R, version: 3, total: 2, updates: [{ id: 'bob', sessions: ['s2'] }] })
    socket.reply({ type: 'presence', channel: R, version: 4, total: 1, leaves: ['bob'] })
    expect(counts).toEqual([undefined, 3, 1, undefined])
    socket.reply({ type: 'presence', channel: R, version: 5, total: 2, joins: [{ id: 'bob', sessions: ['s9'], sessionCount: 40 }] })
    expect(presence.getSnapshot().members[1]).toMatchObject({ sessions: ['s9'], sessionCount: 40 })
  })

  it('P23 after a drop the roster stays as it was, stale, until the new snapshot', async () => {
    const { world, socket, presence } = await joined({ name: 'Me' })
    socket.reply(snapshot(R, 3, ['a', 'b']))
    const seen: string[] = []
    presence.subscribe(() => seen.push(`${presence.getSnapshot().kind} ${ids(presence).join()}`))
    socket.end(1006)
    const second = await world.reconnect()
    second.answerSubscribes()
    // A new node counts from elsewhere.
    second.reply(snapshot(R, 2, ['a', 'b']))
    expect(new Set(seen)).toEqual(new Set(['stale a,b', 'live a,b']))
    expect(presence.getSnapshot()).toMatchObject({ kind: 'live', version: 2 })
  })

  it('S11 observe takes the roster without joining', async () => {
    const world = new World()
    const roster = world.client.channel(R).presence({ observe: true })
    const socket = await world.connect()
    expect(socket.of('subscribe')[0]).toMatchObject({ presence: { observe: true } })
    socket.answerSubscribes()
    socket.reply(snapshot(R, 1, ['a']))
    expect(ids(roster)).toEqual(['a'])
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(1)
    roster.close()
    roster.close()
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.of('unsubscribe')).toHaveLength(1)
    expect(roster.getSnapshot()).toMatchObject({ kind: 'unknown', members: [] })
  })
})

describe('this session', () => {
  it('S11 all handles of a channel are one session, asked for together with the messages', async () => {
    const world = new World()
    const channel = world.client.channel(R)
    channel.on('message', () => {})
    channel.presence({ observe: true })
    channel.presence({ data: 1 })
    const last = channel.presence({ data: 2 })
    const socket = await world.connect()
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: { data: 2 } }])
    socket.answerSubscribes()
    last.close()
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.of('unsubscribe')).toEqual([])
  })

  it('S11 joining later, and leaving while messages are wanted, changes the subscription in place', async () => {
    const world = new World()
    const channel = world.client.channel(R)
    const got = vi.fn()
    channel.on('message', ({ data }) => got(data))
    const socket = await world.connect()
    socket.answerSubscribes()
    const presence = channel.presence({ data: 1 })
    presence.setState('s')
    await settle()
    expect(socket.sent.slice(2)).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: { data: 1 } }])
    socket.reply({ type: 'message', channel: R, id: 'm', data: 'between' })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
    socket.answerSubscribes()
    socket.reply(snapshot(R, 1, ['a', 'me']))
    expect(socket.of('state')).toEqual([{ type: 'state', channel: R, data: 's' }])
    presence.close()
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.sent.slice(4)).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: { observe: true } }])
    socket.answerSubscribes()
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(3)
    expect(got.mock.calls).toEqual([['between']])

    // The server goes on with the roster, so that whoever wants it again has it at once.
    socket.reply({ type: 'presence', channel: R, version: 2, total: 1, leaves: ['me'] })
    const again = channel.presence({ observe: true })
    expect(again.getSnapshot()).toMatchObject({ kind: 'live', version: 2 })
    const joined = channel.presence()
    await settle()
    expect(socket.of('subscribe').slice(3)).toEqual([{ type: 'subscribe', sid: '1', channel: R, presence: {} }])
    expect(socket.of('unsubscribe')).toEqual([])
    expect(joined.getSnapshot().kind).toBe('live')

    // The next connection takes only what is wanted.
    joined.close()
    again.close()
    socket.end(1006)
    expect((await world.reconnect()).of('subscribe')).toEqual([{ type: 'subscribe', sid: '2', channel: R }])
    expect(channel.roster.getSnapshot()).toMatchObject({ kind: 'unknown', members: [] })
  })

  it('S11 leaving and joining again before the server answers: data and state are set after the last join', async () => {
    const world = new World()
    const channel = world.client.channel(R)
    const watching = channel.presence({ observe: true })
    const first = channel.presence({ data: 1 })
    const socket = await world.connect()
    socket.answerSubscribes()
    socket.reply(snapshot(R, 1, ['me']))
    first.setState('first')
    first.close()
    await vi.advanceTimersByTimeAsync(100)
    const second = channel.presence({ data: 2 })
    second.setState('second')
    await settle()
    expect(socket.of('subscribe').map(({ presence }) => presence)).toEqual([{ data: 1 }, { observe: true }, { data: 2 }])
    socket.answerSubscribes()
    await vi.advanceTimersByTimeAsync(50)
    expect(socket.sent.slice(-1)).toEqual([{ type: 'state', channel: R, data: 'second' }])
    expect(watching.getSnapshot().kind).toBe('live')
  })

  it('S11 a roster refused later leaves the messages alone, and is asked for again only if that can help', async () => {
    for (const retryAfterMs of [undefined, 500]) {
      const world = new World()
      const channel = world.client.channel(R)
      channel.on('message', () => {})
      const socket = await world.connect()
      socket.answerSubscribes()
      const presence = channel.presence({ data: 1 })
      await settle()
      socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: R, code: 'GUARD_FAILED', cause: 'no', ...(retryAfterMs && { retryAfterMs }) })
      expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
      expect(presence.getSnapshot()).toMatchObject({ kind: 'unknown', error: { code: 'GUARD_FAILED' } })
      presence.setState('s')
      await vi.advanceTimersByTimeAsync(16_000)
      expect(socket.of('state')).toEqual([])
      expect(socket.of('subscribe').slice(2)).toEqual(retryAfterMs ? [{ type: 'subscribe', sid: '1', channel: R, presence: { data: 1, resync: true } }] : [])
      if (!retryAfterMs) continue
      socket.reply({ type: 'subscribed', sid: '1', channel: R })
      socket.reply(snapshot(R, 1, ['me']))
      expect(presence.getSnapshot().error).toBeUndefined()
      expect(socket.of('state')).toHaveLength(1)
    }
  })

  it('P22 update sends the data once, and not when it is equal', async () => {
    const { socket, presence } = await joined({ name: 'A' })
    presence.update({ name: 'A' })
    presence.update({ name: 'B' })
    presence.update({ name: 'B' })
    expect(socket.of('presence')).toEqual([{ type: 'presence', channel: R, data: { name: 'B' } }])
  })

  it('P23 joins again with the last data and state after a reconnect', async () => {
    const { world, socket, presence } = await joined({ name: 'A' })
    presence.update({ name: 'B' })
    presence.setState({ x: 1 })
    socket.end(1006)
    presence.setState({ x: 2 })
    const second = await world.reconnect()
    expect(second.of('subscribe')[0]).toMatchObject({ presence: { data: { name: 'B' } } })
    presence.update({ name: 'C' })
    expect(second.of('presence')).toEqual([])
    second.answerSubscribes()
    expect(second.of('presence')).toEqual([{ type: 'presence', channel: R, data: { name: 'C' } }])
    await vi.advanceTimersByTimeAsync(33)
    expect(second.of('state')).toEqual([{ type: 'state', channel: R, data: { x: 2 } }])
    // A repeated answer does not repeat it.
    second.reply({ type: 'subscribed', sid: '2', channel: R })
    await vi.advanceTimersByTimeAsync(100)
    expect(second.of('state')).toHaveLength(1)
  })

  it('a state that was cleared is not set again after a reconnect', async () => {
    const { world, socket, presence } = await joined()
    presence.setState({ x: 1 })
    await vi.advanceTimersByTimeAsync(50)
    presence.setState(null)
    expect(socket.of('state').map(({ data }) => data)).toEqual([{ x: 1 }, null])
    socket.end(1006)
    const second = await world.reconnect()
    second.answerSubscribes()
    await vi.advanceTimersByTimeAsync(100)
    expect(second.of('state')).toEqual([])
  })

  it('S11 states are sent at most once per 33 ms, the newest wins and the last is always sent', async () => {
    const { socket, presence } = await joined()
    for (let t = 0; t < 1000; t++) {
      presence.setState({ t })
      await vi.advanceTimersByTimeAsync(1)
    }
    presence.setState({ t: 'last' })
    await vi.advanceTimersByTimeAsync(33)
    const sent = socket.of('state').map(({ data }) => (data as { t: number | string }).t)
    expect(sent[0]).toBe(0)
    expect(sent.at(-1)).toBe('last')
    expect(sent.length).toBeLessThanOrEqual(1 + Math.ceil(1033 / 33))
    expect(sent.length).toBeGreaterThan(28)
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.of('state')).toHaveLength(sent.length)
  })

  it('S11 states that wait for the rate are replaced, not queued', async () => {
    const world = new World()
    const presence = world.client.channel(R).presence()
    const socket = await world.connect({ limits: { framesPerSecond: 1, frameBurst: 2 } })
    await vi.advanceTimersByTimeAsync(2000)
    socket.answerSubscribes()
    for (let t = 0; t < 100; t++) {
      presence.setState({ t })
      await vi.advanceTimersByTimeAsync(100)
    }
    const sent = socket.of('state').map(({ data }) => (data as { t: number }).t)
    expect(sent.length).toBeLessThan(12)
    // Each was the newest when its turn came.
    for (const [i, t] of sent.entries()) if (i > 1) expect(t - (sent[i - 1] ?? 0)).toBeGreaterThanOrEqual(10)
  })

  it('S11 states of others by session; forgotten when the session leaves or sends null', async () => {
    const { socket, presence } = await joined()
    socket.reply({ type: 'presence', channel: R, version: 1, total: 1, snapshot: [{ id: 'bob', sessions: ['s1', 's2'] }] })
    const states = () => presence.getSnapshot().members.map((member) => member.states)
    socket.reply({ type: 'state', channel: R, member: 'bob', session: 's1', data: { x: 1 } })
    socket.reply({ type: 'state', channel: R, member: 'bob', session: 's2', data: { x: 2 } })
    expect(states()).toEqual([{ s1: { x: 1 }, s2: { x: 2 } }])
    socket.reply({ type: 'presence', channel: R, version: 2, total: 1, updates: [{ id: 'bob', sessions: ['s2'] }] })
    expect(states()).toEqual([{ s2: { x: 2 } }])
    socket.reply({ type: 'state', channel: R, member: 'bob', session: 's2', data: null })
    expect(states()).toEqual([{}])
    // A state may come before the diff that lists its member.
    socket.reply({ type: 'state', channel: R, member: 'eve', session: 's9', data: { x: 9 } })
    socket.reply({ type: 'presence', channel: R, version: 3, total: 2, joins: [{ id: 'eve', sessions: ['s9'] }] })
    expect(states()).toEqual([{}, { s9: { x: 9 } }])
  })

  it('data and state over the limit are PRESENCE_TOO_BIG at the call, counted in bytes', async () => {
    const { socket, presence } = await joined()
    expect(() => presence.update('€'.repeat(341))).toThrow(expect.objectContaining({ code: 'PRESENCE_TOO_BIG' }))
    expect(() => presence.setState('x'.repeat(1023))).toThrow(expect.objectContaining({ code: 'PRESENCE_TOO_BIG' }))
    expect(() => presence.update(undefined)).toThrow(expect.objectContaining({ code: 'DATA_INVALID' }))
    presence.update('x'.repeat(1022))
    expect(socket.of('presence')).toHaveLength(1)
  })

  it('a refused update stands on the roster until the next', async () => {
    const { socket, presence } = await joined()
    presence.update('a')
    socket.reply({ type: 'refused', re: 'presence', channel: R, code: 'TOPIC_FORBIDDEN', cause: 'no' })
    expect(presence.getSnapshot().error).toMatchObject({ code: 'TOPIC_FORBIDDEN' })
    presence.update('b')
    expect(presence.getSnapshot().error).toBeUndefined()
  })

  it('an AbortSignal leaves', async () => {
    const world = new World()
    const controller = new AbortController()
    world.client.channel(R).presence({ data: 1, signal: controller.signal })
    const socket = await world.connect()
    controller.abort()
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.of('unsubscribe')).toHaveLength(1)
  })
})
