/** Milliseconds that a server has to answer when the connection is in doubt. */
const PROBE_MS = 2000

/**
 * Notices a connection that is gone without a close. It beats each interval; two intervals without anything
 * from the server are its end. Timers alone prove nothing: a machine that slept or a throttled tab runs them
 * late, with the server's answers still unread. So a late beat asks again and gives the server a short time.
 */
export class Heartbeat {
  readonly #beat: () => void
  readonly #dead: () => void
  #intervalMs = 0
  #due = 0
  #timer: ReturnType<typeof setTimeout> | undefined
  #heard = true
  #heardAt = 0
  #silentIntervals = 0
  #probeTimer: ReturnType<typeof setTimeout> | undefined

  constructor(beat: () => void, dead: () => void) {
    this.#beat = beat
    this.#dead = dead
  }

  start(intervalMs: number): void {
    this.stop()
    this.#intervalMs = intervalMs
    this.#silentIntervals = 0
    this.heard()
    this.#schedule()
  }

  stop(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#settle()
  }

  /** Something arrived from the server. */
  heard(): void {
    this.#heard = true
    this.#heardAt = Date.now()
    this.#settle()
  }

  /** Beats now and gives the server 2 s, unless it is already being asked. */
  probe(): void {
    if (this.#timer !== undefined && this.#probeTimer === undefined) this.#ask(true)
  }

  /** Probes if nothing has arrived for an interval. */
  probeIfQuiet(): void {
    if (Date.now() - this.#heardAt > this.#intervalMs) this.probe()
  }

  #schedule(): void {
    // The wall clock goes on while the machine sleeps; a monotonic one may not.
    this.#due = Date.now() + this.#intervalMs
    this.#timer = setTimeout(() => this.#tick(), this.#intervalMs)
  }

  #tick(): void {
    const late = Date.now() - this.#due > this.#intervalMs
    this.#schedule()
    if (late) {
      this.probe()
      return
    }
    this.#silentIntervals = this.#heard ? 0 : this.#silentIntervals + 1
    this.#heard = false
    if (this.#silentIntervals >= 2) this.#dead()
    else this.#beat()
  }

  #ask(again: boolean): void {
    const due = Date.now() + PROBE_MS
    this.#probeTimer = setTimeout(() => {
      // Fired late: the answer may be waiting behind this timer. Ask once more, and only once,
      // for in a throttled tab every timer is late.
      if (again && Date.now() - due > PROBE_MS) this.#ask(false)
      else this.#dead()
    }, PROBE_MS)
    this.#beat()
  }

  #settle(): void {
    clearTimeout(this.#probeTimer)
    this.#probeTimer = undefined
  }
}
