import { describe, expect, it } from 'vitest'
import type { PresenceFrame, WireMember } from '../src/frames.js'
import { createRoster, type Roster } from '../src/roster.js'

/** A small generator with a seed, so that a failure can be repeated. */
function generator(seed: number): () => number {
  let a = seed
  return () => {
    a = (a + 0x6d2b79f5) | 0
    let t = Math.imul(a ^ (a >>> 15), 1 | a)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

/** The server: all present in the order they joined; the first `listed` of them on the wire. */
class Model {
  readonly #limit: number
  readonly #random: () => number
  #present: WireMember[] = []
  #changed: WireMember[] = [] // the present, before the changes since the last diff
  version = 0

  constructor(limit: number, random: () => number) {
    this.#limit = limit
    this.#random = random
  }

  get listed(): WireMember[] {
    return this.#present.slice(0, this.#limit)
  }

  snapshot(): PresenceFrame {
    return { type: 'presence', channel: 'c', version: this.version, total: this.#present.length, snapshot: this.listed }
  }

  /** One change of one member: arrives, says something else, opens or closes a session, leaves. */
  step(people: number): void {
    const id = `u${Math.floor(this.#random() * people)}`
    const index = this.#present.findIndex((member) => member.id === id)
    const present = this.#present[index]
    const data = { n: Math.floor(this.#random() * 1000) }
    if (!present) this.#present = [...this.#present, { id, data, sessions: [`${id}/0`] }]
    else if (this.#random() < 0.45) this.#present = this.#present.filter((member) => member !== present)
    else this.#present = this.#present.map((member) => (member === present ? { id, data, sessions: this.#sessions(id) } : member))
  }

  #sessions(id: string): string[] {
    return Array.from({ length: 1 + Math.floor(this.#random() * 3) }, (_, i) => `${id}/${i}`)
  }

  /** What changed in the listed part since the last diff, merged into one. */
  diff(): PresenceFrame | undefined {
    const before = this.#changed.slice(0, this.#limit)
    const after = this.listed
    const total = this.#present.length
    const totalBefore = this.#changed.length
    this.#changed = this.#present
    const old = new Map(before.map((member) => [member.id, member]))
    const now = new Set(after.map(({ id }) => id))
    // A member that left and came back stands elsewhere: it leaves and joins.
    const kept: WireMember[] = []
    const joins: WireMember[] = []
    for (const member of after) {
      if (old.has(member.id) && joins.length === 0 && inOrder(before, kept, member)) kept.push(member)
      else joins.push(member)
    }
    const keptIds = new Set(kept.map(({ id }) => id))
    const leaves = before.filter(({ id }) => !now.has(id) || !keptIds.has(id)).map(({ id }) => id)
    const updates = kept.filter((member) => old.get(member.id) !== member)
    if (leaves.length + joins.length + updates.length === 0 && total === totalBefore) return undefined
    return { type: 'presence', channel: 'c', version: ++this.version, total, joins, updates, leaves }
  }
}

function inOrder(before: readonly WireMember[], kept: readonly WireMember[], member: WireMember): boolean {
  const at = (id: string | undefined) => before.findIndex((other) => other.id === id)
  return at(member.id) > at(kept.at(-1)?.id)
}

function check(roster: Roster, model: Model, seed: number): void {
  const want = model.listed.map(({ id, data, sessions }) => ({ id, data, sessions, sessionCount: sessions.length, states: {} }))
  expect(roster.members(), `seed ${seed}, version ${model.version}`).toEqual(want)
  expect(roster.version, `seed ${seed}`).toBe(model.version)
}

describe('P22 snapshot and diffs against a model of the server', () => {
  it('S11 P22 the roster equals the listed part at every version, also when more are present than are listed', () => {
    for (let seed = 1; seed <= 60; seed++) {
      const random = generator(seed)
      const limit = seed % 3 === 0 ? 256 : 1 + Math.floor(random() * 12)
      const people = limit === 256 ? 400 : 30
      const model = new Model(limit, random)
      for (let i = 0; i < people; i++) model.step(people)
      model.diff()
      const roster = createRoster()
      roster._take(model.snapshot())
      for (let i = 0; i < 60; i++) {
        const merged = 1 + Math.floor(random() * 6)
        for (let j = 0; j < merged; j++) model.step(people)
        const diff = model.diff()
        if (diff) expect(roster._take(diff)).toBe('changed')
        check(roster, model, seed)
      }
    }
  })

  it('P22 dropped, repeated, old and early diffs: never a wrong roster at a version, and healed by a resync', () => {
    for (let seed = 1; seed <= 200; seed++) {
      const random = generator(seed)
      const model = new Model(8, random)
      const roster = createRoster()
      const history: PresenceFrame[] = []
      const truth = new Map<number, WireMember[]>([[0, []]])
      let asked = true // the first subscribe
      const take = (frame: PresenceFrame) => {
        if (roster._take(frame) === 'gap') asked = true
        // Whatever came, what is shown as live is what the server had at that version.
        if (roster._synced) {
          expect(roster.members().map(({ id, data, sessions }) => ({ id, data, sessions })), `seed ${seed}`).toEqual(truth.get(roster.version))
        }
      }
      const answer = () => {
        asked = false
        take(model.snapshot())
      }
      for (let i = 0; i < 150; i++) {
        model.step(20)
        const diff = model.diff()
        if (diff) {
          history.push(diff)
          truth.set(model.version, model.listed)
          const chance = random()
          if (chance < 0.1) {
            // lost
          } else if (chance < 0.2) {
            take(diff)
            take(diff)
          } else {
            take(diff)
          }
        }
        const old = history[Math.floor(random() * history.length)]
        if (old && random() < 0.2) take(old)
        if (asked && random() < 0.3) answer()
      }
      // One more change shows a loss at the end; then the snapshot that was asked for heals.
      do {
        model.step(20)
        const last = model.diff()
        if (last) {
          truth.set(model.version, model.listed)
          take(last)
          break
        }
      } while (true)
      if (asked) answer()
      check(roster, model, seed)
    }
  })

  it('a roster that gets no snapshot holds a bounded number of diffs and states', () => {
    const roster = createRoster()
    for (let version = 1; version <= 5000; version++) {
      roster._take({ type: 'presence', channel: 'c', version, total: 1, joins: [{ id: `u${version}`, sessions: [`s${version}`] }] })
      roster._applyState({ type: 'state', channel: 'c', member: 'x', session: `s${version}`, data: version })
    }
    expect(roster._take({ type: 'presence', channel: 'c', version: 4999, total: 0, snapshot: [] })).toBe('changed')
    expect(roster.members()).toEqual([{ id: 'u5000', sessions: ['s5000'], sessionCount: 1, states: { s5000: 5000 } }])
  })
})
