// Fails when an entry, or what is imported of it, minified and gzipped, is over its budget in bytes: as a bundler makes it of what `npm run build` publishes.
import { relative } from 'node:path'
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'

const budgets = {
  "export * from './dist/index.js'": 7168,
  "export * from './dist/react.js'": 1024,
  // With what it shares with the core: an application that has both pays for that once.
  "export * from './dist/query/index.js'": 2624,
  "export * from './dist/match/index.js'": 3072,
  // What a page loads at first. The rung that it takes comes after: `shared` or `runtime`.
  "export * from './dist/crosstab/index.js'": 6144,
  "export * from './dist/crosstab/runtime.js'": 12_800,
  // With the core, which it is made of.
  "export * from './dist/crosstab/tidewire.js'": 8192,
  "export * from './dist/crosstab/worker.js'": 4096,
  // Without the package centrifuge.
  "export * from './dist/crosstab/centrifuge.js'": 2048,
  "import './dist/worker.js'": 12_288,
  // The bus alone, as a bundler takes it from its entry, and the whole entry with the hub and byte transports.
  "export { createBroadcastBus, decodeNativeEnvelope, encodeNativeEnvelope, receiveAcked } from './src/bus/index.ts'": 1536,
  "export * from './src/bus/index.ts'": 2304,
}

for (const [contents, budget] of Object.entries(budgets)) {
  const { metafile, outputFiles } = await build({
    stdin: { contents, resolveDir: '.' },
    bundle: true,
    splitting: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    external: ['react', 'centrifuge'],
    outdir: 'out',
    metafile: true,
    write: false,
  })
  // The entry and what it imports; what is imported later, by import(), is counted where it stands alone.
  const loaded = new Set(['out/stdin.js'])
  for (const file of loaded) for (const { path, kind, external } of metafile.outputs[file].imports) if (kind === 'import-statement' && !external) loaded.add(path)
  let size = 0
  for (const { path, contents: bytes } of outputFiles) if (loaded.has(relative('.', path))) size += gzipSync(bytes, { level: 9 }).length
  console.log(`${size} of ${budget} bytes: ${contents}`)
  if (size > budget) process.exitCode = 1
}
