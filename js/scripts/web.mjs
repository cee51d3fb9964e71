// Builds the demo's page, demo/web, into demo/dist, which the server embeds. The same sources give the same bytes.
import { copyFileSync, mkdirSync, rmSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'
import { buildId } from './build-id.mjs'

const web = fileURLToPath(new URL('../../demo/web/', import.meta.url))
const dist = fileURLToPath(new URL('../../demo/dist/', import.meta.url))
const source = (file) => fileURLToPath(new URL(`../src/${file}`, import.meta.url))

rmSync(dist, { recursive: true, force: true })
mkdirSync(dist)
await build({
  entryPoints: { app: `${web}main.ts`, tabs: `${web}tabs.ts`, worker: source('worker/index.ts'), style: `${web}style.css` },
  outdir: dist,
  // Paths in the output, if there were any, must not be those of this machine.
  absWorkingDir: web,
  bundle: true,
  minify: true,
  format: 'esm',
  target: 'es2022',
  alias: {
    tidewire: source('index.ts'),
    'tidewire/query': source('query/index.ts'),
    'tidewire/crosstab': source('crosstab/index.ts'),
    'tidewire/crosstab/tidewire': source('crosstab/tidewire.ts'),
  },
  define: { TIDEWIRE_BUILD: JSON.stringify(buildId()) },
  loader: { '.svg': 'dataurl' },
  legalComments: 'none',
  logLevel: 'warning',
})
for (const file of ['index.html', 'tabs.html', 'icon.svg']) copyFileSync(web + file, dist + file)
