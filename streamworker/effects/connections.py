"""Connections to Postgres for the handlers of a process, one of them kept for each lane.

So a lane whose handlers hold all the others stops no other lane. They are made when they are needed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from streamworker.postgres.connection import connect, restore_settings

if TYPE_CHECKING:
    import asyncpg

#: Seconds that a graceful good-bye may take.
_CLOSE_SECONDS = 2.0
#: Seconds after which a connection that nobody used is not used again: what stands between may have dropped
#: it without a word, and the next statement would wait in vain.
IDLE_SECONDS = 60.0


class Permits:
    """Counts: one for each lane, the others, at least one, for who comes first. In one event loop."""

    def __init__(self, lanes: Iterable[str], size: int) -> None:
        self._own = dict.fromkeys(lanes, True)
        self._shared = max(1, size - len(self._own))
        self._waiting: deque[tuple[str, asyncio.Future[bool]]] = deque()

    async def take(self, lane: str) -> bool:
        """Whether what was taken is the lane's own; it is to be given back as that."""
        if self._own.get(lane):
            self._own[lane] = False
            return True
        if self._shared:
            self._shared -= 1
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        entry = lane, turn
        self._waiting.append(entry)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(lane, own=turn.result())
            else:
                self._waiting.remove(entry)
            raise

    def give(self, lane: str, *, own: bool) -> None:
        """To the first who waits and may have it."""
        for entry in self._waiting:
            other, turn = entry
            if (own and other != lane) or turn.done():
                continue
            self._waiting.remove(entry)
            turn.set_result(own)
            return
        if own:
            self._own[lane] = True
        else:
            self._shared += 1


@dataclass(frozen=True, slots=True)
class Borrowed:
    """A connection that somebody uses."""

    connection: asyncpg.Connection
    lane: str
    own: bool  # it is the one that is kept for the lane


class Connections:
    """About `size` connections; at least one for each lane, and one more."""

    def __init__(self, dsn: str, lanes: Iterable[str], size: int) -> None:
        self._dsn = dsn
        self._permits = Permits(lanes, size)
        self._idle: list[tuple[asyncpg.Connection, float]] = []  # and since when
        self._cleaning: set[asyncio.Task[None]] = set()

    async def borrow(self, lane: str) -> Borrowed:
        """A connection, to be handed back. Raises PostgresUnavailable, ConfigurationError."""
        own = await self._permits.take(lane)
        try:
            return Borrowed(await self._open(), lane, own)
        except BaseException:
            self._permits.give(lane, own=own)
            raise

    def hand_back(self, borrowed: Borrowed, *, sound: bool, used: bool = False) -> None:
        """`sound`: no statement was cut off. One that is left in a transaction is not used again either.

        `used`: by a handler, so that what that has set for its session must not meet the next one.
        """
        connection = borrowed.connection
        if not sound or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
        elif used:
            cleaning = asyncio.get_running_loop().create_task(self._clean(borrowed))
            self._cleaning.add(cleaning)
            cleaning.add_done_callback(self._cleaning.discard)
            return
        else:
            self._idle.append((connection, time.monotonic()))
        self._permits.give(borrowed.lane, own=borrowed.own)

    async def _clean(self, borrowed: Borrowed) -> None:
        """Settings, roles, locks and temporary tables end with who made them; nobody waits for that."""
        connection = borrowed.connection
        try:
            await connection.execute("DISCARD ALL")
            await restore_settings(connection, self._dsn)
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, Exception):
                raise
        else:
            self._idle.append((connection, time.monotonic()))
        finally:
            self._permits.give(borrowed.lane, own=borrowed.own)

    @asynccontextmanager
    async def connection(self, lane: str) -> AsyncIterator[asyncpg.Connection]:
        """A connection for one block. Raises PostgresUnavailable, ConfigurationError."""
        borrowed = await self.borrow(lane)
        sound = False
        try:
            yield borrowed.connection
            sound = True
        finally:
            self.hand_back(borrowed, sound=sound)

    async def _open(self) -> asyncpg.Connection:
        while self._idle and self._idle[0][1] < time.monotonic() - IDLE_SECONDS:
            connection, _ = self._idle.pop(0)
            connection.terminate()
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._dsn)

    async def close(self) -> None:
        """Close those that nobody uses."""
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await asyncio.gather(*self._cleaning, return_exceptions=True)
        idle, self._idle = [connection for connection, _ in self._idle], []
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await asyncio.gather(*(each.close() for each in idle), return_exceptions=True)
        for each in idle:
            each.terminate()
