// graphile-worker with its documented batching: jobs are fetched for the whole process at once (localQueue) and completions are
// written together (completeJobBatchDelay). It deletes completed jobs; nothing is kept of them. The verbs are those of
// bench/peers/__init__.py.
//
// The numbers are the best found for one process: in four interleaved rounds 100 jobs and a queue of 2,000 drained 1.04 to 1.36
// times (median 1.17) as fast as 24 and 500, and 24 / 1,000, 100 / 500, 100 / 1,000 and 250 / 1,000 lay below,
// most of them by less than the rounds differ. Delays of 1 and 2 ms and 10, 200 and 500 jobs were only tried once each and did not
// beat the best of that sweep. Two processes run with the same numbers; they were not sought for two.
import fs from 'node:fs';
import path from 'node:path';
import readline from 'node:readline';
import { createRequire } from 'node:module';

const load = createRequire(path.join(process.env.BENCH_MODULES, 'package.json'));
const { run, makeWorkerUtils, Logger } = load('graphile-worker');
const connectionString = process.env.BENCH_URL;
const logger = new Logger(() => () => {});
const number = (name, otherwise) => Number(process.env[name] ?? otherwise);

const BATCH = 1000;
const SAY_EVERY = 10;
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const say = (value) => fs.writeSync(1, JSON.stringify(value) + '\n');
const lines = () => readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const utils = () => makeWorkerUtils({ connectionString, logger });

function starts(mode) {
  if (mode === 'each') return (reference) => say([reference, now()]);
  let count = 0, said = 0, first = 0;
  setInterval(() => { if (count !== said) say([(said = count), first]); }, SAY_EVERY);
  return () => { if (count === 0) first = now(); count += 1; };
}

const verbs = {
  async setup() {
    await (await utils()).migrate();
  },

  async submit(tasks) {
    const client = await utils();
    const began = now();
    for (let start = 0; start < Number(tasks); start += BATCH)
      await client.addJobs(Array.from({ length: BATCH }, () => ({ identifier: 'noop', payload: { reference: now() } })));
    say({ rate: Number(tasks) / (now() - began) });
  },

  async due() {
    const instants = JSON.parse((await lines().next()).value);
    const jobs = instants.map((instant) => ({ identifier: 'noop', payload: { reference: instant }, runAt: new Date(instant * 1000) }));
    await (await utils()).addJobs(jobs);
  },

  async ping() {
    const client = await utils();
    say('ready');
    for await (const _ of { [Symbol.asyncIterator]: lines }) await client.addJob('noop', { reference: now() });
  },

  async work(mode) {
    const note = starts(mode);
    say('ready');
    await lines().next();
    const worker = {
      concurrentJobs: number('BENCH_CONCURRENCY', 100),
      maxPoolSize: 10,
      localQueue: { size: number('BENCH_QUEUE', 2000) },
      completeJobBatchDelay: number('BENCH_DELAY', 0),
      failJobBatchDelay: 0,
    };
    const runner = await run({ connectionString, logger, preset: { worker }, taskList: { noop: async (payload) => note(payload.reference) } });
    await runner.promise;
  },
};

const [verb, ...rest] = process.argv.slice(2);
await verbs[verb](...rest);
process.exit(0);
