// Names the sources of the package. It is in the name of workers, so that pages and workers of different sources never meet.
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

const src = fileURLToPath(new URL('../src/', import.meta.url))

export function buildId() {
  const hash = createHash('sha256')
  for (const file of readdirSync(src, { recursive: true }).sort()) if (/\.tsx?$/.test(file)) hash.update(file).update(readFileSync(src + file))
  return hash.digest('hex').slice(0, 12)
}
