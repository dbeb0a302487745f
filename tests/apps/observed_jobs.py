"""An app with something for every metric to tell. Its carrier does not answer while a file is there.

OBSERVED_OUTAGE names the file. Redis is looked at for metrics more often than elsewhere, since the tests
scale minutes to seconds.
"""

from __future__ import annotations

import asyncio
import os

from streamworker import (
    App,
    Cache,
    Context,
    Dependency,
    Lane,
    PersistentError,
    Rate,
    Retry,
    Skip,
    TransientError,
)
from streamworker.worker import watcher

watcher.LOOK_EVERY, watcher.TERM = 0.5, 2.0

app = App(
    "shop",
    lanes={
        "priority": Lane(reserved=4, weight=4, target="1s"),
        "normal": Lane(reserved=4, weight=4, target="1m"),
        "heavy": Lane(weight=1, target="10m"),
    },
    # The carrier without a breaker, so that it is asked, and errs, all the time.
    dependencies={"carrier": Dependency(concurrency=8, breaker=None), "bank": Dependency()},
    cache=Cache(ttl="1m"),
)


class CarrierAway(TransientError):
    code = "carrier_away"


class BadAmount(PersistentError):
    code = "bad_amount"


SOON = Retry.schedule("200ms", "300ms", "400ms")


@app.task(lane="priority")
async def greet(ctx: Context) -> None:
    """Be quick, in the lane for that."""


@app.task(retry=SOON, uses=["carrier"], key="parcel:{parcel}")
async def call(ctx: Context, parcel: int) -> None:
    """Ask the carrier; now and then it is too busy to be asked."""
    if ctx.attempt == 1 and parcel % 40 == 0:
        raise CarrierAway("later")
    async with ctx.dependency("carrier"):
        if os.path.exists(os.environ["OBSERVED_OUTAGE"]):  # noqa: ASYNC240, PTH110 - a test's switch
            raise CarrierAway("the carrier does not answer")
        await asyncio.sleep(0.005)


@app.task(uses=["bank"])
async def charge(ctx: Context, cents: int) -> str | Skip:
    """Fail for good with nothing to charge, and skip what is negative."""
    async with ctx.dependency("bank"):
        await asyncio.sleep(0)
    if cents == 0:
        raise BadAmount("nothing to charge")
    return Skip("nothing to do") if cents < 0 else "charged"


@app.task
async def quote(ctx: Context, sku: int) -> int:
    """Ask the cache."""

    async def load() -> int:
        return 20 + sku

    price: int = await ctx.cache.get(f"price:{sku}", load)
    return price


@app.task(entity="order:{order}")
async def ship(ctx: Context, order: int) -> None:
    """One at a time for each order."""
    await asyncio.sleep(0.02)


@app.task(limits=[Rate("task", "5/s", burst=5)])
async def remind(ctx: Context) -> None:
    """A few a second."""


@app.task
async def count(ctx: Context, shelf: int) -> None:
    """Change a shelf while nobody else does."""
    async with ctx.lock(f"shelf:{shelf}"):
        await asyncio.sleep(0.01)


@app.task(lane="heavy")
async def report(ctx: Context, seconds: float) -> None:
    """Take long."""
    await asyncio.sleep(seconds)
