// A worker in JavaScript: Node 18 or newer, no packages. docs/pull-workers.md explains each step.
import { setTimeout as sleep } from "node:timers/promises";

const SERVER = process.env.DUETIME_SERVER ?? "http://127.0.0.1:8420", TOKEN = process.env.DUETIME_TOKEN, SLOTS = 4, LEASE = 15;
const schema = { type: "object", required: ["width", "height"], properties: { width: { type: "integer" }, height: { type: "integer" } } };
const handlers = { // return to succeed; throw to fail, with `fatal` to fail without retries; `signal` is aborted when the work should stop
  async resize({ width, height, pause = 0 }, { signal, report }) {
    await report(0.5, "halfway");
    await sleep(pause * 1000, undefined, { signal });
    if (width < 0) throw Object.assign(new RangeError(`width must not be negative, got ${width}`), { fatal: true });
    return { pixels: width * height };
  },
};
const running = new Map(), leaving = new AbortController(); // running: tasks whose end has not been answered yet, and how to stop them
let worker, guard, claims = 0, answered = 0;
const stopAll = () => running.forEach((stop) => stop.abort());
const renewed = () => (clearTimeout(guard), (guard = setTimeout(stopAll, LEASE * 800))); // stop before others may run our tasks

async function ask(path, body = {}, method = "POST", signal = undefined) { // repeated until it is answered, which is always harmless
  for (let pause = 100; ; await sleep((pause = Math.min(pause * 2, 5000)))) {
    const headers = { "content-type": "application/json", ...(TOKEN && { authorization: `Bearer ${TOKEN}` }) };
    const answer = await fetch(SERVER + path, { method, headers, signal, body: JSON.stringify(body) })
      .then(async (response) => ({ status: response.status, text: await response.text() })).catch(() => ({ status: 599 }));
    if (signal?.aborted) return { items: [] };
    if (answer.status < 300) return answer.text && JSON.parse(answer.text);
    if (answer.status < 500 && answer.status !== 429) throw Object.assign(new Error(answer.text), { status: answer.status });
  }
}
async function register() {
  const offer = { slots: SLOTS, timeout: 60, schema };
  worker = await ask("/v1/workers", { name: `node ${process.pid}`, lease: LEASE, handlers: { resize: offer } });
  console.log("ready", worker.id), renewed();
}
async function renewing() {
  for (;; await sleep(worker.renew_every * 1000)) {
    const mine = [...running.keys()], renewal = ask(`/v1/workers/${worker.id}/renew`, { running: mine, claim: answered || undefined });
    const { cancelled, lost } = await renewal.then((answer) => (renewed(), answer), () => ({ cancelled: [], lost: mine }));
    for (const id of [...cancelled, ...lost]) running.get(id)?.abort();
  }
}
async function run({ id, handler, payload, attempt }, owner) {
  const stop = new AbortController(), said = { worker: owner, attempt }, signal = stop.signal;
  const report = (fraction, text) => ask(`/v1/tasks/${id}/progress`, { ...said, fraction, text });
  running.set(id, stop);
  const end = await handlers[handler](payload, { signal, report }).then((result) => ({ outcome: "succeeded", result }), (error) =>
    signal.aborted ? { outcome: "released" } : { outcome: "failed", fatal: !!error.fatal, error: { type: error.name, message: error.message } });
  const say = async (how) => console.log(id, attempt, how.outcome, (await ask(`/v1/tasks/${id}/complete`, { ...said, ...how })).verdict);
  const refused = ({ message }) => say({ outcome: "failed", error: { type: "Refused", message: message.slice(0, 1000) } });
  await say(end).catch(refused).catch(console.error).finally(() => running.delete(id)); // refused: a result over 1 MB, for example
}
process.once("SIGTERM", () => (leaving.abort(), stopAll(), setTimeout(() => process.exit(1), 5000))); // the server may be gone
for (await register(), renewing(); !leaving.signal.aborted; answered = claims) {
  const request = { claim: ++claims, limit: SLOTS - running.size, wait: 5 }, owner = worker.id;
  const lost = (error) => (error.status === 410 ? (stopAll(), register().then(() => ({ items: [] }))) : Promise.reject(error));
  const { items } = await ask(`/v1/workers/${owner}/claim`, request, "POST", leaving.signal).catch(lost); // 410: the lease is over
  for (const item of items) run(item, owner);
  while (running.size >= SLOTS) await sleep(20);
}
while (running.size) await sleep(20);
await ask(`/v1/workers/${worker.id}`, {}, "DELETE").finally(() => process.exit(0));
