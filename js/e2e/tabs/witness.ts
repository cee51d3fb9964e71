/** One subscription as the server has it: from its `subscribed` until it knows the end. */
export interface Span {
  readonly connection: number
  readonly topic: string
  readonly from: number
  to: number | undefined
}

interface Connection {
  readonly id: number
  readonly opened: number
  closed: number | undefined
  readonly live: Map<string, Span>
  readonly url: string
  readonly headers: Readonly<Record<string, unknown>>
}

interface Message {
  readonly type: string
  readonly channel?: string
  readonly re?: string
  readonly [member: string]: unknown
}

/**
 * What passes between browsers and the server, as the server sees it: which connections there are, and which topic is subscribed through which, from when to when. Times are of one monotonic clock, in
 * milliseconds, so that two subscriptions of one topic at once, and the gap between an owner and the next, are exact.
 */
export class Witness {
  readonly connections: Connection[] = []
  readonly spans: Span[] = []
  /** Every message in the order that it passed. */
  readonly sent: { readonly connection: number; readonly at: number; readonly message: Message }[] = []
  #waiting: (() => void)[] = []

  readonly now = () => performance.now()

  opened(url: string, headers: Readonly<Record<string, unknown>>): number {
    const id = this.connections.length
    this.connections.push({ id, opened: this.now(), closed: undefined, live: new Map(), url, headers })
    this.#changed()
    return id
  }

  closed(id: number): void {
    const connection = this.#connection(id)
    if (connection.closed !== undefined) return
    connection.closed = this.now()
    for (const topic of [...connection.live.keys()]) this.#end(connection, topic)
    this.#changed()
  }

  fromClient(id: number, text: string): void {
    this.sent.push({ connection: id, at: this.now(), message: JSON.parse(text) as Message })
    this.#changed()
  }

  fromServer(id: number, text: string): void {
    // Most are publications, of which there are many.
    if (text.startsWith('{"type":"message"')) return
    const connection = this.#connection(id)
    const { type, channel } = JSON.parse(text) as Message
    if (channel === undefined || connection.closed !== undefined) return
    if (type === 'subscribed' && !connection.live.has(channel)) {
      const span: Span = { connection: id, topic: channel, from: this.now(), to: undefined }
      connection.live.set(channel, span)
      this.spans.push(span)
    } else if (type === 'unsubscribed') this.#end(connection, channel)
    this.#changed()
  }

  #connection(id: number): Connection {
    const connection = this.connections[id]
    if (!connection) throw new Error(`no connection ${id}`)
    return connection
  }

  #end(connection: Connection, topic: string): void {
    const span = connection.live.get(topic)
    if (span) span.to = this.now()
    connection.live.delete(topic)
  }

  #changed(): void {
    const waiting = this.#waiting
    this.#waiting = []
    for (const call of waiting) call()
  }

  /** Waits until check says true of what has been seen; it is asked with each change. */
  async until(what: string, check: () => boolean, ms = 20_000): Promise<void> {
    const end = this.now() + ms
    while (!check()) {
      const left = end - this.now()
      if (left <= 0) throw new Error(`waited ${ms} ms for ${what}; ${this.tell()}`)
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, left)
        this.#waiting.push(() => {
          clearTimeout(timer)
          resolve()
        })
      })
    }
  }

  /** How often a topic is subscribed now. */
  live(topic: string): number {
    return this.spans.filter((span) => span.topic === topic && span.to === undefined).length
  }

  /** Connections that are open now. */
  open(): number {
    return this.connections.filter(({ closed }) => closed === undefined).length
  }

  /** Subscriptions of a topic in the order of their beginning. */
  of(topic: string): Span[] {
    return this.spans.filter((span) => span.topic === topic)
  }

  /** Pairs of subscriptions of one topic that were there at once. */
  doubles(): string[] {
    const found: string[] = []
    const by = new Map<string, Span[]>()
    for (const span of this.spans) by.set(span.topic, [...(by.get(span.topic) ?? []), span])
    for (const [topic, spans] of by) {
      for (const [i, later] of spans.entries()) {
        for (const earlier of spans.slice(0, i)) {
          const end = earlier.to ?? Infinity
          if (end > later.from) found.push(`${topic}: connections ${earlier.connection} and ${later.connection} for ${(Math.min(end, later.to ?? this.now()) - later.from).toFixed(1)} ms`)
        }
      }
    }
    return found
  }

  tell(): string {
    const now = this.now()
    const ago = (at: number | undefined) => (at === undefined ? 'now' : `-${(now - at).toFixed(0)} ms`)
    const lines = this.spans.slice(-12).map(({ connection, topic, from, to }) => `${topic} on ${connection} from ${ago(from)} to ${ago(to)}`)
    return `${this.connections.length} connections, ${this.open()} open; subscriptions: ${lines.join('; ') || 'none'}`
  }
}
