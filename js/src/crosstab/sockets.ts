import type { WebSocketLike } from '../connection.js'

const CLOSE_MS = 1000

/** Makes WebSockets, and knows when the last one that it made is closed: the server has read everything that was sent on it then. */
export function watchSockets(Base: WebSocketLike = globalThis.WebSocket) {
  let current: WebSocket | undefined
  return {
    WebSocket: class extends Base {
      constructor(url: string, protocols: string[]) {
        super(url, protocols)
        current = this
      }
    } as WebSocketLike,

    /** Resolves when it is closed, after a second at the latest: a network that is gone does not answer. */
    closed(): Promise<void> {
      return new Promise((resolve) => {
        if (!current || current.readyState === 3) return resolve()
        current.onclose = () => resolve()
        setTimeout(resolve, CLOSE_MS)
      })
    },
  }
}
