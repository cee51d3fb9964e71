/**
 * A browser with tabs, and a server, in memory: for tests of what runs in many tabs. It implements the ports of `tidewire/crosstab`, and behaves as badly as real browsers do.
 *
 * # Time
 * Nothing waits for real: a test moves the clock of the cluster, which runs microtasks after every event. One seed is one order of events; whatever takes time takes as long as the seed says, within
 * {@link Latency}.
 *
 * # What is promised
 * Messages of one sender to one receiver arrive in order, and what one transport sends to the server. A lock is given to one. A tab's own writes to storage are seen by itself at once. The end of a connection reaches the
 * server before what other tabs send afterwards, and takes with it what was under way.
 *
 * # What is not
 * Another tab sees a write to storage late, whatever message or lock comes first. A tab that cannot run keeps its locks, and is given those it waits for. A stolen lock's holder hears of it later, one that
 * hung after it was called with the lock. What was due while a tab could not run comes at once then, timers first or not. Nobody is told of a worker's death.
 */
export type { Latency, LifeState, Range } from './agent.js'
export type { Hop } from './channel.js'
export type { TestClock } from './clock.js'
export { createTestCluster, type Missing, type TestCluster, type TestClusterOptions, type TestTab, type TestTabOptions } from './cluster.js'
export type { Theft } from './locks.js'
export type { Double, Published, TestServer, TestTransport } from './server.js'
export type { StorageFault } from './storage.js'
export type { TestWorker, TestWorkerScope, WorkerScript } from './worker.js'
