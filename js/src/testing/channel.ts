import type { ChannelPort } from '../crosstab/platform.js'
import { type Agent, Pipe, type World } from './agent.js'

/** One message on its way from one tab, or worker, to another. */
export interface Hop {
  readonly channel: string
  readonly from: string
  readonly to: string
  readonly message: unknown
}

/** What is done to a hop: it is lost, or takes this long instead. Undefined: nothing. */
export type Fault = (hop: Hop) => 'lost' | number | undefined

/** As structuredClone, and some ten times as fast for what messages are mostly made of. */
export function clone<T>(value: T): T {
  const copied = plain(value)
  return copied === OTHER ? structuredClone(value) : (copied as T)
}

const OTHER = Symbol('other')

/** A copy of what JSON has, and undefined; OTHER if there is anything else in it. */
function plain(value: unknown, depth = 0): unknown {
  if (typeof value !== 'object' || value === null) return typeof value === 'function' || typeof value === 'symbol' ? OTHER : value
  const isArray = Array.isArray(value)
  // Too deep may be a circle.
  if (depth > 20 || (!isArray && Object.getPrototypeOf(value) !== Object.prototype)) return OTHER
  const copied: Record<string, unknown> | unknown[] = isArray ? [] : {}
  for (const key of Object.keys(value)) {
    const part = plain((value as Record<string, unknown>)[key], depth + 1)
    if (part === OTHER) return OTHER
    ;(copied as Record<string, unknown>)[key] = part
  }
  return copied
}

interface Port extends ChannelPort {
  readonly agent: Agent
  readonly pipes: Map<Port, Pipe>
}

/** BroadcastChannels. In order from each sender to each receiver, otherwise in any. */
export class Channels {
  readonly #world: World
  readonly #ports = new Map<string, Set<Port>>()
  readonly faults = new Set<Fault>()

  constructor(world: World) {
    this.#world = world
  }

  open(agent: Agent, name: string): ChannelPort {
    const ports = this.#ports.get(name) ?? new Set()
    this.#ports.set(name, ports)
    const { clock, between, latency } = this.#world
    const close = () => {
      ports.delete(port)
    }
    const port: Port = {
      agent,
      onmessage: null,
      pipes: new Map(),
      close,
      postMessage: (message) => {
        if (!agent.alive) return
        if (!ports.has(port)) throw new DOMException('Channel is closed', 'InvalidStateError')
        const copy = clone(message)
        for (const to of ports) {
          if (to === port) continue
          let ms = between(latency.channel)
          let lost = false
          for (const fault of this.faults) {
            const verdict = fault({ channel: name, from: agent.name, to: to.agent.name, message: copy })
            if (verdict === 'lost') lost = true
            else if (verdict !== undefined) ms = verdict
          }
          if (lost) continue
          const pipe = port.pipes.get(to) ?? new Pipe()
          port.pipes.set(to, pipe)
          const open = () => ports.has(to)
          to.agent.at(pipe.arrival(clock, ms), 'channel', () => open() && to.onmessage?.({ data: clone(copy) }), open)
        }
      },
    }
    if (agent.alive) ports.add(port)
    agent.endings.push(close)
    return port
  }

  /** Who has which channel open. */
  get all(): string[] {
    return [...this.#ports].flatMap(([name, ports]) => [...ports].map(({ agent }) => `${agent.name}: channel ${name}`))
  }
}
