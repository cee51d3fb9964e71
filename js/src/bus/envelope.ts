import { fail } from './fail.js'

/** A typed payload. docs/envelope.md has the format byte by byte. */
export interface NativeEnvelope {
  /** What the payload is: 1 to 32 of the characters a-z, 0-9 and -. */
  readonly type: string
  /** At most 16 MiB. */
  readonly payload: Uint8Array
}

export function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text)
}

function head(type: string, size: number): Uint8Array {
  if (!/^[a-z0-9-]{1,32}$/.test(type) || !(size <= 1 << 24)) fail('envelope')
  // 0xf5 is a byte that UTF-8 never has, so that no text is an envelope; 1 is the version.
  return Uint8Array.of(0xf5, 0x54, 0x57, 1, type.length, ...utf8(type), size >> 24, size >> 16, size >> 8, size)
}

/** The bytes of an envelope. Throws a TypeError if the type is malformed, or the payload is too large or not bytes. */
export function encodeNativeEnvelope({ type, payload }: NativeEnvelope): Uint8Array<ArrayBuffer> {
  const start = head(type, payload.byteLength)
  const bytes = new Uint8Array(start.length + payload.length)
  bytes.set(start)
  bytes.set(payload, start.length)
  return bytes
}

/** Reads the envelope that data is, the whole of it. Undefined for everything else; never throws. The payload is a view of data. */
export function decodeNativeEnvelope(data: unknown): NativeEnvelope | undefined {
  try {
    const bytes = data as Uint8Array
    const end = 9 + (bytes[4] as number)
    const type = String.fromCharCode(...bytes.subarray(5, end - 4))
    const payload = bytes.subarray(end)
    // There is one way to write an envelope.
    if (head(type, payload.byteLength).every((byte, i) => bytes[i] === byte)) return { type, payload }
  } catch {}
}
