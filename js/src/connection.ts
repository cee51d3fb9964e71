import { createBackoff, type BackoffOptions } from './backoff.js'
import { TidewireError } from './error.js'
import { type ClientFrame, decode, DEFAULT_LIMITS, PROTOCOL, type ServerFrame, type Welcome } from './frames.js'
import { createHeartbeat } from './heartbeat.js'
import { randomId } from './id.js'
import { createQueue } from './queue.js'
import type { BareState, ConnectionState } from './state.js'
import { createStore } from './store.js'
import { createTimer } from './timer.js'
import { subprotocols, type Token, createTokens } from './token.js'
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
  _ready(session: string): void
  /** An answer or an event arrived. */
  _take(frame: ServerFrame): void
  /** A heartbeat is due: repeat the subscriptions that need it. */
  _beat(): void
  /** The connection ended, or will not come. */
  _lost(): void
  /** Whether anything is subscribed or waits for an answer. */
  _busy(): boolean
}

const DIAL_TIMEOUT_MS = 10_000
// An attempt older than this is replaced when the network comes back: it may have started on the old one.
const STALE_DIAL_MS = 2000

/** One connection to the server after another: dials, says hello, keeps it alive, and dials again. */
export function createConnection(options: ConnectionOptions, handler: ConnectionHandler) {
  const store = createStore<ConnectionState>({ kind: 'idle' })
  const queue = createQueue(options.queueSize)
  const secret = randomId() // the server derives the public session id from it
  const tokens = createTokens(options.token)
  const backoff = createBackoff(options.random, options.backoff)
  const refreshBackoff = createBackoff(options.random, options.backoff)
  const heartbeat = createHeartbeat(
    () => {
      queue._control(hello())
      handler._beat()
    },
    () => drop(4000, new TidewireError('SERVER_SILENT')),
  )

  // Each attempt has its number. What an earlier one still says, a late close above all, is not heard.
  let epoch = 0
  let current: WebSocket | undefined
  let dialledAt = 0
  let goodSince: number | undefined // when welcome arrived
  let slotAt: number | undefined // when the server wants us to come back
  let grantToken: string | undefined // that of the grant
  let nextToken: string | undefined // sent, and not yet taken
  const timer = createTimer() // of the redial, the dial's timeout, or the slot
  const refreshTimer = createTimer()
  let update: { readonly updateAvailable: string } | undefined
  let stopWake: (() => void) | undefined

  function set(state: BareState): void {
    store.set({ ...state, ...update } as ConnectionState)
  }

  function hello(): ClientFrame {
    return { type: 'hello', protocol: PROTOCOL, client: secret, build: options.build }
  }

  async function dial(): Promise<void> {
    release()
    const mine = epoch
    dialledAt = Date.now()
    set({ kind: 'connecting', attempt: backoff._failures + 1 })
    let token: string | undefined
    try {
      token = await tokens._get()
    } catch (error) {
      if (mine === epoch) tokenFailed(error as TidewireError, wait)
      return
    }
    if (mine !== epoch) return

    let socket: WebSocket
    try {
      const { url, WebSocket = globalThis.WebSocket } = options
      // Not every browser resolves the address by itself.
      const { href } = new URL(url, globalThis.location?.href)
      socket = new WebSocket(href.replace(/^http/, 'ws'), subprotocols(token))
    } catch (error) {
      // The browser will not even try, and would not the next time: an address that is none, or is forbidden.
      stop('refused', new TidewireError('CONNECTION_FAILED', { cause: String(error) }))
      return
    }
    current = socket
    grantToken = token
    let opened = false
    socket.onopen = () => {
      if (mine !== epoch) return
      opened = true
      socket.send(JSON.stringify(hello()))
    }
    socket.onmessage = (event: MessageEvent<unknown>) => {
      if (mine !== epoch) return
      heartbeat._heard()
      const frame = decode(event.data)
      if (frame) take(frame)
    }
    socket.onclose = (event: CloseEvent) => {
      if (mine === epoch) closed(event, opened)
    }
    socket.onerror = () => {
      // A close follows in browsers; outside, a dial may fail without one.
      if (mine === epoch && !opened) closed({ code: 1006, reason: '' }, opened)
    }
    timer._set(DIAL_TIMEOUT_MS, () => drop(4000, new TidewireError('CONNECTION_FAILED', { cause: 'no welcome' })))
  }

  function take(frame: ServerFrame): void {
    switch (frame.type) {
      case 'welcome':
        welcome(frame)
        return
      case 'authenticated':
        grantToken = nextToken ?? grantToken // a server may renew a grant by itself
        nextToken = undefined
        granted(frame.expiresInMs)
        return
      case 'reconnect':
        // Until its slot the connection serves on; a server that closes earlier does not bring it forward.
        slotAt = Date.now() + frame.afterMs
        timer._set(frame.afterMs, () => drop(4004, new TidewireError('DRAINING')))
        return
      case 'update-available':
        if (update?.updateAvailable === frame.build) return
        update = { updateAvailable: frame.build }
        set(store.getSnapshot())
        return
      case 'refused':
        if (frame.code === 'FRAME_RATE_LIMIT') queue._pause(frame.retryAfterMs ?? 1000)
        if (frame.re === 'hello' && !self._connected) {
          const error = new TidewireError(frame.code, frame)
          if (frame.retryAfterMs === undefined) stop('refused', error)
          else drop(1000, error)
          return
        }
        if (frame.re === 'auth' && frame.retryAfterMs !== undefined) {
          // The server could not judge the token: the same one goes again. Without a delay it takes none, and
          // the next dial uses it: asking for others until then would only load the application.
          refreshLater(Math.max(frame.retryAfterMs, refreshBackoff._next()))
        }
    }
    handler._take(frame)
  }

  function welcome(frame: Welcome): void {
    if (goodSince) return // the answer to a heartbeat
    timer._clear()
    goodSince = Date.now()
    heartbeat._start(options.heartbeatMs ?? frame.heartbeatMs ?? 15_000)
    granted(frame.expiresInMs)
    const { actor, connection, session } = frame
    queue._open(current as WebSocket, { ...DEFAULT_LIMITS, ...frame.limits }, () => handler._ready(session))
    // A listener may have closed the client.
    if (!self._connected) return
    set({ kind: 'connected', connection, session, ...(actor !== undefined && { actor }), limits: queue._limits })
  }

  /** The grant is good for so long: another token is fetched when 80 to 90 % have passed, spread so that clients do not ask together. */
  function granted(expiresInMs: number | undefined): void {
    tokens._accepted(grantToken, expiresInMs)
    refreshBackoff._reset()
    refreshTimer._clear()
    if (expiresInMs === undefined || !tokens._renewable) return
    refreshLater(expiresInMs * (0.8 + 0.1 * options.random()))
  }

  function refreshLater(ms = refreshBackoff._next()): void {
    if (!tokens._renewable) return
    refreshTimer._set(ms, () => void refresh())
  }

  async function refresh(): Promise<void> {
    const mine = epoch
    try {
      const token = nextToken ?? (await tokens._next())
      if (mine !== epoch) return
      nextToken = token
      queue._control({ type: 'auth', token })
    } catch (error) {
      if (mine !== epoch) return
      tokenFailed(error as TidewireError, () => refreshLater())
    }
  }

  function tokenFailed(error: TidewireError, again: (error: TidewireError) => void): void {
    if (error.code === 'SOCKET_UNAUTHENTICATED') stop('unauthenticated', error)
    else again(error)
  }

  function closed(event: Pick<CloseEvent, 'code' | 'reason'>, opened: boolean): void {
    const cause = opened ? `closed with ${event.code} ${event.reason}`.trim() : 'could not connect'
    if (!opened) tokens._dialFailed()
    if (event.code === 1008 && !tokens._refused(grantToken)) {
      stop('unauthenticated', new TidewireError('SOCKET_UNAUTHENTICATED', { cause }))
    } else if (event.code === 4001 && !handler._busy()) {
      release()
      set({ kind: 'idle' })
      handler._lost()
    } else wait(new TidewireError(opened ? 'CONNECTION_LOST' : 'CONNECTION_FAILED', { cause }))
  }

  /** Closes the socket, without waiting for the answer, and dials again. */
  function drop(code: number, error: TidewireError): void {
    const socket = current
    wait(error)
    socket?.close(code, error.code)
  }

  function wait(error: TidewireError): void {
    // Only a connection that lasted ends a series of failures. A server that welcomes and then closes
    // would otherwise be dialled at the shortest delay for ever.
    if (goodSince && Date.now() - goodSince >= backoff._maxMs) backoff._reset()
    if (slotAt) error = new TidewireError('DRAINING', { retryAfterMs: Math.max(0, slotAt - Date.now()) })
    release()
    const mine = epoch
    const delay = backoff._next()
    const ms = error.retryAfterMs ?? delay // what the server said comes first
    timer._set(ms, () => void dial())
    handler._lost()
    // A listener may have closed the client.
    if (mine !== epoch) return
    set({ kind: 'waiting', reconnectAt: Date.now() + ms, attempt: backoff._failures, error })
  }

  function stop(reason: 'closed' | 'unauthenticated' | 'refused', error: TidewireError): void {
    const socket = current
    stopWake?.()
    stopWake = undefined
    release()
    socket?.close(1000)
    queue._failed(error)
    set({ kind: 'stopped', reason, error })
    handler._lost()
  }

  /** Ends the current attempt: from here on its socket is not heard. */
  function release(): void {
    epoch++
    current = nextToken = slotAt = goodSince = undefined
    timer._clear()
    refreshTimer._clear()
    heartbeat._stop()
    queue._lost()
  }

  function woken(wake: Wake): void {
    const state = store.getSnapshot()
    const socket = current
    if (state.kind === 'connected') heartbeat._probe(wake === 'visible')
    // The server's slot spreads its clients: it stands.
    else if (state.kind === 'waiting' ? state.error.retryAfterMs === undefined : state.kind === 'connecting' && socket && Date.now() - dialledAt > STALE_DIAL_MS) {
      void dial()
      socket?.close(1000)
    }
  }

  const self = {
    _state: store,
    _queue: queue,

    get _connected(): boolean {
      return !!goodSince
    },

    get _stopped(): TidewireError | undefined {
      const state = store.getSnapshot()
      return state.kind === 'stopped' ? state.error : undefined
    },

    /** Dials, unless it already does or is connected. After a stop it starts anew. */
    _connect(): void {
      const { kind } = store.getSnapshot()
      if (kind !== 'idle' && kind !== 'stopped') return
      tokens._reset()
      backoff._reset()
      stopWake ??= onWake(woken)
      void dial()
    },

    /** Dials if nothing has dialled yet. After a stop only the application does. */
    _need(): void {
      if (!self._stopped) self._connect()
    },

    /** As if the browser had said it: a worker hears nothing of its pages' life. */
    _woken: woken,

    _close(): void {
      stop('closed', new TidewireError('CLOSED'))
    },
  }
  return self
}

export type Connection = ReturnType<typeof createConnection>
