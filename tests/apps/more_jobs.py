"""An app for further cases: handlers that do to their process what no handler should.

MORE_HANG is "start" or "end": the lifespan hangs there. MORE_WEDGED: seconds until a wedged worker ends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from streamworker import App, Context, Retry
from streamworker.worker import wedge

#: Longer than any test.
LONG = 120.0
SOON = Retry.schedule("100ms", unknown=["100ms"])

wedge.WEDGED_AFTER = float(os.environ.get("MORE_WEDGED", wedge.WEDGED_AFTER))


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[None]:
    for place in ("start", "end"):
        if os.environ.get("MORE_HANG") == place:
            print(f"hangs at its {place}", flush=True)
            await asyncio.sleep(LONG)
        if place == "start":
            yield


app = App("more", lifespan=lifespan)


def _say(what: str) -> None:
    print(what, flush=True)


@app.task(timeout="60s", retry=SOON)
async def work(ctx: Context, seconds: float) -> int:
    _say(f"works {ctx.attempt}")
    await asyncio.sleep(seconds)
    return ctx.attempt


async def _exit() -> None:
    sys.exit(3)


@app.task(retry=Retry.never())
async def exit_in_a_task(ctx: Context) -> None:
    await asyncio.create_task(_exit())


@app.task(retry=Retry.never())
async def exit_in_a_group(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_exit())


@app.task
async def stop_the_loop(ctx: Context) -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "went on"


@app.task
async def set_aside(ctx: Context, how: str) -> int:
    """As libraries do in the main thread that want to end in their own way."""
    if how == "no wake-up":
        signal.set_wakeup_fd(-1)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "ignore" else signal.SIG_DFL)
    return ctx.attempt


@app.task
async def cancel_all(ctx: Context) -> int:
    """As `asyncio.run` does at its end, and code that was copied from there."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    return ctx.attempt


@app.task(timeout="60s")
async def block_threads(ctx: Context, seconds: float) -> None:
    """Each takes one thread of the loop."""
    _say("blocks a thread")
    await asyncio.to_thread(time.sleep, seconds)


@app.task
async def leave_a_task_behind(ctx: Context) -> None:
    """One that does not end when it is cancelled."""

    async def stay() -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(LONG)

    _left.append(asyncio.create_task(stay()))
    await asyncio.sleep(0)


_left: list[asyncio.Task[None]] = []


@app.task
async def leave_a_thread_behind(ctx: Context) -> None:
    threading.Thread(target=time.sleep, args=(LONG,)).start()


@app.task
async def leave_a_process_behind(ctx: Context) -> None:
    multiprocessing.get_context("spawn").Process(target=time.sleep, args=(LONG,)).start()


@app.task(timeout="60s")
def end_a_fork(ctx: Context) -> int | None:
    """The exit code of a child that was terminated; None: it does not end."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LONG,))
    child.start()
    child.terminate()
    child.join(5)
    code = child.exitcode
    if code is None:
        child.kill()
    return code


@app.task(timeout="60s", run_in="process")
def end_a_fork_apart(ctx: Context) -> int | None:
    return end_a_fork.handler(ctx)


@app.task(timeout="60s", retry=SOON)
def fork_and_return(ctx: Context) -> int:
    """Comes back twice, as with a child that nobody ends."""
    os.fork()
    return ctx.attempt


@app.task(timeout="60s", retry=SOON)
async def fork_and_wait(ctx: Context) -> int:
    """Comes back to the loop twice."""
    os.fork()
    await asyncio.sleep(0.3)
    return ctx.attempt


@app.task(timeout="60s", retry=SOON)
async def fork_and_return_here(ctx: Context) -> int:
    return fork_and_return.handler(ctx)


@app.task(timeout="200ms", retry=Retry.never())
def hang(ctx: Context) -> None:
    _say("hangs")
    threading.Event().wait(LONG)
