import { defineChannel } from 'tidewire'
import { type GlyphName, isGlyphName } from './glyphs.js'

/** What a guest says about itself. */
export interface Profile {
  readonly name: string
}

/** What one window shows of its guest: where the cursor is, in parts of the room, and whether something is being written. */
export interface Spot {
  readonly x?: number
  readonly y?: number
  readonly typing?: boolean
}

/** Who sent a message, and when, by their own word: in the history they outlive their sender's visit. */
interface Signed {
  readonly name?: string
  /** Milliseconds since 1970. */
  readonly at?: number
}

export type RoomMessage = Signed &
  (
    | { readonly kind: 'say'; readonly text: string }
    | { readonly kind: 'react'; readonly glyph: GlyphName; readonly x: number; readonly y: number }
  )

export const roomChannel = defineChannel('demo.{room}').types<{ message: RoomMessage; presence: Profile; state: Spot }>()

export const MAX_NAME = 24
export const MAX_TEXT = 280

// Whoever has a token can send anything. These take what they know and leave out the rest.

export function readName(data: unknown): string | undefined {
  const name = text(member(data, 'name'), MAX_NAME)
  return name || undefined
}

export function readSpot(data: unknown): Spot {
  const x = part(member(data, 'x'))
  const y = part(member(data, 'y'))
  return { ...(x !== undefined && y !== undefined && { x, y }), typing: member(data, 'typing') === true }
}

export function readMessage(data: unknown): RoomMessage | undefined {
  switch (member(data, 'kind')) {
    case 'say': {
      const said = text(member(data, 'text'), MAX_TEXT)
      return said ? { kind: 'say', text: said, ...readSigned(data) } : undefined
    }
    case 'react': {
      const glyph = member(data, 'glyph')
      if (!isGlyphName(glyph)) return undefined
      return { kind: 'react', glyph, x: part(member(data, 'x')) ?? 0.5, y: part(member(data, 'y')) ?? 0.5, ...readSigned(data) }
    }
    default:
      return undefined
  }
}

function readSigned(data: unknown): Signed {
  const name = readName(data)
  const at = member(data, 'at')
  return { ...(name && { name }), ...(typeof at === 'number' && at > 0 && at <= Date.now() + 60_000 && { at }) }
}

/** Text on one line, of at most so many characters. */
export function text(value: unknown, max: number): string {
  if (typeof value !== 'string') return ''
  // Controls, and marks that turn the direction of what follows: a name must not reach into its surroundings.
  const plain = value.replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]+/gu, ' ').trim()
  return [...plain].slice(0, max).join('')
}

function member(data: unknown, key: string): unknown {
  return typeof data === 'object' && data !== null ? (data as Record<string, unknown>)[key] : undefined
}

function part(value: unknown): number | undefined {
  return typeof value === 'number' && Number.isFinite(value) ? Math.min(1, Math.max(0, value)) : undefined
}
