/** 128 random bits, as text of at most 43 characters. */
export function randomId(): string {
  return crypto.getRandomValues(new Uint32Array(4)).join('-')
}
