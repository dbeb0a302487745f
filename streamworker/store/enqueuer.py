"""Concurrent enqueues of one loop turn travel in one script call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from streamworker.core.errors import EnqueueRejected, OutcomeUnknown, StreamworkerError
from streamworker.store import scripts
from streamworker.store.caller import Caller, Doubt, backoff, passes
from streamworker.store.connection import NoScript, ReplyError
from streamworker.store.patience import Patience
from streamworker.store.placing import (
    RESTORING,
    Marker,
    Placed,
    answered,
    chunked,
    enqueue_call,
    refusal,
    restoring,
    together,
)
from streamworker.store.scripts import NewJob

_Waiting = tuple[NewJob, "asyncio.Future[Placed]"]


class _Chunk(Protocol):
    """Jobs that travel in one call, and whoever waits for what becomes of them."""

    @property
    def jobs(self) -> Sequence[NewJob]: ...

    def resolve(self, placed: list[Placed]) -> None: ...

    def refuse(self, error: Exception) -> None: ...


class _Apart:
    """Jobs of many callers, of whom each waits for one."""

    def __init__(self, waiting: Sequence[_Waiting]) -> None:
        self._waiting = waiting
        self.jobs = [job for job, _ in waiting]

    def resolve(self, placed: list[Placed]) -> None:
        for (_, future), one in zip(self._waiting, placed, strict=True):
            if not future.done():
                future.set_result(one)

    def refuse(self, error: Exception) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)


class _Together:
    """Jobs of one caller, who waits for all of them: a future for each would cost more than their replies."""

    def __init__(self, jobs: Sequence[NewJob], loop: asyncio.AbstractEventLoop) -> None:
        self.jobs = jobs
        self.placed: asyncio.Future[list[Placed]] = loop.create_future()

    def resolve(self, placed: list[Placed]) -> None:
        if not self.placed.done():
            self.placed.set_result(placed)

    def refuse(self, error: Exception) -> None:
        if not self.placed.done():
            self.placed.set_exception(error)


class Enqueuer:
    """Collects jobs until the end of the loop turn and sends them in chunks of at most 500."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._pending: list[_Waiting] = []
        self._scheduled = False
        self._resending: set[asyncio.Task[None]] = set()
        self._marker = Marker()
        self._loop = asyncio.get_running_loop()

    def add(self, job: NewJob) -> asyncio.Future[Placed]:
        """Add one job; the future gets what became of it.

        Raises (in the future) EnqueueRejected when Redis is out of memory, ConnectionLost when it could
        not be reached, OutcomeUnknown when the reply was lost and could not be had by sending again.
        """
        future: asyncio.Future[Placed] = self._loop.create_future()
        self._pending.append((job, future))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._scheduled = False
        pending, self._pending = self._pending, []
        for waiting in chunked(pending, lambda one: one[0]):
            chunk = _Apart(waiting)
            try:
                self._send(chunk)
            except Exception as error:  # no memory for what is to be sent: somebody waits for it
                _refuse(chunk, error)

    def _send(self, chunk: _Chunk) -> None:
        if not self._caller.link.connected:
            self._persist(chunk, sent=False)
            return
        call = self._call(chunk)
        reply = self._caller.link.send_script(call.script, self._caller.tag, *call.argv)
        reply.add_done_callback(partial(self._answered, chunk))

    def _answered(self, chunk: _Chunk, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled():
            self._persist(chunk, sent=True)
        elif (error := reply.exception()) is None:
            if reply.result() == RESTORING:
                self._persist(chunk, sent=False)
            else:
                _resolve(chunk, self._marker.learn(reply.result()))
        elif isinstance(error, NoScript) or (isinstance(error, Exception) and passes(error)):
            self._persist(chunk, sent=not isinstance(error, ReplyError))
        else:
            script = scripts.enqueue(clock="", rows=()).script
            _refuse(chunk, ReplyError(script.locate(str(error))))

    def _persist(self, chunk: _Chunk, *, sent: bool) -> None:
        """Send again until answered: the same job ids get the same disposition."""
        task = self._loop.create_task(self._resend(chunk, sent))
        self._resending.add(task)
        task.add_done_callback(self._resending.discard)

    async def _resend(self, chunk: _Chunk, sent: bool) -> None:
        job_ids = [job.job_id for job in chunk.jobs]
        try:
            replies = await self._until_restored(chunk, job_ids, sent)
        except StreamworkerError as error:
            _refuse(chunk, error)
        else:
            _resolve(chunk, replies)

    async def _until_restored(self, chunk: _Chunk, job_ids: list[str], sent: bool) -> list[bytes]:
        """The replies, once Redis has its data again.

        When that takes too long, raises EnqueueRejected, or OutcomeUnknown if a reply was lost before.
        """
        until = self._loop.time() + self._caller.patience
        attempt, doubt = 0, Doubt(sent)
        while True:
            replies: Any = await self._caller.run_once_known(self._call(chunk), job_ids, doubt)
            if replies != RESTORING:
                return self._marker.learn(replies)
            attempt += 1
            pause = backoff(attempt)
            if self._loop.time() + pause > until:
                raise OutcomeUnknown(job_ids) if doubt.lost else restoring()
            await asyncio.sleep(pause)

    def _call(self, chunk: _Chunk) -> scripts.Call:
        return enqueue_call(chunk.jobs, self._marker.known)

    async def place(self, jobs: Sequence[NewJob], *, wait: float = 0.0) -> list[Placed]:
        """Place a list; what is refused is sent again for up to `wait` seconds. Errors as in `add`."""
        if not wait:
            return await self._place(jobs)
        patience = Patience(jobs, wait)
        while True:
            try:
                pause = patience.take(await self._place(patience.jobs))
            except EnqueueRejected as refused:
                pause = patience.refuse(refused)
            if pause is None:
                return patience.placed
            await asyncio.sleep(pause)

    async def _place(self, jobs: Sequence[NewJob]) -> list[Placed]:
        """In one or a few calls of at most 500, two of them in flight. Errors as in `together`.

        When a call fails, the others stand: enqueuing the same jobs again changes nothing for them.
        """
        chunks = [_Together(part, self._loop) for part in chunked(jobs, _itself)] if jobs else []
        window = asyncio.Semaphore(2)

        async def send(chunk: _Together) -> list[Placed]:
            async with window:
                self._send(chunk)
                return await chunk.placed

        placed = await asyncio.gather(*(send(chunk) for chunk in chunks), return_exceptions=True)
        found: list[tuple[Sequence[NewJob], list[Placed] | Exception]] = []
        for chunk, part in zip(chunks, placed, strict=True):
            if isinstance(part, BaseException) and not isinstance(part, Exception):
                raise part
            found.append((chunk.jobs, part))
        return together(found)

    async def close(self) -> None:
        """Let what was added be answered first."""
        if self._pending:
            self._flush()
        while self._resending:
            await asyncio.wait(self._resending)


def _itself(job: NewJob) -> NewJob:
    return job


def _resolve(chunk: _Chunk, replies: list[bytes]) -> None:
    chunk.resolve([answered(job, reply) for job, reply in zip(chunk.jobs, replies, strict=True)])


def _refuse(chunk: _Chunk, error: Exception) -> None:
    error = refusal(error)
    for job in chunk.jobs:
        if job.sending is not None:
            job.sending.ended(None, error)
    chunk.refuse(error)
