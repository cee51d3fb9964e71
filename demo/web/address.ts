const LOBBY = 'lobby'

/** A room's name made of what someone wrote: it becomes a part of a channel's name. */
export function roomName(written: string): string {
  const name = written.normalize('NFKD').toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-+|-+$/g, '').slice(0, 32)
  return name || LOBBY
}

/** The room of the page's address. */
export function currentRoom(): string {
  let hash = location.hash.slice(1)
  try {
    hash = decodeURIComponent(hash)
  } catch {
    // As it is, then.
  }
  return roomName(hash)
}

/** The address that leads others here. */
export function roomLink(room: string): string {
  return `${location.origin}${location.pathname}#${room}`
}
