/**
 * The script of the worker that carries the native transport: it is started, not imported. One with another transport is made with `tidewire/worker/host`.
 */
import { TidewireTransport } from '../crosstab/tidewire.js'
import { hostWorker } from './serve.js'

hostWorker(() => new TidewireTransport())
