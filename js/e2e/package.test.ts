import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { gzipSync } from 'node:zlib'
import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { launch, record, troubles } from './browser.js'
import { bundle, Fixture, type FixtureOptions } from './fixture.js'
import { DemoServer } from './server.js'

let browser: Browser
let server: DemoServer

beforeAll(async () => {
  execFileSync('npm', ['run', '--silent', 'build'], { cwd: fileURLToPath(new URL('..', import.meta.url)), stdio: 'inherit' })
  ;[browser, server] = await Promise.all([launch(), DemoServer.start()])
})
afterAll(async () => {
  await browser?.close()
  await server?.stop()
})

async function open(name: string, options: FixtureOptions): Promise<{ page: Page; wrong: string[]; log: ReturnType<typeof record> }> {
  const fixture = await Fixture.serve(server.url, name, options)
  onTestFinished(() => fixture.stop())
  const page = await (await browser.newContext()).newPage()
  const seen = { page, wrong: troubles(page), log: record(page) }
  await page.goto(fixture.url)
  return seen
}

describe('the package', () => {
  it('S30 bundled from its published entry it works under a strict content security policy, and is small', async () => {
    const options = { entry: 'package', globals: { token: server.token('guest-bundle', 600_000) } } as const
    const script = await bundle('bundle.ts', options)
    expect(gzipSync(script, { level: 9 }).length).toBeLessThan(7168 + 512)
    expect(script).not.toMatch(/\beval\(|new Function\(/)
    const { page, wrong } = await open('bundle.ts', options)
    await expect.poll(() => page.locator('#root').innerText()).toBe('hello')
    expect(wrong).toEqual([])
  })

  it('S45 live queries bundled from the published entry work beside the core, and are small', async () => {
    const options = { entry: 'package', globals: { token: server.token('guest-query', 600_000) } } as const
    const script = await bundle('query.ts', options)
    expect(gzipSync(script, { level: 9 }).length).toBeLessThan(7168 + 2560)
    const { page, wrong, log } = await open('query.ts', options)
    await expect.poll(() => page.locator('#root').innerText()).toBe('live: Mend the nets, Chart the shoal, Buy rope, Paint the bow')
    expect(log.sent.filter(({ type }) => type === 'subscribe')).toHaveLength(1)
    expect(wrong).toEqual([])
  })

  it('P34 React under StrictMode in the browser: one socket, one subscription on the wire, one delivery, and it ends', async () => {
    const { page, wrong, log } = await open('strict.ts', { globals: { token: server.token('guest-strict', 600_000) } })
    await page.locator('#live').waitFor()
    await page.click('#publish')
    await expect.poll(() => page.locator('#got').innerText()).toBe('1')
    await expect.poll(() => page.locator('#roster').innerText()).toBe('guest-strict')
    // Away and back within the linger, as a change of view does.
    await page.click('#flip')
    await page.locator('#live').waitFor()
    await page.click('#publish')
    await expect.poll(() => page.locator('#got').innerText()).toBe('2')
    expect(log.sockets).toHaveLength(1)
    expect(log.sent.filter(({ type }) => type === 'subscribe')).toEqual([
      { type: 'subscribe', sid: '1', channel: 'demo.strict', presence: { data: { name: 'Strict' } } },
    ])
    expect(log.sent.filter(({ type }) => type === 'unsubscribe')).toEqual([])
    await page.click('#close')
    await expect.poll(() => log.sent.filter(({ type }) => type === 'unsubscribe')).toHaveLength(1)
    expect(wrong).toEqual([])
  })
})
