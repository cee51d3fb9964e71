import type { Member, RosterState } from 'tidewire'
import { hueOf } from './guest.js'
import { type Profile, readName, readSpot, type Spot } from './room.js'

export interface Person {
  readonly id: string
  readonly name: string
  readonly hue: number
  readonly you: boolean
  /** How many windows are open. */
  readonly windows: number
  readonly typing: boolean
  /** Was here before the connection was lost, and has not been seen since. */
  readonly away: boolean
}

export type Change =
  | { readonly kind: 'joined' | 'left'; readonly person: Person }
  | { readonly kind: 'renamed'; readonly person: Person; readonly before: string }

/** After a server has restarted everybody comes back, each in their own time: until then nobody has left. */
export const RETURN_MS = 6000

/** The people of a room, from one roster to the next. Pure: time is given. */
export class People {
  #people = new Map<string, Person>()
  #known = false
  #interrupted = false
  #returnUntil = 0

  get list(): readonly Person[] {
    return [...this.#people.values()]
  }

  get(id: string): Person | undefined {
    return this.#people.get(id)
  }

  /** When to look again, although the roster has not changed: someone has not come back yet. */
  get lookAgainAt(): number | undefined {
    return this.list.some(({ away }) => away) ? this.#returnUntil : undefined
  }

  /** Takes a roster and tells what changed. The first one is no change: everybody was there before. */
  update(roster: RosterState<Profile, Spot>, you: string, now: number): readonly Change[] {
    if (roster.kind !== 'live') {
      this.#interrupted = this.#known
      return []
    }
    if (this.#interrupted) this.#returnUntil = now + RETURN_MS
    this.#interrupted = false

    const before = this.#people
    const people = new Map(roster.members.map((member) => [member.id, personOf(member, you)]))
    const changes: Change[] = []
    for (const [id, person] of before) {
      if (people.has(id)) continue
      if (now < this.#returnUntil) people.set(id, { ...person, away: true, typing: false })
      else changes.push({ kind: 'left', person })
    }
    for (const [id, person] of people) {
      const known = before.get(id)
      if (!known) changes.push({ kind: 'joined', person })
      else if (known.name !== person.name) changes.push({ kind: 'renamed', person, before: known.name })
    }
    const first = !this.#known
    this.#people = people
    this.#known = true
    return first ? [] : changes
  }
}

function personOf(member: Member<Profile, Spot>, you: string): Person {
  return {
    id: member.id,
    name: readName(member.data) ?? member.id,
    hue: hueOf(member.id),
    you: member.id === you,
    windows: member.sessionCount,
    typing: Object.values(member.states).some((state) => readSpot(state).typing),
    away: false,
  }
}
