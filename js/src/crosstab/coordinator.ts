import type { Position, Publication, PublishOptions, TransportStatus } from './transport.js'

/** The rungs of the ladder, best first. */
export type Mode = 'shared' | 'coordinated' | 'coordinated-ttl' | 'local'

/** What a coordinator tells the bus of its tab. Every publication comes here once for each tab that wants its topic. */
export interface CoordinatorEvents {
  publication(topic: string, publication: Publication, meta?: { readonly generation: number; readonly replayed: boolean }): void
  /** The topic is live for this tab, from a position if the server keeps a history. */
  subscribed(topic: string, position?: Position): void
  /** Publications of the topic may be missing before the next one, and will not come. */
  lost(topic: string): void
  refused(topic: string, error: unknown): void
  /** How the connection is that this tab's topics come through. `error`: the transport has given up. */
  status(status: TransportStatus, error?: unknown): void
}

/**
 * Who brings this tab what it wants: the engine in a SharedWorker (`shared.ts`), or the tabs among themselves (`runtime.ts`), of which a tab alone is the simplest case. The bus above it counts handlers and knows
 * nothing of other tabs.
 */
export interface Coordinator {
  readonly mode: Mode
  /** Takes part. Rejects when it cannot: the bus then takes the next rung, or reports it. */
  start(): Promise<void>
  /** Ends taking part, in order: the server first, then locks, then the goodbye. In a hurry, because the page is hidden or frozen, all of that is done before it returns, and what is under way is not waited for. */
  stop(hurry?: boolean): Promise<void>
  /** This tab wants the topic, from behind a position if it has one. Wanting it twice is wanting it. */
  subscribe(topic: string, from?: Position): void
  unsubscribe(topic: string): void
  publish(topic: string, data: unknown, options?: PublishOptions): Promise<void>
  snapshot(): ClusterSnapshot
}

/** How a tab sees its cluster. */
export interface ClusterSnapshot {
  readonly mode: Mode
  readonly tabId: string
  readonly workerId: string
  /** Topics that this tab has handlers for. */
  readonly subscribedTopics: readonly string[]
  /** Topics that this tab, or in mode `shared` the worker, subscribes at the server. */
  readonly assignedTopics: readonly string[]
  /** Opaque key to topic. */
  readonly knownTopics: Readonly<Record<string, string>>
  readonly routes: readonly RouteView[]
  readonly workers: readonly WorkerRecord[]
}

/** A route with the topic's name, where this tab knows it. */
export interface RouteView extends WorkerRoute {
  readonly topic?: string
}

/** Who takes part. Each worker writes its own. */
export interface WorkerRecord {
  readonly workerId: string
  readonly tabId: string
  /** The weight of the topics that it owns: their number, until rates are known. */
  readonly load: number
  readonly role: 'active' | 'standby'
  readonly status: TransportStatus
  readonly visibilityState: 'visible' | 'hidden'
  readonly heartbeatAt: number
  readonly registeredAt: number
}

/** Who owns a topic. */
export interface WorkerRoute {
  readonly topicKey: string
  readonly workerId: string
  readonly tabId: string
  readonly updatedAt: number
  /** Grows with every new owner. */
  readonly generation: number
  readonly handoffFromWorkerId?: string
  /** Absent until the owner has taken the topic. */
  readonly confirmedAt?: number
}
