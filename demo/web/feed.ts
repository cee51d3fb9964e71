import { make, tint, write } from './dom.js'
import { drawGlyph, type GlyphName } from './glyphs.js'

const MAX_ENTRIES = 100
const NEAR_END_PX = 48

/** Whose name an entry begins with. */
export interface Author {
  readonly name: string
  readonly hue: number
}

/** Fate of a message that this window sent. */
export type Fate = 'sent' | 'pending' | 'failed' | 'unknown'

const FATES: Readonly<Record<Fate, string>> = { sent: '', pending: 'sending', failed: 'not sent', unknown: 'may not have arrived' }

/** What happened in the room, newest last and visible unless the reader has scrolled away. */
export class Feed {
  readonly #list: HTMLElement
  readonly #mine = new Map<string, HTMLElement>()
  #follows = true // the reader has not scrolled away from the end
  #lastTime = ''
  #repeat: { readonly key: string; readonly count: HTMLElement; times: number } | undefined

  constructor(list: HTMLElement) {
    this.#list = list
    list.addEventListener('scroll', () => {
      this.#follows = list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END_PX
    })
    new ResizeObserver(() => this.#follow()).observe(list)
  }

  clear(): void {
    this.#list.replaceChildren()
    this.#mine.clear()
    this.#lastTime = ''
    this.#follows = true
    this.#repeat = undefined
  }

  /** Something that happened, now if `at` does not say when. The same again and again is one entry with a count. */
  event(author: Author | undefined, text: string, glyph?: GlyphName, at?: number): void {
    const key = `${author?.name} ${text} ${glyph}`
    if (this.#repeat?.key === key) {
      write(this.#repeat.count, `× ${++this.#repeat.times}`)
      return
    }
    const count = make('span', 'count')
    this.#append(entry('event', author, text, ...(glyph ? [' ', drawGlyph(glyph, `with a ${glyph}`)] : []), count), at)
    this.#repeat = { key, count, times: 1 }
  }

  /** Something that someone said. */
  said(author: Author, text: string, id: string, at?: number): void {
    const mine = this.#mine.get(id)
    if (mine) this.fate(id, 'sent')
    else this.#append(entry('said', author, text), at)
  }

  /** Something said in this window that is on its way. */
  saying(author: Author, text: string, id: string): void {
    const element = entry('said', author, text, make('span', 'fate', FATES.pending))
    element.dataset['fate'] = 'pending'
    this.#mine.set(id, element)
    this.#append(element)
  }

  fate(id: string, fate: Fate): void {
    const element = this.#mine.get(id)
    if (!element) return
    element.dataset['fate'] = fate
    const mark = element.querySelector('.fate')
    if (mark) write(mark, FATES[fate])
    this.#mine.delete(id)
  }

  #append(element: HTMLElement, at?: number): void {
    const list = this.#list
    this.#repeat = undefined
    const time = timeOf(at === undefined ? new Date() : new Date(at))
    if (time !== this.#lastTime) list.append(make('li', 'when', time))
    this.#lastTime = time
    list.append(element)
    while (list.childElementCount > MAX_ENTRIES) list.firstElementChild?.remove()
    this.#follow()
  }

  #follow(): void {
    if (this.#follows) this.#list.scrollTop = this.#list.scrollHeight
  }
}

/** The time of day, with the day if it was not today. */
function timeOf(date: Date): string {
  const day = date.toDateString() === new Date().toDateString() ? {} : ({ day: 'numeric', month: 'short' } as const)
  return date.toLocaleTimeString([], { ...day, hour: '2-digit', minute: '2-digit' })
}

function entry(kind: 'event' | 'said', author: Author | undefined, text: string, ...more: readonly (Node | string)[]): HTMLElement {
  const element = make('li', kind)
  const body = make('p')
  if (author) {
    const name = make('b', 'author', author.name)
    tint(name, author.hue)
    body.append(name, ' ')
  }
  body.append(make('span', 'text', text), ...more)
  element.append(body)
  return element
}
