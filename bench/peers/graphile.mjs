// graphile-worker with its documented batching: jobs are fetched for the whole process at once (localQueue) and completions are
// written together (completeJobBatchDelay). It deletes completed jobs; nothing is kept of them. The verbs are those of
// bench/peers/__init__.py.
//
// Of 24 to 500 concurrent jobs, queues of 500 to 2,000 and delays of 0 to 2 ms, these numbers drained fastest in interleaved
// rounds: in one process 1.17 times as fast as 24 jobs and a queue of 500, and 1.2 times as fast as with a delay of 1 ms.
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
