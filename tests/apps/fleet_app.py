"""An app for tests of fleets of processes: its handlers say where they ran, and misbehave on demand."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamworker import App, Context, TransientError

app = App("fleet")


@app.task
async def where(ctx: Context) -> dict[str, object]:
    """Slot and pid of the process that runs it."""
    return {"slot": os.environ.get("STREAMWORKER_SLOT"), "pid": os.getpid(), "attempt": ctx.attempt}


@app.task
async def late(ctx: Context, sent: float, seconds: float = 0.0) -> list[float]:
    """How many seconds after `sent` it started, and its attempt."""
    started = time.time() - sent
    await asyncio.sleep(seconds)
    return [started, ctx.attempt]


@app.task
async def block(ctx: Context, seconds: float) -> None:
    """Hold the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is the fault


@app.task
async def flaky(ctx: Context) -> None:
    """Fail as a dependency does."""
    raise TransientError("no answer", code="carrier_away")


@app.task
def orphan(ctx: Context) -> int:
    """Leave a process behind that ends soon, and whose parent has ended before it."""
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(0.5)
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
    return child


@app.task
async def die(ctx: Context) -> None:
    """Kill the process."""
    os.kill(os.getpid(), signal.SIGKILL)


@asynccontextmanager
async def _deaf_at_the_end(app: App) -> AsyncIterator[None]:
    """What is left of a worker's end when it hears signals no more, made longer."""
    yield
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("it hears no more", flush=True)
    time.sleep(20)  # noqa: ASYNC251


leaving = App("fleet", lifespan=_deaf_at_the_end)


@asynccontextmanager
async def _slow_to_go(app: App) -> AsyncIterator[None]:
    """The interpreter's own end, made longer."""
    yield
    atexit.register(time.sleep, 20)
    atexit.register(print, "the interpreter ends", flush=True)


lingering = App("fleet", lifespan=_slow_to_go)


@lingering.task
async def nothing_else(ctx: Context) -> None:
    """So that it has a task."""


@leaving.task
async def nothing_of_it(ctx: Context) -> None:
    """So that it has a task."""
