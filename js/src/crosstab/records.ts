import type { KeyValue, Platform } from './platform.js'

const MAX_SCAN = 1000
const MIN_BACKOFF_MS = 50
const MAX_BACKOFF_MS = 1600

/**
 * The records of a cluster in localStorage, one key each: `worker:{workerId}`, `route:{topicKey}`, `subscriber:{topicKey}:{tabId}`. They are hints for who opens later; nothing is decided by them alone.
 *
 * Writes are merged per key and flushed in a microtask, in the order in which the keys were first written; reads see what waits. A write that fails is tried again after 50 to 1,600 ms, with what is wanted then.
 * Nothing here throws. Without storage nothing is kept.
 */
export function createRecords({ storage, soon, after }: Pick<Platform, 'storage' | 'soon' | 'after'>, prefix: string, failed: () => void) {
  const pending = new Map<string, string | null>()
  let delay = 0
  let scheduled = false
  let cancel: (() => void) | undefined

  const records = {
    /** Undefined removes it. */
    _put(key: string, value: object | undefined): void {
      if (!storage) return
      pending.set(prefix + key, value ? JSON.stringify(value) : null)
      if (scheduled || cancel) return
      scheduled = true
      soon(() => {
        scheduled = false
        if (!cancel) records._flush()
      })
    },

    _get(key: string): unknown {
      return storage && parse(storage, prefix + key)
    },

    /** The keys of a kind, without it, and their records. */
    _scan(kind: string): [key: string, value: unknown][] {
      const start = prefix + kind
      const found = new Set([...pending.keys()].filter((key) => key.startsWith(start)))
      try {
        for (let i = 0; i < (storage?.length ?? 0) && found.size < MAX_SCAN; i++) {
          const key = storage?.key(i)
          if (key?.startsWith(start)) found.add(key)
        }
      } catch {
        failed()
      }
      return [...found].map((key) => [key.slice(start.length), parse(storage as KeyValue, key)])
    },

    /** Writes all that waits, now. */
    _flush(): void {
      cancel?.()
      cancel = undefined
      let whole = true
      for (const [key, value] of pending) {
        try {
          if (value === null) storage?.removeItem(key)
          else storage?.setItem(key, value)
          pending.delete(key)
        } catch {
          // A full one may still take what is shorter, and lets remove.
          whole = false
        }
      }
      if (whole) {
        delay = 0
        return
      }
      failed()
      delay = Math.min(MAX_BACKOFF_MS, delay * 2 || MIN_BACKOFF_MS)
      cancel = after(delay, records._flush)
    },

    /** Writes what it can, and forgets the rest. */
    _end(): void {
      records._flush()
      cancel?.()
      pending.clear()
    },
  }

  function parse(storage: KeyValue, key: string): unknown {
    try {
      const text = pending.has(key) ? pending.get(key) : storage.getItem(key)
      return text ? JSON.parse(text) : undefined
    } catch {
      return undefined
    }
  }

  return records
}

export type Records = ReturnType<typeof createRecords>
