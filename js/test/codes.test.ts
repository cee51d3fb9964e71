import { existsSync, readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { codes } from '../src/codes.js'

const file = new URL('../../docs/errors.md', import.meta.url)

it.runIf(existsSync(file))("the table has every code of the server's", () => {
  const documented = [...readFileSync(file, 'utf8').matchAll(/^\| `([A-Z_]+)`/gm)].map(([, code]) => code)
  expect(documented.length).toBeGreaterThan(10)
  expect(documented.filter((code) => !codes.some((known) => known === code))).toEqual([])
})

it('the table names each code once', () => {
  expect(new Set(codes).size).toBe(codes.length)
})
