"""What is too old to be kept: whole days of transitions, and jobs that ended before them."""

from __future__ import annotations

import datetime
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamworker.core.ids import RANDOM_BYTES, new_job_id
from streamworker.core.states import QUIET_CODES
from streamworker.postgres.letters import OLDEST

if TYPE_CHECKING:
    import asyncpg

log = logging.getLogger("streamworker.mirror")

#: Rows of `jobs` that one statement deletes.
CHUNK = 1000
#: SQLSTATE of a lock that was not to be had in time: somebody reads the table, such as pg_dump.
_LOCKED = "55P03"
#: Classes of SQLSTATE that the jobs need not wait for: rights that are missing, or somebody's view of a day.
_OF_DAYS = ("2B", "42")

#: Dead letters of which nobody has decided stay as long as Redis has them, by default: else they would not
#: come back after a loss, and one that is replayed would be a job without task, lane or key.
_KEPT = """
status = 'failed_terminal' AND finished_at >= $6 AND error_code <> ALL($7::text[]) AND NOT EXISTS (
    SELECT FROM streamworker.operator_actions a
    WHERE a.subject = jobs.id::text AND a.action = 'discarded' AND a.detail = 'epoch ' || jobs.epoch)
"""
#: Goes on where the last one ended: what that deleted is looked through again until it is vacuumed.
DELETE_JOBS = f"""
WITH gone AS (
    DELETE FROM streamworker.jobs WHERE id IN (
        SELECT id FROM streamworker.jobs
        WHERE namespace = $1 AND id > $5::uuid AND id < $2::uuid AND finished_at < $3
          AND status IN ('succeeded', 'failed_terminal') AND ({_KEPT}) IS NOT TRUE
        ORDER BY id LIMIT $4) RETURNING id
)
SELECT (SELECT count(*) FROM gone), (SELECT id::text FROM gone ORDER BY id DESC LIMIT 1)
"""  # noqa: S608
#: Before the first job.
BEGINNING = "00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went."""

    days: tuple[datetime.date, ...]
    jobs: int
    reached: str = BEGINNING  # time was up: the next call goes on after that job

    @property
    def more(self) -> bool:
        return self.reached != BEGINNING


async def prune(
    connection: asyncpg.Connection,
    namespace: str,
    *,
    keep: datetime.timedelta,
    now: datetime.datetime,
    seconds: float = math.inf,
    after: str = BEGINNING,
) -> Pruned:
    """Drop the days before `now - keep`, of all namespaces, and this one's jobs that ended before.

    Jobs go until there are no more, or for about so many seconds. Days that somebody reads stay for now.
    """
    before, until = now - keep, time.monotonic() + seconds
    days = await _drop_days(connection, before.date())
    oldest = new_job_id(now_ms=max(0, int(before.timestamp() * 1000)), random=bytes(RANDOM_BYTES))
    jobs = 0
    while True:
        values = namespace, oldest, before, CHUNK, after, now - OLDEST, list(QUIET_CODES)
        row = await connection.fetchrow(DELETE_JOBS, *values)
        assert row is not None
        deleted, last = row
        jobs += deleted
        if deleted < CHUNK:
            return Pruned(days, jobs)
        after = last
        if time.monotonic() >= until:
            return Pruned(days, jobs, after)


async def _drop_days(connection: asyncpg.Connection, before: datetime.date) -> tuple[datetime.date, ...]:
    try:
        rows = await connection.fetch("SELECT streamworker.drop_days_before($1) AS day", before)
    except Exception as error:
        state = getattr(error, "sqlstate", None) or ""
        if state != _LOCKED and not state.startswith(_OF_DAYS):
            raise
        log.warning("the days of transitions before %s stay for now: %s (%s)", before, error, state)
        return ()
    return tuple(row["day"] for row in rows)
