import type { PatchFrame, SnapshotFrame, WireRow } from '../frames.js'
import { canonical, checksum } from './checksum.js'

interface Entry {
  readonly _key: string
  readonly _row: WireRow
  readonly _sum: bigint
}

/** The rows of a live query at one version. It is not changed: a patch makes another. */
export interface List {
  readonly _version: number
  readonly _epoch: string
  readonly _columns: readonly string[] // of the primary key
  readonly _entries: readonly Entry[]
  readonly _sum: bigint
  readonly _rows: readonly WireRow[]
}

// As the server writes the key of a deleted row.
function keyOf(columns: readonly string[], row: WireRow): string {
  return canonical(columns.length > 1 ? columns.map((column) => row[column]) : row[columns[0] as string])
}

/** The entry of a row. One that is the same as before keeps its object, so that who compares by reference does nothing. */
function entryOf(key: string, row: WireRow, before: Entry | undefined): Entry {
  const sum = checksum(canonical(row))
  return before?._sum === sum ? before : { _key: key, _row: row, _sum: sum }
}

const made = (_version: number, _epoch: string, _columns: readonly string[], _entries: readonly Entry[], _sum: bigint): List => ({
  _version,
  _epoch,
  _columns,
  _entries,
  _sum,
  _rows: _entries.map(({ _row }) => _row),
})

export function fromSnapshot({ version, epoch, key, rows }: SnapshotFrame, before: List | undefined): List {
  const known = new Map(before?._entries.map((entry) => [entry._key, entry]))
  const entries = rows.map((row) => {
    const name = keyOf(key, row)
    return entryOf(name, row, known.get(name))
  })
  return made(
    version,
    epoch,
    key,
    entries,
    entries.reduce((sum, { _sum }) => sum + _sum, 0n),
  )
}

/** The list after a patch; undefined if that does not fit. */
export function patched(list: List, { version, ops }: PatchFrame): List | undefined {
  const entries = [...list._entries]
  let sum = list._sum
  // A row that is taken out first and put in elsewhere is the same one.
  const gone = new Map<string, Entry>()
  for (const op of ops) {
    const put = 'put' in op
    const key = put ? keyOf(list._columns, op.put) : canonical(op.del)
    const index = entries.findIndex(({ _key }) => _key === key)
    if (index >= 0) {
      const [entry] = entries.splice(index, 1) as [Entry]
      sum -= entry._sum
      gone.set(key, entry)
    } else if (!put) return
    if (put) {
      if (!(op.at >= 0 && op.at <= entries.length)) return
      const entry = entryOf(key, op.put, gone.get(key))
      entries.splice(op.at, 0, entry)
      sum += entry._sum
    }
  }
  return made(version, list._epoch, list._columns, entries, sum)
}

/** The checksum of the rows, as the server writes it. */
export function digest(list: List): string {
  return BigInt.asUintN(64, list._sum).toString(16).padStart(16, '0')
}

/** Whether the rows have the server's checksum. */
export function agrees(list: List, sum: string): boolean {
  return digest(list) === sum
}
