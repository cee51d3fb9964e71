import { expect, it } from 'vitest'
import { CrossTabDataBus, preload } from '../src/crosstab/index.js'
import { createTestCluster } from '../src/testing/index.js'
it('X23: the example of docs/tabs.md', async () => {
  await preload()
  const cluster = createTestCluster({ seed: 7 })
  const [a, b] = [cluster.tab(), cluster.tab()]
  for (const tab of [a, b]) {
    new CrossTabDataBus({ clusterKey: 'test', transport: cluster.transport(tab), platform: tab.platform }).subscribe('topic', () => {})
  }
  await cluster.clock.advance(1000)
  a.crash()
  await cluster.clock.advance(1000)
  expect(cluster.server.subscriptions('topic')).toHaveLength(1)
})
