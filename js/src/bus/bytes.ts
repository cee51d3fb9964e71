import { type BusChannel, decodeHeader, encodeHeader, type FrameMessage } from './channel.js'
import { decodeNativeEnvelope, encodeNativeEnvelope } from './envelope.js'
import { fail } from './fail.js'

/** A channel on a transport of bytes. */
export interface ByteChannel extends BusChannel {
  /** Takes a message that the transport brought. What is none of the bus's is left out. */
  receive(bytes: Uint8Array | ArrayBuffer): void
}

/**
 * Carries the messages of a bus over a transport of bytes, such as a WebSocket, as docs/envelope.md describes and the Go package `ackbus` speaks.
 * Frames must be `Uint8Array`; posting another one throws a TypeError.
 *
 * ```ts
 * const socket = new WebSocket(url)
 * socket.binaryType = 'arraybuffer'
 * const channel = byteChannel((bytes) => socket.send(bytes))
 * socket.onmessage = ({ data }) => channel.receive(data)
 * ```
 */
export function byteChannel(send: (bytes: Uint8Array<ArrayBuffer>) => void): ByteChannel {
  const target = new EventTarget() as EventTarget & ByteChannel
  target.postMessage = (message) => {
    if (message instanceof Uint8Array) return send(message as Uint8Array<ArrayBuffer>)
    const { seq, receiverId, frame } = message as FrameMessage
    if (!(frame instanceof Uint8Array)) fail('frame')
    const header = encodeHeader(seq, receiverId)
    // A zero byte ends the header: JSON has none.
    const payload = new Uint8Array(header.length + 1 + frame.length)
    payload.set(header)
    payload.set(frame, header.length + 1)
    send(encodeNativeEnvelope({ type: 'frame', payload }))
  }
  target.receive = (message) => {
    const bytes = message instanceof ArrayBuffer ? new Uint8Array(message) : message
    const envelope = decodeNativeEnvelope(bytes)
    const data = envelope?.type === 'frame' ? decodeFrame(envelope.payload) : envelope && bytes
    if (data) target.dispatchEvent(new MessageEvent('message', { data }))
  }
  return target
}

function decodeFrame(payload: Uint8Array): FrameMessage<Uint8Array> | undefined {
  const end = payload.indexOf(0)
  try {
    const { seq, receiverId } = decodeHeader(payload.subarray(0, end))
    if (end > 0 && seq > 0 && Number.isSafeInteger(seq) && typeof receiverId === 'string') return { _bc: true, seq, receiverId, frame: payload.subarray(end + 1) }
  } catch {}
}
