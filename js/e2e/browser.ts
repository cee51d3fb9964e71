import { existsSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import { type Browser, chromium, type Page } from 'playwright-core'

/** Starts Chromium: that of TIDEWIRE_CHROMIUM, or one in the PATH. Fails where there is none. */
export function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: chromiumPath(), args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] })
}

/** The Chromium of TIDEWIRE_CHROMIUM, or one in the PATH. */
export function chromiumPath(): string {
  const named = process.env['TIDEWIRE_CHROMIUM']
  if (named) return named
  for (const name of ['chromium', 'google-chrome']) {
    for (const folder of (process.env['PATH'] ?? '').split(delimiter)) {
      const path = join(folder, name)
      if (existsSync(path)) return path
    }
  }
  throw new Error('no Chromium: install chromium, or set TIDEWIRE_CHROMIUM to its path')
}

/** Everything that a page's sockets sent and got, as messages. */
export function record(page: Page): { readonly sent: Frame[]; readonly received: Frame[]; readonly sockets: { closed: boolean }[] } {
  const log = { sent: [] as Frame[], received: [] as Frame[], sockets: [] as { closed: boolean }[] }
  page.on('websocket', (socket) => {
    const entry = { closed: false }
    log.sockets.push(entry)
    socket.on('close', () => (entry.closed = true))
    socket.on('framesent', ({ payload }) => log.sent.push(JSON.parse(String(payload)) as Frame))
    socket.on('framereceived', ({ payload }) => log.received.push(JSON.parse(String(payload)) as Frame))
  })
  return log
}

export interface Frame {
  readonly type: string
  readonly [member: string]: unknown
}

/** What went wrong in a page by itself: uncaught errors, and messages on the console that are none of the network's. */
export function troubles(page: Page): string[] {
  const list: string[] = []
  page.on('pageerror', (error) => list.push(String(error)))
  page.on('console', (message) => {
    if (message.type() === 'error' && !/WebSocket|ERR_|Failed to load resource/.test(message.text())) list.push(message.text())
  })
  return list
}
