/**
 * Live queries: rows that follow the database.
 *
 * # Consistency
 * The rows are always those of one commit, never a part of it. What one commit changed in several queries of a client is in all of them before the first listener is called: patches wait for each other, up to a
 * quarter of a second; not so for rows that are read or sent again. The rows are held against the server's checksum after each change; rows that have drifted are not shown, and are read anew.
 *
 * # Without a connection
 * The rows stay, as `stale`. On the next connection only what was missed is sent, where the server still has it.
 */
import type { Client } from '../client.js'
import { encodeJSON } from '../json.js'
import type { LinkedClient } from '../link.js'
import type { Observable } from '../store.js'
import { canonical } from './checksum.js'
import { createHub, type Hub } from './hub.js'
import { createSharedQuery } from './shared.js'
import type { QueryState } from './state.js'

export type { QueryState } from './state.js'

/** The parameters of a live query: a JSON object. */
export type QueryInput = Readonly<Record<string, unknown>>

/** A live query with an input. It is subscribed while it has listeners, and a tenth of a second longer. */
export interface LiveQuery<Row = Readonly<Record<string, unknown>>> extends Observable<QueryState<Row>> {
  readonly name: string
  /** How many times the rows did not have the server's checksum. That is a bug. */
  readonly drifts: number
}

// A client's hub has its queries weakly, so that they live as long as their users.
const hubs = /* @__PURE__ */ new WeakMap<Client, Hub>()

/**
 * The live query of client with this name and input: the same object for an equal input. Nothing is subscribed until someone listens. Throws DATA_INVALID for an input that has no JSON form.
 *
 * ```ts
 * const board = liveQuery<Card>(client, 'board', { list: '7' })
 * board.subscribe(() => render(board.getSnapshot().rows))
 * ```
 */
export function liveQuery<Row = Readonly<Record<string, unknown>>>(client: Client, name: string, input: QueryInput = {}): LiveQuery<Row> {
  const parameters = JSON.parse(encodeJSON(input)) as QueryInput
  let hub = hubs.get(client)
  if (!hub) hubs.set(client, (hub = createHub((client as LinkedClient)._link)))
  const { _known: known } = hub
  const key = canonical([name, parameters])
  const made = known.get(key)?.deref()
  // The type of the rows is the caller's word.
  if (made) return made as unknown as LiveQuery<Row>
  for (const [other, reference] of known) if (!reference.deref()) known.delete(other)
  const query = createSharedQuery(hub, name, parameters)
  known.set(key, new WeakRef(query))
  return query as unknown as LiveQuery<Row>
}
