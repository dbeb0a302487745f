"""An app for tests of faults: its handlers write each start and end in a journal that outlives them.

FAULTS_JOURNAL names the journal, FAULTS_GO a file that `hold` waits for. Retry schedules are short, for
unknown errors as well, since a death of the worker is one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

from streamworker import App, Context, Retry, Snooze, TransientError
from tests.integration.history import Journal

journal = Journal(os.environ["FAULTS_JOURNAL"])
go = os.environ.get("FAULTS_GO", os.devnull + "/never")

app = App("faults")
SHORT = Retry.schedule("100ms", "100ms", "100ms", unknown=["100ms", "100ms"])
#: Seconds between two looks for the file that lets held jobs go.
LOOK = 0.01


@app.task(retry=SHORT)
async def work(ctx: Context, seconds: float = 0.0) -> int:
    """Take that long."""
    journal.start(ctx)
    await asyncio.sleep(seconds)
    journal.end(ctx)
    return ctx.attempt


@app.task(retry=SHORT)
def work_in_thread(ctx: Context, seconds: float = 0.0) -> int:
    """The same in a thread."""
    journal.start(ctx)
    time.sleep(seconds)
    journal.end(ctx)
    return ctx.attempt


@app.task(retry=SHORT)
async def flaky(ctx: Context) -> int:
    """Fail once."""
    journal.start(ctx)
    if ctx.attempt == 1:
        raise TransientError("the first time")
    journal.end(ctx)
    return ctx.attempt


@app.task(retry=SHORT)
async def hold(ctx: Context) -> int:
    """Run until the file is there."""
    journal.start(ctx)
    while not os.path.exists(go):  # noqa: ASYNC110, ASYNC240, PTH110 - no other process can set an event
        await asyncio.sleep(LOOK)
    journal.end(ctx)
    return ctx.attempt


@app.task(retry=SHORT)
def hold_thread(ctx: Context) -> None:
    """Run in a thread for ever."""
    journal.start(ctx)
    threading.Event().wait()


@app.task(retry=SHORT)
async def deaf(ctx: Context) -> None:
    """Run for ever, whoever asks."""
    journal.start(ctx)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@app.task(retry=SHORT)
async def crash(ctx: Context) -> None:
    """Kill this process before the handler has run for a millisecond."""
    journal.start(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry=SHORT)
async def crash_once(ctx: Context) -> int:
    """Kill this process the first time."""
    first = not journal.starts(ctx.job_id)
    journal.start(ctx)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    journal.end(ctx)
    return ctx.attempt


@app.task(max_starts=6)
async def always_snoozes(ctx: Context) -> Snooze:
    """Come back soon, for ever."""
    journal.start(ctx)
    return Snooze("20ms")
