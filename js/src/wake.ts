/** What the browser says about the page or the network. None of it is proof; each is a reason to look. */
export type Wake = 'online' | 'restored' | 'visible'

/**
 * Calls listener when the network is said to be back, when the page returns from the back/forward cache, and
 * when it becomes visible. Outside a browser it does nothing. Returns a function that stops it.
 */
export function onWake(listener: (wake: Wake) => void): () => void {
  if (typeof document === 'undefined') return () => {}
  const listening = new AbortController()
  // The controller has the one option that is needed: signal.
  const on = (target: EventTarget, event: string, wake: (event: Event) => unknown) => target.addEventListener(event, wake, listening)
  on(window, 'online', () => listener('online'))
  on(window, 'pageshow', (event) => (event as PageTransitionEvent).persisted && listener('restored'))
  on(document, 'visibilitychange', () => document.visibilityState === 'visible' && listener('visible'))
  return () => listening.abort()
}
