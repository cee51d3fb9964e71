import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type TidewireConfig, TidewireTransport } from '../src/crosstab/tidewire.js'
import type { Position } from '../src/crosstab/transport.js'
import type { WebSocketLike } from '../src/index.js'
import { FakeSocket, settle, type World } from './fake.js'
import { LogServer } from './log.js'
import { Log } from './worker.fixture.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

/** A transport and all sockets that it has made. */
class Line extends Log {
  readonly sockets: FakeSocket[] = []
  readonly transport: TidewireTransport

  constructor() {
    super()
    const { sockets } = this
    class Socket extends FakeSocket {
      constructor(url: string, protocols: string[]) {
        super(url, protocols)
        sockets.push(this)
      }
    }
    this.transport = new TidewireTransport({ WebSocket: Socket as unknown as WebSocketLike })
  }

  start(config: Partial<TidewireConfig> = {}): Promise<void> {
    return this.transport.start({ url: 'ws://server.test/v1/socket', ...config }, this.events)
  }

  get socket(): FakeSocket {
    return this.sockets.at(-1) as FakeSocket
  }

  async accept(welcome = {}): Promise<FakeSocket> {
    const { socket } = this
    socket.open()
    socket.welcome(welcome)
    await settle()
    return socket
  }

  async connect(config: Partial<TidewireConfig> = {}): Promise<FakeSocket> {
    await this.start(config)
    await settle()
    return this.accept()
  }

  /** As the tests of channels see a client. */
  get world(): World {
    const line = this
    return {
      sockets: this.sockets,
      client: { connect() {} },
      get state() {
        return { kind: line.statuses.at(-1) }
      },
      accept: (welcome: object) => line.accept(welcome),
    } as unknown as World
  }
}

describe('X22 TidewireTransport', () => {
  it('X22 subscribes, hands over, publishes and says how the connection is; twice is once', async () => {
    const line = new Line()
    const socket = await line.connect()
    expect(line.statuses).toEqual(['connecting', 'connected'])
    line.transport.subscribe('room.1')
    line.transport.subscribe('room.1')
    await settle()
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: 'room.1' }])
    expect(line.told).toEqual([])
    socket.answerSubscribes()
    await settle()
    expect(line.told).toEqual(['subscribed room.1'])
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: { n: 1 } })
    expect(line.data).toEqual({ 'room.1': [{ n: 1 }] })
    const sent = line.transport.publish('room.2', 'hi', { id: 'mine' })
    await settle()
    expect(socket.of('publish')).toEqual([{ type: 'publish', channel: 'room.2', data: 'hi', id: 'mine' }])
    socket.reply({ type: 'refused', re: 'publish', id: 'mine', code: 'TOPIC_FORBIDDEN' })
    await expect(sent).rejects.toMatchObject({ code: 'TOPIC_FORBIDDEN' })
  })

  it('X12 unsubscribing is told to the server at once, and done when the server says so', async () => {
    const line = new Line()
    const socket = await line.connect()
    line.transport.subscribe('room.1')
    await settle()
    socket.answerSubscribes()
    let done = 0
    void line.transport.unsubscribe('room.1').then(() => done++)
    expect(socket.of('unsubscribe')).toEqual([{ type: 'unsubscribe', sid: '1' }])
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 'late' })
    await settle()
    expect([done, line.data]).toEqual([0, {}])
    socket.reply({ type: 'unsubscribed', sid: '1', channel: 'room.1' })
    await settle()
    expect(done).toBe(1)
    // Nothing is subscribed.
    await line.transport.unsubscribe('room.1')

    // Again at once, and lost with the connection.
    line.transport.subscribe('room.1')
    await settle()
    void line.transport.unsubscribe('room.1').then(() => done++)
    line.transport.subscribe('room.1')
    await settle()
    expect(done).toBe(2)
    expect(socket.of('subscribe').map(({ sid }) => sid)).toEqual(['1', '2', '3'])
    void line.transport.unsubscribe('room.1').then(() => done++)
    await settle()
    socket.end(1006)
    await settle()
    expect(done).toBe(3)
    expect(line.statuses).toEqual(['connecting', 'connected', 'disconnected'])
  })

  it('stop resolves when the socket is closed, after a second at the latest, and nothing is told any more', async () => {
    for (const closes of [true, false]) {
      const line = new Line()
      const socket = await line.connect()
      line.transport.subscribe('room.1')
      await settle()
      let done = false
      void line.transport.stop().then(() => (done = true))
      expect(socket.closedWith).toEqual({ code: 1000, reason: undefined })
      await settle()
      expect(done).toBe(false)
      if (closes) socket.end(1000)
      else await vi.advanceTimersByTimeAsync(1000)
      await settle()
      expect(done).toBe(true)
      socket.answerSubscribes()
      await settle()
      expect([line.told, line.statuses]).toEqual([[], ['connecting', 'connected']])
      // And again.
      const next = await line.connect()
      line.transport.subscribe('room.1')
      await settle()
      expect(next.of('subscribe')).toHaveLength(1)
      next.end(1006)
      void line.transport.stop()
      await expect(line.transport.publish('room.1', 1)).rejects.toMatchObject({ code: 'CLOSED' })
      await vi.advanceTimersByTimeAsync(1000)
    }
  })

  it('X04 the connection is lost: said, and everything is subscribed again; without a history something may be missing', async () => {
    const line = new Line()
    const socket = await line.connect()
    line.transport.subscribe('room.1')
    await settle()
    socket.answerSubscribes()
    socket.end(1006)
    await vi.advanceTimersByTimeAsync(4000)
    const next = await line.accept()
    // As the bus does.
    line.transport.subscribe('room.1')
    await settle()
    expect(next.of('subscribe')).toHaveLength(1)
    next.answerSubscribes()
    await settle()
    expect(line.statuses).toEqual(['connecting', 'connected', 'disconnected', 'connecting', 'connected'])
    expect(line.told).toEqual(['subscribed room.1', 'disconnected CONNECTION_LOST', 'subscribed room.1 lost'])
    next.reply({ type: 'skipped', channel: 'room.1', count: 3 })
    await settle()
    expect(line.told.at(-1)).toBe('subscribed room.1 lost')
    expect(line.count('subscribed room.1 lost')).toBe(2)
  })

  it('refusals: for good it is forgotten, for a while it is tried again, and a name that is none is refused too', async () => {
    const line = new Line()
    const socket = await line.connect()
    for (const topic of ['a', 'b', ' ']) line.transport.subscribe(topic)
    await settle()
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: 'a', code: 'TOPIC_FORBIDDEN' })
    socket.reply({ type: 'refused', re: 'subscribe', sid: '2', channel: 'b', code: 'GUARD_FAILED', retryAfterMs: 500 })
    await settle()
    expect(line.told).toEqual(['refused   CHANNEL_INVALID', 'refused a TOPIC_FORBIDDEN', 'refused b GUARD_FAILED retry'])
    await vi.advanceTimersByTimeAsync(500)
    expect(socket.of('subscribe').map(({ channel }) => channel)).toEqual(['a', 'b', 'b'])
    line.transport.subscribe('a')
    await settle()
    expect(socket.of('subscribe').map(({ channel }) => channel)).toEqual(['a', 'b', 'b', 'a'])
    socket.answerSubscribes()
    await settle()
    expect(line.told).toContain('subscribed a')
  })

  it('X25 a token by way of the page: asked when connecting, and when it was refused', async () => {
    const line = new Line()
    const asked: string[] = []
    line.token = (reason) => Promise.resolve(`token-${asked.push(reason)}`)
    const socket = await line.connect({ token: 'bridge' })
    expect(socket.protocols).toEqual(['tidewire.1', 'tidewire.token.token-1'])
    socket.end(1008)
    await vi.advanceTimersByTimeAsync(4000)
    expect(line.socket.protocols).toEqual(['tidewire.1', 'tidewire.token.token-2'])
    expect(asked).toEqual(['connect', 'expired'])
    line.socket.open()
    line.token = () => Promise.reject(Object.assign(new Error('logged out'), { code: 'SOCKET_UNAUTHENTICATED' }))
    line.socket.end(1008)
    await vi.advanceTimersByTimeAsync(10_000)
    expect(line.statuses.at(-1)).toBe('error')
    expect(line.told.at(-1)).toBe('error SOCKET_UNAUTHENTICATED')
    expect(line.sockets).toHaveLength(2)
  })

  it('what a page hears of its life reaches the connection in a worker', async () => {
    const line = new Line()
    const socket = await line.connect()
    socket.end(1006)
    await settle()
    line.transport.wake('online')
    await settle()
    expect(line.sockets).toHaveLength(2)
  })
})

describe('X27 positions', () => {
  const TOPIC = 'log.1'
  async function logged() {
    const line = new Line()
    const server = new LogServer(line.world)
    await line.start()
    await server.connect()
    return { line, server }
  }

  it('X27 publications carry theirs; from one, what came after it is handed over first, then what comes', async () => {
    const { line, server } = await logged()
    for (let n = 1; n <= 5; n++) server.append(n)
    line.transport.subscribe(TOPIC, { offset: 2, epoch: 'e1' })
    await settle()
    await server.deliver()
    expect(line.told).toEqual([`subscribed ${TOPIC}`])
    server.append(6)
    await server.deliver()
    expect(line.data[TOPIC]).toEqual([3, 4, 5, 6])
    expect(line.positions[TOPIC]).toEqual({ offset: 6, epoch: 'e1' })
  })

  it('X27 what the server has not any more is lost; so is a history that began anew', async () => {
    const { line, server } = await logged()
    for (let n = 1; n <= 9; n++) server.append(n)
    server.trim(2)
    line.transport.subscribe(TOPIC, { offset: 3, epoch: 'e1' })
    await settle()
    await server.deliver()
    expect(line.told).toEqual([`subscribed ${TOPIC} lost`])
    expect(line.positions[TOPIC]).toEqual({ offset: 9, epoch: 'e1' })
    server.reset('e2')
    await server.deliver()
    expect(line.count(`subscribed ${TOPIC} lost`)).toBe(2)
    server.append('new')
    await server.deliver()
    expect(line.data[TOPIC]).toEqual(['new'])
    expect(line.positions[TOPIC]).toEqual({ offset: 1, epoch: 'e2' })
  })

  it('X27 a skipped message is a loss that stands where it is', async () => {
    const { line, server } = await logged()
    line.transport.subscribe(TOPIC)
    await settle()
    await server.deliver()
    server.socket.reply({ type: 'skipped', channel: TOPIC, count: 4 })
    await settle()
    expect(line.told).toEqual([`subscribed ${TOPIC}`])
    server.socket.reply({ type: 'message', channel: TOPIC, id: 'm', data: 'five', offset: 5 })
    expect(line.told).toEqual([`subscribed ${TOPIC}`, `subscribed ${TOPIC} lost`])
    expect(line.data[TOPIC]).toEqual(['five'])
  })

  it('X27 whatever happens to the connection, each publication comes once and in order, or its loss is told', async () => {
    for (let seed = 1; seed <= 60; seed++) {
      let state = seed
      const chance = (count: number) => (state = (state * 48_271) % 2_147_483_647) % count
      const { line, server } = await logged()
      let expected: number | undefined // the next offset; undefined after a loss
      let epoch = ''
      let at: Position | undefined
      const events = line.events as { publication: typeof line.events.publication; subscribed: (topic: string, position?: Position, lost?: boolean) => void }
      events.publication = (_, { data, position }) => {
        const { offset } = position as Position
        expect({ seed, data, epoch: position?.epoch }).toEqual({ seed, data: offset, epoch })
        expect({ seed, offset }).toEqual({ seed, offset: expected })
        expected = offset + 1
        at = position
      }
      events.subscribed = (_, position, lost) => {
        if (!lost && at) expect({ seed, position }).toEqual({ seed, position: at })
        at = position
        epoch = position?.epoch as string
        expected = (position as Position).offset + 1
      }
      let wanted = false
      for (let step = 0; step < 120; step++) {
        switch (chance(8)) {
          case 0:
            server.cut()
            await server.connect()
            break
          case 1:
            if (chance(3) === 0) server.trim(chance(10))
            break
          case 2:
            if (wanted) void line.transport.unsubscribe(TOPIC)
            else line.transport.subscribe(TOPIC, at)
            wanted = !wanted
            await settle()
            break
          default:
            server.append(server.head + 1)
        }
        await server.deliver(chance(5))
      }
      if (!wanted) line.transport.subscribe(TOPIC, at)
      await settle()
      await server.deliver()
      server.append(server.head + 1)
      await server.deliver()
      expect({ seed, at }).toEqual({ seed, at: { offset: server.head, epoch: 'e1' } })
    }
  })
})

