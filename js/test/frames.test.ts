import { readFileSync } from 'node:fs'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { decode, type ServerFrame } from '../src/frames.js'
import { World } from './fake.js'

const file = new URL('../../spec/vectors/messages.json', import.meta.url)

interface Vector {
  readonly name: string
  readonly direction: 'client' | 'server'
  readonly message: unknown
}

// What the code relies on in each message. Checked here and not at run time: the server is trusted.
const required: { readonly [T in ServerFrame['type']]: Readonly<Record<string, string>> } = {
  welcome: { session: 'string', connection: 'string', limits: 'object' },
  message: { channel: 'string', id: 'string' },
  presence: { channel: 'string', version: 'number', total: 'number' },
  state: { channel: 'string', member: 'string', session: 'string' },
  refused: { code: 'string' },
  unsubscribed: { sid: 'string' },
  authenticated: {},
  subscribed: { sid: 'string' },
  snapshot: { qid: 'string', version: 'number', epoch: 'string', key: 'object', rows: 'object', sum: 'string' },
  patch: { qid: 'string', version: 'number', ops: 'object', sum: 'string' },
  settled: { commit: 'number' },
  published: { id: 'string' },
  skipped: { channel: 'string', count: 'number' },
  reconnect: { afterMs: 'number' },
  'update-available': { build: 'string' },
}

function serverTexts(): Map<string, string> {
  const vectors = JSON.parse(readFileSync(file, 'utf8')) as Vector[]
  const server = vectors.filter(({ direction }) => direction === 'server')
  return new Map(server.map(({ name, message }) => [name, JSON.stringify(message)]))
}

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

describe('frames', () => {
  it('decodes every server message of the shared vectors', () => {
    const texts = serverTexts()
    expect(texts.size).toBeGreaterThan(0)
    for (const [name, text] of texts) {
      const frame = decode(text)
      expect(frame, name).toEqual(JSON.parse(text))
      if (!frame) continue
      expect(Object.keys(required), name).toContain(frame.type)
      for (const [member, kind] of Object.entries(required[frame.type])) {
        expect(typeof (frame as unknown as Record<string, unknown>)[member], `${name}: ${member}`).toBe(kind)
      }
    }
  })

  it('takes every server message of the shared vectors without an error', async () => {
    for (const [name, text] of serverTexts()) {
      const world = new World()
      const socket = await world.connect()
      const { channel } = JSON.parse(text) as { channel?: string }
      if (channel !== undefined) world.client.channel(channel).presence()
      await vi.advanceTimersByTimeAsync(0)
      socket.answerSubscribes()
      expect(() => socket.onmessage?.({ data: text }), name).not.toThrow()
      world.client.close()
    }
  })

  it('leaves out what is not a frame', () => {
    for (const text of ['', 'x', 'null', '1', '[]', '{}', '{"type":1}', new ArrayBuffer(1), undefined]) {
      expect(decode(text)).toBeUndefined()
    }
  })

  it('messages and members of a later version change nothing', async () => {
    const world = new World()
    world.client.channel('room.1').on('message', () => {})
    const socket = await world.connect()
    socket.answerSubscribes()
    const { state } = world
    for (const type of ['later', 'toString', 'constructor']) {
      socket.reply({ type })
      socket.reply({ type, channel: 'room.1' })
    }
    socket.reply({ type: 'subscribed', sid: '1', channel: 'room.1', later: true })
    expect(world.state).toBe(state)
    expect(world.client.channel('room.1').status.getSnapshot()).toEqual({ kind: 'live' })
  })
})
