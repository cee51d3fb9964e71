const DEPTH = 4

/**
 * The ArrayBuffers of a value that can be moved: its own, and those of views that are all of their buffer, down to some levels of arrays and plain objects. A view of a part stays: others may look at the
 * rest.
 */
export function buffersOf(value: unknown, depth = DEPTH, found = new Set<ArrayBuffer>()): ArrayBuffer[] {
  if (value instanceof ArrayBuffer) found.add(value)
  else if (ArrayBuffer.isView(value)) {
    if (value.buffer instanceof ArrayBuffer && value.byteLength === value.buffer.byteLength) found.add(value.buffer)
  } else if (typeof value === 'object' && value && depth) {
    const plain = Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype
    if (plain) for (const member of Object.values(value)) buffersOf(member, depth - 1, found)
  }
  return [...found]
}
