import { TidewireError } from 'tidewire'

/** What the server gives a guest. */
export interface Session {
  readonly token: string
  /** Names the page that the server serves. */
  readonly build: string
}

const TIMEOUT_MS = 8000

/** Asks the server for a token. Rejects with SOCKET_UNAUTHENTICATED when it does not take this guest: asking again would not help. */
export async function fetchSession(guest: string): Promise<Session> {
  const response = await fetch(`/demo/session?guest=${encodeURIComponent(guest)}`, { cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
  if (response.status >= 400 && response.status < 500) {
    throw new TidewireError('SOCKET_UNAUTHENTICATED', { cause: `the server answered ${response.status}` })
  }
  if (!response.ok) throw new Error(`the server answered ${response.status}`)
  return (await response.json()) as Session
}
