import { encodeNativeEnvelope, utf8 } from './envelope.js'
import { checkId } from './fail.js'

/** The part of a BroadcastChannel that the bus needs. */
export interface BusChannel {
  postMessage(message: unknown): void
  addEventListener(type: 'message', listener: (event: MessageEvent) => void): void
  removeEventListener(type: 'message', listener: (event: MessageEvent) => void): void
}

/** What carries a frame. */
export interface FrameMessage<Frame = unknown> {
  readonly _bc: true
  /** Starts at 1 and grows by one. */
  readonly seq: number
  /** Empty for a broadcast: each receiver answers with its own id. */
  readonly receiverId: string
  readonly frame: Frame
}

/** What frames and acknowledgements have in common, as bytes. */
export function encodeHeader(seq: number, receiverId: string): Uint8Array {
  return utf8(JSON.stringify({ seq, receiverId }))
}

/** Throws if bytes are not JSON. The members may be anything. */
export function decodeHeader(bytes: Uint8Array): { readonly seq: number; readonly receiverId: string } {
  return JSON.parse(new TextDecoder().decode(bytes))
}

/** Listens, and returns what ends it. In Node the channel then keeps the process alive no longer. */
export function listen(channel: BusChannel, listener: (event: MessageEvent) => void): () => void {
  channel.addEventListener('message', listener)
  return () => {
    channel.removeEventListener('message', listener)
    ;(channel as { unref?(): void }).unref?.()
  }
}

/**
 * Calls handler for each frame for the receiver id, and for each that is for everyone, and acknowledges it when the handler has
 * returned, or when what it returned has settled. An error of the handler is acknowledged as well, and stays unhandled.
 * Returns a function that ends it; nothing is acknowledged after.
 */
export function receiveAcked<Frame = unknown>(channel: BusChannel, id: string, handler: (frame: Frame) => unknown): () => void {
  checkId(id)
  let open = true
  const answer = async ({ data }: MessageEvent): Promise<void> => {
    // Either an empty id, or one's own.
    if (!data?._bc || (data.receiverId || id) !== id) return
    try {
      await handler(data.frame)
    } finally {
      if (open) channel.postMessage(encodeNativeEnvelope({ type: 'ack', payload: encodeHeader(data.seq, id) }))
    }
  }
  const stop = listen(channel, (event) => void answer(event))
  return () => {
    open = false
    stop()
  }
}
