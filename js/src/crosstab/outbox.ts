import type { WorkerRecord } from './coordinator.js'
import type { Envelope, Message } from './messages.js'
import { PROTOCOL } from './names.js'
import type { ChannelPort, Platform } from './platform.js'
import type { Topic } from './topic.js'
import type { Publication } from './transport.js'

const BATCH_MS = 4
const BATCH_BYTES = 65_536
const ACK_BYTES = 65_536
const MAX_UNREAD = 1_048_576

type Event = Extract<Message, { type: 'EVENT' }>

/** How a worker reads what this one sends, and this one what it sends. */
export interface Reader {
  /** How many bytes of publications it has read, as far as it said. Undefined: it has just come. */
  _got: number | undefined
  /** What this worker has said of its. */
  _acked: number | undefined
  /** It does not keep up: it is sent nothing until it has read as much as this. */
  _slow: number | undefined
}

/**
 * What a worker says to the others: all of one task in one post. Publications wait up to 4 ms more when the last post was less than that ago, and in a hidden page, whose timers are late, for the tasks that are there
 * already, which are the more the further it is behind; and never for more than 64 KiB. Publications of a topic that follow each other are one message.
 *
 * # Slow tabs
 * A BroadcastChannel takes everything and says nothing. So each worker says how much it has read; of one that has 1 MiB unread nothing more is posted where it listens: the others are sent theirs on channels of their
 * own meanwhile. When it has read what it had, it is told where the others are.
 */
export function createOutbox(
  platform: Platform,
  after: Platform['after'],
  prefix: string,
  record: () => WorkerRecord,
  closing: (post: (message: Message) => void) => void,
  failed: () => void,
  readers: () => ReadonlyMap<string, Reader>,
) {
  const { page, now, soon, task, wallNow } = platform
  let messages: Message[] = []
  let bytes = 0
  let last = -Infinity
  let due = false
  let later: (() => void) | undefined
  const batch = new Map<Topic, Event>()
  let channel: ChannelPort | undefined
  let own: ChannelPort | undefined
  /** Ways to each of the others alone, while one is slow. */
  const lanes = new Map<string, ChannelPort>()
  const make = (name: string) => (platform.channel as NonNullable<Platform['channel']>)(prefix + name)

  const self = {
    _sent: 0,

    _open(me: string, heard: (data: unknown) => void): void {
      channel = make('bus')
      own = make(me)
      channel.onmessage = own.onmessage = ({ data }) => heard(data)
    },

    _close(): void {
      for (const port of [channel, own, ...lanes.values()]) port?.close()
      channel = own = undefined
      lanes.clear()
    },

    _post(message: Message): void {
      // Alone, there is nobody to tell.
      if (!channel) return
      messages.push(message)
      self._soon()
    },

    _soon(): void {
      if (due || !channel) return
      due = true
      soon(() => due && self._flush())
    },

    _event(t: Topic, publication: Publication, seq: number, size: number, replay: boolean): void {
      const open = batch.get(t)
      if (open && !open.replay === !replay) open.publications.push(publication)
      else {
        const event: Event = { type: 'EVENT', topicKey: t._key, generation: t._generation, seq, at: wallNow(), publications: [publication], ...(replay && { replay }) }
        batch.set(t, event)
        messages.push(event)
      }
      bytes += size
      const wait = last + BATCH_MS - now()
      if (bytes > BATCH_BYTES) self._flush()
      else if (wait <= 0) self._soon()
      else if (page.visible) later ??= after(wait, self._flush)
      else if (!due) {
        due = true
        task(() => due && self._flush())
      }
    },

    _flush(): void {
      due = false
      later?.()
      later = undefined
      closing((message) => messages.push(message))
      const all = messages
      messages = []
      batch.clear()
      const before = self._sent
      self._sent += bytes
      bytes = 0
      if (!all.length || !channel) return
      last = now()
      for (const way of ways(channel, before)) {
        try {
          send(way, all)
        } catch {
          // One of them cannot be cloned. It is lost; the others are not.
          for (const message of all) {
            try {
              send(way, [message])
            } catch {
              failed()
            }
          }
        }
      }
    },

    /** Notes what was read of another's, and says so from time to time. */
    _read(reader: Reader, id: string, sent: number): void {
      reader._acked ??= sent
      if (sent - reader._acked < ACK_BYTES) return
      reader._acked = sent
      self._post({ type: 'ACK', to: id, got: sent })
    },

    /** Notes what another has read. True: it was slow, and is no more. */
    _acked(reader: Reader, got: number): boolean {
      reader._got = got
      if (reader._slow === undefined || got + ACK_BYTES < reader._slow) return false
      reader._slow = undefined
      reader._got = self._sent
      return true
    },

    _forget(id: string): void {
      lanes.get(id)?.close()
      lanes.delete(id)
    },
  }

  function send(way: ChannelPort, messages: Message[]): void {
    way.postMessage({ tidewire: PROTOCOL, record: record(), sent: self._sent, messages } satisfies Envelope)
  }

  function ways(everyone: ChannelPort, before: number): ChannelPort[] {
    const all = [...readers()]
    for (const [, reader] of all) {
      reader._got ??= before
      if (self._sent - reader._got > MAX_UNREAD) reader._slow ??= before
    }
    if (all.every(([, { _slow }]) => _slow === undefined)) {
      for (const id of [...lanes.keys()]) self._forget(id)
      return [everyone]
    }
    return all.flatMap(([id, { _slow }]) => {
      if (_slow !== undefined) return []
      if (!lanes.has(id)) lanes.set(id, make(id))
      return [lanes.get(id) as ChannelPort]
    })
  }

  return self
}

export type Outbox = ReturnType<typeof createOutbox>
