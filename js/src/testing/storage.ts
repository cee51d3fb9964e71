import type { KeyValue } from '../crosstab/platform.js'
import { type Agent, Pipe, type World } from './agent.js'

/** What is wrong with a tab's storage: no value can be written, or nothing works. */
export type StorageFault = 'quota' | 'all'

/**
 * localStorage of one origin, as browsers with a process for each tab have it: who writes sees it at once, each other tab later, in the order in which it was written. Nothing makes a tab see it earlier, neither a
 * message nor a lock.
 */
export class Storage {
  readonly #world: World
  readonly #truth = new Map<string, string>()
  readonly #views = new Set<View>()
  readonly #quota: number

  constructor(world: World, quota: number) {
    this.#world = world
    this.#quota = quota
  }

  view(agent: Agent, fault: () => StorageFault | undefined): KeyValue {
    const view = new View(new Map(this.#truth))
    this.#views.add(view)
    agent.endings.push(() => this.#views.delete(view))
    const { clock, between, latency } = this.#world
    const read = () => {
      if (fault() === 'all') throw new DOMException('The operation is insecure.', 'SecurityError')
      return view.at(clock.now)
    }
    const write = (key: string, value: string | undefined) => {
      if (!agent.alive) return
      read()
      put(this.#truth, key, value)
      for (const other of this.#views) {
        const change = { at: other === view ? clock.now : other.pipe.arrival(clock, between(latency.storage)), key, value }
        if (other === view) other.own(change, other.pipe.arrival(clock, 0))
        else other.push(change, clock.now)
      }
    }
    return {
      getItem: (key) => read().get(key) ?? null,
      setItem: (key, value) => {
        const text = String(value)
        const old = this.#truth.get(key)
        const size = [...this.#truth].reduce((sum, [k, v]) => sum + k.length + v.length, 0) + text.length - (old?.length ?? -key.length)
        if (fault() === 'quota' || (size > this.#quota && text.length > (old?.length ?? -1))) throw new DOMException('The quota has been exceeded.', 'QuotaExceededError')
        write(key, text)
      },
      removeItem: (key) => write(key, undefined),
      key: (index) => [...read().keys()][index] ?? null,
      get length() {
        return read().size
      },
    }
  }

  /** What is stored, once everyone sees it. */
  get entries(): ReadonlyMap<string, string> {
    return this.#truth
  }
}

interface Change {
  readonly at: number
  readonly key: string
  readonly value: string | undefined
  readonly own?: true
}

/** What one tab sees. */
class View {
  readonly #seen: Map<string, string>
  #changes: Change[] = []
  /** Own writes that others have not been overtaken by: until then, what others wrote to these keys is older. */
  readonly #own = new Map<string, number>()
  readonly pipe = new Pipe()

  constructor(seen: Map<string, string>) {
    this.#seen = seen
  }

  push(change: Change, now: number): void {
    this.#changes.push(change)
    if (this.#changes.length > 256) this.at(now)
  }

  own(change: Change, at: number): void {
    put(this.#seen, change.key, change.value)
    this.#own.set(change.key, (this.#own.get(change.key) ?? 0) + 1)
    this.push({ ...change, at, own: true }, change.at)
  }

  at(now: number): ReadonlyMap<string, string> {
    let n = 0
    for (; n < this.#changes.length; n++) {
      const { at, key, value, own } = this.#changes[n] as Change
      if (at > now) break
      const mine = this.#own.get(key) ?? 0
      if (!mine) put(this.#seen, key, value)
      else if (own) {
        if (mine > 1) this.#own.set(key, mine - 1)
        else this.#own.delete(key)
      }
    }
    if (n) this.#changes = this.#changes.slice(n)
    return this.#seen
  }
}

const put = (map: Map<string, string>, key: string, value: string | undefined) => {
  if (value === undefined) map.delete(key)
  else map.set(key, value)
}

/** sessionStorage of one tab: a tab that is reloaded has it again, one that was opened by another has a copy. */
export function sessionView(map: Map<string, string>, fault: () => StorageFault | undefined): KeyValue {
  const check = (writes: boolean) => {
    if (fault() === 'all') throw new DOMException('The operation is insecure.', 'SecurityError')
    if (writes && fault() === 'quota') throw new DOMException('The quota has been exceeded.', 'QuotaExceededError')
    return map
  }
  return {
    getItem: (key) => check(false).get(key) ?? null,
    setItem: (key, value) => void check(true).set(key, String(value)),
    removeItem: (key) => void check(false).delete(key),
    key: (index) => [...check(false).keys()][index] ?? null,
    get length() {
      return check(false).size
    },
  }
}
