// What a page and a worker say to each other on a port. Nothing here travels further than that, and a page never speaks to a worker of another version: both are in the worker's name.
import type { Position, Publication, PublishOptions, TransportStatus } from '../crosstab/transport.js'
import type { Wake } from '../wake.js'

export const WORKER_PROTOCOL = 1

declare const TIDEWIRE_BUILD: string | undefined

/** Of the sources of this package: a page and a worker of two builds share nothing. */
export const BUILD = typeof TIDEWIRE_BUILD === 'string' ? TIDEWIRE_BUILD : 'source'

/** An error, as it crosses a port. */
export interface Failure {
  readonly code: string
  readonly cause?: string | undefined
  readonly fix?: string | undefined
  readonly retryAfterMs?: number | undefined
}

/** A topic that a page wants, from behind what it has. */
export interface Wanted {
  readonly topic: string
  readonly from?: Position | undefined
}

/** Everything that a page has and wants. The first message on a port, and again when the worker asks for it. */
export interface Hello {
  readonly call: 'hello'
  readonly id: number
  readonly protocol: number
  readonly build: string
  /** Of the page: another port of the same one is over. */
  readonly page: string
  /** Ports with the same key share one connection. Absent: this port has its own. */
  readonly share?: string | undefined
  /** A lock that the page holds until it is gone. Absent: the port is alive for as long as it says something. */
  readonly lock?: string | undefined
  /** Whether bytes are moved to the page, not copied. */
  readonly transfer?: boolean | undefined
  readonly config: unknown
  readonly topics: readonly Wanted[]
}

/** What a page says. A call with an id is answered. */
export type ToWorker =
  | Hello
  | ({ readonly call: 'subscribe' } & Wanted)
  | { readonly call: 'unsubscribe'; readonly id: number; readonly topic: string }
  | { readonly call: 'publish'; readonly id: number; readonly topic: string; readonly data: unknown; readonly options?: PublishOptions | undefined }
  | { readonly call: 'ping'; readonly id: number }
  /** The page heard of its life, or its network. */
  | { readonly call: 'wake'; readonly wake: Wake }
  /** The answer to `ask`. */
  | { readonly call: 'token'; readonly ask: number; readonly token?: string; readonly error?: Failure }
  /** The items have been handled: more may come. */
  | { readonly call: 'ack' }
  /** The page lets go of the port. */
  | { readonly call: 'bye'; readonly id: number }

/** What happened, in order. */
export type Item =
  | { readonly on: 'status'; readonly status: TransportStatus; readonly error?: Failure | undefined }
  | { readonly on: 'publications'; readonly topic: string; readonly list: Publication[] }
  | { readonly on: 'subscribed'; readonly topic: string; readonly position?: Position | undefined; readonly lost?: boolean | undefined }
  | { readonly on: 'refused'; readonly topic: string; readonly error: Failure; readonly retry: boolean }
  /** All that a shared connection is subscribed to. */
  | { readonly on: 'topics'; readonly topics: readonly string[] }

/** What a worker says. `boot` is one life of it: with another, it remembers nothing. */
export type FromWorker = { readonly boot: string } & (
  | { readonly re: number; readonly error?: Failure | undefined }
  | { readonly items: readonly Item[] }
  /** The connection needs a credential. */
  | { readonly ask: number; readonly reason: 'connect' | 'expired' }
  /** The page was too slow for what came: it says hello again, from where it is. */
  | { readonly again: true }
  /** Is anybody there? */
  | { readonly ping: true }
)
