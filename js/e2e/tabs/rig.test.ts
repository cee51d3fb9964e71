import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type DemoServer, until } from '../server.js'
import { Chromium } from './chromium.js'
import { page, Site } from './site.js'
import { startServer } from './world.js'

// What the suites of this folder rest on: were the rig to keep tabs awake or out of the cache, they would pass and show nothing.

const SCRIPT = `
window.events = []
for (const name of ['pagehide', 'pageshow']) addEventListener(name, (event) => events.push(name + ' ' + event.persisted))
for (const name of ['freeze', 'resume', 'visibilitychange']) document.addEventListener(name, () => events.push(name))
window.dial = () => new Promise((resolve) => {
  const socket = new WebSocket('/v1/socket', 'tidewire.1')
  socket.onmessage = ({ data }) => JSON.parse(data).type === 'subscribed' && resolve()
  socket.onopen = () => {
    socket.send(JSON.stringify({ type: 'hello', protocol: 1 }))
    socket.send(JSON.stringify({ type: 'subscribe', sid: '1', channel: 'plain.x' }))
  }
})
window.hold = () => new Promise((resolve) => void navigator.locks.request('rig', () => new Promise((release) => (window.release = release, resolve()))))
`

let browser: Chromium
let server: DemoServer
beforeAll(async () => {
  ;[browser, server] = await Promise.all([Chromium.launch(), startServer()])
})
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
})

interface Rig {
  readonly events: string[]
  dial(): Promise<void>
  hold(): Promise<void>
  release(): void
}
declare const window: Rig & Window

describe('the rig', () => {
  it('shows, hides, throttles, freezes and resumes tabs, and the page is told', async () => {
    const site = await Site.serve(server.url, [['/', page('/a.js')], ['/a.js', SCRIPT]])
    const a = await browser.tab(site.url)
    expect(await a.eval(() => document.visibilityState)).toBe('visible')
    const b = await browser.tab(site.url)
    await until('a to be hidden', () => a.eval(() => document.visibilityState === 'hidden'))
    const gap = await a.eval(
      () =>
        new Promise<number>((resolve) => {
          const start = performance.now()
          let count = 0
          const timer = setInterval(() => ++count === 3 && (clearInterval(timer), resolve(performance.now() - start)), 100)
        }),
    )
    expect(gap).toBeGreaterThan(1000)
    await a.show()
    await until('b to be hidden', () => b.eval(() => document.visibilityState === 'hidden'))
    await b.freeze()
    await until('freeze', () => b.eval(() => window.events.includes('freeze')))
    await b.resume()
    await until('resume', () => b.eval(() => window.events.includes('resume')))
    a.close()
    b.close()
    site.stop()
  })

  it('restores a page from the back/forward cache, its socket gone', async () => {
    const site = await Site.serve(server.url, [['/', page('/a.js')], ['/a.js', SCRIPT]])
    const a = await browser.tab(site.url)
    await a.eval(() => window.dial())
    expect(site.witness.live('plain.x')).toBe(1)
    await a.mark()
    await a.leave()
    // The socket of a page that is kept stays open, and the server goes on sending into it, unless the page closes it.
    expect(site.witness.live('plain.x')).toBe(1)
    expect(await a.back()).toBe(true)
    await site.witness.until('the end of the subscription', () => site.witness.live('plain.x') === 0)
    expect(await a.eval(() => window.events.filter((event) => event.startsWith('page')))).toEqual(['pageshow false', 'pagehide true', 'pageshow true'])
    a.close()
    site.stop()
  })

  it.each(['close', 'crash', 'hang'] as const)('kills a tab by %s: its lock and its socket are gone', async (how) => {
    const site = await Site.serve(server.url, [['/', page('/a.js')], ['/a.js', SCRIPT]])
    const a = await browser.tab(site.url)
    await a.eval(() => window.dial())
    await a.eval(() => window.hold())
    const b = await browser.tab(site.url)
    let free: number | undefined
    let start = site.witness.now()
    void b.eval(() => window.hold()).then(() => (free = site.witness.now()))
    if (how === 'hang') {
      a.hang()
      const pid = await browser.busiest()
      expect(site.witness.live('plain.x')).toBe(1)
      start = site.witness.now()
      process.kill(pid, 'SIGKILL')
    } else a[how]()
    await site.witness.until('the end of the subscription', () => site.witness.live('plain.x') === 0)
    await until('the lock', () => free !== undefined)
    expect((free ?? 0) - start).toBeLessThan(1000)
    b.close()
    site.stop()
  })
})
