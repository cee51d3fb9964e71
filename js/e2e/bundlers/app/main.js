// An application as the documentation has it: bundlers see the worker in createWorker.
import { CrossTabDataBus } from 'tidewire/crosstab'
import { TidewireTransport } from 'tidewire/crosstab/tidewire'
import { createWorker } from 'tidewire/worker/create'

const got = []
const bus = new CrossTabDataBus({ transport: new TidewireTransport(), config: { url: '/v1/socket' }, createWorker })
bus.subscribe('log.bundled', (data) => got.push(data))
Object.assign(window, { bus, got })
