import type { Code } from './codes.js'
import { TidewireError } from './error.js'

/** JSON of value. Throws DATA_INVALID for what has none: undefined, functions, cycles, bigint. */
export function encodeJSON(value: unknown): string {
  let cause = 'it has no JSON form'
  try {
    const json = JSON.stringify(value) as string | undefined
    if (json) return json
  } catch (error) {
    cause = String(error)
  }
  throw new TidewireError('DATA_INVALID', { cause })
}

/** Throws code if text has more than limit bytes in UTF-8. */
export function checkSize(text: string, limit: number, code: Code): void {
  const bytes = new TextEncoder().encode(text).length
  if (bytes > limit) throw new TidewireError(code, { cause: `${bytes} bytes, and ${limit} are allowed` })
}
