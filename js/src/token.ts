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
export class TokenSource {
  readonly #option: Token | undefined
  #current: string | undefined
  #expiresAt = Infinity
  #refused: string | undefined
  #barred = false // the only credential there is was refused
  #failedDials = 0
  #inFlight: Promise<string> | undefined

  constructor(option: Token | undefined) {
    this.#option = option
  }

  /** Whether another token can be had. */
  get renewable(): boolean {
    return typeof this.#option === 'function'
  }

  /** The token for a dial; undefined is an anonymous one. Rejects with SOCKET_UNAUTHENTICATED or TOKEN_UNAVAILABLE. */
  async get(): Promise<string | undefined> {
    const expired = Date.now() >= this.#expiresAt
    if (!this.renewable) {
      if (this.#barred || expired) throw new TidewireError('SOCKET_UNAUTHENTICATED')
      return this.#option as string | undefined
    }
    if (this.#inFlight) return this.#inFlight
    return this.#current === undefined || expired ? this.fresh() : this.#current
  }

  /** Asks the provider, or joins the call in flight. */
  fresh(): Promise<string> {
    return (this.#inFlight ??= this.#ask().finally(() => {
      this.#inFlight = undefined
    }))
  }

  async #ask(): Promise<string> {
    let token: unknown
    try {
      token = await (this.#option as () => Promise<string>)()
    } catch (error) {
      if (error instanceof TidewireError && error.code === 'SOCKET_UNAUTHENTICATED') throw error
      throw new TidewireError('TOKEN_UNAVAILABLE', { cause: String(error) })
    }
    // Without a token the connection would be anonymous, which nobody asked for.
    if (typeof token !== 'string' || token === '') {
      throw new TidewireError('SOCKET_UNAUTHENTICATED', { cause: 'no token was provided' })
    }
    if (token === this.#refused) {
      throw new TidewireError('TOKEN_UNAVAILABLE', { cause: 'the refused token was provided again' })
    }
    this.#current = token
    this.#expiresAt = Infinity
    this.#failedDials = 0
    return token
  }

  /** The server took token; it is good for so long. Absent: it does not expire. */
  accepted(token: string | undefined, expiresInMs: number | undefined): void {
    this.#failedDials = 0
    if (this.renewable && token !== this.#current) return // a newer one is on its way
    this.#expiresAt = expiresInMs === undefined ? Infinity : Date.now() + expiresInMs
  }

  /** The server refused token. Returns false when there is no way to another. */
  refused(token: string | undefined): boolean {
    this.#refused = token
    if (this.#current === token) this.#current = undefined
    this.#barred = !this.renewable
    return this.renewable
  }

  /** A dial ended before it opened. */
  dialFailed(): void {
    if (++this.#failedDials % DIALS_PER_TOKEN === 0) this.#current = undefined
  }

  /** The application wants another try. */
  reset(): void {
    this.#barred = false
    this.#refused = undefined
    if (!this.renewable) this.#expiresAt = Infinity
  }
}

/** The subprotocols to offer: browsers cannot set headers, so the credential is one of them. */
export function subprotocols(token: string | undefined): string[] {
  if (token === undefined) return [SUBPROTOCOL]
  const plain = /^[\w!#$%&'*+.^`|~-]+$/.test(token)
  return [SUBPROTOCOL, plain ? `tidewire.token.${token}` : `tidewire.token64.${base64url(token)}`]
}

function base64url(text: string): string {
  const binary = String.fromCharCode(...new TextEncoder().encode(text))
  return btoa(binary).replace(/[+/=]/g, (c) => ({ '+': '-', '/': '_' })[c] ?? '')
}
