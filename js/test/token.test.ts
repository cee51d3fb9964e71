import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { TidewireError } from '../src/index.js'
import { settle, World } from './fake.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const MINUTE = 60_000

describe('the credential', () => {
  it('travels as a subprotocol, in base64url when it has other characters', async () => {
    for (const [token, entry] of [
      ['eyJh.eyJz.c2ln-_', 'tidewire.token.eyJh.eyJz.c2ln-_'],
      ['a b', 'tidewire.token64.YSBi'],
      ['a/b=?ÿé', 'tidewire.token64.YS9iPT_Dv8Op'],
    ] as const) {
      const world = new World({ token })
      await world.connect()
      expect(world.socket.protocols).toEqual(['tidewire.1', entry])
      expect(world.socket.url).toBe('ws://server.test/v1/socket')
    }
  })

  it('P45 is asked for once, and used again until it expires', async () => {
    const token = vi.fn(async () => 't1')
    const world = new World({ token })
    await world.connect({ expiresInMs: 10 * MINUTE })
    for (let i = 0; i < 5; i++) {
      world.socket.end(1006)
      await world.reconnect({ expiresInMs: 9 * MINUTE })
    }
    expect(token).toHaveBeenCalledTimes(1)
  })

  it('P45 an expired token is never used: another is asked for before the dial', async () => {
    let n = 0
    const world = new World({ token: async () => `t${++n}` })
    const socket = await world.connect({ expiresInMs: MINUTE })
    // Asleep: the clock goes on, the timers do not.
    vi.setSystemTime(Date.now() + 10 * MINUTE)
    socket.end(1006)
    await world.reconnect({ expiresInMs: MINUTE })
    expect(world.socket.protocols[1]).toBe('tidewire.token.t2')
  })

  it('P45 a fresh one is sent between 80 and 90 % of its life, without a drop', async () => {
    for (const random of [0, 0.999]) {
      let n = 0
      const world = new World({ token: async () => `t${++n}`, random: () => random, heartbeatMs: MINUTE })
      const socket = await world.connect({ expiresInMs: 100_000 })
      await vi.advanceTimersByTimeAsync(79_999)
      expect(socket.of('auth')).toEqual([])
      await vi.advanceTimersByTimeAsync(10_001)
      expect(socket.of('auth')).toEqual([{ type: 'auth', token: 't2' }])
      socket.reply({ type: 'authenticated', expiresInMs: 100_000 })
      await vi.advanceTimersByTimeAsync(90_000)
      expect(socket.of('auth').map(({ token }) => token)).toEqual(['t2', 't3'])
      expect(world.sockets).toHaveLength(1)
    }
  })

  it('P45 life of 5 s for 10 minutes with 5 drops: one call in flight at most, no gap, one refresh per life', async () => {
    let inFlight = 0
    let most = 0
    let calls = 0
    const world = new World({
      token: async () => {
        most = Math.max(most, ++inFlight)
        await new Promise((resolve) => setTimeout(resolve, 300))
        inFlight--
        return `t${++calls}`
      },
    })
    world.client.connect()
    const drops = new Set([60, 61, 62, 300, 500])
    let answered = 0
    let grantUntil = 0
    let gaps = 0
    const seen = new Set<unknown>()
    for (let second = 0; second < 600; second++) {
      for (let tick = 0; tick < 10; tick++) {
        await vi.advanceTimersByTimeAsync(100)
        const socket = world.sockets.at(-1)
        if (!socket) continue
        if (world.state.kind === 'connecting' && !seen.has(socket)) {
          seen.add(socket)
          answered = 0
          socket.open()
          socket.welcome({ expiresInMs: 5000 })
          grantUntil = Date.now() + 5000
        }
        if (world.state.kind !== 'connected') continue
        if (socket.of('auth').length > answered) {
          answered++
          socket.reply({ type: 'authenticated', expiresInMs: 5000 })
          grantUntil = Date.now() + 5000
        }
        socket.welcome({ expiresInMs: grantUntil - Date.now() }) // as to a heartbeat
        if (Date.now() > grantUntil) gaps++
      }
      if (drops.has(second)) world.socket.end(1006)
    }
    expect(most).toBe(1)
    expect(gaps).toBe(0)
    expect(world.sockets).toHaveLength(6)
    expect(calls).toBeGreaterThan(115)
    expect(calls).toBeLessThan(160)
  }, 20_000)

  it('P45 1008 asks for another, and the refused one is never used again', async () => {
    const tokens = ['t1', 't1', 't1', 't2']
    const token = vi.fn(async () => tokens.shift() ?? 't3')
    const world = new World({ token })
    const socket = await world.connect()
    socket.end(1008, 'withdrawn')
    await vi.advanceTimersByTimeAsync(200)
    expect(world.state).toMatchObject({ kind: 'waiting', error: { code: 'TOKEN_UNAVAILABLE' } })
    await vi.advanceTimersByTimeAsync(4000)
    await world.accept()
    expect(world.sockets.map(({ protocols }) => protocols[1])).toEqual(['tidewire.token.t1', 'tidewire.token.t2'])
    expect(token).toHaveBeenCalledTimes(4)
  })

  it('P45 the token fetched while the old grant ends is not taken for the refused one', async () => {
    const tokens = ['t1', 't2']
    const token = vi.fn(async () => tokens.shift() ?? 't3')
    const world = new World({ token })
    const socket = await world.connect({ expiresInMs: 10_000 })
    await vi.advanceTimersByTimeAsync(9000)
    expect(socket.of('auth')).toHaveLength(1)
    socket.end(1008, 'expired')
    await world.reconnect({ expiresInMs: 10_000 })
    expect(world.socket.protocols[1]).toBe('tidewire.token.t2')
    expect(token).toHaveBeenCalledTimes(2)
  })

  it('P45 a slow provider: drops and dials while it works join the one call in flight', async () => {
    let inFlight = 0
    let most = 0
    let calls = 0
    const world = new World({
      token: async () => {
        most = Math.max(most, ++inFlight)
        if (++calls > 1) await new Promise((resolve) => setTimeout(resolve, 5000))
        inFlight--
        return `t${calls}`
      },
    })
    const socket = await world.connect({ expiresInMs: 10_000 })
    await vi.advanceTimersByTimeAsync(8600) // the refresh has begun
    expect(calls).toBe(2)
    socket.end(1006)
    await vi.advanceTimersByTimeAsync(1000)
    world.client.close()
    world.client.connect() // the next dial waits for the same call
    await vi.advanceTimersByTimeAsync(5000)
    expect([calls, most]).toEqual([2, 1])
    expect(world.sockets).toHaveLength(2)
    expect(world.socket.protocols[1]).toBe('tidewire.token.t2')
  })

  it('P45 a fixed token that is refused or expired stops after one try, with the reason', async () => {
    const refused = new World({ token: 'fixed' })
    const socket = await refused.connect()
    socket.end(1008, 'grant expired')
    expect(refused.state).toMatchObject({ kind: 'stopped', reason: 'unauthenticated', error: { code: 'SOCKET_UNAUTHENTICATED', cause: 'closed with 1008 grant expired' } })

    const expired = new World({ token: 'fixed' })
    const other = await expired.connect({ expiresInMs: MINUTE })
    vi.setSystemTime(Date.now() + MINUTE)
    other.end(1006)
    await vi.advanceTimersByTimeAsync(10 * MINUTE)
    expect(expired.state).toMatchObject({ kind: 'stopped', reason: 'unauthenticated' })
    expect([refused.sockets.length, expired.sockets.length]).toEqual([1, 1])
  })

  it('P45 a fixed token and 1006 before open cannot be told from an outage: backoff', async () => {
    const world = new World({ token: 'fixed' })
    world.client.connect()
    await settle()
    for (let i = 0; i < 10; i++) {
      world.socket.end(1006)
      await vi.advanceTimersByTimeAsync(4000)
    }
    expect(world.sockets).toHaveLength(11)
    expect(world.socket.protocols[1]).toBe('tidewire.token.fixed')
  })

  it('P45 a provider that says SOCKET_UNAUTHENTICATED stops, and what waits fails with it', async () => {
    const world = new World({ token: () => Promise.reject(new TidewireError('SOCKET_UNAUTHENTICATED', { cause: 'signed out' })) })
    const channel = world.client.channel('room.1')
    channel.on('message', () => {})
    const publish = expect(channel.publish(1)).rejects.toMatchObject({ code: 'SOCKET_UNAUTHENTICATED', cause: 'signed out' })
    await vi.advanceTimersByTimeAsync(10 * MINUTE)
    await publish
    expect(world.state).toMatchObject({ kind: 'stopped', reason: 'unauthenticated', error: { cause: 'signed out' } })
    expect(channel.status.getSnapshot()).toEqual({ kind: 'idle' })
    expect(world.sockets).toEqual([])
  })

  it('P45 a provider that fails is asked again with backoff, and never turns anonymous', async () => {
    let calls = 0
    const world = new World({
      token: async () => {
        if (++calls < 6) throw new Error('HTTP 500')
        return 't'
      },
    })
    world.client.connect()
    await settle()
    expect(world.state).toMatchObject({ kind: 'waiting', error: { code: 'TOKEN_UNAVAILABLE', cause: expect.stringContaining('HTTP 500') } })
    await vi.advanceTimersByTimeAsync(125 + 250 + 500 + 1000 - 1)
    expect(calls).toBe(4)
    await vi.advanceTimersByTimeAsync(2001)
    expect(calls).toBe(6)
    expect(world.sockets.map(({ protocols }) => protocols)).toEqual([['tidewire.1', 'tidewire.token.t']])

    for (const nothing of ['', undefined, null]) {
      const empty = new World({ token: (async () => nothing) as never })
      empty.client.connect()
      await vi.advanceTimersByTimeAsync(MINUTE)
      expect(empty.state).toMatchObject({ kind: 'stopped', reason: 'unauthenticated' })
      expect(empty.sockets).toEqual([])
    }
  })

  it('P45 a provider that fails during a refresh is asked again while the connection lives', async () => {
    let calls = 0
    const world = new World({
      token: async () => {
        if (++calls === 2) throw new Error('HTTP 500')
        return `t${calls}`
      },
    })
    const socket = await world.connect({ expiresInMs: 10_000 })
    await vi.advanceTimersByTimeAsync(9500)
    expect(socket.of('auth')).toEqual([{ type: 'auth', token: 't3' }])
    expect(world.sockets).toHaveLength(1)
  })

  it('P45 a refused auth is not repeated; the connection lives until 1008, and the fresh token dials', async () => {
    const tokens = ['t1', 't2', 't3']
    const token = vi.fn(async () => tokens.shift() ?? 'none')
    const world = new World({ token, heartbeatMs: MINUTE })
    const socket = await world.connect({ expiresInMs: 100_000 })
    await vi.advanceTimersByTimeAsync(85_000)
    socket.reply({ type: 'refused', re: 'auth', code: 'AUTH_REFRESH_REFUSED', cause: 'this server takes no token on an open connection' })
    await vi.advanceTimersByTimeAsync(15_000)
    expect(world.sockets).toHaveLength(1)
    socket.end(1008, 'expired')
    await world.reconnect()
    expect(world.socket.protocols[1]).toBe('tidewire.token.t2')
    expect(token).toHaveBeenCalledTimes(2)
  })

  it('P27 P45 while the server cannot judge, the same token goes again, and the application is not asked', async () => {
    let n = 0
    const token = vi.fn(async () => `t${++n}`)
    const world = new World({ token, heartbeatMs: MINUTE, random: () => 0.999 })
    const socket = await world.connect({ expiresInMs: 100_000 })
    await vi.advanceTimersByTimeAsync(90_000)
    for (let i = 1; i <= 4; i++) {
      expect(socket.of('auth')).toHaveLength(i)
      socket.reply({ type: 'refused', re: 'auth', code: 'SOCKET_AUTH_UNAVAILABLE', cause: 'x', retryAfterMs: 1000 })
      await vi.advanceTimersByTimeAsync(999)
      expect(socket.of('auth')).toHaveLength(i)
      await vi.advanceTimersByTimeAsync(1000)
    }
    expect(new Set(socket.of('auth').map(({ token }) => token))).toEqual(new Set(['t2']))
    socket.reply({ type: 'authenticated', expiresInMs: 100_000 })
    await vi.advanceTimersByTimeAsync(90_000)
    expect(socket.of('auth').at(-1)).toEqual({ type: 'auth', token: 't3' })
    expect(token).toHaveBeenCalledTimes(3)
  })

  it('P27 P45 an outage does not move to the token endpoint: one call for three failed dials', async () => {
    const token = vi.fn(async () => `t${Math.random()}`)
    const world = new World({ token })
    world.client.connect()
    await settle()
    for (let i = 0; i < 9; i++) {
      world.socket.end(1006)
      await vi.advanceTimersByTimeAsync(4000)
    }
    expect(world.sockets).toHaveLength(10)
    expect(token).toHaveBeenCalledTimes(4)
  })

  it('P45 close while the provider works opens nothing afterwards', async () => {
    let give = (_: string) => {}
    const world = new World({ token: () => new Promise((resolve) => (give = resolve)) })
    world.client.connect()
    await settle()
    world.client.close()
    give('t')
    await vi.advanceTimersByTimeAsync(MINUTE)
    expect(world.sockets).toEqual([])
    // Its token is good for the next connect.
    await world.connect()
    expect(world.socket.protocols[1]).toBe('tidewire.token.t')
  })
})
