import { defineConfig } from 'vitest/config'

export const config = defineConfig({
  test: {
    include: ['e2e/**/*.test.ts'],
    globalSetup: ['e2e/setup.ts'],
    // A browser and a server are enough for one machine at a time.
    fileParallelism: false,
    maxWorkers: 1,
    testTimeout: 45_000,
    hookTimeout: 60_000,
  },
})

// Vitest reads the configuration from the default export.
export default config
