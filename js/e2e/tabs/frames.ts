/** Cuts the bytes of one direction of a WebSocket into messages: whole ones, unmasked, with their opcode. Nothing is compressed. */
export class Cutter {
  #rest: Buffer = Buffer.alloc(0)
  #parts: Buffer[] = []
  #opcode = 0

  /** The messages that these bytes complete. */
  take(bytes: Buffer): { readonly opcode: number; readonly data: Buffer }[] {
    this.#rest = this.#rest.length > 0 ? Buffer.concat([this.#rest, bytes]) : bytes
    const whole: { opcode: number; data: Buffer }[] = []
    for (;;) {
      const frame = cut(this.#rest)
      if (!frame) return whole
      this.#rest = this.#rest.subarray(frame.end)
      if (frame.opcode >= 8) {
        whole.push({ opcode: frame.opcode, data: frame.data })
        continue
      }
      if (frame.opcode !== 0) this.#opcode = frame.opcode
      this.#parts.push(frame.data)
      if (!frame.final) continue
      whole.push({ opcode: this.#opcode, data: Buffer.concat(this.#parts) })
      this.#parts = []
    }
  }
}

/** The first frame, if all of it is there. */
function cut(bytes: Buffer): { readonly final: boolean; readonly opcode: number; readonly data: Buffer; readonly end: number } | undefined {
  if (bytes.length < 2) return undefined
  const [first, second] = [bytes.readUInt8(0), bytes.readUInt8(1)]
  let [at, length] = [2, second & 127]
  if (bytes.length < at + (length === 126 ? 2 : length === 127 ? 8 : 0)) return undefined
  if (length === 126) [at, length] = [4, bytes.readUInt16BE(2)]
  else if (length === 127) [at, length] = [10, Number(bytes.readBigUInt64BE(2))]
  const mask = second & 128 ? bytes.subarray(at, (at += 4)) : undefined
  if (bytes.length < at + length) return undefined
  const data = mask ? Buffer.from(bytes.subarray(at, at + length).map((byte, i) => byte ^ (mask[i & 3] ?? 0))) : bytes.subarray(at, at + length)
  return { final: (first & 128) !== 0, opcode: first & 15, data, end: at + length }
}
