import type { ConnectionState } from 'tidewire'
import { byId, write } from './dom.js'

const REASONS: Readonly<Record<string, string>> = {
  CONNECTION_FAILED: 'The server does not answer.',
  CONNECTION_LOST: 'The connection was lost.',
  DRAINING: 'The server is restarting.',
  SERVER_SILENT: 'The server went silent.',
  TOKEN_UNAVAILABLE: 'The server does not answer.',
  SOCKET_UNAUTHENTICATED: 'The server does not take this guest.',
  CLOSED: 'This window closed the connection.',
}

/** Shows where the connection is, and what it does. */
export class Panel {
  readonly #status = byId('status', HTMLElement)
  readonly #state = byId('state', HTMLElement)
  readonly #countdown = byId('countdown', HTMLElement)
  readonly #reason = byId('reason', HTMLElement)
  readonly #again = byId('again', HTMLButtonElement)
  readonly #session = byId('session', HTMLElement)
  readonly #latency = byId('latency', HTMLElement)
  #timer: ReturnType<typeof setInterval> | undefined

  constructor() {
    byId('reload', HTMLButtonElement).addEventListener('click', () => location.reload())
  }

  /** Called when the connection has stopped and the reader wants another try. */
  onAgain(listener: () => void): void {
    this.#again.addEventListener('click', listener)
  }

  show(state: ConnectionState): void {
    document.documentElement.dataset['connection'] = state.kind
    this.#status.dataset['kind'] = state.kind
    write(this.#state, nameOf(state))
    const error = state.kind === 'waiting' || state.kind === 'stopped' ? state.error : undefined
    write(this.#reason, error ? (REASONS[error.code] ?? error.code) : '')
    this.#reason.title = error?.cause ?? ''
    this.#again.hidden = state.kind !== 'stopped'
    byId('update', HTMLElement).hidden = state.updateAvailable === undefined
    write(this.#session, state.kind === 'connected' ? state.session : '')
    if (state.kind !== 'connected') write(this.#latency, '–')
    this.#count(state)
  }

  latency(ms: number): void {
    write(this.#latency, `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`)
  }

  received(perSecond: number): void {
    write(byId('received', HTMLElement), `${perSecond} /s`)
  }

  skipped(count: number): void {
    write(byId('skipped', HTMLElement), String(count))
  }

  /** The countdown is for the eye: read aloud, it would never end. */
  #count(state: ConnectionState): void {
    clearInterval(this.#timer)
    write(this.#countdown, '')
    if (state.kind !== 'waiting') return
    const show = () => {
      const left = Math.max(0, state.reconnectAt - Date.now())
      write(this.#countdown, `again in ${(left / 1000).toFixed(1)} s`)
    }
    show()
    this.#timer = setInterval(show, 100)
  }
}

function nameOf(state: ConnectionState): string {
  switch (state.kind) {
    case 'idle':
      return 'Not connected'
    case 'connecting':
      return state.attempt > 1 ? `Connecting, attempt ${state.attempt}` : 'Connecting'
    case 'connected':
      return 'Connected'
    case 'waiting':
      return 'Waiting'
    case 'stopped':
      return 'Stopped'
    default:
      return state satisfies never
  }
}
