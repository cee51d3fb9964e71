import { createServer, type IncomingMessage, type Server } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import type { Duplex } from 'node:stream'
import { fileURLToPath } from 'node:url'
import { build } from 'esbuild'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const PAGE = '<!doctype html><meta charset="utf-8"><title>fixture</title><div id="root"></div><script src="/globals.js"></script><script type="module" src="/fixture.js"></script>'
// The page's own things, and nothing else.
const POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self'"

export interface FixtureOptions {
  /** What the fixture imports as tidewire: the sources, or the built package. */
  readonly entry?: 'source' | 'package'
  /** What the fixture finds on its window. */
  readonly globals?: Readonly<Record<string, unknown>>
}

/** Bundles a program of the folder fixtures. */
export async function bundle(name: string, { entry = 'source' }: FixtureOptions = {}): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [`${HERE}fixtures/${name}`],
    bundle: true,
    minify: entry === 'package',
    format: 'esm',
    target: 'es2022',
    write: false,
    define: { 'process.env.NODE_ENV': '"development"' },
    // Otherwise the package refers to itself, by what its package.json publishes.
    ...(entry === 'source' && { alias: { tidewire: `${HERE}../src/index.ts`, 'tidewire/react': `${HERE}../src/react.ts`, 'tidewire/query': `${HERE}../src/query/index.ts` } }),
    tsconfigRaw: {},
    logLevel: 'warning',
  })
  return outputFiles[0]?.text ?? ''
}

/** A page with one fixture. Its sockets go on to the server at target, as through a reverse proxy. */
export class Fixture {
  readonly url: string
  readonly #server: Server
  readonly #sockets = new Set<Duplex>()

  private constructor(server: Server, sockets: Set<Duplex>) {
    this.#server = server
    this.#sockets = sockets
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  }

  static async serve(target: string, name: string, options: FixtureOptions = {}): Promise<Fixture> {
    const files: Readonly<Record<string, string>> = {
      '/': PAGE,
      '/globals.js': `Object.assign(window, ${JSON.stringify(options.globals ?? {})})`,
      '/fixture.js': await bundle(name, options),
    }
    const server = createServer((request, response) => {
      const path = request.url ?? ''
      response.setHeader('content-security-policy', POLICY)
      response.setHeader('content-type', path.endsWith('.js') ? 'text/javascript' : 'text/html')
      response.statusCode = path in files ? 200 : 404
      response.end(files[path])
    })
    const sockets = new Set<Duplex>()
    server.on('upgrade', (request, near, head) => {
      const far = connect(Number(new URL(target).port), '127.0.0.1')
      for (const [from, to] of [[near, far], [far, near]] as const) {
        sockets.add(from)
        from.on('error', () => to.destroy())
        from.on('close', () => {
          sockets.delete(from)
          to.destroy()
        })
      }
      far.write(Buffer.concat([Buffer.from(headOf(request)), head]))
      near.pipe(far).pipe(near)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    return new Fixture(server, sockets)
  }

  stop(): void {
    for (const socket of this.#sockets) socket.destroy()
    this.#server.close()
    this.#server.closeAllConnections()
  }
}

function headOf({ method, url, rawHeaders }: IncomingMessage): string {
  let head = `${method} ${url} HTTP/1.1\r\n`
  for (let i = 0; i < rawHeaders.length; i += 2) head += `${rawHeaders[i]}: ${rawHeaders[i + 1]}\r\n`
  return `${head}\r\n`
}
