import { checkId, checkOptions, fail } from './fail.js'

/**
 * What happens to a value for a subscriber whose queue is full, or who is slow, which counts as full. `disconnect` ends the subscription; `drop-newest` drops the value;
 * `drop-oldest` keeps the newest `maxQueue` for when it has caught up; `warn` says so on the console and sends all the same.
 */
export type SlowConsumerPolicy = 'disconnect' | 'drop-newest' | 'drop-oldest' | 'warn'

export interface SubscribeOptions {
  /** Names the subscriber to the adapters. */
  readonly id: string
  /** How many values wait at most, for `flush` or for a subscriber that is slow. Default 1024. Under `warn` the oldest is dropped past it. */
  readonly maxQueue?: number
  /** Default `disconnect`. */
  readonly slowConsumer?: SlowConsumerPolicy
}

export interface HubSubscriber {
  readonly id: string
  readonly topic: string
  readonly handler: (value: never) => void
}

export interface RealtimeHubOptions {
  /** Delivers one frame, or hands it to what does. Default: calls the handler of the subscription. */
  readonly send?: (sub: HubSubscriber, frame: never) => unknown
  /** Called when a subscription has ended: `unsubscribed` or `slow-consumer`. */
  readonly close?: (sub: HubSubscriber, reason: string) => void
  /** False, the default: a frame is one value, sent at once. True: a frame is the array of the values that wait, sent by `flush`. */
  readonly batch?: boolean
  /** Whether the transport finds a subscriber slow: `bus.isSlow`. */
  readonly isSlow?: (sub: HubSubscriber) => boolean
}

interface Subscriber extends HubSubscriber {
  readonly maxQueue: number
  readonly slowConsumer: SlowConsumerPolicy
  readonly queue: unknown[]
}

/**
 * Publishes values to subscribers over a transport that is plugged in. A subscriber's values are sent in the order of the calls to `publish`. What waits for one who was slow is
 * sent with the next `publish` or `flush` after it has caught up. What `send` throws, `publish` throws, or `flush` rejects with; that frame is lost.
 *
 * ```ts
 * const bus = createBroadcastBus({ channel: new BroadcastChannel('room') })
 * const hub = new RealtimeHub({ send: bus.send, close: bus.close, isSlow: bus.isSlow })
 * ```
 */
export class RealtimeHub {
  readonly #options: RealtimeHubOptions
  readonly #topics = new Map<string, Set<Subscriber>>()

  /** Throws a TypeError that names an option that is unknown. */
  constructor(options: RealtimeHubOptions = {}) {
    checkOptions(options, 'send close batch isSlow')
    this.#options = options
  }

  /** Adds a subscriber, and returns a function that ends it. Throws a TypeError that names an option that is unknown or wrong. */
  subscribe<T = unknown>(topic: string, handler: (value: T) => void, options: SubscribeOptions): () => void {
    checkOptions(options, 'id maxQueue slowConsumer')
    const sub: Subscriber = { maxQueue: 1024, slowConsumer: 'disconnect', ...options, topic, handler, queue: [] }
    checkId(sub.id)
    if (!(sub.maxQueue > 0)) fail('maxQueue')
    if (!/^(disconnect|drop-(new|old)est|warn)$/.test(sub.slowConsumer)) fail('slowConsumer')
    const subs = this.#topics.get(topic) ?? new Set()
    this.#topics.set(topic, subs.add(sub))
    return () => this.#end(sub, 'unsubscribed')
  }

  /** Sends value to the subscribers of topic, as their policies say. */
  publish(topic: string, value: unknown): void {
    const subs = this.#topics.get(topic)
    for (const sub of subs ?? []) {
      // What waited for a slow subscriber goes first, if it has caught up.
      const send = (): unknown => this.#options.batch || this.#drain(sub)
      send()
      if (!subs?.has(sub)) continue
      const { queue } = sub
      const full = queue.length >= sub.maxQueue
      const policy = (full || this.#isSlow(sub)) && sub.slowConsumer
      if (policy === 'disconnect') this.#end(sub, 'slow-consumer')
      else if (policy !== 'drop-newest') {
        if (policy === 'warn') console.warn('tidewire: slow', sub.id)
        if (full) queue.shift()
        queue.push(value)
        send()
      }
    }
  }

  /** Sends what waits, except to those who are slow. Resolves when what `send` returned has settled. */
  async flush(): Promise<void> {
    await Promise.all([...this.#topics.values()].flatMap((subs) => [...subs].flatMap((sub) => this.#drain(sub))))
  }

  #isSlow(sub: Subscriber): boolean | undefined {
    return this.#options.isSlow?.(sub)
  }

  #drain(sub: Subscriber): unknown[] {
    const { queue } = sub
    const { batch, send = (_, frame) => sub.handler(frame) } = this.#options
    const sent = []
    while (queue.length && (sub.slowConsumer === 'warn' || !this.#isSlow(sub))) sent.push(send(sub, (batch ? queue.splice(0) : queue.shift()) as never))
    return sent
  }

  #end(sub: Subscriber, reason: string): void {
    const subs = this.#topics.get(sub.topic)
    if (!subs?.delete(sub)) return
    if (!subs.size) this.#topics.delete(sub.topic)
    sub.queue.length = 0
    this.#options.close?.(sub, reason)
  }
}
