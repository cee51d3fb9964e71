import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Readable, Writable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { chromiumPath } from '../browser.js'
import { until } from '../server.js'

// Nothing here may keep a hidden tab from being throttled, or a page from the back/forward cache: those are what is tested.
const FLAGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-dev-shm-usage',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-quic',
  '--remote-debugging-pipe',
]

interface Reply {
  readonly id?: number
  readonly method?: string
  readonly sessionId?: string
  readonly params?: Readonly<Record<string, unknown>>
  readonly result?: Readonly<Record<string, unknown>>
  readonly error?: { readonly message: string }
}

/**
 * A Chromium whose tabs live as a user's do: they are hidden behind each other, throttled, frozen, cached and killed. Playwright shows every page as visible and loses those that the back/forward cache restores,
 * so this speaks the browser's protocol itself, over its pipe.
 *
 * Who crashes or hangs does not answer: what is sent to it is not awaited.
 */
export class Chromium {
  readonly #process: ChildProcess
  readonly #folder: string
  readonly #calls = new Map<number, { readonly sessionId: string | undefined; answer(reply: Reply): void }>()
  readonly #listeners = new Set<(reply: Reply) => void>()
  #lastId = 0

  private constructor(process: ChildProcess, folder: string) {
    this.#process = process
    this.#folder = folder
    let rest = ''
    const out = process.stdio[4] as Readable
    out.setEncoding('utf8')
    out.on('data', (text: string) => {
      const messages = (rest + text).split('\0')
      rest = messages.pop() ?? ''
      for (const message of messages) this.#take(JSON.parse(message) as Reply)
    })
  }

  static async launch(...flags: string[]): Promise<Chromium> {
    const folder = mkdtempSync(join(tmpdir(), 'tidewire-chromium-'))
    const child = spawn(chromiumPath(), [...FLAGS, ...flags, `--user-data-dir=${folder}`, 'about:blank'], { stdio: ['ignore', 'ignore', 'ignore', 'pipe', 'pipe'] })
    const browser = new Chromium(child, folder)
    await browser.send('Target.setDiscoverTargets', { discover: true })
    return browser
  }

  async stop(): Promise<void> {
    const ended = once(this.#process, 'exit')
    this.post('Browser.close')
    const timer = setTimeout(() => this.#process.kill('SIGKILL'), 5000)
    await ended
    clearTimeout(timer)
    rmSync(this.#folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
  }

  #take(reply: Reply): void {
    if (reply.id === undefined) {
      for (const listener of [...this.#listeners]) listener(reply)
      return
    }
    this.#calls.get(reply.id)?.answer(reply)
    this.#calls.delete(reply.id)
  }

  /** Nobody answers in this session any more. */
  fail(sessionId: string, message: string): void {
    for (const [id, call] of this.#calls) if (call.sessionId === sessionId) this.#take({ id, error: { message } })
  }

  /** Sends and forgets. */
  post(method: string, params: object = {}, sessionId?: string): number {
    const id = ++this.#lastId
    ;(this.#process.stdio[3] as Writable).write(`${JSON.stringify({ id, method, params, sessionId })}\0`)
    return id
  }

  async send<T = Readonly<Record<string, unknown>>>(method: string, params: object = {}, sessionId?: string): Promise<T> {
    const { error, result } = await new Promise<Reply>((answer) => this.#calls.set(this.post(method, params, sessionId), { sessionId, answer }))
    if (error) throw new Error(`${method}: ${error.message}`)
    return result as T
  }

  /** Calls with each event. Returns what ends it. */
  on(method: string, sessionId: string | undefined, call: (params: Readonly<Record<string, unknown>>) => void): () => void {
    const listener = (reply: Reply) => {
      if (reply.method === method && (sessionId === undefined || reply.sessionId === sessionId)) call(reply.params ?? {})
    }
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** A tab in front of the others. Tabs of different users share nothing; `user` is what {@link newUser} gives. */
  async tab(url: string, options: { readonly user?: string; readonly prepare?: string } = {}): Promise<Tab> {
    const { targetId } = await this.send<{ targetId: string }>('Target.createTarget', { url: 'about:blank', browserContextId: options.user })
    const tab = await Tab.attach(this, targetId)
    if (options.prepare) await tab.send('Page.addScriptToEvaluateOnNewDocument', { source: options.prepare })
    await tab.goto(url)
    return tab
  }

  async newUser(): Promise<string> {
    return (await this.send<{ browserContextId: string }>('Target.createBrowserContext')).browserContextId
  }

  async targets(type: string): Promise<{ readonly targetId: string; readonly url: string }[]> {
    const { targetInfos } = await this.send<{ targetInfos: { type: string; targetId: string; url: string }[] }>('Target.getTargets')
    return targetInfos.filter((info) => info.type === type)
  }

  /** The renderer that keeps a processor busy: the one that hangs. */
  async busiest(): Promise<number> {
    const spent = async () => {
      const { processInfo } = await this.send<{ processInfo: { type: string; id: number }[] }>('SystemInfo.getProcessInfo')
      return new Map(processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => [id, ticks(id)]))
    }
    for (const end = Date.now() + 10_000; Date.now() < end; ) {
      const before = await spent()
      await sleep(100)
      const most = [...(await spent())].map(([id, now]) => [id, now - (before.get(id) ?? now)] as const).sort(([, a], [, b]) => b - a)
      // Hundredths of a second: well above what the others do, and at least a third of a processor.
      if (most[0] && most[0][1] >= 4 && most[0][1] > 2 * (most[1]?.[1] ?? 0)) return most[0][0]
    }
    throw new Error('no renderer is busy')
  }
}

/** Hundredths of a second that a process has spent. */
function ticks(pid: number): number {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /, '').split(' ')
    return Number(fields[11]) + Number(fields[12])
  } catch {
    return 0 // it has ended
  }
}

/** What of a page an evaluated function may use. */
type Argument = string | number | boolean | null | undefined | readonly Argument[] | { readonly [key: string]: Argument }

export class Tab {
  readonly browser: Chromium
  readonly target: string
  readonly #session: string
  /** What went wrong by itself: uncaught errors and rejections. */
  readonly troubles: string[] = []
  /** Its renderer is gone. Tabs that opened each other have one together. */
  crashed = false
  /** Why pages came not out of the back/forward cache. */
  readonly evictions: string[] = []

  private constructor(browser: Chromium, target: string, session: string) {
    this.browser = browser
    this.target = target
    this.#session = session
    browser.on('Runtime.exceptionThrown', session, ({ exceptionDetails }) => {
      const { text, exception } = exceptionDetails as { text: string; exception?: { description?: string } }
      this.troubles.push(exception?.description ?? text)
    })
    browser.on('Inspector.targetCrashed', session, () => {
      this.crashed = true
      browser.fail(session, 'the tab has crashed')
    })
    browser.on('Target.detachedFromTarget', undefined, ({ sessionId }) => sessionId === session && browser.fail(session, 'the tab is closed'))
    browser.on('Page.backForwardCacheNotUsed', session, ({ notRestoredExplanations }) => {
      for (const { reason } of notRestoredExplanations as { reason: string }[]) this.evictions.push(reason)
    })
  }

  static async attach(browser: Chromium, target: string): Promise<Tab> {
    const { sessionId } = await browser.send<{ sessionId: string }>('Target.attachToTarget', { targetId: target, flatten: true })
    const tab = new Tab(browser, target, sessionId)
    await Promise.all([tab.send('Page.enable'), tab.send('Runtime.enable'), tab.send('Network.enable'), tab.send('Inspector.enable')])
    return tab
  }

  async send<T = Readonly<Record<string, unknown>>>(method: string, params: object = {}): Promise<T> {
    if (this.crashed) throw new Error('the tab has crashed')
    return this.browser.send<T>(method, params, this.#session)
  }

  on(method: string, call: (params: Readonly<Record<string, unknown>>) => void): () => void {
    return this.browser.on(method, this.#session, call)
  }

  /** Calls a function in the page, as a user's gesture, and waits for what it returns. */
  async eval<T, Args extends readonly Argument[]>(call: (...args: Args) => T, ...args: Args): Promise<Awaited<T>> {
    const expression = `(${call})(...${JSON.stringify(args)})`
    const { result, exceptionDetails } = await this.send<{ result: { value: unknown }; exceptionDetails?: { text: string; exception?: { description?: string } } }>('Runtime.evaluate', {
      expression,
      awaitPromise: true,
      returnByValue: true,
      userGesture: true,
    })
    if (exceptionDetails) throw new Error(`in the page: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`)
    return result.value as Awaited<T>
  }

  /** Opens an address and waits until it has loaded. */
  async goto(url: string): Promise<void> {
    const loaded = this.#loaded()
    const { errorText } = await this.send<{ errorText?: string }>('Page.navigate', { url })
    if (errorText) throw new Error(`${url}: ${errorText}`)
    await loaded
  }

  #loaded(): Promise<void> {
    return new Promise((resolve) => {
      const off = this.on('Page.loadEventFired', () => {
        off()
        resolve()
      })
    })
  }

  async reload(): Promise<void> {
    const loaded = this.#loaded()
    await this.send('Page.reload')
    await loaded
  }

  /** Follows a link, as a user does. Resolves when the next page is there. */
  async leave(path = '/away'): Promise<void> {
    const loaded = this.#loaded()
    await this.eval((path) => void setTimeout(() => (location.href = path)), path)
    await loaded
  }

  /** Goes back. Tells whether the page came out of the back/forward cache, by a mark that only a page that was kept still has. */
  async back(): Promise<boolean> {
    await this.eval(() => void setTimeout(() => history.back()))
    await until('the page before', async () => (await this.eval(() => location.pathname !== '/away' && document.readyState === 'complete').catch(() => false)) === true)
    return this.eval(() => 'kept' in window)
  }

  /** Marks the page for {@link back}. */
  mark(): Promise<void> {
    return this.eval(() => void Object.assign(window, { kept: true }))
  }

  /** Brings it to the front: the one that was there is hidden. */
  async show(): Promise<void> {
    await this.browser.send('Target.activateTarget', { targetId: this.target })
    await until('the tab to be visible', () => this.eval(() => document.visibilityState === 'visible'))
  }

  freeze(): Promise<unknown> {
    return this.send('Page.setWebLifecycleState', { state: 'frozen' })
  }

  resume(): Promise<unknown> {
    return this.send('Page.setWebLifecycleState', { state: 'active' })
  }

  /** New requests and sockets fail, and the page is told that it is offline. Sockets that are open go on. */
  offline(offline: boolean): Promise<unknown> {
    return this.send('Network.emulateNetworkConditions', { offline, latency: 0, downloadThroughput: -1, uploadThroughput: -1 })
  }

  /** Closes it as a user does: the page is told. Resolves when it is on its way. */
  close(): void {
    this.browser.post('Target.closeTarget', { targetId: this.target })
  }

  /** Kills its renderer. */
  crash(): void {
    this.browser.post('Page.crash', {}, this.#session)
  }

  /** Keeps its main thread busy for ms, or for ever. */
  hang(ms = Number.MAX_SAFE_INTEGER): void {
    this.browser.post('Runtime.evaluate', { expression: `for (const end = performance.now() + ${ms}; performance.now() < end; );` }, this.#session)
  }
}
