"""The event loop of a worker that has a process to itself: no handler ends it, or keeps it from its end.

`asyncio.run` ends with the first task of a handler that raises SystemExit, and then cancels all others as if
they had failed by themselves; at the end it waits for threads and tasks that may never end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from streamworker.core.errors import ConfigurationError
from streamworker.worker import forks

log = logging.getLogger("streamworker.worker")

P = ParamSpec("P")
T = TypeVar("T")

#: Threads beyond the slots, so that handlers of which each fills one leave some for the worker.
SPARE_THREADS = 8
#: Seconds that tasks which handlers left behind get to end when they are cancelled.
LEFT_SECONDS = 1.0


class Threads(ThreadPoolExecutor):
    """Those of the loop, as `asyncio.to_thread` uses them; counts what runs."""

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=f"streamworker-{name}")
        self.busy = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(self._counted, call, *args, **kwargs)

    def _counted(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._lock:
            self.busy += 1
        try:
            return call(*args, **kwargs)
        finally:
            with self._lock:
                self.busy -= 1


#: Which kind of loop, `asyncio` (as its policy says) or `uvloop`.
LOOP_VARIABLE = "STREAMWORKER_LOOP"


def maker() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop that was asked for. Raises ConfigurationError."""
    match os.environ.get(LOOP_VARIABLE, "").strip() or "asyncio":
        case "asyncio":
            return asyncio.new_event_loop
        case "uvloop":
            try:
                import uvloop
            except ImportError:
                raise ConfigurationError(
                    f"{LOOP_VARIABLE}: uvloop is not installed; install streamworker[uvloop], or leave it out"
                ) from None
            return uvloop.new_event_loop
        case other:
            raise ConfigurationError(f"{LOOP_VARIABLE} {other!r}: asyncio or uvloop")


def run(
    main: Coroutine[Any, Any, None],
    *,
    slots: int,
    make: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> int:
    """Run it in a loop of its own; how many threads, tasks and processes are left that do not end.

    With such, whoever calls has to leave by `os._exit`: the interpreter would wait for them.
    """
    loop = make()
    asyncio.set_event_loop(loop)
    forks.leave_from(loop)
    threads, names = Threads(slots + SPARE_THREADS, "loop"), Threads(slots + SPARE_THREADS, "names")
    _look_up_in(names, loop)
    others = {*threading.enumerate(), *_processes()}
    loop.set_default_executor(threads)
    shut_down = loop.shutdown_default_executor
    loop.shutdown_default_executor = _stay_open  # type: ignore[method-assign]
    try:
        _complete(loop, loop.create_task(main))
    finally:
        left = _cancel_all(loop) + threads.busy + names.busy
        names.shutdown(wait=not left)
        if not left:
            _complete(loop, loop.create_task(shut_down()))
        asyncio.set_event_loop(None)
        if not left:
            loop.close()
    return left or _waited_for(others)


def _look_up_in(threads: Threads, loop: asyncio.AbstractEventLoop) -> None:
    """Look up names there: in the loop's own threads nobody would find Redis while a handler has them all."""
    if not isinstance(loop, asyncio.BaseEventLoop):  # uvloop has threads for it
        return

    async def look_up(host: Any, port: Any, **facts: int) -> Any:
        return await loop.run_in_executor(threads, partial(socket.getaddrinfo, host, port, **facts))

    loop.getaddrinfo = look_up  # type: ignore[method-assign]


async def _stay_open(timeout: float | None = None) -> None:
    """In place of a handler's end of all threads: without them nobody looks up names, to connect anew."""
    log.error("a handler ended the threads of the worker's loop, which goes on")


def _complete(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """Run the loop until this task is done, whatever other tasks raise into it."""
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            # Once signals are heard, no Ctrl-C comes as an exception: a handler's task raised it.
            if task.done() or signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                raise
            log.error("a task of a handler raised %s; the worker goes on", type(error).__name__)
        except RuntimeError:
            if task.done():
                raise
            log.error("a handler stopped the event loop of the worker, which goes on")


def _cancel_all(loop: asyncio.AbstractEventLoop) -> int:
    """Cancel what is left of it; how many do not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _complete(loop, loop.create_task(_await(tasks)))
    _complete(loop, loop.create_task(loop.shutdown_asyncgens()))
    return sum(not task.done() for task in tasks)


def _processes() -> list[Any]:
    """Those of multiprocessing, if somebody uses it."""
    multiprocessing = sys.modules.get("multiprocessing")
    return [] if multiprocessing is None else multiprocessing.active_children()


def _waited_for(others: set[Any]) -> int:
    """Threads and processes beside these `others` that the interpreter would wait for at its end."""
    until = time.monotonic() + LEFT_SECONDS
    left = 0
    for one in {*threading.enumerate(), *_processes()} - others:
        if not one.daemon:
            one.join(max(0.0, until - time.monotonic()))
            left += one.is_alive()
    return left


async def _await(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks, timeout=LEFT_SECONDS)
