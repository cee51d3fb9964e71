import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import type { Duplex } from 'node:stream'
import { build } from 'esbuild'
import { Cutter } from './frames.js'
import { Witness } from './witness.js'

interface Pair {
  readonly near: Duplex
  readonly far: Duplex
  dark: boolean
}

/**
 * One origin: pages with their scripts, and the way to the server, which it can break, and on which the witness stands. Each test has its own, so that its tabs meet no others.
 */
export class Site {
  readonly url: string
  readonly witness = new Witness()
  /** Path to content. What is not there is 404. */
  readonly files: Map<string, string>
  /** Called for what is asked of other paths. */
  readonly answers = new Map<string, (query: string) => string>()
  /** Answers what is none of these. */
  others: ((request: IncomingMessage, response: ServerResponse) => void) | undefined
  /** Headers of each answer. */
  headers: Readonly<Record<string, string>> = {}
  /** Whether new sockets are refused. */
  refusing = false
  readonly #server: Server
  readonly #pairs = new Set<Pair>()
  #dark = false

  private constructor(server: Server, target: string, files: Map<string, string>) {
    this.#server = server
    this.files = files
    this.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    server.on('request', (request: IncomingMessage, response) => {
      const [path = '', query = ''] = (request.url ?? '').split('?')
      const content = this.answers.get(path)?.(query) ?? files.get(path)
      if (content === undefined && this.others) return this.others(request, response)
      response.writeHead(content === undefined ? 404 : 200, { 'content-type': path.endsWith('.js') ? 'text/javascript' : 'text/html', ...this.headers })
      response.end(content)
    })
    server.on('upgrade', (request: IncomingMessage, near: Duplex, head: Buffer) => {
      if (this.refusing) return near.destroy()
      this.#join(request, near, head, Number(new URL(target).port))
    })
  }

  static async serve(target: string, files: Iterable<readonly [string, string]>, port = 0): Promise<Site> {
    const server = createServer()
    await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve))
    return new Site(server, target, new Map([['/away', page('')], ...files]))
  }

  #join(request: IncomingMessage, near: Duplex, head: Buffer, port: number): void {
    const far = connect(port, '127.0.0.1')
    far.setNoDelay(true)
    const pair: Pair = { near, far, dark: this.#dark }
    this.#pairs.add(pair)
    const { witness } = this
    const id = witness.opened(request.url ?? '', request.headers)
    const [client, server] = [new Cutter(), new Cutter()]
    far.write(headOf(request))
    let answered: Buffer | undefined = Buffer.alloc(0)
    const up = (bytes: Buffer) => {
      if (pair.dark) return
      for (const { opcode, data } of client.take(bytes)) {
        if (opcode === 1) witness.fromClient(id, data.toString())
        else if (opcode === 8) witness.closed(id)
      }
      far.write(bytes)
    }
    const down = (bytes: Buffer) => {
      if (pair.dark) return
      let frames = bytes
      if (answered) {
        answered = Buffer.concat([answered, bytes])
        const end = answered.indexOf('\r\n\r\n')
        frames = end < 0 ? Buffer.alloc(0) : answered.subarray(end + 4)
        if (end >= 0) answered = undefined
      }
      for (const { opcode, data } of server.take(frames)) {
        if (opcode === 1) witness.fromServer(id, data.toString())
        else if (opcode === 8) witness.closed(id)
      }
      near.write(bytes)
    }
    if (head.length > 0) up(head)
    near.on('data', up)
    far.on('data', down)
    for (const [from, to] of [[near, far], [far, near]] as const) {
      from.on('error', () => {}) // its close follows
      const ended = () => {
        if (pair.dark) return // the other end does not learn of it
        witness.closed(id)
        to.destroy()
      }
      from.on('end', ended)
      from.on('close', () => {
        ended()
        if (near.destroyed && far.destroyed) this.#pairs.delete(pair)
      })
    }
  }

  /** Cuts every connection, as a router that restarts. */
  cut(): void {
    for (const { near, far } of this.#pairs) for (const socket of [near, far]) socket.destroy()
  }

  /** Loses everything, in both directions, and tells nobody. */
  darken(): void {
    this.#dark = true
    for (const pair of this.#pairs) pair.dark = true
  }

  /** Serves new connections again; those from before stay silent. */
  lighten(): void {
    this.#dark = false
  }

  /** Those that were in the dark come to their end. */
  endDark(): void {
    for (const pair of this.#pairs) {
      if (!pair.dark) continue
      pair.dark = false
      pair.near.destroy()
      pair.far.destroy()
    }
  }

  stop(): void {
    this.cut()
    this.#server.close()
    this.#server.closeAllConnections()
  }
}

/** A page with one script, or none, and what is done to the page before. */
export function page(script: string, before = ''): string {
  const scripts = script && `<script>${before}</script><script type="module" src="${script}"></script>`
  return `<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>tab</title>${scripts}`
}

/** Bundles one program of a folder, from the sources. */
export async function bundle(path: string, options: { readonly format?: 'esm' | 'iife' | undefined; readonly define?: Readonly<Record<string, string>> | undefined } = {}): Promise<string> {
  const { outputFiles } = await build({
    entryPoints: [path],
    bundle: true,
    format: options.format ?? 'esm',
    target: 'es2022',
    write: false,
    define: { 'process.env.NODE_ENV': '"development"', ...options.define },
    tsconfigRaw: {},
    logLevel: 'warning',
  })
  return outputFiles[0]?.text ?? ''
}

/** The request as it came, but for extensions: what is compressed cannot be read. */
function headOf({ method, url, rawHeaders }: IncomingMessage): string {
  let head = `${method} ${url} HTTP/1.1\r\n`
  for (let i = 0; i < rawHeaders.length; i += 2) if (!/^sec-websocket-extensions$/i.test(rawHeaders[i] ?? '')) head += `${rawHeaders[i]}: ${rawHeaders[i + 1]}\r\n`
  return `${head}\r\n`
}
