/** The element of index.html with this id. */
export function byId<T extends Element>(id: string, type: new () => T): T {
  const element = document.getElementById(id)
  if (!(element instanceof type)) throw new Error(`no ${type.name} has the id ${id}`)
  return element
}

/** A new element. Text goes in as text: it may be anybody's. */
export function make<K extends keyof HTMLElementTagNameMap>(tag: K, className = '', text = ''): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag)
  element.className = className
  element.textContent = text
  return element
}

/** Writes text only when it is another: a live region would read it again. */
export function write(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text
}

/** Gives element the colour of a person. */
export function tint(element: HTMLElement, hue: number): void {
  element.style.setProperty('--hue', String(hue))
}

export const reducedMotion = (): boolean => matchMedia('(prefers-reduced-motion: reduce)').matches
