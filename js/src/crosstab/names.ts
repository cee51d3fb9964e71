import type { Mode } from './coordinator.js'
import { createOpaqueKey } from './hash.js'

/** The major version of what tabs say to each other and keep. Tabs of two majors share nothing. */
export const PROTOCOL = 1

/** What names a cluster. */
export interface ClusterOptions {
  /** Tabs with the same key, of the same principal, form a cluster. Default 'default'. */
  readonly clusterKey?: string | undefined
  /** Who is logged in. Tabs of two principals share nothing. */
  readonly principal?: string | undefined
}

/** The start of the name of every channel, lock, storage key and worker of a cluster. Tabs on different rungs form different clusters. */
export function clusterPrefix({ clusterKey = 'default', principal = '' }: ClusterOptions, mode: Mode): string {
  return `tidewire:${createOpaqueKey(JSON.stringify([PROTOCOL, mode, clusterKey, principal]))}:`
}

/** The start of what all principals of a cluster key share: the news that one of them left. */
export function sharedPrefix({ clusterKey = 'default' }: ClusterOptions): string {
  return `tidewire:${createOpaqueKey(JSON.stringify([PROTOCOL, clusterKey]))}:`
}
