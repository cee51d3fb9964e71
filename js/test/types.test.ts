import { describe, expectTypeOf, it } from 'vitest'
import { type Channel, type ChannelStatus, type Client, type ConnectionState, defineChannel, type Message, type ParamNames, type Presence, type Published, type RosterHandle } from '../src/index.js'
import { type PresenceHook, usePresence } from '../src/react.js'

interface Post {
  text: string
}
interface User {
  name: string
}
interface Cursor {
  x: number
}

const feed = defineChannel('org.{orgId}.feed.{kind}').types<{ message: Post; presence: User; state: Cursor }>()
const lobby = defineChannel('lobby')
declare const client: Client

/** What is in check is for the compiler only. */
function neverCalled(_check: () => void): void {}

describe('S08 types', () => {
  it('S08 the parameters come from the pattern', () => {
    expectTypeOf<ParamNames<'org.{orgId}.feed.{kind}'>>().toEqualTypeOf<'orgId' | 'kind'>()
    expectTypeOf<ParamNames<'lobby'>>().toEqualTypeOf<never>()
    neverCalled(() => {
      client.channel(feed, { orgId: 1, kind: 'news' })
      client.channel(lobby)
      client.channel('any.name')
      // @ts-expect-error a parameter is missing
      client.channel(feed, { orgId: 1 })
      // @ts-expect-error parameters are missing
      client.channel(feed)
      // @ts-expect-error one too many
      client.channel(feed, { orgId: 1, kind: 'news', other: 1 })
      // @ts-expect-error it has none
      client.channel(lobby, { orgId: 1 })
    })
  })

  it('S08 messages, presence and state have the types of the definition', () => {
    neverCalled(() => {
      const channel = client.channel(feed, { orgId: 1, kind: 'news' })
      expectTypeOf(channel).toEqualTypeOf<Channel<{ message: Post; presence: User; state: Cursor }>>()
      channel.on('message', (message) => expectTypeOf(message).toEqualTypeOf<Message<Post>>())
      channel.on('skipped', ({ count }) => expectTypeOf(count).toEqualTypeOf<number>())
      channel.on('lost', ({ count }) => expectTypeOf(count).toEqualTypeOf<number | undefined>())
      channel.on('message', async ({ offset }) => expectTypeOf(offset).toEqualTypeOf<number | undefined>(), { last: 50, ack: true, since: { offset: 1, epoch: 'a' } })
      // @ts-expect-error only messages begin somewhere
      channel.on('lost', () => {}, { last: 50 })
      // @ts-expect-error no such event
      channel.on('other', () => {})
      expectTypeOf(channel.publish).parameter(0).toEqualTypeOf<Post>()
      expectTypeOf(channel.publish({ text: '' })).toEqualTypeOf<Promise<Published>>()
      const presence = channel.presence({ data: { name: '' } })
      expectTypeOf(presence).toEqualTypeOf<Presence<User, Cursor>>()
      // @ts-expect-error not the presence data of the definition
      channel.presence({ data: { title: '' } })
      expectTypeOf(presence.setState).parameter(0).toEqualTypeOf<Cursor | null>()
      expectTypeOf(presence.getSnapshot().members[0]).toEqualTypeOf<
        { readonly id: string; readonly data?: User; readonly sessions: readonly string[]; readonly sessionCount: number; readonly states: Readonly<Record<string, Cursor>> } | undefined
      >()
      const observed = channel.presence({ observe: true })
      expectTypeOf(observed).toEqualTypeOf<RosterHandle<User, Cursor>>()
      // @ts-expect-error an observer says nothing
      observed.update({ name: '' })
      expectTypeOf(usePresence(channel)).toEqualTypeOf<PresenceHook<User, Cursor>>()
    })
  })

  it('what is left out is unknown', () => {
    neverCalled(() => {
      client.channel('any').on('message', ({ data }) => expectTypeOf(data).toEqualTypeOf<unknown>())
      const typed = client.channel<{ message: Post }>('any')
      typed.on('message', ({ data }) => expectTypeOf(data).toEqualTypeOf<Post>())
      expectTypeOf(typed.roster.getSnapshot().members).items.toHaveProperty('states').toEqualTypeOf<Readonly<Record<string, unknown>>>()
    })
  })

  it('states are unions by kind', () => {
    expectTypeOf<ConnectionState['kind']>().toEqualTypeOf<'idle' | 'connecting' | 'connected' | 'waiting' | 'stopped'>()
    expectTypeOf<ChannelStatus['kind']>().toEqualTypeOf<'idle' | 'subscribing' | 'live' | 'refused'>()
    expectTypeOf<Extract<ConnectionState, { kind: 'waiting' }>['reconnectAt']>().toEqualTypeOf<number>()
  })
})
