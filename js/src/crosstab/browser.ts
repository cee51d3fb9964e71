import { randomId } from '../id.js'
import { attempt } from './identity.js'
import type { ChannelPort, KeyValue, Locks, PageEvent, Platform, WorkerPort } from './platform.js'

const MAX_MS = 0x7fff_ffff

/** The browser that this runs in, page or worker. Outside a browser there is nothing but a clock and timers. */
export function browserPlatform(): Platform {
  const page = typeof document === 'undefined' ? undefined : document
  // Node has BroadcastChannel, locks and more: not of a browser with tabs.
  const here = page || 'WorkerGlobalScope' in globalThis
  const has = <T>(name: string, make: () => T): T | undefined => (here && name in globalThis ? make() : undefined)
  const tasks: (() => void)[] = []
  let turn: MessageChannel | undefined
  return {
    now: () => performance.now(),
    wallNow: () => Date.now(),
    after(ms, call) {
      const timer = setTimeout(call, Math.min(ms, MAX_MS))
      return () => clearTimeout(timer)
    },
    soon: (call) => queueMicrotask(call),
    task(call) {
      tasks.push(call)
      if (!turn) {
        turn = new MessageChannel()
        turn.port1.onmessage = () => tasks.shift()?.()
      }
      turn.port2.postMessage(0)
    },
    randomId,
    random: () => Math.random(),
    channel: has('BroadcastChannel', () => (name: string) => new BroadcastChannel(name) as ChannelPort),
    locks: here ? attempt(() => navigator.locks as Locks | undefined) : undefined,
    storage: here ? usable(() => localStorage) : undefined,
    session: here ? usable(() => sessionStorage) : undefined,
    sharedWorker: has('SharedWorker', () => (url: string | URL, name: string) => {
      const worker = new SharedWorker(url, { name, type: 'module' })
      return port(worker, worker.port, () => worker.port.close())
    }),
    dedicatedWorker: has('Worker', () => (url: string | URL, name: string) => {
      const worker = new Worker(url, { name, type: 'module' })
      return port(worker, worker, () => worker.terminate())
    }),
    page: {
      get visible() {
        return page?.visibilityState !== 'hidden'
      },
      // A page that was opened and then reloaded has its own sessionStorage.
      opened: !!(page && attempt(() => window.opener && (performance.getEntriesByType('navigation')[0] as PerformanceNavigationTiming | undefined)?.type === 'navigate')),
      listen(listener) {
        const listening = new AbortController()
        const on = (target: EventTarget, type: string, event: () => PageEvent | undefined) =>
          target.addEventListener(
            type,
            (raised) => {
              // A page that is shown for the first time was not hidden.
              const said = event()
              if (said && (said !== 'show' || (raised as PageTransitionEvent).persisted)) listener(said)
            },
            listening,
          )
        if (page) {
          on(window, 'pagehide', () => 'hide')
          on(window, 'pageshow', () => 'show')
          on(window, 'online', () => 'online')
          on(page, 'freeze', () => 'freeze')
          on(page, 'resume', () => 'resume')
          on(page, 'visibilitychange', () => (page.visibilityState === 'hidden' ? 'hidden' : 'visible'))
        }
        return () => listening.abort()
      },
    },
  }
}

/** A storage that takes a value. One that is switched off, or full, is none. */
function usable(get: () => Storage): KeyValue | undefined {
  return attempt(() => {
    const storage = get()
    storage.setItem('tidewire:probe', '')
    storage.removeItem('tidewire:probe')
    return storage
  })
}

function port(worker: EventTarget, end: MessagePort | Worker, close: () => void): WorkerPort {
  const self: WorkerPort = {
    postMessage: (message, transfer = []) => end.postMessage(message, transfer),
    onmessage: null,
    onerror: null,
    close,
  }
  end.onmessage = (event: MessageEvent) => self.onmessage?.(event)
  worker.addEventListener('error', (event) => self.onerror?.((event as ErrorEvent).message ?? 'the script cannot be had'))
  return self
}
