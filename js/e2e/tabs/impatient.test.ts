import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { Tabs } from '../fixtures/tabs.js'
import { type DemoServer, until } from '../server.js'
import { Chromium, Tab } from './chromium.js'
import { LONG, type Rung, seen, startServer, World } from './world.js'

declare const window: { readonly tabs: Tabs } & Window

let browser: Chromium
let server: DemoServer
beforeAll(async () => {
  ;[browser, server] = await Promise.all([Chromium.launch(), startServer()])
})
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
})

/** The same numbers for the same seed. */
function random(seed: number): () => number {
  let state = seed
  return () => {
    state = (state * 1664525 + 1013904223) >>> 0
    return state / 2 ** 32
  }
}

describe('an impatient user', () => {
  it.each<Rung>(['shared', 'coordinated'])(
    'X12 X23 X27: %s: five tabs, opened, closed, reloaded, duplicated, left and returned to, hidden, killed: nothing is lost, doubled or wedged',
    async (rung) => {
      const seed = Math.floor(Math.random() * 2 ** 32)
      const next = random(seed)
      const world = await World.open(browser, server, rung)
      const topics = ['log.hasty.1', 'log.hasty.2']
      const streams = topics.map((topic) => world.stream(topic, 50))
      const log: string[] = []
      const away = new Map<Tab, true>()
      const check = async (tab: Tab) => {
        for (const topic of topics) expect((await seen(tab, topic)).wrong, `seed ${seed}: ${log.join(', ')}`).toEqual([])
      }
      const pick = () => [...world.tabs].filter((tab) => !away.has(tab))[Math.floor(next() * (world.tabs.size - away.size))]
      const open = async () => void (await world.tab({ topics }))
      const acts: Record<string, (tab: Tab) => Promise<unknown>> = {
        open: async () => world.tabs.size < 5 && open(),
        close: async (tab) => {
          await check(tab)
          world.forget(tab)
          tab.close()
        },
        reload: (tab) => tab.reload(),
        // Again before the first has loaded.
        'reload twice': async (tab) => {
          void tab.reload().catch(() => {})
          await sleep(next() * 30)
          await tab.reload()
        },
        show: (tab) => tab.show(),
        leave: async (tab) => {
          away.set(tab, true)
          await tab.leave()
        },
        back: async () => {
          const [tab] = away.keys()
          if (!tab) return
          away.delete(tab)
          await tab.back()
        },
        duplicate: async (tab) => {
          if (world.tabs.size >= 5) return
          const known = new Set((await browser.targets('page')).map(({ targetId }) => targetId))
          await tab.eval(() => void window.open(location.href))
          await until('the child', async () => {
            const target = (await browser.targets('page')).find(({ targetId, url }) => !known.has(targetId) && url.startsWith(world.site.url))
            if (target) world.tabs.add(await Tab.attach(browser, target.targetId))
            return !!target
          })
        },
        crash: async (tab) => {
          world.forget(tab)
          tab.crash()
        },
        'drop and take': (tab) =>
          tab.eval((topic) => {
            window.tabs?.drop(topic)
            window.tabs?.take(topic)
          }, topics[0] ?? ''),
      }
      // He opens more than he closes.
      const names = [...Object.keys(acts), 'open', 'open', 'open', 'duplicate', 'back', 'reload', 'show']
      for (let i = 0; i < 3; i++) await open()
      for (const end = performance.now() + (LONG ? 120_000 : 10_000); performance.now() < end; ) {
        for (const each of world.tabs) {
          if (!each.crashed) continue
          world.forget(each)
          away.delete(each)
        }
        let tab = pick()
        if (!tab) {
          await open()
          tab = pick()
        }
        const name = names[Math.floor(next() * names.length)] ?? 'open'
        log.push(name)
        await Promise.race([
          // A tab that has gone on, or crashed with one that it opened, is no trouble.
          acts[name]?.(tab as Tab)?.catch((error: Error) => {
            if (error.name === 'AssertionError') throw error
            log.push(`(${error.message})`)
          }),
          sleep(20_000).then(() => Promise.reject(new Error(`seed ${seed}: wedged: ${log.join(', ')}`))),
        ])
        await sleep(next() * 300)
      }
      for (const tab of world.tabs) {
        if (tab.crashed) world.forget(tab)
        else if (away.has(tab)) await tab.back()
      }
      console.log(`seed ${seed}: ${log.join(', ')}`)
      const lasts = await Promise.all(streams.map((stream) => stream.stop()))
      if (world.tabs.size === 0) await open()
      for (const tab of world.tabs) {
        await world.ready(tab)
        await check(tab)
      }
      // One more, so that those that came late have had one.
      for (const [i, topic] of topics.entries()) {
        await world.publish([{ channel: topic, data: (lasts[i] ?? 0) + 1 }])
        for (const tab of world.tabs) await world.complete(tab, topic, (lasts[i] ?? 0) + 1)
        expect(world.witness.live(topic)).toBe(1)
      }
    },
    LONG ? 240_000 : 90_000,
  )
})
