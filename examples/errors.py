"""What each kind of error turns into.

streamworker run errors:app     # in another terminal, in this folder
python errors.py
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from streamworker import (
    App,
    Call,
    Cancel,
    Context,
    Job,
    JobFailed,
    PersistentError,
    Retry,
    RetryAfter,
    Skip,
    Snooze,
    TransientError,
)

app = App("errors")

#: Far too short for production: a sick dependency could not recover in between.
QUICKLY = Retry.schedule("50ms", "100ms", "200ms", unknown=("50ms", "100ms"))


@app.task(retry=QUICKLY)
async def transient(ctx: Context) -> str:
    """Fails twice, then works."""
    if ctx.attempt < 3:
        raise TransientError("no answer", code="carrier_down")
    return f"worked at attempt {ctx.attempt}"


@app.task(retry=QUICKLY)
async def always_down(ctx: Context) -> None:
    """Retried until the attempts are used up: 4 of them here."""
    raise ConnectionError("nobody listens")


@app.task(retry=QUICKLY)
async def persistent(ctx: Context) -> None:
    """Never retried."""
    raise PersistentError("no such customer", code="no_customer")


@app.task(retry=QUICKLY)
async def bug(ctx: Context) -> float:
    """An unknown error: two retries, by a schedule of its own."""
    return 1 / 0


@app.task(retry=QUICKLY)
async def limited(ctx: Context) -> str:
    """The other side said when to come back."""
    if ctx.attempt == 1:
        raise RetryAfter(0.1)
    return f"worked at attempt {ctx.attempt}"


@app.task
async def snoozing(ctx: Context, until: float) -> str | Snooze:
    """Not ready: comes back without charging an attempt."""
    if time.time() < until:
        return Snooze("100ms")
    return f"worked at attempt {ctx.attempt}"


@app.task
async def skipped(ctx: Context) -> Skip | None:
    """There was nothing to do."""
    return Skip("paid already")


@app.task
async def withdrawn(ctx: Context) -> None:
    """Ends the job without a retry and without a dead letter."""
    raise Cancel("the customer withdrew")


async def outcome(job: Job[Any]) -> str:
    try:
        return str(await job.result(timeout="20s"))
    except JobFailed as failure:
        return f"failed: {failure.error_class}, {failure.code}"


async def main() -> None:
    soon = time.time() + 0.3
    calls: list[Call[Any]] = [
        transient.call(),
        always_down.call(),
        persistent.call(),
        bug.call(),
        limited.call(),
        snoozing.call(soon),
        skipped.call(),
        withdrawn.call(),
    ]
    async with app:
        jobs = await app.enqueue_many(calls)
        for call, job in zip(calls, jobs, strict=True):
            print(f"{call.job.task}: {await outcome(job)}")


if __name__ == "__main__":
    asyncio.run(main())
