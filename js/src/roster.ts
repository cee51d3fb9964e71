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
export function createRoster() {
  let byId = new Map<string, WireMember>()
  let allStates = new Map<string, unknown>()
  let views = new Map<string, Member>()
  let heldBack: PresenceFrame[] = []

  function replace(members: readonly WireMember[]): void {
    const states = allStates
    const known = new Set([...byId.values()].flatMap((member) => member.sessions))
    byId = new Map()
    views = new Map()
    // A snapshot carries the states of its members; those held back for sessions not listed yet stay.
    allStates = new Map([...states].filter(([session]) => !known.has(session)))
    for (const member of members) put(member)
  }

  function patch(frame: PresenceFrame): void {
    for (const id of frame.leaves ?? []) remove(id)
    for (const member of frame.joins ?? []) put(member)
    for (const member of frame.updates ?? []) {
      // Not put when unknown: an update never adds a member.
      if (byId.has(member.id)) put(member)
    }
  }

  /** Adds member at the end, or replaces the one with its id in place. */
  function put(member: WireMember): void {
    const before = byId.get(member.id)
    for (const session of before?.sessions ?? []) {
      if (!member.sessions.includes(session)) allStates.delete(session)
    }
    for (const [session, state] of Object.entries(member.state ?? {})) allStates.set(session, state)
    byId.set(member.id, member)
    views.delete(member.id)
  }

  function remove(id: string): void {
    for (const session of byId.get(id)?.sessions ?? []) allStates.delete(session)
    byId.delete(id)
    views.delete(id)
  }

  function viewOf(member: WireMember): Member {
    const states: Record<string, unknown> = {}
    for (const session of member.sessions) {
      if (allStates.has(session)) states[session] = allStates.get(session)
    }
    return {
      id: member.id,
      ...('data' in member && { data: member.data }),
      sessions: member.sessions,
      sessionCount: member.sessionCount ?? member.sessions.length,
      states,
    }
  }

  function trimStates(): void {
    if (allStates.size <= HELD_STATES) return
    const listed = new Set([...byId.values()].flatMap((member) => member.sessions))
    for (const session of allStates.keys()) {
      if (allStates.size <= HELD_STATES / 2) return
      if (!listed.has(session)) allStates.delete(session)
    }
  }

  const self = {
    // Others only read these.
    version: 0,
    total: 0,
    /** Whether the members are the server's at `version`. Otherwise a snapshot is awaited, and they are the last known. */
    _synced: false,

    /** Another snapshot will come: diffs are held back until then. */
    _desync(): void {
      self._synced = false
      heldBack = []
    },

    /** Takes a frame. `gap` means that a version is missing and that a snapshot has to be asked for. */
    _take(frame: PresenceFrame): 'changed' | 'same' | 'gap' {
      const { snapshot, version } = frame
      const { _synced: synced } = self
      if (snapshot || (synced && version === self.version + 1)) {
        if (snapshot) replace(snapshot)
        else patch(frame)
        self.version = version
        self.total = frame.total
        if (!snapshot) return 'changed'
        const held = heldBack.sort((a, b) => a.version - b.version)
        self._synced = true
        heldBack = []
        return held.some((diff) => self._take(diff) === 'gap') ? 'gap' : 'changed'
      }
      if (synced && version <= self.version) return 'same'
      if (synced) self._desync()
      heldBack.push(frame)
      if (heldBack.length > HELD_DIFFS) heldBack.shift()
      return synced ? 'gap' : 'same'
    },

    /** Takes a state. Returns whether the members changed. */
    _applyState(frame: StateFrame): boolean {
      const { session, data } = frame
      allStates.delete(session)
      if (data !== null && data !== undefined) allStates.set(session, data)
      const member = byId.get(frame.member)
      if (member?.sessions.includes(session)) {
        views.delete(member.id)
        return true
      }
      trimStates()
      return false
    },

    /** The members in order. Those that have not changed are the same objects as before. */
    members(): readonly Member[] {
      return [...byId.values()].map((member) => {
        let view = views.get(member.id)
        if (!view) views.set(member.id, (view = viewOf(member)))
        return view
      })
    },
  }
  return self
}

export type Roster = ReturnType<typeof createRoster>
