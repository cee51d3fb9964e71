import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Channel, Lost, Message } from '../src/index.js'
import { settle, World } from './fake.js'
import { LogServer } from './log.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const LOG = 'log.1'

/** What a listener of everything was told, in order. */
function listen(channel: Channel, options: Parameters<Channel['on']>[2] = {}): unknown[] {
  const told: unknown[] = []
  channel.on('message', ({ data }) => void told.push(data), options)
  channel.on('skipped', ({ count }) => told.push(`skipped ${count}`))
  channel.on('lost', ({ count = '?' }) => told.push(`lost ${count}`))
  return told
}

async function world(more: ConstructorParameters<typeof World>[0] = {}) {
  const world = new World(more)
  const channel = world.client.channel(LOG)
  return { world, channel }
}

/** A client that is live on a channel with history at offset 41 of epoch a. */
async function live(options: Parameters<typeof listen>[1] = {}) {
  const { world: made, channel } = await world()
  const told = listen(channel, options)
  const socket = await made.connect()
  socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 41, epoch: 'a' })
  const message = (offset: number, target = made.socket) => target.reply({ type: 'message', channel: LOG, id: `m${offset}`, data: offset, offset })
  const subscribed = (members: object) => made.socket.reply({ type: 'subscribed', channel: LOG, sid: made.socket.of('subscribe').at(-1)?.['sid'], ...members })
  const asked = () => made.socket.of('subscribe').map(({ since }) => since)
  return { world: made, channel, told, socket, message, subscribed, asked }
}

describe('recovery', () => {
  it('P10 subscribes again with its position, gets what it missed, each once and in order, and is told nothing', async () => {
    const { world, told, socket, message, subscribed, asked } = await live()
    message(42)
    message(43)
    socket.end(1006)
    await world.reconnect()
    expect(asked()).toEqual([{ offset: 43, epoch: 'a' }])
    subscribed({ offset: 43, epoch: 'a', recovered: true })
    for (const offset of [44, 45]) message(offset)
    expect(told).toEqual([42, 43, 44, 45])
  })

  it('P10 also when no message came before the first drop', async () => {
    const { world, told, socket, message, subscribed, asked } = await live()
    for (let drop = 0; drop < 3; drop++) {
      world.socket.end(1006)
      await world.reconnect()
      expect(asked()).toEqual([{ offset: 41, epoch: 'a' }])
      subscribed({ offset: 41, epoch: 'a', recovered: true })
    }
    message(42)
    expect(told).toEqual([42])
    expect(socket).not.toBe(world.socket)
  })

  it('P10 an empty channel has a position too: offset 0', async () => {
    const { world: made, channel } = await world()
    const told = listen(channel)
    const socket = await made.connect()
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 0, epoch: 'a' })
    socket.end(1006)
    const second = await made.reconnect()
    expect(second.of('subscribe')).toEqual([{ type: 'subscribe', sid: '2', channel: LOG, since: { offset: 0, epoch: 'a' } }])
    second.reply({ type: 'subscribed', sid: '2', channel: LOG, offset: 0, epoch: 'a', recovered: true })
    second.reply({ type: 'message', channel: LOG, id: 'm', data: 1, offset: 1 })
    expect(told).toEqual([1])
  })

  // P09: what the server can answer to a client at 41 of epoch a, and what its application is told before message 100.
  const answers: readonly (readonly [string, object, number, readonly unknown[]])[] = [
    ['nothing was missed', { offset: 41, epoch: 'a', recovered: true }, 42, [42]],
    ['trimmed', { offset: 99, epoch: 'a', recovered: false }, 100, ['lost 58', 100]],
    ['expired, and nothing is left', { offset: 60, epoch: 'a', recovered: false }, 61, ['lost 19', 61]],
    ['another log', { offset: 99, epoch: 'b', recovered: false }, 100, ['lost ?', 100]],
    ['another log that is empty', { offset: 0, epoch: 'b', recovered: false }, 1, ['lost ?', 1]],
    ['the position is ahead of the log', { offset: 7, epoch: 'a', recovered: false }, 8, ['lost ?', 8]],
    ['not recovered where it stands: nothing is missing', { offset: 41, epoch: 'a', recovered: false }, 42, [42]],
    ['the channel has no history any more', {}, 42, ['lost ?', 42]],
  ]
  for (const [name, answer, next, want] of answers) {
    it(`P09 P12 ${name}`, async () => {
      const { world, told, socket, message, subscribed } = await live()
      socket.end(1006)
      await world.reconnect()
      subscribed(answer)
      message(next)
      message(next) // a repetition
      expect(told).toEqual(name.includes('no history') ? [...want, next] : want)
    })
  }

  it('P11 after a loss the position is that of the answer', async () => {
    const { world, told, socket, message, subscribed, asked } = await live()
    socket.end(1006)
    await world.reconnect()
    subscribed({ offset: 7, epoch: 'b', recovered: false })
    message(8)
    world.socket.end(1006)
    await world.reconnect()
    expect(asked()).toEqual([{ offset: 8, epoch: 'b' }])
    subscribed({ offset: 8, epoch: 'b', recovered: true })
    message(9)
    expect(told).toEqual(['lost ?', 8, 9])
  })

  it('P09 P12 a live subscription that the server gave up is lost, once, and goes on', async () => {
    const { told, message, subscribed } = await live()
    message(42)
    subscribed({ offset: 60, epoch: 'a', recovered: false })
    message(61)
    subscribed({ offset: 0, epoch: 'b', recovered: false })
    message(1)
    subscribed({ offset: 1, epoch: 'b', recovered: false })
    message(2)
    expect(told).toEqual([42, 'lost 18', 61, 'lost ?', 1, 2])
  })

  it('P19 repetitions are ignored', async () => {
    const { told, message } = await live()
    for (const offset of [41, 42, 42, 40, 43, 42, 43, 44]) message(offset)
    expect(told).toEqual([42, 43, 44])
  })

  it('P11 P13 a gap is mended: messages are ignored until the answer, and asked for once', async () => {
    const { told, message, subscribed, asked } = await live()
    message(42)
    for (const offset of [45, 46, 47]) message(offset)
    expect(asked()).toEqual([undefined, { offset: 42, epoch: 'a' }])
    subscribed({ offset: 42, epoch: 'a', recovered: true })
    for (const offset of [43, 44, 45, 46, 47]) message(offset)
    expect(told).toEqual([42, 43, 44, 45, 46, 47])
  })

  it('P12 a gap that cannot be mended is lost', async () => {
    const { told, message, subscribed } = await live()
    message(50)
    subscribed({ offset: 60, epoch: 'a', recovered: false })
    message(61)
    expect(told).toEqual(['lost 19', 61])
  })

  it('a gap whose answer does not come is asked for again with the heartbeat; a refusal of it leaves the subscription', async () => {
    const { channel, told, socket, message, subscribed, asked } = await live()
    message(43)
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: LOG, code: 'HISTORY_UNAVAILABLE', cause: 'x', retryAfterMs: 100 })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
    await vi.advanceTimersByTimeAsync(15_000)
    expect(asked()).toEqual([undefined, { offset: 41, epoch: 'a' }, { offset: 41, epoch: 'a' }])
    subscribed({ offset: 41, epoch: 'a', recovered: true })
    message(42)
    expect(told).toEqual([42])
  })

  it('the answer to a heartbeat moves nothing, also one that comes before the answer to a gap', async () => {
    const { channel, told, socket, message, subscribed, asked } = await live()
    channel.presence()
    await settle()
    subscribed({ offset: 41, epoch: 'a' }) // to the join
    socket.reply({ type: 'presence', channel: LOG, version: 1, total: 0, snapshot: [] })
    await vi.advanceTimersByTimeAsync(15_000) // a heartbeat, on its way
    message(43)
    expect(asked()).toEqual([undefined, undefined, undefined, { offset: 41, epoch: 'a' }])
    // What moves a subscription says nothing about the roster.
    expect(socket.of('subscribe').map(({ presence }) => presence)).toEqual([undefined, {}, {}, undefined])
    subscribed({ offset: 43, epoch: 'a' })
    message(44)
    subscribed({ offset: 41, epoch: 'a', recovered: true })
    for (const offset of [42, 43, 44]) message(offset)
    expect(told).toEqual([42, 43, 44])
  })

  it('skipped stands where messages are missing, and the next offset may jump once', async () => {
    const { told, socket, message, asked } = await live()
    message(42)
    socket.reply({ type: 'skipped', channel: LOG, count: 3 })
    message(46)
    message(48)
    expect(told).toEqual([42, 'skipped 3', 46])
    expect(asked()).toEqual([undefined, { offset: 46, epoch: 'a' }])
  })

  it('a skip does not excuse a gap behind the next position', async () => {
    const { socket, message, subscribed, asked } = await live()
    socket.reply({ type: 'skipped', channel: LOG, count: 3 })
    subscribed({ offset: 50, epoch: 'a', recovered: false })
    message(52)
    expect(asked()).toEqual([undefined, { offset: 50, epoch: 'a' }])
  })

  it('a subscribe without an answer is repeated with the heartbeat, and one answer is enough', async () => {
    const { world: made, channel } = await world()
    const told = listen(channel)
    const socket = await made.connect()
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(2)
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 7, epoch: 'a' })
    socket.reply({ type: 'message', channel: LOG, id: 'm', data: 8, offset: 8 })
    expect(told).toEqual([8])
  })

  it('P50 echo:false: the note in the place of the message moves the position, and recovery stays exact', async () => {
    const { world, channel, told, socket, message, asked } = await live()
    const published = channel.publish('mine', { id: 'p1', echo: false })
    await settle()
    message(42)
    socket.reply({ type: 'published', id: 'p1', channel: LOG, offset: 43 })
    socket.reply({ type: 'published', id: 'p1', channel: LOG, offset: 43, epoch: 'a' })
    expect(await published).toEqual({ id: 'p1', offset: 43, epoch: 'a' })
    message(44)
    expect(told).toEqual([42, 44])
    expect(asked()).toEqual([undefined])
    socket.end(1006)
    await world.reconnect()
    expect(asked()).toEqual([{ offset: 44, epoch: 'a' }])
  })

  it('P50 the answer to a publish does not move the position: with an echo the message is still to come', async () => {
    const { channel, told, socket, message } = await live()
    void channel.publish('mine', { id: 'p1' })
    await settle()
    socket.reply({ type: 'published', id: 'p1', channel: LOG, offset: 42, epoch: 'a' })
    message(42)
    expect(told).toEqual([42])
  })

  it('P17 a long time away ends live, with a loss signal, and in the roster again', async () => {
    const { world, channel, told, socket, message, subscribed } = await live()
    const presence = channel.presence({ data: 1 })
    await settle()
    socket.end(1006)
    for (let i = 0; i < 60; i++) {
      await vi.advanceTimersByTimeAsync(4000)
      if (i < 59 && world.state.kind === 'connecting') world.socket.end(1006)
    }
    await world.accept()
    expect(world.socket.of('subscribe')).toMatchObject([{ presence: { data: 1 }, since: { offset: 41, epoch: 'a' } }])
    subscribed({ offset: 900, epoch: 'a', recovered: false })
    world.socket.reply({ type: 'presence', channel: LOG, version: 9, total: 1, snapshot: [{ id: 'me', sessions: ['s-me'] }] })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
    expect(presence.getSnapshot()).toMatchObject({ kind: 'live', total: 1 })
    message(901)
    expect(told).toEqual(['lost 859', 901])
  })

  it('a refusal keeps the position: what was missed until the channel is allowed again arrives', async () => {
    const { world, socket, subscribed, message, told, asked } = await live()
    socket.end(1006)
    await world.reconnect()
    world.socket.reply({ type: 'refused', re: 'subscribe', sid: '2', channel: LOG, code: 'GUARD_FAILED', cause: 'x', retryAfterMs: 500 })
    await vi.advanceTimersByTimeAsync(500)
    expect(asked()).toEqual([{ offset: 41, epoch: 'a' }, { offset: 41, epoch: 'a' }])
    subscribed({ offset: 41, epoch: 'a', recovered: true })
    message(42)
    expect(told).toEqual([42])
  })

  it('on a channel without history a reconnect is lost, and the first connection is not', async () => {
    const { world: made, channel } = await world()
    const told = listen(channel)
    const socket = await made.connect()
    socket.answerSubscribes()
    socket.reply({ type: 'message', channel: LOG, id: 'm', data: 'a' })
    expect(told).toEqual(['a'])
    socket.end(1006)
    const second = await made.reconnect()
    expect(second.of('subscribe')).toEqual([{ type: 'subscribe', sid: '2', channel: LOG }])
    second.answerSubscribes()
    second.reply({ type: 'message', channel: LOG, id: 'm', data: 'b' })
    expect(told).toEqual(['a', 'lost ?', 'b'])
  })
})

describe('where listening begins', () => {
  it('who lets go and takes hold again later begins anew, without a word of what was before', async () => {
    for (const away of ['connected', 'cut'] as const) {
      const { world: made, channel } = await world()
      const off = channel.on('message', () => {})
      const socket = await made.connect()
      socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 41, epoch: 'a' })
      if (away === 'cut') socket.end(1006)
      off()
      await vi.advanceTimersByTimeAsync(100)
      const told = listen(channel)
      const next = away === 'cut' ? await made.reconnect() : socket
      await settle()
      expect(next.of('subscribe').at(-1), away).toEqual({ type: 'subscribe', sid: '2', channel: LOG })
      // What was on its way to the old one is not for the new one.
      next.reply({ type: 'message', channel: LOG, id: 'm', data: 'old', offset: 42 })
      next.reply({ type: 'subscribed', sid: '2', channel: LOG, offset: 70, epoch: 'a' })
      next.reply({ type: 'message', channel: LOG, id: 'm', data: 'new', offset: 71 })
      expect(told, away).toEqual(['new'])
    }
  })

  it('a view that is replaced within the linger goes on where the channel is', async () => {
    const { world: made, channel } = await world()
    const off = channel.on('message', () => {})
    const socket = await made.connect()
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 41, epoch: 'a' })
    off()
    const told = listen(channel)
    socket.reply({ type: 'message', channel: LOG, id: 'm', data: 42, offset: 42 })
    await vi.advanceTimersByTimeAsync(1000)
    expect(told).toEqual([42])
    expect(socket.of('subscribe')).toHaveLength(1)
  })

  it('P14 last: the newest messages, then the live ones; after a drop what was missed', async () => {
    const { world: made, channel } = await world()
    const told = listen(channel, { last: 2 })
    const socket = await made.connect()
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: LOG, since: { last: 2 } }])
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 5, epoch: 'a' })
    for (const offset of [6, 7, 8]) socket.reply({ type: 'message', channel: LOG, id: 'm', data: offset, offset })
    socket.end(1006)
    const second = await made.reconnect()
    expect(second.of('subscribe')[0]?.['since']).toEqual({ offset: 8, epoch: 'a' })
    expect(told).toEqual([6, 7, 8])
  })

  it('P14 last is asked for again if the connection ends before the answer', async () => {
    const { world: made, channel } = await world()
    listen(channel, { last: 2 })
    const socket = await made.connect()
    socket.end(1006)
    expect((await made.reconnect()).of('subscribe')[0]?.['since']).toEqual({ last: 2 })
  })

  it('P14 since: from the position of a rendered page; what lies between arrives, or is lost', async () => {
    for (const recovered of [true, false]) {
      const { world: made, channel } = await world()
      const told = listen(channel, { since: { offset: 5, epoch: 'a' }, last: 9 })
      const socket = await made.connect()
      expect(socket.of('subscribe')[0]?.['since']).toEqual({ offset: 5, epoch: 'a' })
      socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: recovered ? 5 : 20, epoch: 'a', recovered })
      for (const offset of [6, 21]) socket.reply({ type: 'message', channel: LOG, id: 'm', data: offset, offset })
      expect(told).toEqual(recovered ? [6] : ['lost 15', 21])
    }
  })

  it('P14 the first listener for messages begins there also when the channel is live, for presence or within the linger', async () => {
    const { world: made, channel } = await world()
    channel.presence()
    const socket = await made.connect()
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 8, epoch: 'a' })
    socket.reply({ type: 'presence', channel: LOG, version: 1, total: 0, snapshot: [] })
    await vi.advanceTimersByTimeAsync(15_000) // a heartbeat, on its way
    const told = listen(channel, { last: 3 })
    expect(socket.of('subscribe').at(-1)).toEqual({ type: 'subscribe', sid: '1', channel: LOG, since: { last: 3 } })
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 8, epoch: 'a' }) // to the heartbeat
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 5, epoch: 'a' })
    for (const offset of [6, 7, 8]) socket.reply({ type: 'message', channel: LOG, id: 'm', data: offset, offset })
    expect(told).toEqual([6, 7, 8])
    // Another one joins where the first is.
    const joined = listen(channel, { last: 3 })
    socket.reply({ type: 'message', channel: LOG, id: 'm', data: 9, offset: 9 })
    expect(joined).toEqual([9])
    expect(socket.of('unsubscribe')).toEqual([])
    expect(socket.of('subscribe')).toHaveLength(3)
  })

  it('P14 last, asked for before the answer to an earlier subscribe, waits for its own', async () => {
    const { world: made, channel } = await world()
    channel.on('lost', () => {})
    const socket = await made.connect()
    const told = listen(channel, { last: 3 })
    expect(socket.of('subscribe').map(({ since }) => since)).toEqual([undefined, { last: 3 }])
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 8, epoch: 'a' })
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 5, epoch: 'a' })
    for (const offset of [6, 7, 8]) socket.reply({ type: 'message', channel: LOG, id: 'm', data: offset, offset })
    expect(told).toEqual([6, 7, 8])
  })

  it('messages carry their offset', async () => {
    const { channel, message } = await live()
    const got: Message[] = []
    channel.on('message', (message) => got.push(message))
    message(42)
    expect(got).toEqual([{ channel: LOG, id: 'm42', data: 42, offset: 42 }])
  })

  it('lost says which channel, and how many if that can be known', async () => {
    const { channel, subscribed } = await live()
    const got: Lost[] = []
    channel.on('lost', (lost) => got.push(lost))
    subscribed({ offset: 50, epoch: 'a', recovered: false })
    subscribed({ offset: 50, epoch: 'b', recovered: false })
    expect(got).toEqual([{ channel: LOG, count: 9 }, { channel: LOG }])
    expect('count' in (got[1] as Lost)).toBe(false)
  })
})

describe('acknowledgement', () => {
  /** A listener whose messages the test finishes. */
  async function acking() {
    const finish = new Map<number, (error?: unknown) => void>()
    const { world: made, channel } = await world()
    channel.on('message', ({ offset = 0 }) => new Promise<void>((resolve, reject) => finish.set(offset, (error) => (error === undefined ? resolve() : reject(error)))), { ack: true })
    const socket = await made.connect()
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 0, epoch: 'a' })
    const message = (offset: number) => made.socket.reply({ type: 'message', channel: LOG, id: 'm', data: offset, offset })
    const acks = () => made.socket.of('ack').map(({ offset }) => offset)
    return { world: made, channel, socket, finish, message, acks }
  }

  it('B14 says so when it subscribes, and acknowledges what was handled, together', async () => {
    const { socket, finish, message, acks } = await acking()
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: LOG, ack: true }])
    for (const offset of [1, 2, 3]) message(offset)
    await vi.advanceTimersByTimeAsync(1000)
    expect(acks()).toEqual([])
    finish.get(2)?.()
    await vi.advanceTimersByTimeAsync(1000)
    expect(acks(), '1 is not handled').toEqual([])
    finish.get(1)?.()
    await vi.advanceTimersByTimeAsync(99)
    expect(acks()).toEqual([])
    finish.get(3)?.(new Error('of the application'))
    const error = vi.spyOn(console, 'error').mockImplementation(() => {})
    await vi.advanceTimersByTimeAsync(1)
    expect(acks()).toEqual([3])
    expect(error).toHaveBeenCalledTimes(1)
    error.mockRestore()
    await vi.advanceTimersByTimeAsync(1000)
    expect(acks()).toEqual([3])
    expect(socket.of('ack')).toEqual([{ type: 'ack', channel: LOG, offset: 3 }])
  })

  it('B14 a listener that returns nothing has handled the message; half of a window does not wait', async () => {
    const { world: made, channel } = await world()
    channel.on('message', () => {}, { ack: true })
    const socket = await made.connect()
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 0, epoch: 'a' })
    for (let offset = 1; offset <= 100; offset++) {
      socket.reply({ type: 'message', channel: LOG, id: 'm', data: 0, offset })
      await settle()
    }
    expect(socket.of('ack').map(({ offset }) => offset)).toEqual([32, 64, 96])
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.of('ack').at(-1)?.['offset']).toBe(100)
  })

  it('B14 without it nothing is acknowledged; one that comes later turns it on where the channel is', async () => {
    const { channel, socket, message, subscribed } = await live()
    message(42)
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.of('ack')).toEqual([])
    channel.on('message', () => {}, { ack: true })
    expect(socket.of('subscribe').at(-1)).toEqual({ type: 'subscribe', sid: '1', channel: LOG, since: { offset: 42, epoch: 'a' }, ack: true })
    subscribed({ offset: 42, epoch: 'a', recovered: true })
    message(43)
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.of('ack')).toEqual([{ type: 'ack', channel: LOG, offset: 43 }])
  })

  it('B14 one that comes before the first answer turns it on with that answer', async () => {
    const { world: made, channel } = await world()
    channel.on('message', () => {})
    const socket = await made.connect()
    channel.on('message', () => {}, { ack: true })
    expect(socket.of('subscribe')).toHaveLength(1)
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 7, epoch: 'a' })
    expect(socket.of('subscribe').at(-1)).toMatchObject({ since: { offset: 7, epoch: 'a' }, ack: true })
  })

  it('B14 after a drop it acknowledges on the new connection, not before what is still in work is handled', async () => {
    const { world, finish, message, acks } = await acking()
    message(1)
    message(2)
    finish.get(2)?.()
    world.socket.end(1006)
    await world.reconnect()
    expect(world.socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '2', channel: LOG, since: { offset: 2, epoch: 'a' }, ack: true }])
    world.socket.reply({ type: 'subscribed', sid: '2', channel: LOG, offset: 2, epoch: 'a', recovered: true })
    message(3)
    finish.get(3)?.()
    await vi.advanceTimersByTimeAsync(1000)
    expect(acks()).toEqual([])
    finish.get(1)?.()
    await vi.advanceTimersByTimeAsync(100)
    expect(acks()).toEqual([3])
  })

  it('B14 what is in work of a lost log holds nothing back in the new one', async () => {
    const { socket, finish, message, acks } = await acking()
    message(1)
    socket.reply({ type: 'subscribed', sid: '1', channel: LOG, offset: 0, epoch: 'b', recovered: false })
    message(1)
    message(2)
    await settle()
    finish.get(1)?.()
    finish.get(2)?.()
    await vi.advanceTimersByTimeAsync(100)
    expect(acks()).toEqual([2])
  })

  it('B14 on a channel without history it is refused, and says why', async () => {
    const { world: made, channel } = await world()
    channel.on('message', () => {}, { ack: true })
    const socket = await made.connect()
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: LOG, code: 'HISTORY_DISABLED', cause: 'the channel keeps no history' })
    expect(channel.status.getSnapshot()).toMatchObject({ kind: 'refused', error: { code: 'HISTORY_DISABLED' } })
  })
})

describe('publishing to a history', () => {
  it('P18 a publish whose answer was lost goes again with the same id, before what waited, and resolves once', async () => {
    const { world, channel, socket } = await live()
    const done: unknown[] = []
    const note = (published: unknown) => done.push(published)
    for (const id of ['a', 'b']) void channel.publish(id, { id, key: 'k', echo: false }).then(note)
    await settle()
    const before = socket.of('publish')
    socket.end(1006)
    void channel.publish('c', { id: 'c' }).then(note)
    const second = await world.reconnect()
    expect(second.sent.map(({ type }) => type)).toEqual(['hello', 'subscribe', 'publish', 'publish', 'publish'])
    expect(second.of('publish').slice(0, 2)).toEqual(before)
    for (const [offset, id] of [[44, 'a'], [45, 'b'], [45, 'b'], [46, 'c']] as const) second.reply({ type: 'published', id, channel: LOG, offset, epoch: 'a' })
    await settle()
    expect(done).toEqual([
      { id: 'a', offset: 44, epoch: 'a' },
      { id: 'b', offset: 45, epoch: 'a' },
      { id: 'c', offset: 46, epoch: 'a' },
    ])
    second.end(1006)
    expect((await world.reconnect()).of('publish')).toEqual([])
  })

  it('P18 again and again, and never twice on one connection', async () => {
    const { world, channel } = await live()
    const published = channel.publish(1, { id: 'a' })
    await settle()
    for (let drop = 0; drop < 5; drop++) {
      world.socket.end(1006)
      await world.reconnect({ limits: { framesPerSecond: 1, frameBurst: 3 } }) // hello, subscribe: the publish waits for its turn
      if (drop % 2 === 0) await vi.advanceTimersByTimeAsync(3000)
      expect(world.socket.of('publish'), `drop ${drop}`).toHaveLength(drop % 2 === 0 ? 1 : 0)
    }
    world.socket.reply({ type: 'published', id: 'a', channel: LOG, offset: 42, epoch: 'a' })
    expect(await published).toEqual({ id: 'a', offset: 42, epoch: 'a' })
  })

  it('P18 known by the answer to an earlier publish too, without a subscription', async () => {
    const { world: made, channel } = await world()
    const socket = await made.connect()
    const first = channel.publish(1, { id: 'a' })
    await settle()
    socket.reply({ type: 'published', id: 'a', channel: LOG, offset: 1, epoch: 'a' })
    expect(await first).toEqual({ id: 'a', offset: 1, epoch: 'a' })
    void channel.publish(2, { id: 'b' })
    await settle()
    socket.end(1006)
    expect((await made.reconnect()).of('publish')).toMatchObject([{ id: 'b' }])
  })

  it('P18 without history it is CONNECTION_LOST, as before, and the answer has the id alone', async () => {
    const { world: made, channel } = await world()
    listen(channel)
    const socket = await made.connect()
    socket.answerSubscribes()
    const first = channel.publish(1, { id: 'a' })
    await settle()
    socket.reply({ type: 'published', id: 'a' })
    expect(await first).toEqual({ id: 'a' })
    const second = expect(channel.publish(2)).rejects.toMatchObject({ code: 'CONNECTION_LOST' })
    await settle()
    socket.end(1006)
    await second
    expect((await made.reconnect()).of('publish')).toEqual([])
  })

  it('P18 one that was cancelled is not sent afterwards', async () => {
    const { world, channel, socket } = await live()
    const controller = new AbortController()
    const cancelled = expect(channel.publish(1, { signal: controller.signal })).rejects.toThrow('no longer')
    const kept = channel.publish(2, { id: 'b' })
    await settle()
    socket.end(1006)
    controller.abort(new Error('no longer'))
    await cancelled
    const second = await world.reconnect()
    expect(second.of('publish').map(({ data }) => data)).toEqual([2])
    second.reply({ type: 'published', id: 'b', channel: LOG, offset: 42, epoch: 'a' })
    await kept
  })

  it('P18 not after the time in which the server knows it again, not for another session, and not after close', async () => {
    for (const why of ['late', 'session', 'close'] as const) {
      const { world, channel, socket } = await live()
      const publish = expect(channel.publish(1)).rejects.toMatchObject({ code: 'CONNECTION_LOST' })
      await settle()
      socket.end(1006)
      if (why === 'late') {
        for (let i = 0; i < 30; i++) {
          await vi.advanceTimersByTimeAsync(4000)
          if (world.state.kind === 'connecting') world.socket.end(1006)
        }
      }
      if (why === 'close') world.client.close()
      else expect((await world.reconnect(why === 'session' ? { session: 's-other' } : {})).of('publish'), why).toEqual([])
      await publish
    }
  })

  it('P18 an answer that does not come while connected is ANSWER_TIMEOUT; the time away does not count', async () => {
    const { world, channel, socket } = await live()
    const publish = expect(channel.publish(1)).rejects.toMatchObject({ code: 'ANSWER_TIMEOUT' })
    await vi.advanceTimersByTimeAsync(9000)
    socket.end(1006)
    await world.reconnect()
    await vi.advanceTimersByTimeAsync(9000)
    expect(world.socket.of('publish')).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(1000)
    await publish
    world.socket.end(1006)
    expect((await world.reconnect()).of('publish')).toEqual([])
  })
})

describe('against a model of the server', () => {
  it('P10 P13 100 drops in a row at random moments: 1 to N, each once and in order', async () => {
    const random = generator(7)
    const { world: made, channel } = await world()
    const server = new LogServer(made)
    const told = listen(channel)
    await server.connect()
    await server.deliver()
    let sent = 0
    for (let drop = 0; drop < 100; drop++) {
      for (let i = Math.floor(random() * 6); i > 0; i--) server.append(++sent)
      await server.deliver(Math.floor(random() * 8))
      server.cut()
      for (let i = Math.floor(random() * 3); i > 0; i--) server.append(++sent)
      await server.connect()
    }
    await server.deliver()
    expect(sent).toBeGreaterThan(200)
    expect(told).toEqual(Array.from({ length: sent }, (_, i) => i + 1))
  })

  it('P11 P12 P13 P18 P19 P50 whatever is cut, repeated, lost, trimmed or reset: in order, each once, and every gap is told', async () => {
    const seen = { lost: 0, messages: 0, quiet: 0, skipped: 0 }
    for (let seed = 1; seed <= 300; seed++) await run(seed, seen)
    // The runs reached what they are about.
    expect(Object.values(seen).every((count) => count > 100), JSON.stringify(seen)).toBe(true)
  }, 60_000)
})

/** A small generator with a seed, so that a failure can be repeated. */
function generator(seed: number): () => number {
  let a = seed
  return () => {
    a = (a + 0x6d2b79f5) | 0
    let t = Math.imul(a ^ (a >>> 15), 1 | a)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

async function run(seed: number, seen: { lost: number; messages: number; quiet: number; skipped: number }): Promise<void> {
  const random = generator(seed)
  const pick = (n: number) => Math.floor(random() * n)
  const { world: made, channel } = await world()
  const server = new LogServer(made)
  interface Told {
    readonly epoch: string
    readonly offset: number
  }
  const told: (Told | 'hole')[] = []
  // The data names the log and the place, which an application would not know: what arrives is compared with them.
  const data = () => ({ epoch: server.epoch, offset: server.head + 1 })
  channel.on('message', ({ data, offset }) => {
    expect((data as Told).offset, `seed ${seed}`).toBe(offset)
    told.push(data as Told)
  })
  channel.on('lost', () => {
    seen.lost++
    told.push('hole')
  })
  channel.on('skipped', () => {
    seen.skipped++
    told.push('hole')
  })
  await server.connect()
  await server.deliver()
  let ids = 0
  let resolved = 0
  for (let step = 0; step < 60; step++) {
    const what = random()
    if (what < 0.35) server.append(data())
    else if (what < 0.65) await server.deliver(1 + pick(4))
    else if (what < 0.72) {
      ids++
      channel.publish('not echoed', { echo: false }).then(
        () => resolved++,
        () => {},
      )
      await settle()
      server.read()
    } else if (what < 0.8) {
      server.cut()
      if (random() < 0.5) server.append(data())
      if (random() < 0.2) server.trim(pick(4))
      await server.connect()
    } else if (what < 0.86) {
      // Something that waits comes twice.
      const index = pick(server.waiting.length)
      const frame = server.waiting[index]
      if (frame && frame.type === 'message') server.waiting.splice(index, 0, frame)
    } else if (what < 0.92) {
      // Something is lost on the way, with a word of it or without.
      const index = pick(server.waiting.length)
      if (server.waiting[index]?.type !== 'message') continue
      const more = random() < 0.5 ? [{ type: 'skipped', channel: LOG, count: 1 }] : []
      server.waiting.splice(index, 1, ...more)
    } else if (what < 0.96) server.trim(pick(6))
    else if (what < 0.98) server.reset(`e${step + 2}`)
  }
  // Then all goes well.
  await server.deliver()
  server.append(data())
  server.append(data())
  await server.deliver()
  expect(told.at(-1), `seed ${seed}`).toEqual({ epoch: server.epoch, offset: server.head })
  expect(channel.status.getSnapshot().kind).toBe('live')
  expect(resolved, `seed ${seed}`).toBe(ids)
  check(told, seed, (epoch, offset) => server.wasQuiet(epoch, offset))
  seen.messages += told.length
  seen.quiet += ids
  made.client.close()
}

function check(told: readonly ({ readonly epoch: string; readonly offset: number } | 'hole')[], seed: number, quiet: (epoch: string, offset: number) => boolean): void {
  const once = new Set<string>()
  let before: { readonly epoch: string; readonly offset: number } | undefined
  let hole = true // nothing is promised before the first
  for (const entry of told) {
    if (entry === 'hole') {
      hole = true
      continue
    }
    const { epoch, offset } = entry
    const name = `seed ${seed}: ${epoch}/${offset} after ${before?.epoch}/${before?.offset}`
    expect(once.has(`${epoch}/${offset}`), name).toBe(false)
    once.add(`${epoch}/${offset}`)
    if (before && before.epoch === epoch) {
      expect(offset, name).toBeGreaterThan(before.offset)
      if (!hole) for (let missing = before.offset + 1; missing < offset; missing++) expect(quiet(epoch, missing), `${name} without a word`).toBe(true)
    } else if (before) expect(hole, `${name}: another log without a word`).toBe(true)
    before = entry
    hole = false
  }
}
