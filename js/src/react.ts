/** React bindings. Safe in StrictMode: what is mounted twice within a moment holds one subscription. */
import { createContext, createElement, type ReactNode, useCallback, useContext, useEffect, useRef, useSyncExternalStore } from 'react'
import type { Channel, ChannelStatus, Lost, Message, MessageOptions, Skipped } from './channel.js'
import type { Client } from './client.js'
import type { ChannelTypes, TypeOf } from './names.js'
import type { Presence, RosterState } from './presence.js'
import type { ConnectionState } from './state.js'

const ClientContext = createContext<Client | undefined>(undefined)

/** Gives client to the components below. The client belongs to the caller: it is neither connected nor closed here. */
export function TidewireProvider(props: { readonly client: Client; readonly children?: ReactNode }): ReactNode {
  return createElement(ClientContext.Provider, { value: props.client }, props.children)
}

/** The client of the nearest {@link TidewireProvider}. Throws when there is none. */
export function useClient(): Client {
  const client = useContext(ClientContext)
  if (!client) throw new Error('tidewire: useClient needs a <TidewireProvider client={…}> above it')
  return client
}

/** Where the connection of the nearest provider is. */
export function useConnection(): ConnectionState {
  const { connection } = useClient()
  return useSyncExternalStore(connection.subscribe, connection.getSnapshot, connection.getSnapshot)
}

/** `last`, `since` and `ack` are those of {@link Channel.on}, read when it mounts and when the channel changes. */
export interface UseChannelOptions<T extends ChannelTypes> extends Pick<MessageOptions, 'last' | 'since' | 'ack'> {
  /** Called for each message while mounted. May be another function in each render. */
  readonly onMessage?: (message: Message<TypeOf<T, 'message'>>) => void
  /** Called when messages were dropped because this connection was too slow. */
  readonly onSkipped?: (skipped: Skipped) => void
  /** Called when messages may be missing that will not come: read the state anew. */
  readonly onLost?: (lost: Lost) => void
}

/** Subscribes to channel while mounted and returns whether messages arrive. */
export function useChannel<T extends ChannelTypes>(channel: Channel<T>, options: UseChannelOptions<T> = {}): ChannelStatus {
  const newest = useNewest(options)
  useEffect(() => {
    const { last, since, ack } = newest.current
    const unmounted = new AbortController()
    const { signal } = unmounted
    // What the callback returns is awaited when it acknowledges.
    channel.on('message', (message) => newest.current.onMessage?.(message), { signal, ...(last && { last }), ...(since && { since }), ...(ack && { ack }) })
    channel.on('skipped', (skipped) => newest.current.onSkipped?.(skipped), { signal })
    channel.on('lost', (lost) => newest.current.onLost?.(lost), { signal })
    return () => unmounted.abort()
  }, [channel, newest])
  return useSyncExternalStore(channel.status.subscribe, channel.status.getSnapshot, channel.status.getSnapshot)
}

/** What {@link usePresence} gives: the roster, and how to change this session's part in it. */
export interface PresenceHook<P, S> {
  readonly roster: RosterState<P, S>
  /** Replaces this session's data. Does nothing before mount, after unmount, and for an observer. */
  readonly update: (data: P) => void
  /** Sets this session's state; null clears it. Does nothing before mount, after unmount, and for an observer. */
  readonly setState: (state: S | null) => void
}

export interface UsePresenceOptions<P> {
  /** What this session says about itself. Compared as JSON: a new equal object is not sent again. */
  readonly data?: P
  /** Takes the roster without being in it. */
  readonly observe?: boolean
}

/** Joins the roster of channel while mounted, or observes it, and returns it. */
export function usePresence<T extends ChannelTypes>(
  channel: Channel<T>,
  options: UsePresenceOptions<TypeOf<T, 'presence'>> = {},
): PresenceHook<TypeOf<T, 'presence'>, TypeOf<T, 'state'>> {
  type P = TypeOf<T, 'presence'>
  type S = TypeOf<T, 'state'>
  const { data, observe = false } = options
  const newestData = useNewest(data)
  const handle = useRef<Presence<P, S> | undefined>(undefined)

  useEffect(() => {
    if (observe) {
      const observed = channel.presence({ observe: true })
      return () => observed.close()
    }
    const said = newestData.current
    const joined = channel.presence(said === undefined ? {} : { data: said })
    handle.current = joined
    return () => {
      handle.current = undefined
      joined.close()
    }
  }, [channel, observe, newestData])

  const json = data === undefined ? undefined : JSON.stringify(data)
  useEffect(() => {
    const said = newestData.current
    if (json !== undefined && said !== undefined) handle.current?.update(said)
  }, [json, newestData])

  const roster = useSyncExternalStore(channel.roster.subscribe, channel.roster.getSnapshot, channel.roster.getSnapshot)
  const update = useCallback((value: P) => handle.current?.update(value), [])
  const setState = useCallback((state: S | null) => handle.current?.setState(state), [])
  return { roster, update, setState }
}

/** A reference to the value of the newest finished render. Written in an effect: a render may be thrown away. */
function useNewest<T>(value: T): { readonly current: T } {
  const reference = useRef(value)
  useEffect(() => {
    reference.current = value
  })
  return reference
}
