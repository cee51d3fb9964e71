import { TidewireError } from './error.js'

/** What a channel carries. A member left out is `unknown`. */
export interface ChannelTypes {
  readonly message?: unknown
  readonly presence?: unknown
  readonly state?: unknown
}

/** The type of member K of T, or unknown. */
export type TypeOf<T, K extends keyof ChannelTypes> = K extends keyof T ? T[K] : unknown

/** The names in braces of a pattern: `'orgId'` for `'org.{orgId}.feed'`. */
export type ParamNames<Pattern extends string> = Pattern extends `${string}{${infer Name}}${infer Rest}` ? Name | ParamNames<Rest> : never

/** The parameters of a pattern. */
export type Params<Pattern extends string> = { readonly [Name in ParamNames<Pattern>]: string | number }

/** A family of channels: a name with parameters, and the types of what they carry. */
export interface ChannelDefinition<Pattern extends string = string, T extends ChannelTypes = ChannelTypes> {
  readonly pattern: Pattern
  /** Returns the same definition with the types of what its channels carry. */
  types<U extends ChannelTypes>(): ChannelDefinition<Pattern, U>
  /** Only for the type checker. */
  readonly carries?: T
}

/**
 * Defines a family of channels.
 *
 * ```ts
 * const orgFeed = defineChannel('org.{orgId}.feed').types<{ message: Post; presence: User; state: Cursor }>()
 * client.channel(orgFeed, { orgId: 7 })
 * ```
 */
export function defineChannel<const Pattern extends string>(pattern: Pattern): ChannelDefinition<Pattern> {
  const definition = { pattern, types: () => definition as never }
  return definition
}

const NAME = /^[\w:@~=-]+(\.[\w:@~=-]+)*$/

/**
 * The channel name of a pattern. Throws CHANNEL_INVALID for a parameter that is missing, empty, or has a
 * character that a segment cannot have: a dot in a parameter must not reach into another channel.
 */
export function channelName(pattern: string, params: Readonly<Record<string, string | number>> = {}): string {
  const name = pattern.replace(/\{([^}]*)\}/g, (_, key: string) => {
    const value = String(params[key] ?? '')
    return value && !value.includes('.') ? value : '?' // which no name has
  })
  if (!NAME.test(name) || name.length > 255) {
    throw new TidewireError('CHANNEL_INVALID', { cause: `${pattern} ${JSON.stringify(params)}` })
  }
  return name
}
