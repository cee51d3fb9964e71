import { recall, remember } from './storage.js'

const THEMES = ['system', 'light', 'dark'] as const
type Theme = (typeof THEMES)[number]

/** A button that goes through the themes. */
export function startTheme(button: HTMLButtonElement): void {
  const known = recall('theme')
  let theme: Theme = THEMES.find((one) => one === known) ?? 'system'
  const show = () => {
    document.documentElement.dataset['theme'] = theme
    button.dataset['theme'] = theme
    button.setAttribute('aria-label', `Theme: ${theme}`)
    button.title = `Theme: ${theme}`
  }
  button.addEventListener('click', () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? 'system'
    remember('theme', theme)
    show()
  })
  show()
}
