import { browserPlatform } from '../crosstab/browser.js'
import type { WorkerPort } from '../crosstab/platform.js'
import type { DataBusTransport } from '../crosstab/transport.js'
import { createHost } from './host.js'

/** The part of a worker's global scope that is used. */
interface Scope {
  onconnect?: ((event: { readonly ports: readonly MessagePort[] }) => void) | null
  onmessage?: ((event: { readonly data: unknown }) => void) | null
  postMessage(message: unknown, transfer: Transferable[]): void
  close(): void
}

/**
 * Makes this worker, shared or dedicated, carry transports for pages: the whole script of a worker with a transport of your own.
 *
 * ```ts
 * import { CentrifugeTransport } from 'tidewire/crosstab/centrifuge'
 * import { hostWorker } from 'tidewire/worker/host'
 *
 * hostWorker(() => new CentrifugeTransport())
 * ```
 *
 * `transport` is called for each connection, with the configuration that the page gave. Call it while the script runs for the first time.
 */
export function hostWorker(transport: (config: unknown) => DataBusTransport): void {
  const host = createHost({ platform: browserPlatform(), transport })
  const scope = globalThis as unknown as Scope
  if ('onconnect' in scope) {
    scope.onconnect = ({ ports: [port] }) => port && host.connect(port as unknown as WorkerPort)
    return
  }
  // A dedicated worker is itself the port to its one page.
  const port: WorkerPort = { postMessage: (message, transfer = []) => scope.postMessage(message, transfer), onmessage: null, onerror: null, close: () => scope.close() }
  scope.onmessage = (event) => port.onmessage?.(event)
  host.connect(port)
}
