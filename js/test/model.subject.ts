import { CrossTabDataBus } from '../src/crosstab/index.js'
import type { MakeSubject } from './model.run.js'

/** A tab with a bus. */
export const busSubject: MakeSubject = ({ platform }, transport) => {
  const bus = new CrossTabDataBus({ platform, transport, clusterKey: 'model' })
  return {
    start: () => void bus.start().catch(() => {}),
    stop: () => bus.stop(),
    subscribe(topic, heard) {
      const off = bus.subscribe(topic, (data) => heard.data(data))
      const deaf = bus.on('lost', (event) => event.topic === topic && heard.lost())
      return () => {
        off()
        deaf()
      }
    },
    publish: (topic, data) => bus.publish(topic, data),
    running: () => bus.state.getSnapshot().lifecycle === 'running',
    snapshot: () => bus.getClusterSnapshot(),
  }
}
