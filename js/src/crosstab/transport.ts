/** A place in what a topic has published, where the server keeps it. Offsets are compared within one epoch only. */
export interface Position {
  readonly offset: number
  readonly epoch: string
}

/** One publication, as a transport hands it over. */
export interface Publication {
  readonly data: unknown
  /** The publisher's id of it, if it has one. */
  readonly id?: string
  /** Its place, on topics whose history the server keeps: 1, 2, 3 … without holes within an epoch. */
  readonly position?: Position
}

/** What a transport says about its connection. */
export type TransportStatus = 'connecting' | 'connected' | 'disconnected' | 'error'

/** What a transport calls. It may call from `start` on until `stop` has settled, and never inside a call made to it. */
export interface TransportEvents {
  status(status: TransportStatus, error?: unknown): void
  publication(topic: string, publication: Publication): void
  /**
   * The topic is subscribed: what is published from now on arrives. `position` is where that is, if the server keeps a history; what came between `from` and it has been handed over before this call, or is `lost` and
   * will not come.
   */
  subscribed(topic: string, position?: Position, lost?: boolean): void
  /** The server refused the topic, or ended it. `retry`: the transport tries again by itself. */
  refused(topic: string, error: unknown, retry: boolean): void
  /** The connection needs a credential: only when its configuration says so. */
  credential?(reason: 'connect' | 'expired'): Promise<string>
}

/**
 * One connection to a server, or the means to have one: what {@link CrossTabDataBus} is given. One object is started and stopped many times, never twice at once.
 *
 * It reconnects by itself. `error` means that it has given up, or could not start: it is stopped and started again. After a reconnect it is told anew what to subscribe.
 * Subscribing what is subscribed, and unsubscribing what is not, do nothing.
 */
export interface DataBusTransport<Config = unknown> {
  /** Opens. Resolves when it is on its way (its status tells the rest), rejects when it cannot be. */
  start(config: Config, events: TransportEvents): Promise<void>
  /** Closes, and calls nothing any more when it resolves. It may come while a start is under way, which then settles as it may. The server must have seen the end of every subscription that can be ended, or the connection is closed. */
  stop(): Promise<void>
  /** Subscribes, from behind a position if one is known: what came after it is handed over first. Resolves when it was sent or queued. */
  subscribe(topic: string, from?: Position): Promise<void> | void
  /** Resolves when the server no longer sends to it, or the connection is gone. */
  unsubscribe(topic: string): Promise<void> | void
  /** Rejects with the server's refusal. */
  publish(topic: string, data: unknown, options?: PublishOptions): Promise<void>
}

/** Options of a publication. */
export interface PublishOptions {
  /** The publication's id: what the deduplication window and an idempotent server know it by. */
  readonly id?: string
}
