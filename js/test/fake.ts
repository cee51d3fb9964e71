import { vi } from 'vitest'
import { type Client, type ClientOptions, createClient, type WebSocketLike } from '../src/index.js'
import type { PresenceFrame, ServerFrame } from '../src/frames.js'

export type Sent = { readonly type: string; readonly [member: string]: unknown }
/** A frame without what the socket fills in. */
export type Reply = ServerFrame | { readonly type: string; readonly [member: string]: unknown }

/** A WebSocket whose other end is the test. Nothing happens by itself: not even a close is answered. */
export class FakeSocket {
  readonly url: string
  readonly protocols: string[]
  readonly sent: Sent[] = []
  bufferedAmount = 0
  closedWith: { readonly code: number | undefined; readonly reason: string | undefined } | undefined
  onopen: (() => void) | null = null
  onmessage: ((event: { data: unknown }) => void) | null = null
  onerror: (() => void) | null = null
  onclose: ((event: { code: number; reason: string }) => void) | null = null

  constructor(url: string, protocols: string[]) {
    this.url = url
    this.protocols = protocols
  }

  // The client's side.

  send(text: string): void {
    this.sent.push(JSON.parse(text) as Sent)
  }

  close(code?: number, reason?: string): void {
    this.closedWith ??= { code, reason }
  }

  // The server's side.

  open(): void {
    this.onopen?.()
  }

  reply(frame: Reply): void {
    this.onmessage?.({ data: JSON.stringify(frame) })
  }

  welcome(more: Readonly<Record<string, unknown>> = {}): void {
    this.reply({ type: 'welcome', protocol: 1, connection: 'c-1', session: 's-me', node: 'n1', heartbeatMs: 15_000, ...more })
  }

  end(code: number, reason = ''): void {
    this.onclose?.({ code, reason })
  }

  of(type: string): Sent[] {
    return this.sent.filter((frame) => frame.type === type)
  }

  /** Answers every subscribe that has not been answered. */
  answerSubscribes(): void {
    for (const { sid, channel } of this.of('subscribe').slice(this.#answered)) {
      this.#answered++
      this.reply({ type: 'subscribed', sid, channel })
    }
  }
  #answered = 0
}

/** A client and all sockets that it has made. */
export class World {
  readonly sockets: FakeSocket[] = []
  readonly client: Client

  constructor(options: Partial<ClientOptions> = {}) {
    const { sockets } = this
    class Socket extends FakeSocket {
      constructor(url: string, protocols: string[]) {
        super(url, protocols)
        sockets.push(this)
      }
    }
    this.client = createClient({
      url: 'ws://server.test/v1/socket',
      WebSocket: Socket as unknown as WebSocketLike,
      random: () => 0.5,
      ...options,
    })
  }

  /** The newest socket. */
  get socket(): FakeSocket {
    const socket = this.sockets.at(-1)
    if (!socket) throw new Error('no socket was made')
    return socket
  }

  get state() {
    return this.client.connection.getSnapshot()
  }

  /** Dials and is welcomed. */
  async connect(welcome: Readonly<Record<string, unknown>> = {}): Promise<FakeSocket> {
    this.client.connect()
    await settle()
    return this.accept(welcome)
  }

  /** The newest socket opens and is welcomed. */
  async accept(welcome: Readonly<Record<string, unknown>> = {}): Promise<FakeSocket> {
    const { socket } = this
    socket.open()
    socket.welcome(welcome)
    await settle()
    return socket
  }

  /** Lets the redial's delay pass and accepts the new socket. */
  async reconnect(welcome: Readonly<Record<string, unknown>> = {}): Promise<FakeSocket> {
    const before = this.sockets.length
    await vi.advanceTimersByTimeAsync(4000)
    if (this.sockets.length !== before + 1) throw new Error(`${this.sockets.length - before} sockets were made, want 1`)
    return this.accept(welcome)
  }
}

/** Lets promises settle without letting time pass. */
export async function settle(): Promise<void> {
  await vi.advanceTimersByTimeAsync(0)
}

export function snapshot(channel: string, version: number, ids: readonly string[], total = ids.length): PresenceFrame {
  return { type: 'presence', channel, version, total, snapshot: ids.map((id) => ({ id, sessions: [`s-${id}`] })) }
}
