import type { Member, RosterState } from 'tidewire'
import { describe, expect, it } from 'vitest'
import { roomName } from '../../demo/web/address.js'
import { typingText } from '../../demo/web/composer.js'
import { hueOf, initials } from '../../demo/web/guest.js'
import { People, RETURN_MS } from '../../demo/web/people.js'
import { type Profile, readMessage, readName, readSpot, type Spot, text } from '../../demo/web/room.js'

type Room = RosterState<Profile, Spot>

function roster(kind: Room['kind'], ...ids: readonly string[]): Room {
  const members = ids.map((id): Member<Profile, Spot> => ({ id, data: { name: id.toUpperCase() }, sessions: [`s-${id}`], sessionCount: 1, states: {} }))
  return { kind, members, total: members.length, version: 1 }
}

const told = (people: People, room: Room, now = 0) => people.update(room, 'me', now).map(({ kind, person }) => `${kind} ${person.name}`)

describe("the demo's people", () => {
  it('the first roster is no news, later differences are', () => {
    const people = new People()
    expect(told(people, roster('unknown'))).toEqual([])
    expect(told(people, roster('live', 'me', 'a'))).toEqual([])
    expect(told(people, roster('live', 'me', 'b'))).toEqual(['left A', 'joined B'])
    expect(people.list.map(({ id, you }) => [id, you])).toEqual([['me', true], ['b', false]])
  })

  it('P22 a new name is told as such', () => {
    const people = new People()
    people.update(roster('live', 'a'), 'me', 0)
    const renamed = roster('live', 'a')
    const members = renamed.members.map((member) => ({ ...member, data: { name: 'Ann' } }))
    expect(people.update({ ...renamed, members }, 'me', 0)).toMatchObject([{ kind: 'renamed', before: 'A', person: { name: 'Ann' } }])
  })

  it('P23 after a lost connection those who are missing are away for a while, and leave then', () => {
    const people = new People()
    people.update(roster('live', 'me', 'a', 'b'), 'me', 0)
    expect(told(people, roster('stale', 'me', 'a', 'b'), 10)).toEqual([])
    expect(told(people, roster('live', 'me'), 1000)).toEqual([])
    expect(people.list.map(({ id, away }) => [id, away])).toEqual([['me', false], ['a', true], ['b', true]])
    expect(people.lookAgainAt).toBe(1000 + RETURN_MS)
    expect(told(people, roster('live', 'me', 'a'), 2000)).toEqual([])
    expect(told(people, roster('live', 'me', 'a'), 1000 + RETURN_MS)).toEqual(['left B'])
    expect(people.lookAgainAt).toBeUndefined()
  })
})

describe('what others send to the demo', () => {
  it('is taken where it has the form, and left out where not', () => {
    expect(readName({ name: '  Ann\n\u202eB ' })).toBe('Ann B')
    for (const data of [undefined, null, 1, {}, { name: 1 }, { name: ' ' }]) expect(readName(data)).toBeUndefined()
    expect(readSpot({ x: 2, y: -1, typing: 'yes' })).toEqual({ x: 1, y: 0, typing: false })
    for (const data of [null, { x: 1 }, { x: '1', y: 1 }, { x: NaN, y: 0 }]) expect(readSpot(data)).toEqual({ typing: false })
    expect(readMessage({ kind: 'say', text: 'x'.repeat(1000) })).toEqual({ kind: 'say', text: 'x'.repeat(280) })
    expect(readMessage({ kind: 'react', glyph: 'star', x: 0.5 })).toEqual({ kind: 'react', glyph: 'star', x: 0.5, y: 0.5 })
    for (const data of [null, [], { kind: 'say' }, { kind: 'react', glyph: 'toString' }, { kind: 'other' }]) expect(readMessage(data)).toBeUndefined()
    expect(text('👩‍🚀👩‍🚀', 3)).toBe('👩‍🚀')
  })

  it('rooms, colours, initials and words', () => {
    expect(['', 'Lobby', ' A.b/c ', 'é', '日本', 'x'.repeat(99)].map(roomName)).toEqual(['lobby', 'lobby', 'a-b-c', 'e', 'lobby', 'x'.repeat(32)])
    expect(new Set(Array.from({ length: 40 }, (_, i) => hueOf(`guest-${i}`))).size).toBeGreaterThan(18)
    expect(['Ann Bo', 'ann', 'A B C', '🌊 wave', ''].map(initials)).toEqual(['AB', 'A', 'AC', '🌊W', ''])
    expect([[], ['A'], ['A', 'B'], ['A', 'B', 'C']].map(typingText)).toEqual(['', 'A is typing', 'A and B are typing', 'A and 2 others are typing'])
  })
})
