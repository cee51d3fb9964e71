import { readFileSync } from 'node:fs'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { settle, World } from './fake.js'

beforeEach(() => void vi.useFakeTimers())
afterEach(() => void vi.useRealTimers())

const file = new URL('../../spec/vectors/client-messages.json', import.meta.url)
const vectors = JSON.parse(readFileSync(file, 'utf8')) as readonly { readonly name: string; readonly direction: 'client'; readonly message: { readonly client?: string } }[]

// The server reads the same file in its tests: what this package sends is what the server takes.
it('sends exactly the messages of the shared vectors', async () => {
  let n = 0
  const world = new World({ build: 'a1b2c3', token: async () => `token-${++n}`, heartbeatMs: 60_000 })
  const plain = world.client.channel('room.1')
  const joined = world.client.channel('room.2')
  const watched = world.client.channel('room.3')
  plain.on('message', () => {})
  const presence = joined.presence({ data: { name: 'Alice' } })
  const roster = watched.presence({ observe: true })
  world.client.channel('room.4').presence()
  const socket = await world.connect({ expiresInMs: 10_000 })
  socket.answerSubscribes()
  for (const channel of ['room.2', 'room.3', 'room.4']) socket.reply({ type: 'presence', channel, version: 1, total: 0, snapshot: [] })
  void plain.publish({ text: 'hi' }, { id: 'p1' }).catch(() => {})
  await settle()
  void plain.publish('€', { id: 'p2', key: 'k', echo: false }).catch(() => {})
  await settle()
  presence.update({ name: 'Bob' })
  presence.setState({ x: 1 })
  await vi.advanceTimersByTimeAsync(33)
  presence.setState(null)
  socket.reply({ type: 'presence', channel: 'room.2', version: 3, total: 0, leaves: [] })
  roster.close()
  await vi.advanceTimersByTimeAsync(9000)
  world.client.close()

  // The secret is random: its form counts.
  const sent = socket.sent.map((frame) => (frame.type === 'hello' ? { ...frame, client: vectors[0]?.message.client } : frame))
  expect(sent).toEqual(vectors.map(({ message }) => message))
})
