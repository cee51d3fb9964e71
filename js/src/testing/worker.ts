import type { Platform, WorkerPort } from '../crosstab/platform.js'
import { Agent, Pipe, type World } from './agent.js'

/** What a worker's script is given: its globals. */
export interface TestWorkerScope {
  readonly name: string
  readonly platform: Platform
  /** Called with the port of each page that connects; for a dedicated worker, once. */
  onconnect: ((port: WorkerPort) => void) | null
  /** Ends the worker. No page is told. */
  close(): void
}

/** A worker's script, as a function. */
export type WorkerScript = (scope: TestWorkerScope) => void

/** A SharedWorker that runs. */
export interface TestWorker {
  readonly name: string
  readonly platform: Platform
  /** It is gone, as when the browser reclaims it: nobody is told, and whoever opens it again has a fresh one. */
  kill(): void
}

interface Shared {
  readonly agent: Agent
  readonly scope: TestWorkerScope
  readonly clients: Set<Agent>
}

/** Workers, and the ports to them. A port does not say when its other end is gone. */
export class Workers {
  readonly #world: World
  readonly #scripts: Readonly<Record<string, WorkerScript>>
  readonly #platform: (agent: Agent) => Platform
  readonly #shared = new Map<string, Shared>()
  readonly #ports = new Set<End>()
  #count = 0

  constructor(world: World, scripts: Readonly<Record<string, WorkerScript>>, platform: (agent: Agent) => Platform) {
    this.#world = world
    this.#scripts = scripts
    this.#platform = platform
  }

  shared(page: Agent, url: string, name: string): WorkerPort {
    const key = `${url} ${name}`
    let worker = this.#shared.get(key)
    if (!worker?.agent.alive) {
      worker = this.#start(url, name)
      if (!worker) return this.#broken(page, url)
      this.#shared.set(key, worker)
    }
    const { agent, scope, clients } = worker
    clients.add(page)
    page.endings.push(() => {
      clients.delete(page)
      if (!clients.size) agent.die()
    })
    return this.#connect(page, agent, scope)
  }

  dedicated(page: Agent, url: string, name: string): WorkerPort {
    const worker = this.#start(url, name)
    if (!worker) return this.#broken(page, url)
    const { agent, scope } = worker
    page.dependants.add(agent)
    const port = this.#connect(page, agent, scope)
    const close = port.close.bind(port)
    return Object.assign(port, {
      close: () => {
        close()
        page.dependants.delete(agent)
        agent.die()
      },
    })
  }

  #start(url: string, name: string): Shared | undefined {
    const script = this.#scripts[url]
    if (!script) return undefined
    const { clock, between, latency } = this.#world
    const agent = new Agent(this.#world, `worker-${++this.#count}`)
    const scope: TestWorkerScope = { name, platform: this.#platform(agent), onconnect: null, close: () => agent.die() }
    agent.at(clock.now + between(latency.port), 'port', () => script(scope))
    return { agent, scope, clients: new Set() }
  }

  /** A script that cannot be had. */
  #broken(page: Agent, url: string): WorkerPort {
    const { clock, between, latency } = this.#world
    const port: WorkerPort = { onmessage: null, onerror: null, postMessage: (message) => void structuredClone(message), close: () => {} }
    page.at(clock.now + between(latency.port), 'port', () => port.onerror?.(`no script at ${url}`))
    return port
  }

  #connect(page: Agent, agent: Agent, scope: TestWorkerScope): WorkerPort {
    const [mine, its] = [new End(page), new End(agent)]
    mine.peer = its
    its.peer = mine
    for (const end of [mine, its]) {
      this.#ports.add(end)
      end.agent.endings.push(() => this.#ports.delete(end))
      end.closed = () => this.#ports.delete(end)
    }
    const { clock, latency } = this.#world
    // After the script has run.
    agent.at(clock.now + latency.port[1], 'port', () => scope.onconnect?.(its))
    return mine
  }

  /** SharedWorkers that run. */
  get running(): TestWorker[] {
    return [...this.#shared.values()].filter(({ agent }) => agent.alive).map(({ agent, scope }) => ({ name: scope.name, platform: scope.platform, kill: () => agent.die() }))
  }

  /** Ports that pages have open. */
  get all(): string[] {
    return [...this.#ports].filter(({ agent, peer }) => peer?.agent.name.startsWith('worker') && !agent.name.startsWith('worker')).map(({ agent, peer }) => `${agent.name}: port to ${peer?.agent.name}`)
  }
}

/** One end of a port. What arrives before it has a handler waits for one. */
class End implements WorkerPort {
  readonly agent: Agent
  peer: End | undefined
  closed: (() => void) | undefined
  onerror: ((cause: string) => void) | null = null
  #onmessage: WorkerPort['onmessage'] = null
  #waiting: unknown[] | undefined = []
  #open = true
  readonly #pipe = new Pipe()

  constructor(agent: Agent) {
    this.agent = agent
  }

  get onmessage(): WorkerPort['onmessage'] {
    return this.#onmessage
  }

  set onmessage(handler: WorkerPort['onmessage']) {
    this.#onmessage = handler
    const waiting = this.#waiting
    this.#waiting = undefined
    const { clock } = this.agent.world
    for (const data of waiting ?? []) this.agent.at(clock.now, 'port', () => this.#take(data))
  }

  #take(data: unknown): void {
    if (!this.#open) return
    if (this.#waiting) this.#waiting.push(data)
    else this.#onmessage?.({ data })
  }

  postMessage(message: unknown, transfer: Transferable[] = []): void {
    const data: unknown = structuredClone(message, { transfer })
    const { agent, peer } = this
    if (!this.#open || !peer || !agent.alive) return
    const { clock, between, latency } = agent.world
    peer.agent.at(
      this.#pipe.arrival(clock, between(latency.port)),
      'port',
      () => peer.#take(data),
      () => peer.#open,
    )
  }

  close(): void {
    this.#open = false
    this.closed?.()
  }
}
