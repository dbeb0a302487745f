"""Rows that may have been told longer ago than Redis remembers a job: told again only on proof (D19)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamworker.outbox.table import NO_MIRROR, Row
from streamworker.postgres.log import Log
from streamworker.store.queue import Queue

if TYPE_CHECKING:
    import asyncpg

_KNOWN = "SELECT id::text FROM streamworker.jobs WHERE id = ANY($1::uuid[]) AND version > 0"
_IS_ON = "SELECT EXISTS (SELECT 1 FROM streamworker.mirror_offsets WHERE namespace = $1 AND is_on)"


class Doubt:
    """Judges the doubtful rows of a round."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._log = Log(queue.caller, queue.keys)
        self._until: str | None = None  # the mirror must have read so far

    async def judge(
        self, connection: asyncpg.Connection, rows: Sequence[Row]
    ) -> tuple[list[Row], list[Row], dict[int, str]]:
        """The rows that may be told, those that were, and why the others wait."""
        doubtful = [row for row in rows if row.doubtful]
        if not doubtful:
            return list(rows), [], {}
        ids = [row.job_id for row in doubtful]
        records = await self._queue.caller.command("MGET", *map(self._queue.keys.job, ids))
        there = {job_id for job_id, raw in zip(ids, records, strict=True) if raw is not None}
        missing = [job_id for job_id in ids if job_id not in there]
        mirrored = bool(await connection.fetchval(_IS_ON, self._queue.keys.namespace))
        complete = not missing or (mirrored and await self._read_up())
        there |= {row[0] for row in await connection.fetch(_KNOWN, missing)}
        told = [row for row in doubtful if row.job_id in there]
        unknown = {row.id for row in doubtful if row.job_id not in there}
        if complete:
            return [row for row in rows if not row.doubtful or row.id in unknown], told, {}
        why = "the mirror is behind: whether it was told is not known yet" if mirrored else NO_MIRROR
        return [row for row in rows if not row.doubtful], told, dict.fromkeys(unknown, why)

    async def _read_up(self) -> bool:
        """Whether the mirror has read all that was logged when this was asked first."""
        if self._until is None:
            self._until = await self._log.last_id()
        complete = await self._log.read_up_to(self._until)
        if complete:
            self._until = None
        return complete
