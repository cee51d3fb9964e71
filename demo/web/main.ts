// The demo's page: everybody in a room sees everybody's cursor, reactions and words, and the board of all rooms.
import { createClient, TidewireError } from 'tidewire'
import { currentRoom, roomLink, roomName } from './address.js'
import { Board } from './board.js'
import { Composer, typingText } from './composer.js'
import { ARROW, Cursors } from './cursors.js'
import { byId, make, tint, write } from './dom.js'
import { Echo } from './echo.js'
import { Feed } from './feed.js'
import { drawPath } from './glyphs.js'
import { guestId, guestName, hueOf } from './guest.js'
import { Panel } from './panel.js'
import { type Means, Pointer } from './pointer.js'
import { burst, ReactionBar } from './reactions.js'
import { MAX_NAME, text } from './room.js'
import { Roster } from './roster.js'
import { fetchSession, type Session } from './session.js'
import { onRemembered, remember } from './storage.js'
import { startTheme } from './theme.js'
import { Tide } from './tide.js'
import { Visit, type Views } from './visit.js'

const RETRY_MS = 1500

startTheme(byId('theme', HTMLButtonElement))
const panel = new Panel()
const guest = guestId()
let name = guestName()

void firstSession().then(start)

/** The page's build has to be known before the client is made: the server tells it with the first token. */
async function firstSession(): Promise<Session> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await fetchSession(guest)
    } catch (cause) {
      const error = new TidewireError('TOKEN_UNAVAILABLE', { cause: String(cause) })
      panel.show({ kind: 'waiting', reconnectAt: Date.now() + RETRY_MS, attempt, error })
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS))
      panel.show({ kind: 'connecting', attempt: attempt + 1 })
    }
  }
}

function start(first: Session): void {
  let unused: Session | undefined = first
  const client = createClient({
    url: '/v1/socket',
    build: first.build,
    token: async () => {
      const { token } = unused ?? (await fetchSession(guest))
      unused = undefined
      return token
    },
  })
  panel.onAgain(() => client.connect())
  const showConnection = () => panel.show(client.connection.getSnapshot())
  client.connection.subscribe(showConnection)
  showConnection()
  new Echo(client, (ms) => panel.latency(ms))
  new Board(client)
  const tide = new Tide(byId('tide', SVGPathElement), (perSecond) => panel.received(perSecond))

  // The room.
  const stage = byId('stage', HTMLElement)
  const bursts = byId('bursts', HTMLElement)
  const own = ownCursor(stage)
  const pointer = new Pointer(stage, (means) => {
    own(pointer, means)
    visit.point(pointer.x, pointer.y)
  })
  let skipped = 0
  const views: Views = {
    cursors: new Cursors(byId('cursors', HTMLElement)),
    roster: new Roster(byId('people', HTMLElement), byId('people-count', HTMLElement)),
    feed: new Feed(byId('feed', HTMLElement)),
    pointer,
    burst: (glyph, x, y) => burst(bursts, glyph, x, y),
    typing: (names) => write(byId('typing', HTMLElement), typingText(names)),
    alone: (alone) => {
      byId('alone', HTMLElement).hidden = !alone
    },
    arrived: () => tide.count(),
    skipped: (count) => panel.skipped((skipped += count)),
  }
  let visit = enter()
  addEventListener('hashchange', () => {
    visit.leave()
    visit = enter()
  })
  new ReactionBar(byId('reactions', HTMLElement), (glyph) => visit.react(glyph))
  new Composer(byId('say-form', HTMLFormElement), byId('say', HTMLInputElement), (said) => visit.say(said), (typing) => visit.type(typing))

  function enter(): Visit {
    const room = currentRoom()
    byId('room', HTMLInputElement).value = room
    document.title = `${room} · Tidewire demo`
    return new Visit(client, guest, name, room, views)
  }

  // One's own name, which all windows of this browser share.
  const nameField = byId('name', HTMLInputElement)
  nameField.maxLength = MAX_NAME
  nameField.value = name
  const rename = (to: string) => {
    nameField.value = name = to
    own.rename(name)
    visit.rename(name)
  }
  onChange(nameField, (value) => {
    const to = text(value, MAX_NAME) || name
    remember('name', to)
    rename(to)
  })
  onRemembered('name', rename)
  own.rename(name)

  // The way to others.
  onChange(byId('room', HTMLInputElement), (value) => {
    byId('room', HTMLInputElement).value = roomName(value)
    location.hash = roomName(value)
  })
  const copy = byId('copy', HTMLButtonElement)
  copy.addEventListener('click', async () => {
    const link = roomLink(currentRoom())
    const done = await navigator.clipboard?.writeText(link).then(() => true, () => false)
    // Where the clipboard is closed to pages, the address bar has it.
    if (!done) location.hash = currentRoom()
    flash(copy, done ? 'Copied' : 'See the address')
  })
  for (const button of document.querySelectorAll<HTMLButtonElement>('.open-window')) {
    button.addEventListener('click', () => window.open(roomLink(currentRoom()), '_blank', 'noopener,width=960,height=720'))
  }
  byId('skip', HTMLAnchorElement).addEventListener('click', (event) => {
    event.preventDefault() // the address's hash is the room's name
    stage.focus()
  })
}

/** One's own cursor: shown when there is none on the screen. */
function ownCursor(stage: HTMLElement) {
  const element = byId('own', HTMLElement)
  const label = make('span', 'cursor-name')
  element.append(drawPath('0 0 16 20', ARROW), label)
  tint(element, hueOf(guest))
  tint(stage, hueOf(guest))
  const move = ({ x, y }: Pointer, means: Means) => {
    element.hidden = means === 'mouse'
    element.style.left = `${x * 100}%`
    element.style.top = `${y * 100}%`
  }
  return Object.assign(move, { rename: (name: string) => write(label, name) })
}

/** Calls listener with what was entered: Enter and leaving the field do so, Escape takes it back. */
function onChange(field: HTMLInputElement, listener: (value: string) => void): void {
  let before = field.value
  field.addEventListener('focus', () => {
    before = field.value
  })
  field.addEventListener('change', () => listener(field.value))
  field.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') field.value = before
    if (event.key === 'Escape' || event.key === 'Enter') field.blur()
  })
}

/** Says something on a button for a moment. */
function flash(button: HTMLButtonElement, message: string): void {
  const label = button.querySelector('.label')
  if (!label) return
  const usual = (button.dataset['label'] ??= label.textContent ?? '')
  write(label, message)
  setTimeout(() => write(label, usual), 1500)
}
