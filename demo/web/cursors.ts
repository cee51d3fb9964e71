import { make, reducedMotion, tint, write } from './dom.js'
import { drawPath } from './glyphs.js'

/** The cursor of one window. */
export interface CursorEntry {
  readonly session: string
  readonly name: string
  readonly hue: number
  readonly x: number
  readonly y: number
  readonly away: boolean
}

interface Cursor {
  readonly element: HTMLElement
  readonly label: HTMLElement
  entry: CursorEntry
  // Where it is drawn, on its way to the entry's place.
  x: number
  y: number
  movedAt: number
}

// States arrive about every 33 ms, more slowly when the network says so. Half the way each 45 ms hides the steps and lags little.
const HALF_LIFE_MS = 45
const IDLE_MS = 5000
const ARRIVED = 0.0004

export const ARROW = 'M2 1.5 L2 16.5 L6.2 12.9 L9 18.8 L11.6 17.6 L8.9 11.8 L14.4 11.4 Z'

/** Draws everybody's cursors. It works only while something moves. */
export class Cursors {
  readonly #layer: HTMLElement
  readonly #cursors = new Map<string, Cursor>()
  #width = 0
  #height = 0
  #frame = 0
  #drawnAt = 0

  constructor(layer: HTMLElement) {
    this.#layer = layer
    new ResizeObserver(() => {
      this.#width = layer.clientWidth
      this.#height = layer.clientHeight
      for (const cursor of this.#cursors.values()) this.#place(cursor)
    }).observe(layer)
    setInterval(() => this.#fade(), 1000)
  }

  /** Shows exactly these. Those that are new appear in their place; the others move there. */
  update(entries: readonly CursorEntry[]): void {
    const gone = new Set(this.#cursors.keys())
    for (const entry of entries) {
      gone.delete(entry.session)
      const cursor = this.#cursors.get(entry.session) ?? this.#add(entry)
      const { entry: before } = cursor
      cursor.entry = entry
      write(cursor.label, entry.name)
      cursor.element.classList.toggle('away', entry.away)
      if (entry.x === before.x && entry.y === before.y) continue
      cursor.movedAt = performance.now()
      cursor.element.classList.remove('idle')
      this.#wake()
    }
    for (const session of gone) {
      this.#cursors.get(session)?.element.remove()
      this.#cursors.delete(session)
    }
  }

  #add(entry: CursorEntry): Cursor {
    const element = make('div', 'cursor')
    element.dataset['session'] = entry.session
    tint(element, entry.hue)
    element.append(drawPath('0 0 16 20', ARROW), make('span', 'cursor-name'))
    this.#layer.append(element)
    const cursor = { element, label: element.lastElementChild as HTMLElement, entry, x: entry.x, y: entry.y, movedAt: performance.now() }
    this.#cursors.set(entry.session, cursor)
    this.#place(cursor)
    return cursor
  }

  #wake(): void {
    if (this.#frame !== 0) return
    this.#drawnAt = performance.now()
    this.#frame = requestAnimationFrame((now) => this.#draw(now))
  }

  #draw(now: number): void {
    this.#frame = 0
    const rest = reducedMotion() ? 0 : 0.5 ** (Math.max(0, now - this.#drawnAt) / HALF_LIFE_MS)
    this.#drawnAt = now
    let moving = false
    for (const cursor of this.#cursors.values()) {
      const { x, y } = cursor.entry
      if (cursor.x === x && cursor.y === y) continue
      cursor.x = x + (cursor.x - x) * rest
      cursor.y = y + (cursor.y - y) * rest
      if (Math.hypot(cursor.x - x, cursor.y - y) < ARRIVED) {
        cursor.x = x
        cursor.y = y
      } else moving = true
      this.#place(cursor)
    }
    if (moving) this.#frame = requestAnimationFrame((next) => this.#draw(next))
  }

  #place({ element, x, y }: Cursor): void {
    element.style.transform = `translate(${x * this.#width}px, ${y * this.#height}px)`
    // Near an edge the name stands on the other side.
    element.classList.toggle('flip-x', x > 0.85)
    element.classList.toggle('flip-y', y > 0.9)
  }

  #fade(): void {
    const since = performance.now() - IDLE_MS
    for (const cursor of this.#cursors.values()) cursor.element.classList.toggle('idle', cursor.movedAt < since)
  }
}
