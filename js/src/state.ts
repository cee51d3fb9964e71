import type { TidewireError } from './error.js'
import type { Limits } from './frames.js'

interface StateBase {
  /** The server's build, once it said that it runs another one than this page. Reload when it suits. */
  readonly updateAvailable?: string
}

/**
 * Where the connection is. `kind`:
 * - `idle`: not dialled yet, or closed by the server because nothing was subscribed; the next use dials.
 * - `connecting`: a token is fetched, a socket opens, or `welcome` is awaited.
 * - `connected`: the server said `welcome`.
 * - `waiting`: not connected; dials at `reconnectAt` (milliseconds since 1970). `attempt` counts failures in a row from 1.
 * - `stopped`: will not dial by itself. `closed`: {@link Client.close} was called. `unauthenticated`: there is no
 *   token that the server takes. `refused`: the server does not speak with this client.
 */
export type ConnectionState = StateBase &
  (
    | { readonly kind: 'idle' }
    | { readonly kind: 'connecting'; readonly attempt: number }
    | {
        readonly kind: 'connected'
        /** Names this connection in the server's logs. */
        readonly connection: string
        /** This client's public session id: what others see in `from` and in rosters. */
        readonly session: string
        /** Absent for an anonymous client. */
        readonly actor?: string
        readonly limits: Limits
      }
    | { readonly kind: 'waiting'; readonly reconnectAt: number; readonly attempt: number; readonly error: TidewireError }
    | { readonly kind: 'stopped'; readonly reason: 'closed' | 'unauthenticated' | 'refused'; readonly error: TidewireError }
  )

/** A state without what stays the same from one to the next. */
export type BareState = Bare<ConnectionState>

// Omit on a union takes only what all have in common.
type Bare<T> = T extends unknown ? Omit<T, 'updateAvailable'> : never
