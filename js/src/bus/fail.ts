export function fail(what: string): never {
  throw new TypeError('tidewire: wrong ' + what)
}

/** Throws a TypeError that names the first option that is not among known, words with a space between. */
export function checkOptions(options: object, known: string): void {
  for (const name in options) if (!known.split(' ').includes(name)) fail('option ' + name)
}

/** Throws a TypeError if id is not a non-empty string. */
export function checkId(id: unknown): string {
  return id && typeof id == 'string' ? id : fail('id')
}
