/** A column of a predicate or an order, as the server describes it. */
export interface ColumnType {
  readonly type: string
  readonly collation?: string
  readonly affinity?: string
  readonly labels?: readonly string[]
  readonly bits?: number
}

// The ranks are SQLite's order of storage classes. PostgreSQL compares within one rank: decimals are its int and numeric, and times are texts that sort as they do.
export const NUMBER = 0
export const TEXT = 1
export const BLOB = 2
const DECIMAL = 3

/** A value that is not NULL. Numbers and bigints are compared exactly with each other by JavaScript. */
export type Value = readonly [rank: number, value: number | bigint | string]

/** Where JSON comes from: a cell of a row, a parameter, or the text of the definition. */
export type Origin = 'cell' | 'param' | 'literal'

// A number for both databases, after the spaces of SQLite: $1. It need not be the whole text.
const LEADING_NUMBER = /^[ \t\n\v\f\r]*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)/
const INFINITE = /^-?Infinity$/
const NOT_FINITE = /^(NaN|-?Infinity)$/
const TIME = /^(\d{4,7})-(\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d)(\.\d{1,6})?(Z?))?( BC)?$/

/** The value of JSON that is not null, for a column. Undefined if that is not clear. */
export function valueOf(engine: string, column: ColumnType | undefined, json: unknown, origin: Origin): Value | undefined {
  // Of json one does not see whether it was text in the database.
  if (!column || json === undefined || column.type === 'json') return
  return (engine === 'sqlite' ? sqliteValue : postgresValue)(column, json, origin)
}

function postgresValue({ type, bits, labels = [] }: ColumnType, json: unknown, origin: Origin): Value | undefined {
  const text = typeof json === 'number' ? `${json}` : json
  if (type === 'bool') return typeof json === 'boolean' ? [NUMBER, +json] : undefined
  if (typeof text !== 'string') return
  switch (type) {
    case 'int':
    case 'numeric':
      return NOT_FINITE.test(text) || /^-?\d+(\.\d*)?$/.test(text) ? [DECIMAL, text] : undefined
    case 'float': {
      if (!NOT_FINITE.test(text) && LEADING_NUMBER.exec(text)?.[1] !== text) return
      return [NUMBER, bits === 32 && origin !== 'literal' ? Math.fround(+text) : +text]
    }
  }
  if (text !== json) return
  switch (type) {
    case 'text':
      return [TEXT, json]
    case 'uuid':
      return /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/i.test(json) ? [TEXT, json.toLowerCase()] : undefined
    case 'bytes':
      return blob(json)
    case 'enum': {
      const at = labels.indexOf(json)
      return at < 0 ? undefined : [NUMBER, at]
    }
    case 'date':
    case 'timestamp':
    case 'timestamptz':
      return timeOf(type, json)
  }
  return
}

function timeOf(type: string, text: string): Value | undefined {
  if (/^-?infinity$/.test(text)) return [TEXT, text < 'a' ? '' : '~']
  const [, year = '', day, time, fraction = '', zone, bc] = TIME.exec(text) ?? []
  if (!year || type !== (time ? (zone ? 'timestamptz' : 'timestamp') : 'date')) return
  return [TEXT, [2e7 + (bc ? 1 - +year : +year), day, time].join() + fraction.replace(/\.?0*$/, '')]
}

function blob(base64: unknown): Value | undefined {
  try {
    return [BLOB, atob(base64 as string)]
  } catch {
    return
  }
}

function sqliteValue(column: ColumnType, json: unknown, origin: Origin): Value | undefined {
  const { type, affinity } = column
  if (typeof json === 'number' || typeof json === 'boolean') return converted(column, [NUMBER, +json], origin)
  if (typeof json !== 'string') {
    const { $bytes, $int, $text } = json as Record<string, unknown>
    if ($bytes !== undefined) return blob($bytes)
    return converted(column, typeof $int === 'string' ? integer($int) : typeof $text === 'string' ? [TEXT, $text] : undefined, origin)
  }
  if (origin !== 'literal' && type === 'bytes') return blob(json)
  // Text in a column of numbers is marked: a string is a number that JSON does not have.
  if (origin === 'cell' && /int|float/.test(type)) return INFINITE.test(json) ? [NUMBER, +json] : integer(json)
  if (origin === 'param' && type === 'float' && NOT_FINITE.test(json)) return json === 'NaN' ? undefined : [NUMBER, +json]
  // Where anything can stand it may be the number or the text.
  if (origin !== 'param' && affinity !== 'text' && INFINITE.test(json)) return
  return converted(column, [TEXT, json], origin)
}

/** A parameter as SQLite converts it beside the column. A number would become a text that is SQLite's own. */
function converted({ type, affinity }: ColumnType, value: Value | undefined, origin: Origin): Value | undefined {
  if (!value || origin !== 'param' || !affinity) return value
  const [rank, text] = value
  if (affinity === 'text') return rank === NUMBER ? undefined : value
  if (typeof text !== 'string') return value
  const [all = '', number = ''] = LEADING_NUMBER.exec(text) ?? []
  if (!number || /[^ \t\n\v\f\r]/.test(text.slice(all.length))) return value
  return ((type !== 'float' || number !== text) && integer(number)) || [NUMBER, +number]
}

function integer(text: string): Value | undefined {
  if (!/^[-+]?\d+$/.test(text)) return
  const value = BigInt(text)
  return BigInt.asIntN(64, value) === value ? [NUMBER, value] : undefined
}

/** What SQLite takes for true: a number that is not zero, or what begins with one. */
export function truthy([rank, value]: Value): boolean {
  return Number(rank === NUMBER ? value : (LEADING_NUMBER.exec(value as string)?.[1] ?? 0)) !== 0
}

/** The order of two values of one column: negative, zero or positive. */
export function compare([rank, a]: Value, [otherRank, b]: Value, collation?: string): number {
  if (rank !== otherRank) return rank - otherRank
  if (rank === DECIMAL) return compareDecimals(a as string, b as string)
  // NaN equals itself and is above everything.
  if (rank === NUMBER) return a < b ? -1 : a > b ? 1 : +Number.isNaN(a) - +Number.isNaN(b)
  return compareText(a as string, b as string, rank === TEXT ? collation : '')
}

// By their place: a number is the one in the middle.
const SPECIAL = ['-Infinity', '', 'Infinity', 'NaN']

function compareDecimals(a: string, b: string): number {
  const [x, y] = [a, b].map((text) => (NOT_FINITE.test(text) ? SPECIAL.indexOf(text) : 1)) as [number, number]
  if (x !== 1 || y !== 1) return x - y
  const [[whole = '', fraction = ''], [otherWhole = '', otherFraction = '']] = [a.split('.'), b.split('.')]
  const digits = Math.max(fraction.length, otherFraction.length)
  const difference = BigInt(whole + fraction.padEnd(digits, '0')) - BigInt(otherWhole + otherFraction.padEnd(digits, '0'))
  return difference < 0n ? -1 : +(difference > 0n)
}

/** Lower case of ASCII alone. */
const fold = (text: string) => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase())

function compareText(a: string, b: string, collation: string | undefined): number {
  if (collation === 'rtrim') [a, b] = [trimmed(a), trimmed(b)]
  const nocase = collation === 'nocase'
  if (nocase) [a, b] = [fold(a), fold(b)]
  for (let i = 0; i < a.length && i < b.length; i++) {
    const x = a.charCodeAt(i)
    const y = b.charCodeAt(i)
    if (x !== y) return byCodePoint(x) - byCodePoint(y)
    // SQLite's NOCASE looks no further, and then at the lengths.
    if (nocase && !x) break
  }
  return nocase ? bytes(a) - bytes(b) : a.length - b.length
}

// UTF-8 has the order of the code points, UTF-16 has surrogates before U+E000.
const byCodePoint = (unit: number) => (unit < 0xd800 ? unit : unit < 0xe000 ? unit + 0x2000 : unit - 0x800)

const bytes = (text: string) => new TextEncoder().encode(text).length

function trimmed(text: string): string {
  let end = text.length
  while (text[end - 1] === ' ') end--
  return text.slice(0, end)
}

const ONE = 1
const MANY = 2

/** LIKE. Undefined if the pattern ends in its escape character. It goes back to the last % alone, so the time is bounded by the product of the lengths. */
export function like(text: string, pattern: string, escape?: string, folded?: boolean): boolean | undefined {
  const tokens: (string | number)[] = []
  const source = [...pattern]
  const plain = folded ? fold : (char: string) => char
  for (let i = 0; i < source.length; i++) {
    const char = source[i] as string
    if (char === escape) {
      if (++i === source.length) return
      tokens.push(plain(source[i] as string))
    } else tokens.push(char === '%' ? MANY : char === '_' ? ONE : plain(char))
  }
  const chars = [...plain(text)]
  let at = 0
  let star = -1
  let retry = 0
  for (let i = 0; i < chars.length; ) {
    const token = tokens[at]
    if (token === MANY) {
      star = at++
      retry = i
    } else if (token === ONE || token === chars[i]) {
      at++
      i++
    } else if (star >= 0) {
      i = ++retry
      at = star + 1
    } else return false
  }
  while (tokens[at] === MANY) at++
  return at === tokens.length
}
