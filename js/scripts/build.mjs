// Bundles the entries. tsc writes the declarations beside them.
import { rmSync } from 'node:fs'
import { build } from 'esbuild'
import { mangle } from './mangle.mjs'

rmSync('dist', { recursive: true, force: true })
await build({
  entryPoints: ['src/index.ts', 'src/react.ts', 'src/bus/index.ts'],
  outdir: 'dist',
  bundle: true,
  splitting: true,
  format: 'esm',
  target: 'es2022',
  external: ['react'],
  ...mangle,
  minifySyntax: true,
  sourcemap: true,
  logLevel: 'warning',
})
