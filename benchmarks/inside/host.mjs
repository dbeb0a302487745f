// The twin of host.py and tally.py for Node: the same roles, options and lines.

import { createRequire } from "node:module";
import { readFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const PRODUCERS = 64;
const WARM_UPS = 20;
const WARM_UP_EVERY = 0.02;
const SILENCE = 1.0;
const LOOK_EVERY = 16;
const TICK = 100; // USER_HZ of Linux
const PADDING = "x".repeat(100);

// Packages are in the cache folder, not beside this file.
export const load = createRequire(join(process.env.BENCH_PACKAGES, "package.json"));

const monotonic = () => process.hrtime.bigint();
const now = () => Number(monotonic()) / 1e9;
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const argument = (n) => ({ n, pad: PADDING });
const say = (kind, figures = {}) => writeSync(1, `${kind} ${JSON.stringify(figures)}\n`);

function ownCpu() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

function cpuOf(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICK;
}

function cpuOfMachine() {
  const line = readFileSync("/proc/stat", "utf8").split("\n", 1)[0];
  const [user, nice, system, , , irq, softirq, steal] = line.split(/\s+/).slice(1).map(Number);
  return (user + nice + system + irq + softirq + steal) / TICK;
}

class Tally {
  constructor({ expect, deadline, redisPid }) {
    Object.assign(this, { expect, deadline, redisPid, count: 0, seen: new Set(), done: false });
  }

  used() {
    return [ownCpu(), cpuOf(this.redisPid), cpuOfMachine()];
  }

  ran({ n }) {
    this.seen.add(n);
    this.count += 1;
    if (this.count === 1) {
      this.began = now();
      this.before = this.used();
    } else if (this.count >= this.expect || this.count % LOOK_EVERY === 0) {
      const seconds = now() - this.began;
      const complete = this.count >= this.expect;
      if ((complete || seconds > this.deadline) && !this.done) {
        this.done = true;
        const [worker_cpu, redis_cpu, machine_cpu] = this.used().map((s, i) => s - this.before[i]);
        const repeats = this.count - this.seen.size;
        say("FIGURES", { jobs: this.count, seconds, complete, repeats, worker_cpu, redis_cpu, machine_cpu });
      }
    }
  }
}

class Delays {
  constructor({ expect }) {
    Object.assign(this, { expect, warmUps: 0, ns: [] });
  }

  ran({ sent }) {
    const at = monotonic();
    if (sent === undefined) {
      this.warmUps += 1;
      if (this.warmUps === WARM_UPS) say("WARM");
      return;
    }
    this.ns.push(Number(at - BigInt(sent)));
    if (this.ns.length === this.expect) {
      const ordered = this.ns.sort((a, b) => a - b);
      const rank = (share) => ordered[Math.round((ordered.length - 1) * share)] / 1e6;
      const figures = { p50_ms: rank(0.5), p95_ms: rank(0.95), p99_ms: rank(0.99), max_ms: rank(1) };
      say("FIGURES", { jobs: this.expect, ...figures });
    }
  }
}

async function fill(peer, { style, count, chunk, deadline }) {
  const end = now() + deadline;
  let next = 0;
  let put = 0;
  async function produce() {
    while (next < count && now() < end) {
      await peer.put(argument(next++));
      put += 1;
    }
  }
  if (style === "batches") {
    for (let start = 0; start < count && now() < end; start += chunk) {
      const size = Math.min(chunk, count - start);
      await peer.putMany(Array.from({ length: size }, (_, i) => argument(start + i)));
      put += size;
    }
  } else {
    await Promise.all(Array.from({ length: style === "producers" ? PRODUCERS : 1 }, produce));
  }
  return put;
}

const roles = {
  async worker(peer, options) {
    peer.work(options.url, options.slots, options.delays ? new Delays(options) : new Tally(options));
  },

  async fill(peer, options) {
    await peer.connect(options.url);
    const began = now();
    const cpu = ownCpu();
    const jobs = await fill(peer, options);
    const figures = { jobs, seconds: now() - began, client_cpu: ownCpu() - cpu };
    await peer.disconnect();
    say("FIGURES", figures);
    process.exit(0);
  },

  async pace(peer, { url, count, interval }) {
    await peer.connect(url);
    for (let n = 0; n < WARM_UPS; n += 1) {
      await peer.put(argument(n));
      await sleep(WARM_UP_EVERY);
    }
    await new Promise((resolve) => createInterface({ input: process.stdin }).once("line", resolve));
    await sleep(SILENCE);
    const began = now();
    for (let n = 0; n < count; n += 1) {
      const wait = began + n * interval - now();
      if (wait > 0) await sleep(wait);
      await peer.put({ ...argument(n), sent: String(monotonic()) });
    }
    say("FIGURES", { jobs: count, seconds: now() - began });
    process.exit(0);
  },
};

export async function play(peer) {
  const string = { type: "string" };
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      url: string, slots: string, expect: string, deadline: string, "redis-pid": string,
      count: string, style: string, chunk: string, interval: string, delays: { type: "boolean" },
    },
  });
  const numbers = ["slots", "expect", "deadline", "count", "chunk", "interval"];
  const options = { ...values, redisPid: Number(values["redis-pid"]) };
  for (const name of numbers) if (values[name] !== undefined) options[name] = Number(values[name]);
  await roles[positionals[0]](peer, options);
}
