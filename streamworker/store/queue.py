"""The queue's verbs for producers and operators, over the connections of one event loop."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from streamworker.core.errors import ConnectionLost, JobNotFound, ResultTimeout
from streamworker.core.job import Record
from streamworker.core.lane import Pressure
from streamworker.core.router import Router
from streamworker.settings import Settings
from streamworker.store import manifest, scripts
from streamworker.store.awaiter import Awaiter, look
from streamworker.store.caller import Caller
from streamworker.store.connection import Link, Opens, ReplyError
from streamworker.store.enqueuer import Enqueuer
from streamworker.store.keys import Keys
from streamworker.store.manifest import Declaration
from streamworker.store.pressures import Pressures
from streamworker.store.watching import Ended

#: Seconds for the last look when the time of who waits for a result is over.
LAST_LOOK = 0.5


class Queue:
    """One namespace as seen from one event loop. Connects when first used, and again when need be."""

    def __init__(self, settings: Settings, *, patience: float = 10.0, opens: Opens = Link) -> None:
        self.settings = settings
        self.keys = Keys(settings.namespace)
        self.caller = Caller(settings.redis_url, self.keys.tag, patience=patience, opens=opens)
        self.enqueuer = Enqueuer(self.caller)
        self._awaiter = Awaiter(self.caller, self.keys)
        self._manifest = manifest.Cache()
        self._pressures = Pressures()
        self._under_way: set[asyncio.Future[None]] = set()
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def run(self, call: scripts.Call) -> Any:
        """Run a script, again when its reply was lost."""
        return await self.caller.run(call)

    def declared(self, task: str) -> Declaration | None:
        """What the manifest says of a task, as far as this queue has read it; see `know`."""
        return self._manifest.get(task)

    @property
    def router(self) -> Router:
        """The rules of the manifest, as far as this queue has read them; see `know`."""
        return self._manifest.router

    @property
    def pressure(self) -> Mapping[str, Pressure]:
        """What was heard last of the pressure in the lanes; see `feel`."""
        return self._pressures.levels

    async def feel(self, router: Router) -> None:
        """Read the pressure, if this router wants to know it and it was not read just now.

        When it cannot be read, what was heard before is used on.
        """
        if fields := self._pressures.wanted(router):
            with suppress(ConnectionLost, ReplyError):
                self._pressures.note(router, await self.caller.command("HMGET", self.keys.policies, *fields))

    def unknown(self, tasks: Collection[str]) -> list[str]:
        """The tasks whose declaration `know` has to read first."""
        return self._manifest.stale(tasks)

    async def know(self, tasks: Collection[str]) -> None:
        """Read what these tasks declare, once for all who ask meanwhile. Raises ConnectionLost.

        An outage is no reason to forget: what was read before is used on.
        """
        mine = [name for name in tasks if name not in self._reading]
        if mine:
            task = asyncio.get_running_loop().create_task(self._read_manifest(mine))
            for name in mine:
                self._reading[name] = task
            task.add_done_callback(lambda done: self._have_read(mine, done))
        for reading in {self._reading[name] for name in tasks if name in self._reading}:
            await asyncio.shield(reading)

    @asynccontextmanager
    async def under_way(self) -> AsyncIterator[None]:
        """Something is being enqueued in this block: `close` waits for its end."""
        done = asyncio.get_running_loop().create_future()
        self._under_way.add(done)
        try:
            yield
        finally:
            self._under_way.discard(done)
            done.set_result(None)

    async def _read_manifest(self, tasks: list[str]) -> None:
        try:
            values = await self.caller.command("HMGET", self.keys.meta, *manifest.fields(tasks))
        except ReplyError as error:
            self._manifest.refused(tasks, error)
        except ConnectionLost:
            if not self._manifest.has(tasks):
                raise
        else:
            self._manifest.note(tasks, values)

    def _have_read(self, tasks: list[str], done: asyncio.Task[None]) -> None:
        for name in tasks:
            del self._reading[name]
        if not done.cancelled():
            done.exception()  # retrieved: a caller that is gone makes no noise

    async def outcome(self, job_id: str) -> Ended | None:
        """What the job came to; None while it is open. Raises JobNotFound."""
        found = await look(self.caller, job_id)
        if isinstance(found, bool):
            raise JobNotFound(job_id)
        return found

    async def wait(self, job_id: str, timeout: float | None) -> Ended:
        """The outcome, when the job is over.

        Raises JobNotFound, or after `timeout` seconds ResultTimeout, or ConnectionLost if Redis is away.
        """
        try:
            async with asyncio.timeout(timeout):
                ended = await self._awaiter.wait(job_id)
        except TimeoutError:
            pass
        else:
            if isinstance(ended, bool):
                raise JobNotFound(job_id)
            return ended
        try:
            async with asyncio.timeout(LAST_LOOK):
                found = await self.outcome(job_id)  # the time may have been too short for the first look
                status = found.status if found is not None else (await self.record(job_id)).status
        except TimeoutError:
            raise ConnectionLost(f"no answer from Redis about job {job_id} in time") from None
        if found is None:
            raise ResultTimeout(job_id, timeout or 0.0, status)
        return found

    async def record(self, job_id: str) -> Record:
        """The job's record. Raises JobNotFound."""
        raw = await self.caller.command("GET", self.keys.job(job_id))
        if raw is None:
            raise JobNotFound(job_id)
        return Record.parse(job_id, raw)

    async def cancel(self, job_id: str, *, actor: str, epoch: int | None = None) -> str:
        """Cancel a job: OK (it was waiting), FLAGGED (its handler is told), ALREADY (it is over).

        Raises JobNotFound.
        """
        call = scripts.cancel(
            clock="",
            actor=actor,
            retention_ms=scripts.RETENTION_MS,
            rows=(job_id, "-" if epoch is None else epoch),
        )
        (reply,) = await self.run(call)
        word = reply.decode().split(" ")[0]
        if word == "GONE":
            raise JobNotFound(job_id)
        return str(word)

    async def hasten(self, job_ids: Sequence[str], *, actor: str) -> list[str]:
        """Let jobs that wait for a time be due now: for each OK, GONE, or its status if it waits for none."""
        call = scripts.hasten(clock="", actor=actor, retention_ms=scripts.RETENTION_MS, rows=job_ids)
        return [reply.decode().removeprefix("ALREADY ") for reply in await self.run(call)]

    async def close(self) -> None:
        """Close the connections, after what was enqueued is answered."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self.enqueuer.close()
        await self._awaiter.close()
        await self.caller.close()

    def abandon(self) -> None:
        """Let go of the connections of an event loop that was closed without `close`."""
        self._awaiter.abandon()
        self.caller.link.abort()


class QueueSource:
    """A queue for each event loop and process that asks: connections are never shared (R27)."""

    def __init__(self, settings: Settings, *, opens: Opens = Link) -> None:
        self.settings = settings
        self.opens = opens
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, Queue]] = (
            weakref.WeakKeyDictionary()
        )

    def get(self) -> Queue:
        """The queue of the running loop."""
        loop = asyncio.get_running_loop()
        known = self._queues.get(loop)
        if known is None or known[0] != os.getpid():
            self._abandon_closed()
            known = (os.getpid(), self._make())
            self._queues[loop] = known
        return known[1]

    def _make(self) -> Queue:
        return Queue(self.settings, opens=self.opens)

    def _abandon_closed(self) -> None:
        """An `asyncio.run` for each call would leave a connection behind each time."""
        for reference in self._queues.keyrefs():  # a list: other threads may have loops of their own
            loop = reference()
            if loop is not None and loop.is_closed() and (known := self._queues.pop(loop, None)) is not None:
                known[1].abandon()

    async def close(self) -> None:
        """Close the running loop's queue, if there is one, and those of loops that are closed."""
        self._abandon_closed()
        known = self._queues.pop(asyncio.get_running_loop(), None)
        if known is not None and known[0] == os.getpid():
            await known[1].close()
