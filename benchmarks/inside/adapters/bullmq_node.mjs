// BullMQ with its defaults.

import { load, play } from "../host.mjs";

const { Queue, Worker } = load("bullmq");

function connection(url) {
  const { hostname, port } = new URL(url);
  return { host: hostname, port: Number(port), maxRetriesPerRequest: null };
}

let queue;

play({
  async connect(url) {
    queue = new Queue("bench", { connection: connection(url) });
    await queue.waitUntilReady();
  },
  disconnect: () => queue.close(),
  put: (args) => queue.add("job", args),
  putMany: (many) => queue.addBulk(many.map((data) => ({ name: "job", data }))),
  work(url, slots, watcher) {
    const job = async ({ data }) => watcher.ran(data);
    new Worker("bench", job, { connection: connection(url), concurrency: slots });
  },
});
