// @vitest-environment happy-dom
import { act, createElement as h, type ReactNode, StrictMode, useState } from 'react'
import { createRoot, type Root } from 'react-dom/client'
import { renderToString } from 'react-dom/server'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { Channel } from '../src/index.js'
import { TidewireProvider, useChannel, useConnection, usePresence } from '../src/react.js'
import { snapshot, World } from './fake.js'

Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true })

let root: Root
let place: HTMLElement
let errors: ReturnType<typeof vi.spyOn>

beforeEach(() => {
  vi.useFakeTimers()
  place = document.createElement('div')
  root = createRoot(place)
  errors = vi.spyOn(console, 'error')
})
afterEach(async () => {
  await act(async () => root.unmount())
  expect(errors).not.toHaveBeenCalled()
  errors.mockRestore()
  vi.useRealTimers()
})

async function render(node: ReactNode): Promise<void> {
  await act(async () => {
    root.render(node)
    await vi.advanceTimersByTimeAsync(0)
  })
}

async function pass(ms: number): Promise<void> {
  await act(async () => {
    await vi.advanceTimersByTimeAsync(ms)
  })
}

describe('react', () => {
  it('useConnection follows the connection', async () => {
    const world = new World()
    const Show = () => useConnection().kind
    await render(h(TidewireProvider, { client: world.client }, h(Show)))
    expect(place.textContent).toBe('idle')
    await act(async () => void (await world.connect()))
    expect(place.textContent).toBe('connected')
  })

  it('useConnection without a provider says what is missing', () => {
    const Show = () => useConnection().kind
    expect(() => renderToString(h(Show))).toThrow('TidewireProvider')
  })

  it('P34 StrictMode: one subscription, one delivery, no error; unmounting ends it', async () => {
    const world = new World()
    const channel = world.client.channel<{ message: number }>('room.1')
    const got = vi.fn()
    const Room = ({ tag }: { tag: string }) => useChannel(channel, { onMessage: ({ data }) => got(tag, data) }).kind
    await render(h(StrictMode, null, h(Room, { tag: 'a' })))
    const socket = await act(() => world.accept())
    expect(place.textContent).toBe('subscribing')
    await act(async () => socket.answerSubscribes())
    await pass(1000)
    expect(place.textContent).toBe('live')
    expect(socket.of('subscribe')).toHaveLength(1)
    expect(socket.of('unsubscribe')).toEqual([])
    await render(h(StrictMode, null, h(Room, { tag: 'b' })))
    socket.reply({ type: 'message', channel: 'room.1', id: 'm', data: 5 })
    expect(got.mock.calls).toEqual([['b', 5]])
    await render(null)
    await pass(1000)
    expect(socket.of('subscribe')).toHaveLength(1)
    expect(socket.of('unsubscribe')).toHaveLength(1)
  })

  it('useChannel begins with the last messages, once under StrictMode, and tells what was lost', async () => {
    const world = new World()
    const channel = world.client.channel<{ message: number }>('log.1')
    const told: unknown[] = []
    const Room = ({ tag }: { tag: string }) =>
      useChannel(channel, { last: 2, onMessage: ({ data }) => void told.push(`${tag}${data}`), onLost: ({ count }) => void told.push(`${tag} lost ${count}`) }).kind
    await render(h(StrictMode, null, h(Room, { tag: 'a' })))
    const socket = await act(() => world.accept())
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: 'log.1', since: { last: 2 } }])
    await act(async () => socket.reply({ type: 'subscribed', sid: '1', channel: 'log.1', offset: 7, epoch: 'a' }))
    for (const offset of [8, 9]) socket.reply({ type: 'message', channel: 'log.1', id: 'm', data: offset, offset })
    await render(h(StrictMode, null, h(Room, { tag: 'b' })))
    socket.reply({ type: 'subscribed', sid: '1', channel: 'log.1', offset: 12, epoch: 'a', recovered: false })
    expect(told).toEqual(['a8', 'a9', 'b lost 3'])
    // Another view of the same channel, within the linger, begins with them too.
    await render(h(StrictMode, null, h(Room, { tag: 'c', key: 2 })))
    expect(socket.of('subscribe').at(-1)).toEqual({ type: 'subscribe', sid: '1', channel: 'log.1', since: { last: 2 } })
    expect(socket.of('unsubscribe')).toEqual([])
  })

  it('B14 useChannel acknowledges when the promise of its callback has settled', async () => {
    const world = new World()
    const channel = world.client.channel('log.1')
    let finish = () => {}
    const Room = () => useChannel(channel, { ack: true, onMessage: () => new Promise<void>((resolve) => (finish = resolve)) }).kind
    await render(h(Room))
    const socket = await act(() => world.accept())
    expect(socket.of('subscribe')).toEqual([{ type: 'subscribe', sid: '1', channel: 'log.1', ack: true }])
    await act(async () => socket.reply({ type: 'subscribed', sid: '1', channel: 'log.1', offset: 7, epoch: 'a' }))
    socket.reply({ type: 'message', channel: 'log.1', id: 'm', data: 8, offset: 8 })
    await pass(1000)
    expect(socket.of('ack')).toEqual([])
    finish()
    await pass(100)
    expect(socket.of('ack')).toEqual([{ type: 'ack', channel: 'log.1', offset: 8 }])
  })

  it('P34 a view replaced by another of the same channel keeps the subscription', async () => {
    const world = new World()
    const Room = () => useChannel(world.client.channel('room.1')).kind
    await render(h(Room, { key: 1 }))
    const socket = await act(() => world.accept())
    await act(async () => socket.answerSubscribes())
    for (let key = 2; key < 6; key++) await render(h(Room, { key }))
    await pass(1000)
    expect(socket.of('subscribe')).toHaveLength(1)
    expect(socket.of('unsubscribe')).toEqual([])
  })

  it('another channel in the next render moves the subscription', async () => {
    const world = new World()
    const Room = ({ n }: { n: number }) => useChannel(world.client.channel(`room.${n}`)).kind
    await render(h(Room, { n: 1 }))
    const socket = await act(() => world.accept())
    await render(h(Room, { n: 2 }))
    await pass(1000)
    expect(socket.sent.slice(1)).toEqual([
      { type: 'subscribe', sid: '1', channel: 'room.1' },
      { type: 'subscribe', sid: '2', channel: 'room.2' },
      { type: 'unsubscribe', sid: '1' },
    ])
  })

  it('S11 P34 usePresence joins once under StrictMode, together with useChannel, and shows the roster', async () => {
    const world = new World()
    const channel: Channel<{ presence: { name: string }; state: number }> = world.client.channel('room.1')
    let setState: (state: number | null) => void = () => {}
    const Room = ({ name }: { name: string }) => {
      useChannel(channel)
      const presence = usePresence(channel, { data: { name } })
      setState = presence.setState
      return presence.roster.members.map(({ id }) => id).join()
    }
    await render(h(StrictMode, null, h(Room, { name: 'A' })))
    const socket = await act(() => world.accept())
    await act(async () => {
      socket.answerSubscribes()
      socket.reply(snapshot('room.1', 1, ['a', 'b']))
    })
    await pass(1000)
    expect(place.textContent).toBe('a,b')
    expect(socket.sent.slice(1)).toEqual([{ type: 'subscribe', sid: '1', channel: 'room.1', presence: { data: { name: 'A' } } }])
    // The same data in a new object is not sent; other data is.
    await render(h(StrictMode, null, h(Room, { name: 'A' })))
    expect(socket.of('presence')).toEqual([])
    await render(h(StrictMode, null, h(Room, { name: 'B' })))
    expect(socket.of('presence')).toEqual([{ type: 'presence', channel: 'room.1', data: { name: 'B' } }])
    await act(async () => setState(5))
    expect(socket.of('state')).toEqual([{ type: 'state', channel: 'room.1', data: 5 }])
    await render(null)
    setState(6)
    await pass(1000)
    expect(socket.of('unsubscribe')).toHaveLength(1)
    expect(socket.of('state')).toHaveLength(1)
  })

  it('usePresence can observe, and change from one to the other', async () => {
    const world = new World()
    const Room = () => {
      const [observe, setObserve] = useState(true)
      const { roster } = usePresence(world.client.channel('room.1'), { observe })
      return h('button', { onClick: () => setObserve(false) }, roster.kind)
    }
    await render(h(Room))
    const socket = await act(() => world.accept())
    await act(async () => place.querySelector('button')?.click())
    await pass(1000)
    expect(socket.of('subscribe').map(({ presence }) => presence)).toEqual([{ observe: true }, {}])
  })

  it('renders on a server without opening anything', () => {
    const world = new World()
    const Room = () => `${useChannel(world.client.channel('room.1')).kind} ${usePresence(world.client.channel('room.1')).roster.kind} ${useConnection().kind}`
    expect(renderToString(h(TidewireProvider, { client: world.client }, h(Room)))).toBe('idle unknown idle')
    expect(world.sockets).toEqual([])
  })
})
