/**
 * A bus on a BroadcastChannel that knows which receivers do not keep up: every frame is acknowledged, and what is pending is counted.
 * The Go package `ackbus` is the same bus on other transports; docs/envelope.md has the messages.
 */
export { type AckedSubscriber, type BroadcastBus, type BroadcastBusOptions, createBroadcastBus } from './bus.js'
export { byteChannel, type ByteChannel } from './bytes.js'
export { type BusChannel, type FrameMessage, receiveAcked } from './channel.js'
export { decodeNativeEnvelope, encodeNativeEnvelope, type NativeEnvelope } from './envelope.js'
export { type HubSubscriber, RealtimeHub, RealtimeHub as PowerRealtimeHub, type RealtimeHubOptions, type SlowConsumerPolicy, type SubscribeOptions } from './hub.js'
