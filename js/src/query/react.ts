/** The React binding of live queries. */
import { useSyncExternalStore } from 'react'
import { useClient } from '../react.js'
import { liveQuery, type QueryInput, type QueryState } from './index.js'

/** Follows a live query of the nearest provider's client while mounted. An equal input is the same query, whatever object it is. */
export function useLiveQuery<Row = Readonly<Record<string, unknown>>>(name: string, input?: QueryInput): QueryState<Row> {
  const query = liveQuery<Row>(useClient(), name, input)
  return useSyncExternalStore(query.subscribe, query.getSnapshot, query.getSnapshot)
}
