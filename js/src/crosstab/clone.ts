import { TidewireError } from '../error.js'

/** Throws DATA_INVALID, with the path of the value at fault, for data that cannot be copied to another tab: a function, a symbol, a Proxy, a node of the document. In every mode, so that what works in one tab works in two. */
export function checkData(data: unknown): void {
  const path = unclonable(data, 'data')
  if (path) throw new TidewireError('DATA_INVALID', { cause: `${path} cannot be copied to another tab` })
}

function unclonable(value: unknown, path: string): string | undefined {
  try {
    structuredClone(value)
    return undefined
  } catch {
    // The first part at fault, or the whole if it has no such part.
    const parts = value && typeof value === 'object' ? Object.entries(value) : []
    for (const [key, part] of parts) {
      const found = unclonable(part, Array.isArray(value) ? `${path}[${key}]` : `${path}.${key}`)
      if (found) return found
    }
    return path
  }
}
