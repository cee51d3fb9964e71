import { make, tint, write } from './dom.js'
import { initials } from './guest.js'
import type { Person } from './people.js'

const MAX_ROWS = 48

/** The list of people. A row stays the same element as long as its person is here. */
export class Roster {
  readonly #list: HTMLElement
  readonly #count: HTMLElement
  readonly #rows = new Map<string, HTMLElement>()
  readonly #more = make('li', 'more')

  constructor(list: HTMLElement, count: HTMLElement) {
    this.#list = list
    this.#count = count
  }

  show(people: readonly Person[], total: number): void {
    // Yourself first, the others as they came.
    const shown = [...people.filter(({ you }) => you), ...people.filter(({ you }) => !you)].slice(0, MAX_ROWS)
    const gone = new Set(this.#rows.keys())
    for (const [index, person] of shown.entries()) {
      gone.delete(person.id)
      let row = this.#rows.get(person.id)
      if (!row) this.#rows.set(person.id, (row = newRow(person)))
      fill(row, person)
      // Moved only when it has to: a moved element loses focus and restarts its animations.
      if (this.#list.children[index] !== row) this.#list.insertBefore(row, this.#list.children[index] ?? null)
    }
    for (const id of gone) {
      this.#rows.get(id)?.remove()
      this.#rows.delete(id)
    }
    const count = Math.max(total, people.length)
    const hidden = count - shown.length
    if (hidden > 0) {
      write(this.#more, `and ${hidden} more`)
      this.#list.append(this.#more)
    } else this.#more.remove()
    write(this.#count, people.length === 0 ? '' : String(count))
  }
}

function newRow(person: Person): HTMLElement {
  const row = make('li', 'person')
  row.dataset['member'] = person.id
  tint(row, person.hue)
  const avatar = make('span', 'avatar')
  avatar.setAttribute('aria-hidden', 'true')
  row.append(avatar, make('span', 'name'), make('span', 'note'), make('span', 'badge'))
  return row
}

function fill(row: HTMLElement, { name, you, windows, typing, away }: Person): void {
  const [avatar, label, note, badge] = row.children as unknown as [Element, HTMLElement, Element, HTMLElement]
  write(avatar, initials(name))
  write(label, name)
  label.title = name
  write(note, away ? 'reconnecting' : typing ? 'typing' : you ? 'you' : '')
  write(badge, windows > 1 ? `${windows} windows` : '')
  row.classList.toggle('away', away)
  row.classList.toggle('typing', typing && !away)
}
