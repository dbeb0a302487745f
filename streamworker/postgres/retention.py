"""What is too old to be kept: whole days of transitions, and jobs that ended before them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamworker.core.ids import RANDOM_BYTES, new_job_id

if TYPE_CHECKING:
    import asyncpg

#: Rows of `jobs` that one statement deletes.
CHUNK = 1000

DELETE_JOBS = """
DELETE FROM streamworker.jobs WHERE id IN (
    SELECT id FROM streamworker.jobs
    WHERE namespace = $1 AND id < $2::uuid AND finished_at < $3 AND status IN ('succeeded', 'failed_terminal')
    ORDER BY id LIMIT $4)
"""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went."""

    days: tuple[datetime.date, ...]
    jobs: int


async def prune(
    connection: asyncpg.Connection, namespace: str, *, keep: datetime.timedelta, now: datetime.datetime
) -> Pruned:
    """Drop the days before `now - keep`, of all namespaces, and this one's jobs that ended before."""
    before = now - keep
    rows = await connection.fetch("SELECT streamworker.drop_days_before($1) AS day", before.date())
    oldest = new_job_id(now_ms=max(0, int(before.timestamp() * 1000)), random=bytes(RANDOM_BYTES))
    jobs = 0
    while True:
        done = await connection.execute(DELETE_JOBS, namespace, oldest, before, CHUNK)
        deleted = int(done.rsplit(" ", 1)[1])
        jobs += deleted
        if deleted < CHUNK:
            return Pruned(tuple(row["day"] for row in rows), jobs)
