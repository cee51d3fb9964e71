import { Backoff, type BackoffOptions } from './backoff.js'
import { TidewireError } from './error.js'
import { type ClientFrame, decode, DEFAULT_LIMITS, type Limits, PROTOCOL, type ServerFrame, type Welcome } from './frames.js'
import { Heartbeat } from './heartbeat.js'
import { randomId } from './id.js'
import { SendQueue } from './queue.js'
import type { BareState, ConnectionState } from './state.js'
import { Store } from './store.js'
import { subprotocols, type Token, TokenSource } from './token.js'
import { onWake, type Wake } from './wake.js'

/** The constructor of WebSocket, or of anything that behaves the same. */
export type WebSocketLike = new (url: string, protocols: string[]) => WebSocket

export interface ConnectionOptions {
  readonly url: string | URL
  readonly token?: Token
  readonly build?: string
  readonly WebSocket?: WebSocketLike
  readonly random: () => number
  readonly backoff?: BackoffOptions
  readonly heartbeatMs?: number
  readonly queueSize: number
}

/** What the owner of a connection does with it. */
export interface ConnectionHandler {
  /** The server said welcome: send what has to be there again. */
  ready(): void
  /** An answer or an event arrived. */
  frame(frame: ServerFrame): void
  /** A heartbeat is due: repeat the subscriptions that need it. */
  beat(): void
  /** The connection ended, or will not come. */
  lost(): void
  /** Whether anything is subscribed or waits for an answer. */
  needed(): boolean
}

const DIAL_TIMEOUT_MS = 10_000
// An attempt older than this is replaced when the network comes back: it may have started on the old one.
const STALE_DIAL_MS = 2000
const MAX_TIMER_MS = 0x7fff_ffff

/** One connection to the server after another: dials, says hello, keeps it alive, and dials again. */
export class Connection {
  readonly state = new Store<ConnectionState>({ kind: 'idle' })
  readonly queue: SendQueue

  readonly #options: ConnectionOptions
  readonly #handler: ConnectionHandler
  readonly #secret = randomId() // the server derives the public session id from it
  readonly #tokens: TokenSource
  readonly #backoff: Backoff
  readonly #refreshBackoff: Backoff
  readonly #heartbeat: Heartbeat

  // Each attempt has its number. What an earlier one still says, a late close above all, is not heard.
  #epoch = 0
  #socket: WebSocket | undefined
  #dialledAt = 0
  #goodSince: number | undefined // when welcome arrived
  #slotAt: number | undefined // when the server wants us to come back
  #token: string | undefined // that of the grant
  #nextToken: string | undefined // sent, and not yet taken
  #timer: ReturnType<typeof setTimeout> | undefined // of the redial, the dial's timeout, or the slot
  #refreshTimer: ReturnType<typeof setTimeout> | undefined
  #limits = DEFAULT_LIMITS
  #stopWake: (() => void) | undefined

  constructor(options: ConnectionOptions, handler: ConnectionHandler) {
    this.#options = options
    this.#handler = handler
    this.queue = new SendQueue(options.queueSize)
    this.#tokens = new TokenSource(options.token)
    this.#backoff = new Backoff(options.random, options.backoff)
    this.#refreshBackoff = new Backoff(options.random, options.backoff)
    this.#heartbeat = new Heartbeat(
      () => {
        this.queue.control(this.#hello())
        handler.beat()
      },
      () => this.#drop(4000, 'server silent', new TidewireError('SERVER_SILENT')),
    )
  }

  /** The last announced limits. */
  get limits(): Limits {
    return this.#limits
  }

  get connected(): boolean {
    return this.#goodSince !== undefined
  }

  get stopped(): TidewireError | undefined {
    const state = this.state.getSnapshot()
    return state.kind === 'stopped' ? state.error : undefined
  }

  /** Dials, unless it already does or is connected. After a stop it starts anew. */
  connect(): void {
    const { kind } = this.state.getSnapshot()
    if (kind !== 'idle' && kind !== 'stopped') return
    this.#tokens.reset()
    this.#backoff.reset()
    this.#stopWake ??= onWake((wake) => this.#wake(wake))
    void this.#dial()
  }

  /** Dials if nothing has dialled yet. After a stop only the application does. */
  need(): void {
    if (!this.stopped) this.connect()
  }

  close(): void {
    this.#stop('closed', new TidewireError('CLOSED'))
  }

  #set(state: BareState): void {
    const { updateAvailable } = this.state.getSnapshot()
    this.state.set((updateAvailable === undefined ? state : { ...state, updateAvailable }) as ConnectionState)
  }

  #hello(): ClientFrame {
    const { build } = this.#options
    return { type: 'hello', protocol: PROTOCOL, client: this.#secret, ...(build !== undefined && { build }) }
  }

  async #dial(): Promise<void> {
    this.#release()
    const epoch = this.#epoch
    this.#dialledAt = Date.now()
    this.#set({ kind: 'connecting', attempt: this.#backoff.failures + 1 })
    let token: string | undefined
    try {
      token = await this.#tokens.get()
    } catch (error) {
      if (epoch === this.#epoch) this.#tokenFailed(error as TidewireError)
      return
    }
    if (epoch !== this.#epoch) return

    let socket: WebSocket
    try {
      const { url, WebSocket = globalThis.WebSocket } = this.#options
      // Not every browser resolves the address by itself.
      const { href } = new URL(url, globalThis.location?.href)
      socket = new WebSocket(href.replace(/^http/, 'ws'), subprotocols(token))
    } catch (error) {
      // The browser will not even try, and would not the next time: an address that is none, or is forbidden.
      this.#stop('refused', new TidewireError('CONNECTION_FAILED', { cause: String(error) }))
      return
    }
    this.#socket = socket
    this.#token = token
    let opened = false
    socket.onopen = () => {
      if (epoch !== this.#epoch) return
      opened = true
      socket.send(JSON.stringify(this.#hello()))
    }
    socket.onmessage = (event: MessageEvent<unknown>) => {
      if (epoch !== this.#epoch) return
      this.#heartbeat.heard()
      const frame = decode(event.data)
      if (frame) this.#take(frame)
    }
    socket.onclose = (event: CloseEvent) => {
      if (epoch === this.#epoch) this.#closed(event, opened)
    }
    socket.onerror = () => {
      // A close follows in browsers; outside, a dial may fail without one.
      if (epoch === this.#epoch && !opened) this.#closed({ code: 1006, reason: '' }, opened)
    }
    this.#timer = setTimeout(() => {
      this.#drop(4000, 'no welcome', new TidewireError('CONNECTION_FAILED', { cause: 'no welcome in time' }))
    }, DIAL_TIMEOUT_MS)
  }

  #take(frame: ServerFrame): void {
    switch (frame.type) {
      case 'welcome':
        this.#welcome(frame)
        return
      case 'authenticated':
        this.#token = this.#nextToken ?? this.#token // a server may renew a grant by itself
        this.#nextToken = undefined
        this.#granted(frame.expiresInMs)
        return
      case 'reconnect':
        // Until its slot the connection serves on; a server that closes earlier does not bring it forward.
        this.#slotAt = Date.now() + frame.afterMs
        this.#timer = setTimeout(() => this.#drop(4004, 'moving', new TidewireError('DRAINING')), frame.afterMs)
        return
      case 'update-available': {
        const state = this.state.getSnapshot()
        if (state.updateAvailable !== frame.build) this.state.set({ ...state, updateAvailable: frame.build })
        return
      }
      case 'refused':
        if (frame.code === 'FRAME_RATE_LIMIT') this.queue.pause(frame.retryAfterMs ?? 1000)
        if (frame.re === 'hello' && !this.connected) {
          const error = new TidewireError(frame.code, frame)
          if (frame.retryAfterMs === undefined) this.#stop('refused', error)
          else this.#drop(1000, 'refused', error)
          return
        }
        if (frame.re === 'auth' && frame.retryAfterMs !== undefined) {
          // The server could not judge the token: the same one goes again. Without a delay it takes none, and
          // the next dial uses it: asking for others until then would only load the application.
          this.#refreshLater(Math.max(frame.retryAfterMs, this.#refreshBackoff.next()))
        }
    }
    this.#handler.frame(frame)
  }

  #welcome(frame: Welcome): void {
    if (this.#goodSince !== undefined) return // the answer to a heartbeat
    clearTimeout(this.#timer)
    this.#goodSince = Date.now()
    this.#limits = { ...DEFAULT_LIMITS, ...frame.limits }
    this.#heartbeat.start(this.#options.heartbeatMs ?? frame.heartbeatMs ?? 15_000)
    this.#granted(frame.expiresInMs)
    const { actor, connection, session } = frame
    this.queue.open(this.#socket as WebSocket, this.#limits, () => this.#handler.ready())
    // A listener may have closed the client.
    if (!this.connected) return
    this.#set({ kind: 'connected', connection, session, ...(actor !== undefined && { actor }), limits: this.#limits })
  }

  /** The grant is good for so long: another token is fetched when 80 to 90 % have passed, spread so that clients do not ask together. */
  #granted(expiresInMs: number | undefined): void {
    this.#tokens.accepted(this.#token, expiresInMs)
    this.#refreshBackoff.reset()
    clearTimeout(this.#refreshTimer)
    if (expiresInMs === undefined || !this.#tokens.renewable) return
    this.#refreshLater(expiresInMs * (0.8 + 0.1 * this.#options.random()))
  }

  #refreshLater(ms = this.#refreshBackoff.next()): void {
    clearTimeout(this.#refreshTimer)
    if (!this.#tokens.renewable) return
    this.#refreshTimer = setTimeout(() => void this.#refresh(), Math.min(ms, MAX_TIMER_MS))
  }

  async #refresh(): Promise<void> {
    const epoch = this.#epoch
    try {
      const token = this.#nextToken ?? (await this.#tokens.fresh())
      if (epoch !== this.#epoch) return
      this.#nextToken = token
      this.queue.control({ type: 'auth', token })
    } catch (error) {
      if (epoch !== this.#epoch) return
      if ((error as TidewireError).code === 'SOCKET_UNAUTHENTICATED') this.#tokenFailed(error as TidewireError)
      else this.#refreshLater()
    }
  }

  #tokenFailed(error: TidewireError): void {
    if (error.code === 'SOCKET_UNAUTHENTICATED') this.#stop('unauthenticated', error)
    else this.#wait(error)
  }

  #closed(event: Pick<CloseEvent, 'code' | 'reason'>, opened: boolean): void {
    const cause = opened ? `closed with ${event.code} ${event.reason}`.trim() : 'could not connect'
    if (event.code === 1008 && !this.#tokens.refused(this.#token)) {
      this.#stop('unauthenticated', new TidewireError('SOCKET_UNAUTHENTICATED', { cause }))
      return
    }
    if (!opened) this.#tokens.dialFailed()
    if (event.code === 4001 && !this.#handler.needed()) {
      this.#release()
      this.#set({ kind: 'idle' })
      this.#handler.lost()
      return
    }
    this.#wait(new TidewireError(opened ? 'CONNECTION_LOST' : 'CONNECTION_FAILED', { cause }))
  }

  /** Closes the socket, without waiting for the answer, and dials again. */
  #drop(code: number, reason: string, error: TidewireError): void {
    const socket = this.#socket
    this.#wait(error)
    socket?.close(code, reason)
  }

  #wait(error: TidewireError): void {
    // Only a connection that lasted ends a series of failures. A server that welcomes and then closes
    // would otherwise be dialled at the shortest delay for ever.
    if (this.#goodSince !== undefined && Date.now() - this.#goodSince >= this.#backoff.maxMs) this.#backoff.reset()
    if (this.#slotAt !== undefined) error = new TidewireError('DRAINING', { retryAfterMs: Math.max(0, this.#slotAt - Date.now()) })
    this.#release()
    const epoch = this.#epoch
    const delay = this.#backoff.next()
    const ms = error.retryAfterMs ?? delay // what the server said comes first
    this.#timer = setTimeout(() => void this.#dial(), Math.min(ms, MAX_TIMER_MS))
    this.#handler.lost()
    // A listener may have closed the client.
    if (epoch !== this.#epoch) return
    this.#set({ kind: 'waiting', reconnectAt: Date.now() + ms, attempt: this.#backoff.failures, error })
  }

  #stop(reason: 'closed' | 'unauthenticated' | 'refused', error: TidewireError): void {
    const socket = this.#socket
    this.#stopWake?.()
    this.#stopWake = undefined
    this.#release()
    socket?.close(1000)
    this.queue.fail(error)
    this.#set({ kind: 'stopped', reason, error })
    this.#handler.lost()
  }

  /** Ends the current attempt: from here on its socket is not heard. */
  #release(): void {
    this.#epoch++
    this.#socket = undefined
    this.#nextToken = undefined
    this.#slotAt = undefined
    this.#goodSince = undefined
    clearTimeout(this.#timer)
    clearTimeout(this.#refreshTimer)
    this.#heartbeat.stop()
    this.queue.lost()
  }

  #wake(wake: Wake): void {
    const state = this.state.getSnapshot()
    switch (state.kind) {
      case 'connected':
        if (wake === 'visible') this.#heartbeat.probeIfQuiet()
        else this.#heartbeat.probe()
        return
      case 'waiting':
        // The server's slot spreads its clients: it stands.
        if (state.error.retryAfterMs === undefined) void this.#dial()
        return
      case 'connecting':
        if (this.#socket && Date.now() - this.#dialledAt > STALE_DIAL_MS) {
          const socket = this.#socket
          void this.#dial()
          socket.close(1000)
        }
    }
  }
}
