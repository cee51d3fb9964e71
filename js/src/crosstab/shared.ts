import { WorkerLink } from '../worker/link.js'
import { BUILD } from '../worker/messages.js'
import type { ClusterSnapshot, Coordinator, CoordinatorEvents, WorkerRecord } from './coordinator.js'
import { createOpaqueKey } from './hash.js'
import type { Platform } from './platform.js'
import type { Position, PublishOptions, TransportEvents, TransportStatus } from './transport.js'
import { openWorker, type WorkerSource } from './worker-transport.js'

/** Options of {@link SharedCoordinator}. */
export interface SharedOptions extends WorkerSource {
  readonly platform: Platform
  readonly events: CoordinatorEvents
  /** The start of every name of the cluster, with the protocol's major, the rung and the principal in it. */
  readonly prefix: string
  readonly tabId: string
  /** Of the transport in the worker. What structured cloning takes. */
  readonly config: unknown
  readonly credential?: TransportEvents['credential'] | undefined
}

/**
 * The page's half of the engine in a SharedWorker, which subscribes every topic of the cluster once. Who owns what is no question: the worker does.
 *
 * Each cluster, each protocol and each build of this package has a worker of its own, by its name. It holds no lock, and is told nothing by a page that is hidden: neither costs a page the back/forward cache.
 */
export class SharedCoordinator implements Coordinator {
  readonly mode = 'shared'
  readonly #options: SharedOptions
  readonly #link: WorkerLink
  readonly #subscribed = new Set<string>()
  #topics: readonly string[] = []
  #status: TransportStatus = 'disconnected'
  #since = 0

  constructor(options: SharedOptions) {
    const { platform, prefix } = options
    this.#options = options
    const name = prefix + BUILD
    this.#link = new WorkerLink({ platform, shared: true, share: name, open: () => openWorker('shared', name, options, platform) })
  }

  async start(): Promise<void> {
    const { events, config, credential, platform } = this.#options
    this.#since = platform.wallNow()
    await this.#link.start(config, {
      status: (status, error) => {
        this.#status = status
        events.status(status, error)
      },
      publication: (topic, publication) => events.publication(topic, publication),
      subscribed: (topic, position, lost) => {
        if (lost) events.lost(topic)
        events.subscribed(topic, position)
      },
      refused: (topic, error) => events.refused(topic, error),
      topics: (topics) => {
        this.#topics = topics
      },
      ...(credential && { credential }),
    })
  }

  async stop(hurry?: boolean): Promise<void> {
    this.#subscribed.clear()
    this.#topics = []
    this.#status = 'disconnected'
    await this.#link.stop(hurry)
  }

  subscribe(topic: string, from?: Position): void {
    this.#subscribed.add(topic)
    this.#link.subscribe(topic, from)
  }

  unsubscribe(topic: string): void {
    this.#subscribed.delete(topic)
    void this.#link.unsubscribe(topic)
  }

  publish(topic: string, data: unknown, options?: PublishOptions): Promise<void> {
    return this.#link.publish(topic, data, options)
  }

  snapshot(): ClusterSnapshot {
    const { tabId, platform } = this.#options
    const workerId = this.#link.boot ?? ''
    const now = platform.wallNow()
    const keys = this.#topics.map((topic) => [createOpaqueKey(topic), topic] as const)
    // To everyone the worker is one that owns everything.
    const worker: WorkerRecord = {
      workerId,
      tabId,
      load: keys.length,
      role: 'active',
      status: this.#status,
      visibilityState: platform.page.visible ? 'visible' : 'hidden',
      heartbeatAt: now,
      registeredAt: this.#since,
    }
    return {
      mode: 'shared',
      tabId,
      workerId,
      subscribedTopics: [...this.#subscribed],
      assignedTopics: this.#topics,
      knownTopics: Object.fromEntries(keys),
      routes: keys.map(([topicKey, topic]) => ({ topicKey, topic, workerId, tabId, updatedAt: now, generation: 1, confirmedAt: now })),
      workers: workerId ? [worker] : [],
    }
  }
}
