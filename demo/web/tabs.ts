// The page of many tabs: which of them subscribes what for all, and what happens when that one ends.
import { type ClusterSnapshot, CrossTabDataBus, type Mode, type TraceEvent } from 'tidewire/crosstab'
import { TidewireTransport } from 'tidewire/crosstab/tidewire'
import { byId, make, tint, write } from './dom.js'
import { guestId, hueOf } from './guest.js'
import { fetchSession } from './session.js'
import { startTheme } from './theme.js'

const TOPICS = [1, 2, 3, 4, 5, 6].map((n) => `tide.${n}`)
const MODES: Readonly<Record<Mode, string>> = {
  shared: 'A shared worker subscribes for all tabs',
  coordinated: 'One tab subscribes for all',
  'coordinated-ttl': 'One tab subscribes for all, without locks',
  local: 'This tab is alone',
}
const HANG_MS = 30_000

/** What a topic's card shows. */
interface Card {
  readonly card: HTMLElement
  readonly level: HTMLElement
  readonly owner: HTMLElement
  readonly witness: HTMLElement
}

/** Told between the tabs of this page: it is no part of what coordinates them. */
interface Takeover {
  readonly tabId: string
  readonly topics: number
  readonly ms: number
}

startTheme(byId('theme', HTMLButtonElement))
const wish = new URLSearchParams(location.search).get('mode') ?? 'auto'
const chosen = (wish in MODES ? wish : 'auto') as Mode | 'auto'
const guest = guestId()
const told = new BroadcastChannel('tidewire-demo-tabs')
const bus = new CrossTabDataBus({
  transport: new TidewireTransport(),
  config: { url: new URL('/v1/socket', location.href).href, token: 'bridge' },
  credential: async () => (await fetchSession(guest)).token,
  clusterKey: 'tidewire-demo',
  principal: guest,
  mode: chosen,
  workerUrl: 'worker.js',
  trace,
  traceIntervalMs: 500,
})
// For whoever looks from the console.
Object.assign(globalThis, { bus })

const cards = new Map<string, Card>()
const last = new Map<string, { offset: number; epoch: string; at: number; generation: number }>()
let received = 0
let doubled = 0
let missing = 0
let longest = 0

for (const topic of TOPICS) {
  cards.set(topic, card(topic))
  bus.subscribe(topic, (data, { position, generation }) => {
    const now = performance.now()
    const before = last.get(topic)
    received++
    if (position) {
      if (before?.epoch === position.epoch) {
        if (position.offset <= before.offset) doubled++
        else missing += position.offset - before.offset - 1
      }
      if (before && before.generation !== generation) longest = Math.max(longest, now - before.at)
      last.set(topic, { ...position, at: now, generation })
    }
    write(cards.get(topic)!.level, String((data as { readonly level: number }).level))
  })
}
bus.on('lost', () => missing++)
bus.state.subscribe(show)
setInterval(show, 250)
setInterval(witness, 1000)
show()
void witness()

told.onmessage = ({ data }: MessageEvent<Takeover>) => showTakeover(data)

/** A tab that has taken topics over measures how long that took, and tells the others. */
function trace(event: TraceEvent): void {
  const migration = event.kind === 'metrics' ? event.latency['migration'] : undefined
  if (!migration) return
  const takeover: Takeover = { tabId: bus.getClusterSnapshot().tabId, topics: migration.count, ms: migration.max }
  told.postMessage(takeover)
  showTakeover(takeover)
}

function showTakeover({ tabId, topics, ms }: Takeover): void {
  write(byId('takeover', HTMLElement), `Tab ${short(tabId)} took over ${topics} ${topics === 1 ? 'topic' : 'topics'} in ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms.`)
}

function show(): void {
  const { lifecycle, status, mode, modeReason } = bus.state.getSnapshot()
  const snapshot = bus.getClusterSnapshot()
  byId('status', HTMLElement).dataset['kind'] = status === 'error' ? 'stopped' : status
  write(byId('state', HTMLElement), mode ? `${MODES[mode]} · ${status}` : lifecycle)
  write(byId('me', HTMLElement), `Tab ${short(snapshot.tabId)}`)
  write(byId('why', HTMLElement), modeReason)
  write(byId('received', HTMLElement), String(received))
  write(byId('doubled', HTMLElement), String(doubled))
  write(byId('missing', HTMLElement), String(missing))
  write(byId('gap', HTMLElement), longest ? `${Math.round(longest)} ms` : '–')
  showTopics(snapshot)
  showTabs(snapshot)
}

function showTopics({ routes, tabId, mode }: ClusterSnapshot): void {
  for (const [topic, { card, owner }] of cards) {
    const route = routes.find((one) => one.topic === topic && one.confirmedAt !== undefined)
    card.classList.toggle('none', !route)
    if (route) tint(card, hueOf(mode === 'shared' ? route.workerId : route.tabId))
    write(owner, !route ? 'no owner yet' : mode === 'shared' ? 'the shared worker' : route.tabId === tabId ? 'this tab' : `tab ${short(route.tabId)}`)
  }
}

function showTabs({ workers, routes, tabId, mode }: ClusterSnapshot): void {
  const list = byId('tabs', HTMLElement)
  write(byId('tabs-count', HTMLElement), mode === 'shared' ? '' : String(workers.length))
  const rows = workers.map((worker) => {
    const row = make('li', 'tab')
    tint(row, hueOf(mode === 'shared' ? worker.workerId : worker.tabId))
    const owned = routes.filter((route) => route.workerId === worker.workerId).map((route) => route.topic ?? '?')
    const note = mode === 'shared' ? '' : [worker.tabId === tabId ? 'this tab' : '', worker.visibilityState === 'hidden' ? 'hidden' : '', worker.role === 'standby' ? 'standby' : ''].filter(Boolean).join(', ')
    row.append(make('span', 'swatch'), make('span', 'name', mode === 'shared' ? 'The shared worker' : `Tab ${short(worker.tabId)}`), make('span', 'note', note), make('span', 'owned', owned.sort().join(' ')))
    return row
  })
  list.replaceChildren(...rows)
}

/** The server's word on how many subscribe: over all browsers that have the page open. */
async function witness(): Promise<void> {
  if (document.hidden) return
  const counts = await fetch('/demo/tide', { cache: 'no-store' }).then((response) => response.json() as Promise<Record<string, number>>, () => undefined)
  if (!counts) return
  for (const [topic, { witness }] of cards) {
    const count = counts[topic] ?? 0
    write(witness, `the server has ${count} ${count === 1 ? 'subscription' : 'subscriptions'}`)
  }
}

function card(topic: string): Card {
  const card = make('li', 'topic none')
  const level = make('p', 'level', '–')
  const owner = make('p', 'owner', 'no owner yet')
  const witness = make('p', 'witness')
  card.append(make('p', 'title', topic), level, owner, witness)
  byId('topics', HTMLElement).append(card)
  return { card, level, owner, witness }
}

function short(id: string): string {
  return id ? (hash(id) % 1296).toString(36).padStart(2, '0').toUpperCase() : '–'
}

function hash(id: string): number {
  let out = 2166136261
  for (const char of id) out = Math.imul(out ^ char.charCodeAt(0), 16777619)
  return out >>> 0
}

const mode = byId('mode', HTMLSelectElement)
mode.value = chosen
mode.addEventListener('change', () => {
  location.search = `?mode=${mode.value}`
})
byId('open', HTMLButtonElement).addEventListener('click', () => window.open(location.href, '_blank', 'noopener'))
byId('kill', HTMLButtonElement).addEventListener('click', () => {
  window.close()
  location.replace('about:blank') // a tab that no script opened stays
})
byId('leave', HTMLButtonElement).addEventListener('click', () => location.reload())
byId('hang', HTMLButtonElement).addEventListener('click', () => {
  const until = performance.now() + HANG_MS
  while (performance.now() < until);
})
