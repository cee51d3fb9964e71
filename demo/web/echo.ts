import type { Client } from 'tidewire'

const EVERY_MS = 1500
const SAMPLES = 5

/**
 * Measures the way to the server and back: from the publish to the message's arrival in this window. In a channel of
 * its own, so that nobody else gets these.
 */
export class Echo {
  readonly #samples: number[] = []
  readonly #sentAt = new Map<string, number>()

  constructor(client: Client, measured: (ms: number) => void) {
    const channel = client.channel(`demo.echo-${crypto.getRandomValues(new Uint32Array(2)).join('-')}`)
    let count = 0
    const ask = () => {
      if (document.hidden || channel.status.getSnapshot().kind !== 'live') return
      const id = `echo-${++count}`
      this.#sentAt.set(id, performance.now())
      channel.publish(null, { id }).catch(() => this.#sentAt.delete(id))
    }
    channel.on('message', ({ id }) => {
      const sentAt = this.#sentAt.get(id)
      if (sentAt === undefined) return
      this.#sentAt.delete(id)
      this.#samples.push(performance.now() - sentAt)
      if (this.#samples.length > SAMPLES) this.#samples.shift()
      measured(median(this.#samples))
    })
    // A page that has just opened is busy with other things: no measure of the way.
    setInterval(ask, EVERY_MS)
  }
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? 0
}
