import { vi } from 'vitest'
import type { Position } from '../src/index.js'
import { type FakeSocket, type Reply, type Sent, settle, type World } from './fake.js'

interface Entry {
  readonly offset: number
  readonly id: string
  readonly data: unknown
  readonly quiet: boolean // published with echo: false, by the one client there is
}

/** A server with one channel that has history, for one client: section 7 of the protocol. What it sends waits until it is delivered, in order. */
export class LogServer {
  readonly channel: string
  epoch = 'e1'
  head = 0
  kept: Entry[] = []
  readonly acks: number[] = []
  /** What waits to arrive at the client. */
  waiting: Reply[] = []
  readonly #world: World
  readonly #keys = new Map<string, number>()
  readonly #quiet = new Set<string>()
  #socket: FakeSocket | undefined
  #read = 0
  #sid: string | undefined
  #ids = 0

  constructor(world: World, channel = 'log.1') {
    this.#world = world
    this.channel = channel
  }

  get socket(): FakeSocket {
    if (!this.#socket) throw new Error('not connected')
    return this.#socket
  }

  /** Dials until connected. Nothing is answered yet. */
  async connect(): Promise<void> {
    if (this.#world.sockets.length === 0) this.#world.client.connect()
    await settle()
    for (let i = 0; i < 100 && this.#world.state.kind !== 'connecting'; i++) await vi.advanceTimersByTimeAsync(100)
    this.#socket = await this.#world.accept({ heartbeatMs: 1e8 })
    this.#read = 0
    this.#sid = undefined
    this.waiting = []
    this.read()
  }

  /** The connection ends; what waits is lost. */
  cut(): void {
    this.waiting = []
    this.socket.end(1006)
  }

  append(data: unknown, { id = `s-${++this.#ids}`, quiet = false } = {}): number {
    const entry = { offset: ++this.head, id, data, quiet }
    this.kept.push(entry)
    if (quiet) this.#quiet.add(`${this.epoch}/${entry.offset}`)
    if (this.#sid !== undefined) this.#give(entry)
    return entry.offset
  }

  /** Whether the message there was not to be echoed. */
  wasQuiet(epoch: string, offset: number): boolean {
    return this.#quiet.has(`${epoch}/${offset}`)
  }

  trim(keep: number): void {
    this.kept = this.kept.slice(Math.max(0, this.kept.length - keep))
  }

  /** The log is lost, and the server tells who listens. */
  reset(epoch: string): void {
    this.epoch = epoch
    this.head = 0
    this.kept = []
    this.#keys.clear()
    if (this.#sid !== undefined) this.#reply({ type: 'subscribed', sid: this.#sid, channel: this.channel, ...this.#at(0), recovered: false })
  }

  #at(offset: number): Position {
    return { offset, epoch: this.epoch }
  }

  #reply(frame: Reply): void {
    this.waiting.push(frame)
  }

  #give({ offset, id, data, quiet }: Entry): void {
    const { channel } = this
    this.#reply(quiet ? { type: 'published', id, channel, offset } : { type: 'message', channel, id, data, offset })
  }

  /** Takes what the client has sent. */
  read(): void {
    for (const frame of this.socket.sent.slice(this.#read)) {
      this.#read++
      if (frame.type === 'subscribe') this.#subscribe(frame)
      else if (frame.type === 'publish') this.#publish(frame)
      else if (frame.type === 'ack') this.acks.push(frame['offset'] as number)
      else if (frame.type === 'unsubscribe') this.#sid = undefined
    }
  }

  #subscribe({ sid, since }: Sent): void {
    this.#sid = sid as string
    const answer = (at: number, more = {}) => this.#reply({ type: 'subscribed', sid, channel: this.channel, ...this.#at(at), ...more })
    if (since === undefined) {
      answer(this.head)
      return
    }
    const { last, offset = 0, epoch } = since as Partial<Position> & { last?: number }
    const before = this.head - this.kept.length // the newest that is gone
    let at = this.head
    if (last !== undefined) answer((at = Math.max(before, this.head - last)))
    else if (epoch === this.epoch && offset >= before && offset <= this.head) answer((at = offset), { recovered: true })
    else answer(this.head, { recovered: false })
    for (const entry of this.kept) if (entry.offset > at) this.#give(entry)
  }

  #publish({ id, data, echo }: Sent): void {
    const key = id as string
    let offset = this.#keys.get(key)
    if (offset === undefined) {
      offset = this.append(data, { id: key, quiet: echo === false })
      this.#keys.set(key, offset)
    }
    this.#reply({ type: 'published', id, channel: this.channel, ...this.#at(offset) })
  }

  /** Lets so many of the waiting frames arrive, and reads what the client says to them. */
  async deliver(count = Infinity): Promise<void> {
    for (; count > 0; count--) {
      this.read()
      const frame = this.waiting.shift()
      if (!frame) return
      this.socket.reply(frame)
      await settle()
    }
  }
}
