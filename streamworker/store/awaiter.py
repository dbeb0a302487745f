"""Waits for the end of jobs: one blocking connection for all that an event loop waits for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from streamworker.core.errors import ConnectionLost, StreamworkerError
from streamworker.store import scripts, watching
from streamworker.store.caller import Caller, backoff, passes
from streamworker.store.connection import ReplyError
from streamworker.store.keys import Keys
from streamworker.store.watching import BLOCK, BLOCK_UNRELEASED, Ended

#: Waiters beyond which all are looked after at once: naming every key to Redis again for each job that ends
#: would take time by the square of them.
MANY = 32
#: Seconds for each of so many waiters, and at most, in which more may end before they are looked after.
GATHER, GATHER_MOST = 0.0001, 0.25


async def look(caller: Caller, job_id: str, *, wait: bool = False) -> Ended | bool | None:
    """The outcome; None while the job is open; False when there is no record of it."""
    return watching.parse(await caller.run(scripts.watch(clock="", job_id=job_id, wait=int(wait))))


class Awaiter:
    """Wakes whoever awaits a result; a lost wake-up costs one look more, never the result."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys
        self._link = caller.opens(caller.link.url, timeout=BLOCK + 3)
        self._wanted: dict[str, list[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._client_id: int | None = None  # of the blocked connection, to release it
        self._releases = True  # False: the server refuses CLIENT, so that reads have to be short
        self._blocked_on: set[str] = set()
        self._reads = 0  # blocking reads begun
        self._releaser: asyncio.Task[None] | None = None  # of no waiter's own: each may be cancelled
        self._closed = False

    async def wait(self, job_id: str) -> Ended | bool:
        """The outcome once the job is over; False when there is no record of it.

        Looks again each time the blocking read ends, so that an expired wake-up list does not matter. Raises
        ConnectionLost, also once it is closed.
        """
        found = await look(self._caller, job_id, wait=True)
        while found is None:
            if self._closed:
                raise ConnectionLost(f"closed while the result of job {job_id} was waited for")
            event = asyncio.Event()
            self._wanted.setdefault(job_id, []).append(event)
            self._listen(job_id)
            try:
                await event.wait()
            finally:
                waiting = self._wanted.get(job_id, [])
                if event in waiting:
                    waiting.remove(event)
                if not waiting:
                    self._wanted.pop(job_id, None)
            if not self._closed:
                found = await look(self._caller, job_id)
        return found

    def _listen(self, job_id: str) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        elif job_id not in self._blocked_on and (self._releaser is None or self._releaser.done()):
            self._releaser = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        """End the blocking read until one has begun that knows all keys."""
        while self._releases and not self._blocked_on.issuperset(self._wanted):
            read = self._reads
            try:
                if self._client_id is not None:
                    await self._caller.command("CLIENT", "UNBLOCK", self._client_id, "ERROR")
            except ReplyError as error:
                self._releases = passes(error)
            except StreamworkerError:
                pass  # there is no connection to be released
            if self._reads == read:  # it may have come before the read began to block
                await asyncio.sleep(0.002)

    async def _run(self) -> None:
        failures = 0
        while self._wanted:
            try:
                if not self._link.connected:
                    await self._link.connect()
                    await self._learn_own_id()
                self._blocked_on = set(self._wanted)
                self._reads += 1
                keys = [self._keys.done(job_id) for job_id in self._blocked_on]
                block = BLOCK if self._releases else BLOCK_UNRELEASED
                reply: Any = await self._link.call("BLPOP", *keys, str(block))
                over = await self._also_over(reply) if len(keys) > MANY else []
                failures = 0
            except Exception as error:  # whatever it is: who waits looks again
                if str(error).startswith("UNBLOCKED"):  # a new key to wait for
                    continue
                self._link.abort()
                failures += 1
                await asyncio.sleep(backoff(failures))
                self._wake(list(self._wanted))
                continue
            if reply is None:  # everybody looks once more: a wake-up may have expired
                self._wake(list(self._blocked_on))
            else:
                self._wake([reply[0].decode().rpartition(":done:")[2], *over])
        # The connection stays: whoever looked once more and waits on would need another one every 2 s.

    async def _also_over(self, reply: Any) -> list[str]:
        """Of those that are waited for, who else has ended when one has."""
        if reply is None:
            return []
        await asyncio.sleep(min(GATHER_MOST, GATHER * len(self._wanted)))
        wanted = list(self._wanted)
        found = await asyncio.gather(
            *(self._link.send("LPOP", self._keys.done(job_id)) for job_id in wanted), return_exceptions=True
        )
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [job_id for job_id, word in zip(wanted, found, strict=True) if word is not None]

    async def _learn_own_id(self) -> None:
        try:
            self._client_id = int(await self._link.call("CLIENT", "ID"))
        except ReplyError as error:
            if passes(error):
                raise
            self._client_id, self._releases = None, False  # this user may not, or the command was renamed

    def _wake(self, job_ids: list[str]) -> None:
        for job_id in job_ids:
            for event in self._wanted.pop(job_id, []):
                event.set()

    def abandon(self) -> None:
        """The event loop is closed: there is nobody who waits."""
        self._link.abort()

    async def close(self) -> None:
        """Whoever waits is told so."""
        self._closed = True
        for task in (self._releaser, self._task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._link.abort()
        self._wake(list(self._wanted))
