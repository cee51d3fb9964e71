import { execFileSync } from 'node:child_process'
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { build as esbuild } from 'esbuild'
import { createServer as viteServer, build as viteBuild } from 'vite'
import { afterAll, beforeAll, describe, expect, inject, it, onTestFinished } from 'vitest'
import webpack from 'webpack'
import type { CrossTabDataBus } from '../../src/crosstab/index.js'
import { type DemoServer, until } from '../server.js'
import { Chromium } from '../tabs/chromium.js'
import { Site } from '../tabs/site.js'
import { publish, startServer } from '../tabs/world.js'

declare const window: { readonly bus: CrossTabDataBus; readonly got: unknown[] } & Window

const PACKAGE = fileURLToPath(new URL('../..', import.meta.url))
const APP = fileURLToPath(new URL('app', import.meta.url))

let browser: Chromium
let server: DemoServer
let app: string
let installed: string

// The package as it is published, in an application's node_modules.
beforeAll(async () => {
  app = mkdtempSync(join(inject('folder'), 'app-'))
  installed = join(app, 'node_modules/tidewire')
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: PACKAGE, stdio: 'inherit' })
  const [{ filename }] = JSON.parse(execFileSync('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', app], { cwd: PACKAGE, stdio: ['ignore', 'pipe', 'ignore'] }).toString()) as [{ filename: string }]
  mkdirSync(installed, { recursive: true })
  execFileSync('tar', ['xzf', join(app, filename), '--strip-components=1', '-C', installed])
  cpSync(APP, app, { recursive: true })
  ;[browser, server] = await Promise.all([Chromium.launch(), startServer()])
}, 120_000)
afterAll(async () => {
  await browser?.stop()
  await server?.stop()
})

/** What a folder has, by the path under which it is served. */
function files(folder: string): [string, string][] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .map((path) => [`/${relative(folder, path)}`, readFileSync(path, 'utf8')])
}

/** Two tabs of an application: one worker, one connection, one subscription, and both get what is published. */
async function together(site: Site, path = '/'): Promise<void> {
  onTestFinished(() => site.stop())
  const tabs = [await browser.tab(site.url + path), await browser.tab(site.url + path)]
  for (const tab of tabs) {
    await until('the bus', () => tab.eval(() => window.bus?.state.getSnapshot().lifecycle === 'running'))
    await tab.eval(() => window.bus.ready())
    expect(await tab.eval(() => `${window.bus.mode} ${window.bus.modeReason}`)).toBe('shared ')
  }
  await site.witness.until('the subscription', () => site.witness.live('log.bundled') > 0)
  const before = await Promise.all(tabs.map((tab) => tab.eval(() => window.got.length)))
  expect(before).toEqual([0, 0])
  await publish(server, [{ channel: 'log.bundled', data: 'to all' }])
  for (const tab of tabs) await until('the publication', () => tab.eval(() => window.got.length > 0))
  for (const tab of tabs) expect(await tab.eval(() => window.got)).toEqual(['to all'])
  const workers = (await browser.targets('shared_worker')).filter(({ url }) => url.startsWith(site.url))
  expect(workers).toHaveLength(1)
  expect(site.witness.connections).toHaveLength(1)
  expect(site.witness.spans).toHaveLength(1)
  expect(tabs.flatMap(({ troubles }) => troubles).filter((trouble) => !trouble.includes('/@vite/client'))).toEqual([])
  for (const tab of tabs) tab.close()
}

const html = () => readFileSync(join(APP, 'index.html'), 'utf8')

describe('one worker for two tabs', () => {
  it('X29 P20: built with Vite', async () => {
    const out = join(app, 'vite')
    await viteBuild({ root: app, configFile: false, logLevel: 'warn', build: { outDir: out, rollupOptions: { input: join(app, 'index.html') } } })
    await together(await Site.serve(server.url, [['/', readFileSync(join(out, 'index.html'), 'utf8')], ...files(out)]))
  })

  it('X29 P20: served by Vite in development', async () => {
    const vite = await viteServer({
      root: app,
      configFile: false,
      logLevel: 'warn',
      appType: 'mpa',
      server: { middlewareMode: true, hmr: false, ws: false },
    })
    onTestFinished(() => vite.close())
    const site = await Site.serve(server.url, [])
    site.others = vite.middlewares
    await together(site)
  })

  it('X29 P20: built with webpack', async () => {
    const out = join(app, 'webpack')
    await new Promise<void>((resolve, reject) => {
      webpack({ mode: 'production', context: app, entry: './main.js', output: { path: out, filename: 'main.js' } }, (error, stats) => {
        if (error || stats?.hasErrors() || stats?.hasWarnings()) reject(error ?? new Error(stats?.toString()))
        else resolve()
      })
    })
    await together(await Site.serve(server.url, [['/', html()], ...files(out)]))
  })

  it('X29 P20: built with esbuild, and the worker copied beside the bundle', async () => {
    const out = join(app, 'esbuild')
    await esbuild({ entryPoints: [join(app, 'main.js')], outdir: out, bundle: true, minify: true, format: 'esm', target: 'es2022', logLevel: 'warning' })
    cpSync(join(installed, 'dist/worker.js'), join(out, 'worker.js'))
    await together(await Site.serve(server.url, [['/', html()], ...files(out)]))
  })

  it('X29 P20: with a script element, without a bundler', async () => {
    const kept = ['tidewire.iife.js', 'worker.js'].map((name): [string, string] => [`/${name}`, readFileSync(join(installed, 'dist', name), 'utf8')])
    await together(await Site.serve(server.url, [['/', readFileSync(join(APP, 'script.html'), 'utf8')], ...kept]))
  })
})
