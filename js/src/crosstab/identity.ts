import type { Platform } from './platform.js'

const KEY = 'tidewire:tab'
const TRIES = 2
const TRY_MS = 50

/** Who a tab is, until it lets go. */
export interface Identity {
  readonly tabId: string
  release(): void
}

/**
 * The tab's id: the one in sessionStorage, so that it survives a refresh, unless another tab has it: window.open and duplicating a tab copy sessionStorage. With locks the lock `tab:{tabId}` decides, and nobody ever
 * waits for it, so that a refresh finds it free. Without, a page that another opened takes a new one; who still meets its own id later calls {@link newTabId}. Rejects where locks are refused.
 */
export async function claimTab({ locks, session, page, randomId, after }: Platform, prefix: string): Promise<Identity> {
  const stored = attempt(() => session?.getItem(KEY))
  const hold = (tabId: string) =>
    new Promise<(() => void) | undefined>((resolve, reject) => {
      locks!.request(`${prefix}tab:${tabId}`, { ifAvailable: true }, (lock) => (lock ? new Promise<void>(resolve) : resolve(undefined))).catch(reject)
    })
  if (!locks) return { tabId: (!page.opened && stored) || newTabId(session, randomId()), release() {} }
  let release = stored ? await hold(stored) : undefined
  // The page before a refresh may not be gone yet.
  for (let i = 0; i < TRIES && stored && !release; i++) {
    await new Promise<void>((resolve) => void after(TRY_MS, resolve))
    release = await hold(stored)
  }
  if (release) return { tabId: stored!, release }
  const tabId = randomId()
  const held = await hold(tabId)
  // Not earlier: a copy of this tab would find it, and the lock free.
  newTabId(session, tabId)
  return { tabId, release: held ?? (() => {}) }
}

export function newTabId(session: Platform['session'], tabId: string): string {
  attempt(() => session?.setItem(KEY, tabId))
  return tabId
}

/** What call returns, or undefined if it throws. */
export function attempt<T>(call: () => T): T | undefined {
  try {
    return call()
  } catch {
    return undefined
  }
}
