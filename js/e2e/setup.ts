import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { TestProject } from 'vitest/node'

declare module 'vitest' {
  export interface ProvidedContext {
    binary: string
    folder: string
  }
}

/** Builds the server once for all files. */
export function setup(project: TestProject): () => void {
  const folder = mkdtempSync(join(tmpdir(), 'tidewire-e2e-'))
  const binary = join(folder, 'tidewire')
  const remove = () => rmSync(folder, { recursive: true, force: true })
  try {
    execFileSync('go', ['build', '-o', binary, './cmd/tidewire'], { cwd: fileURLToPath(new URL('../..', import.meta.url)), stdio: 'inherit' })
  } catch (error) {
    remove()
    throw error
  }
  project.provide('binary', binary)
  project.provide('folder', folder)
  return remove
}
