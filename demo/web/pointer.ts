/** How the cursor was moved: a mouse has one of its own on the screen. */
export type Means = 'mouse' | 'touch' | 'keys'

const STEP = 0.02
const LEAP = 0.1

const ARROWS: Readonly<Record<string, readonly [number, number]>> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
}

/** This window's cursor: moved by mouse, touch, pen, or the arrow keys. Places are parts of the stage, from 0 to 1. */
export class Pointer {
  x = 0.5
  y = 0.5
  readonly #moved: (means: Means) => void

  constructor(stage: HTMLElement, moved: (means: Means) => void) {
    this.#moved = moved
    const follow = (event: PointerEvent) => {
      const { left, top, width, height } = stage.getBoundingClientRect()
      this.#move((event.clientX - left) / width, (event.clientY - top) / height, event.pointerType === 'mouse' ? 'mouse' : 'touch')
    }
    stage.addEventListener('pointermove', follow)
    stage.addEventListener('pointerdown', follow)
    stage.addEventListener('keydown', (event) => {
      const arrow = ARROWS[event.key]
      if (!arrow || event.ctrlKey || event.metaKey || event.altKey) return
      event.preventDefault()
      const step = event.shiftKey ? LEAP : STEP
      this.#move(this.x + arrow[0] * step, this.y + arrow[1] * step, 'keys')
    })
  }

  #move(x: number, y: number, means: Means): void {
    this.x = within(x)
    this.y = within(y)
    this.#moved(means)
  }
}

/** Rounded: a ten-thousandth is finer than any screen, and shorter to send. */
function within(part: number): number {
  return Math.round(Math.min(1, Math.max(0, part)) * 10_000) / 10_000
}
