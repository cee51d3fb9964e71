import { type ChildProcess, spawn } from 'node:child_process'
import { createHmac } from 'node:crypto'
import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { inject } from 'vitest'

/** The demo, or a server with a configuration, on a port of its own. A server that is started again has the same port and the same key. */
export class DemoServer {
  readonly url: string
  readonly #port: number
  readonly #folder: string
  readonly #args: readonly string[]
  #process: ChildProcess | undefined
  #output = ''

  private constructor(port: number, config: string | undefined) {
    this.#port = port
    this.url = `http://127.0.0.1:${port}`
    this.#folder = mkdtempSync(join(inject('folder'), 'demo-'))
    const address = ['--addr', `127.0.0.1:${port}`]
    const file = join(this.#folder, 'tidewire.yaml')
    if (config !== undefined) writeFileSync(file, config)
    this.#args = config === undefined ? ['demo', ...address, '--dir', this.#folder] : ['serve', ...address, '-c', file]
  }

  /** Without a configuration it is the demo. */
  static async start(config?: string): Promise<DemoServer> {
    const server = new DemoServer(await freePort(), config)
    await server.start()
    return server
  }

  async start(): Promise<void> {
    const child = spawn(inject('binary'), this.#args, { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#process = child
    for (const stream of [child.stdout, child.stderr]) stream?.on('data', (data: Buffer) => (this.#output += data.toString()))
    await until(`the server's start; it said: ${this.#output}`, async () => {
      if (child.exitCode !== null) throw new Error(`the server ended with ${child.exitCode}: ${this.#output}`)
      return accepts(this.#port)
    })
  }

  /** Ends it as a crash would, or with SIGTERM as an operator does, and waits for its end. */
  async stop(signal: 'SIGKILL' | 'SIGTERM' = 'SIGKILL'): Promise<void> {
    const child = this.#process
    if (!child || child.exitCode !== null || child.signalCode !== null) return
    const ended = new Promise((resolve) => child.once('exit', resolve))
    child.kill(signal)
    await ended
  }

  /** A file in the demo's folder. */
  file(name: string): string {
    return join(this.#folder, name)
  }

  /** A token as the demo signs them, for a life of one's choice. */
  token(subject: string, lifeMs: number): string {
    const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
    const signed = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ sub: subject, exp: Math.floor((Date.now() + lifeMs) / 1000) })}`
    return `${signed}.${createHmac('sha256', readFileSync(join(this.#folder, 'key'))).update(signed).digest('base64url')}`
  }
}

/** Waits until check says true. */
export async function until(what: string, check: () => boolean | Promise<boolean>, ms = 20_000): Promise<void> {
  const end = Date.now() + ms
  while (!(await check())) {
    if (Date.now() > end) throw new Error(`waited ${ms} ms for ${what}`)
    await sleep(20)
  }
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => resolve(true))
    socket.once('error', () => resolve(false))
    socket.once('close', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}

/** Below the ports that systems give to outgoing connections: one of those could take it while the server is away. */
async function freePort(): Promise<number> {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 12_000)
    const free = await new Promise<boolean>((resolve) => {
      const server = createServer()
      server.once('error', () => resolve(false))
      server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
    })
    if (free) return port
  }
}
