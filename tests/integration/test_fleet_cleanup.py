"""Workers come and go, half of them by SIGKILL: no job is lost, and their names do not pile up (R6, R7).

FLEET_STARTS=200 makes the long form.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from typing import Any

from streamworker import App, Context, Retry
from streamworker.store.keys import STREAM_SUFFIX, Keys
from tests.integration.serving import serving
from tests.processes import PYTHONPATH, REPOSITORY
from tests.servers import BenchServer, async_client
from tests.waiting import wait_until_async

STARTS = int(os.environ.get("FLEET_STARTS", "40"))
#: Workers that serve at a time while others come and go.
AT_ONCE = 2
LEASE = "1s"

#: Makes workers by fork, each of which serves until it is killed: an import for each would take a second.
#: It has no loop and no thread of its own, so its forks are sound. A line on stdin kills the oldest, starts
#: another one; its end ends all.
NURSERY = """
import asyncio, os, signal, sys
from tests.integration.test_fleet_cleanup import app_of
from streamworker import Worker

def start():
    pid = os.fork()
    if pid == 0:
        sys.stdin.close()
        asyncio.run(Worker(app_of(*sys.argv[1:]), concurrency=4).serve())
        os._exit(0)
    return pid

alive = []
for line in sys.stdin:
    if len(alive) >= int(line):
        pid = alive.pop(0)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    alive.append(start())
    print(alive[-1], flush=True)
for pid in alive:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""


def app_of(url: str, namespace: str) -> App:
    app = App("cleanup", redis_url=url, namespace=namespace, lease=LEASE)

    @app.task(retry=Retry.schedule("1s", unknown=["1s", "1s"]))
    async def work(ctx: Context, seconds: float) -> int:
        await asyncio.sleep(seconds)
        return ctx.attempt

    return app


class Nursery:
    """Starts workers and kills them."""

    def __init__(self, *arguments: str) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("STREAMWORKER_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY, *arguments],
            cwd=REPOSITORY,
            env={**env, "PYTHONPATH": PYTHONPATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def one_more(self) -> int:
        """Kill the oldest if enough are alive, and start another; returns its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{AT_ONCE}\n".encode())
        self._process.stdin.flush()
        return int(await asyncio.to_thread(self._process.stdout.readline))

    def close(self) -> None:
        """Kill all that are left."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


async def names(client: Any, namespace: str, lanes: list[str]) -> set[str]:
    """Every consumer of every stream."""
    keys, found = Keys(namespace), set()
    for lane in lanes:
        for kind in STREAM_SUFFIX:
            stream = keys.stream(lane, kind)
            if await client.exists(stream):
                for group in await client.xinfo_groups(stream):
                    found |= {
                        each["name"].decode() for each in await client.xinfo_consumers(stream, group["name"])
                    }
    return found


async def test_workers_that_come_and_go_lose_no_job_and_leave_no_names(
    valkey: BenchServer, namespace: str, no_leaks: None
) -> None:
    app = app_of(valkey.url, namespace)
    work = app.tasks["work"]
    client: Any = async_client(valkey.url)
    nursery = Nursery(valkey.url, namespace)
    jobs: list[Any] = []
    seen: set[str] = set()
    killed = 0
    try:
        async with client, app:
            live = Keys(namespace).worker("*")
            for round_number in range(STARTS // 2):
                calls = [work.call(seconds=0.01 * (number % 4)) for number in range(20)]
                jobs += await app.enqueue_many(calls)
                await nursery.one_more()
                killed += round_number >= AT_ONCE
                async with serving(app, concurrency=4):
                    # It has taken part: the next goes on while this one's deliveries are under way.
                    await ended(jobs[-1])
                    seen |= await names(client, namespace, list(app.lanes))
            async with serving(app, concurrency=8):
                ends = Counter([await ended(job) for job in jobs])
                await wait_until_async(
                    lambda: dead_are_gone(client, namespace, app), timeout=20, what="dead names are forgotten"
                )
                left = await names(client, namespace, list(app.lanes))
                alive = {key async for key in client.scan_iter(live)}
    finally:
        nursery.close()

    assert killed >= STARTS // 2 - AT_ONCE
    assert len(seen) >= STARTS // 2, "too few workers took part for this to show anything"
    # Every job has come to an end: by far the most to success, those that were struck thrice as dead letters.
    assert sum(ends.values()) == len(jobs)
    assert set(ends) <= {"succeeded", "crash_loop", "worker_lost"}
    assert ends["succeeded"] >= 0.95 * len(jobs), ends
    assert len(left) <= len(alive) + 2, (left, alive)


async def ended(job: Any) -> str:
    """succeeded, or the error code."""
    from streamworker import JobFailed

    try:
        await job.result(60)
    except JobFailed as failure:
        return str(failure.code)
    return "succeeded"


async def dead_are_gone(client: Any, namespace: str, app: App) -> bool:
    """Whether every consumer that is left has a living worker."""
    keys = Keys(namespace)
    for name in await names(client, namespace, list(app.lanes)):
        if not await client.exists(keys.worker(name)):
            return False
    return True
