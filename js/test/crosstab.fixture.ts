import { CrossTabDataBus, type DataBusOptions, type MessageMeta } from '../src/crosstab/index.js'
import { createTestCluster, type TestCluster, type TestClusterOptions, type TestTab, type TestTabOptions, type TestTransport } from '../src/testing/index.js'

/** One tab with a bus, and what its handlers got. */
export interface Member {
  readonly tab: TestTab
  readonly transport: TestTransport
  readonly bus: CrossTabDataBus
  /** By topic: what the handler of {@link Member.want} got. */
  readonly got: Map<string, { readonly data: unknown; readonly meta: MessageMeta }[]>
  readonly lost: string[]
  readonly refused: string[]
  want(topic: string): () => void
  data(topic: string): unknown[]
}

export type Tuning = Partial<DataBusOptions>

/** A bus of a tab that is there. */
export function member(cluster: TestCluster, tab: TestTab, tuning: Tuning = {}): Member {
  const transport = cluster.transport(tab)
  const bus = new CrossTabDataBus({ transport, platform: tab.platform, clusterKey: 'wss://example.test/secret', ...tuning })
  const got: Member['got'] = new Map()
  const self: Member = {
    tab,
    transport,
    bus,
    got,
    lost: [],
    refused: [],
    want: (topic) =>
      bus.subscribe(topic, (data, meta) => {
        got.set(topic, [...(got.get(topic) ?? []), { data, meta }])
      }),
    data: (topic) => (got.get(topic) ?? []).map(({ data }) => data),
  }
  bus.on('lost', ({ topic }) => self.lost.push(topic))
  bus.on('refused', ({ topic }) => self.refused.push(topic))
  return self
}

/** A cluster, and what makes tabs with a bus in it. */
export function fixture(options: TestClusterOptions = {}, common: Tuning = {}) {
  const cluster = createTestCluster(options)
  const { clock, server } = cluster
  return {
    cluster,
    clock,
    server,
    open: (tabOptions: TestTabOptions = {}, tuning: Tuning = {}) => member(cluster, cluster.tab(tabOptions), { ...common, ...tuning }),
    /** All tabs have what was published. */
    settle: () => clock.advance(1000),
    /** Two tabs that want topic `t`, which the first one owns. */
    async pair(tabOptions: TestTabOptions = {}, tuning: Tuning = {}): Promise<[Member, Member]> {
      const members: Member[] = []
      for (let i = 0; i < 2; i++) {
        const each = member(cluster, cluster.tab(tabOptions), { ...common, ...tuning })
        each.want('t')
        await clock.advance(500)
        members.push(each)
      }
      if (server.subscriptions('t')[0] !== members[0]?.tab.name) throw new Error('the first one does not own it')
      return members as [Member, Member]
    },
    owner: (topic: string) => server.subscriptions(topic),
  }
}

export const range = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, i) => from + i)
