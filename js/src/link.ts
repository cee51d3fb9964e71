import type { Connection } from './connection.js'
import type { Publisher } from './publisher.js'

/** What the channels of a client share. */
export interface Link {
  readonly connection: Connection
  readonly publisher: Publisher
  readonly stateIntervalMs: number
  /** A subscription id never used before by this client. */
  nextSid(): string
}
