import { TidewireError } from '../error.js'
import type { WorkerRecord, WorkerRoute } from './coordinator.js'
import { PROTOCOL } from './names.js'
import type { Position, Publication } from './transport.js'

/** What an owner says of a topic that it owns. */
export interface Owned {
  readonly topic: string
  readonly route: WorkerRoute
  /** The server has it subscribed now. */
  readonly live: boolean
  /** What has last been handed on, where the server keeps a history. */
  readonly head?: Position | undefined
  /** How many publications have been handed on in this generation. */
  readonly seq: number
  /** The workers that it knows to want the topic. */
  readonly knows: readonly string[]
  /** What a receiver has not got before head will not come. */
  readonly lost?: boolean
  /** It was taken from an owner that may still run: nothing of an older generation counts. */
  readonly fence?: boolean
}

/** Who is there, and what it wants and owns. Without `wants`, only the record of the envelope is new. */
export interface Registry {
  readonly type: 'REGISTRY'
  /** Topics, all of them. */
  readonly wants?: readonly string[]
  /** All of them. */
  readonly owns?: readonly Owned[]
  /** It has just come, and wants to be answered. */
  readonly hello?: boolean
  /** It leaves, and owns nothing any more. */
  readonly gone?: boolean
}

export interface Control {
  readonly type: 'CONTROL'
  readonly action: 'SUBSCRIBE' | 'UNSUBSCRIBE' | 'PUBLISH'
  readonly topic: string
  /** Who is to act. SUBSCRIBE: who is to become the owner, if there is none. */
  readonly targetWorkerId?: string
  /** SUBSCRIBE: the highest generation that the sender has seen, and where it wants to begin. */
  readonly generation?: number
  readonly from?: Position | undefined
  /** SUBSCRIBE: a route that was handed to the target. */
  readonly route?: WorkerRoute | undefined
  /** PUBLISH. */
  readonly requestId?: string
  readonly data?: unknown
  readonly id?: string | undefined
  /** PUBLISH: it was asked whether it is still wanted, and is. */
  readonly sure?: boolean
}

/** An error as it travels. */
export interface WireError {
  readonly code: string
  readonly cause: string
}

export type Message =
  | Registry
  | Control
  /** What became of a PUBLISH. `again`: nothing, it is to be sent anew if it is still wanted. */
  | { readonly type: 'RESULT'; readonly to: string; readonly requestId: string; readonly error?: WireError; readonly again?: boolean }
  /** Publications of a topic, the first one being number seq of its generation. `replay`: they came before others that were handed on already. */
  | {
      readonly type: 'EVENT'
      readonly to?: string
      readonly topicKey: string
      readonly generation: number
      readonly seq: number
      readonly replay?: boolean
      readonly at: number
      readonly publications: Publication[]
    }
  | { readonly type: 'CONFIRM'; readonly to?: string; readonly owned: Owned }
  /** Without locks: who wants to become the owner, and will unless somebody objects. To an owner it says that a generation at least as high was seen. */
  | { readonly type: 'CLAIM'; readonly topic: string; readonly generation: number }
  /** The old owner's last word on a topic: it is unsubscribed. `route` hands it to another. */
  | { readonly type: 'ROUTE_RELEASED'; readonly topic: string; readonly generation: number; readonly head?: Position | undefined; readonly route?: WorkerRoute | undefined }
  /** Are you there? Any message answers it. */
  | { readonly type: 'PROBE'; readonly to: string }
  | { readonly type: 'REPAIR'; readonly topicKey: string; readonly from: Position }
  | { readonly type: 'REFUSED'; readonly topicKey: string; readonly error: WireError }
  /** So many bytes of a worker's publications were read. */
  | { readonly type: 'ACK'; readonly to: string; readonly got: number }
  /** Another worker's lock is free: it is dead. */
  | { readonly type: 'GONE'; readonly workerId: string }

/** What is posted: everything that one worker has to say at a time, with its record. */
export interface Envelope {
  readonly tidewire: number
  readonly record: WorkerRecord
  /** How many bytes of publications it has sent, with these. */
  readonly sent: number
  readonly messages: readonly Message[]
}

// What a message must have to be handled without a fault: members with their kinds, a question mark for those that may be missing.
const SHAPES: Record<Message['type'], string> = {
  REGISTRY: 'wants?:strings owns?:owned',
  CONTROL: 'action:s topic:s generation?:n from?:position route?:route',
  RESULT: 'to:s requestId:s error?:o',
  EVENT: 'topicKey:s generation:n seq:n publications:objects',
  CONFIRM: 'owned:one',
  CLAIM: 'topic:s generation:n',
  ROUTE_RELEASED: 'topic:s generation:n head?:position route?:route',
  PROBE: 'to:s',
  REPAIR: 'topicKey:s from:position',
  REFUSED: 'topicKey:s error:o',
  ACK: 'to:s got:n',
  GONE: 'workerId:s',
}

type Check = (value: unknown) => boolean
const isObject: Check = (value) => typeof value === 'object' && !!value
const isString: Check = (value) => typeof value === 'string'
const shaped =
  (shape: string): Check =>
  (value) =>
    isObject(value) &&
    shape.split(' ').every((member) => {
      const [name = '', kind = ''] = member.split(':')
      const part = (value as Record<string, unknown>)[name.replace('?', '')]
      return (part === undefined && name.endsWith('?')) || (KINDS[kind] as Check)(part)
    })
const all =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check)
const isOwned = shaped('topic:s route:route seq:n knows:strings head?:position')
const isRoute = shaped('topicKey:s workerId:s tabId:s generation:n')
const isRecord = shaped('workerId:s tabId:s load:n role:s status:s visibilityState:s registeredAt:n')
const isPublication = shaped('position?:position id?:s')
const KINDS: Record<string, Check> = {
  s: isString,
  n: Number.isFinite,
  o: isObject,
  list: Array.isArray,
  strings: all(isString),
  objects: all(isPublication),
  position: shaped('offset:n epoch:s'),
  route: isRoute,
  one: isOwned,
  owned: all(isOwned),
}
const isEnvelope = shaped('record:o sent:n messages:list')

/** Any page of the origin can post: what is not a message of this protocol is ignored. */
export function decode(data: unknown): Envelope | undefined {
  const envelope = data as Envelope
  if (!isEnvelope(data) || envelope.tidewire !== PROTOCOL || !isRecord(envelope.record)) return undefined
  return { ...envelope, messages: envelope.messages.filter((message) => isObject(message) && Object.hasOwn(SHAPES, message.type) && shaped(SHAPES[message.type])(message)) }
}

/** Reads a stored record. What is not one is as if it were not there. */
export const readWorker = (value: unknown) => (isRecord(value) ? (value as WorkerRecord) : undefined)
export const readRoute = (value: unknown) => (isRoute(value) ? (value as WorkerRoute) : undefined)

/** An error of a transport, as another tab is told of it. */
export function toWire(error: unknown): WireError {
  const { code, cause, message } = Object(error) as Record<'code' | 'cause' | 'message', unknown>
  return { code: typeof code === 'string' ? code : 'INTERNAL', cause: String(cause || message || error) }
}

export const fromWire = ({ code, cause }: WireError): TidewireError => new TidewireError(String(code), { cause: String(cause) })
