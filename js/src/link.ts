import type { Client } from './client.js'
import type { Connection } from './connection.js'
import type { ServerFrame } from './frames.js'
import type { Publisher } from './publisher.js'

/** What a client hands frames to while it is in use. */
export interface Active {
  /** The connection is there. */
  _ready(): void
  _take(frame: ServerFrame): void
  /** A heartbeat is due. */
  _beat(): void
  /** The connection is gone. */
  _lost(): void
}

/** What the channels of a client share. */
export interface Link {
  readonly _connection: Connection
  readonly _publisher: Publisher
  readonly _stateIntervalMs: number
  /** The channels in use by name. Who takes the frames that are about no channel stands under undefined: the live queries. */
  readonly _active: Map<string | undefined, Active>
  /** A subscription id never used before by this client. */
  _nextSid(): string
}

/** A client as the other entries of this package see it. */
export interface LinkedClient extends Client {
  readonly _link: Link
}
