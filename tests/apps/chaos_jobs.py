"""An app for chaos runs: every handler writes its start and its end in a journal that outlives its process.

CHAOS_JOURNAL names the journal of this worker process and its children, CHAOS_GO a file that `hold` awaits.
Retry schedules are short, for unknown errors as well, since a death of the worker is one. Those that pass
gates name them with the start.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from streamworker import (
    App,
    Breaker,
    Cache,
    Coalesce,
    Concurrency,
    Context,
    Dependency,
    Lane,
    PersistentError,
    Rate,
    Retry,
    Snooze,
    TransientError,
)
from streamworker.core.lane import DEFAULT_LANES

app = App(
    "chaos",
    lanes={**DEFAULT_LANES, "backlog": Lane(drain="40/s", burst=20)},
    dependencies={
        "carrier": Dependency(concurrency=4),
        "bank": Dependency(
            concurrency=8,
            breaker=Breaker(calls=5, window="2s", open_for="500ms", probes=2, ramp="1s"),
        ),
    },
    cache=Cache(ttl="5s"),
)
#: Deaths and errors alike: tried again soon, four times in all.
SHORT = Retry.schedule("100ms", "200ms", "300ms", unknown=["100ms", "200ms", "300ms"])
#: Seconds between two looks for the file that lets held jobs go.
LOOK = 0.01


@cache
def _journal(pid: int) -> int:
    """This process's descriptor of the journal; by process, so that a fork makes its own."""
    return os.open(os.environ["CHAOS_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _write(what: str, ctx: Context, *holds: str) -> None:
    # One write to a file opened for appending: lines of several processes never mix, and SIGKILL loses none.
    words = (what, ctx.job_id, str(ctx.attempt), str(ctx.fence), str(time.time_ns()), *holds)
    os.write(_journal(os.getpid()), (" ".join(words) + "\n").encode())


@contextmanager
def journaled(ctx: Context, *holds: str) -> Iterator[None]:
    """Write the start, and how the block ended: as the last thing before the handler gives control back.

    `holds`: the gates by which it runs.
    """
    _write("start", ctx, *holds)
    try:
        yield
    except Exception:
        _write("raised", ctx)
        raise
    _write("returned", ctx)


@app.task(retry=SHORT)
async def quick(ctx: Context, number: int = 0) -> int:
    """Return at once: the job is over before a start mark is due."""
    with journaled(ctx):
        return number


@app.task(retry=SHORT)
async def work(ctx: Context, seconds: float = 0.05) -> int:
    """Take that long."""
    with journaled(ctx):
        await asyncio.sleep(seconds)
        return ctx.attempt


@app.task(retry=SHORT)
def work_in_thread(ctx: Context, seconds: float = 0.05) -> int:
    """The same in a thread."""
    with journaled(ctx):
        time.sleep(seconds)
        return ctx.attempt


@app.task(retry=SHORT, run_in="process")
def work_in_process(ctx: Context, seconds: float = 0.05) -> int:
    """The same in a process of its own."""
    with journaled(ctx):
        time.sleep(seconds)
        return ctx.attempt


@app.task(retry=SHORT)
async def block(ctx: Context, seconds: float) -> int:
    """Hold the event loop."""
    with journaled(ctx):
        time.sleep(seconds)  # noqa: ASYNC251 - that is the fault
        return ctx.attempt


@app.task(retry=SHORT)
async def flaky(ctx: Context, failures: int = 1) -> int:
    """Fail so often, as a dependency does, and then return."""
    with journaled(ctx):
        if ctx.attempt <= failures:
            raise TransientError(f"attempt {ctx.attempt}")
        return ctx.attempt


@app.task(retry=SHORT)
async def broken(ctx: Context) -> None:
    """Fail for good."""
    with journaled(ctx):
        raise PersistentError("never")


@app.task(retry=SHORT, max_starts=6)
async def snooze(ctx: Context, times: int = 1) -> Snooze | int:
    """Come back soon, so many times; a file of its own counts them."""
    with journaled(ctx):
        path = f"{os.environ['CHAOS_GO']}-{ctx.job_id}"
        with open(path, "ab") as counted:  # noqa: ASYNC230 - a few bytes
            counted.write(b".")
            counted.flush()
            if counted.tell() <= times:
                return Snooze("20ms")
        os.unlink(path)  # noqa: PTH108
        return ctx.attempt


@app.task(retry=SHORT)
async def hold(ctx: Context) -> int:
    """Run until the file is there."""
    with journaled(ctx):
        go = os.environ["CHAOS_GO"]
        while not os.path.exists(go):  # noqa: ASYNC110, ASYNC240, PTH110 - no other process can set an event
            await asyncio.sleep(LOOK)
        return ctx.attempt


@app.task(retry=SHORT)
async def crash(ctx: Context) -> None:
    """Kill the process that runs it, every time."""
    with journaled(ctx):
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry=SHORT)
async def crash_once(ctx: Context) -> int:
    """Kill the process that runs it the first time."""
    with journaled(ctx):
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return ctx.attempt


@app.task(retry=SHORT, entity="thing:{thing}")
async def ordered(ctx: Context, thing: int, seconds: float = 0.01) -> int:
    """Be the only one about this thing, in the order of arrival."""
    with journaled(ctx, f"entity:thing:{thing}"):
        await asyncio.sleep(seconds)
        return ctx.attempt


@app.task(retry=SHORT, entity="part:{part}", entity_order="strict")
async def strict(ctx: Context, part: int, failures: int = 0, seconds: float = 0.01) -> int:
    """Be the only one about this part, until it is over: through so many failures."""
    with journaled(ctx, f"entity:part:{part}"):
        await asyncio.sleep(seconds)
        if ctx.attempt <= failures:
            raise TransientError(f"attempt {ctx.attempt}")
        return ctx.attempt


@app.task(retry=SHORT, limits=[Concurrency("task", 3)])
async def shared(ctx: Context, seconds: float = 0.05) -> int:
    """Be one of three."""
    with journaled(ctx, "concurrency:task:shared"):
        await asyncio.sleep(seconds)
        return ctx.attempt


@app.task(retry=SHORT, limits=[Rate("task", "40/s", burst=10)])
async def metered(ctx: Context) -> int:
    """Start so often at most."""
    with journaled(ctx, "rate:task:metered"):
        return ctx.attempt


@app.task(retry=SHORT, uses=["carrier"], entity="parcel:{parcel}")
async def called(ctx: Context, parcel: int, seconds: float = 0.05) -> int:
    """Be the only one about this parcel, and one of four who call the carrier."""
    gates = ("pause:dependency:carrier", f"entity:parcel:{parcel}", "concurrency:dependency:carrier")
    with journaled(ctx, *gates):
        await asyncio.sleep(seconds)
        return ctx.attempt


@app.task(retry=SHORT, uses=["bank"])
async def paid(ctx: Context, seconds: float = 0.02) -> int:
    """Call the bank, which is ill while a file says so."""
    with journaled(ctx, "breaker:dependency:bank", "concurrency:dependency:bank"):
        async with ctx.dependency("bank"):
            await asyncio.sleep(seconds)
            if os.path.exists(f"{os.environ['CHAOS_GO']}-ill"):  # noqa: ASYNC240, PTH110 - as in `hold`
                raise TransientError("503 from the bank")
        return ctx.attempt


@app.task(retry=SHORT, coalesce=Coalesce("collect", by="about:{thing}", window="300ms", limit=8))
async def gathered(ctx: Context, thing: int, items: list[str]) -> int:
    """Work on the items of many events at once."""
    with journaled(ctx, *(f"item:{item}" for item in items)):
        await asyncio.sleep(0.02)
        return len(items)


@app.task(retry=SHORT, coalesce=Coalesce("latest", by="about:{thing}", window="300ms", limit=6))
async def newest(ctx: Context, thing: int, event: str) -> str:
    """Work on the latest of many events."""
    with journaled(ctx, f"event:{event}"):
        await asyncio.sleep(0.02)
        return event


@app.task(retry=SHORT)
async def looked_up(ctx: Context, number: int) -> int:
    """Work with a cached value, and see that it is the right one."""

    async def load() -> list[int]:
        await asyncio.sleep(0.005)
        return [number, number * number]

    with journaled(ctx):
        if number % 3 == 0:
            ctx.invalidate(f"square:{number}")
        found = await ctx.cache.get(f"square:{number}", load)
        if found != [number, number * number]:
            raise PersistentError(f"{number} squared is {found}", code="wrong_value")
        return ctx.attempt
