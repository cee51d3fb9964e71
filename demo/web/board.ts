import type { Client } from 'tidewire'
import { liveQuery, type QueryState } from 'tidewire/query'
import { byId, make, write } from './dom.js'

/** A row of the table, as the live query shows it. */
export interface Card {
  readonly id: number
  readonly title: string
  readonly lane: string
  readonly position: number
}

const LANES = [
  ['todo', 'To do'],
  ['doing', 'Doing'],
  ['done', 'Done'],
] as const

const MAX_TITLE = 80
const TIMEOUT_MS = 8000

/** What a change needs to know of the board. */
interface Change {
  readonly title?: string
  readonly lane?: string
  readonly before?: number
}

/**
 * The board shows the rows of the live query, and nothing else. What the reader does is written to the database over HTTP, and is seen when it comes
 * back, as the changes of everybody else.
 */
export class Board {
  readonly #lanes: readonly Lane[]
  readonly #section = byId('board', HTMLElement)
  readonly #state = byId('board-state', HTMLElement)
  readonly #cards = new Map<number, CardView>()
  #failed = ''

  constructor(client: Client) {
    this.#lanes = LANES.map(([id, name]) => new Lane(id, name, this.#write))
    byId('lanes', HTMLElement).append(...this.#lanes.map(({ element }) => element))
    const query = liveQuery<Card>(client, 'board')
    const show = () => this.#show(query.getSnapshot())
    query.subscribe(show)
    show()
  }

  #show(state: QueryState<Card>): void {
    this.#section.dataset['kind'] = state.kind
    const gone = new Set(this.#cards.keys())
    for (const [index, lane] of this.#lanes.entries()) {
      const rows = state.rows.filter((row) => row.lane === lane.id)
      lane.show(
        rows.map((row) => {
          gone.delete(row.id)
          let card = this.#cards.get(row.id)
          if (!card) this.#cards.set(row.id, (card = new CardView(row.id, this.#write)))
          card.show(row, LANES[index - 1]?.[0], LANES[index + 1]?.[0])
          return card.element
        }),
      )
    }
    for (const id of gone) {
      this.#cards.get(id)?.element.remove()
      this.#cards.delete(id)
    }
    write(this.#state, this.#failed || stateName(state))
  }

  /** Writes to the database. The page changes when the change comes back. */
  #write = async (method: string, id: number | undefined, change?: Change): Promise<void> => {
    const path = id === undefined ? '/demo/cards' : `/demo/cards/${id}`
    try {
      const response = await fetch(path, {
        method,
        signal: AbortSignal.timeout(TIMEOUT_MS),
        ...(change && { body: JSON.stringify(change), headers: { 'content-type': 'application/json' } }),
      })
      this.#failed = response.ok ? '' : `Not saved: ${(await response.text()).trim()}`
    } catch {
      this.#failed = 'Not saved: the server does not answer'
    }
    if (this.#failed) write(this.#state, this.#failed)
  }
}

type Write = (method: string, id: number | undefined, change?: Change) => Promise<void>

class Lane {
  readonly id: string
  readonly element = make('section', 'lane')
  readonly #list = make('ol', 'cards')
  readonly #count = make('span', 'number')

  constructor(id: string, name: string, save: Write) {
    this.id = id
    const title = make('h3', '', `${name} `)
    title.append(this.#count)
    const form = make('form')
    const field = make('input', 'quiet')
    field.id = `add-${id}`
    field.placeholder = 'Add a card'
    field.maxLength = MAX_TITLE
    field.setAttribute('aria-label', `Add a card to ${name}`)
    field.autocomplete = 'off'
    form.append(field)
    form.addEventListener('submit', (event) => {
      event.preventDefault()
      const title = field.value.trim()
      field.value = ''
      if (title) void save('POST', undefined, { title, lane: id })
    })
    this.element.dataset['lane'] = id
    this.element.append(title, this.#list, form)

    this.element.addEventListener('dragover', (event) => {
      if (event.dataTransfer?.types.includes(CARD_TYPE)) event.preventDefault()
    })
    this.element.addEventListener('drop', (event) => {
      const dragged = Number(event.dataTransfer?.getData(CARD_TYPE))
      if (!dragged) return
      event.preventDefault()
      const before = [...this.#list.children].find((card) => {
        const { top, height } = card.getBoundingClientRect()
        return event.clientY < top + height / 2
      }) as HTMLElement | undefined
      const next = Number(before?.dataset['card'])
      if (next !== dragged) void save('PATCH', dragged, { lane: id, ...(next && { before: next }) })
    })
  }

  show(cards: readonly HTMLElement[]): void {
    for (const [index, card] of cards.entries()) {
      // Moved only when it has to: a moved element loses focus.
      if (this.#list.children[index] !== card) this.#list.insertBefore(card, this.#list.children[index] ?? null)
    }
    write(this.#count, String(cards.length))
  }
}

const CARD_TYPE = 'application/x-tidewire-card'

class CardView {
  readonly element = make('li', 'item')
  readonly #field = make('input', 'quiet')
  readonly #left = make('button', 'tiny', '‹')
  readonly #right = make('button', 'tiny', '›')
  readonly #remove = make('button', 'tiny', '×')
  #row: Card | undefined
  #lanes: readonly (string | undefined)[] = []

  constructor(id: number, save: Write) {
    this.element.dataset['card'] = String(id)
    const grip = make('span', 'grip', '⠿')
    grip.draggable = true
    grip.title = 'Drag'
    grip.setAttribute('aria-hidden', 'true')
    grip.addEventListener('dragstart', (event) => {
      event.dataTransfer?.setData(CARD_TYPE, String(id))
      event.dataTransfer?.setDragImage(this.element, 8, 8)
    })
    const field = this.#field
    field.id = `card-${id}`
    field.maxLength = MAX_TITLE
    field.autocomplete = 'off'
    field.spellcheck = false
    field.setAttribute('aria-label', 'Title')
    field.addEventListener('change', () => {
      const title = field.value.trim()
      if (title && title !== this.#row?.title) void save('PATCH', id, { title })
      else this.#restore()
    })
    // What came while the reader was writing is shown when the field is left.
    field.addEventListener('blur', () => setTimeout(() => this.#restore()))
    field.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') this.#restore()
      if (event.key === 'Escape' || event.key === 'Enter') field.blur()
    })
    this.#left.id = `card-${id}-left`
    this.#right.id = `card-${id}-right`
    this.#remove.id = `card-${id}-remove`
    for (const [index, button] of [this.#left, this.#right].entries()) {
      button.type = 'button'
      button.addEventListener('click', () => {
        const lane = this.#lanes[index]
        if (lane) void save('PATCH', id, { lane })
      })
    }
    this.#remove.type = 'button'
    this.#remove.addEventListener('click', () => void save('DELETE', id))
    this.element.append(grip, field, this.#left, this.#right, this.#remove)
  }

  show(row: Card, left: string | undefined, right: string | undefined): void {
    this.#lanes = [left, right]
    this.#left.disabled = !left
    this.#right.disabled = !right
    if (row === this.#row) return // unchanged rows are the same objects
    this.#row = row
    this.#left.setAttribute('aria-label', `Move ${row.title} left`)
    this.#right.setAttribute('aria-label', `Move ${row.title} right`)
    this.#remove.setAttribute('aria-label', `Delete ${row.title}`)
    if (document.activeElement !== this.#field) this.#restore()
  }

  #restore(): void {
    const title = this.#row?.title ?? ''
    if (this.#field.value !== title) this.#field.value = title
    this.#field.title = title
  }
}

function stateName(state: QueryState<Card>): string {
  switch (state.kind) {
    case 'live':
      return ''
    case 'idle':
      return 'not followed'
    case 'loading':
      return 'loading'
    case 'stale':
      return 'as it was: waiting for the server'
    case 'refused':
      return `refused: ${state.error.code}`
    default:
      return state satisfies never
  }
}
