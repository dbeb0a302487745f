"""An app for tests of gates across processes: its handlers write down when they begin and end.

`GATES_JOURNAL` names the file. A line is written in one call and names the time in ns by the clock that all
processes of a machine share.
"""

from __future__ import annotations

import asyncio
import os
import time

from streamworker import App, Concurrency, Context, Rate, Retry

app = App("gates")
_JOURNAL = os.open(os.environ["GATES_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(what: str, ctx: Context, *more: object) -> None:
    words = (time.monotonic_ns(), os.getpid(), os.getppid(), what, ctx.job_id, ctx.attempt, *more)
    os.write(_JOURNAL, (" ".join(map(str, words)) + "\n").encode())


@app.task(limits=[Rate("task", "300/s")])
async def limited(ctx: Context) -> None:
    """Passes a rate that all processes share."""


@app.task(
    limits=[Concurrency("task", 5)],
    retry=Retry.schedule("100ms", "100ms", "100ms", unknown=["100ms", "100ms", "100ms"]),
)
async def shared(ctx: Context, seconds: float) -> None:
    """One of five."""
    note("begin", ctx)
    await asyncio.sleep(seconds)
    note("end", ctx)


@app.task(entity="thing:{thing}")
async def ordered(ctx: Context, thing: int, number: int, seconds: float = 0.002) -> None:
    """One at a time of its thing."""
    note("begin", ctx, thing, number)
    await asyncio.sleep(seconds)
    note("end", ctx, thing, number)
