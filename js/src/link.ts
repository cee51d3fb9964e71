import type { Connection } from './connection.js'
import type { Publisher } from './publisher.js'

/** What the channels of a client share. */
export interface Link {
  readonly _connection: Connection
  readonly _publisher: Publisher
  readonly _stateIntervalMs: number
  /** A subscription id never used before by this client. */
  _nextSid(): string
}
