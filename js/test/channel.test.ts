import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { defineChannel, TidewireError } from '../src/index.js'
import { settle, World } from './fake.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const feed = defineChannel('org.{orgId}.feed').types<{ message: { text: string } }>()

describe('names', () => {
  it('S08 a definition with parameters names its channel, and the same name is the same object', () => {
    const { client } = new World()
    expect(client.channel(feed, { orgId: 7 }).name).toBe('org.7.feed')
    expect(client.channel(feed, { orgId: '7' })).toBe(client.channel('org.7.feed'))
  })

  it('S08 a parameter cannot reach into another channel', () => {
    const { client } = new World()
    for (const orgId of ['', '1.2', '*', 'a b', '1.feed.x', 'é', '\n']) {
      expect(() => client.channel(feed, { orgId }), orgId).toThrow(expect.objectContaining({ code: 'CHANNEL_INVALID' }))
    }
    expect(() => client.channel(feed, {} as never)).toThrow(TidewireError)
    for (const name of ['', '.', 'a..b', 'a.', 'a/b', 'x'.repeat(256), '{orgId}']) {
      expect(() => client.channel(name), name).toThrow(TidewireError)
    }
    expect(client.channel('x'.repeat(255)).name).toHaveLength(255)
  })
})

describe('subscribing', () => {
  it('is live with subscribed, and delivers messages', async () => {
    const world = new World()
    const channel = world.client.channel(feed, { orgId: 1 })
    const got: unknown[] = []
    channel.on('message', (message) => got.push(message))
    await settle()
    expect(channel.status.getSnapshot()).toEqual({ kind: 'subscribing' })
    const socket = await world.accept()
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: 'org.1.feed' }])
    expect(channel.status.getSnapshot()).toEqual({ kind: 'subscribing' })
    socket.answerSubscribes()
    expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
    socket.reply({ type: 'message', channel: 'org.1.feed', id: 'm1', data: { text: 'hi' }, from: { actor: 'bob', session: 's-2' } })
    expect(got).toEqual([{ channel: 'org.1.feed', id: 'm1', data: { text: 'hi' }, from: { actor: 'bob', session: 's-2' } }])
  })

  it('tells what was skipped, where it is missing', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    const got: unknown[] = []
    channel.on('message', ({ id }) => got.push(id))
    channel.on('skipped', ({ count }) => got.push(count))
    const socket = await world.connect()
    socket.reply({ type: 'message', channel: 'room.1', id: 'a', data: 1 })
    socket.reply({ type: 'skipped', channel: 'room.1', count: 12 })
    socket.reply({ type: 'message', channel: 'room.1', id: 'b', data: 1 })
    expect(got).toEqual(['a', 12, 'b'])
  })

  it('P34 many listeners of a channel share one subscription, which ends after the last', async () => {
    const world = new World()
    const offs = Array.from({ length: 20 }, () => world.client.channel('room.1').on('message', () => {}))
    const socket = await world.connect()
    socket.answerSubscribes()
    for (const off of offs) {
      await vi.advanceTimersByTimeAsync(1000)
      expect(socket.of('unsubscribe')).toEqual([])
      off()
      off()
    }
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.of('subscribe')).toHaveLength(1)
    expect(socket.of('unsubscribe')).toEqual([{ type: 'unsubscribe', sid: '1' }])
    expect(world.client.channel('room.1').status.getSnapshot()).toEqual({ kind: 'idle' })
  })

  it('P34 mount, unmount, mount within 5 ms makes one subscription and no error', async () => {
    const world = new World()
    const socket = await world.connect()
    const channel = world.client.channel('room.1')
    for (const pause of [0, 1, 5]) {
      channel.on('message', () => {})()
      await vi.advanceTimersByTimeAsync(pause)
    }
    const listener = vi.fn()
    channel.on('message', listener)
    await vi.advanceTimersByTimeAsync(1000)
    socket.answerSubscribes()
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    expect(socket.of('subscribe')).toHaveLength(1)
    expect(socket.of('unsubscribe')).toEqual([])
    expect(listener).toHaveBeenCalledTimes(1)
    expect(channel.status.getSnapshot().kind).toBe('live')
  })

  it('P34 unsubscribe while subscribe is in flight ends unsubscribed', async () => {
    const world = new World()
    const socket = await world.connect()
    const channel = world.client.channel('room.1')
    const off = channel.on('message', () => {})
    await settle()
    off()
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.sent.slice(1)).toEqual([
      { type: 'subscribe', sid: '1', channel: 'room.1' },
      { type: 'unsubscribe', sid: '1' },
    ])
    socket.answerSubscribes()
    socket.reply({ type: 'unsubscribed', sid: '1', channel: 'room.1' })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'idle' })
    // And again, with an answer to the first one that comes late.
    channel.on('message', () => {})
    await settle()
    socket.reply({ type: 'subscribed', sid: '1', channel: 'room.1' })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'subscribing' })
    socket.reply({ type: 'subscribed', sid: '2', channel: 'room.1' })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
  })

  it('subscribes again after a reconnect, with what is wanted then', async () => {
    const world = new World()
    world.client.channel('room.1').on('message', () => {})
    const off = world.client.channel('room.2').on('message', () => {})
    const first = await world.connect()
    first.answerSubscribes()
    first.end(1006)
    expect(world.client.channel('room.1').status.getSnapshot()).toEqual({ kind: 'subscribing' })
    off()
    world.client.channel('room.3').on('message', () => {})
    const second = await world.reconnect()
    expect(second.of('subscribe').map(({ channel }) => channel).sort()).toEqual(['room.1', 'room.3'])
    expect(second.of('unsubscribe')).toEqual([])
  })

  it('an AbortSignal stops a listener, also one that is aborted already', async () => {
    const world = new World()
    const controller = new AbortController()
    const listener = vi.fn()
    const channel = world.client.channel('room.1')
    channel.on('message', listener, { signal: controller.signal })
    const socket = await world.connect()
    controller.abort()
    channel.on('message', listener, { signal: controller.signal })
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    await vi.advanceTimersByTimeAsync(1000)
    expect(listener).not.toHaveBeenCalled()
    expect(socket.of('unsubscribe')).toHaveLength(1)
  })

  it('a listener that throws does not stop the others', async () => {
    const error = vi.spyOn(console, 'error').mockImplementation(() => {})
    const world = new World()
    const listener = vi.fn()
    const channel = world.client.channel('room.1')
    channel.on('message', () => {
      throw new Error('of the application')
    })
    channel.on('message', listener)
    const socket = await world.connect()
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    expect(listener).toHaveBeenCalledTimes(1)
    expect(error).toHaveBeenCalledTimes(1)
    error.mockRestore()
  })

  it('a refusal is a status with the code, and leaves the other channels alone', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    const other = world.client.channel('room.2')
    channel.on('message', () => {})
    other.on('message', () => {})
    const socket = await world.connect()
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: 'room.1', code: 'TOPIC_FORBIDDEN', cause: 'no guard allows this channel' })
    socket.reply({ type: 'subscribed', sid: '2', channel: 'room.2' })
    expect(channel.status.getSnapshot()).toMatchObject({ kind: 'refused', error: { code: 'TOPIC_FORBIDDEN' } })
    expect(other.status.getSnapshot()).toEqual({ kind: 'live' })
    // Neither time nor another listener asks again; a new connection does.
    channel.on('message', () => {})
    await vi.advanceTimersByTimeAsync(20_000)
    expect(socket.of('subscribe')).toHaveLength(2)
    socket.end(1006)
    expect((await world.reconnect()).of('subscribe')).toHaveLength(2)
  })

  it('S44 SUBSCRIPTION_ID_TAKEN ends in refused, without a loop, and a sid is never used twice', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    const off = channel.on('message', () => {})
    const socket = await world.connect()
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: 'room.1', code: 'SUBSCRIPTION_ID_TAKEN', cause: 'taken' })
    await vi.advanceTimersByTimeAsync(20_000)
    expect(channel.status.getSnapshot()).toMatchObject({ kind: 'refused', error: { code: 'SUBSCRIPTION_ID_TAKEN' } })
    expect(socket.of('subscribe')).toHaveLength(1)
    off()
    await vi.advanceTimersByTimeAsync(1000)
    channel.on('message', () => {})
    await settle()
    expect(socket.of('subscribe').map(({ sid }) => sid)).toEqual(['1', '2'])
    expect(socket.of('unsubscribe')).toEqual([])
  })

  it('a refusal with retryAfterMs is asked again after it', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    channel.on('message', () => {})
    const socket = await world.connect()
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: 'room.1', code: 'GUARD_UNAVAILABLE', cause: 'x', retryAfterMs: 3000 })
    expect(channel.status.getSnapshot()).toMatchObject({ kind: 'refused', retryAt: Date.now() + 3000 })
    await vi.advanceTimersByTimeAsync(2999)
    expect(socket.of('subscribe')).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(1)
    expect(socket.of('subscribe')).toHaveLength(2)
    expect(channel.status.getSnapshot()).toEqual({ kind: 'subscribing' })
  })

  it('a subscription that the server ends is refused with its code', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    channel.on('message', () => {})
    const socket = await world.connect()
    socket.answerSubscribes()
    socket.reply({ type: 'unsubscribed', sid: '1', channel: 'room.1', code: 'TOPIC_FORBIDDEN', cause: 'access was withdrawn' })
    expect(channel.status.getSnapshot()).toMatchObject({ kind: 'refused', error: { code: 'TOPIC_FORBIDDEN', cause: 'access was withdrawn' } })
  })

  it('a subscribe without an answer is repeated with the heartbeat', async () => {
    const world = new World()
    world.client.channel('room.1').on('message', () => {})
    const socket = await world.connect()
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(2)
    socket.reply({ type: 'subscribed', sid: '1', channel: 'room.1' })
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('subscribe')).toHaveLength(2)
  })
})

describe('publishing', () => {
  it('resolves with published', async () => {
    const world = new World()
    const socket = await world.connect()
    const done = vi.fn()
    void world.client.channel(feed, { orgId: 1 }).publish({ text: 'hi' }, { key: 'k', echo: false }).then(done)
    await settle()
    const [publish] = socket.of('publish')
    expect(publish).toEqual({ type: 'publish', channel: 'org.1.feed', data: { text: 'hi' }, id: expect.any(String), key: 'k', echo: false })
    expect(done).not.toHaveBeenCalled()
    socket.reply({ type: 'published', id: publish?.['id'] })
    await settle()
    expect(done).toHaveBeenCalledTimes(1)
    expect(socket.of('subscribe')).toEqual([])
  })

  it("rejects with the server's refusal", async () => {
    const world = new World()
    const socket = await world.connect()
    const publish = world.client.channel('room.1').publish(1, { id: 'p1' })
    await settle()
    socket.reply({ type: 'refused', re: 'publish', id: 'p1', channel: 'room.1', code: 'TOPIC_FORBIDDEN', cause: 'read only', fix: 'ask', retryAfterMs: 9 })
    await expect(publish).rejects.toMatchObject({ code: 'TOPIC_FORBIDDEN', cause: 'read only', fix: 'ask', retryAfterMs: 9 })
  })

  it('dials by itself, and what was not sent survives an outage in order', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    channel.on('message', () => {})
    const all = Promise.all([channel.publish(1, { id: 'a' }), channel.publish(2, { id: 'b' })])
    await settle()
    world.socket.end(1006)
    const socket = await world.reconnect()
    expect(socket.sent.map(({ type }) => type)).toEqual(['hello', 'subscribe', 'publish', 'publish'])
    expect(socket.of('publish').map(({ data }) => data)).toEqual([1, 2])
    socket.reply({ type: 'published', id: 'a' })
    socket.reply({ type: 'published', id: 'b' })
    await expect(all).resolves.toBeDefined()
  })

  it('all subscriptions go before the messages that waited', async () => {
    const world = new World()
    for (const n of [1, 2, 3]) {
      world.client.channel(`room.${n}`).on('message', () => {})
      void world.client.channel(`room.${n}`).publish(n)
    }
    const { sent } = await world.connect()
    expect(sent.map(({ type }) => type)).toEqual(['hello', ...Array(3).fill('subscribe'), ...Array(3).fill('publish')])
  })

  it('a message sent and not answered is CONNECTION_LOST, and is not sent again', async () => {
    const world = new World()
    const socket = await world.connect()
    const publish = world.client.channel('room.1').publish(1)
    publish.catch(() => {})
    await settle()
    socket.end(1006)
    await expect(publish).rejects.toMatchObject({ code: 'CONNECTION_LOST' })
    expect((await world.reconnect()).of('publish')).toEqual([])
  })

  it('an answer that never comes is ANSWER_TIMEOUT after 10 s', async () => {
    const world = new World()
    await world.connect()
    const publish = expect(world.client.channel('room.1').publish(1)).rejects.toMatchObject({ code: 'ANSWER_TIMEOUT' })
    await vi.advanceTimersByTimeAsync(10_000)
    await publish
  })

  it('close fails what waits', async () => {
    const world = new World()
    const publish = expect(world.client.channel('room.1').publish(1)).rejects.toMatchObject({ code: 'CLOSED' })
    await settle()
    world.client.close()
    await publish
  })

  it('a signal takes back what was not sent', async () => {
    const world = new World()
    const controller = new AbortController()
    const publish = world.client.channel('room.1').publish(1, { signal: controller.signal })
    publish.catch(() => {})
    await settle()
    controller.abort(new Error('changed my mind'))
    await expect(publish).rejects.toThrow('changed my mind')
    expect((await world.accept()).of('publish')).toEqual([])
    await expect(world.client.channel('room.1').publish(1, { signal: controller.signal })).rejects.toThrow('changed my mind')
  })

  it('data without a JSON form is DATA_INVALID', async () => {
    const world = new World()
    await world.connect()
    const cycle: Record<string, unknown> = {}
    cycle['self'] = cycle
    for (const data of [undefined, () => {}, cycle, 1n]) {
      await expect(world.client.channel('room.1').publish(data)).rejects.toMatchObject({ code: 'DATA_INVALID' })
    }
  })
})

describe('limits', () => {
  const limits = { frameBytes: 200, framesPerSecond: 10, frameBurst: 20 }

  it('a frame over the limit, counted in bytes, is FRAME_TOO_BIG and is not sent', async () => {
    const world = new World()
    const socket = await world.connect({ limits })
    const channel = world.client.channel('room.1')
    await expect(channel.publish('x'.repeat(200))).rejects.toMatchObject({ code: 'FRAME_TOO_BIG' })
    await expect(channel.publish('€'.repeat(60))).rejects.toMatchObject({ code: 'FRAME_TOO_BIG' })
    void channel.publish('€'.repeat(30))
    await settle()
    expect(socket.of('publish')).toHaveLength(1)
  })

  it('P27 keeps to the announced rate and burst over any time, whatever is asked', async () => {
    const world = new World({ queueSize: 1000 })
    for (let i = 0; i < 30; i++) world.client.channel(`room.${i}`).on('message', () => {})
    const socket = await world.connect({ limits })
    for (let i = 0; i < 100; i++) void world.client.channel('room.1').publish(i).catch(() => {})
    let before = socket.sent.length
    expect(before).toBeLessThanOrEqual(20)
    const perSecond: number[] = []
    for (let second = 0; second < 14; second++) {
      await vi.advanceTimersByTimeAsync(1000)
      perSecond.push(socket.sent.length - before)
      before = socket.sent.length
      socket.answerSubscribes()
    }
    expect(Math.max(...perSecond)).toBeLessThanOrEqual(10)
    expect(Math.min(...perSecond.slice(0, 10))).toBeGreaterThanOrEqual(8)
    expect(socket.of('subscribe')).toHaveLength(30)
    expect(socket.of('publish').map(({ data }) => data)).toEqual(Array.from({ length: socket.of('publish').length }, (_, i) => i))
  })

  it('a full queue is QUEUE_FULL', async () => {
    const world = new World({ queueSize: 3 })
    const channel = world.client.channel('room.1')
    const waiting = [1, 2, 3].map((n) => channel.publish(n, { id: String(n) }))
    await expect(channel.publish(4)).rejects.toMatchObject({ code: 'QUEUE_FULL', retryAfterMs: 1000 })
    const socket = await world.accept()
    for (const id of ['1', '2', '3']) socket.reply({ type: 'published', id })
    await Promise.all(waiting)
  })

  it('FRAME_RATE_LIMIT pauses for as long as the server says', async () => {
    const world = new World()
    const socket = await world.connect()
    socket.reply({ type: 'refused', re: 'publish', code: 'FRAME_RATE_LIMIT', cause: 'slower', retryAfterMs: 2000 })
    void world.client.channel('room.1').publish(1)
    await vi.advanceTimersByTimeAsync(1999)
    expect(socket.of('publish')).toEqual([])
    await vi.advanceTimersByTimeAsync(100)
    expect(socket.of('publish')).toHaveLength(1)
  })

  it("waits while the socket's own buffer is full", async () => {
    const world = new World()
    const socket = await world.connect()
    socket.bufferedAmount = 2 << 20
    void world.client.channel('room.1').publish(1)
    await vi.advanceTimersByTimeAsync(1000)
    expect(socket.of('publish')).toEqual([])
    socket.bufferedAmount = 0
    await vi.advanceTimersByTimeAsync(50)
    expect(socket.of('publish')).toHaveLength(1)
  })
})
