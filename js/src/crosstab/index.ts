/**
 * Tabs of one origin that share what a server sends: for each topic one of them subscribes, and hands on what comes to the others.
 *
 * # Who owns what
 * Each topic that a tab wants has one owner among the tabs, which alone subscribes it at the server. With Web Locks the owner holds a lock for as long, so that there are never two; when it is closed, crashes or is frozen,
 * another takes over at once. Without locks tabs agree by messages and heartbeats, and may disagree for moments.
 *
 * # What arrives
 * Of a topic whose history the server keeps, each handler gets each publication once and in order, whatever becomes of the owner, or is told `lost`. Of a topic without, each publication at most once; what was published
 * while no owner was subscribed is missing, which is told as `lost`.
 *
 * # What is loaded
 * {@link CrossTabDataBus} loads the code of the rung that it takes by `import()`; {@link preload} does it ahead. What tabs do among themselves is usable alone: `WorkerClusterRuntime` of `tidewire/crosstab/runtime`.
 *
 * # What is kept
 * localStorage has who is there and who owns what, under opaque keys: no topic, address, credential or payload. Messages between tabs have topics and payloads as they are: any script of the origin can read them.
 */
export { browserPlatform } from './browser.js'
export { type BusEvents, type BusState, CrossTabDataBus, type DataBusOptions, type Lifecycle, type MessageHandler, type MessageMeta, type TopicOptions } from './bus.js'
export type { ClusterSnapshot, Coordinator, CoordinatorEvents, Mode, RouteView, WorkerRecord, WorkerRoute } from './coordinator.js'
export { createOpaqueKey } from './hash.js'
export type { ClusterOptions } from './names.js'
export type { ChannelPort, KeyValue, LockOptions, Locks, PageEvent, PageLife, Platform, WorkerPort } from './platform.js'
export { preload } from './rungs.js'
export type { ClusterTuning, WorkerClusterOptions } from './runtime.js'
export type { Latency, TraceEvent } from './trace.js'
export type { DataBusTransport, Position, Publication, PublishOptions, TransportEvents, TransportStatus } from './transport.js'
