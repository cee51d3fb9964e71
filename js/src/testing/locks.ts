import type { LockOptions, Locks } from '../crosstab/platform.js'
import { type Agent, Pipe, type World } from './agent.js'

interface Request {
  readonly agent: Agent
  readonly name: string
  readonly shared: boolean
  readonly options: LockOptions
  /** Tells the tab: it has the lock, or, for `ifAvailable`, that it does not. */
  readonly granted: (lock: object | null) => void
  readonly stolen: () => void
  /** The tab has given up, or is dead. */
  over: boolean
}

interface Lock {
  held: Request[]
  waiting: Request[]
}

/** A lock that was stolen. */
export interface Theft {
  readonly name: string
  readonly at: number
  readonly by: string
  /** How the robbed was. A theft from one that runs is a false alarm. */
  readonly from: Agent
  readonly hung: boolean
}

/**
 * Web Locks. The browser decides, and tells the tab some time later; a tab that hangs, or is frozen, is given a lock that it waits for all the same, and keeps it without knowing.
 */
export class LockManager {
  readonly #world: World
  readonly #locks = new Map<string, Lock>()
  readonly thefts: Theft[] = []

  constructor(world: World) {
    this.#world = world
  }

  /** One tab's view. */
  view(agent: Agent): Locks {
    const { clock, between, latency } = this.#world
    const up = new Pipe()
    const down = new Pipe()
    const send = (run: () => void) => clock.put(up.arrival(clock, between(latency.lock)), { timer: false, done: false, run })
    const tell = (run: () => void, wanted?: () => boolean) => agent.at(down.arrival(clock, between(latency.lock)), 'lock', run, wanted)
    const mine = new Set<Request>()
    agent.freed.push(() => {
      for (const request of mine) this.#end(request)
    })

    return {
      request: <T>(name: string, options: LockOptions, held: (lock: object | null) => Promise<T> | T) =>
        new Promise<T>((resolve, reject) => {
          if (!agent.alive) return
          const { signal, steal, ifAvailable, mode = 'exclusive' } = options
          if (name.startsWith('-') || (steal && ifAvailable) || (steal && mode === 'shared') || (signal && (steal || ifAvailable))) {
            return reject(new DOMException(`refused options of lock ${name}`, 'NotSupportedError'))
          }
          if (signal?.aborted) return reject(signal.reason)
          let running = false
          const release = () => {
            // What is left of a dead tab's code frees nothing; the browser does.
            if (!agent.alive) return
            mine.delete(request)
            signal?.removeEventListener('abort', abort)
            send(() => this.#end(request))
          }
          const abort = () => {
            if (running) return
            request.over = true
            release()
            reject(signal?.reason)
          }
          const request: Request = {
            agent,
            name,
            shared: mode === 'shared',
            options,
            over: false,
            granted: (lock) =>
              tell(
                () => {
                  if (request.over) return
                  running = true
                  // A callback that throws ends the holding, as one that rejects.
                  const holding = (async () => held(lock))()
                  holding.then(
                    (value) => (release(), resolve(value)),
                    (error: unknown) => (release(), reject(error)),
                  )
                },
                () => !request.over,
              ),
            stolen: () => tell(() => reject(new DOMException(`lock ${name} was stolen`, 'AbortError'))),
          }
          mine.add(request)
          signal?.addEventListener('abort', abort)
          send(() => this.#arrive(request))
        }),
    }
  }

  #arrive(request: Request): void {
    const { name, options, agent } = request
    if (request.over || !agent.alive) return
    const lock = this.#locks.get(name) ?? { held: [], waiting: [] }
    this.#locks.set(name, lock)
    if (options.steal) {
      for (const robbed of lock.held) {
        this.thefts.push({ name, at: this.#world.clock.now, by: agent.name, from: robbed.agent, hung: robbed.agent.state !== 'running' })
        robbed.stolen()
      }
      lock.held = [request]
      request.granted({ name, mode: 'exclusive' })
      return
    }
    if (options.ifAvailable && (lock.waiting.length || !free(lock, request))) {
      request.granted(null)
      return
    }
    lock.waiting.push(request)
    this.#grant(name, lock)
  }

  #grant(name: string, lock: Lock): void {
    for (let next = lock.waiting[0]; next && free(lock, next); next = lock.waiting[0]) {
      lock.waiting.shift()
      lock.held.push(next)
      next.granted({ name, mode: next.shared ? 'shared' : 'exclusive' })
    }
    if (!lock.held.length && !lock.waiting.length) this.#locks.delete(name)
  }

  #end(request: Request): void {
    request.over = true
    const lock = this.#locks.get(request.name)
    if (!lock) return
    lock.held = lock.held.filter((other) => other !== request)
    lock.waiting = lock.waiting.filter((other) => other !== request)
    this.#grant(request.name, lock)
  }

  /** Who holds a lock, as the browser sees it. */
  holders(name: string): string[] {
    return (this.#locks.get(name)?.held ?? []).map(({ agent }) => agent.name)
  }

  /** Every lock that is held or waited for. */
  get all(): string[] {
    return [...this.#locks].flatMap(([name, { held, waiting }]) => [
      ...held.map(({ agent }) => `${agent.name}: holds lock ${name}`),
      ...waiting.map(({ agent }) => `${agent.name}: waits for lock ${name}`),
    ])
  }
}

const free = ({ held }: Lock, { shared }: Request) => !held.length || (shared && held.every((other) => other.shared))
