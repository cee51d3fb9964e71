// The messages of protocol version 1, as spec/protocol.md describes them.

export const PROTOCOL = 1
export const SUBPROTOCOL = 'tidewire.1'

/** What a subscription asks about the roster. Absent: nothing. A member that is undefined is not sent. */
export interface PresenceRequest {
  readonly data?: unknown
  readonly observe?: true
  /** Asks for a snapshot again. */
  readonly resync?: true | undefined
}

/** A position in the history of a channel. Offsets can be compared within one epoch only. */
export interface Position {
  readonly offset: number
  readonly epoch: string
}

export type ClientFrame =
  | { readonly type: 'hello'; readonly protocol: number; readonly client: string; readonly build?: string | undefined }
  | SubscribeFrame
  | QueryFrame
  | { readonly type: 'unsubscribe'; readonly sid: string }
  | { readonly type: 'ack'; readonly channel: string; readonly offset: number }
  | { readonly type: 'presence'; readonly channel: string; readonly data: unknown }
  | { readonly type: 'state'; readonly channel: string; readonly data: unknown }
  | { readonly type: 'auth'; readonly token: string }

/** A member that is undefined is not sent. */
export interface SubscribeFrame {
  readonly type: 'subscribe'
  readonly sid: string
  readonly channel: string
  readonly presence?: PresenceRequest | undefined
  readonly since?: Position | { readonly last: number } | undefined
  readonly ack?: true | undefined
}

/** The subscribe of a live query. A member that is undefined is not sent. */
export interface QueryFrame {
  readonly type: 'subscribe'
  readonly sid: string
  readonly query: string
  readonly input?: unknown
  readonly since?: (Position & { readonly sum?: string }) | undefined
}

/** What the server takes, announced by `welcome`. */
export interface Limits {
  /** Bytes of one frame. */
  readonly frameBytes: number
  /** Frames a second, in the long run. */
  readonly framesPerSecond: number
  /** Frames at once. */
  readonly frameBurst: number
  /** Subscriptions of one connection. */
  readonly channels: number
  /** Bytes of presence data, as JSON. */
  readonly presenceBytes: number
  /** Bytes of a state, as JSON. */
  readonly stateBytes: number
}

/** Taken as granted until the first `welcome`, and for members that it leaves out. */
export const DEFAULT_LIMITS: Limits = {
  frameBytes: 262_144,
  framesPerSecond: 64,
  frameBurst: 256,
  channels: 64,
  presenceBytes: 1024,
  stateBytes: 1024,
}

export interface Welcome {
  readonly type: 'welcome'
  readonly protocol: number
  readonly connection: string
  readonly session: string
  readonly actor?: string
  readonly node?: string
  readonly build?: string
  readonly expiresInMs?: number
  readonly heartbeatMs?: number
  readonly limits?: Partial<Limits>
}

export interface WireMember {
  readonly id: string
  readonly data?: unknown
  readonly sessions: readonly string[]
  /** Present when `sessions` does not list all. */
  readonly sessionCount?: number
  readonly state?: Readonly<Record<string, unknown>>
}

export interface PresenceFrame {
  readonly type: 'presence'
  readonly channel: string
  readonly version: number
  readonly total: number
  readonly snapshot?: readonly WireMember[]
  readonly joins?: readonly WireMember[]
  readonly updates?: readonly WireMember[]
  readonly leaves?: readonly string[]
}

export interface StateFrame {
  readonly type: 'state'
  readonly channel: string
  readonly member: string
  readonly session: string
  readonly data: unknown
}

export interface MessageFrame {
  readonly type: 'message'
  readonly channel: string
  readonly id: string
  readonly data: unknown
  readonly from?: { readonly actor?: string; readonly session: string }
  readonly key?: string
  readonly offset?: number
}

export interface SubscribedFrame {
  readonly type: 'subscribed'
  readonly sid: string
  readonly channel?: string
  /** Of a live query, which has no channel: its name in the frames that follow. */
  readonly qid?: string
  /** With `epoch`, on a channel with history: where the subscription is. */
  readonly offset?: number
  readonly epoch?: string
  /** The answer to a `since` with a position: whether what follows that one comes. */
  readonly recovered?: boolean
}

/** The answer to a publish; or, without `epoch`, the note in the place of a message that was not echoed. */
export interface PublishedFrame {
  readonly type: 'published'
  readonly id: string
  readonly channel?: string
  readonly offset?: number
  readonly epoch?: string
}

export interface RefusedFrame {
  readonly type: 'refused'
  /** The type of the refused message; absent or empty if it could not be read. */
  readonly re?: string
  readonly code: string
  readonly cause?: string
  readonly fix?: string
  readonly retryAfterMs?: number
  readonly sid?: string
  readonly id?: string
  readonly channel?: string
}

export interface UnsubscribedFrame {
  readonly type: 'unsubscribed'
  readonly sid: string
  readonly channel?: string
  readonly code?: string
  readonly cause?: string
  readonly fix?: string
  readonly retryAfterMs?: number
}

/** All rows of a live query. */
export interface SnapshotFrame {
  readonly type: 'snapshot'
  readonly qid: string
  readonly version: number
  readonly epoch: string
  readonly key: readonly string[]
  readonly rows: readonly WireRow[]
  readonly sum: string
  /** Of a commit that changed several live queries: see {@link SettledFrame}. */
  readonly commit?: number
}

/** What one commit changed in a live query. */
export interface PatchFrame {
  readonly type: 'patch'
  readonly qid: string
  readonly version: number
  readonly ops: readonly WireOp[]
  readonly sum: string
  readonly commit?: number
}

/** All frames of live queries that a commit made have been sent. */
export interface SettledFrame {
  readonly type: 'settled'
  readonly commit: number
}

export type WireRow = Readonly<Record<string, unknown>>
export type WireOp = { readonly del: unknown } | { readonly put: WireRow; readonly at: number }

export type ServerFrame =
  | SnapshotFrame
  | PatchFrame
  | SettledFrame
  | Welcome
  | MessageFrame
  | PresenceFrame
  | StateFrame
  | RefusedFrame
  | UnsubscribedFrame
  | { readonly type: 'authenticated'; readonly expiresInMs?: number }
  | SubscribedFrame
  | PublishedFrame
  | { readonly type: 'skipped'; readonly channel: string; readonly count: number }
  | { readonly type: 'reconnect'; readonly afterMs: number }
  | { readonly type: 'update-available'; readonly build: string }

/** Reads one frame; undefined for what is not one. Types of a later version pass: whoever takes a frame leaves out what it does not know. */
export function decode(text: unknown): ServerFrame | undefined {
  try {
    const frame = JSON.parse(text as string) as ServerFrame | null
    return typeof frame?.type === 'string' ? frame : undefined
  } catch {
    return
  }
}
