const PREFIX = 'tidewire-demo.'

/** What this browser remembers. Where storage is blocked or full, nothing: the page goes on without. */
export function recall(key: string): string | undefined {
  try {
    return localStorage.getItem(PREFIX + key) ?? undefined
  } catch {
    return undefined
  }
}

export function remember(key: string, value: string): void {
  try {
    localStorage.setItem(PREFIX + key, value)
  } catch {
    // It is only a convenience.
  }
}

/** Calls listener when another window of this browser remembers another value. */
export function onRemembered(key: string, listener: (value: string) => void): void {
  addEventListener('storage', (event) => {
    if (event.key === PREFIX + key && event.newValue !== null) listener(event.newValue)
  })
}
