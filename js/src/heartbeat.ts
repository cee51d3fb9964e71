import { createTimer } from './timer.js'

/** Milliseconds that a server has to answer when the connection is in doubt. */
const PROBE_MS = 2000

/**
 * Notices a connection that is gone without a close. It beats each interval; two intervals without anything
 * from the server are its end. Timers alone prove nothing: a machine that slept or a throttled tab runs them
 * late, with the server's answers still unread. So a late beat asks again and gives the server a short time.
 */
export function createHeartbeat(beat: () => void, dead: () => void) {
  let everyMs = 0
  let dueAt = 0
  const timer = createTimer()
  let heard = true
  let heardAt = 0
  let silentIntervals = 0
  const probeTimer = createTimer()

  function schedule(): void {
    // The wall clock goes on while the machine sleeps; a monotonic one may not.
    dueAt = Date.now() + everyMs
    timer._set(everyMs, tick)
  }

  function tick(): void {
    const late = Date.now() - dueAt > everyMs
    schedule()
    if (late) {
      self._probe()
      return
    }
    silentIntervals = heard ? 0 : silentIntervals + 1
    heard = false
    if (silentIntervals >= 2) dead()
    else beat()
  }

  function ask(again: boolean): void {
    const due = Date.now() + PROBE_MS
    probeTimer._set(PROBE_MS, () => {
      // Fired late: the answer may be waiting behind this timer. Ask once more, and only once,
      // for in a throttled tab every timer is late.
      if (again && Date.now() - due > PROBE_MS) ask(false)
      else dead()
    })
    beat()
  }

  const self = {
    _start(intervalMs: number): void {
      self._stop()
      everyMs = intervalMs
      silentIntervals = 0
      self._heard()
      schedule()
    },

    _stop(): void {
      timer._clear()
      probeTimer._clear()
    },

    /** Something arrived from the server. */
    _heard(): void {
      heard = true
      heardAt = Date.now()
      probeTimer._clear()
    },

    /** Beats now and gives the server 2 s, unless it is already being asked; with quiet only if nothing has arrived for an interval. */
    _probe(quiet = false): void {
      if (timer._on && !probeTimer._on && (!quiet || Date.now() - heardAt > everyMs)) ask(true)
    },
  }
  return self
}

export type Heartbeat = ReturnType<typeof createHeartbeat>
