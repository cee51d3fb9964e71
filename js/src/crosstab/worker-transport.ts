import { TidewireError } from '../error.js'
import type { WorkerKind } from '../worker/create.js'
import { WorkerLink } from '../worker/link.js'
import { BUILD } from '../worker/messages.js'
import { browserPlatform } from './browser.js'
import type { Platform, WorkerPort } from './platform.js'
import type { DataBusTransport, Position, PublishOptions, TransportEvents } from './transport.js'

/** How a worker is started. */
export interface WorkerSource {
  /** The address of the worker's script. */
  readonly workerUrl?: string | URL | undefined
  /** Starts the worker instead: `createWorker` of `tidewire/worker/create`, or your own. */
  readonly createWorker?: ((kind: WorkerKind, name: string) => SharedWorker | Worker) | undefined
}

/**
 * Where the connection lives. `dedicated`: a Dedicated Worker, else a SharedWorker, else the page. `auto`: a SharedWorker, else a Dedicated Worker, else the page. `shared`: a SharedWorker or nothing. Also in a
 * SharedWorker each page has a connection of its own.
 */
export type WorkerMode = 'dedicated' | 'shared' | 'auto'

/** Where a {@link WorkerTransport} is. */
export type WorkerPlace = WorkerKind | 'page'

/** Options of {@link workerTransport}. */
export interface WorkerTransportOptions extends WorkerSource {
  /** Default `dedicated`. */
  readonly mode?: WorkerMode | undefined
  /** Makes the transport for the page itself, where no worker can be had. Absent: start rejects there with WORKER_UNAVAILABLE. */
  readonly page?: (() => DataBusTransport) | undefined
  /** Moves ArrayBuffers, and views of whole ones, to the worker and from it instead of copying them: what was published cannot be read any more. Default false. */
  readonly transferable?: boolean | undefined
  /** A part of the worker's name, which developer tools show. Default `tidewire`. */
  readonly name?: string | undefined
  readonly platform?: Platform | undefined
}

/** A transport whose connection lives in a worker. */
export interface WorkerTransport extends DataBusTransport {
  /** Where the connection is. Undefined: not started. */
  readonly place: WorkerPlace | undefined
  /** Why it is not where it would better be. Empty: it is. */
  readonly placeReason: string
}

const ORDER: Readonly<Record<WorkerMode, readonly WorkerPlace[]>> = {
  dedicated: ['dedicated', 'shared', 'page'],
  auto: ['shared', 'dedicated', 'page'],
  shared: ['shared'],
}

/**
 * A transport whose connection lives in a worker, where timers of hidden pages are not throttled and a busy page delays nothing. Its configuration, and what it carries, must be what structured cloning takes. The
 * transport in the worker is what its script has made: with `tidewire/worker` a `TidewireTransport`.
 *
 * A worker that dies is noticed and replaced within 3 s; nothing of a topic with a history is lost. Errors are `TidewireError`s: WORKER_UNAVAILABLE when no worker can be had, WORKER_LOST for calls whose worker died, of
 * which nobody knows whether they took effect.
 */
export function workerTransport(options: WorkerTransportOptions = {}): WorkerTransport {
  const { mode = 'dedicated', page, transferable, name = 'tidewire', platform = browserPlatform() } = options
  let place: WorkerPlace | undefined
  let placeReason = ''
  let current: DataBusTransport | undefined
  /** What is subscribed before it is known where. */
  let early: Map<string, Position | undefined> | undefined
  let turn = 0

  const make = (where: WorkerPlace): DataBusTransport | undefined => {
    if (where === 'page') return page?.()
    // The name says which build: another one's worker is another.
    const open = () => openWorker(where, `${name}:${BUILD}`, options, platform)
    return new WorkerLink({ platform, open, shared: where === 'shared', ...(transferable && { transfer: true }) })
  }

  return {
    get place() {
      return place
    },
    get placeReason() {
      return placeReason
    },

    async start(config: unknown, events: TransportEvents): Promise<void> {
      const mine = ++turn
      const reasons: string[] = []
      early = new Map()
      for (const where of ORDER[mode]) {
        const transport = make(where)
        if (!transport) continue
        current = transport
        try {
          await transport.start(config, events)
        } catch (error) {
          if (mine !== turn || where === 'page') throw error
          reasons.push(`${where}: ${error instanceof Error ? error.message : String(error)}`)
          continue
        }
        if (mine !== turn) return
        place = where
        placeReason = reasons.join('; ')
        for (const [topic, from] of early) void transport.subscribe(topic, from)
        early = undefined
        return
      }
      current = early = undefined
      throw new TidewireError('WORKER_UNAVAILABLE', { cause: reasons.join('; ') })
    },

    async stop(): Promise<void> {
      turn++
      const transport = current
      place = current = early = undefined
      await transport?.stop()
    },

    subscribe(topic: string, from?: Position): Promise<void> | void {
      if (!early) return current?.subscribe(topic, from)
      if (!early.has(topic)) early.set(topic, from)
    },

    async unsubscribe(topic: string): Promise<void> {
      early?.delete(topic)
      await current?.unsubscribe(topic)
    },

    async publish(topic: string, data: unknown, publishOptions?: PublishOptions): Promise<void> {
      if (!current) throw new TidewireError('CLOSED')
      return current.publish(topic, data, publishOptions)
    },
  }
}

/** Opens the port of a worker, or throws WORKER_UNAVAILABLE. */
export function openWorker(kind: WorkerKind, name: string, { workerUrl, createWorker }: WorkerSource, platform: Platform): WorkerPort {
  const start = kind === 'shared' ? platform.sharedWorker : platform.dedicatedWorker
  if (!start) throw new TidewireError('WORKER_UNAVAILABLE', { cause: `this browser has no ${kind} workers` })
  try {
    if (createWorker) return portOf(createWorker(kind, name))
    if (workerUrl !== undefined) return start(workerUrl, name)
  } catch (error) {
    throw new TidewireError('WORKER_UNAVAILABLE', { cause: String(error) })
  }
  throw new TidewireError('WORKER_UNAVAILABLE', { cause: 'neither workerUrl nor createWorker says which', fix: "give createWorker of 'tidewire/worker/create', or workerUrl" })
}

function portOf(worker: SharedWorker | Worker): WorkerPort {
  const end = 'port' in worker ? worker.port : worker
  const self: WorkerPort = {
    postMessage: (message, transfer = []) => end.postMessage(message, transfer),
    onmessage: null,
    onerror: null,
    close: () => ('close' in end ? end.close() : end.terminate()),
  }
  end.onmessage = (event: MessageEvent) => self.onmessage?.(event)
  worker.onerror = (event) => self.onerror?.((event as ErrorEvent).message || 'the script cannot be had')
  return self
}
