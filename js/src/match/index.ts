/**
 * Decides in the browser what the database would: whether a row meets the condition of a live query, and where it stands in its order. For rows that the server has not seen yet.
 *
 * # Exactness
 * Rows and parameters have the form of the protocol: decimals and large integers are strings, times too. What is decided here is what the database decides: three-valued logic, integers
 * and decimals without loss, NaN, text by its bytes. The same vectors run in Go, where they are held against both databases.
 *
 * # What is not decided
 * What cannot be told from what is here: a column that the row does not have, a parameter that is not given (such as an attribute of the actor), the order of a locale, a value of the wrong form, a test
 * that this version does not know. {@link match} then returns undefined, a comparison by {@link compareRows} throws {@link UndecidedError}. Neither guesses. In a column of json, null is taken for NULL.
 */
import { BLOB, type ColumnType, compare, like, type Origin, TEXT, truthy, valueOf } from './value.js'

export type { ColumnType } from './value.js'

/** The condition of a query, compiled by the server. */
export interface Predicate {
  readonly engine: string
  readonly columns: Readonly<Record<string, ColumnType>>
  readonly where: PredicateNode
}

/** A value, or the name of the parameter that it is. */
export interface PredicateValue {
  readonly value?: unknown
  readonly param?: string
}

/** A node of a condition in negation normal form. */
export interface PredicateNode extends PredicateValue {
  readonly op: string
  readonly args?: readonly PredicateNode[]
  readonly column?: string
  readonly other?: string
  readonly values?: readonly PredicateValue[]
  readonly list?: string
  readonly escape?: string
  readonly fold?: boolean
  /** False: only the database can tell. */
  readonly exact?: boolean
}

/** The order of a query's rows. */
export interface Order {
  readonly engine: string
  readonly columns: readonly (ColumnType & { readonly name: string })[]
  readonly keys: readonly OrderKey[]
}

export interface OrderKey {
  readonly column: string
  readonly desc?: boolean
  readonly nulls: 'first' | 'last'
  /** Text is compared by its bytes, whatever the collation of the column. */
  readonly bytes?: boolean
}

/** True, false, null for SQL's unknown, which is no match, or undefined: only the server can tell. */
export type Truth = boolean | null | undefined

/** Thrown by a comparison of rows of which only the server knows the order. */
export class UndecidedError extends Error {
  declare readonly name: 'UndecidedError'
  declare readonly column: string

  constructor(column: string) {
    super(`the order by ${column} is known to the server alone`)
    Object.assign(this, { name: 'UndecidedError', column })
  }
}

type Members = Readonly<Record<string, unknown>>

/** Whether a row meets a condition under the given parameters. */
export function match(predicate: Predicate, params: Members, row: Members): Truth {
  const { engine, columns } = predicate
  const sqlite = engine === 'sqlite'

  const given = ({ value, param }: PredicateValue) => (param === undefined ? value : member(params, param))
  const originOf = ({ param }: PredicateValue): Origin => (param === undefined ? 'literal' : 'param')
  const typeOf = (column: string) => member(columns, column) as ColumnType | undefined
  const read = (column: string) => valueOf(engine, typeOf(column), member(row, column), 'cell')

  function evaluate(node: PredicateNode): Truth {
    const { op, args = [] } = node
    if (op === 'and' || op === 'or') return joined(op === 'or', args.map(evaluate))
    if (node.exact === false) return
    // Each test has its negation, which is unknown where it is.
    const test = op === '<>' ? '=' : op === 'false' ? 'true' : op.replace('not ', '')
    const truth = leaf(test, node)
    return test === op || typeof truth !== 'boolean' ? truth : !truth
  }

  function leaf(test: string, node: PredicateNode): Truth {
    const { column = '', other } = node
    const cell = member(row, column)
    const argument = other === undefined ? given(node) : member(row, other)

    /** Whether the order of the cell and an argument is so. */
    function compared(is: (order: number) => boolean, json = argument, origin = originOf(node)): Truth {
      if (cell === null || json === null) return null
      const type = typeOf(column)
      const [x, y] = [read(column), other === undefined ? valueOf(engine, type, json, origin) : read(other)]
      return x && y && is(compare(x, y, type?.collation))
    }

    switch (test) {
      case 'const':
      case 'param':
        return argument === null || typeof argument === 'boolean' ? argument : undefined
      case 'param is null':
        return argument === undefined ? argument : argument === null
      case 'is null':
        return cell === undefined ? cell : cell === null
      case 'true': {
        const value = cell === null ? null : read(column)
        return value && truthy(value)
      }
      case '=':
        return compared((order) => !order)
      case '<':
        return compared((order) => order < 0)
      case '<=':
        return compared((order) => order <= 0)
      case '>':
        return compared((order) => order > 0)
      case '>=':
        return compared((order) => order >= 0)
      case 'is distinct':
        if (cell === undefined || argument === undefined) return
        return cell === null || argument === null ? cell !== argument : compared((order) => !!order)
      case 'in': {
        const { list, values = [] } = node
        const equal = (item: unknown, origin: Origin) => compared((order) => !order, item, origin)
        if (list === undefined) return joined(true, values.map((value) => equal(given(value), originOf(value))))
        const items = member(params, list)
        if (!Array.isArray(items)) return items === null ? items : undefined
        return joined(true, items.map((item) => equal(item, 'param')))
      }
      case 'like': {
        if (cell === null) return null
        const value = read(column)
        // A blob matches no pattern, not even NULL.
        if (!value || value[0] === BLOB) return value && false
        if (argument === null) return null
        if (typeof argument !== 'string') return
        if (value[0] !== TEXT) return false
        const text = sqlite ? (value[1] as string).replace(/\0[^]*/, '') : (value[1] as string)
        return like(text, argument, node.escape, node.fold)
      }
    }
    return
  }

  return evaluate(predicate.where)
}

/** Makes the comparison of two rows: negative if the first stands before the other, zero if no key tells them apart. For Array.sort, and to find the place of a row. */
export function compareRows({ engine, columns, keys }: Order): (a: Members, b: Members) => number {
  return (a, b) => {
    for (const { column, desc, nulls, bytes } of keys) {
      const [x, y] = [member(a, column), member(b, column)]
      if (x === undefined || y === undefined) throw new UndecidedError(column)
      if (x === null && y === null) continue
      if (x === null || y === null) return (x === null) === (nulls === 'first') ? -1 : 1
      const type = columns.find(({ name }) => name === column)
      // PostgreSQL's char(n) has no other bytes than its own.
      const collation = bytes && !(engine !== 'sqlite' && /rtrim|custom/.test(type?.collation ?? '')) ? '' : type?.collation
      const [v, w] = [x, y].map((json) => valueOf(engine, type, json, 'cell'))
      if (!v || !w || collation === 'locale' || collation === 'custom') throw new UndecidedError(column)
      const order = compare(v, w, collation)
      if (order) return desc ? -order : order
    }
    return 0
  }
}

/** OR, or AND if true does not decide it. */
function joined(deciding: boolean, truths: readonly Truth[]): Truth {
  if (truths.includes(deciding)) return deciding
  return truths.includes(undefined) ? undefined : truths.includes(null) ? null : !deciding
}

// Not what every object inherits.
const member = (of: Members, name: string): unknown => (Object.hasOwn(of, name) ? of[name] : undefined)
