import { readFileSync } from 'node:fs'
import { describe, expect, test } from 'vitest'
import { compareRows, match, type Order, type Predicate, type PredicateNode, type Truth, UndecidedError } from '../src/match/index.js'

type Row = Record<string, unknown>

interface MatchVector {
  readonly name: string
  readonly predicate: Predicate
  readonly params: Row
  readonly rows: readonly { readonly row: Row; readonly expected: 'true' | 'false' | 'unknown' }[]
}

const vectors = (name: string) => JSON.parse(readFileSync(new URL(`../../spec/vectors/${name}`, import.meta.url), 'utf8')) as unknown
const matches = vectors('match.json') as MatchVector[]
const { orders } = vectors('order.json') as { orders: (Order & { name: string; rows: Row[] })[] }

const named = { true: true, false: false, unknown: null }

/** What cannot be decided, and so counts as true in the vectors. */
function assumed(node: PredicateNode): PredicateNode {
  if (node.exact === false) return { op: 'const', value: true }
  return node.args ? { ...node, args: node.args.map(assumed) } : node
}
const inexact = (node: PredicateNode): boolean => node.exact === false || (node.args ?? []).some(inexact)

describe('S15: the vectors of conditions', () => {
  test.each(matches.map((v) => [v.name, v] as const))('%s', (_, { predicate, params, rows }) => {
    for (const { row, expected } of rows) {
      const truth = match(predicate, params, row)
      if (inexact(predicate.where)) {
        expect([named[expected], undefined]).toContain(truth)
        expect(match({ ...predicate, where: assumed(predicate.where) }, params, row)).toBe(named[expected])
      } else expect(truth, JSON.stringify(row)).toBe(named[expected])
    }
  })

  test('are all there', () => {
    expect(matches.length).toBeGreaterThan(200)
    expect(orders.length).toBeGreaterThan(25)
    expect(matches.filter(({ predicate }) => inexact(predicate.where)).length).toBeGreaterThan(1)
  })
})

describe('S15: the vectors of orders', () => {
  test.each(orders.map((v) => [v.name, v] as const))('%s', (_, order) => {
    const compare = compareRows(order)
    const { rows } = order
    for (const [i, a] of rows.entries()) for (const [j, b] of rows.entries()) expect(Math.sign(compare(a, b)), `${i} ${j}`).toBe(Math.sign(i - j))
    expect([...rows].reverse().sort(compare)).toEqual(rows)
  })
})

/** A condition on one column, c. */
function on(type: Row, where: PredicateNode, engine = 'postgresql'): Predicate {
  return { engine, columns: { c: type as unknown as Predicate['columns'][string] }, where }
}
const is = (type: Row, op: string, value: unknown, cell: unknown, engine?: string) => match(on(type, { op, column: 'c', value }, engine), {}, { c: cell })

describe('what cannot be decided is not guessed', () => {
  const text = { type: 'text' }
  const equal: PredicateNode = { op: '=', column: 'c', value: 'a' }

  test.each<[string, Truth]>([
    ['a column that the row does not have', match(on(text, equal), {}, {})],
    ['one that only every object has', match({ engine: 'postgresql', columns: { constructor: text } as never, where: { ...equal, op: 'is null', column: 'constructor' } }, {}, {})],
    ['a column that was not described', match(on(text, { ...equal, column: 'd' }), {}, { d: 'a' })],
    ['a parameter that is not given', match(on(text, { op: '=', column: 'c', param: 'actor.id' }), {}, { c: 'a' })],
    ['IS NULL of it', match(on(text, { op: 'param is null', param: 'x' }), {}, {})],
    ['IS NULL of one that every object has', match(on(text, { op: 'param is null', param: 'toString' }), {}, {})],
    ['a list that is not given', match(on(text, { op: 'in', column: 'c', list: 'x' }), {}, { c: 'a' })],
    ['a list that is none', match(on(text, { op: 'in', column: 'c', list: 'x' }), { x: 'a' }, { c: 'a' })],
    ['a test that is not known', match(on(text, { ...equal, op: 'similar to' }), {}, { c: 'a' })],
    ['what the server calls inexact', match(on(text, { ...equal, exact: false }), {}, { c: 'a' })],
    ['its negation', match(on(text, { ...equal, op: 'not in', exact: false }), {}, { c: 'a' })],
    ['a number for a text', is(text, '=', 'a', 7)],
    ['a text for a boolean', is({ type: 'bool' }, '=', true, 'true')],
    ['a word for an int', is({ type: 'int' }, '=', 7, 'seven')],
    ['a word for a float', is({ type: 'float' }, '=', 7, 'seven')],
    ['nothing for a float', is({ type: 'float' }, '=', 0, '')],
    ['a uuid that is none', is({ type: 'uuid' }, '<>', '00000000-0000-0000-0000-000000000001', 'x')],
    ['a time without its zone', is({ type: 'timestamptz' }, '<>', '2026-11-30T12:00:00Z', '2026-11-30T12:00:00')],
    ['a time with one too many', is({ type: 'timestamp' }, '<>', '2026-11-30T12:00:00', '2026-11-30T12:00:00Z')],
    ['a day for a time', is({ type: 'timestamp' }, '<>', '2026-11-30T12:00:00', '2026-11-30')],
    ['a zone that is not UTC', is({ type: 'timestamptz' }, '<>', '2026-11-30T12:00:00Z', '2026-11-30T12:00:00+01:00')],
    ['bytes that are not base64', is({ type: 'bytes' }, '<>', '', '*')],
    ['a label that the enum did not have', is({ type: 'enum', labels: ['a'] }, '<>', 'a', 'b')],
    ['a type that is not known', is({ type: 'array' }, '=', 'a', 'a')],
    ['json', is({ type: 'json' }, '=', 'a', 'a')],
    ['a pattern that ends in its escape', match(on(text, { op: 'like', column: 'c', param: 'p', escape: '!' }), { p: 'a!' }, { c: 'a' })],
    ['a number as a parameter beside a column of text in SQLite', match(on({ type: 'text', affinity: 'text' }, { op: '=', column: 'c', param: 'p' }, 'sqlite'), { p: 1 }, { c: '1' })],
    ['an infinity that may be a text', is({ type: 'dynamic', affinity: 'numeric' }, '=', 'a', 'Infinity', 'sqlite')],
    ['json text in SQLite', is({ type: 'json', affinity: 'numeric' }, '=', 'a', { a: 1 }, 'sqlite')],
  ])('%s', (_, truth) => expect(truth).toBeUndefined())

  test('what decides without it does', () => {
    const [no, yes, unknown, undecided] = [false, true, null, 0].map((value): PredicateNode => ({ op: 'const', value })) as [PredicateNode, PredicateNode, PredicateNode, PredicateNode]
    const value = (op: string, ...args: PredicateNode[]) => match(on(text, { op, args }), {}, {})
    expect(value('and', undecided, no)).toBe(false)
    expect(value('or', undecided, yes)).toBe(true)
    expect([value('and', undecided, yes), value('and', unknown, undecided), value('or', no, undecided), value('or', undecided, unknown)]).toEqual([undefined, undefined, undefined, undefined])
    expect(match(on(text, { op: 'in', column: 'c', values: [{ value: 'a' }, { param: 'x' }] }), {}, { c: 'a' })).toBe(true)
    // NULL is equal to nothing, whatever that is.
    expect(match(on(text, { op: '=', column: 'c', param: 'x' }), {}, { c: null })).toBe(null)
  })

  test('an order throws', () => {
    const order = (type: Row, bytes = false, engine = 'postgresql') =>
      compareRows({ engine, columns: [{ name: 'c', ...type } as never], keys: [{ column: 'c', nulls: 'last', bytes }] })
    const [a, b] = [{ c: 'a' }, { c: 'b' }]
    expect(order(text)(a, b)).toBeLessThan(0)
    for (const compare of [order({ type: 'text', collation: 'locale' }), order({ type: 'json' }), order({ type: 'int' }), order({ type: 'text', collation: 'custom' }, true)]) {
      expect(() => compare(a, b)).toThrow(UndecidedError)
    }
    expect(() => order(text)({}, { c: null })).toThrow(UndecidedError)
    expect(() => order(text)(a, {})).toThrow('the order by c is known to the server alone')
    expect(order({ type: 'text', collation: 'custom' }, true, 'sqlite')(a, b)).toBeLessThan(0)
    expect(order({ type: 'text', collation: 'locale' }, true)(a, b)).toBeLessThan(0)
  })
})

describe('S15: corners of SQLite', () => {
  const text = { type: 'text', affinity: 'text' }
  const real = { type: 'float', affinity: 'real' }
  const parameter = (type: Row, op: string, value: unknown, cell: unknown) => match(on(type, { op, column: 'c', param: 'p' }, 'sqlite'), { p: value }, { c: cell })

  test.each<[string, Truth, Truth]>([
    ['NOCASE ends at a NUL', is({ ...text, collation: 'nocase' }, '=', 'a\0b', 'A\0c', 'sqlite'), true],
    ['and counts bytes then', is({ ...text, collation: 'nocase' }, '=', 'a\0bb', 'A\0é', 'sqlite'), true],
    ['so does LIKE', is(text, 'like', '_', 'a\0b', 'sqlite'), true],
    ['a text that is the word for an infinity', is(text, '=', 'Infinity', 'Infinity', 'sqlite'), true],
    ['an infinity in a column of numbers', is(real, '>', 1e308, 'Infinity', 'sqlite'), true],
    ['an infinity as a parameter', parameter(real, '<', 'Infinity', 1), true],
    ['text among integers stands above them', is({ type: 'int', affinity: 'integer' }, '>', 7, { $text: '5' }, 'sqlite'), true],
    ['a parameter is converted with the spaces around it', parameter({ type: 'int', affinity: 'integer' }, '=', { $text: ' 7.0\n' }, 7), true],
    ['but not with others', parameter({ type: 'int', affinity: 'integer' }, '=', '7\u00a0', 7), false],
    ['an integer beyond 64 bits is a float', parameter({ type: 'dynamic', affinity: 'numeric' }, '=', '9223372036854775808', 2 ** 63), true],
  ])('%s', (_, truth, expected) => expect(truth).toBe(expected))
})

// Mulberry32. A failure names the seed.
function random(seed: number) {
  let state = seed
  const next = () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32
  }
  const below = (n: number) => Math.floor(next() * n)
  const pick = <T>(items: readonly T[]) => items[below(items.length)] as T
  return { below, pick, text: (atoms: readonly string[], length: number) => Array.from({ length: below(length + 1) }, () => pick(atoms)).join('') }
}

const ROUNDS = 2_000

describe('against a naive evaluator', () => {
  const seed = Date.now() >>> 0
  const { below, pick, text } = random(seed)
  const each = (check: () => void) => {
    for (let i = 0; i < ROUNDS; i++) check()
  }
  const order = (type: Row, a: unknown, b: unknown, engine = 'postgresql') =>
    compareRows({ engine, columns: [{ name: 'c', ...type } as never], keys: [{ column: 'c', nulls: 'last' }] })({ c: a }, { c: b })

  test(`S15: text has the order of its UTF-8 bytes (seed ${seed})`, () =>
    each(() => {
      const atoms = ['a', 'B', 'é', '\uffee', '😀', '\u{10ffff}', '\ud7ff', '\ue000', '\0', ' ']
      const [a, b] = [text(atoms, 4), text(atoms, 4)]
      expect(Math.sign(order({ type: 'text' }, a, b)), JSON.stringify([a, b])).toBe(Buffer.compare(Buffer.from(a), Buffer.from(b)))
    }))

  test(`S15: decimals and integers lose nothing (seed ${seed})`, () =>
    each(() => {
      const digits = () => text([...'0019'], 24) || '0'
      const number = () => pick(['', '-']) + digits() + pick(['', `.${digits()}`])
      // In units of 10^-24.
      const exact = (s: string) => {
        const [whole = '', fraction = ''] = s.replace('-', '').split('.')
        return BigInt(whole + fraction.padEnd(24, '0')) * (s.startsWith('-') ? -1n : 1n)
      }
      const [a, b] = [number(), number()]
      const [x, y] = [exact(a), exact(b)]
      expect(Math.sign(order({ type: 'numeric' }, a, b)), `${a} ${b}`).toBe(x < y ? -1 : +(x > y))
    }))

  test(`S15: LIKE is what a regular expression says (seed ${seed})`, () =>
    each(() => {
      const cell = text(['a', 'A', 'b', 'é', '😀', '%', '_', '!', '\n', '.'], 6)
      const pattern = text(['a', 'A', 'b', 'é', '😀', '%', '%', '_', '!%', '!_', '!!', '.', '\n'], 5)
      const folded = below(2) === 0
      let source = ''
      for (const [, escaped, char = ''] of pattern.matchAll(/!(.)|(.)/gsu)) {
        const literal = (c: string) => c.replace(/[.]/, '\\.')
        source += escaped !== undefined ? literal(escaped) : char === '%' ? '.*' : char === '_' ? '.' : literal(char)
      }
      const ascii = (s: string) => (folded ? s.replace(/[A-Z]/g, (c) => c.toLowerCase()) : s)
      const truth = match(on({ type: 'text' }, { op: 'like', column: 'c', value: pattern, escape: '!', fold: folded }), {}, { c: cell })
      expect(truth, JSON.stringify([cell, pattern])).toBe(new RegExp(`^${ascii(source)}$`, 'su').test(ascii(cell)))
    }))

  test(`S15: a condition is what its parts are, whatever is not decided (seed ${seed})`, () =>
    each(() => {
      const unknowns = 3
      const tree = (depth: number): PredicateNode =>
        depth === 0 || below(3) === 0
          ? below(3)
            ? { op: 'const', value: pick([true, false, null]) }
            : { op: 'param', param: `p${below(unknowns)}` }
          : { op: pick(['and', 'or']), args: Array.from({ length: 1 + below(3) }, () => tree(depth - 1)) }
      // Kleene's logic in numbers: AND is the least, OR the greatest.
      const rank = (node: PredicateNode, params: Row): number => {
        const ranks = (node.args ?? []).map((arg) => rank(arg, params))
        if (node.op === 'and') return Math.min(...ranks)
        if (node.op === 'or') return Math.max(...ranks)
        const value = node.op === 'const' ? node.value : params[node.param as string]
        return value === null ? 1 : value ? 2 : 0
      }
      const where = tree(4)
      const partly = match(on({ type: 'text' }, where), {}, {})
      for (let n = 0; n < 3 ** unknowns; n++) {
        const params = Object.fromEntries([0, 1, 2].map((i) => [`p${i}`, [false, null, true][Math.floor(n / 3 ** i) % 3]]))
        const want = [false, null, true][rank(where, params)]
        expect(match(on({ type: 'text' }, where), params, {})).toBe(want)
        if (partly !== undefined) expect(partly).toBe(want)
      }
    }))
})
