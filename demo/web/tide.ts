const SECONDS = 60
const HEIGHT = 40

/** What arrived in each of the last 60 seconds, drawn as a tide. */
export class Tide {
  readonly #path: SVGPathElement
  readonly #counts: number[] = Array.from({ length: SECONDS }, () => 0)
  #now = 0

  /** tick gets the count of each second that has passed. */
  constructor(path: SVGPathElement, tick: (perSecond: number) => void) {
    this.#path = path
    setInterval(() => {
      this.#counts.push(this.#now)
      this.#counts.shift()
      tick(this.#now)
      this.#now = 0
      if (!document.hidden) this.#draw()
    }, 1000)
    this.#draw()
  }

  count(): void {
    this.#now++
  }

  #draw(): void {
    const top = Math.max(10, ...this.#counts)
    const points = this.#counts.map((count, i) => [(i / (SECONDS - 1)) * 100, HEIGHT - 3 - (count / top) * (HEIGHT - 6)] as const)
    let line = ''
    for (const [i, [x, y]] of points.entries()) {
      const [px, py] = points[i - 1] ?? [x, y]
      const middle = (px + x) / 2
      line += i === 0 ? `M${x} ${y.toFixed(1)}` : `C${middle.toFixed(2)} ${py.toFixed(1)} ${middle.toFixed(2)} ${y.toFixed(1)} ${x.toFixed(2)} ${y.toFixed(1)}`
    }
    this.#path.setAttribute('d', `${line}V${HEIGHT}H0Z`)
  }
}
