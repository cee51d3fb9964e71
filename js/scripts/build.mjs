// Bundles the entries. tsc writes the declarations beside them.
import { readFileSync, rmSync, writeFileSync } from 'node:fs'
import { build } from 'esbuild'
import { buildId } from './build-id.mjs'
import { mangle } from './mangle.mjs'

const shared = {
  bundle: true,
  target: 'es2022',
  external: ['react', 'centrifuge'],
  define: { TIDEWIRE_BUILD: JSON.stringify(buildId()) },
  ...mangle,
  minifySyntax: true,
  sourcemap: true,
  logLevel: 'warning',
}

rmSync('dist', { recursive: true, force: true })
// The core gets the shortest names, however much there is beside it.
const { mangleCache } = await build({ ...shared, entryPoints: ['src/index.ts'], outdir: 'dist', format: 'esm', write: false, mangleCache: {} })
const { metafile } = await build({
  ...shared,
  mangleCache,
  entryPoints: {
    index: 'src/index.ts',
    react: 'src/react.ts',
    'query/index': 'src/query/index.ts',
    'query/react': 'src/query/react.ts',
    'bus/index': 'src/bus/index.ts',
    'match/index': 'src/match/index.ts',
    'crosstab/index': 'src/crosstab/index.ts',
    'crosstab/runtime': 'src/crosstab/runtime.ts',
    'crosstab/tidewire': 'src/crosstab/tidewire.ts',
    'crosstab/worker': 'src/crosstab/worker-transport.ts',
    'crosstab/centrifuge': 'src/crosstab/centrifuge.ts',
    // Beside worker.js, which it names.
    'create-worker': 'src/worker/create.ts',
    'worker/host': 'src/worker/serve.ts',
    'testing/index': 'src/testing/index.ts',
  },
  outdir: 'dist',
  splitting: true,
  format: 'esm',
  metafile: true,
})

// An import for side effects, of which the package has none: bundlers warn about it. The line stays, for the source map.
for (const file of Object.keys(metafile.outputs)) {
  if (!file.endsWith('.js')) continue
  const text = readFileSync(file, 'utf8')
  const plain = text.replace(/^import "[^"]*\/chunk-\w+\.js";$/gm, '')
  if (plain !== text) writeFileSync(file, plain)
}

// All of a worker's script, for whoever copies it. It runs as a module and as a classic script.
await build({ ...shared, entryPoints: { worker: 'src/worker/index.ts' }, outdir: 'dist', format: 'iife', minify: true })

// For pages without a bundler: window.tidewire.
await build({
  ...shared,
  stdin: { contents: ['index', 'query/index', 'crosstab/index', 'crosstab/tidewire'].map((entry) => `export * from './src/${entry}.ts'`).join('\n'), resolveDir: '.' },
  outfile: 'dist/tidewire.iife.js',
  format: 'iife',
  globalName: 'tidewire',
  minify: true,
})
