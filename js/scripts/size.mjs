// Fails when an entry, minified and gzipped, is over its budget in bytes.
import { gzipSync } from 'node:zlib'
import { build } from 'esbuild'

const budgets = { 'src/index.ts': 7168, 'src/react.ts': 1024 }

for (const [entry, budget] of Object.entries(budgets)) {
  const { outputFiles } = await build({
    entryPoints: [entry],
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    external: ['react'],
    write: false,
  })
  const size = gzipSync(outputFiles[0].contents, { level: 9 }).length
  console.log(`${entry}: ${size} of ${budget} bytes`)
  if (size > budget) process.exitCode = 1
}
