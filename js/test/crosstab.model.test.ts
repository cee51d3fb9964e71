import { describe, expect, it } from 'vitest'
import { CrossTabDataBus } from '../src/crosstab/index.js'
import { createTestCluster, type TestTab } from '../src/testing/index.js'
import { everyDelay, everySequence, explore, type Explored, FORGETTING, random, UNGRACEFUL } from './model.explore.js'
import { play, type Run } from './model.run.js'
import { busSubject } from './model.subject.js'

/*
 * Tabs with a bus each, in the browser of tidewire/testing, against the promises of docs/design/crosstab.md. model.run.ts says what a step is and what is checked; a failure prints the fewest steps that still break
 * something, as TIDEWIRE_TEST_RUN, which plays them again. TIDEWIRE_TEST_SEED is the first seed of the runs of chance, TIDEWIRE_TEST_LONG=1 searches for minutes.
 */
const { TIDEWIRE_TEST_SEED: seed = '1', TIDEWIRE_TEST_LONG: long, TIDEWIRE_TEST_RUN: again } = process.env
const TIMEOUT = long ? 3_600_000 : 120_000
const CHANCE_MS = long ? 60_000 : 1500

const holds = (explored: Explored) => {
  if (long) console.log(`${explored.runs} runs in ${explored.ms} ms`)
  expect(explored.broken).toBeUndefined()
}

if (again) {
  it('plays a run again', async () => {
    expect(await play({ ...(JSON.parse(again) as Run), log: console.log }, busSubject)).toBeUndefined()
  })
}

/** Two tabs, the first being the owner, or not yet. */
const OWNED = ['open 0', 'subscribe 0 a', 'settle', 'open 1', 'subscribe 1 a', 'settle', 'publish a']
const STRANGERS = ['open 0', 'open 1']
const LIFE = [0, 1].flatMap((tab) => [`subscribe ${tab} a`, `unsubscribe ${tab} a`, `crash ${tab}`, `hide ${tab}`, `show ${tab}`, `freeze ${tab}`, `resume ${tab}`])
const TROUBLE = [...LIFE, 'hang 0', 'drop 0', 'reload 0', 'stop 0', 'fail 0', 'lose 2', 'send 1 a', 'open 2', 'subscribe 2 a', 'close 0']
/** What follows a step: a publication, at once, while the step's effects are under way, or when they are over. */
const PACES = [['publish a'], ['wait 3', 'publish a']]
const SETTLED = [['settle', 'publish a']]

/** Changes of an owner, each of whose delays matters. */
const HANDOVERS = [
  [...OWNED, 'arm', 'publish a', 'close 0', 'publish a'],
  [...OWNED, 'arm', 'publish a', 'crash 0', 'publish a'],
  [...OWNED, 'arm', 'hide 0', 'publish a', 'show 0', 'publish a'],
  [...OWNED, 'arm', 'unsubscribe 0 a', 'wait 101', 'publish a', 'subscribe 0 a'],
  [...OWNED, 'arm', 'publish a', 'stop 0', 'publish a', 'wait 1', 'start 0'],
  [...STRANGERS, 'arm', 'subscribe 0 a', 'subscribe 1 a', 'publish a', 'wait 40', 'publish a'],
  [...STRANGERS, 'wait 200', 'arm', 'subscribe 0 a', 'subscribe 1 a', 'publish a', 'wait 5', 'crash 0'],
]

/** When one run is played again, it is all that is played. */
const everything = (name: string, tests: () => void) => (again ? undefined : describe(name, tests))

everything('every order', () => {
  it('X10, X12, X27: of two steps of two tabs at every pace: one owner, each publication once', async () => {
    holds(await explore(everySequence(OWNED, LIFE, PACES, long ? 3 : 2), busSubject))
    if (long) for (const before of [OWNED, STRANGERS]) holds(await explore(everySequence(before, LIFE, [...PACES, ...SETTLED], 2), busSubject))
  }, TIMEOUT)

  it.runIf(long)('X10, X12, X27: of two steps of three tabs with every kind of trouble', async () => {
    for (const locks of [true, false]) {
      for (const history of [true, false]) holds(await explore(everySequence(OWNED, TROUBLE, PACES, 2, { locks, history, overlap: !locks }), busSubject))
    }
  }, TIMEOUT)

  it('X10, X12: of the first messages of a handover, each as fast or as slow as can be', async () => {
    holds(await explore(everyDelay(HANDOVERS, long ? 9 : 5), busSubject))
    holds(await explore(everyDelay(HANDOVERS.filter((steps) => !steps.some((step) => step.startsWith('crash'))), long ? 9 : 4, { locks: false }), busSubject))
  }, TIMEOUT)
})

everything('takeover', () => {
  /** Two tabs with a connection each, the first being the owner. */
  const owned = async (seed: number, history = 100) => {
    const cluster = createTestCluster({ seed, history })
    const make = () => {
      const tab = cluster.tab()
      const bus = new CrossTabDataBus({ platform: tab.platform, transport: cluster.transport(tab) })
      const heard: unknown[] = []
      bus.subscribe('a', (data) => heard.push(data))
      return { tab, heard }
    }
    const first = make()
    await cluster.clock.advance(1000)
    const second = make()
    await cluster.clock.advance(1000)
    expect(cluster.server.subscriptions('a')).toEqual([first.tab.name])
    const took = async (limitMs: number) => {
      const { now } = cluster.clock
      await cluster.clock.until(() => cluster.server.subscriptions('a').includes(second.tab.name), limitMs)
      return cluster.clock.now - now
    }
    return { cluster, first, second, took }
  }

  it.each<[string, (tab: TestTab) => unknown]>([
    ['closed', (tab) => tab.close()],
    ['crashed', (tab) => tab.crash()],
    ['hidden in the cache', (tab) => tab.hide()],
    ['frozen', (tab) => tab.freeze()],
    ['reloaded', (tab) => tab.reload()],
  ])('X03, X23: an owner that is %s is replaced within 250 ms', async (_, end) => {
    for (let seed = 1; seed <= 25; seed++) {
      const { cluster, first, took } = await owned(seed)
      await end(first.tab)
      expect(await took(250)).toBeLessThan(250)
      expect(cluster.server.doubles).toEqual([])
    }
  })

  it('X23: a hung owner is robbed after the stall budget, and not before; when it wakes it lets go', async () => {
    for (let seed = 1; seed <= 25; seed++) {
      const { cluster, first, second, took } = await owned(seed)
      first.tab.hang()
      const ms = await took(30_000)
      expect(ms).toBeGreaterThan(5000)
      expect(ms).toBeLessThan(20_000)
      first.tab.unhang()
      await cluster.clock.advance(500)
      expect(cluster.server.subscriptions('a')).toEqual([second.tab.name])
      expect(cluster.server.doubles.filter(({ stolen }) => stolen !== 'hung')).toEqual([])
    }
  })

  it('X12, X23: what a robbed owner hands on late is not heard, though nothing has a position', async () => {
    for (let seed = 1; seed <= 25; seed++) {
      const { cluster, first, second, took } = await owned(seed, 0)
      first.tab.hang()
      for (let i = 0; i < 5; i++) cluster.server.publish('a', `early ${i}`)
      await took(30_000)
      await cluster.clock.advance(100)
      for (let i = 0; i < 5; i++) cluster.server.publish('a', `both ${i}`)
      await cluster.clock.advance(100)
      first.tab.unhang()
      await cluster.clock.advance(1000)
      expect(second.heard).toEqual(['both 0', 'both 1', 'both 2', 'both 3', 'both 4'])
    }
  })

  it('X23: a hidden owner whose timers run once a minute keeps its topics', async () => {
    const { cluster, first } = await owned(1)
    first.tab.setVisible(false, 60_000)
    await cluster.clock.advance(600_000)
    expect(cluster.server.subscriptions('a')).toEqual([first.tab.name])
    expect(cluster.thefts).toEqual([])
  })
})

/** Runs that once broke something, with the fewest steps. */
const ONCE: readonly (readonly [string, Partial<Run>, string])[] = [
  ['X05: a tick while it stops writes no record', {}, 'open 0, subscribe 0 b, open 1, subscribe 1 a, open 2, subscribe 2 b, reload 1 b, freeze 2, subscribe 1 b, wait 400, hide 0 b'],
  ['X10: who knows a higher generation than the owner', { seed: 691 }, 'open 0, subscribe 0 b, open 1, subscribe 1 a, wait 50, slow 30, reload 0 a, subscribe 0 b, wait 400'],
  ['X13: a publication does not open what stops', { seed: 693 }, 'open 0, subscribe 0 b, open 2, wait 4000, send 2 b, fail 0 a'],
  ['X13: nor for another tab', { seed: 152, locks: false }, 'open 0, open 1, subscribe 1 b, wait 150, stop 1 a, send 0 b'],
  ['X02: a transport that gives up while it starts', { seed: 54, locks: false, overlap: true }, 'open 0, open 1, wait 0, wait 50, fail 1 a, subscribe 1 a, hang 1 b, close 0 a, wait 50'],
  ['X05: a record of an earlier life', { seed: 194, locks: false, overlap: true }, 'open 0, subscribe 0 b, open 1, subscribe 1 b, quota 1 b, wait 13000, reload 1 a'],
  ['X09: a route of a claim that did not hold', { seed: 361, locks: false, overlap: true }, 'open 0, subscribe 0 b, open 2, subscribe 2 b, lose 4, wait 400, crash 2 a'],
  ['X03: hidden while it stops', { seed: 431, locks: false }, 'open 0, wait 50, open 2 a, stop 0 b, hide 0 b, wait 50'],
  [
    'X10: a route that was given to who does not want it',
    { seed: 403, locks: false, overlap: true },
    'open 0, open 1, subscribe 1 b, open 2, subscribe 2 a, open 3, settle, deafen 0 a, publish a, freeze 2 messages, close 0 b',
  ],
  ['X16: a copy of a tab that has just begun', { seed: 1309 }, 'open 1, open 2, close 1 a, duplicate 2 1'],
]

everything('once broken', () => {
  it.each(ONCE)('%s', async (_, run, steps) => {
    expect(await play({ seed: 40, ...run, steps: steps.split(', ') }, busSubject)).toBeUndefined()
  })
})

everything('chance', () => {
  const first = Number(seed)

  it('X10, X12, X23, X27, X28: with locks and positions: one owner, each publication exactly once, whatever happens', async () => {
    holds(await explore(random(first, FORGETTING), busSubject, CHANCE_MS))
  }, TIMEOUT)

  it('X27: with a server that forgets: each publication exactly once, or it is told that some are lost', async () => {
    holds(await explore(random(first), busSubject, CHANCE_MS))
  }, TIMEOUT)

  it('X10, X12: with locks, without positions: one owner, each publication at most once', async () => {
    holds(await explore(random(first, [], { history: false }), busSubject, CHANCE_MS))
  }, TIMEOUT)

  it('X10: without locks, every tab saying what it does: one owner', async () => {
    holds(await explore(random(first, [...UNGRACEFUL, ...FORGETTING], { locks: false }), busSubject, CHANCE_MS))
  }, TIMEOUT)

  it('X08, X09, X12, X15: without locks, whatever happens: one owner in the end, each publication exactly once', async () => {
    holds(await explore(random(first, FORGETTING, { locks: false, overlap: true }), busSubject, CHANCE_MS))
  }, TIMEOUT)
})
