/** About how many bytes a value takes on its way to another tab. It looks at no more than a thousand parts. */
export function sizeOf(value: unknown): number {
  let parts = 1000
  const measure = (value: unknown): number => {
    if (typeof value === 'string') return value.length
    if (typeof value !== 'object' || !value || --parts < 0) return 8
    if ('byteLength' in value) return Number(value.byteLength)
    let size = 8
    for (const key in value) {
      if (parts < 0) break
      size += key.length + measure((value as Record<string, unknown>)[key])
    }
    return size
  }
  return measure(value)
}
