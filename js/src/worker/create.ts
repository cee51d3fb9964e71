/** What kind of worker. */
export type WorkerKind = 'shared' | 'dedicated'

/**
 * Starts the worker of this package: `worker.js`, beside this file. Bundlers that know workers (Vite, webpack) see the expressions below and emit that file; with others, copy `tidewire/worker` beside the bundle, as
 * `worker.js`, or give its address as `workerUrl` and leave this out. Throws where the browser refuses.
 */
export function createWorker(kind: WorkerKind, name: string): SharedWorker | Worker {
  return kind === 'shared'
    ? new SharedWorker(new URL('./worker.js', import.meta.url), { type: 'module', name })
    : new Worker(new URL('./worker.js', import.meta.url), { type: 'module', name })
}
