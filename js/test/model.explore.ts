import { type MakeSubject, play, report, type Run, shrink } from './model.run.js'

/** What a search did. */
export interface Explored {
  runs: number
  ms: number
  /** The first that broke, with the fewest steps. */
  broken?: string
}

/** Plays runs until one breaks, they end, or the time is over. */
export async function explore(runs: Iterable<Run>, make: MakeSubject, budgetMs = Infinity): Promise<Explored> {
  const start = performance.now()
  const explored: Explored = { runs: 0, ms: 0 }
  for (const run of runs) {
    if (performance.now() - start > budgetMs) break
    explored.runs++
    const broken = await play(run, make)
    if (!broken) continue
    const least = await shrink(run, make)
    explored.broken = report(least, (await play(least, make)) ?? broken)
    break
  }
  explored.ms = Math.round(performance.now() - start)
  return explored
}

/** Every sequence of depth steps, each followed by each gap, from a state that before leads to. */
export function* everySequence(before: readonly string[], steps: readonly string[], gaps: readonly (readonly string[])[], depth: number, more: Partial<Run> = {}): Generator<Run> {
  const moves = steps.flatMap((step) => gaps.map((gap) => [step, ...gap]))
  const chosen = Array.from({ length: depth }, () => 0)
  for (let n = 0; ; n++) {
    yield { seed: 1, ...more, steps: [...before, ...chosen.flatMap((i) => moves[i] as string[])] }
    let digit = depth - 1
    while (digit >= 0 && ++(chosen[digit] as number) === moves.length) chosen[digit--] = 0
    if (digit < 0) return
  }
}

/** Every way in which the first delays after `arm` are the shortest or the longest. */
export function* everyDelay(scenarios: readonly (readonly string[])[], count: number, more: Partial<Run> = {}): Generator<Run> {
  for (const steps of scenarios) {
    for (let bits = 0; bits < 1 << count; bits++) {
      yield { seed: 1, ...more, steps, delays: Array.from({ length: count }, (_, i) => (bits >> i) & 1) }
    }
  }
}

/** Each kind of step, by how often it is taken. */
const WEIGHTS: Readonly<Record<string, number>> = {
  open: 6,
  subscribe: 12,
  unsubscribe: 6,
  publish: 14,
  send: 5,
  wait: 22,
  quiet: 3,
  settle: 2,
  close: 3,
  reload: 2,
  duplicate: 1,
  hide: 3,
  show: 4,
  crash: 4,
  freeze: 3,
  resume: 4,
  hidden: 2,
  visible: 2,
  stop: 1,
  start: 2,
  fail: 1,
  drop: 3,
  hang: 2,
  unhang: 3,
  down: 1,
  up: 3,
  mute: 1,
  deafen: 1,
  lose: 3,
  slow: 1,
  heal: 4,
  quota: 1,
  jump: 1,
  leap: 1,
  trim: 2,
  renew: 1,
}

/** Steps after which a tab may be taken for dead, or not be heard. */
export const UNGRACEFUL = ['crash', 'freeze', 'resume', 'hidden', 'hang', 'unhang', 'down', 'mute', 'deafen', 'lose', 'slow', 'quota', 'leap', 'drop', 'fail']

/** Steps by which the server loses what it had. */
export const FORGETTING = ['trim', 'renew']

/** Runs of chance steps: those of a seed are always the same. */
export function* random(firstSeed: number, without: readonly string[] = [], more: Partial<Run> = {}): Generator<Run> {
  const kinds = Object.entries(WEIGHTS).filter(([kind]) => !without.includes(kind))
  const total = kinds.reduce((sum, [, weight]) => sum + weight, 0)
  for (let seed = firstSeed; ; seed++) {
    let state = Math.imul(seed, 0x9e3779b1)
    const below = (n: number): number => {
      state = (Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x6d2b79f5) | 0
      const mixed = Math.imul(state ^ (state >>> 12), 0x297a2d39)
      return ((mixed ^ (mixed >>> 15)) >>> 0) % n
    }
    const pick = <T>(values: readonly T[]): T => values[below(values.length)] as T
    const tabs = 2 + below(3)
    const steps = Array.from({ length: tabs }, (_, i) => [`open ${i}`, ...(below(3) ? [`subscribe ${i} ${pick(['a', 'b'])}`] : [])]).flat()
    for (let length = 10 + below(30); length > 0; length--) {
      let left = below(total)
      const kind = kinds.find(([, weight]) => (left -= weight) < 0)?.[0] as string
      const tab = below(tabs)
      const topic = pick(['a', 'a', 'b'])
      switch (kind) {
        case 'publish':
          steps.push(`publish ${topic}`)
          break
        case 'wait':
          steps.push(`wait ${pick([0, 0, 1, 1, 1, 2, 2, 5, 5, 5, 10, 20, 50, 150, 400, 1100, 4000, 13_000])}`)
          break
        case 'lose':
          steps.push(`lose ${1 + below(4)}`)
          break
        case 'slow':
          steps.push(`slow ${pick([30, 300, 2000])}`)
          break
        case 'hidden':
          steps.push(`hidden ${tab} ${pick([0, 1000, 60_000])}`)
          break
        case 'freeze':
          steps.push(`freeze ${tab}${below(2) ? ' messages' : ''}`)
          break
        case 'jump':
          steps.push(`jump ${pick([-3_600_000, 3_600_000])}`)
          break
        case 'leap':
          steps.push(`leap ${pick([5000, 60_000])}`)
          break
        case 'duplicate':
          steps.push(`duplicate ${tab} ${below(tabs)}`)
          break
        case 'subscribe':
        case 'unsubscribe':
          steps.push(`${kind} ${tab} ${topic}${below(4) ? '' : ' 2'}`)
          break
        case 'quiet':
        case 'settle':
        case 'heal':
        case 'trim':
        case 'renew':
        case 'down':
        case 'up':
          steps.push(kind)
          break
        default:
          steps.push(`${kind} ${tab} ${topic}`)
      }
    }
    yield { seed, ...more, steps }
  }
}
