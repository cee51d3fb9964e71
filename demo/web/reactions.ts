import { make, reducedMotion } from './dom.js'
import { drawGlyph, GLYPH_NAMES, type GlyphName } from './glyphs.js'

const PIECES = 9
const MAX_BURSTS = 24
// Of one window: as many at once, and one more each so many milliseconds.
const AT_ONCE = 6
const REFILL_MS = 250

/** The buttons and number keys that react. A held key does not flood the room. */
export class ReactionBar {
  readonly #react: (glyph: GlyphName) => void
  #left = AT_ONCE
  #refilledAt = 0

  constructor(bar: HTMLElement, react: (glyph: GlyphName) => void) {
    this.#react = react
    for (const [index, glyph] of GLYPH_NAMES.entries()) {
      const button = make('button', 'reaction')
      button.type = 'button'
      button.title = `React with a ${glyph} (key ${index + 1})`
      button.setAttribute('aria-label', `React with a ${glyph}`)
      button.setAttribute('aria-keyshortcuts', String(index + 1))
      button.addEventListener('click', () => this.#try(glyph))
      button.append(drawGlyph(glyph))
      bar.append(button)
    }
    document.addEventListener('keydown', (event) => {
      const glyph = GLYPH_NAMES[Number(event.key) - 1]
      const writing = event.target instanceof HTMLInputElement
      if (!glyph || writing || event.ctrlKey || event.metaKey || event.altKey) return
      this.#try(glyph)
    })
  }

  #try(glyph: GlyphName): void {
    const now = performance.now()
    this.#left = Math.min(AT_ONCE, this.#left + (now - this.#refilledAt) / REFILL_MS)
    this.#refilledAt = now
    if (this.#left < 1) return
    this.#left--
    this.#react(glyph)
  }
}

/** Shows a reaction at a place of the layer: pieces that fly up and apart, or one that fades where motion is not wanted. */
export function burst(layer: HTMLElement, glyph: GlyphName, x: number, y: number): void {
  if (layer.childElementCount >= MAX_BURSTS) layer.firstElementChild?.remove()
  const place = make('div', 'burst')
  place.style.left = `${x * 100}%`
  place.style.top = `${y * 100}%`
  layer.append(place)

  const still = reducedMotion()
  const flights = Array.from({ length: still ? 1 : PIECES }, (_, i) => {
    const piece = make('span', 'piece')
    piece.append(drawGlyph(glyph))
    place.append(piece)
    if (still) return piece.animate([{ opacity: 1 }, { opacity: 1, offset: 0.7 }, { opacity: 0 }], { duration: 1500, fill: 'forwards' })
    const angle = (i / PIECES) * 2 * Math.PI + Math.random()
    const reach = i === 0 ? 0 : 30 + Math.random() * 50
    const [dx, dy] = [Math.cos(angle) * reach, Math.sin(angle) * reach]
    const size = i === 0 ? 1.9 : 0.7 + Math.random() * 0.6
    return piece.animate(
      [
        { transform: 'translate(-50%, -50%) scale(0.2)', opacity: 0 },
        { transform: `translate(calc(-50% + ${dx}px), calc(-50% + ${dy}px)) scale(${size})`, opacity: 1, offset: 0.35, easing: 'ease-in' },
        { transform: `translate(calc(-50% + ${dx * 1.1}px), calc(-50% + ${dy - 60}px)) scale(${size * 0.8})`, opacity: 0 },
      ],
      { duration: 1000 + Math.random() * 500, easing: 'cubic-bezier(0.2, 0.8, 0.3, 1)', fill: 'forwards' },
    )
  })
  void Promise.allSettled(flights.map(({ finished }) => finished)).then(() => place.remove())
}
