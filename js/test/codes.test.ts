import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { codes } from '../src/codes.js'

const read = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')

it("the table has every code of the server's", () => {
  const documented = [...read('docs/errors.md').matchAll(/^\| `([A-Z_]+)`/gm)].map(([, code]) => code)
  expect(documented.length).toBeGreaterThan(10)
  expect(documented.filter((code) => !codes.some((known) => known === code))).toEqual([])
})

it("the table has every code of the shared list", () => {
  const listed = (JSON.parse(read('spec/vectors/errors.json')) as readonly { readonly code: string }[]).map(({ code }) => code)
  expect(listed.length).toBeGreaterThan(10)
  expect(listed.filter((code) => !codes.some((known) => known === code))).toEqual([])
})

it('the table names each code once', () => {
  expect(new Set(codes).size).toBe(codes.length)
})
