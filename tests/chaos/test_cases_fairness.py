"""Cases of fairness: one tenant's flood, and another tenant's one job behind it."""

from __future__ import annotations

import asyncio

import pytest

from streamworker import App, Concurrency, Context
from tests.chaos.scale import SCALE
from tests.integration.history import Observer
from tests.integration.serving import serving

SLOTS = 4
#: Jobs of one tenant that stand in a lane at most, whatever waits behind them (D15).
STANDING = 16


@pytest.mark.parametrize(
    ("limits", "bound"),
    [([Concurrency("tenant", 2)], 2 * SLOTS), ([], STANDING + SLOTS)],
    ids=["two-at-a-time", "no-limit-declared"],
)
async def test_a_tenants_flood_does_not_keep_another_tenants_job_waiting(
    app: App, observer: Observer, limits: list[Concurrency], bound: int
) -> None:
    """B61: behind thousands of jobs, the other tenant's one starts when a few have ended; none is lost."""
    ended: list[str | None] = []
    before: list[int] = []

    @app.task(limits=limits)
    async def work(ctx: Context) -> None:
        if ctx.tenant == "quiet":
            before.append(len(ended))
        await asyncio.sleep(0.005)  # a job's work
        ended.append(ctx.tenant)

    flood = await app.enqueue_many(work.options(tenant="flood").call() for _ in range(500 * SCALE))
    one = await work.options(tenant="quiet").enqueue()
    async with serving(app, concurrency=SLOTS, lanes=["normal"]):
        await one.result(20)
        assert before[0] <= bound
        await flood[-1].result(60)
        await asyncio.gather(*(job.result(60) for job in flood))

    assert len(ended) == len(flood) + 1
    assert observer.leftovers() == []
