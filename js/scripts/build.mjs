// Bundles the entries. tsc writes the declarations beside them.
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { build } from 'esbuild'
import { mangle } from './mangle.mjs'

rmSync('dist', { recursive: true, force: true })
const { metafile } = await build({
  entryPoints: ['src/index.ts', 'src/react.ts', 'src/query/index.ts', 'src/query/react.ts', 'src/bus/index.ts'],
  outdir: 'dist',
  bundle: true,
  splitting: true,
  format: 'esm',
  target: 'es2022',
  external: ['react'],
  ...mangle,
  minifySyntax: true,
  sourcemap: true,
  metafile: true,
  logLevel: 'warning',
})

// An import for side effects, of which the package has none: bundlers warn about it. The line stays, for the source map.
for (const file of Object.keys(metafile.outputs)) {
  if (!file.endsWith('.js')) continue
  const text = readFileSync(file, 'utf8')
  const plain = text.replace(/^import "[^"]*\/chunk-\w+\.js";$/gm, '')
  if (plain !== text) writeFileSync(file, plain)
}
