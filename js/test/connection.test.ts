import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { TidewireError } from '../src/index.js'
import { settle, World } from './fake.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

describe('connecting', () => {
  it('does nothing until it is used', async () => {
    const world = new World()
    world.client.channel('room.1')
    await vi.advanceTimersByTimeAsync(60_000)
    expect(world.sockets).toEqual([])
    expect(world.state).toEqual({ kind: 'idle' })
  })

  it('says hello first, and is connected with welcome', async () => {
    const world = new World({ build: 'b1' })
    world.client.connect()
    await settle()
    expect(world.state).toEqual({ kind: 'connecting', attempt: 1 })
    expect(world.socket.protocols).toEqual(['tidewire.1'])
    world.socket.open()
    expect(world.socket.sent).toEqual([{ type: 'hello', protocol: 1, client: expect.stringMatching(/^[\d-]{16,64}$/), build: 'b1' }])
    world.socket.welcome({ actor: 'alice' })
    expect(world.state).toMatchObject({ kind: 'connected', session: 's-me', actor: 'alice', limits: { frameBytes: 262_144 } })
  })

  it('keeps its secret across reconnects, and another client has another', async () => {
    const world = new World()
    const first = await world.connect()
    first.end(1006)
    const second = await world.reconnect()
    expect(second.sent[0]).toEqual(first.sent[0])
    const other = await new World().connect()
    expect(other.sent[0]?.['client']).not.toBe(first.sent[0]?.['client'])
  })

  it('returns the same snapshot until it changes, and tells each change', async () => {
    const world = new World()
    const listener = vi.fn()
    world.client.connection.subscribe(listener)
    const socket = await world.connect()
    expect(listener).toHaveBeenCalledTimes(2)
    const snapshot = world.state
    socket.welcome()
    expect(world.state).toBe(snapshot)
    expect(listener).toHaveBeenCalledTimes(2)
  })

  it('gives up a dial that hangs', async () => {
    const world = new World()
    world.client.connect()
    await vi.advanceTimersByTimeAsync(10_000)
    expect(world.socket.closedWith?.code).toBe(4000)
    expect(world.state.kind).toBe('waiting')
    await vi.advanceTimersByTimeAsync(125)
    expect(world.sockets).toHaveLength(2)
  })

  it('a dial that fails counts once, with an error, a close, or both', async () => {
    for (const fail of [['error'], ['close'], ['error', 'close']]) {
      const world = new World()
      world.client.connect()
      await settle()
      if (fail.includes('error')) world.socket.onerror?.()
      if (fail.includes('close')) world.socket.end(1006)
      expect(world.state, fail.join()).toMatchObject({ kind: 'waiting', attempt: 1, error: { code: 'CONNECTION_FAILED' } })
      await vi.advanceTimersByTimeAsync(125)
      expect(world.sockets, fail.join()).toHaveLength(2)
    }
    const world = new World()
    const socket = await world.connect()
    socket.onerror?.() // on an open connection the close decides
    expect(world.state.kind).toBe('connected')
  })

  it('takes http for ws', () => {
    const world = new World({ url: 'https://server.test/v1/socket?x=1' })
    world.client.connect()
    return settle().then(() => expect(world.socket.url).toBe('wss://server.test/v1/socket?x=1'))
  })

  it('close is final until connect, and its own late close is not heard', async () => {
    const world = new World()
    const socket = await world.connect()
    world.client.close()
    expect(socket.closedWith?.code).toBe(1000)
    expect(world.state).toMatchObject({ kind: 'stopped', reason: 'closed', error: { code: 'CLOSED' } })
    socket.end(1000)
    await vi.advanceTimersByTimeAsync(60_000)
    expect(world.sockets).toHaveLength(1)
    await expect(world.client.channel('room.1').publish(1)).rejects.toMatchObject({ code: 'CLOSED' })
    await world.connect()
    expect(world.state.kind).toBe('connected')
  })

  it('a listener may close the client at any change', async () => {
    for (const kind of ['connecting', 'connected', 'waiting']) {
      const world = new World()
      world.client.connection.subscribe(() => {
        if (world.state.kind === kind) world.client.close()
      })
      world.client.connect()
      await settle()
      if (world.sockets.length > 0 && world.state.kind !== 'stopped') {
        await world.accept()
        if (kind === 'waiting') world.socket.end(1006)
      }
      await vi.advanceTimersByTimeAsync(60_000)
      expect(world.state, kind).toMatchObject({ kind: 'stopped', reason: 'closed' })
      expect(world.sockets.length, kind).toBeLessThanOrEqual(1)
    }
  })

  it('stops with the reason when the address is none', async () => {
    const world = new World({ url: '/v1/socket' }) // and no page to resolve it against
    world.client.connect()
    await settle()
    expect(world.state).toMatchObject({ kind: 'stopped', reason: 'refused', error: { code: 'CONNECTION_FAILED', cause: expect.stringContaining('Invalid URL') } })
  })

  it('stops with the reason when the browser refuses the address', async () => {
    const world = new World({
      WebSocket: class {
        constructor() {
          throw new Error('SecurityError')
        }
      } as never,
    })
    world.client.connect()
    await settle()
    expect(world.state).toMatchObject({ kind: 'stopped', reason: 'refused', error: { code: 'CONNECTION_FAILED' } })
  })
})

describe('reconnecting', () => {
  it('S31 P27 full jitter: the bound doubles from 250 ms to 4 s, and a delay is drawn evenly below it', async () => {
    const world = new World({ random: () => 0.999 })
    world.client.connect()
    const delays: number[] = []
    for (let i = 0; i < 7; i++) {
      await vi.advanceTimersByTimeAsync(4000)
      world.socket.end(1006)
      const state = world.state
      if (state.kind !== 'waiting') throw new Error(state.kind)
      expect(state.attempt).toBe(i + 1)
      delays.push(state.reconnectAt - Date.now())
    }
    expect(delays).toEqual([250, 500, 999, 1998, 3996, 3996, 3996])

    let n = 0
    const spread = new Set<number>()
    for (let i = 0; i < 10; i++) {
      const other = new World({ random: () => n++ / 10 })
      other.client.connect()
      await settle()
      other.socket.end(1006)
      if (other.state.kind === 'waiting') spread.add(other.state.reconnectAt - Date.now())
    }
    expect([...spread]).toEqual([0, 25, 50, 75, 100, 125, 150, 175, 200, 225])
  })

  it('S31 a draining server: the connection serves until its slot, then moves at once', async () => {
    const world = new World()
    const messages = vi.fn()
    world.client.channel('room.1').on('message', messages)
    const socket = await world.connect()
    socket.reply({ type: 'reconnect', afterMs: 1830 })
    await vi.advanceTimersByTimeAsync(1829)
    expect(world.state.kind).toBe('connected')
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    expect(messages).toHaveBeenCalledTimes(1)
    await vi.advanceTimersByTimeAsync(1)
    // Not 1000 or 1001, with which this session would leave its rosters.
    expect(socket.closedWith).toEqual({ code: 4004, reason: 'DRAINING' })
    await vi.advanceTimersByTimeAsync(1)
    expect(world.sockets).toHaveLength(2)
    expect((await world.accept()).of('subscribe')).toHaveLength(1)
  })

  it("S31 P27 the server's slot comes before the backoff, also when it closes earlier", async () => {
    const world = new World()
    const socket = await world.connect()
    socket.reply({ type: 'reconnect', afterMs: 2830 })
    await vi.advanceTimersByTimeAsync(1000)
    socket.end(1012)
    expect(world.state).toMatchObject({ kind: 'waiting', reconnectAt: Date.now() + 1830, error: { code: 'DRAINING', retryAfterMs: 1830 } })
    await vi.advanceTimersByTimeAsync(1829)
    expect(world.sockets).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(1)
    expect(world.sockets).toHaveLength(2)
    // The slot is for one dial.
    world.socket.end(1006)
    expect(world.state).toMatchObject({ reconnectAt: Date.now() + 250 })
  })

  it('P27 a server that welcomes and closes at once is dialled ever more slowly', async () => {
    const world = new World({ random: () => 0.999 })
    await world.connect()
    const attempts: number[] = []
    for (let i = 0; i < 6; i++) {
      world.socket.end(1013, 'backpressure')
      if (world.state.kind === 'waiting') attempts.push(world.state.attempt)
      await world.reconnect()
    }
    expect(attempts).toEqual([1, 2, 3, 4, 5, 6].map((n) => Math.min(n, attempts.at(-1) ?? 0)))
    await vi.advanceTimersByTimeAsync(5000)
    world.socket.end(1013)
    expect(world.state).toMatchObject({ kind: 'waiting', attempt: 1 })
  })

  it('reconnects after each close code of the server', async () => {
    for (const code of [1000, 1001, 1002, 1003, 1006, 1007, 1009, 1011, 1012, 1013, 4002, 4003]) {
      const world = new World()
      const socket = await world.connect()
      socket.end(code)
      await world.reconnect()
      expect(world.state.kind, String(code)).toBe('connected')
    }
  })

  it('4001 idle timeout: dials when it is needed again', async () => {
    const world = new World()
    const socket = await world.connect()
    socket.end(4001, 'idle timeout')
    expect(world.state.kind).toBe('idle')
    await vi.advanceTimersByTimeAsync(60_000)
    expect(world.sockets).toHaveLength(1)
    const off = world.client.channel('room.1').on('message', () => {})
    await settle()
    const second = await world.accept()
    expect(second.of('subscribe')).toHaveLength(1)
    second.end(4001, 'idle timeout')
    expect(world.state.kind).toBe('waiting')
    off()
  })

  it('a refused hello stops, unless the server says when to come back', async () => {
    const world = new World()
    world.client.connect()
    await settle()
    world.socket.open()
    world.socket.reply({ type: 'refused', re: 'hello', code: 'CONNECTION_LIMIT', cause: 'full', retryAfterMs: 3000 })
    expect(world.state).toMatchObject({ kind: 'waiting', reconnectAt: Date.now() + 3000, error: { code: 'CONNECTION_LIMIT' } })
    await vi.advanceTimersByTimeAsync(3000)
    world.socket.open()
    world.socket.reply({ type: 'refused', re: 'hello', code: 'PROTOCOL_VERSION', cause: 'version 2 only' })
    expect(world.state).toMatchObject({ kind: 'stopped', reason: 'refused', error: { code: 'PROTOCOL_VERSION', cause: 'version 2 only' } })
  })

  it('late events of a replaced socket are not heard', async () => {
    const world = new World()
    const messages = vi.fn()
    world.client.channel('room.1').on('message', messages)
    const first = await world.connect()
    await vi.advanceTimersByTimeAsync(45_000)
    expect(first.closedWith?.code).toBe(4000)
    const second = await world.reconnect()
    const state = world.state
    first.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    first.welcome({ session: 's-other' })
    first.end(4000)
    expect(world.state).toBe(state)
    expect(messages).not.toHaveBeenCalled()
    second.reply({ type: 'message', channel: 'room.1', id: 'm', data: 1 })
    expect(messages).toHaveBeenCalledTimes(1)
  })
})

describe('heartbeat', () => {
  it('S32 beats each interval with a hello, and a subscribe for each channel in whose roster it is', async () => {
    const world = new World()
    world.client.channel('room.1').presence({ data: { name: 'A' } })
    world.client.channel('room.2').on('message', () => {})
    const socket = await world.connect()
    socket.answerSubscribes()
    socket.reply({ type: 'presence', channel: 'room.1', version: 1, total: 0, snapshot: [] })
    socket.sent.length = 0
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.sent).toEqual([
      expect.objectContaining({ type: 'hello' }),
      { type: 'subscribe', sid: '1', channel: 'room.1', presence: { data: { name: 'A' } } },
    ])
  })

  it('S32 two silent intervals close with 4000 and redial', async () => {
    const world = new World()
    const socket = await world.connect()
    await vi.advanceTimersByTimeAsync(44_999)
    expect(socket.of('hello')).toHaveLength(3)
    expect(socket.closedWith).toBeUndefined()
    await vi.advanceTimersByTimeAsync(1)
    expect(socket.closedWith).toEqual({ code: 4000, reason: 'SERVER_SILENT' })
    expect(world.state).toMatchObject({ kind: 'waiting', error: { code: 'SERVER_SILENT' } })
    await world.reconnect()
    expect(world.state.kind).toBe('connected')
  })

  it('S32 anything that arrives keeps the connection', async () => {
    const world = new World()
    const socket = await world.connect()
    for (let i = 0; i < 20; i++) {
      await vi.advanceTimersByTimeAsync(29_000)
      socket.reply({ type: 'of-a-later-version' })
    }
    expect(world.sockets).toHaveLength(1)
    expect(world.state.kind).toBe('connected')
  })

  it('S32 P32 a system sleep: the late beat asks at once and gives the server 2 s', async () => {
    const world = new World()
    const socket = await world.connect()
    socket.sent.length = 0
    vi.setSystemTime(Date.now() + 3_600_000)
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('hello')).toHaveLength(1)
    await vi.advanceTimersByTimeAsync(1999)
    expect(socket.closedWith).toBeUndefined()
    await vi.advanceTimersByTimeAsync(1)
    expect(socket.closedWith?.code).toBe(4000)
    await world.reconnect()
  })

  it('S32 P32 a system sleep whose connection survived is kept', async () => {
    const world = new World()
    const socket = await world.connect()
    vi.setSystemTime(Date.now() + 3_600_000)
    await vi.advanceTimersByTimeAsync(15_000)
    socket.welcome()
    await vi.advanceTimersByTimeAsync(14_000)
    expect(socket.closedWith).toBeUndefined()
    expect(world.sockets).toHaveLength(1)
  })

  it('P32 hidden for 10 minutes with timers once a minute: no reconnect while the server answers, however late the timers', async () => {
    const world = new World()
    const socket = await world.connect()
    // A throttled timer runs later than asked for: the clock jumps, the timers do not.
    for (let minute = 0; minute < 10; minute++) {
      vi.setSystemTime(Date.now() + 45_000)
      const hellos = socket.of('hello').length
      await vi.advanceTimersByTimeAsync(15_000)
      if (socket.of('hello').length > hellos) socket.welcome()
    }
    expect(world.sockets).toHaveLength(1)
    expect(world.state.kind).toBe('connected')
  })

  it('P32 an overdue probe asks once more before it closes, and only once', async () => {
    const world = new World()
    const socket = await world.connect()
    vi.setSystemTime(Date.now() + 60_000)
    await vi.advanceTimersByTimeAsync(15_000)
    expect(socket.of('hello')).toHaveLength(2)
    vi.setSystemTime(Date.now() + 60_000)
    await vi.advanceTimersByTimeAsync(2000)
    expect(socket.of('hello')).toHaveLength(3)
    expect(socket.closedWith).toBeUndefined()
    vi.setSystemTime(Date.now() + 60_000)
    await vi.advanceTimersByTimeAsync(2000)
    expect(socket.closedWith?.code).toBe(4000)
  })

  it('P31 half-open: noticed and healed on the 1st to the 10th outage alike', async () => {
    const world = new World()
    const messages = vi.fn()
    world.client.channel('room.1').on('message', messages)
    await world.connect()
    for (let outage = 1; outage <= 10; outage++) {
      const dead = world.socket
      await vi.advanceTimersByTimeAsync(45_000)
      expect(dead.closedWith?.code, `outage ${outage}`).toBe(4000)
      const socket = await world.reconnect()
      socket.answerSubscribes()
      expect(socket.of('subscribe'), `outage ${outage}`).toHaveLength(1)
      socket.reply({ type: 'message', channel: 'room.1', id: `m${outage}`, data: outage })
      expect(messages).toHaveBeenCalledTimes(outage)
    }
    expect(world.sockets).toHaveLength(11)
  })
})

describe('rate', () => {
  it('P27 a heartbeat refused for its rate ends neither the connection nor what is live', async () => {
    const world = new World()
    const channel = world.client.channel('room.1')
    channel.presence()
    const socket = await world.connect()
    socket.answerSubscribes()
    await vi.advanceTimersByTimeAsync(15_000)
    const code = 'FRAME_RATE_LIMIT'
    socket.reply({ type: 'refused', re: 'hello', code, cause: 'slower', retryAfterMs: 500 })
    socket.reply({ type: 'refused', re: 'subscribe', sid: '1', channel: 'room.1', code, cause: 'slower', retryAfterMs: 500 })
    await vi.advanceTimersByTimeAsync(10_000)
    expect(world.state.kind).toBe('connected')
    expect(channel.status.getSnapshot()).toEqual({ kind: 'live' })
    expect(socket.of('subscribe').every(({ sid }) => sid === '1')).toBe(true)
  })

  it('P27 what is refused for its rate: a message says so, a subscription is asked for again, the newest data and state go again', async () => {
    const world = new World()
    const presence = world.client.channel('room.1').presence({ data: 1 })
    const socket = await world.connect()
    socket.answerSubscribes()
    socket.reply({ type: 'presence', channel: 'room.1', version: 1, total: 0, snapshot: [] })
    const refused = { type: 'refused', code: 'FRAME_RATE_LIMIT', cause: 'slower', retryAfterMs: 500 }
    const publish = world.client.channel('room.1').publish(1, { id: 'p1' })
    await settle()
    socket.reply({ ...refused, re: 'publish', id: 'p1', channel: 'room.1' })
    await expect(publish).rejects.toMatchObject({ code: 'FRAME_RATE_LIMIT', retryAfterMs: 500 })

    await vi.advanceTimersByTimeAsync(1000)
    presence.update(2)
    presence.setState('s')
    socket.sent.length = 0
    socket.reply({ ...refused, re: 'presence', channel: 'room.1' })
    socket.reply({ ...refused, re: 'state', channel: 'room.1' })
    await vi.advanceTimersByTimeAsync(499)
    expect(socket.sent).toEqual([])
    await vi.advanceTimersByTimeAsync(200)
    expect(socket.of('presence').at(-1)).toMatchObject({ data: 2 })
    expect(socket.of('state').at(-1)).toMatchObject({ data: 's' })
    expect(presence.getSnapshot().error).toBeUndefined()

    const other = world.client.channel('room.2')
    other.on('message', () => {})
    await settle()
    socket.reply({ ...refused, re: 'subscribe', sid: '2', channel: 'room.2' })
    expect(other.status.getSnapshot()).toMatchObject({ kind: 'refused', error: { code: 'FRAME_RATE_LIMIT' } })
    await vi.advanceTimersByTimeAsync(600)
    expect(other.status.getSnapshot()).toEqual({ kind: 'subscribing' })
  })
})

describe('build', () => {
  it('S33 update-available stands on the connection state, across reconnects', async () => {
    const world = new World({ build: 'old' })
    const socket = await world.connect()
    const listener = vi.fn()
    world.client.connection.subscribe(listener)
    expect(world.state.updateAvailable).toBeUndefined()
    socket.reply({ type: 'update-available', build: 'new' })
    socket.reply({ type: 'update-available', build: 'new' })
    expect(listener).toHaveBeenCalledTimes(1)
    expect(world.state).toMatchObject({ kind: 'connected', updateAvailable: 'new' })
    socket.end(1001)
    expect(world.state).toMatchObject({ kind: 'waiting', updateAvailable: 'new' })
  })
})

describe('errors', () => {
  it('carry what the server said', () => {
    const error = new TidewireError('TOPIC_FORBIDDEN', { cause: 'no guard allows this channel', fix: 'add one', retryAfterMs: 5 })
    expect(error).toBeInstanceOf(Error)
    expect({ ...error, message: error.message }).toMatchObject({
      name: 'TidewireError',
      message: 'TOPIC_FORBIDDEN: no guard allows this channel',
      code: 'TOPIC_FORBIDDEN',
      fix: 'add one',
      retryAfterMs: 5,
    })
  })
})
