import type { TidewireError } from '../error.js'

/**
 * The rows in the order of the query, and whether they follow the database. `rows` is the same array until they change, and a row the same object until it changes. `kind`:
 * - `idle`: nobody listens, or the client is stopped. The rows are the last known.
 * - `loading`: there are no rows yet.
 * - `live`: they are the database's.
 * - `stale`: they were; the connection is gone, or some are missing and are on their way.
 * - `refused`: the server said no, or ended it. Asked again at `retryAt` (milliseconds since 1970) if the server said when, and with every new connection.
 */
export type QueryState<Row> =
  | { readonly kind: 'idle' | 'loading' | 'live' | 'stale'; readonly rows: readonly Row[]; readonly error?: undefined }
  | { readonly kind: 'refused'; readonly rows: readonly Row[]; readonly error: TidewireError; readonly retryAt?: number }
