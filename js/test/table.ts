import { canonical, checksum } from '../src/query/checksum.js'
import type { FakeSocket, Sent } from './fake.js'

export type Card = { readonly id: number; readonly n: string }

/** One live query as a server keeps it, naively. It answers the subscribes of a socket when it is told to. */
export class Table {
  qid = 'q1'
  epoch = 'e.1'
  version = 1
  rows: Card[] = []
  patches: { readonly type: string; readonly version: number; readonly [member: string]: unknown }[] = []
  readonly asked: unknown[] = []
  #answered = new WeakMap<FakeSocket, number>()

  get sum(): string {
    return sumOf(this.rows)
  }

  get snapshot() {
    const { qid, version, epoch, rows, sum } = this
    return { type: 'snapshot', qid, version, epoch, key: ['id'], rows, sum }
  }

  put(id: number, n: string, at: number): object {
    this.del(id)
    const put = { id, n }
    const index = Math.min(at, this.rows.length)
    this.rows = [...this.rows.slice(0, index), put, ...this.rows.slice(index)]
    return { put, at: index }
  }

  del(id: number): object {
    this.rows = this.rows.filter((row) => row.id !== id)
    return { del: id }
  }

  /** The patch of some ops, which have been done. */
  commit(...ops: object[]) {
    const patch = { type: 'patch', qid: this.qid, version: ++this.version, ops, sum: this.sum }
    this.patches.push(patch)
    return patch
  }

  /** Answers what has not been answered. */
  answer(socket: FakeSocket): void {
    const all = socket.sent.filter((frame) => 'query' in frame)
    const from = this.#answered.get(socket) ?? 0
    this.#answered.set(socket, all.length)
    for (const frame of all.slice(from)) this.#subscribe(socket, frame)
  }

  #subscribe(socket: FakeSocket, { sid, since }: Sent): void {
    this.asked.push(since)
    const at = since as { readonly offset: number; readonly epoch: string } | undefined
    const missing = this.version - (at?.offset ?? 0)
    const recovered = at?.epoch === this.epoch && missing >= 0 && missing <= this.patches.length
    socket.reply({ type: 'subscribed', sid, qid: this.qid, ...(at && { recovered }), ...(recovered && { offset: at?.offset, epoch: at?.epoch }) })
    if (!recovered) socket.reply(this.snapshot)
    else for (const patch of this.patches.slice(this.patches.length - missing)) socket.reply(patch)
  }
}

export function sumOf(rows: readonly unknown[]): string {
  const sum = rows.reduce<bigint>((sum, row) => sum + checksum(canonical(row)), 0n)
  return BigInt.asUintN(64, sum).toString(16).padStart(16, '0')
}
