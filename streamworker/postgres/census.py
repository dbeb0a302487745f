"""Which jobs Redis has, and which of Postgres's it has not, read page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from streamworker.core.job import Record
from streamworker.core.states import TERMINAL
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

if TYPE_CHECKING:
    import asyncpg

#: Record keys that one step of a scan asks for, and jobs of one page.
SCAN_COUNT, PAGE = 1000, 500
#: Before the first job.
BEFORE_ALL = "00000000-0000-0000-0000-000000000000"


class Census:
    """The records of one shard."""

    def __init__(self, caller: Caller, keys: Keys) -> None:
        self._caller = caller
        self._keys = keys

    async def all(self) -> AsyncIterator[list[str]]:
        """The ids of all jobs that have a record, in pages; some may come twice."""
        cursor, prefix = 0, len(self._keys.job(""))
        while True:
            moved, names = await self._caller.command(
                "SCAN", cursor, "MATCH", self._keys.job("*"), "COUNT", SCAN_COUNT
            )
            ids = [name.decode()[prefix:] for name in names]
            for start in range(0, len(ids), PAGE):
                yield ids[start : start + PAGE]
            cursor = int(moved)
            if cursor == 0:
                return

    async def open(self) -> AsyncIterator[list[Record]]:
        """The records of the jobs that are open, in pages."""
        async for ids in self.all():
            found = [record for record in await self.records(ids) if record is not None]
            still_open = [record for record in found if record.status not in TERMINAL]
            if still_open:
                yield still_open

    async def stored(self, connection: asyncpg.Connection, statement: str) -> AsyncIterator[list[str]]:
        """The ids of jobs that Postgres has, in pages.

        The statement selects `id`, ordered, for a namespace, a shard, the id to begin after, and a limit.
        """
        after = BEFORE_ALL
        while True:
            rows = await connection.fetch(statement, self._keys.namespace, self._keys.shard, after, PAGE)
            ids = [row["id"] for row in rows]
            if ids:
                yield ids
            if len(ids) < PAGE:
                return
            after = ids[-1]

    async def missing(self, connection: asyncpg.Connection, statement: str) -> AsyncIterator[list[str]]:
        """Of the jobs that Postgres has (see `stored`), those that Redis has no record of, in pages."""
        async for ids in self.stored(connection, statement):
            records = await self.raw(ids)
            yield [job_id for job_id, raw in zip(ids, records, strict=True) if raw is None]

    async def records(self, ids: Sequence[str]) -> list[Record | None]:
        """The record of each; None where there is none, or none that can be read."""
        return [_parsed(job_id, raw) for job_id, raw in zip(ids, await self.raw(ids), strict=True)]

    async def raw(self, ids: Sequence[str]) -> list[bytes | None]:
        """The record of each as it stands."""
        if not ids:
            return []
        found: list[bytes | None] = await self._caller.command("MGET", *map(self._keys.job, ids))
        return found


def _parsed(job_id: str, raw: bytes | None) -> Record | None:
    try:
        return None if raw is None else Record.parse(job_id, raw)
    except ValueError:
        return None
