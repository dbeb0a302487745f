"""Workers inside the test: in the test's own loop, or in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import pytest

from streamworker import App, JobFailed, Worker

#: Seconds that a worker may take to start or to end.
PATIENCE = 20.0


@asynccontextmanager
async def serving(
    app: App, *, concurrency: int = 8, grace: float = 5.0, lanes: list[str] | None = None
) -> AsyncIterator[Worker]:
    """A worker that claims when the block begins and has said good-bye when it is left."""
    worker = Worker(app, concurrency=concurrency, grace=grace, lanes=lanes)
    task = asyncio.create_task(worker.serve())
    started = asyncio.create_task(worker.started.wait())
    try:
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([task, started], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
        yield worker
    finally:
        started.cancel()
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await task


async def failure(job: Any, seconds: float = 10) -> JobFailed:
    """How the job failed; fails if it does not."""
    with pytest.raises(JobFailed) as failed:
        await job.result(seconds)
    return failed.value


class ThreadWorker:
    """A worker in a thread with a loop of its own, for handlers that block theirs; a context manager."""

    def __init__(self, app: App, *, concurrency: int = 8, grace: float = 5.0) -> None:
        self._app = app
        self._concurrency = concurrency
        self._grace = grace
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="test-worker")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the worker did not start"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._leave is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker did not end"

    def _run(self) -> None:
        async def main() -> None:
            self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
            async with self._app, serving(self._app, concurrency=self._concurrency, grace=self._grace):
                self._ready.set()
                await self._leave.wait()

        try:
            asyncio.run(main())
        except BaseException as error:
            self._error = error
            self._ready.set()
