import type { Centrifuge } from 'centrifuge'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { type CentrifugeConfig, CentrifugeTransport } from '../src/crosstab/centrifuge.js'
import { settle } from './fake.js'
import { Log } from './worker.fixture.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

type Handler = (context: object) => void

/** What the package's emitters do. */
class Emitter {
  readonly handlers = new Map<string, Handler>()
  on(event: string, handler: Handler): this {
    this.handlers.set(event, handler)
    return this
  }
  removeAllListeners(): void {
    this.handlers.clear()
  }
  emit(event: string, context: object = {}): void {
    this.handlers.get(event)?.(context)
  }
}

class FakeSubscription extends Emitter {
  readonly channel: string
  readonly options: Readonly<Record<string, unknown>>
  subscribed = false
  constructor(channel: string, options: Readonly<Record<string, unknown>>) {
    super()
    this.channel = channel
    this.options = options
  }
  subscribe(): void {
    this.subscribed = true
  }
}

class FakeCentrifuge extends Emitter {
  static last: FakeCentrifuge
  readonly url: string
  readonly options: { readonly getToken?: () => Promise<string>; readonly token?: string }
  readonly subscriptions = new Map<string, FakeSubscription>()
  readonly asked: string[] = []
  answers: (() => void)[] = []
  state = 'disconnected'
  failure: unknown
  constructor(url: string, options: object) {
    super()
    this.url = url
    this.options = options
    FakeCentrifuge.last = this
  }
  connect(): void {
    this.state = 'connecting'
    this.emit('connecting', { code: 0, reason: 'connect called' })
  }
  connected(): void {
    this.state = 'connected'
    this.emit('connected')
  }
  disconnect(): void {
    this.state = 'disconnected'
    this.emit('disconnected', { code: 0, reason: 'disconnect called' })
  }
  newSubscription(channel: string, options: Readonly<Record<string, unknown>>): FakeSubscription {
    if (this.subscriptions.has(channel)) throw new Error('Subscription to the channel already exists')
    const subscription = new FakeSubscription(channel, options)
    this.subscriptions.set(channel, subscription)
    return subscription
  }
  removeSubscription(subscription: FakeSubscription): void {
    this.subscriptions.delete(subscription.channel)
    subscription.emit('unsubscribed', { code: 0, reason: 'unsubscribe called' })
  }
  presenceStats(channel: string): Promise<never> {
    this.asked.push(channel)
    return new Promise((_, reject) => this.answers.push(() => reject({ code: 108, message: 'not available' })))
  }
  publish(): Promise<void> {
    return this.failure ? Promise.reject(this.failure) : Promise.resolve()
  }
}

/** A transport and its package's client. */
class Line extends Log {
  readonly transport = new CentrifugeTransport({
    Centrifuge: FakeCentrifuge as unknown as typeof Centrifuge,
    WebSocket: class {} as never,
    idOf: (data) => (data as { id?: string } | undefined)?.id,
  })
  client = FakeCentrifuge.last

  async connect(config: Partial<CentrifugeConfig> = {}): Promise<this> {
    await this.transport.start({ url: 'wss://server.test', ...config }, this.events)
    await settle()
    this.client = FakeCentrifuge.last
    this.client.connected()
    await settle()
    return this
  }

  subscription(topic: string): FakeSubscription {
    return this.client.subscriptions.get(topic) as FakeSubscription
  }
}

const at = (offset: number, epoch = 'e') => ({ streamPosition: { offset, epoch }, wasRecovering: false, recovered: false })

describe('X22 CentrifugeTransport', () => {
  it('X22 maps the connection: connecting, connected, lost and come back, ended for good', async () => {
    const line = await new Line().connect()
    expect(line.statuses).toEqual(['connecting', 'connected'])
    line.client.emit('connecting', { code: 1, reason: 'transport closed' })
    await settle()
    line.client.connected()
    await settle()
    expect(line.statuses.slice(2)).toEqual(['disconnected', 'connecting', 'connected'])
    line.client.emit('disconnected', { code: 3500, reason: 'invalid token' })
    await settle()
    expect(line.told).toEqual(['disconnected CONNECTION_LOST', 'error SOCKET_UNAUTHENTICATED'])
  })

  it('X22 positions: from one, with what was recovered, once; without recovery no position', async () => {
    const line = await new Line().connect()
    line.transport.subscribe('h', { offset: 3, epoch: 'e' })
    line.transport.subscribe('h')
    const h = line.subscription('h')
    expect([h.options, h.subscribed]).toEqual([{ since: { offset: 3, epoch: 'e' } }, true])
    // The package emits what was recovered right behind.
    h.emit('subscribed', { ...at(5), wasRecovering: true, recovered: true })
    for (const offset of [4, 5, 5]) h.emit('publication', { data: { id: `i${offset}`, offset }, offset })
    expect(line.told).toEqual(['subscribed h'])
    await settle()
    h.emit('publication', { data: { id: 'i6', offset: 6 }, offset: 6 })
    expect(line.data['h']).toEqual([4, 5, 6].map((offset) => ({ id: `i${offset}`, offset })))
    expect(line.positions['h']).toEqual({ offset: 6, epoch: 'e' })
    expect(line.told).toEqual(['subscribed h'])
    line.transport.subscribe('plain')
    line.subscription('plain').emit('subscribed', { wasRecovering: false, recovered: false })
    line.subscription('plain').emit('publication', { data: 1 })
    await settle()
    expect([line.data['plain'], line.positions['plain']]).toEqual([[1], undefined])
    line.subscription('plain').emit('subscribed', { wasRecovering: false, recovered: false })
    await settle()
    expect(line.told).toEqual(['subscribed h', 'subscribed plain', 'subscribed plain lost'])
  })

  it('X22 what cannot be recovered is lost, before what follows', async () => {
    const line = await new Line().connect()
    line.transport.subscribe('h', { offset: 3, epoch: 'e' })
    const h = line.subscription('h')
    h.emit('subscribed', { ...at(20), wasRecovering: true })
    // The part of it that is kept.
    for (const offset of [19, 20]) h.emit('publication', { data: offset, offset })
    expect(line.told).toEqual(['subscribed h lost'])
    expect(line.data['h']).toEqual([19, 20])
    h.emit('subscribed', { ...at(2, 'other'), wasRecovering: true })
    await settle()
    expect(line.told).toEqual(['subscribed h lost', 'subscribed h lost'])
    expect(line.positions['h']).toEqual({ offset: 2, epoch: 'other' })
  })

  it('X22 unsubscribing is done when the server has answered what was asked after it', async () => {
    const line = await new Line().connect()
    line.transport.subscribe('a')
    const { handlers } = line.subscription('a')
    let done = false
    void line.transport.unsubscribe('a').then(() => (done = true))
    await settle()
    expect([line.client.subscriptions.size, line.client.asked, done]).toEqual([0, ['a'], false])
    line.client.answers[0]?.()
    await settle()
    expect([done, line.told]).toEqual([true, []])
    handlers.get('publication')?.({ data: 'late' })
    expect(line.data).toEqual({})
    // Without a connection there is nothing to wait for.
    line.transport.subscribe('a')
    line.client.state = 'connecting'
    await line.transport.unsubscribe('a')
  })

  it('X22 refusals and failures are typed', async () => {
    const line = await new Line().connect()
    for (const topic of ['a', 'b']) line.transport.subscribe(topic)
    line.subscription('b').emit('error', { type: 'subscribe', error: { code: 100, message: 'internal' } })
    line.subscription('a').emit('unsubscribed', { code: 103, reason: 'permission denied' })
    await settle()
    expect(line.told).toEqual(['refused b CENTRIFUGE_100 retry', 'refused a TOPIC_FORBIDDEN'])
    expect([...line.client.subscriptions.keys()]).toEqual(['b'])
    line.transport.subscribe('a')
    expect([...line.client.subscriptions.keys()]).toEqual(['b', 'a'])
    line.client.failure = { code: 103, message: 'permission denied' }
    await expect(line.transport.publish('a', 1)).rejects.toMatchObject({ code: 'TOPIC_FORBIDDEN' })
    line.client.failure = new TypeError('no JSON')
    await expect(line.transport.publish('a', 1)).rejects.toThrow('no JSON')
    const stopped = line.transport.stop()
    await vi.advanceTimersByTimeAsync(1000)
    await stopped
    expect(line.statuses).toEqual(['connecting', 'connected'])
    await expect(line.transport.publish('a', 1)).rejects.toMatchObject({ code: 'CLOSED' })
  })

  it('X25 a token by way of the page; none is an end, a failure is tried again', async () => {
    const line = new Line()
    const asked: string[] = []
    line.token = (reason) => Promise.resolve(`token-${asked.push(reason)}`)
    await line.connect({ token: 'bridge' })
    const { getToken } = line.client.options
    expect([await getToken?.(), await getToken?.(), asked]).toEqual(['token-1', 'token-2', ['connect', 'expired']])
    line.token = () => Promise.reject(Object.assign(new Error(''), { code: 'SOCKET_UNAUTHENTICATED' }))
    await expect(getToken?.()).rejects.toMatchObject({ message: 'no credential' })
    line.token = () => Promise.reject(new Error('offline'))
    await expect(getToken?.()).rejects.toThrow('offline')
    expect((await new Line().connect({ token: 'plain' })).client.options).toMatchObject({ token: 'plain' })
  })
})
