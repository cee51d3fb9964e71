const MAX_MS = 0x7fff_ffff

/** One timeout at a time. */
export function createTimer() {
  let id: ReturnType<typeof setTimeout> | undefined

  const self = {
    /** Whether something will be called. */
    get _on(): boolean {
      return id !== undefined
    },

    /** Calls call after ms, or the longest time that browsers take, instead of what was set before. */
    _set(ms: number, call: () => void): void {
      self._clear()
      id = setTimeout(
        () => {
          id = undefined
          call()
        },
        Math.min(ms, MAX_MS),
      )
    },

    _clear(): void {
      clearTimeout(id)
      id = undefined
    },
  }
  return self
}

export type Timer = ReturnType<typeof createTimer>
