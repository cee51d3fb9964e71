import { recall, remember } from './storage.js'

const ID = /^guest-[a-z0-9]{6,32}$/
const FIRST = ['Amber', 'Brisk', 'Calm', 'Clever', 'Coral', 'Dusky', 'Gentle', 'Golden', 'Hazel', 'Jolly', 'Lucky', 'Mellow', 'Misty', 'Nimble', 'Quiet', 'Silver', 'Sunny', 'Swift', 'Tidal', 'Velvet']
const SECOND = ['Auk', 'Curlew', 'Dolphin', 'Eider', 'Gannet', 'Heron', 'Kelp', 'Limpet', 'Manta', 'Marlin', 'Otter', 'Petrel', 'Plover', 'Puffin', 'Seal', 'Skua', 'Tern', 'Urchin', 'Walrus', 'Wrasse']

/** This browser's guest: all its windows are one person. Where nothing can be remembered, each window is its own. */
export function guestId(): string {
  const known = recall('guest')
  if (known !== undefined && ID.test(known)) return known
  const id = `guest-${Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(36).padStart(2, '0')).join('')}`
  remember('guest', id)
  return id
}

/** The name of this browser's guest: the one last chosen, or a friendly one. */
export function guestName(): string {
  const known = recall('name')
  if (known) return known
  const name = `${pick(FIRST)} ${pick(SECOND)}`
  remember('name', name)
  return name
}

/** The colour of whoever has this id, the same in every window: an angle in degrees. */
export function hueOf(id: string): number {
  let hash = 2166136261
  for (const char of id) hash = Math.imul(hash ^ char.charCodeAt(0), 16777619)
  // Ids that differ in their last letter alone are to differ in colour too.
  hash = Math.imul(hash ^ (hash >>> 16), 2246822507)
  hash ^= hash >>> 13
  return ((hash >>> 0) % 36) * 10
}

/** Up to two letters that stand for name. */
export function initials(name: string): string {
  const words = name.split(/\s+/).filter(Boolean)
  return [words[0], words.length > 1 ? words.at(-1) : undefined].map((word) => [...(word ?? '')][0] ?? '').join('').toUpperCase()
}

function pick(words: readonly string[]): string {
  return words[crypto.getRandomValues(new Uint32Array(1))[0]! % words.length] ?? ''
}
