import { TidewireError } from './error.js'

/** JSON of value. Throws DATA_INVALID for what has none: undefined, functions, cycles, bigint. */
export function encodeJSON(value: unknown): string {
  let json: string | undefined
  let cause = 'it has no JSON form'
  try {
    json = JSON.stringify(value)
  } catch (error) {
    cause = String(error)
  }
  if (json === undefined) throw new TidewireError('DATA_INVALID', { cause })
  return json
}

/** The length of text in UTF-8. */
export function byteLength(text: string): number {
  return new TextEncoder().encode(text).length
}
