/** Runs microtasks until there are none. Taken when the module loads, so that timers that a test fakes later do not matter. */
const drain: () => Promise<void> = (() => {
  const { setImmediate } = globalThis as { setImmediate?: (call: () => void) => unknown }
  if (setImmediate) return () => new Promise<void>((resolve) => setImmediate(resolve))
  const { port1, port2 } = new MessageChannel()
  let done: () => void = () => {}
  port1.onmessage = () => done()
  return () =>
    new Promise<void>((resolve) => {
      done = resolve
      port2.postMessage(0)
    })
})()

/** Something that happens at a time. It may stand in the queue twice, and happens once. */
export interface Task {
  readonly run: () => void
  /** A timer of a page: what {@link TestClock.quiet} does not wait for. */
  readonly timer: boolean
  done: boolean
}

interface Entry {
  readonly at: number
  readonly order: number
  readonly task: Task
}

/**
 * The only time there is. It stands still unless a test moves it, and moves from one event to the next: after each, all microtasks run. What is due at the same time happens in the order in which it was asked for.
 */
export class TestClock {
  #now = 0
  #wall = 1_800_000_000_000
  #order = 0
  /** A binary heap by time, then order. */
  readonly #heap: Entry[] = []
  #busy = false
  /** How much is due that is not a timer. */
  #pending = 0

  /** Milliseconds since the cluster was made. */
  get now(): number {
    return this.#now
  }

  /** Milliseconds since 1970. */
  get wallNow(): number {
    return this.#wall + this.#now
  }

  /** Lets ms pass. Rejects with the first error that something threw which a page did not catch. */
  async advance(ms: number): Promise<void> {
    const end = this.#now + ms
    await this.#run(() => (this.#heap[0] as Entry).at <= end)
    this.#now = Math.max(this.#now, end)
  }

  /** Lets time pass until nothing is under way between tabs, browser and server, so that only timers are left; at most limitMs. */
  async quiet(limitMs = 10_000): Promise<void> {
    const end = this.#now + limitMs
    await this.#run(() => this.#pending > 0 && (this.#heap[0] as Entry).at <= end)
  }

  /** Lets time pass until condition holds, which is asked after every event. Rejects after limitMs. */
  async until(condition: () => boolean, limitMs = 60_000): Promise<void> {
    const end = this.#now + limitMs
    await this.#run(() => !condition() && (this.#heap[0] as Entry).at <= end)
    if (!condition()) throw new Error(`not so after ${limitMs} ms: ${condition}`)
  }

  /** The wall clock jumps, forwards or backwards. Nothing is due earlier or later for it. */
  jump(ms: number): void {
    this.#wall += ms
  }

  /** The machine slept: ms are gone at once, on both clocks, and what was due in them is late. */
  leap(ms: number): void {
    this.#now += Math.max(0, ms)
  }

  /** For the other parts of the cluster. */
  add(delayMs: number, run: () => void, timer = false): Task {
    const task: Task = { run, timer, done: false }
    this.put(this.#now + Math.max(0, delayMs), task)
    return task
  }

  put(at: number, task: Task): void {
    if (!task.timer) this.#pending++
    const heap = this.#heap
    const entry = { at, order: ++this.#order, task }
    let i = heap.push(entry) - 1
    while (i) {
      const parent = (i - 1) >> 1
      if (!before(entry, heap[parent] as Entry)) break
      heap[i] = heap[parent] as Entry
      i = parent
    }
    heap[i] = entry
  }

  #pop(): Entry {
    const heap = this.#heap
    const top = heap[0] as Entry
    const last = heap.pop() as Entry
    if (heap.length) {
      let i = 0
      for (;;) {
        let child = 2 * i + 1
        if (child >= heap.length) break
        if (child + 1 < heap.length && before(heap[child + 1] as Entry, heap[child] as Entry)) child++
        if (!before(heap[child] as Entry, last)) break
        heap[i] = heap[child] as Entry
        i = child
      }
      heap[i] = last
    }
    return top
  }

  async #run(more: () => boolean): Promise<void> {
    if (this.#busy) throw new Error('the clock moves already: await what moves it')
    this.#busy = true
    try {
      await drain()
      while (this.#heap.length && more()) {
        const { at, task } = this.#pop()
        if (!task.timer) this.#pending--
        if (task.done) continue
        task.done = true
        this.#now = Math.max(this.#now, at)
        task.run()
        await drain()
      }
    } finally {
      this.#busy = false
    }
  }

  /** Runs microtasks only. */
  drain(): Promise<void> {
    return drain()
  }
}

const before = (a: Entry, b: Entry) => a.at < b.at || (a.at === b.at && a.order < b.order)

/** Numbers from 0 up to 1 that depend on the seed alone (mulberry32). */
export function seeded(seed: number): () => number {
  let state = seed | 0
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let x = Math.imul(state ^ (state >>> 15), 1 | state)
    x = (x + Math.imul(x ^ (x >>> 7), 61 | x)) ^ x
    return ((x ^ (x >>> 14)) >>> 0) / 4_294_967_296
  }
}
