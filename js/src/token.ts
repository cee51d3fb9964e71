import { TidewireError } from './error.js'
import { SUBPROTOCOL } from './frames.js'

/**
 * The credential. A string is used as it is and never replaced: when the server refuses it the client stops.
 * A function is called when a token is needed, at most one call at a time. If it rejects with
 * `new TidewireError('SOCKET_UNAUTHENTICATED')` the client stops; any other failure is repeated with backoff.
 * It should give up by itself in reasonable time: the client waits for it.
 */
export type Token = string | (() => Promise<string>)

// A token may simply have been refused: a browser cannot tell that from an outage. Asking the
// application after each failed dial would move an outage to its token endpoint, so it is asked after a few.
const DIALS_PER_TOKEN = 3

/** Keeps the token: one for all dials until it expires, is refused, or fails to open a connection. */
export function createTokens(option: Token | undefined) {
  const renewable = typeof option === 'function'
  let current: string | undefined
  let expiresAt = Infinity // 0: the only credential there is was refused
  let refused: string | undefined
  let failedDials = 0
  let inFlight: Promise<string> | undefined

  async function ask(): Promise<string> {
    let token: unknown
    try {
      token = await (option as () => Promise<string>)()
    } catch (error) {
      if (error instanceof TidewireError && error.code === 'SOCKET_UNAUTHENTICATED') throw error
      throw new TidewireError('TOKEN_UNAVAILABLE', { cause: String(error) })
    }
    // Without a token the connection would be anonymous, which nobody asked for.
    if (!token || typeof token !== 'string') {
      throw new TidewireError('SOCKET_UNAUTHENTICATED', { cause: 'no token' })
    }
    if (token === refused) {
      throw new TidewireError('TOKEN_UNAVAILABLE', { cause: 'the refused token again' })
    }
    current = token
    expiresAt = Infinity
    failedDials = 0
    return token
  }

  const self = {
    /** Whether another token can be had. */
    _renewable: renewable,

    /** The token for a dial; undefined is an anonymous one. Rejects with SOCKET_UNAUTHENTICATED or TOKEN_UNAVAILABLE. */
    async _get(): Promise<string | undefined> {
      const expired = Date.now() >= expiresAt
      if (!renewable) {
        if (expired) throw new TidewireError('SOCKET_UNAUTHENTICATED')
        return option as string | undefined
      }
      if (inFlight) return inFlight
      return current === undefined || expired ? self._next() : current
    },

    /** Asks the provider, or joins the call in flight. */
    _next(): Promise<string> {
      return (inFlight ??= ask().finally(() => {
        inFlight = undefined
      }))
    },

    /** The server took token; it is good for so long. Absent: it does not expire. */
    _accepted(token: string | undefined, expiresInMs: number | undefined): void {
      failedDials = 0
      if (renewable && token !== current) return // a newer one is on its way
      expiresAt = expiresInMs === undefined ? Infinity : Date.now() + expiresInMs
    },

    /** The server refused token. Returns false when there is no way to another. */
    _refused(token: string | undefined): boolean {
      refused = token
      if (current === token) current = undefined
      if (!renewable) expiresAt = 0
      return renewable
    },

    /** A dial ended before it opened. */
    _dialFailed(): void {
      if (++failedDials % DIALS_PER_TOKEN === 0) current = undefined
    },

    /** The application wants another try. */
    _reset(): void {
      refused = undefined
      if (!renewable) expiresAt = Infinity
    },
  }
  return self
}

export type TokenSource = ReturnType<typeof createTokens>

/** The subprotocols to offer: browsers cannot set headers, so the credential is one of them. */
export function subprotocols(token: string | undefined): string[] {
  if (token === undefined) return [SUBPROTOCOL]
  const plain = /^[\w!#$%&'*+.^`|~-]+$/.test(token)
  return [SUBPROTOCOL, plain ? `tidewire.token.${token}` : `tidewire.token64.${base64url(token)}`]
}

function base64url(text: string): string {
  const binary = String.fromCharCode(...new TextEncoder().encode(text))
  return btoa(binary).replace(/[+/=]/g, (c) => '-_'['+/'.indexOf(c)] ?? '')
}
