"""Which jobs Redis has, read page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from streamworker.core.job import Record
from streamworker.core.states import TERMINAL
from streamworker.store.caller import Caller
from streamworker.store.keys import Keys

#: Record keys that one step of a scan asks for, and jobs of one page.
SCAN_COUNT, PAGE = 1000, 500


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
