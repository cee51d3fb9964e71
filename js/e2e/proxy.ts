import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

interface Pair {
  readonly near: Socket
  readonly far: Socket
  dark: boolean
}

/** The network between a browser and the server, which a test can break. */
export class Proxy {
  readonly url: string
  readonly #server: Server
  readonly #pairs = new Set<Pair>()
  #dark = false

  private constructor(server: Server, target: string) {
    this.#server = server
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    server.on('connection', (near) => this.#join({ near, far: connect(Number(new URL(target).port), '127.0.0.1'), dark: this.#dark }))
  }

  static async start(target: string): Promise<Proxy> {
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return new Proxy(server, target)
  }

  #join(pair: Pair): void {
    this.#pairs.add(pair)
    const ends = [pair.near, pair.far] as const
    for (const [from, to] of [ends, [ends[1], ends[0]]] as const) {
      from.on('error', () => {}) // its close follows
      from.on('data', (data) => pair.dark || to.write(data))
      from.on('close', () => {
        // In the dark, the other end does not learn of it.
        if (!pair.dark) to.destroy()
        if (ends.every(({ destroyed }) => destroyed)) this.#pairs.delete(pair)
      })
    }
  }

  /** Cuts every connection, as a router that restarts: no close frame, and both ends learn of it. */
  cut(): void {
    for (const { near, far } of this.#pairs) for (const socket of [near, far]) socket.resetAndDestroy()
  }

  /** Loses everything that is sent, in both directions, and tells nobody. Connections made meanwhile hang too. */
  darken(): void {
    this.#dark = true
    for (const pair of this.#pairs) pair.dark = true
  }

  /** Serves new connections again. Those from before stay open and silent, as after a change of the network. */
  lighten(): void {
    this.#dark = false
  }

  stop(): void {
    this.cut()
    this.#server.close()
  }
}
