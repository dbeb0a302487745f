"""`streamworker run --reload`: for development, a worker that is started anew when a source file changes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from streamworker.cli.edge import CommandFailed
from streamworker.cli.output import say

if TYPE_CHECKING:
    from asyncio.subprocess import Process

#: Seconds beyond its grace after which a worker that does not end is killed.
BEYOND_GRACE = 5.0
#: Milliseconds in which further changes belong to the first, as when an editor saves several files.
DEBOUNCE_MS = 200
#: On Linux the worker is told to stop when we are killed. An interpreter between fork and exec, since code
#: that runs in between may deadlock where there are threads.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def run_reloading(command: Sequence[str], *, grace: float) -> int:
    """Run the command until a signal, again whenever a .py file below the working directory changes.

    Returns the exit code of the last worker. Raises CommandFailed when watchfiles is not installed.
    """
    try:
        import watchfiles  # noqa: F401
    except ModuleNotFoundError:
        raise CommandFailed("--reload needs watchfiles: pip install 'streamworker[reload]'", code=2) from None
    code = asyncio.run(Reloader(command, Path.cwd(), grace=grace).run())
    return code if code >= 0 else 128 - code  # as shells tell of a signal


class Reloader:
    """Keeps one worker running, on the newest code."""

    def __init__(self, command: Sequence[str], folder: Path, *, grace: float) -> None:
        self._command = list(command)
        if sys.platform == "linux":
            self._command = [sys.executable, "-c", _TIED, str(os.getpid()), *command]
        self._folder = folder
        self._grace = grace
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._what = ""
        self._child: Process | None = None

    async def run(self) -> int:
        """Until SIGTERM or SIGINT, which are passed on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told, number)
        watching = loop.create_task(self._watch())
        code = 0
        try:
            while not self._stopping.is_set():
                self._changed.clear()
                code = await self._run_once(watching)
            return code
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _run_once(self, watching: asyncio.Task[None]) -> int:
        """One worker, until a change or a signal; its exit code."""
        # In a session of its own: Ctrl-C in a terminal is for us, the worker would hear it twice. And without
        # bytecode: a file of the same size that changed within the same second would count as unchanged.
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command, start_new_session=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        )
        loop = asyncio.get_running_loop()
        ended = loop.create_task(child.wait())
        interrupts = [loop.create_task(self._changed.wait()), loop.create_task(self._stopping.wait())]
        try:
            await asyncio.wait([ended, watching, *interrupts], return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not self._interrupted:
                say(f"reload: the worker ended with {ended.result()}; it starts again with the next change")
                await asyncio.wait([watching, *interrupts], return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                await self._end(child)
                watching.result()  # raises what went wrong
            if self._stopping.is_set():
                return await ended  # the signals were passed on: it ends as it ends without us
            say(f"reload: {self._what} changed, starting again")
            return await self._end(child)
        finally:
            for each in interrupts:
                each.cancel()

    @property
    def _interrupted(self) -> bool:
        return self._changed.is_set() or self._stopping.is_set()

    async def _end(self, child: Process) -> int:
        """Let the worker end gracefully, by force if it does not."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace + BEYOND_GRACE):
                return await child.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            return await child.wait()

    def _told(self, number: signal.Signals) -> None:
        self._stopping.set()
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None and self._child.returncode is None:
            with suppress(ProcessLookupError):
                self._child.send_signal(number)

    async def _watch(self) -> None:
        from watchfiles import PythonFilter, awatch

        changes = awatch(
            self._folder,
            watch_filter=PythonFilter(),
            debounce=DEBOUNCE_MS,
            rust_timeout=DEBOUNCE_MS,
            yield_on_timeout=True,
            stop_event=self._stopping,
        )
        told = False
        async for found in changes:
            if not told:
                told = True
                say(f"reload: watching {self._folder}")
            if found:
                paths = sorted({path.removeprefix(f"{self._folder}{os.sep}") for _, path in found})
                self._what = ", ".join(paths[:3]) + (" …" if paths[3:] else "")
                self._changed.set()
