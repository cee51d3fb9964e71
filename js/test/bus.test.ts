import { execFileSync, spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { buildSync } from 'esbuild'
import { afterEach, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import {
  type BroadcastBusOptions,
  type BusChannel,
  byteChannel,
  createBroadcastBus,
  decodeNativeEnvelope,
  encodeNativeEnvelope,
  type FrameMessage,
  PowerRealtimeHub,
  RealtimeHub,
  type RealtimeHubOptions,
  receiveAcked,
  type SubscribeOptions,
} from '../src/bus/index.js'

const hex = (text: string) => new Uint8Array(Buffer.from(text, 'hex'))
const toHex = (bytes: Uint8Array) => Buffer.from(bytes).toString('hex')
const vectors = <T>(name: string): T[] => JSON.parse(readFileSync(new URL(`../../spec/vectors/${name}.json`, import.meta.url), 'utf8')) as T[]
const ackOf = (payload: unknown, type = 'ack') => encodeNativeEnvelope({ type, payload: new TextEncoder().encode(typeof payload === 'string' ? payload : JSON.stringify(payload)) })

/** A channel that keeps what is posted; what others post comes from hear. */
class Tap implements BusChannel {
  readonly #target = new EventTarget() as EventTarget & BusChannel
  readonly posted: FrameMessage[] = []
  listening = 0
  unrefs = 0
  posting: (() => void) | undefined

  postMessage(message: unknown): void {
    this.posting?.()
    this.posted.push(message as FrameMessage)
  }
  addEventListener(...args: Parameters<BusChannel['addEventListener']>): void {
    this.listening++
    this.#target.addEventListener(...args)
  }
  removeEventListener(...args: Parameters<BusChannel['removeEventListener']>): void {
    this.listening--
    this.#target.removeEventListener(...args)
  }
  unref(): void {
    this.unrefs++
  }
  hear(data: unknown): void {
    this.#target.dispatchEvent(new MessageEvent('message', { data }))
  }
  ack(seq: number, receiverId: string): void {
    this.hear(ackOf({ seq, receiverId }))
  }
}

function setup(options: Partial<BroadcastBusOptions> = {}) {
  const channel = new Tap()
  const slow: string[] = []
  const bus = createBroadcastBus({ channel, onSlowConsumer: (id) => slow.push(id), ...options })
  onTestFinished(() => bus.dispose())
  /** What the bus says, and whom it reported since the last time. */
  const state = () => ({ pending: Object.fromEntries(bus.getPendingCounts()), slow: [...bus.getSlowConsumerIds()].sort(), told: slow.splice(0) })
  const send = (id: string) => bus.send({ id }, 'x')
  return { channel, bus, slow, state, send }
}

describe('the envelope', () => {
  const all = vectors<{ name: string; valid: boolean; type?: string; payload?: string; bytes: string }>('envelope')

  it.each(all)('B04 vectors: $name', ({ valid, type, payload, bytes }) => {
    const read = decodeNativeEnvelope(hex(bytes))
    expect(read && { type: read.type, payload: toHex(read.payload) }).toEqual(valid ? { type, payload: payload ?? '' } : undefined)
    if (read) expect(toHex(encodeNativeEnvelope(read))).toBe(bytes)
  })

  it('B04 decoding answers whatever comes', () => {
    for (const data of [undefined, null, 0, '', '\xf5TW', {}, [], [0xf5, 0x54, 0x57, 1, 1, 97, 0, 0, 0, 0], new ArrayBuffer(9), Symbol(), { _bc: true }]) expect(decodeNativeEnvelope(data)).toBeUndefined()
    const good = all.filter(({ valid }) => valid).map(({ bytes }) => hex(bytes))
    for (let i = 0; i < 20_000; i++) {
      const bytes = (good[i % good.length] as Uint8Array).slice(0, Math.random() < 0.5 ? undefined : Math.random() * 40)
      for (let n = Math.random() * 3; n > 0; n--) bytes[Math.floor(Math.random() * Math.min(bytes.length, 20))] = Math.random() * 256
      const read = decodeNativeEnvelope(bytes)
      if (read) expect(toHex(encodeNativeEnvelope(read))).toBe(toHex(bytes))
    }
  })

  it('B04 decodes a view in the middle of a buffer', () => {
    const bytes = ackOf('hello')
    const buffer = new Uint8Array(bytes.length + 20)
    buffer.set(bytes, 7)
    expect(decodeNativeEnvelope(buffer.subarray(7, 7 + bytes.length))).toEqual({ type: 'ack', payload: new TextEncoder().encode('hello') })
  })

  it('B04 bounds', () => {
    const payload = new Uint8Array(16 << 20)
    expect(decodeNativeEnvelope(encodeNativeEnvelope({ type: 'a', payload }))?.payload).toHaveLength(payload.length)
    for (const wrong of [
      { type: 'a', payload: new Uint8Array(payload.length + 1) },
      { type: '', payload: new Uint8Array() },
      { type: 'A', payload: new Uint8Array() },
      { type: 'a\n', payload: new Uint8Array() },
      { type: 'a'.repeat(33), payload: new Uint8Array() },
      { type: 'a', payload: 'text' as unknown as Uint8Array },
      { type: 'a', payload: undefined as unknown as Uint8Array },
    ]) expect(() => encodeNativeEnvelope(wrong)).toThrow(TypeError)
  })
})

describe('the bus', () => {
  beforeEach(() => void vi.useFakeTimers())
  afterEach(() => void vi.useRealTimers())

  it('B01 options', () => {
    const channel = new Tap()
    const make = (options: object) => () => createBroadcastBus(options as BroadcastBusOptions)
    expect(make({ channel, ackTimeout: 1 })).toThrow(/option ackTimeout$/)
    expect(make({ channel, ackTimeout: 1 })).toThrow(TypeError)
    expect(make({})).toThrow(/channel/)
    for (const ackTimeoutMs of [0, -1, Number.NaN, 2 ** 31, '']) expect(make({ channel, ackTimeoutMs })).toThrow(/ackTimeoutMs/)
    expect(channel.listening).toBe(0)
    const { send, state } = setup()
    send('a')
    vi.advanceTimersByTime(4999)
    expect(state()).toEqual({ pending: { a: 1 }, slow: [], told: [] })
    vi.advanceTimersByTime(1)
    expect(state()).toEqual({ pending: { a: 0 }, slow: ['a'], told: ['a'] })
  })

  it('B02 send posts one message, numbered', () => {
    const { bus, channel } = setup()
    for (const sub of [{}, { id: '' }, { id: 1 }, null, undefined]) expect(() => bus.send(sub as { id: string }, 'x')).toThrow(TypeError)
    const frame = new Uint8Array([1])
    expect(bus.send({ id: 'a' }, frame)).toBe(true)
    expect(bus.send({ id: 'b' }, 'text')).toBe(true)
    expect(channel.posted).toEqual([
      { _bc: true, seq: 1, receiverId: 'a', frame },
      { _bc: true, seq: 2, receiverId: 'b', frame: 'text' },
    ])
    bus.dispose()
    expect(bus.send({ id: 'a' }, frame)).toBe(false)
    expect(bus.broadcast(frame, [{ id: 'a' }])).toBe(false)
    expect(channel.posted).toHaveLength(2)
  })

  it('B02 a frame that the channel refuses is expected of nobody', () => {
    const { bus, channel, send, state } = setup()
    send('a')
    send('a')
    channel.posting = () => {
      throw new Error('gone')
    }
    expect(() => send('a')).toThrow('gone')
    expect(() => bus.broadcast('x', [{ id: 'a' }, { id: 'b' }])).toThrow('gone')
    expect(state()).toEqual({ pending: { a: 2, b: 0 }, slow: [], told: [] })
  })

  it('B03 broadcast is one post, whose size does not grow', () => {
    const { bus, channel, state } = setup()
    const subs = Array.from({ length: 10_000 }, (_, i) => ({ id: `r${i}` }))
    bus.broadcast('x', [...subs, { id: 'r0' }])
    expect(channel.posted).toEqual([{ _bc: true, seq: 1, receiverId: '', frame: 'x' }])
    expect(Object.values(state().pending)).toEqual(subs.map(() => 1))
    for (const { id } of subs.slice(1)) channel.ack(1, id)
    channel.ack(1, 'stranger')
    vi.advanceTimersByTime(5000)
    expect(state()).toMatchObject({ slow: ['r0'], told: ['r0'] })
    expect(() => bus.broadcast('x', [{ id: 'a' }, { id: '' }])).toThrow(TypeError)
    expect(bus.getPendingCounts().has('a')).toBe(false)
  })

  it('B05 only the matching acknowledgement counts', () => {
    const { channel, send, state } = setup()
    send('a')
    send('b')
    for (const [seq, id] of [[0, 'a'], [2, 'a'], [3, 'a'], [1, 'b'], [1, ''], [1, 'stranger']] as const) channel.ack(seq, id)
    const good = ackOf({ seq: 1, receiverId: 'a' })
    for (const data of [undefined, null, 'ack', { type: 'ack', seq: 1, receiverId: 'a' }, good.slice(0, -1), new Uint8Array([...good, 0]), ackOf({ seq: 1, receiverId: 'a' }, 'nack')]) channel.hear(data)
    for (const payload of ['', 'null', '[]', '1', '{}', '{"seq":"1","receiverId":"a"}', '{"seq":1}', '{"receiverId":"a"}', '{"seq":01,"receiverId":"a"}', '{"Seq":1,"receiverId":"a"}', '{"seq":1,"receiverId":["a"]}', '{"seq":1,"receiverId":"a"}x']) channel.hear(ackOf(payload))
    expect(state()).toEqual({ pending: { a: 1, b: 1 }, slow: [], told: [] })
    channel.ack(1, 'a')
    channel.ack(1, 'a')
    expect(state()).toEqual({ pending: { a: 0, b: 1 }, slow: [], told: [] })
    channel.hear(ackOf(' { "receiverId" : "\\u0062", "more": {}, "seq" : 2.0 } '))
    expect(state()).toEqual({ pending: { a: 0, b: 0 }, slow: [], told: [] })
    expect(vi.getTimerCount()).toBe(0)
  })

  it('B05 B06 a late acknowledgement counts nothing, and shows who has caught up', () => {
    const { channel, send, state, bus } = setup({ ackTimeoutMs: 1000 })
    send('a')
    send('a')
    vi.advanceTimersByTime(1000)
    expect(state()).toEqual({ pending: { a: 0 }, slow: ['a'], told: ['a'] })
    channel.ack(1, 'a') // not the newest
    expect(state()).toEqual({ pending: { a: 0 }, slow: ['a'], told: [] })
    send('a')
    channel.ack(2, 'a') // the newest of those, but another one is pending
    expect(state()).toEqual({ pending: { a: 1 }, slow: ['a'], told: [] })
    vi.advanceTimersByTime(1000)
    channel.ack(2, 'a')
    expect(state()).toEqual({ pending: { a: 0 }, slow: ['a'], told: [] })
    channel.ack(3, 'a') // has caught up
    expect(state()).toEqual({ pending: { a: 0 }, slow: [], told: [] })
    channel.ack(3, 'a')
    send('a')
    vi.advanceTimersByTime(1000)
    expect(state()).toEqual({ pending: { a: 0 }, slow: ['a'], told: ['a'] })
    send('a') // number 4 is lost, and number 5 acknowledged in time
    channel.ack(5, 'a')
    expect(state()).toEqual({ pending: { a: 0 }, slow: [], told: [] })
    bus.close({ id: 'a' })
    channel.ack(5, 'a')
    expect(state()).toEqual({ pending: {}, slow: [], told: [] })
  })

  it('B06 slowness is reported once, and again after recovery', () => {
    const { channel, send, state, bus } = setup({ ackTimeoutMs: 1000 })
    send('a')
    bus.broadcast('x', [{ id: 'a' }, { id: 'b' }])
    expect(state()).toEqual({ pending: { a: 2, b: 1 }, slow: [], told: [] })
    send('a')
    expect(state()).toEqual({ pending: { a: 3, b: 1 }, slow: ['a'], told: ['a'] })
    send('a')
    for (const seq of [1, 4, 2]) channel.ack(seq, 'a')
    expect(state()).toEqual({ pending: { a: 1, b: 1 }, slow: ['a'], told: [] })
    expect([bus.isSlow({ id: 'a' }), bus.isSlow({ id: 'b' }), bus.isSlow({ id: 'c' })]).toEqual([true, false, false])
    channel.ack(3, 'a')
    expect(state()).toEqual({ pending: { a: 0, b: 1 }, slow: [], told: [] })
    for (let i = 0; i < 3; i++) bus.broadcast('x', [{ id: 'b' }, { id: 'a' }])
    expect(state()).toEqual({ pending: { a: 3, b: 4 }, slow: ['a', 'b'], told: ['b', 'a'] })
    vi.advanceTimersByTime(1000)
    expect(state()).toEqual({ pending: { a: 0, b: 0 }, slow: ['a', 'b'], told: [] })
  })

  it('B06 an acknowledgement may come before the post returns', () => {
    const { channel, send, state } = setup()
    channel.posting = () => channel.ack(channel.posted.length + 1, 'a')
    for (let i = 0; i < 5; i++) send('a')
    expect(state()).toEqual({ pending: { a: 0 }, slow: [], told: [] })
  })

  it('B06 callbacks may call the bus, and throw', () => {
    const told: string[] = []
    const { bus, send } = setup({
      ackTimeoutMs: 1000,
      onSlowConsumer: (id) => {
        told.push(id)
        if (id === 'closes') for (const id of ['closes', 'closed']) bus.close({ id })
        if (id === 'sends') send('again')
        if (id === 'throws') throw new Error('application')
        if (id === 'disposes') bus.dispose()
      },
    })
    bus.broadcast('x', ['closes', 'closed', 'throws', 'sends'].map((id) => ({ id })))
    expect(() => vi.advanceTimersByTime(1000)).toThrow('application')
    vi.advanceTimersByTime(1)
    expect(told).toEqual(['closes', 'throws', 'sends'])
    expect(bus.getPendingCounts().get('again')).toBe(1)
    bus.broadcast('x', ['disposes', 'never'].map((id) => ({ id })))
    expect(vi.getTimerCount()).toBe(1)
    vi.advanceTimersByTime(1000)
    expect(told).toEqual(['closes', 'throws', 'sends', 'again', 'disposes'])
    const over = setup({ onSlowConsumer: (id) => (told.push(id), over.bus.dispose()) })
    for (let i = 0; i < 3; i++) over.bus.broadcast('x', ['over', 'never'].map((id) => ({ id })))
    expect(told.slice(5)).toEqual(['over'])
    expect(vi.getTimerCount()).toBe(0)
  })

  it('B07 100,000 closed receivers leave nothing in any map', () => {
    const made: { readonly size: number }[] = []
    const [RealMap, RealSet] = [Map, Set]
    vi.stubGlobal('Map', class<K, V> extends RealMap<K, V> {
      constructor() {
        super()
        made.push(this)
      }
    })
    vi.stubGlobal('Set', class<T> extends RealSet<T> {
      constructor(values?: Iterable<T>) {
        super(values)
        if (!values) made.push(this)
      }
    })
    onTestFinished(() => void vi.unstubAllGlobals())
    const { bus, channel, send } = setup()
    expect(made).toHaveLength(2)
    for (let i = 0; i < 100_000; i++) {
      const sub = { id: `r${i}` }
      if (i % 2) bus.send(sub, 'x')
      else bus.broadcast('x', [sub, { id: 'other' }])
      if (i % 3) channel.ack(i + 1, sub.id)
      bus.close(sub)
      bus.close(sub)
      bus.close({ id: 'other' })
      channel.posted.length = 0
    }
    expect(made.map(({ size }) => size).filter((size) => size > 0)).toEqual([])
    vi.unstubAllGlobals()
    expect(bus.getPendingCounts()).toEqual(new Map())
    expect(vi.getTimerCount()).toBe(0)
    bus.close({})
    bus.close(undefined as never)
    send('r1')
    expect(bus.getPendingCounts()).toEqual(new Map([['r1', 1]]))
  })

  it('B08 copies', () => {
    const { bus, send } = setup()
    for (let i = 0; i < 3; i++) send('a')
    bus.getPendingCounts().clear()
    bus.getSlowConsumerIds().clear()
    expect(bus.getPendingCounts()).toEqual(new Map([['a', 3]]))
    expect(bus.getSlowConsumerIds()).toEqual(new Set(['a']))
  })

  it('B09 dispose', () => {
    const { bus, channel, send, state } = setup()
    for (let i = 0; i < 3; i++) send('a')
    state()
    bus.dispose()
    bus.dispose()
    channel.ack(1, 'a')
    bus.close({ id: 'a' })
    vi.advanceTimersByTime(60_000)
    expect(state()).toEqual({ pending: {}, slow: [], told: [] })
    expect([channel.listening, channel.unrefs, vi.getTimerCount()]).toEqual([0, 1, 0])
  })

  it('B10 a timed-out frame is not sent again', () => {
    const { channel, send, state } = setup({ ackTimeoutMs: 1000 })
    for (let i = 0; i < 5; i++) {
      send('a')
      vi.advanceTimersByTime(300)
    }
    expect(vi.getTimerCount()).toBe(1)
    expect(state()).toEqual({ pending: { a: 3 }, slow: ['a'], told: ['a'] }) // sent at 600, 900 and 1200; now is 1500
    vi.advanceTimersByTime(3_600_000)
    expect(state()).toEqual({ pending: { a: 0 }, slow: ['a'], told: [] })
    expect(channel.posted).toHaveLength(5)
  })

  it('B12 one timer, and past 1,048,576 the older half counts as timed out', () => {
    const { bus, channel, slow } = setup()
    const post = vi.spyOn(channel, 'postMessage').mockImplementation(() => {})
    for (let i = 0; i < 1_000_000; i++) bus.send({ id: 'many' }, 0)
    expect([vi.getTimerCount(), bus.getPendingCounts().get('many'), slow.length]).toEqual([1, 1_000_000, 1])
    for (let i = 1_000_000; i <= 1 << 20; i++) bus.send({ id: 'many' }, 0)
    expect(bus.getPendingCounts().get('many')).toBe(1 << 19)
    bus.dispose()
    expect(post).toHaveBeenCalledTimes((1 << 20) + 1)
    expect(vi.getTimerCount()).toBe(0)
  })

  it('B05 B06 B07 against a model, at random', () => {
    for (let round = 0; round < 200; round++) {
      const { bus, channel, state } = setup({ ackTimeoutMs: 100 })
      const frames = new Map<number, Map<string, number>>()
      const receivers = new Map<string, { pending: number; slow: boolean; late: number }>()
      let told: string[] = []
      let seq = 0
      const random = (n: number) => Math.floor(Math.random() * n)
      const id = () => `r${random(6)}`
      const post = (ids: readonly string[]) => {
        frames.set(++seq, new Map(ids.map((id) => [id, performance.now() + 100])))
        for (const id of new Set(ids)) {
          const receiver = receivers.get(id) ?? { pending: 0, slow: false, late: 0 }
          receivers.set(id, receiver)
          if (++receiver.pending > 2 && !receiver.slow) {
            receiver.slow = true
            told.push(id)
          }
        }
      }
      const log: string[] = []
      for (let step = 0; step < 300; step++) {
        const op = random(10)
        if (op < 2) {
          const to = id()
          log.push(`send ${to}`)
          post([to])
          bus.send({ id: to }, 0)
        } else if (op < 4) {
          const to = Array.from({ length: random(5) }, id)
          log.push(`broadcast ${to}`)
          post(to)
          bus.broadcast(0, to.map((id) => ({ id })))
        } else if (op < 8) {
          const [which, who] = [seq - random(6), id()]
          log.push(`ack ${which} ${who}`)
          const receiver = receivers.get(who)
          if (receiver) {
            const matches = frames.get(which)?.delete(who)
            if (matches) receiver.pending--
            if ((matches || receiver.late === which) && !receiver.pending) receiver.slow = false
          }
          channel.ack(which, who)
        } else if (op < 9) {
          const ms = random(60)
          log.push(`wait ${ms}`)
          vi.advanceTimersByTime(ms)
          for (const [which, waiting] of frames) {
            for (const [who, due] of waiting) {
              const receiver = receivers.get(who)
              if (due > performance.now() || !receiver) continue
              waiting.delete(who)
              receiver.pending--
              receiver.late = which
              if (!receiver.slow) told.push(who)
              receiver.slow = true
            }
          }
        } else if (!random(3)) {
          const who = id()
          log.push(`close ${who}`)
          for (const waiting of frames.values()) waiting.delete(who)
          receivers.delete(who)
          bus.close({ id: who })
        }
        const slow = [...receivers].filter(([, { slow }]) => slow).map(([id]) => id).sort()
        const pending = Object.fromEntries([...receivers].map(([id, { pending }]) => [id, pending]))
        const got = state()
        expect({ ...got, told: got.told.sort() }, log.join('; ')).toEqual({ pending, slow, told: told.sort() })
        told = []
      }
      bus.dispose()
    }
  })
})

describe('the receiver', () => {
  it('B11 acknowledges when the handler has returned, or its promise has settled', async () => {
    const channel = new Tap()
    const acks = () => channel.posted.splice(0).map((bytes) => JSON.parse(new TextDecoder().decode(decodeNativeEnvelope(bytes)?.payload)) as unknown)
    let settle: (() => void) | undefined
    const seen: unknown[] = []
    const stop = receiveAcked<string>(channel, 'a', (frame) => {
      seen.push(frame)
      if (frame === 'slow') return new Promise<void>((resolve) => (settle = resolve))
      return
    })
    channel.hear({ _bc: true, seq: 1, receiverId: 'b', frame: 'not for a' })
    for (const data of [null, undefined, 'text', {}, ackOf({ seq: 1, receiverId: 'a' })]) channel.hear(data)
    channel.hear({ _bc: true, seq: 2, receiverId: 'a', frame: 'slow' })
    channel.hear({ _bc: true, seq: 3, receiverId: '', frame: 'for everyone' })
    await new Promise(setImmediate)
    expect(seen).toEqual(['slow', 'for everyone'])
    expect(acks()).toEqual([{ seq: 3, receiverId: 'a' }])
    settle?.()
    await new Promise(setImmediate)
    expect(acks()).toEqual([{ seq: 2, receiverId: 'a' }])
    channel.hear({ _bc: true, seq: 4, receiverId: 'a', frame: 'slow' })
    stop()
    settle?.()
    channel.hear({ _bc: true, seq: 5, receiverId: 'a', frame: 'after the end' })
    await new Promise(setImmediate)
    expect(acks()).toEqual([])
    expect(seen).toHaveLength(3)
    expect(channel.listening).toBe(0)
    expect(() => receiveAcked(channel, '', () => {})).toThrow(TypeError)
  })

  it('B11 an error of the handler is acknowledged, and stays unhandled', async () => {
    const channel = new Tap()
    const caught: unknown[] = []
    const others = process.listeners('unhandledRejection')
    process.removeAllListeners('unhandledRejection').on('unhandledRejection', (error) => caught.push(error))
    onTestFinished(() => {
      process.removeAllListeners('unhandledRejection')
      for (const other of others) process.on('unhandledRejection', other)
    })
    receiveAcked(channel, 'a', () => {
      throw new Error('application')
    })
    channel.hear({ _bc: true, seq: 1, receiverId: 'a', frame: 0 })
    await new Promise(setImmediate)
    expect(channel.posted).toHaveLength(1)
    expect(caught).toEqual([new Error('application')])
  })
})

describe('transports of bytes', () => {
  it.each(vectors<{ name: string; kind: string; seq: number; receiverId?: string; frame?: string; bytes: string }>('ackbus'))('B04 vectors: $name', ({ kind, seq, receiverId = '', frame = '', bytes }) => {
    const sent: string[] = []
    const channel = byteChannel((bytes) => sent.push(toHex(bytes)))
    const heard: unknown[] = []
    channel.addEventListener('message', ({ data }) => heard.push(data))
    channel.receive(hex(bytes))
    channel.receive(hex(bytes).buffer)
    if (kind === 'frame') {
      const message = { _bc: true, seq, receiverId, frame: hex(frame) }
      expect(heard).toEqual([message, message])
      channel.postMessage(message)
      channel.receive(hex(sent[0] as string))
      expect(heard[2]).toEqual(message)
      if (/^[ -~]*$/.test(receiverId)) expect(sent).toEqual([bytes])
    }
    // What is no frame is left to the bus, which takes only acknowledgements.
    const bus = createBroadcastBus({ channel })
    onTestFinished(() => bus.dispose())
    for (let i = 0; i < Math.min(seq ?? 1, 10); i++) bus.send({ id: receiverId || 'a' }, new Uint8Array())
    const before = bus.getPendingCounts().get(receiverId || 'a') as number
    channel.receive(hex(bytes))
    expect(bus.getPendingCounts().get(receiverId || 'a')).toBe(before - (kind === 'ack' ? 1 : 0))
  })

  it('B04 a bus and a receiver over a pipe of bytes', async () => {
    const near = byteChannel((bytes) => queueMicrotask(() => far.receive(bytes)))
    const far = byteChannel((bytes) => queueMicrotask(() => near.receive(bytes)))
    const bus = createBroadcastBus({ channel: near })
    const seen: unknown[] = []
    receiveAcked(far, 'a', (frame) => seen.push(frame))
    bus.send({ id: 'a' }, new Uint8Array([0, 1]))
    bus.broadcast(new Uint8Array([2]), [{ id: 'a' }])
    expect(() => bus.send({ id: 'a' }, 'text')).toThrow(TypeError)
    await new Promise(setImmediate)
    expect(seen).toEqual([new Uint8Array([0, 1]), new Uint8Array([2])])
    expect(bus.getPendingCounts()).toEqual(new Map([['a', 0]]))
    near.receive(new ArrayBuffer(3))
    bus.dispose()
  })
})

describe('the hub', () => {
  const hub = (options: RealtimeHubOptions = {}) => {
    const sent: unknown[] = []
    const closed: string[] = []
    const slow = new Set<string>()
    const made = new RealtimeHub({ send: ({ id }, frame) => sent.push([id, frame]), close: ({ id }, reason) => closed.push(`${id} ${reason}`), isSlow: ({ id }) => slow.has(id), ...options })
    return { hub: made, sent, closed, slow }
  }

  it('B13 options', () => {
    expect(PowerRealtimeHub).toBe(RealtimeHub)
    expect(() => new RealtimeHub({ transport: 1 } as RealtimeHubOptions)).toThrow(/option transport$/)
    const { hub: h } = hub()
    for (const [options, name] of [[{}, 'id'], [{ id: 'a', max: 1 }, 'option max'], [{ id: 'a', maxQueue: 0 }, 'maxQueue'], [{ id: 'a', slowConsumer: 'drop' }, 'slowConsumer']] as const)
      expect(() => h.subscribe('t', () => {}, options as SubscribeOptions)).toThrow(new TypeError(`tidewire: wrong ${name}`))
  })

  it('B13 publishes to the subscribers of a topic, by handler or by send', async () => {
    const local = new RealtimeHub()
    const got: unknown[] = []
    const stop = local.subscribe<number>('t', (value) => got.push(value), { id: 'a' })
    local.subscribe('u', (value) => got.push(['u', value]), { id: 'b' })
    local.publish('t', 1)
    local.publish('u', 2)
    local.publish('nobody', 3)
    stop()
    local.publish('t', 4)
    await local.flush()
    expect(got).toEqual([1, ['u', 2]])

    const { hub: h, sent, closed } = hub()
    const end = h.subscribe('t', () => got.push('never'), { id: 'a' })
    h.subscribe('t', () => got.push('never'), { id: 'b' })
    h.publish('t', 1)
    end()
    end()
    h.publish('t', 2)
    expect(sent).toEqual([['a', 1], ['b', 1], ['b', 2]])
    expect(closed).toEqual(['a unsubscribed'])
    expect(got).toHaveLength(2)
  })

  it('B13 batch: flush sends what waits as one frame, and waits for it', async () => {
    let settle: (() => void) | undefined
    const frames: unknown[] = []
    const { hub: h } = hub({ batch: true, send: (_, frame) => (frames.push(frame), new Promise<void>((resolve) => (settle = resolve))) })
    h.subscribe('t', () => {}, { id: 'a' })
    h.publish('t', 1)
    h.publish('t', 2)
    expect(frames).toEqual([])
    let flushed = false
    const done = h.flush().then(() => (flushed = true))
    await new Promise(setImmediate)
    expect([frames, flushed]).toEqual([[[1, 2]], false])
    settle?.()
    await done
  })

  it('B13 the policies treat a slow subscriber like a full queue', async () => {
    const warn = vi.spyOn(console, 'warn').mockImplementation(() => {})
    onTestFinished(() => warn.mockRestore())
    for (const [slowConsumer, while_, after] of [
      ['drop-newest', [], [5]],
      ['drop-oldest', [], [3, 4, 5]],
      ['disconnect', [], []],
      ['warn', [1, 2, 3, 4], [5]],
    ] as const) {
      const { hub: h, sent, closed, slow } = hub()
      h.subscribe('t', () => {}, { id: 'a', maxQueue: 2, slowConsumer })
      slow.add('a')
      for (let i = 1; i <= 4; i++) h.publish('t', i)
      await h.flush()
      expect(sent.splice(0), slowConsumer).toEqual(while_.map((i) => ['a', i]))
      slow.clear()
      h.publish('t', 5)
      expect(sent, slowConsumer).toEqual(after.map((i) => ['a', i]))
      expect(closed).toEqual(slowConsumer === 'disconnect' ? ['a slow-consumer'] : [])
    }
    expect(warn).toHaveBeenCalledTimes(4)
  })

  it('B13 the policies bound the queue of a batch', async () => {
    const warn = vi.spyOn(console, 'warn').mockImplementation(() => {})
    onTestFinished(() => warn.mockRestore())
    for (const [slowConsumer, frames] of [['drop-newest', [[1, 2]]], ['drop-oldest', [[2, 3]]], ['disconnect', []], ['warn', [[2, 3]]]] as const) {
      const { hub: h, sent, closed } = hub({ batch: true })
      h.subscribe('t', () => {}, { id: 'a', maxQueue: 2, slowConsumer })
      for (let i = 1; i <= 3; i++) h.publish('t', i)
      await h.flush()
      expect(sent, slowConsumer).toEqual(frames.map((frame) => ['a', frame]))
      expect(closed).toEqual(slowConsumer === 'disconnect' ? ['a slow-consumer'] : [])
    }
  })

  it('B13 nothing is sent after the end, not even what waits', () => {
    const sent: unknown[] = []
    const { hub: h, slow } = hub({ send: (_, frame) => (sent.push(frame), end()) })
    const end = h.subscribe('t', () => {}, { id: 'a', slowConsumer: 'drop-oldest' })
    slow.add('a')
    for (let i = 1; i <= 3; i++) h.publish('t', i)
    slow.clear()
    h.publish('t', 4)
    expect(sent).toEqual([1])
  })

  it('B13 on a bus: what waits goes out when the receiver has caught up', async () => {
    const { bus, channel } = setup()
    const h = new RealtimeHub({ send: bus.send, close: bus.close, isSlow: bus.isSlow })
    h.subscribe('t', () => {}, { id: 'a', maxQueue: 2, slowConsumer: 'drop-oldest' })
    const end = h.subscribe('t', () => {}, { id: 'b', slowConsumer: 'warn' })
    end()
    for (let i = 1; i <= 6; i++) h.publish('t', i)
    const frames = () => channel.posted.map(({ frame }) => frame)
    expect(frames()).toEqual([1, 2, 3])
    for (const seq of [1, 2, 3]) channel.ack(seq, 'a')
    await h.flush()
    expect(frames()).toEqual([1, 2, 3, 5, 6])
    expect([...bus.getPendingCounts()]).toEqual([['a', 2]])
  })
})

describe('in Node', () => {
  it('B09 B11 real channels, and the process ends after dispose', async () => {
    const [near, far] = [new BroadcastChannel('bus-test'), new BroadcastChannel('bus-test')]
    onTestFinished(() => [near, far].forEach((channel) => channel.close()))
    const bus = createBroadcastBus({ channel: near })
    const seen: unknown[] = []
    const stop = receiveAcked(far, 'a', (frame) => seen.push(frame))
    bus.send({ id: 'a' }, { text: 'hello' })
    bus.broadcast(new Uint8Array([1]), [{ id: 'a' }])
    await vi.waitFor(() => expect(bus.getPendingCounts().get('a')).toBe(0))
    expect(seen).toEqual([{ text: 'hello' }, new Uint8Array([1])])
    stop()
    bus.dispose()
  })

  // The example of the documentation of the library that the bus takes the place of; only its import is another.
  const example = `
    const channel = new BroadcastChannel('room');
    const bus = createBroadcastBus({
      channel,
      ackTimeoutMs: 2000,
      onSlowConsumer: (id) => console.warn('slow', id),
    });

    const hub = new PowerRealtimeHub({
      send: (sub, frame) => bus.send(sub, frame),
      close: (sub, reason) => bus.close(sub),
      batch: false,
    });

    hub.subscribe('chat', (msg) => render(msg), { id: 'client-1', maxQueue: 32 });

    channel.onmessage = (event) => {
      const data = event.data;
      if (data && data._bc) {
        render(data.frame);
        // Ack back.
        channel.postMessage(
          encodeNativeEnvelope({
            type: 'ack',
            payload: new TextEncoder().encode(
              JSON.stringify({ seq: data.seq, receiverId: data.receiverId })
            ),
          })
        );
      }
    };

    hub.publish('chat', { text: 'hello' });
    await hub.flush();
  `

  it('B13 the example runs in two threads that answer each other, and the process ends', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'tidewire-bus-'))
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
    const modules = join(folder, 'node_modules', 'tidewire')
    mkdirSync(modules, { recursive: true })
    writeFileSync(join(modules, 'package.json'), '{"type":"module","exports":{"./bus":"./bus.js"}}')
    buildSync({ entryPoints: [fileURLToPath(new URL('../src/bus/index.ts', import.meta.url))], bundle: true, format: 'esm', outfile: join(modules, 'bus.js') })
    writeFileSync(
      join(folder, 'main.mjs'),
      `import { PowerRealtimeHub, createBroadcastBus, encodeNativeEnvelope } from 'tidewire/bus'
      import { isMainThread, Worker } from 'node:worker_threads'
      const here = isMainThread ? 'main' : 'worker'
      const render = (msg) => console.log(here, 'renders', JSON.stringify(msg))
      const other = isMainThread && new Worker(new URL(import.meta.url))
      // The main thread publishes when the worker listens.
      if (other) await new Promise((resolve) => other.once('message', resolve))
      else queueMicrotask(() => import('node:worker_threads').then(({ parentPort }) => parentPort.postMessage('ready')))
      ${example}
      const end = setInterval(() => {
        if (bus.getPendingCounts().get('client-1')) return
        console.log(here, 'has its ack')
        clearInterval(end)
        // The other one may still wait for an answer.
        setTimeout(() => bus.dispose(), 200)
      }, 5)
      if (!isMainThread) setTimeout(() => hub.publish('chat', { text: 'hello again' }), 50)
      `,
    )
    const child = spawn(process.execPath, ['main.mjs'], { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'], timeout: 15_000 })
    let output = ''
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data: Buffer) => (output += data.toString()))
    const code = await new Promise((resolve) => child.once('exit', (code, signal) => resolve(code ?? signal)))
    expect(code, output).toBe(0)
    expect(output).toContain('worker renders {"text":"hello"}')
    expect(output).toContain('main renders {"text":"hello again"}')
    expect(output).toContain('main has its ack')
  }, 20_000)

  it('B09 nothing is left that keeps the process alive', () => {
    const folder = mkdtempSync(join(tmpdir(), 'tidewire-bus-'))
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }))
    const outfile = join(folder, 'bus.mjs')
    buildSync({ entryPoints: [fileURLToPath(new URL('../src/bus/index.ts', import.meta.url))], bundle: true, format: 'esm', outfile })
    const script = `import { createBroadcastBus, receiveAcked } from ${JSON.stringify(outfile)}
      const bus = createBroadcastBus({ channel: new BroadcastChannel('a') })
      const stop = receiveAcked(new BroadcastChannel('a'), 'b', () => {})
      bus.send({ id: 'a' }, 1)
      bus.dispose()
      stop()`
    execFileSync(process.execPath, ['--input-type=module', '-e', script], { timeout: 4000 })
  })
})
