import { MAX_TEXT, text } from './room.js'

const TYPING_MS = 3000

/** The field for what one says, and the knowledge of whether something is being written. */
export class Composer {
  #typing = false
  #timer: ReturnType<typeof setTimeout> | undefined
  readonly #typed: (typing: boolean) => void

  constructor(form: HTMLFormElement, field: HTMLInputElement, say: (text: string) => void, typed: (typing: boolean) => void) {
    this.#typed = typed
    field.maxLength = MAX_TEXT
    field.addEventListener('input', () => this.#set(field.value.trim() !== ''))
    field.addEventListener('blur', () => this.#set(false))
    form.addEventListener('submit', (event) => {
      event.preventDefault()
      const said = text(field.value, MAX_TEXT)
      if (!said) return
      field.value = ''
      this.#set(false)
      say(said)
    })
  }

  #set(typing: boolean): void {
    clearTimeout(this.#timer)
    if (typing) this.#timer = setTimeout(() => this.#set(false), TYPING_MS)
    if (typing === this.#typing) return
    this.#typing = typing
    this.#typed(typing)
  }
}

/** "Ann is typing". */
export function typingText(names: readonly string[]): string {
  const [first, second] = names
  if (first === undefined) return ''
  if (second === undefined) return `${first} is typing`
  return names.length === 2 ? `${first} and ${second} are typing` : `${first} and ${names.length - 1} others are typing`
}
