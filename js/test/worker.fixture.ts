import type { CoordinatorEvents } from '../src/crosstab/coordinator.js'
import type { WorkerPort } from '../src/crosstab/platform.js'
import { SharedCoordinator } from '../src/crosstab/shared.js'
import type { DataBusTransport, Position, TransportEvents } from '../src/crosstab/transport.js'
import { type WorkerTransport, type WorkerTransportOptions, workerTransport } from '../src/crosstab/worker-transport.js'
import { createTestCluster, type TestCluster, type TestClusterOptions, type TestTab, type TestTabOptions, type TestTransport, type TestWorkerScope } from '../src/testing/index.js'
import { createHost } from '../src/worker/host.js'

export const SCRIPT = '/worker.js'

interface Options extends TestClusterOptions {
  /** The transport in a worker. Default: to the cluster's server. */
  readonly transport?: (scope: TestWorkerScope, config: unknown) => DataBusTransport
  readonly build?: string
}

/** A browser whose worker runs the real host. */
export function workerCluster({ transport, build, ...options }: Options = {}): TestCluster & { readonly scopes: Scope[]; readonly transports: TestTransport[] } {
  const scopes: Scope[] = []
  const transports: TestTransport[] = []
  const made = (transport: TestTransport) => transports[transports.push(transport) - 1] as TestTransport
  const script = (scope: TestWorkerScope) => {
    const ports: WorkerPort[] = []
    const make = () => createHost({ platform: scope.platform, transport: (config) => transport?.(scope, config) ?? made(cluster.transport(scope)), ...(build && { build }) })
    let host = make()
    scope.onconnect = (port) => {
      ports.push(port)
      host.connect(port)
    }
    scopes.push({
      scope,
      restart() {
        host = make()
        for (const port of ports) host.connect(port)
      },
    })
  }
  const cluster = createTestCluster({ scripts: { [SCRIPT]: script }, ...options })
  return Object.assign(cluster, { scopes, transports })
}

interface Scope {
  readonly scope: TestWorkerScope
  /** The script runs anew, on the same ports. */
  restart(): void
}

/** What a page was told. */
export class Log {
  readonly told: string[] = []
  readonly data: Record<string, unknown[]> = {}
  readonly positions: Record<string, Position | undefined> = {}
  readonly statuses: string[] = []
  token: (reason: string) => Promise<string> = () => Promise.resolve('token')

  readonly events: TransportEvents & CoordinatorEvents = {
    status: (status, error) => {
      this.statuses.push(status)
      if (error) this.told.push(`${status} ${(error as { code?: string }).code}`)
    },
    publication: (topic, { data, position }) => {
      ;(this.data[topic] ??= []).push(data)
      this.positions[topic] = position
    },
    subscribed: (topic: string, position?: Position, lost?: boolean) => {
      this.positions[topic] = position
      this.told.push(`subscribed ${topic}${lost ? ' lost' : ''}`)
    },
    lost: (topic) => this.told.push(`lost ${topic}`),
    refused: (topic: string, error: unknown, retry?: boolean) => this.told.push(`refused ${topic} ${(error as { code?: string }).code}${retry ? ' retry' : ''}`),
    credential: (reason) => this.token(reason),
  }

  count(what: string): number {
    return this.told.filter((told) => told === what).length
  }
}

/** A tab with a transport in a worker. */
export class Page extends Log {
  readonly tab: TestTab
  readonly transport: WorkerTransport

  constructor(cluster: TestCluster, { tab, ...options }: WorkerTransportOptions & { readonly tab?: TestTabOptions } = {}) {
    super()
    this.tab = cluster.tab(tab)
    this.transport = workerTransport({ workerUrl: SCRIPT, platform: this.tab.platform, ...options })
  }

  start(config: unknown = {}): Promise<void> {
    return this.transport.start(config, this.events)
  }
}

/** A tab on rung A. */
export class SharedPage extends Log {
  readonly tab: TestTab
  readonly coordinator: SharedCoordinator

  constructor(cluster: TestCluster, { tab, workerUrl = SCRIPT, prefix = 'tidewire:cluster:' }: { readonly tab?: TestTabOptions; readonly workerUrl?: string; readonly prefix?: string } = {}) {
    super()
    this.tab = cluster.tab(tab)
    const { platform, name } = this.tab
    this.coordinator = new SharedCoordinator({ platform, events: this.events, prefix, tabId: name, config: {}, workerUrl, credential: (reason) => this.token(reason) })
  }
}

export const upTo = (count: number, from = 1) => Array.from({ length: count - from + 1 }, (_, i) => from + i)
