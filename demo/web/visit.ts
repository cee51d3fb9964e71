import { type Channel, type Client, type Presence, TidewireError, type TypeOf } from 'tidewire'
import type { CursorEntry, Cursors } from './cursors.js'
import type { Author, Feed } from './feed.js'
import type { GlyphName } from './glyphs.js'
import { hueOf } from './guest.js'
import { People } from './people.js'
import type { Pointer } from './pointer.js'
import { readMessage, readSpot, roomChannel, type RoomMessage, type Spot } from './room.js'
import type { Roster } from './roster.js'

/** So many of the room's last messages are shown to who enters. */
const LAST = 100

/** A reaction that is older, as one from the history, is told in the feed and not shown again. */
const FRESH_MS = 5000

type Carries = typeof roomChannel extends { carries?: infer T } ? NonNullable<T> : never

/** What a visit shows itself on. */
export interface Views {
  readonly cursors: Cursors
  readonly roster: Roster
  readonly feed: Feed
  readonly pointer: Pointer
  /** A reaction was seen. */
  burst(glyph: GlyphName, x: number, y: number): void
  /** These others are writing. */
  typing(names: readonly string[]): void
  /** Whether nobody else, not even another window, is here. */
  alone(alone: boolean): void
  /** Something arrived. */
  arrived(): void
  skipped(count: number): void
}

/** One guest in one room, from entering to leaving. */
export class Visit {
  readonly #client: Client
  readonly #guest: string
  readonly #views: Views
  readonly #channel: Channel<Carries>
  readonly #presence: Presence<TypeOf<Carries, 'presence'>, TypeOf<Carries, 'state'>>
  readonly #people = new People()
  readonly #leaving = new AbortController()
  #spot: Spot = {}
  #name: string
  #messages = 0
  #lookAgain: ReturnType<typeof setTimeout> | undefined

  constructor(client: Client, guest: string, name: string, room: string, views: Views) {
    this.#client = client
    this.#guest = guest
    this.#name = name
    this.#views = views
    const { signal } = this.#leaving
    this.#channel = client.channel(roomChannel, { room })
    this.#channel.on('message', ({ id, data, from }) => this.#take(id, data, from?.actor), { signal, last: LAST })
    this.#channel.on('lost', () => views.feed.event(undefined, LOST), { signal })
    this.#channel.on('skipped', ({ count }) => views.skipped(count), { signal })
    this.#presence = this.#channel.presence({ data: { name }, signal })
    const stop = this.#presence.subscribe(() => {
      views.arrived()
      this.#look()
    })
    signal.addEventListener('abort', stop)
    views.feed.clear()
    views.roster.show([], 0)
    views.cursors.update([])
  }

  leave(): void {
    this.#leaving.abort()
    clearTimeout(this.#lookAgain)
  }

  rename(name: string): void {
    this.#name = name
    this.#presence.update({ name })
  }

  point(x: number, y: number): void {
    this.#spot = { ...this.#spot, x, y }
    this.#presence.setState(this.#spot)
  }

  type(typing: boolean): void {
    const { x, y } = this.#spot
    this.#spot = { ...(x !== undefined && y !== undefined && { x, y }), ...(typing && { typing }) }
    this.#presence.setState(this.#spot)
  }

  react(glyph: GlyphName): void {
    const { x, y } = this.#views.pointer
    // Without a connection a reaction is of no use later: it is not kept.
    if (this.#channel.status.getSnapshot().kind !== 'live') return
    this.#channel.publish({ kind: 'react', glyph, x, y, ...this.#signature() }).catch(() => {})
  }

  say(text: string): void {
    const { feed } = this.#views
    const id = `${this.#session ?? this.#guest}-${Date.now().toString(36)}-${++this.#messages}`
    feed.saying(this.#author(this.#guest), text, id)
    this.#channel.publish({ kind: 'say', text, ...this.#signature() }, { id }).catch((error: unknown) => {
      const code = error instanceof TidewireError ? error.code : ''
      feed.fate(id, code === 'CONNECTION_LOST' || code === 'ANSWER_TIMEOUT' ? 'unknown' : 'failed')
    })
  }

  get #session(): string | undefined {
    const state = this.#client.connection.getSnapshot()
    return state.kind === 'connected' ? state.session : undefined
  }

  #signature(): { readonly name: string; readonly at: number } {
    return { name: this.#name, at: Date.now() }
  }

  #author(actor: string | undefined, signed?: string): Author {
    if (actor === undefined) return { name: 'The server', hue: 200 }
    if (actor === this.#guest) return { name: this.#name, hue: hueOf(actor) }
    return { name: this.#people.get(actor)?.name ?? signed ?? actor, hue: hueOf(actor) }
  }

  #take(id: string, data: RoomMessage, actor: string | undefined): void {
    this.#views.arrived()
    const message = readMessage(data)
    switch (message?.kind) {
      case 'say':
        this.#views.feed.said(this.#author(actor, message.name), message.text, id, message.at)
        return
      case 'react':
        if (message.at === undefined || Date.now() - message.at < FRESH_MS) this.#views.burst(message.glyph, message.x, message.y)
        this.#views.feed.event(this.#author(actor, message.name), 'reacted', message.glyph, message.at)
        return
      case undefined:
        return
      default:
        message satisfies never
    }
  }

  /** Shows the roster as it is now. */
  #look(): void {
    const roster = this.#presence.getSnapshot()
    const { feed, cursors } = this.#views
    const people = this.#people
    const entered = people.list.length === 0
    for (const change of people.update(roster, this.#guest, Date.now())) {
      const { person } = change
      if (person.you && change.kind !== 'renamed') continue
      feed.event(
        { name: change.kind === 'renamed' ? change.before : person.name, hue: person.hue },
        change.kind === 'renamed' ? `is now called ${person.name}` : change.kind,
      )
    }
    if (entered && people.list.length > 0) feed.event(undefined, greeting(people.list.length))

    clearTimeout(this.#lookAgain)
    if (people.lookAgainAt !== undefined) this.#lookAgain = setTimeout(() => this.#look(), Math.max(0, people.lookAgainAt - Date.now()) + 10)

    const shown = people.list
    const windows = shown.reduce((sum, person) => sum + person.windows, 0)
    this.#views.roster.show(shown, roster.total)
    this.#views.typing(shown.filter(({ typing, you }) => typing && !you).map(({ name }) => name))
    this.#views.alone(roster.kind === 'live' && windows <= 1)
    const entries: CursorEntry[] = []
    for (const { id, states } of roster.members) {
      const person = people.get(id)
      for (const [session, state] of Object.entries(states)) {
        const { x, y } = readSpot(state)
        if (!person || session === this.#session || x === undefined || y === undefined) continue
        entries.push({ session, name: person.name, hue: person.hue, x, y, away: roster.kind !== 'live' })
      }
    }
    cursors.update(entries)
  }
}

const LOST = 'kept no longer what was missed meanwhile.'

function greeting(people: number): string {
  return people === 1 ? 'You are the first one here.' : `You joined ${people - 1} ${people === 2 ? 'other' : 'others'}.`
}
