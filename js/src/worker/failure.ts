import { TidewireError } from '../error.js'
import type { Failure } from './messages.js'

/** An error for a port. What is no TidewireError, nor like one, becomes INTERNAL. */
export function toFailure(error: unknown): Failure {
  const { code, cause, fix, retryAfterMs } = (error ?? {}) as Partial<TidewireError>
  return typeof code === 'string' ? { code, cause: String(cause ?? ''), fix, retryAfterMs } : { code: 'INTERNAL', cause: String(error) }
}

export function fromFailure({ code, ...details }: Failure): TidewireError {
  return new TidewireError(code, details)
}
