const SVG = 'http://www.w3.org/2000/svg'

/** What one can react with. Drawn here: not every machine has a font with emoji. */
export const GLYPHS = {
  heart: { color: '#e5484d', path: 'M12 20.5C5.5 15.8 3 12.7 3 9.2 3 6.6 5 4.7 7.4 4.7c1.8 0 3.5 1 4.6 2.8 1.1-1.8 2.8-2.8 4.6-2.8C19 4.7 21 6.6 21 9.2c0 3.5-2.5 6.6-9 11.3z' },
  star: { color: '#dfa20a', path: 'M12 2.5l2.9 6.2 6.8.8-5 4.6 1.3 6.7-6-3.3-6 3.3 1.3-6.7-5-4.6 6.8-.8z' },
  smile: {
    color: '#f0822a',
    path: 'M12 2.5a9.5 9.5 0 1 0 0 19 9.5 9.5 0 0 0 0-19zM8.5 8a1.6 1.6 0 1 1 0 3.2 1.6 1.6 0 0 1 0-3.2zm7 0a1.6 1.6 0 1 1 0 3.2 1.6 1.6 0 0 1 0-3.2zM6.6 13.4h10.8a5.5 5.5 0 0 1-10.8 0z',
  },
  drop: { color: '#2f8fd8', path: 'M12 2.5c4 5 6.5 8.3 6.5 11.8a6.5 6.5 0 0 1-13 0c0-3.5 2.5-6.8 6.5-11.8z' },
  leaf: { color: '#3c9a4e', path: 'M20.5 3.5c.8 9-2.8 15-9.6 15-1.9 0-3.6-.6-5-1.7L4 20.7 2.8 19.5l2.2-3.3c-.8-1.2-1.2-2.6-1.2-4C3.8 6.5 10 3.2 20.5 3.5zM8 15.5c2-3 4.6-5.2 8-6.8-4 .9-7 2.9-9 5.8z' },
  bolt: { color: '#8b5cd6', path: 'M13.5 2 4.5 13.5h6L9.5 22l10-12.5h-6.2z' },
} as const

export type GlyphName = keyof typeof GLYPHS
export const GLYPH_NAMES = Object.keys(GLYPHS) as readonly GlyphName[]

export function isGlyphName(value: unknown): value is GlyphName {
  return GLYPH_NAMES.some((name) => name === value)
}

/** A drawing of it, for the eye only unless a label is given. */
export function drawGlyph(name: GlyphName, label?: string): SVGElement {
  const { color, path } = GLYPHS[name]
  const svg = drawPath('0 0 24 24', path)
  svg.setAttribute('class', 'glyph')
  svg.style.color = color
  if (label === undefined) svg.setAttribute('aria-hidden', 'true')
  else {
    svg.setAttribute('role', 'img')
    svg.setAttribute('aria-label', label)
  }
  return svg
}

export function drawPath(viewBox: string, d: string): SVGElement {
  const svg = document.createElementNS(SVG, 'svg')
  svg.setAttribute('viewBox', viewBox)
  const path = document.createElementNS(SVG, 'path')
  path.setAttribute('d', d)
  svg.append(path)
  return svg
}
