// The code of the rungs, ahead: a test with a clock of its own does not wait for modules.
import { preload } from '../src/crosstab/rungs.js'

await preload()
