import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitest/config'

export const config = defineConfig({
  // As the demo's sources name the package.
  resolve: {
    alias: {
      'tidewire/query': fileURLToPath(new URL('src/query/index.ts', import.meta.url)),
      tidewire: fileURLToPath(new URL('src/index.ts', import.meta.url)),
    },
  },
  test: {
    include: ['test/**/*.test.ts', 'test/**/*.test.tsx'],
    setupFiles: ['test/setup.ts'],
    // The wire tests run in plain Node: the core must not need a DOM. Those of
    // wake signals and React name happy-dom in their first line.
    environment: 'node',
    maxWorkers: 1,
    typecheck: { enabled: false },
  },
})

// Vitest reads the configuration from the default export.
export default config
