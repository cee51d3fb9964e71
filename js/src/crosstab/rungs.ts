// The code of the rungs is loaded when a tab comes to need it: a page on the shared rung never has that of the owners among tabs, which is the larger half.
type Shared = typeof import('./shared.js')
type Runtime = typeof import('./runtime.js')

let shared: Shared | undefined
let runtime: Runtime | undefined

export const loadShared = (): Shared | Promise<Shared> => shared ?? import('./shared.js').then((module) => (shared = module))
export const loadRuntime = (): Runtime | Promise<Runtime> => runtime ?? import('./runtime.js').then((module) => (runtime = module))

/** Loads the code of every rung ahead. A bus that starts afterwards needs no module any more: what a page does that may lose the network first, and a test with a clock of its own. */
export async function preload(): Promise<void> {
  await Promise.all([loadShared(), loadRuntime()])
}
