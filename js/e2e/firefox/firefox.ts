import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import puppeteer, { type Browser } from 'puppeteer-core'

/** Starts Firefox: that of TIDEWIRE_FIREFOX, or one in the PATH. Fails where there is none. It shows every page as hidden. */
export function launchFirefox(): Promise<Browser> {
  return puppeteer.launch({ browser: 'firefox', executablePath: firefoxPath(), headless: true })
}

function firefoxPath(): string {
  const named = process.env['TIDEWIRE_FIREFOX']
  if (named) return named
  for (const name of ['firefox-esr', 'firefox']) {
    for (const folder of (process.env['PATH'] ?? '').split(delimiter)) {
      const path = join(folder, name)
      if (existsSync(path)) return path
    }
  }
  throw new Error('no Firefox: install firefox-esr, or set TIDEWIRE_FIREFOX to its path')
}
