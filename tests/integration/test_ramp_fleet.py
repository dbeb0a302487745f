"""A lane with a crowd in it is resumed. `RAMP_JOBS=50000 RAMP_SECONDS=60` makes the long form."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from streamworker import App, Context
from streamworker.ops import tune
from tests.integration.serving import serving
from tests.servers import BenchServer
from tests.waiting import wait_until_async

pytestmark = pytest.mark.usefixtures("no_leaks")

JOBS = int(os.environ.get("RAMP_JOBS", "600"))
SECONDS = int(os.environ.get("RAMP_SECONDS", "4"))


@pytest.fixture
async def app(valkey: BenchServer, namespace: str) -> AsyncIterator[App]:
    async with App("ramp", redis_url=valkey.url, namespace=namespace) as app:
        yield app


async def test_a_lane_that_is_resumed_starts_its_crowd_within_the_ramp(app: App) -> None:
    loop = asyncio.get_running_loop()
    starts: list[float] = []

    @app.task
    async def work(ctx: Context) -> None:
        starts.append(loop.time())

    queue = app.queue()
    await tune.pause(queue, "lane:normal", actor="me")
    for begin in range(0, JOBS, 1000):
        await app.enqueue_many(work.call() for _ in range(begin, min(JOBS, begin + 1000)))
    async with serving(app, concurrency=64):
        began = loop.time()
        await tune.resume(queue, "lane:normal", actor="me", over=SECONDS)
        await wait_until_async(lambda: len(starts) == JOBS, timeout=60 + 3 * SECONDS, what="all have started")

    # By any moment no more have started than the ramp had let in: a worker that was held up may catch up.
    for number, at in enumerate(starts):
        assert number <= JOBS * (at - began) / SECONDS + 1, f"start {number} after {at - began:.3f} s"
    seconds = Counter(int(at - began) for at in starts)
    assert max(seconds.values()) <= 2.5 * JOBS / SECONDS, seconds
