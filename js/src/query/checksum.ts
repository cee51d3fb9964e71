/** The one text of a JSON value (RFC 8785): what JSON.stringify writes, with the members sorted. */
export function canonical(value: unknown): string {
  if (!value || typeof value !== 'object') return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(canonical)}]`
  const members = Object.entries(value)
  // Most rows: the server writes them sorted.
  if (members.every(([key, member], i) => !(member && typeof member === 'object') && (!i || (members[i - 1]?.[0] as string) < key))) return JSON.stringify(value)
  return `{${members.sort(byKey).map(([key, member]) => `${JSON.stringify(key)}:${canonical(member)}`)}}`
}

const byKey = ([a]: [string, unknown], [b]: [string, unknown]) => (a < b ? -1 : 1)

/** FNV-1a of 64 bits over UTF-8, finished as MurmurHash3 does. */
export function checksum(text: string): bigint {
  // In two halves: BigInt for each byte would take twenty times as long.
  let high = 0xcbf29ce4
  let low = 0x84222325
  for (const byte of new TextEncoder().encode(text)) {
    low = (low ^ byte) >>> 0
    // The prime is 2^40 + 435.
    const product = low * 435
    high = (high * 435 + Math.floor(product / 2 ** 32) + low * 256) >>> 0
    low = product >>> 0
  }
  const hash = (BigInt(high) << 32n) | BigInt(low)
  const mixed = mix(mix(hash, 0xff51afd7ed558ccdn), 0xc4ceb9fe1a85ec53n)
  return mixed ^ (mixed >> 33n)
}

const mix = (hash: bigint, factor: bigint) => BigInt.asUintN(64, (hash ^ (hash >> 33n)) * factor)
