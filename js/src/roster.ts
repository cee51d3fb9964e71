import type { PresenceFrame, StateFrame, WireMember } from './frames.js'

/** One actor, or one anonymous session, that is present in a channel. */
export interface Member<P = unknown, S = unknown> {
  /** The actor, or the session of an anonymous client. */
  readonly id: string
  /** What the member said about itself; absent when it said nothing. */
  readonly data?: P
  /** The ids of its sessions (pages, devices): at most 16 are listed. */
  readonly sessions: readonly string[]
  /** How many sessions it has. */
  readonly sessionCount: number
  /** The newest state of each listed session that has set one, by session id. */
  readonly states: Readonly<Record<string, S>>
}

// Diffs kept while a snapshot is awaited. More than these come only from a server that does not answer;
// then the oldest go, and the gap asks for another snapshot.
const HELD_DIFFS = 256
// States of sessions that are not, or not yet, in the roster. A state may overtake the diff that lists its member.
const HELD_STATES = 512

/**
 * The listed part of a channel's roster, from snapshots and diffs. Pure: no time, no network.
 *
 * # Order
 * Members stand in the order in which they joined, as the server lists them. `version` tells the state
 * exactly: after a snapshot and every diff the members are the server's.
 */
export class Roster {
  #members = new Map<string, WireMember>()
  #states = new Map<string, unknown>()
  #views = new Map<string, Member>()
  #held: PresenceFrame[] = []
  #version = 0
  #total = 0
  #synced = false

  get version(): number {
    return this.#version
  }

  get total(): number {
    return this.#total
  }

  /** Whether the members are the server's at `version`. Otherwise a snapshot is awaited, and they are the last known. */
  get synced(): boolean {
    return this.#synced
  }

  /** Another snapshot will come: diffs are held back until then. */
  desync(): void {
    this.#synced = false
    this.#held = []
  }

  /** Takes a frame. `gap` means that a version is missing and that a snapshot has to be asked for. */
  apply(frame: PresenceFrame): 'changed' | 'same' | 'gap' {
    if (frame.snapshot) {
      this.#replace(frame.snapshot, frame)
      const held = this.#held.sort((a, b) => a.version - b.version)
      this.#held = []
      for (const diff of held) if (this.apply(diff) === 'gap') return 'gap'
      return 'changed'
    }
    if (!this.#synced) {
      this.#held.push(frame)
      if (this.#held.length > HELD_DIFFS) this.#held.shift()
      return 'same'
    }
    if (frame.version <= this.#version) return 'same'
    if (frame.version > this.#version + 1) {
      this.desync()
      this.#held.push(frame)
      return 'gap'
    }
    this.#patch(frame)
    return 'changed'
  }

  /** Takes a state. Returns whether the members changed. */
  applyState(frame: StateFrame): boolean {
    const { session, data } = frame
    this.#states.delete(session)
    if (data !== null && data !== undefined) this.#states.set(session, data)
    const member = this.#members.get(frame.member)
    if (member?.sessions.includes(session)) {
      this.#views.delete(member.id)
      return true
    }
    this.#trimStates()
    return false
  }

  /** The members in order. Those that have not changed are the same objects as before. */
  members(): readonly Member[] {
    return [...this.#members.values()].map((member) => {
      let view = this.#views.get(member.id)
      if (!view) this.#views.set(member.id, (view = this.#view(member)))
      return view
    })
  }

  #replace(members: readonly WireMember[], { version, total }: PresenceFrame): void {
    const states = this.#states
    const known = new Set([...this.#members.values()].flatMap((member) => member.sessions))
    this.#members = new Map()
    this.#views = new Map()
    // A snapshot carries the states of its members; those held back for sessions not listed yet stay.
    this.#states = new Map([...states].filter(([session]) => !known.has(session)))
    for (const member of members) this.#put(member)
    this.#version = version
    this.#total = total
    this.#synced = true
  }

  #patch(frame: PresenceFrame): void {
    for (const id of frame.leaves ?? []) this.#remove(id)
    for (const member of frame.joins ?? []) this.#put(member)
    for (const member of frame.updates ?? []) {
      // Not put when unknown: an update never adds a member.
      if (this.#members.has(member.id)) this.#put(member)
    }
    this.#version = frame.version
    this.#total = frame.total
  }

  /** Adds member at the end, or replaces the one with its id in place. */
  #put(member: WireMember): void {
    const before = this.#members.get(member.id)
    for (const session of before?.sessions ?? []) {
      if (!member.sessions.includes(session)) this.#states.delete(session)
    }
    for (const [session, state] of Object.entries(member.state ?? {})) this.#states.set(session, state)
    this.#members.set(member.id, member)
    this.#views.delete(member.id)
  }

  #remove(id: string): void {
    for (const session of this.#members.get(id)?.sessions ?? []) this.#states.delete(session)
    this.#members.delete(id)
    this.#views.delete(id)
  }

  #view(member: WireMember): Member {
    const states: Record<string, unknown> = {}
    for (const session of member.sessions) {
      if (this.#states.has(session)) states[session] = this.#states.get(session)
    }
    return {
      id: member.id,
      ...('data' in member && { data: member.data }),
      sessions: member.sessions,
      sessionCount: member.sessionCount ?? member.sessions.length,
      states,
    }
  }

  #trimStates(): void {
    if (this.#states.size <= HELD_STATES) return
    const listed = new Set([...this.#members.values()].flatMap((member) => member.sessions))
    for (const session of this.#states.keys()) {
      if (this.#states.size <= HELD_STATES / 2) return
      if (!listed.has(session)) this.#states.delete(session)
    }
  }
}
