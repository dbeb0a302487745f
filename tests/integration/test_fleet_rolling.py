"""A rolling restart under load: no attempt is charged, and jobs start about as soon as ever.

What is compared is the restart, not the machine: a Python that starts takes a whole core for a while, so the
usual load is measured beside interpreters that start as well.

FLEET_SECONDS=30 looks for longer; FLEET_RATE is the load in jobs a second; FLEET_NOISE=0 makes no allowance
for a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from streamworker import App
from tests.integration.test_fleet import PATIENCE, pids, up
from tests.processes import REPOSITORY, WorkerProcess
from tests.servers import BenchServer

SECONDS = float(os.environ.get("FLEET_SECONDS", "5"))
RATE = float(os.environ.get("FLEET_RATE", "40"))
PROCESSES = 4
#: Seconds that a job runs, so that each restart finds some under way.
WORK = 0.05
#: Below this, in seconds, a p99 is noise of a busy machine.
NOISE = float(os.environ.get("FLEET_NOISE", "0.6"))


@dataclass(slots=True)
class Load:
    """What the jobs of one span said."""

    waits: list[float]
    attempts: set[int]

    @property
    def p99(self) -> float:
        return sorted(self.waits)[min(len(self.waits) - 1, int(len(self.waits) * 0.99))]

    @property
    def p50(self) -> float:
        return sorted(self.waits)[len(self.waits) // 2]


async def start_interpreters(until: asyncio.Event) -> None:
    """One after the other, as a rolling restart does."""
    while not until.is_set():
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-c",
                "import streamworker.cli.main, streamworker.worker.worker, redis.asyncio",
            ),
            cwd=REPOSITORY,
        )
        await process.wait()


async def load(app: App, until: asyncio.Event) -> Load:
    """Enqueue at a steady rate until told to end, then await all results."""
    from tests.apps.fleet_app import late

    jobs: list[asyncio.Task[Any]] = []

    async def one() -> list[float]:
        job = await app.enqueue(late.name, {"sent": time.time(), "seconds": WORK})
        result: list[float] = await job.result(60)
        return result

    began = time.monotonic()
    while not until.is_set():
        jobs.append(asyncio.create_task(one()))
        pause = began + len(jobs) / RATE - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, pause)):
                await until.wait()
        except TimeoutError:
            continue
    results = await asyncio.gather(*jobs)
    return Load([wait for wait, _ in results], {int(attempt) for _, attempt in results})


async def test_a_rolling_restart_charges_nobody_and_delays_little(
    valkey: BenchServer, namespace: str, no_leaks: None
) -> None:
    from tests.apps import fleet_app

    app = App("fleet", redis_url=valkey.url, namespace=namespace)
    app.task(name=fleet_app.late.name)(fleet_app.late.handler)
    arguments = ("--processes", str(PROCESSES), "--concurrency", "8", "--grace", "10s")
    with WorkerProcess("fleet_app:app", *arguments, redis_url=valkey.url, namespace=namespace) as supervisor:
        before = await asyncio.to_thread(up, supervisor, PROCESSES)
        async with app:
            done = asyncio.Event()
            asyncio.get_running_loop().call_later(SECONDS, done.set)
            starting = asyncio.create_task(start_interpreters(done))
            usual = await load(app, done)
            await starting

            done = asyncio.Event()
            loading = asyncio.create_task(load(app, done))
            os.kill(supervisor.pid, signal.SIGHUP)
            await asyncio.to_thread(
                supervisor.wait_for_log, "rolling restart is done", timeout=PATIENCE * PROCESSES
            )
            done.set()
            rolling = await loading
        after = pids(supervisor)
        supervisor.terminate()
        assert await asyncio.to_thread(supervisor.wait) == 0

    print(
        f"{RATE:g} jobs/s, start latency p50/p99 ms: usual {usual.p50 * 1e3:.1f}/{usual.p99 * 1e3:.1f}, "
        f"rolling {rolling.p50 * 1e3:.1f}/{rolling.p99 * 1e3:.1f} ({len(rolling.waits)} jobs)"
    )
    assert set(before.values()).isdisjoint(after.values())
    assert usual.attempts == {1}
    assert rolling.attempts == {1}
    assert rolling.p99 < max(2 * usual.p99, NOISE)
