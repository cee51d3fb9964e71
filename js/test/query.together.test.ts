import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { liveQuery } from '../src/query/index.js'
import { type FakeSocket, World } from './fake.js'
import { type Card, Table } from './table.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

type Frame = { readonly type: string }

/** A frame of a commit that changed several live queries. */
const of = (commit: number, frame: Frame) => ({ ...frame, commit })
const settled = (commit: number) => ({ type: 'settled', commit })

/** A client of several live queries with one row each, whose listeners note what all of them show. */
async function follow(...names: string[]) {
  const world = new World()
  const told: string[] = []
  const lists = names.map((name) => {
    const table = new Table()
    table.qid = `q-${name}`
    table.put(1, '0', 0)
    return { name, table, query: liveQuery<Card>(world.client, name), off: () => {} }
  })
  const shown = () => lists.map(({ query }) => query.getSnapshot().rows.map(({ n }) => n).join()).join(' ')
  for (const list of lists) list.off = list.query.subscribe(() => told.push(shown()))
  const views = new WeakMap<FakeSocket, Record<string, FakeSocket>>()
  /** Answers what has not been answered. */
  const answer = (socket: FakeSocket) => {
    if (!views.has(socket)) views.set(socket, {})
    for (const { name, table } of lists) {
      const view = ((views.get(socket) as Record<string, FakeSocket>)[name] ??= {
        get sent() {
          return socket.sent.filter(({ query }) => query === name)
        },
        reply: socket.reply.bind(socket),
      } as unknown as FakeSocket)
      table.answer(view)
    }
  }
  const say = (...frames: Frame[]) => frames.forEach((frame) => world.socket.reply(frame))
  /** Commits a text as the only row. */
  const patch = (name: string, n: string) => {
    const { table } = lists.find((list) => list.name === name) as (typeof lists)[number]
    return table.commit(table.put(1, n, 0))
  }
  const expectShown = (rows: string, ...heard: string[]) => {
    expect(shown()).toBe(rows)
    expect(told.splice(0)).toEqual(heard)
  }
  answer(await world.connect())
  expectShown(names.map(() => '0').join(' '), ...told)
  return { world, lists, told, shown, answer, say, patch, expectShown }
}

describe('S47 several live queries', () => {
  it('what one commit changed is shown in all of them at once', async () => {
    const { lists, say, patch, expectShown } = await follow('a', 'b')
    say(patch('a', '1'))
    expectShown('1 0', '1 0')
    say(of(1, patch('a', '2')))
    expect(lists[0]?.query.getSnapshot().kind).toBe('live')
    say(of(1, patch('b', '2')))
    expectShown('1 0')
    say(settled(1))
    expectShown('2 2', '2 2', '2 2')
    // A later patch waits for an earlier one of its query, and for no other.
    say(of(2, patch('a', '3')), patch('a', '4'), patch('b', '3'))
    expectShown('2 3', '2 3')
    say(of(2, patch('b', '4')), settled(7), settled(2))
    expectShown('4 4', '4 4', '4 4')
    // The fourth is whole before the third, which a has not shown yet.
    say(of(3, patch('a', '5')), of(4, patch('a', '6')), of(4, patch('b', '6')), settled(4))
    expectShown('4 4')
    say(settled(3))
    expectShown('6 6', '6 6', '6 6')
    // A snapshot in the place of a patch.
    const { table } = lists[0] as (typeof lists)[number]
    table.put(1, '7', 0)
    table.version++
    say(of(5, table.snapshot))
    expectShown('6 6')
    say(of(5, patch('b', '7')), settled(5))
    expectShown('7 7', '7 7', '7 7')
    expect(lists.map(({ query }) => query.drifts)).toEqual([0, 0])
  })

  it('nothing waits longer than a quarter of a second, and not more than 256 frames; later commits wait on', async () => {
    const { told, say, patch, expectShown } = await follow('a', 'b')
    say(of(1, patch('a', '1')))
    vi.advanceTimersByTime(100)
    say(of(2, patch('a', '2')), of(2, patch('b', '2')))
    vi.advanceTimersByTime(149)
    expectShown('0 0')
    vi.advanceTimersByTime(1)
    expectShown('1 0', '1 0')
    vi.advanceTimersByTime(99)
    expectShown('1 0')
    vi.advanceTimersByTime(1)
    expectShown('2 2', '2 2', '2 2')
    say(settled(1), settled(2), of(3, patch('b', '3')), settled(3))
    expectShown('2 3', '2 3')
    for (let i = 0; i < 256; i++) say(of(4 + i, patch('a', String(i))))
    expect(told).toEqual([])
    say(of(300, patch('a', 'x')))
    expectShown('x 3', 'x 3') // told once, of the newest
    vi.advanceTimersByTime(1000)
    expectShown('x 3')
  })

  it('with one there is nothing to wait for; nor with another that the server refused', async () => {
    const one = await follow('a')
    one.say(of(1, one.patch('a', '1')))
    one.expectShown('1', '1')
    const two = await follow('a', 'b')
    two.say({ type: 'unsubscribed', sid: '2', code: 'TOPIC_FORBIDDEN' } as Frame)
    two.told.length = 0
    two.say(of(1, two.patch('a', '1')))
    two.expectShown('1 0', '1 0')
  })

  it('what waits when the connection is lost is given up, and comes on the next', async () => {
    const { world, lists, told, shown, answer, say, patch, expectShown } = await follow('a', 'b')
    say(of(1, patch('a', '1')), of(1, patch('b', '1')))
    world.socket.end(1006)
    const { socket } = world
    await vi.advanceTimersToNextTimerAsync() // the next dial, before the wait is over
    expect(world.socket).not.toBe(socket)
    answer(await world.accept())
    for (const { table } of lists) expect(table.asked.at(-1)).toMatchObject({ offset: 1, epoch: 'e.1' })
    expect(shown()).toBe('1 1')
    told.length = 0
    // On the new connection nothing of the old one waits, and holds back no later one.
    say(patch('a', 'x'))
    expectShown('x 1', 'x 1')
    // Who let one go is not kept waiting for long.
    say(of(2, patch('a', '2')), of(2, patch('b', '2')))
    lists[1]?.off()
    vi.advanceTimersByTime(250)
    expectShown('2 1', '2 1')
  })

  it('a commit in which a patch is missing is asked for, and drifts nothing', async () => {
    const { world, lists, shown, answer, say, patch } = await follow('a', 'b')
    patch('a', 'lost')
    say(of(2, patch('a', '2')), of(2, patch('b', '2')), settled(2))
    answer(world.socket)
    expect(shown()).toBe('2 2')
    expect(lists.map(({ query }) => query.drifts)).toEqual([0, 0])
  })

  it('transfers: whatever the order in which frames come, the sum is constant at each notification', async () => {
    for (let round = 0; round < 20; round++) await transfers()
  })
})

async function transfers(): Promise<void> {
  let seed = Math.floor(Math.random() * 2 ** 31)
  const first = seed
  const random = (n: number) => {
    seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff
    return Math.floor((seed / 2 ** 31) * n)
  }
  const names = ['a', 'b', 'c']
  const { lists, say, patch } = await follow(...names)
  const balance: Record<string, number> = { a: 0, b: 0, c: 0 }
  const lanes: Record<string, { readonly frame: Frame; readonly commit: number }[]> = { a: [], b: [], c: [] }
  const left = new Map<number, number>() // frames of a commit that have not been said
  const sums: number[] = []
  for (const { query } of lists) query.subscribe(() => sums.push(lists.reduce((sum, list) => sum + parseInt(list.query.getSnapshot().rows[0]?.n ?? ''), 0)))
  for (let step = 1; step < 500 || Object.values(lanes).some(({ length }) => length) || left.size; step++) {
    if (step < 400 && left.size < 40) {
      const mine = names.filter(() => random(2))
      const amount = random(100)
      mine.forEach((name, i) => {
        if (mine.length > 1) balance[name] = (balance[name] as number) + ([amount, -amount, 0][i] as number)
        const frame = patch(name, `${balance[name]} ${step}`)
        lanes[name]?.push(mine.length > 1 ? { frame: of(step, frame), commit: step } : { frame, commit: 0 })
      })
      if (mine.length > 1) left.set(step, mine.length)
    }
    for (let i = random(6); i >= 0; i--) {
      const next = lanes[names[random(3)] as string]?.shift()
      if (!next) continue
      say(next.frame)
      if (next.commit) left.set(next.commit, (left.get(next.commit) as number) - 1)
    }
    for (const [commit, frames] of left)
      if (!frames && random(3)) {
        say(settled(commit))
        left.delete(commit)
      }
  }
  expect(sums.length).toBeGreaterThan(300)
  expect(
    sums.filter((sum) => sum !== 0),
    `seed ${first}`,
  ).toEqual([])
  for (const { query, table } of lists) {
    expect(query.getSnapshot(), `seed ${first}`).toEqual({ kind: 'live', rows: table.rows })
    expect(query.drifts).toBe(0)
  }
}
