// @vitest-environment happy-dom
import { act, createElement as h, memo, type ReactNode, StrictMode } from 'react'
import { createRoot, type Root } from 'react-dom/client'
import { renderToString } from 'react-dom/server'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { useLiveQuery } from '../src/query/react.js'
import { TidewireProvider } from '../src/react.js'
import { World } from './fake.js'
import { type Card, Table } from './table.js'

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

describe('useLiveQuery', () => {
  it('S45 follows under StrictMode with one subscription, whatever object the input is, and renders what changed alone', async () => {
    const world = new World()
    const table = new Table()
    table.rows = [{ id: 1, n: 'a' }, { id: 2, n: 'b' }]
    const rendered = vi.fn()
    const Row = memo(({ row }: { row: Card }) => {
      rendered(row.n)
      return h('li', null, row.n)
    })
    const Board = () => {
      const { kind, rows } = useLiveQuery<Card>('board', { list: '7' })
      return h('ul', { 'data-kind': kind }, rows.map((row) => h(Row, { key: row.id, row })))
    }
    const page = h(StrictMode, null, h(TidewireProvider, { client: world.client }, h(Board)))
    await render(page)
    expect(place.innerHTML).toBe('<ul data-kind="loading"></ul>')
    const socket = await act(() => world.accept())
    await act(async () => table.answer(socket))
    expect(place.innerHTML).toBe('<ul data-kind="live"><li>a</li><li>b</li></ul>')
    rendered.mockClear()
    await act(async () => socket.reply(table.commit(table.put(3, 'c', 0), table.put(2, 'd', 2))))
    expect(place.textContent).toBe('cad')
    expect(new Set(rendered.mock.calls.flat())).toEqual(new Set(['c', 'd']))
    await act(async () => void (await vi.advanceTimersByTimeAsync(1000)))
    expect(socket.of('subscribe')).toHaveLength(1)
    await render(null)
    await act(async () => void (await vi.advanceTimersByTimeAsync(1000)))
    expect(socket.of('unsubscribe')).toEqual([{ type: 'unsubscribe', sid: socket.of('subscribe')[0]?.['sid'] }])
  })

  it('S47 renders once for a commit that changed two lists', async () => {
    const world = new World()
    const tables = { a: new Table(), b: new Table() }
    const rendered: string[] = []
    const Both = () => {
      const lists = [useLiveQuery<Card>('a').rows, useLiveQuery<Card>('b').rows]
      const text = lists.map((rows) => rows.map(({ n }) => n).join()).join(' ')
      rendered.push(text)
      return h('p', null, text)
    }
    await render(h(TidewireProvider, { client: world.client }, h(Both)))
    const socket = await act(() => world.accept())
    for (const [name, table] of Object.entries(tables)) {
      table.qid = name
      table.put(1, '0', 0)
      const sid = socket.of('subscribe').find(({ query }) => query === name)?.['sid']
      await act(async () => {
        socket.reply({ type: 'subscribed', sid, qid: name })
        socket.reply(table.snapshot)
      })
    }
    expect(place.textContent).toBe('0 0')
    rendered.length = 0
    for (const frame of [...Object.values(tables).map((table) => ({ ...table.commit(table.put(1, '1', 0)), commit: 1 })), { type: 'settled', commit: 1 }]) await act(async () => socket.reply(frame))
    expect(place.textContent).toBe('1 1')
    expect(rendered).toEqual(['1 1'])
  })

  it('S46 renders on a server without opening anything', () => {
    const world = new World()
    const Board = () => useLiveQuery('board').kind
    expect(renderToString(h(TidewireProvider, { client: world.client }, h(Board)))).toBe('idle')
    expect(world.sockets).toEqual([])
  })
})
