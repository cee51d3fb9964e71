// Fails when an entry, or what is imported of it, minified and gzipped, is over its budget in bytes: as a bundler makes it of what `npm run build` publishes.
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'

const budgets = {
  "export * from './dist/index.js'": 7168,
  "export * from './dist/react.js'": 1024,
  // With what it shares with the core: an application that has both pays for that once.
  "export * from './dist/query/index.js'": 2560,
  // The bus alone, as a bundler takes it from its entry, and the whole entry with the hub and byte transports.
  "export { createBroadcastBus, decodeNativeEnvelope, encodeNativeEnvelope, receiveAcked } from './src/bus/index.ts'": 1536,
  "export * from './src/bus/index.ts'": 2304,
}

for (const [contents, budget] of Object.entries(budgets)) {
  const { outputFiles } = await build({
    stdin: { contents, resolveDir: '.' },
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    external: ['react'],
    write: false,
  })
  const size = gzipSync(outputFiles[0].contents, { level: 9 }).length
  console.log(`${size} of ${budget} bytes: ${contents}`)
  if (size > budget) process.exitCode = 1
}
