import type { Code } from './codes.js'

/** What a {@link TidewireError} carries beside its code. */
export interface ErrorDetails {
  /** What went wrong, for people. Default: empty, the code says it. */
  readonly cause?: string | undefined
  /** What to do about it, for people. */
  readonly fix?: string | undefined
  /** Repeating after this many milliseconds can help. Absent: repeating does not help. */
  readonly retryAfterMs?: number | undefined
}

/** The one error type of this package: a refusal by the server, or a failure found here. Switch on `code`. */
export class TidewireError extends Error {
  declare readonly name: 'TidewireError'
  /** Stable. See {@link Code}; a newer server may send a code that is not in the table. */
  declare readonly code: Code | (string & {})
  /** What went wrong, for people; never parse it. May be empty. */
  declare readonly cause: string
  declare readonly fix: string | undefined
  declare readonly retryAfterMs: number | undefined

  constructor(code: Code | (string & {}), { cause = '', fix, retryAfterMs }: ErrorDetails = {}) {
    super(cause ? `${code}: ${cause}` : code)
    Object.assign(this, { name: 'TidewireError', code, cause, fix, retryAfterMs })
  }
}
