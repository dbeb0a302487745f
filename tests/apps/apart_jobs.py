"""An app for tests of child processes: its handlers write each start and end in a journal that outlives them.

APART_JOURNAL names the journal, APART_GO a file that some wait for; children inherit both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

from streamworker import App, Context, PersistentError, Retry, Snooze
from tests.integration.history import Journal

SHORT = Retry.schedule("50ms", "50ms", "50ms", unknown=["50ms", "50ms"])
#: Seconds between two looks for a file.
LOOK = 0.01


def journal() -> Journal:
    return Journal(os.environ["APART_JOURNAL"])


def go() -> bool:
    return Path(os.environ["APART_GO"]).exists()


@contextlib.asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[str]:
    up = os.environ.get("APART_UP")  # what the lifespan needs, where a test says so
    if up is not None and not Path(up).exists():  # noqa: ASYNC240
        raise ConnectionError("the database is away")
    if os.environ.get("APART_DIES"):  # ready, and dead before a job can begin
        asyncio.get_running_loop().call_soon(kill_myself)
    yield f"of {os.getpid()}"


app = App("apart", lease="1s", lifespan=lifespan)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal may take a moment


@app.task(retry=SHORT)
async def work(ctx: Context, seconds: float = 0.0) -> int:
    """Take that long."""
    journal().start(ctx)
    await asyncio.sleep(seconds)
    journal().end(ctx)
    return ctx.attempt


@app.task(retry=SHORT)
async def patient(ctx: Context) -> int:
    """Run until the file is there, or this process dies."""
    journal().start(ctx)
    while not go():  # noqa: ASYNC110 - no other process can set an event
        await asyncio.sleep(LOOK)
    journal().end(ctx)
    return ctx.attempt


@app.task(retry=SHORT)
async def poison(ctx: Context) -> None:
    journal().start(ctx)
    kill_myself()


@app.task(retry=SHORT, run_in="process")
def struck(ctx: Context, then: str = "return") -> int:
    """Kill its process the first time, which gives it a strike; then, in quarantine, do something else."""
    first = not journal().starts(ctx.job_id)
    journal().start(ctx)
    if first:
        kill_myself()
    while then == "wait" and not go():
        time.sleep(LOOK)
    journal().end(ctx)
    return os.getpid()


@app.task(retry=SHORT, run_in="process")
def where(ctx: Context) -> dict[str, object]:
    thread = threading.current_thread().name
    return {"pid": os.getpid(), "parent": os.getppid(), "thread": thread, "folder": str(Path.cwd())}


@app.task(retry=SHORT, run_in="process")
async def where_async(ctx: Context, seconds: float = 0.0) -> dict[str, object]:
    journal().start(ctx)
    await asyncio.sleep(seconds)
    return {"pid": os.getpid(), "state": ctx.state}


@app.task(retry=Retry.never(), run_in="process")
async def end_the_loop(ctx: Context, how: str) -> int:
    """Its process, which goes on."""

    async def leave() -> None:
        sys.exit(3)

    if how == "stop":
        asyncio.get_running_loop().stop()
    else:
        asyncio.get_running_loop().create_task(leave())
    await asyncio.sleep(0.02)
    return os.getpid()


@app.task(retry=Retry.never(), run_in="process")
async def errs(ctx: Context, kind: str) -> Snooze | object:
    match kind:
        case "persistent":
            raise PersistentError("no good")
        case "unknown":
            raise LookupError("ä" * 20_000)
        case "snooze" if ctx.fence and not journal().starts(ctx.job_id):
            journal().start(ctx)
            return Snooze("50ms")
        case "unserializable":
            return object()
    return ctx.attempt


@app.task(retry=Retry.never(), timeout="400ms", run_in="process")
async def blocks_loop(ctx: Context) -> None:
    journal().start(ctx)
    time.sleep(600)  # noqa: ASYNC251 - that is the fault


@app.task(retry=Retry.never(), timeout="400ms", run_in="process")
def blocks_thread(ctx: Context) -> None:
    journal().start(ctx)
    time.sleep(600)


@app.task(retry=Retry.never(), timeout="400ms", run_in="process")
async def deaf(ctx: Context) -> None:
    journal().start(ctx)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@app.task(retry=Retry.never(), timeout="400ms", run_in="process")
async def obeys(ctx: Context, seconds: float = 600.0) -> None:
    journal().start(ctx)
    try:
        await asyncio.sleep(seconds)
    finally:
        journal().end(ctx)


@app.task(retry=SHORT, run_in="process")
async def tells(ctx: Context) -> str:
    """Log, and enqueue another job."""
    ctx.log.warning("a word from %s", ctx.task)
    return (await correlated.enqueue()).id


@app.task
async def correlated(ctx: Context) -> str:
    return ctx.correlation_id


@app.task(retry=SHORT, run_in="process")
def holds_on(ctx: Context) -> int:
    journal().start(ctx)
    while not go():
        time.sleep(LOOK)
    journal().end(ctx)
    return ctx.attempt
