/**
 * 128 bits of a text as 32 hexadecimal digits: the same in every tab. It hides a name from who reads storage, not from who guesses it: it is no cryptographic hash, and a list of likely names finds a
 * likely name.
 */
export function createOpaqueKey(text: string): string {
  // Four multiplicative hashes, each fed by the one before it.
  let [a, b, c, d] = [0x6b43a9b5, 0x27d4eb2f, 0x165667b1, 0x5bd1e995]
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    a = b ^ Math.imul(a ^ code, 0x238f13af)
    b = c ^ Math.imul(b ^ code, 0x5d588b65)
    c = d ^ Math.imul(c ^ code, 0x1b873593)
    d = a ^ Math.imul(d ^ code, 0x2c1b3c6d)
  }
  // Short texts have not reached every bit yet.
  for (let i = 0; i < 4; i++) {
    a = b ^ Math.imul(a ^ (a >>> 15), 0x85ebca6b)
    b = c ^ Math.imul(b ^ (b >>> 13), 0xc2b2ae35)
    c = d ^ Math.imul(c ^ (c >>> 16), 0x27d4eb2d)
    d = a ^ Math.imul(d ^ (d >>> 14), 0x165667b1)
  }
  return [a, b, c, d].map((part) => (part >>> 0).toString(16).padStart(8, '0')).join('')
}
